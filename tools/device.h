/* SPDX-License-Identifier: Apache-2.0 */
/* The device (CPU or GPU) on which a process computes: --device, --server-device. */
#ifndef TERN_TOOLS_DEVICE_H
#define TERN_TOOLS_DEVICE_H

#include <stdint.h>

#include "client/engine/engine.h"
#include "ps/updater.h"
#include "ps/vector.h"
#include "tools/options.h"

struct tern_cuda_api;

struct device_choice { /* parsed option; all zero: the CPU */
	char text[24]; /* the option's value as typed: "cuda:1" */
	bool cuda, numbered;
	unsigned ordinal; /* valid if `numbered` */
};

/* Parses "cpu", "cuda" or "cuda:N" into a struct device_choice: the parse function of
 * options of type OPTION_CUSTOM. */
int device_parse(const char *text, void *at, struct message *why);

struct device {
	/* CUDA driver functions; NULL: computes on the CPU */
	const struct tern_cuda_api *api;
	unsigned ordinal;
	const struct tern_kernels *kernels; /* arithmetic on the CPU */
};

/* Values of --arithmetic. Index 0, "auto", means the environment variable TERN_KERNELS,
 * or, if it is not set, the widest vector instructions that the processor has. */
extern const char *const device_arithmetics[];
#define ARITHMETIC_OPTION(settings, field)                                               \
	OPTION(CHOICE, "arithmetic", "NAME",                                             \
		"vector instructions of the CPU; all workers of a sync job need the "    \
		"same; portable: for workers with different processors, several times "  \
		"slower",                                                                \
		settings, field, .initial = "auto", .choices = device_arithmetics)

/* Checks that this processor has the vector instructions of --arithmetic (or of
 * TERN_KERNELS), and that --arithmetic is not combined with a GPU. -EINVAL: `error` has
 * one line. */
int device_check_arithmetic(
	int arithmetic, const struct device_choice *choice, struct message *error);

/* Values of --tensor-memory, the memory from which tensors are sent. */
extern const char *const device_memories[];
#define TENSOR_MEMORY_OPTION(settings, field)                                            \
	OPTION(CHOICE, "tensor-memory", "host|device",                                   \
		"memory of parameters and gradients in a process that computes on a "    \
		"GPU; device: GPU memory, so that they can go from GPU to GPU",          \
		settings, field, .initial = "host", .choices = device_memories)

/* Refuses --tensor-memory device for a process, or a job, without a GPU. -EINVAL, with one
 * line in `error`. */
int device_check_memory(int memory, bool has_gpu, struct message *error);

/*
 * Finds the device for process `index` of its role (server or worker). "cuda" without a
 * number means device `index` modulo the number of devices. Checks that the device exists
 * and can be used, without allocating memory on it. `option`: the option's name, for the
 * error text. -EINVAL: `error` has one line.
 */
int device_find(const char *option, const struct device_choice *choice, uint64_t index,
	int arithmetic, struct device *out, struct message *error);

/* Makes a worker's engine (which computes gradients) on the device. -EINVAL: the device
 * cannot be used; other errors: creation failed. `error` has one line in each case. */
int device_engine(const struct device *device, const struct tern_model *model,
	size_t rows, struct tern_engine **out, struct message *error);

/* Makes a server's updater (which adds gradients and updates parameters) on the device.
 * Same error codes as device_engine(), with one line in `error`. */
int device_updater(
	const struct device *device, struct tern_updater **out, struct message *error);

/* Returns where the process keeps parameters and gradients. `memory`: value of
 * --tensor-memory. */
struct tern_vector_memory device_memory(const struct device *device, int memory);

/* Writes the name of the device: "cpu", "cuda:1". */
void device_name(const struct device *device, char *out, size_t bytes);

#endif
