/* SPDX-License-Identifier: Apache-2.0 */
/* State of the rendezvous layer in one context (struct tern_rdv), and listeners. */
#ifndef TERN_RENDEZVOUS_LAYER_H
#define TERN_RENDEZVOUS_LAYER_H

#include <tern/channel.h>

#include "base/list.h"
#include "base/map.h"
#include "rendezvous/credit.h"
#include "rendezvous/match.h"
#include "transport/admission.h"
#include "transport/context.h"

struct tern_rdv {
	struct tern_context *ctx;
	uint64_t incarnation;
	struct tern_match_secret match_secret;
	struct tern_list peers, links, listeners;
	/* Accepted links whose handshake is not complete. */
	struct tern_admission half_open;
	uint32_t half_open_max;
	uint32_t refused_count; /* links whose flag `refused` is set */

	/* Transfers (struct tern_xfer) that have ended, and whose done() is still to be
	 * called. */
	struct tern_list completed;
	struct tern_deferred complete_call;
	uint64_t ending_ns; /* time at which freeing of the context began */
	/* listen.c: it was logged that freeing waits for a peer that reads our memory in
	 * place. */
	bool said_who_reads;
	/* Windows of this context (window.c), also by their id, and the last id that was
	 * used. */
	struct {
		struct tern_map by_id;
		struct tern_list all;
		uint64_t last_id;
	} windows;
	/* Requests of windows (struct tern_wreq) that have ended, and whose done() is
	 * still to be called; complete_call calls it. */
	struct tern_list accesses_done;
	struct tern_map tokens; /* finds accepted peers by the token of the session */
	/* Receives that have ended, of peers that have ended, and that hold a buffer or
	 * memory of the peer, since the caller has not called tern_release() yet. */
	struct tern_list held;
	/* Receives that wait until their pool has a free buffer: recv.c. */
	struct tern_list hungry;
	struct tern_timer feed_timer;
	/* stage.c: transfers that wait for a bounce buffer. */
	struct tern_list bounceless;
	struct tern_deferred bounce_call;
	struct tern_timer bounce_timer;

	struct tern_list record_slabs; /* slabs (blocks of memory) of records: record.c */
	struct tern_list free_records;
	uint32_t record_count;
	/* Number of peers that have TERN_CREDIT_OWN records reserved each
	 * (tern_records_reserve()). */
	uint32_t peer_count;
	/* Number of records that are reserved for messages that answer a WANT, or used by
	 * such messages. */
	uint32_t wanted_count;
	/* Number of the next EAGER or RTS that arrives before its receive. */
	uint64_t arrival_number;
	struct tern_credit_pool credits;
};

static inline struct tern_rdv *tern_rdv_of(struct tern_context *ctx)
{
	return ctx->user.arg;
}

struct tern_listener {
	struct tern_list node;
	struct tern_rdv *rdv;
	struct tern_peer_opts opts;
	char own_name[64];
	/* Secret of this listener's peers; NULL: the context's secret is used. */
	char *secret;
	bool refuses; /* accepts no new peer, see tern_listener_refuse_new() */
	void (*accept)(struct tern_peer *peer, void *arg);
	void *accept_arg;
	char address[TERN_ADDRESS_BYTES];
	unsigned lsn_count;
	/* Listening sockets or the like; at most one for each fabric. */
	struct tern_lsn *lsns[];
};

#endif
