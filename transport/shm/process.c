/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process at the other end of a conn: who it is, whether it is still there, and whether
 * this one may read and write its memory.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef SO_PEERPIDFD
/* Linux 6.5: returns the peer's pidfd, without a race on the reuse of its pid. */
#define SO_PEERPIDFD 77
#endif

/* Musl has no <sys/pidfd.h> with pidfd_open(), so the system call is made directly. */
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

/* Time for which a peer that was there is taken to be there, so that small puts in a row do
 * not pay for a look each. */
#define THERE_NS (20 * TERN_NS_PER_US)

/* Up to so many bytes a write to the peer's memory as a file is faster than
 * process_vm_writev(), before which a look is needed whether the peer is there. */
#define FILE_BYTES (8u << 10)

int shm_process_identify(struct shm_conn *conn)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer), fd_bytes = sizeof(conn->pidfd);

	if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
		return -errno;
	conn->pid = peer.pid;
	snprintf(conn->base.name, sizeof(conn->base.name), "shm pid %d", (int)peer.pid);
	if (peer.uid != geteuid() && peer.uid != 0) {
		tern_log_stranger(conn->base.port->env,
			"%s: refused: user id %u is not %u", conn->base.name, peer.uid,
			geteuid());
		return -EACCES;
	}
	if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERPIDFD, &conn->pidfd, &fd_bytes))
		conn->pidfd =
			peer.pid > 0 ? (int)syscall(SYS_pidfd_open, peer.pid, 0) : -1;
	return 0;
}

/* Tests whether process_vm_readv() works on the peer: reads a random word that only the
 * right process has at this address. */
static bool probe(struct shm_conn *conn)
{
	uint64_t word = ~conn->their_word;
	struct iovec here = {.iov_base = &word, .iov_len = sizeof(word)};
	struct iovec there = {.iov_base = (void *)(uintptr_t)conn->their_address,
		.iov_len = sizeof(word)};

	return process_vm_readv(conn->pid, &here, 1, &there, 1, 0) == sizeof(word) &&
	       word == conn->their_word;
}

/* Tests whether process_vm_writev() works on a peer that was probed: at an address that is
 * mapped nowhere it fails with another error than where it is forbidden. The end of the
 * peer's process must be noticed by the system, since its pid may be used again. */
static bool may_write(struct shm_conn *conn)
{
	uint64_t word = 0;
	struct iovec here = {.iov_base = &word, .iov_len = sizeof(word)};
	struct iovec there = {.iov_base = NULL, .iov_len = sizeof(word)};

	return conn->cma && conn->pidfd >= 0 &&
	       process_vm_writev(conn->pid, &here, 1, &there, 1, 0) < 0 &&
	       errno == EFAULT;
}

void shm_process_probe(struct shm_conn *conn, const struct shm_note *note)
{
	const struct shm_fabric *fabric =
		tern_container_of(conn->base.port->fabric, struct shm_fabric, base);

	conn->their_address = note->probe_address;
	conn->their_word = note->probe_word;
	conn->cma = !fabric->no_cma && conn->pid > 0 && probe(conn);
	if (may_write(conn))
		conn->base.caps |= TERN_CAP_WINDOW_PUT | TERN_CAP_LANDS;
}

bool shm_process_is_there(struct shm_conn *conn)
{
	struct pollfd entries[] = {{.fd = conn->pidfd, .events = POLLIN},
		{.fd = conn->fd, .events = POLLRDHUP}};
	uint64_t now_ns = tern_now_ns(conn->base.port->env);

	if (conn->there_ns && now_ns - conn->there_ns < THERE_NS)
		return true;
	if (poll(entries, TERN_ARRAY_SIZE(entries), 0) != 0 || !probe(conn))
		return false;
	conn->there_ns = now_ns;
	return true;
}

/*
 * Opens the peer's memory as a file. Other than a pid, which another process may have one
 * day, the descriptor stands for the program that the peer runs now: when that has ended, or
 * the process runs another program, it writes nothing. -1: not possible here.
 */
static int open_memory(const struct shm_conn *conn)
{
	uint64_t word = ~conn->their_word;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", (int)conn->pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (pread(fd, &word, sizeof(word), (off_t)conn->their_address) == sizeof(word) &&
		word == conn->their_word)
		return fd;
	close(fd);
	return -1;
}

static bool has_memory(struct shm_conn *conn)
{
	if (!conn->memory_opened) {
		conn->memory_opened = true;
		conn->memory_fd = open_memory(conn);
	}
	return conn->memory_fd >= 0;
}

int64_t shm_process_write(
	struct shm_conn *conn, uint64_t address, const void *data, uint64_t bytes)
{
	struct iovec here = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};
	struct iovec there = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
	ssize_t n;

	if (bytes <= FILE_BYTES && has_memory(conn)) {
		n = pwrite(conn->memory_fd, data, bytes, (off_t)address);
		if (n < 0)
			return errno == EIO ? -EFAULT : -errno;
		return n ? n : -ENOTCONN;
	}
	if (!shm_process_is_there(conn))
		return -ENOTCONN;
	n = process_vm_writev(conn->pid, &here, 1, &there, 1, 0);
	return n < 0 ? -errno : n;
}

bool shm_process_has_exited(const struct shm_conn *conn)
{
	struct pollfd entry = {.fd = conn->pidfd, .events = POLLIN};

	return conn->pidfd >= 0 && poll(&entry, 1, 0) > 0;
}

bool shm_process_has_hung_up(const struct shm_conn *conn)
{
	struct pollfd entry = {.fd = conn->fd, .events = POLLRDHUP};

	return poll(&entry, 1, 0) > 0;
}
