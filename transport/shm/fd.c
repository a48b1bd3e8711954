/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that two processes share, and the packets that carry its descriptors. A peer's
 * memory is used only if the kernel guarantees that it cannot shrink (F_SEAL_SHRINK),
 * since reading beyond the end of a file raises SIGBUS. Memory that is passed to a peer
 * (areas of this fabric, slabs of mem.c) can be written only through the mapping of its
 * owner, if the kernel has F_SEAL_FUTURE_WRITE: tern_memfd_seal(). Peers run under the
 * same user id or as root (see conn.c), so the seals protect against mistakes and make
 * the checks of the ring sufficient; they do not stop a process that could attach a
 * debugger to this process.
 */
#include "transport/shm/shm.h"

#include <byteswap.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

int shm_memory_new(uint64_t bytes, int *fd, void **base)
{
	TERN_CLEANUP(tern_cleanup_close) int memfd = -1;
	void *map;
	int status;

	memfd = memfd_create("tern-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (memfd < 0 || ftruncate(memfd, (off_t)bytes))
		return -errno;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (map == MAP_FAILED)
		return -errno;
	status = tern_memfd_seal(&memfd);
	if (status) {
		munmap(map, bytes);
		return status;
	}
	*base = map;
	*fd = memfd;
	memfd = -1;
	return 0;
}

int shm_memory_map(int fd, uint64_t min_bytes, void **base, uint64_t *bytes)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *map;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st))
		return -EPROTO;
	if (st.st_size <= 0 || (uint64_t)st.st_size < min_bytes)
		return -EPROTO;
	map = tern_map_slab(fd, (uint64_t)st.st_size, PROT_READ);
	if (map == MAP_FAILED)
		return -errno;
	*base = map;
	*bytes = (uint64_t)st.st_size;
	return 0;
}

/* Space for more descriptors than any note has, so that surplus ones are received and can
 * be closed. */
union control {
	char bytes[CMSG_SPACE(4 * sizeof(int))];
	struct cmsghdr align;
};

static struct iovec part_of(const void *at, size_t bytes)
{
	return (struct iovec){.iov_base = (void *)(uintptr_t)at, .iov_len = bytes};
}

static int send_packet(int socket, struct iovec *parts, size_t count, int fd)
{
	struct msghdr message = {.msg_iov = parts};
	union control control = {.bytes = {0}};

	message.msg_iovlen = (__typeof__(message.msg_iovlen))count; /* an int in musl */
	if (fd >= 0) {
		struct cmsghdr *head;

		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int));
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof(int));
	}
	if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 0;
	return errno == EPIPE || errno == ENOTCONN ? -ECONNRESET : -errno;
}

int shm_note_send(int socket, const struct shm_note *note, int fd)
{
	struct iovec part = part_of(note, sizeof(*note));

	return send_packet(socket, &part, 1, fd);
}

int shm_offer_send(
	int socket, const struct shm_note *note, const struct tern_ipc_handle *handle)
{
	struct iovec parts[] = {
		part_of(note, sizeof(*note)), part_of(handle, sizeof(*handle))};

	return send_packet(socket, parts, TERN_ARRAY_SIZE(parts), -1);
}

/* Returns the first descriptor of the message, or -1, and closes all others. */
static int take_fds(struct msghdr *message)
{
	int kept = -1;

	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head;
		head = CMSG_NXTHDR(message, head)) {
		size_t count;

		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
			if (kept < 0)
				kept = fd;
			else
				close(fd);
		}
	}
	return kept;
}

/* Expected size of the packet that begins with this note. */
static ssize_t bytes_of(const struct shm_note *note)
{
	return (ssize_t)sizeof(*note) +
	       (note->type == SHM_OFFER ? (ssize_t)sizeof(struct tern_ipc_handle) : 0);
}

int shm_note_receive(
	int socket, struct shm_note *note, struct tern_ipc_handle *handle, int *fd)
{
	struct iovec parts[] = {
		part_of(note, sizeof(*note)), part_of(handle, sizeof(*handle))};
	union control control;
	struct msghdr message = {
		.msg_iov = parts,
		.msg_iovlen = TERN_ARRAY_SIZE(parts),
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	const int flags = MSG_DONTWAIT | MSG_CMSG_CLOEXEC;
	ssize_t bytes = recvmsg(socket, &message, flags);

	*fd = -1;
	/* If the peer closed its socket before it had read everything from this process,
	 * recvmsg() reports ECONNRESET once, before the peer's last packets. These tell
	 * why the peer closed, so receive again. */
	if (bytes < 0 && errno == ECONNRESET)
		bytes = recvmsg(socket, &message, flags);
	if (bytes < 0)
		return errno == EAGAIN || errno == EINTR ? -EAGAIN : -ECONNRESET;
	*fd = take_fds(&message);
	if (*fd < 0 && (message.msg_flags & MSG_CTRUNC))
		return -EMFILE;
	if (bytes >= (ssize_t)sizeof(*note) && !(message.msg_flags & MSG_TRUNC) &&
		note->magic == SHM_NOTE_MAGIC && bytes == bytes_of(note))
		return 1;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	if (bytes >= (ssize_t)sizeof(*note) && note->magic == bswap_32(SHM_NOTE_MAGIC))
		return -EILSEQ;
	return bytes == 0 ? 0 : -EPROTO;
}
