/* SPDX-License-Identifier: Apache-2.0 */
/* Two agents in this process, for test_nixl.c, and what it needs to look at them. */
#ifndef TERN_TESTS_PLUGINS_NIXL_PAIR_H
#define TERN_TESTS_PLUGINS_NIXL_PAIR_H

#include <stdio.h>
#include <sys/types.h>

#include "tests/plugins/nixl_driver.h"

#define LIMIT_NS (60 * TERN_NS_PER_S)
#define REGIONS  3u
#define REGION   (4u << 20)

/* NIXL's statuses. */
enum {
	IN_PROGRESS = 1,
	NOT_POSTED = -1,
	INVALID = -2,
	NOT_FOUND = -4,
	MISMATCH = -5,
	NOT_ALLOWED = -6,
	ACTIVE = -7,
	DISCONNECTED = -10,
	CANCELED = -11
};

extern const char *nixl_path; /* of the plug-in */

/* ---- agents ---- */

struct side {
	struct nixl_agent *agent;
	unsigned char *data[REGIONS];
	struct nixl_region *own[REGIONS];
};

struct pair {
	struct side i, t;
	struct nixl_region *remote[REGIONS]; /* T's memory, at I */
};

void *open_plugin(void);
void fill_side(struct side *s, uint64_t seed);
void open_side(struct side *s, const char *name);
void close_side(struct side *s);
/* Each agent knows the other one, and I has loaded the regions of T. */
void open_pair(struct pair *p);
void close_pair(struct pair *p);
/* Checks until the transfer has ended, and returns its status. */
int end_of(struct nixl_handle *h, int status);
/* Posts the request, and waits. `note`: a text, or NULL. */
int run(struct nixl_handle *h, const char *note);
struct nixl_range range_of(
	const struct pair *p, unsigned k, size_t local, size_t remote, size_t bytes);
struct nixl_handle *prepare(
	struct pair *p, bool write, const struct nixl_range *ranges, size_t count);

/* ---- a target in a child ---- */

struct child {
	pid_t pid;
	int to, from; /* pipes */
	char info[900], text[200];
	uintptr_t base;
};

/* The main function of the child: agent "T", whose region 0 is full of `mark`. Ends with its
 * parent. */
int serve(const char *mark);
/* Starts this program again with the arguments nixl_path and `mark`. */
void start_child(struct child *c, unsigned mark);
void end_child(struct child *c, int by);
/* Loads T's metadata at the agent. */
struct nixl_region *load_child(struct side *s, const struct child *c);

/* ---- notifications ---- */

struct notes {
	unsigned count;
	char last[64], name[8];
	size_t bytes;
	uint64_t sum; /* FNV-1a of the last one */
};

uint64_t sum_of(const void *data, size_t bytes);
/* Waits until the agent has got `count` in all, and not more. */
void await_notes(struct nixl_agent *a, struct notes *n, unsigned count);

/* ---- stderr ---- */

/* Collects what is written to stderr, from collect() to collected(). */
struct lines {
	FILE *file;
	int former;
	char text[8000];
};

void collect(struct lines *l);
void collected(struct lines *l);
/* Fails if the text is not in the lines. */
void has(const struct lines *l, const char *text);

#endif
