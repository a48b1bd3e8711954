/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the supervision of child processes. The children run this same program; their
 * arguments choose what they do. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/signals.h"
#include "tools/supervise.h"

#define CHILDREN 8

struct seen {
	unsigned line_count, exit_count;
	size_t longest;
	char last[64];  /* last line that a child has written */
	char ended[96]; /* description of how a child ended */
	/* what programs have written */
	char out[100], err[100];
};

static void on_line(void *arg, struct child *child, const char *line)
{
	struct seen *seen = arg;

	assert_true(child->out.fd >= 0 || !child->running);
	seen->line_count++;
	if (strlen(line) > seen->longest)
		seen->longest = strlen(line);
	snprintf(seen->last, sizeof(seen->last), "%s", line);
}

/* Adds "TEXT|", or "LENGTH|" if the text is long, to what the stream has had. */
static void on_text(
	void *arg, struct child *child, int fd, const char *text, size_t bytes)
{
	struct seen *s = arg;
	char *to = fd == STDOUT_FILENO ? s->out : s->err;
	size_t n = strlen(to);

	assert_true(child->program);
	if (bytes > 20)
		snprintf(to + n, sizeof(s->out) - n, "%zu|", bytes);
	else
		snprintf(to + n, sizeof(s->out) - n, "%.*s|", (int)bytes, text);
}

static void on_exit_(void *arg, struct child *child)
{
	struct seen *seen = arg;

	assert_false(child->running);
	seen->exit_count++;
	supervise_describe(child, seen->ended, sizeof(seen->ended));
}

static struct supervisor sup;
static struct seen seen;

static int setup(void **state)
{
	(void)state;
	memset(&seen, 0, sizeof(seen));
	sup.on_line = on_line;
	sup.on_text = on_text;
	sup.on_exit = on_exit_;
	sup.arg = &seen;
	return supervise_init(&sup);
}

static int teardown(void **state)
{
	(void)state;
	supervise_fini(&sup);
	return 0;
}

static void start(const char *name, const char *what)
{
	const char *args[] = {what, NULL};

	assert_int_equal(supervise_start(&sup, name, args), 0);
}

static void start_program(const char *what)
{
	char self[] = "/proc/self/exe", word[16];
	char *argv[] = {self, word, NULL};

	snprintf(word, sizeof(word), "%s", what);
	assert_int_equal(supervise_start_program(&sup, "worker 0", argv, environ), 0);
}

static void expect_description(unsigned child, const char *rest)
{
	char text[128];

	snprintf(text, sizeof(text), "worker %u (pid %d) %s", child,
		(int)sup.children[child].pid, rest);
	assert_string_equal(seen.ended, text);
}

static void test_lines_come_before_the_end(void **state)
{
	(void)state;
	start("worker 0", "lines");
	while (!seen.exit_count)
		supervise_turn(&sup, -1);
	assert_int_equal(seen.line_count, 1001);
	assert_string_equal(seen.last, "line 999");
	assert_int_equal(seen.longest, 100000);
	expect_description(0, "exited with status 3");
}

static void expect_secret(const char *secret, const char *line)
{
	unsigned exits = seen.exit_count;

	sup.secret = secret;
	start("worker 0", "secret");
	sup.secret = NULL;
	while (seen.exit_count == exits)
		supervise_turn(&sup, -1);
	assert_string_equal(seen.last, line);
}

static void test_each_child_can_read_the_secret_once(void **state)
{
	(void)state;
	expect_secret("open sesame", "open sesame and no more");
	expect_secret("open sesame", "open sesame and no more");
	expect_secret(NULL, "nothing");
}

static void test_killed_child_is_described(void **state)
{
	(void)state;
	start("worker 0", "wait");
	while (!seen.line_count)
		supervise_turn(&sup, -1);
	kill(sup.children[0].pid, SIGKILL);
	while (!seen.exit_count)
		supervise_turn(&sup, -1);
	expect_description(0, "was killed by signal 9 (Killed)");
}

static void test_end_leaves_nobody(void **state)
{
	(void)state;
	/* Half of the children obey SIGTERM, the others ignore it, and one is stopped. */
	for (unsigned i = 0; i < CHILDREN; i++)
		start("worker", i % 2 ? "wait" : "ignore");
	while (seen.line_count < CHILDREN)
		supervise_turn(&sup, -1);
	kill(sup.children[1].pid, SIGSTOP);
	supervise_end(&sup, 0, SIGTERM, 50);
	assert_int_equal(seen.exit_count, CHILDREN);
	assert_int_equal(supervise_running(&sup), 0);
	for (unsigned i = 0; i < CHILDREN; i++) {
		assert_int_equal(
			WTERMSIG(sup.children[i].status), i % 2 ? SIGTERM : SIGKILL);
		assert_true(kill(sup.children[i].pid, 0) < 0 && errno == ESRCH);
	}
}

static void test_signals_to_the_supervisor_are_reported(void **state)
{
	(void)state;
	start("worker 0", "wait");
	while (!seen.line_count)
		supervise_turn(&sup, -1);
	raise(SIGINT);
	supervise_turn(&sup, -1);
	assert_int_equal(sup.signal, SIGINT);
	supervise_end(&sup, 0, SIGTERM, 5000);
	expect_description(0, "was killed by signal 15 (Terminated)");
}

/* Returns the status, from waitpid(), of a process that raises the signal `first` and then
 * `second`. `aborts`: it has called signals_abort_on_second(). */
static int status_after(bool aborts, int first, int second)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		signals_reset_child(false);
		/* Also closes the descriptor for signals that the parent has opened. */
		supervise_fini(&sup);
		if (signals_open() < 0)
			_exit(1);
		if (aborts)
			signals_abort_on_second();
		raise(first);
		raise(second);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void test_a_second_interrupt_aborts(void **state)
{
	(void)state;
	assert_int_equal(WEXITSTATUS(status_after(true, SIGINT, SIGINT)), 130);
	/* A batch system may send SIGTERM twice, or to this process at the same time as
	 * the launcher does. */
	assert_int_equal(status_after(true, SIGTERM, SIGTERM), 0);
	assert_int_equal(status_after(true, SIGTERM, SIGINT), 0);
	assert_int_equal(status_after(true, SIGCHLD, SIGINT), 0);
	assert_int_equal(status_after(false, SIGINT, SIGINT), 0);
}

static void test_a_hangup_that_is_ignored_stays_ignored(void **state)
{
	(void)state;
	supervise_fini(&sup);
	signal(SIGHUP, SIG_IGN);
	assert_int_equal(supervise_init(&sup), 0);
	raise(SIGHUP);
	raise(SIGTERM);
	supervise_turn(&sup, -1);
	assert_int_equal(sup.signal, SIGTERM);
	signal(SIGHUP, SIG_DFL);
}

static void test_a_second_interrupt_kills_also_who_saves(void **state)
{
	(void)state;
	start("worker 0", "ignore");
	while (!seen.line_count)
		supervise_turn(&sup, -1);
	sup.children[0].saving = true;
	raise(SIGINT);
	supervise_turn(&sup, -1);
	raise(SIGINT); /* supervise_end() handles this signal */
	supervise_end(&sup, 0, SIGTERM, 1);
	expect_description(0, "was killed by signal 9 (Killed)");
}

static void test_only_who_saves_is_waited_for(void **state)
{
	(void)state;
	start("worker 0", "slow");
	start("worker 1", "ignore");
	while (seen.line_count < 2)
		supervise_turn(&sup, -1);
	sup.children[0].saving = true;
	supervise_end(&sup, 0, SIGTERM, 1);
	assert_int_equal(WEXITSTATUS(sup.children[0].status), 7);
	assert_int_equal(WTERMSIG(sup.children[1].status), SIGKILL);
}

static void test_repeated_signals_do_not_cut_an_end_short(void **state)
{
	(void)state;
	start("worker 0", "slow");
	while (!seen.line_count)
		supervise_turn(&sup, -1);
	raise(SIGHUP);
	supervise_turn(&sup, -1);
	assert_int_equal(sup.signal, SIGHUP);
	/* supervise_end() handles these signals. */
	raise(SIGHUP);
	raise(SIGTERM);
	raise(SIGINT);
	supervise_end(&sup, 0, SIGTERM, 60000);
	expect_description(0, "exited with status 7");
}

/* If the supervisor is killed, its children must end, too. The test sees that by the end
 * of a pipe that only they hold open. */
static void test_children_die_with_a_killed_supervisor(void **state)
{
	int fds[2];
	char byte;
	pid_t middle;

	(void)state;
	assert_int_equal(pipe(fds), 0);
	middle = fork();
	if (middle == 0) {
		close(fds[0]);
		start("worker 0", "ignore");
		while (!seen.line_count)
			supervise_turn(&sup, -1);
		raise(SIGKILL);
	}
	close(fds[1]);
	assert_int_equal(waitpid(middle, NULL, 0), middle);
	assert_int_equal(read(fds[0], &byte, 1), 0);
	close(fds[0]);
}

/* ---- programs ---- */

static void test_texts_of_a_program_are_told_by_stream(void **state)
{
	(void)state;
	start_program("text");
	while (!seen.exit_count)
		supervise_turn(&sup, -1);
	/* A line of 20,000 bytes comes in pieces; \r and \r\n end a line, too. */
	assert_string_equal(seen.out, "8192|8192|3616|a|b|c||no end|");
	assert_string_equal(seen.err, "error|");
	assert_int_equal(seen.line_count, 0);
	expect_description(0, "exited with status 0");
}

static void test_what_a_program_leaves_gets_the_signal(void **state)
{
	(void)state;
	start_program("leaves");
	while (!seen.exit_count || !*seen.out)
		supervise_turn(&sup, -1);
	assert_int_equal(supervise_running(&sup), 0);
	assert_true(sup.children[0].left);
	supervise_end(&sup, 0, SIGTERM, 60000);
	assert_string_equal(seen.out, "here|");
	assert_int_equal(seen.exit_count, 1);
	assert_true(kill(-sup.children[0].pid, 0) < 0 && errno == ESRCH);
}

/* If the supervisor is killed, the children of programs must end, too. */
static void test_children_of_programs_die_with_a_killed_supervisor(void **state)
{
	int fds[2];
	char byte;
	pid_t middle;

	(void)state;
	assert_int_equal(pipe(fds), 0);
	middle = fork();
	if (middle == 0) {
		close(fds[0]);
		start_program("leaves");
		while (!*seen.out)
			supervise_turn(&sup, -1);
		raise(SIGKILL);
	}
	close(fds[1]);
	assert_int_equal(waitpid(middle, NULL, 0), middle);
	assert_int_equal(read(fds[0], &byte, 1), 0);
	close(fds[0]);
}

static void test_end_kills_the_whole_group_of_a_program(void **state)
{
	(void)state;
	start_program("two");
	while (strlen(seen.out) < strlen("here|here|"))
		supervise_turn(&sup, -1);
	supervise_end(&sup, 0, SIGTERM, 50);
	expect_description(0, "was killed by signal 9 (Killed)");
	assert_true(kill(-sup.children[0].pid, 0) < 0 && errno == ESRCH);
}

/* ---- roles of the children ---- */

/* Waits for a blocked SIGTERM, and has no handler: the thread sanitizer delays handlers,
 * and a signal that came at a wrong moment was never handled. */
static int end_slowly(const sigset_t *asked_to_end)
{
	int number;

	sigwait(asked_to_end, &number);
	usleep(100000);
	return 7;
}

/* Prints what test_texts_of_a_program_are_told_by_stream() expects. */
static int print_text(void)
{
	for (int i = 0; i < 20000; i++)
		putchar('x');
	printf("\na\rb\r\nc\n\nno end");
	fputs("error\n", stderr);
	return 0;
}

static int be(const char *what)
{
	sigset_t asked_to_end;

	if (strcmp(what, "text") == 0)
		return print_text();
	if (strcmp(what, "leaves") == 0 && fork() > 0)
		_exit(0);
	if (strcmp(what, "two") == 0) {
		signal(SIGTERM, SIG_IGN);
		if (fork() < 0)
			return 1;
	}

	if (strcmp(what, "lines") == 0) {
		for (int i = 0; i < 100000; i++)
			putchar('x');
		putchar('\n');
		for (int i = 0; i < 1000; i++)
			printf("line %d\n", i);
		printf("no newline: not a line");
		return 3;
	}
	if (strcmp(what, "secret") == 0) {
		char text[64];
		ssize_t n = read(SUPERVISE_SECRET_FD, text, sizeof(text));

		if (n < 0)
			printf("nothing\n");
		else
			printf("%.*s and %s\n", (int)n, text,
				read(SUPERVISE_SECRET_FD, text, 1) ? "more" : "no more");
		return 0;
	}
	if (strcmp(what, "ignore") == 0)
		signal(SIGTERM, SIG_IGN);
	sigemptyset(&asked_to_end);
	sigaddset(&asked_to_end, SIGTERM);
	if (strcmp(what, "slow") == 0)
		sigprocmask(SIG_BLOCK, &asked_to_end, NULL);
	printf("here\n");
	fflush(stdout);
	if (strcmp(what, "slow") == 0)
		return end_slowly(&asked_to_end);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_lines_come_before_the_end, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_each_child_can_read_the_secret_once, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_killed_child_is_described, setup, teardown),
		cmocka_unit_test_setup_teardown(test_end_leaves_nobody, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_signals_to_the_supervisor_are_reported, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_second_interrupt_aborts, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_hangup_that_is_ignored_stays_ignored, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_only_who_saves_is_waited_for, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_a_second_interrupt_kills_also_who_saves, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_repeated_signals_do_not_cut_an_end_short, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_children_die_with_a_killed_supervisor, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_texts_of_a_program_are_told_by_stream, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_what_a_program_leaves_gets_the_signal, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_children_of_programs_die_with_a_killed_supervisor, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			test_end_kills_the_whole_group_of_a_program, setup, teardown),
	};

	if (argc > 1)
		return be(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
