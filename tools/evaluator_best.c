/* SPDX-License-Identifier: Apache-2.0 */
/* See evaluator_best.h. */
#include "tools/evaluator_best.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/escape.h"
#include "base/util.h"
#include "client/worker.h"
#include "tools/earlier.h"

#define METADATA_ACCURACY "tern_test_accuracy"
#define NONE              -1.0

/* Reads the accuracy from the text that evaluator_best_take() has written. False: it is no
 * such text. */
static bool read_accuracy(const char *text, double *accuracy)
{
	char *end;

	if (!text)
		return false;
	*accuracy = strtod(text, &end);
	return end != text && !*end && *accuracy >= 0 && *accuracy <= 1;
}

static int read_file(
	struct evaluator_best *best, struct message *found, struct message *error)
{
	json_t *metadata = earlier_metadata(best->path);
	const char *accuracy =
		json_string_value(json_object_get(metadata, METADATA_ACCURACY));
	const char *step =
		json_string_value(json_object_get(metadata, TERN_WORKER_METADATA_STEP));
	int r = 0;

	if (read_accuracy(accuracy, &best->accuracy))
		snprintf(found->text, sizeof(found->text),
			"%.300s has the parameters of step %s, accuracy %.4f: only "
			"better ones replace them",
			best->path, step ? TERN_SHOWN(step) : "unknown", best->accuracy);
	else
		r = options_refuse(error,
			"--save-best %.300s: a file that no evaluator has written: "
			"expected one with the metadata " METADATA_ACCURACY
			", or no file",
			best->path);
	json_decref(metadata);
	return r;
}

int evaluator_best_open(const char *path, uint64_t bytes, struct evaluator_best *best,
	struct message *found, struct message *error)
{
	int r;

	*best = (struct evaluator_best){.path = path, .accuracy = NONE};
	*found->text = '\0';
	if (!path)
		return 0;
	r = checkpoint_check_target("--save-best", path, bytes, error);
	if (r == 0 && access(path, F_OK) == 0)
		r = read_file(best, found, error);
	return r;
}

int evaluator_best_take(struct evaluator_best *best, const struct checkpoint *c,
	const float *flat, double accuracy)
{
	char step[24], number[32];
	const struct tern_safetensors_metadata more[] = {
		{TERN_WORKER_METADATA_STEP, step}, {METADATA_ACCURACY, number}};
	uint64_t bytes;
	int r;

	if (!best->path || !(accuracy > best->accuracy))
		return 0;
	snprintf(step, sizeof(step), "%llu", (unsigned long long)c->snapshot.id.step);
	snprintf(number, sizeof(number), "%.17g", accuracy);
	r = checkpoint_write_params(
		&c->snapshot.job, flat, more, TERN_ARRAY_SIZE(more), best->path, &bytes);
	if (r < 0)
		return r;
	best->accuracy = accuracy;
	return 1;
}
