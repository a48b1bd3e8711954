/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network plug-in of NCCL, driven as NCCL's proxy thread drives it. Both ends are in this
 * process, or the other one is a child that is killed, stands still, or starts again.
 */
#include "tests/harness/cmocka.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "tests/plugins/kills.h"
#include "tests/plugins/nccl_driver.h"

#define LIMIT_NS (60 * TERN_NS_PER_S)
#define PART     (1u << 20)
#define PARTS    8u
#define DEPTH    32u

static const char *plugin;
static char warned[600]; /* the last warning that the plug-in has logged */

__attribute__((format(printf, 5, 6))) static void take_log(int level,
	unsigned long subsystems, const char *file, int line, const char *format, ...)
{
	va_list ap;

	(void)subsystems, (void)file, (void)line;
	if (level != NCCL_WARN)
		return;
	va_start(ap, format);
	vsnprintf(warned, sizeof(warned), format, ap);
	va_end(ap);
}

/* ---- connections ---- */

struct end {
	struct driver d;
	void *comm, *memory;
	char *data; /* DEPTH * PART bytes */
};

struct link {
	struct end sender, receiver;
};

static void init(struct driver *d, unsigned version)
{
	int count = 0;
	const char *why = driver_open(d, plugin, version);

	if (why)
		fail_msg("%s", why);
	assert_int_equal(driver_init(d, take_log), 0);
	assert_int_equal(driver_devices(d, &count), 0);
	assert_int_equal(count, 1);
}

static void add_memory(struct end *e)
{
	e->data = aligned_alloc(4096, DEPTH * PART);
	assert_non_null(e->data);
	memset(e->data, 0, DEPTH * PART);
	assert_int_equal(
		driver_register(&e->d, e->comm, e->data, DEPTH * PART, &e->memory), 0);
}

/* Calls connect() and accept() until both have a connection. */
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

static void open_link(struct link *l, unsigned version)
{
	char handle[HANDLE_BYTES];
	void *listener;

	*l = (struct link){0};
	init(&l->sender.d, version);
	init(&l->receiver.d, version);
	assert_int_equal(driver_listen(&l->receiver.d, handle, &listener), 0);
	join(l, handle, listener);
	assert_int_equal(driver_close_listener(&l->receiver.d, listener), 0);
	add_memory(&l->sender);
	add_memory(&l->receiver);
}

static void close_end(struct end *e, bool sends)
{
	assert_int_equal(driver_deregister(&e->d, e->comm, e->memory), 0);
	assert_int_equal(sends ? driver_close_send(&e->d, e->comm)
			       : driver_close_receive(&e->d, e->comm),
		0);
	free(e->data);
}

static void close_link(struct link *l)
{
	close_end(&l->sender, true);
	close_end(&l->receiver, false);
	assert_int_equal(driver_finalize(&l->sender.d), 0);
	assert_int_equal(driver_finalize(&l->receiver.d), 0);
}

/* ---- moving data ---- */

static void *send_part(struct end *e, unsigned at, size_t bytes, int tag)
{
	void *request = NULL;

	assert_int_equal(driver_send(&e->d, e->comm, e->data + (size_t)at * PART, bytes,
				 tag, e->memory, &request),
		0);
	assert_non_null(request);
	return request;
}

static void *receive_parts(
	struct end *e, const unsigned *at, const size_t *bytes, const int *tags, int n)
{
	void *data[PARTS], *memory[PARTS], *request = NULL;
	size_t sizes[PARTS];
	int all_tags[PARTS];

	for (int i = 0; i < n; i++) {
		data[i] = e->data + (size_t)at[i] * PART;
		memory[i] = e->memory;
		sizes[i] = bytes[i];
		all_tags[i] = tags[i];
	}
	assert_int_equal(driver_receive(&e->d, e->comm, n, data, sizes, all_tags, memory,
				 &request),
		0);
	assert_non_null(request);
	return request;
}

/* Asks for all requests in turn until they have ended. `sizes`: of the i-th, or NULL. */
static int end_all(struct end *e, void **requests, unsigned count, int (*sizes)[PARTS])
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;
	unsigned left = count;
	int r = 0, done;

	while (left > 0 && r == 0) {
		left = 0;
		for (unsigned i = 0; i < count && r == 0; i++) {
			if (!requests[i])
				continue;
			r = driver_test(
				&e->d, requests[i], &done, sizes ? sizes[i] : NULL);
			if (r == 0 && done)
				requests[i] = NULL;
			else
				left++;
		}
		assert_true(tern_clock_ns() < limit_ns);
	}
	return r;
}

static void fill(char *data, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i += 997)
		data[i] = (char)tern_rng_at(seed, i, 0, 0);
}

static bool is_filled(const char *data, size_t bytes, uint64_t seed)
{
	for (size_t i = 0; i < bytes; i += 997)
		if (data[i] != (char)tern_rng_at(seed, i, 0, 0))
			return false;
	return true;
}

/* Puts DEPTH parts into groups, in which tags differ. Returns the number of groups: group g has
 * the parts from first[g] on, up to first[g + 1]. */
static unsigned make_groups(uint64_t seed, unsigned *first, int *tags)
{
	unsigned groups = 0;

	for (unsigned i = 0; i < DEPTH; groups++) {
		unsigned n = (unsigned)(tern_rng_at(seed, i, 2, 0) % PARTS) + 1;

		n = TERN_MIN(n, DEPTH - i);
		for (unsigned k = 0; k < n; k++)
			tags[i + k] = (int)(groups * 100 + k);
		first[groups] = i;
		i += n;
		first[groups + 1] = i;
	}
	return groups;
}

/* Both ends have DEPTH requests at the same time, of any sizes, some of them grouped. */
static void one_round(struct link *l, uint64_t seed)
{
	static const size_t usual[] = {0, 1, 8, 4096, 65536, PART - 1, PART};
	void *sends[DEPTH], *receives[DEPTH] = {NULL};
	unsigned groups, first[DEPTH + 1] = {0};
	int sizes[DEPTH][PARTS], tags[DEPTH];
	size_t bytes[DEPTH], rooms[DEPTH];
	unsigned at[DEPTH], order[DEPTH];

	for (unsigned i = 0; i < DEPTH; i++) {
		uint64_t r = tern_rng_at(seed, i, 1, 0);

		bytes[i] = r % 3 ? usual[r / 3 % TERN_ARRAY_SIZE(usual)] : r / 3 % PART;
		rooms[i] = r % 5 ? PART : bytes[i];
		at[i] = order[i] = i;
		fill(l->sender.data + (size_t)i * PART, bytes[i], seed + i);
	}
	groups = make_groups(seed, first, tags);
	/* The sends of a group go in any order. */
	for (unsigned g = 0; g < groups; g++)
		for (unsigned i = first[g]; i < first[g + 1]; i++) {
			unsigned k = first[g] + (unsigned)(tern_rng_at(seed, i, 3, 0) %
							   (first[g + 1] - first[g]));
			unsigned other = order[i];

			order[i] = order[k];
			order[k] = other;
		}
	for (unsigned i = 0, g = 0; i < DEPTH; i++) {
		if (g < groups && tern_rng_at(seed, i, 4, 0) % 2 && first[g] <= i) {
			receives[g] = receive_parts(&l->receiver, at + first[g],
				rooms + first[g], tags + first[g],
				(int)(first[g + 1] - first[g]));
			g++;
		}
		sends[i] =
			send_part(&l->sender, order[i], bytes[order[i]], tags[order[i]]);
		if (i + 1 == DEPTH)
			for (; g < groups; g++)
				receives[g] = receive_parts(&l->receiver, at + first[g],
					rooms + first[g], tags + first[g],
					(int)(first[g + 1] - first[g]));
	}
	assert_int_equal(end_all(&l->receiver, receives, groups, sizes), 0);
	assert_int_equal(end_all(&l->sender, sends, DEPTH, NULL), 0);
	for (unsigned g = 0; g < groups; g++)
		for (unsigned i = first[g]; i < first[g + 1]; i++) {
			assert_int_equal(sizes[g][i - first[g]], bytes[i]);
			assert_true(is_filled(
				l->receiver.data + (size_t)i * PART, bytes[i], seed + i));
		}
}

static void test_data_arrives_in_all_versions(void **state)
{
	(void)state;
	for (unsigned version = 8; version <= 12; version++) {
		const char *name = NULL;
		int memory = 0, receives_max = 0;
		struct link l;

		open_link(&l, version);
		assert_int_equal(
			driver_properties(&l.sender.d, 0, &name, &memory, &receives_max),
			0);
		assert_string_equal(name, "lo");
		assert_int_equal(memory, MEMORY_HOST);
		assert_int_equal(receives_max, PARTS);
		assert_int_equal(
			driver_properties(&l.sender.d, 9, &name, &memory, &receives_max),
			NCCL_INVALID_ARGUMENT);
		for (uint64_t seed = 0; seed < 20; seed++)
			one_round(&l, seed * 1000 + version);
		close_link(&l);
	}
}

static void test_a_connection_has_32_requests(void **state)
{
	void *requests[DEPTH], *another = &another;
	struct link l;

	(void)state;
	open_link(&l, 11);
	for (unsigned i = 0; i < DEPTH; i++)
		requests[i] = send_part(&l.sender, i, 8, 0);
	assert_int_equal(driver_send(&l.sender.d, l.sender.comm, l.sender.data, 8, 0,
				 l.sender.memory, &another),
		0);
	assert_null(another); /* later */
	assert_int_equal(end_all(&l.sender, requests, DEPTH, NULL), 0);
	for (unsigned i = 0; i < DEPTH; i++)
		requests[i] = receive_parts(&l.receiver, &i, &(size_t){8}, &(int){0}, 1);
	assert_int_equal(end_all(&l.receiver, requests, DEPTH, NULL), 0);
	close_link(&l);
}

static void test_nothing_needs_to_be_flushed(void **state)
{
	void *request = &request;
	struct link l;

	(void)state;
	open_link(&l, 12);
	assert_int_equal(
		driver_flush(&l.receiver.d, l.receiver.comm, &(void *){l.receiver.data},
			&(int){8}, &l.receiver.memory, &request),
		0);
	assert_null(request);
	close_link(&l);
}

/* ---- mistakes ---- */

static void test_a_send_that_is_too_large_is_an_error_at_both_ends(void **state)
{
	void *receive, *send;
	struct link l;

	(void)state;
	open_link(&l, 11);
	receive =
		receive_parts(&l.receiver, &(unsigned){0}, &(size_t){100}, &(int){0}, 1);
	send = send_part(&l.sender, 0, PART, 0);
	assert_int_equal(end_all(&l.receiver, &receive, 1, NULL), NCCL_INVALID_USAGE);
	assert_non_null(strstr(warned, "1048576 bytes were sent, which is more than"));
	assert_int_equal(end_all(&l.sender, &send, 1, NULL), NCCL_INVALID_USAGE);
	one_round(&l, 5);
	close_link(&l);
}

static void test_memory_outside_of_its_registration_is_refused(void **state)
{
	void *request = &request;
	struct link l;

	(void)state;
	open_link(&l, 11);
	assert_int_equal(
		driver_send(&l.sender.d, l.sender.comm, l.sender.data + DEPTH * PART - 4,
			5, 0, l.sender.memory, &request),
		NCCL_INVALID_ARGUMENT);
	assert_int_equal(driver_send(&l.sender.d, l.sender.comm, l.sender.data - 1, 1, 0,
				 l.sender.memory, &request),
		NCCL_INVALID_ARGUMENT);
	assert_int_equal(driver_receive(&l.receiver.d, l.receiver.comm, 1,
				 &(void *){l.receiver.data}, &(size_t){(size_t)-1},
				 &(int){0}, &l.receiver.memory, &request),
		NCCL_INVALID_ARGUMENT);
	assert_null(request);
	close_link(&l);
}

static void test_a_foreign_handle_is_refused(void **state)
{
	char handle[HANDLE_BYTES] = "\x01\x02 another transport";
	void *comm = &comm;
	struct driver d;

	(void)state;
	init(&d, 11);
	assert_int_equal(driver_connect(&d, handle, &comm), NCCL_INVALID_ARGUMENT);
	assert_null(comm);
	assert_non_null(strstr(warned, "handle is not of Tern's plug-in"));
	assert_int_equal(driver_finalize(&d), 0);
}

static void test_nobody_connects_without_the_secret_of_the_handle(void **state)
{
	char handle[HANDLE_BYTES];
	void *listener, *comm = NULL;
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;
	struct driver d;
	int r = 0;

	(void)state;
	init(&d, 11);
	assert_int_equal(driver_listen(&d, handle, &listener), 0);
	handle[4] = handle[4] == 'a' ? 'b' : 'a'; /* the secret's first digit */
	while (r == 0 && !comm && tern_clock_ns() < limit_ns)
		r = driver_connect(&d, handle, &comm);
	assert_int_equal(r, NCCL_REMOTE_ERROR);
	assert_non_null(strstr(warned, "another secret"));
	assert_int_equal(driver_close_listener(&d, listener), 0);
	assert_int_equal(driver_finalize(&d), 0);
}

/* ---- the end ---- */

static unsigned count_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned count = 0;

	while (readdir(tasks))
		count++;
	closedir(tasks);
	return count;
}

static void test_three_communicators_one_after_the_other(void **state)
{
	unsigned before = count_threads();

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct link l;

		open_link(&l, 12);
		one_round(&l, i);
		close_link(&l);
		assert_int_equal(count_threads(), before);
	}
}

static void test_finalize_may_come_without_a_context(void **state)
{
	struct driver d;

	(void)state;
	init(&d, 11);
	assert_int_equal(driver_finalize(&d), 0);
	d.ctx = NULL;
	assert_int_equal(driver_finalize(&d), 0);
}

/* NCCL gives a set-up up: nobody has accepted, or closed anything, and more connections come. */
static void test_finalize_ends_what_was_not_closed(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 20; i++) {
		char handles[4][HANDLE_BYTES];
		uint64_t limit_ns = tern_clock_ns() + (i + 1) * TERN_NS_PER_MS;
		struct driver sender, receiver;
		void *listener, *comm;

		init(&sender, 11);
		init(&receiver, 11);
		assert_int_equal(driver_listen(&receiver, handles[0], &listener), 0);
		for (unsigned k = 1; k < 4; k++)
			memcpy(handles[k], handles[0], HANDLE_BYTES);
		while (tern_clock_ns() < limit_ns)
			for (unsigned k = 0; k < 4; k++)
				driver_connect(&sender, handles[k], &comm);
		if (i % 2)
			driver_accept(&receiver, listener, &comm);
		assert_int_equal(driver_finalize(&receiver), 0);
		assert_int_equal(driver_finalize(&sender), 0);
	}
}

/* NCCL gives a communicator up: its memory goes first, with requests on it. */
static void test_memory_is_free_after_an_abort(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 10; i++) {
		unsigned all[DEPTH];
		struct link l;

		open_link(&l, 11);
		for (unsigned k = 0; k < DEPTH; k++) {
			all[k] = k;
			if (i % 2)
				send_part(&l.sender, k, PART, (int)k);
			receive_parts(
				&l.receiver, &all[k], &(size_t){PART}, &(int){(int)k}, 1);
		}
		assert_int_equal(driver_deregister(&l.receiver.d, l.receiver.comm,
					 l.receiver.memory),
			0);
		memset(l.receiver.data, 0x55, DEPTH * PART);
		usleep(2000);
		for (size_t k = 0; k < DEPTH * PART; k++)
			assert_int_equal(l.receiver.data[k], 0x55);
		assert_int_equal(driver_close_receive(&l.receiver.d, l.receiver.comm), 0);
		free(l.receiver.data);
		close_end(&l.sender, true);
		assert_int_equal(driver_finalize(&l.sender.d), 0);
		assert_int_equal(driver_finalize(&l.receiver.d), 0);
	}
}

struct registrar {
	struct end *end;
	_Atomic bool stop;
	unsigned count;
};

static void *register_again_and_again(void *arg)
{
	struct registrar *r = arg;
	static char other[65536];

	while (!atomic_load(&r->stop)) {
		void *memory;

		if (driver_register(&r->end->d, r->end->comm, other, sizeof(other),
			    &memory) != 0 ||
			driver_deregister(&r->end->d, r->end->comm, memory) != 0)
			return NULL;
		r->count++;
	}
	return r;
}

static void test_another_thread_may_register_memory(void **state)
{
	struct registrar r = {0};
	pthread_t thread;
	struct link l;
	void *good;

	(void)state;
	open_link(&l, 11);
	r.end = &l.receiver;
	assert_int_equal(pthread_create(&thread, NULL, register_again_and_again, &r), 0);
	for (uint64_t seed = 0; seed < 10; seed++)
		one_round(&l, seed);
	atomic_store(&r.stop, true);
	pthread_join(thread, &good);
	assert_non_null(good);
	assert_true(r.count > 0);
	close_link(&l);
}

/* ---- other processes ---- */

/* Part number i of a process that sends, and how many bytes of it the process sends. */
static void fill_part(struct end *e, unsigned i)
{
	fill(e->data + (size_t)(i % DEPTH) * PART, PART, i % DEPTH);
}

static size_t part_bytes(unsigned i)
{
	return i % 3 ? PART : 100;
}

/* Sends until that fails. Returns the result; `sent` parts were sent before. */
static int send_until_error(struct end *e, unsigned *sent)
{
	int r = 0;

	for (unsigned i = 0; i < DEPTH; i++)
		fill_part(e, i);
	for (*sent = 0; r == 0; *sent += r == 0) {
		void *request = NULL;

		r = driver_send(&e->d, e->comm, e->data + (size_t)(*sent % DEPTH) * PART,
			part_bytes(*sent), 0, e->memory, &request);
		if (r == 0)
			r = end_all(e, &request, 1, NULL);
	}
	return r;
}

/* Receives the next part, and checks its bytes. */
static int receive_one(struct end *e, unsigned *received)
{
	void *data = e->data, *memory = e->memory, *request = NULL;
	size_t bytes = PART;
	int tag = 0, sizes[1][PARTS], r;

	r = driver_receive(&e->d, e->comm, 1, &data, &bytes, &tag, &memory, &request);
	if (r == 0)
		r = end_all(e, &request, 1, sizes);
	if (r != 0)
		return r;
	assert_int_equal(sizes[0][0], part_bytes(*received));
	assert_true(is_filled(e->data, part_bytes(*received), *received % DEPTH));
	++*received;
	return 0;
}

static int receive_until_error(struct end *e, unsigned *received)
{
	int r = 0;

	*received = 0;
	while (r == 0)
		r = receive_one(e, received);
	return r;
}

/* A listener, which all others may connect to again and again. */
struct place {
	struct driver d;
	void *listener;
	char handle[HANDLE_BYTES];
};

static void open_place(struct place *p, unsigned version)
{
	init(&p->d, version);
	assert_int_equal(driver_listen(&p->d, p->handle, &p->listener), 0);
}

static void close_place(struct place *p)
{
	assert_int_equal(driver_close_listener(&p->d, p->listener), 0);
	assert_int_equal(driver_finalize(&p->d), 0);
}

static void accept_one(struct place *p, struct end *e)
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;

	*e = (struct end){.d = p->d};
	while (!e->comm && tern_clock_ns() < limit_ns)
		assert_int_equal(driver_accept(&p->d, p->listener, &e->comm), 0);
	assert_non_null(e->comm);
	add_memory(e);
}

static void connect_to(const struct driver *d, char *handle, struct end *e)
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;

	*e = (struct end){.d = *d};
	while (!e->comm && tern_clock_ns() < limit_ns)
		assert_int_equal(driver_connect(d, handle, &e->comm), 0);
	assert_non_null(e->comm);
	add_memory(e);
}

/* The other process: reads a handle from stdin, connects to it, and sends without end. */
static int be_sender(unsigned version)
{
	char handle[HANDLE_BYTES];
	struct driver d;
	struct end e;
	unsigned sent;

	if (read(0, handle, sizeof(handle)) != sizeof(handle))
		return 1;
	init(&d, version);
	connect_to(&d, handle, &e);
	return send_until_error(&e, &sent);
}

/* The other process: listens, writes its handle to stdout, and receives without end. */
static int be_receiver(unsigned version)
{
	unsigned received;
	struct place p;
	struct end e;

	open_place(&p, version);
	if (write(1, p.handle, HANDLE_BYTES) != HANDLE_BYTES)
		return 1;
	accept_one(&p, &e);
	return receive_until_error(&e, &received);
}

/* Starts the other process. Its stdin and its stdout are one socket, whose other end is *fd. */
static pid_t start_child(const char *part, unsigned version, int *fd)
{
	char number[8];
	int pair[2];
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	snprintf(number, sizeof(number), "%u", version);
	pid = fork();
	if (pid == 0) {
		dup2(pair[1], 0);
		dup2(pair[1], 1);
		for (int other = 3; other < 200; other++)
			close(other);
		execl("/proc/self/exe", "test_nccl", plugin, part, number, NULL);
		_exit(127);
	}
	close(pair[1]);
	*fd = pair[0];
	return pid;
}

/* Starts a process that sends to this one. */
static pid_t start_sender(struct place *p, struct end *e)
{
	int fd;
	pid_t pid = start_child("sender", p->d.version, &fd);

	assert_int_equal(write(fd, p->handle, HANDLE_BYTES), HANDLE_BYTES);
	close(fd);
	accept_one(p, e);
	return pid;
}

/* Starts a process that receives from this one. */
static pid_t start_receiver(struct place *p, struct end *e)
{
	char handle[HANDLE_BYTES];
	int fd;
	pid_t pid = start_child("receiver", p->d.version, &fd);

	assert_int_equal(read(fd, handle, HANDLE_BYTES), HANDLE_BYTES);
	close(fd);
	connect_to(&p->d, handle, e);
	return pid;
}

/* Kills a process that has not ended by itself. */
static void end_child(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void *signal_later(void *arg)
{
	const int *what = arg;

	usleep((useconds_t)what[2]);
	kill(what[0], what[1]);
	return NULL;
}

/* The last warning is of this process, and names that one. */
static void is_named(bool sends, pid_t pid)
{
	char name[32];

	snprintf(name, sizeof(name), ", pid %d (", (int)pid);
	if (!strstr(warned, sends ? "a send: " : "a receive: ") || !strstr(warned, name))
		fail_msg("not a cause: %s", warned);
}

/* Lets a child send or receive until it gets the signal. Expects an error that names it,
 * now and from then on. The connection stays open. */
static pid_t lose_child(
	struct place *p, struct end *e, bool sends, int number, int after_us)
{
	pid_t pid = sends ? start_receiver(p, e) : start_sender(p, e);
	int what[] = {pid, number, after_us};
	unsigned count;
	pthread_t thread;

	*warned = '\0';
	assert_int_equal(pthread_create(&thread, NULL, signal_later, what), 0);
	assert_int_equal(
		sends ? send_until_error(e, &count) : receive_until_error(e, &count),
		NCCL_REMOTE_ERROR);
	pthread_join(thread, NULL);
	is_named(sends, pid);
	end_child(pid);
	*warned = '\0';
	assert_int_equal(
		sends ? send_until_error(e, &count) : receive_until_error(e, &count),
		NCCL_REMOTE_ERROR);
	assert_int_equal(count, 0);
	is_named(sends, pid);
	return pid;
}

static void test_a_rank_that_is_killed_is_named_and_may_start_again(void **state)
{
	unsigned count = kills_count();
	struct place p;
	struct end e;

	(void)state;
	open_place(&p, 11);
	for (unsigned i = 0; i < count; i++) {
		lose_child(&p, &e, i % 2, SIGKILL,
			(int)(tern_rng_at(kills_seed(), i, 0, 0) % 30000));
		close_end(&e, i % 2);
	}
	kills_tell(count);
	close_place(&p);
}

/* The communicator of the former process has failed, and is closed after the new one was
 * made. */
static void test_a_rank_that_was_started_again_joins_a_new_communicator(void **state)
{
	(void)state;
	for (unsigned sends = 0; sends < 2; sends++) {
		unsigned received = 0, count;
		struct place old, new;
		struct end failed, e, to;
		pid_t former, sender, receiver;

		open_place(&old, 12);
		former = lose_child(&old, &failed, sends, SIGKILL, 10000);
		open_place(&new, 12);
		sender = start_sender(&new, &e);
		while (received < 2 * DEPTH)
			assert_int_equal(receive_one(&e, &received), 0);
		receiver = start_receiver(&new, &to);
		for (unsigned i = 0; i < DEPTH; i++)
			fill_part(&to, i);
		for (unsigned i = 0; i < 2 * DEPTH; i++) {
			void *request = send_part(&to, i % DEPTH, part_bytes(i), 0);

			assert_int_equal(end_all(&to, &request, 1, NULL), 0);
		}
		*warned = '\0';
		assert_int_equal(sends ? send_until_error(&failed, &count)
				       : receive_until_error(&failed, &count),
			NCCL_REMOTE_ERROR);
		is_named(sends, former);
		close_end(&failed, sends);
		close_place(&old);
		assert_int_equal(receive_one(&e, &received), 0);
		end_child(sender);
		end_child(receiver);
		close_end(&e, false);
		close_end(&to, true);
		close_place(&new);
	}
}

static void test_a_rank_that_stands_still_is_named(void **state)
{
	(void)state;
	for (unsigned sends = 0; sends < 2; sends++) {
		struct place p;
		struct end e;

		setenv("TERN_DEAD_TIMEOUT", "1", 1);
		open_place(&p, 12);
		unsetenv("TERN_DEAD_TIMEOUT");
		lose_child(&p, &e, sends, SIGSTOP, 20000);
		close_end(&e, sends);
		close_place(&p);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_data_arrives_in_all_versions),
		cmocka_unit_test(test_a_connection_has_32_requests),
		cmocka_unit_test(test_nothing_needs_to_be_flushed),
		cmocka_unit_test(test_a_send_that_is_too_large_is_an_error_at_both_ends),
		cmocka_unit_test(test_memory_outside_of_its_registration_is_refused),
		cmocka_unit_test(test_a_foreign_handle_is_refused),
		cmocka_unit_test(test_nobody_connects_without_the_secret_of_the_handle),
		cmocka_unit_test(test_three_communicators_one_after_the_other),
		cmocka_unit_test(test_finalize_may_come_without_a_context),
		cmocka_unit_test(test_finalize_ends_what_was_not_closed),
		cmocka_unit_test(test_memory_is_free_after_an_abort),
		cmocka_unit_test(test_another_thread_may_register_memory),
		cmocka_unit_test(test_a_rank_that_is_killed_is_named_and_may_start_again),
		cmocka_unit_test(
			test_a_rank_that_was_started_again_joins_a_new_communicator),
		cmocka_unit_test(test_a_rank_that_stands_still_is_named),
	};

	if (argc < 2)
		return 2;
	plugin = argv[1];
	setenv("TERN_NET_IFNAME", "=lo", 1);
	if (argc == 4) {
		unsigned version = (unsigned)atoi(argv[3]);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return strcmp(argv[2], "sender") == 0 ? be_sender(version)
						      : be_receiver(version);
	}
	if (argc == 3)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
