/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forked child does with the contexts of its parent: it closes their descriptors
 * at once. Otherwise a child that outlives its parent, such as a process that loads data,
 * would keep the parent's connections open, and peers would not notice that the parent
 * has ended.
 *
 * The descriptors are those that the context's epoll instance watches, found in /proc;
 * those of the io_uring engine and of verbs are not among them.
 */
#ifndef TERN_TRANSPORT_FORK_H
#define TERN_TRANSPORT_FORK_H

#include "base/list.h"

struct tern_forkable {
	struct tern_list node;
	int epoll_fd;
};

/* From now on a forked child closes `f->epoll_fd` and what it watches. Thread-safe. */
void tern_fork_add(struct tern_forkable *f, int epoll_fd);
/* Ends that. Does nothing if `f` was not added. */
void tern_fork_remove(struct tern_forkable *f);

#endif
