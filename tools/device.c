/* SPDX-License-Identifier: Apache-2.0 */
/* See device.h. */
#include "tools/device.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tern-config.h"
#if TERN_HAVE_CUDA
#include "base/cuda_context.h"
#include "client/engine/cuda.h"
#include "ps/updater_cuda.h"
#endif

#define ORDINAL_MAX 255u

/* Parses "cuda" or "cuda:N". */
static bool parse_cuda(const char *text, struct device_choice *out)
{
	unsigned long value;
	char *end;

	if (strncmp(text, "cuda", 4) != 0)
		return false;
	out->cuda = true;
	if (!text[4])
		return true;
	if (text[4] != ':' || !isdigit((unsigned char)text[5]))
		return false;
	value = strtoul(text + 5, &end, 10);
	out->numbered = true;
	out->ordinal = (unsigned)value;
	return !*end && value <= ORDINAL_MAX;
}

int device_parse(const char *text, void *at, struct message *why)
{
	struct device_choice *out = at;

	*out = (struct device_choice){0};
	snprintf(out->text, sizeof(out->text), "%s", text);
	if (strcmp(text, "cpu") == 0)
		return 0;
	if (!parse_cuda(text, out))
		return options_refuse(
			why, "must be cpu, cuda or cuda:N, N from 0 to %u", ORDINAL_MAX);
#if TERN_HAVE_CUDA
	return 0;
#else
	return options_refuse(why, "this program was built without CUDA: must be cpu");
#endif
}

void device_name(const struct device *device, char *out, size_t bytes)
{
	if (device->api)
		snprintf(out, bytes, "cuda:%u", device->ordinal);
	else
		snprintf(out, bytes, "cpu");
}

const char *const device_arithmetics[] = {"auto", "avx512", "avx2", "portable", NULL};

static bool is_arithmetic(const char *name)
{
	for (size_t i = 1; device_arithmetics[i]; i++)
		if (strcmp(name, device_arithmetics[i]) == 0)
			return true;
	return false;
}

int device_check_arithmetic(
	int arithmetic, const struct device_choice *choice, struct message *error)
{
	const char *named = getenv("TERN_KERNELS");
	const char *name = arithmetic ? device_arithmetics[arithmetic] : named;
	const char *from = arithmetic ? "--arithmetic " : "TERN_KERNELS=";

	if (!name || !*name)
		return 0;
	if (arithmetic && choice->cuda)
		return options_refuse(error,
			"--arithmetic %s: only for --device cpu, and %s was asked for",
			name, choice->text);
	if (!is_arithmetic(name))
		return options_refuse(
			error, "%s%s: must be one of avx512, avx2, portable", from, name);
	if (!tern_kernels_named(name))
		return options_refuse(error,
			"%s%s: this processor does not have it; it has %sportable", from,
			name, tern_kernels_named("avx2") ? "avx2, " : "");
	return 0;
}

const char *const device_memories[] = {"host", "device", NULL};

int device_check_memory(int memory, bool has_gpu, struct message *error)
{
	if (memory == 0 || has_gpu)
		return 0;
	return options_refuse(error,
		"--tensor-memory device: needs --device cuda or --server-device cuda; on "
		"the CPU use --tensor-memory host");
}

struct tern_vector_memory device_memory(const struct device *device, int memory)
{
	if (memory == 0 || !device->api)
		return (struct tern_vector_memory){0};
	return (struct tern_vector_memory){TERN_MEM_CUDA, device->ordinal};
}

static const struct tern_kernels *kernels_of(int arithmetic)
{
	return arithmetic ? tern_kernels_named(device_arithmetics[arithmetic])
			  : tern_kernels_cpu();
}

static int cpu_engine(const struct tern_kernels *kernels, const struct tern_model *model,
	size_t rows, struct tern_engine **out, struct message *error)
{
	int r = tern_kernels_reserve();

	if (r < 0) {
		options_refuse(error,
			"not enough memory: matrix products need %llu MiB besides the "
			"model; perhaps the process's memory is limited (ulimit -v)",
			TERN_KERNELS_BYTES >> 20);
		return r;
	}
	r = tern_engine_cpu_new(kernels, model, rows, out);
	if (r < 0)
		options_refuse(
			error, "not enough memory for batches of %zu records", rows);
	return r;
}

static int cpu_updater(const struct tern_kernels *kernels, struct tern_updater **out,
	struct message *error)
{
	int r = tern_updater_cpu_new(kernels, out);

	if (r < 0)
		options_refuse(error, "out of memory");
	return r;
}

#if TERN_HAVE_CUDA

static int choose(const struct tern_cuda_api *api, const struct device_choice *choice,
	uint64_t index, unsigned *ordinal)
{
	unsigned count = 0;

	*ordinal = choice->ordinal;
	if (choice->numbered)
		return 0;
	if (tern_cuda_device_count(api, &count) || count == 0)
		return -ENODEV;
	*ordinal = (unsigned)(index % count);
	return 0;
}

/* Reads the environment variable TERN_CUDA_GRAPHS. 1: off, so workers launch kernels one
 * by one instead of as CUDA graphs; 0: on or not set; -1: any other value. */
static int graphs_off(void)
{
	const char *asked = getenv("TERN_CUDA_GRAPHS");

	if (!asked || !*asked || strcmp(asked, "on") == 0)
		return 0;
	return strcmp(asked, "off") == 0 ? 1 : -1;
}

int device_find(const char *option, const struct device_choice *choice, uint64_t index,
	int arithmetic, struct device *out, struct message *error)
{
	struct tern_cuda_device device;
	const char *why = "the driver reports no device";
	char line[400];

	*out = (struct device){.kernels = kernels_of(arithmetic)};
	if (!choice->cuda)
		return 0;
	if (graphs_off() < 0)
		return options_refuse(error, "TERN_CUDA_GRAPHS=%s: must be on or off",
			getenv("TERN_CUDA_GRAPHS"));
	if (tern_cuda_load(&out->api, &why) < 0 ||
		choose(out->api, choice, index, &out->ordinal) < 0)
		return options_refuse(error,
			"--%s %s: %s; to compute without a GPU: --%s cpu", option,
			choice->text, why, option);
	if (tern_cuda_check_device(out->api, out->ordinal, &device, line, sizeof(line)) <
		0)
		return options_refuse(error, "--%s %s: %s", option, choice->text, line);
	return 0;
}

int device_engine(const struct device *device, const struct tern_model *model,
	size_t rows, struct tern_engine **out, struct message *error)
{
	struct tern_engine_cuda_opts opts = {.api = device->api,
		.ordinal = device->ordinal,
		.model = model,
		.rows = rows,
		.no_graphs = graphs_off() > 0};
	const char *why;
	int r;

	if (!device->api)
		return cpu_engine(device->kernels, model, rows, out, error);
	tern_cublas_load(device->api, &opts.blas, &why);
	r = tern_engine_cuda_new(&opts, out, error->text, sizeof(error->text));
	return r == -ENODEV || r == -ENOEXEC ? -EINVAL : r;
}

int device_updater(
	const struct device *device, struct tern_updater **out, struct message *error)
{
	int r;

	if (!device->api)
		return cpu_updater(device->kernels, out, error);
	r = tern_updater_cuda_new(
		device->api, device->ordinal, out, error->text, sizeof(error->text));
	return r == -ENODEV || r == -ENOEXEC ? -EINVAL : r;
}

#else

int device_find(const char *option, const struct device_choice *choice, uint64_t index,
	int arithmetic, struct device *out, struct message *error)
{
	(void)option;
	(void)choice; /* device_parse() accepts only "cpu" in a build without CUDA */
	(void)index;
	(void)error;
	*out = (struct device){.kernels = kernels_of(arithmetic)};
	return 0;
}

int device_engine(const struct device *device, const struct tern_model *model,
	size_t rows, struct tern_engine **out, struct message *error)
{
	return cpu_engine(device->kernels, model, rows, out, error);
}

int device_updater(
	const struct device *device, struct tern_updater **out, struct message *error)
{
	return cpu_updater(device->kernels, out, error);
}

#endif
