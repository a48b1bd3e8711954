/* SPDX-License-Identifier: Apache-2.0 */
/* See output.h. Every line is flushed at once: its reader may be a program that waits. */
#include "tools/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/escape.h"

#define PLAIN_EVERY_NS TERN_NS_PER_S
#define TTY_EVERY_NS   (100 * TERN_NS_PER_MS)

void output_init(struct output *out, bool json)
{
	*out = (struct output){.json = json, .tty = !json && isatty(STDOUT_FILENO)};
}

void output_json(json_t *object)
{
	json_dumpf(object, stdout,
		JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
	putchar('\n');
	fflush(stdout);
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
		putchar('\n');
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

void output_progress(struct output *out, const struct progress *p, uint64_t now_ns)
{
	bool last = p->step == p->steps;
	char left[24];

	if (out->json || (now_ns < out->next_ns && !last))
		return;
	out->next_ns = now_ns + (out->tty ? TTY_EVERY_NS : PLAIN_EVERY_NS);
	format_left(left, sizeof(left), last ? 0 : p->left_s);
	printf("%sstep %llu/%llu  loss %.4f  %.0f samples/s  %.1f MB/s  %s left%s",
		out->tty ? "\r" : "", (unsigned long long)p->step,
		(unsigned long long)p->steps, p->loss, p->samples_per_s, p->mb_per_s,
		left, out->tty ? "\033[K" : "\n");
	out->line_open = out->tty;
	fflush(stdout);
}
