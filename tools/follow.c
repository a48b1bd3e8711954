/* SPDX-License-Identifier: Apache-2.0 */
/* See follow.h. */
#include "tools/follow.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tools/report.h"

/* How many seconds a server that goes back is tried while it cannot be reached, before its follower comes
 * in its place. */
#define RETURNS_S 2

/* The address without "FABRIC://". */
static const char *place_of(const char *address)
{
	const char *place = strstr(address, "://");

	return place ? place + 3 : address;
}

int standby_check(const char *follow, const struct servers *server,
	const struct fabric_settings *fabric, const char *listen, struct message *error)
{
	char own[300];

	fabric_listen_address(fabric, listen, "tern-follower", own, sizeof(own));
	if (strcmp(place_of(own), place_of(server->address[0])) != 0)
		return 0;
	return options_refuse(error,
		"--follow %.300s: is the address of this process (--listen): expected "
		"that of a server",
		follow);
}

/* The server has accepted this process as its follower. */
static void take_number(struct standby *b, uint32_t number)
{
	if (b->has_index && number != b->index)
		role_fail(b->role, true,
			"--index %u: the server at %.200s, which --follow names, is "
			"server %u",
			b->index, b->server, number);
	b->has_index = true;
	b->index = number;
	snprintf(b->role->name, sizeof(b->role->name), "follower %u", number);
	role_name_process("follow", number);
}

static void note(void *arg, const char *text)
{
	struct standby *b = arg;
	struct tern_follower_stats stats;

	tern_follower_stats(b->follower, &stats);
	if (stats.follows)
		take_number(b, stats.number);
	role_note(b->role, text);
}

static void ended(void *arg, int status, const char *text)
{
	struct standby *b = arg;
	struct role *role = b->role;

	tern_follower_stats(b->follower, &b->stats);
	role->over = true;
	if (status == 0) {
		role_report(role, json_pack("{ss}", "event", "completed"));
	} else if (b->stats.removed) {
		role->left = true; /* the job goes on without it */
		role_note(role, text);
	} else if (status != -EAGAIN || role->signal) {
		role_fail(role, false, "%s", text);
	} else {
		role->again = true;
	}
	if (role->again)
		role_note(role, text);
}

static int begin(struct standby *b)
{
	struct role *role = b->role;
	char why[200];
	int r = tern_follower_new(
		&(struct tern_follower_opts){.domain = role->domain,
			.ctx = role->ctx,
			.updater = b->updater,
			.server = b->server,
			.listen = b->listen,
			.wait_ns = (b->memory ? RETURNS_S : b->wait_s) * TERN_NS_PER_S,
			.memory_bytes = b->memory_bytes,
			.omits = b->omits,
			.via = b->via,
			.from_memory = b->memory,
			.note = note,
			.ended = ended,
			.arg = b},
		&b->follower);

	if (r) {
		role_fail(role, r == -EINVAL, "--follow %.200s, --listen %.200s: %s",
			b->server, b->listen,
			r == -EINVAL ? "one of them is no address"
				     : role_why(r, why, sizeof(why)));
		return r;
	}
	b->memory = NULL; /* it is the follower's now */
	role->stop = b->stop;
	role->describe = b->describe;
	snprintf(b->listen, b->listen_bytes, "%s", tern_follower_address(b->follower));
	if (!b->listens)
		role_report(role,
			json_pack("{ss ss}", "event", "listening", "address", b->listen));
	b->listens = true;
	return 0;
}

/* The follower has ended: keeps what it has, and opens the role anew. */
static int reopen(struct standby *b)
{
	char text[300];
	int r;

	role_back_begin(b->role, b->wait_s);
	role_cut(b->role);
	r = tern_follower_keep(b->follower, &b->memory);
	if (r < 0) {
		snprintf(text, sizeof(text),
			"the parameters cannot be kept in memory: %s",
			tern_status_text(r));
		role_note(b->role, text);
	}
	tern_follower_free(TERN_TAKE(b->follower));
	r = role_open_again(b->role, b->memory && b->stats.server_lives ? RETURNS_S : 0);
	return r == 0 && !role_back_pause(b->role) ? -ECANCELED : r;
}

int standby_run(struct standby *b)
{
	int r = begin(b);

	snprintf(b->role->name, sizeof(b->role->name), "follower");
	if (b->has_index)
		snprintf(b->role->name, sizeof(b->role->name), "follower %u", b->index);
	while (r == 0) {
		role_loop(b->role);
		if (!b->role->again)
			return -ECANCELED;
		/* --server-wait counts anew once a server has accepted its follower. */
		if (b->stats.follows)
			b->role->back_ns = 0;
		r = reopen(b);
		if (r)
			return r;
		if (b->memory && !b->stats.server_lives)
			return 0;
		if (!b->memory && !b->stats.follows) {
			role_fail(b->role, false,
				"--follow %.200s: the server has not let itself be "
				"followed for %llu s",
				b->server, (unsigned long long)b->wait_s);
			return -ETIMEDOUT;
		}
		r = begin(b);
	}
	return r;
}

void standby_stop(struct standby *b, const char *why)
{
	b->role->left = true; /* the job goes on without it */
	tern_follower_stop(b->follower, why);
}

void standby_describe(const struct standby *b, char *text, size_t bytes)
{
	struct tern_follower_stats stats;

	tern_follower_stats(b->follower, &stats);
	if (!stats.follows)
		snprintf(text, bytes, "waits for the server at %s", b->server);
	else
		snprintf(text, bytes,
			"follows server %u at step %llu: has %u of %u chunks",
			stats.number, (unsigned long long)stats.steps, stats.filled_count,
			stats.chunk_count);
}

void standby_fini(struct standby *b)
{
	tern_follower_free(TERN_TAKE(b->follower));
	tern_server_memory_free(TERN_TAKE(b->memory));
}
