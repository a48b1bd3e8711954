/* SPDX-License-Identifier: Apache-2.0 */
/* `tern checkpoint list`: the snapshots in a directory, the newest first. Parts are not
 * read: only their sizes are compared, so this is fast. */
#include "tools/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "tools/report.h"

static int stat_in(const char *directory, const char *name, struct stat *st)
{
	char *path = tern_snapshot_path(directory, name);
	int r = path ? 0 : -ENOMEM;

	if (r == 0 && stat(path, st) < 0)
		r = -errno;
	free(path);
	return r;
}

/* Compares the size of each part with the manifest. False: why->text says what is
 * wrong. */
static bool sizes_are_right(const struct checkpoint *c, struct tern_ps_text *why)
{
	const struct tern_snapshot *s = &c->snapshot;

	for (uint32_t i = 0; i < s->part_count; i++) {
		struct tern_snapshot_name name = tern_snapshot_part_name(s->id, i);
		struct stat st;
		int r = stat_in(c->directory, name.text, &st);

		if (r == 0 && (uint64_t)st.st_size == s->parts[i].bytes)
			continue;
		if (r < 0)
			snprintf(why->text, sizeof(why->text), "%s: %s", name.text,
				strerror(-r));
		else
			snprintf(why->text, sizeof(why->text),
				"%s: %lld bytes, and the manifest says %" PRIu64,
				name.text, (long long)st.st_size, s->parts[i].bytes);
		return false;
	}
	return true;
}

struct time_text {
	char text[32];
};

/* When the manifest was written, in UTC; "?": its file is gone meanwhile. */
static struct time_text time_of(const char *directory, struct tern_snapshot_id id)
{
	struct time_text out = {"?"};
	struct stat st;
	struct tm tm;

	if (stat_in(directory, tern_snapshot_manifest_name(id).text, &st) == 0 &&
		gmtime_r(&st.st_mtim.tv_sec, &tm))
		strftime(out.text, sizeof(out.text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return out;
}

/* The snapshot as JSON: parts and bytes are missing if its manifest cannot be read, and
 * `wrong` is there if something is wrong. */
static json_t *describe(const char *directory, struct tern_snapshot_id id)
{
	json_t *one =
		json_pack("{ss sI ss}", "snapshot", tern_snapshot_short_name(id).text,
			"step", (json_int_t)id.step, "time", time_of(directory, id).text);
	struct tern_ps_text why;
	struct checkpoint c;
	bool right = false;

	if (checkpoint_read(directory, id, &c, &why) == 0) {
		json_object_set_new(one, "parts", json_integer(c.snapshot.part_count));
		json_object_set_new(one, "bytes",
			json_integer((json_int_t)checkpoint_bytes(&c.snapshot)));
		right = sizes_are_right(&c, &why);
		checkpoint_close(&c);
	}
	if (!right)
		json_object_set_new(one, "wrong", report_text(why.text));
	return one;
}

static long long number(const json_t *one, const char *name)
{
	return json_integer_value(json_object_get(one, name));
}

static void print(struct output *out, const json_t *one)
{
	const char *wrong = json_string_value(json_object_get(one, "wrong"));
	char parts[80] = "";

	if (json_object_get(one, "parts"))
		snprintf(parts, sizeof(parts), "  %lld part%s  %lld bytes",
			number(one, "parts"), number(one, "parts") == 1 ? "" : "s",
			number(one, "bytes"));
	output_line(out, "%s  step %lld%s  %s%s%s",
		json_string_value(json_object_get(one, "snapshot")), number(one, "step"),
		parts, json_string_value(json_object_get(one, "time")),
		wrong ? "  damaged: " : "", wrong ? wrong : "");
}

int checkpoint_list(struct checkpoint_call *call)
{
	struct tern_snapshot_id id;
	struct checkpoint_found found;
	struct message error;
	json_t *all;

	if (snapshots_is_manifest(call->paths[0], &id))
		return command_refuse(&checkpoint_command,
			"list %.300s: expected a directory of snapshots; show and verify "
			"take a manifest",
			call->paths[0]);
	if (checkpoint_find(call->paths[0], &found, &error) < 0)
		return command_refuse(&checkpoint_command, "%s", error.text);
	all = json_array();
	for (size_t i = found.in.count; i-- > 0;) {
		json_t *one = describe(found.directory, found.in.ids[i]);

		if (json_object_get(one, "wrong") &&
			checkpoint_is_gone(found.directory, found.in.ids[i])) {
			json_decref(one);
			continue;
		}
		print(&call->out, one);
		json_array_append_new(all, one);
	}
	if (found.in.count == 0)
		output_line(
			&call->out, "no complete snapshot is in %.300s", found.directory);
	if (found.in.loose_parts)
		output_line(&call->out,
			"%zu part%s without a manifest, of snapshots that were "
			"interrupted or are being written",
			found.in.loose_parts, found.in.loose_parts == 1 ? "" : "s");
	if (call->out.json)
		output_json(json_pack("{so sI}", "snapshots", all,
			"parts_without_manifest", (json_int_t)found.in.loose_parts));
	else
		json_decref(all);
	checkpoint_found_free(&found);
	return EXIT_OK;
}
