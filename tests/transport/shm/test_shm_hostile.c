/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of programs that connect to the shm fabric's socket and write to their shared
 * memory area without being a fabric: they violate the protocol, which must harm only
 * themselves.
 */
#include "tests/transport/shm/shm_end.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/rng.h"

static struct sockaddr_un raw_address(const char *name, socklen_t *bytes)
{
	struct sockaddr_un address;
	int length = shm_address(name, &address);

	assert_true(length > 0);
	*bytes = (socklen_t)length;
	return address;
}

static int raw_connect(struct end *end)
{
	socklen_t bytes;
	struct sockaddr_un address =
		raw_address(end->port->ops->lsn_address(end->lsn), &bytes);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
	return fd;
}

static struct shm_note raw_note(enum shm_note_type type)
{
	return (struct shm_note){.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = (uint16_t)type,
		.message_bytes = MESSAGE_BYTES};
}

/* A connected program after the handshake, which can write anything into its area. */
struct raw {
	int fd;
	struct shm_area *own;
	char *ring;
};

static int raw_receive(struct end *end, int socket, struct shm_note *note)
{
	struct tern_ipc_handle handle;
	int fd, status;

	for (;;) {
		status = shm_note_receive(socket, note, &handle, &fd);
		if (status == 1 && fd >= 0)
			close(fd);
		if (status != -EAGAIN && !(status == 1 && note->type == SHM_WAKE))
			return status;
		end_poll(end);
	}
}

static void raw_init(struct raw *raw, struct end *end)
{
	const struct shm_note hello = raw_note(SHM_HELLO);
	struct shm_note welcome;
	unsigned before = end->conn_count;
	void *base;
	int fd;

	raw->fd = raw_connect(end);
	assert_int_equal(shm_memory_new(shm_area_bytes(MESSAGE_BYTES), &fd, &base), 0);
	raw->own = base;
	raw->ring = (char *)base + SHM_RING_OFFSET;
	assert_int_equal(shm_note_send(raw->fd, &hello, fd), 0);
	close(fd);
	assert_int_equal(raw_receive(end, raw->fd, &welcome), 1);
	assert_int_equal(welcome.type, SHM_WELCOME);
	assert_int_equal(end->conn_count, before + 1);
}

static void raw_fini(struct raw *raw)
{
	munmap(raw->own, shm_area_bytes(MESSAGE_BYTES));
	close(raw->fd);
}

/* Checks that a correct peer can still connect and send. */
static void check_serves(struct end *end)
{
	struct end peer;

	end_init(&peer, false);
	end->conn_count = 0;
	end->message_count = end->bad_count = 0;
	end_connect(&peer, end->port->ops->lsn_address(end->lsn));
	UNTIL(&peer, end, peer.conn_count && end->conn_count);
	assert_int_equal(send_number(peer.conns[0], 0, 8), 0);
	UNTIL(&peer, end, end->message_count);
	assert_int_equal(end->bad_count, 0);
	end_fini(&peer);
	UNTIL(end, NONE, !end_has_conns(end));
}

static int raw_memory(off_t bytes, int seals)
{
	int fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* Returns the status with which a listener refuses a hello with this descriptor. */
static int refusal_of(struct end *end, const struct shm_note *hello, int fd)
{
	struct shm_note note;
	int socket = raw_connect(end), status;

	assert_int_equal(shm_note_send(socket, hello, fd), 0);
	if (fd >= 0)
		close(fd);
	status = raw_receive(end, socket, &note);
	close(socket);
	assert_int_equal(status, 1);
	assert_int_equal(note.type, SHM_REFUSE);
	return note.status;
}

static void test_areas_that_could_shrink_are_refused(void **state)
{
	const off_t bytes = (off_t)shm_area_bytes(MESSAGE_BYTES);
	const struct shm_note hello = raw_note(SHM_HELLO);
	struct end end;
	int pipes[2];

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	assert_int_equal(refusal_of(&end, &hello, raw_memory(bytes, 0)), -EPROTO);
	assert_int_equal(
		refusal_of(&end, &hello, raw_memory(bytes, F_SEAL_GROW)), -EPROTO);
	assert_int_equal(
		refusal_of(&end, &hello, raw_memory(bytes - 1, F_SEAL_SHRINK)), -EPROTO);
	assert_int_equal(refusal_of(&end, &hello, raw_memory(0, F_SEAL_SHRINK)), -EPROTO);
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTO);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(refusal_of(&end, &hello, pipes[0]), -EPROTO);
	close(pipes[1]);
	assert_int_equal(end.conn_count, 0);
	check_serves(&end);
	end_fini(&end);
}

static void test_hello_of_another_kind_is_refused_with_the_reason(void **state)
{
	struct shm_note hello = raw_note(SHM_HELLO);
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	hello.version++;
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTONOSUPPORT);
	hello = raw_note(SHM_HELLO);
	/* byte-swapped, as from an emulated big-endian machine. */
	hello.magic = __builtin_bswap32(SHM_NOTE_MAGIC);
	assert_int_equal(refusal_of(&end, &hello, -1), -EILSEQ);
	hello = raw_note(SHM_WELCOME);
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTO);
	hello = raw_note(SHM_HELLO);
	hello.message_bytes = UINT32_MAX;
	assert_int_equal(refusal_of(&end, &hello, -1), -EPROTO);
	check_serves(&end);
	end_fini(&end);
}

static void test_garbage_on_the_socket_does_no_harm(void **state)
{
	struct tern_rng rng = {.seed = 99};
	struct end end;
	int sockets[100];

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sockets); i++) {
		unsigned char data[96];
		size_t bytes = 1 + i % sizeof(data);

		for (size_t j = 0; j < sizeof(data); j++)
			data[j] = (unsigned char)tern_rng_next(&rng);
		sockets[i] = raw_connect(&end);
		/* Every third packet has the right size and magic number, so that the
		 * later checks are reached. */
		if (i % 3 == 0) {
			const uint32_t magic = SHM_NOTE_MAGIC;

			memcpy(data, &magic, 4);
			bytes = sizeof(struct shm_note);
		}
		if (i % 10 != 9) /* some connections send nothing at all */
			assert_int_equal(
				send(sockets[i], data, bytes, MSG_NOSIGNAL), bytes);
		end_poll(&end);
	}
	check_serves(&end);
	for (size_t i = 0; i < TERN_ARRAY_SIZE(sockets); i++)
		close(sockets[i]);
	check_serves(&end);
	assert_int_equal(shm_port_of(end.port)->conn_count, 0);
	end_fini(&end);
}

static void test_impossible_words_in_an_area_cut_the_conn(void **state)
{
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	for (int kind = 0; kind < 5; kind++) {
		/* The expected mark at position 0 of the area. */
		const uint64_t mark = shm_mark(0, 0);
		const uint32_t lengths[] = {MESSAGE_BYTES + 1, UINT32_MAX};
		struct raw raw;

		end.conn_count = end.closed_count = 0;
		raw_init(&raw, &end);
		if (kind < 2) {
			memcpy(raw.ring + 8, &lengths[kind], 4);
			memcpy(raw.ring, &mark, 8);
		} else if (kind == 2) {
			atomic_store(&raw.own->asked, 5);
		} else if (kind == 3) {
			atomic_store(&raw.own->asks[0].bytes, UINT64_MAX);
			atomic_store(&raw.own->asked, 1);
		} else {
			atomic_store(&raw.own->head, 8);
			while (send_number(end.conns[0], 0, 1000) == 0)
				;
		}
		UNTIL(&end, NONE, end.closed_count);
		assert_int_equal(end.closed_status, -EPROTO);
		raw_fini(&raw);
	}
	assert_int_equal(end.message_count, 0);
	check_serves(&end);
	end_fini(&end);
}

/* Writes the header of a ring record of `length` bytes at `position` of the area. */
static void raw_record(struct raw *raw, uint64_t position, uint32_t length)
{
	const uint64_t mark = shm_mark(0, position);

	memcpy(raw->ring + position + 8, &length, 4);
	memcpy(raw->ring + position, &mark, 8);
}

static void test_nothing_that_a_peer_writes_behind_its_goodbye_is_delivered(void **state)
{
	const struct shm_note bye = raw_note(SHM_BYE);
	struct end end;
	struct raw raw;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	raw_init(&raw, &end);
	while (end.port->ops->arm(end.port))
		end_poll(&end);
	raw_record(&raw, 0, 0);
	raw_record(&raw, 64, 0);
	assert_int_equal(shm_note_send(raw.fd, &bye, -1), 0);
	/* After a sleep, the sockets are read first: with a budget of 1 this poll reads
	 * only the goodbye from the socket. */
	assert_int_equal(end.port->ops->poll(end.port, 1), 1);
	assert_int_equal(shm_conn_of(end.conns[0])->state, SHM_PARTING);
	assert_int_equal(end.message_count, 0);
	/* The second record now extends beyond the end of data that the goodbye has
	 * announced. */
	raw_record(&raw, 64, 100);
	for (uint64_t at = 128; at < shm_ring_bytes(MESSAGE_BYTES); at += 64)
		raw_record(&raw, at, 0);
	UNTIL(&end, NONE, end.closed_count);
	assert_int_equal(end.message_count, 2);
	assert_int_equal(end.closed_status, -ECONNRESET);
	raw_fini(&raw);
	end_fini(&end);
}

static void test_unexpected_packets_cut_the_conn(void **state)
{
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	for (int kind = 0; kind < 4; kind++) {
		static const int types[] = {SHM_HELLO, SHM_SLAB, SHM_REFUSE, 99};
		struct shm_note note = raw_note((enum shm_note_type)types[kind]);
		struct raw raw;

		end.conn_count = end.closed_count = 0;
		raw_init(&raw, &end);
		assert_int_equal(shm_note_send(raw.fd, &note, raw.fd), 0);
		UNTIL(&end, NONE, end.closed_count);
		assert_int_equal(end.closed_status, -EPROTO);
		raw_fini(&raw);
	}
	check_serves(&end);
	end_fini(&end);
}

static void test_slabs_that_could_shrink_or_are_too_short_cut_the_conn(void **state)
{
	struct end end;
	struct tern_mem *target;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	target = new_mem(&end, false, 8192);
	for (int kind = 0; kind < 3; kind++) {
		const struct shm_region forged = {
			.kind = SHM_REGION_SLAB, .mem_id = 5, .bytes = 8192};
		struct shm_note note;
		struct tern_region region = {0};
		struct work work = new_work();
		struct raw raw;
		int fd = raw_memory(kind == 1 ? 4096 : 8192, kind ? F_SEAL_SHRINK : 0);

		end.conn_count = end.closed_count = 0;
		raw_init(&raw, &end);
		memcpy(&region, &forged, sizeof(forged));
		assert_int_equal(
			start_get(end.conns[0], &work, target, 8192, &region, 0), 0);
		assert_int_equal(raw_receive(&end, raw.fd, &note), 1);
		assert_int_equal(note.type, SHM_SLAB_ASK);
		assert_int_equal(note.mem_id, 5);
		note = raw_note(SHM_SLAB);
		note.mem_id = 5;
		assert_int_equal(shm_note_send(raw.fd, &note, fd), 0);
		UNTIL(&end, NONE, work.status != 1);
		assert_int_equal(work.status, kind == 2 ? 0 : -EPROTO);
		if (kind == 2)
			end.port->ops->conn_close(end.conns[0], false);
		UNTIL(&end, NONE, end.closed_count);
		assert_int_equal(end.closed_status, kind == 2 ? 0 : -EPROTO);
		close(fd);
		raw_fini(&raw);
	}
	put_mem(target, false);
	check_serves(&end);
	end_fini(&end);
}

static void check_that_it_cannot_be_changed_by(int fd, off_t bytes)
{
	void *map;

	assert_ptr_equal(
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(mprotect(map, 4096, PROT_READ | PROT_WRITE), -1);
	munmap(map, 4096);
	assert_int_equal(pwrite(fd, "overwritten", 11, 0), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(ftruncate(fd, bytes + 4096), -1);
	assert_int_equal(
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
}

/* Checks that a peer cannot change the memory through the descriptor that was passed to it,
 * nor through one that it opens by means of /proc/self/fd. */
static void check_that_it_cannot_be_changed(int passed, off_t bytes)
{
	char path[40];
	int fd;

	assert_int_equal(fcntl(passed, F_GETFL) & O_ACCMODE, O_RDONLY);
	check_that_it_cannot_be_changed_by(passed, bytes);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", passed);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		check_that_it_cannot_be_changed_by(fd, bytes);
		close(fd);
	}
}

/* Receives the next note (control message), which must have this type, and returns its
 * descriptor. */
static int passed_with(struct end *end, int socket, enum shm_note_type type)
{
	struct tern_ipc_handle handle;
	struct shm_note note;
	int passed = -1, status;

	do {
		end_poll(end);
		status = shm_note_receive(socket, &note, &handle, &passed);
	} while (status == -EAGAIN || (status == 1 && note.type == SHM_WAKE));
	assert_int_equal(status, 1);
	assert_int_equal(note.type, type);
	assert_true(passed >= 0);
	return passed;
}

static void test_peer_cannot_change_what_we_pass(void **state)
{
	const struct shm_note hello = raw_note(SHM_HELLO);
	const off_t bytes = (off_t)shm_area_bytes(MESSAGE_BYTES);
	struct shm_note ask = raw_note(SHM_SLAB_ASK);
	struct tern_mem *slab;
	struct end end;
	int socket, fd, passed;
	void *base;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	socket = raw_connect(&end);
	assert_int_equal(shm_memory_new((uint64_t)bytes, &fd, &base), 0);
	assert_int_equal(shm_note_send(socket, &hello, fd), 0);
	close(fd);
	passed = passed_with(&end, socket, SHM_WELCOME);
	check_that_it_cannot_be_changed(passed, bytes);
	close(passed);

	slab = new_mem(&end, true, 8192);
	strcpy(slab->base, "private");
	expose(end.conns[0], slab, 0, 8192);
	ask.mem_id = slab->id;
	assert_int_equal(shm_note_send(socket, &ask, -1), 0);
	passed = passed_with(&end, socket, SHM_SLAB);
	check_that_it_cannot_be_changed(passed, 8192);
	assert_string_equal(slab->base, "private");
	/* The owner can still write to the memory, and the peer sees the change. */
	strcpy(slab->base, "changed");
	assert_int_equal(pread(passed, base, 8, 0), 8);
	assert_string_equal(base, "changed");
	close(passed);
	put_mem(slab, true);
	munmap(base, (size_t)bytes);
	close(socket);
	end_fini(&end);
}

static void test_conn_that_ends_without_a_word_is_reset_if_its_process_lives(void **state)
{
	struct end end;
	struct raw raw;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	raw_init(&raw, &end);
	raw_fini(&raw);
	while (!end.closed_count)
		end_sleep(&end);
	assert_int_equal(end.closed_status, -ECONNRESET);
	end_fini(&end);
}

static void test_connect_waits_for_a_place_in_the_listeners_queue(void **state)
{
	struct sockaddr_un address;
	struct tern_ipc_handle handle;
	struct shm_note hello;
	socklen_t bytes;
	struct end end;
	char name[64];
	int listener, fillers[16], count = 0, accepted = -1, fd, status;

	(void)state;
	end_init(&end, false);
	snprintf(name, sizeof(name), "full-%d", (int)getpid());
	address = raw_address(name, &bytes);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(listener, 1), 0);
	for (;;) {
		assert_true(count < 16);
		fillers[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
		if (connect(fillers[count++], (struct sockaddr *)&address, bytes))
			break;
	}
	end_connect(&end, name);
	for (int i = 0; i < 5; i++)
		end_poll(&end);
	assert_int_equal(end.closed_count, 0);
	for (int i = 0; i + 1 < count; i++)
		close(accept(listener, NULL, NULL));
	while (accepted < 0) {
		end_sleep(&end);
		accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	}
	while ((status = shm_note_receive(accepted, &hello, &handle, &fd)) == -EAGAIN)
		end_poll(&end);
	assert_int_equal(status, 1);
	assert_int_equal(hello.type, SHM_HELLO);
	close(fd);
	close(accepted);
	UNTIL(&end, NONE, end.closed_count);
	assert_int_equal(end.closed_status, -ECONNRESET);
	for (int i = 0; i < count; i++)
		close(fillers[i]);
	close(listener);
	end_fini(&end);
}

static bool is_cut(int socket)
{
	char byte;

	return recv(socket, &byte, sizeof(byte), MSG_DONTWAIT) == 0;
}

/* Opens as many connections as the listener allows in the handshake, and sends nothing on
 * them. */
static void fill_with_silent(struct end *end, int *silent)
{
	for (unsigned i = 0; i < SHM_GREETING_MAX; i++) {
		silent[i] = raw_connect(end);
		end_poll(end);
	}
}

/* The listener has as many connections in the handshake as it may have, and all are silent.
 * They may still send their hello, so it closes most new ones, which must connect again.
 * But every fourth new connection takes the place of the oldest silent one, so that nobody
 * has to wait for ever. */
static void test_the_silent_give_way_to_one_newcomer_in_four(void **state)
{
	int silent[SHM_GREETING_MAX], newcomer[3];
	uint64_t start_ns = tern_clock_ns();
	struct end end;

	(void)state;
	end_init(&end, false);
	end_listen(&end);
	fill_with_silent(&end, silent);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(newcomer); i++) {
		newcomer[i] = raw_connect(&end);
		end_poll(&end);
	}
	if (tern_clock_ns() - start_ns < TERN_OVERDUE_NS) {
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(newcomer); i++)
			assert_true(is_cut(newcomer[i]));
		assert_false(is_cut(silent[0]));
	}
	check_serves(&end);
	assert_true(is_cut(silent[0]));
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(newcomer); i++)
		close(newcomer[i]);
	for (unsigned i = 0; i < SHM_GREETING_MAX; i++)
		close(silent[i]);
	end_fini(&end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_areas_that_could_shrink_are_refused),
		cmocka_unit_test(test_hello_of_another_kind_is_refused_with_the_reason),
		cmocka_unit_test(test_garbage_on_the_socket_does_no_harm),
		cmocka_unit_test(test_impossible_words_in_an_area_cut_the_conn),
		cmocka_unit_test(
			test_nothing_that_a_peer_writes_behind_its_goodbye_is_delivered),
		cmocka_unit_test(test_unexpected_packets_cut_the_conn),
		cmocka_unit_test(
			test_slabs_that_could_shrink_or_are_too_short_cut_the_conn),
		cmocka_unit_test(test_peer_cannot_change_what_we_pass),
		cmocka_unit_test(
			test_conn_that_ends_without_a_word_is_reset_if_its_process_lives),
		cmocka_unit_test(test_connect_waits_for_a_place_in_the_listeners_queue),
		cmocka_unit_test(test_the_silent_give_way_to_one_newcomer_in_four),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
