/* SPDX-License-Identifier: Apache-2.0 */
/* `tern checkpoint verify`: reads all of one snapshot, or of each one in a directory, and
 * says what is wrong with it. */
#include "tools/checkpoint.h"

#include "tools/report.h"

/* Reads all parts of the snapshot, and appends a text for each that is wrong. */
static void check_parts(const struct checkpoint *c, json_t *problems)
{
	for (uint32_t i = 0; i < c->snapshot.part_count; i++) {
		struct checkpoint_part part;
		struct tern_ps_text why;

		if (checkpoint_read_part(c, i, &part, &why) == 0)
			checkpoint_part_free(&part);
		else
			json_array_append_new(problems, report_text(why.text));
	}
}

static void print(struct output *out, const char *name, const struct checkpoint *c,
	json_t *problems)
{
	for (size_t i = 0; i < json_array_size(problems); i++)
		output_line(out, "%s", json_string_value(json_array_get(problems, i)));
	if (json_array_size(problems) == 0)
		output_line(out, "%s: whole, %u part%s of %llu bytes in all", name,
			c->snapshot.part_count, c->snapshot.part_count == 1 ? "" : "s",
			(unsigned long long)checkpoint_bytes(&c->snapshot));
}

/* Verifies a snapshot. Returns its entry in the JSON of all; NULL: it was removed
 * meanwhile. */
static json_t *verify(
	struct output *out, const char *directory, struct tern_snapshot_id id)
{
	struct tern_snapshot_name name = tern_snapshot_short_name(id);
	json_t *problems = json_array();
	struct tern_ps_text why;
	struct checkpoint c;

	if (checkpoint_read(directory, id, &c, &why) == 0)
		check_parts(&c, problems);
	else
		json_array_append_new(problems, report_text(why.text));
	if (json_array_size(problems) && checkpoint_is_gone(directory, id)) {
		json_decref(problems);
		checkpoint_close(&c);
		return NULL;
	}
	print(out, name.text, &c, problems);
	checkpoint_close(&c);
	return json_pack("{ss sI sb so}", "snapshot", name.text, "step",
		(json_int_t)id.step, "whole", json_array_size(problems) == 0, "problems",
		problems);
}

int checkpoint_verify(struct checkpoint_call *call)
{
	struct checkpoint_found found;
	struct message error;
	json_t *all;
	bool whole = true;

	if (checkpoint_find(call->paths[0], &found, &error) < 0)
		return command_refuse(&checkpoint_command, "%s", error.text);
	if (found.in.count == 0) {
		checkpoint_found_free(&found);
		return command_refuse(&checkpoint_command,
			"%.300s: no complete snapshot is there: expected the directory "
			"that a job has as --snapshots",
			call->paths[0]);
	}
	all = json_array();
	for (size_t i = found.in.count; i-- > 0;) {
		json_t *one = verify(&call->out, found.directory, found.in.ids[i]);

		if (!one)
			continue;
		whole = whole && json_is_true(json_object_get(one, "whole"));
		json_array_append_new(all, one);
	}
	checkpoint_found_free(&found);
	if (call->out.json)
		output_json(json_pack("{sb so}", "whole", whole, "snapshots", all));
	else
		json_decref(all);
	return whole ? EXIT_OK : EXIT_JOB;
}
