/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of chunks in the parts of a snapshot. */
#include "ps/snapshot.h"

#include <stdio.h>
#include <string.h>

#include "base/endian.h"
#include "ps/marks.h"

struct vector_name {
	char text[32];
};

static struct vector_name name_of(const char *what, uint32_t chunk)
{
	struct vector_name name;

	snprintf(name.text, sizeof(name.text), "%s.%u", what, chunk);
	return name;
}

const struct tern_safetensor *tern_snapshot_vector(const struct tern_safetensors *file,
	const char *what, uint32_t chunk, enum tern_dtype dtype, uint64_t count)
{
	const struct tern_safetensor *t =
		tern_safetensors_find(file, name_of(what, chunk).text);

	return t && t->shape.dtype == dtype && t->bytes == count * tern_dtype_bytes(dtype)
		       ? t
		       : NULL;
}

void tern_snapshot_copy_vector(void *to, const struct tern_safetensor *vector)
{
	if (TERN_BYTE_ORDER == TERN_LITTLE_ENDIAN)
		memcpy(to, vector->data, vector->bytes);
	else
		tern_swap_bytes(to, vector->data, vector->bytes,
			tern_dtype_bytes(vector->shape.dtype));
}

/* Checks one vector of a chunk. `needed`: it must be there. */
static bool check(const struct tern_safetensors *file, const char *what, uint32_t chunk,
	enum tern_dtype dtype, uint64_t count, bool needed, struct tern_ps_text *why)
{
	struct vector_name name = name_of(what, chunk);
	bool is_there = tern_safetensors_find(file, name.text);

	if (tern_snapshot_vector(file, what, chunk, dtype, count) ||
		(!is_there && !needed))
		return true;
	snprintf(why->text, sizeof(why->text), "%s: expected %llu elements of %s%s",
		name.text, (unsigned long long)count, tern_dtype_name(dtype),
		is_there ? "" : ", and there is no such vector");
	return false;
}

/* Async: checks how many steps of each worker the chunk has. */
static bool check_applied(const struct tern_snapshot *snapshot, uint32_t chunk,
	const struct tern_safetensors *file, struct tern_ps_text *why)
{
	const struct tern_ps_job *job = &snapshot->job;
	const struct tern_safetensor *t;

	if (job->mode != TERN_MODE_ASYNC)
		return true;
	if (!check(file, "applied", chunk, TERN_U64, job->workers, true, why))
		return false;
	t = tern_snapshot_vector(file, "applied", chunk, TERN_U64, job->workers);
	for (uint32_t i = 0; i < job->workers; i++) {
		uint64_t steps = tern_get_le64((const uint8_t *)t->data + 8ull * i);

		if (steps >= snapshot->least[i] && steps <= snapshot->most[i])
			continue;
		snprintf(why->text, sizeof(why->text),
			"%s: has %llu steps of worker %u, and the manifest says %llu to "
			"%llu",
			name_of("applied", chunk).text, (unsigned long long)steps, i,
			(unsigned long long)snapshot->least[i],
			(unsigned long long)snapshot->most[i]);
		return false;
	}
	return true;
}

static bool check_chunk(const struct tern_ps_job *job, const struct tern_plan *plan,
	uint32_t chunk, const struct tern_safetensors *file, struct tern_ps_text *why)
{
	const struct tern_chunk *c = &plan->chunks[chunk];
	struct tern_marks_span tensors = tern_marks_span(job, c);
	bool has_m = false, has_v = false;

	/* If one optimizer of the chunk keeps m or v, the vector has all elements of the
	 * chunk. */
	for (uint32_t i = tensors.first; i < tensors.first + tensors.count; i++) {
		const struct tern_optimizer *o = tern_ps_job_rule(job, &job->params[i]);

		has_m = has_m || tern_optimizer_has_m(o->kind);
		has_v = has_v || tern_optimizer_has_v(o->kind);
	}
	return check(file, "w", chunk, TERN_F32, c->count, true, why) &&
	       check(file, "m", chunk, TERN_F32, c->count, has_m, why) &&
	       check(file, "v", chunk, TERN_F32, c->count, has_v, why) &&
	       check(file, "skipped", chunk, TERN_U64, tensors.count, false, why);
}

bool tern_snapshot_check_vectors(const struct tern_snapshot *snapshot,
	const struct tern_plan *plan, uint32_t part, const struct tern_safetensors *file,
	struct tern_ps_text *why)
{
	const struct tern_snapshot_part *p = &snapshot->parts[part];
	struct tern_ps_text text;

	for (uint32_t i = 0; i < p->chunk_count; i++) {
		if (check_chunk(&snapshot->job, plan, p->chunks[i], file, &text) &&
			check_applied(snapshot, p->chunks[i], file, &text))
			continue;
		snprintf(why->text, sizeof(why->text), "%s: %.300s",
			tern_snapshot_part_name(snapshot->id, part).text, text.text);
		return false;
	}
	return true;
}
