/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server 0 publishes a snapshot whose parts are all written, and removes what is not needed.
 *
 * A job marks the directory as its own when it publishes its first snapshot: with a file that
 * has a random number. A job that finds another number there was started before the one that
 * wrote it, perhaps as its predecessor that lives on somewhere. It publishes and removes nothing
 * any more. The process of server 0 keeps the number when the job goes back, or a predecessor that
 * goes back would take the directory from the job that came after it. A new server 0 marks the
 * directory anew.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/membership.h"
#include "server/snapshot_state.h"

#define KEEP  3u
#define OWNER ".tern-owner"

/* Starts an operation on the file `name` of the directory, or on the directory (NULL). */
static int run(struct tern_server *s, enum tern_file_kind kind, const char *name,
	const struct iovec *part, void (*done)(struct tern_file_op *op))
{
	struct snapshots *n = s->snapshots;
	const char *directory = s->opts.snapshots.directory;

	free(n->zero_path);
	n->zero_path = name ? tern_snapshot_path(directory, name) : strdup(directory);
	n->zero_op = (struct tern_file_op){.kind = kind,
		.path = n->zero_path,
		.parts = part,
		.part_count = part ? 1 : 0,
		.done = done};
	return n->zero_path ? tern_env_file(s->env, &n->zero_op) : -ENOMEM;
}

/* ---- removing what is not needed ---- */

static void end_cleaning(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	while (n->stale_count)
		free(n->stale[--n->stale_count]);
	free(TERN_TAKE(n->stale));
	snapshots_cleaned(s);
}

static void remove_next(struct tern_server *s);

static void removed(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;

	if (s->over)
		return;
	/* A manifest must not be left without its parts, which come later. */
	if (op->status < 0 && op->status != -ENOENT) {
		server_note(s, "%.300s cannot be removed: %s", op->path,
			strerror(-op->status));
		end_cleaning(s);
		return;
	}
	free(n->stale[--n->stale_count]);
	remove_next(s);
}

static void remove_next(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	if (n->stale_count == 0 ||
		run(s, TERN_FILE_REMOVE, n->stale[n->stale_count - 1], NULL, removed) < 0)
		end_cleaning(s);
}

static int compare(const void *a, const void *b)
{
	const struct tern_snapshot_id *x = a, *y = b;

	return tern_snapshot_compare(*x, *y);
}

/* The names in the directory of snapshots, and which of them are of complete snapshots. */
struct listing {
	const char *names;
	size_t bytes;
	struct tern_snapshot_id *ids; /* of complete snapshots, the oldest first */
	size_t count;
	struct tern_snapshot_id oldest; /* of those that stay */
};

/* Only the present snapshot is known to be whole. So nothing complete is removed unless that is
 * published. Then it and the newest before it stay, `keep` in all. (One of a later step is
 * one that was damaged when the job went on from an older one.) */
static void find_oldest(const struct tern_server *s, struct listing *l)
{
	uint32_t keep = s->opts.snapshots.keep ? s->opts.snapshots.keep : KEEP;
	size_t before = 0; /* snapshots of earlier steps */

	while (before < l->count && l->ids[before].step < s->snapshots->id.step)
		before++;
	if (keep == 1)
		l->oldest = (struct tern_snapshot_id){.step = s->snapshots->id.step};
	else if (before >= keep - 1)
		l->oldest = l->ids[before - (keep - 1)];
}

static bool stays(
	const struct tern_server *s, const struct listing *l, struct tern_snapshot_id id)
{
	const struct snapshots *n = s->snapshots;
	bool present = tern_snapshot_compare(id, n->id) == 0;

	if (!n->owned && !present)
		return true; /* perhaps another job's */
	if (!bsearch(&id, l->ids, l->count, sizeof(id), compare))
		return false;
	if (n->failed || present || id.step > n->id.step)
		return true;
	return id.step < n->id.step && tern_snapshot_compare(id, l->oldest) >= 0;
}

static bool is_stale(const struct tern_server *s, const struct listing *l,
	const char *name, bool manifest)
{
	struct tern_snapshot_id id;
	uint32_t part;

	if (tern_snapshot_name_read(name, &id, &part))
		return (part == TERN_SNAPSHOT_MANIFEST) == manifest && !stays(s, l, id);
	return !manifest && s->snapshots->owned && tern_snapshot_is_torn(name);
}

/* Lists the files that are not needed, the manifests last: remove_next() begins with those. */
static int list_stale(struct tern_server *s, const struct listing *l)
{
	struct snapshots *n = s->snapshots;

	for (int manifests = 0; manifests < 2; manifests++)
		for (size_t at = 0; at < l->bytes; at += strlen(l->names + at) + 1) {
			char **more;

			if (!is_stale(s, l, l->names + at, manifests))
				continue;
			more = reallocarray(n->stale, n->stale_count + 1, sizeof(*more));
			if (!more)
				return -ENOMEM;
			n->stale = more;
			more[n->stale_count] = strdup(l->names + at);
			if (!more[n->stale_count++])
				return -ENOMEM;
		}
	return 0;
}

static void listed(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;
	struct listing l = {.names = op->data, .bytes = op->bytes};
	int r = op->status;

	if (s->over)
		return;
	if (r == 0)
		r = tern_snapshot_list(l.names, l.bytes, &l.ids, &l.count);
	if (r == 0) {
		find_oldest(s, &l);
		r = list_stale(s, &l);
	}
	free(l.ids);
	free(TERN_TAKE(op->data));
	if (r < 0) {
		server_note(s, "older snapshots in %.300s are not removed: %s",
			s->opts.snapshots.directory, strerror(-r));
		end_cleaning(s);
		return;
	}
	remove_next(s);
}

void snapshots_clean(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;

	snapshots_enter(n, SNAPSHOTS_CLEANING);
	if (n->disowned || run(s, TERN_FILE_LIST, NULL, NULL, listed) < 0)
		end_cleaning(s);
}

/* ---- publishing ---- */

/* The snapshot has ended; if it has failed, n->why says why. */
static void ended(struct tern_server *s)
{
	snapshots_tell(s);
	free(TERN_TAKE(s->snapshots->manifest));
	free(TERN_TAKE(s->snapshots->manifest_path));
	snapshots_clean(s);
}

static void fail(struct tern_server *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void fail(struct tern_server *s, const char *fmt, ...)
{
	struct snapshots *n = s->snapshots;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(n->why, sizeof(n->why), fmt, ap);
	va_end(ap);
	n->failed = true;
	ended(s);
}

static void manifest_written(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);

	if (n->server->over)
		return;
	if (op->status < 0)
		fail(n->server, "its manifest cannot be written: %s",
			strerror(-op->status));
	else
		ended(n->server);
}

static void write_manifest(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	const struct tern_snapshot_name name = tern_snapshot_manifest_name(n->id);
	int r = -ENOMEM;

	n->manifest = tern_snapshot_encode(&(struct tern_snapshot){.id = n->id,
						   .job = s->job,
						   .parts = n->parts,
						   .part_count = s->job.server_count,
						   .least = n->cut.least,
						   .most = n->cut.steps,
						   .blob = n->blob,
						   .omitted = s->history->omitted},
		&s->plan);
	n->manifest_path = tern_snapshot_path(s->opts.snapshots.directory, name.text);
	if (n->manifest && n->manifest_path) {
		n->zero_part = (struct iovec){n->manifest, strlen(n->manifest)};
		r = run(s, TERN_FILE_WRITE, name.text, &n->zero_part, manifest_written);
	}
	if (r < 0)
		fail(s, "its manifest cannot be written: %s", strerror(-r));
}

static void owner_written(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;

	if (s->over)
		return;
	if (op->status < 0) {
		fail(s, "%.200s cannot be written: %s", op->path, strerror(-op->status));
		return;
	}
	memcpy(s->history->snapshot_owner, n->owner, sizeof(n->owner));
	n->owned = true;
	write_manifest(s);
}

static void own(struct tern_server *s)
{
	struct snapshots *n = s->snapshots;
	int r;

	snprintf(n->owner, sizeof(n->owner), "%016" PRIx64, tern_random(s->env));
	n->zero_part = (struct iovec){n->owner, strlen(n->owner)};
	r = run(s, TERN_FILE_WRITE, OWNER, &n->zero_part, owner_written);
	if (r < 0)
		fail(s, "the directory cannot be marked: %s", strerror(-r));
}

static void owner_read(struct tern_file_op *op)
{
	struct snapshots *n = tern_container_of(op, struct snapshots, zero_op);
	struct tern_server *s = n->server;
	const char *owner = s->history->snapshot_owner;
	int status = op->status;

	if (s->over)
		return;
	n->owned = status == 0 && op->bytes == strlen(owner) &&
		   memcmp(op->data, owner, op->bytes) == 0;
	n->disowned = status == 0 && !n->owned;
	free(TERN_TAKE(op->data));
	if (n->disowned)
		fail(s,
			"another job takes snapshots in %.150s now: this one must not go "
			"on "
			"there",
			s->opts.snapshots.directory);
	else if (status == -ENOENT)
		own(s);
	else if (status < 0)
		fail(s, "%.200s cannot be read: %s", op->path, strerror(-status));
	else
		write_manifest(s);
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
	int r = op->status;
	uint32_t missing;

	if (s->over)
		return;
	if (r < 0) {
		fail(s, "%.200s cannot be read: %s", op->path, strerror(-r));
		return;
	}
	missing = find_missing(s, op->data, op->bytes);
	free(TERN_TAKE(op->data));
	if (missing != UINT32_MAX) {
		fail(s,
			"the part of server %u is not in %.150s as server 0 sees it: all "
			"servers need the same directory, or --snapshots-via",
			view_number(s, missing), s->opts.snapshots.directory);
		return;
	}
	if (!*s->history->snapshot_owner)
		own(s);
	else if ((r = run(s, TERN_FILE_READ, OWNER, NULL, owner_read)) < 0)
		fail(s, "the directory cannot be looked at: %s", strerror(-r));
}

/* All parts are written. Looks whether they are where this server can see them. */
void snapshots_publish(struct tern_server *s)
{
	int r;

	snapshots_enter(s->snapshots, SNAPSHOTS_PUBLISHING);
	r = run(s, TERN_FILE_LIST, NULL, NULL, looked);
	if (r < 0)
		fail(s, "the directory cannot be looked at: %s", strerror(-r));
}
