/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a training job. `tern train` and `tern worker` both have all of
 * JOB_OPTIONS, so that the launcher (`tern train`) can pass its own arguments on to the
 * workers, and every worker of a job, on this machine or another, gets the same.
 */
#ifndef TERN_TOOLS_JOB_H
#define TERN_TOOLS_JOB_H

#include "kernels/kernels.h"
#include "ps/job.h"
#include "tools/device.h"
#include "tools/fabric.h"
#include "tools/host_env.h"
#include "tools/log.h"
#include "tools/optimizer.h"

/* Names of files in the --save directory: the results, and the parameters of an
 * interrupted job. Their names differ, so that the latter cannot be mistaken for
 * results. */
#define JOB_SAVED       "model.safetensors"
#define JOB_INTERRUPTED "interrupted.safetensors"

struct job_settings {
	const char *model, *data, *labels, *test;
	struct count_pair split;
	/* A slot is one of the gradients that are added up in a step. 0 slots: as many as
	 * workers, see job_check(). */
	uint64_t servers, workers, slots;
	struct job_mode {
		enum tern_mode kind;
		uint64_t ssp; /* as in struct tern_ps_job */
	} mode;
	struct optimizer_settings optimizer;
	double clip_norm; /* --clip-norm; 0: no clipping */
	uint64_t batch, steps, seed;
	uint64_t eval_every; /* --eval-every; 0: no evaluation before the end */
	struct fabric_settings fabric;
	struct device_choice device; /* --device: where workers compute */
	int tensor_memory;           /* --tensor-memory: index into device_memories */
	int arithmetic;              /* --arithmetic: index into device_arithmetics */
	const char *init_from; /* tools/init_from.h; NULL: initial values from the seed */
	const char *save;
	bool overwrite; /* --save may replace the files of an earlier job */
	/* model charlm: number of characters of text to generate at the end */
	uint64_t generate;
	bool json;
	enum tern_log_level log_level; /* --log-level, see log.h */
};

int job_parse_mode(const char *text, void *at, struct message *why);

/* Rows for a command's table of options; the command's settings must begin with a struct
 * job_settings. */
#define JOB_OPTION(kind, name, value, field, help, ...)                                  \
	OPTION(kind, name, value, help, struct job_settings, field, __VA_ARGS__)
/* Model and data. */
#define JOB_DATA_OPTIONS                                                                 \
	JOB_OPTION(TEXT, "model", "SPEC", model,                                         \
		"softmax, logreg, mlp:WIDTH,... or charlm:CONTEXT,EMBED,HIDDEN"),        \
		JOB_OPTION(TEXT, "data", "PATH", data,                                   \
			"IDX, svmlight or text, plain, .gz or .bz2; a directory of "     \
			"texts"),                                                        \
		JOB_OPTION(TEXT, "labels", "PATH", labels, "labels of IDX images"),      \
		JOB_OPTION(TEXT, "test", "PATH", test, "data to test the model on"),     \
		JOB_OPTION(PAIR, "split", "A:B", split,                                  \
			"train on the first A records, test on the last B")
#define JOB_OPTIONS                                                                      \
	JOB_DATA_OPTIONS,                                                                \
		JOB_OPTION(COUNT, "servers", "S", servers, "servers of the job",         \
			.initial = "1", .min = 1, .max = TERN_SERVERS_MAX),              \
		JOB_OPTION(COUNT, "workers", "N", workers, "workers of the job",         \
			.initial = "1", .min = 1, .max = TERN_WORKERS_MAX),              \
		JOB_OPTION(COUNT, "slots", "R", slots,                                   \
			"slots: gradients that are added up in each step; default: one " \
			"per worker",                                                    \
			.min = 1, .max = TERN_SLOTS_MAX),                                \
		JOB_OPTION(CUSTOM, "mode", "sync|async|ssp:K", mode,                     \
			"sync: each step adds up R gradients (--slots); async: each "    \
			"gradient is applied when it arrives; ssp:K: as async, but a "   \
			"worker that is more than K steps ahead of another one waits",   \
			.initial = "sync", .parse = job_parse_mode),                     \
		OPTIMIZER_OPTIONS(struct job_settings, optimizer),                       \
		JOB_OPTION(REAL, "clip-norm", "X", clip_norm,                            \
			"scale gradients down to this global norm (sync)", .min = 1e-12, \
			.max = 1e12),                                                    \
		JOB_OPTION(COUNT, "batch", "B", batch, "records in each slot's batch",   \
			.initial = "128", .min = 1, .max = 1 << 20),                     \
		JOB_OPTION(COUNT, "steps", "T", steps, "steps to train",                 \
			.initial = "1000", .min = 1, .max = 1e12),                       \
		JOB_OPTION(COUNT, "eval-every", "T", eval_every,                         \
			"evaluate on the test data (--test, --split) at the steps 0, "   \
			"T, "                                                            \
			"2T, ..., too",                                                  \
			.min = 1, .max = 1e12),                                          \
		JOB_OPTION(COUNT, "seed", "X", seed,                                     \
			"seed of the initial parameters and of the order of records",    \
			.initial = "1"),                                                 \
		FABRIC_OPTIONS(struct job_settings, fabric),                             \
		JOB_OPTION(CUSTOM, "device", "cpu|cuda[:N]", device,                     \
			"where workers compute; cuda: worker I uses GPU I modulo the "   \
			"number of GPUs",                                                \
			.initial = "cpu", .parse = device_parse),                        \
		TENSOR_MEMORY_OPTION(struct job_settings, tensor_memory),                \
		ARITHMETIC_OPTION(struct job_settings, arithmetic),                      \
		JOB_OPTION(TEXT, "init-from", "FILE", init_from,                         \
			"begin with the parameters of this safetensors file, which has " \
			"the tensors of the model, in place of initial values from "     \
			"--seed"),                                                       \
		JOB_OPTION(TEXT, "save", "DIR", save,                                    \
			"write the parameters into this directory as safetensors"),      \
		JOB_OPTION(FLAG, "overwrite", NULL, overwrite,                           \
			"--save may replace the results of an earlier job"),             \
		JOB_OPTION(COUNT, "generate", "N", generate,                             \
			"charlm: generate N characters of text at the end", .max = 1e6), \
		JOB_OPTION(FLAG, "json", NULL, json, "one JSON object per line"),        \
		LOG_LEVEL_OPTION(struct job_settings, log_level)

/* Rows for `tern train` and `tern server`. `field` of the first is a uint64_t, the
 * number of threads (0: not given); `field` of the second a double, the timeout in
 * seconds. */
#define THREADS_OPTION(name, settings, field)                                            \
	OPTION(COUNT, name, "N",                                                         \
		"threads of each server that add gradients up and update parameters, "   \
		"each one chunk at a time; the result is the same for any number; "      \
		"default 1, on a GPU 16",                                                \
		settings, field, .min = 1, .max = HOST_ENV_TASK_THREADS_MAX)
#define WORKER_TIMEOUT_OPTION(settings, field)                                           \
	OPTION(REAL, "worker-timeout", "S",                                              \
		"a worker that makes no progress for S seconds (or for ten times the "   \
		"median time of a slot, if that is longer) while others wait for it is " \
		"lost; then other workers compute its slots",                            \
		settings, field, .initial = "30", .min = 0.01, .max = 1e6)

/* Values of --on-stall, by enum tern_on_stall. */
extern const char *const job_on_stall[];
/* A row for the same; `field` is an int. */
#define ON_STALL_OPTION(settings, field)                                                 \
	OPTION(CHOICE, "on-stall", "reassign|wait|end",                                  \
		"what happens with a worker that makes no progress (--worker-timeout): " \
		"it is lost, and others compute its slots; or the job waits for it, or " \
		"ends",                                                                  \
		settings, field, .choices = job_on_stall, .initial = "reassign")

/* Values of --on-nan: how servers treat a slot whose loss is NaN or infinite. */
enum job_on_nan {
	JOB_NAN_STOP, /* it ends the job */
	JOB_NAN_SKIP, /* it is left out of its step (server/omit.c) */
};
extern const char *const job_on_nan[];
/* A row for --on-nan; `field` is an int. */
#define ON_NAN_OPTION(settings, field)                                                   \
	OPTION(CHOICE, "on-nan", "stop|skip",                                            \
		"what happens if the loss of a slot (a share of a step's records) is "   \
		"NaN or infinite: the job ends; or its step is made with the other "     \
		"slots, which is told and recorded (--mode sync)",                       \
		settings, field, .choices = job_on_nan, .initial = "stop")

/* A row for `tern server` and `tern worker`; `field` is a uint64_t. */
#define SERVER_WAIT_OPTION(settings, field)                                              \
	OPTION(COUNT, "server-wait", "S",                                                \
		"if a server of a job with --snapshots is lost, wait up to S seconds "   \
		"for it to be started again, and go on from the newest snapshot; 0: "    \
		"end at once",                                                           \
		settings, field, .initial = "600", .max = 86400)

/* A row for servers, workers and launchers; `field` is a double. */
#define DRAIN_OPTION(settings, field)                                                    \
	OPTION(REAL, "drain-within", "S",                                                \
		"seconds in which a process that is asked to end hands over what it "    \
		"has: a snapshot, its slots, or the parameters",                         \
		settings, field, .initial = "8", .min = 1, .max = 3600)

/* Returns so many eighths of --drain-within. An end has several stages, of which a later one has
 * to wait for an earlier one: a server waits for a snapshot (5 eighths), a worker for the decision
 * of server 0 (6), and each process for both (7). */
uint64_t job_drain_ns(double within_s, unsigned eighths);

/*
 * Checks what the option table cannot, such as required options, options that exclude each
 * other, and whether files exist. Also fills in the defaults that depend on other options.
 * -EINVAL: `error` has one line.
 */
int job_check(struct job_settings *job, struct message *error);

/* Checks JOB_DATA_OPTIONS alone, for a command that has no other options of a job. -EINVAL:
 * `error` has one line. */
int job_check_data(const struct job_settings *job, struct message *error);

#endif
