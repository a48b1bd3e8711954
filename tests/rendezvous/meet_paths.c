/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of all ways in which a tensor can be transferred: sizes around the threshold,
 * receive posted first and send posted first, into the caller's memory, into the pool and
 * in place, from pool memory and from wrapped user memory. Dtype and shape must be right,
 * and so must the true size if the receive's memory is too small.
 */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

enum order { RECEIVER_FIRST, SENDER_FIRST, TOGETHER, ORDER_COUNT };

static const uint64_t sizes[] = {0, 1, 7, 64, MEET_EAGER - 1, MEET_EAGER, MEET_EAGER + 1,
	65536, 1u << 20, (3u << 20) + 5};

/* Sends one tensor from `from` to the other end. */
static void carry(struct meet *meet, enum side_name from, enum order order,
	unsigned flags, const struct tern_buf *data, const struct tern_buf *room,
	uint64_t seed)
{
	struct end *source = &meet->ends[from], *sink = &meet->ends[!from];
	struct call send = {0}, recv = {0};

	if (order != SENDER_FIRST)
		assert_int_equal(call_recv(&recv, sink, seed, 7, room, flags), 0);
	if (order == RECEIVER_FIRST)
		meet_settle(meet);
	assert_int_equal(call_send(&send, source, seed, 7, data, 0), 0);
	if (order == SENDER_FIRST) {
		meet_settle(meet);
		assert_int_equal(call_recv(&recv, sink, seed, 7, room, flags), 0);
	}
	MEET_PUMP(meet, call_over(&recv));
	call_check(&recv, data->bytes, seed);
	if (flags == 0) {
		assert_false(recv.req.peeked);
		if (data->bytes)
			assert_ptr_equal(recv.req.data, tern_buf_ptr(room));
	} else {
		if (flags == TERN_RECV_ALLOC)
			assert_false(recv.req.peeked);
		if (!recv.req.peeked) {
			assert_int_equal(recv.req.buf.bytes, data->bytes);
			assert_ptr_equal(tern_buf_ptr(&recv.req.buf), recv.req.data);
		}
		tern_release(&recv.req);
	}
	MEET_PUMP(meet, call_over(&send));
	assert_int_equal(send.req.status, 0);
}

static void carry_all(
	const struct instance *instance, unsigned flags, enum memory from, enum memory to)
{
	struct meet *meet = meet_new(instance);
	struct tern_pool_stats stats;
	uint64_t seed = 100;

	for (unsigned order = 0; order < ORDER_COUNT; order++) {
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
			enum side_name name = i % 2 ? A : B;
			struct tern_buf data, room;

			data = end_data(&meet->ends[name], from, sizes[i], ++seed);
			room = end_memory(&meet->ends[!name], to, sizes[i]);
			carry(meet, name, order, flags, &data, flags ? NULL : &room,
				seed);
		}
	}
	meet_settle(meet);
	for (unsigned i = 0; i < 2; i++) {
		tern_pool_stats(meet->ends[i].pool, &stats);
		assert_int_equal(stats.used_count, 0);
	}
	meet_free(meet);
}

static void test_every_size_reaches_the_callers_room(const struct instance *instance)
{
	carry_all(instance, 0, SLAB, SLAB);
}

static void test_every_size_reaches_a_room_of_user_memory(const struct instance *instance)
{
	carry_all(instance, 0, USER, USER);
}

static void test_every_size_reaches_a_room_of_brief_memory(
	const struct instance *instance)
{
	carry_all(instance, 0, BRIEF, BRIEF);
}

static void test_every_size_is_allocated_for(const struct instance *instance)
{
	carry_all(instance, TERN_RECV_ALLOC, SLAB, SLAB);
}

static void test_user_memory_is_allocated_for(const struct instance *instance)
{
	carry_all(instance, TERN_RECV_ALLOC, USER, SLAB);
}

static void test_every_size_is_peeked_or_allocated(const struct instance *instance)
{
	carry_all(instance, TERN_RECV_PEEK, SLAB, SLAB);
}

static void test_user_memory_is_peeked_or_allocated(const struct instance *instance)
{
	carry_all(instance, TERN_RECV_PEEK, USER, SLAB);
}

static void carry_around(struct meet *meet, enum memory from)
{
	static const uint64_t sizes_around[] = {1, 1024, 1025, 4096, 8192, 8193};

	for (unsigned order = 0; order < ORDER_COUNT; order++) {
		for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes_around); i++) {
			uint64_t bytes = sizes_around[i], seed = from * 100 + i;
			struct tern_buf data =
				end_data(&meet->ends[A], from, bytes, seed);
			struct tern_buf room = end_memory(&meet->ends[B], SLAB, bytes);

			carry(meet, A, order, 0, &data, &room, seed);
		}
	}
}

/* On shm the receiver reads the tensor itself if it has more than 1 KiB and is in pool
 * memory (shared memory), or more than 8 KiB and is in user memory. */
static void test_the_fabrics_own_thresholds(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct tern_peer_stats stats;
	struct meet *meet;

	opts.eager_bytes = 0;
	meet = meet_new_with(instance, &opts, &opts);
	carry_around(meet, SLAB);
	carry_around(meet, USER);
	tern_peer_stats(meet->ends[A].peer, &stats);
	if (strncmp(instance->fabric, "shm", 3) == 0 && !instance->gpus) {
		assert_int_equal(stats.eager_count, ORDER_COUNT * (2 + 5));
		assert_int_equal(stats.get_count, ORDER_COUNT * (4 + 1));
	}
	meet_free(meet);
}

static void test_a_room_larger_than_the_data_keeps_its_rest(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		for (unsigned order = 0; order < ORDER_COUNT; order++) {
			uint64_t rest = order * 50000 + 1;
			struct tern_buf data = end_data(a, SLAB, sizes[i], 5);
			struct tern_buf room = end_data(b, SLAB, sizes[i] + rest, 6);

			struct tern_buf after = buf_part(&room, sizes[i], rest);

			carry(meet, A, order, 0, &data, &room, 5);
			assert_true(buf_holds_from(&after, 6, sizes[i]));
		}
	}
	meet_free(meet);
}

static void test_a_room_too_small_is_told_to_both_ends(const struct instance *instance)
{
	static const uint64_t rooms[] = {
		0, 1, 100, MEET_EAGER - 2, MEET_EAGER, 60000, 900000};
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	uint64_t key = 1;

	for (unsigned i = 0; i < TERN_ARRAY_SIZE(rooms); i++) {
		for (unsigned j = 0; j < TERN_ARRAY_SIZE(sizes); j++) {
			struct call send = {0}, recv = {0};
			struct tern_buf data, room, slack;
			struct tern_shape shape = tern_shape_1d(TERN_U8, sizes[j]);
			enum order order = (i + j) % ORDER_COUNT;

			if (sizes[j] <= rooms[i])
				continue;
			data = end_data(a, SLAB, sizes[j], 5);
			slack = end_data(b, SLAB, rooms[i] + 4096, 6);
			room = buf_part(&slack, 0, rooms[i]);
			if (order != SENDER_FIRST)
				assert_int_equal(
					call_recv(&recv, b, ++key, 0, &room, 0), 0);
			if (order == RECEIVER_FIRST)
				meet_settle(meet);
			assert_int_equal(
				call_send(&send, a, order == SENDER_FIRST ? ++key : key,
					0, &data, 0),
				0);
			if (order == SENDER_FIRST) {
				meet_settle(meet);
				assert_int_equal(
					call_recv(&recv, b, key, 0, &room, 0), 0);
			}
			MEET_PUMP(meet, call_over(&send) && call_over(&recv));
			assert_int_equal(recv.req.status, -EMSGSIZE);
			/* A small send may end when its message has left, before the
			 * receiver can report a status. */
			if (sizes[j] > MEET_EAGER)
				assert_int_equal(send.req.status, -EMSGSIZE);
			else
				assert_true(send.req.status == 0 ||
					    send.req.status == -EMSGSIZE);
			assert_int_equal(recv.req.bytes, sizes[j]);
			assert_true(tern_shape_equal(&recv.req.shape, &shape));
			slack = buf_part(&slack, rooms[i], 4096);
			assert_true(buf_holds_from(&slack, 6, rooms[i]));
		}
	}
	meet_free(meet);
}

static void test_dtype_and_shape_arrive(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 300000, 3);
	struct tern_buf room = end_memory(b, SLAB, 300000);
	uint64_t step = 0;

	/* Uses one key for all, with another dtype and shape at every step. */
	for (uint32_t dtype = TERN_U8; dtype < TERN_DTYPE_COUNT; dtype++) {
		for (uint32_t rank = 0; rank <= TERN_RANK_MAX; rank++) {
			struct tern_shape shape = {.dtype = dtype, .rank = rank};
			struct call send = {0}, recv = {0};
			struct tern_tensor tensor;
			struct tern_buf came;
			uint64_t bytes;

			for (uint32_t d = 0; d < rank; d++)
				shape.dims[d] = (step + d) % 4 + (d != 3 || step % 5);
			assert_int_equal(tern_shape_bytes(&shape, &bytes), 0);
			if (bytes > data.bytes) {
				shape.dims[0] = 1;
				shape.dims[1] = 1;
				assert_int_equal(tern_shape_bytes(&shape, &bytes), 0);
			}
			assert_true(bytes <= data.bytes);
			tensor = (struct tern_tensor){buf_part(&data, 0, bytes), shape};
			call_init(&send, a);
			if (step % 2)
				assert_int_equal(
					call_recv(&recv, b, 1, step, &room, 0), 0);
			assert_int_equal(call_send_as(&send, a->channel, 1, step, &tensor,
						 NULL, 0),
				0);
			if (step % 2 == 0)
				assert_int_equal(
					call_recv(&recv, b, 1, step, &room, 0), 0);
			MEET_PUMP(meet, call_over(&send) && call_over(&recv));
			assert_int_equal(recv.req.status, 0);
			assert_int_equal(recv.req.bytes, bytes);
			assert_int_equal(recv.req.shape.dtype, dtype);
			assert_true(tern_shape_equal(&recv.req.shape, &shape));
			came = buf_part(&room, 0, bytes);
			assert_true(buf_holds(&came, 3));
			step++;
		}
	}
	meet_free(meet);
}

static void test_a_tensor_that_is_not_one_is_einval(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A];
	struct tern_buf data = end_data(a, SLAB, 1000, 3);
	struct tern_tensor tensor = {data, tern_shape_1d(TERN_F32, 250)};
	struct call call = {0};

	call_init(&call, a);
	tensor.shape.dims[0] = 251;
	assert_int_equal(
		call_send_as(&call, a->channel, 1, 1, &tensor, NULL, 0), -EINVAL);
	tensor.shape.dims[0] = 249;
	assert_int_equal(
		call_send_as(&call, a->channel, 1, 1, &tensor, NULL, 0), -EINVAL);
	tensor.shape = (struct tern_shape){.dtype = TERN_DTYPE_COUNT};
	assert_int_equal(
		call_send_as(&call, a->channel, 1, 1, &tensor, NULL, 0), -EINVAL);
	tensor.shape = (struct tern_shape){.dtype = TERN_U8, .rank = TERN_RANK_MAX + 1};
	assert_int_equal(
		call_send_as(&call, a->channel, 1, 1, &tensor, NULL, 0), -EINVAL);
	tensor.shape = tern_shape_1d(TERN_U8, 1000);
	tensor.buf.offset = tern_mem_bytes(data.mem) - 999;
	assert_int_equal(
		call_send_as(&call, a->channel, 1, 1, &tensor, NULL, 0), -EINVAL);
	assert_int_equal(
		call_recv_as(&call, a->channel, 1, 1, &tensor.buf, NULL, 0), -EINVAL);
	tensor.buf.offset = UINT64_MAX - 500;
	assert_int_equal(
		call_send_as(&call, a->channel, 1, 1, &tensor, NULL, 0), -EINVAL);
	meet_settle(meet);
	/* Every call was refused, so done() must not run. */
	assert_int_equal(call.done_count, 0);
	meet_free(meet);
}

static void test_an_alloc_that_can_never_fit_is_enobufs(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, MEET_SLAB_BYTES + (1u << 20), 3);
	struct call send = {0}, recv = {0};

	assert_int_equal(call_recv(&recv, b, 1, 1, NULL, TERN_RECV_ALLOC), 0);
	assert_int_equal(call_send(&send, a, 1, 1, &data, 0), 0);
	MEET_PUMP(meet, call_over(&send) && call_over(&recv));
	assert_int_equal(recv.req.status, -ENOBUFS);
	assert_true(send.req.status < 0);
	assert_int_equal(recv.req.bytes, data.bytes);
	meet_free(meet);
}

/* Index of the first call that has ended and was not released yet; `count` if there is
 * none. */
static unsigned first_ready(
	const struct call *calls, const bool *released, unsigned count)
{
	unsigned i = 0;

	while (i < count && (released[i] || !call_over(&calls[i])))
		i++;
	return i;
}

static void test_an_alloc_waits_for_room_in_its_pool(const struct instance *instance)
{
	/* The pool can hold 4 of these tensors. */
	enum { COUNT = 12, BYTES = MEET_SLAB_BYTES / 16 * 15 };
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, BYTES, 3);
	static struct call send[COUNT], recv[COUNT], small[2];
	bool released[COUNT] = {0};

	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(call_recv(&recv[i], b, i, 1, NULL, TERN_RECV_ALLOC), 0);
		assert_int_equal(call_send(&send[i], a, i, 1, &data, 0), 0);
	}
	for (unsigned count = 0; count < COUNT; count++) {
		unsigned next;

		MEET_PUMP(meet, (next = first_ready(recv, released, COUNT)) < COUNT);
		call_check(&recv[next], BYTES, 3);
		/* While receives wait for the pool, control messages and transfers that
		 * need no memory of it go on. */
		if (count == 0) {
			struct tern_buf room = end_memory(b, SLAB, 100);
			struct tern_buf little = buf_part(&data, 0, 100);

			assert_int_equal(call_recv(&small[1], b, 99, 1, &room, 0), 0);
			assert_int_equal(call_send(&small[0], a, 99, 1, &little, 0), 0);
			MEET_PUMP(meet, calls_over(small, 2));
			call_check(&small[1], 100, 3);
		}
		tern_release(&recv[next].req);
		released[next] = true;
	}
	MEET_PUMP(meet, calls_over(send, COUNT));
	meet_free(meet);
}

static void test_what_is_peeked_stays_until_it_is_released(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 1u << 20, 3);
	struct call send = {0}, recv = {0};

	assert_int_equal(call_recv(&recv, b, 1, 1, NULL, TERN_RECV_PEEK), 0);
	assert_int_equal(call_send(&send, a, 1, 1, &data, 0), 0);
	MEET_PUMP(meet, call_over(&recv));
	call_check(&recv, data.bytes, 3);
	meet_settle(meet);
	/* A send does not end as long as the receiver reads its memory in place. */
	if (recv.req.peeked)
		assert_int_equal(tern_test(&send.req), -EINPROGRESS);
	call_check(&recv, data.bytes, 3);
	tern_release(&recv.req);
	MEET_PUMP(meet, call_over(&send));
	assert_int_equal(send.req.status, 0);
	meet_free(meet);
}

static void release_other(struct call *call)
{
	struct call *other = call->arg;

	if (tern_test(&other->req) == -EINPROGRESS)
		tern_release(&other->req);
}

static void test_what_has_not_ended_yet_is_not_released(const struct instance *instance)
{
	struct meet *meet = meet_new(instance);
	struct end *a = &meet->ends[A], *b = &meet->ends[B];
	struct tern_buf data = end_data(a, SLAB, 1u << 20, 3);
	struct call send[2] = {0}, recv[2] = {0};

	recv[0].then = release_other;
	recv[0].arg = &recv[1];
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(call_recv(&recv[i], b, i, 1, NULL, TERN_RECV_PEEK), 0);
	meet_settle(meet);
	/* B sleeps, so that it gets both sends in one tern_progress(). */
	b->asleep = true;
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(call_send(&send[i], a, i, 1, &data, 0), 0);
	meet_settle(meet);
	b->asleep = false;
	MEET_PUMP(meet, calls_over(recv, 2));
	for (unsigned i = 0; i < 2; i++) {
		call_check(&recv[i], data.bytes, 3);
		tern_release(&recv[i].req);
	}
	MEET_PUMP(meet, calls_over(send, 2));
	meet_free(meet);
}

static void check_way(const struct end *end)
{
	const struct instance *instance = end->meet->instance;
	bool gpu = instance->gpus & 1u << end->number;
	bool ipc = instance->ipc && strcmp(instance->fabric, "shm") == 0;
	bool lent = ipc && instance->gpus == 3;
	struct tern_peer_stats stats;

	tern_peer_stats(end->peer, &stats);
	assert_int_equal(stats.direct_count, gpu && instance->direct ? 2 : 0);
	/* An end with memory in a GPU stages tensors (copies them through host memory) if
	 * the fabric cannot access the GPU and not both directions go by IPC. */
	assert_int_equal(stats.staged_count > 0, gpu && !instance->direct && !lent);
	assert_int_equal(stats.ipc_count > 0, lent || (ipc && instance->uses_gpu));
	if (instance->direct)
		assert_int_equal(log_env_has(&end->log,
					 "GPU memory is accessed directly (verbs, "),
			gpu);
}

static void test_memory_of_a_gpu_is_staged_only_if_it_must_be(
	const struct instance *instance)
{
	struct meet *meet = meet_new(instance);

	meet->ends[A].log.env.log_level = TERN_LOG_INFO;
	meet->ends[B].log.env.log_level = TERN_LOG_INFO;
	for (unsigned from = A; from <= B; from++) {
		struct tern_buf data =
			end_data(&meet->ends[from], SLAB, 3u << 19, from + 5);
		struct tern_buf room = end_memory(&meet->ends[!from], USER, 3u << 19);

		carry(meet, from, from ? SENDER_FIRST : RECEIVER_FIRST, 0, &data, &room,
			from + 5);
	}
	check_way(&meet->ends[A]);
	check_way(&meet->ends[B]);
	meet_free(meet);
}

const struct conformance_test meet_paths[] = {
	CONFORMANCE(test_every_size_reaches_the_callers_room, NEEDS_NOTHING),
	CONFORMANCE(test_every_size_reaches_a_room_of_user_memory, NEEDS_NOTHING),
	CONFORMANCE(test_every_size_reaches_a_room_of_brief_memory, NEEDS_NOTHING),
	CONFORMANCE(test_every_size_is_allocated_for, NEEDS_NOTHING),
	CONFORMANCE(test_user_memory_is_allocated_for, NEEDS_NOTHING),
	CONFORMANCE(test_every_size_is_peeked_or_allocated, NEEDS_NOTHING),
	CONFORMANCE(test_user_memory_is_peeked_or_allocated, NEEDS_NOTHING),
	CONFORMANCE(test_the_fabrics_own_thresholds, NEEDS_NOTHING),
	CONFORMANCE(test_a_room_larger_than_the_data_keeps_its_rest, NEEDS_NOTHING),
	CONFORMANCE(test_a_room_too_small_is_told_to_both_ends, NEEDS_NOTHING),
	CONFORMANCE(test_dtype_and_shape_arrive, NEEDS_NOTHING),
	CONFORMANCE(test_a_tensor_that_is_not_one_is_einval, NEEDS_NOTHING),
	CONFORMANCE(test_an_alloc_that_can_never_fit_is_enobufs, NEEDS_NOTHING),
	CONFORMANCE(test_an_alloc_waits_for_room_in_its_pool, NEEDS_NOTHING),
	CONFORMANCE(test_what_has_not_ended_yet_is_not_released, NEEDS_NOTHING),
	CONFORMANCE(test_what_is_peeked_stays_until_it_is_released, NEEDS_NOTHING),
	CONFORMANCE(test_memory_of_a_gpu_is_staged_only_if_it_must_be, NEEDS_NOTHING),
	{0},
};
