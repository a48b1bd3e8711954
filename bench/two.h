/* SPDX-License-Identifier: Apache-2.0 */
/* A client and a server process with a socket pair between them. */
#ifndef TERN_BENCH_TWO_H
#define TERN_BENCH_TWO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forks. The parent becomes the client; the child, the server, is killed when the parent
 * dies. Each is pinned to a core of its own, if there are two, and killed (alarm) if it runs
 * for two minutes. Returns the socket. */
int two_fork(bool *client);

/* Sends or receives exactly `bytes` bytes; exits with an error line if the other process is
 * gone. */
void two_tell(int fd, const void *data, size_t bytes);
void two_hear(int fd, void *data, size_t bytes);

/* Client: asks the server a question, and waits for its answer of `bytes` bytes. `question`
 * is a number whose meaning the program defines; UINT64_MAX is not allowed. */
void two_ask(int fd, uint64_t question, void *answer, size_t bytes);
/* Server: waits for a question, and returns its number; exits with status 0 if the client
 * has called two_end(). */
uint64_t two_question(int fd);
/* Client: makes the server exit at its next two_question(). */
void two_end(int fd);

#ifdef __cplusplus
}
#endif
#endif
