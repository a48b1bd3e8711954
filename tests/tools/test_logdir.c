/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which points the curves of --logdir have: what TensorBoard keeps of the files after the
 * reports of a job, one that goes back among them, a very long one, and one whose disk fails. */
#include "tests/tools/event_reader.h"

#include "tests/harness/cmocka.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps/metric.h"
#include "tools/logdir.h"

#define REPORT_NS (200 * TERN_NS_PER_MS)
#define YEAR_NS   (365ull * 86400 * TERN_NS_PER_S)

static atomic_bool disk_stands;

/* Takes the place of the C library's function, for a disk that does not answer. */
ssize_t write(int fd, const void *data, size_t bytes)
{
	while (atomic_load(&disk_stands))
		usleep(1000);
	return syscall(SYS_write, fd, data, bytes);
}

static char directory[64], inner[80];
static struct read_event events[2000];
static char paths[8][512];

/* A job whose reports come at made-up times. */
static struct {
	struct logdir *logdir;
	uint64_t now_ns;
	struct tern_metrics metrics;
	struct tern_server_progress p;
} job;

static int setup(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/tern-logdir-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(inner, sizeof(inner), "%s/a/b", directory);
	memset(&job, 0, sizeof(job));
	job.p = (struct tern_server_progress){.steps = 1000,
		.slots = 2,
		.lr = 0.5,
		.loss = (double)NAN,
		.staleness_mean = (double)NAN,
		.metrics = &job.metrics,
		.waits_for = ""};
	assert_int_equal(logdir_check(inner, NULL), 0);
	assert_int_equal(logdir_open(inner, &job.logdir), 0);
	job.now_ns = tern_clock_ns();
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", directory);
	return system(command);
}

static void report(uint64_t step, double loss)
{
	job.p.step = step;
	job.p.loss = loss;
	job.now_ns += REPORT_NS;
	logdir_add(job.logdir, job.now_ns, &job.p, 10);
}

static void name(const char *metric, uint64_t step, double value)
{
	struct tern_metric *m = tern_metrics_get(&job.metrics, metric);

	m->step = step;
	m->value = value;
}

/* Ends the job as a server does. Returns the number of files. */
static size_t end(void)
{
	logdir_flush(job.logdir, job.now_ns);
	logdir_end(job.logdir);
	logdir_free(job.logdir);
	return list_files(inner, paths, 8);
}

struct point {
	uint64_t step;
	double value;
};

/* Reads a curve as TensorBoard does: file after file, and a start removes its step and later
 * ones. */
static size_t curve(const char *tag, struct point *points, size_t limit)
{
	size_t files = list_files(inner, paths, 8), count = 0;

	for (size_t f = 0; f < files; f++) {
		size_t n = read_file(paths[f], events, 2000);

		for (size_t i = 0; i < n; i++) {
			while (events[i].starts && count &&
				points[count - 1].step >= events[i].step)
				count--;
			for (size_t k = 0; k < events[i].scalar_count; k++) {
				if (strcmp(events[i].scalars[k].tag, tag) != 0)
					continue;
				assert_true(count < limit);
				points[count++] = (struct point){events[i].step,
					(double)events[i].scalars[k].value};
			}
		}
	}
	return count;
}

static struct point points[2000];

static void test_a_point_has_the_last_report_of_its_step(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	report(0, (double)NAN);
	report(1, 9);
	report(1, 4); /* the worker's loss of step 1, which is late */
	report(2, 3);
	job.p.waits_for = "worker 1";
	report(2, 3);
	report(2, 3);
	job.p.waits_for = "";
	report(5, 2);
	assert_int_equal(end(), 1);
	assert_int_equal(curve("loss", points, 20), 3);
	assert_true(points[0].step == 1 && points[0].value == 4);
	assert_true(points[1].step == 2 && points[1].value == 3);
	assert_true(points[2].step == 5 && points[2].value == 2);
	assert_int_equal(curve("lr", points, 20), 3);
	assert_true(points[0].step == 1 && points[0].value == 0.5);
	assert_int_equal(curve("steps_per_s", points, 20), 3);
	assert_int_equal(curve("samples_per_s", points, 20), 0);
	assert_int_equal(curve("staleness_mean", points, 20), 0);
}

static void test_a_job_that_waits_has_its_last_point(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	report(7, 1);
	job.p.waits_for = "worker 1";
	report(7, 1);
	logdir_end(job.logdir);
	assert_int_equal(curve("loss", points, 20), 1);
	logdir_free(job.logdir);
}

static void test_records_and_staleness_are_shown_where_they_are_known(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	job.p.batch = 16;
	job.p.staleness_mean = 1.5;
	job.p.staleness_max = 4;
	report(3, 1);
	assert_int_equal(end(), 1);
	assert_int_equal(curve("samples_per_s", points, 20), 1);
	assert_true(points[0].value == 10 * 2 * 16);
	assert_int_equal(curve("staleness_mean", points, 20), 1);
	assert_true(points[0].value == 1.5);
	assert_int_equal(curve("staleness_max", points, 20), 1);
	assert_true(points[0].value == 4);
}

static void test_a_metric_has_a_point_for_each_step_that_it_was_named_in(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	name("accuracy", 0, 0.25);
	report(0, (double)NAN);
	report(10, 1);
	name("accuracy", 15, 0.5);
	report(20, 1);
	report(30, 1);
	name("accuracy", 35, (double)NAN);
	report(40, 1);
	name("other", 50, (double)INFINITY);
	report(50, 1);
	assert_int_equal(end(), 1);
	assert_int_equal(curve("metrics/accuracy", points, 20), 3);
	assert_true(points[0].step == 0 && points[0].value == 0.25);
	assert_true(points[1].step == 15 && points[1].value == 0.5);
	assert_true(points[2].step == 35 && isnan(points[2].value));
	assert_int_equal(curve("metrics/other", points, 20), 1);
	assert_true(points[0].step == 50 && isinf(points[0].value));
}

static void test_a_job_that_goes_back_begins_a_file_and_replaces_the_steps(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	for (uint64_t step = 1; step <= 10; step++)
		report(step, (double)step);
	logdir_flush(job.logdir, job.now_ns);
	logdir_begin(job.logdir, 5);
	report(5, (double)NAN);
	for (uint64_t step = 6; step <= 8; step++)
		report(step, (double)step);
	assert_int_equal(end(), 2);
	assert_int_equal(curve("loss", points, 20), 8);
	for (uint64_t i = 0; i < 8; i++)
		assert_true(points[i].step == i + 1);
	assert_int_equal(curve("lr", points, 20), 8);
}

static void test_a_job_that_begins_hides_an_earlier_one(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	name("accuracy", 0, 0.25);
	report(9, 1);
	assert_int_equal(end(), 1);
	assert_int_equal(logdir_open(inner, &job.logdir), 0);
	logdir_begin(job.logdir, 0);
	report(3, 2);
	assert_int_equal(end(), 2);
	assert_int_equal(curve("loss", points, 20), 1);
	assert_int_equal(points[0].step, 3);
}

static void test_a_server_without_reports_makes_no_file(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	assert_int_equal(end(), 0);
}

static uint64_t count_of(uint64_t reports, uint64_t interval_ns)
{
	for (uint64_t i = 0; i < reports; i++) {
		job.now_ns += interval_ns - REPORT_NS;
		report(job.p.step + 1, 1);
	}
	end();
	return curve("loss", points, 2000);
}

static void test_the_first_hours_have_all_points(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	job.now_ns += 9900 * TERN_NS_PER_S - 300 * REPORT_NS;
	assert_int_equal(count_of(300, REPORT_NS), 300);
}

static void test_a_year_has_a_bounded_number_of_points(void **state)
{
	(void)state;
	logdir_begin(job.logdir, 0);
	job.now_ns += YEAR_NS;
	name("rare", 1, 1);
	/* In an hour of the second year: every 10.5 minutes, and the last one. */
	assert_int_equal(count_of(18000, REPORT_NS), 7);
	assert_int_equal(curve("metrics/rare", points, 20), 1);
}

/* Events have the time of the wall clock, in seconds. */
static void test_points_have_the_time_of_their_report(void **state)
{
	double begun_s = (double)time(NULL);

	(void)state;
	logdir_begin(job.logdir, 0);
	report(1, 1);
	assert_int_equal(end(), 1);
	assert_int_equal(read_file(paths[0], events, 2000), 3);
	assert_true(events[2].wall_s >= begun_s && events[2].wall_s < begun_s + 86400);
}

#define HOUR_NS (3600 * TERN_NS_PER_S)

/* Reports steps until a warning is told at this time, and returns the warning. */
static const char *wait_for_warning(uint64_t now_ns)
{
	static char text[600];

	while (!logdir_has_warning(job.logdir, now_ns, text, sizeof(text))) {
		report(job.p.step + 1, 1);
		usleep(1000);
	}
	return text;
}

/* Reports steps until the directory, which was blocked, has a point. */
static void wait_for_points(void)
{
	while (access(inner, F_OK) < 0 || curve("loss", points, 2000) == 0) {
		report(job.p.step + 1, 1);
		usleep(1000);
	}
}

/* Puts a file in the place of the directory, or takes it away. */
static void block_directory(bool blocks)
{
	char command[200];

	snprintf(command, sizeof(command), blocks ? "rm -rf %s && touch %s" : "rm %s",
		inner, inner);
	assert_int_equal(system(command), 0);
}

static void test_what_cannot_be_written_is_told_once(void **state)
{
	char text[600];

	(void)state;
	block_directory(true);
	logdir_begin(job.logdir, 0);
	assert_false(logdir_has_warning(job.logdir, 1, text, sizeof(text)));
	assert_non_null(strstr(wait_for_warning(1), inner));
	for (uint64_t i = 0; i < 10; i++)
		report(job.p.step + 1, 1);
	assert_false(logdir_has_warning(job.logdir, 1, text, sizeof(text)));
	/* The curves go on when they can be written again. */
	block_directory(false);
	wait_for_points();
	assert_int_equal(end(), 1);
	assert_true(read_file(paths[0], events, 2000) >= 3 && events[1].starts);
}

static void test_a_later_failure_is_told_again_but_not_within_an_hour(void **state)
{
	char text[600];

	(void)state;
	logdir_begin(job.logdir, 0);
	for (uint64_t hour = 1; hour < 3; hour++) {
		uint64_t now_ns = hour * HOUR_NS;

		block_directory(true);
		logdir_begin(job.logdir, 0);
		if (hour > 1) {
			for (unsigned i = 0; i < 100; i++, usleep(1000))
				report(job.p.step + 1, 1);
			assert_false(logdir_has_warning(
				job.logdir, now_ns - 1, text, sizeof(text)));
		}
		assert_non_null(strstr(wait_for_warning(now_ns), "Not a directory"));
		block_directory(false);
		wait_for_points();
	}
	assert_int_equal(end(), 1);
}

/* A job that goes on does not call logdir_check(). */
static void test_the_thread_makes_the_directory(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s/a", directory);
	assert_int_equal(system(command), 0);
	logdir_begin(job.logdir, 5);
	report(6, 1);
	assert_int_equal(end(), 1);
	assert_int_equal(curve("loss", points, 2000), 1);
}

static void test_a_disk_that_does_not_answer_delays_nothing(void **state)
{
	char text[600];

	(void)state;
	atomic_store(&disk_stands, true);
	logdir_begin(job.logdir, 0);
	for (uint64_t step = 1; step <= 1500; step++)
		report(step, 1);
	assert_true(logdir_has_warning(job.logdir, 1, text, sizeof(text)));
	assert_non_null(strstr(text, "its disk does not answer"));
	logdir_flush(job.logdir, job.now_ns);
	logdir_end(job.logdir);
	logdir_free(job.logdir); /* the thread still has it */
	atomic_store(&disk_stands, false);
	assert_int_equal(end(), 1);
	/* Those that waited: how many there is room for, less or more what the thread had. */
	assert_in_range(curve("loss", points, 2000), 990, 1010);
	assert_int_equal(points[989].step, 990);
}

static void test_a_directory_that_is_none_is_refused(void **state)
{
	struct message error;
	char path[128];

	(void)state;
	snprintf(path, sizeof(path), "%s/file", directory);
	fclose(fopen(path, "w"));
	assert_true(logdir_check(path, &error) < 0);
	assert_non_null(strstr(error.text, "Not a directory"));
	strcat(path, "/below");
	assert_true(logdir_check(path, &error) < 0);
	assert_non_null(strstr(error.text, path));
	assert_int_equal(logdir_check(NULL, &error), 0);
	end();
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_a_point_has_the_last_report_of_its_step),
		CASE(test_a_job_that_waits_has_its_last_point),
		CASE(test_records_and_staleness_are_shown_where_they_are_known),
		CASE(test_a_metric_has_a_point_for_each_step_that_it_was_named_in),
		CASE(test_a_job_that_goes_back_begins_a_file_and_replaces_the_steps),
		CASE(test_a_job_that_begins_hides_an_earlier_one),
		CASE(test_a_server_without_reports_makes_no_file),
		CASE(test_the_first_hours_have_all_points),
		CASE(test_a_year_has_a_bounded_number_of_points),
		CASE(test_points_have_the_time_of_their_report),
		CASE(test_what_cannot_be_written_is_told_once),
		CASE(test_a_later_failure_is_told_again_but_not_within_an_hour),
		CASE(test_the_thread_makes_the_directory),
		CASE(test_a_disk_that_does_not_answer_delays_nothing),
		CASE(test_a_directory_that_is_none_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
