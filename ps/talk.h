/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages between the processes of a job: small JSON messages, in order, on a
 * channel of their own. The tensors use another channel.
 *
 * A message is sent in pieces of TERN_PS_PIECE_BYTES; the last one is shorter, perhaps
 * empty. The receiver has memory for one piece and for the received part of a message. So
 * memory is used only for what a peer has sent, within limits, and not for what it
 * announces.
 *
 *   worker -> server   {"type":"join", "worker":i, "incarnation":n, "server":j,
 *                      "job":{...}}: n is a random number that is drawn each
 *                      time that the worker is made anew. "back":true: the
 *                      worker can go back with the job (server/back.c); "returns":true: it
 *                      was in the job before that went back
 *   server -> server 0 {"type":"peer", "server":j, "job":{...}, "incarnations":[n, ...],
 *                      "arithmetic":..., "snapshots":true, "omits":false, "version":v, "number":k,
 *                      "life":l}:
 *                      all workers have joined server j. "arithmetic" is "" unless norms are added
 *                      up over the servers; "snapshots": it takes some; the rest as in "welcome"
 *   server -> worker   {"type":"welcome", "version":v, "number":k, "life":l}: v is the job's
 *                      first version, 0 or that of snapshot k of its step; in async mode the
 *                      step with which the worker begins. l is not 0: the server has
 *                      version v in memory, of this life of the job (server/memory.c), and the first
 *                      version is the lowest that a server names. "back":true: the job may go
 *                      back; "returns":true: it has gone back, and begins again; "snapshot": as of
 *                      "abort"; "omits":true: slots whose loss is no number are left out
 *                      (server/omit.c); "claim":c: members_claim().
 *                      Or {"type":"refused", "text":...}: "later":true: it may be otherwise in a
 *                      moment; "ending":true: the server goes back, and another one will take
 *                      its place. Or {"type":"again"}: send "join" again, because the server had no
 *                      memory for the message, or the place (or the place of every
 *                      worker of another job) still belongs to a worker that has left or
 *                      was perhaps killed
 *   server 0 -> server {"type":"start", "version":v, "life":l}: all processes are connected,
 *                      and the steps begin with version v, in life l of the job; {"type":"again"}:
 *                      a worker is missing again, or server 0 has no job, or had no
 *                      memory for the message: the server sends "peer" anew when all
 *                      workers are connected (server/start.c); or {"type":"refused",
 *                      "text":...}: the server ends the job
 *   worker -> server   {"type":"bye"}: the worker needs nothing more: the results are
 *                      safe
 *   worker -> server   {"type":"failed", "text":...}: the worker ends; the job may go on.
 *                      "asked":true: it was asked to end, and has not failed by itself
 *   worker -> server 0 {"type":"leave", "text":...}: the worker was asked to end, and
 *                      works on until server 0 has decided
 *   server 0 -> worker {"type":"leave", "save":false}: the worker may leave, and answers
 *                      "failed"; save true: no other worker was seen to go on, so this
 *                      one also saves its parameters. "last":true: no worker is left then,
 *                      and the job waits for one; "snapshot":v as of "abort"
 *   server -> worker   {"type":"there"}: are you running? (server/leaving.c)
 *   worker -> server   {"type":"here", "version":v}: yes, with parameters to save if v > 0
 *   any                {"type":"abort", "text":..., "save":true}: the job has failed, for
 *                      the reason in "text". save: a process was asked to end, and worker
 *                      "finisher", or the one that would have finished, saves the present
 *                      parameters. From a server to server 0: server 0 ends the job. From
 *                      a worker before the steps: only this worker ends. "snapshot":v: the
 *                      job can go on from a snapshot of step v; 0: the sender knows of none.
 *                      "final":true: an operator has ended the job, which neither goes back
 *                      nor waits for anybody, also before the steps (server/abort.c). "ends":true,
 *                      with "back": the server's process ends, so its follower takes its place
 *   operator -> server {"type":"end", "by":..., "text":...}: end the job, for the reason in
 *                      "text", which may be empty. The answer is {"type":"ending"} or
 *                      "refused"
 *
 * When the job goes back to a snapshot, or goes on from one (server/back.c, members.c):
 *
 *   any                "abort" with "back":true: all leave the job, and meet again
 *   server -> server 0 {"type":"leaving", "text":...}: the server was asked to end, and waits for
 *                      a snapshot
 *   worker -> server   "failed" with "begins":[v, k]: server 0 has welcomed the worker with
 *                      snapshot k of step v, and another server with another one; to
 *                      server 0 "found":[v, k] with that one
 *   worker -> server   "failed" with "forget":true: not all servers have the same life of the job in
 *                      memory; so "abort" of server 0
 *   server -> server   {"type":"address", "server":j, "address":a, "begun":false, "claim":c}: the sender
 *                      comes in the place of server number j, which was lost, or is to be added;
 *                      "begun":true: it was in the job already; c: members_claim(). The answer is
 *                      {"type":"known"}, "refused", "again" while the other server has a server j,
 *                      or "removed". To server 0 also with "stays":true: server j goes back, and
 *                      is where it was. Once more with "life":l when the steps have begun with
 *                      it, in this life of the job
 *   server -> server   {"type":"complete"}: the job is complete, and the receiver, which has been in
 *                      it, and waits to be server j, is not needed
 *   server -> worker   {"type":"address", "server":j, "address":a, "claim":c}; "serves":true: the
 *                      steps have begun with this process
 *
 * Messages of followers are in server/follower.h.
 *
 * When servers are added or removed (server/view.c):
 *
 *   operator -> server 0  {"type":"drain", "server":j}: remove server number j; with "again":true the
 *                      same, and the operator was told before that it is possible. The answer is
 *                      {"type":"draining", "done":d}, d: the steps go on without the server; or "refused"
 *   any                "abort" with "back":true and "view":{...}, the fields of "view"
 *   server -> worker   {"type":"view", "view":n, "servers":[a, ...], "numbers":[j, ...],
 *                      "added":[false, ...], "workers":k}: the servers of the job now, and its
 *                      number of workers, of which the worker has an older view; it joins anew
 *   server -> server   the same, to one that has told its address; before the steps it takes the
 *                      view over
 *   server -> server   {"type":"removed", "view":{...}}: this view does not have the receiver
 *
 * Initial values that workers have (server/given.c), after "start":
 *
 *   server 0 -> server {"type":"giver", "worker":k}: receive worker k's values
 *   server -> worker   {"type":"give"}: send the given values of the server's chunks
 *   server -> server 0 {"type":"given", "worker":k}: all of worker k's values are here
 *   server 0 -> server {"type":"given"}: all servers have them, and the steps begin
 *
 * For whoever watches the job (client/report.c, server/progress.c):
 *
 *   worker -> server 0 {"type":"progress", "step":v, "loss":x, "weight":y,
 *                      "metrics":[[name, z, v], ...]}: the loss of the worker's last step,
 *                      with the weight of its slots (not before the first), and metrics
 *                      that were set since, each with the step. z may be "nan", "inf" or
 *                      "-inf"
 *
 *   a guest -> server  {"type":"status", "from":k}: what does the job do (server/status.c)?
 *                      "from" is 0 if it is missing
 *   server -> a guest  {"type":"status", "server":j, "state":s, ...}: what this server knows, as
 *                      docs/operations.md lists it. "workers" has the workers k, k + 1, ..., and
 *                      "next" is the first one that has found no room; without "next" there is
 *                      none. "again": the server has answered too often in the last second
 *
 * Snapshots (server/snapshot_state.h), after "start":
 *
 *   server -> server 0 {"type":"snapshot_wanted"}
 *   server 0 -> server {"type":"snapshot", "step":v, "number":k}: copy version v
 *   server -> server 0 the same with "bytes", "digest" and "late":false: the part is written;
 *                      or with "text":..., why not, and "late":true if v was over
 *
 * Messages of servers without a directory for snapshots, and the tensors of these, are in
 * server/store.h.
 *
 * Before that, in async mode (server/cut.h):
 *
 *   server 0 -> server {"type":"cut", "number":k}: apply no gradients for the moment
 *   server -> server 0 {"type":"cut", "number":k, "steps":[t, ...]}: for each worker, how many of
 *                      its steps were applied to some chunk. "snapshot" of server 0 has also
 *                      "cut":[t, ...], the largest of them, and "final":true if no worker has a
 *                      step left; and that of the servers "least":[t, ...], what all of a server's
 *                      chunks have
 *
 * The end in async mode:
 *
 *   worker -> server 0 {"type":"done"}: the worker has taken its last step
 *   server 0 -> worker {"type":"done"}: all remaining workers have taken their last step
 *   worker -> server   {"type":"pull"}: send the present parameters once more
 *   server -> worker   {"type":"applied", "parts":[[k, a, b], ...]}: of the lost worker
 *                      k, a steps were applied to every chunk of this server, and b to
 *                      at least one
 *
 * When a worker is lost (server/lease.c):
 *
 *   server -> server 0 {"type":"lost", "worker":k, "incarnation":n, "text":...}: the
 *                      sending server has lost worker k: its connection ended, it failed, or
 *                      it was late
 *   server 0 -> server the same with "generation" and "slots":[[i, ...], ...]: the
 *                      decision, with the slots of k that each worker has now
 *   server 0 -> worker {"type":"lost", "worker":k, "text":..., "generation":g,
 *                      "finisher":f, "slots":[i, ...]}: the decision's number, the worker
 *                      that evaluates and saves, and the slots of k that the receiver of
 *                      this message has now
 *   server -> worker k {"type":"lost", "worker":k, "incarnation":n, "text":...}: worker k
 *                      is cut off
 *   worker -> server   {"type":"take", "slot":i, "version":v, "generation":g}: from now on
 *                      the worker sends the gradients of slot i for v and later versions
 *   worker -> server   {"type":"digests", "slot":i, "version":v, "digests":[d, ...]}: the
 *                      gradient with which the worker has taken the slot: a digest for
 *                      each chunk of the server, in their order (ps/twice.h)
 *   worker -> server   {"type":"holds", "slot":i, "version":v}: the worker has computed
 *                      this gradient, and has no free buffer for one that must be sent
 *                      before it: receive this gradient early
 *   server 0 -> worker {"type":"finished"}: a worker has said bye
 *
 * The blob of the job (server/blobs.c), which is {"step":b, "bytes":n, "data":base64}:
 *
 *   worker -> server 0 {"type":"keep", "blob":{...}}: what the program has given in slot 0 of step b - 1
 *   server 0 -> worker {"type":"kept", "step":b}: it is here, also at server 0's follower
 *   server 0 -> worker "welcome" and "yours" with "blobs":[{...}, ...]: at most 2, of which the
 *                      newest up to the worker's first version counts
 *
 * When a worker joins during the steps, in the place of a lost one (server/change.c):
 *
 *   server -> worker   "welcome" as above, with "running":true
 *   worker -> server 0 {"type":"ready"}: all servers have welcomed it
 *   server 0 -> server {"type":"pause", "version":v}: gather no gradient for v
 *   server -> server 0 {"type":"pausing"}: it will stop there; {"type":"paused"}: all its
 *                      chunks are at v
 *   server 0 -> server {"type":"change", "generation":g, "came":[[k, n], ...],
 *                      "moved":[[i, a, k], ...]}: worker k (incarnation n) takes part, and
 *                      has slot i in worker a's place. With "view":{...}: the job has that
 *                      view now, with one worker more (server/grow.c)
 *   server 0 -> worker {"type":"grown", ...}, with the fields of "view": the job has this view
 *   server 0 -> worker k {"type":"yours", "version":v, "generation":g, "finisher":f,
 *                      "slots":[i, ...]}: it has these slots from v on
 *   server -> worker a {"type":"moved", "version":v, "generation":g, "slots":[i, ...]}:
 *                      from v on the slots are another worker's
 *   worker a -> server {"type":"gave", "version":v, "slots":[[i, u], ...]}: of slot i it
 *                      sends no gradient for u and later versions
 *
 * A worker without a slot is sent only the last version (server/spare.c):
 *
 *   server 0 -> worker {"type":"begun"}: all processes are connected
 *   worker -> server   {"type":"where"}: the worker was given a slot; which version is
 *                      current?
 *   server -> worker   {"type":"at", "version":v}: the oldest version of the server's
 *                      chunks
 *   worker -> server   {"type":"follow", "version":v}: send v and all later versions
 *   server 0 -> worker {"type":"last"}: the last version follows
 *
 * When a worker owes a gradient, or the end of the job (server/late.c):
 *
 *   server -> worker   {"type":"late", "silent_ns":n}: the server saw no progress of the
 *                      worker for n ns
 *   worker -> server   {"type":"busy"}: the worker has computed something in these n ns,
 *                      or is saving; with "server":j: it waits for server j
 */
#ifndef TERN_PS_TALK_H
#define TERN_PS_TALK_H

#include <jansson.h>

#include <tern/channel.h>

#include "transport/context.h"

/* Channels of each connection between processes of a job. */
enum {
	TERN_PS_CHANNEL_TALK = 1,
	TERN_PS_CHANNEL_DATA = 2,
};

/*
 * Limits of one message. A part is a member of an object or an element of a list; parsed,
 * it takes up to 100 times its text. The limits bound the memory that a message takes, and
 * for how long parsing holds up everything else on the context's thread: up to 10 ms for
 * the first two.
 *
 * Only a message with a job may need more: 100,000 tensors of two dimensions with names
 * of 40 bytes are 13 MB of text with 0.9 million parts, which take 100 MB and 0.3 s to
 * parse; tensors of eight dimensions have 1.5 million parts.
 */
#define TERN_PS_TEXT_MAX      (2u << 20) /* bytes */
#define TERN_PS_PARTS_MAX     (1u << 16)
#define TERN_PS_JOB_TEXT_MAX  (32u << 20)
#define TERN_PS_JOB_PARTS_MAX 1600000u
#define TERN_PS_PIECE_BYTES   4096u

struct tern_talk_limits {
	uint64_t bytes, parts;
};

struct tern_talk;

/* Memory that several talks together may use for incomplete messages. */
struct tern_talk_budget {
	uint64_t bytes_left;
	struct tern_talk_limits
		message; /* limits of one message; may change at any time */
	/* Called when a message needs `bytes` more and fewer are left. It may free memory
	 * by dropping partly received messages: tern_talk_skip(). */
	void (*short_of)(struct tern_talk_budget *budget, uint64_t bytes);
	/* Called when the last piece of a message that tern_talk_skip() dropped was
	 * received. */
	void (*skipped)(struct tern_talk *talk);
};

struct tern_talk {
	struct tern_context *ctx;
	/* Pool of buffers for pieces: one to receive into, and one for each being
	 * sent. */
	struct tern_pool *pool;
	struct tern_channel *channel;
	/* A message was received; it is valid during the call. NULL: it could not be
	 * read, and `fault` says why; if it was too long, or no memory was left for it,
	 * no further message is received. The talk may be closed in here. Not called
	 * after the peer went down. */
	void (*heard)(struct tern_talk *talk, const json_t *message);
	/* A request with the peer has failed, and the peer did not go down within a
	 * second after that: tern_talk_failed(). */
	void (*broken)(struct tern_talk *talk, int status);
	/* The last receive of a closed talk has ended with an error, as it does when the
	 * peer is down or freed: the talk may be freed, but not in this call. May be
	 * NULL. */
	void (*idle)(struct tern_talk *talk);
	/* Limits messages; NULL: only TERN_PS_TEXT_MAX and TERN_PS_PARTS_MAX do. May be
	 * changed only while no message is partly received, as in heard(). */
	struct tern_talk_budget *budget;
	struct tern_talk_limits last; /* size of the message that heard() is given */
	char *text;                   /* received part of a message with several pieces */
	uint64_t text_bytes, text_room;
	char fault[120]; /* why the last message could not be read */
	bool deaf;       /* all further messages are dropped unread */
	bool skips;      /* the rest of this message is dropped unread */
	uint64_t said_count, heard_count;
	struct tern_buf piece;
	struct tern_req req;
	struct tern_timer broken_timer;
	int broken_status; /* of the first failed request; 0: none */
	bool closed;       /* tern_talk_close() was called */
};

/* Opens the channel and starts to receive. The caller has set ctx, pool, heard, broken
 * and budget. -EEXIST: the channel is open already; -ENOMEM; -EAGAIN: the pool is full. */
int tern_talk_open(struct tern_talk *talk, struct tern_peer *peer);

/* Sends `message` and releases it. If the talk or the context is ending, the message is
 * dropped. A failure, as for lack of memory, leads to tern_talk_failed(). */
void tern_talk_say(struct tern_talk *talk, json_t *message);

/* Drops the received part of a message, and the rest when it arrives. Only for a talk
 * with a budget. */
void tern_talk_skip(struct tern_talk *talk);

/* From now on messages are dropped unread, and so is a partly received one. */
void tern_talk_deafen(struct tern_talk *talk);

/* Ends the talk, when the peer is down or cut off: nothing more is sent, and broken()
 * is not called. The talk must not be freed before tern_talk_is_idle(). */
void tern_talk_close(struct tern_talk *talk);

/* True if the last receive has ended: a closed talk may then be freed. */
bool tern_talk_is_idle(const struct tern_talk *talk);

/* A request with this talk's peer, on any channel, has failed with `status`. Usually the
 * peer is down, which will be reported in a moment. If it is not reported within a
 * second, broken() is called, since otherwise a process would wait for that request for
 * ever. -ECANCELED and -ESHUTDOWN are ignored. */
void tern_talk_failed(struct tern_talk *talk, int status);

/* A JSON string of text that may not be UTF-8 (a path, or text that was cut): if it is
 * not, all bytes above ASCII become '?', since JSON cannot hold them. */
json_t *tern_talk_text(const char *text);

/* The "type" of a message; "" if it has none. */
const char *tern_talk_type(const json_t *message);
/* The "claim" of a message (members_claim() in server/membership.h); 0: it has none, or a malformed one. */
uint64_t tern_talk_claim(const json_t *message);

#endif
