/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens until the steps begin. Servers and workers that are lost, come elsewhere, are added and
 * removed while their job goes on; slots that move; and an operator who ends the job.
 */
#ifndef TERN_SERVER_MEMBERSHIP_H
#define TERN_SERVER_MEMBERSHIP_H

#include "server/server_state.h"

/* start.c */
/* Number of answers "again" of server 0 in a row, a second apart, after which the
 * server that asks ends the job. That is the default of the workers' --wait: a worker
 * with a longer --wait may still be trying to reach server 0. */
#define START_AGAIN_MAX 300u
/* The first worker that has joined; NULL: none has, but perhaps some are absent. */
const struct server_peer *start_find_present(const struct tern_server *s);
void start_maybe(struct tern_server *s);
/* True if all workers have joined this server and are connected to it. */
bool start_all_here(const struct tern_server *s);
/* True if the steps may have begun: they have on this server, or they may have on others,
 * because all workers have joined and only server 0's message to start is missing. */
bool start_may_have_begun(const struct tern_server *s);
/* Called when a lost connection was restored: perhaps the start has waited for it. */
void start_on_recovered(struct tern_server *s);
void start_wait(struct tern_server *s); /* called when the server has a job */
/* Called when a worker has joined, or a place is free again: opts.absent_ns counts from the first
 * time on. */
void start_count_absent(struct tern_server *s);
/* Writes for which processes the start waits. Returns the number of bytes written. */
size_t start_name_missing(const struct tern_server *s, char *text, size_t bytes);
void start_left(struct server_peer *p, const char *text);
/* Called on server 0: server p has lost a process of the worker, and no longer counts as ready. A
 * process that has joined server 0 since then stays. */
void start_on_lost(
	struct server_peer *p, uint32_t worker, const json_t *message, const char *text);
void start_on_start(struct tern_server *s, const json_t *message);
void start_on_again(struct tern_server *s);
void start_again(struct tern_server *s);
void start_forget(struct tern_server *s);
/* Sends the first version to the workers: the steps begin. */
void start_steps(struct tern_server *s);
/* Server 0: sends "again" to server p and closes the connection, because a worker is
 * missing or server 0 has no job. p connects again when all workers have joined it. */
void start_send_away(struct server_peer *p);

/* back.c */
/* Ends the job, because a process is lost without which it cannot go on. If opts.goes_back, it
 * goes back. */
void back_or_fail(struct tern_server *s, int status, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* True if all processes of the job can go back. */
bool back_is_allowed(const struct tern_server *s);
/* True if the job may go back, and its steps have begun, now or before. */
bool back_is_possible(const struct tern_server *s);
/* Goes back when a snapshot is published. Server 0 only. */
void back_when_saved(struct tern_server *s, const char *why);
/* This server was asked to end: goes back when a snapshot is published, or after some seconds. */
void back_leave(struct tern_server *s, const char *why);
/* A process of the job has said "abort" with "back". */
void back_on_abort(struct tern_server *s, const json_t *message, const char *why);
/* The last worker is lost. */
void back_without_workers(struct tern_server *s);
/* The step of the newest snapshot that this server knows of; 0: none. Server 0 knows all. */
uint64_t back_newest(const struct tern_server *s);
/* "abort" may name a newer one. */
void back_hear_newest(struct tern_server *s, const json_t *message);
void back_on_leaving(struct server_peer *server, const json_t *message);
/* No snapshot is being taken any more. */
void back_maybe(struct tern_server *s);
/* The job is not to go back after the next snapshot any more. */
void back_stay(struct tern_server *s);
/* The server that is made in this one's place is to begin with this snapshot. */
void back_begin_with(struct tern_server *s, json_int_t step, json_int_t number);
/* Server 0: another server begins with something else, as its message "peer" says. */
void back_send_away(struct server_peer *server, const json_t *peer);
/* A worker has found that another server begins with another snapshot than this server. Server 0 searches
 * again, if it has found none or has waited for 5 s. Another server goes back, to begin with the snapshot of
 * server 0. Or the worker has found that not all servers have the job in memory: a server that has it
 * forgets it. True: this server ends for that. */
bool back_on_other_snapshot(struct server_peer *worker, const json_t *message);

/* memory.c */
int memory_init(struct tern_server *s); /* -ENOMEM */
/* Goes back to a snapshot, since the parameters that this server has in memory are of no use.
 * Called before the steps. */
void memory_forget(struct tern_server *s, const char *why);
/* The life of what this server begins with, or has begun with, if that was in memory; else 0. */
uint64_t memory_life(const struct tern_server *s);
/* Server 0, when all other servers are connected: the step that all can begin with. */
uint64_t memory_lowest(const struct tern_server *s);
/* True if what is in memory is of a job with the same servers, in which this server is number
 * `index`. */
bool memory_fits(
	const struct tern_server *s, const struct tern_ps_job *job, uint32_t index);
/* Called in a task: gives a chunk that is being made its values. */
int memory_set(struct chunk *c);
/* The steps begin with this one. False: they cannot, and the server goes back. */
bool memory_begin(struct tern_server *s, uint64_t step);

/* members.c */
int members_init(struct tern_server *s);
/* The steps begin. */
void members_begun(struct tern_server *s);
void members_leave(struct tern_server *s); /* says goodbye to the members */
/* True if they have said goodbye, too. A server that ended before that would seem to them to be lost, and
 * they would wait for it. */
bool members_are_gone(const struct tern_server *s);
/* True if a member has taken this server's word, and is connected. It says if this server is
 * removed. */
bool members_know(const struct tern_server *s);
void members_end(struct tern_server *s);
void members_fini(struct tern_server *s);
/* True if the text may be an address: printable, not empty, and not too long. */
bool members_is_address(const char *text);
/* True if this process has been in the job before, perhaps as a follower. */
bool members_has_begun(const struct tern_server *s);
/* Two processes may claim to be the same server before the steps begin: whoever hears of both turns to the
 * one with the higher number. A process that has the job in memory comes before one that has been in the
 * job, and that before one that is new. Of two that have it in memory the one with the higher step comes
 * first, since a process that was cut off has an older one. Below 2^63. */
uint64_t members_claim(const struct tern_server *s);
void members_on_address(struct server_peer *p, const json_t *message);
/* Where server 0 is now, as it has told this server, or else as a worker has told that is here. */
const char *members_find_zero(const struct tern_server *s);
/* Where server `index` of the job is. This server has a job, and a worker of it. */
const char *members_address_of(const struct tern_server *s, uint32_t index);
/* True if a follower of this server is connected, and waits to take its place. */
bool members_follower_waits(const struct tern_server *s);
/* True if opts.follows may live: the last attempt to reach it has not found that nothing listens there, nor
 * that a process does which was started anew. */
bool members_followed_may_live(const struct tern_server *s);
/* Writes the addresses at which this server can be reached, in the form of one address.
 * Negative errno as of tern_listener_addresses(). */
int members_write_own(const struct tern_server *s, char *out, size_t bytes);
/* Tells a worker the new addresses of servers. */
void members_tell(struct server_peer *worker);
/* The connection with a server that has told its address has ended. */
void members_left(struct server_peer *p);

/* view.c */
/* Compares the view of a worker that joins with this server's. False: the worker may not join: for
 * the reason in `why`, or if that is empty, since it was told a newer view or will ask again. */
bool view_is_settled(struct server_peer *worker, const struct tern_ps_job *job,
	struct tern_ps_text *why);
/* This server has taken over a job. */
void view_on_adopt(struct tern_server *s);
/* The number of server `index` of the job, and of this server: their names for users. */
uint32_t view_number(const struct tern_server *s, uint32_t index);
uint32_t view_own_number(const struct tern_server *s);
/* True if the newest view has a server of this number, or no view is known. */
bool view_has(const struct tern_server *s, uint32_t number);
/* The job goes back: with the next view, if there is one. */
void view_go(struct tern_server *s);
/* The newest view as JSON, for processes that are told to go back; NULL: there is none, or no
 * memory. */
json_t *view_for(const struct tern_server *s);
/* Takes a newer view from a message that says that the job goes back. False: it has none. */
bool view_on_abort(struct tern_server *s, const json_t *message);
/* Tells a process that this server's view has no server of its number. */
void view_say_removed(struct server_peer *p);
/* Tells a worker, or a server that has told its address, the newest view. */
void view_say(struct server_peer *p);
/* A member says its view: before the steps this server takes a newer one over. */
void view_hear(struct tern_server *s, const json_t *message);
/* Ends this server, if the message has a newer view without it. False: it has not. */
bool view_on_removed(struct tern_server *s, const json_t *message);
/* There will be no next view. */
void view_drop(struct tern_server *s);
/* A server is at another address now. */
void view_moved(struct tern_server *s, uint32_t number, const char *address);
/* False: p cannot be added as server `number`, and is told why, or will ask again. */
bool view_may_add(struct server_peer *p, uint32_t number);
/* Adds a server, whose number and address are known, to the next view. */
void view_add(struct server_peer *newcomer);
/* The connection of a server has ended that had told its address. */
void view_newcomer_left(struct server_peer *p);
void view_on_drain(struct server_peer *p, const json_t *message);

/* The job has one worker more: server 0 makes the next view, and another server takes it over. The
 * steps go on. */
void view_grow(struct tern_server *s);
void view_take_grown(struct tern_server *s, const struct tern_view *view);
/* Server 0, before the steps: makes the next view, with the servers of the worker's job and `count`
 * workers, and tells the worker, which joins anew. */
void view_set_workers(
	struct server_peer *worker, const struct tern_ps_job *job, uint32_t count);

/* grow.c */
/* True if the job may get workers beyond those that it has. */
bool grow_is_possible(const struct tern_server *s, const struct tern_ps_job *job);
/* A worker joins whose number the job of this server does not have. */
void grow_on_join(struct server_peer *p, uint32_t index, const json_t *message);
/* Server 0, when all servers have stopped (change.c): makes the place of a worker that is let in, if
 * the job does not have it yet. -ENOMEM. */
int grow_for(struct tern_server *s, const struct server_peer *newcomer);
/* Another server: the same, as "change" says. -ENOMEM; -EPROTO: the message is wrong. */
int grow_on_change(struct tern_server *s, const json_t *message);

/* shard.c */
/* Makes the publications of the workers `first` to `end` - 1; those of all workers before `first` are
 * made. -ENOMEM. */
int chunk_make_publications(struct chunk *c, uint32_t first, uint32_t end);

/* start.c */
/* Puts a peer without a connection in the place of a worker that has not come. -ENOMEM. */
int start_set_absent(struct tern_server *s, uint32_t index);

/* abort.c */
void abort_on_end(struct server_peer *p, const json_t *message);
/* Tells a guest that the job is over, and closes the connection. */
void abort_tell(struct server_peer *p);
/* A message came after the end of this server, which an operator may have ended. */
void abort_on_late(struct server_peer *p, const json_t *message);
/* True if this server stays for a while after its end, for processes that wait. */
bool abort_lingers(const struct tern_server *s);

/* change.c */
/* Server 0 has heard how fast a worker is: perhaps a slot should move. */
void change_maybe_balance(struct tern_server *s);
/* A worker wants the place of a lost one, or the next place that the job does not have yet
 * (grow.c), during the steps. */
void change_on_join(struct server_peer *p, uint32_t index, const json_t *message);
void change_on_ready(struct server_peer *p, const json_t *message);
void change_on_pause(struct server_peer *zero, const json_t *message);
void change_on_pausing(struct server_peer *server, const json_t *message);
void change_on_paused(struct server_peer *server, const json_t *message);
void change_on_change(struct server_peer *zero, const json_t *message);
void change_on_gave(struct server_peer *worker, const json_t *message);
/* True if a worker's message must wait for the end of the change under way, or for a decision of
 * server 0 that is not known here yet: change_keep() keeps it. */
bool change_delays(const struct server_peer *p, const json_t *message);
void change_keep(struct server_peer *p, const json_t *message);
/* Handles the messages that were kept and need not wait any more. */
void change_hear_kept(struct tern_server *s);
/* True if another server must not end yet: server 0 may have let in a worker that waits for
 * that here. When it has not, the worker goes, or server 0 does. */
bool change_is_awaited(const struct tern_server *s);
/* True if no chunk may be made of this version yet. */
bool change_holds(const struct tern_server *s, uint64_t version);
/* True if the steps stop at this version, and no gradient for it may be received. */
bool change_stops(const struct tern_server *s, uint64_t version);
/* A chunk of this server has a new version, and is HOLDING it. */
void change_step_made(struct tern_server *s);
/* A worker that is `returning` has failed, or its connection has ended. */
void change_left(struct server_peer *p, const char *text);
/* True if requests or chunks still refer to the `replaced` worker. */
bool change_needs(const struct server_peer *p);

#endif
