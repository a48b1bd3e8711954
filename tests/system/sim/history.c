/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/history.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/system/sim/cuts.h"

struct history history;

uint64_t history_below(uint64_t n)
{
	return tern_rng_below(tern_sim_rng(history.job->sim), n);
}

void history_complain(const char *what, uint64_t step)
{
	fprintf(stderr, "snapshots: %s, step %llu\n", what, (unsigned long long)step);
	history.job->broken = true;
}

struct tern_file_op history_list(void)
{
	struct tern_file_op op = {.kind = TERN_FILE_LIST, .path = HISTORY_DIRECTORY};

	tern_sim_disk_end(history.disk, &op);
	return op;
}

const void *history_contents(struct tern_snapshot_name name, size_t *bytes)
{
	char path[100];

	snprintf(path, sizeof(path), HISTORY_DIRECTORY "/%s", name.text);
	*bytes = 0;
	return tern_sim_disk_get(history.disk, path, bytes);
}

bool history_is_whole(struct tern_snapshot_id id)
{
	struct tern_snapshot s;
	struct tern_ps_text why;
	size_t bytes;
	const void *data = history_contents(tern_snapshot_manifest_name(id), &bytes);
	bool whole = true;

	if (!data || tern_snapshot_decode(data, bytes, &s, &why) < 0)
		return false;
	for (uint32_t i = 0; i < s.part_count && whole; i++) {
		data = history_contents(tern_snapshot_part_name(id, i), &bytes);
		whole = data && tern_snapshot_check_part(&s, i, data, bytes, &why);
	}
	tern_snapshot_fini(&s);
	return whole;
}

/* A snapshot that is complete can be loaded, unless the test has damaged it. */
bool history_newest(struct tern_snapshot_id *newest, unsigned *count)
{
	struct tern_file_op op = history_list();
	struct tern_snapshot_id *ids;
	size_t id_count;

	*count = 0;
	if (tern_snapshot_list(op.data, op.bytes, &ids, &id_count) < 0)
		tern_never("a list");
	for (size_t i = 0; i < id_count; i++)
		if (history_is_whole(ids[i])) {
			*newest = ids[i];
			++*count;
		}
	if (!history.damaged && *count < id_count)
		history_complain("a manifest without all of its parts", id_count);
	free(ids);
	free(op.data);
	return *count > 0;
}

void history_look(void)
{
	struct tern_snapshot_id newest = {0};

	if (history.changes == history.disk->change_count)
		return;
	history.changes = history.disk->change_count;
	history_newest(&newest, &history.whole_count);
	if (newest.step < history.published)
		history_complain("the newest one is gone", history.published);
	history.published = newest.step;
}

static void published(struct job *j, const struct tern_server_snapshot *snapshot)
{
	history_look();
	if (snapshot->path && history.published < snapshot->step &&
		snapshot->step != history.damaged_step)
		history_complain(
			"one that is published cannot be loaded", snapshot->step);
	if (snapshot->path && j->async)
		cuts_check(j, snapshot->path);
	if (snapshot->path && history.apart && j->servers > 1)
		history_complain("a part of it is on another disk", snapshot->step);
	if (!snapshot->path && !history.faults && !history.fell && !j->has_lost &&
		!(history.apart && j->servers > 1))
		history_complain(snapshot->why, snapshot->step);
}

static bool has_snapshot(const struct job *j)
{
	struct tern_snapshot_id newest;
	unsigned count;

	(void)j;
	return history_newest(&newest, &count);
}

void history_keep(struct job *j)
{
	j->snapshot = published;
	j->has_snapshot = has_snapshot;
	j->snapshots = (struct tern_server_snapshot_opts){.directory = HISTORY_DIRECTORY,
		.every_steps = 1 + history_below(3),
		.keep = 1 + (uint32_t)history_below(3),
		.piece_bytes = j->via ? 1u << (8 + j->generation % 12) : 0};
	if (history_below(4) == 0) { /* by time */
		j->snapshots.every_steps = 0;
		j->snapshots.every_ns = TERN_NS_PER_US * (50 + history_below(2000));
	}
	for (unsigned i = 0; i < j->servers; i++)
		j->disks[i] = j->via && i > 0 ? history.other_disk : history.disk;
	*tern_sim_disk_opts(history.disk) =
		(struct tern_sim_disk_opts){.slowness = 1 + (unsigned)history_below(8)};
}

bool history_damage(void)
{
	struct tern_snapshot_id id;
	struct tern_snapshot_name name;
	char path[100], *copy;
	const void *data;
	unsigned count;
	size_t bytes;

	if (!history_newest(&id, &count) || count < 2)
		return false;
	name = history_below(4) == 0 ? tern_snapshot_manifest_name(id)
				     : tern_snapshot_part_name(id, 0);
	data = history_contents(name, &bytes);
	copy = malloc(bytes + 1);
	tern_assert(copy && bytes > 1);
	memcpy(copy, data, bytes);
	snprintf(path, sizeof(path), HISTORY_DIRECTORY "/%s", name.text);
	copy[history_below(bytes)] ^= 1;
	if (history_below(3) == 0)
		tern_sim_disk_remove(history.disk, path);
	else
		tern_sim_disk_put(history.disk, path, copy,
			history_below(2) ? bytes : history_below(bytes));
	free(copy);
	history.damaged = true;
	history.damaged_step = id.step;
	history.published = 0;
	history_look();
	return true;
}
