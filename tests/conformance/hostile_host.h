/* SPDX-License-Identifier: Apache-2.0 */
/* The served process that hostile.c attacks, and the decent client that must be served.
 */
#ifndef TERN_TESTS_CONFORMANCE_HOSTILE_HOST_H
#define TERN_TESTS_CONFORMANCE_HOSTILE_HOST_H

#include <netinet/in.h>
#include <sys/types.h>

#define HOST_CHANNEL     1u
#define HOST_PATIENCE_NS 20000000000ull

struct host {
	pid_t pid;
	int orders;
	char address[128];
	struct sockaddr_in at;
	const char *secret;
};

/* Forks a server, with this cluster secret or NULL. */
void host_init(struct host *host, const char *secret);
/* Tells it to go; fails the test unless it leaves by itself, and well. */
void host_fini(struct host *host);

/* A client that sends a tensor and gets it back; fails the test if it does not. */
void check_served(const struct host *host);
/* The same behind guests that left without a goodbye: their sessions are kept for a
 * while, and there may be no room for one more until they are given up. */
void check_served_soon(const struct host *host);

#endif
