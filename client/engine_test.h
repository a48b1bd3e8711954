/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates parameters on a test set with an engine: for a worker (engine_evaluation.c) and for
 * `tern evaluator`, whose results are the same for equal parameters. */
#ifndef TERN_CLIENT_ENGINE_TEST_H
#define TERN_CLIENT_ENGINE_TEST_H

#include "client/data/dataset.h"
#include "client/engine/engine.h"

struct engine_test {
	struct tern_engine *engine; /* owned by the caller */
	const struct tern_dataset *set;
	/* Called after every batch of records; true: the evaluation is to stop. */
	bool (*stop)(void *arg);
	void *arg;
	/* Score and label of each record, from which the AUC is computed
	 * (engine_test_make_room()). NULL: no AUC is computed. */
	float *scores;
	int32_t *labels;
};

struct engine_test_results {
	double loss, accuracy; /* means over the records */
	double auc;            /* NAN: not computed, or a class is missing */
};

/* Makes the room for the AUC, if the set is dense and has two classes. -ENOMEM.
 * engine_test_fini() must follow in any case. */
int engine_test_make_room(struct engine_test *test);
void engine_test_fini(struct engine_test *test);

/*
 * Evaluates the parameters; blocks as long as the engine computes. -EDOM: the loss is not a
 * finite number, and is in out->loss; -ECANCELED: stop() has returned true; or an error of the
 * engine, with its text.
 */
int engine_test_run(const struct engine_test *test,
	const struct tern_engine_params *params, struct engine_test_results *out);

#endif
