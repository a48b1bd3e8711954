/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a command says while it works: JSON lines for machines; for people a progress line
 * that rewrites itself on a terminal and plain lines, not too many, anywhere else.
 * Progress goes to stderr, so that stdout has the results only.
 */
#ifndef TERN_TOOLS_OUTPUT_H
#define TERN_TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct output {
	bool json;      /* every line on stdout is one JSON object */
	bool tty;       /* stderr is a terminal that may be written on freely; not json */
	bool line_open; /* a progress line stands there without its newline */
	uint64_t next_ns; /* plain: no progress line before this instant */
};

struct progress {
	uint64_t step, steps;
	double loss;
	double samples_per_s, mb_per_s;
	double left_s; /* < 0: not known yet */
};

void output_init(struct output *out, bool json);

/* One JSON object on a line of its own, in printable ASCII, flushed. Takes the reference.
 */
void output_json(json_t *object);

/* For people: a progress line is finished first. Nothing in json mode. One line whatever
 * the arguments hold: what would move a cursor or start a line is shown as \xNN
 * (base/escape.h). */
void output_line(struct output *out, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A text of several lines, escaped line by line. */
void output_text(struct output *out, const char *text);

/* Shows it, if it is time to. `now_ns` is monotonic. Nothing in json mode. */
void output_progress(
	struct output *out, const struct progress *progress, uint64_t now_ns);

/* One line on stderr, "tern WHO: ...", behind a finished progress line; escaped, too. */
void output_error(struct output *out, const char *who, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
