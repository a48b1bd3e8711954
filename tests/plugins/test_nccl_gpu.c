/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory in the network plug-in of NCCL, driven as NCCL drives it, on simulated
 * RDMA devices and a simulated GPU, which only the sources of the plug-in can be given:
 * this program contains them, and its domains use the simulated drivers. The CPU cannot
 * access the GPU's memory. At the end of each test no simulated object may be open.
 */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/fakes/cuda/fake_cuda.h"
#include "tests/fakes/verbs/fake_verbs.h"
#include "tests/plugins/nccl_driver.h"
#include "transport/domain.h"

#define LIMIT_NS (60 * TERN_NS_PER_S)
#define PART     (1u << 20)
#define PARTS    4u
#define BYTES    (PARTS * PART)
#define ADDRESS  37u /* where a handle has the address */
#define OK(call) assert_int_equal(call, CUDA_SUCCESS)

static char warned[800], told[800]; /* the last lines that the plug-in has logged */

__attribute__((format(printf, 5, 6))) static void take_log(int level,
	unsigned long subsystems, const char *file, int line, const char *format, ...)
{
	va_list ap;

	(void)subsystems, (void)file, (void)line;
	va_start(ap, format);
	vsnprintf(level == NCCL_WARN ? warned : told, sizeof(warned), format, ap);
	va_end(ap);
}

/* The linker makes all calls of tern_domain_new_sized() go to this function. */
int __wrap_tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out);
int __wrap_tern_domain_new_sized(
	const struct tern_domain_opts *opts, size_t opts_bytes, struct tern_domain **out)
{
	const struct tern_domain_hooks hooks = {
		.cuda_api = fake_cuda_api(), .verbs_api = fake_verbs_api()};

	assert_true(!opts || opts_bytes == sizeof(*opts));
	return tern_domain_new_hooked(opts, &hooks, out);
}

/* ---- the machine ---- */

static struct fake_cuda_opts cuda;
static struct fake_verbs_opts verbs;
static const struct tern_cuda_api *api;
static CUcontext context;

static int defaults(void **state)
{
	(void)state;
	cuda = fake_cuda_defaults();
	verbs = fake_verbs_defaults();
	setenv("TERN_FABRICS", "verbs", 1);
	*warned = *told = '\0';
	return 0;
}

static void machine_open(void)
{
	fake_verbs_reset(&verbs);
	fake_cuda_reset(&cuda);
	api = fake_cuda_api();
	OK(api->init(0));
	OK(api->primary_ctx_retain(&context, 0));
}

static void machine_close(void)
{
	OK(api->primary_ctx_release(0));
	fake_cuda_reset(NULL);
	fake_verbs_reset(NULL);
}

/* ---- memory ---- */

static CUdeviceptr gpu_alloc(void)
{
	CUdeviceptr at;

	OK(api->ctx_push_current(context));
	OK(api->mem_alloc(&at, BYTES));
	OK(api->ctx_pop_current(NULL));
	return at;
}

static void gpu_free(CUdeviceptr at)
{
	OK(api->ctx_push_current(context));
	OK(api->mem_free(at));
	OK(api->ctx_pop_current(NULL));
}

static void gpu_copy(CUdeviceptr at, void *host, bool up)
{
	CUstream stream;

	OK(api->ctx_push_current(context));
	OK(api->stream_create_with_priority(&stream, CU_STREAM_NON_BLOCKING, 0));
	if (up)
		OK(api->memcpy_htod_async(at, host, BYTES, stream));
	else
		OK(api->memcpy_dtoh_async(host, at, BYTES, stream));
	OK(api->stream_synchronize(stream));
	OK(api->stream_destroy(stream));
	OK(api->ctx_pop_current(NULL));
}

static int dma_buf_of(CUdeviceptr at)
{
	int fd;

	OK(api->ctx_push_current(context));
	OK(api->mem_get_handle_for_address_range(
		&fd, at, BYTES, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	OK(api->ctx_pop_current(NULL));
	return fd;
}

/* How an end registers its memory. */
enum kind { HOST, GPU, DMA_BUF };

struct end {
	struct driver d;
	enum kind kind;
	void *comm, *memory;
	char *host;
	CUdeviceptr at;
};

static void *data_of(const struct end *e)
{
	return e->kind == HOST ? e->host : (void *)(uintptr_t)e->at;
}

/* Registers the end's memory as NCCL does. Returns NCCL's result. */
static int add_memory(struct end *e)
{
	int fd, r;

	if (e->kind == HOST)
		return driver_register(&e->d, e->comm, e->host, BYTES, &e->memory);
	if (e->kind == GPU)
		return driver_register_gpu(&e->d, e->comm, data_of(e), BYTES, &e->memory);
	fd = dma_buf_of(e->at);
	/* From now on the driver exports this memory to nobody, like memory that its user
	 * can export and Tern cannot. */
	fake_cuda_make_pooled(e->at);
	r = driver_register_dma_buf(&e->d, e->comm, data_of(e), BYTES, fd, &e->memory);
	close(fd); /* as NCCL does at once */
	return r;
}

/* ---- connections ---- */

struct link {
	struct end sender, receiver;
};

static void init(struct driver *d, unsigned version)
{
	int count = 0;
	const char *why = driver_open(d, NULL, version);

	if (why)
		fail_msg("%s", why);
	assert_int_equal(driver_init(d, take_log), 0);
	assert_int_equal(driver_devices(d, &count), 0);
	assert_int_equal(count, 1);
}

static int kinds_of(const struct driver *d)
{
	const char *name;
	int memory = 0, receives_max;

	assert_int_equal(driver_properties(d, 0, &name, &memory, &receives_max), 0);
	return memory;
}

static void join(struct link *l, void *handle, void *listener)
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;

	while (!l->sender.comm || !l->receiver.comm) {
		if (!l->sender.comm)
			assert_int_equal(
				driver_connect(&l->sender.d, handle, &l->sender.comm), 0);
		if (!l->receiver.comm)
			assert_int_equal(driver_accept(&l->receiver.d, listener,
						 &l->receiver.comm),
				0);
		assert_true(tern_clock_ns() < limit_ns);
	}
}

static void end_open(struct end *e, unsigned version, enum kind kind)
{
	e->kind = kind;
	init(&e->d, version);
	e->host = malloc(BYTES);
	assert_non_null(e->host);
	if (kind != HOST)
		e->at = gpu_alloc();
}

/* `scheme`: replaces that of the address in the handle, if not NULL. */
static void link_join(struct link *l, const char *scheme)
{
	char handle[HANDLE_BYTES], address[HANDLE_BYTES - ADDRESS];
	void *listener;

	assert_int_equal(driver_listen(&l->receiver.d, handle, &listener), 0);
	if (scheme) {
		snprintf(address, sizeof(address), "%s%s", scheme,
			strstr(handle + ADDRESS, "://"));
		strcpy(handle + ADDRESS, address);
	}
	join(l, handle, listener);
	assert_int_equal(driver_close_listener(&l->receiver.d, listener), 0);
}

static void link_open(struct link *l, unsigned version, enum kind from, enum kind to,
	const char *scheme)
{
	*l = (struct link){0};
	end_open(&l->sender, version, from);
	end_open(&l->receiver, version, to);
	link_join(l, scheme);
}

static void end_close(struct end *e, bool sends)
{
	assert_int_equal(driver_deregister(&e->d, e->comm, e->memory), 0);
	assert_int_equal(sends ? driver_close_send(&e->d, e->comm)
			       : driver_close_receive(&e->d, e->comm),
		0);
	assert_int_equal(driver_finalize(&e->d), 0);
	if (e->kind != HOST)
		gpu_free(e->at);
	free(e->host);
}

static void link_close(struct link *l)
{
	end_close(&l->sender, true);
	end_close(&l->receiver, false);
}

/* ---- moving data ---- */

static void end_all(struct end *e, void **requests, unsigned count, int (*sizes)[PARTS])
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;
	unsigned left = count;
	int done;

	while (left > 0) {
		left = 0;
		for (unsigned i = 0; i < count; i++) {
			if (!requests[i])
				continue;
			assert_int_equal(driver_test(&e->d, requests[i], &done,
						 sizes ? sizes[i] : NULL),
				0);
			if (done)
				requests[i] = NULL;
			else
				left++;
		}
		assert_true(tern_clock_ns() < limit_ns);
	}
}

/* Sends PARTS parts of these sizes, which come in a single receive or in a group of
 * PARTS - 1 and one more, posted before or after the sends. */
static void move(struct link *l, unsigned round)
{
	static const size_t bytes[PARTS] = {8, PART, 4096, PART - 1};
	static const int tags[PARTS] = {7, 3, 5, 3};
	unsigned group = round % 2 ? PARTS - 1 : 1, count = 0;
	void *sends[PARTS], *receives[PARTS], *data[PARTS], *memory[PARTS];
	int sizes[PARTS][PARTS] = {{0}};

	for (unsigned half = 0; half < 2; half++) {
		for (unsigned i = 0; i < PARTS && half == round / 2 % 2; i++) {
			sends[i] = NULL;
			assert_int_equal(
				driver_send(&l->sender.d, l->sender.comm,
					(char *)data_of(&l->sender) + (size_t)i * PART,
					bytes[i], tags[i], l->sender.memory, &sends[i]),
				0);
			assert_non_null(sends[i]);
		}
		for (unsigned i = 0; i < PARTS && half != round / 2 % 2; count++) {
			unsigned n = TERN_MIN(group, PARTS - i);
			size_t rooms[PARTS];
			int own[PARTS];

			for (unsigned k = 0; k < n; k++) {
				/* Sends with one tag come in the order of the receives.
				 * */
				data[k] = (char *)data_of(&l->receiver) +
					  (size_t)(i + k) * PART;
				memory[k] = l->receiver.memory;
				rooms[k] = PART;
				own[k] = tags[i + k];
			}
			assert_int_equal(
				driver_receive(&l->receiver.d, l->receiver.comm, (int)n,
					data, rooms, own, memory, &receives[count]),
				0);
			assert_non_null(receives[count]);
			i += n;
		}
	}
	end_all(&l->receiver, receives, count, sizes);
	end_all(&l->sender, sends, PARTS, NULL);
	for (unsigned i = 0, r = 0; i < PARTS; r++)
		for (unsigned k = 0; k < group && i < PARTS; k++, i++)
			assert_int_equal(sizes[r][k], bytes[i]);
}

static void fill(char *data, unsigned round)
{
	for (unsigned i = 0; i < BYTES; i++)
		data[i] = (char)(i * 7 + i / 251 + round);
}

static void carry(struct link *l, unsigned round)
{
	static const size_t bytes[PARTS] = {8, PART, 4096, PART - 1};

	fill(l->sender.host, round);
	if (l->sender.kind != HOST)
		gpu_copy(l->sender.at, l->sender.host, true);
	move(l, round);
	if (l->receiver.kind != HOST)
		gpu_copy(l->receiver.at, l->receiver.host, false);
	for (unsigned i = 0; i < PARTS; i++)
		assert_memory_equal(l->receiver.host + (size_t)i * PART,
			l->sender.host + (size_t)i * PART, bytes[i]);
}

static unsigned copies(void)
{
	return fake_cuda_calls("memcpy_htod_async") +
	       fake_cuda_calls("memcpy_dtoh_async");
}

/* Carries data in all ways, and checks that the only copies are the test's own, and
 * that the driver is asked for nothing that might wait for a kernel which waits for a
 * transfer. */
static void carry_directly(struct link *l)
{
	unsigned own = (l->sender.kind != HOST) + (l->receiver.kind != HOST);
	unsigned before = copies(), locked = fake_cuda_calls("mem_host_register");
	unsigned events = fake_cuda_calls("event_create");

	for (unsigned round = 0; round < 4; round++)
		carry(l, round);
	assert_int_equal(copies(), before + 4 * own);
	assert_int_equal(fake_cuda_calls("mem_host_register"), locked);
	assert_int_equal(fake_cuda_calls("event_create"), events);
	assert_string_equal(warned, "");
}

static void carry_all_ways(unsigned version)
{
	static const enum kind kinds[][2] = {
		{DMA_BUF, DMA_BUF}, {DMA_BUF, HOST}, {HOST, DMA_BUF}, {GPU, GPU}};

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(kinds); i++) {
		struct link l;

		link_open(&l, version, kinds[i][0], kinds[i][1], NULL);
		assert_int_equal(add_memory(&l.sender), 0);
		assert_int_equal(add_memory(&l.receiver), 0);
		carry_directly(&l);
		link_close(&l);
	}
}

/* ---- the tests ---- */

static void test_gpu_memory_is_announced_where_every_rdma_device_takes_it(void **state)
{
	static const struct {
		const char *fabrics;
		unsigned device_count, no_dma_buf;
		bool peermem;
		int memory;
	} cases[] = {
		{"verbs", 2, 0, false, MEMORY_HOST | MEMORY_DMABUF},
		{"verbs", 2, 0, true, MEMORY_HOST | MEMORY_DMABUF | MEMORY_CUDA},
		{"verbs", 2, 1 << 1, false, MEMORY_HOST},
		{"verbs", 2, 3, true, MEMORY_HOST | MEMORY_CUDA},
		{"verbs", 0, 0, true, MEMORY_HOST}, {"tcp", 2, 0, true, MEMORY_HOST},
		{"auto", 2, 0, true, MEMORY_HOST}, /* not for a loopback address */
	};

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(cases); i++)
		for (unsigned version = 11; version <= 12; version++) {
			struct driver d;

			defaults(state);
			setenv("TERN_FABRICS", cases[i].fabrics, 1);
			verbs.device_count = cases[i].device_count;
			verbs.no_dma_buf = cases[i].no_dma_buf;
			verbs.peermem = cases[i].peermem;
			machine_open();
			init(&d, version);
			assert_int_equal(kinds_of(&d), cases[i].memory);
			assert_int_equal(driver_finalize(&d), 0);
			machine_close();
		}
}

static void test_gpu_memory_moves_without_copies(void **state)
{
	(void)state;
	for (unsigned version = 11; version <= 12; version++) {
		machine_open();
		carry_all_ways(version);
		machine_close();
	}
}

static void test_nvidia_peermem_takes_memory_by_address(void **state)
{
	struct link l;

	(void)state;
	cuda.dma_buf = false;
	cuda.unguarded = true;
	verbs.peermem = true;
	verbs.no_dma_buf = ~0u;
	machine_open();
	link_open(&l, 11, GPU, GPU, NULL);
	assert_int_equal(kinds_of(&l.sender.d), MEMORY_HOST | MEMORY_CUDA);
	assert_int_equal(add_memory(&l.sender), 0);
	assert_int_equal(add_memory(&l.receiver), 0);
	carry_directly(&l);
	link_close(&l);
	machine_close();
}

/* Neither end leaves the choice to auto://, which might take another fabric, now or after a
 * loss. */
static void test_an_automatic_connection_with_gpu_memory_goes_by_rdma(void **state)
{
	char handle[HANDLE_BYTES];
	void *listener;
	struct link l;

	(void)state;
	machine_open();
	link_open(&l, 11, DMA_BUF, DMA_BUF, "auto");
	assert_non_null(strstr(told, " by verbs"));
	setenv("TERN_FABRICS", "auto", 1);
	assert_int_equal(driver_listen(&l.receiver.d, handle, &listener), 0);
	assert_int_equal(strncmp(handle + ADDRESS, "verbs://", 8), 0);
	assert_int_equal(driver_close_listener(&l.receiver.d, listener), 0);
	assert_int_equal(add_memory(&l.sender), 0);
	assert_int_equal(add_memory(&l.receiver), 0);
	carry_directly(&l);
	link_close(&l);
	machine_close();
}

static void test_received_bytes_are_visible_before_nccl_flushes(void **state)
{
	struct link l;
	void *request = &request, *data;

	(void)state;
	cuda.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	machine_open();
	link_open(&l, 11, HOST, DMA_BUF, NULL);
	assert_int_equal(add_memory(&l.sender), 0);
	assert_int_equal(add_memory(&l.receiver), 0);
	carry_directly(&l);
	assert_true(fake_cuda_calls("flush_gpu_direct_rdma_writes") >= 4 * PARTS);
	data = data_of(&l.receiver);
	assert_int_equal(driver_flush(&l.receiver.d, l.receiver.comm, &data, &(int){8},
				 &l.receiver.memory, &request),
		0);
	assert_null(request);
	link_close(&l);
	machine_close();
}

/* ---- refusals ---- */

/* Lets one device refuse the memory of the sender, and gives it new memory, which the driver
 * would export again. */
static void refuse_on(struct link *l, unsigned device)
{
	fake_verbs_fail("reg_dmabuf_mr", device + 1, EINVAL);
	assert_int_equal(add_memory(&l->sender), NCCL_SYSTEM_ERROR);
	assert_null(l->sender.memory);
	gpu_free(l->sender.at);
	l->sender.at = gpu_alloc();
}

static void test_a_device_that_refuses_is_an_error_with_its_reason(void **state)
{
	struct link l;

	(void)state;
	machine_open();
	link_open(&l, 11, DMA_BUF, DMA_BUF, NULL);
	refuse_on(&l, 1);
	if (!strstr(warned, "cannot register 4194304 bytes of GPU memory at 0x") ||
		!strstr(warned, " by its dma-buf: fake_1: dma-buf: Invalid argument; "
				"nvidia-peermem: not available"))
		fail_msg("not a cause: %s", warned);
	refuse_on(&l, 0);
	if (!strstr(warned, "fake_0: dma-buf: Invalid") || strstr(warned, "fake_1"))
		fail_msg("blames another device: %s", warned);
	*warned = '\0';
	assert_int_equal(add_memory(&l.sender), 0);
	assert_int_equal(add_memory(&l.receiver), 0);
	carry_directly(&l);
	link_close(&l);
	machine_close();
}

static void test_memory_that_is_not_what_nccl_says_is_refused(void **state)
{
	struct link l;
	void *memory = &memory, *comm;
	const struct driver *d = &l.sender.d;
	int fds[2];

	(void)state;
	machine_open();
	link_open(&l, 11, GPU, GPU, NULL);
	comm = l.sender.comm;
	assert_int_equal(driver_register_gpu(d, comm, l.sender.host, BYTES, &memory),
		NCCL_SYSTEM_ERROR);
	assert_null(memory);
	assert_non_null(strstr(warned, ": Invalid argument"));
	assert_int_equal(
		driver_register_dma_buf(d, comm, data_of(&l.sender), BYTES, -1, &memory),
		NCCL_SYSTEM_ERROR);
	assert_non_null(strstr(warned, " by its dma-buf: Bad file descriptor"));
	assert_int_equal(pipe(fds), 0);
	assert_int_equal(driver_register_dma_buf(
				 d, comm, data_of(&l.sender), BYTES, fds[0], &memory),
		NCCL_SYSTEM_ERROR);
	assert_non_null(strstr(warned, " by its dma-buf: Invalid argument"));
	close(fds[0]);
	close(fds[1]);
	link_close(&l);
	machine_close();
}

static void test_a_gpu_that_does_not_see_the_bytes_is_refused(void **state)
{
	struct link l;

	(void)state;
	cuda.rdma_order = CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE;
	cuda.rdma_flush = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS;
	machine_open();
	link_open(&l, 11, HOST, DMA_BUF, NULL);
	assert_int_equal(add_memory(&l.receiver), NCCL_SYSTEM_ERROR);
	assert_non_null(strstr(warned, "the GPU does not see what RDMA devices write"));
	link_close(&l);
	machine_close();
}

/* ---- the rest ---- */

/* The other end may not use RDMA. */
static void test_gpu_memory_is_refused_over_tcp(void **state)
{
	struct link l;

	(void)state;
	machine_open();
	for (unsigned kind = GPU; kind <= DMA_BUF; kind++) {
		setenv("TERN_FABRICS", "verbs", 1);
		l = (struct link){0};
		end_open(&l.sender, 11, kind);
		setenv("TERN_FABRICS", "tcp", 1);
		end_open(&l.receiver, 11, HOST);
		link_join(&l, NULL);
		assert_non_null(strstr(told, " by tcp"));
		assert_int_equal(add_memory(&l.sender), NCCL_SYSTEM_ERROR);
		assert_null(l.sender.memory);
		if (!strstr(warned, ": the connection with ") ||
			!strstr(warned, " is by tcp, not by RDMA"))
			fail_msg("not a cause: %s", warned);
		link_close(&l);
	}
	machine_close();
}

/* NCCL gives a communicator up: its memory goes first, with requests on it. */
static void test_memory_is_free_after_an_abort(void **state)
{
	struct link l;
	unsigned registered;
	void *data, *request;

	(void)state;
	machine_open();
	link_open(&l, 11, DMA_BUF, DMA_BUF, NULL);
	assert_int_equal(add_memory(&l.receiver), 0);
	registered = fake_verbs_live().mrs;
	data = data_of(&l.receiver);
	assert_int_equal(
		driver_receive(&l.receiver.d, l.receiver.comm, 1, &data, &(size_t){PART},
			&(int){0}, &l.receiver.memory, &request),
		0);
	assert_int_equal(
		driver_deregister(&l.receiver.d, l.receiver.comm, l.receiver.memory), 0);
	/* Both devices have let go of the memory. */
	assert_true(fake_verbs_live().mrs <= registered - 2);
	l.receiver.memory = NULL;
	link_close(&l);
	machine_close();
}

/* These versions keep their context until the process ends, so this test is the last
 * one. */
static void test_gpu_memory_moves_in_the_older_versions(void **state)
{
	(void)state;
	machine_open();
	for (unsigned version = 8; version <= 10; version++) {
		struct driver d;

		init(&d, version);
		assert_int_equal(kinds_of(&d), MEMORY_HOST | MEMORY_DMABUF);
		carry_all_ways(version);
	}
}

#define TEST(name) cmocka_unit_test_setup(name, defaults)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_gpu_memory_is_announced_where_every_rdma_device_takes_it),
		TEST(test_gpu_memory_moves_without_copies),
		TEST(test_nvidia_peermem_takes_memory_by_address),
		TEST(test_an_automatic_connection_with_gpu_memory_goes_by_rdma),
		TEST(test_received_bytes_are_visible_before_nccl_flushes),
		TEST(test_a_device_that_refuses_is_an_error_with_its_reason),
		TEST(test_memory_that_is_not_what_nccl_says_is_refused),
		TEST(test_a_gpu_that_does_not_see_the_bytes_is_refused),
		TEST(test_gpu_memory_is_refused_over_tcp),
		TEST(test_memory_is_free_after_an_abort),
		TEST(test_gpu_memory_moves_in_the_older_versions),
	};

	setenv("TERN_NET_IFNAME", "=lo", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
