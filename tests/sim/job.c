/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/job.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "transport/context.h"

#define ENDLESS_NS (1000 * TERN_NS_PER_S)

static void server_ended(void *arg, int status, const char *text)
{
	struct member *m = arg;

	m->ended = true;
	m->status = status;
	snprintf(m->text, sizeof(m->text), "%s", text);
}

static void worker_ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	((struct member *)arg)->results = *results;
	server_ended(arg, status, text);
}

/* ---- engines that may hang ---- */

static struct job *current;

/* The simulator asks what a job costs when it has run. */
static int gradient_or_hang(struct tern_engine *e,
	const struct tern_engine_params *params, float *grads,
	void (*ready)(void *arg, uint64_t first), void *arg, struct tern_result *result)
{
	struct member *m = &current->members[0];

	while (m->engine != e)
		m++;
	if (m->hangs)
		m->worker->job_item.cost_ns = ENDLESS_NS;
	return m->engine_ops->gradient(e, params, grads, ready, arg, result);
}

static void let_hang(struct member *m)
{
	static struct tern_engine_ops ops;

	m->engine_ops = m->engine->ops;
	ops = *m->engine_ops;
	ops.gradient = gradient_or_hang;
	m->engine->ops = &ops;
}

/* ---- birth ---- */

static void open_member(struct job *j, struct member *m, const char *role, unsigned i)
{
	struct tern_context_opts opts = {.eager_bytes = 512,
		.record_count = 512,
		.reconnect_ns = j->reconnect_ns ? j->reconnect_ns : 100 * TERN_NS_PER_MS};
	char name[32];

	snprintf(name, sizeof(name), "%s %u", role, i);
	m->process = tern_sim_process_new(j->sim, name);
	if (tern_context_new_in(tern_sim_domain(m->process), &opts,
		    tern_sim_env(m->process), &m->ctx) < 0)
		tern_never("a context");
	tern_sim_drive(m->process, m->ctx);
}

void job_start(struct job *j, const struct tern_dataset *data)
{
	char addresses[MEMBERS_MAX][128];
	struct tern_ps_job job = j->plan;
	struct tern_ps_text why;

	current = j;
	job.mode = j->async ? TERN_MODE_ASYNC : TERN_MODE_SYNC;
	job.workers = j->workers;
	job.servers = addresses;
	job.server_count = j->servers;
	j->count = j->servers + j->workers;
	for (unsigned i = 0; i < j->servers; i++) {
		struct member *m = &j->members[i];

		open_member(j, m, "server", i);
		if (tern_updater_cpu_new(tern_kernels_cpu(), &m->updater) < 0)
			tern_never("an updater");
		snprintf(addresses[i], sizeof(addresses[i]), "sim://server-%u", i);
		if (tern_server_new(&(struct tern_server_opts){.domain = tern_sim_domain(
								       m->process),
					    .ctx = m->ctx,
					    .updater = m->updater,
					    .listen = addresses[i],
					    .staging_bytes = j->staging_bytes,
					    .leave_ns = j->leave_ns ? j->leave_ns
								    : TERN_NS_PER_MS,
					    .worker_timeout_ns = j->worker_timeout_ns,
					    .ended = server_ended,
					    .arg = m},
			    &m->server) < 0)
			tern_never("a server");
	}
	for (unsigned i = 0; i < j->workers; i++) {
		struct member *m = &j->members[j->servers + i];

		open_member(j, m, "worker", i);
		m->engine = j->engine(j->engine_arg, job.batch);
		let_hang(m);
		if (tern_worker_new(&(struct tern_worker_opts){.domain = tern_sim_domain(
								       m->process),
					    .ctx = m->ctx,
					    .engine = m->engine,
					    .job = &job,
					    .index = i,
					    .train = data,
					    .save_path = "result",
					    .interrupted_path = "interrupted",
					    .ended = worker_ended,
					    .arg = m},
			    &m->worker, &why) < 0)
			tern_never("a worker");
	}
}

static bool all_ended(void *arg)
{
	struct job *j = arg;

	for (unsigned i = 0; i < j->count; i++)
		if (!j->members[i].ended && !tern_sim_crashed(j->members[i].process))
			return false;
	return true;
}

/* Before that, servers wait for their workers, however long they take; one that is lost
 * leaves a place, and nobody here would come to take it. */
static bool has_begun(const struct job *j)
{
	struct tern_server_stats stats;

	tern_server_stats(j->members[0].server, &stats);
	return stats.steps > 0;
}

/* A random one of `count` members from `first` on that is still there; NULL: there is
 * none. */
static struct member *victim(struct job *j, unsigned first, unsigned count)
{
	unsigned at = (unsigned)tern_rng_below(tern_sim_rng(j->sim), count);

	for (unsigned i = 0; i < count; i++) {
		struct member *m = &j->members[first + (at + i) % count];

		if (!m->ended && !m->asked && !m->stalled &&
			!tern_sim_crashed(m->process))
			return m;
	}
	return NULL;
}

unsigned job_workers_left(const struct job *j)
{
	unsigned n = 0;

	for (unsigned i = j->servers; i < j->count; i++)
		n += !j->members[i].asked && !j->members[i].stalled &&
		     !tern_sim_crashed(j->members[i].process);
	return n;
}

/* One loss; more of them soon after the first, while it is being made up for. */
static void hurt(struct job *j)
{
	struct member *m = victim(j, j->servers, j->workers);

	if (j->losses && m) {
		j->losses--;
		j->hurt_permille = 200;
		m->asked = j->polite && tern_sim_dice(j->sim, 500);
		if (m->asked)
			tern_worker_ask_to_leave(m->worker, "asked");
		else
			tern_sim_crash(m->process);
		j->doomed = j->doomed || job_workers_left(j) == 0;
	} else if (j->stalls && m && job_workers_left(j) > 1) {
		j->stalls = false;
		m->stalled = true;
		tern_sim_stall(m->process, 30 * TERN_NS_PER_S);
	} else if (j->hangs && m && job_workers_left(j) > 1) {
		j->hangs = false;
		m->stalled = m->hangs = true;
	} else if (j->server_naps && (m = victim(j, 0, j->servers))) {
		j->server_naps = false;
		tern_sim_stall(m->process, 6 * TERN_NS_PER_S);
	} else if (j->server_falls && (m = victim(j, 0, j->servers))) {
		j->server_falls = false;
		j->doomed = true;
		tern_sim_crash(m->process);
	}
}

/* A worker lags behind the others, and is not lost for it. */
static void nap(struct job *j)
{
	struct member *m = victim(j, j->servers, j->workers);

	if (m)
		tern_sim_stall(m->process,
			TERN_NS_PER_MS +
				tern_rng_below(tern_sim_rng(j->sim), 4 * TERN_NS_PER_MS));
}

/* ---- the books ---- */

static uint64_t staged(const struct tern_server *s)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].state == CHUNK_GATHERING ||
			s->chunks[i].state == CHUNK_SUMMING ||
			(s->chunks[i].state == CHUNK_APPLYING && s->job.clip_norm == 0))
			bytes += s->held_most * s->chunks[i].plan->count * sizeof(float);
	return bytes;
}

static uint32_t in_place(const struct tern_server *s, const struct server_peer *worker)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint32_t k = 0; k < s->job.slots; k++)
			count += s->chunks[i].gradients[k].in_place == worker;
	return count;
}

/* However many slots there are, a chunk holds the gradients of its window and sums of
 * others; and what workers had computed when they got slots that come before. */
static bool holds_no_more(const struct tern_server *s, const struct chunk *c, bool lost)
{
	uint32_t held = 0, wanted = 0;

	for (uint32_t k = 0; k < s->job.slots; k++) {
		held += c->gradients[k].room.mem != NULL;
		wanted += c->gradients[k].wanted;
	}
	if (held <= s->held_most + wanted && (lost || wanted == 0))
		return true;
	fprintf(stderr,
		"job: chunk %u holds %u gradients, of %u that it may, and %u that were "
		"wanted\n",
		c->number, held, s->held_most, wanted);
	return false;
}

/* A worker says goodbye when it has sent all that it promised to. */
static bool owes_nothing(const struct tern_server *s)
{
	tern_list_for_each (n, &s->extras) {
		const struct extra *e = tern_list_entry(n, struct extra, node);

		if (!e->from->said_bye)
			continue;
		fprintf(stderr,
			"job: worker %u left and owes chunk %u of slot %u, version "
			"%llu\n",
			e->from->index, e->chunk->number, e->slot,
			(unsigned long long)e->version);
		return false;
	}
	return true;
}

/* What a server has of its staging budget, and reads in place, is what its chunks hold.
 */
static bool books_are_right(const struct tern_server *s, bool lost)
{
	if (s->staging_left > s->staging_bytes ||
		s->staging_bytes - s->staging_left != staged(s)) {
		fprintf(stderr,
			"job: %llu of %llu staging bytes are left, chunks hold %llu\n",
			(unsigned long long)s->staging_left,
			(unsigned long long)s->staging_bytes,
			(unsigned long long)staged(s));
		return false;
	}
	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (!holds_no_more(s, &s->chunks[i], lost))
			return false;
	for (uint32_t i = 0; i < s->job.workers; i++) {
		if (s->workers[i]->in_place_count == in_place(s, s->workers[i]))
			continue;
		fprintf(stderr,
			"job: %u gradients of worker %u in place, chunks hold %u\n",
			s->workers[i]->in_place_count, i, in_place(s, s->workers[i]));
		return false;
	}
	return true;
}

/* What a worker sends is taken or refused; else its buffer would be lost. */
static bool sends_end(const struct tern_worker *w)
{
	for (uint32_t i = 0; i < w->room_count; i++) {
		const struct room *room = &w->rooms[i];

		if (room->sends_out == 0 || room->version + 1 >= w->version)
			continue;
		fprintf(stderr,
			"job: worker %u is at version %llu, and its gradient of slot %u, "
			"version %llu, is still under way\n",
			w->opts.index, (unsigned long long)w->version, room->slot,
			(unsigned long long)room->version);
		return false;
	}
	return true;
}

static void check_books(struct job *j)
{
	bool lost = j->members[0].server->lost_count > 0; /* server 0 decides */

	for (unsigned i = j->servers; i < j->count && !j->async; i++) {
		const struct member *m = &j->members[i];

		if (!m->ended && !tern_sim_crashed(m->process) && !m->worker->over)
			j->broken = j->broken || !sends_end(m->worker);
	}
	for (unsigned i = 0; i < j->servers && !j->async; i++) {
		const struct member *m = &j->members[i];

		if (m->ended || tern_sim_crashed(m->process) || !m->server->running ||
			m->server->status)
			continue;
		j->broken = j->broken || !owes_nothing(m->server) ||
			    (!m->server->over && !books_are_right(m->server, lost));
	}
}

bool job_disturb(void *arg)
{
	struct job *j = arg;

	if (!j->broken)
		check_books(j);
	if (j->script && has_begun(j))
		j->script(j);

	if (tern_sim_now_ns(j->sim) >= j->next_ns) {
		j->next_ns = tern_sim_now_ns(j->sim) + 50 * TERN_NS_PER_US;
		if (tern_sim_dice(j->sim, j->cut_permille))
			tern_sim_cut(j->sim);
		if (tern_sim_dice(j->sim, j->nap_permille))
			nap(j);
		if (has_begun(j) && tern_sim_dice(j->sim, j->hurt_permille))
			hurt(j);
	}
	return all_ended(arg);
}

/* Whoever did not crash has ended: well, or the job was doomed; in words, or well. */
bool job_judge(const struct job *j)
{
	bool good = !j->broken;

	for (unsigned i = 0; i < j->count; i++) {
		const struct member *m = &j->members[i];

		if (!m->ended ? !tern_sim_crashed(m->process)
			      : m->status && !j->doomed && !m->stalled &&
					!(m->asked && m->status == -ECANCELED)) {
			fprintf(stderr, "job: member %u: %s %d %s\n", i,
				m->ended ? "ended" : "hangs", m->status, m->text);
			good = false;
		}
		if (m->ended && m->status && !m->text[0]) {
			fprintf(stderr, "job: member %u failed without a word\n", i);
			good = false;
		}
	}
	return good;
}

void job_finish(struct job *j)
{
	for (unsigned i = j->count; i-- > 0;) {
		struct member *m = &j->members[i];

		tern_sim_forget(m->process, m->ctx);
		tern_context_free(m->ctx);
		tern_server_free(m->server);
		tern_updater_free(m->updater);
		tern_worker_free(m->worker);
		tern_engine_free(m->engine);
	}
	for (unsigned i = j->count; i-- > 0;)
		tern_sim_process_free(j->members[i].process);
}

const float *job_result(const struct job *j)
{
	size_t bytes = 0;
	const char *result = tern_sim_file_get(j->sim, "result", &bytes);
	uint64_t header;

	if (!result) {
		fprintf(stderr, "job: nothing was saved\n");
		return NULL;
	}
	memcpy(&header, result, sizeof(header));
	return (const float *)(const void *)(result + sizeof(header) + header);
}
