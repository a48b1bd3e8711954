/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server that is followed: see server/follower.h for the messages, and follow.c.
 */
#ifndef TERN_SERVER_FOLLOW_H
#define TERN_SERVER_FOLLOW_H

#include "server/server_state.h"

/*
 * The tensors between a server and its follower are of type u8, and begin with this head. The byte
 * order is that of both hosts, since peers of another one are refused (base/endian.h).
 *
 *     state    head, number of updates that each tensor was left out of (u64), w, m, v
 *     update   head, marks of the tensors (ps/marks.h), padded to 4 bytes; the mean gradient
 *
 * m and v are there if the chunk's optimizers have them.
 */
struct follow_head {
	uint64_t version; /* of the state; or that the update makes */
	float clip;       /* update: factor for the mean gradient */
	/* The server counts by tensor how many updates it was left out of (skip.c). */
	uint8_t has_skips;
	uint8_t skips; /* update: the marked tensors are left out */
	uint8_t zero[2];
	uint64_t
		snapshot; /* update: step of the newest snapshot that the server knows of */
	/* update: version of the newest blob whose worker was answered before the follower had it;
	 * 0: there is none */
	uint64_t blob;
};

/* Sizes of these tensors in bytes, and where the vectors begin. */
uint64_t follow_state_bytes(const struct chunk *c);
uint64_t follow_update_bytes(const struct chunk *c);
/* True if an optimizer of the chunk's tensors has that vector. */
bool follow_has_m(const struct chunk *c);
bool follow_has_v(const struct chunk *c);
float *follow_state_vectors(const struct chunk *c, void *state);
float *follow_update_mean(const struct chunk *c, void *update);

/* A guest asks to follow this server. */
void follow_on_follow(struct server_peer *p, const json_t *message);
/* Another server has a complete follower now, or has lost it. */
void follow_on_followed(struct server_peer *server, const json_t *message);
/* The follower's connection has ended, or it is refused: the server goes on alone. */
void follow_left(struct server_peer *p, const char *why);
/* True if the server has a complete follower, as far as it knows. */
bool follow_is_complete(const struct tern_server *s);
/* Tells a worker that has joined where the follower is, if it is complete. */
void follow_tell(struct server_peer *worker);
/* Adds "follower" to the answer of `tern status`. */
void follow_write_status(const struct tern_server *s, json_t *object);
/* True if a version that is made waits for the follower to acknowledge its update. */
bool follow_is_awaited(const struct tern_server *s);
/* Writes the name of the follower, if a chunk waits for it to acknowledge. Returns the number of
 * bytes; 0: none does. */
size_t follow_name_owing(const struct tern_server *s, char *text, size_t bytes);
void follow_end(struct tern_server *s); /* the server ends */
void follow_fini(struct tern_server *s);

/* Sends the newest blob (blobs.c) to the follower, and calls blobs_followed() when it has it. False: no
 * worker needs to wait for that, since there is no follower, or it is still being filled. */
bool follow_send_blob(struct tern_server *s);
/* True if workers wait until the follower says that it has the newest blob. */
bool follow_owes_blob(const struct tern_server *s);
void follow_on_blob(struct server_peer *follower, const json_t *message);

/* Called before the update of the chunk, whose `follow` it sets if the update is for the follower,
 * too. True: a task makes the mean gradient at follow_mean() first, and follow_send() sends it. */
bool follow_begin(struct chunk *c);
/* From follow_begin() to follow_updated(), also in tasks. NULL: no mean gradient is needed. */
float *follow_mean(const struct chunk *c);
void follow_send(struct chunk *c);
/* Called in the task of an update, and after it. */
void follow_in_update(struct chunk *c);
void follow_updated(struct chunk *c);
/* True if the chunk's next version, which is made, must wait for the follower. sync_publish() is
 * called when it has waited. */
bool follow_holds(struct chunk *c);

/* sync.c: the version that is made is sent to the workers. */
void sync_publish(struct chunk *c);

/* shard.c */
/* Called in a task. Gives a chunk its memory and its first values. Negative errno. */
int chunk_make(struct chunk *c);
/* Checks that there is room for the share of this server's job, with one vector more for the mean
 * gradient and `more_bytes`. -E2BIG. */
int shard_check_followed(
	const struct tern_server *s, uint64_t more_bytes, struct tern_ps_text *why);
/* Called in a task. Makes the next version with a mean gradient (tern_updater_mean()). */
void chunk_apply_mean(struct chunk *c, const float *mean, float clip);

/* skip.c: the marks of the present update, from the server to its follower. */
void skip_describe(const struct chunk *c, struct follow_head *head, uint8_t *marks);
int skip_take_over(struct chunk *c, const struct follow_head *head,
	const uint8_t *marks); /* -ENOMEM */

#endif
