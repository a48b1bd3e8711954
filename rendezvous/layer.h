/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of one context, and its listeners. */
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
	struct tern_admission half_open; /* accepted links, handshake not complete */
	uint32_t half_open_max;
	uint32_t refused_count; /* links with `refused` */

	struct tern_list completed; /* xfers whose done() is to run */
	struct tern_deferred complete_call;
	uint64_t ending_ns; /* time at which its context was freed */
	/* listen.c: it was logged which peer still reads our memory. */
	bool said_who_reads;
	struct tern_map tokens;  /* accepted peers, by token */
	struct tern_list held;   /* like peer->held, for peers that were freed */
	struct tern_list hungry; /* receives that wait for room in their pool */
	struct tern_timer feed_timer;
	struct tern_list bounceless; /* stage.c: xfers that wait for a bounce buffer */
	struct tern_deferred bounce_call;
	struct tern_timer bounce_timer;

	struct tern_list record_slabs; /* slabs of records: record.c */
	struct tern_list free_records;
	uint32_t record_count;
	uint32_t peer_count; /* peers that have records of their own */
	/* Records for WANTs: reserved, or used by the message that answered one. */
	uint32_t wanted_count;
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
	char *secret; /* NULL: that of the context */
	void (*accept)(struct tern_peer *peer, void *arg);
	void *accept_arg;
	char address[128];
	unsigned lsn_count;
	struct tern_lsn *lsns[]; /* at most one for each fabric */
};

#endif
