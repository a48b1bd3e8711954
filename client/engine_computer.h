/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The computer of the built-in models: it computes slots (shares of each step's records),
 * and evaluates the final parameters, and those of some steps (eval_every), with an engine,
 * as tasks of the environment (base/env.h). It is made before the worker, and fills in the
 * job's fields about the model and its data.
 */
#ifndef TERN_CLIENT_ENGINE_COMPUTER_H
#define TERN_CLIENT_ENGINE_COMPUTER_H

#include <tern/memory.h>

#include "base/env.h"
#include "client/compute.h"
#include "client/engine_test.h"
#include "client/ready.h"

struct tern_ps_job;

struct engine_computer_opts {
	struct tern_env *env;
	/* Owned by the caller, and used by the computer alone until that is freed. It was
	 * made for batches of `batch` records. */
	struct tern_engine *engine;
	const struct tern_dataset *train;
	uint32_t batch; /* number of records of a slot */
	uint64_t seed;  /* the job's */
	/* Used only if this worker evaluates: */
	const struct tern_dataset *test; /* NULL: none */
	/* This worker evaluates before slot 0 of each step that eval_every divides (0: none),
	 * if is_evaluator() is true: in async mode every worker has a slot 0. evaluated()
	 * gets the results on the test set, with the number of steps that the parameters
	 * contain; NAN: they are no longer numbers. */
	uint64_t eval_every;
	bool (*is_evaluator)(void *arg);
	void (*evaluated)(void *arg, uint64_t step, double loss, double accuracy);
	/* Gets the results of the final parameters, if there is test data; may be NULL. */
	void (*tested)(void *arg, double loss, double accuracy);
	uint32_t write_count; /* charlm: number of symbols that the model shall write */
	/* Gets lines that the engine has left in engine->note; may be NULL. */
	void (*note)(void *arg, const char *text);
	void *arg;
};

struct engine_results {
	/* Mean over the records of the test set; NAN: there is none, or another worker
	 * evaluates. */
	double test_loss;
	double test_accuracy; /* NAN in the same cases as test_loss */
	double test_auc;      /* for DENSE data of two classes only; else NAN */
	/* Text that the model wrote, NUL-terminated; NULL: none. */
	const char *written;
};

struct engine_computer {
	struct tern_computer computer;
	struct engine_computer_opts opts;
	struct engine_results results; /* complete when the worker saves or ends */

	/* engine_computer.c: slots */
	struct tern_work *work; /* the slot that the task computes */
	struct tern_task task;
	uint64_t *records; /* the slot's records */
	struct tern_result result;
	int status; /* status of the engine's last call for the slot */
	/* Divides the gradient into parts as the worker does; chunks of the gradient that
	 * the task has finished, and that the worker was not told of yet. */
	struct tern_plan plan;
	struct ready ready;

	/* engine_evaluation.c */
	/* The evaluation that the task computes is the final one, or NULL: one before
	 * `work`. */
	struct tern_evaluation *evaluation;
	struct tern_task evaluation_task;
	int evaluation_status;
	struct engine_results slot_results; /* of the evaluation before `work` */
	struct engine_test test;
	char *written;
};

/* Makes a computer that holds nothing. Errors: -ENOMEM. */
int engine_computer_new(
	const struct engine_computer_opts *opts, struct engine_computer **out);
/* Frees the computer, whose tasks must have ended, after the worker. NULL is allowed. */
void engine_computer_free(struct engine_computer *c);

/* Fills in what the job says about the model, its arithmetic and the data: params,
 * param_count, element_count, arithmetic, records and data. job->params is the model's. */
void engine_computer_describe(const struct engine_computer *c, struct tern_ps_job *job);

/* ---- inside ---- */

/* engine_evaluation.c: tern_computer_ops.evaluate */
void engine_evaluate(struct tern_computer *computer, struct tern_evaluation *evaluation);
/* Evaluates the parameters of c->work, and then computes its gradient. */
void engine_evaluate_slot(struct engine_computer *c);
void engine_evaluation_init(struct engine_computer *c);
void engine_evaluation_fini(struct engine_computer *c);
/* engine_computer.c: begins to compute the gradient of c->work. */
void engine_compute(struct engine_computer *c);
/* The slot in c->work cannot be computed. */
void engine_fail(struct engine_computer *c, int status, const char *text);
/* Passes on the engine's note, if there is one, and clears it. */
void engine_say_note(struct engine_computer *c);

#endif
