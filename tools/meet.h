/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a foreign launcher (ranks.h) find the servers, which rank 0 starts:
 * through files in a directory that all of them see, or at a port that all of them know.
 *
 * In the directory, BASE is made from the name of the launcher's run:
 *
 *     BASE.servers          the servers' addresses, and the secret of the job if rank 0
 *                           has made one; mode 0600
 *     BASE-RANK-TOKEN.here  rank RANK waits, and has drawn the random number TOKEN
 *     BASE-RANK-TOKEN.end   the program of that rank has ended; the line in it says how
 *
 * BASE.servers lists the tokens that rank 0 has seen, and a rank takes no file without its
 * own token. So a file that an earlier run has left behind is never taken, whatever its
 * name is. Files get their contents aside and are renamed. Rank 0 removes them at its end.
 */
#ifndef TERN_TOOLS_MEET_H
#define TERN_TOOLS_MEET_H

#include <jansson.h>
#include <limits.h>
#include <sys/types.h>

#include "tools/ranks.h"
#include "tools/secret.h"

struct meet {
	char dir[PATH_MAX / 2];
	char base[300];
	struct ranks ranks;
	char token[17];
	/* rank 0 */
	json_t *tokens;      /* object: the tokens that were seen, as keys */
	bool *seen;          /* [rank] */
	uint64_t seen_count; /* ranks of which a token was seen */
	uint64_t said_count; /* of these, ranks whose tokens are in BASE.servers */
	json_t *servers;     /* contents of BASE.servers; NULL: not published yet */
	dev_t dev;           /* BASE.servers, to notice if somebody replaces it */
	ino_t ino;
};

/* `dir`: NULL for one that is made for this user in /tmp, for ranks on one host. -EINVAL:
 * the directory cannot be used; `error` has one line. */
int meet_open(struct meet *m, const struct ranks *ranks, const char *dir,
	struct message *error);

/* Removes the files that are no longer needed, and frees memory. */
void meet_close(struct meet *m);

/* ---- rank 0 ---- */

/* Publishes the servers' addresses, and the secret unless it is NULL. -EIO, with one line
 * in `error`. */
int meet_publish(
	struct meet *m, const char *join, const char *secret, struct message *error);

/* Looks for ranks that wait, and adds their tokens to the file. Calls `ended` for each
 * rank whose program has ended; `text` says how. -EIO, with one line in `error`: the
 * directory cannot be read, the file cannot be written, or another process has replaced
 * it. */
int meet_serve(struct meet *m, void (*ended)(void *arg, unsigned rank, const char *text),
	void *arg, struct message *error);

/* Do all ranks find the servers in the file? Rank 0 then needs the directory no more, but
 * for hearing of ends. */
static inline bool meet_all_here(const struct meet *m)
{
	return m->said_count + 1 >= m->ranks.size;
}

/* ---- the other ranks ---- */

/* Says that this rank waits. -EIO, with one line in `error`. */
int meet_call(struct meet *m, struct message *error);

/* Returns 1 if the servers' addresses were published for this rank: they are in `join` and
 * the secret, if there is one in the file, in `secret`. 0: not yet. -EIO: the file cannot
 * be taken; `error` has one line. */
int meet_find(struct meet *m, char *join, size_t bytes, struct secret *secret,
	struct message *error);

/* Tells rank 0, if it is still there, that this rank's program has ended. */
void meet_say_end(struct meet *m, const char *text);

/* ---- a port that all know ---- */

/* True if something listens at each address of `join`, HOST:PORT with commas between
 * them. Waits at most half a second for each answer. */
bool meet_is_listening(const char *join);

#endif
