/* SPDX-License-Identifier: Apache-2.0 */
/* Data on the simulator's connections: messages, puts, gets and peeks. A put arrives in
 * pieces, in any order, before anything that was sent after it; a get reads at some later
 * time; messages, puts, gets and exposures fail with -EAGAIN at random. With
 * TERN_CAP_WINDOW_PUT a message does not wait for puts before it. */
#include <errno.h>
#include <string.h>

#include "transport/memory/mem.h"
#include "transport/sim/fabric.h"

void sim_work_put(struct work *w)
{
	if (--w->refs > 0)
		return;
	sim_side_put(w->side);
	free(w->snapshot);
	free(w);
}

static void take_snapshot(struct work *w)
{
	w->snapshot = malloc(w->bytes);
	tern_assert(w->snapshot);
	memcpy(w->snapshot, tern_mem_at(w->mem, w->offset), w->bytes);
}

void sim_work_cut(struct work *w)
{
	if (w->piece_count && !w->snapshot)
		take_snapshot(w);
}

/* ---- windows ---- */

static struct window *window_at(
	struct sim_port *port, uint32_t entry, uint32_t generation)
{
	struct window *w = entry < WINDOWS_MAX ? &port->windows[entry] : NULL;

	return w && w->generation == generation && w->used ? w : NULL;
}

static void window_free(struct window *w)
{
	w->used = w->withdrawn = false;
	w->generation++;
	w->landing = 0;
}

/* Counts a piece of a put that has arrived in a window, or that will never arrive. */
void sim_window_landed(struct sim_port *port, uint32_t entry, uint32_t generation)
{
	struct window *w = window_at(port, entry, generation);
	struct item *i;

	if (!w)
		return;
	tern_assert(w->landing > 0);
	if (--w->landing > 0 || !w->withdrawn)
		return;
	i = sim_item_new(ITEM_DONE, NULL);
	i->op = w->op;
	window_free(w);
	tern_list_push(&port->inbox, &i->node);
	tern_sim_rouse(port->process);
}

static bool has_no_room(struct side *s);

int sim_expose(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	struct sim_port *port = side_port(side_of(conn));

	tern_assert(conn->owner && (bytes == 0 || tern_mem_holds(mem, offset, bytes)));
	if (mem && mem->kind != TERN_MEM_HOST)
		return -ENOTSUP;
	if (has_no_room(side_of(conn)))
		return -EAGAIN;
	for (uint32_t i = 0; i < WINDOWS_MAX; i++) {
		struct window *w = &port->windows[i];

		if (w->used)
			continue;
		*w = (struct window){.generation = w->generation,
			.used = true,
			.owner = conn->owner,
			.mem = mem,
			.offset = offset,
			.bytes = bytes,
			.access = access};
		*out = (struct tern_region){.word = {i, w->generation, bytes}};
		return 0;
	}
	return -EAGAIN;
}

int sim_withdraw(
	struct tern_port *base, struct tern_op *op, const struct tern_region *region)
{
	struct sim_port *port = port_of(base);
	struct window *w =
		window_at(port, (uint32_t)region->word[0], (uint32_t)region->word[1]);

	tern_assert(w && !w->withdrawn);
	if (w->landing > 0 && tern_sim_dice(sim_of(port), 500)) {
		w->withdrawn = true;
		w->op = op;
		return -EINPROGRESS;
	}
	window_free(w);
	return 0;
}

/* ---- sending ---- */

static void writable_event(struct tern_sim_event *event)
{
	struct item *i = tern_container_of(event, struct item, event);

	i->side->wants_room = false;
	sim_post_event(event);
}

/* True: the calling function must return -EAGAIN, which is decided at random; `writable`
 * follows. */
static bool has_no_room(struct side *s)
{
	struct tern_sim *sim = sim_of(side_port(s));
	struct item *i;

	if (!s->wants_room && !tern_sim_dice(sim, tern_sim_opts(sim)->eagain_permille))
		return false;
	if (!s->wants_room) {
		s->wants_room = true;
		i = sim_item_new(ITEM_WRITABLE, s);
		i->event.happen = writable_event;
		tern_sim_at(sim, &i->event, later(sim));
	}
	return true;
}

int sim_send(struct tern_conn *conn, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes)
{
	struct side *s = side_of(conn);
	struct sim_port *port = side_port(s);
	struct tern_sim *sim = sim_of(port);
	struct item *i;

	tern_assert(head_bytes % 8 == 0 &&
		    head_bytes + payload_bytes <= port->base.message_bytes);
	if (!sim_is_up(s) || !s->other)
		return -ENOTCONN;
	if (has_no_room(s))
		return -EAGAIN;
	i = sim_item_new(ITEM_MESSAGE, s->other);
	i->bytes = head_bytes + payload_bytes;
	i->data = aligned_alloc(64, tern_align_up(i->bytes + 1, 64));
	tern_assert(i->data);
	memcpy(i->data, head, head_bytes);
	if (payload_bytes)
		memcpy((char *)i->data + head_bytes, payload, payload_bytes);
	i->event.happen = sim_post_event;
	s->last_ns = TERN_MAX(s->last_ns, later(sim));
	tern_sim_at(sim, &i->event, s->last_ns);
	return 0;
}

static struct work *new_work(struct side *s, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct work *w = calloc(1, sizeof(*w));

	tern_assert(w);
	*w = (struct work){.side = s,
		.op = op,
		.mem = mem,
		.offset = offset,
		.bytes = bytes,
		.remote_offset = remote_offset,
		.entry = (uint32_t)remote->word[0],
		.generation = (uint32_t)remote->word[1],
		.refs = 1};
	s->refs++;
	op->conn = &s->base;
	tern_list_push(&s->works, &w->node);
	return w;
}

/* Completes the op of a put, get or peek: the next poll calls its done(). */
static void work_done_event(struct tern_sim_event *event)
{
	struct work *w = tern_container_of(event, struct work, done);

	if (tern_list_linked(&w->node) && w->side->state != SIDE_ENDED) {
		struct item *i = sim_item_new(ITEM_DONE, w->side);

		tern_list_remove(&w->node);
		i->op = w->op;
		sim_post(i);
		sim_work_put(w);
	}
	sim_work_put(w);
}

static void finish_at(struct work *w, uint64_t at_ns)
{
	w->refs++;
	w->done.happen = work_done_event;
	tern_sim_at(sim_of(side_port(w->side)), &w->done, at_ns);
}

/* The window that a put or get refers to; NULL: it was withdrawn, or the other end has
 * ended. */
static struct window *target(struct work *w)
{
	struct side *other = w->side->other;
	struct window *window;

	if (!other || other->state == SIDE_ENDED)
		return NULL;
	window = window_at(side_port(other), w->entry, w->generation);
	/* The other end may not have set the conn's owner yet: it sets the owner when it
	 * handles a message that was sent earlier and may still be in its inbox. */
	if (window)
		tern_assert((!other->base.owner || window->owner == other->base.owner) &&
			    w->remote_offset + w->bytes <= window->bytes);
	return window;
}

static void land(struct tern_sim_event *event)
{
	struct piece *p = tern_container_of(event, struct piece, event);
	struct work *w = p->work;
	struct window *window = target(w);

	if (tern_list_linked(&p->node)) {
		tern_list_remove(&p->node);
		if (window) {
			const char *from = w->snapshot ? (char *)w->snapshot
						       : tern_mem_at(w->mem, w->offset);

			tern_assert(window->access & TERN_ACCESS_WRITE);
			memcpy(tern_mem_at(window->mem,
				       window->offset + w->remote_offset + p->from),
				from + p->from, p->bytes);
			w->landed_count++;
		}
		sim_window_landed(side_port(w->side->other), w->entry, w->generation);
	}
	sim_work_put(w);
}

/* A put of a fabric that says when a put has landed. One that has not, since its connection
 * has ended at the other end, is completed when this end has ended too. */
static void landed(struct tern_sim_event *event)
{
	struct work *w = tern_container_of(event, struct work, done);

	if (w->landed_count == w->piece_count)
		work_done_event(event);
	else
		sim_work_put(w);
}

static void schedule_pieces(struct work *w, uint64_t *end_ns)
{
	struct tern_sim *sim = sim_of(side_port(w->side));
	struct window *window = target(w);
	uint64_t from = 0;

	w->piece_count = 1 + (unsigned)tern_rng_below(tern_sim_rng(sim), PIECES_MAX);
	for (unsigned i = 0; i < w->piece_count; i++) {
		struct piece *p = &w->pieces[i];
		uint64_t left = w->bytes - from;
		uint64_t at = TERN_MAX(w->side->last_ns, tern_sim_now_ns(sim)) +
			      tern_sim_delay(sim);

		p->work = w;
		p->from = from;
		p->bytes = i + 1 == w->piece_count
				   ? left
				   : tern_rng_below(tern_sim_rng(sim), left + 1);
		from += p->bytes;
		p->event.happen = land;
		w->refs++;
		tern_list_init(&p->node);
		if (window) {
			window->landing++;
			tern_list_push(&w->side->other->incoming, &p->node);
		}
		tern_sim_at(sim, &p->event, at);
		*end_ns = TERN_MAX(*end_ns, at);
	}
}

int sim_put(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct side *s = side_of(conn);
	struct tern_sim *sim = sim_of(side_port(s));
	uint64_t end_ns = tern_sim_now_ns(sim);
	struct work *w;

	tern_assert(bytes > 0 && tern_mem_holds(mem, offset, bytes));
	if (!sim_is_up(s))
		return -ENOTCONN;
	if (has_no_room(s))
		return -EAGAIN;
	w = new_work(s, op, mem, offset, bytes, remote, remote_offset);
	if (tern_sim_dice(sim, 500))
		take_snapshot(w);
	schedule_pieces(w, &end_ns);
	if (!(conn->caps & TERN_CAP_WINDOW_PUT))
		s->last_ns = TERN_MAX(s->last_ns, end_ns);
	if (conn->caps & TERN_CAP_LANDS) {
		finish_at(w, end_ns);
		w->done.happen = landed;
	} else {
		finish_at(w, w->snapshot ? later(sim) : end_ns);
	}
	return 0;
}

static void read_now(struct tern_sim_event *event)
{
	struct work *w = tern_container_of(event, struct work, done);
	struct window *window = target(w);

	if (window && tern_list_linked(&w->node)) {
		tern_assert(window->access & TERN_ACCESS_READ);
		memcpy(tern_mem_at(w->mem, w->offset),
			tern_mem_at(window->mem, window->offset + w->remote_offset),
			w->bytes);
		work_done_event(event);
		return;
	}
	/* The other end has ended or has withdrawn the window: end_works() completes the
	 * op when this end has ended too. Or the op is completed already. */
	sim_work_put(w);
}

int sim_get(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	struct side *s = side_of(conn);
	struct work *w;

	tern_assert(bytes > 0 && tern_mem_holds(mem, offset, bytes));
	if (!sim_is_up(s))
		return -ENOTCONN;
	if (has_no_room(s))
		return -EAGAIN;
	w = new_work(s, op, mem, offset, bytes, remote, remote_offset);
	finish_at(w, later(sim_of(side_port(s))));
	w->done.happen = read_now;
	return 0;
}

static void begin_reading(struct sim_port *port, struct side *owner, const void *data)
{
	struct reading *reading = calloc(1, sizeof(*reading));

	tern_assert(reading);
	reading->reader = port;
	reading->owner = owner;
	reading->data = data;
	owner->refs++;
	owner->reader_count++;
	tern_list_push(&port->peeks, &reading->node);
	tern_list_push(tern_sim_readings(sim_of(port)), &reading->of_sim);
}

int sim_peek(struct tern_conn *conn, struct tern_op *op, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, const void **out)
{
	struct side *s = side_of(conn);
	struct tern_sim *sim = sim_of(side_port(s));
	struct window *window;

	if (!sim_is_up(s) || s->other->state == SIDE_ENDED)
		return -ENOTCONN;
	if (tern_sim_dice(sim, 100))
		return -ENOTSUP;
	if (tern_sim_dice(sim, 300)) {
		struct work *w = new_work(s, op, NULL, 0, 0, remote, 0);

		finish_at(w, later(sim));
		return -EAGAIN;
	}
	window = window_at(side_port(s->other), (uint32_t)remote->word[0],
		(uint32_t)remote->word[1]);
	tern_assert(window && remote_offset + bytes <= window->bytes);
	*out = tern_mem_at(window->mem, window->offset + remote_offset);
	begin_reading(side_port(s), s->other, *out);
	return 0;
}

void sim_read_no_more(struct reading *reading)
{
	struct side *owner = reading->owner;

	tern_list_remove(&reading->node);
	tern_list_remove(&reading->of_sim);
	free(reading);
	if (owner->reader_count && --owner->reader_count == 0 &&
		owner->state == SIDE_ENDED)
		sim_report_end(owner);
	sim_side_put(owner);
}

void sim_unpeek(struct tern_port *port, const void *data)
{
	tern_list_for_each (n, &port_of(port)->peeks) {
		struct reading *reading = tern_list_entry(n, struct reading, node);

		if (reading->data != data)
			continue;
		sim_read_no_more(reading);
		return;
	}
	/* unpeek() of an unknown pointer is correct only after a crash of this process,
	 * which has ended all its peeks. */
	tern_assert(tern_sim_crashed(port_of(port)->process));
}
