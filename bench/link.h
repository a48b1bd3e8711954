/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes connected by Tern, for benchmarks that `tern bench` does not cover: one
 * connection, one channel and a pool, through the public interface only. The functions
 * sleep when they wait, like the programs of other libraries that do not poll.
 */
#ifndef TERN_BENCH_LINK_H
#define TERN_BENCH_LINK_H

#include <tern/tern.h>

struct link {
	const char *fabric;
	bool sender;
	int fd;                     /* socket to the other process */
	struct tern_domain *domain; /* NULL: link_open() makes one */
	struct tern_context *ctx;
	struct tern_pool *pool;
	struct tern_peer *peer;
	struct tern_channel *channel;
	bool is_up; /* the connection is established */
};

/* Forks a second process (two_fork()) and connects the two. The first process runs
 * send(), the second receive(). Returns in the first process when both are done. Exits
 * with an error line if anything fails. */
void link_run(const char *fabric, uint64_t pool_bytes, void (*send)(struct link *link),
	void (*receive)(struct link *link));

/* The parts of link_run(), for programs that fork by themselves (two.h). link_open() makes
 * the context, the pool and, if link->domain is NULL, the domain. */
void link_open(struct link *link, const char *fabric, uint64_t pool_bytes);
/* Connects the two processes, and opens the channel at both ends. */
void link_meet(struct link *link);
/* Listens on the fabric, and writes the listener's address. */
void link_listen(struct link *link, void (*accept)(struct tern_peer *peer, void *arg),
	void *arg, struct tern_listener **listener, char *address, size_t bytes);

/* Drives the context for ever, so that callbacks can do the work, and calls answer() when
 * link->fd is readable. */
void link_serve(struct link *link, void (*answer)(int fd));

/* Exits with an error line if `status` is negative. */
void link_must(const char *what, int status);
void link_wait(struct link *link, struct tern_req *req);
/* Drives the context until *flag is set. Exits if nothing happens for 60 s. */
void link_wait_for(struct link *link, const bool *flag);

struct tern_buf link_take(struct link *link, uint64_t bytes);
void link_send(struct link *link, struct tern_req *req, uint64_t key, uint64_t step,
	const struct tern_buf *buf, unsigned flags);
void link_receive(struct link *link, struct tern_req *req, uint64_t key, uint64_t step,
	const struct tern_buf *buf);

#endif
