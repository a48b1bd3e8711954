/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver's global state: its lock, its table of functions, injected faults,
 * and the count of open objects. Invariant: whenever the lock is released, the host
 * cannot access device memory (unless opts.unguarded is set). Without an injected fault,
 * a call fails only if its caller made a mistake or the options do not allow it.
 */
#include "tests/fakes/cuda/cuda_world.h"

#include <stdatomic.h>

#define FAULTS_MAX 16

struct fake_world fake_world = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const functions[] = {
#define TERN_CUDA_CALL(field, name, version)          #field,
#define TERN_CUDA_CALL_OPTIONAL(field, name, version) #field,
#include "base/cuda_calls.h"
};

static struct {
	unsigned call_count[TERN_ARRAY_SIZE(functions)];
	struct fault {
		unsigned function;
		/* Number of the call that fails; 0: the entry is free. */
		unsigned at_call;
		CUresult result;
	} faults[FAULTS_MAX];
	struct kernel_fault {
		char kernel[128]; /* name of the kernel; "": any kernel */
		unsigned left;    /* executions until the fault; 0: the entry is free */
		CUresult result;
	} kernel_faults[FAULTS_MAX];
} state;

/* This thread runs a host function (a callback of a stream) while it holds the lock. */
static _Thread_local bool in_host_function;

struct fake_cuda_opts fake_cuda_defaults(void)
{
	return (struct fake_cuda_opts){
		.device_count = 1,
		.driver_version = CUDA_VERSION,
		.major = 9,
		.copy_engines = 3,
		.rdma_flush = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST,
		.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
		.dma_buf = true,
		.rdma = true,
		.vmm = true,
		.ipc = true,
		.map_host = true,
		.mem_bytes = 1ull << 30,
		.seed = 1,
	};
}

/* ---- the table ---- */

static CUresult get_error_name(CUresult result, const char **out)
{
	static const struct {
		CUresult result;
		const char *name;
	} names[] = {
#define NAME(result) {result, #result}
		NAME(CUDA_SUCCESS),
		NAME(CUDA_ERROR_INVALID_VALUE),
		NAME(CUDA_ERROR_OUT_OF_MEMORY),
		NAME(CUDA_ERROR_NOT_INITIALIZED),
		NAME(CUDA_ERROR_NO_DEVICE),
		NAME(CUDA_ERROR_INVALID_DEVICE),
		NAME(CUDA_ERROR_INVALID_CONTEXT),
		NAME(CUDA_ERROR_NO_BINARY_FOR_GPU),
		NAME(CUDA_ERROR_NOT_FOUND),
		NAME(CUDA_ERROR_NOT_READY),
		NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
		NAME(CUDA_ERROR_ILLEGAL_INSTRUCTION),
		NAME(CUDA_ERROR_LAUNCH_FAILED),
		NAME(CUDA_ERROR_NOT_SUPPORTED),
		NAME(CUDA_ERROR_SYSTEM_NOT_READY),
		NAME(CUDA_ERROR_UNKNOWN),
#undef NAME
	};

	*out = NULL;
	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		if (names[i].result == result)
			*out = names[i].name;
	}
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_error_string(CUresult result, const char **out)
{
	CUresult known = get_error_name(result, out);

	if (!known)
		*out = "the simulated driver says so";
	return known;
}

/* Removes the functions that a driver does not have with opts.old_driver. */
static void drop_optional(struct tern_cuda_api *api)
{
#define TERN_CUDA_CALL(field, name, version)
#define TERN_CUDA_CALL_OPTIONAL(field, name, version) api->field = NULL;
#include "base/cuda_calls.h"
}

static void table_open(struct tern_cuda_api *api)
{
	api->get_error_name = get_error_name;
	api->get_error_string = get_error_string;
	fake_device_entries(api);
	fake_memory_entries(api);
	fake_share_entries(api);
	fake_stream_entries(api);
	fake_work_entries(api);
	fake_kernel_entries(api);
	fake_graph_entries(api);
#define TERN_CUDA_CALL(field, name, version)          tern_assert(api->field);
#define TERN_CUDA_CALL_OPTIONAL(field, name, version) tern_assert(api->field);
#include "base/cuda_calls.h"
	if (fake_world.opts.old_driver)
		drop_optional(api);
}

/* ---- the world ---- */

static void world_open(const struct fake_cuda_opts *opts)
{
	tern_assert(opts->device_count <= FAKE_CUDA_MAX_DEVICES);
	tern_assert(opts->early_percent <= 100);
	fake_world.opts = *opts;
	fake_world.rng = (struct tern_rng){.seed = opts->seed};
	fake_world.step = 0;
	fake_world.inited = false;
	fake_world.held = false;
	fake_world.pageable_copy_count = 0;
	fake_world.freed_at = NULL;
	tern_list_init(&fake_world.mems);
	tern_list_init(&fake_world.streams);
	tern_list_init(&fake_world.events);
	tern_list_init(&fake_world.kernels);
	tern_list_init(&fake_world.modules);
	tern_list_init(&fake_world.graphs);
	tern_list_init(&fake_world.graph_execs);
	memset(&state, 0, sizeof(state));
	fake_gpus_open();
	table_open(&fake_world.api);
	fake_world.ready = true;
}

static void world_need(void)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();

	if (!fake_world.ready)
		world_open(&opts);
}

struct fake_world *fake_world_enter(void)
{
	if (in_host_function)
		tern_never("fake cuda: a host function calls the driver");
	pthread_mutex_lock(&fake_world.lock);
	world_need();
	fake_streams_early();
	return &fake_world;
}

void fake_world_leave(struct fake_world **world)
{
	fake_guard(true);
	pthread_mutex_unlock(&(*world)->lock);
}

void fake_rest(void)
{
	fake_guard(true);
	pthread_mutex_unlock(&fake_world.lock);
	usleep(50);
	pthread_mutex_lock(&fake_world.lock);
}

void fake_host_function(CUhostFn host, void *arg)
{
	fake_guard(true);
	in_host_function = true;
	host(arg);
	in_host_function = false;
}

const struct tern_cuda_api *fake_cuda_api(void)
{
	FAKE_LOCK();
	return &fake_world.api;
}

/* ---- what is open ---- */

static unsigned list_length(const struct tern_list *l)
{
	unsigned count = 0;

	tern_list_for_each (n, l)
		count++;
	return count;
}

static unsigned count_mems(enum fake_mem_kind kind)
{
	unsigned count = 0;

	tern_list_for_each (n, &fake_world.mems)
		count += tern_list_entry(n, struct fake_mem, node)->kind == kind;
	return count;
}

static struct fake_cuda_live count_live(void)
{
	struct fake_cuda_live live = {
		.device_mems = count_mems(FAKE_MEM_DEVICE),
		.host_mems = count_mems(FAKE_MEM_HOST),
		.registered_mems = count_mems(FAKE_MEM_REGISTERED),
		.opened_mems = count_mems(FAKE_MEM_OPENED),
		.events = list_length(&fake_world.events),
		.modules = list_length(&fake_world.modules),
		.graphs = list_length(&fake_world.graphs),
		.graph_execs = list_length(&fake_world.graph_execs),
	};

	for (unsigned i = 0; i < fake_world.opts.device_count; i++)
		live.contexts += fake_world.devices[i].retain_count;
	tern_list_for_each (n, &fake_world.streams)
		live.streams += !tern_list_entry(n, struct fake_stream, node)->destroyed;
	return live;
}

struct fake_cuda_live fake_cuda_live(void)
{
	FAKE_LOCK();
	return count_live();
}

static void world_close(void)
{
	static const struct fake_cuda_live none;
	struct fake_cuda_live live;

	fake_streams_run(NULL);
	live = count_live();
	if (memcmp(&live, &none, sizeof(none)) != 0) {
		fprintf(stderr,
			"fake cuda: still open: %u contexts, %u device, %u host, "
			"%u registered and %u opened memories, %u streams, %u events, "
			"%u modules, %u graphs, %u instantiated graphs\n",
			live.contexts, live.device_mems, live.host_mems,
			live.registered_mems, live.opened_mems, live.streams, live.events,
			live.modules, live.graphs, live.graph_execs);
		tern_never("fake cuda: something is still open");
	}
	fake_kernels_forget();
	fake_contexts_forget();
	fake_world.ready = false;
}

/* ---- opts.background ---- */

static pthread_t worker;
/* Only fake_cuda_reset() ends the worker, and no other call runs at that time. */
static bool worker_runs;
static atomic_bool worker_ends;

static pthread_cond_t worker_call = PTHREAD_COND_INITIALIZER;

/* Waits until a call of the driver queues work, but at most 1 ms: work also becomes ready
 * without such a call, through another process's event, and the worker finds it when it
 * looks again. */
static void worker_rest(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	fake_guard(true);
	pthread_cond_timedwait(&worker_call, &fake_world.lock, &until);
}

static void work_once(void)
{
	FAKE_LOCK();
	if (fake_world.held || !fake_streams_step())
		worker_rest();
}

static void *work(void *arg)
{
	while (!worker_ends) {
		work_once();
		usleep(50);
	}
	return arg;
}

void fake_worker_call(void)
{
	if (worker_runs)
		pthread_cond_signal(&worker_call);
}

void fake_worker_need(void)
{
	if (worker_runs || !fake_world.opts.background)
		return;
	worker_runs = true;
	tern_assert(pthread_create(&worker, NULL, work, NULL) == 0);
}

static void end_worker(void)
{
	if (!worker_runs)
		return;
	worker_ends = true;
	pthread_join(worker, NULL);
	worker_ends = false;
	worker_runs = false;
}

void fake_cuda_reset(const struct fake_cuda_opts *opts)
{
	struct fake_cuda_opts defaults = fake_cuda_defaults();

	end_worker();
	FAKE_LOCK();
	world_close();
	world_open(opts ? opts : &defaults);
}

/* ---- faults ---- */

static unsigned function_index(const char *name)
{
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(functions); i++) {
		if (strcmp(functions[i], name) == 0)
			return i;
	}
	tern_never("fake cuda: no such function");
}

CUresult fake_asked_fault(const char *name)
{
	unsigned i = function_index(name);

	state.call_count[i]++;
	for (unsigned f = 0; f < FAULTS_MAX; f++) {
		struct fault *fault = &state.faults[f];

		if (fault->function == i && fault->at_call == state.call_count[i]) {
			fault->at_call = 0;
			return fault->result;
		}
	}
	return CUDA_SUCCESS;
}

unsigned fake_cuda_calls(const char *function)
{
	FAKE_LOCK();
	return state.call_count[function_index(function)];
}

void fake_cuda_fail(const char *function, unsigned nth, CUresult result)
{
	FAKE_LOCK();
	unsigned i = function_index(function);
	tern_assert(nth > 0 && result && !tern_cuda_is_sticky(result));
	for (unsigned f = 0; f < FAULTS_MAX; f++) {
		if (state.faults[f].at_call == 0) {
			state.faults[f] = (struct fault){.function = i,
				.at_call = state.call_count[i] + nth,
				.result = result};
			return;
		}
	}
	tern_never("fake cuda: too many faults at a time");
}

CUresult fake_kernel_fault(const char *kernel)
{
	CUresult result = CUDA_SUCCESS;

	for (unsigned f = 0; f < FAULTS_MAX; f++) {
		struct kernel_fault *fault = &state.kernel_faults[f];

		if (fault->left == 0 ||
			(*fault->kernel && strcmp(fault->kernel, kernel) != 0))
			continue;
		if (--fault->left == 0)
			result = fault->result;
	}
	return result;
}

void fake_cuda_break(const char *kernel, unsigned nth, CUresult result)
{
	FAKE_LOCK();
	tern_assert(nth > 0 && tern_cuda_is_sticky(result));
	for (unsigned f = 0; f < FAULTS_MAX; f++) {
		struct kernel_fault *fault = &state.kernel_faults[f];

		if (fault->left)
			continue;
		snprintf(
			fault->kernel, sizeof(fault->kernel), "%s", kernel ? kernel : "");
		fault->left = nth;
		fault->result = result;
		return;
	}
	tern_never("fake cuda: too many faults at a time");
}

/* ---- time, and what happened ---- */

bool fake_cuda_step(void)
{
	FAKE_LOCK();
	return fake_streams_step();
}

void fake_cuda_run(void)
{
	FAKE_LOCK();
	fake_streams_run(NULL);
}

void fake_cuda_hold(bool hold)
{
	FAKE_LOCK();
	fake_world.held = hold;
}

unsigned fake_cuda_queued(void)
{
	FAKE_LOCK();
	return fake_streams_queued();
}

unsigned fake_cuda_pageable_copies(void)
{
	FAKE_LOCK();
	return fake_world.pageable_copy_count;
}

uint64_t fake_cuda_used_bytes(unsigned device)
{
	FAKE_LOCK();
	tern_assert(device < FAKE_CUDA_MAX_DEVICES);
	return fake_world.devices[device].used_bytes;
}

uint64_t fake_cuda_peak_bytes(unsigned device)
{
	FAKE_LOCK();
	tern_assert(device < FAKE_CUDA_MAX_DEVICES);
	return fake_world.devices[device].peak_bytes;
}
