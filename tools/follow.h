/* SPDX-License-Identifier: Apache-2.0 */
/* `tern server --follow`: the time in which the process is a follower (server/follower.h), before it
 * becomes a server. */
#ifndef TERN_TOOLS_FOLLOW_H
#define TERN_TOOLS_FOLLOW_H

#include "server/follower.h"
#include "server/memory.h"
#include "tools/role.h"
#include "tools/servers.h"

struct standby {
	/* Set by the caller. `updater` belongs to the caller; `listen` is where the process
	 * listens, and is replaced by the address that it gets. */
	struct role *role;
	struct tern_updater *updater;
	const char *server; /* address of the server that is followed */
	/* Number of the followed server. If has_index is false, it is not known until that server
	 * has answered. */
	bool has_index;
	uint32_t index;
	char *listen;
	size_t listen_bytes;
	uint64_t memory_bytes, wait_s;
	bool omits; /* --on-nan skip */
	bool via;   /* --snapshots-via */
	/* The role's (tools/role.h); they call standby_stop() and standby_describe() while the
	 * standby has a follower. */
	void (*stop)(struct role *role, const char *why, bool save);
	void (*describe)(struct role *role, char *text, size_t bytes);

	struct tern_follower *follower; /* NULL: the process does not follow now */
	/* The follower's memory. The caller takes it when standby_run() has returned 0. */
	struct tern_server_memory *memory;
	struct tern_follower_stats stats; /* of the last follower, when it ended */
	bool listens;                     /* it has listened once */
};

/* Checks that the address that was read from --follow, `server`, is not that of --listen: no process follows
 * itself. -EINVAL: `error` has one line. */
int standby_check(const char *follow, const struct servers *server,
	const struct fabric_settings *fabric, const char *listen, struct message *error);

/* Follows the server, again and again if the server goes back and lives. Returns 0 when the server is
 * lost, with what is in memory: the process is to come in its place, and the role was opened anew.
 * Otherwise the role is over, for a reason that was reported. */
int standby_run(struct standby *standby);
/* The process is asked to end; `standby` has a follower. */
void standby_stop(struct standby *standby, const char *why);
void standby_describe(const struct standby *standby, char *text, size_t bytes);
/* Called after role_cut(). */
void standby_fini(struct standby *standby);

#endif
