/* SPDX-License-Identifier: Apache-2.0 */
/* A client and a server process with a socket pair between them. */
#ifndef TERN_BENCH_TWO_H
#define TERN_BENCH_TWO_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forks. The parent becomes the client; the child, the server, dies with it. Each is
 * pinned to a core and ends after two minutes. Returns the socket. */
int two_fork(bool *client);

/* Sends or receives exactly `bytes` bytes; exits with an error line if the other process is
 * gone. */
void two_tell(int fd, const void *data, size_t bytes);
void two_hear(int fd, void *data, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
