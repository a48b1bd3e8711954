/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario: more peers dial a server at the same time than it admits to the handshake at
 * once. They do so at the start, again when the network of all of them works again after
 * a failure, and again after every connection was cut. The dialling ends are in one
 * process or in many, over a short or a long network path, and processes are stalled now
 * and then. Each dialling end must connect each time, and what it sends must arrive.
 */
#include "tests/system/sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <tern/channel.h>

#include "base/clock.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "transport/context.h"
#include "transport/sim/sim.h"

#define DIALLERS 1000u
#define KEY      7u
#define LIMIT_NS (20 * TERN_NS_PER_S)
#define BREAK_NS (100 * TERN_NS_PER_MS)
#define STALL_NS (50 * TERN_NS_PER_MS)

struct world;

struct process {
	struct tern_sim_process *sim;
	struct tern_context *ctx;
};

/* One end of a connection. The dialling end sends tensors, the other end receives
 * them. */
struct end {
	struct world *world;
	struct tern_peer *peer;
	struct tern_channel *channel;
	struct tern_req req;
	uint64_t step;
};

struct world {
	struct tern_sim *sim;
	struct process server, clients[DIALLERS];
	unsigned client_count;
	struct end dialled[DIALLERS], accepted[2 * DIALLERS];
	unsigned accepted_count, down_count, heard_count, heard_goal;
	int down_status;
	unsigned stall_permille;
	struct tern_listener *listener;
};

/* An empty tensor: the scenario only counts how many arrive. */
static const struct tern_tensor *nothing(void)
{
	static struct tern_tensor tensor;

	tensor.shape = tern_shape_1d(TERN_U8, 0);
	return &tensor;
}

static void receive(struct end *e);

static void heard(struct tern_req *req)
{
	struct end *e = req->arg;

	if (req->status)
		return;
	e->world->heard_count++;
	e->step++;
	receive(e);
}

static void receive(struct end *e)
{
	e->req.done = heard;
	e->req.arg = e;
	if (tern_recv(e->channel, &e->req, KEY, e->step, &nothing()->buf, NULL, 0) < 0)
		tern_never("a receive of the server");
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;
	struct end *e = &w->accepted[w->accepted_count++];

	tern_assert(w->accepted_count < TERN_ARRAY_SIZE(w->accepted));
	e->world = w;
	e->peer = peer;
	if (tern_channel_open(peer, 1, &e->channel) < 0)
		tern_never("a channel of the server");
	receive(e);
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct world *w = arg;

	(void)peer;
	if (event != TERN_PEER_DOWN)
		return;
	w->down_count++;
	w->down_status = status;
}

static void process_init(struct world *w, struct process *p, const char *name)
{
	p->sim = tern_sim_process_new(w->sim, name);
	if (tern_context_new_in(
		    tern_sim_domain(p->sim), NULL, tern_sim_env(p->sim), &p->ctx) < 0)
		tern_never("a process of the arrivals");
	p->ctx->first_seq = UINT32_MAX - 1;
	tern_sim_drive(p->sim, p->ctx);
}

static void process_fini(struct process *p)
{
	tern_sim_forget(p->sim, p->ctx);
	tern_context_free(p->ctx);
	tern_sim_process_free(p->sim);
}

static void say(struct end *e)
{
	e->req.arg = e;
	if (tern_send(e->channel, &e->req, KEY, e->step++, nothing(), NULL, 0) < 0)
		tern_never("a send of a dialler");
}

static void dial(struct world *w, unsigned i)
{
	struct end *e = &w->dialled[i];
	const struct tern_peer_opts opts = {.event = on_event, .arg = w};

	e->world = w;
	if (tern_connect(w->clients[i % w->client_count].ctx, "sim://door", &opts,
		    &e->peer) < 0 ||
		tern_channel_open(e->peer, 1, &e->channel) < 0)
		tern_never("a dialler");
	say(e);
}

/* Stalls a random process (it executes nothing) for a while. */
static void stand_still(struct world *w)
{
	uint64_t which = tern_rng_below(tern_sim_rng(w->sim), 2 * w->client_count);
	struct process *p = which < w->client_count ? &w->clients[which] : &w->server;

	tern_sim_stall(p->sim, tern_rng_below(tern_sim_rng(w->sim), STALL_NS));
}

static bool all_are_heard(void *arg)
{
	struct world *w = arg;

	if (tern_sim_dice(w->sim, w->stall_permille))
		stand_still(w);
	return w->down_count || w->heard_count >= w->heard_goal;
}

/* Waits until one more tensor of every dialling end has arrived. Returns false if one
 * does not, or if a dialling end goes down. `when` is for the error message. */
static bool hear_all(struct world *w, const char *when)
{
	w->heard_goal += DIALLERS;
	tern_sim_run(w->sim, all_are_heard, w, LIMIT_NS);
	if (!w->down_count && w->heard_count == w->heard_goal)
		return true;
	fprintf(stderr, "arrivals: %s: %u of %u heard, a dialler is down with %d\n", when,
		w->heard_count, w->heard_goal, w->down_status);
	return false;
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static bool come_back(struct world *w)
{
	tern_sim_break(w->sim, true);
	tern_sim_run(w->sim, never, w, BREAK_NS);
	tern_sim_break(w->sim, false);
	for (unsigned i = 0; i < DIALLERS; i++)
		say(&w->dialled[i]);
	return hear_all(w, "after a network failure");
}

/* Cuts all connections and stalls the server: all dialling ends must reconnect within the
 * server's reconnect_ns. */
static bool come_back_at_once(struct world *w)
{
	for (unsigned i = 0; i < w->accepted_count; i++)
		tern_peer_cut(w->accepted[i].peer, -ECONNRESET);
	tern_sim_stall(w->server.sim, STALL_NS);
	for (unsigned i = 0; i < DIALLERS; i++)
		say(&w->dialled[i]);
	return hear_all(w, "after all connections were cut");
}

bool scenario_arrivals(uint64_t seed, bool verbose, uint64_t *hash)
{
	static const uint64_t delays_ns[] = {
		50 * TERN_NS_PER_US, 5 * TERN_NS_PER_MS, 50 * TERN_NS_PER_MS};
	static const unsigned processes[] = {1, 10, DIALLERS};
	uint64_t delay_ns = delays_ns[seed % 3];
	struct tern_sim_opts opts = {.seed = seed,
		.delay_min_ns = delay_ns / 2,
		.delay_max_ns = delay_ns,
		.eagain_permille = 20,
		.log = verbose ? print_line : NULL};
	struct world *w = calloc(1, sizeof(*w));
	bool good;

	tern_assert(w);
	w->sim = tern_sim_new(&opts);
	w->client_count = processes[seed / 3 % 3];
	w->stall_permille = seed % 2 ? 5 : 0;
	process_init(w, &w->server, "server");
	tern_listen(w->server.ctx, "sim://door", NULL, on_accept, w, &w->listener);
	for (unsigned i = 0; i < w->client_count; i++) {
		char name[24];

		snprintf(name, sizeof(name), "client-%u", i);
		process_init(w, &w->clients[i], name);
	}
	for (unsigned i = 0; i < DIALLERS; i++)
		dial(w, i);
	good = hear_all(w, "at the start") && come_back(w) && come_back_at_once(w);
	for (unsigned i = 0; i < w->client_count; i++)
		process_fini(&w->clients[i]);
	process_fini(&w->server);
	*hash = tern_sim_hash(w->sim);
	tern_sim_free(w->sim);
	free(w);
	return good;
}
