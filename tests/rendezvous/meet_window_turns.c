/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of windows (include/tern/window.h): requests that wait for their turn, behind others
 * or for room. */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/rendezvous.h"
#include "rendezvous/window.h"
#include "tests/rendezvous/meet_window.h"

#define WINDOW 100000u

/* A get that waits for its turn ends at once when it is cancelled, although the owner of
 * the window stands still. */
static void test_what_has_not_started_is_cancelled_at_once(
	const struct instance *instance)
{
	enum { COUNT = TERN_PARTS_MAX + 30 };
	struct call gets[COUNT] = {0};
	struct tern_buf to;
	struct pane pane;
	bool direct;

	pane_init(&pane, instance, NULL, SLAB, WINDOW);
	MEET_PUMP(pane.meet, pane.remote->state == TERN_REMOTE_OPEN);
	direct = tern_peer_caps(pane.meet->ends[A].peer) & TERN_CAP_GET;
	to = pane_memory(&pane, A, SLAB, COUNT * 8);
	pane.meet->ends[B].asleep = true;
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf part = buf_part(&to, i * 8, 8);

		assert_int_equal(call_get(&gets[i], &pane, &part, i * 8), 0);
	}
	tern_cancel(&gets[COUNT - 1].req);
	MEET_PUMP(pane.meet, call_over(&gets[COUNT - 1]));
	if (!direct)
		assert_int_equal(gets[COUNT - 1].req.status, -ECANCELED);
	pane.meet->ends[B].asleep = false;
	MEET_PUMP(pane.meet, calls_over(gets, COUNT));
	for (unsigned i = 0; i < COUNT - 1; i++)
		assert_int_equal(gets[i].req.status, 0);
	pane_fini(&pane);
}

/* Where the puts of tensors are messages, too, they leave room for the owner's answers
 * about windows. */
static void test_tensors_do_not_starve_windows(const struct instance *instance)
{
	enum { COUNT = 24, BYTES = 1 << 20 };
	struct call sends[COUNT] = {0}, recvs[COUNT] = {0}, put = {0}, get = {0};
	struct tern_buf data, room, word;
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, WINDOW);
	MEET_PUMP(pane.meet, pane.remote->state == TERN_REMOTE_OPEN);
	data = pane_memory(&pane, B, SLAB, BYTES);
	room = pane_memory(&pane, A, SLAB, COUNT * BYTES);
	word = pane_memory(&pane, A, SLAB, 8);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_buf part = buf_part(&room, i * BYTES, BYTES);

		assert_int_equal(
			call_recv(&recvs[i], &pane.meet->ends[A], 1, i, &part, 0), 0);
		assert_int_equal(
			call_send(&sends[i], &pane.meet->ends[B], 1, i, &data, 0), 0);
	}
	MEET_PUMP(pane.meet, call_over(&recvs[0]));
	assert_int_equal(call_put(&put, &pane, &word, 512, NULL), 0);
	assert_int_equal(call_get(&get, &pane, &word, 512), 0);
	MEET_PUMP(pane.meet, call_over(&put) && call_over(&get));
	if (strcmp(instance->name, "fake-guard") == 0)
		assert_false(call_over(&recvs[COUNT - 1]));
	MEET_PUMP(pane.meet, calls_over(sends, COUNT) && calls_over(recvs, COUNT));
	pane_fini(&pane);
}

static int expose_nothing(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	(void)conn, (void)mem, (void)offset, (void)bytes, (void)access, (void)out;
	return -EAGAIN;
}

static void hear_nothing(struct end *end, const void *data, size_t bytes)
{
	(void)end, (void)data, (void)bytes;
}

/* An OPEN that waits, since the owner's fabric has too many ranges exposed, holds up nothing
 * of another window. */
static void test_a_window_that_cannot_be_exposed_waits_alone(
	const struct instance *instance)
{
	struct call puts[2] = {0}, note = {0};
	const struct tern_fabric_ops *ops;
	struct tern_remote *first, *second;
	struct tern_window_desc desc;
	struct tern_window *window;
	struct tern_fabric_ops full;
	struct tern_port *port;
	struct tern_buf from;
	struct pane pane;

	pane_init_host(&pane, instance, NULL, SLAB, WINDOW);
	MEET_PUMP(pane.meet, pane.remote->state == TERN_REMOTE_OPEN);
	from = pane_memory(&pane, A, SLAB, 1000);
	assert_int_equal(tern_window_new(pane.meet->ends[B].ctx, &pane.room,
				 TERN_WINDOW_READ | TERN_WINDOW_WRITE, &window),
		0);
	tern_window_describe(window, &desc);
	port = tern_peer_conn(pane.meet->ends[B].peer)->port;
	ops = port->ops;
	full = *ops;
	full.expose = expose_nothing;
	port->ops = &full;
	assert_int_equal(tern_remote_open(pane.meet->ends[A].peer, &desc, &second), 0);
	first = pane.remote;
	pane.remote = second;
	assert_int_equal(call_put(&puts[1], &pane, &from, 0, NULL), 0);
	meet_settle(pane.meet);
	pane.remote = first;
	assert_int_equal(call_put(&puts[0], &pane, &from, 0, NULL), 0);
	MEET_PUMP(pane.meet, call_over(&puts[0]));
	assert_false(call_over(&puts[1]));
	port->ops = ops;
	/* The owner tries again when it gets a message of the peer. */
	pane.meet->ends[B].on_note = hear_nothing;
	call_init(&note, &pane.meet->ends[A]);
	assert_int_equal(
		call_started(&note, tern_notify(pane.meet->ends[A].peer, &note.req,
					    &(struct tern_note){"x", 1})),
		0);
	MEET_PUMP(pane.meet, call_over(&puts[1]) && call_over(&note));
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(puts[i].req.status, 0);
	pane_fini(&pane);
}

/* A list with pieces in GPU memory and others in host memory; two are of several parts, if
 * memory of a GPU takes part. */
static void test_a_list_may_have_memory_of_both_kinds(const struct instance *instance)
{
	enum { STRIDE = 9 << 20 };
	struct memory_box host;
	struct tern_piece pieces[4];
	struct call put = {0}, get = {0};
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, 4 * STRIDE);
	box_init(&host, pane.meet->ends[A].domain);
	for (unsigned i = 0; i < 4; i++) {
		uint64_t bytes = i / 2 ? STRIDE - 7 : 100;

		pieces[i] = (struct tern_piece){i % 2 ? pane_memory(&pane, A, USER, bytes)
						      : box_take(&host, SLAB, bytes),
			i * STRIDE};
		buf_fill(&pieces[i].local, i);
	}
	call_init(&put, &pane.meet->ends[A]);
	assert_int_equal(
		call_started(&put, tern_put_list(pane.remote, &put.req, pieces, 4, NULL)),
		0);
	MEET_PUMP(pane.meet, call_over(&put));
	assert_int_equal(put.req.status, 0);
	assert_int_equal(put.req.bytes, 2 * (STRIDE - 7) + 200);
	for (unsigned i = 0; i < 4; i++) {
		struct tern_buf there = buf_part(
			&pane.room, pieces[i].remote_offset, pieces[i].local.bytes);

		assert_true(buf_holds(&there, i));
		buf_fill(&pieces[i].local, 9);
	}
	call_init(&get, &pane.meet->ends[A]);
	assert_int_equal(
		call_started(&get, tern_get_list(pane.remote, &get.req, pieces, 4)), 0);
	MEET_PUMP(pane.meet, call_over(&get));
	assert_int_equal(get.req.status, 0);
	for (unsigned i = 0; i < 4; i++)
		assert_true(buf_holds(&pieces[i].local, i));
	box_free(&host);
	pane_fini(&pane);
}

/* Puts of GPU memory, which the owner's program must take part in, do not hold up one of
 * host memory. */
static void test_puts_of_a_gpu_hold_up_no_others(const struct instance *instance)
{
	enum { COUNT = TERN_MOVES_MAX + 2 };
	struct call calls[COUNT] = {0}, put = {0};
	const struct tern_wreq *x = tern_wreq_of(&put.req);
	const struct tern_peer_windows *w;
	struct tern_buf from, own;
	struct memory_box host;
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, WINDOW);
	if (!pane.boxes[A].gpu || pane.boxes[B].gpu) {
		pane_fini(&pane);
		print_message("skipped: only A's memory is to be in a GPU\n");
		skip();
	}
	box_init(&host, pane.meet->ends[A].domain);
	w = &pane.meet->ends[A].peer->windows;
	from = pane_memory(&pane, A, SLAB, 1000);
	own = box_take(&host, SLAB, 8);
	buf_fill(&own, 5);
	MEET_PUMP(pane.meet, pane.remote->state == TERN_REMOTE_OPEN);
	pane.meet->ends[B].asleep = true;
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(call_put(&calls[i], &pane, &from, 0, NULL), 0);
	assert_int_equal(call_put(&put, &pane, &own, 2000, NULL), 0);
	MEET_PUMP(pane.meet,
		w->move_count == TERN_MOVES_MAX && (call_over(&put) || x->parts_out));
	pane.meet->ends[B].asleep = false;
	MEET_PUMP(pane.meet, call_over(&put) && calls_over(calls, COUNT));
	assert_int_equal(put.req.status, 0);
	box_free(&host);
	pane_fini(&pane);
}

/* An end whose sends have no credits, since the other program receives nothing. */
static void starve(struct end *end, struct call *calls, unsigned most, struct meet *meet)
{
	const struct tern_buf nothing = {0};

	for (unsigned i = 0; tern_list_empty(&end->peer->pump.starved); i++) {
		assert_true(i < most);
		memset(&calls[i], 0, sizeof(calls[i]));
		assert_int_equal(call_send(&calls[i], end, 1, i, &nothing, 0), 0);
		meet_turn(meet);
	}
}

/* The owner has no bounce buffer of this size, so puts and gets of GPU memory fail there,
 * before or after this end has heard of the owner's half. They end without credits. */
static void test_parts_that_fail_need_no_credits(const struct instance *instance)
{
	enum { MOST = 2000 };
	static struct call calls[MOST];
	struct tern_buf buf;
	struct pane pane;

	for (unsigned get = 0; get < 2; get++) {
		struct call call = {0};

		pane_init(&pane, instance, NULL, SLAB, 300000);
		pane.meet->ends[B].domain->opts.bounce_bytes = 4096;
		MEET_PUMP(pane.meet, pane.remote->state == TERN_REMOTE_OPEN);
		starve(&pane.meet->ends[get ? B : A], calls, MOST, pane.meet);
		buf = pane_memory(&pane, A, SLAB, 200000);
		assert_int_equal(get ? call_get(&call, &pane, &buf, 0)
				     : call_put(&call, &pane, &buf, 0, NULL),
			0);
		MEET_PUMP(pane.meet, call_over(&call));
		assert_true(call.req.status == 0 || call.req.status == -ENOBUFS);
		pane_fini(&pane);
	}
}

const struct conformance_test meet_window_turns[] = {
	CONFORMANCE(test_parts_that_fail_need_no_credits, NEEDS_NOTHING),
	CONFORMANCE(test_puts_of_a_gpu_hold_up_no_others, NEEDS_NOTHING),
	CONFORMANCE(test_a_list_may_have_memory_of_both_kinds, NEEDS_NOTHING),
	CONFORMANCE(test_what_has_not_started_is_cancelled_at_once, NEEDS_NOTHING),
	CONFORMANCE(test_tensors_do_not_starve_windows, NEEDS_NOTHING),
	CONFORMANCE(test_a_window_that_cannot_be_exposed_waits_alone, NEEDS_NOTHING),
	{0},
};
