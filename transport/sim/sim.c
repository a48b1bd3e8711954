/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator: time, processes, tasks. The simulated network is in fabric.c and move.c, the
 * disks are in disk.c. */
#include "transport/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "transport/context.h"
#include "transport/sim/disk.h"

#define CONTEXTS_MAX 4
#define PARTS_MAX    8
/* Processes' clocks differ by up to so much. */
#define CLOCK_SPAN_NS (1000000 * TERN_NS_PER_S)

struct part { /* Two processes that cannot reach each other, until a time. */
	const struct tern_sim_process *a, *b;
	uint64_t until_ns;
};

struct tern_sim {
	struct tern_sim_opts opts;
	struct tern_rng rng;
	uint64_t now_ns, order, hash;
	struct tern_sim_event **heap;
	uint32_t event_count, capacity;
	struct tern_list processes, disks, lsns, conns, readings;
	bool broken;
	struct part parts[PARTS_MAX];
};

struct tern_sim_process {
	struct tern_env env;
	struct tern_sim *sim;
	struct tern_list node;
	char name[32];
	struct tern_rng rng;
	struct tern_domain *domain;
	struct tern_context *contexts[CONTEXTS_MAX];
	unsigned context_count;
	/* List of struct notice: completed tasks and file operations whose callbacks were
	 * not called yet. */
	struct tern_list done;
	bool roused, crashed;
	struct tern_sim_disk *disk;
	uint64_t clock_ns; /* what its clock is ahead of the simulator's */
	uint64_t stalled_until_ns;
	struct tern_sim_event wake_up;
};

/* A task or file operation in progress. When it is completed, its process is notified in
 * its next turn. */
struct notice {
	struct tern_list node;
	struct tern_sim_event event;
	struct tern_sim_process *process;
	struct tern_task *task;    /* a task; NULL: file operation */
	struct tern_file_op *file; /* a file operation; NULL: task */
	bool progress, running;
};

/* ---- events ---- */

static bool sooner(const struct tern_sim_event *a, const struct tern_sim_event *b)
{
	return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

static void place(struct tern_sim *sim, uint32_t i, struct tern_sim_event *event)
{
	sim->heap[i] = event;
	event->place = i + 1;
}

void tern_sim_at(struct tern_sim *sim, struct tern_sim_event *event, uint64_t at_ns)
{
	uint32_t i = sim->event_count++;

	tern_assert(event->place == 0);
	if (sim->event_count > sim->capacity) {
		sim->capacity = TERN_MAX(sim->capacity * 2, 64u);
		sim->heap = realloc(
			sim->heap, sim->capacity * sizeof(struct tern_sim_event *));
		tern_assert(sim->heap);
	}
	event->at_ns = TERN_MAX(at_ns, sim->now_ns);
	event->order = sim->order++;
	for (; i > 0 && sooner(event, sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
		place(sim, i, sim->heap[(i - 1) / 2]);
	place(sim, i, event);
}

static struct tern_sim_event *next_event(struct tern_sim *sim)
{
	struct tern_sim_event *first = sim->heap[0],
			      *last = sim->heap[--sim->event_count];
	uint32_t i = 0, child;

	for (; (child = 2 * i + 1) < sim->event_count; i = child) {
		if (child + 1 < sim->event_count &&
			sooner(sim->heap[child + 1], sim->heap[child]))
			child++;
		if (!sooner(sim->heap[child], last))
			break;
		place(sim, i, sim->heap[child]);
	}
	if (sim->event_count)
		place(sim, i, last);
	first->place = 0;
	return first;
}

uint64_t tern_sim_delay(struct tern_sim *sim)
{
	uint64_t span = sim->opts.delay_max_ns - sim->opts.delay_min_ns + 1;

	return sim->opts.delay_min_ns + tern_rng_below(&sim->rng, span);
}

bool tern_sim_dice(struct tern_sim *sim, unsigned permille)
{
	return permille && tern_rng_below(&sim->rng, 1000) < permille;
}

void tern_sim_trace(struct tern_sim *sim, uint64_t what)
{
	sim->hash = tern_mix64(sim->hash ^ tern_mix64(sim->now_ns) ^ what);
}

/* ---- the environment ---- */

static struct tern_sim_process *process_of(struct tern_env *env)
{
	return tern_container_of(env, struct tern_sim_process, env);
}

static uint64_t sim_now_ns(struct tern_env *env)
{
	const struct tern_sim_process *p = process_of(env);

	return p->sim->now_ns + p->clock_ns;
}

static uint64_t sim_random(struct tern_env *env)
{
	return tern_rng_next(&process_of(env)->rng);
}

static void sim_log(struct tern_env *env, enum tern_log_level level, const char *line)
{
	struct tern_sim_process *p = process_of(env);
	char text[640];

	if (!p->sim->opts.log)
		return;
	snprintf(text, sizeof(text), "%12.3f us  %-10s %d %s",
		(double)p->sim->now_ns / 1e3, p->name, (int)level, line);
	p->sim->opts.log(text);
}

static struct notice *new_notice(
	struct tern_sim_process *p, void (*happen)(struct tern_sim_event *))
{
	struct notice *n = calloc(1, sizeof(*n));

	tern_assert(n);
	n->process = p;
	n->event.happen = happen;
	tern_list_init(&n->node);
	return n;
}

static void deliver(struct tern_sim_event *event)
{
	struct notice *n = tern_container_of(event, struct notice, event);

	if (n->process->crashed) {
		free(n);
		return;
	}
	tern_list_push(&n->process->done, &n->node);
	tern_sim_rouse(n->process);
}

/* Event of a task: calls run() now, and schedules done() for when the task's virtual
 * duration has passed. */
static void run_task(struct tern_sim_event *event)
{
	struct notice *n = tern_container_of(event, struct notice, event);
	struct tern_sim *sim = n->process->sim;

	if (n->process->crashed) {
		free(n);
		return;
	}
	tern_sim_trace(sim, 1);
	n->task->run(n->task);
	n->event.happen = deliver;
	tern_sim_at(sim, &n->event, sim->now_ns + n->task->cost_ns + tern_sim_delay(sim));
}

static int sim_submit(struct tern_env *env, struct tern_task *task)
{
	struct tern_sim_process *p = process_of(env);
	struct notice *n = new_notice(p, run_task);

	n->task = task;
	tern_sim_at(p->sim, &n->event, p->sim->now_ns + tern_sim_delay(p->sim));
	return 0;
}

static void sim_signal(struct tern_env *env, struct tern_task *task)
{
	struct tern_sim_process *p = process_of(env);
	struct notice *n = new_notice(p, deliver);

	n->task = task;
	n->progress = true;
	tern_sim_at(
		p->sim, &n->event, p->sim->now_ns + tern_rng_below(&p->sim->rng, 500));
}

/* The two parts of a file operation. A process that has crashed begins none, and ends none:
 * what the first part has left behind stays. */
static void end_file(struct tern_sim_event *event)
{
	struct notice *n = tern_container_of(event, struct notice, event);

	if (!n->process->crashed)
		tern_sim_disk_end(n->process->disk, n->file);
	deliver(event);
}

static uint64_t file_delay(struct tern_sim_process *p)
{
	return 5 * tern_sim_delay(p->sim) * TERN_MAX(p->disk->opts.slowness, 1u);
}

static void begin_file(struct tern_sim_event *event)
{
	struct notice *n = tern_container_of(event, struct notice, event);
	struct tern_sim_process *p = n->process;

	if (p->crashed || tern_sim_disk_begin(p->disk, n->file, &p->sim->rng)) {
		deliver(event);
		return;
	}
	n->event.happen = end_file;
	tern_sim_at(p->sim, &n->event, p->sim->now_ns + file_delay(p));
}

static int sim_file(struct tern_env *env, struct tern_file_op *op)
{
	struct tern_sim_process *p = process_of(env);
	struct notice *n = new_notice(p, begin_file);

	n->file = op;
	tern_sim_at(p->sim, &n->event, p->sim->now_ns + file_delay(p));
	return 0;
}

static int sim_poll(struct tern_env *env)
{
	struct tern_sim_process *p = process_of(env);
	struct tern_list *l;
	int count = 0;

	while ((l = tern_list_pop(&p->done))) {
		struct notice *n = tern_list_entry(l, struct notice, node);

		if (n->file)
			n->file->done(n->file);
		else if (!n->progress)
			n->task->done(n->task);
		else if (n->task->progress)
			n->task->progress(n->task);
		free(n);
		count++;
	}
	return count;
}

static const struct tern_env_ops env_ops = {
	.now_ns = sim_now_ns,
	.random = sim_random,
	.log = sim_log,
	.submit = sim_submit,
	.signal = sim_signal,
	.file = sim_file,
	.poll = sim_poll,
};

/* ---- disks ---- */

struct tern_sim_disk *tern_sim_disk_new(struct tern_sim *sim)
{
	struct tern_sim_disk *disk = tern_sim_disk_make();

	tern_list_push(&sim->disks, &disk->node);
	return disk;
}

struct tern_sim_disk *tern_sim_disk(struct tern_sim *sim)
{
	return tern_list_first(&sim->disks, struct tern_sim_disk, node);
}

void tern_sim_mount(struct tern_sim_process *p, struct tern_sim_disk *disk)
{
	p->disk = disk;
}

/* ---- processes ---- */

static void woken(struct tern_sim_event *event)
{
	tern_sim_rouse(tern_container_of(event, struct tern_sim_process, wake_up));
}

struct tern_sim_process *tern_sim_process_new(struct tern_sim *sim, const char *name)
{
	struct tern_sim_process *p = calloc(1, sizeof(*p));
	struct tern_domain_hooks hooks = {.sim = p, .cuda_api = sim->opts.cuda_api};
	/* No huge pages: asking for them takes real time, and nothing in the simulation
	 * gets faster by them. */
	struct tern_domain_opts opts = {.no_hugepages = true};

	tern_assert(p);
	p->sim = sim;
	p->env.ops = &env_ops;
	p->env.log_level = TERN_LOG_DEBUG;
	p->rng.seed = tern_rng_next(&sim->rng);
	p->clock_ns = tern_mix64(p->rng.seed) % CLOCK_SPAN_NS;
	p->disk = tern_sim_disk(sim);
	p->wake_up.happen = woken;
	snprintf(p->name, sizeof(p->name), "%s", name);
	tern_list_init(&p->done);
	tern_list_push(&sim->processes, &p->node);
	if (tern_domain_new_hooked(&opts, &hooks, &p->domain) < 0)
		tern_never("a simulated domain could not be opened");
	return p;
}

void tern_sim_process_free(struct tern_sim_process *p)
{
	struct tern_list *n;

	tern_domain_free(p->domain);
	p->crashed = true; /* Drop events for this process that are still to come. */
	while ((n = tern_list_pop(&p->done)))
		free(tern_list_entry(n, struct notice, node));
	p->context_count = 0;
}

struct tern_env *tern_sim_env(struct tern_sim_process *p)
{
	return &p->env;
}

struct tern_domain *tern_sim_domain(struct tern_sim_process *p)
{
	return p->domain;
}

void tern_sim_drive(struct tern_sim_process *p, struct tern_context *ctx)
{
	tern_assert(p->context_count < CONTEXTS_MAX);
	p->contexts[p->context_count++] = ctx;
	tern_sim_rouse(p);
}

void tern_sim_forget(struct tern_sim_process *p, struct tern_context *ctx)
{
	for (unsigned i = 0; i < p->context_count; i++)
		if (p->contexts[i] == ctx)
			p->contexts[i--] = p->contexts[--p->context_count];
}

void tern_sim_rouse(struct tern_sim_process *p)
{
	p->roused = true;
}

void tern_sim_crash(struct tern_sim_process *p)
{
	struct tern_list *n;

	p->crashed = true;
	p->context_count = 0;
	while ((n = tern_list_pop(&p->done)))
		free(tern_list_entry(n, struct notice, node));
	tern_sim_fabric_crash(p);
}

void tern_sim_stall(struct tern_sim_process *p, uint64_t for_ns)
{
	if (p->wake_up.place)
		return; /* the process is stalled already */
	p->stalled_until_ns = tern_ns_add(p->sim->now_ns, for_ns);
	tern_sim_at(p->sim, &p->wake_up, p->stalled_until_ns);
}

void tern_sim_jump(struct tern_sim_process *p, uint64_t by_ns)
{
	p->clock_ns += by_ns;
	tern_sim_rouse(p);
}

struct tern_sim *tern_sim_of(struct tern_sim_process *p)
{
	return p->sim;
}

const char *tern_sim_process_name(const struct tern_sim_process *p)
{
	return p->name;
}

bool tern_sim_crashed(const struct tern_sim_process *p)
{
	return p->crashed;
}

/* ---- the world ---- */

struct tern_sim *tern_sim_new(const struct tern_sim_opts *opts)
{
	struct tern_sim *sim = calloc(1, sizeof(*sim));

	tern_assert(sim);
	sim->opts = *opts;
	sim->rng.seed = opts->seed;
	sim->now_ns = TERN_NS_PER_S; /* not 0, since no real clock starts at 0 */
	if (!sim->opts.caps)
		sim->opts.caps = TERN_CAP_PUT;
	if (!sim->opts.caps_b)
		sim->opts.caps_b = TERN_CAP_PUT;
	if (!sim->opts.delay_max_ns) {
		sim->opts.delay_min_ns = TERN_NS_PER_US;
		sim->opts.delay_max_ns = 50 * TERN_NS_PER_US;
	}
	if (!sim->opts.chunk_bytes)
		sim->opts.chunk_bytes = 4096;
	if (!sim->opts.eager_bytes)
		sim->opts.eager_bytes = 1024;
	tern_list_init(&sim->processes);
	tern_list_init(&sim->disks);
	tern_list_init(&sim->lsns);
	tern_list_init(&sim->conns);
	tern_list_init(&sim->readings);
	tern_sim_disk_opts(tern_sim_disk_new(sim))->fail_permille =
		opts->file_fail_permille;
	return sim;
}

/* Events still in the queue hold resources: run their callbacks, which free them and have
 * no other effect. */
void tern_sim_free(struct tern_sim *sim)
{
	struct tern_list *n;

	while (sim->event_count) {
		struct tern_sim_event *event = next_event(sim);

		event->happen(event);
	}
	while ((n = tern_list_pop(&sim->processes)))
		free(tern_list_entry(n, struct tern_sim_process, node));
	while ((n = tern_list_pop(&sim->disks)))
		tern_sim_disk_destroy(tern_list_entry(n, struct tern_sim_disk, node));
	free(sim->heap);
	free(sim);
}

static bool stands_still(const struct tern_sim_process *p)
{
	return p->crashed || p->stalled_until_ns > p->sim->now_ns;
}

static void turn(struct tern_sim_process *p)
{
	for (unsigned i = 0; i < p->context_count; i++) {
		/* The limit makes the run fail, instead of hang, if a context always has
		 * more work. */
		for (int n = 0; p->context_count && tern_progress(p->contexts[i]) > 0;
			n++)
			tern_assert(n < 100000);
	}
}

static void turns(struct tern_sim *sim)
{
	bool again;

	do {
		again = false;
		tern_list_for_each (n, &sim->processes) {
			struct tern_sim_process *p =
				tern_list_entry(n, struct tern_sim_process, node);

			if (!p->roused || stands_still(p))
				continue;
			p->roused = false;
			again = true;
			turn(p);
		}
	} while (again);
}

/* Time of the next timer of all processes that are not stalled, and its process. */
static uint64_t next_timer_ns(struct tern_sim *sim, struct tern_sim_process **whose)
{
	uint64_t next = UINT64_MAX;

	tern_list_for_each (n, &sim->processes) {
		struct tern_sim_process *p =
			tern_list_entry(n, struct tern_sim_process, node);

		for (unsigned i = 0; !stands_still(p) && i < p->context_count; i++) {
			uint64_t at = tern_context_next_ns(p->contexts[i]);

			/* A timer that is due by its process's clock is due now. */
			if (at != UINT64_MAX)
				at = at > p->clock_ns ? at - p->clock_ns : 0;
			if (at < next) {
				next = at;
				*whose = p;
			}
		}
	}
	return next;
}

int tern_sim_run(
	struct tern_sim *sim, bool (*until)(void *arg), void *arg, uint64_t limit_ns)
{
	uint64_t limit = tern_ns_add(sim->now_ns, limit_ns);

	turns(sim);
	while (!until(arg)) {
		struct tern_sim_process *p = NULL;
		uint64_t timer_ns = next_timer_ns(sim, &p);
		uint64_t event_ns = sim->event_count ? sim->heap[0]->at_ns : UINT64_MAX;
		uint64_t next = TERN_MIN(timer_ns, event_ns);

		if (next > limit) {
			sim->now_ns = limit;
			return -ETIMEDOUT;
		}
		sim->now_ns = TERN_MAX(sim->now_ns, next);
		if (event_ns <= timer_ns) {
			struct tern_sim_event *event = next_event(sim);

			event->happen(event);
		} else {
			tern_sim_rouse(p);
		}
		turns(sim);
	}
	return 0;
}

uint64_t tern_sim_now_ns(const struct tern_sim *sim)
{
	return sim->now_ns;
}

struct tern_rng *tern_sim_rng(struct tern_sim *sim)
{
	return &sim->rng;
}

uint64_t tern_sim_hash(const struct tern_sim *sim)
{
	return sim->hash;
}

bool tern_sim_broken(const struct tern_sim *sim)
{
	return sim->broken;
}

void tern_sim_break(struct tern_sim *sim, bool broken)
{
	sim->broken = broken;
	if (broken)
		tern_sim_fabric_break(sim);
}

bool tern_sim_parted(const struct tern_sim_process *a, const struct tern_sim_process *b)
{
	for (unsigned i = 0; i < PARTS_MAX; i++) {
		const struct part *p = &a->sim->parts[i];

		if (p->until_ns > a->sim->now_ns &&
			((p->a == a && p->b == b) || (p->a == b && p->b == a)))
			return true;
	}
	return false;
}

void tern_sim_part(struct tern_sim_process *a, struct tern_sim_process *b,
	uint64_t for_ns, int status)
{
	struct part *p = a->sim->parts;

	while (p->until_ns > a->sim->now_ns) {
		p++;
		tern_assert(p < a->sim->parts + PARTS_MAX);
	}
	*p = (struct part){a, b, tern_ns_add(a->sim->now_ns, for_ns)};
	tern_sim_fabric_part(a, b, status);
}

const struct tern_sim_opts *tern_sim_opts(const struct tern_sim *sim)
{
	return &sim->opts;
}

struct tern_list *tern_sim_lsns(struct tern_sim *sim)
{
	return &sim->lsns;
}

struct tern_list *tern_sim_readings(struct tern_sim *sim)
{
	return &sim->readings;
}

struct tern_list *tern_sim_conns(struct tern_sim *sim)
{
	return &sim->conns;
}
