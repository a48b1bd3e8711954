/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. Lines are not buffered, since a program may be waiting for each of
 * them. */
#include "tools/output.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/escape.h"
#include "base/util.h"
#include "tools/signals.h"

/* a pipe that poll() finds writable accepts at least this much */
#define PIECE_BYTES PIPE_BUF
/* interval at which output that waits for a stream's reader checks for a signal */
#define LOOK_MS        100
#define STUCK_NS       TERN_NS_PER_S
#define PLAIN_EVERY_NS TERN_NS_PER_S
#define AGAIN_EVERY_NS (10 * TERN_NS_PER_S)
#define LINE_BYTES     256
#define TTY_EVERY_NS   (100 * TERN_NS_PER_MS)

/* given_up: the streams to which nothing is written any more, since nothing reads them.
 * lost: some output to stdout was lost. Atomic, because several threads print. */
static atomic_bool given_up[STDERR_FILENO + 1], lost;

/* Waits until the stream accepts output. False: the stream was given up. */
static bool wait_for_room(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	uint64_t limit_ns = 0; /* time to give the stream up; 0: no signal has come */

	while (!given_up[fd]) {
		if (poll(&p, 1, LOOK_MS) > 0)
			return true;
		if (!limit_ns && signals_asked())
			limit_ns = tern_clock_ns() + STUCK_NS;
		if (limit_ns && tern_clock_ns() >= limit_ns)
			given_up[fd] = true;
	}
	return false;
}

void output_put(int fd, const char *text, size_t bytes)
{
	if (fd == STDOUT_FILENO)
		fflush(stdout);
	while (bytes && wait_for_room(fd)) {
		ssize_t n = write(fd, text, TERN_MIN(bytes, (size_t)PIECE_BYTES));

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			break;
		text += TERN_MAX(n, 0);
		bytes -= (size_t)TERN_MAX(n, 0);
	}
	if (bytes && fd == STDOUT_FILENO)
		lost = true;
}

bool output_lost(void)
{
	return lost;
}

static void put(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(int fd, const char *fmt, ...)
{
	static const char nothing[] = "(not enough memory to print this line)\n";
	char *text = NULL;
	va_list ap;
	int bytes;

	va_start(ap, fmt);
	bytes = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (bytes < 0)
		output_put(fd, nothing, sizeof(nothing) - 1);
	else
		output_put(fd, text, (size_t)bytes);
	if (bytes >= 0)
		free(text);
}

/* A progress line that rewrites itself needs a terminal that supports it, and a user who
 * has not asked for plain text with NO_COLOR. */
static bool rewrites(void)
{
	const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");

	return isatty(STDERR_FILENO) && !(plain && *plain) &&
	       !(term && strcmp(term, "dumb") == 0);
}

void output_init(struct output *out, bool json)
{
	*out = (struct output){.json = json, .tty = !json && rewrites()};
}

/* The output is ASCII only, so that characters that control a terminal or change the
 * direction of text arrive as \uNNNN. The JSON library does not escape DEL, so this
 * function does. */
void output_json(json_t *object)
{
	char *text =
		json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER |
					   JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
	const char *from = text, *del;

	for (; from && (del = strchr(from, 0x7f)); from = del + 1)
		put(STDOUT_FILENO, "%.*s\\u007f", (int)(del - from), from);
	put(STDOUT_FILENO, "%s\n",
		from ? from
		     : "{\"event\":\"error\",\"text\":\"not enough memory to print this "
		       "event\"}");
	free(text);
	json_decref(object);
}

/* Writes a line: `head`, then `text` with all special characters escaped. */
static void put_shown(int fd, const char *head, const char *text, size_t bytes)
{
	size_t size = 4 * bytes + 1;
	char *shown = malloc(size);

	put(fd, "%s%s\n", head,
		shown ? tern_escape(shown, size, text, bytes) : "(no memory to show it)");
	free(shown);
}

static void put_line(int fd, const char *head, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));

static void put_line(int fd, const char *head, const char *fmt, va_list ap)
{
	char *text = NULL;
	int bytes = vasprintf(&text, fmt, ap);

	put_shown(fd, head, bytes < 0 ? "" : text, bytes < 0 ? 0 : (size_t)bytes);
	if (bytes >= 0)
		free(text);
}

void output_end_line(struct output *out)
{
	if (out->line_open)
		put(STDERR_FILENO, "\n");
	out->line_open = false;
}

void output_line(struct output *out, const char *fmt, ...)
{
	va_list ap;

	if (out->json)
		return;
	output_end_line(out);
	va_start(ap, fmt);
	put_line(STDOUT_FILENO, "", fmt, ap);
	va_end(ap);
}

void output_text(struct output *out, const char *text)
{
	if (out->json)
		return;
	output_end_line(out);
	for (const char *end = text; *text; text = end + (*end == '\n')) {
		end = strchrnul(text, '\n');
		put_shown(STDOUT_FILENO, "", text, (size_t)(end - text));
	}
}

void output_error(struct output *out, const char *who, const char *fmt, ...)
{
	char head[80];
	va_list ap;

	output_end_line(out);
	snprintf(head, sizeof(head), "tern %s: ", who);
	va_start(ap, fmt);
	put_line(STDERR_FILENO, head, fmt, ap);
	va_end(ap);
}

static void format_left(char *text, size_t bytes, double left_s)
{
	unsigned s = left_s < 0 ? 0 : left_s > 359999 ? 359999 : (unsigned)(left_s + 0.5);

	if (left_s < 0)
		snprintf(text, bytes, "?");
	else if (s < 60)
		snprintf(text, bytes, "%us", s);
	else if (s < 3600)
		snprintf(text, bytes, "%um%02us", s / 60, s % 60);
	else
		snprintf(text, bytes, "%uh%02um", s / 3600, s / 60 % 60);
}

/* Returns how many columns a progress line may use. The last column of the terminal is
 * left free, because a character in it wraps on some terminals. */
static int line_room(const struct output *out)
{
	struct winsize size;

	if (!out->tty || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < 2)
		return LINE_BYTES - 1;
	return TERN_MIN(size.ws_col - 1, LINE_BYTES - 1);
}

#define PARTS 9u

/* A part of a progress line. Parts of a higher rank are left out first if the line has no
 * room for all. */
struct part {
	unsigned rank;
	char text[200];
};

/* Writes a part with a number, if it is known: what stands before it, its digits after the
 * point, and what stands behind it. */
static void put_number(
	struct part *part, const char *head, int digits, double value, const char *tail)
{
	if (!isnan(value))
		snprintf(part->text, sizeof(part->text), "%s%.*f%s", head, digits, value,
			tail);
}

/* Writes a part with a text, if there is one, which may come from other processes. */
static void put_text(struct part *part, const char *head, const char *text)
{
	size_t n = (size_t)snprintf(part->text, sizeof(part->text), "%s", head);

	if (text && *text)
		tern_escape(part->text + n, sizeof(part->text) - n, text, strlen(text));
	else
		*part->text = '\0';
}

/* Joins the parts up to a rank. Returns the number of characters. */
static size_t join(const struct part *parts, unsigned rank, char *line)
{
	size_t n = 0;

	for (unsigned i = 0; i < PARTS; i++)
		if (parts[i].rank <= rank && n < LINE_BYTES)
			n += (size_t)snprintf(
				line + n, LINE_BYTES - n, "%s", parts[i].text);
	return n;
}

/* Composes a progress line of at most `room` characters. Parts that do not fit are left
 * out, the least important first. */
static void compose(const struct progress *p, const char *left, int room, char *line)
{
	struct part parts[PARTS] = {{.rank = 0}, {.rank = 2}, {.rank = 3}, {.rank = 5},
		{.rank = 6}, {.rank = 4}, {.rank = 7}, {.rank = 0}, {.rank = 1}};

	snprintf(parts[0].text, sizeof(parts[0].text), "step %llu/%llu",
		(unsigned long long)p->step, (unsigned long long)p->steps);
	put_number(&parts[1], "  loss ", 4, p->loss, "");
	put_text(&parts[2], "  ", p->metrics);
	if (!isnan(p->lr))
		snprintf(parts[3].text, sizeof(parts[3].text), "  lr %.3g", p->lr);
	put_number(&parts[4], "  staleness ", 1, p->staleness, "");
	put_number(&parts[5], "  ", 0, p->samples_per_s, " samples/s");
	put_number(&parts[6], "  ", 1, p->mb_per_s, " MB/s");
	put_text(&parts[7], "  ", left);
	put_text(&parts[8], "  waits for ", p->waits_for);
	for (unsigned rank = 7; join(parts, rank, line) > (size_t)room && rank > 0;)
		rank--;
	line[room] = '\0';
}

/* Tells whether a line is due, and sets the times of the next ones. */
static bool is_due(struct output *out, const struct progress *p, uint64_t now_ns)
{
	bool again = out->step == p->step + 1;

	if (again && !out->tty ? now_ns < out->again_ns
			       : now_ns < out->next_ns && (again || p->step != p->steps))
		return false;
	out->again_every_ns = again ? 2 * out->again_every_ns : AGAIN_EVERY_NS;
	out->again_ns = now_ns + out->again_every_ns;
	out->next_ns = now_ns + (out->tty ? TTY_EVERY_NS : PLAIN_EVERY_NS);
	out->step = p->step + 1;
	return true;
}

void output_progress(struct output *out, const struct progress *p, uint64_t now_ns)
{
	bool last = p->step == p->steps;
	char left[32], line[LINE_BYTES];

	if (out->json || !is_due(out, p, now_ns))
		return;
	format_left(left, sizeof(left), last ? 0 : p->left_s);
	strcat(left, " left");
	compose(p, left, line_room(out), line);
	put(STDERR_FILENO, "%s%s%s", out->tty ? "\r" : "", line,
		out->tty ? "\033[K" : "\n");
	out->line_open = out->tty;
}
