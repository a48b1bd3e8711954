/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern top`: shows again and again what a running job does. On a terminal the picture is
 * drawn on the alternate screen, and the program restores the terminal when a key or a signal
 * of tools/signals.h ends it; elsewhere each picture is a block of lines.
 *
 * The rates are differences between two answers, over the time that has passed on the server
 * between them.
 */
#include "tools/status.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/escape.h"
#include "base/util.h"
#include "tools/field.h"
#include "tools/output.h"
#include "tools/signals.h"

#define SCREEN_ENTER "\033[?1049h\033[?25l" /* the alternate screen, without a cursor */
#define SCREEN_LEAVE "\033[?25h\033[?1049l"
#define LINE_END     "\033[K\n" /* erases what an earlier picture has left in the line */
#define ROWS_MAX     40u        /* workers in a block of lines */
#define LOOK_MS      100        /* how often the size of the terminal is looked at */

struct top_settings {
	struct ask_settings ask;
	double every_s;
	bool json;
};

static const struct option options[] = {
	ASK_OPTIONS(struct top_settings, ask),
	OPTION(REAL, "every", "S", "seconds between two questions", struct top_settings,
		every_s, .initial = "1", .min = 0.1, .max = 3600),
	OPTION(FLAG, "json", NULL, "one JSON object per line, as of tern status",
		struct top_settings, json),
	OPTION_END,
};

struct top {
	const struct top_settings *settings;
	struct ask ask;
	struct output out;
	int signal_fd;
	bool screen;  /* pictures are drawn on a terminal */
	bool keys;    /* stdin is a terminal whose keys are read at once */
	bool hung_up; /* stdin has no keys any more, and poll() would not wait for it */
	struct termios kept; /* if `keys`: its settings before */
	struct winsize size; /* of the terminal when the last picture was drawn */
	char head[600];      /* first line of the last picture; "": none was drawn */
	int signal;          /* that has asked the program to end; 0: none */
	bool over;           /* a key or a signal has ended the program */
	json_t *last;        /* the last answer; NULL: none yet */
	struct message error;
};

/* ---- the terminal ---- */

static void enter_screen(struct top *t)
{
	struct termios raw;

	t->keys = tcgetattr(STDIN_FILENO, &t->kept) == 0;
	if (t->keys) {
		raw = t->kept;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		raw.c_cc[VMIN] = raw.c_cc[VTIME] = 0;
		/* SIGQUIT is not caught, and would leave the terminal as it is here. */
		raw.c_cc[VQUIT] = _POSIX_VDISABLE;
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	output_put(STDOUT_FILENO, SCREEN_ENTER, strlen(SCREEN_ENTER));
}

static void leave_screen(struct top *t)
{
	output_put(STDOUT_FILENO, SCREEN_LEAVE, strlen(SCREEN_LEAVE));
	if (t->keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &t->kept);
}

/* ---- a picture ---- */

static char *render(const json_t *answer, unsigned rows)
{
	char *text = NULL;
	size_t bytes;
	FILE *to = open_memstream(&text, &bytes);

	if (!to)
		return NULL;
	status_show(to, answer, rows);
	fclose(to);
	return text;
}

static unsigned count_lines(const char *text)
{
	unsigned n = 0;

	for (; text && *text; text++)
		n += *text == '\n';
	return n;
}

/* Prints one line, cut so that the last column stays empty: LINE_END would erase it. */
static void put_line(const char *line, size_t bytes, size_t columns)
{
	char shown[1000];

	tern_escape(shown, TERN_MIN(sizeof(shown), TERN_MAX(columns, (size_t)1)), line,
		bytes);
	output_put(STDOUT_FILENO, shown, strlen(shown));
	output_put(STDOUT_FILENO, LINE_END, strlen(LINE_END));
}

static struct winsize terminal_size(void)
{
	struct winsize size = {.ws_row = 24, .ws_col = 80};

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	return size;
}

/* Draws t->head and the lines of the last answer that the terminal has room for; its last line
 * stays empty. */
static void draw(struct top *t)
{
	char *text = t->last ? render(t->last, 0) : NULL;
	unsigned rows, left;

	t->size = terminal_size();
	rows = TERN_MAX(t->size.ws_row, 3u) - 2;
	left = count_lines(text) < rows ? rows - count_lines(text) : 0;
	free(text);
	text = t->last ? render(t->last, left) : NULL;
	output_put(STDOUT_FILENO, "\033[H", 3);
	put_line(t->head, strlen(t->head), t->size.ws_col);
	for (const char *line = text; line && *line && rows > 0; rows--) {
		size_t n = strcspn(line, "\n");

		put_line(line, n, t->size.ws_col);
		line += n + (line[n] == '\n');
	}
	output_put(STDOUT_FILENO, "\033[J", 3);
	free(text);
}

static void print(struct top *t)
{
	char *text;

	if (t->settings->json) {
		output_json(json_incref(t->last));
		return;
	}
	text = render(t->last, ROWS_MAX);
	if (text) {
		output_text(&t->out, text);
		output_line(&t->out, "%s", "");
	}
	free(text);
	fflush(stdout);
}

/* ---- keys and signals ---- */

static void take_signal(struct top *t, int number)
{
	if (number == SIGTSTP && t->screen) {
		leave_screen(t);
		signals_stop();
		enter_screen(t);
		draw(t);
	} else if (number == SIGTSTP) {
		signals_stop();
	} else if (signals_is_end(number)) {
		t->signal = number;
		t->over = true;
	}
}

/* Draws the last picture again if the terminal has another size now. */
static void follow_size(struct top *t)
{
	struct winsize size = terminal_size();

	if (size.ws_row != t->size.ws_row || size.ws_col != t->size.ws_col)
		draw(t);
}

/* Takes keys and signals that have come. True: the program is to end. */
static bool is_over(void *arg)
{
	struct top *t = arg;
	int number = signals_take(t->signal_fd);
	char key;

	if (number)
		take_signal(t, number);
	if (t->screen)
		follow_size(t);
	while (t->keys && !t->over && read(STDIN_FILENO, &key, 1) == 1)
		t->over = key == 'q' || key == 'Q';
	return t->over;
}

static void wait_until(struct top *t, uint64_t due_ns)
{
	uint64_t now_ns;

	while (!is_over(t) && (now_ns = tern_clock_ns()) < due_ns) {
		struct pollfd fds[] = {
			{.fd = t->signal_fd, .events = POLLIN},
			{.fd = t->keys && !t->hung_up ? STDIN_FILENO : -1,
				.events = POLLIN},
		};
		int left_ms = (int)((due_ns - now_ns) / TERN_NS_PER_MS) + 1;

		poll(fds, 2, t->screen ? TERN_MIN(left_ms, LOOK_MS) : left_ms);
		if (fds[1].revents & (POLLHUP | POLLERR | POLLNVAL))
			t->hung_up = true;
	}
}

/* ---- questions ---- */

/* Sets the rates of `answer` to those since the last answer, if that was the same server's and
 * the job has not gone back between them. */
static void set_rates(const struct top *t, json_t *answer)
{
	const json_t *job = json_object_get(answer, "job");
	double s = field_number(answer, "uptime_s") - field_number(t->last, "uptime_s");
	double steps = field_number(answer, "step") - field_number(t->last, "step");
	double samples = field_number(job, "batch");

	if (!json_object_get(answer, "step") || !json_object_get(t->last, "step") ||
		field_number(answer, "server") != field_number(t->last, "server") ||
		!(s > 0) || steps < 0)
		return;
	if (json_object_get(job, "slots"))
		samples *= field_number(job, "slots");
	json_object_set_new(answer, "steps_per_s", json_real(steps / s));
	if (samples > 0)
		json_object_set_new(
			answer, "samples_per_s", json_real(steps * samples / s));
}

/* On a terminal the last picture stays under the reason, since a job that goes back may answer
 * again in a while. Elsewhere, or if no server has ever answered, the program ends. False: it
 * does, for the reason in t->error. */
static bool show_failure(struct top *t)
{
	if (!t->screen || !t->last)
		return false;
	snprintf(t->head, sizeof(t->head), "tern top: %.580s", t->error.text);
	draw(t);
	return true;
}

/* Asks once, and shows the answer. False: nobody answers, and the program ends. */
static bool ask_and_show(struct top *t)
{
	json_t *answer = NULL;

	if (status_ask(&t->ask, &answer, &t->error) < 0)
		return t->over || show_failure(t);
	set_rates(t, answer);
	json_decref(t->last);
	t->last = answer;
	if (!t->screen) {
		print(t);
		return true;
	}
	snprintf(t->head, sizeof(t->head), "tern top: %.130s, every %.3g s; q ends",
		json_string_value(json_object_get(answer, "asked")),
		t->settings->every_s);
	draw(t);
	return true;
}

/* ---- the command ---- */

static bool is_terminal(const struct top_settings *settings)
{
	const char *term = getenv("TERM");

	return !settings->json && isatty(STDOUT_FILENO) && term &&
	       strcmp(term, "dumb") != 0;
}

/* Returns an exit code. */
static int watch(struct top *t)
{
	const uint64_t every_ns = (uint64_t)(t->settings->every_s * 1e9);
	bool answered = true;

	t->signal_fd = signals_open();
	if (t->signal_fd < 0)
		return command_fail(&top_command, "%s", strerror(-t->signal_fd));
	signals_catch_stop();
	t->ask.stop = is_over;
	t->ask.arg = t;
	t->screen = is_terminal(t->settings);
	if (t->screen)
		enter_screen(t);
	while (answered && !t->over && !output_lost()) {
		uint64_t due_ns = tern_clock_ns() + every_ns;

		answered = ask_and_show(t);
		if (answered && !output_lost())
			wait_until(t, due_ns);
	}
	if (t->screen)
		leave_screen(t);
	signals_close(t->signal_fd);
	if (!answered)
		return command_fail(&top_command, "%s", t->error.text);
	return t->signal ? 128 + t->signal : EXIT_OK;
}

static int top_run(int argc, char **argv)
{
	struct top_settings s = {0};
	struct top t = {.settings = &s};
	int r;

	if (options_parse(options, argc, argv, &s, &t.error))
		return command_refuse(&top_command, "%s", t.error.text);
	output_init(&t.out, s.json);
	r = ask_open(&t.ask, "top", &s.ask, &t.error);
	if (r < 0)
		r = command_end(&top_command, r == -EINVAL ? EXIT_INPUT : EXIT_JOB, "%s",
			t.error.text);
	else
		r = watch(&t);
	json_decref(t.last);
	ask_close(&t.ask);
	return r;
}

const struct command top_command = {
	.name = "top",
	.usage = "--join ADDRESS,... [options]",
	.summary = "show again and again what a running job does, until q or Ctrl-C",
	.options = options,
	.run = top_run,
};
