/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The servers of a job as of one moment: a view. Users name the servers of view 0, to all workers
 * in the same order. Server 0 makes the next view when a server is added or removed
 * (server/view.c).
 *
 * Each server has an id, which stays when its number changes: its number in view 0, or
 * TERN_SERVERS_MAX and more if it was added. No id is given twice. Workers may reach a server that
 * users have named at different addresses, so only of added ones a view has the address for all.
 */
#ifndef TERN_PS_VIEW_H
#define TERN_PS_VIEW_H

#include <jansson.h>

#include "ps/job.h"

struct tern_view {
	uint32_t number; /* 0: the servers that users have named */
	uint32_t count;  /* number of servers */
	/* By server; and how many ids were given before, to the named ones and in views. */
	uint32_t ids[TERN_SERVERS_MAX], id_count;
	char servers[TERN_SERVERS_MAX][128]; /* addresses */
};

/* The view that the job's process knows. */
void tern_view_of_job(const struct tern_ps_job *job, struct tern_view *out);

/* A message of this type with the view; NULL: no memory. */
json_t *tern_view_json(const struct tern_view *view, const char *type);
/* Reads the view of such a message. False: it has none, or a malformed one. */
bool tern_view_read(const json_t *message, struct tern_view *out);

/* Adds the fields of a job that have its view to the object; in view 0 nothing. */
void tern_view_write_job(json_t *object, const struct tern_ps_job *job);
/* Reads them. False: malformed. */
bool tern_view_read_job(const json_t *object, struct tern_ps_job *job);
/* Sets these fields of a job. */
void tern_view_set_job(const struct tern_view *view, struct tern_ps_job *job);

static inline bool tern_view_is_added(uint32_t id)
{
	return id >= TERN_SERVERS_MAX;
}

/* The number of the server with this id; UINT32_MAX: the view has none. */
uint32_t tern_view_find(const struct tern_view *view, uint32_t id);

/* Replaces the addresses of those that users have named by those that they have named here,
 * `named`. False: the view names a server beyond these. */
bool tern_view_locate(
	struct tern_view *view, char (*const named)[128], uint32_t named_count);

/* Removes server `index` from the view; its number stays the same. */
void tern_view_remove(struct tern_view *view, uint32_t index);
/* Adds a server at the end, with a new id. The view has room for it. */
void tern_view_add(struct tern_view *view, const char *address);

#endif
