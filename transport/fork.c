/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEPTH_MAX 3u /* a context's epoll instance watches those of its fabrics */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tern_list all = {&all, &all};

/* ---- in the child ---- */

static void close_watched(int epoll_fd, unsigned depth);

/* Closes the descriptor that a line of fdinfo names, if it is one of an epoll instance:
 * "tfd:        5 events:       19 data:                0". */
static void close_named(const char *line, unsigned depth)
{
	int fd;

	if (sscanf(line, "tfd: %d", &fd) != 1)
		return;
	if (depth < DEPTH_MAX)
		close_watched(fd, depth + 1);
	close(fd);
}

/* Closes what the epoll instance watches. Does nothing for another kind of descriptor.
 * Allocates no memory, since other threads of the parent may have held locks when it
 * forked. */
static void close_watched(int epoll_fd, unsigned depth)
{
	char path[48], text[512];
	size_t have = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epoll_fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	while ((n = read(fd, text + have, sizeof(text) - 1 - have)) > 0) {
		char *line = text, *end;

		text[have + (size_t)n] = '\0';
		for (; (end = strchr(line, '\n')); line = end + 1) {
			*end = '\0';
			close_named(line, depth);
		}
		have = strlen(line);
		memmove(text, line, have + 1);
	}
	close(fd);
}

static void close_all(void)
{
	tern_list_for_each (n, &all) {
		const struct tern_forkable *f =
			tern_list_entry(n, struct tern_forkable, node);

		close_watched(f->epoll_fd, 1);
		close(f->epoll_fd);
	}
	tern_list_init(&all);
	pthread_mutex_unlock(&lock);
}

/* ---- in the parent ---- */

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, close_all);
}

void tern_fork_add(struct tern_forkable *f, int epoll_fd)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&lock);
	f->epoll_fd = epoll_fd;
	tern_list_push(&all, &f->node);
	pthread_mutex_unlock(&lock);
}

void tern_fork_remove(struct tern_forkable *f)
{
	pthread_mutex_lock(&lock);
	if (f->node.next)
		tern_list_remove(&f->node);
	pthread_mutex_unlock(&lock);
}
