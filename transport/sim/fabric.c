/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulator's network, an implementation of fabric.h: both ends ("sides") of a conn
 * are in one address space, and simulator events carry data between them. The simulated
 * network does everything that fabric.h allows, also what a real fabric does rarely, and
 * asserts that its callers respect fabric.h.
 *
 *     side: DIALLING -> UP -> ENDING (an event will end it)
 *                    -> ENDED (`ended` or `closed` was put into the inbox)
 *
 * A side that is DIALLING may also go to ENDING. A crash of its process ends a side in
 * any state at once. A side is kept until its `closed` was reported and no event refers
 * to it. Pieces of a put are written to the memory of the receiving side only until that
 * side is ENDED.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tern/context.h>

#include "transport/domain.h"
#include "transport/memory/mem.h"
#include "transport/sim/fabric.h"

/* ---- sides and their items ---- */

void sim_side_put(struct side *s)
{
	tern_assert(s->refs > 0);
	if (--s->refs > 0 || !s->reported)
		return;
	if (s->other)
		s->other->other = NULL;
	free(s);
}

static void free_item(struct item *i)
{
	if (i->side)
		sim_side_put(i->side);
	free(i->data);
	free(i);
}

struct item *sim_item_new(enum item_kind kind, struct side *side)
{
	struct item *i = calloc(1, sizeof(*i));

	tern_assert(i);
	i->kind = kind;
	i->side = side;
	if (side)
		side->refs++;
	tern_list_init(&i->node);
	return i;
}

/* Puts an event into the inbox of the side's port; the port's next poll reports it. */
void sim_post(struct item *i)
{
	struct sim_port *port = side_port(i->side);

	tern_list_push(&port->inbox, &i->node);
	tern_sim_rouse(port->process);
}

void sim_post_event(struct tern_sim_event *event)
{
	struct item *i = tern_container_of(event, struct item, event);
	bool alive = i->side->state == SIDE_UP ||
		     (i->side->state == SIDE_ENDING && i->side->status < 0);

	if (alive)
		sim_post(i);
	else
		free_item(i);
}

static bool is_b(const struct sim_port *port)
{
	return port->base.ops == &tern_sim_b_fabric_ops;
}

static struct side *new_side(struct sim_port *port)
{
	const struct tern_sim_opts *opts = tern_sim_opts(sim_of(port));
	struct side *s = calloc(1, sizeof(*s));

	tern_assert(s);
	s->base.port = &port->base;
	s->base.caps = is_b(port) ? opts->caps_b : opts->caps;
	s->base.eager_bytes = opts->eager_bytes;
	s->base.chunk_bytes = opts->chunk_bytes;
	s->base.bulk_bytes = is_b(port) ? 0 : opts->bulk_bytes;
	s->refs = 1; /* released when `closed` was reported */
	tern_list_init(&s->works);
	tern_list_init(&s->incoming);
	tern_list_push(&port->sides, &s->node);
	tern_list_push(tern_sim_conns(sim_of(port)), &s->of_sim);
	return s;
}

bool sim_is_up(const struct side *s)
{
	return s->state == SIDE_UP ||
	       (s->state == SIDE_ENDING && s->status < 0 && s->other);
}

/* ---- the end of a side ---- */

/* Stops all writes to this side's memory by puts in flight, and completes the withdraw()
 * calls that wait for these writes. */
static void stop_landing(struct side *s)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&s->incoming))) {
		const struct work *w = tern_list_entry(n, struct piece, node)->work;

		sim_window_landed(side_port(s), w->entry, w->generation);
	}
}

static void ended(struct side *s)
{
	if (s->state == SIDE_ENDED)
		return;
	s->state = SIDE_ENDED;
	stop_landing(s);
	sim_report_end(s);
}

void sim_report_end(struct side *s)
{
	bool read = s->reader_count && !tern_sim_crashed(side_port(s)->process);

	if (s->end_posted)
		return;
	s->end_posted = !read;
	sim_post(sim_item_new(read ? ITEM_ENDED : ITEM_CLOSED, s));
}

static void end_event(struct tern_sim_event *event)
{
	struct side *s = tern_container_of(event, struct side, end);

	ended(s);
	sim_side_put(s);
}

static void end_at(struct side *s, int status, uint64_t at_ns)
{
	if (s->state == SIDE_ENDING || s->state == SIDE_ENDED)
		return;
	s->state = SIDE_ENDING;
	s->status = status;
	s->end.happen = end_event;
	s->refs++;
	tern_sim_at(sim_of(side_port(s)), &s->end, at_ns);
}

static void sim_conn_close(struct tern_conn *conn, bool flush)
{
	struct side *s = side_of(conn);
	struct tern_sim *sim = sim_of(side_port(s));
	uint64_t there =
		flush ? TERN_MAX(s->last_ns, tern_sim_now_ns(sim)) + tern_sim_delay(sim)
		      : later(sim);

	if (s->other)
		end_at(s->other, -ECONNRESET, there);
	if (s->state == SIDE_ENDING && s->status < 0)
		/* The conn was about to end with an error. Since the caller now closes it
		 * too, `closed` reports status 0. */
		s->status = 0;
	else
		end_at(s, s->state == SIDE_UP ? 0 : -ECANCELED, later(sim));
}

bool tern_sim_cut(struct tern_sim *sim)
{
	struct tern_list *conns = tern_sim_conns(sim);
	uint64_t count = 0, chosen;

	tern_list_for_each (n, conns)
		count++;
	chosen = count ? tern_rng_below(tern_sim_rng(sim), count) : 0;
	tern_list_for_each (n, conns) {
		struct side *s = tern_list_entry(n, struct side, of_sim);

		if (chosen-- > 0)
			continue;
		if (s->state != SIDE_UP)
			return false;
		if (s->other)
			end_at(s->other, -ECONNRESET, later(sim) + tern_sim_delay(sim));
		end_at(s, -ECONNRESET, later(sim) + tern_sim_delay(sim));
		return true;
	}
	return false;
}

void tern_sim_fabric_break(struct tern_sim *sim)
{
	tern_list_for_each (n, tern_sim_conns(sim)) {
		struct side *s = tern_list_entry(n, struct side, of_sim);

		if (!is_b(side_port(s)))
			end_at(s, -ETIMEDOUT, later(sim) + tern_sim_delay(sim));
	}
}

static bool is_of(const struct side *s, const struct tern_sim_process *process)
{
	return side_port(s)->process == process;
}

void tern_sim_fabric_part(
	struct tern_sim_process *a, struct tern_sim_process *b, int status)
{
	struct tern_sim *sim = tern_sim_of(a);

	tern_list_for_each (n, tern_sim_conns(sim)) {
		struct side *s = tern_list_entry(n, struct side, of_sim);

		if (s->other && ((is_of(s, a) && is_of(s->other, b)) ||
					(is_of(s, b) && is_of(s->other, a))))
			end_at(s, status, later(sim));
	}
}

/* Ends what the process reads in place, also beyond the end of the conns. */
static void stop_reading(struct tern_sim_process *process)
{
	tern_list_for_each_safe (n, tern_sim_readings(tern_sim_of(process))) {
		struct reading *reading = tern_list_entry(n, struct reading, of_sim);

		if (reading->reader->process == process)
			sim_read_no_more(reading);
	}
}

void tern_sim_fabric_crash(struct tern_sim_process *process)
{
	struct tern_sim *sim = tern_sim_of(process);

	tern_list_for_each_safe (n, tern_sim_lsns(sim)) {
		struct sim_lsn *l = tern_list_entry(n, struct sim_lsn, node);

		if (port_of(l->base.port)->process == process)
			tern_list_remove(&l->node);
	}
	stop_reading(process);
	tern_list_for_each (n, tern_sim_conns(sim)) {
		struct side *s = tern_list_entry(n, struct side, of_sim);

		if (side_port(s)->process != process)
			continue;
		if (s->other)
			end_at(s->other,
				s->base.caps & TERN_CAP_BOUND ? -EPIPE : -ECONNRESET,
				later(sim));
		if (s->state != SIDE_ENDING && s->state != SIDE_ENDED)
			s->status = -ECONNRESET;
		ended(s);
	}
}

/* ---- connecting ---- */

/* Finds a listener on the same fabric as the port (sim or sim-b). */
static struct sim_lsn *find_lsn(struct sim_port *port, const char *address)
{
	tern_list_for_each (n, tern_sim_lsns(sim_of(port))) {
		struct sim_lsn *l = tern_list_entry(n, struct sim_lsn, node);

		if (l->base.port->ops == port->base.ops &&
			strcmp(l->address, address) == 0)
			return l;
	}
	return NULL;
}

static int sim_listen(struct tern_port *base, const char *address, struct tern_lsn **out)
{
	struct tern_sim *sim = sim_of(port_of(base));
	struct sim_lsn *l;

	if (!*address || strlen(address) >= sizeof(l->address))
		return -EINVAL;
	if (find_lsn(port_of(base), address))
		return -EADDRINUSE;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->base.port = base;
	strcpy(l->address, address);
	tern_list_push(tern_sim_lsns(sim), &l->node);
	*out = &l->base;
	return 0;
}

static const char *sim_lsn_address(struct tern_lsn *lsn)
{
	return tern_container_of(lsn, struct sim_lsn, base)->address;
}

static void sim_lsn_close(struct tern_lsn *lsn)
{
	struct sim_lsn *l = tern_container_of(lsn, struct sim_lsn, base);

	tern_list_remove(&l->node);
	tern_list_for_each (n, &port_of(lsn->port)->inbox) {
		struct item *i = tern_list_entry(n, struct item, node);

		if (i->lsn == l)
			i->lsn = NULL;
	}
	free(l);
}

static void up_event(struct tern_sim_event *event)
{
	struct side *s = tern_container_of(event, struct side, up);

	if (s->state == SIDE_DIALLING) {
		s->state = SIDE_UP;
		sim_post(sim_item_new(ITEM_UP, s));
	}
	sim_side_put(s);
}

static void arrive(struct tern_sim *sim, struct side *s, struct sim_lsn *l)
{
	struct side *other = new_side(port_of(l->base.port));
	struct item *i = sim_item_new(ITEM_ACCEPTED, other);
	uint64_t up_ns = later(sim);

	other->state = SIDE_UP;
	other->other = s;
	s->other = other;
	snprintf(other->base.name, sizeof(other->base.name), "sim %s",
		tern_sim_process_name(side_port(s)->process));
	i->lsn = l;
	sim_post(i);
	other->last_ns = up_ns; /* nothing arrives before `up` was reported */
	s->up.happen = up_event;
	s->refs++;
	tern_sim_at(sim, &s->up, up_ns);
}

static void connect_event(struct tern_sim_event *event)
{
	struct side *s = tern_container_of(event, struct side, connect);

	if (s->state == SIDE_DIALLING) { /* otherwise the port may no longer exist */
		struct tern_sim *sim = sim_of(side_port(s));
		struct sim_lsn *l = find_lsn(side_port(s), s->address);

		if ((tern_sim_broken(sim) && !is_b(side_port(s))) ||
			(l && tern_sim_parted(side_port(s)->process,
				      port_of(l->base.port)->process)))
			end_at(s, -EHOSTUNREACH, later(sim));
		else if (l && !tern_sim_dice(sim, tern_sim_opts(sim)->refuse_permille))
			arrive(sim, s, l);
		else
			end_at(s, -ECONNREFUSED, later(sim));
	}
	sim_side_put(s);
}

static uint64_t connect_at(struct tern_sim *sim)
{
	const struct tern_sim_opts *opts = tern_sim_opts(sim);
	uint64_t at_ns = later(sim);

	return opts->slow_permille && tern_sim_dice(sim, opts->slow_permille)
		       ? at_ns + 100 * opts->delay_max_ns
		       : at_ns;
}

static int sim_connect(
	struct tern_port *base, const char *address, struct tern_conn **out)
{
	struct sim_port *port = port_of(base);
	struct side *s;

	if (!*address || strlen(address) >= sizeof(s->address))
		return -EINVAL;
	s = new_side(port);
	strcpy(s->address, address);
	snprintf(s->base.name, sizeof(s->base.name), "sim %s", address);
	s->connect.happen = connect_event;
	s->refs++;
	tern_sim_at(sim_of(port), &s->connect, connect_at(sim_of(port)));
	*out = &s->base;
	return 0;
}

/* ---- poll ---- */

static void end_works(struct side *s)
{
	struct tern_list *n;

	while ((n = tern_list_pop(&s->works))) {
		struct work *w = tern_list_entry(n, struct work, node);

		sim_work_cut(w);
		w->op->done(w->op, -ECONNRESET);
		sim_work_put(w);
	}
}

static void report_ended(struct side *s)
{
	const struct tern_port_handler *handler = s->base.port->handler;

	end_works(s);
	if (handler->ended)
		handler->ended(s->base.port->handler_arg, &s->base, s->status);
}

static void report_closed(struct side *s)
{
	struct sim_port *port = side_port(s);

	end_works(s);
	tern_list_remove(&s->node);
	tern_list_remove(&s->of_sim);
	port->base.handler->closed(port->base.handler_arg, &s->base, s->status);
	s->reported = true;
	sim_side_put(s);
}

static void report(struct sim_port *port, struct item *i)
{
	const struct tern_port_handler *handler = port->base.handler;
	void *arg = port->base.handler_arg;
	struct side *s = i->side;
	int r;

	if (i->kind == ITEM_DONE) {
		i->op->done(i->op, i->status);
		return;
	}
	if (i->kind == ITEM_ENDED || i->kind == ITEM_CLOSED) {
		(i->kind == ITEM_ENDED ? report_ended : report_closed)(s);
		return;
	}
	if (s->reported || s->refused || (s->state == SIDE_ENDING && s->status == 0))
		return;
	switch (i->kind) {
	case ITEM_ACCEPTED:
		if (i->lsn)
			handler->accepted(arg, &i->lsn->base, &s->base);
		else
			sim_conn_close(&s->base, false);
		break;
	case ITEM_UP:
		handler->up(arg, &s->base);
		break;
	case ITEM_MESSAGE:
		r = handler->message(arg, &s->base, i->data, i->bytes);
		s->refused = r != 0;
		if (r && s->state == SIDE_UP) {
			if (s->other)
				end_at(s->other, -ECONNRESET, later(sim_of(port)));
			end_at(s, r, later(sim_of(port)));
		}
		break;
	case ITEM_WRITABLE:
		handler->writable(arg, &s->base);
		break;
	case ITEM_DONE:
	case ITEM_ENDED:
	case ITEM_CLOSED:
		break;
	}
}

/* Ends the conns of the port that wait for their end event, or for a peer that reads in
 * place, without this wait: while a context is being freed it polls without virtual time
 * passing, so events would never occur. */
static void end_all(struct sim_port *port)
{
	tern_list_for_each (n, &port->sides) {
		struct side *s = tern_list_entry(n, struct side, node);

		if (s->state == SIDE_ENDING)
			ended(s);
		if (s->state == SIDE_ENDED && s->reader_count) {
			/* Do not wait for the peer that reads in place. */
			s->reader_count = 0;
			sim_report_end(s);
		}
	}
}

static int sim_poll(struct tern_port *base, int budget)
{
	struct sim_port *port = port_of(base);
	struct tern_sim *sim = sim_of(port);
	struct tern_list *n;
	int count = 0;

	while (count < budget && (n = tern_list_pop(&port->inbox))) {
		struct item *i = tern_list_entry(n, struct item, node);

		tern_sim_trace(sim, (uint64_t)i->kind << 32 | i->bytes);
		report(port, i);
		free_item(i);
		count++;
	}
	if (count || port->idle_ns != tern_sim_now_ns(sim)) {
		port->idle_ns = tern_sim_now_ns(sim);
		port->idle_polls = 0;
	} else if (++port->idle_polls > PATIENCE) {
		end_all(port);
	}
	return count;
}

static int sim_arm(struct tern_port *base)
{
	return tern_list_empty(&port_of(base)->inbox) ? 0 : -EAGAIN;
}

static int sim_fd(struct tern_port *base)
{
	(void)base;
	return -1;
}

/* ---- fabric and port ---- */

static int sim_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	struct sim_fabric *f;

	(void)opts;
	if (!domain->hooks.sim) {
		*why = "only in the simulator";
		return -ENODEV;
	}
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	f->process = domain->hooks.sim;
	tern_list_init(&f->ports);
	*out = &f->base;
	return 0;
}

static void sim_close(struct tern_fabric *fabric)
{
	free(tern_container_of(fabric, struct sim_fabric, base));
}

static int sim_mem_register(struct tern_fabric *fabric, struct tern_mem *mem, void **reg)
{
	(void)fabric;
	(void)mem;
	*reg = NULL;
	return 0;
}

/* Asserts that memory which peers may still access is not unregistered. */
static void sim_mem_unregister(
	struct tern_fabric *fabric, struct tern_mem *mem, void *reg)
{
	struct sim_fabric *f = tern_container_of(fabric, struct sim_fabric, base);

	(void)reg;
	tern_list_for_each (n, &f->ports) {
		struct sim_port *port = tern_list_entry(n, struct sim_port, node);

		for (uint32_t i = 0; i < WINDOWS_MAX; i++)
			tern_assert(
				!port->windows[i].used || port->windows[i].mem != mem);
	}
}

static int sim_port_new(struct tern_fabric *fabric, const struct tern_port_opts *opts,
	struct tern_port **out)
{
	struct sim_fabric *f = tern_container_of(fabric, struct sim_fabric, base);
	struct sim_port *port = calloc(1, sizeof(*port));

	if (!port)
		return -ENOMEM;
	port->base = (struct tern_port){.ops = fabric->ops,
		.fabric = fabric,
		.env = opts->env,
		.handler = opts->handler,
		.handler_arg = opts->arg,
		.message_bytes = opts->message_bytes};
	port->process = f->process;
	/* The fabrics sim and sim-b use different generations, so a region of one never
	 * matches a window of the other. */
	for (uint32_t i = 0; is_b(port) && i < WINDOWS_MAX; i++)
		port->windows[i].generation = 1u << 31;
	tern_list_init(&port->sides);
	tern_list_init(&port->inbox);
	tern_list_init(&port->peeks);
	tern_list_push(&f->ports, &port->node);
	*out = &port->base;
	return 0;
}

/* Drops conns that arrived after their listener was closed. The layer above never got to
 * know them, so no `closed` is reported. */
static void drop_strangers(struct sim_port *port)
{
	tern_list_for_each_safe (n, &port->sides) {
		struct side *s = tern_list_entry(n, struct side, node);

		if (s->base.user || s->state != SIDE_ENDING)
			continue;
		s->state = SIDE_ENDED;
		s->reported = true;
		tern_list_remove(&s->node);
		tern_list_remove(&s->of_sim);
		sim_side_put(s);
	}
}

static void sim_port_free(struct tern_port *base)
{
	struct sim_port *port = port_of(base);
	struct tern_list *n;

	drop_strangers(port);
	tern_assert(tern_list_empty(&port->sides));
	for (uint32_t i = 0; i < WINDOWS_MAX; i++)
		tern_assert(!port->windows[i].used);
	tern_assert(tern_list_empty(&port->peeks));
	while ((n = tern_list_pop(&port->inbox)))
		free_item(tern_list_entry(n, struct item, node));
	tern_list_remove(&port->node);
	free(port);
}

#define SIM_OPS(fabric_name)                                                             \
	{                                                                                \
		.name = fabric_name, .simulated = true, .open = sim_open,                \
		.close = sim_close, .mem_register = sim_mem_register,                    \
		.mem_unregister = sim_mem_unregister, .port_new = sim_port_new,          \
		.port_free = sim_port_free, .listen = sim_listen,                        \
		.lsn_address = sim_lsn_address, .lsn_close = sim_lsn_close,              \
		.connect = sim_connect, .conn_close = sim_conn_close, .send = sim_send,  \
		.put = sim_put, .get = sim_get, .peek = sim_peek, .unpeek = sim_unpeek,  \
		.expose = sim_expose, .withdraw = sim_withdraw, .poll = sim_poll,        \
		.arm = sim_arm, .fd = sim_fd,                                            \
	}

const struct tern_fabric_ops tern_sim_fabric_ops = SIM_OPS("sim");
const struct tern_fabric_ops tern_sim_b_fabric_ops = SIM_OPS("sim-b");
