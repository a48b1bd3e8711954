/* SPDX-License-Identifier: Apache-2.0 */
/* See cuts.h. */
#include "tests/system/sim/cuts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/system/sim/history.h"
#include "tests/system/sim/ledger.h"

/* Checks one chunk: that it has as many steps of each worker as it says, and as the manifest says. */
static void check_chunk(const struct job *j, const struct tern_snapshot *s,
	const struct tern_chunk *c, uint32_t chunk, const struct tern_safetensors *file)
{
	const struct tern_safetensor *w =
		tern_snapshot_vector(file, "w", chunk, TERN_F32, c->count);
	const struct tern_safetensor *applied =
		tern_snapshot_vector(file, "applied", chunk, TERN_U64, j->workers);
	uint64_t *steps = calloc(j->workers, sizeof(*steps));
	float *values = calloc(c->count, sizeof(*values));

	tern_assert(w && applied && steps && values);
	tern_snapshot_copy_vector(values, w);
	tern_snapshot_copy_vector(steps, applied);
	for (unsigned k = 0; k < j->workers; k++) {
		if (!ledger_has_steps(j, values, k, steps[k]))
			history_complain(
				"a chunk has other steps of a worker", s->id.step);
		if (job_workers_left(j) == j->workers && steps[k] != s->most[k])
			history_complain(
				"chunks have different steps, although no worker "
				"was lost",
				s->id.step);
	}
	free(values);
	free(steps);
}

static void check_part(struct job *j, const struct tern_snapshot *s,
	const struct tern_plan *plan, uint32_t part)
{
	const struct tern_snapshot_part *p = &s->parts[part];
	struct tern_safetensors *file;
	struct tern_ps_text why;
	const void *data;
	size_t bytes;

	data = history_contents(tern_snapshot_part_name(s->id, part), &bytes);
	if (!data || tern_safetensors_parse("a part", data, bytes, &file, &why) < 0) {
		history_complain("a part cannot be read", s->id.step);
		return;
	}
	if (!tern_snapshot_check_vectors(s, plan, part, file, &why))
		history_complain(why.text, s->id.step);
	else
		for (uint32_t i = 0; i < p->chunk_count; i++)
			check_chunk(
				j, s, &plan->chunks[p->chunks[i]], p->chunks[i], file);
	tern_safetensors_free(file);
}

void cuts_check(struct job *j, const char *manifest)
{
	const char *name = strrchr(manifest, '/') + 1;
	struct tern_snapshot_id id;
	struct tern_snapshot s;
	struct tern_ps_text why;
	struct tern_plan plan;
	const void *data;
	uint32_t part;
	size_t bytes;

	if (!tern_snapshot_name_read(name, &id, &part))
		tern_never("a manifest's name");
	data = history_contents(tern_snapshot_manifest_name(id), &bytes);
	if (!data || tern_snapshot_decode(data, bytes, &s, &why) < 0) {
		history_complain("its manifest cannot be read", id.step);
		return;
	}
	if (tern_plan_init(&plan, &s.job) < 0)
		tern_never("a plan");
	for (uint32_t i = 0; i < s.part_count; i++)
		check_part(j, &s, &plan, i);
	tern_plan_fini(&plan);
	tern_snapshot_fini(&s);
}

/* True if the chunks of the servers have different numbers of the worker's steps, and all of them have
 * sent it a version: before that a stream's step is UINT64_MAX. */
static bool is_torn(const struct job *j, unsigned worker)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (unsigned i = 0; i < j->servers; i++) {
		const struct tern_server *s = j->members[i].server;

		if (!s->running || s->over)
			return false;
		for (uint32_t k = 0; k < s->chunk_count; k++) {
			least = TERN_MIN(least, s->chunks[k].streams[worker].step);
			most = TERN_MAX(most, s->chunks[k].streams[worker].step);
		}
	}
	return least < most && most <= j->plan.steps;
}

struct member *cuts_find_torn(struct job *j)
{
	for (unsigned i = j->servers; i < j->count; i++) {
		struct member *m = &j->members[i];

		if (!m->ended && !tern_sim_crashed(m->process) &&
			is_torn(j, i - j->servers))
			return m;
	}
	return NULL;
}
