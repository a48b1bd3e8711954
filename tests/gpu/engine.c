/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "base/util.h"

struct engine_suite suite = {.scale = GPU_LARGE};

static const char *const specs[] = {
	"charlm:6,4,20", "mlp:32", "softmax", "logreg", "mlp:40,24,16"};

/* Number of model specs that are used; GPU_FEW: only text and one hidden layer. */
static size_t spec_count(void)
{
	return suite.scale == GPU_FEW ? 2 : TERN_ARRAY_SIZE(specs);
}

/* ---- data and parameters ---- */

static struct tern_dataset *read_text(void)
{
	static const char line[] = "the quick brown fox jumps over the lazy dog. ";
	char text[sizeof(line) * 20] = "";
	struct tern_data_error error;
	struct tern_dataset *data;

	for (int i = 0; i < 20; i++)
		strcat(text, line);
	assert_int_equal(tern_dataset_read(&(struct tern_data_file){.path = "text",
						   .data = text,
						   .bytes = strlen(text)},
				 NULL, 6, 0, &data, &error),
		0);
	return data;
}

static struct tern_dataset *read_records(void)
{
	char *text = calloc(1, 1u << 20);
	struct tern_rng rng = {.seed = 5};
	struct tern_data_error error;
	struct tern_dataset *data;
	size_t at = 0;

	for (int i = 0; i < 400; i++) {
		float sum = 0;
		char row[512];
		size_t n = 0;

		for (int j = 1; j <= 30; j++) {
			float x = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;

			sum += j % 2 ? x : -x;
			n += (size_t)snprintf(
				row + n, sizeof(row) - n, " %d:%.4f", j, (double)x);
		}
		at += (size_t)sprintf(text + at, "%s%s\n", sum > 0 ? "+1" : "-1", row);
	}
	assert_int_equal(tern_dataset_read(
				 &(struct tern_data_file){
					 .path = "records", .data = text, .bytes = at},
				 NULL, 0, 0, &data, &error),
		0);
	free(text);
	return data;
}

static float *map_floats(size_t bytes)
{
	void *p = mmap(
		NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

void world_open(struct world *w, const char *spec)
{
	struct tern_data_error error;
	const struct tern_param *params;
	size_t count;

	w->data = strncmp(spec, "charlm", 6) == 0 ? read_text() : read_records();
	assert_int_equal(tern_model_new(spec, w->data, &w->model, &error), 0);
	w->count = tern_model_size(w->model);
	w->bytes = tern_align_up(w->count * sizeof(float), 4096);
	for (unsigned i = 0; i < 2; i++) {
		w->params[i] = map_floats(w->bytes);
		w->grads[i] = map_floats(w->bytes);
	}
	params = tern_model_params(w->model, &count);
	for (unsigned v = 0; v < 2; v++)
		for (size_t i = 0; i < count; i++)
			tern_param_init(&params[i], 11 + v, 0, params[i].count,
				w->params[v] + params[i].first);
}

void world_close(struct world *w)
{
	for (unsigned i = 0; i < 2; i++) {
		munmap(w->params[i], w->bytes);
		munmap(w->grads[i], w->bytes);
	}
	tern_model_free(w->model);
	tern_dataset_free(w->data);
}

void world_fill(const struct world *w, struct tern_batch *batch, size_t rows, unsigned at)
{
	uint64_t records[TERN_ENGINE_ROWS];

	for (size_t i = 0; i < rows; i++)
		records[i] = (at * 31 + i * 7) % w->data->count;
	tern_dataset_batch(w->data, records, rows, batch);
}

void world_pin(const struct world *w, struct tern_engine *e)
{
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(tern_engine_pin(e, w->params[i], w->bytes), 0);
		assert_int_equal(tern_engine_pin(e, w->grads[i], w->bytes), 0);
	}
}

struct tern_engine *cuda_engine(const struct world *w, bool no_graphs)
{
	const struct tern_engine_cuda_opts opts = {.api = suite.api,
		.blas = suite.blas,
		.model = w->model,
		.rows = ROWS,
		.no_graphs = no_graphs};
	struct tern_engine *e = NULL;
	char why[400] = "";
	int r = tern_engine_cuda_new(&opts, &e, why, sizeof(why));

	if (r < 0)
		print_message("%s\n", why);
	assert_int_equal(r, 0);
	return e;
}

static struct tern_engine *cpu_engine(const struct world *w)
{
	struct tern_engine *e;

	assert_int_equal(tern_engine_cpu_new(tern_kernels_cpu(), w->model, ROWS, &e), 0);
	return e;
}

/* ---- announced parts of the gradient ---- */

struct watch {
	const struct world *world;
	const float *grads;
	/* Copy of the gradient's values at the time when the engine announced them. */
	float *early;
	uint64_t first;
	unsigned times;
};

static void take(void *arg, uint64_t first, uint64_t count)
{
	struct watch *s = arg;

	assert_int_equal(first + count, s->first);
	memcpy(s->early + first, s->grads + first, count * sizeof(float));
	s->first = first;
	s->times++;
}

struct tern_result gradient(const struct world *w, struct tern_engine *e, unsigned at,
	unsigned parity, unsigned buffer)
{
	const struct tern_engine_params params = {w->params[parity], 100 + parity};
	struct watch seen = {.world = w,
		.grads = w->grads[buffer],
		.early = malloc(w->bytes),
		.first = w->count};
	struct tern_result result;

	/* Fills the gradient with NaN, so that unwritten elements are noticed. */
	memset(w->grads[buffer], 0xff, w->bytes);
	world_fill(w, &e->batch, ROWS, at);
	assert_int_equal(
		tern_engine_gradient(e, &params, w->grads[buffer], take, &seen, &result),
		0);
	assert_int_equal(seen.first, 0);
	assert_memory_equal(seen.early, w->grads[buffer], w->count * sizeof(float));
	free(seen.early);
	return result;
}

/* ---- close to the CPU engine ---- */

static void assert_close(const float *got, const float *wanted, uint64_t count)
{
	float largest = 1e-6f;

	for (uint64_t i = 0; i < count; i++)
		largest = fmaxf(largest, fabsf(wanted[i]));
	for (uint64_t i = 0; i < count; i++)
		assert_true(fabsf(got[i] - wanted[i]) <= 2e-5f * largest);
}

static void test_gradients_are_close_to_the_cpus(void **state)
{
	(void)state;
	for (size_t i = 0; i < spec_count(); i++) {
		struct world w;
		struct tern_engine *cpu, *cuda;

		world_open(&w, specs[i]);
		cpu = cpu_engine(&w);
		cuda = cuda_engine(&w, false);
		world_pin(&w, cuda);
		for (unsigned at = 0; at < 6; at++) {
			struct tern_result a = gradient(&w, cpu, at, at % 2, 0),
					   b = gradient(&w, cuda, at, at % 2, 1);

			assert_true(fabs(a.loss - b.loss) <= 1e-5 * a.loss);
			assert_int_equal(a.correct, b.correct);
			assert_close(w.grads[1], w.grads[0], w.count);
		}
		assert_string_equal(cuda->note, "");
		tern_engine_unpin(cuda);
		tern_engine_free(cuda);
		tern_engine_free(cpu);
		world_close(&w);
	}
}

static void test_evaluation_is_close_to_the_cpus(void **state)
{
	(void)state;
	for (size_t i = 0; i < spec_count(); i++) {
		struct world w;
		struct tern_engine *engines[2];
		struct tern_result r[2];
		float scores[2][TERN_ENGINE_ROWS] = {0};

		world_open(&w, specs[i]);
		engines[0] = cpu_engine(&w);
		engines[1] = cuda_engine(&w, false);
		for (unsigned rows = TERN_ENGINE_ROWS; rows > 0; rows /= 7) {
			for (int j = 0; j < 2; j++) {
				const struct tern_engine_params params = {w.params[0], 1};

				world_fill(&w, &engines[j]->batch, rows, 3);
				assert_int_equal(tern_engine_evaluate(engines[j], &params,
							 scores[j], &r[j]),
					0);
			}
			assert_true(fabs(r[0].loss - r[1].loss) <= 1e-5 * r[0].loss);
			assert_int_equal(r[0].correct, r[1].correct);
			assert_close(scores[1], scores[0], rows);
		}
		tern_engine_free(engines[0]);
		tern_engine_free(engines[1]);
		world_close(&w);
	}
}

static void test_what_is_written_is_what_the_cpu_writes(void **state)
{
	struct world w;
	struct tern_engine *engines[2];
	int32_t symbols[2][40];

	(void)state;
	world_open(&w, "charlm:6,4,20");
	engines[0] = cpu_engine(&w);
	engines[1] = cuda_engine(&w, false);
	for (int j = 0; j < 2; j++) {
		const struct tern_engine_params params = {w.params[0], 1};

		for (unsigned i = 0; i < 40; i++) {
			world_fill(&w, &engines[j]->batch, 1, i);
			assert_int_equal(tern_engine_sample(engines[j], &params, 0.7f,
						 ((float)i + 0.5f) / 40, &symbols[j][i]),
				0);
		}
	}
	assert_memory_equal(symbols[0], symbols[1], sizeof(symbols[0]));
	tern_engine_free(engines[0]);
	tern_engine_free(engines[1]);
	world_close(&w);
}

/* ---- the same bits in repeated steps ---- */

/* Computes the gradients of eight batches, and returns them one after the other. */
static float *some_steps(const struct world *w, bool no_graphs, bool pinned)
{
	float *all = malloc(8 * w->bytes);
	struct tern_engine *e = cuda_engine(w, no_graphs);

	if (pinned)
		world_pin(w, e);
	for (unsigned at = 0; at < 8; at++) {
		/* Two batches per version of the parameters, each with its own buffer. */
		gradient(w, e, at, at / 2 % 2, at % 2);
		memcpy((char *)all + at * w->bytes, w->grads[at % 2], w->bytes);
	}
	tern_engine_unpin(e);
	tern_engine_free(e);
	return all;
}

/* Prints a hash of the gradients: another process on the same device must print the same
 * line. */
static void tell_hash(const struct world *w, const char *spec, const float *gradients)
{
	uint64_t hash = GPU_HASH_START;

	for (unsigned at = 0; at < 8; at++)
		hash = gpu_hash(hash, (const char *)gradients + at * w->bytes,
			w->count * sizeof(float));
	print_message(
		"hash of gradients of %s: %016llx\n", spec, (unsigned long long)hash);
}

static void test_graphs_and_page_locking_do_not_change_a_bit(void **state)
{
	(void)state;
	for (size_t i = 0; i < spec_count(); i++) {
		struct world w;
		float *one, *other;

		world_open(&w, specs[i]);
		one = some_steps(&w, true, true);
		tell_hash(&w, specs[i], one);
		for (int j = 0; j < 3; j++) {
			other = some_steps(&w, j == 1, j != 1);
			for (unsigned at = 0; at < 8; at++)
				assert_memory_equal((char *)one + at * w.bytes,
					(char *)other + at * w.bytes,
					w.count * sizeof(float));
			free(other);
		}
		free(one);
		world_close(&w);
	}
}

static void test_parameters_are_copied_once_for_a_version(void **state)
{
	struct world w;
	struct tern_engine *e;
	struct tern_engine_params params;
	struct tern_result first, same, next;

	(void)state;
	world_open(&w, "mlp:32");
	e = cuda_engine(&w, false);
	params = (struct tern_engine_params){w.params[0], 7};
	world_fill(&w, &e->batch, ROWS, 0);
	assert_int_equal(tern_engine_evaluate(e, &params, NULL, &first), 0);
	memcpy(w.params[0], w.params[1], w.bytes);
	assert_int_equal(tern_engine_evaluate(e, &params, NULL, &same), 0);
	assert_true(first.loss == same.loss);
	params.version = 8;
	assert_int_equal(tern_engine_evaluate(e, &params, NULL, &next), 0);
	assert_true(first.loss != next.loss);
	tern_engine_free(e);
	world_close(&w);
}

int engine_run_cases(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test_setup_teardown(
			test_gradients_are_close_to_the_cpus, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_evaluation_is_close_to_the_cpus, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_what_is_written_is_what_the_cpu_writes, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_graphs_and_page_locking_do_not_change_a_bit, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			test_parameters_are_copied_once_for_a_version, setup, teardown),
	};

	return cmocka_run_group_tests_name("cuda engine", cases, NULL, NULL);
}
