/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a process computes on: --device, --server-device. */
#ifndef TERN_TOOLS_DEVICE_H
#define TERN_TOOLS_DEVICE_H

#include <stdint.h>

#include "client/engine/engine.h"
#include "ps/updater.h"
#include "tools/options.h"

struct tern_cuda_api;

struct device_choice { /* all zero: the CPU */
	char text[24]; /* as it was given: "cuda:1" */
	bool cuda, numbered;
	unsigned ordinal; /* if numbered */
};

/* "cpu", "cuda", "cuda:N": for options of type CUSTOM. */
int device_parse(const char *text, void *at, struct message *why);

struct device {
	const struct tern_cuda_api *api; /* NULL: the CPU */
	unsigned ordinal;
	const struct tern_kernels *kernels; /* of the CPU */
};

/* --arithmetic; an int: 0, "auto", is what TERN_KERNELS of the environment says, else the
 * widest that the processor has. */
extern const char *const device_arithmetics[];
#define ARITHMETIC_OPTION(settings, field)                                               \
	OPTION(CHOICE, "arithmetic", "NAME",                                             \
		"instructions of the CPU: all workers of a sync job need the same; "     \
		"portable: where processors differ, several times slower",               \
		settings, field, .initial = "auto", .choices = device_arithmetics)

/* Can it be had here, and does the device leave a choice? -EINVAL with one line. */
int device_check_arithmetic(
	int arithmetic, const struct device_choice *choice, struct message *error);

/*
 * The device of process `index` of its role: the one that was named, or else its share of
 * those that there are. Looks whether it is there and can be used, and takes nothing of
 * it. -EINVAL: what is wrong with `option`, in a line.
 */
int device_find(const char *option, const struct device_choice *choice, uint64_t index,
	int arithmetic, struct device *out, struct message *error);

/* -EINVAL: the device turned out to be of no use; else it failed (-ENOMEM: with how much
 * was wanted). In any case with a line. */
int device_engine(const struct device *device, const struct tern_model *model,
	size_t rows, struct tern_engine **out, struct message *error);

/* The same, for a server. */
int device_updater(
	const struct device *device, struct tern_updater **out, struct message *error);

/* "cpu", "cuda:1" */
void device_name(const struct device *device, char *out, size_t bytes);

#endif
