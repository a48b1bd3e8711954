/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. Every line is flushed at once: its reader may be a program that waits. */
#include "tools/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/escape.h"
#include "base/util.h"

#define PLAIN_EVERY_NS TERN_NS_PER_S
#define LINE_BYTES     256
#define TTY_EVERY_NS   (100 * TERN_NS_PER_MS)

/* A line that rewrites itself takes a terminal that knows how to, and a user who has not
 * asked for plain text. */
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

/* All in ASCII, so that what changes a terminal or the direction of text arrives there as
 * \uNNNN; of DEL that library takes no care. */
void output_json(json_t *object)
{
	char *text =
		json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER |
					   JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
	const char *from = text, *del;

	for (; from && (del = strchr(from, 0x7f)); from = del + 1)
		printf("%.*s\\u007f", (int)(del - from), from);
	puts(from ? from : "{\"event\":\"error\",\"text\":\"no memory to show it\"}");
	fflush(stdout);
	free(text);
	json_decref(object);
}

/* Whatever is in it, it is one line. */
static void print_shown(FILE *to, const char *text, size_t bytes)
{
	size_t size = 4 * bytes + 1;
	char *shown = malloc(size);

	if (shown)
		fputs(tern_escape(shown, size, text, bytes), to);
	else
		fputs("(no memory to show it)", to);
	free(shown);
}

static void print_line(FILE *to, const char *fmt, va_list ap)
	__attribute__((format(printf, 2, 0)));

static void print_line(FILE *to, const char *fmt, va_list ap)
{
	char *text = NULL;
	int bytes = vasprintf(&text, fmt, ap);

	if (bytes >= 0) {
		print_shown(to, text, (size_t)bytes);
		free(text);
	}
	fputc('\n', to);
}

static void finish_line(struct output *out)
{
	if (out->line_open)
		fputc('\n', stderr);
	out->line_open = false;
	fflush(stdout);
}

void output_line(struct output *out, const char *fmt, ...)
{
	va_list ap;

	if (out->json)
		return;
	finish_line(out);
	va_start(ap, fmt);
	print_line(stdout, fmt, ap);
	va_end(ap);
	fflush(stdout);
}

void output_text(struct output *out, const char *text)
{
	if (out->json)
		return;
	finish_line(out);
	for (const char *end = text; *text; text = end + (*end == '\n')) {
		end = strchrnul(text, '\n');
		print_shown(stdout, text, (size_t)(end - text));
		putchar('\n');
	}
	fflush(stdout);
}

void output_error(struct output *out, const char *who, const char *fmt, ...)
{
	va_list ap;

	finish_line(out);
	fprintf(stderr, "tern %s: ", who);
	va_start(ap, fmt);
	print_line(stderr, fmt, ap);
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

/* Columns of the terminal that a line may use: one in the last makes some of them wrap.
 */
static int line_room(const struct output *out)
{
	struct winsize size;

	if (!out->tty || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col < 2)
		return LINE_BYTES - 1;
	return TERN_MIN(size.ws_col - 1, LINE_BYTES - 1);
}

/* What does not fit is left out, the least important first. */
static void compose(const struct progress *p, const char *left, int room, char *line)
{
	char rate[40], bytes[40], loss[40];

	snprintf(loss, sizeof(loss), "  loss %.4f", p->loss);
	snprintf(rate, sizeof(rate), "  %.0f samples/s", p->samples_per_s);
	snprintf(bytes, sizeof(bytes), "  %.1f MB/s", p->mb_per_s);
	for (int parts = 3; parts >= 0; parts--)
		if (snprintf(line, LINE_BYTES, "step %llu/%llu%s%s%s  %s left",
			    (unsigned long long)p->step, (unsigned long long)p->steps,
			    parts > 0 ? loss : "", parts > 1 ? rate : "",
			    parts > 2 ? bytes : "", left) <= room)
			return;
	line[room] = '\0';
}

void output_progress(struct output *out, const struct progress *p, uint64_t now_ns)
{
	bool last = p->step == p->steps;
	char left[24], line[LINE_BYTES];

	if (out->json || (now_ns < out->next_ns && !last))
		return;
	out->next_ns = now_ns + (out->tty ? TTY_EVERY_NS : PLAIN_EVERY_NS);
	format_left(left, sizeof(left), last ? 0 : p->left_s);
	compose(p, left, line_room(out), line);
	fprintf(stderr, "%s%s%s", out->tty ? "\r" : "", line, out->tty ? "\033[K" : "\n");
	out->line_open = out->tty;
}
