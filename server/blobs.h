/* SPDX-License-Identifier: Apache-2.0 */
/* The blobs that the job's program keeps on server 0 and its follower: see blobs.c. */
#ifndef TERN_SERVER_BLOBS_H
#define TERN_SERVER_BLOBS_H

#include "server/server_state.h"

void blobs_fini(struct tern_server *s);
/* The newest blob of a version up to this one; NULL: there is none. */
const struct tern_blob *blobs_find(const struct tern_server *s, uint64_t version);
/* The job begins with this version: forgets a blob of a later one, which is given again. */
void blobs_begin(struct tern_server *s, uint64_t version);
/* Adds a newer blob than those that are here. Leaves no blob in *blob. */
void blobs_add(struct tern_server *s, struct tern_blob *blob);
/* The blobs of versions up to this one; on servers other than 0 an empty list, since they only have what
 * a snapshot had. NULL: no memory; a message that is packed with it ends its connection. */
json_t *blobs_json(const struct tern_server *s, uint64_t version);
/* Adds the blobs of such a list. -EPROTO: they are wrong; -ENOMEM. */
int blobs_read(struct tern_server *s, const json_t *list);
void blobs_on_keep(struct server_peer *worker, const json_t *message);
/* The follower has the blobs up to this version, or the server goes on without it: answers the
 * workers. */
void blobs_followed(struct tern_server *s, uint64_t step);

#endif
