/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that Tern survives a corrupted device context. A kernel writes to an address
 * without memory, on purpose: on a GPU this corrupts the context, and each later CUDA
 * call of this process fails. The engine and the updater that use the device, and those
 * that are created later, must report it in a line, with -ENOTRECOVERABLE, and must end
 * without a hang or a crash. Run this program last, and check afterwards that a new
 * process can use the device.
 *
 * On the simulated driver, FAKE_CUDA=break=tern_cuda_sum:1:700 has the same effect.
 */
#include <errno.h>
#include <stdio.h>

#include "base/util.h"
#include "client/engine/cuda.h"
#include "kernels/cuda/table.h"
#include "ps/updater_cuda.h"
#include "tests/harness/cmocka.h"

#define COUNT   1000u
#define NOWHERE 4096u /* an address without memory */

static const struct tern_cuda_api *api;
static float params[4096], gradient[COUNT];

/* ---- the corruption ---- */

/* Corrupts the context; returns the driver's result for the work that failed. */
static CUresult corrupt(void)
{
	const struct tern_cuda_sizes sizes = {0};
	const float *nowhere = (const float *)(uintptr_t)NOWHERE;
	struct tern_cuda_kernels *k;
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUresult result;
	char why[256];

	assert_int_equal(api->device_get(&device, 0), CUDA_SUCCESS);
	assert_int_equal(api->primary_ctx_retain(&context, device), CUDA_SUCCESS);
	assert_int_equal(api->ctx_push_current(context), CUDA_SUCCESS);
	assert_int_equal(
		api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0),
		CUDA_SUCCESS);
	assert_int_equal(tern_cuda_kernels_new(
				 api, NULL, device, stream, &sizes, &k, why, sizeof(why)),
		0);
	assert_int_equal(
		tern_cuda_sum(k, (float *)(uintptr_t)NOWHERE, &nowhere, 1, 1, COUNT), 0);
	result = api->stream_synchronize(stream);
	tern_cuda_kernels_free(k);
	api->stream_destroy(stream);
	api->ctx_pop_current(NULL);
	api->primary_ctx_release(device);
	return result;
}

/* ---- what uses the device ---- */

static struct tern_updater *updater_new(int wanted)
{
	struct tern_updater *u = NULL;
	char why[400] = "";
	int r = tern_updater_cuda_new(api, 0, &u, why, sizeof(why));

	print_message("a new updater: %d %s\n", r, why);
	assert_true(wanted == 0 ? r == 0 : r < 0 && *why);
	return u;
}

static int update(struct tern_updater *u, struct tern_updater_chunk *chunk)
{
	const float *source = gradient;
	const struct tern_updater_step step = {.step = 1,
		.w_in = params,
		.w_out = params,
		.gradients = &source,
		.gradient_count = 1,
		.scale = 1,
		.clip = 1};

	return tern_updater_update(u, chunk, &step);
}

static struct tern_model *model_new(void)
{
	const struct tern_dataset like = {
		.kind = TERN_DATA_DENSE, .width = 8, .class_count = 2};
	struct tern_data_error error;
	struct tern_model *model;

	assert_int_equal(tern_model_new("mlp:16", &like, &model, &error), 0);
	assert_true(tern_model_size(model) <= TERN_ARRAY_SIZE(params));
	return model;
}

static struct tern_engine *engine_new(const struct tern_model *model, int wanted)
{
	const struct tern_engine_cuda_opts opts = {.api = api, .model = model, .rows = 4};
	struct tern_engine *e = NULL;
	char why[400] = "";
	int r = tern_engine_cuda_new(&opts, &e, why, sizeof(why));

	print_message("a new engine: %d %s\n", r, why);
	assert_true(wanted == 0 ? r == 0 : r < 0 && *why);
	return e;
}

static int evaluate(struct tern_engine *e)
{
	const struct tern_engine_params at = {params, 1};
	struct tern_result result;

	e->batch.rows = 4;
	return tern_engine_evaluate(e, &at, NULL, &result);
}

static void test_each_user_of_a_corrupted_device_gets_a_status_and_a_line(void **state)
{
	struct tern_optimizer sgd;
	struct tern_updater_opts opts = {
		.optimizer = &sgd, .count = COUNT, .gradient_count = 1};
	struct tern_updater *u = updater_new(0);
	struct tern_updater_chunk *chunk;
	struct tern_model *model = model_new();
	struct tern_engine *e = engine_new(model, 0);
	char text[160];
	CUresult result;

	(void)state;
	assert_int_equal(tern_optimizer_parse("sgd", &sgd), 0);
	assert_int_equal(tern_updater_chunk_new(u, &opts, &chunk), 0);
	assert_int_equal(evaluate(e), 0);

	result = corrupt();
	print_message(
		"the driver: %s\n", tern_cuda_text(api, result, text, sizeof(text)));
	assert_int_equal(tern_cuda_status(result), -ENOTRECOVERABLE);

	assert_int_equal(update(u, chunk), -ENOTRECOVERABLE);
	print_message("the updater: %s\n", chunk->error);
	assert_true(*chunk->error);
	assert_int_equal(evaluate(e), -ENOTRECOVERABLE);
	print_message("the engine: %s\n", e->error);
	assert_true(*e->error);
	updater_new(-1);
	engine_new(model, -1);

	tern_updater_chunk_free(u, chunk);
	tern_updater_free(u);
	tern_engine_free(e);
	tern_model_free(model);
}

int main(void)
{
	const struct CMUnitTest cases[] = {
		cmocka_unit_test(
			test_each_user_of_a_corrupted_device_gets_a_status_and_a_line),
	};
	const char *why;

	if (tern_cuda_load(&api, &why) < 0) {
		printf("skip: %s\n", why);
		return 77;
	}
	return cmocka_run_group_tests_name("a corrupted device", cases, NULL, NULL);
}
