/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of notifications (tern_notify, and the note of a put): each is handled once, and
 * behind the puts that it follows, also if connections are lost. */
#include "tests/rendezvous/meet.h"

#include <errno.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "tests/rendezvous/meet_window.h"

enum { CELLS = 64, CELL_BYTES = 30000 };

/* A notification that says which cells of the window have landed. */
struct saying {
	uint32_t number;
	uint32_t first, end;
	uint32_t round; /* seed of the cells' contents */
};

struct ledger {
	struct pane *pane;
	uint32_t next; /* number of the next notification */
	bool in_order;
	uint32_t heard[600]; /* how often each notification was handled */
};

static uint64_t cell_bytes(uint32_t cell)
{
	return cell % 3 == 0 ? 100 : cell % 3 == 1 ? CELL_BYTES : 5000;
}

/* The cells must be in the window at the moment of the notification. */
static void on_note(struct end *end, const void *data, size_t bytes)
{
	struct ledger *ledger = end->arg;
	struct saying saying;

	assert_int_equal(bytes, sizeof(saying));
	memcpy(&saying, data, sizeof(saying));
	if (ledger->in_order)
		assert_int_equal(saying.number, ledger->next);
	ledger->next++;
	assert_int_equal(ledger->heard[saying.number]++, 0);
	for (uint32_t i = saying.first; i < saying.end; i++) {
		struct tern_buf cell =
			buf_part(&ledger->pane->room, i * CELL_BYTES, cell_bytes(i));

		assert_true(buf_holds(&cell, saying.round * 1000 + i));
	}
}

static void start(struct pane *pane, struct ledger *ledger, bool in_order)
{
	struct end *b = &pane->meet->ends[B];

	memset(ledger, 0, sizeof(*ledger));
	ledger->pane = pane;
	ledger->in_order = in_order;
	b->on_note = on_note;
	b->arg = ledger;
	MEET_PUMP(pane->meet, b->peer);
}

static int call_notify(struct call *call, struct pane *pane, const struct saying *saying)
{
	const struct tern_note note = {saying, sizeof(*saying)};

	call_init(call, &pane->meet->ends[A]);
	return call_started(
		call, tern_notify(pane->meet->ends[A].peer, &call->req, &note));
}

static void put_cell(struct pane *pane, struct call *call, const struct tern_buf *data,
	uint32_t cell, uint32_t round, const struct saying *saying)
{
	struct tern_buf from = buf_part(data, cell * CELL_BYTES, cell_bytes(cell));
	const struct tern_note note = {saying, sizeof(*saying)};

	buf_fill(&from, round * 1000 + cell);
	assert_int_equal(
		call_put(call, pane, &from, cell * CELL_BYTES, saying ? &note : NULL), 0);
}

/* Cuts the connection, unless a session on this fabric could not return. */
static void cut(struct pane *pane, unsigned side)
{
	struct tern_peer *peer = pane->meet->ends[side].peer;

	if (!(tern_peer_caps(peer) & TERN_CAP_BOUND))
		tern_peer_cut(peer, -ECONNRESET);
}

/* All cells are put, then a notification, several times. `cuts`: the connection is cut
 * between, after some turns. */
static void put_and_notify(const struct instance *instance, bool cuts)
{
	enum { ROUNDS = 12 };
	static struct call puts[CELLS], notes[ROUNDS];
	struct saying sayings[ROUNDS];
	struct ledger ledger;
	struct tern_buf data;
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, CELLS * CELL_BYTES);
	start(&pane, &ledger, true);
	data = pane_memory(&pane, A, SLAB, CELLS * CELL_BYTES);
	for (uint32_t r = 0; r < ROUNDS; r++) {
		for (uint32_t i = 0; i < CELLS; i++)
			put_cell(&pane, &puts[i], &data, i, r, NULL);
		sayings[r] = (struct saying){r, 0, CELLS, r};
		assert_int_equal(call_notify(&notes[r], &pane, &sayings[r]), 0);
		for (uint32_t t = 0; cuts && t < r * 3; t++)
			meet_turn(pane.meet);
		if (cuts)
			cut(&pane, r % 2);
		MEET_PUMP(pane.meet, calls_over(puts, CELLS) && call_over(&notes[r]));
		assert_int_equal(notes[r].req.status, 0);
		assert_int_equal(ledger.next, r + 1);
	}
	pane_fini(&pane);
}

static void test_a_notification_comes_behind_all_puts_before_it(
	const struct instance *instance)
{
	put_and_notify(instance, false);
}

static void test_a_cut_between_puts_and_a_notification(const struct instance *instance)
{
	put_and_notify(instance, true);
}

static void test_a_note_comes_behind_its_own_put(const struct instance *instance)
{
	static struct call puts[CELLS];
	static struct saying sayings[CELLS];
	struct ledger ledger;
	struct tern_buf data;
	struct pane pane;

	pane_init(&pane, instance, NULL, USER, CELLS * CELL_BYTES);
	start(&pane, &ledger, false);
	data = pane_memory(&pane, A, SLAB, CELLS * CELL_BYTES);
	for (uint32_t r = 0; r < 4; r++) {
		for (uint32_t i = 0; i < CELLS; i++) {
			sayings[i] = (struct saying){r * CELLS + i, i, i + 1, r};
			put_cell(&pane, &puts[i], &data, i, r, &sayings[i]);
		}
		if (r % 2)
			cut(&pane, r / 2);
		MEET_PUMP(pane.meet, calls_over(puts, CELLS));
		for (uint32_t i = 0; i < CELLS; i++)
			assert_int_equal(puts[i].req.status, 0);
		assert_int_equal(ledger.next, (r + 1) * CELLS);
	}
	pane_fini(&pane);
}

/* More notifications than the ring of kept messages has room for, with cuts. */
static void test_notifications_arrive_once_and_in_order(const struct instance *instance)
{
	enum { COUNT = 600 };
	static struct call notes[COUNT];
	static struct saying sayings[COUNT];
	struct ledger ledger;
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, 1000);
	start(&pane, &ledger, true);
	for (uint32_t i = 0; i < COUNT; i++) {
		sayings[i] = (struct saying){.number = i};
		assert_int_equal(call_notify(&notes[i], &pane, &sayings[i]), 0);
		if (i % 100 == 50)
			meet_turn(pane.meet);
		if (i % 100 == 99)
			cut(&pane, i / 100 % 2);
	}
	MEET_PUMP(pane.meet, calls_over(notes, COUNT));
	for (uint32_t i = 0; i < COUNT; i++) {
		assert_int_equal(notes[i].req.status, 0);
		assert_int_equal(ledger.heard[i], 1);
	}
	pane_fini(&pane);
}

struct ear {
	unsigned count;
	size_t bytes;
	unsigned char data[TERN_NOTE_MAX];
};

static void on_any(struct end *end, const void *data, size_t bytes)
{
	struct ear *ear = end->arg;

	ear->count++;
	ear->bytes = bytes;
	memcpy(ear->data, data, bytes);
}

static void test_notifications_of_every_size(const struct instance *instance)
{
	static const size_t sizes[] = {0, 1, 7, 8, 4095, TERN_NOTE_MAX};
	static unsigned char data[TERN_NOTE_MAX + 1];
	struct ear ear = {0};
	struct call call = {0};
	struct pane pane;
	struct tern_note note = {data, sizeof(data)};

	pane_init(&pane, instance, NULL, SLAB, 1000);
	pane.meet->ends[B].on_note = on_any;
	pane.meet->ends[B].arg = &ear;
	call_init(&call, &pane.meet->ends[A]);
	assert_int_equal(tern_notify(pane.meet->ends[A].peer, &call.req, &note), -EINVAL);
	assert_int_equal(tern_notify(pane.meet->ends[A].peer, &call.req, NULL), -EINVAL);
	pattern_fill(data, sizeof(data), 3, 0);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(sizes); i++) {
		note.bytes = sizes[i];
		call_init(&call, &pane.meet->ends[A]);
		assert_int_equal(
			tern_notify(pane.meet->ends[A].peer, &call.req, &note), 0);
		MEET_PUMP(pane.meet, call_over(&call));
		assert_int_equal(call.req.status, 0);
		assert_int_equal(ear.count, i + 1);
		assert_int_equal(ear.bytes, sizes[i]);
		assert_true(pattern_holds(ear.data, ear.bytes, 3, 0));
	}
	pane_fini(&pane);
}

/* The callback frees the peer whose message it handles. */
static void free_it(struct end *end, const void *data, size_t bytes)
{
	(void)data;
	(void)bytes;
	tern_peer_free(end->peer);
	end->peer = NULL;
}

static void test_a_notification_may_free_its_peer(const struct instance *instance)
{
	struct call notes[20] = {0};
	struct saying saying = {0};
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, 1000);
	pane.meet->ends[B].on_note = free_it;
	MEET_PUMP(pane.meet, pane.meet->ends[B].peer);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(call_notify(&notes[i], &pane, &saying), 0);
	MEET_PUMP(pane.meet, calls_over(notes, 20) && pane.meet->ends[A].down_count);
	pane_fini(&pane);
}

/* A notification that waits for puts, and one that has not left, can be cancelled. */
static void test_a_cancelled_put_holds_up_no_notification(const struct instance *instance)
{
	struct call put = {0}, note = {0}, behind = {0};
	struct saying saying = {0};
	struct ledger ledger;
	struct tern_buf data;
	struct pane pane;

	pane_init(&pane, instance, NULL, SLAB, CELLS * CELL_BYTES);
	start(&pane, &ledger, false);
	data = pane_memory(&pane, A, SLAB, CELLS * CELL_BYTES);
	assert_int_equal(call_put(&put, &pane, &data, 0, NULL), 0);
	assert_int_equal(call_notify(&note, &pane, &saying), 0);
	assert_int_equal(call_notify(&behind, &pane, &saying), 0);
	tern_cancel(&note.req);
	tern_cancel(&put.req);
	MEET_PUMP(pane.meet, call_over(&put) && call_over(&note) && call_over(&behind));
	assert_int_equal(put.req.status, -ECANCELED);
	assert_int_equal(note.req.status, -ECANCELED);
	assert_int_equal(behind.req.status, 0);
	assert_int_equal(ledger.next, 1);
	pane_fini(&pane);
}

const struct conformance_test meet_notes[] = {
	CONFORMANCE(test_a_notification_comes_behind_all_puts_before_it, NEEDS_NOTHING),
	CONFORMANCE(test_a_cut_between_puts_and_a_notification, NEEDS_NOTHING),
	CONFORMANCE(test_a_note_comes_behind_its_own_put, NEEDS_NOTHING),
	CONFORMANCE(test_notifications_arrive_once_and_in_order, NEEDS_NOTHING),
	CONFORMANCE(test_notifications_of_every_size, NEEDS_NOTHING),
	CONFORMANCE(test_a_notification_may_free_its_peer, NEEDS_NOTHING),
	CONFORMANCE(test_a_cancelled_put_holds_up_no_notification, NEEDS_NOTHING),
	{0},
};
