/* SPDX-License-Identifier: Apache-2.0 */
/* Names and manifests of snapshots. */
#include "ps/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/escape.h"
#include "base/util.h"

#define FORMAT "tern snapshot 1"

/* ---- names ---- */

struct tern_snapshot_name tern_snapshot_short_name(struct tern_snapshot_id id)
{
	struct tern_snapshot_name name;

	snprintf(name.text, sizeof(name.text), "step-%012" PRIu64 "-%08" PRIx32, id.step,
		id.number);
	return name;
}

struct tern_snapshot_name tern_snapshot_manifest_name(struct tern_snapshot_id id)
{
	struct tern_snapshot_name name = tern_snapshot_short_name(id);

	strcat(name.text, ".json");
	return name;
}

struct tern_snapshot_name tern_snapshot_part_name(
	struct tern_snapshot_id id, uint32_t part)
{
	struct tern_snapshot_name name = tern_snapshot_short_name(id);
	size_t used = strlen(name.text);

	snprintf(name.text + used, sizeof(name.text) - used, ".%" PRIu32 ".safetensors",
		part);
	return name;
}

bool tern_snapshot_name_read(
	const char *name, struct tern_snapshot_id *id, uint32_t *part)
{
	struct tern_snapshot_name again;

	*part = TERN_SNAPSHOT_MANIFEST;
	if (sscanf(name, "step-%20" SCNu64 "-%8" SCNx32 ".%" SCNu32, &id->step,
		    &id->number, part) < 2)
		return false;
	/* Only a name that would be written so. */
	again = *part == TERN_SNAPSHOT_MANIFEST ? tern_snapshot_manifest_name(*id)
						: tern_snapshot_part_name(*id, *part);
	return strcmp(name, again.text) == 0;
}

bool tern_snapshot_is_torn(const char *name)
{
	size_t bytes = strlen(name);

	return strncmp(name, ".step-", 6) == 0 && bytes > 4 &&
	       strcmp(name + bytes - 4, ".new") == 0;
}

int tern_snapshot_compare(struct tern_snapshot_id a, struct tern_snapshot_id b)
{
	if (a.step != b.step)
		return a.step < b.step ? -1 : 1;
	return a.number < b.number ? -1 : a.number > b.number;
}

/* ---- manifests ---- */

static json_t *chunks_of(const struct tern_plan *plan, uint32_t server)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < plan->chunk_count; i++)
		if (plan->chunks[i].server == server)
			json_array_append_new(list, json_integer(i));
	return list;
}

static json_t *encode_part(struct tern_snapshot_id id, const struct tern_plan *plan,
	const struct tern_snapshot_part *part, uint32_t number)
{
	char digest[20];

	snprintf(digest, sizeof(digest), "%016" PRIx64, part->digest);
	return json_pack("{s:s, s:I, s:s, s:o}", "file",
		tern_snapshot_part_name(id, number).text, "bytes",
		(json_int_t)part->bytes, "digest", digest, "chunks",
		chunks_of(plan, number));
}

struct digest_text {
	char text[20];
};

/* The digest of all but the digest itself, however the text is spaced and ordered. False: no
 * memory. */
static bool digest_of(const json_t *root, struct digest_text *out)
{
	char *text =
		json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));

	if (!text)
		return false;
	snprintf(out->text, sizeof(out->text), "%016" PRIx64,
		tern_digest(text, strlen(text)));
	free(text);
	return true;
}

/* [[least, most], ...] by worker. */
static json_t *encode_applied(const struct tern_snapshot *s)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < s->job.workers; i++)
		json_array_append_new(list, json_pack("[I, I]", (json_int_t)s->least[i],
						    (json_int_t)s->most[i]));
	return list;
}

/* True if the parts of the manifest have all that is wanted: an allocation may have failed. */
static bool is_complete(const struct tern_snapshot *s, const json_t *root)
{
	const struct tern_omitted *omitted = &s->omitted;
	bool omits = omitted->count && omitted->slots[0].step <= s->id.step;

	return json_array_size(json_object_get(root, "parts")) == s->job.server_count &&
	       (!s->blob.step || json_object_get(root, "blob")) &&
	       (!omits || json_object_get(root, "omitted")) &&
	       (s->job.mode != TERN_MODE_ASYNC || json_array_size(json_object_get(root,
							  "applied")) == s->job.workers);
}

char *tern_snapshot_encode(const struct tern_snapshot *s, const struct tern_plan *plan)
{
	const struct tern_ps_job *job = &s->job;
	json_t *list = json_array(), *root;
	struct digest_text digest;
	char *text = NULL;

	for (uint32_t i = 0; i < job->server_count; i++)
		json_array_append_new(list, encode_part(s->id, plan, &s->parts[i], i));
	root = json_pack("{s:s, s:I, s:I, s:o, s:o, s:o*, s:o*}", "format", FORMAT,
		"step", (json_int_t)s->id.step, "number", (json_int_t)s->id.number, "job",
		tern_ps_job_json(job), "parts", list, "blob", tern_blob_json(&s->blob),
		"omitted", tern_omitted_json(&s->omitted, s->id.step));
	if (job->mode == TERN_MODE_ASYNC)
		json_object_set_new(root, "applied", encode_applied(s));
	if (root && is_complete(s, root) && digest_of(root, &digest) &&
		json_object_set_new(root, "digest", json_string(digest.text)) == 0)
		text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
	json_decref(root);
	return text;
}

static int bad(struct tern_ps_text *why, const char *text)
{
	snprintf(why->text, sizeof(why->text), "%s", text);
	return -EINVAL;
}

/* Reads the chunks of a part, and marks them in `seen`. */
static int decode_chunks(const json_t *list, const struct tern_plan *plan, bool *seen,
	struct tern_snapshot_part *part, struct tern_ps_text *why)
{
	part->chunks = calloc(json_array_size(list) + 1, sizeof(*part->chunks));
	if (!part->chunks)
		return -ENOMEM;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *number = json_array_get(list, i);
		json_int_t n = json_integer_value(number);

		if (!json_is_integer(number) || n < 0 || n >= plan->chunk_count ||
			seen[n])
			return bad(why, "parts: a chunk is in two of them, or is none of "
					"the job");
		seen[n] = true;
		part->chunks[part->chunk_count++] = (uint32_t)n;
	}
	return 0;
}

static int decode_part(const json_t *root, const struct tern_plan *plan, bool *seen,
	struct tern_snapshot_part *part, struct tern_ps_text *why)
{
	const char *digest = json_string_value(json_object_get(root, "digest"));
	json_int_t bytes = json_integer_value(json_object_get(root, "bytes"));
	char end;

	if (bytes <= 0 || !digest || strlen(digest) != 16 ||
		sscanf(digest, "%16" SCNx64 "%c", &part->digest, &end) != 1)
		return bad(why, "parts: expected a file, with its bytes and its digest");
	part->bytes = (uint64_t)bytes;
	return decode_chunks(json_object_get(root, "chunks"), plan, seen, part, why);
}

static int decode_parts(const json_t *list, const struct tern_plan *plan, bool *seen,
	struct tern_snapshot *out, struct tern_ps_text *why)
{
	size_t count = json_array_size(list);
	int r = 0;

	if (count < 1 || count > TERN_SERVERS_MAX)
		return bad(why, "parts: expected one for each server, 1 to 256");
	out->parts = calloc(count, sizeof(*out->parts));
	if (!out->parts)
		return -ENOMEM;
	out->part_count = (uint32_t)count;
	for (uint32_t i = 0; i < count && r == 0; i++)
		r = decode_part(json_array_get(list, i), plan, seen, &out->parts[i], why);
	for (uint32_t i = 0; i < plan->chunk_count && r == 0; i++)
		if (!seen[i])
			r = bad(why, "parts: a chunk of the job is in none of them");
	return r;
}

/* Async: reads how many steps of each worker the snapshot has, which add up to its step. */
static int decode_applied(
	const json_t *list, struct tern_snapshot *out, struct tern_ps_text *why)
{
	uint64_t sum = 0;
	bool good = json_array_size(list) == out->job.workers;

	out->least = calloc(out->job.workers, sizeof(*out->least));
	out->most = calloc(out->job.workers, sizeof(*out->most));
	if (!out->least || !out->most)
		return -ENOMEM;
	for (uint32_t i = 0; good && i < out->job.workers; i++) {
		json_int_t least = -1, most = -1;

		good = json_unpack(json_array_get(list, i), "[I, I]", &least, &most) ==
			       0 &&
		       least >= 0 && least <= most &&
		       (uint64_t)most <= tern_ps_job_steps_of(&out->job, i);
		out->least[i] = (uint64_t)least;
		out->most[i] = (uint64_t)most;
		sum += (uint64_t)most;
	}
	return good && sum == out->id.step
		       ? 0
		       : bad(why, "applied: expected for each worker how many of its "
				  "steps all chunks have, and how many some chunk has, "
				  "which add up to the step");
}

static int decode_omitted(
	const json_t *list, struct tern_snapshot *out, struct tern_ps_text *why)
{
	int r = tern_omitted_read(&out->omitted, list, out->id.step, out->job.slots);

	return r == -EINVAL || r == -E2BIG ? bad(why, "omitted: expected a list of "
						      "[step, slot], with steps of "
						      "the snapshot and slots of the job")
					   : r;
}

/* Takes the digest out of the manifest, and compares it. */
static int check_digest(json_t *root, struct tern_ps_text *why)
{
	const char *text = json_string_value(json_object_get(root, "digest"));
	struct digest_text expected = {""}, digest;

	if (text)
		snprintf(expected.text, sizeof(expected.text), "%s", text);
	json_object_del(root, "digest");
	if (!digest_of(root, &digest))
		return -ENOMEM;
	return strcmp(expected.text, digest.text) == 0
		       ? 0
		       : bad(why, "digest: it is not that of the manifest, which was "
				  "changed");
}

/* Reads the blob of a snapshot of this step, if it has one. */
static int decode_blob(const json_t *blob, uint64_t step, struct tern_snapshot *out,
	struct tern_ps_text *why)
{
	int r = blob ? tern_blob_read(blob, step, &out->blob) : 0;

	return r == -EINVAL ? bad(why, "blob: expected at most 65536 bytes in base64, of "
				       "a step from 1 to that of the snapshot")
			    : r;
}

static int decode(const json_t *root, struct tern_snapshot *out, struct tern_ps_text *why)
{
	const char *format = json_string_value(json_object_get(root, "format"));
	json_int_t step = json_integer_value(json_object_get(root, "step"));
	json_int_t number = json_integer_value(json_object_get(root, "number"));
	struct tern_plan plan = {0};
	bool *seen;
	int r;

	if (!format || strcmp(format, FORMAT) != 0)
		return bad(why, "format: expected \"" FORMAT "\"");
	if (step < 1 || number < 0 || number > UINT32_MAX)
		return bad(why, "step, number: expected whole numbers above 0");
	r = tern_ps_job_read(json_object_get(root, "job"), &out->job, why);
	if (r < 0)
		return r;
	out->id = (struct tern_snapshot_id){(uint64_t)step, (uint32_t)number};
	r = tern_plan_init(&plan, &out->job);
	seen = calloc(plan.chunk_count + 1u, sizeof(*seen));
	if (r == 0 && !seen)
		r = -ENOMEM;
	if (r == 0)
		r = decode_parts(json_object_get(root, "parts"), &plan, seen, out, why);
	if (r == 0)
		r = decode_blob(json_object_get(root, "blob"), out->id.step, out, why);
	if (r == 0)
		r = decode_omitted(json_object_get(root, "omitted"), out, why);
	free(seen);
	tern_plan_fini(&plan);
	if (r == 0 && out->job.mode == TERN_MODE_ASYNC)
		r = decode_applied(json_object_get(root, "applied"), out, why);
	return r;
}

int tern_snapshot_decode(const char *text, size_t bytes, struct tern_snapshot *out,
	struct tern_ps_text *why)
{
	json_error_t error;
	json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
	int r;

	*out = (struct tern_snapshot){0};
	*why = (struct tern_ps_text){"no memory"};
	if (!root) {
		snprintf(why->text, sizeof(why->text), "byte %d: not JSON: %s",
			error.position, error.text);
		return -EINVAL;
	}
	r = check_digest(root, why);
	if (r == 0)
		r = decode(root, out, why);
	json_decref(root);
	if (r < 0)
		tern_snapshot_fini(out);
	return r;
}

void tern_snapshot_fini(struct tern_snapshot *snapshot)
{
	for (uint32_t i = 0; i < snapshot->part_count; i++)
		free(snapshot->parts[i].chunks);
	free(snapshot->parts);
	free(snapshot->least);
	free(snapshot->most);
	tern_blob_fini(&snapshot->blob);
	tern_omitted_fini(&snapshot->omitted);
	tern_ps_job_fini(&snapshot->job);
	*snapshot = (struct tern_snapshot){0};
}

bool tern_snapshot_check_part(const struct tern_snapshot *snapshot, uint32_t part,
	const void *data, size_t bytes, struct tern_ps_text *why)
{
	const struct tern_snapshot_part *expected = &snapshot->parts[part];
	const struct tern_snapshot_name name =
		tern_snapshot_part_name(snapshot->id, part);
	uint64_t digest;

	if (bytes != expected->bytes) {
		snprintf(why->text, sizeof(why->text),
			"%s: %zu bytes, and the manifest says %llu", name.text, bytes,
			(unsigned long long)expected->bytes);
		return false;
	}
	digest = tern_digest(data, bytes);
	if (digest == expected->digest)
		return true;
	snprintf(why->text, sizeof(why->text),
		"%s: its digest is %016llx, and the manifest says %016llx", name.text,
		(unsigned long long)digest, (unsigned long long)expected->digest);
	return false;
}

/* ---- going on ---- */

/* Gives the tensors of `params` the starts of those of `job`. */
static void copy_starts(
	struct tern_param *params, uint32_t count, const struct tern_ps_job *job)
{
	for (uint32_t i = 0; i < TERN_MIN(count, job->param_count); i++) {
		params[i].init = job->params[i].init;
		params[i].a = job->params[i].a;
		params[i].b = job->params[i].b;
		params[i].digest = job->params[i].digest;
	}
}

/* The least number of steps of a job in which each worker makes the steps that it has made. */
static uint64_t least_steps(const struct tern_snapshot *snapshot)
{
	uint64_t least = 0, workers = snapshot->job.workers;

	for (uint32_t i = 0; i < workers; i++)
		if (snapshot->most[i])
			least = TERN_MAX(
				least, (snapshot->most[i] - 1) * workers + i + 1);
	return least;
}

/* Async: false if the job's workers cannot make the steps that follow those of the snapshot. */
static bool has_same_tickets(const struct tern_snapshot *snapshot,
	const struct tern_ps_job *job, const char *who, struct tern_ps_text *why)
{
	if (!snapshot->most || job->mode != TERN_MODE_ASYNC)
		return true;
	if (job->workers != snapshot->job.workers) {
		snprintf(why->text, sizeof(why->text),
			"workers: %s has %u, and the steps in %s mode are divided among "
			"%u: go on with %u workers",
			who, job->workers, tern_mode_text(job->mode, job->ssp).text,
			snapshot->job.workers, snapshot->job.workers);
		return false;
	}
	for (uint32_t i = 0; i < job->workers; i++) {
		if (snapshot->most[i] <= tern_ps_job_steps_of(job, i))
			continue;
		snprintf(why->text, sizeof(why->text),
			"steps: %s has %llu, of which worker %u makes %llu, and it has "
			"made %llu: go on with %llu or more",
			who, (unsigned long long)job->steps, i,
			(unsigned long long)tern_ps_job_steps_of(job, i),
			(unsigned long long)snapshot->most[i],
			(unsigned long long)least_steps(snapshot));
		return false;
	}
	return true;
}

bool tern_snapshot_differs(const struct tern_snapshot *snapshot,
	const struct tern_ps_job *job, const char *who, struct tern_ps_text *why)
{
	struct tern_ps_job ours = snapshot->job;
	struct tern_param *params = calloc(ours.param_count + 1u, sizeof(*params));
	struct tern_ps_text text = {"no memory to compare it with the snapshot"};
	bool differs = true;

	if (job->steps < snapshot->id.step) {
		snprintf(text.text, sizeof(text.text), "steps: %s has %llu", who,
			(unsigned long long)job->steps);
	} else if (params && has_same_tickets(snapshot, job, who, &text)) {
		memcpy(params, ours.params, ours.param_count * sizeof(*params));
		copy_starts(params, ours.param_count, job);
		ours.params = params;
		ours.workers = job->workers;
		ours.server_count = job->server_count;
		ours.steps = job->steps;
		memcpy(ours.arithmetic, job->arithmetic, sizeof(ours.arithmetic));
		differs = tern_ps_job_differs(&ours, job, who, &text);
	}
	free(params);
	if (differs)
		snprintf(why->text, sizeof(why->text),
			"%.280s: snapshot %s cannot be continued with this job",
			text.text, tern_snapshot_short_name(snapshot->id).text);
	return differs;
}
