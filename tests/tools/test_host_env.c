/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the environment of a real process: tasks and file operations run in other
 * threads, and their ends are reported in this one. */
#include "tests/harness/cmocka.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/host_env.h"
#include "tools/host_file.h"

#define TASKS 500

/* Waits for wake() in the way of a context: by a file descriptor. */
struct loop {
	struct tern_env *env;
	int fd;
	unsigned done_count, progress_count, run_count;
	char dir[64];
};

static void loop_wake(void *arg)
{
	struct loop *loop = arg;
	uint64_t one = 1;

	assert_int_equal(write(loop->fd, &one, sizeof(one)), sizeof(one));
}

static void loop_turn(struct loop *loop)
{
	struct pollfd p = {.fd = loop->fd, .events = POLLIN};
	uint64_t n;

	assert_true(poll(&p, 1, -1) == 1);
	assert_int_equal(read(loop->fd, &n, sizeof(n)), sizeof(n));
	tern_env_poll(loop->env);
}

static int setup(void **state)
{
	struct host_env_opts opts = {.task_thread_count = 2};
	struct loop *loop = calloc(1, sizeof(*loop));

	assert_non_null(loop);
	assert_int_equal(host_env_new(&opts, &loop->env), 0);
	loop->fd = eventfd(0, EFD_CLOEXEC);
	loop->env->wake = loop_wake;
	loop->env->wake_arg = loop;
	strcpy(loop->dir, "/tmp/tern-host-env-XXXXXX");
	assert_non_null(mkdtemp(loop->dir));
	*state = loop;
	return 0;
}

static int teardown(void **state)
{
	struct loop *loop = *state;
	char command[128];

	host_env_free(loop->env);
	close(loop->fd);
	snprintf(command, sizeof(command), "rm -r %s", loop->dir);
	assert_int_equal(system(command), 0);
	free(loop);
	return 0;
}

/* ---- tasks ---- */

struct sum_task {
	struct tern_task task;
	struct loop *loop;
	unsigned n, rounds;
	uint64_t sum, seen; /* while the task runs, only the task uses `sum` */
	atomic_uint step;
};

static void sum_run(struct tern_task *task)
{
	struct sum_task *s = tern_container_of(task, struct sum_task, task);

	for (unsigned i = 1; i <= s->n; i++) {
		s->sum += i;
		atomic_store(&s->step, i);
		tern_task_signal(task);
	}
}

static void sum_progress(struct tern_task *task)
{
	struct sum_task *s = tern_container_of(task, struct sum_task, task);

	s->seen = atomic_load(&s->step);
	s->loop->progress_count++;
}

static void sum_done(struct tern_task *task)
{
	struct sum_task *s = tern_container_of(task, struct sum_task, task);

	s->loop->done_count++;
	if (s->rounds-- > 1)
		assert_int_equal(tern_env_submit(s->loop->env, task), 0);
}

static void test_every_task_runs_and_ends_once(void **state)
{
	static struct sum_task tasks[TASKS];
	struct loop *loop = *state;

	memset(tasks, 0, sizeof(tasks));
	for (unsigned i = 0; i < TASKS; i++) {
		tasks[i] = (struct sum_task){
			.task = {.run = sum_run,
				.done = sum_done,
				.progress = sum_progress},
			.loop = loop,
			.n = i % 7,
			.rounds = 2,
		};
		assert_int_equal(tern_env_submit(loop->env, &tasks[i].task), 0);
	}
	while (loop->done_count < 2 * TASKS)
		loop_turn(loop);
	for (unsigned i = 0; i < TASKS; i++) {
		assert_int_equal(tasks[i].sum, 2 * (i % 7) * (i % 7 + 1) / 2);
		/* The last tern_task_signal() was not lost: progress() was called after
		 * it. */
		assert_int_equal(tasks[i].seen, i % 7);
	}
	assert_int_equal(tern_env_poll(loop->env), 0);
	assert_int_equal(loop->done_count, 2 * TASKS);
}

static void run_until_told(struct tern_task *task)
{
	struct sum_task *s = tern_container_of(task, struct sum_task, task);

	atomic_store(&s->step, 1);
	while (atomic_load(&s->step) != 2)
		;
}

static void test_a_task_that_does_not_end_is_not_waited_for(void **state)
{
	struct sum_task endless = {.task = {.run = run_until_told}, .loop = *state};

	assert_int_equal(tern_env_submit(endless.loop->env, &endless.task), 0);
	while (atomic_load(&endless.step) != 1)
		;
	assert_false(host_env_ends(endless.loop->env, 1));
	atomic_store(&endless.step, 2);
	assert_true(host_env_ends(endless.loop->env, 60000));
	host_env_stop(endless.loop->env);
}

static void test_task_without_progress_may_signal(void **state)
{
	struct loop *loop = *state;
	struct sum_task s = {.task = {.run = sum_run, .done = sum_done},
		.loop = loop,
		.n = 50,
		.rounds = 1};

	assert_int_equal(tern_env_submit(loop->env, &s.task), 0);
	while (!loop->done_count)
		loop_turn(loop);
	assert_int_equal(s.sum, 1275);
	assert_int_equal(loop->progress_count, 0);
}

static void test_stop_drops_tasks_that_wait(void **state)
{
	static struct sum_task tasks[TASKS];
	struct loop *loop = *state;

	memset(tasks, 0, sizeof(tasks));
	for (unsigned i = 0; i < TASKS; i++) {
		tasks[i] = (struct sum_task){.task = {.run = sum_run, .done = sum_done},
			.loop = loop,
			.n = 100,
			.rounds = 1};
		assert_int_equal(tern_env_submit(loop->env, &tasks[i].task), 0);
	}
	host_env_stop(loop->env);
	for (unsigned i = 0; i < TASKS; i++)
		assert_true(tasks[i].sum == 0 || tasks[i].sum == 5050);
	assert_int_equal(tern_env_poll(loop->env), 0);
	assert_int_equal(loop->done_count, 0);
	assert_int_equal(tern_env_submit(loop->env, &tasks[0].task), -ECANCELED);
}

/* ---- files ---- */

struct file {
	struct tern_file_op op;
	struct loop *loop;
};

static void file_done(struct tern_file_op *op)
{
	tern_container_of(op, struct file, op)->loop->done_count++;
}

static struct file file_do(struct loop *loop, enum tern_file_kind kind, const char *name,
	const struct iovec *parts, int part_count)
{
	char path[256];
	struct file f = {.op = {.kind = kind,
				 .path = path,
				 .parts = parts,
				 .part_count = part_count,
				 .done = file_done,
				 .status = 1},
		.loop = loop};

	snprintf(path, sizeof(path), "%s/%s", loop->dir, name);
	loop->done_count = 0;
	assert_int_equal(tern_env_file(loop->env, &f.op), 0);
	while (!loop->done_count)
		loop_turn(loop);
	return f;
}

static unsigned entries(const char *dir)
{
	DIR *d = opendir(dir);
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2; /* without "." and ".." */
}

static void test_file_is_written_and_read_whole(void **state)
{
	struct loop *loop = *state;
	char big[100000];
	struct iovec parts[] = {{(void *)"head", 4}, {NULL, 0}, {big, sizeof(big)}};
	struct file f;

	memset(big, 'x', sizeof(big));
	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "a", parts, 3).op.status, 0);
	f = file_do(loop, TERN_FILE_READ, "a", NULL, 0);
	assert_int_equal(f.op.status, 0);
	assert_int_equal(f.op.bytes, 4 + sizeof(big));
	assert_memory_equal(f.op.data, "headxxx", 7);
	assert_int_equal(((char *)f.op.data)[f.op.bytes], 0);
	free(f.op.data);
	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "a", parts, 1).op.status, 0);
	f = file_do(loop, TERN_FILE_READ, "a", NULL, 0);
	assert_int_equal(f.op.bytes, 4);
	free(f.op.data);
	assert_int_equal(entries(loop->dir), 1);
}

static void test_empty_file_is_no_error(void **state)
{
	struct loop *loop = *state;
	struct file f;

	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "e", NULL, 0).op.status, 0);
	f = file_do(loop, TERN_FILE_READ, "e", NULL, 0);
	assert_int_equal(f.op.status, 0);
	assert_int_equal(f.op.bytes, 0);
	free(f.op.data);
}

static bool is_third(void *arg)
{
	return ++*(unsigned *)arg == 3;
}

static void test_reading_stops_when_asked(void **state)
{
	struct loop *loop = *state;
	/* Larger than the pieces in which a file is read. */
	size_t bytes = (size_t)16 << 20;
	struct iovec part = {calloc(1, bytes), bytes};
	unsigned asked = 0;
	void *data = NULL;
	char path[256];

	snprintf(path, sizeof(path), "%s/long", loop->dir);
	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "long", &part, 1).op.status, 0);
	assert_int_equal(
		host_file_read(path, is_third, &asked, &data, &bytes), -ECANCELED);
	assert_null(data);
	assert_int_equal(asked, 3);
	free(part.iov_base);
}

static void test_file_errors_are_the_systems(void **state)
{
	struct loop *loop = *state;

	assert_int_equal(
		file_do(loop, TERN_FILE_READ, "none", NULL, 0).op.status, -ENOENT);
	assert_int_equal(file_do(loop, TERN_FILE_READ, "", NULL, 0).op.status, -EISDIR);
	assert_int_equal(
		file_do(loop, TERN_FILE_WRITE, "no/dir", NULL, 0).op.status, -ENOENT);
}

static void test_failed_write_leaves_nothing_behind(void **state)
{
	struct loop *loop = *state;
	struct iovec part = {(void *)"new", 3};
	char path[256];

	/* A file cannot be renamed to the name of a directory, so the last step of
	 * writing fails. */
	snprintf(path, sizeof(path), "%s/taken", loop->dir);
	assert_int_equal(mkdir(path, 0755), 0);
	assert_int_equal(
		file_do(loop, TERN_FILE_WRITE, "taken", &part, 1).op.status, -EISDIR);
	assert_int_equal(entries(loop->dir), 1);
}

/* The owner of a file operation frees its data when the environment has stopped. So the
 * environment must leave no pointer to data that it has freed itself. */
static void test_data_of_a_stopped_operation_is_gone(void **state)
{
	struct loop *loop = *state;
	struct iovec part = {(void *)"data", 4};
	struct tern_file_op read = {.kind = TERN_FILE_READ},
			    list = {.kind = TERN_FILE_LIST};
	char path[256];

	snprintf(path, sizeof(path), "%s/file", loop->dir);
	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "file", &part, 1).op.status, 0);
	read.path = path;
	list.path = loop->dir;
	assert_int_equal(tern_env_file(loop->env, &read), 0);
	assert_int_equal(tern_env_file(loop->env, &list), 0);
	host_env_stop(loop->env);
	assert_null(read.data);
	assert_null(list.data);
}

static void test_files_are_listed_and_removed(void **state)
{
	struct loop *loop = *state;
	struct iovec part = {(void *)"data", 4};
	struct file f;

	f = file_do(loop, TERN_FILE_LIST, "", NULL, 0);
	assert_int_equal(f.op.status, 0);
	assert_int_equal(f.op.bytes, 0);
	free(f.op.data);
	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "one", &part, 1).op.status, 0);
	f = file_do(loop, TERN_FILE_LIST, "", NULL, 0);
	assert_int_equal(f.op.status, 0);
	assert_int_equal(f.op.bytes, 4);
	assert_string_equal(f.op.data, "one");
	free(f.op.data);
	assert_int_equal(
		file_do(loop, TERN_FILE_LIST, "one", NULL, 0).op.status, -ENOTDIR);
	assert_int_equal(file_do(loop, TERN_FILE_REMOVE, "one", NULL, 0).op.status, 0);
	assert_int_equal(entries(loop->dir), 0);
	assert_int_equal(
		file_do(loop, TERN_FILE_REMOVE, "one", NULL, 0).op.status, -ENOENT);
}

/* Does an operation on a piece of the file, or renames it. */
static struct file piece_do(struct loop *loop, enum tern_file_kind kind, const char *name,
	struct iovec *part, uint64_t at, const char *to)
{
	struct file f = {.loop = loop};
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", loop->dir, name);
	f.op = (struct tern_file_op){.kind = kind,
		.path = path,
		.parts = part,
		.part_count = part != NULL,
		.to = to,
		.at = at,
		.most = 3};
	host_file_run(&f.op);
	return f;
}

static void check_piece(struct loop *loop, uint64_t at, const char *expected)
{
	struct file f = piece_do(loop, TERN_FILE_READ_PIECE, "whole", NULL, at, NULL);

	assert_int_equal(f.op.status, 0);
	assert_int_equal(f.op.all, 8);
	assert_int_equal(f.op.bytes, strlen(expected));
	assert_string_equal(f.op.data, expected);
	free(f.op.data);
}

static void test_files_are_written_and_read_in_pieces(void **state)
{
	struct iovec head = {(void *)"head", 4}, tail = {(void *)"tail", 4};
	struct loop *loop = *state;
	char to[200];

	snprintf(to, sizeof(to), "%s/whole", loop->dir);
	assert_int_equal(
		piece_do(loop, TERN_FILE_WRITE_PIECE, "p", &tail, 4, NULL).op.status,
		-ENOENT);
	assert_int_equal(
		piece_do(loop, TERN_FILE_WRITE_PIECE, "p", &head, 0, NULL).op.status, 0);
	assert_int_equal(
		piece_do(loop, TERN_FILE_WRITE_PIECE, "p", &head, 0, NULL).op.status,
		-EEXIST);
	assert_int_equal(
		piece_do(loop, TERN_FILE_WRITE_PIECE, "p", &tail, 4, NULL).op.status, 0);
	assert_int_equal(
		piece_do(loop, TERN_FILE_PUBLISH, "p", NULL, 0, to).op.status, 0);
	assert_int_equal(
		piece_do(loop, TERN_FILE_PUBLISH, "p", NULL, 0, to).op.status, -ENOENT);
	check_piece(loop, 0, "hea");
	check_piece(loop, 6, "il");
	check_piece(loop, 9, "");
	assert_int_equal(entries(loop->dir), 1);
}

static void put(const char *dir, const char *name)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s.%d.new", dir, name, (int)getpid());
	f = fopen(path, "wx");
	assert_non_null(f);
	assert_int_equal(fclose(f), 0);
}

/* Two hosts share the directory, and a process of the other host has the same pid as this
 * process. */
static void test_files_of_a_process_of_another_host_stay(void **state)
{
	struct loop *loop = *state;
	struct iovec part = {(void *)"new", 3};

	put(loop->dir, ".a");
	put(loop->dir, ".tern");
	assert_int_equal(host_file_probe(loop->dir, 100), 0);
	assert_int_equal(file_do(loop, TERN_FILE_WRITE, "a", &part, 1).op.status, 0);
	assert_int_equal(entries(loop->dir), 3);
}

/* Runs in a child process that gives up root's right to read any directory. */
static int write_without_reading(const char *dir)
{
	char path[256];
	struct iovec part = {(void *)"new", 3};
	struct tern_file_op op = {
		.kind = TERN_FILE_WRITE, .path = path, .parts = &part, .part_count = 1};

	if (setuid(geteuid() ? geteuid() : 65534) < 0)
		return 1;
	if (host_file_probe(dir, 100) < 0)
		return 2;
	snprintf(path, sizeof(path), "%s/a", dir);
	host_file_run(&op);
	return op.status < 0 ? 3 : 0;
}

static void test_directory_that_cannot_be_read_takes_files(void **state)
{
	struct loop *loop = *state;
	pid_t child;
	int status;

	if (geteuid() == 0)
		assert_int_equal(chown(loop->dir, 65534, 65534), 0);
	assert_int_equal(chmod(loop->dir, 0300), 0);
	child = fork();
	if (child == 0)
		_exit(write_without_reading(loop->dir));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(chmod(loop->dir, 0700), 0);
	assert_int_equal(status, 0);
	assert_int_equal(entries(loop->dir), 1);
}

static void test_stop_carries_out_waiting_writes(void **state)
{
	struct loop *loop = *state;
	struct iovec part = {(void *)"saved", 5};
	struct tern_file_op ops[8];
	char paths[8][128];

	for (int i = 0; i < 8; i++) {
		snprintf(paths[i], sizeof(paths[i]), "%s/%d", loop->dir, i);
		ops[i] = (struct tern_file_op){.kind = TERN_FILE_WRITE,
			.path = paths[i],
			.parts = &part,
			.part_count = 1,
			.done = file_done};
		assert_int_equal(tern_env_file(loop->env, &ops[i]), 0);
	}
	host_env_stop(loop->env);
	assert_int_equal(entries(loop->dir), 8);
	assert_int_equal(loop->done_count, 0);
}

/* ---- logging ---- */

static void keep_line(enum tern_log_level level, const char *line, void *arg)
{
	snprintf(arg, 64, "%s %s", tern_log_level_name(level), line);
}

static void test_log_lines_go_where_they_were_asked_to(void **state)
{
	char line[64] = "";
	struct tern_env *env;

	(void)state;
	assert_int_equal(host_env_new(NULL, &env), 0);
	tern_log_set(TERN_LOG_DEFAULT, keep_line, line);
	tern_log(env, TERN_LOG_WARN, "peer %d", 3);
	assert_string_equal(line, "warning peer 3");
	tern_log(env, TERN_LOG_DEBUG, "chatter");
	assert_string_equal(line, "warning peer 3");
	tern_log_set(TERN_LOG_DEFAULT, NULL, NULL);
	host_env_free(env);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_every_task_runs_and_ends_once, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_task_without_progress_may_signal, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_task_that_does_not_end_is_not_waited_for, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_stop_drops_tasks_that_wait, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_file_is_written_and_read_whole, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_empty_file_is_no_error, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_reading_stops_when_asked, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_file_errors_are_the_systems, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_failed_write_leaves_nothing_behind, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_data_of_a_stopped_operation_is_gone, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_files_are_listed_and_removed, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_files_are_written_and_read_in_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_files_of_a_process_of_another_host_stay, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_directory_that_cannot_be_read_takes_files, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_stop_carries_out_waiting_writes, setup, teardown),
		cmocka_unit_test(test_log_lines_go_where_they_were_asked_to),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
