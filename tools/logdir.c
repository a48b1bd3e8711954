/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See logdir.h.
 *
 *     logdir_add -> held -> records -> [thread] -> file
 *
 * `held` has the newest report, until one of another step comes, or one which says that the job
 * waits: a worker tells the loss of a step a little after server 0 has counted the step. The lock
 * protects `records` and what stands beside them; the thread alone uses the file.
 */
#include "tools/logdir.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/list.h"
#include "ps/metric.h"
#include "tools/event_file.h"
#include "tools/host_file.h"
#include "tools/stack.h"

#define POINTS      50000u /* see logdir.h */
#define RECORDS_MAX 1000u  /* that wait for the disk, some 200 KiB */
#define END_NS      (2 * TERN_NS_PER_S)
#define WARNING_NS  (3600 * TERN_NS_PER_S) /* least interval between two warnings */
#define METRICS     "metrics/"

_Static_assert(sizeof(METRICS) - 1 + TERN_METRIC_NAME_MAX <= EVENT_TAG_MAX,
	"the longest name of a metric fits into a tag");

enum number {
	LOSS,
	LR,
	STEPS_PER_S,
	SAMPLES_PER_S,
	STALENESS_MEAN,
	STALENESS_MAX,
	NUMBER_COUNT
};

static const char *const names[NUMBER_COUNT] = {
	"loss", "lr", "steps_per_s", "samples_per_s", "staleness_mean", "staleness_max"};

_Static_assert(NUMBER_COUNT <= EVENT_SCALARS_MAX, "they fit into one record");

struct curve {
	char tag[EVENT_TAG_MAX + 1];
	bool has_point;
	/* The last point, and when the next one may be written. */
	uint64_t step, due_ns;
	double value;
};

struct record {
	struct tern_list node;
	size_t bytes; /* 0: the next record begins a file, with a start at step `start` */
	uint64_t start;
	uint8_t data[];
};

struct logdir {
	const char *directory;
	uint64_t start_ns;
	uint64_t base; /* steps that were done when the steps began */
	struct curve numbers[NUMBER_COUNT], metrics[TERN_METRICS_MAX];
	uint32_t metric_count;
	uint64_t warned_ns; /* time of the last warning; 0: there was none */
	struct {
		bool any;
		uint64_t step;
		double wall_s, numbers[NUMBER_COUNT]; /* NAN: not known */
		struct tern_metrics metrics;
	} held;

	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct tern_list records;
	unsigned record_count;
	bool ending;
	bool failing; /* no record was written since one was left out */
	char why[200]; /* why that was left out, until it is told; "": nothing is to be told */

	pthread_t thread;
	atomic_bool ended;
	struct event_file file;
	bool starts; /* the next file begins with a start at step `start` */
	uint64_t start;
};

/* ---- the directory ---- */

/* Makes the directories above `path`, and `path`. */
static int make_directories(const char *path)
{
	char part[PATH_MAX];

	if (snprintf(part, sizeof(part), "%s", path) >= (int)sizeof(part))
		return -ENAMETOOLONG;
	for (char *p = part + 1; (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		if (mkdir(part, 0777) < 0 && errno != EEXIST)
			return -errno;
	}
	return mkdir(part, 0777) < 0 && errno != EEXIST ? -errno : 0;
}

int logdir_check(const char *directory, struct message *error)
{
	int r = directory ? make_directories(directory) : 0;

	if (directory && r == 0)
		r = host_file_probe(directory, 1);
	return r == 0 ? 0
		      : options_refuse(error,
				"--logdir %.300s: %s: expected a directory that can be "
				"written to",
				directory, strerror(-r));
}

/* ---- the thread ---- */

/* Keeps the first reason since a record was written. The caller holds the lock. */
static void left_out(struct logdir *l, const char *why)
{
	if (!l->failing)
		snprintf(l->why, sizeof(l->why), "%s", why);
	l->failing = true;
}

static int write_record(struct logdir *l, const struct record *r)
{
	int status = 0;

	if (r->bytes == 0) {
		l->starts = true;
		l->start = r->start;
		return event_file_close(&l->file);
	}
	if (l->file.fd < 0)
		status = make_directories(l->directory);
	if (l->file.fd < 0 && status == 0)
		status = event_file_open(
			&l->file, l->directory, l->starts ? &l->start : NULL);
	if (status == 0) {
		l->starts = false;
		status = event_file_append(&l->file, r->data, r->bytes);
	}
	return status;
}

static void close_last(struct logdir *l)
{
	int status = event_file_close(&l->file);

	if (status == 0)
		return;
	pthread_mutex_lock(&l->lock);
	left_out(l, strerror(-status));
	pthread_mutex_unlock(&l->lock);
}

static void *write_all(void *arg)
{
	struct logdir *l = arg;

	pthread_mutex_lock(&l->lock);
	for (;;) {
		struct record *r;
		bool has_data;
		int status;

		while (!l->ending && tern_list_empty(&l->records))
			pthread_cond_wait(&l->cond, &l->lock);
		if (tern_list_empty(&l->records))
			break;
		r = tern_list_entry(tern_list_pop(&l->records), struct record, node);
		l->record_count--;
		pthread_mutex_unlock(&l->lock);
		status = write_record(l, r);
		has_data = r->bytes;
		free(r);
		pthread_mutex_lock(&l->lock);
		if (status < 0)
			left_out(l, strerror(-status));
		else if (has_data)
			l->failing = false;
	}
	pthread_mutex_unlock(&l->lock);
	close_last(l);
	atomic_store(&l->ended, true);
	return NULL;
}

static int start_thread(struct logdir *l)
{
	pthread_attr_t attr;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	r = pthread_create(&l->thread, &attr, write_all, l);
	pthread_attr_destroy(&attr);
	return -r;
}

int logdir_open(const char *directory, struct logdir **out)
{
	struct logdir *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return -ENOMEM;
	l->directory = directory;
	l->start_ns = tern_clock_ns();
	l->file.fd = -1;
	for (unsigned i = 0; i < NUMBER_COUNT; i++)
		strcpy(l->numbers[i].tag, names[i]);
	tern_list_init(&l->records);
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->cond, NULL);
	r = start_thread(l);
	if (r < 0)
		free(l);
	else
		*out = l;
	return r;
}

/* Hands a record to the thread. `start` counts only in one without bytes. */
static void hand_over(struct logdir *l, uint64_t start, const void *data, size_t bytes)
{
	struct record *r = malloc(sizeof(*r) + bytes);

	pthread_mutex_lock(&l->lock);
	if (!r) {
		left_out(l, strerror(ENOMEM));
	} else if (bytes && l->record_count >= RECORDS_MAX) {
		left_out(l, "its disk does not answer");
		free(r);
	} else {
		r->bytes = bytes;
		r->start = start;
		memcpy(r->data, data, bytes);
		tern_list_push(&l->records, &r->node);
		l->record_count++;
		pthread_cond_signal(&l->cond);
	}
	pthread_mutex_unlock(&l->lock);
}

/* ---- curves ---- */

/* True if the point is to be written, and notes it. `step` never decreases in a curve, since
 * TensorBoard takes a step that recurs for a job that has gone back. */
static bool take_point(const struct logdir *l, struct curve *c, uint64_t now_ns,
	uint64_t step, double value)
{
	bool same = value == c->value || (isnan(value) && isnan(c->value));

	if (c->has_point && (step < c->step || (step == c->step && same)))
		return false;
	if (now_ns < c->due_ns)
		return false;
	c->has_point = true;
	c->step = step;
	c->value = value;
	c->due_ns = now_ns + (now_ns - l->start_ns) / POINTS;
	return true;
}

static struct curve *curve_of(struct logdir *l, const char *metric)
{
	struct curve *c;
	uint32_t i = 0;

	while (i < l->metric_count &&
		strcmp(l->metrics[i].tag + strlen(METRICS), metric) != 0)
		i++;
	if (i == TERN_METRICS_MAX)
		return NULL;
	c = &l->metrics[i];
	if (i == l->metric_count) {
		l->metric_count++;
		snprintf(c->tag, sizeof(c->tag), METRICS "%s", metric);
	}
	return c;
}

static void write_scalars(
	struct logdir *l, uint64_t step, const struct event_scalar *scalars, size_t count)
{
	uint8_t data[EVENT_RECORD_MAX];

	if (count)
		hand_over(l, 0, data,
			event_scalars(data, l->held.wall_s, step, scalars, count));
}

/* Writes what is new in the held report. A metric has a step of its own: that in which the
 * program has named it. */
static void write_held(struct logdir *l, uint64_t now_ns)
{
	const struct tern_metrics *metrics = &l->held.metrics;
	struct event_scalar scalars[NUMBER_COUNT];
	size_t n = 0;

	if (!l->held.any)
		return;
	for (unsigned i = 0; i < NUMBER_COUNT && l->held.step > l->base; i++) {
		struct curve *c = &l->numbers[i];
		double value = l->held.numbers[i];

		if (!isnan(value) && take_point(l, c, now_ns, l->held.step, value))
			scalars[n++] = (struct event_scalar){c->tag, (float)value};
	}
	write_scalars(l, l->held.step, scalars, n);
	for (uint32_t i = 0; i < metrics->count; i++) {
		const struct tern_metric *m = &metrics->list[i];
		struct curve *c = curve_of(l, m->name);

		if (c && take_point(l, c, now_ns, m->step, m->value))
			write_scalars(l, m->step,
				&(struct event_scalar){c->tag, (float)m->value}, 1);
	}
}

static double wall_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Begins to hold the reports of another step. */
static void hold(struct logdir *l, const struct tern_server_progress *p, double rate)
{
	l->held.any = true;
	l->held.step = p->step;
	l->held.wall_s = wall_s();
	for (unsigned i = 0; i < NUMBER_COUNT; i++)
		l->held.numbers[i] = (double)NAN;
	/* A later report of the same step has a rate that falls while the job waits. */
	l->held.numbers[STEPS_PER_S] = rate;
	if (p->batch)
		l->held.numbers[SAMPLES_PER_S] = rate * p->slots * p->batch;
}

void logdir_begin(struct logdir *l, uint64_t step)
{
	if (!l)
		return;
	l->base = step;
	l->held.any = false;
	l->metric_count = 0;
	for (unsigned i = 0; i < NUMBER_COUNT; i++)
		l->numbers[i].has_point = false;
	memset(l->metrics, 0, sizeof(l->metrics));
	/* Points of step `step` stay; a job that begins shows none of an earlier one. */
	hand_over(l, step ? step + 1 : 0, "", 0);
}

void logdir_add(struct logdir *l, uint64_t now_ns, const struct tern_server_progress *p,
	double steps_per_s)
{
	bool is_stale;

	if (!l)
		return;
	if (!l->held.any || p->step != l->held.step) {
		write_held(l, now_ns);
		hold(l, p, steps_per_s);
	}
	is_stale = !isnan(p->staleness_mean);
	l->held.numbers[LR] = p->lr;
	if (!isnan(p->loss))
		l->held.numbers[LOSS] = p->loss;
	if (is_stale)
		l->held.numbers[STALENESS_MEAN] = p->staleness_mean;
	if (is_stale)
		l->held.numbers[STALENESS_MAX] = (double)p->staleness_max;
	l->held.metrics = *p->metrics;
	if (*p->waits_for)
		write_held(l, now_ns);
}

/* ---- the end ---- */

void logdir_flush(struct logdir *l, uint64_t now_ns)
{
	if (!l)
		return;
	for (unsigned i = 0; i < NUMBER_COUNT; i++)
		l->numbers[i].due_ns = 0;
	for (uint32_t i = 0; i < l->metric_count; i++)
		l->metrics[i].due_ns = 0;
	write_held(l, now_ns);
}

bool logdir_has_warning(struct logdir *l, uint64_t now_ns, char *text, size_t bytes)
{
	bool has;

	if (!l || (l->warned_ns && now_ns - l->warned_ns < WARNING_NS))
		return false;
	pthread_mutex_lock(&l->lock);
	has = *l->why;
	if (has)
		snprintf(text, bytes,
			"--logdir %.300s: %.200s: curves have gaps where points could "
			"not be written; the training goes on",
			l->directory, l->why);
	*l->why = '\0';
	pthread_mutex_unlock(&l->lock);
	if (has)
		l->warned_ns = now_ns;
	return has;
}

void logdir_end(struct logdir *l)
{
	uint64_t limit_ns = tern_clock_ns() + END_NS;

	if (!l)
		return;
	pthread_mutex_lock(&l->lock);
	l->ending = true;
	pthread_cond_signal(&l->cond);
	pthread_mutex_unlock(&l->lock);
	while (!atomic_load(&l->ended)) {
		if (tern_clock_ns() >= limit_ns) {
			pthread_mutex_lock(&l->lock);
			left_out(l, "its disk does not answer");
			pthread_mutex_unlock(&l->lock);
			return;
		}
		nanosleep(&(struct timespec){.tv_nsec = TERN_NS_PER_MS}, NULL);
	}
	pthread_join(l->thread, NULL);
}

void logdir_free(struct logdir *l)
{
	/* The thread still uses it. */
	if (!l || !atomic_load(&l->ended))
		return;
	pthread_cond_destroy(&l->cond);
	pthread_mutex_destroy(&l->lock);
	free(l);
}
