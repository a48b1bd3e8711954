/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `tern server`, and what must hold of them. */
#ifndef TERN_TOOLS_SERVER_SETTINGS_H
#define TERN_TOOLS_SERVER_SETTINGS_H

#include "ps/view.h"
#include "tools/job.h"
#include "tools/options.h"
#include "tools/role.h"
#include "tools/secret.h"
#include "tools/servers.h"
#include "tools/snapshots.h"

struct server_settings {
	const char *listen; /* --listen; NULL: see fabric_listen_address() */
	struct fabric_settings fabric;
	struct secret_settings secret;
	struct device_choice device;
	int tensor_memory; /* --tensor-memory: index into device_memories */
	int arithmetic;    /* --arithmetic: index into device_arithmetics */
	uint64_t index, spin_us, threads;
	uint64_t workers; /* 0: not given */
	double worker_timeout_s;
	int on_stall; /* enum tern_on_stall */
	int on_nan;   /* enum job_on_nan */
	struct snapshot_settings snapshots;
	const char *logdir;
	const char *join, *follow;
	struct tern_view view; /* --view; its number is 0: not given */
	bool replaces;
	uint64_t server_wait_s;
	double drain_within_s;
	bool json;
	enum tern_log_level log_level;
};

extern const struct option server_options[];

/* Reads the options and the secret, and checks what can be checked without a fabric. -EINVAL: `error` has one
 * line. */
int server_settings_parse(int argc, char **argv, struct server_settings *settings,
	struct secret *secret, struct message *error);

/* Checks what --join needs besides, and reads its addresses; none, if it is not given. -EINVAL, as above; or
 * an error of servers_read(). */
int server_settings_join(const struct server_settings *settings,
	struct tern_domain *domain, struct servers *members, struct message *error);

/* Checks what --follow needs besides, and reads its one address. Errors as of server_settings_join(). */
int server_settings_follow(const struct server_settings *settings,
	struct tern_domain *domain, struct servers *followed, struct message *error);

#endif
