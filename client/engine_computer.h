/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The computer of the built-in models: it computes a slot (a share of each step's
 * records) with an engine, as a task of the environment (base/env.h).
 */
#ifndef TERN_CLIENT_ENGINE_COMPUTER_H
#define TERN_CLIENT_ENGINE_COMPUTER_H

#include <tern/memory.h>

#include "base/env.h"
#include "client/compute.h"
#include "client/data/dataset.h"
#include "client/engine/engine.h"
#include "client/ready.h"

struct engine_computer_opts {
	struct tern_env *env;
	/* Used by the task; by others only while no slot is computed, except for
	 * tern_engine_fetch(). */
	struct tern_engine *engine;
	const struct tern_dataset *train;
	/* The plan whose chunks of the gradient are told to the worker when they are
	 * final; must outlive the computer. */
	const struct tern_plan *plan;
	uint32_t batch; /* number of records of a slot */
	/* Gets the line that the engine has left in engine->note; may be NULL. */
	void (*note)(void *arg, const char *text);
	void *arg;
};

struct engine_computer {
	struct tern_computer computer;
	struct engine_computer_opts opts;
	struct tern_work *work; /* the slot that the task computes */
	struct tern_task task;
	uint64_t *records; /* the slot's records */
	struct tern_result result;
	int status; /* status of the engine's last call for the slot */
	/* Chunks of the gradient that the task has finished, and that the worker was not
	 * told of yet. */
	struct ready ready;
};

/* Makes a computer that holds no slot. Errors: -ENOMEM. */
int engine_computer_new(
	const struct engine_computer_opts *opts, struct engine_computer **out);
/* Frees the computer, whose task must have ended. NULL is allowed. */
void engine_computer_free(struct engine_computer *c);

/* Announces a slab (memory segment of a pool) to the engine, so that the engine can
 * page-lock it. Does nothing for GPU memory. */
int engine_pin(struct tern_engine *engine, const struct tern_mem *mem);
/* Passes on the engine's note, if there is one, and clears it. */
void engine_say_note(
	struct tern_engine *engine, void (*note)(void *arg, const char *text), void *arg);

#endif
