/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a follower: see follower.c. */
#ifndef TERN_SERVER_FOLLOWER_STATE_H
#define TERN_SERVER_FOLLOWER_STATE_H

#include "server/follower.h"
#include "server/server_state.h"

struct follower_chunk {
	struct tern_follower *follower;
	struct chunk *chunk;
	struct tern_req req, ack_req; /* req: of the state, and then of each update */
	struct tern_buf update, ack;
	struct tern_task task;
	bool filled;  /* it has the state */
	bool updated; /* it has had an update */
	/* Version that the bytes in `update` lead to; 0: no update has come. */
	uint64_t version;
	bool busy, acknowledging; /* the task runs; ack_req is posted */
};

struct guest { /* a process that has connected to this follower */
	struct tern_list node;
	struct tern_follower *follower;
	struct tern_peer *peer;
	struct tern_talk talk;
	bool gone;
};

struct tern_follower {
	struct tern_follower_opts opts;
	struct tern_env *env;
	struct tern_listener *listener;
	struct tern_pool *talk_pool, *pool;
	struct tern_list guests;
	uint32_t guest_count;
	/* Connection to the server that is followed; NULL: it could not be made. */
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	bool gone; /* the connection has ended */
	bool follows, complete, server_lives, removed;
	char said_waiting
		[200]; /* the last reason that was noted (say_waits()); "": none was */
	uint64_t until_ns; /* end of opts.wait_ns */
	struct tern_talk_budget budget;
	struct tern_timer timer; /* next attempt; if over: ended() is called then */
	bool over, told;
	int status;
	char text[512];
	struct tern_server shard;
	struct follower_chunk *chunks; /* [shard.chunk_count] */
	uint32_t updated_count;
	uint64_t blob_needed; /* version of the newest blob that an update names */
};

#endif
