/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the newest snapshot that is whole: lists the directory, and then reads the files of
 * one snapshot after the other, the newest first, until one is as it was written. */
#include "ps/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/escape.h"
#include "base/util.h"

char *tern_snapshot_path(const char *directory, const char *name)
{
	size_t bytes = strlen(directory) + strlen(name) + 2;
	char *path = malloc(bytes);

	if (path)
		snprintf(path, bytes, "%s/%s", directory, name);
	return path;
}

static int compare(const void *a, const void *b)
{
	const struct tern_snapshot_id *x = a, *y = b;

	return tern_snapshot_compare(*x, *y);
}

int tern_snapshot_list(
	const char *names, size_t bytes, struct tern_snapshot_id **ids, size_t *count)
{
	size_t room = 1;

	*count = 0;
	for (size_t at = 0; at < bytes; at += strlen(names + at) + 1)
		room++;
	*ids = calloc(room, sizeof(**ids));
	if (!*ids)
		return -ENOMEM;
	for (size_t at = 0; at < bytes; at += strlen(names + at) + 1) {
		struct tern_snapshot_id id;
		uint32_t part;

		if (tern_snapshot_name_read(names + at, &id, &part) &&
			part == TERN_SNAPSHOT_MANIFEST)
			(*ids)[(*count)++] = id;
	}
	qsort(*ids, *count, sizeof(**ids), compare);
	return 0;
}

static void finish(struct tern_snapshot_search *s, int status)
{
	free(s->op.data);
	s->op.data = NULL;
	if (status < 0)
		tern_snapshot_fini(&s->found);
	s->done(s, status);
}

/* Starts an operation on a file of the directory; NULL: on the directory. */
static int run(struct tern_snapshot_search *s, enum tern_file_kind kind, const char *name,
	void (*done)(struct tern_file_op *op))
{
	free(s->op.data);
	free(s->file_path);
	s->op = (struct tern_file_op){.kind = kind, .done = done};
	s->file_path =
		name ? tern_snapshot_path(s->directory, name) : strdup(s->directory);
	s->op.path = s->file_path;
	return s->file_path ? tern_env_file(s->env, &s->op) : -ENOMEM;
}

static void try_next(struct tern_snapshot_search *s);

/* The present snapshot cannot be used. */
static void pass_over(struct tern_snapshot_search *s, const char *what)
{
	char text[sizeof(s->why.text)];

	snprintf(text, sizeof(text), "snapshot %s cannot be used: %.300s",
		tern_snapshot_short_name(s->ids[s->id_count]).text, what);
	snprintf(s->why.text, sizeof(s->why.text), "%s", text);
	tern_snapshot_fini(&s->found);
	if (s->passed_over)
		s->passed_over(s, text);
	try_next(s);
}

static void read_next_part(struct tern_snapshot_search *s);

/* "FILE: No such file or directory" */
static void name_error(const struct tern_file_op *op, struct tern_ps_text *why)
{
	const char *slash = strrchr(op->path, '/');

	snprintf(why->text, sizeof(why->text), "%.200s: %s",
		TERN_SHOWN(slash ? slash + 1 : op->path), strerror(-op->status));
}

/* A file cannot be read, which may be different in a moment, or on another server: no older
 * snapshot is taken for that. */
static void give_up(struct tern_snapshot_search *s)
{
	name_error(&s->op, &s->why);
	finish(s, s->op.status);
}

static void part_read(struct tern_file_op *op)
{
	struct tern_snapshot_search *s =
		tern_container_of(op, struct tern_snapshot_search, op);
	struct tern_ps_text why;

	if (op->status < 0 && op->status != -ENOENT) {
		give_up(s);
	} else if (op->status < 0) {
		name_error(op, &why);
		pass_over(s, why.text);
	} else if (!tern_snapshot_check_part(
			   &s->found, s->part, op->data, op->bytes, &why)) {
		pass_over(s, why.text);
	} else {
		s->part++;
		read_next_part(s);
	}
}

static void read_next_part(struct tern_snapshot_search *s)
{
	int r;

	if (s->part == s->found.part_count) {
		finish(s, 0);
		return;
	}
	r = run(s, TERN_FILE_READ, tern_snapshot_part_name(s->found.id, s->part).text,
		part_read);
	if (r < 0)
		finish(s, r);
}

static void manifest_read(struct tern_file_op *op)
{
	struct tern_snapshot_search *s =
		tern_container_of(op, struct tern_snapshot_search, op);
	struct tern_ps_text why;
	int r = op->status;

	if (r < 0 && r != -ENOENT) {
		give_up(s);
		return;
	}
	if (r < 0)
		name_error(op, &why);
	else
		r = tern_snapshot_decode(op->data, op->bytes, &s->found, &why);
	if (r == 0 && tern_snapshot_compare(s->found.id, s->ids[s->id_count]) != 0) {
		snprintf(why.text, sizeof(why.text),
			"its manifest is that of another one, %s",
			tern_snapshot_short_name(s->found.id).text);
		r = -EINVAL;
	}
	if (r == -ENOMEM) {
		s->why = why;
		finish(s, r);
		return;
	}
	if (r < 0) {
		pass_over(s, why.text);
		return;
	}
	s->part = 0;
	read_next_part(s);
}

/* Tries the newest of the snapshots that were not tried. */
static void try_next(struct tern_snapshot_search *s)
{
	int r;

	if (s->id_count == 0) {
		if (!*s->why.text)
			snprintf(s->why.text, sizeof(s->why.text),
				"no snapshot is in %.300s", s->directory);
		finish(s, -ENOENT);
		return;
	}
	s->id_count--;
	r = run(s, TERN_FILE_READ, tern_snapshot_manifest_name(s->ids[s->id_count]).text,
		manifest_read);
	if (r < 0)
		finish(s, r);
}

static void listed(struct tern_file_op *op)
{
	struct tern_snapshot_search *s =
		tern_container_of(op, struct tern_snapshot_search, op);
	int r = op->status;

	if (r < 0)
		snprintf(s->why.text, sizeof(s->why.text), "%.300s: %s", s->directory,
			strerror(-r));
	else
		r = tern_snapshot_list(op->data, op->bytes, &s->ids, &s->id_count);
	if (r < 0)
		finish(s, r);
	else
		try_next(s);
}

/* Splits a path of a manifest into directory and snapshot. False: it is a directory. */
static bool split(struct tern_snapshot_search *s, struct tern_snapshot_id *id)
{
	const char *slash = strrchr(s->path, '/');
	const char *name = slash ? slash + 1 : s->path;
	uint32_t part;

	if (!tern_snapshot_name_read(name, id, &part) || part != TERN_SNAPSHOT_MANIFEST)
		return false;
	s->directory = slash ? strndup(s->path, (size_t)(slash - s->path)) : strdup(".");
	return true;
}

int tern_snapshot_search_start(struct tern_snapshot_search *s)
{
	struct tern_snapshot_id id;

	if (!split(s, &id)) {
		s->directory = strdup(s->path);
		return s->directory ? run(s, TERN_FILE_LIST, NULL, listed) : -ENOMEM;
	}
	s->ids = malloc(sizeof(id));
	if (!s->directory || !s->ids)
		return -ENOMEM;
	*s->ids = id;
	return run(
		s, TERN_FILE_READ, tern_snapshot_manifest_name(id).text, manifest_read);
}

void tern_snapshot_search_fini(struct tern_snapshot_search *s)
{
	free(s->op.data);
	free(s->file_path);
	free(s->directory);
	free(s->ids);
	s->op.data = NULL;
	s->file_path = s->directory = NULL;
	s->ids = NULL;
}
