/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a model of its own with Tern's parameter servers: the factors of a matrix of
 * ratings, found by least squares. Rating r of a user u for an item v is approximated by the
 * product of a row of `user` and a row of `item`.
 *
 *     tern run --servers 1 --workers 2 -- factorise [FILE [STEPS]]
 *
 * The worker that finishes the job writes the factors to FILE as plain float32. The bytes
 * are the same for any number of workers and servers.
 *
 * Build it: cc factorise.c $(pkg-config --cflags --libs tern) -lm -o factorise
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/shared.h>

#define USERS   300u
#define ITEMS   200u
#define WIDTH   8u /* numbers in a row */
#define RATINGS 20000u

static int fail(const char *what)
{
	fprintf(stderr, "factorise: %s: %s\n", what, tern_shared_text());
	return 1;
}

static void note(void *arg, const char *text)
{
	(void)arg;
	fprintf(stderr, "factorise: %s\n", text);
}

/* A pure function that stands for the data: rating number n. */
static float rating(uint64_t n, unsigned *user, unsigned *item)
{
	uint64_t x = (n + 1) * 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	*user = (unsigned)(x % USERS);
	*item = (unsigned)(x / USERS % ITEMS);
	return 0.5f * (float)(*user % 5) * (float)(*item % 3) / 4.0f -
	       0.25f * (float)(*user % 7) * (float)(*item % 4) / 18.0f;
}

/* Adds the gradient of the squared error of one rating, times `scale`; returns the error
 * squared. */
static double add_gradient(const float *users, const float *items, float *user_gradient,
	float *item_gradient, uint64_t n, float scale)
{
	unsigned user, item;
	float error = -rating(n, &user, &item);
	const float *a = users + user * WIDTH, *b = items + item * WIDTH;

	for (unsigned k = 0; k < WIDTH; k++)
		error += a[k] * b[k];
	for (unsigned k = 0; k < WIDTH; k++) {
		user_gradient[user * WIDTH + k] += 2 * scale * error * b[k];
		item_gradient[item * WIDTH + k] += 2 * scale * error * a[k];
	}
	return (double)error * (double)error;
}

/* Computes one slot: the mean gradient over its ratings. */
static int compute(struct tern_shared *shared, struct tern_slot *slot,
	const struct tern_slot_info *info, uint32_t user, uint32_t item)
{
	float *gradients[] = {
		tern_slot_gradient(slot, user), tern_slot_gradient(slot, item)};
	double loss = 0;

	memset(gradients[0], 0, sizeof(float) * USERS * WIDTH);
	memset(gradients[1], 0, sizeof(float) * ITEMS * WIDTH);
	for (uint32_t j = 0; j < info->batch; j++)
		loss += add_gradient(tern_slot_param(slot, user),
			tern_slot_param(slot, item), gradients[0], gradients[1],
			tern_slot_record(slot, j), 1.0f / (float)info->batch);
	if (tern_shared_push(shared, slot, item, NULL) < 0 ||
		tern_shared_push(shared, slot, user, NULL) < 0)
		return -1;
	return tern_shared_end(shared, slot, loss / info->batch);
}

/* Writes the final factors and the error that they leave. Returns NULL, or what failed. */
static const char *save(const struct tern_session *session, const char *path,
	uint32_t user, uint32_t item)
{
	const float *users = tern_session_param(session, user);
	const float *items = tern_session_param(session, item);
	static float ignored[2][USERS * WIDTH];
	double sum = 0;
	FILE *file;

	for (uint64_t n = 0; n < RATINGS; n++)
		sum += add_gradient(users, items, ignored[0], ignored[1], n, 0);
	printf("root mean square error %.4f\n", sqrt(sum / RATINGS));
	if (!path)
		return NULL;
	file = fopen(path, "wb");
	if (!file)
		return "cannot create the file";
	if (fwrite(users, sizeof(float) * WIDTH, USERS, file) != USERS ||
		fwrite(items, sizeof(float) * WIDTH, ITEMS, file) != ITEMS)
		return fclose(file), "cannot write the file";
	return fclose(file) ? "cannot write the file" : NULL;
}

static int train(struct tern_shared *shared, const char *path, uint64_t steps)
{
	const struct tern_tensor_opts tensors[] = {
		{.name = "user",
			.shape = {TERN_F32, 2, {USERS, WIDTH}},
			.init = TERN_INIT_UNIFORM,
			.a = -0.5,
			.b = 0.5},
		{.name = "item",
			.shape = {TERN_F32, 2, {ITEMS, WIDTH}},
			.init = TERN_INIT_UNIFORM,
			.a = -0.5,
			.b = 0.5}};
	/* The number of workers is in the environment: `tern run` sets it. */
	const struct tern_job_opts job = {.slots = 4,
		.steps = steps,
		.seed = 3,
		.rule = {.name = "adam", .lr = 0.01},
		.arithmetic = "factorise 1",
		.records = RATINGS,
		.batch = 64};
	struct tern_session *session;
	struct tern_slot_info info;
	struct tern_slot *slot;
	uint32_t user, item;
	int r;

	if (tern_shared_session(
		    shared, &(struct tern_session_opts){.note = note}, &session) < 0 ||
		tern_shared_tensor(shared, session, &tensors[0], &user) < 0 ||
		tern_shared_tensor(shared, session, &tensors[1], &item) < 0 ||
		tern_shared_start(shared, session, &job) < 0)
		return fail("cannot start");
	while ((r = tern_shared_next(shared, session, &slot, &info, TERN_NEVER)) == 0)
		if (compute(shared, slot, &info, user, item) < 0)
			return fail("cannot hand over a gradient");
	if (r != -ENODATA)
		return fail("the job has ended early");
	r = tern_shared_finisher(shared, session, TERN_NEVER);
	if (r > 0)
		r = tern_shared_finished(
			shared, session, save(session, path, user, item));
	if (r == 0)
		r = tern_shared_ended(shared, session, TERN_NEVER);
	return r < 0 ? fail("the end") : 0;
}

int main(int argc, char **argv)
{
	struct tern_shared *shared;
	int code;

	if (tern_shared_new(NULL, &shared) < 0)
		return fail("cannot start");
	code = train(shared, argc > 1 ? argv[1] : NULL,
		argc > 2 ? strtoull(argv[2], NULL, 10) : 400);
	tern_shared_free(shared);
	return code;
}
