/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/server/train_bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tools/host_env.h"
#include "transport/context.h"

struct tern_dataset *data, *test;
uint64_t staging_bytes;
void (*adjust_job)(struct tern_ps_job *job);
void (*adjust_server)(struct tern_server_opts *opts);

/* ---- data: two classes separated by a plane ---- */

int make_data(void **state)
{
	size_t room = 4u << 20, at = 0;
	char *text = malloc(room);
	struct tern_rng rng = {.seed = 7};
	struct tern_dataset *all;
	struct tern_data_error error;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		float x[20], sum = 0;

		for (int j = 0; j < 20; j++) {
			x[j] = tern_unit_f32(tern_rng_next(&rng)) - 0.5f;
			sum += j % 2 ? x[j] : -x[j];
		}
		at += (size_t)snprintf(text + at, room - at, "%s", sum > 0 ? "+1" : "-1");
		for (int j = 0; j < 20; j++)
			at += (size_t)snprintf(
				text + at, room - at, " %d:%.5f", j, (double)x[j]);
		at += (size_t)snprintf(text + at, room - at, "\n");
	}
	if (tern_dataset_read(
		    &(struct tern_data_file){
			    .path = "made up", .data = text, .bytes = at},
		    NULL, 0, 0, &all, &error) < 0) {
		fprintf(stderr, "%s\n", error.text);
		return -1;
	}
	tern_dataset_range(all, 0, 2500, &data);
	tern_dataset_range(all, 2500, 500, &test);
	tern_dataset_free(all);
	free(text);
	return 0;
}

int free_data(void **state)
{
	(void)state;
	tern_dataset_free(data);
	tern_dataset_free(test);
	return 0;
}

/* ---- members ---- */

static void server_ended(void *arg, int status, const char *text)
{
	struct member *m = arg;

	m->ended = true;
	m->status = status;
	snprintf(m->text, sizeof(m->text), "%s", text);
}

void worker_ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	struct member *m = arg;

	server_ended(arg, status, text);
	m->results = *results;
}

static void progress(void *arg, const struct tern_worker_progress *progress)
{
	((struct member *)arg)->step = progress->step;
}

static void lost(void *arg, uint32_t worker, const char *text)
{
	struct member *m = arg;

	(void)worker;
	(void)text;
	m->has_more = true;
}

static int finishing(void *arg, struct tern_ps_text *why)
{
	(void)why;
	((struct member *)arg)->finishes = true;
	return 0;
}

/* reconnect_ns is short, since in these tests no lost link is ever restored. */
void open_member(struct member *m)
{
	const struct tern_context_opts opts = {.reconnect_ns = 50 * TERN_NS_PER_MS};

	assert_int_equal(host_env_new(NULL, &m->env), 0);
	assert_int_equal(tern_domain_new(NULL, &m->domain), 0);
	assert_int_equal(tern_context_new_in(m->domain, &opts, m->env, &m->ctx), 0);
}

static void open_server(struct member *m)
{
	open_member(m);
	assert_int_equal(tern_updater_cpu_new(tern_kernels_cpu(), &m->updater), 0);
}

void open_worker(struct member *m, const struct tern_model *model)
{
	open_member(m);
	assert_int_equal(
		tern_engine_cpu_new(tern_kernels_cpu(), model, 16, &m->engine), 0);
	assert_int_equal(engine_computer_new(&(struct engine_computer_opts){.env = m->env,
						     .engine = m->engine,
						     .train = data,
						     .batch = 16,
						     .seed = 3,
						     .test = test},
				 &m->computer),
		0);
}

static void *leave(void *arg)
{
	struct member *m = arg;

	host_env_stop(m->env);
	tern_context_free(m->ctx);
	tern_server_free(m->server);
	tern_updater_free(m->updater);
	tern_worker_free(m->worker);
	tern_session_free(m->session);
	engine_computer_free(m->computer);
	tern_engine_free(m->engine);
	tern_domain_free(m->domain);
	host_env_free(m->env);
	return NULL;
}

/* Closes the member in a thread of its own, as another process would close. Closing waits
 * for a server that still reads a gradient in place, so that server must run
 * meanwhile. */
void close_member(struct member *m)
{
	if (m->closed)
		return;
	m->closed = true;
	assert_int_equal(pthread_create(&m->leaver, NULL, leave, m), 0);
}

void close_members(struct member *members, unsigned count)
{
	for (unsigned i = count; i-- > 0;)
		close_member(&members[i]);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(pthread_join(members[i].leaver, NULL), 0);
}

void step_all(struct member *members, unsigned count)
{
	int n = 0;

	for (unsigned i = 0; i < count; i++)
		if (!members[i].closed)
			n += tern_progress(members[i].ctx);
	if (n == 0)
		usleep(50); /* gives the task threads time to run */
}

bool all_ended(const struct member *members, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!members[i].ended && !members[i].closed)
			return false;
	return true;
}

void start_servers(struct member *m, const struct setup *setup, char addresses[][128])
{
	for (unsigned i = 0; i < setup->servers; i++) {
		struct tern_server_opts opts;
		char listen[64];

		if (strcmp(setup->fabric, "shm") == 0)
			snprintf(listen, sizeof(listen), "shm://train-%d-%u",
				(int)getpid(), i);
		else
			snprintf(listen, sizeof(listen), "%s://127.0.0.1:0",
				setup->fabric);
		open_server(&m[i]);
		opts = (struct tern_server_opts){.domain = m[i].domain,
			.ctx = m[i].ctx,
			.updater = m[i].updater,
			.staging_bytes = staging_bytes,
			.listen = listen,
			.ended = server_ended,
			.arg = &m[i]};
		if (adjust_server)
			adjust_server(&opts);
		assert_int_equal(tern_server_new(&opts, &m[i].server), 0);
		snprintf(addresses[i], 128, "%s", tern_server_address(m[i].server));
	}
}

struct tern_model *make_model(const struct setup *setup)
{
	struct tern_data_error error;
	struct tern_model *model;

	assert_int_equal(tern_model_new(setup->model, data, &model, &error), 0);
	return model;
}

void start_worker(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save,
	unsigned index)
{
	struct tern_ps_job job = {.mode = setup->mode,
		.steps = setup->steps,
		.seed = 3,
		.slots = setup->slots,
		.workers = setup->workers,
		.batch = 16,
		.clip_norm = setup->clip_norm,
		.servers = addresses,
		.server_count = setup->servers};
	struct tern_ps_text why;

	tern_optimizer_parse(setup->optimizer, &job.optimizer);
	open_worker(m, model);
	engine_computer_describe(m->computer, &job);
	if (adjust_job)
		adjust_job(&job);
	assert_int_equal(tern_worker_new(&(struct tern_worker_opts){.domain = m->domain,
						 .ctx = m->ctx,
						 .computer = &m->computer->computer,
						 .job = &job,
						 .index = index,
						 .save_path = save,
						 .finishing = finishing,
						 .progress = progress,
						 .lost = lost,
						 .ended = worker_ended,
						 .arg = m},
				 &m->worker, &why),
		0);
}

void start_workers(struct member *m, const struct setup *setup,
	const struct tern_model *model, char addresses[][128], const char *save)
{
	for (unsigned i = 0; i < setup->workers; i++)
		start_worker(&m[i], setup, model, addresses, save, i);
}

/* Runs the members until all that are still open have ended. */
void run_out(struct member *m, unsigned count)
{
	uint64_t limit = tern_clock_ns() + 120 * TERN_NS_PER_S;

	while (!all_ended(m, count) && tern_clock_ns() < limit)
		step_all(m, count);
	assert_true(all_ended(m, count));
}

/* ---- whole jobs ---- */

void job_open(struct job *j, const struct setup *setup)
{
	*j = (struct job){
		.setup = setup, .model = make_model(setup), .count = setup->servers};
	start_servers(j->m, setup, j->addresses);
}

struct member *job_add(struct job *j)
{
	assert_true(j->count < MEMBERS_MAX);
	return &j->m[j->count++];
}

struct member *job_join(struct job *j, unsigned index)
{
	struct member *m = job_add(j);

	start_worker(m, j->setup, j->model, j->addresses, NULL, index);
	return m;
}

void job_start(struct job *j, const struct setup *setup)
{
	job_open(j, setup);
	for (unsigned i = 0; i < setup->workers; i++)
		job_join(j, i);
}

void job_step(struct job *j)
{
	step_all(j->m, j->count);
}

void job_run_out(struct job *j)
{
	run_out(j->m, j->count);
}

void job_close(struct job *j)
{
	close_members(j->m, j->count);
	tern_model_free(j->model);
}

void until_step(struct job *j, unsigned member, uint64_t step)
{
	JOB_UNTIL(j, j->m[member].step >= step);
}

void until_ended(struct job *j, unsigned first, unsigned count)
{
	JOB_UNTIL(j, all_ended(&j->m[first], count));
}

void check_good(const struct job *j, unsigned but)
{
	for (unsigned i = 0; i < j->count; i++)
		if ((j->m[i].status == 0) != !(but & 1u << i))
			fail_msg("member %u: %d: %s", i, j->m[i].status, j->m[i].text);
}

void until_joined(struct job *j, unsigned server, uint32_t count)
{
	JOB_UNTIL(j, j->m[server].server->joined_count == count);
}
