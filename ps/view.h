/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The servers of a job, and its number of workers, as of one moment: a view. Users name those of
 * view 0, to all workers in the same order. Server 0 makes the next view when a server is added or
 * removed (server/view.c), or when there are to be more workers (server/grow.c).
 *
 * A server has a number, which is its name for users and stays, and an index, its place in the
 * view, which determines its share of the parameters. In view 0 both are the same. Workers may
 * reach a server that users have named at different addresses, so only of added servers a view
 * has the address for all.
 */
#ifndef TERN_PS_VIEW_H
#define TERN_PS_VIEW_H

#include <jansson.h>

#include "ps/job.h"

struct tern_view {
	uint32_t number;  /* grows with each view; 0: the one that users have named */
	uint32_t count;   /* of servers */
	uint32_t workers; /* number of workers; in view 0 that of tern_view_of_job() */
	/* By index: */
	uint32_t numbers[TERN_SERVERS_MAX]; /* each one once; the first is 0 */
	bool added[TERN_SERVERS_MAX];
	char servers[TERN_SERVERS_MAX][128]; /* addresses */
};

/* The view that the job's process knows. */
void tern_view_of_job(const struct tern_ps_job *job, struct tern_view *out);
/* Sets the fields of a job that have its view, but for the addresses. In view 0 the number of
 * workers stays as it is. */
void tern_view_set_job(const struct tern_view *view, struct tern_ps_job *job);
/* Adds these fields to the job's JSON; in view 0 there are none. */
void tern_view_write_job(json_t *object, const struct tern_ps_job *job);
/* Reads them. False: malformed. */
bool tern_view_read_job(const json_t *object, struct tern_ps_job *job);

/* A message of this type with the view; NULL: no memory. */
json_t *tern_view_json(const struct tern_view *view, const char *type);
/* Reads the view of such a message. False: it has none, or a malformed one. */
bool tern_view_read(const json_t *message, struct tern_view *out);

/* The index of the server with this number; UINT32_MAX: the view has none. */
uint32_t tern_view_find(const struct tern_view *view, uint32_t number);

/* True if the job of a process has the servers of this view, in the same order. */
bool tern_view_has_servers_of(
	const struct tern_view *view, const struct tern_ps_job *job);

/* Replaces the addresses of those that users have named by those that they have named here, `named`:
 * by number, since the list may be one of all servers with which the job began, unless the view's address is
 * in the list. A server beyond the list keeps the view's address. False: that is not known. */
bool tern_view_locate(
	struct tern_view *view, char (*const named)[128], uint32_t named_count);

/* Removes a server; the number of the view stays the same. */
void tern_view_remove(struct tern_view *view, uint32_t index);
/* Adds a server at the end. The view has room for it, and no other server of its number. */
void tern_view_add(struct tern_view *view, uint32_t number, const char *address);

/* The number of a job's server. */
static inline uint32_t tern_view_number(const struct tern_ps_job *job, uint32_t index)
{
	return job->view ? job->numbers[index] : index;
}

#endif
