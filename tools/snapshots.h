/* SPDX-License-Identifier: Apache-2.0 */
/* The options about snapshots (ps/snapshot.h) of `tern server` and of the launchers. */
#ifndef TERN_TOOLS_SNAPSHOTS_H
#define TERN_TOOLS_SNAPSHOTS_H

#include "ps/snapshot.h"
#include "server/server.h"
#include "tools/options.h"

struct snapshot_every {
	uint64_t steps, ns; /* at least one of them is 0; both: not given */
};

struct snapshot_settings {
	const char *directory, *resume; /* NULL: not given */
	/* Address of server 0, which keeps the snapshots; NULL: not given, or no option of this
	 * command. */
	const char *via;
	struct snapshot_every every;
	uint64_t keep; /* 0: not given */
};

/* Finds the newest complete snapshot in a directory. -ENOENT: there is none; or an error of
 * reading the directory. */
int snapshots_newest(const char *directory, struct tern_snapshot_id *id);

/* Appends to the last words of a job from which step --resume goes on, if a snapshot is in the directory, and
 * the words do not tell it. A disk that does not answer is waited for for a second. */
void snapshots_say_resume(const char *directory, char *text, size_t bytes);

/* True if a job with these settings that ends now can go on from a snapshot. */
bool snapshots_can_resume(const struct snapshot_settings *settings);

int snapshots_parse_every(const char *text, void *at, struct message *why);

/* Rows for a table of options; `field` of its settings is a struct snapshot_settings. */
#define SNAPSHOT_OPTIONS(settings, field)                                                \
	OPTION(TEXT, "snapshots", "DIR",                                                 \
		"save the state of the training there regularly; the same directory "    \
		"for all servers",                                                       \
		settings, field.directory),                                              \
		OPTION(CUSTOM, "snapshot-every", "N|Ns|Nm|Nh",                           \
			"save every N steps, or every N seconds, minutes or hours; in "  \
			"async mode each worker's gradient is a step; default 10m",      \
			settings, field.every, .parse = snapshots_parse_every),          \
		OPTION(COUNT, "snapshot-keep", "K",                                      \
			"how many snapshots are kept, older ones are removed; default "  \
			"3",                                                             \
			settings, field.keep, .min = 1, .max = 1000000),                 \
		OPTION(TEXT, "resume", "DIR",                                            \
			"go on from the newest snapshot in DIR, or from the one whose "  \
			"manifest (step-....json) is given",                             \
			settings, field.resume)

#define SNAPSHOTS_VIA_OPTION(settings, field)                                            \
	OPTION(TEXT, "snapshots-via", "ADDRESS",                                         \
		"in place of --snapshots, for a server that does not see the directory " \
		"of server 0: server 0, at this address, keeps its snapshots",           \
		settings, field.via)

/* True if the job takes snapshots. */
static inline bool snapshots_are_on(const struct snapshot_settings *settings)
{
	return settings->directory || settings->via;
}

/* Checks that --snapshots-via, if it is given, goes with the other options. `index` is that of
 * the server, UINT64_MAX if it is not given. -EINVAL: `error` has one line. */
int snapshots_check_via(const struct snapshot_settings *settings, uint64_t index,
	const char *follow, struct message *error);

struct snapshots_found {
	struct tern_snapshot_id *ids; /* of complete snapshots, the oldest first */
	size_t count;
	size_t loose_parts; /* parts of snapshots without a manifest */
};

/* Lists the snapshots in a directory, without reading them. The caller frees out->ids, which is
 * NULL after an error. */
int snapshots_list(const char *directory, struct snapshots_found *out);

/* True if the complete snapshot `id` was found. */
bool snapshots_has(const struct snapshots_found *found, struct tern_snapshot_id id);

/* True if `path` has the name of a manifest; *id is then the snapshot's. */
bool snapshots_is_manifest(const char *path, struct tern_snapshot_id *id);

/* Makes the directory if it does not exist, and checks that it can be written to and has no
 * snapshots of an earlier job, unless the job goes on from the newest of them; and that there
 * is a snapshot to go on from. -EINVAL: `error` has one line. */
int snapshots_check(const struct snapshot_settings *settings, struct message *error);

/* Locks the directory, so that no job begins there until the process ends; without `keep` it is only
 * checked that nobody has locked it. -EINVAL: another process has, or there can be no such file: `error` has
 * one line. On a file system without locks (flock()) nobody is kept out. */
int snapshots_lock(const char *directory, bool keep, struct message *error);

struct tern_server_snapshot_opts snapshots_opts(const struct snapshot_settings *settings);

#define SNAPSHOT_ARGS_MAX 8u

/* The options as arguments of `tern server`, which point into `text`. Returns how many. */
struct snapshot_args {
	char every[32], keep[24];
};
size_t snapshots_args(const struct snapshot_settings *settings, const char **args,
	struct snapshot_args *text);

#endif
