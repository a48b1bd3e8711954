/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of a command while it works: JSON lines for programs; for people a progress
 * line that rewrites itself on a terminal, and a limited number of plain lines elsewhere.
 * Progress goes to stderr, so that stdout has only the results.
 *
 * If the reader stops reading, the process blocks, as usual. But once a signal has asked
 * the process to end, a stream that accepts nothing for a second is given up: later
 * output to it is lost.
 */
#ifndef TERN_TOOLS_OUTPUT_H
#define TERN_TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct output {
	bool json; /* every line on stdout is one JSON object */
	/* Stderr is a terminal that supports control characters; not with json. */
	bool tty;
	bool line_open;   /* a progress line without its newline is on the terminal */
	uint64_t next_ns; /* plain lines: earliest time of the next progress line */
};

struct progress {
	uint64_t step, steps;
	double loss;
	double samples_per_s, mb_per_s;
	double left_s; /* < 0: not known yet */
};

void output_init(struct output *out, bool json);

/* Writes to stdout or stderr (`fd`), after the contents of stdio's buffer. */
void output_put(int fd, const char *text, size_t bytes);

/* True if something could not be written to stdout. */
bool output_lost(void);

/* Prints one JSON object on a line of its own, in printable ASCII, flushed. Releases
 * the object. */
void output_json(json_t *object);

/* For people: prints a line, after ending a progress line. Prints nothing in json
 * mode. It is one line whatever the arguments contain: characters that would move a
 * cursor or start a line are shown as \xNN (base/escape.h). */
void output_line(struct output *out, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Prints a text of several lines, each escaped. */
void output_text(struct output *out, const char *text);

/* Prints the progress if it is time to. `now_ns` is monotonic. Prints nothing in json
 * mode. */
void output_progress(
	struct output *out, const struct progress *progress, uint64_t now_ns);

/* Prints one line on stderr, "tern WHO: ...", after ending a progress line; escaped
 * too. */
void output_error(struct output *out, const char *who, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
