/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of a command while it runs. Programs get JSON lines. People get a progress
 * line that rewrites itself on a terminal, and at most about one plain line a second
 * elsewhere; of one step the second comes after ten seconds, and further ones more and
 * more rarely. For people, progress goes to stderr, so that it does not mix with the results
 * and notes on stdout.
 *
 * If the reader of a stream stops reading, the process blocks, as usual. But once a
 * signal has asked the process to end, a stream that accepts nothing for a second is
 * given up: all later output to it is lost.
 */
#ifndef TERN_TOOLS_OUTPUT_H
#define TERN_TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct output {
	bool json; /* every line on stdout is one JSON object */
	/* Stderr is a terminal on which a line can be rewritten; false with json. */
	bool tty;
	bool line_open; /* the terminal shows a progress line that has no newline yet */
	/* Earliest time in ns of the next progress line, and of one that shows no other step
	 * than the last line. */
	uint64_t next_ns, again_ns;
	uint64_t again_every_ns;
	uint64_t step; /* of the last progress line, plus 1; 0: there was none */
};

struct progress {
	uint64_t step, steps;
	/* A number below that is not known is NAN, and a text "". */
	double loss;
	const char *metrics; /* "accuracy 0.93  top5 0.99" */
	double lr, staleness;
	double samples_per_s, mb_per_s;
	double left_s;         /* seconds until the last step; < 0: not known yet */
	const char *waits_for; /* "worker 1 (shm pid 812) for slot 1 of step 242" */
};

void output_init(struct output *out, bool json);

/* Writes bytes to stdout or stderr (`fd`), after what stdio has buffered for it. */
void output_put(int fd, const char *text, size_t bytes);

/* True if some output to stdout was lost. */
bool output_lost(void);

/* Prints a JSON object as one line in ASCII and flushes it. Releases the object. */
void output_json(json_t *object);

/* Ends an open progress line, before somebody else writes. */
void output_end_line(struct output *out);

/* For people: prints one line on stdout, and ends an open progress line before. Does
 * nothing in json mode. Arguments cannot break the line: characters that move a cursor or
 * start a line are shown as \xNN (base/escape.h). */
void output_line(struct output *out, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* As output_line(), for a text of several lines, each of which is escaped. */
void output_text(struct output *out, const char *text);

/* Prints a progress line, unless the last one was printed too recently. `now_ns` is
 * monotonic. Does nothing in json mode. */
void output_progress(
	struct output *out, const struct progress *progress, uint64_t now_ns);

/* Prints one line on stderr, "tern WHO: ...", escaped as by output_line(), and ends an
 * open progress line before. */
void output_error(struct output *out, const char *who, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
