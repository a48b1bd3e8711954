/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring engine: detects ready sockets by one-shot poll requests. Polls are
 * submitted when the caller is about to sleep or asks which sockets are ready, mostly all
 * with one system call; completions are found in shared memory without a call. Sockets
 * that are read without asking have at most the poll in flight that was submitted before
 * a sleep, so spinning costs the kernel almost nothing extra.
 *
 * Data is not received through the ring: measurements showed that this is no faster while
 * sleeping, and slower while spinning, than plain calls on ready sockets. And since no
 * receive is in flight, only this thread writes into an exposure (memory that a peer may write),
 * so withdrawing an exposure needs no wait.
 *
 * A completion may arrive after its watch was freed. So a poll request is identified by
 * an entry of a table and the entry's generation, which changes when the entry is freed,
 * and not by the watch's address.
 *
 * The ring is not tied to one thread (no SINGLE_ISSUER), because several threads may use
 * a context in turn. A poll completes on the thread that submitted it: if that thread is
 * computing, at its next interrupt (a tick at most); if it has ended, the poll completes
 * with -ECANCELED and is submitted again.
 */
#include <errno.h>
#include <poll.h>

#include <liburing.h>

#include "transport/tcp/tcp.h"

#define RING_ENTRIES 256
#define BATCH        64

struct uring_name {
	struct tcp_watch *watch;
	uint32_t generation;
	uint32_t next_free; /* next free entry, as index + 1; 0: none */
};

struct tcp_uring {
	struct io_uring ring;
	struct uring_name *names;
	uint32_t count, free; /* free: first free entry, as index + 1; 0: none */
};

/*
 * COOP_TASKRUN: completions are handled on this thread when it next enters the kernel, or
 * immediately if it sleeps in the kernel. Without this flag, each completion while the
 * thread spins interrupts the CPU, which costs 20 us on a virtual machine, more than
 * everything else. TASKRUN_FLAG lets liburing see that it should enter the kernel. Linux
 * before 5.19 supports neither flag.
 */
static int ring_init(unsigned entries, struct io_uring *ring)
{
	int r = io_uring_queue_init(
		entries, ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);

	return r == -EINVAL ? io_uring_queue_init(entries, ring, 0) : r;
}

static int uring_probe(void)
{
	struct io_uring ring;
	int r = ring_init(2, &ring);

	if (r == 0)
		io_uring_queue_exit(&ring);
	return r;
}

static int uring_init(struct tcp_port *port)
{
	struct tcp_uring *uring = calloc(1, sizeof(*uring));
	int r;

	if (!uring)
		return -ENOMEM;
	r = ring_init(RING_ENTRIES, &uring->ring);
	if (r) {
		free(uring);
		return r;
	}
	port->uring = uring;
	return 0;
}

static void uring_fini(struct tcp_port *port)
{
	io_uring_queue_exit(&port->uring->ring);
	free(port->uring->names);
	free(port->uring);
}

/* ---- names ---- */

static int names_grow(struct tcp_uring *uring)
{
	uint32_t count = uring->count ? uring->count * 2 : 64;
	struct uring_name *names = realloc(uring->names, count * sizeof(*names));

	if (!names)
		return -ENOMEM;
	for (uint32_t i = uring->count; i < count; i++) {
		names[i] = (struct uring_name){.next_free = uring->free};
		uring->free = i + 1;
	}
	uring->names = names;
	uring->count = count;
	return 0;
}

static int name_take(struct tcp_uring *uring, struct tcp_watch *watch)
{
	if (!uring->free && names_grow(uring))
		return -ENOMEM;
	watch->entry = uring->free;
	uring->free = uring->names[watch->entry - 1].next_free;
	uring->names[watch->entry - 1].watch = watch;
	return 0;
}

static void name_release(struct tcp_uring *uring, struct tcp_watch *watch)
{
	struct uring_name *name = &uring->names[watch->entry - 1];

	name->watch = NULL;
	name->generation++;
	name->next_free = uring->free;
	uring->free = watch->entry;
	watch->entry = 0;
}

static uint64_t name_of(const struct tcp_uring *uring, const struct tcp_watch *watch)
{
	return watch->entry | (uint64_t)uring->names[watch->entry - 1].generation << 32;
}

/* Returns the watch to which a completion belongs; NULL: its poll request was cancelled,
 * or the completion is that of a cancellation. */
static struct tcp_watch *watch_of(const struct tcp_uring *uring, uint64_t name)
{
	uint32_t entry = (uint32_t)name;

	if (!entry || uring->names[entry - 1].generation != name >> 32)
		return NULL;
	return uring->names[entry - 1].watch;
}

/* ---- polls ---- */

/* Returns a free submission entry, and submits the queued ones if needed; NULL: the
 * submission queue is full. */
static struct io_uring_sqe *entry(struct tcp_uring *uring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);

	if (!sqe) {
		io_uring_submit(&uring->ring);
		sqe = io_uring_get_sqe(&uring->ring);
	}
	return sqe;
}

static int give_up(struct tcp_uring *uring, struct tcp_watch *watch)
{
	struct io_uring_sqe *sqe = entry(uring);

	if (!sqe)
		return -EAGAIN;
	io_uring_prep_poll_remove(sqe, name_of(uring, watch));
	io_uring_sqe_set_data64(sqe, 0);
	name_release(uring, watch);
	watch->set = 0;
	return 0;
}

static int uring_sync(struct tcp_port *port, struct tcp_watch *watch)
{
	struct tcp_uring *uring = port->uring;
	struct io_uring_sqe *sqe;

	if (watch->set && give_up(uring, watch))
		return -EAGAIN;
	if (!watch->want)
		return 0;
	sqe = entry(uring);
	if (!sqe)
		return -EAGAIN;
	/* A submission entry cannot be given back, so it becomes a no-op if no name is
	 * available. */
	if (name_take(uring, watch)) {
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data64(sqe, 0);
		return -ENOMEM;
	}
	io_uring_prep_poll_add(sqe, watch->fd, watch->want);
	io_uring_sqe_set_data64(sqe, name_of(uring, watch));
	watch->set = watch->want;
	return 0;
}

static void uring_remove(struct tcp_port *port, struct tcp_watch *watch)
{
	struct tcp_uring *uring = port->uring;

	if (!watch->set)
		return;
	/* A poll request in flight keeps the socket open, so it must be cancelled now. If
	 * that fails, the shutdown of the socket that follows completes the request. */
	if (give_up(uring, watch) == 0)
		io_uring_submit(&uring->ring);
	else
		name_release(uring, watch);
}

static void uring_collect(struct tcp_port *port)
{
	struct tcp_uring *uring = port->uring;
	struct io_uring_cqe *cqes[BATCH];
	unsigned n;

	if (io_uring_sq_ready(&uring->ring))
		io_uring_submit(&uring->ring);
	n = io_uring_peek_batch_cqe(&uring->ring, cqes, BATCH);
	for (unsigned i = 0; i < n; i++) {
		struct tcp_watch *watch =
			watch_of(uring, io_uring_cqe_get_data64(cqes[i]));
		int res = cqes[i]->res;

		if (!watch)
			continue;
		name_release(uring, watch);
		tcp_watch_spent(port, watch);
		if (res > 0)
			tcp_watch_got(port, watch, (uint32_t)res);
		else if (res != -ECANCELED)
			tcp_watch_got(port, watch, POLLIN | POLLERR);
	}
	io_uring_cq_advance(&uring->ring, n);
}

static int uring_arm(struct tcp_port *port)
{
	struct tcp_uring *uring = port->uring;

	if (io_uring_sq_ready(&uring->ring) && io_uring_submit(&uring->ring) < 0)
		return -EAGAIN;
	return io_uring_cq_ready(&uring->ring) ? -EAGAIN : 0;
}

static int uring_fd(struct tcp_port *port)
{
	return port->uring->ring.ring_fd;
}

const struct tcp_engine_ops tcp_uring_engine = {
	.name = "io_uring",
	.collect_is_free = true,
	.probe = uring_probe,
	.init = uring_init,
	.fini = uring_fini,
	.sync = uring_sync,
	.remove = uring_remove,
	.collect = uring_collect,
	.arm = uring_arm,
	.fd = uring_fd,
};
