/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/sim/job.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "client/engine_computer.h"
#include "tests/system/sim/followers.h"
#include "tests/system/sim/program.h"
#include "tests/system/sim/scenario.h"
#include "tests/system/sim/user.h"
#include "transport/context.h"

#define ENDLESS_NS   (1000 * TERN_NS_PER_S)
#define STATUS_TURNS 500u /* turns of the simulator between two questions */
/* No connection is cut any more after this time. A job must come to its end then: while connections are cut
 * all the time, as often as every millisecond, it may go back again and again. */
#define CUTS_NS (20 * TERN_NS_PER_S)

struct tern_sim_opts job_sim_opts(uint64_t seed, bool verbose)
{
	return (struct tern_sim_opts){.seed = seed,
		.caps = TERN_CAP_PUT,
		.chunk_bytes = 4000,
		.eager_bytes = 512,
		.log = verbose ? print_line : NULL};
}

struct tern_sim_opts job_rough_sim_opts(uint64_t seed, bool verbose)
{
	static const uint32_t kinds[] = {TERN_CAP_PUT, TERN_CAP_PUT | TERN_CAP_GET,
		TERN_CAP_GET | TERN_CAP_PEEK | TERN_CAP_BOUND,
		TERN_CAP_PUT | TERN_CAP_GET | TERN_CAP_PEEK};
	struct tern_sim_opts opts = job_sim_opts(seed, verbose);

	opts.caps = kinds[seed % 4];
	opts.eagain_permille = seed % 3 ? 50 : 0;
	opts.refuse_permille = 50;
	return opts;
}

static struct job *current;

static void ended(struct member *m, int status, const char *text)
{
	m->ended = true;
	m->status = status;
	snprintf(m->text, sizeof(m->text), "%s", text);
}

/* Server 0's reports go on, and say nothing that is ahead of it. Programs (program.c) have
 * the loss 0.5, and name their steps. */
static void server_progress(void *arg, const struct tern_server_progress *p)
{
	struct member *m = ((struct seat *)arg)->member;
	const struct tern_metrics *told = p->metrics;

	if (m < current->members || m >= current->members + MEMBERS_MAX)
		return; /* another server 0 has taken its place */
	if (p->step < m->shown || p->step > p->steps || m != &current->members[0] ||
		(current->sessions && !isnan(p->loss) && p->loss != 0.5) ||
		(!current->async && told->count &&
			told->list[0].value > (double)p->step)) {
		fprintf(stderr, "job: a wrong report of step %llu after %llu: loss %g\n",
			(unsigned long long)p->step, (unsigned long long)m->shown,
			p->loss);
		current->broken = true;
	}
	m->shown = p->step;
}

/* The end of a server. Server 0 has reported the last step of a job that is complete. */
static void server_done(void *arg, int status, const char *text)
{
	struct member *m = ((struct seat *)arg)->member;

	ended(m, status, text);
	/* A server that waits for the steps may hear from another one that the job is complete. */
	if (status || m != &current->members[0] || current->async ||
		!m->server->running || m->shown == current->plan.steps)
		return;
	fprintf(stderr, "job: server 0 has not reported the last step, but %llu\n",
		(unsigned long long)m->shown);
	current->broken = true;
}

static void server_snapshot(void *arg, const struct tern_server_snapshot *snapshot)
{
	(void)arg;
	if (current->snapshot)
		current->snapshot(current, snapshot);
}

static void worker_ended(void *arg, int status, const char *text,
	const struct tern_worker_results *results)
{
	struct member *m = ((struct seat *)arg)->member;

	m->results = *results;
	ended(m, status, text);
}

/* ---- engines that hang, or are slow ---- */

/* Computes a gradient. If the member is to hang, or is slow, the engine's task gets another cost in
 * virtual time, which the simulator reads after it has run the task. */
static int gradient_or_hang(struct tern_engine *e,
	const struct tern_engine_params *params, float *grads,
	void (*ready)(void *arg, uint64_t first, uint64_t count), void *arg,
	struct tern_result *result)
{
	struct member *m = &current->members[0];
	uint64_t slow_ns;
	int r;

	while (m->engine != e)
		m++;
	slow_ns = current->slow_ns ? current->slow_ns(current, m) : 0;
	if (m->hangs)
		m->computer->task.cost_ns = ENDLESS_NS;
	else if (slow_ns)
		m->computer->task.cost_ns = slow_ns;
	r = m->engine_ops->gradient(e, params, grads, ready, arg, result);
	if (job_omits(current, params->version, m->computer->work->slot)) {
		result->loss = (double)NAN;
		grads[0] = NAN;
	}
	return r;
}

static void let_hang(struct member *m)
{
	static struct tern_engine_ops ops;

	m->engine_ops = m->engine->ops;
	ops = *m->engine_ops;
	ops.gradient = gradient_or_hang;
	m->engine->ops = &ops;
}

/* ---- starting processes ---- */

static void open_member(struct job *j, struct member *m, const char *role, unsigned i)
{
	struct tern_context_opts opts = {.eager_bytes = 512,
		.record_count = 512,
		.reconnect_ns = j->reconnect_ns ? j->reconnect_ns : 100 * TERN_NS_PER_MS};
	char name[32];

	m->seat = malloc(sizeof(*m->seat));
	tern_assert(m->seat);
	m->seat->member = m;
	snprintf(name, sizeof(name), "%s %u", role, i);
	m->process = tern_sim_process_new(j->sim, name);
	if (tern_context_new_in(tern_sim_domain(m->process), &opts,
		    tern_sim_env(m->process), &m->ctx) < 0)
		tern_never("a context");
	tern_sim_drive(m->process, m->ctx);
}

/* How server i takes snapshots. */
static struct tern_server_snapshot_opts snapshots_of(
	const struct job *j, struct member *m, unsigned i)
{
	struct tern_server_snapshot_opts opts = j->snapshots;

	if (!j->via || i == 0 || !opts.directory)
		return opts;
	snprintf(m->via, sizeof(m->via), "%s", *m->zero ? m->zero : j->addresses[0]);
	opts.directory = NULL;
	opts.via = m->via;
	return opts;
}

/* The snapshot or directory that a user would name with --resume; NULL: none, or server 0 names it. */
static const char *resume_of(const struct job *j, const struct member *m, unsigned i)
{
	if (m->memory || (j->via && i > 0))
		return NULL;
	if (*m->told)
		return m->told;
	return j->resumes ? j->snapshots.directory : NULL;
}

void job_start_server(struct job *j, struct member *m, unsigned i, const char *address)
{
	const char *members[MEMBERS_MAX] = {m->met};
	unsigned member_count = *m->met != '\0';

	for (unsigned k = 0; k < m->other_count; k++)
		members[k] = m->others[k];
	member_count = m->others ? m->other_count : member_count;
	m->index = i;
	open_member(j, m, "server", i);
	if (j->disks[i])
		tern_sim_mount(m->process, j->disks[i]);
	if (tern_updater_cpu_new(tern_kernels_cpu(), &m->updater) < 0)
		tern_never("an updater");
	if (tern_server_new(
		    &(struct tern_server_opts){.domain = tern_sim_domain(m->process),
			    .ctx = m->ctx,
			    .updater = m->updater,
			    .listen = address,
			    .staging_bytes = j->staging_bytes,
			    .leave_ns = j->leave_ns ? j->leave_ns : TERN_NS_PER_MS,
			    .worker_timeout_ns = j->worker_timeout_ns,
			    .progress = server_progress,
			    .snapshots = snapshots_of(j, m, i),
			    .resume = resume_of(j, m, i),
			    .snapshot = server_snapshot,
			    .omits = j->omits,
			    .workers = j->launched ? j->workers : 0,
			    .goes_back = j->goes_back,
			    .returns = m->again,
			    .absent_ns = 30 * TERN_NS_PER_MS,
			    .members = members,
			    .member_count = member_count,
			    .follows = m->others && !m->has_begun ? m->follows : NULL,
			    .zero = m->has_begun && *m->zero ? m->zero : NULL,
			    .index = i,
			    .has_number = true,
			    .has_begun = m->has_begun,
			    .from_memory = m->memory,
			    .view = m->view,
			    .ended = server_done,
			    .arg = m->seat},
		    &m->server) < 0)
		tern_never("a server");
	m->memory = NULL; /* it is the server's now */
}

void job_start_worker(struct job *j, struct member *m, unsigned index, bool returns)
{
	struct tern_ps_job job = j->plan;
	struct tern_ps_text why;

	job.mode = j->async ? TERN_MODE_ASYNC : TERN_MODE_SYNC;
	job.ssp = j->ssp;
	job.workers = j->workers;
	job.servers = m->view ? m->view->servers : j->addresses;
	job.server_count = m->view ? m->view->count : j->servers;
	if (m->view)
		tern_view_set_job(m->view, &job);
	m->index = index;
	open_member(j, m, "worker", index);
	if (j->sessions) {
		m->program = program_new(j, m, index);
		return;
	}
	m->engine = j->engine(j->engine_arg, job.batch);
	if (j->goes_back && !m->places)
		m->places = calloc(TERN_SERVERS_MAX, sizeof(*m->places));
	tern_assert(m->places || !j->goes_back);
	let_hang(m);
	if (engine_computer_new(
		    &(struct engine_computer_opts){.env = tern_sim_env(m->process),
			    .engine = m->engine,
			    .train = j->data,
			    .batch = job.batch,
			    .seed = job.seed},
		    &m->computer) < 0)
		tern_never("a computer");
	engine_computer_describe(m->computer, &job);
	if (j->no_records)
		job.records = 0;
	m->user = j->users ? user_new(j, m) : NULL;
	if (tern_worker_new(
		    &(struct tern_worker_opts){.domain = tern_sim_domain(m->process),
			    .ctx = m->ctx,
			    .computer = m->user ? user_computer(m->user)
						: &m->computer->computer,
			    .job = &job,
			    .index = index,
			    .goes_back = j->goes_back,
			    .returns = returns,
			    .has_begun = returns,
			    .places = m->places,
			    .moved = j->goes_back ? job_on_moved : NULL,
			    .viewed = j->goes_back ? job_on_viewed : NULL,
			    .save_path = "result",
			    .interrupted_path = "interrupted",
			    .ended = worker_ended,
			    .arg = m->seat},
		    &m->worker, &why) < 0)
		tern_never("a worker");
}

struct member *job_add_worker(struct job *j, unsigned index)
{
	struct member *m = &j->members[j->count++];

	tern_assert(j->count <= MEMBERS_MAX);
	job_start_worker(j, m, index, false);
	return m;
}

void job_start(struct job *j, const struct tern_dataset *data)
{
	current = j;
	j->data = data;
	j->count = j->servers;
	for (unsigned i = 0; i < j->servers; i++) {
		snprintf(j->addresses[i], sizeof(j->addresses[i]), "sim://server-%u-%u",
			j->generation, i);
		job_start_server(j, &j->members[i], i, j->addresses[i]);
	}
	for (unsigned i = 0; i < j->workers; i++)
		job_add_worker(j, i);
}

bool job_omits(const struct job *j, uint64_t version, uint32_t slot)
{
	return j->omits && j->plan.slots > 1 && slot == (version * 7 + 3) % j->plan.slots;
}

uint32_t job_slots_counted(const struct job *j)
{
	return j->plan.slots - (j->omits && j->plan.slots > 1);
}

void job_crash(struct job *j)
{
	for (unsigned i = 0; i < j->count; i++)
		tern_sim_crash(j->members[i].process);
}

static bool is_awaited(const struct job *j, const struct member *m)
{
	bool gone = m->ended || tern_sim_crashed(m->process);

	return job_comes_again(j, m) ||
	       (!gone && !job_is_too_late(j, m) && !job_has_removed(j, m));
}

static bool all_ended(void *arg)
{
	struct job *j = arg;

	for (unsigned i = 0; i < j->count; i++)
		if (is_awaited(j, &j->members[i]))
			return false;
	return true;
}

/* True when the training steps have begun. Before that, servers wait for their workers
 * without a time limit, and if a worker is lost its place stays free until a scenario's
 * prologue adds another worker. */
static bool has_begun(const struct job *j)
{
	struct tern_server_stats stats;

	tern_server_stats(j->members[0].server, &stats);
	return stats.steps > j->members[0].server->first_version;
}

void job_run(struct job *j, const struct tern_dataset *data)
{
	if (j->perform) {
		j->perform(j, data);
		return;
	}
	job_start(j, data);
	tern_sim_run(j->sim, job_disturb, j, 60 * TERN_NS_PER_S);
}

struct member *job_victim(struct job *j, unsigned first, unsigned count)
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

/* True unless the worker has come during the steps, and does not know yet that it takes part. */
static bool was_let_in(const struct member *m)
{
	return !m->returned || (m->worker && m->worker->begun);
}

unsigned job_workers_left(const struct job *j)
{
	unsigned n = 0;

	for (unsigned i = j->servers; i < j->count; i++) {
		const struct member *m = &j->members[i];

		n += !m->asked && !m->stalled && was_let_in(m) &&
		     !tern_sim_crashed(m->process);
	}
	return n;
}

/* Makes a process crash, hang, fail, stall or leave. After the first that crashes or
 * leaves, the next ones come soon, while the job still handles it. */
static void hurt(struct job *j)
{
	struct member *m = job_victim(j, j->servers, j->count - j->servers);

	if (j->keeps_one && m && was_let_in(m) && job_workers_left(j) == 1)
		return;
	/* A worker that has come is mostly spared until it was let in. */
	if (m && !was_let_in(m) && tern_sim_dice(j->sim, 800))
		return;
	if (j->losses && m && !j->goes_back) {
		j->losses--;
		j->hurt_permille = j->returns ? j->hurt_permille : 200;
		m->asked = j->polite && (j->parts || tern_sim_dice(j->sim, 500));
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
	} else if (j->fails && m && job_workers_left(j) > 1) {
		j->fails = false;
		m->stalled = m->fails = true;
	} else if (j->server_naps && (m = job_victim(j, 0, j->servers))) {
		j->server_naps = false;
		tern_sim_stall(m->process, 6 * TERN_NS_PER_S);
	} else if (j->server_falls && (m = job_victim(j, 0, j->servers))) {
		j->server_falls = false;
		j->doomed = true;
		tern_sim_crash(m->process);
	}
}

/* Stalls a process for 1 to 5 ms: it falls behind the others, but must not be given up. */
static void nap(struct job *j)
{
	unsigned first = j->all_nap ? 0 : j->servers;
	struct member *m = job_victim(j, first, j->count - first);

	if (m)
		tern_sim_stall(m->process,
			TERN_NS_PER_MS +
				tern_rng_below(tern_sim_rng(j->sim), 4 * TERN_NS_PER_MS));
}

/* True if the worker is lost, or is asked to leave and gone, and nobody is in its place. */
static bool is_missing(const struct member *m)
{
	return !m->replaced && (tern_sim_crashed(m->process) || (m->asked && m->ended));
}

/* Starts a worker in the place of one that was lost: most often when the servers know that,
 * since otherwise they ask it to come again in a second. */
static void come_back(struct job *j)
{
	uint64_t now_ns = tern_sim_now_ns(j->sim);

	for (unsigned i = j->servers; i < j->count; i++) {
		struct member *m = &j->members[i];

		if (!is_missing(m) || tern_sim_dice(j->sim, 500))
			continue;
		if (!m->missing_ns)
			m->missing_ns = now_ns;
		if (!m->asked && now_ns - m->missing_ns < 2 * j->reconnect_ns &&
			!tern_sim_dice(j->sim, 5))
			continue;
		m->replaced = true;
		j->returns--;
		job_add_worker(j, m->index)->returned = true;
		return;
	}
}

/* How far server 0 is in letting a worker in (server/change.c): one has joined, the servers
 * are being stopped, this one has stopped. */
static unsigned stage_of(const struct tern_server *zero)
{
	if (zero->change.version != UINT64_MAX)
		return 2u + zero->change.reached;
	tern_list_for_each (n, &zero->peers)
		if (tern_list_entry(n, struct server_peer, node)->returning)
			return 1;
	return 0;
}

/* At each stage some process learns late of what server 0 says, or stands still for a
 * while. */
static void delay_change(struct job *j)
{
	struct member *zero = &j->members[0];
	unsigned stage = stage_of(zero->server);
	uint64_t ns = TERN_NS_PER_US * (50 + tern_rng_below(tern_sim_rng(j->sim),
						     j->parts ? 12000 : 4000));
	bool server = j->servers > 1 && tern_sim_dice(j->sim, 800);
	struct member *m = job_victim(j, 1, (server ? j->servers : j->count) - 1);
	bool is_new = stage > zero->stage;

	zero->stage = stage;
	if (!is_new || !m || tern_sim_dice(j->sim, 300))
		return;
	if (j->parts)
		tern_sim_part(zero->process, m->process, ns, -ECONNRESET);
	else
		tern_sim_stall(m->process, ns);
}

/* ---- checks of the servers' state ---- */

static uint64_t staged(const struct tern_server *s)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		if (s->chunks[i].state == CHUNK_GATHERING ||
			s->chunks[i].state == CHUNK_SUMMING ||
			(s->chunks[i].state == CHUNK_APPLYING &&
				s->chunks[i].arrived_count > 0))
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

/* Checks that a chunk holds at most the gradients for which the server has buffers
 * (held_most), and gradients that workers had computed before they got earlier slots. The
 * bound does not depend on the number of slots. */
static bool holds_no_more(const struct tern_server *s, const struct chunk *c, bool lost)
{
	uint32_t held = 0, wanted = 0;

	for (uint32_t k = 0; k < s->job.slots; k++) {
		held += c->gradients[k].room.mem != NULL;
		wanted += c->gradients[k].wanted;
	}
	if (held <= s->held_most + wanted && wanted == c->wanted_count &&
		(lost || wanted == 0))
		return true;
	fprintf(stderr,
		"job: chunk %u holds %u gradients, of %u that it may, and %u that were "
		"wanted, of %u that were counted\n",
		c->number, held, s->held_most, wanted, c->wanted_count);
	return false;
}

/* ---- the memory of gradients ---- */

/* Largest number of slots that any worker has. */
static uint32_t most_slots(const struct tern_server *s)
{
	uint32_t count[MEMBERS_MAX] = {0}, most = 0;

	for (uint32_t i = 0; i < s->job.slots; i++)
		most = TERN_MAX(most, ++count[s->leases[i].owner->index]);
	return most;
}

/* How many bytes of the server's pool may be in use: what the chunks have taken from the
 * staging budget (memory for received gradients) and beyond it, and the norms. */
static uint64_t may_be_used(const struct tern_server *s)
{
	uint64_t bytes = s->staging_bytes - s->staging_left + s->wanted_bytes;
	uint64_t norm = s->partials.bytes + s->total.bytes;

	for (uint32_t i = 1; s->shares && i < s->job.server_count; i++)
		norm += s->shares[i].buf.bytes;
	/* Slack, since the pool rounds each size up to a multiple of 64 bytes. */
	return bytes + norm +
	       64ull * (s->chunk_count * s->job.slots + 2ull + s->job.server_count);
}

/* True if the server has had a reason to raise its staging budget, the memory for
 * received gradients (see server/sync.c). */
static bool may_be_wide(struct member *m)
{
	const struct tern_server *s = m->server;

	m->crowded = m->crowded || s->job.slots > s->job.workers ||
		     most_slots(s) > TERN_GRADIENT_BUFFERS;
	return m->crowded;
}

static uint64_t wanted_bytes(const struct tern_server *s)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++)
		bytes += s->chunks[i].wanted_count * s->chunks[i].plan->count *
			 sizeof(float);
	return bytes;
}

static bool memory_is_bounded(struct job *j, struct member *m)
{
	const struct tern_server *s = m->server;
	uint32_t lost_most = TERN_MAX(m->lost_most, j->members[0].lost_most);
	uint64_t chunk_bytes = s->plan.chunk_elements * sizeof(float);
	uint64_t budget = TERN_MAX(j->staging_bytes, s->held_most * chunk_bytes);
	uint32_t wanted_most = TERN_GRADIENT_BUFFERS * s->job.workers * lost_most;
	struct tern_pool_stats stats;

	tern_pool_stats(s->staging, &stats);
	if (may_be_wide(m))
		budget = TERN_MAX(budget, s->staging_most);
	if (stats.used_bytes <= may_be_used(s) && s->staging_bytes <= budget &&
		s->wanted_bytes == wanted_bytes(s) &&
		s->wanted_bytes <= wanted_most * s->chunk_count * chunk_bytes)
		return true;
	fprintf(stderr,
		"job: %llu bytes of gradients, of %llu that chunks may have; a budget of "
		"%llu, of %llu that it may be; %llu wanted, of %u gradients at most\n",
		(unsigned long long)stats.used_bytes, (unsigned long long)may_be_used(s),
		(unsigned long long)s->staging_bytes, (unsigned long long)budget,
		(unsigned long long)s->wanted_bytes, wanted_most);
	return false;
}

/* Checks that a worker says goodbye only after it has sent all gradients that it
 * promised. */
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

/* Checks that the used staging budget (memory for received gradients) and the count of
 * gradients read in place agree with what the chunks hold. */
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

/* Checks that no send of a gradient stays unanswered: each is received or refused by its
 * server, since it blocks the worker's buffer. But a worker whose slots have all moved away follows the
 * versions, and servers refuse what it has sent when it has told them what that is. */
static bool sends_end(const struct tern_worker *w)
{
	for (uint32_t i = 0; w->slot_count && i < w->room_count; i++) {
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
	for (unsigned i = j->servers; i < j->count && !j->async; i++) {
		const struct member *m = &j->members[i];

		if (!m->ended && !tern_sim_crashed(m->process) && !m->worker->over)
			j->broken = j->broken || !sends_end(m->worker);
	}
	for (unsigned i = 0; i < j->servers && !j->async; i++) {
		struct member *m = &j->members[i];
		bool lost; /* workers, so that others may have computed too much */

		/* A slot that moves from a slow worker may have to be computed before others
		 * that the next one has computed, as after a loss. */
		m->lost_most = TERN_MAX(m->lost_most,
			m->server->lost_count + (m->server->history->moved_count > 0));
		lost = TERN_MAX(m->lost_most, j->members[0].lost_most) > 0;
		if (m->ended || tern_sim_crashed(m->process) || !m->server->running ||
			m->server->status)
			continue;
		j->broken = j->broken || !owes_nothing(m->server) ||
			    (!m->server->over && (!books_are_right(m->server, lost) ||
							 !memory_is_bounded(j, m)));
	}
}

/* Servers answer what `tern status` asks, whatever state they are in. No chance is involved, so
 * a seed is the same job with and without it. */
static void ask_status(struct job *j)
{
	if (j->turns++ % STATUS_TURNS != 0)
		return;
	for (unsigned i = 0; i < j->servers; i++) {
		const struct member *m = &j->members[i];
		json_t *answer;

		if (!m->server || m->ended || m->server->over ||
			tern_sim_crashed(m->process))
			continue;
		answer = status_answer(m->server, 0);
		tern_assert(json_object_get(answer, "state"));
		json_decref(answer);
	}
}

bool job_disturb(void *arg)
{
	struct job *j = arg;

	ask_status(j);
	if (!j->broken)
		check_books(j);
	if (j->goes_back)
		job_make_again(j);
	if (j->prologue && !has_begun(j))
		j->prologue(j);
	if (j->script && has_begun(j))
		j->script(j);
	if (tern_sim_now_ns(j->sim) >= j->next_ns) {
		j->next_ns = tern_sim_now_ns(j->sim) + 50 * TERN_NS_PER_US;
		if (tern_sim_dice(j->sim, j->cut_permille) && j->next_ns < CUTS_NS)
			tern_sim_cut(j->sim);
		if (tern_sim_dice(j->sim, j->nap_permille))
			nap(j);
		if (has_begun(j) && tern_sim_dice(j->sim, j->hurt_permille))
			hurt(j);
		if (j->returns && has_begun(j))
			come_back(j);
	}
	if (j->all_nap)
		delay_change(j);
	return all_ended(arg);
}

bool job_judge(const struct job *j)
{
	bool good = !j->broken;

	for (unsigned i = 0; i < j->count; i++) {
		const struct member *m = &j->members[i];

		if (!m->ended || job_comes_again(j, m)
				? is_awaited(j, m)
				: m->status &&
					  !(j->goes_back && (m->status == -EAGAIN ||
								    m->results.cut)) &&
					  !j->doomed && !m->stalled && was_let_in(m) &&
					  !job_is_too_late(j, m) &&
					  !(m->asked && m->status == -ECANCELED)) {
			fprintf(stderr, "job: member %u: %s %d %s\n", i,
				m->ended ? "ended" : "hangs", m->status, m->text);
			good = false;
		}
		if (m->server && m->server->twice_told) {
			fprintf(stderr, "job: a slot was computed twice, differently\n");
			good = false;
		}
		if (m->ended && m->status && !m->text[0]) {
			fprintf(stderr, "job: member %u failed without an error text\n",
				i);
			good = false;
		}
	}
	return good;
}

void job_free_member(struct member *m)
{
	tern_sim_forget(m->process, m->ctx);
	tern_context_free(m->ctx);
	tern_server_free(m->server);
	tern_updater_free(m->updater);
	if (!m->program)
		tern_worker_free(m->worker);
	program_free(m->program);
	engine_computer_free(m->computer);
	tern_engine_free(m->engine);
	user_free(m->user);
	free(m->others);
	free(m->servers);
	free(m->view);
	free(m->places);
	free(m->seat);
}

void job_finish(struct job *j)
{
	followers_finish(j);
	for (unsigned i = j->count; i-- > 0;)
		job_free_member(&j->members[i]);
	for (unsigned i = j->former_count; i-- > 0;)
		job_free_member(j->former[i]);
	for (unsigned i = j->count; i-- > 0;)
		tern_sim_process_free(j->members[i].process);
	for (unsigned i = j->former_count; i-- > 0;) {
		tern_sim_process_free(j->former[i]->process);
		free(j->former[i]);
	}
	free(TERN_TAKE(j->former));
	j->former_count = 0;
}

const float *job_result(const struct job *j)
{
	size_t bytes = 0;
	const char *result = tern_sim_disk_get(tern_sim_disk(j->sim), "result", &bytes);
	uint64_t header;

	if (!result) {
		fprintf(stderr, "job: nothing was saved\n");
		return NULL;
	}
	memcpy(&header, result, sizeof(header));
	return (const float *)(const void *)(result + sizeof(header) + header);
}
