/* SPDX-License-Identifier: Apache-2.0 */
/* A measurement between two hosts: `tern bench --serve` on one, --connect on the
 * other. */
#ifndef TERN_TOOLS_BENCH_HOSTS_H
#define TERN_TOOLS_BENCH_HOSTS_H

#include "tools/bench_pair.h"

/* What the server's process knows about one measurement. */
struct bench_served {
	char address[128]; /* address at which the server listens */
	char client[128];  /* address of the client; "": no client came */
	/* The measurement has ended, well or not, but the client has not got the last
	 * report yet. Only used between the processes of a server. */
	bool measured;
	int status;
	struct bench_config config; /* what the client wants to be measured */
	struct bench_error error;
};

/* Runs the end with --connect: measures against the server at config->connect, in this
 * process. Returns the same as bench_pair_run(). */
int bench_hosts_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error);

/*
 * Runs the end with --serve: receives the tensors of one client after the other, until
 * the process is killed; with `once`, until a client has made its last measurement, and
 * then returns 0. Calls listens() once, with the address, when clients may connect, and
 * serves() after each measurement, also a failed one. It forks, so no thread may have
 * been started. Returns a negative status, with error->text, if no process can listen; a
 * measurement that has just ended is then not passed to serves().
 */
int bench_hosts_serve(const struct bench_config *config, bool once,
	void (*listens)(const char *address), void (*serves)(const struct bench_served *),
	struct bench_error *error);

#endif
