/* SPDX-License-Identifier: Apache-2.0 */
/* The server process that hostile.c attacks, and the correct client that the server must
 * serve. */
#ifndef TERN_TESTS_RENDEZVOUS_HOSTILE_HOST_H
#define TERN_TESTS_RENDEZVOUS_HOSTILE_HOST_H

#include <netinet/in.h>
#include <sys/types.h>

#define HOST_CHANNEL     1u
#define HOST_PATIENCE_NS 20000000000ull

struct host {
	pid_t pid;
	int orders; /* write end of a pipe: closing it ends the server */
	char address[128];
	struct sockaddr_in at;
	const char *secret;
};

/* Forks a server process, with this cluster secret, or none if it is NULL. */
void host_init(struct host *host, const char *secret);
/* Ends the server; fails the test unless the server exits with success. */
void host_fini(struct host *host);

/* Runs a client that sends a tensor and gets it back; fails the test if this does not
 * work. */
void check_served(const struct host *host);

#endif
