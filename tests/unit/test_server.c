/* SPDX-License-Identifier: Apache-2.0 */
/* A server alone: with guests that are no workers, and with what its peers do wrong. */
#include "tests/cmocka.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "server/internal.h"
#include "tools/host_env.h"
#include "transport/context.h"

struct end { /* a process, in this one */
	struct tern_env *env;
	struct tern_domain *domain;
	struct tern_context *ctx;
};

struct visitor {
	struct tern_talk talk;
	struct tern_peer *peer;
	bool down, welcome, refused;
	char text[200]; /* why it was refused */
};

struct rig {
	struct end at, guests;
	struct tern_pool *pool, *small; /* the guests'; small: NULL, or a page */
	struct tern_updater *updater;
	struct tern_server *server;
	bool ended;
	char text[600];
	unsigned refusals; /* that the server has noted */
};

static void open_end(struct end *end)
{
	assert_int_equal(host_env_new(NULL, &end->env), 0);
	assert_int_equal(tern_domain_new(NULL, &end->domain), 0);
	assert_int_equal(tern_context_new_in(end->domain, NULL, end->env, &end->ctx), 0);
}

static void ended(void *arg, int status, const char *text)
{
	struct rig *rig = arg;

	(void)status;
	rig->ended = true;
	snprintf(rig->text, sizeof(rig->text), "%s", text);
}

static void note(void *arg, const char *text)
{
	((struct rig *)arg)->refusals += strstr(text, "was refused") != NULL;
}

static void open_rig(struct rig *rig)
{
	*rig = (struct rig){0};
	open_end(&rig->at);
	open_end(&rig->guests);
	assert_int_equal(tern_pool_new(rig->guests.domain, NULL, &rig->pool), 0);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &rig->updater), 0);
	assert_int_equal(
		tern_server_new(&(struct tern_server_opts){.domain = rig->at.domain,
					.ctx = rig->at.ctx,
					.updater = rig->updater,
					.listen = "tcp://127.0.0.1:0",
					.note = note,
					.ended = ended,
					.arg = rig},
			&rig->server),
		0);
}

static void close_rig(struct rig *rig)
{
	host_env_stop(rig->at.env);
	host_env_stop(rig->guests.env);
	tern_context_free(rig->guests.ctx);
	tern_context_free(rig->at.ctx);
	tern_server_free(rig->server);
	tern_updater_free(rig->updater);
	tern_pool_free(rig->small);
	tern_pool_free(rig->pool);
	tern_domain_free(rig->guests.domain);
	tern_domain_free(rig->at.domain);
	host_env_free(rig->guests.env);
	host_env_free(rig->at.env);
}

static void step(struct rig *rig)
{
	if (tern_progress(rig->at.ctx) + tern_progress(rig->guests.ctx) == 0)
		usleep(50);
}

/* Runs both until *flag. */
static void run_until(struct rig *rig, const bool *flag)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	while (!*flag && tern_clock_ns() < limit)
		step(rig);
	assert_true(*flag);
}

static void visitor_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct visitor *v = arg;

	(void)peer;
	(void)status;
	if (event == TERN_PEER_DOWN) {
		v->down = true;
		tern_talk_close(&v->talk);
	}
}

static void visitor_heard(struct tern_talk *talk, const json_t *message)
{
	struct visitor *v = tern_container_of(talk, struct visitor, talk);

	if (strcmp(tern_talk_type(message), "welcome") == 0) {
		v->welcome = true;
	} else if (strcmp(tern_talk_type(message), "refused") == 0) {
		v->refused = true;
		snprintf(v->text, sizeof(v->text), "%s",
			json_string_value(json_object_get(message, "text")));
	}
}

static void visitor_broken(struct tern_talk *talk, int status)
{
	(void)talk;
	fail_msg("a request of a visitor failed alone: %d", status);
}

static void visit(struct rig *rig, struct visitor *v)
{
	*v = (struct visitor){.talk = {.ctx = rig->guests.ctx,
				      .pool = rig->pool,
				      .heard = visitor_heard,
				      .broken = visitor_broken}};
	assert_int_equal(
		tern_connect(rig->guests.ctx, tern_server_address(rig->server),
			&(struct tern_peer_opts){
				.event = visitor_event, .arg = v, .pool = rig->pool},
			&v->peer),
		0);
	assert_int_equal(tern_talk_open(&v->talk, v->peer), 0);
}

/* `like` with parameters w0, w1, ... of so many elements each, of one server or more. */
static json_t *job_of(const struct rig *rig, const struct tern_ps_job *like,
	unsigned param_count, uint64_t count, unsigned servers)
{
	static struct tern_param params[200];
	char addresses[2][128] = {"", "tcp://127.0.0.1:9"};
	struct tern_ps_job job = *like;
	json_t *object;
	char *text;

	assert_true(param_count <= TERN_ARRAY_SIZE(params) && servers <= 2);
	for (unsigned i = 0; i < param_count; i++) {
		params[i] = (struct tern_param){
			.shape = tern_shape_1d(TERN_F32, count), .count = count};
		snprintf(params[i].name, sizeof(params[i].name), "w%u", i);
	}
	snprintf(addresses[0], sizeof(addresses[0]), "%s",
		tern_server_address(rig->server));
	tern_optimizer_parse("sgd", &job.optimizer);
	job.steps = job.records = 1;
	job.batch = 1;
	job.params = params;
	job.param_count = param_count;
	job.element_count = param_count * count;
	job.servers = addresses;
	job.server_count = servers;
	text = tern_ps_job_encode(&job);
	assert_non_null(text);
	object = json_loads(text, 0, NULL);
	free(text);
	return object;
}

static void say_join(struct visitor *v, json_t *job, unsigned worker)
{
	tern_talk_say(&v->talk,
		json_pack("{s:s, s:I, s:I, s:o}", "type", "join", "worker",
			(json_int_t)worker, "server", (json_int_t)0, "job", job));
}

/* The worker of that number: with `job`, of one parameter of `count` elements. */
static void join(struct rig *rig, struct visitor *v, const struct tern_ps_job *like,
	uint64_t count, unsigned worker)
{
	visit(rig, v);
	say_join(v, job_of(rig, like, 1, count, 1), worker);
}

/* ---- one that cannot be accepted ---- */

static void (*accept_it)(struct tern_peer *peer, void *arg);

/* The channel exists: so opening it fails, as it does without memory. */
static void accept_without_talk(struct tern_peer *peer, void *arg)
{
	struct tern_channel *channel;

	assert_int_equal(tern_channel_open(peer, TERN_PS_CHANNEL_TALK, &channel), 0);
	accept_it(peer, arg);
}

static void test_a_peer_that_could_not_be_accepted_is_forgotten(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	accept_it = rig.server->listener->accept;
	rig.server->listener->accept = accept_without_talk;
	visit(&rig, &v);
	run_until(&rig, &v.down);
	tern_server_stop(rig.server, "enough", false);
	run_until(&rig, &rig.ended);
	assert_string_equal(rig.text, "enough");
	close_rig(&rig);
}

/* ---- guests that come and go ---- */

static unsigned length(const struct tern_list *list)
{
	unsigned n = 0;

	tern_list_for_each (node, list)
		n++;
	return n;
}

/* Until the server has so many peers, and the layer below it, too. */
static void until_peers(struct rig *rig, unsigned count)
{
	const struct tern_list *lists[] = {
		&rig->server->peers, &rig->server->listener->rdv->peers};
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	for (unsigned i = 0; i < 2; i++) {
		while (length(lists[i]) != count && tern_clock_ns() < limit)
			step(rig);
		assert_int_equal(length(lists[i]), count);
	}
}

static struct server_peer *newest(const struct rig *rig)
{
	return tern_list_entry(rig->server->peers.prev, struct server_peer, node);
}

/* With a goodbye, or cut off without a word. */
static void test_a_guest_that_leaves_ends_nothing_and_leaves_nothing(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor guests[4], worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 4; i++) {
		visit(&rig, &guests[i]);
		until_peers(&rig, 1);
		if (i % 2)
			tern_peer_close(guests[i].peer);
		else
			tern_peer_free(guests[i].peer);
		until_peers(&rig, 0);
	}
	assert_false(rig.ended);
	join(&rig, &worker, &job, 1000, 0);
	run_until(&rig, &worker.welcome);
	tern_server_stop(rig.server, "enough", false);
	run_until(&rig, &rig.ended);
	assert_string_equal(rig.text, "enough");
	close_rig(&rig);
}

static void test_the_oldest_guest_makes_place_for_one_more(void **state)
{
	struct visitor v[4];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.guests_max = 3;
	for (unsigned i = 0; i < 3; i++) {
		visit(&rig, &v[i]);
		until_peers(&rig, i + 1);
	}
	visit(&rig, &v[3]);
	run_until(&rig, &v[0].down);
	until_peers(&rig, 3);
	for (unsigned i = 1; i < 4; i++)
		assert_false(v[i].down);
	close_rig(&rig);
}

static void fire_now(struct rig *rig, struct tern_timer *timer)
{
	tern_timer_set(rig->at.ctx, timer, 0);
}

static void test_a_silent_guest_is_refused_and_then_cut(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	until_peers(&rig, 1);
	fire_now(&rig, &newest(&rig)->guest_timer);
	run_until(&rig, &v.refused);
	assert_string_equal(v.text, "it is no part of the job after 30 s");
	assert_false(newest(&rig)->gone); /* the guest does not answer the goodbye */
	fire_now(&rig, &newest(&rig)->guest_timer);
	until_peers(&rig, 0);
	close_rig(&rig);
}

/* It never says the last piece. */
static void say_pieces(struct rig *rig, struct visitor *v, unsigned count)
{
	static struct tern_req reqs[64];
	struct tern_tensor tensor = {
		.shape = tern_shape_1d(TERN_U8, TERN_PS_PIECE_BYTES)};

	assert_true(count <= TERN_ARRAY_SIZE(reqs));
	assert_int_equal(tern_pool_get(rig->pool, TERN_PS_PIECE_BYTES, &tensor.buf), 0);
	memset(tern_buf_ptr(&tensor.buf), 'x', TERN_PS_PIECE_BYTES);
	for (unsigned i = 0; i < count; i++) {
		reqs[i] = (struct tern_req){0};
		assert_int_equal(tern_send(v->talk.channel, &reqs[i], tern_key("talk"), i,
					 &tensor, NULL, 0),
			0);
	}
	for (unsigned i = 0; i < count; i++)
		while (tern_test(&reqs[i]) == -EINPROGRESS)
			step(rig);
	tern_pool_put(rig->pool, &tensor.buf);
}

static void test_what_all_guests_say_is_bounded_and_given_back(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v[3], worker;
	struct rig rig;
	uint64_t left;

	(void)state;
	open_rig(&rig);
	left = rig.server->guest_bytes_left = 128u << 10;
	for (unsigned i = 0; i < 2; i++) {
		visit(&rig, &v[i]);
		until_peers(&rig, i + 1);
		say_pieces(&rig, &v[i], 16);
	}
	while (rig.server->guest_bytes_left)
		step(&rig);
	visit(&rig, &v[2]);
	say_pieces(&rig, &v[2], 1);
	run_until(&rig, &v[2].refused);
	assert_string_equal(v[2].text, "it says more than a job can have");
	/* What has one piece needs none of it. */
	join(&rig, &worker, &job, 1000, 0);
	run_until(&rig, &worker.welcome);
	for (unsigned i = 0; i < 3; i++)
		tern_peer_free(v[i].peer);
	until_peers(&rig, 1);
	assert_int_equal(rig.server->guest_bytes_left, left);
	close_rig(&rig);
}

/* ---- making the shard ---- */

static int (*chunk_new)(struct tern_updater *u, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out);
static atomic_bool may_be_made;

static int slow_chunk_new(struct tern_updater *u, const struct tern_updater_opts *opts,
	struct tern_updater_chunk **out)
{
	for (int i = 0; i < 1000 && !may_be_made; i++)
		usleep(1000);
	return chunk_new(u, opts, out);
}

static bool has_both(const struct tern_server *s)
{
	return s->workers && s->workers[0] && s->workers[1];
}

static void test_workers_join_while_the_shard_is_made(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;
	struct tern_updater_ops slow;
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	slow = *rig.updater->ops;
	chunk_new = slow.chunk_new;
	slow.chunk_new = slow_chunk_new;
	rig.updater->ops = &slow;
	for (unsigned i = 0; i < 2; i++)
		join(&rig, &v[i], &job, 10000, i);
	while (!has_both(rig.server) && tern_clock_ns() < limit)
		step(&rig);
	assert_true(has_both(rig.server));
	assert_int_equal(rig.server->joined_count, 0);
	may_be_made = true;
	for (unsigned i = 0; i < 2; i++)
		run_until(&rig, &v[i].welcome);
	assert_true(rig.server->running);
	tern_server_stop(rig.server, "enough", false);
	run_until(&rig, &rig.ended);
	close_rig(&rig);
}

/* ---- the start in async mode ---- */

static struct tern_job *held_job;

static int hold_job(struct tern_env *env, struct tern_job *job)
{
	(void)env;
	held_job = job;
	return 0;
}

static void has_come(struct tern_req *req)
{
	assert_int_equal(req->status, 0);
	*(bool *)req->arg = true;
}

/* All of them on the context's thread would keep it from answering anybody. */
static void test_the_first_copies_of_async_mode_are_made_in_jobs(void **state)
{
	const struct tern_ps_job job = {
		.mode = TERN_MODE_ASYNC, .slots = 2, .workers = 2};
	struct tern_channel *channel;
	struct tern_req req[2];
	struct visitor v[2];
	bool came[2] = {0};
	struct tern_env_ops holding;
	const struct tern_env_ops *ops;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join(&rig, &v[0], &job, 1000, 0);
	run_until(&rig, &v[0].welcome);
	assert_int_equal(rig.server->chunk_count, 1);
	ops = rig.at.env->ops;
	holding = *ops;
	holding.submit = hold_job;
	rig.at.env->ops = &holding;
	join(&rig, &v[1], &job, 1000, 1);
	run_until(&rig, &v[1].welcome);
	assert_true(rig.server->running);
	assert_non_null(held_job);
	for (unsigned i = 0; i < 2; i++)
		assert_false(rig.server->chunks[0].streams[i].sending);
	for (unsigned i = 0; i < 2; i++) {
		req[i] = (struct tern_req){.done = has_come, .arg = &came[i]};
		assert_int_equal(
			tern_channel_open(v[i].peer, TERN_PS_CHANNEL_DATA, &channel), 0);
		assert_int_equal(tern_recv(channel, &req[i], tern_key("parameter/0"), 0,
					 NULL, NULL, TERN_RECV_ALLOC),
			0);
	}
	rig.at.env->ops = ops;
	assert_int_equal(tern_env_submit(rig.at.env, held_job), 0);
	for (unsigned i = 0; i < 2; i++) {
		run_until(&rig, &came[i]);
		assert_int_equal(req[i].bytes, 1000 * sizeof(float));
		assert_memory_equal(
			req[i].data, chunk_w(&rig.server->chunks[0], 0), req[i].bytes);
		tern_release(&req[i]);
	}
	assert_int_equal(rig.server->chunks[0].version, 0);
	assert_int_equal(rig.server->stats.gradients_added, 0);
	tern_server_stop(rig.server, "enough", false);
	run_until(&rig, &rig.ended);
	close_rig(&rig);
}

/* ---- too much ---- */

/* It ends alone, and the server takes the next job. */
static void refused_alone(struct rig *rig, struct visitor *v)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	static struct visitor next; /* it stays until the rig is closed */

	run_until(rig, &v->refused);
	assert_false(rig->server->has_job);
	assert_null(rig->server->plan.chunks);
	join(rig, &next, &job, 1000, 0);
	run_until(rig, &next.welcome);
	assert_false(rig->ended);
}

static void test_a_worker_hears_what_there_is_no_room_for(void **state)
{
	const struct tern_ps_job job = {
		.mode = TERN_MODE_ASYNC, .slots = 4096, .workers = 4096};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join(&rig, &v, &job, 4u << 20, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "share of them has 16777216 bytes"));
	assert_non_null(strstr(v.text, "and it keeps 8193 copies"));
	assert_non_null(strstr(v.text, "it can hold 68719476736 bytes"));
	close_rig(&rig);
}

static void test_a_share_must_fit_into_the_memory_of_the_host(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.memory_bytes = 1u << 20;
	join(&rig, &v, &job, 1u << 18, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "it can hold 1048576 bytes"));
	close_rig(&rig);
}

/* Two versions fit, and the mean gradient beside them does not. */
static void test_what_an_update_keeps_must_fit_as_well(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1, .clip_norm = 1};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	rig.server->opts.memory_bytes = 5u << 19;
	join(&rig, &v, &job, 1u << 18, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "it keeps 3 copies"));
	close_rig(&rig);
}

/* 2^28 chunks: to list them alone would take 10 GB and minutes. */
static void test_a_job_of_absurd_size_is_refused_before_anything_is_made(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	say_join(&v, job_of(&rig, &job, 180, 1ull << 38, 1), 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "no room for the parameters"));
	close_rig(&rig);
}

/* The books of the norm find no memory. */
static void test_a_job_that_cannot_be_taken_leaves_nothing(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1, .clip_norm = 1};
	struct tern_buf all;
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	tern_pool_free(rig.server->staging);
	assert_int_equal(
		tern_pool_new(rig.at.domain, &(struct tern_pool_opts){.slab_bytes = 4096},
			&rig.server->staging),
		0);
	assert_int_equal(tern_pool_get(rig.server->staging, 4096, &all), 0);
	join(&rig, &v, &job, 1000, 0);
	refused_alone(&rig, &v);
	assert_non_null(strstr(v.text, "no room for the parameters"));
	tern_pool_put(rig.server->staging, &all);
	close_rig(&rig);
}

/* ---- servers that nobody knows ---- */

static void say_peer(struct visitor *v, json_t *job, unsigned server)
{
	tern_talk_say(&v->talk, json_pack("{s:s, s:I, s:o}", "type", "peer", "server",
					(json_int_t)server, "job", job));
}

static void test_an_unknown_server_ends_nothing(void **state)
{
	static const char *const words[] = {"abort", "lost", "lost", NULL};
	static const int workers[] = {0, 0, -1, 0};
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v[4], worker;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 4; i++) {
		visit(&rig, &v[i]);
		say_peer(&v[i], job_of(&rig, &job, 1, 1000, 2), 1);
		if (words[i]) {
			tern_talk_say(&v[i].talk,
				json_pack("{s:s, s:i}", "type", words[i], "worker",
					workers[i]));
			until_peers(&rig, 1);
			run_until(&rig, &newest(&rig)->refused);
		}
		tern_peer_free(v[i].peer);
		until_peers(&rig, 0);
	}
	assert_false(rig.server->over);
	join(&rig, &worker, &job, 1000, 0);
	run_until(&rig, &worker.welcome);
	close_rig(&rig);
}

static void test_the_jobs_that_unknown_servers_bring_are_bounded(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct visitor v[2];
	struct rig rig;
	uint64_t left;

	(void)state;
	open_rig(&rig);
	left = rig.server->guest_bytes_left = 3 * sizeof(struct tern_param);
	for (unsigned i = 0; i < 2; i++) {
		visit(&rig, &v[i]);
		say_peer(&v[i], job_of(&rig, &job, 1, 1000, 2), 1);
		until_peers(&rig, i + 1);
	}
	run_until(&rig, &v[1].refused);
	assert_string_equal(v[1].text, "no room for the jobs of so many servers");
	for (unsigned i = 0; i < 2; i++)
		tern_peer_free(v[i].peer);
	until_peers(&rig, 0);
	assert_int_equal(rig.server->guest_bytes_left, left);
	close_rig(&rig);
}

static void test_refusals_of_strangers_are_noted_sparingly(void **state)
{
	struct visitor v[20];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 20; i++) {
		visit(&rig, &v[i]);
		tern_talk_say(&v[i].talk, json_pack("{s:s}", "type", "nonsense"));
		run_until(&rig, &v[i].refused);
	}
	assert_int_equal(rig.refusals, 16);
	assert_int_equal(rig.server->notes_dropped, 4);
	close_rig(&rig);
}

/* ---- a worker that is refused ---- */

/* It fails, and says so to all its servers, as a worker does. */
static void test_a_worker_is_refused_with_one_sentence(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join(&rig, &v[0], &job, 1000, 0);
	run_until(&rig, &v[0].welcome);
	join(&rig, &v[1], &job, 1000, 0);
	run_until(&rig, &v[1].refused);
	assert_string_equal(v[1].text, "a worker of that number is here already");
	tern_talk_say(
		&v[1].talk, json_pack("{s:s, s:s}", "type", "abort", "text", v[1].text));
	tern_peer_close(v[1].peer);
	run_until(&rig, &v[1].down);
	assert_int_equal(rig.refusals, 1);
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void test_a_lost_worker_that_comes_again_is_told_so(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2], again;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 2; i++)
		join(&rig, &v[i], &job, 1000, i);
	for (unsigned i = 0; i < 2; i++)
		run_until(&rig, &v[i].welcome);
	tern_peer_close(v[0].peer);
	run_until(&rig, &rig.server->workers[0]->lost);
	join(&rig, &again, &job, 1000, 0);
	run_until(&rig, &again.refused);
	assert_non_null(strstr(again.text, "the worker of that number was lost"));
	assert_false(rig.server->over);
	close_rig(&rig);
}

static void say_bye(struct visitor *v)
{
	tern_talk_say(&v->talk, json_pack("{s:s}", "type", "bye"));
}

static void test_a_guest_has_nothing_to_say_goodbye_to(void **state)
{
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	visit(&rig, &v);
	say_bye(&v);
	refused_alone(&rig, &v);
	close_rig(&rig);
}

static void test_a_goodbye_before_the_start_makes_room_for_another(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v, again;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	join(&rig, &v, &job, 1000, 0);
	run_until(&rig, &v.welcome);
	say_bye(&v);
	run_until(&rig, &v.down);
	join(&rig, &again, &job, 1000, 0);
	run_until(&rig, &again.welcome);
	assert_int_equal(rig.server->bye_count, 0);
	close_rig(&rig);
}

static void test_a_goodbye_before_the_last_step_is_a_loss(void **state)
{
	const struct tern_ps_job job = {.slots = 2, .workers = 2};
	struct visitor v[2];
	struct rig rig;

	(void)state;
	open_rig(&rig);
	for (unsigned i = 0; i < 2; i++)
		join(&rig, &v[i], &job, 1000, i);
	for (unsigned i = 0; i < 2; i++)
		run_until(&rig, &v[i].welcome);
	run_until(&rig, &rig.server->running);
	say_bye(&v[0]);
	run_until(&rig, &rig.server->workers[0]->lost);
	assert_int_equal(rig.server->bye_count, 0);
	assert_false(rig.server->over);
	close_rig(&rig);
}

/* ---- what does not come through ---- */

static void test_what_a_guest_announces_takes_no_memory(void **state)
{
	const uint64_t bytes = 60u << 20;
	struct tern_pool_opts opts = {.slab_bytes = bytes};
	struct tern_pool *pool;
	struct tern_tensor tensor = {.shape = tern_shape_1d(TERN_U8, bytes)};
	struct tern_req req = {0};
	struct tern_pool_stats stats;
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	assert_int_equal(tern_pool_new(rig.guests.domain, &opts, &pool), 0);
	assert_int_equal(tern_pool_get(pool, bytes, &tensor.buf), 0);
	visit(&rig, &v);
	assert_int_equal(
		tern_send(v.talk.channel, &req, tern_key("talk"), 0, &tensor, NULL, 0),
		0);
	run_until(&rig, &v.refused);
	assert_int_equal(req.status, -EMSGSIZE);
	tern_pool_stats(rig.server->staging, &stats);
	assert_int_equal(stats.peak_bytes, 0);
	tern_pool_stats(rig.server->talk_pool, &stats);
	assert_true(stats.peak_bytes <= 3 * TERN_PS_PIECE_BYTES);
	tern_pool_put(pool, &tensor.buf);
	tern_pool_free(pool);
	close_rig(&rig);
}

/* A worker that has no room for a version: it would wait for ever, and so would all. */
static void test_a_worker_that_refuses_a_version_is_lost(void **state)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	struct tern_pool_opts opts = {.slab_bytes = 4096};
	struct tern_channel *channel;
	struct tern_req req = {0};
	struct visitor v;
	struct rig rig;

	(void)state;
	open_rig(&rig);
	assert_int_equal(tern_pool_new(rig.guests.domain, &opts, &rig.small), 0);
	join(&rig, &v, &job, 4u << 20, 0);
	tern_peer_set_opts(
		v.peer, &(struct tern_peer_opts){
				.event = visitor_event, .arg = &v, .pool = rig.small});
	assert_int_equal(tern_channel_open(v.peer, TERN_PS_CHANNEL_DATA, &channel), 0);
	assert_int_equal(tern_recv(channel, &req, tern_key("parameter/0"), 0, NULL, NULL,
				 TERN_RECV_ALLOC),
		0);
	run_until(&rig, &rig.ended);
	assert_int_equal(req.status, -ENOBUFS);
	assert_non_null(strstr(rig.text, "no worker is left"));
	assert_non_null(strstr(rig.text, "a tensor did not come through"));
	close_rig(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_peer_that_could_not_be_accepted_is_forgotten),
		cmocka_unit_test(
			test_a_guest_that_leaves_ends_nothing_and_leaves_nothing),
		cmocka_unit_test(test_the_oldest_guest_makes_place_for_one_more),
		cmocka_unit_test(test_a_silent_guest_is_refused_and_then_cut),
		cmocka_unit_test(test_what_all_guests_say_is_bounded_and_given_back),
		cmocka_unit_test(test_workers_join_while_the_shard_is_made),
		cmocka_unit_test(test_the_first_copies_of_async_mode_are_made_in_jobs),
		cmocka_unit_test(test_a_worker_hears_what_there_is_no_room_for),
		cmocka_unit_test(test_a_share_must_fit_into_the_memory_of_the_host),
		cmocka_unit_test(test_what_an_update_keeps_must_fit_as_well),
		cmocka_unit_test(
			test_a_job_of_absurd_size_is_refused_before_anything_is_made),
		cmocka_unit_test(test_a_job_that_cannot_be_taken_leaves_nothing),
		cmocka_unit_test(test_an_unknown_server_ends_nothing),
		cmocka_unit_test(test_the_jobs_that_unknown_servers_bring_are_bounded),
		cmocka_unit_test(test_refusals_of_strangers_are_noted_sparingly),
		cmocka_unit_test(test_a_worker_is_refused_with_one_sentence),
		cmocka_unit_test(test_a_lost_worker_that_comes_again_is_told_so),
		cmocka_unit_test(test_a_guest_has_nothing_to_say_goodbye_to),
		cmocka_unit_test(test_a_goodbye_before_the_start_makes_room_for_another),
		cmocka_unit_test(test_a_goodbye_before_the_last_step_is_a_loss),
		cmocka_unit_test(test_what_a_guest_announces_takes_no_memory),
		cmocka_unit_test(test_a_worker_that_refuses_a_version_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
