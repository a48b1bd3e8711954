/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place of a `tern run` among several that a foreign launcher has started (ranks.h).
 * Each of them starts one worker, whose number is the rank. Rank 0 starts the servers, too,
 * and tells the others where they are (meet.h).
 */
#ifndef TERN_TOOLS_PLACE_H
#define TERN_TOOLS_PLACE_H

#include "tools/meet.h"

struct place_settings {
	const char *rendezvous;
	uint64_t port, wait_s; /* 0: not given */
	bool alone;
};

#define PLACE_WAIT_S 300

/* Rows for a table of options; `field` of the settings is a struct place_settings. */
#define PLACE_OPTIONS(settings, field)                                                   \
	OPTION(TEXT, "rendezvous", "DIR",                                                \
		"under srun, mpirun or torchrun: directory that all hosts share, in "    \
		"which rank 0 says where its servers are; not needed on one host",       \
		settings, field.rendezvous),                                             \
		OPTION(COUNT, "port", "P",                                               \
			"instead of --rendezvous: server I of rank 0 listens at port "   \
			"P + I of the host MASTER_ADDR",                                 \
			settings, field.port, .min = 1, .max = 65535),                   \
		OPTION(COUNT, "wait", "S",                                               \
			"seconds that the other ranks wait for rank 0; default 300",     \
			settings, field.wait_s, .min = 1, .max = 86400),                 \
		OPTION(FLAG, "alone", NULL,                                              \
			"start all workers here, even if this process is one of "        \
			"several that srun, mpirun or torchrun has started",             \
			settings, field.alone)

struct place {
	struct ranks ranks;
	const struct place_settings *settings;
	struct meet meet;
	bool meets;        /* the ranks meet in a directory: `meet` is open */
	bool found;        /* this rank knows where the servers are */
	bool has_secret;   /* each rank has read the secret from a file of its own */
	uint64_t until_ns; /* when this rank gives up waiting for rank 0 */
	uint64_t tell_ns;  /* when it says that it waits; 0: it has said so */
	uint64_t look_ns;  /* when it looks at the files again */
	pid_t launcher;    /* this rank ends when that process does; 0: none */
	/* rank 0: which other ranks have said that their programs have ended */
	bool *ended;
	uint64_t ended_count;
	/* rank 0: how the first one has ended, "": none has */
	char first_end[400];
	/* rank 0: why it cannot hear which ranks have ended; told: once is enough */
	char deaf[700];
	bool deaf_told;
	char listen[160];    /* address for the servers of rank 0 to listen at */
	char join[256 * 80]; /* --port: the addresses at which they are reached */
};

/* The place depends on these, beside the environment. */
struct place_opts {
	const struct place_settings *settings;
	const struct fabric_settings *fabric;
	const struct secret_settings *secret;
	const char *listen;        /* --listen; NULL: not given */
	uint64_t servers, workers; /* workers: 0 if --workers was not given */
};

static inline bool place_is_ranked(const struct place *p)
{
	return p->ranks.size > 1;
}

/* True if this process starts the servers. */
static inline bool place_has_servers(const struct place *p)
{
	return p->ranks.rank == 0;
}

/* Finds the place, and checks the options that depend on it. Reads the secret that the
 * ranks need in common, "" if there is none. -EINVAL: `error` has one line. */
int place_find(struct place *p, const struct place_opts *opts, struct secret *secret,
	struct message *error);

/* Address at which the servers listen; NULL: the default. */
const char *place_listen(const struct place *p, const struct place_opts *opts);

/* Begins to meet the other ranks. -EIO or -EINVAL, with one line in `error`. */
int place_open(struct place *p, struct message *error);
void place_close(struct place *p);

/* Rank 0: tells the others where the servers are: at the addresses `join`, which are made
 * such that other hosts can use them if servers listen at all addresses of their host. The
 * secret is handed on unless the ranks have read it themselves. -EIO, with one line in `error`. */
int place_publish(struct place *p, char *join, size_t bytes, const char *secret,
	struct message *error);

/* Does what is due. Rank 0: answers the other ranks, and looks which of them have ended.
 * When all have been answered, an error is only worth a note: the ranks train without the
 * directory.
 * The others: look for the servers' addresses; 1: they were found, and are in `join`, with
 * the secret if rank 0 has made it. -EIO, with one line in `error`. */
int place_turn(struct place *p, char *join, size_t bytes, struct secret *secret,
	struct message *error);

/* Milliseconds until place_turn() or place_is_orphaned() is due; -1: never. */
int place_turn_ms(const struct place *p);

/* True once, if this rank has waited for a while: `text` says for what. True once, too, if
 * rank 0 cannot look which ranks have ended: `text` says why. */
bool place_has_note(struct place *p, char *text, size_t bytes);

/* Notes the parent of this process: mpirun and torchrun that are killed do not end their
 * ranks. The parent of a rank "by hand" (ranks.h) may be a shell that ends before it. */
void place_watch_launcher(struct place *p);

/* True if that parent has ended. */
bool place_is_orphaned(const struct place *p);

/* Tells rank 0 that the program of this rank has ended. `text` says how, unless `signal` is
 * not 0: the signal that has ended this rank. */
void place_say_end(struct place *p, int signal, const char *text);

/* Number of other ranks of which rank 0 does not know that their programs have ended. */
static inline uint64_t place_others(const struct place *p)
{
	return place_is_ranked(p) ? p->ranks.size - 1 - p->ended_count : 0;
}

#endif
