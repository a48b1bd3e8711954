/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/server/server_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"
#include "tools/host_env.h"
#include "transport/context.h"

/* reconnect_ns is short, since in these tests no lost link is ever restored. */
static void open_end(struct end *end)
{
	const struct tern_context_opts opts = {.reconnect_ns = 50 * TERN_NS_PER_MS};

	assert_int_equal(host_env_new(NULL, &end->env), 0);
	assert_int_equal(tern_domain_new(NULL, &end->domain), 0);
	assert_int_equal(tern_context_new_in(end->domain, &opts, end->env, &end->ctx), 0);
}

static void ended(void *arg, int status, const char *text)
{
	struct rig *rig = arg;

	(void)status;
	rig->ended = true;
	snprintf(rig->text, sizeof(rig->text), "%s", text);
}

static void warning(void *arg, const char *text)
{
	struct rig *rig = arg;

	rig->refusals += strstr(text, "was refused") != NULL;
	snprintf(rig->noted, sizeof(rig->noted), "%s", text);
}

static void note(void *arg, const char *text, bool comes)
{
	(void)comes;
	warning(arg, text);
}

void open_rig_from(struct rig *rig, struct tern_server_memory *memory)
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
					.from_memory = memory,
					.note = note,
					.warning = warning,
					.ended = ended,
					.arg = rig},
			&rig->server),
		0);
}

void open_rig(struct rig *rig)
{
	open_rig_from(rig, NULL);
}

void close_rig(struct rig *rig)
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

void step(struct rig *rig)
{
	if (tern_progress(rig->at.ctx) + tern_progress(rig->guests.ctx) == 0)
		usleep(50);
}

void run_until(struct rig *rig, const bool *flag)
{
	uint64_t limit = tern_clock_ns() + 20 * TERN_NS_PER_S;

	while (!*flag && tern_clock_ns() < limit)
		step(rig);
	assert_true(*flag);
}

void visitor_event(
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
	} else if (strcmp(tern_talk_type(message), "give") == 0) {
		v->gives = true;
	} else if (strcmp(tern_talk_type(message), "given") == 0) {
		v->begins = true;
	} else if (strcmp(tern_talk_type(message), "again") == 0) {
		v->again = true;
	} else if (strcmp(tern_talk_type(message), "serves") == 0) {
		v->serves = true;
	} else if (strcmp(tern_talk_type(message), "removed") == 0) {
		v->removed = true;
	} else if (strcmp(tern_talk_type(message), "complete") == 0) {
		v->complete = true;
	} else if (strcmp(tern_talk_type(message), "address") == 0) {
		v->told = true;
	} else if (strcmp(tern_talk_type(message), "draining") == 0) {
		v->draining = true;
		v->drained = json_is_true(json_object_get(message, "done"));
	} else if (strcmp(tern_talk_type(message), "refused") == 0 ||
		   strcmp(tern_talk_type(message), "abort") == 0) {
		v->aborted = strcmp(tern_talk_type(message), "abort") == 0;
		v->refused = !v->aborted;
		v->later = json_is_true(json_object_get(message, "later"));
		v->snapshot = json_integer_value(json_object_get(message, "snapshot"));
		snprintf(v->text, sizeof(v->text), "%s",
			json_string_value(json_object_get(message, "text")));
	}
}

static void visitor_broken(struct tern_talk *talk, int status)
{
	(void)talk;
	fail_msg("a request of a visitor failed alone: %d", status);
}

void visit(struct rig *rig, struct visitor *v)
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

json_t *job_of(const struct rig *rig, const struct tern_ps_job *like,
	unsigned param_count, uint64_t count, unsigned servers)
{
	static struct tern_param params[200];
	static char names[TERN_ARRAY_SIZE(params)][16];
	char addresses[2][128] = {"", "tcp://127.0.0.1:9"};
	struct tern_ps_job job = *like;
	json_t *object;
	char *text;

	assert_true(param_count <= TERN_ARRAY_SIZE(params) && servers <= 2);
	for (unsigned i = 0; i < param_count; i++) {
		snprintf(names[i], sizeof(names[i]), "w%u", i);
		params[i] = (struct tern_param){.name = names[i],
			.shape = tern_shape_1d(TERN_F32, count),
			.count = count,
			.push_bf16 = like->params && like->params[0].push_bf16,
			.pull_bf16 = like->params && like->params[0].pull_bf16};
	}
	snprintf(addresses[0], sizeof(addresses[0]), "%s",
		tern_server_address(rig->server));
	if (job.optimizer.lr == 0)
		tern_optimizer_parse("sgd", &job.optimizer);
	job.steps = TERN_MAX(job.steps, 1u);
	job.records = job.batch = 1;
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

void say_join(struct visitor *v, json_t *job, unsigned worker)
{
	tern_talk_say(
		&v->talk, json_pack("{s:s, s:I, s:I, s:I, s:o}", "type", "join", "worker",
				  (json_int_t)worker, "incarnation", (json_int_t)1,
				  "server", (json_int_t)0, "job", job));
}

void join(struct rig *rig, struct visitor *v, const struct tern_ps_job *like,
	uint64_t count, unsigned worker)
{
	visit(rig, v);
	say_join(v, job_of(rig, like, 1, count, 1), worker);
}

void join_well(struct rig *rig, struct visitor *v, const struct tern_ps_job *job,
	unsigned worker)
{
	join(rig, v, job, 1000, worker);
	run_until(rig, &v->welcome);
}

void open_with_workers(struct rig *rig, struct visitor *v, const struct tern_ps_job *job)
{
	open_rig(rig);
	for (unsigned i = 0; i < job->workers; i++)
		join(rig, &v[i], job, 1000, i);
	for (unsigned i = 0; i < job->workers; i++)
		run_until(rig, &v[i].welcome);
	run_until(rig, &rig->server->running);
}

void stop_and_close(struct rig *rig)
{
	assert_false(rig->ended);
	tern_server_stop(rig->server, "enough", false);
	tern_timer_set(rig->at.ctx, &rig->server->end_timer, 0);
	run_until(rig, &rig->ended);
	assert_string_equal(rig->text, "enough");
	close_rig(rig);
}

static unsigned length(const struct tern_list *list)
{
	unsigned n = 0;

	tern_list_for_each (node, list)
		n++;
	return n;
}

void until_peers(struct rig *rig, unsigned count)
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

struct server_peer *newest(const struct rig *rig)
{
	return tern_list_entry(rig->server->peers.prev, struct server_peer, node);
}

void say_bye(struct visitor *v)
{
	tern_talk_say(&v->talk, json_pack("{s:s}", "type", "bye"));
}

void refused_alone(struct rig *rig, struct visitor *v)
{
	const struct tern_ps_job job = {.slots = 1, .workers = 1};
	/* Static, since it stays connected until the rig is closed. */
	static struct visitor next;

	run_until(rig, &v->refused);
	assert_false(rig->server->has_job);
	assert_null(rig->server->plan.chunks);
	join_well(rig, &next, &job, 0);
	assert_false(rig->ended);
}
