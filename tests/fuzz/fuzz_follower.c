/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes a follower (server/follower.h) in the simulator. The liar is in the place of its server: it
 * sends control messages and tensors that are made from the input, most of them nearly right. The
 * follower must end once, with a reason, or stay; what it keeps must be free of what it has refused.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/util.h"
#include "server/follow.h"
#include "server/follower_state.h"
#include "server/memory.h"
#include "tests/fuzz/fuzz.h"
#include "transport/sim/sim.h"

#define SENDS     64u
#define TEXT_MOST 300u
#define INPUT_MAX 2048u /* longer inputs reach nothing new */

struct sent {
	struct tern_req req;
	struct tern_buf buf;
	bool used;
};

struct world {
	struct tern_sim *sim;
	struct tern_sim_process *process; /* the liar's */
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer; /* NULL: the follower has not connected */
	struct tern_talk talk;
	struct tern_channel *data;
	bool down;
	struct sent sents[SENDS];
	unsigned sent_count;
	/* The follower's process. */
	struct tern_sim_process *follows;
	struct tern_context *follower_ctx;
	struct tern_updater *updater;
	struct tern_follower *follower;
	unsigned end_count;
};

static void heard(struct tern_talk *talk, const json_t *message)
{
	(void)talk;
	(void)message;
}

static void broken(struct tern_talk *talk, int status)
{
	(void)talk;
	(void)status;
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct world *w = arg;

	(void)peer;
	(void)status;
	if (event != TERN_PEER_DOWN)
		return;
	w->down = true;
	tern_talk_close(&w->talk);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;

	if (w->peer) { /* a follower that was refused comes again */
		tern_peer_free(peer);
		return;
	}
	w->peer = peer;
	w->talk = (struct tern_talk){
		.pool = w->pool, .ctx = w->ctx, .heard = heard, .broken = broken};
	tern_peer_set_opts(peer, &(struct tern_peer_opts){.event = on_event, .arg = w});
	if (tern_channel_open(peer, TERN_PS_CHANNEL_DATA, &w->data) < 0 ||
		tern_talk_open(&w->talk, peer) < 0)
		tern_never("a connection");
}

static void ended(void *arg, int status, const char *text)
{
	struct world *w = arg;

	tern_assert(*text || status == 0);
	w->end_count++;
}

static struct tern_context *open_context(struct tern_sim_process *process)
{
	const struct tern_context_opts opts = {.eager_bytes = 512, .record_count = 128};
	struct tern_context *ctx;

	if (tern_context_new_in(
		    tern_sim_domain(process), &opts, tern_sim_env(process), &ctx) < 0)
		tern_never("a context");
	tern_sim_drive(process, ctx);
	return ctx;
}

static bool is_connected(void *arg)
{
	const struct world *w = arg;

	return w->peer != NULL;
}

static void open_world(struct world *w)
{
	struct tern_listener *listener;

	*w = (struct world){.sim = tern_sim_new(&(struct tern_sim_opts){.seed = 1})};
	w->process = tern_sim_process_new(w->sim, "liar");
	w->follows = tern_sim_process_new(w->sim, "follower");
	w->ctx = open_context(w->process);
	w->follower_ctx = open_context(w->follows);
	if (tern_pool_new(tern_sim_domain(w->process), NULL, &w->pool) < 0 ||
		tern_updater_cpu_new(tern_kernels_cpu(), &w->updater) < 0 ||
		tern_listen(w->ctx, "sim://liar", NULL, on_accept, w, &listener) < 0 ||
		tern_follower_new(&(struct tern_follower_opts){.domain = tern_sim_domain(
								       w->follows),
					  .ctx = w->follower_ctx,
					  .updater = w->updater,
					  .server = "sim://liar",
					  .listen = "sim://follower",
					  .memory_bytes = 1u << 20,
					  .ended = ended,
					  .arg = w},
			&w->follower) < 0 ||
		tern_sim_run(w->sim, is_connected, w, TERN_NS_PER_S) < 0)
		tern_never("a follower");
}

/* ---- control messages ---- */

/* A job of two servers, whose share of server 0 has one chunk or a few. */
static json_t *make_job(struct fuzz *f)
{
	static const char *const optimizers[] = {"sgd", "momentum", "rmsprop", "adam"};
	char addresses[2][128] = {"sim://liar", "sim://another"};
	uint64_t count = 1 + fuzz_below(f, 200);
	struct tern_param params[] = {
		{.name = "a", .shape = tern_shape_1d(TERN_F32, count), .count = count},
		{.name = "b", .shape = tern_shape_1d(TERN_F32, count), .count = count}};
	struct tern_ps_job job = {.steps = 1 + fuzz_below(f, 20),
		.slots = 1,
		.workers = 1,
		.records = 1,
		.batch = 1,
		.mode = fuzz_below(f, 8) ? TERN_MODE_SYNC : TERN_MODE_ASYNC,
		.params = params,
		.param_count = 2,
		.element_count = 2 * count,
		.servers = addresses,
		.server_count = 1 + fuzz_below(f, 2)};

	tern_optimizer_parse(optimizers[fuzz_below(f, 4)], &job.optimizer);
	return tern_ps_job_json(&job);
}

static json_int_t some_number(struct fuzz *f, json_int_t right)
{
	return fuzz_below(f, 8) ? right : (json_int_t)fuzz_take(f, 8);
}

static json_t *make_followed(struct fuzz *f)
{
	json_t *job = make_job(f);

	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o}", "type", "followed", "number",
		some_number(f, 0), "server", some_number(f, 0), "life", some_number(f, 7),
		"snapshot", some_number(f, 1), "job", job);
}

/* Any text of the input that is JSON. */
static json_t *make_any(struct fuzz *f)
{
	size_t bytes = TERN_MIN(fuzz_take(f, 2) % TEXT_MOST, f->bytes);
	json_t *message = json_loadb((const char *)f->data, bytes, 0, NULL);

	f->data += bytes;
	f->bytes -= bytes;
	return message;
}

static json_t *make_message(struct fuzz *f)
{
	static const char *const types[] = {"again", "refused", "abort", "complete", "?"};
	unsigned how = fuzz_below(f, 8), flags;

	if (how < 4)
		return make_followed(f);
	if (how == 4)
		return make_any(f);
	flags = (unsigned)fuzz_take(f, 1);
	return json_pack("{s:s, s:s, s:b, s:b, s:b, s:{s:I, s:[s], s:[i]}}", "type",
		types[fuzz_below(f, TERN_ARRAY_SIZE(types))], "text", "so", "later",
		flags & 1, "back", flags >> 1 & 1, "final", flags >> 2 & 1, "view",
		"number", some_number(f, 1), "servers", "sim://another", "numbers", 1);
}

static void say(struct fuzz *f, struct world *w)
{
	json_t *message = make_message(f);

	if (message && !w->down)
		tern_talk_say(&w->talk, message);
	else
		json_decref(message);
}

/* ---- tensors ---- */

static struct sent *new_sent(struct world *w, uint64_t bytes)
{
	struct sent *s = &w->sents[w->sent_count];

	if (w->sent_count == SENDS || w->down ||
		tern_pool_get(w->pool, bytes, &s->buf) < 0)
		return NULL;
	s->used = true;
	w->sent_count++;
	memset(tern_buf_ptr(&s->buf), 0, bytes);
	return s;
}

/* Sends the state of a chunk, or an update, of the job that the follower has adopted. */
static void send_tensor(struct fuzz *f, struct world *w)
{
	const struct tern_server *shard = &w->follower->shard;
	bool is_state = fuzz_below(f, 3) == 0;
	uint64_t version = 1 + fuzz_below(f, 4), bytes;
	struct tern_tensor tensor;
	struct chunk *c;
	struct sent *s;

	if (!shard->chunk_count)
		return;
	c = &shard->chunks[fuzz_below(f, 8) % shard->chunk_count];
	bytes = is_state ? follow_state_bytes(c) : follow_update_bytes(c);
	s = new_sent(w, bytes + 8);
	if (!s)
		return;
	*(struct follow_head *)tern_buf_ptr(&s->buf) = (struct follow_head){
		.version = (uint64_t)some_number(f, (json_int_t)version),
		.clip = 1,
		.has_skips = (uint8_t)fuzz_below(f, 2),
		.skips = (uint8_t)fuzz_below(f, 2),
		.snapshot = (uint64_t)some_number(f, 1)};
	if (fuzz_below(f, 8) == 0)
		bytes = fuzz_take(f, 1) % bytes;
	memset((char *)tern_buf_ptr(&s->buf) + sizeof(struct follow_head),
		(int)fuzz_take(f, 1), 8);
	tensor = (struct tern_tensor){
		.buf = s->buf, .shape = tern_shape_1d(TERN_U8, bytes)};
	tensor.buf.bytes = bytes;
	s->used = tern_send(w->data, &s->req,
			  is_state ? c->plan->parameter_key : c->plan->gradient_key,
			  is_state ? 0 : version, &tensor, NULL, 0) == 0;
}

/* ---- all of it ---- */

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static void run(struct world *w, uint64_t for_ns)
{
	tern_sim_rouse(w->process);
	tern_sim_rouse(w->follows);
	tern_sim_run(w->sim, never, NULL, for_ns);
}

/* Checks that the memory which the follower has kept can be read, and belongs to the job of which it
 * was told. */
static void check_kept(struct world *w)
{
	struct tern_server_memory *kept;

	if (tern_follower_keep(w->follower, &kept) < 0 || !kept)
		return;
	tern_assert(kept->chunk_count == w->follower->shard.chunk_count);
	tern_assert(kept->step <= kept->job.steps);
	tern_server_memory_free(kept);
}

static void close_world(struct world *w)
{
	tern_follower_stop(w->follower, "enough");
	run(w, 3 * TERN_NS_PER_S);
	tern_assert(w->end_count == 1);
	check_kept(w);
	tern_sim_forget(w->follows, w->follower_ctx);
	tern_context_free(w->follower_ctx);
	tern_follower_free(w->follower);
	tern_updater_free(w->updater);
	tern_sim_forget(w->process, w->ctx);
	tern_context_free(w->ctx);
	for (unsigned i = 0; i < w->sent_count; i++)
		tern_pool_put(w->pool, &w->sents[i].buf);
	tern_pool_free(w->pool);
	tern_sim_process_free(w->follows);
	tern_sim_process_free(w->process);
	tern_sim_free(w->sim);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct world w;
	struct fuzz f = {data, bytes};

	if (bytes > INPUT_MAX)
		return -1;
	open_world(&w);
	while (f.bytes) {
		unsigned act = fuzz_below(&f, 4);

		if (act == 0)
			say(&f, &w);
		else if (act == 1)
			run(&w, TERN_NS_PER_MS);
		else
			send_tensor(&f, &w);
	}
	close_world(&w);
	return 0;
}
