/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario: a receiver takes tensors of a few triples (channel, key, step) from several
 * senders, by tern_recv_any() beside receives from one sender, while connections are cut,
 * processes are stalled, a sender crashes, and receives are cancelled. The senders post
 * all that they send soon, so many sends have no credit.
 *
 * Each tensor says who has sent it and its number. Whatever happens, the receives of a
 * triple that one sender has served have, in the order of posting, increasing numbers: no
 * tensor arrives twice, and none overtakes. If nobody crashes, none is lost. A receive from
 * any sender may end with an error only as include/tern/channel.h says.
 */
#include "tests/system/sim/scenario.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/channel.h>

#include "base/clock.h"
#include "base/util.h"
#include "tests/harness/pattern.h"
#include "transport/context.h"
#include "transport/sim/sim.h"

enum {
	SENDERS_MAX = 5,
	ASKED_MAX = 2 * SENDERS_MAX,
	SENDS = 160,
	TRIPLES = 40,
	RECVS = 24
};
#define BYTES_MAX 3000u
#define STEP_NS   (20 * TERN_NS_PER_US)
#define CALM_NS   (TERN_NS_PER_S / 2)
#define LIMIT_NS  (3 * TERN_NS_PER_S)

/* The first bytes of each tensor; a pattern follows. */
struct label {
	uint32_t sender, triple, number, bytes;
};

struct world;
struct sender;

struct send {
	struct tern_req req;
	struct sender *sender;
	struct tern_buf buf;
	unsigned triple;
};

struct sender {
	struct world *world;
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_mem *mem;
	unsigned char *bytes;
	struct tern_peer *peer, *served; /* here, and at the receiver */
	struct tern_channel *channel, *source;
	struct send sends[SENDS];
	unsigned posted, failed; /* `failed`: sends that ended with an error */
	unsigned count_of[TRIPLES], failed_of[TRIPLES];
	/* At the receiver: */
	unsigned received, seen_of[TRIPLES];
	bool down, crashed, blamed; /* blamed: a request has ended since it is gone */
};

struct recv {
	struct tern_req req;
	struct world *world;
	struct tern_buf room;
	int from; /* the sender; -1: any */
	unsigned triple;
	/* Any: the senders that were asked, in this order. */
	unsigned asked[ASKED_MAX], asked_count;
	bool posted, cancelled, needs_all;
	uint64_t order; /* of posting */
};

struct world {
	struct tern_sim *sim;
	struct sender senders[SENDERS_MAX];
	unsigned sender_count;
	struct tern_sim_process *process;
	struct tern_context *ctx;
	struct tern_mem *mem;
	unsigned char *bytes;
	struct tern_listener *listener;
	struct recv recvs[RECVS];
	uint64_t next_ns, calm_ns, order;
	unsigned cut_permille, stall_permille, crash_permille, cancel_permille;
	unsigned one_in; /* a receive that has ended is posted again in so many steps */
	bool crashed, failed, draining;
	/* For each sender and triple, the tensors that were received, by the order in which
	 * their receives were posted: number + 1. */
	struct {
		uint64_t order;
		uint32_t number;
	} ledger[SENDERS_MAX][TRIPLES][SENDS];
};

#define FAIL(w, ...)                                                                     \
	do {                                                                             \
		fprintf(stderr, "any: " __VA_ARGS__);                                    \
		fprintf(stderr, "\n");                                                   \
		(w)->failed = true;                                                      \
	} while (0)

static uint64_t below(struct world *w, uint64_t limit)
{
	return tern_rng_below(tern_sim_rng(w->sim), limit);
}

/* Seed of what follows the label. */
static uint64_t seed_of(const struct label *label)
{
	return (uint64_t)label->sender << 32 | label->number;
}

/* ---- senders ---- */

static void sent(struct tern_req *req)
{
	struct send *send = req->arg;
	struct sender *s = send->sender;

	s->failed += req->status != 0;
	s->failed_of[send->triple] += req->status != 0;
	s->blamed |= req->status && req->status != -ECANCELED;
}

static void post_send(struct sender *s)
{
	struct world *w = s->world;
	unsigned i = s->posted++, triple = (unsigned)below(w, TRIPLES);
	struct send *send = &s->sends[i];
	struct label label = {.sender = (uint32_t)(s - w->senders),
		.triple = triple,
		.number = s->count_of[triple]++,
		.bytes = (uint32_t)(sizeof(struct label) + below(w, BYTES_MAX))};
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, label.bytes)};
	unsigned char *bytes = s->bytes + i * (BYTES_MAX + sizeof(label));

	memcpy(bytes, &label, sizeof(label));
	pattern_fill(
		bytes + sizeof(label), label.bytes - sizeof(label), seed_of(&label), 0);
	send->buf = (struct tern_buf){.mem = s->mem,
		.offset = i * (BYTES_MAX + sizeof(label)),
		.bytes = label.bytes};
	tensor.buf = send->buf;
	send->sender = s;
	send->triple = triple;
	send->req = (struct tern_req){.done = sent, .arg = send};
	if (tern_send(s->channel, &send->req, triple, 1, &tensor, NULL, 0) < 0)
		tern_never("a send");
}

static void on_sender_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct sender *s = arg;

	(void)peer;
	if (event != TERN_PEER_DOWN)
		return;
	s->down = true;
	if (!s->crashed && !s->world->stall_permille)
		FAIL(s->world, "a sender's peer went down with %d", status);
}

/* ---- the receiver ---- */

static void enter_in_ledger(struct recv *r, const struct label *label)
{
	struct world *w = r->world;
	struct sender *s = &w->senders[label->sender];
	unsigned at = s->seen_of[r->triple]++;

	s->received++;
	if (label->number >= s->count_of[r->triple] || at >= SENDS) {
		FAIL(w, "sender %u, triple %u: there is no number %u", label->sender,
			r->triple, label->number);
		return;
	}
	w->ledger[label->sender][r->triple][at].order = r->order;
	w->ledger[label->sender][r->triple][at].number = label->number;
}

static void check_tensor(struct recv *r, unsigned source)
{
	const unsigned char *bytes = r->req.data;
	struct world *w = r->world;
	struct label label;
	bool good;

	memcpy(&label, bytes, sizeof(label));
	good = label.sender == source && label.triple == r->triple &&
	       label.bytes == r->req.bytes &&
	       pattern_holds(bytes + sizeof(label), label.bytes - sizeof(label),
		       seed_of(&label), 0);
	if (!good)
		FAIL(w, "sender %u, triple %u: a tensor of sender %u, triple %u", source,
			r->triple, label.sender, label.triple);
	else
		enter_in_ledger(r, &label);
}

/* A receive has ended with an error. If it was not cancelled, it must name a sender that is
 * gone: it was matched with that one, needs all, or has lost the last one. The event DOWN
 * comes after the ends of requests. */
static void blame(struct recv *r, int source)
{
	if (r->req.status == -ECANCELED && r->cancelled)
		return;
	if (source < 0)
		FAIL(r->world, "a receive of triple %u ended with %d", r->triple,
			r->req.status);
	else
		r->world->senders[source].blamed = true;
}

static void received(struct tern_req *req)
{
	struct recv *r = req->arg;
	int source = r->from;

	r->posted = false;
	if (r->from < 0) {
		int i = tern_recv_source(req);

		source = i < 0 ? -1 : (int)r->asked[i];
	}
	if (req->status == 0)
		check_tensor(r, (unsigned)source);
	else
		blame(r, source);
}

/* True if more tensors of the triple are on their way than receives from any wait. */
static bool has_more(const struct world *w, unsigned triple)
{
	int left = 0;

	for (unsigned i = 0; i < w->sender_count; i++) {
		const struct sender *s = &w->senders[i];

		if (!s->down && !s->crashed)
			left += (int)(s->count_of[triple] - s->seen_of[triple] -
				      s->failed_of[triple]);
	}
	for (unsigned i = 0; i < RECVS; i++)
		left -= w->recvs[i].posted && w->recvs[i].triple == triple;
	return left > 0;
}

static void post_recv(struct world *w, struct recv *r)
{
	struct tern_channel *channels[ASKED_MAX];
	unsigned first = (unsigned)below(w, w->sender_count);

	r->world = w;
	r->triple = (unsigned)below(w, TRIPLES);
	if (w->draining && !has_more(w, r->triple))
		return;
	r->from = below(w, 3) || w->draining ? -1 : (int)first;
	r->cancelled = false;
	r->needs_all = !w->draining && below(w, 4) == 0;
	r->asked_count = 0;
	r->req = (struct tern_req){.done = received, .arg = r};
	for (unsigned i = 0; i < w->sender_count; i++) {
		unsigned s = (first + i) % w->sender_count;

		if (w->senders[s].down || (i && !w->draining && below(w, 5) == 0))
			continue;
		/* A program may name a channel twice. */
		for (unsigned twice = below(w, 6) == 0 ? 2 : 1; twice > 0; twice--) {
			channels[r->asked_count] = w->senders[s].source;
			r->asked[r->asked_count++] = s;
		}
	}
	if (!r->asked_count || (r->from >= 0 && w->senders[first].down))
		return;
	r->posted = true;
	r->order = w->order++;
	if (r->from >= 0 ? tern_recv(w->senders[first].source, &r->req, r->triple, 1,
				   &r->room, NULL, 0)
			 : tern_recv_any(channels, r->asked_count, &r->req, r->triple, 1,
				   &r->room, NULL, r->needs_all ? TERN_ANY_NEEDS_ALL : 0))
		tern_never("a receive");
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct sender *s = arg;

	(void)peer;
	if (event != TERN_PEER_DOWN)
		return;
	s->down = true;
	if (!s->crashed && !s->world->stall_permille)
		FAIL(s->world, "the receiver's peer %d went down with %d",
			(int)(s - s->world->senders), status);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;
	struct tern_peer_opts opts = {.event = on_event};
	unsigned i;

	if (sscanf(tern_peer_name(peer), "sender-%u", &i) != 1 || i >= w->sender_count)
		tern_never("a stranger");
	opts.arg = &w->senders[i];
	w->senders[i].served = peer;
	tern_peer_set_opts(peer, &opts);
	if (tern_channel_open(peer, 1, &w->senders[i].source) < 0)
		tern_never("a channel");
}

/* ---- what happens ---- */

static void disturb(struct world *w)
{
	unsigned i = (unsigned)below(w, w->sender_count);

	if (tern_sim_dice(w->sim, w->cut_permille))
		tern_sim_cut(w->sim);
	if (tern_sim_dice(w->sim, w->stall_permille))
		tern_sim_stall(below(w, 3) ? w->senders[i].process : w->process,
			below(w, 30 * TERN_NS_PER_MS));
	if (!w->crashed && tern_sim_dice(w->sim, w->crash_permille)) {
		w->crashed = w->senders[i].crashed = true;
		tern_sim_crash(w->senders[i].process);
	}
}

static void step(struct world *w)
{
	for (unsigned i = 0; i < w->sender_count; i++) {
		struct sender *s = &w->senders[i];

		for (uint64_t n = below(w, 8); n > 0 && s->posted < SENDS; n--)
			if (!s->crashed && !s->down)
				post_send(s);
	}
	for (unsigned i = 0; i < RECVS; i++) {
		struct recv *r = &w->recvs[i];

		if (!r->posted && below(w, w->draining ? 4 : w->one_in) == 0)
			post_recv(w, r);
		else if (r->posted && tern_sim_dice(w->sim, w->cancel_permille)) {
			r->cancelled = true;
			tern_cancel(&r->req);
		}
	}
}

/* In the end only receives from any are left, so that each tensor finds one. */
static void drain(struct world *w)
{
	w->draining = true;
	w->cancel_permille = 0;
	for (unsigned i = 0; i < RECVS; i++) {
		w->recvs[i].cancelled = true;
		tern_cancel(&w->recvs[i].req);
	}
}

static bool has_all_of(const struct sender *s)
{
	return s->crashed || s->down || s->received + s->failed >= SENDS;
}

static bool is_over(void *arg)
{
	struct world *w = arg;
	uint64_t now_ns = tern_sim_now_ns(w->sim);
	bool over = true;

	if (w->failed)
		return true;
	if (now_ns >= w->next_ns) {
		w->next_ns = now_ns + STEP_NS;
		step(w);
		if (now_ns < w->calm_ns)
			disturb(w);
		else if (!w->draining)
			drain(w);
		for (unsigned i = 0; i < w->sender_count; i++)
			tern_sim_rouse(w->senders[i].process);
		tern_sim_rouse(w->process);
	}
	for (unsigned i = 0; i < w->sender_count; i++)
		over = over && has_all_of(&w->senders[i]);
	return over;
}

static bool have_met(void *arg)
{
	struct world *w = arg;

	for (unsigned i = 0; i < w->sender_count; i++)
		if (!w->senders[i].source)
			return false;
	return true;
}

/* Runs for short times, since the storm must continue even if no event happens. */
static bool blow(struct world *w)
{
	uint64_t limit_ns = tern_sim_now_ns(w->sim) + LIMIT_NS;
	int r;

	w->calm_ns = tern_sim_now_ns(w->sim) + CALM_NS;
	do
		r = tern_sim_run(w->sim, is_over, w, 2 * STEP_NS);
	while (r == -ETIMEDOUT && tern_sim_now_ns(w->sim) < limit_ns);
	if (r < 0) {
		FAIL(w, "it hangs");
		for (unsigned i = 0; i < w->sender_count; i++)
			fprintf(stderr,
				"any: sender %u: %u posted, %u failed, %u received\n", i,
				w->senders[i].posted, w->senders[i].failed,
				w->senders[i].received);
	}
	return !w->failed;
}

/* ---- the check of order ---- */

/* In the order in which the receives of a triple were posted, the numbers of one sender
 * increase. If no transfer was cancelled, none is missing. */
static void check_order(struct world *w, unsigned s, unsigned triple)
{
	unsigned count = w->senders[s].seen_of[triple];
	uint64_t last_order = 0, last_number = 0;

	for (unsigned k = 0; k < count; k++) {
		uint64_t order = UINT64_MAX, number = 0;

		for (unsigned i = 0; i < count; i++)
			if (w->ledger[s][triple][i].order < order &&
				(k == 0 || w->ledger[s][triple][i].order > last_order)) {
				order = w->ledger[s][triple][i].order;
				number = w->ledger[s][triple][i].number;
			}
		if (k && number <= last_number)
			FAIL(w,
				"sender %u, triple %u: number %llu was received after "
				"%llu",
				s, triple, (unsigned long long)number,
				(unsigned long long)last_number);
		last_order = order;
		last_number = number;
	}
}

static void check_sender(struct world *w, unsigned i)
{
	if (w->senders[i].blamed && !w->senders[i].down)
		FAIL(w, "sender %u was blamed, and is up", i);
	for (unsigned triple = 0; triple < TRIPLES; triple++)
		check_order(w, i, triple);
}

/* ---- the world ---- */

static void make_memory(struct tern_sim_process *process, size_t bytes,
	unsigned char **out, struct tern_mem **mem)
{
	*out = calloc(1, bytes);
	if (!*out || tern_mem_wrap(tern_sim_domain(process), *out, bytes, mem) < 0)
		tern_never("memory");
}

static struct tern_context *make_context(struct tern_sim_process *process, uint64_t seed)
{
	struct tern_context_opts opts = {.eager_bytes = 512,
		.record_count = 8 + seed % 64,
		.reconnect_ns = 800 * TERN_NS_PER_MS,
		.connect_ns = TERN_NS_PER_S,
		.suspect_ns = 20 * TERN_NS_PER_MS,
		.dead_ns = 200 * TERN_NS_PER_MS};
	struct tern_context *ctx;

	if (tern_context_new_in(
		    tern_sim_domain(process), &opts, tern_sim_env(process), &ctx) < 0)
		tern_never("a context");
	ctx->first_seq = UINT32_MAX - 1;
	tern_sim_drive(process, ctx);
	return ctx;
}

static void make_receiver(struct world *w, uint64_t seed)
{
	w->process = tern_sim_process_new(w->sim, "receiver");
	w->ctx = make_context(w->process, seed);
	make_memory(w->process, (size_t)RECVS * 2 * BYTES_MAX, &w->bytes, &w->mem);
	for (unsigned i = 0; i < RECVS; i++)
		w->recvs[i].room = (struct tern_buf){.mem = w->mem,
			.offset = (size_t)i * 2 * BYTES_MAX,
			.bytes = 2 * BYTES_MAX};
	if (tern_listen(w->ctx, "sim://any", NULL, on_accept, w, &w->listener) < 0)
		tern_never("a listener");
}

static void make_sender(struct world *w, unsigned i, uint64_t seed)
{
	struct sender *s = &w->senders[i];
	struct tern_peer_opts opts = {.event = on_sender_event, .arg = s};
	char name[24];

	snprintf(name, sizeof(name), "sender-%u", i);
	opts.name = name;
	s->world = w;
	s->process = tern_sim_process_new(w->sim, name);
	s->ctx = make_context(s->process, seed);
	make_memory(s->process, (size_t)SENDS * (BYTES_MAX + sizeof(struct label)),
		&s->bytes, &s->mem);
	if (tern_connect(s->ctx, "sim://any", &opts, &s->peer) < 0 ||
		tern_channel_open(s->peer, 1, &s->channel) < 0)
		tern_never("a sender");
}

static void free_process(struct tern_sim_process *process, struct tern_context *ctx,
	struct tern_mem *mem, unsigned char *bytes)
{
	tern_sim_forget(process, ctx);
	tern_context_free(ctx);
	tern_mem_put(mem);
	free(bytes);
}

static void take_down(struct world *w)
{
	for (unsigned i = 0; i < w->sender_count; i++) {
		struct sender *s = &w->senders[i];

		s->down = true;
		free_process(s->process, s->ctx, s->mem, s->bytes);
	}
	for (unsigned i = 0; i < RECVS; i++)
		w->recvs[i].cancelled = true;
	free_process(w->process, w->ctx, w->mem, w->bytes);
	for (unsigned i = 0; i < RECVS; i++)
		if (w->recvs[i].posted)
			FAIL(w, "a receive has not ended with its context");
	for (unsigned i = 0; i < w->sender_count; i++)
		tern_sim_process_free(w->senders[i].process);
	tern_sim_process_free(w->process);
}

bool scenario_any(uint64_t seed, bool verbose, uint64_t *hash)
{
	static const uint32_t kinds[] = {TERN_CAP_PUT, TERN_CAP_PUT | TERN_CAP_GET,
		TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND,
		TERN_CAP_PUT | TERN_CAP_GET | TERN_CAP_PEEK};
	struct tern_sim_opts opts = {.seed = seed,
		.caps = kinds[seed % 4],
		.eagain_permille = seed % 3 ? 100 : 0,
		.refuse_permille = 20,
		.delay_max_ns = (seed % 5 == 4 ? 400 : 50) * TERN_NS_PER_US,
		.chunk_bytes = 1500,
		.eager_bytes = 512,
		.log = verbose ? print_line : NULL};
	struct world *w = calloc(1, sizeof(*w));
	bool good;

	tern_assert(w);
	w->sim = tern_sim_new(&opts);
	w->sender_count = 2 + seed / 2 % (SENDERS_MAX - 1);
	w->one_in = seed % 3 ? 100 : 8;
	w->cut_permille = seed % 2 ? 15 : 0;
	w->stall_permille = seed % 11 == 3 ? 20 : 0;
	w->crash_permille = seed % 7 == 4 ? 10 : 0;
	w->cancel_permille = seed % 5 == 1 ? 20 : 0;
	make_receiver(w, seed);
	for (unsigned i = 0; i < w->sender_count; i++)
		make_sender(w, i, seed);
	if (tern_sim_run(w->sim, have_met, w, TERN_NS_PER_S) < 0)
		FAIL(w, "they do not meet");
	good = !w->failed && blow(w);
	for (unsigned i = 0; good && i < w->sender_count; i++)
		check_sender(w, i);
	take_down(w);
	good = good && !w->failed;
	*hash = tern_sim_hash(w->sim);
	tern_sim_free(w->sim);
	free(w);
	return good;
}
