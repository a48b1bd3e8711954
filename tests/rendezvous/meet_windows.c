/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of windows (include/tern/window.h): puts and gets, who may do what, closing, and
 * requests that are cut off. meet_notes.c has the notifications. */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/window.h"
#include "tests/rendezvous/meet_window.h"
#include "transport/memory/mem.h"

#define EDGE   512u
#define LARGE  ((3u << 20) + 5)
#define WINDOW (LARGE + 2 * EDGE)

static void end_well(struct pane *pane, struct call *call)
{
	MEET_PUMP(pane->meet, call_over(call));
	assert_int_equal(call->req.status, 0);
}

/* Puts `bytes` bytes at EDGE, and gets them back into other memory. Bytes beside them
 * must not change at either end. */
static void there_and_back(struct pane *pane, enum memory kind, uint64_t bytes)
{
	struct tern_buf from = pane_memory(pane, A, kind, bytes + 1);
	struct tern_buf to = pane_memory(pane, A, kind, bytes + 2 * EDGE);
	struct tern_buf there = buf_part(&pane->room, EDGE, bytes);
	struct tern_buf before = buf_part(&pane->room, 0, EDGE);
	struct tern_buf after = buf_part(&pane->room, EDGE + bytes, EDGE);
	struct tern_buf middle = buf_part(&to, EDGE, bytes);
	struct call put = {0}, get = {0};

	from.bytes = bytes;
	buf_fill(&from, bytes);
	buf_fill(&pane->room, 1000);
	buf_fill(&to, 2000);
	assert_int_equal(call_put(&put, pane, &from, EDGE, NULL), 0);
	end_well(pane, &put);
	assert_int_equal(put.req.bytes, bytes);
	assert_true(buf_holds(&there, bytes));
	assert_true(buf_holds_from(&before, 1000, 0));
	assert_true(buf_holds_from(&after, 1000, EDGE + bytes));
	assert_int_equal(call_get(&get, pane, &middle, EDGE), 0);
	end_well(pane, &get);
	assert_true(buf_holds(&middle, bytes));
	before = buf_part(&to, 0, EDGE);
	after = buf_part(&to, EDGE + bytes, EDGE);
	assert_true(buf_holds_from(&before, 2000, 0));
	assert_true(buf_holds_from(&after, 2000, EDGE + bytes));
}

static void test_puts_and_gets_of_every_size(const struct instance *instance)
{
	for (unsigned i = 0; i < 2; i++) {
		struct pane pane;
		uint64_t chunk;

		pane_init(&pane, instance, NULL, i ? USER : SLAB, WINDOW);
		chunk = tern_peer_conn(pane.meet->ends[A].peer)->chunk_bytes;
		{
			const uint64_t sizes[] = {0, 1, 64, MEET_EAGER - 1, MEET_EAGER,
				MEET_EAGER + 1, chunk - 1, chunk, chunk + 1, LARGE};

			for (unsigned s = 0; s < TERN_ARRAY_SIZE(sizes); s++)
				if (sizes[s] <= LARGE)
					there_and_back(
						&pane, (enum memory)(s % 3), sizes[s]);
		}
		assert_int_equal(tern_remote_close(pane.remote), 0);
		meet_settle(pane.meet);
		pane_fini(&pane);
	}
}

static void test_requests_may_be_posted_before_the_peers_are_connected(
	const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct pane pane = {.meet = meet_new_apart(instance, &opts, &opts)};
	struct tern_buf from;
	struct call put = {0};

	for (unsigned i = 0; i < 2; i++)
		pane_init_box(&pane, i);
	meet_dial(pane.meet);
	pane_open(&pane, SLAB, 100000);
	from = pane_memory(&pane, A, SLAB, 100000);
	buf_fill(&from, 7);
	assert_int_equal(call_put(&put, &pane, &from, 0, NULL), 0);
	end_well(&pane, &put);
	assert_true(buf_holds(&pane.room, 7));
	pane_fini(&pane);
}

/* Lists: pieces of random sizes, which tile a part of the window. */
static void test_a_list_has_one_end(const struct instance *instance)
{
	enum { COUNT = 200 };
	static struct tern_piece pieces[COUNT];
	struct tern_rng rng = {.seed = 5};
	struct pane pane;
	struct call put = {0}, get = {0};
	struct tern_buf from, to;
	uint64_t at = 0;

	pane_init(&pane, instance, NULL, SLAB, WINDOW);
	from = pane_memory(&pane, A, SLAB, WINDOW);
	to = pane_memory(&pane, A, SLAB, WINDOW);
	buf_fill(&from, 3);
	buf_fill(&to, 4);
	for (unsigned i = 0; i < COUNT; i++) {
		uint64_t most = i % 10 == 0 ? 100000 : i % 3 == 0 ? 6000 : 100;
		uint64_t bytes = tern_rng_below(&rng, most);

		/* The window has the pieces in the other order. */
		pieces[i].local = buf_part(&from, at, bytes);
		at += bytes;
		pieces[i].remote_offset = WINDOW - at;
	}
	call_init(&put, &pane.meet->ends[A]);
	assert_int_equal(call_started(&put, tern_put_list(pane.remote, &put.req, pieces,
						    COUNT, NULL)),
		0);
	end_well(&pane, &put);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf there = buf_part(
			&pane.room, pieces[i].remote_offset, pieces[i].local.bytes);

		assert_true(
			buf_holds_from(&there, 3, pieces[i].local.offset - from.offset));
		pieces[i].local.offset += to.offset - from.offset;
		pieces[i].local.mem = to.mem;
	}
	call_init(&get, &pane.meet->ends[A]);
	assert_int_equal(
		call_started(&get, tern_get_list(pane.remote, &get.req, pieces, COUNT)),
		0);
	end_well(&pane, &get);
	to.bytes = at;
	assert_true(buf_holds(&to, 3));
	call_init(&get, &pane.meet->ends[A]);
	assert_int_equal(
		call_started(&get, tern_get_list(pane.remote, &get.req, NULL, 0)), 0);
	end_well(&pane, &get);
	pane_fini(&pane);
}

static void test_both_ends_access_each_other_at_once(const struct instance *instance)
{
	enum { COUNT = 60 };
	static struct call calls[2][COUNT];
	struct pane pane;
	struct tern_buf rooms[2], data[2];
	struct tern_window *window;
	struct tern_window_desc desc;
	struct tern_remote *remotes[2];

	pane_init(&pane, instance, NULL, SLAB, COUNT * 20000);
	rooms[B] = pane.room;
	rooms[A] = pane_memory(&pane, A, SLAB, COUNT * 20000);
	assert_int_equal(tern_window_new(pane.meet->ends[A].ctx, &rooms[A],
				 TERN_WINDOW_WRITE, &window),
		0);
	tern_window_describe(window, &desc);
	MEET_PUMP(pane.meet, pane.meet->ends[B].peer);
	assert_int_equal(
		tern_remote_open(pane.meet->ends[B].peer, &desc, &remotes[B]), 0);
	remotes[A] = pane.remote;
	for (unsigned e = 0; e < 2; e++) {
		data[e] = pane_memory(&pane, e, SLAB, COUNT * 20000);
		buf_fill(&data[e], e);
		for (unsigned i = 0; i < COUNT; i++) {
			struct tern_buf part =
				buf_part(&data[e], i * 20000, i % 2 ? 20000 : 500);

			call_init(&calls[e][i], &pane.meet->ends[e]);
			assert_int_equal(tern_put(remotes[e], &calls[e][i].req, &part,
						 i * 20000, NULL),
				0);
		}
	}
	MEET_PUMP(pane.meet, calls_over(calls[A], COUNT) && calls_over(calls[B], COUNT));
	for (unsigned e = 0; e < 2; e++)
		for (unsigned i = 0; i < COUNT; i++) {
			struct tern_buf part =
				buf_part(&rooms[!e], i * 20000, i % 2 ? 20000 : 500);

			assert_int_equal(calls[e][i].req.status, 0);
			assert_true(buf_holds_from(&part, e, i * 20000));
		}
	pane_fini(&pane);
}

/* The table of tern/window.h says where an operation ends although the owner's program does
 * nothing: over RDMA and shm. */
static void test_where_the_owners_program_takes_no_part(const struct instance *instance)
{
	struct call get = {0}, put = {0};
	struct tern_buf buf, there;
	struct pane pane;
	uint32_t caps;

	pane_init_host(&pane, instance, NULL, SLAB, WINDOW);
	caps = tern_peer_caps(pane.meet->ends[A].peer);
	if (caps & (TERN_CAP_UNGUARDED | TERN_CAP_WINDOW_PUT)) /* RDMA, shm */
		assert_true(caps & TERN_CAP_LANDS);
	there_and_back(&pane, SLAB, LARGE); /* opens the window, and the memory of shm */
	buf = pane_memory(&pane, A, SLAB, LARGE);
	there = buf_part(&pane.room, EDGE, LARGE);
	buf_fill(&there, 5);
	pane.meet->ends[B].asleep = true;
	if (caps & TERN_CAP_GET) {
		assert_int_equal(call_get(&get, &pane, &buf, EDGE), 0);
		end_well(&pane, &get);
		assert_true(buf_holds(&buf, 5));
	}
	if (caps & TERN_CAP_LANDS) {
		buf_fill(&buf, 6);
		assert_int_equal(call_put(&put, &pane, &buf, EDGE, NULL), 0);
		end_well(&pane, &put);
		assert_true(buf_holds(&there, 6));
		buf.bytes = 8; /* a small one, too */
		buf_fill(&buf, 7);
		assert_int_equal(call_put(&put, &pane, &buf, EDGE, NULL), 0);
		end_well(&pane, &put);
		there.bytes = 8;
		assert_true(buf_holds(&there, 7));
	}
	pane.meet->ends[B].asleep = false;
	pane_fini(&pane);
}

/* Over shm, a process of root may write to one of another user, and not the other way round:
 * the owner offers puts that this end cannot make. */
static void test_an_end_that_may_not_write_asks_the_owner(const struct instance *instance)
{
	const unsigned writes = TERN_CAP_WINDOW_PUT | TERN_CAP_LANDS;
	struct tern_conn *conn;
	struct pane pane;

	pane_init_host(&pane, instance, NULL, SLAB, WINDOW);
	conn = tern_peer_conn(pane.meet->ends[A].peer);
	if (conn->caps & TERN_CAP_WINDOW_PUT) {
		conn->caps &= ~writes;
		there_and_back(&pane, SLAB, LARGE);
		there_and_back(&pane, USER, 64);
		assert_false(pane.remote->about & TERN_OPENED_PUT);
	}
	pane_fini(&pane);
}

/* ---- who may do what ---- */

/* Opens a window by this descriptor, and returns the status of a put of 10 bytes. */
static int status_by(struct pane *pane, const struct tern_window_desc *desc)
{
	struct tern_buf from = pane_memory(pane, A, SLAB, 10);
	struct tern_remote *remote;
	struct call call = {0};

	assert_int_equal(tern_remote_open(pane->meet->ends[A].peer, desc, &remote), 0);
	call_init(&call, &pane->meet->ends[A]);
	assert_int_equal(tern_put(remote, &call.req, &from, 0, NULL), 0);
	MEET_PUMP(pane->meet, call_over(&call));
	assert_int_equal(tern_remote_close(remote), 0);
	return call.req.status;
}

static void test_only_the_last_user_of_a_handle_waits_for_its_requests(
	const struct instance *instance)
{
	struct tern_remote *again;
	struct pane pane;
	struct tern_buf from;
	struct call put = {0};

	pane_init(&pane, instance, NULL, SLAB, WINDOW);
	from = pane_memory(&pane, A, SLAB, 1000);
	buf_fill(&from, 3);
	assert_int_equal(
		tern_remote_open(pane.meet->ends[A].peer, &pane.desc, &again), 0);
	assert_ptr_equal(again, pane.remote);
	assert_int_equal(call_put(&put, &pane, &from, 0, NULL), 0);
	assert_int_equal(tern_remote_close(again), 0);
	assert_int_equal(tern_remote_close(again), -EBUSY);
	end_well(&pane, &put);
	assert_int_equal(tern_remote_close(again), 0);
	meet_settle(pane.meet);
	pane_fini(&pane);
}

static void test_only_the_right_descriptor_opens_a_window(const struct instance *instance)
{
	struct tern_window_desc desc;
	struct pane pane;
	struct call close = {0};

	pane_init(&pane, instance, NULL, SLAB, 1000);
	assert_int_equal(status_by(&pane, &pane.desc), 0);
	for (unsigned bit = 0; bit < 128; bit++) {
		desc = pane.desc;
		desc.capability[bit / 64] ^= 1ull << bit % 64;
		assert_int_equal(status_by(&pane, &desc), -EACCES);
	}
	desc = pane.desc;
	desc.bytes++;
	assert_int_equal(status_by(&pane, &desc), -EACCES);
	desc = pane.desc;
	desc.id++; /* there was no such window yet */
	assert_int_equal(status_by(&pane, &desc), -EACCES);
	desc.id = 0;
	assert_int_equal(status_by(&pane, &desc), -EACCES);
	desc = pane.desc;
	desc.incarnation++;
	assert_int_equal(status_by(&pane, &desc), -ESTALE);
	assert_int_equal(status_by(&pane, &pane.desc), 0);
	assert_int_equal(call_close(&close, &pane, 0), 0);
	end_well(&pane, &close);
	assert_int_equal(status_by(&pane, &pane.desc), -ESTALE);
	desc = pane.desc;
	pane_open(&pane, SLAB, 1000);
	assert_int_not_equal(pane.desc.id, desc.id);
	assert_int_equal(status_by(&pane, &desc), -ESTALE);
	assert_int_equal(status_by(&pane, &pane.desc), 0);
	pane_fini(&pane);
}

static void test_bounds_and_rights(const struct instance *instance)
{
	struct tern_remote *again;
	struct pane pane;
	struct call call = {0};
	struct tern_buf buf, far;
	struct tern_window *window;
	struct tern_context *ctx;
	struct tern_window_desc desc;

	pane_init(&pane, instance, NULL, SLAB, 1000);
	ctx = pane.meet->ends[B].ctx;
	buf = pane_memory(&pane, A, SLAB, 2000);
	buf.bytes = 1001;
	assert_int_equal(call_put(&call, &pane, &buf, 0, NULL), -ERANGE);
	buf.bytes = 1;
	assert_int_equal(call_put(&call, &pane, &buf, 1000, NULL), -ERANGE);
	assert_int_equal(call_get(&call, &pane, &buf, UINT64_MAX), -ERANGE);
	buf.bytes = 0;
	assert_int_equal(call_put(&call, &pane, &buf, 1001, NULL), -ERANGE);
	far = buf;
	far.offset = UINT64_MAX;
	far.bytes = 10;
	assert_int_equal(call_get(&call, &pane, &far, 0), -EINVAL);
	assert_int_equal(call_put(&call, &pane, &buf, 0, &(struct tern_note){&buf, 4097}),
		-EINVAL);
	far = pane.room;
	assert_int_equal(tern_window_new(ctx, &far, 0, &window), -EINVAL);
	assert_int_equal(tern_window_new(ctx, &far, 4, &window), -EINVAL);
	far.bytes = 0;
	assert_int_equal(tern_window_new(ctx, &far, 1, &window), -EINVAL);
	for (unsigned access = 1; access <= 2; access++) {
		assert_int_equal(tern_window_new(ctx, &pane.room, access, &window), 0);
		tern_window_describe(window, &desc);
		assert_int_equal(
			tern_remote_open(pane.meet->ends[A].peer, &desc, &pane.remote),
			0);
		if (access == TERN_WINDOW_READ) {
			assert_int_equal(call_put(&call, &pane, &buf, 0, NULL), -EACCES);
			assert_int_equal(call_get(&call, &pane, &buf, 0), 0);
		} else {
			assert_int_equal(call_get(&call, &pane, &buf, 0), -EACCES);
			assert_int_equal(call_put(&call, &pane, &buf, 0, NULL), 0);
		}
		end_well(&pane, &call);
		/* The owner, and not the descriptor, says what is allowed. */
		desc.access = TERN_WINDOW_READ | TERN_WINDOW_WRITE;
		assert_int_equal(status_by(&pane, &desc),
			access == TERN_WINDOW_READ ? -EACCES : 0);
		/* Both are one handle, so the window is still open. */
		assert_int_equal(
			tern_remote_open(pane.meet->ends[A].peer, &desc, &again), 0);
		assert_ptr_equal(again, pane.remote);
		assert_int_equal(tern_remote_close(again), 0);
		if (access == TERN_WINDOW_READ)
			assert_int_equal(call_get(&call, &pane, &buf, 0), 0);
		else
			assert_int_equal(call_put(&call, &pane, &buf, 0, NULL), 0);
		end_well(&pane, &call);
	}
	pane_fini(&pane);
}

/* An RDMA device refuses writes to memory that is registered for reading only. */
static void test_a_window_is_registered_with_its_rights(const struct instance *instance)
{
	struct pane pane;
	struct tern_domain *domain;
	bool pins = false;

	pane_init_host(&pane, instance, NULL, SLAB, 1000);
	domain = pane.meet->ends[B].domain;
	for (unsigned i = 0; i < domain->fabric_count; i++)
		pins |= domain->fabrics[i]->ops->pins_memory;
	for (unsigned access = 1; access <= 3; access++) {
		assert_int_equal(tern_window_new(pane.meet->ends[B].ctx, &pane.room,
					 access, &pane.window),
			0);
		assert_int_equal(pane.window->own != NULL, pins);
		if (pins)
			assert_int_equal(
				pane.window->own->read_only, access == TERN_WINDOW_READ);
		assert_int_equal(tern_window_close(pane.window, NULL, 0), 0);
	}
	pane_fini(&pane);
}

static void test_a_read_only_memory_is_not_written(const struct instance *instance)
{
	static const char text[4096] = "weights";
	static char copy[4096];
	struct pane pane;
	struct tern_mem *mem;
	struct tern_buf room, to;
	struct call call = {0};

	pane_init_host(&pane, instance, NULL, SLAB, 1000);
	assert_int_equal(tern_mem_wrap_readonly(
				 pane.meet->ends[B].domain, text, sizeof(text), &mem),
		0);
	room = (struct tern_buf){mem, 0, sizeof(text)};
	assert_int_equal(tern_window_new(pane.meet->ends[B].ctx, &room,
				 TERN_WINDOW_WRITE | TERN_WINDOW_READ, &pane.window),
		-EACCES);
	assert_int_equal(tern_window_new(pane.meet->ends[B].ctx, &room, TERN_WINDOW_READ,
				 &pane.window),
		0);
	tern_window_describe(pane.window, &pane.desc);
	assert_int_equal(
		tern_remote_open(pane.meet->ends[A].peer, &pane.desc, &pane.remote), 0);
	to = pane_memory(&pane, A, USER, sizeof(text));
	assert_int_equal(call_get(&call, &pane, &to, 0), 0);
	end_well(&pane, &call);
	memcpy(copy, tern_buf_ptr(&to), sizeof(copy));
	assert_memory_equal(copy, text, sizeof(text));
	assert_int_equal(call_close(&call, &pane, 0), 0);
	end_well(&pane, &call);
	tern_mem_put(mem);
	pane_fini(&pane);
}

/* ---- the end of windows and requests ---- */

enum { BUSY = 24 };

/* Starts puts and gets of several sizes, and makes `turns` turns. */
static void make_busy(
	struct pane *pane, struct call *calls, struct tern_buf *bufs, unsigned turns)
{
	for (unsigned i = 0; i < BUSY; i++) {
		uint64_t bytes = i % 4 == 0 ? 300000 : i % 4 == 1 ? 40 : 20000;
		uint64_t offset = i * 10000;

		bufs[i] = pane_memory(pane, A, SLAB, bytes);
		buf_fill(&bufs[i], i);
		assert_int_equal(
			i % 3 == 2 ? call_get(&calls[i], pane, &bufs[i], offset)
				   : call_put(&calls[i], pane, &bufs[i], offset, NULL),
			0);
	}
	for (unsigned t = 0; t < turns; t++)
		meet_turn(pane->meet);
}

/* After the end of their requests, and of the window, nobody touches the memory. */
static void check_untouched(
	struct pane *pane, const struct tern_buf *bufs, bool window_ended)
{
	for (unsigned i = 0; i < BUSY; i++)
		buf_fill(&bufs[i], 77);
	if (window_ended)
		buf_fill(&pane->room, 78);
	meet_settle(pane->meet);
	for (unsigned i = 0; i < BUSY; i++)
		assert_true(buf_holds(&bufs[i], 77));
	if (window_ended)
		assert_true(buf_holds(&pane->room, 78));
}

static void test_a_window_closes_while_it_is_used(const struct instance *instance)
{
	static const unsigned turns[] = {0, 1, 2, 3, 5, 8, 20, 60};
	struct call calls[BUSY] = {0}, close = {0};
	struct tern_buf bufs[BUSY];

	for (unsigned t = 0; t < TERN_ARRAY_SIZE(turns); t++) {
		struct pane pane;
		unsigned stale = 0;

		pane_init(&pane, instance, NULL, SLAB, 1u << 20);
		make_busy(&pane, calls, bufs, turns[t]);
		assert_int_equal(call_close(&close, &pane, TERN_NEVER), 0);
		end_well(&pane, &close);
		buf_fill(&pane.room, 78);
		MEET_PUMP(pane.meet, calls_over(calls, BUSY));
		assert_true(buf_holds(&pane.room, 78));
		for (unsigned i = 0; i < BUSY; i++) {
			assert_true(calls[i].req.status == 0 ||
				    calls[i].req.status == -ESTALE);
			stale += calls[i].req.status != 0;
		}
		if (turns[t] == 0)
			assert_int_equal(stale, BUSY);
		check_untouched(&pane, bufs, true);
		/* The session goes on. */
		assert_int_equal(tern_remote_close(pane.remote), 0);
		pane_open(&pane, SLAB, WINDOW);
		there_and_back(&pane, SLAB, 50000);
		assert_int_equal(pane.meet->ends[A].suspect_count, 0);
		pane_fini(&pane);
	}
}

static void test_a_peer_that_does_not_leave_is_cut(const struct instance *instance)
{
	struct call calls[BUSY] = {0}, close = {0};
	struct tern_buf bufs[BUSY];
	struct pane pane;
	struct end *a;
	bool returns;

	pane_init(&pane, instance, NULL, SLAB, 1u << 20);
	a = &pane.meet->ends[A];
	returns = !(tern_peer_caps(a->peer) & TERN_CAP_BOUND);
	there_and_back(&pane, SLAB, 5000);
	make_busy(&pane, calls, bufs, 0);
	a->asleep = true;
	assert_int_equal(call_close(&close, &pane, 20 * TERN_NS_PER_MS), 0);
	end_well(&pane, &close);
	buf_fill(&pane.room, 78);
	a->asleep = false;
	MEET_PUMP(pane.meet, calls_over(calls, BUSY));
	for (unsigned i = 0; i < BUSY; i++)
		assert_true(calls[i].req.status == -ESTALE || calls[i].req.status == 0 ||
			    (!returns && calls[i].req.status < 0));
	assert_true(buf_holds(&pane.room, 78));
	check_untouched(&pane, bufs, true);
	if (!returns) {
		MEET_PUMP(pane.meet, a->down_count);
	} else {
		pane_open(&pane, SLAB, WINDOW);
		there_and_back(&pane, SLAB, 50000);
		assert_int_equal(a->down_count, 0);
	}
	pane_fini(&pane);
}

static void test_puts_and_gets_can_be_cancelled(const struct instance *instance)
{
	static const unsigned turns[] = {0, 1, 2, 3, 5, 8, 20};
	struct call calls[BUSY] = {0};
	struct tern_buf bufs[BUSY];

	for (unsigned t = 0; t < TERN_ARRAY_SIZE(turns); t++) {
		struct pane pane;

		pane_init(&pane, instance, NULL, SLAB, WINDOW);
		make_busy(&pane, calls, bufs, turns[t]);
		for (unsigned i = 0; i < BUSY; i++)
			if (!call_over(&calls[i]))
				tern_cancel(&calls[i].req);
		MEET_PUMP(pane.meet, calls_over(calls, BUSY));
		for (unsigned i = 0; i < BUSY; i++)
			assert_true(calls[i].req.status == 0 ||
				    calls[i].req.status == -ECANCELED);
		if (turns[t] == 0)
			assert_int_equal(calls[0].req.status, -ECANCELED);
		/* A cancelled put writes nothing any more. */
		check_untouched(&pane, bufs, true);
		there_and_back(&pane, SLAB, 50000);
		pane_fini(&pane);
	}
}

static void test_a_freed_peer_ends_its_requests(const struct instance *instance)
{
	for (unsigned side = 0; side < 2; side++)
		for (unsigned turns = 0; turns < 12; turns += 3) {
			struct call calls[BUSY] = {0}, close = {0};
			struct tern_buf bufs[BUSY];
			struct pane pane;
			struct end *gone;

			pane_init(&pane, instance, NULL, SLAB, 1u << 20);
			gone = &pane.meet->ends[side];
			MEET_PUMP(pane.meet, pane.meet->ends[B].peer);
			make_busy(&pane, calls, bufs, turns);
			tern_peer_free(gone->peer);
			gone->peer = NULL;
			MEET_PUMP(pane.meet, calls_over(calls, BUSY));
			for (unsigned i = 0; i < BUSY; i++)
				assert_true(side == A ? calls[i].req.status == 0 ||
								calls[i].req.status ==
									-ECANCELED
						      : calls[i].req.status <= 0);
			MEET_PUMP(pane.meet, pane.meet->ends[!side].down_count);
			assert_int_equal(call_close(&close, &pane, TERN_NEVER), 0);
			end_well(&pane, &close);
			check_untouched(&pane, bufs, true);
			pane_fini(&pane);
		}
}

static void test_an_orderly_close_waits_for_puts_and_gets(const struct instance *instance)
{
	struct call calls[BUSY] = {0};
	struct tern_buf bufs[BUSY];
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, 1u << 20);
	make_busy(&pane, calls, bufs, 0);
	tern_peer_close(pane.meet->ends[A].peer);
	MEET_PUMP(pane.meet, pane.meet->ends[A].down_count);
	assert_int_equal(pane.meet->ends[A].down_status, 0);
	assert_true(calls_over(calls, BUSY));
	for (unsigned i = 0; i < BUSY; i++)
		assert_int_equal(calls[i].req.status, 0);
	pane_fini(&pane);
}

/* ---- lost connections ---- */

static void test_requests_survive_lost_connections(const struct instance *instance)
{
	struct tern_context_opts opts = meet_opts();
	struct call calls[BUSY] = {0};
	struct tern_buf bufs[BUSY];

	opts.reconnect_ns = 60 * TERN_NS_PER_S; /* however busy the machine is */
	for (unsigned turns = 0; turns < 40; turns += 2) {
		struct pane pane;
		struct end *ends;

		pane_init(&pane, instance, &opts, SLAB, WINDOW);
		ends = pane.meet->ends;
		MEET_PUMP(pane.meet, ends[B].peer);
		if (tern_peer_caps(ends[A].peer) & TERN_CAP_BOUND) {
			pane_fini(&pane);
			print_message("skipped: connections do not return\n");
			skip();
		}
		/* Every put has a range of its own. */
		for (unsigned i = 0; i < BUSY; i++) {
			bufs[i] = pane_memory(&pane, A, SLAB, 100000);
			buf_fill(&bufs[i], i);
			assert_int_equal(
				call_put(&calls[i], &pane, &bufs[i], i * 100000, NULL),
				0);
		}
		for (unsigned cuts = 0; cuts < 3; cuts++) {
			for (unsigned t = 0; t < turns; t++)
				meet_turn(pane.meet);
			tern_peer_cut(ends[cuts % 2].peer, -ECONNRESET);
		}
		MEET_PUMP(pane.meet, calls_over(calls, BUSY));
		for (unsigned i = 0; i < BUSY; i++) {
			struct tern_buf there = buf_part(&pane.room, i * 100000, 100000);

			assert_int_equal(calls[i].req.status, 0);
			assert_true(buf_holds(&there, i));
			buf_fill(&bufs[i], 99);
			assert_int_equal(
				call_get(&calls[i], &pane, &bufs[i], i * 100000), 0);
		}
		tern_peer_cut(ends[turns / 2 % 2].peer, -ECONNRESET);
		MEET_PUMP(pane.meet, calls_over(calls, BUSY));
		for (unsigned i = 0; i < BUSY; i++) {
			assert_int_equal(calls[i].req.status, 0);
			assert_true(buf_holds(&bufs[i], i));
		}
		pane_fini(&pane);
	}
}

static void cut_when_recovered(struct end *end, enum tern_peer_event event)
{
	struct tern_peer *a = end->meet->ends[A].peer;

	if (event != TERN_PEER_RECOVERED)
		return;
	/* As if the link had lasted for a second. */
	a->dial.up_ns -= TERN_NS_PER_S;
	a->dial.fruitless_ns -= TERN_NS_PER_S;
	tern_peer_cut(end->peer, -ECONNRESET);
}

/* Opens a window over links of which a session tries few before it ends. */
static void flaky_pane_init(struct pane *pane, const struct instance *instance, bool host)
{
	struct tern_context_opts opts = meet_opts();

	if (!instance->world_new) {
		print_message("skipped: the test needs virtual time\n");
		skip();
	}
	opts.reconnect_ns = 8 * TERN_NS_PER_MS;
	opts.unreachable_ns = 20 * TERN_NS_PER_MS;
	(host ? pane_init_host : pane_init)(pane, instance, &opts, SLAB, WINDOW);
	MEET_PUMP(pane->meet, pane->meet->ends[B].peer);
	meet_settle(pane->meet);
}

/* A session whose links never carry any of a put ends, as it does if they never carry a
 * message. */
static void test_links_that_carry_no_put_are_the_end(const struct instance *instance)
{
	struct tern_peer_stats stats;
	struct call put = {0};
	struct tern_buf from;
	struct pane pane;
	struct end *ends;

	flaky_pane_init(&pane, instance, false);
	ends = pane.meet->ends;
	from = pane_memory(&pane, A, SLAB, LARGE);
	ends[B].on_event = cut_when_recovered;
	tern_peer_cut(ends[B].peer, -ECONNRESET);
	assert_int_equal(call_put(&put, &pane, &from, 0, NULL), 0);
	MEET_PUMP(pane.meet, ends[A].down_count);
	assert_int_equal(ends[A].down_status, -ECONNRESET);
	assert_int_equal(put.req.status, -ECONNRESET);
	tern_peer_stats(ends[A].peer, &stats);
	assert_int_equal(stats.reconnect_count, 16);
	pane_fini(&pane);
}

/* A session ends, too, if each of its links takes all puts and carries none of their
 * FENCEs: such a put has ended for the fabric, and its bytes may not have arrived. */
static void test_links_that_carry_no_fence_are_the_end(const struct instance *instance)
{
	struct call put = {0};
	struct tern_buf from;
	struct pane pane;
	struct end *a;

	flaky_pane_init(&pane, instance, true);
	a = &pane.meet->ends[A];
	if (!(tern_peer_caps(a->peer) & TERN_CAP_PUT)) {
		pane_fini(&pane);
		print_message("skipped: the fabric cannot put\n");
		skip();
	}
	from = pane_memory(&pane, A, SLAB, LARGE);
	assert_int_equal(call_put(&put, &pane, &from, 0, NULL), 0);
	while (!a->down_count) {
		MEET_PUMP(pane.meet, a->down_count || tern_wreq_of(&put.req)->fenced);
		if (a->down_count)
			break;
		/* As if the link had lasted for a second. */
		a->peer->dial.up_ns -= TERN_NS_PER_S;
		a->peer->dial.fruitless_ns -= TERN_NS_PER_S;
		tern_peer_cut(a->peer, -ECONNRESET);
		MEET_PUMP(pane.meet, a->down_count || !tern_wreq_of(&put.req)->fenced);
	}
	assert_int_equal(put.req.status, -ECONNRESET);
	pane_fini(&pane);
}

const struct conformance_test meet_windows[] = {
	CONFORMANCE(test_puts_and_gets_of_every_size, NEEDS_NOTHING),
	CONFORMANCE(test_requests_may_be_posted_before_the_peers_are_connected,
		NEEDS_NOTHING),
	CONFORMANCE(test_a_list_has_one_end, NEEDS_NOTHING),
	CONFORMANCE(test_both_ends_access_each_other_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_where_the_owners_program_takes_no_part, NEEDS_NOTHING),
	CONFORMANCE(test_an_end_that_may_not_write_asks_the_owner, NEEDS_NOTHING),
	CONFORMANCE(test_only_the_last_user_of_a_handle_waits_for_its_requests,
		NEEDS_NOTHING),
	CONFORMANCE(test_only_the_right_descriptor_opens_a_window, NEEDS_NOTHING),
	CONFORMANCE(test_bounds_and_rights, NEEDS_NOTHING),
	CONFORMANCE(test_a_window_is_registered_with_its_rights, NEEDS_NOTHING),
	CONFORMANCE(test_a_read_only_memory_is_not_written, NEEDS_NOTHING),
	CONFORMANCE(test_a_window_closes_while_it_is_used, NEEDS_NOTHING),
	CONFORMANCE(test_a_peer_that_does_not_leave_is_cut, NEEDS_NOTHING),
	CONFORMANCE(test_puts_and_gets_can_be_cancelled, NEEDS_NOTHING),
	CONFORMANCE(test_a_freed_peer_ends_its_requests, NEEDS_NOTHING),
	CONFORMANCE(test_an_orderly_close_waits_for_puts_and_gets, NEEDS_NOTHING),
	CONFORMANCE(test_requests_survive_lost_connections, NEEDS_NOTHING),
	CONFORMANCE(test_links_that_carry_no_put_are_the_end, NEEDS_NOTHING),
	CONFORMANCE(test_links_that_carry_no_fence_are_the_end, NEEDS_NOTHING),
	{0},
};
