/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and manifests of snapshots, and the search for the newest one that is whole, on a
 * simulated disk: whatever is missing, cut or changed, the search finds the newest snapshot
 * that is as it was written, or says why there is none.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "ps/snapshot.h"
#include "transport/context.h"
#include "transport/sim/sim.h"

#define PARTS 3u

static struct tern_ps_text why;

/* A job of 20 chunks, on three servers. */
static struct tern_ps_job make_job(void)
{
	static struct tern_param param;
	static char servers[PARTS][128] = {"tcp://a:1", "tcp://b:2", "tcp://c:3"};
	struct tern_ps_job job = {.mode = TERN_MODE_SYNC,
		.steps = 1000,
		.seed = 7,
		.slots = 4,
		.workers = 2,
		.batch = 32,
		.arithmetic = "some",
		.params = &param,
		.param_count = 1,
		.element_count = 100000,
		.servers = servers,
		.server_count = PARTS};

	tern_optimizer_parse("adam", &job.optimizer);
	param = (struct tern_param){.name = "w",
		.shape = tern_shape_1d(TERN_F32, 100000),
		.count = 100000,
		.init = TERN_INIT_ZEROS};
	return job;
}

/* ---- names ---- */

static void test_names_are_read_back(void **state)
{
	static const struct tern_snapshot_id ids[] = {
		{0, 0}, {200, 0x1f2e3d4c}, {UINT64_MAX, UINT32_MAX}, {1ull << 40, 1}};
	struct tern_snapshot_id id;
	uint32_t part;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(ids); i++) {
		assert_true(tern_snapshot_name_read(
			tern_snapshot_manifest_name(ids[i]).text, &id, &part));
		assert_int_equal(tern_snapshot_compare(id, ids[i]), 0);
		assert_int_equal(part, TERN_SNAPSHOT_MANIFEST);
		assert_true(tern_snapshot_name_read(
			tern_snapshot_part_name(ids[i], 255).text, &id, &part));
		assert_int_equal(tern_snapshot_compare(id, ids[i]), 0);
		assert_int_equal(part, 255);
	}
	assert_string_equal(tern_snapshot_part_name(ids[1], 0).text,
		"step-000000000200-1f2e3d4c.0.safetensors");
	assert_string_equal(tern_snapshot_manifest_name(ids[1]).text,
		"step-000000000200-1f2e3d4c.json");
}

static void test_other_names_are_no_snapshots(void **state)
{
	static const char *const names[] = {"", ".", "model.safetensors",
		"step-000000000200-1f2e3d4c", "step-200-1f2e3d4c.json",
		"step-000000000200-1F2E3D4C.json", "step-000000000200-1f2e3d4c.json.bak",
		".step-000000000200-1f2e3d4c.json.new",
		"step-000000000200-1f2e3d4c.00.safetensors",
		"step-000000000200-1f2e3d4c.x.safetensors",
		"step--00000000200-1f2e3d4c.json", "step-+00000000200-1f2e3d4c.json"};
	struct tern_snapshot_id id;
	uint32_t part;

	(void)state;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++)
		if (tern_snapshot_name_read(names[i], &id, &part))
			fail_msg("%s", names[i]);
}

/* ---- manifests ---- */

static struct tern_omitted_slot some_slots[] = {{17, 3}, {200, 0}, {201, 1}};
static const struct tern_omitted some_omitted = {
	.slots = some_slots, .count = TERN_ARRAY_SIZE(some_slots)};

static char *some_manifest(struct tern_snapshot_id id, const struct tern_ps_job *job,
	struct tern_snapshot_part *parts)
{
	char state[] = "epoch 3";
	const struct tern_blob blob = {.step = id.step - 1, .data = state, .bytes = 7};
	struct tern_plan plan;
	char *text;

	assert_int_equal(tern_plan_init(&plan, job), 0);
	text = tern_snapshot_encode(&(struct tern_snapshot){.id = id,
					    .job = *job,
					    .parts = parts,
					    .blob = blob,
					    .omitted = some_omitted},
		&plan);
	assert_non_null(text);
	tern_plan_fini(&plan);
	return text;
}

static struct tern_snapshot_part some_parts[PARTS] = {
	{.bytes = 10, .digest = 1}, {.bytes = 20, .digest = UINT64_MAX}, {.bytes = 1}};

static void check_same(const struct tern_snapshot *s, const struct tern_ps_job *job)
{
	uint32_t chunks = 0;

	assert_true(s->id.step == 200 && s->id.number == 5);
	assert_int_equal(s->part_count, PARTS);
	for (uint32_t i = 0; i < PARTS; i++) {
		assert_true(s->parts[i].bytes == some_parts[i].bytes);
		assert_true(s->parts[i].digest == some_parts[i].digest);
		chunks += s->parts[i].chunk_count;
	}
	assert_true(chunks > PARTS);
	assert_true(s->blob.step == 199 && s->blob.bytes == 7);
	assert_memory_equal(s->blob.data, "epoch 3", 7);
	assert_false(tern_ps_job_differs(&s->job, job, "the test", &why));
	/* those of later steps are no part of it */
	assert_int_equal(s->omitted.count, 2);
	for (uint32_t i = 0; i < s->omitted.count; i++)
		assert_true(s->omitted.slots[i].step == some_slots[i].step &&
			    s->omitted.slots[i].slot == some_slots[i].slot);
}

static void test_a_manifest_is_read_back(void **state)
{
	struct tern_ps_job job = make_job();
	char *text = some_manifest((struct tern_snapshot_id){200, 5}, &job, some_parts);
	struct tern_snapshot s;

	(void)state;
	assert_int_equal(tern_snapshot_decode(text, strlen(text), &s, &why), 0);
	check_same(&s, &job);
	tern_snapshot_fini(&s);
	free(text);
}

/* Every manifest that is cut is refused, and every one with another byte, unless it means the
 * same (the last digit of a fraction may). */
static void test_a_manifest_that_is_cut_is_refused(void **state)
{
	struct tern_ps_job job = make_job();
	char *text = some_manifest((struct tern_snapshot_id){200, 5}, &job, some_parts);
	struct tern_snapshot s;

	(void)state;
	for (size_t n = 0; n < strlen(text); n++) {
		assert_int_equal(tern_snapshot_decode(text, n, &s, &why), -EINVAL);
		assert_true(*why.text);
	}
	for (size_t i = 0; i < strlen(text); i++) {
		char was = text[i];

		text[i] = (char)(was ^ 1);
		if (tern_snapshot_decode(text, strlen(text), &s, &why) == 0) {
			check_same(&s, &job);
			tern_snapshot_fini(&s);
		}
		text[i] = was;
	}
	free(text);
}

/* Gives a changed manifest the digest that it needs. */
static char *sign(const char *text)
{
	json_t *root = json_loads(text, 0, NULL);
	char digest[20], *again;

	assert_non_null(root);
	json_object_del(root, "digest");
	again = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
	snprintf(digest, sizeof(digest), "%016llx",
		(unsigned long long)tern_digest(again, strlen(again)));
	free(again);
	json_object_set_new(root, "digest", json_string(digest));
	again = json_dumps(root, 0);
	json_decref(root);
	return again;
}

static void check_bad(const char *from, const char *to, const char *expected)
{
	struct tern_ps_job job = make_job();
	char *text = some_manifest((struct tern_snapshot_id){200, 5}, &job, some_parts);
	char *at = strstr(text, from), *changed = NULL, *signed_text;
	struct tern_snapshot s;

	assert_non_null(at);
	assert_true(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to,
			    at + strlen(from)) > 0);
	assert_int_equal(
		tern_snapshot_decode(changed, strlen(changed), &s, &why), -EINVAL);
	assert_non_null(strstr(why.text, "digest"));
	signed_text = sign(changed);
	assert_int_equal(tern_snapshot_decode(signed_text, strlen(signed_text), &s, &why),
		-EINVAL);
	if (!strstr(why.text, expected))
		fail_msg("expected \"%s\", got \"%s\"", expected, why.text);
	free(signed_text);
	free(changed);
	free(text);
}

/* A manifest that was printed in another way is the same. */
static void test_a_manifest_may_be_spaced(void **state)
{
	struct tern_ps_job job = make_job();
	char *text = some_manifest((struct tern_snapshot_id){200, 5}, &job, some_parts);
	char *spaced = sign(text);
	struct tern_snapshot s;

	(void)state;
	assert_string_not_equal(text, spaced);
	assert_int_equal(tern_snapshot_decode(spaced, strlen(spaced), &s, &why), 0);
	tern_snapshot_fini(&s);
	free(spaced);
	free(text);
}

static void test_a_wrong_manifest_is_refused_with_the_reason(void **state)
{
	(void)state;
	check_bad("tern snapshot 1", "tern snapshot 2", "format");
	check_bad("\"step\":200", "\"step\":0", "step");
	check_bad("\"number\":5", "\"number\":-1", "number");
	check_bad("\"steps\":1000", "\"steps\":-5", "steps");
	check_bad("\"bytes\":10", "\"bytes\":-10", "bytes");
	check_bad("\"digest\":\"0000000000000001\"", "\"digest\":\"1\"", "digest");
	check_bad("\"digest\":\"0000000000000001\"", "\"digest\":\"000000000000000x\"",
		"digest");
	check_bad("\"chunks\":[0,3,", "\"chunks\":[3,", "in none");
	check_bad("\"chunks\":[0,3,", "\"chunks\":[0,1,3,", "in two");
	check_bad("\"chunks\":[0,3,", "\"chunks\":[0,3,-1,", "none of the job");
	check_bad("\"chunks\":[0,3,", "\"chunks\":[0,3,4000000,", "none of the job");
}

static void test_a_wrong_blob_is_refused(void **state)
{
	(void)state;
	check_bad("\"step\":199", "\"step\":0", "blob");
	check_bad("\"step\":199", "\"step\":201", "blob"); /* of a later step */
	check_bad("\"bytes\":7", "\"bytes\":6", "blob");
	check_bad("\"bytes\":7", "\"bytes\":10", "blob");
	check_bad("\"bytes\":7", "\"bytes\":65537", "blob");
	check_bad("\"bytes\":7", "\"bytes\":-1", "blob");
	check_bad("ZXBvY2ggMw==", "ZXBvY2ggMw", "blob");
	check_bad("ZXBvY2ggMw==", "ZXBvY2ggMw=A", "blob");
	check_bad("ZXBvY2ggMw==", "ZXBv!2ggMw==", "blob");
	check_bad("ZXBvY2ggMw==", "ZXBvY2ggMx==", "blob"); /* bits beyond the end */
	check_bad("\"data\":\"ZXBvY2ggMw==\"", "\"data\":7", "blob");
}

static void test_a_manifest_without_a_blob_has_none(void **state)
{
	struct tern_ps_job job = make_job();
	struct tern_snapshot s = {.id = {200, 5}, .job = job, .parts = some_parts};
	struct tern_plan plan;
	char *text;

	(void)state;
	assert_int_equal(tern_plan_init(&plan, &job), 0);
	text = tern_snapshot_encode(&s, &plan);
	tern_plan_fini(&plan);
	assert_non_null(text);
	assert_null(strstr(text, "blob"));
	assert_int_equal(tern_snapshot_decode(text, strlen(text), &s, &why), 0);
	assert_true(s.blob.step == 0 && s.blob.bytes == 0);
	tern_snapshot_fini(&s);
	free(text);
}

/* ---- the vectors of a part ---- */

#define VECTORS_MAX 64u

/* Makes a part of server 0 that is wrong, and returns what the check says of it; "": nothing.
 * The vector `name` is left out of the part, or, if `dtype` is not 0, it is there with that
 * type and one element. */
static const char *wrong_of_part(const char *name, enum tern_dtype dtype)
{
	static const char *const kinds[] = {"w", "m", "v"};
	static float values[100000];
	static char names[VECTORS_MAX][32];
	struct tern_ps_job job = make_job();
	char *text = some_manifest((struct tern_snapshot_id){200, 5}, &job, some_parts);
	struct tern_safetensor tensors[VECTORS_MAX];
	struct iovec iov[VECTORS_MAX + 1];
	struct tern_safetensors *file;
	struct tern_snapshot s;
	struct tern_plan plan;
	char *bytes, *at;
	size_t count = 0, size = 0;
	bool right;

	assert_int_equal(tern_snapshot_decode(text, strlen(text), &s, &why), 0);
	assert_int_equal(tern_plan_init(&plan, &job), 0);
	for (uint32_t i = 0; i < s.parts[0].chunk_count * 3; i++) {
		uint32_t chunk = s.parts[0].chunks[i / 3];

		snprintf(names[count], sizeof(names[0]), "%s.%u", kinds[i % 3], chunk);
		if (strcmp(names[count], name) == 0)
			continue;
		tensors[count] = (struct tern_safetensor){.name = names[count],
			.shape = tern_shape_1d(TERN_F32, plan.chunks[chunk].count),
			.data = values};
		count++;
	}
	if (dtype)
		tensors[count++] = (struct tern_safetensor){
			.name = name, .shape = tern_shape_1d(dtype, 1), .data = values};
	assert_int_equal(tern_safetensors_build(tensors, count, NULL, 0, iov), 0);
	for (size_t i = 0; i <= count; i++)
		size += iov[i].iov_len;
	at = bytes = malloc(size);
	for (size_t i = 0; i <= count; i++)
		at = mempcpy(at, iov[i].iov_base, iov[i].iov_len);
	assert_int_equal(tern_safetensors_parse("part", bytes, size, &file, &why), 0);
	right = tern_snapshot_check_vectors(&s, &plan, 0, file, &why);
	tern_safetensors_free(file);
	free(bytes);
	free(iov[0].iov_base);
	free(text);
	tern_plan_fini(&plan);
	tern_snapshot_fini(&s);
	return right ? "" : why.text;
}

static void check_wrong(const char *name, enum tern_dtype dtype, const char *expected)
{
	const char *wrong = wrong_of_part(name, dtype);

	if (strncmp(wrong, "step-000000000200-00000005.0.safetensors: ", 42) != 0 ||
		!strstr(wrong, expected))
		fail_msg("expected \"%s\", got \"%s\"", expected, wrong);
}

static void test_a_part_without_a_vector_is_refused_with_its_name(void **state)
{
	(void)state;
	assert_string_equal(wrong_of_part("none", 0), "");
	check_wrong("w.0", 0, "w.0: expected ");
	check_wrong("m.3", 0, "there is no such vector");
	check_wrong("v.3", 0, "v.3: expected ");
	check_wrong("v.0", TERN_F32, "elements of f32");
	check_wrong("w.0", TERN_U64, "w.0: expected ");
	/* This one need not be there, but is not believed if it is wrong. */
	assert_string_equal(wrong_of_part("skipped.0", TERN_U64), "");
	check_wrong("skipped.0", TERN_F32, "skipped.0: expected 1 elements of u64");
}

/* ---- going on ---- */

static void test_a_job_of_other_processes_may_go_on(void **state)
{
	struct tern_ps_job job = make_job();
	struct tern_snapshot s = {.id = {200, 5}, .job = make_job()};
	struct tern_param started = job.params[0];

	(void)state;
	started.init = TERN_INIT_NORMAL;
	started.b = 1;
	job.params = &started;
	job.workers = 7;
	job.server_count = 1;
	job.steps = 200;
	strcpy(job.arithmetic, "another");
	assert_false(tern_snapshot_differs(&s, &job, "worker 0", &why));
}

static void check_differs(const struct tern_ps_job *job, const char *expected)
{
	const struct tern_snapshot s = {.id = {200, 5}, .job = make_job()};

	assert_true(tern_snapshot_differs(&s, job, "worker 0", &why));
	if (!strstr(why.text, expected) ||
		!strstr(why.text, "step-000000000200-00000005"))
		fail_msg("expected \"%s\", got \"%s\"", expected, why.text);
}

static void test_another_job_may_not_go_on(void **state)
{
	struct tern_ps_job job = make_job();
	struct tern_param other = job.params[0];

	(void)state;
	job.steps = 199;
	check_differs(&job, "steps: worker 0 has 199");
	job = make_job();
	job.slots = 5;
	check_differs(&job, "slots: worker 0 has 5, the job 4");
	job = make_job();
	job.seed = 8;
	check_differs(&job, "seed");
	job = make_job();
	other.shape.dims[0] = 5;
	job.params = &other;
	check_differs(&job, "shape");
	job = make_job();
	job.optimizer.lr = 5;
	check_differs(&job, "learning rate");
}

/* ---- async mode ---- */

static struct tern_ps_job async_job(void)
{
	struct tern_ps_job job = make_job();

	job.mode = TERN_MODE_ASYNC;
	return job;
}

/* Reads a manifest of an async job of two workers, in which `from` is `to`. */
static int read_async(const char *from, const char *to, struct tern_snapshot *s)
{
	uint64_t least[] = {120, 79}, most[] = {120, 80};
	struct tern_ps_job job = async_job();
	struct tern_plan plan;
	char *text, *at, *changed, *signed_text;
	int r;

	assert_int_equal(tern_plan_init(&plan, &job), 0);
	text = tern_snapshot_encode(&(struct tern_snapshot){.id = {200, 5},
					    .job = job,
					    .parts = some_parts,
					    .least = least,
					    .most = most},
		&plan);
	assert_non_null(text);
	at = strstr(text, from);
	assert_non_null(at);
	assert_true(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to,
			    at + strlen(from)) > 0);
	signed_text = sign(changed);
	r = tern_snapshot_decode(signed_text, strlen(signed_text), s, &why);
	free(signed_text);
	free(changed);
	free(text);
	tern_plan_fini(&plan);
	return r;
}

static void test_the_steps_of_each_async_worker_are_read_back(void **state)
{
	static const char *const wrong[] = {"", "\"applied\":3,",
		"\"applied\":[[120,120]],", "\"applied\":[[120,120],[80,79]],",
		"\"applied\":[[120,120],[79,81]],", "\"applied\":[[-1,120],[79,80]],",
		"\"applied\":[[120,120],[79,80],[0,0]],"};
	const char *right = "\"applied\":[[120,120],[79,80]]";
	struct tern_snapshot s;

	(void)state;
	assert_int_equal(read_async(right, right, &s), 0);
	assert_true(s.least[0] == 120 && s.most[0] == 120);
	assert_true(s.least[1] == 79 && s.most[1] == 80);
	tern_snapshot_fini(&s);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		char to[80];

		snprintf(to, sizeof(to), "%s\"no\":1", wrong[i]);
		assert_int_equal(read_async(right, to, &s), -EINVAL);
		assert_non_null(strstr(why.text, "applied: expected"));
	}
}

static void check_steps_differ(
	uint64_t *steps, const struct tern_ps_job *job, const char *expected)
{
	struct tern_snapshot s = {
		.id = {200, 5}, .job = async_job(), .least = steps, .most = steps};

	assert_int_equal(tern_snapshot_differs(&s, job, "worker 0", &why), !!expected);
	if (expected && !strstr(why.text, expected))
		fail_msg("expected \"%s\", got \"%s\"", expected, why.text);
}

static void check_async_differs(const struct tern_ps_job *job, const char *expected)
{
	check_steps_differ((uint64_t[]){20, 180}, job, expected);
}

static void test_an_async_job_goes_on_with_as_many_steps(void **state)
{
	struct tern_ps_job job = async_job();

	(void)state;
	job.steps = 300;
	check_steps_differ((uint64_t[]){180, 20}, &job,
		"worker 0 makes 150, and it has made 180: go on with 359 or more");
	job.steps = 358;
	check_steps_differ((uint64_t[]){180, 20}, &job, "go on with 359 or more");
	job.steps = 359;
	check_steps_differ((uint64_t[]){180, 20}, &job, NULL);
	job.steps = 200;
	check_steps_differ((uint64_t[]){110, 120}, &job,
		"worker 0 makes 100, and it has made 110: go on with 240 or more");
	check_steps_differ((uint64_t[]){200, 0}, &job, "go on with 399 or more");
}

static void test_an_async_job_goes_on_with_as_many_workers(void **state)
{
	struct tern_ps_job job = async_job();

	(void)state;
	job.server_count = 1;
	job.steps = 360;
	strcpy(job.arithmetic, "another");
	check_async_differs(&job, NULL);
	job.steps = 359;
	check_async_differs(
		&job, "worker 1 makes 179, and it has made 180: go on with 360");
	job = async_job();
	job.workers = 3;
	check_async_differs(&job, "divided among 2: go on with 2 workers");
	check_async_differs(&(struct tern_ps_job){.steps = 1000}, "mode");
	job = async_job();
	job.ssp = 3;
	check_async_differs(&job, "mode: worker 0 has ssp:2, the job async");
}

/* ---- the search ---- */

struct searcher {
	struct tern_snapshot_search search;
	struct tern_sim *sim;
	struct tern_sim_process *process;
	struct tern_context *ctx;
	bool ended;
	int status;
	unsigned passed_over;
};

static void passed_over(struct tern_snapshot_search *search, const char *text)
{
	struct searcher *s = tern_container_of(search, struct searcher, search);

	s->passed_over++;
	assert_non_null(strstr(text, "cannot be used"));
}

static void done(struct tern_snapshot_search *search, int status)
{
	struct searcher *s = tern_container_of(search, struct searcher, search);

	s->ended = true;
	s->status = status;
}

static bool has_ended(void *arg)
{
	return ((struct searcher *)arg)->ended;
}

static void part_bytes(struct tern_snapshot_id id, uint32_t part, char *bytes)
{
	for (int i = 0; i < 64; i++)
		bytes[i] = (char)(id.step + 31 * part + i);
}

/* Puts a snapshot on the disk. */
static void put(struct tern_sim_disk *disk, uint64_t step)
{
	struct tern_snapshot_id id = {step, 5};
	struct tern_snapshot_part parts[PARTS] = {{0}};
	struct tern_ps_job job = make_job();
	char path[80], bytes[64], *text;

	for (uint32_t i = 0; i < PARTS; i++) {
		part_bytes(id, i, bytes);
		snprintf(path, sizeof(path), "d/%s", tern_snapshot_part_name(id, i).text);
		tern_sim_disk_put(disk, path, bytes, sizeof(bytes));
		parts[i].bytes = sizeof(bytes);
		parts[i].digest = tern_digest(bytes, sizeof(bytes));
	}
	text = some_manifest(id, &job, parts);
	snprintf(path, sizeof(path), "d/%s", tern_snapshot_manifest_name(id).text);
	tern_sim_disk_put(disk, path, text, strlen(text));
	free(text);
}

static void open_searcher(struct searcher *s)
{
	*s = (struct searcher){.sim = tern_sim_new(&(struct tern_sim_opts){.seed = 3})};
	s->process = tern_sim_process_new(s->sim, "one");
	assert_int_equal(tern_context_new_in(tern_sim_domain(s->process),
				 &(struct tern_context_opts){0}, tern_sim_env(s->process),
				 &s->ctx),
		0);
	tern_sim_drive(s->process, s->ctx);
}

static void search(struct searcher *s, const char *path)
{
	s->ended = false;
	s->passed_over = 0;
	s->search = (struct tern_snapshot_search){.env = tern_sim_env(s->process),
		.path = path,
		.passed_over = passed_over,
		.done = done};
	assert_int_equal(tern_snapshot_search_start(&s->search), 0);
	assert_int_equal(tern_sim_run(s->sim, has_ended, s, TERN_NS_PER_S), 0);
}

static void close_search(struct searcher *s)
{
	tern_snapshot_fini(&s->search.found);
	tern_snapshot_search_fini(&s->search);
}

static void check_finds(
	struct searcher *s, const char *path, uint64_t step, unsigned passed)
{
	search(s, path);
	assert_int_equal(s->status, 0);
	assert_true(s->search.found.id.step == step);
	assert_string_equal(s->search.directory, "d");
	assert_int_equal(s->passed_over, passed);
	close_search(s);
}

static void check_finds_none(struct searcher *s, const char *path, const char *expected)
{
	search(s, path);
	assert_int_equal(s->status, -ENOENT);
	if (!strstr(s->search.why.text, expected))
		fail_msg("expected \"%s\", got \"%s\"", expected, s->search.why.text);
	close_search(s);
}

static void close_searcher(struct searcher *s)
{
	tern_sim_forget(s->process, s->ctx);
	tern_context_free(s->ctx);
	tern_sim_process_free(s->process);
	tern_sim_free(s->sim);
}

static void test_the_newest_that_is_whole_is_found(void **state)
{
	struct tern_sim_disk *disk;
	struct searcher s;
	char torn[63] = {0};

	(void)state;
	open_searcher(&s);
	disk = tern_sim_disk(s.sim);
	check_finds_none(&s, "d", "no snapshot is in d");
	tern_sim_disk_put(disk, "d/step-000000000900-00000005.0.safetensors", "x", 1);
	tern_sim_disk_put(disk, "d/.step-000000000900-00000005.json.new", "x", 1);
	check_finds_none(&s, "d", "no snapshot is in d");
	put(disk, 100);
	check_finds(&s, "d", 100, 0);
	put(disk, 1000);
	put(disk, 200);
	check_finds(&s, "d", 1000, 0);
	check_finds(&s, "d/step-000000000200-00000005.json", 200, 0);
	check_finds_none(&s, "d/step-000000000201-00000005.json", "No such file");
	/* The newest loses a part, the next one is cut, and then the last one changes. */
	tern_sim_disk_remove(disk, "d/step-000000001000-00000005.2.safetensors");
	check_finds(&s, "d", 200, 1);
	tern_sim_disk_put(
		disk, "d/step-000000000200-00000005.1.safetensors", torn, sizeof(torn));
	check_finds(&s, "d", 100, 2);
	check_finds_none(&s, "d/step-000000000200-00000005.json", "63 bytes");
	tern_sim_disk_put(
		disk, "d/step-000000000100-00000005.0.safetensors", torn, 64 - 1);
	check_finds_none(&s, "d", "step-000000000100-00000005 cannot be used");
	assert_int_equal(s.passed_over, 3);
	close_searcher(&s);
}

/* First a bit of a part changes; then a manifest stands under the name of another snapshot. */
static void test_a_changed_snapshot_is_passed_over(void **state)
{
	struct tern_sim_disk *disk;
	struct searcher s;
	char bytes[64];
	const void *manifest;
	size_t count = 0;

	(void)state;
	open_searcher(&s);
	disk = tern_sim_disk(s.sim);
	put(disk, 100);
	part_bytes((struct tern_snapshot_id){100, 5}, 1, bytes);
	bytes[63] ^= 1;
	tern_sim_disk_put(
		disk, "d/step-000000000100-00000005.1.safetensors", bytes, sizeof(bytes));
	check_finds_none(&s, "d", "digest");
	put(disk, 100);
	check_finds(&s, "d", 100, 0);
	manifest = tern_sim_disk_get(disk, "d/step-000000000100-00000005.json", &count);
	tern_sim_disk_put(disk, "d/step-000000000300-00000005.json", manifest, count);
	check_finds(&s, "d", 100, 1);
	close_searcher(&s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_are_read_back),
		cmocka_unit_test(test_other_names_are_no_snapshots),
		cmocka_unit_test(test_a_manifest_is_read_back),
		cmocka_unit_test(test_a_manifest_that_is_cut_is_refused),
		cmocka_unit_test(test_a_manifest_may_be_spaced),
		cmocka_unit_test(test_a_wrong_manifest_is_refused_with_the_reason),
		cmocka_unit_test(test_a_wrong_blob_is_refused),
		cmocka_unit_test(test_a_manifest_without_a_blob_has_none),
		cmocka_unit_test(test_a_part_without_a_vector_is_refused_with_its_name),
		cmocka_unit_test(test_a_job_of_other_processes_may_go_on),
		cmocka_unit_test(test_another_job_may_not_go_on),
		cmocka_unit_test(test_the_steps_of_each_async_worker_are_read_back),
		cmocka_unit_test(test_an_async_job_goes_on_with_as_many_steps),
		cmocka_unit_test(test_an_async_job_goes_on_with_as_many_workers),
		cmocka_unit_test(test_the_newest_that_is_whole_is_found),
		cmocka_unit_test(test_a_changed_snapshot_is_passed_over),
	};

	return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
