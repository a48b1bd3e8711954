/* SPDX-License-Identifier: Apache-2.0 */
/* The device on which a process computes: --device, --server-device. */
#ifndef TERN_TOOLS_DEVICE_H
#define TERN_TOOLS_DEVICE_H

#include <stdint.h>

#include "client/engine/engine.h"
#include "ps/updater.h"
#include "tools/options.h"

struct tern_cuda_api;

struct device_choice { /* all zero: the CPU */
	char text[24]; /* as the user typed it: "cuda:1" */
	bool cuda, numbered;
	unsigned ordinal; /* valid if `numbered` */
};

/* Parses "cpu", "cuda", "cuda:N": for options of type CUSTOM. */
int device_parse(const char *text, void *at, struct message *why);

struct device {
	const struct tern_cuda_api *api; /* NULL: the CPU */
	unsigned ordinal;
	const struct tern_kernels *kernels; /* of the CPU */
};

/* Values of --arithmetic. 0, "auto", uses TERN_KERNELS of the environment, else the
 * widest table that the processor runs. */
extern const char *const device_arithmetics[];
#define ARITHMETIC_OPTION(settings, field)                                               \
	OPTION(CHOICE, "arithmetic", "NAME",                                             \
		"instructions of the CPU: all workers of a sync job need the same; "     \
		"portable: where processors differ, several times slower",               \
		settings, field, .initial = "auto", .choices = device_arithmetics)

/* Checks that this processor has the vector instructions of --arithmetic, and that the
 * option makes sense for the device. -EINVAL, with one line in `error`. */
int device_check_arithmetic(
	int arithmetic, const struct device_choice *choice, struct message *error);

/*
 * Finds the device of process `index` of its role: the named one, or its share of the
 * existing ones. Checks that it exists and can be used, without allocating anything on
 * it. -EINVAL: one line says what is wrong with `option`.
 */
int device_find(const char *option, const struct device_choice *choice, uint64_t index,
	int arithmetic, struct device *out, struct message *error);

/* Makes an engine on the device. -EINVAL: the device cannot be used; other errors: it
 * failed (-ENOMEM: the line says how much was wanted). Always with a line. */
int device_engine(const struct device *device, const struct tern_model *model,
	size_t rows, struct tern_engine **out, struct message *error);

/* The same for a server: makes an updater. */
int device_updater(
	const struct device *device, struct tern_updater **out, struct message *error);

/* Name of the device: "cpu", "cuda:1". */
void device_name(const struct device *device, char *out, size_t bytes);

#endif
