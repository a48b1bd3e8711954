/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server 0 decides which steps are saved, publishes what all servers have written, and removes
 * what is not needed any more. The newest complete snapshots stay, and so do newer ones that
 * were there before (a job may go on from an older one).
 *
 * A step is named that is `margin` ahead. No server is more than one step ahead of another,
 * since a gradient is computed from the parameters of all servers; but another server may pass
 * more steps while the message is on its way. Then the snapshot is given up, and the margin
 * grows.
 *
 * When the last step is done, it is saved, too. The servers end after that.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/snapshot_state.h"

#define MARGIN_FIRST 2u
#define MARGIN_MOST  4096u
#define EVERY_NS     (600 * TERN_NS_PER_S)
#define KEEP         3u

static bool is_by_steps(const struct tern_server *s)
{
	return s->opts.snapshots.every_steps > 0;
}

static void enter(struct snapshots *n, enum snapshots_state next)
{
	static const uint8_t edges[] = {
		[SNAPSHOTS_IDLE] = 1 << SNAPSHOTS_TAKING,
		[SNAPSHOTS_TAKING] = 1 << SNAPSHOTS_PUBLISHING | 1 << SNAPSHOTS_CLEANING,
		[SNAPSHOTS_PUBLISHING] = 1 << SNAPSHOTS_CLEANING,
		[SNAPSHOTS_CLEANING] = 1 << SNAPSHOTS_IDLE,
	};

	tern_assert(edges[n->state] >> next & 1);
	n->state = next;
}

/* The newest version of a chunk of this server. */
static uint64_t newest(const struct tern_server *s)
{
	uint64_t version = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		version = TERN_MAX(version, s->chunks[i].version);
	return version;
}

static void tell(struct tern_server *s)
{
	const struct snapshots *n = s->snapshots;
	struct tern_server_snapshot result = {.step = n->id.step,
		.path = n->failed ? NULL : n->manifest_path,
		.why = n->failed ? n->why : NULL,
		.ns = tern_now_ns(s->env) - n->begun_ns};

	for (uint32_t i = 0; !n->failed && i < s->job.server_count; i++)
		result.bytes += n->parts[i].bytes;
	if (s->opts.snapshot)
		s->opts.snapshot(s->opts.arg, &result);
}

/* ---- removing what is not needed ---- */

static void next_due(struct tern_server *s);

static void cleaned(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	while (n->stale_count)
		free(n->stale[--n->stale_count]);
	free(n->stale);
	free(n->zero_op.data);
	n->stale = NULL;
	n->zero_op.data = NULL;
	enter(n, SNAPSHOTS_IDLE);
	next_due(s);
	server_maybe_end(s);
}

static void remove_next(struct tern_server *s);

static void removed(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;

	if (s->over)
		return;
	if (op->status < 0 && op->status != -ENOENT)
		server_note(s, "%.300s cannot be removed: %s", op->path,
			strerror(-op->status));
	free(n->stale[--n->stale_count]);
	remove_next(s);
}

static void remove_next(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (n->stale_count == 0) {
		cleaned(s);
		return;
	}
	n->zero_op = (struct tern_file_op){.kind = TERN_FILE_REMOVE,
		.path = n->stale[n->stale_count - 1],
		.done = removed};
	if (tern_env_file(s->env, &n->zero_op) < 0)
		cleaned(s);
}

static bool is_complete(
	const struct tern_snapshot_id *ids, size_t count, struct tern_snapshot_id id)
{
	for (size_t i = 0; i < count; i++)
		if (tern_snapshot_compare(ids[i], id) == 0)
			return true;
	return false;
}

/* True if the snapshot stays. Only the present one is known to be whole. So nothing complete
 * is removed unless that is published; then it and the newest before it stay, `keep` in all,
 * and those of later steps. */
static bool stays(const struct tern_server *s, const struct tern_snapshot_id *ids,
	size_t count, struct tern_snapshot_id id)
{
	uint32_t keep = s->opts.snapshots.keep ? s->opts.snapshots.keep : KEEP, newer = 1;
	const struct tern_snapshot_id *present = &s->snapshots->id;

	if (!is_complete(ids, count, id))
		return false;
	if (s->snapshots->failed || tern_snapshot_compare(*present, id) == 0 ||
		id.step > present->step)
		return true;
	for (size_t i = 0; i < count; i++)
		newer += tern_snapshot_compare(ids[i], id) > 0 &&
			 ids[i].step < present->step;
	return id.step < present->step && newer < keep;
}

/* Lists the files that are not needed, the manifests last: remove_next() begins with those, so
 * no manifest is left whose parts are gone. */
static int list_stale(struct tern_server *s, const char *names, size_t bytes,
	const struct tern_snapshot_id *ids, size_t count)
{
	struct snapshots *n = s->snapshots;

	for (int manifests = 0; manifests < 2; manifests++)
		for (size_t at = 0; at < bytes; at += strlen(names + at) + 1) {
			struct tern_snapshot_id id;
			uint32_t part;
			char **more;

			if (!tern_snapshot_name_read(names + at, &id, &part) ||
				(part == TERN_SNAPSHOT_MANIFEST) != manifests ||
				stays(s, ids, count, id))
				continue;
			more = reallocarray(n->stale, n->stale_count + 1, sizeof(*more));
			if (!more)
				return -ENOMEM;
			n->stale = more;
			more[n->stale_count] = tern_snapshot_path(
				s->opts.snapshots.directory, names + at);
			if (!more[n->stale_count])
				return -ENOMEM;
			n->stale_count++;
		}
	return 0;
}

static void listed(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;
	struct tern_snapshot_id *ids = NULL;
	size_t count = 0;
	int r = op->status;

	if (s->over)
		return;
	if (r == 0)
		r = tern_snapshot_list(op->data, op->bytes, &ids, &count);
	if (r == 0)
		r = list_stale(s, op->data, op->bytes, ids, count);
	free(ids);
	free(TERN_TAKE(op->data));
	if (r < 0)
		server_note(s, "older snapshots in %.300s are not removed: %s",
			s->opts.snapshots.directory, strerror(-r));
	remove_next(s);
}

static void clean(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	enter(n, SNAPSHOTS_CLEANING);
	n->zero_op = (struct tern_file_op){.kind = TERN_FILE_LIST,
		.path = s->opts.snapshots.directory,
		.done = listed};
	if (tern_env_file(s->env, &n->zero_op) < 0)
		cleaned(s);
}

/* ---- publishing ---- */

static void forget_manifest(struct snapshots *n)
{
	free(n->manifest);
	free(n->manifest_path);
	n->manifest = n->manifest_path = NULL;
}

/* The snapshot has ended; if it has failed, n->why says why. */
static void ended(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	tell(s);
	forget_manifest(n);
	clean(s);
}

static void manifest_failed(struct tern_server *s, int status)
{
	struct snapshots *n = s->snapshots;

	snprintf(n->why, sizeof(n->why), "its manifest cannot be written: %s",
		strerror(-status));
	n->failed = true;
	ended(s);
}

static void manifest_written(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);

	if (n->server->over)
		return;
	if (op->status < 0)
		manifest_failed(n->server, op->status);
	else
		ended(n->server);
}

static void write_manifest(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	int r = -ENOMEM;

	n->manifest = tern_snapshot_encode(n->id, &s->job, &s->plan, n->parts);
	n->manifest_path = tern_snapshot_path(
		s->opts.snapshots.directory, tern_snapshot_manifest_name(n->id).text);
	if (n->manifest && n->manifest_path) {
		n->manifest_part = (struct iovec){n->manifest, strlen(n->manifest)};
		n->zero_op = (struct tern_file_op){.kind = TERN_FILE_WRITE,
			.path = n->manifest_path,
			.parts = &n->manifest_part,
			.part_count = 1,
			.done = manifest_written};
		r = tern_env_file(s->env, &n->zero_op);
	}
	if (r < 0)
		manifest_failed(s, r);
}

/* The first server whose part is not in the directory; UINT32_MAX: all are. */
static uint32_t find_missing(const struct tern_server *s, const char *names, size_t bytes)
{
	for (uint32_t i = 0; i < s->job.server_count; i++) {
		struct tern_snapshot_name part =
			tern_snapshot_part_name(s->snapshots->id, i);
		size_t at = 0;

		while (at < bytes && strcmp(names + at, part.text) != 0)
			at += strlen(names + at) + 1;
		if (at >= bytes)
			return i;
	}
	return UINT32_MAX;
}

static void looked(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;
	uint32_t missing;

	if (s->over)
		return;
	missing = op->status == 0 ? find_missing(s, op->data, op->bytes) : UINT32_MAX;
	free(TERN_TAKE(op->data));
	if (missing == UINT32_MAX) {
		write_manifest(s);
		return;
	}
	snprintf(n->why, sizeof(n->why),
		"the part of server %u is not in %.150s as server 0 sees it: this must "
		"be "
		"one directory for all servers",
		missing, s->opts.snapshots.directory);
	n->failed = true;
	ended(s);
}

/* All parts are written. Looks whether they are where this server can see them. */
static void publish(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	enter(n, SNAPSHOTS_PUBLISHING);
	n->zero_op = (struct tern_file_op){.kind = TERN_FILE_LIST,
		.path = s->opts.snapshots.directory,
		.done = looked};
	if (tern_env_file(s->env, &n->zero_op) < 0)
		write_manifest(s);
}

/* ---- taking ---- */

static void all_reported(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n->failed) {
		publish(s);
		return;
	}
	if (n->late && n->margin < MARGIN_MOST) {
		n->margin *= 2;
		server_note(s,
			"no snapshot of step %llu: another server had passed it when it "
			"heard "
			"of it; the next one is announced %llu steps ahead",
			(unsigned long long)n->id.step, (unsigned long long)n->margin);
		n->asked = n->on_request || !is_by_steps(s);
	} else {
		tell(s);
	}
	clean(s);
}

static void part_ended(struct tern_server *s, uint32_t server)
{
	struct snapshots *n = s->snapshots;

	n->reported[server] = true;
	if (--n->missing_count == 0)
		all_reported(s);
}

static void fail_part(struct snapshots *n, const char *why, bool late)
{
	n->late = n->late || late;
	if (!n->failed)
		snprintf(n->why, sizeof(n->why), "%s", why);
	n->failed = true;
}

void snapshots_report(struct tern_server *s, const struct snapshot_report *report)
{
	struct snapshots *n = s->snapshots;

	n->parts[0].bytes = report->bytes;
	n->parts[0].digest = report->digest;
	if (report->why)
		fail_part(n, report->why, report->late);
	part_ended(s, 0);
}

static bool read_report(const json_t *message, struct snapshot_report *report)
{
	json_int_t step = 0, number = 0, bytes = 0;
	const char *digest = NULL, *why = NULL;
	int late = 0;
	char end;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I, s:I, s:s, s:b, s?s}",
		    "step", &step, "number", &number, "bytes", &bytes, "digest", &digest,
		    "late", &late, "text", &why) < 0 ||
		step < 1 || number < 0 || number > UINT32_MAX || bytes < 0)
		return false;
	*report = (struct snapshot_report){
		.id = {.step = (uint64_t)step, .number = (uint32_t)number},
		.bytes = (uint64_t)bytes,
		.late = late,
		.why = why};
	return sscanf(digest, "%16" SCNx64 "%c", &report->digest, &end) == 1;
}

/* Server 0: another server's part has ended. */
void snapshots_on_report(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	struct snapshots *n = s->snapshots;
	struct snapshot_report report;

	if (!read_report(message, &report) || !n || n->state != SNAPSHOTS_TAKING ||
		tern_snapshot_compare(report.id, n->id) != 0 || n->reported[p->index]) {
		server_refuse(p,
			"its message \"snapshot\" tells of a part that it was not asked "
			"for");
		return;
	}
	n->parts[p->index].bytes = report.bytes;
	n->parts[p->index].digest = report.digest;
	if (report.why)
		fail_part(n, report.why, report.late);
	part_ended(s, p->index);
}

void snapshots_on_lost(struct tern_server *s, uint32_t server)
{
	struct snapshots *n = s->snapshots;

	if (!n || s->index != 0 || n->state != SNAPSHOTS_TAKING || n->reported[server])
		return;
	fail_part(n, "a server was lost", false);
	part_ended(s, server);
}

/* Another server: takes part in what server 0 has begun. */
void snapshots_on_begin(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	json_int_t step = 0, number = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I}", "step", &step,
		    "number", &number) < 0 ||
		step < 1 || (uint64_t)step > s->job.steps || number < 0 ||
		number > UINT32_MAX) {
		server_fail(s, -EPROTO,
			"server 0 began a snapshot of step %lld, number %lld: expected a "
			"step from 1 to %llu and a number of 32 bits",
			(long long)step, (long long)number,
			(unsigned long long)s->job.steps);
		return;
	}
	if (!s->running) {
		server_fail(s, -EPROTO, "server 0 began a snapshot before the steps");
		return;
	}
	if (!s->snapshots) {
		server_fail(s, -EINVAL,
			"server 0 takes snapshots, and server %u was started without "
			"--snapshots: give all servers the same directory",
			s->index);
		return;
	}
	if (s->snapshots->taking) {
		server_fail(
			s, -EPROTO, "server 0 began a snapshot before the last ended");
		return;
	}
	s->snapshots->final = (uint64_t)step == s->job.steps;
	snapshot_take(s, (struct tern_snapshot_id){(uint64_t)step, (uint32_t)number});
}

static void begin(struct tern_server *s, uint64_t step)
{
	struct snapshots *n = s->snapshots;
	struct tern_snapshot_id id = {step, (uint32_t)tern_random(s->env)};

	enter(n, SNAPSHOTS_TAKING);
	n->begun_ns = tern_now_ns(s->env);
	n->last_step = step;
	n->on_request = n->asked;
	n->asked = n->failed = n->late = false;
	n->final = step == s->job.steps;
	n->missing_count = s->job.server_count;
	memset(n->reported, 0, s->job.server_count * sizeof(*n->reported));
	for (uint32_t i = 1; i < s->job.server_count; i++) {
		struct server_peer *p = others_find(s, i);

		if (p)
			tern_talk_say(
				&p->talk, json_pack("{s:s, s:I, s:I}", "type", "snapshot",
						  "step", (json_int_t)step, "number",
						  (json_int_t)id.number));
	}
	snapshot_take(s, id);
	/* The loss of a server ends the job, but for the time after the last step. */
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (!others_find(s, i))
			snapshots_on_lost(s, i);
}

/* ---- when ---- */

/* True if this step is one to be saved. */
static bool is_due(const struct tern_server *s, uint64_t step)
{
	return is_by_steps(s) && step % s->opts.snapshots.every_steps == 0 &&
	       step > s->snapshots->last_step;
}

/* Notes the steps between the last snapshot and this one that should have been saved. */
static void note_skipped(struct tern_server *s, uint64_t step)
{
	uint64_t every = s->opts.snapshots.every_steps, last = s->snapshots->last_step;

	if (step > last / every * every + every)
		server_note(s,
			"no snapshot of step %llu: the one before was still being "
			"written, "
			"or it came too soon",
			(unsigned long long)(last / every * every + every));
}

static void fire(struct tern_timer *timer)
{
	struct snapshots *n = tern_container_of(timer, struct snapshots, timer);
	struct tern_server *s = n->server;

	if (s->over || s->opts.ctx->ending)
		return;
	if (n->state != SNAPSHOTS_IDLE)
		server_note(s, "no snapshot now: the one before is still being written");
	n->asked = n->asked || n->state == SNAPSHOTS_IDLE;
	next_due(s);
}

static void set_timer(struct tern_server *s)
{
	uint64_t every = s->opts.snapshots.every_ns;

	s->snapshots->timer.fire = fire;
	tern_timer_set(s->opts.ctx, &s->snapshots->timer,
		tern_now_ns(s->env) + (every ? every : EVERY_NS));
}

/* Begins the next snapshot if it is time, and none is being taken. */
static void next_due(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	uint64_t step;

	if (!is_by_steps(s) && !n->timer.place)
		set_timer(s);
	if (n->state != SNAPSHOTS_IDLE || n->final)
		return;
	if (sync_is_done(s)) {
		begin(s, s->job.steps);
		return;
	}
	step = newest(s) + n->margin;
	if (step >= s->job.steps || (!n->asked && !is_due(s, step)))
		return;
	if (!n->asked)
		note_skipped(s, step);
	begin(s, step);
}

void snapshots_start(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n || s->over)
		return;
	n->last_step = s->first_version;
	/* A job that was done when it was resumed has nothing new to save. */
	n->final = s->first_version == s->job.steps;
	if (s->index == 0)
		next_due(s);
}

void snapshots_step_made(struct tern_server *s)
{
	if (s->snapshots && s->index == 0)
		next_due(s);
}

void snapshots_ask(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n || !s->running || s->over)
		return;
	if (s->index != 0) {
		if (!s->to_zero->gone)
			tern_talk_say(&s->to_zero->talk,
				json_pack("{s:s}", "type", "snapshot_wanted"));
		return;
	}
	if (n->state != SNAPSHOTS_IDLE) {
		server_note(s, "a snapshot is being written already");
		return;
	}
	n->asked = true;
	next_due(s);
}

bool snapshots_hold_end(const struct tern_server *s)
{
	const struct snapshots *n = s->snapshots;

	if (!n)
		return false;
	if (s->index != 0)
		return !s->to_zero->gone && (n->taking || !n->final);
	return n->state != SNAPSHOTS_IDLE || !n->final;
}

/* ---- birth and death ---- */

int snapshots_init(struct tern_server *s)
{
	struct snapshots *n;

	if (!s->opts.snapshots.directory)
		return 0;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	s->snapshots = n;
	n->server = s;
	n->margin = MARGIN_FIRST;
	n->parts = calloc(s->job.server_count, sizeof(*n->parts));
	n->reported = calloc(s->job.server_count, sizeof(*n->reported));
	return n->parts && n->reported ? 0 : -ENOMEM;
}

void snapshots_end(struct tern_server *s)
{
	if (s->snapshots)
		tern_timer_clear(s->opts.ctx, &s->snapshots->timer);
}

void snapshots_fini(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (!n)
		return;
	snapshot_drop_copies(s);
	if (n->iov)
		free(n->iov[0].iov_base);
	while (n->stale_count)
		free(n->stale[--n->stale_count]);
	forget_manifest(n);
	free(n->iov);
	free(n->path);
	free(n->stale);
	free(n->zero_op.data);
	free(n->parts);
	free(n->reported);
	free(n);
	s->snapshots = NULL;
}
