/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The talk between the processes of a job: small JSON messages in order, on a channel of
 * their own. The tensors go over another one.
 *
 * A message goes in pieces of TERN_PS_PIECE_BYTES; the last one is shorter, perhaps
 * empty. The receiver has room for one piece and for what it has heard of a message: what
 * a peer announces takes no memory, only what it has said does, within limits.
 *
 *     worker -> server   {"type":"join", "worker":i, "server":j, "job":{...}}
 *     server -> server 0 {"type":"peer", "server":j, "job":{...}, "arithmetic":...}: that
 *                        if norms are added up
 *     server -> worker   {"type":"welcome"}, {"type":"refused", "text":...}
 *     server 0 -> server {"type":"start"}: all are here; {"type":"again"}: not any more,
 *                        it is to say "peer" anew when all workers are (server/start.c)
 *     worker -> server   {"type":"bye"}: it has all it needs, and the results are safe
 *     worker -> server   {"type":"failed", "text":...}: it leaves; the job may go on
 *     worker -> server 0 {"type":"leave", "text":...}: it was asked to end, and works on
 *                        until server 0 has decided
 *     server 0 -> worker {"type":"leave"}: it may, the job goes on: it says failed
 *     any                {"type":"abort", "text":..., "save":true}: the job has failed,
 *                        and why; save: it was asked to end, and worker "finisher", or
 *                        the one that would have finished, saves the parameters as
 *                        they are
 *
 * The end in async mode:
 *
 *     worker -> server 0 {"type":"done"}: it has taken its last step
 *     server 0 -> worker {"type":"done"}: so have all that are left
 *     worker -> server   {"type":"pull"}: the parameters once more, as they are now
 *     server -> worker   {"type":"applied", "parts":[[k, a, b], ...]}: of worker k, which
 *                        was lost, these have a steps in every chunk, and b in some
 *
 * When a worker is lost (server/lease.c):
 *
 *     server -> server 0 {"type":"lost", "worker":k, "text":...}: it is missed here
 *     server 0 -> server the same with "generation" and "slots":[[i, ...], ...], for each
 *                        worker which of k's slots it has now: it is decided
 *     server 0 -> worker {"type":"lost", "worker":k, "text":..., "generation":g,
 *                        "finisher":f, "slots":[i, ...]}: the decision's number, who
 *                        evaluates and saves, and k's slots that the hearer now has
 *     server -> worker k {"type":"lost", "worker":k, "text":...}: it is cut off
 *     worker -> server   {"type":"take", "slot":i, "version":v, "generation":g}: its
 *                        gradients for v and all later versions come from here
 *     worker -> server   {"type":"holds", "slot":i, "version":v}: it has the gradient and no
 *                        room for another that must come first: take it out of turn
 *     server 0 -> worker {"type":"finished"}: somebody has said bye
 *
 * A worker without a slot is sent no version but the last (server/spare.c):
 *
 *     server 0 -> worker {"type":"begun"}: all are here
 *     worker -> server   {"type":"where"}: it was given a slot
 *     server -> worker   {"type":"at", "version":v}: the oldest of its chunks
 *     worker -> server   {"type":"follow", "version":v}: that one and all later ones
 *     server 0 -> worker {"type":"last"}: the last version comes
 *
 * When others wait for a worker (server/late.c):
 *
 *     server -> worker   {"type":"late", "silent_ns":n}: nothing has come for so long
 *     worker -> server   {"type":"busy"}: it has done some work since, or writes a file;
 *                        with "server":j: it waits for that one
 */
#ifndef TERN_PS_TALK_H
#define TERN_PS_TALK_H

#include <jansson.h>

#include <tern/channel.h>

#include "transport/context.h"

/* Channels, and the keys on them that are not a chunk's. */
enum {
	TERN_PS_CHANNEL_TALK = 1,
	TERN_PS_CHANNEL_DATA = 2,
};

#define TERN_PS_TEXT_MAX    (16u << 20) /* of a message: a job with many parameters */
#define TERN_PS_PIECE_BYTES 4096u
#define TERN_PS_SAID_MAX                                                                 \
	(4ull << 30) /* of a talk's pool: a job to each of 256 servers                   \
		      */

struct tern_talk {
	struct tern_context *ctx;
	struct tern_pool *pool; /* for pieces: one to hear, and those on their way out */
	struct tern_channel *channel;
	/* A message, valid during the call. NULL: it was not a JSON object, or, with
	 * `overrun`, it was too long and nothing is heard any more. The talk may be
	 * closed in here. Not called again after the peer went down. */
	void (*heard)(struct tern_talk *talk, const json_t *message);
	/* A request has failed, and its peer is still there (tern_talk_failed). */
	void (*broken)(struct tern_talk *talk, int status);
	/* It was closed, and its last receive has ended: it may be freed, not in here.
	 * May be NULL. */
	void (*idle)(struct tern_talk *talk);
	/* Bytes that all talks with this pointer may still take for messages of more than
	 * one piece; NULL: as many as there are. Changed only while no message is heard
	 * in part, as in heard(). */
	uint64_t *text_left;
	char *text; /* what was heard of such a message */
	uint64_t text_bytes, text_room;
	bool overrun;
	bool deaf; /* set by the owner: what comes is dropped unread */
	uint64_t said_count, heard_count;
	struct tern_buf piece;
	struct tern_req req;
	struct tern_timer broken_timer;
	int broken_status; /* of the first one; 0: none */
	bool closed;       /* by tern_talk_close() */
};

/* Opens the channel and starts to listen. ctx, pool, heard, broken and text_left are set
 * by the caller. -EEXIST, -ENOMEM, -EAGAIN: the pool is empty. */
int tern_talk_open(struct tern_talk *talk, struct tern_peer *peer);

/* Says `message` and drops it. What cannot be said any more is dropped too: the peer's
 * end is reported elsewhere. What there is no memory for is tern_talk_failed(). */
void tern_talk_say(struct tern_talk *talk, json_t *message);

/* The peer is down, or cut off: nothing is said any more, and broken() is not called. The
 * talk stays in place until tern_talk_is_idle(). */
void tern_talk_close(struct tern_talk *talk);

/* Has the last receive ended? Then a closed talk may be freed. */
bool tern_talk_is_idle(const struct tern_talk *talk);

/* A request with this talk's peer, on any channel, has ended with `status`, and whoever
 * waits for it does so in vain. Mostly the peer is down, which is reported in a moment.
 * If it is not within a second, broken() is called. */
void tern_talk_failed(struct tern_talk *talk, int status);

/* A string for a message of text that may not be UTF-8 (paths, what was cut to its room):
 * then what is not ASCII becomes '?', since JSON cannot hold it. */
json_t *tern_talk_text(const char *text);

/* What a message's "type" is; "" if it has none. */
const char *tern_talk_type(const json_t *message);

#endif
