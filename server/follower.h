/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A follower: a process that keeps the share of one server, server I, in its own memory, and
 * comes in the place of server I when that is lost. The job then goes on from memory
 * (server/memory.h) and makes no step again.
 *
 *     follower                      server I (follow.c)                   worker
 *     "follow"            -->
 *                         <--  "followed", or "again" or "refused"
 *                         <--  the state of a chunk, chunk by chunk
 *                         <--  of each later update of the chunk: the mean gradient
 *     has it              -->
 *                              publishes the version   -->
 *                              "follower": where it is -->
 *
 * Control messages (ps/talk.h):
 *
 *   follower -> server {"type":"follow", "address":a, "arithmetic":f, "omits":o, "via":v}: the sender wants to
 *                      follow the receiver. It listens at a, and would serve there. f is the
 *                      fingerprint of its updater, and o is true if it was started with
 *                      --on-nan skip: both must be the server's
 *   server -> follower {"type":"followed", "number":i, "server":j, "life":l, "snapshot":v,
 *                      "blobs":[...], "job":{...}}: the server has number i and index j in the job, whose
 *                      "servers" are the newest addresses; l: server/memory.h; v: step of
 *                      the newest snapshot that the server knows of; 0: none.
 *                      Or "again": send "follow" again, since the steps have not begun, or
 *                      a former follower is not gone yet. Or "refused"
 *   server 0 -> follower {"type":"blob", "blob":{...}}: a blob of the job (server/blobs.c); the answer
 *                      is {"type":"blob", "step":b}, when the follower has it
 *   server -> worker   {"type":"follower", "server":i, "address":a}: server number i has a
 *                      complete follower, which would serve at a; "": it has none any more
 *   any -> follower    the answer is always {"type":"refused", "text":..., "later":true}: the
 *                      process does not serve yet
 *   candidate -> server I  "address" with "follows":true: the sender is a server that was made
 *                      with the memory of a follower of server I, and waits for the job, with
 *                      version "step" in memory; or, with "serves":true, its steps have begun. If server I has
 *                      lived on, or begins with a newer snapshot, the answer is
 *                      {"type":"serves"}
 *
 * Tensors, on channel TERN_PS_CHANNEL_DATA, with the keys of the chunk in the job's plan:
 *
 *   parameter_key, step 0       server -> follower: the chunk's state (follow.h)
 *   gradient_key, step v        server -> follower: the update that makes version v (follow.h)
 *   marks_key, step v           follower -> server: v, as 8 bytes: that update is in memory
 *
 * A follower is complete when it has the state of all chunks and an update of each, so that it has the
 * chunk's newest version and the one before, and the blobs that were given meanwhile. Workers do not
 * wait for a follower that is still being filled, so a blob may come later than an update that belongs
 * to it; the update names the blob. A version of a complete follower's server is sent to
 * workers only when the follower has all that it is made from.
 */
#ifndef TERN_SERVER_FOLLOWER_H
#define TERN_SERVER_FOLLOWER_H

#include <tern/context.h>

#include "ps/updater.h"

struct tern_follower;
struct tern_server_memory;

struct tern_follower_opts {
	struct tern_domain *domain;
	struct tern_context *ctx;
	/* Owned by the caller, but used by this follower alone until it is freed. It computes in
	 * host memory. */
	struct tern_updater *updater;
	const char *server; /* address of the server that is followed */
	/* Where the follower listens, from the start: the address at which it would serve. */
	const char *listen;
	/* How long a server is tried that cannot be reached, or, without from_memory, whose steps have
	 * not begun, in nanoseconds, before the follower ends with -EAGAIN. With from_memory, each
	 * answer of the server renews the time. 0: for ever. */
	uint64_t wait_ns;
	/* Limit of parameters and state, in bytes; 0: TERN_POOL_BYTES_MAX. */
	uint64_t memory_bytes;
	/* In the server's place, slots are left out whose loss is NaN or infinite (struct
	 * tern_server_opts). A server with another value refuses the follower. */
	bool omits;
	bool via; /* its process is to send its snapshots to server 0 (server/store.h) */
	/* The memory that a former follower of the same server has kept; NULL: none. It is kept until the
	 * server begins to fill this one. Owned by the follower, once tern_follower_new() has
	 * succeeded. */
	struct tern_server_memory *from_memory;
	/* Something worth a log line has happened. */
	void (*note)(void *arg, const char *text);
	/*
	 * The end, reported once, with a sentence that gives the reason:
	 *
	 *     0           the job is complete
	 *     -EAGAIN     the server is lost, or goes back with its job, or cannot be reached:
	 *                 struct tern_follower_stats tells what to do
	 *     -ECANCELED  the job was ended, or tern_follower_stop() was called
	 *     another     the server refuses the follower, or the follower cannot go on
	 *
	 * The follower must be freed afterwards, but not inside this call.
	 */
	void (*ended)(void *arg, int status, const char *text);
	void *arg;
};

struct tern_follower_stats {
	bool follows; /* the server has accepted it; the numbers below are known */
	uint32_t number,
		index; /* of the server: its name for users, its place in the job */
	uint32_t chunk_count;
	uint32_t
		filled_count; /* chunks of which the follower has the state and an update */
	bool complete;
	uint64_t steps; /* lowest version of a chunk */
	/* The server has said that it goes back, and lives: follow it again, for some seconds,
	 * with what tern_follower_keep() gives as opts.from_memory, before another server is
	 * made with it. */
	bool server_lives;
	/* The server was removed from the job, which goes on without it: nobody is needed in its
	 * place. The status is -ECANCELED. */
	bool removed;
};

/* Makes a follower, listens, and begins to connect to the server. Errors of tern_listen() and
 * tern_connect(); -ENOMEM. All functions are called on the context's thread. */
int tern_follower_new(const struct tern_follower_opts *opts, struct tern_follower **out);
/* Valid until the follower is freed. */
const char *tern_follower_address(const struct tern_follower *follower);
void tern_follower_stats(
	const struct tern_follower *follower, struct tern_follower_stats *out);
/* Leaves the server; ended() follows with -ECANCELED. */
void tern_follower_stop(struct tern_follower *follower, const char *why);

/*
 * What the server would have kept, for opts.from_memory of the server that is made in its place:
 * memory->job.servers has the addresses of the others. Called after the follower has ended and the
 * threads of its environment have ended, and before tern_follower_free(). The caller owns *out,
 * which is NULL if the follower was not complete and began with nothing. -ENOMEM, or an error of
 * the updater.
 */
int tern_follower_keep(struct tern_follower *follower, struct tern_server_memory **out);

/* Frees the follower. Its tasks must have ended, and the context must have been freed. NULL: does
 * nothing. */
void tern_follower_free(struct tern_follower *follower);

#endif
