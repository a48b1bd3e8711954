/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists and removes files, reads whole files, and writes files atomically: a reader finds the old contents or the
 * new ones, at any time and after any crash. A new file is written in the same directory,
 * synced, and renamed over the old one. Then the directory is synced, because only that
 * makes the rename durable. The new file has no name until it is complete (O_TMPFILE), so
 * a writer that is killed leaves no file behind, except between naming and renaming. On
 * file systems without O_TMPFILE the new file has a temporary name from the start. The
 * name is random: a process id would not be unique in a directory that several hosts or
 * containers share.
 */
#include "tools/host_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define READ_STEP  ((size_t)1 << 20)
#define READ_PIECE ((size_t)4 << 20)

static int read_open(
	int fd, bool (*stop)(void *arg), void *arg, void **data, size_t *bytes)
{
	TERN_CLEANUP(tern_cleanup_free) char *buf = NULL;
	struct stat st;
	size_t have = 0, room;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	/* st_size is only a hint: it is 0 for pipes, and a file may grow meanwhile. */
	room = st.st_size > 0 ? (size_t)st.st_size + 1 : READ_STEP;
	buf = malloc(room + 1);
	if (!buf)
		return -ENOMEM;
	for (;;) {
		ssize_t n = read(fd, buf + have, TERN_MIN(room - have, READ_PIECE));

		if (stop && stop(arg))
			return -ECANCELED;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		have += (size_t)n;
		if (have == room) {
			char *more = realloc(buf, room * 2 + 1);

			if (!more)
				return -ENOMEM;
			buf = more;
			room *= 2;
		}
	}
	buf[have] = '\0';
	*data = TERN_TAKE(buf);
	*bytes = have;
	return 0;
}

int host_file_read(
	const char *path, bool (*stop)(void *arg), void *arg, void **data, size_t *bytes)
{
	TERN_CLEANUP(tern_cleanup_close) int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -errno : read_open(fd, stop, arg, data, bytes);
}

/* Writes all parts, also if write() accepts only some bytes at a time. Parts may be
 * empty. */
static int write_parts(int fd, const struct iovec *parts, int count)
{
	for (int i = 0; i < count; i++) {
		const char *p = parts[i].iov_base;
		size_t left = parts[i].iov_len;

		while (left) {
			ssize_t n = write(fd, p, left);

			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0)
				return -errno;
			p += n;
			left -= (size_t)n;
		}
	}
	return 0;
}

/* True if an error of syncing a directory is only logged, since the file itself is
 * complete. A user who may write into a directory need not be allowed to read it, and
 * some file systems cannot sync directories. */
static bool is_harmless(int error)
{
	return error == EACCES || error == EPERM || error == EINVAL || error == EROFS ||
	       error == EOPNOTSUPP;
}

/* Syncs a directory; "" is the current one. */
static int sync_directory(const char *path)
{
	const char *dir = *path ? path : ".";
	TERN_CLEANUP(tern_cleanup_close)
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0 && fsync(fd) == 0)
		return 0;
	if (!is_harmless(errno))
		return -errno;
	tern_log(tern_env_system(), TERN_LOG_WARN,
		"directory %.300s cannot be synced (%s): a file saved in it may be lost "
		"in a power failure",
		dir, strerror(errno));
	return 0;
}

static unsigned long long random_number(void)
{
	return tern_random(tern_env_system());
}

/* Creates the new file in the directory of `aside` (its temporary name): without a name
 * if possible, otherwise as `aside`. */
static int open_aside(const char *aside, size_t dir_bytes, bool *nameless)
{
	char dir[PATH_MAX];
	int fd;

	snprintf(dir, sizeof(dir), "%.*s", (int)dir_bytes, aside);
	fd = open(dir_bytes ? dir : ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
	/* give_name() needs /proc to name the file later. */
	*nameless = fd >= 0 && access("/proc/self/fd", X_OK) == 0;
	if (*nameless)
		return fd;
	if (fd >= 0)
		close(fd);
	fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return fd < 0 ? -errno : fd;
}

static int give_name(int fd, const char *name)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int write_aside(const struct tern_file_op *op, const char *aside, size_t dir_bytes)
{
	bool nameless;
	TERN_CLEANUP(tern_cleanup_close) int fd = open_aside(aside, dir_bytes, &nameless);
	int r;

	if (fd < 0)
		return fd;
	r = write_parts(fd, op->parts, op->part_count);
	if (r)
		return r;
	if (fsync(fd) < 0)
		return -errno;
	return nameless ? give_name(fd, aside) : 0;
}

/* Number of bytes of the path up to its last slash, with it. */
static size_t directory_bytes(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? (size_t)(slash + 1 - path) : 0;
}

static int sync_directory_of(const char *path)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%.*s", (int)directory_bytes(path), path);
	return sync_directory(dir);
}

static int write_whole(const struct tern_file_op *op)
{
	size_t dir_bytes = directory_bytes(op->path);
	char aside[PATH_MAX];
	int r;

	if (snprintf(aside, sizeof(aside), "%.*s.%s.%016llx.new", (int)dir_bytes,
		    op->path, op->path + dir_bytes,
		    random_number()) >= (int)sizeof(aside))
		return -ENAMETOOLONG;
	r = write_aside(op, aside, dir_bytes);
	if (r == 0 && rename(aside, op->path) < 0)
		r = -errno;
	if (r) {
		unlink(aside);
		return r;
	}
	return sync_directory_of(op->path);
}

static int remove_file(const char *path)
{
	return unlink(path) < 0 ? -errno : sync_directory_of(path);
}

static int read_piece(struct tern_file_op *op)
{
	TERN_CLEANUP(tern_cleanup_close) int fd = open(op->path, O_RDONLY | O_CLOEXEC);
	TERN_CLEANUP(tern_cleanup_free) char *buf = NULL;
	struct stat st;
	ssize_t n = 1;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	op->all = (uint64_t)st.st_size;
	op->bytes = 0;
	buf = malloc(op->most + 1);
	if (!buf)
		return -ENOMEM;
	while (n > 0 && op->bytes < op->most) {
		n = pread(fd, buf + op->bytes, op->most - op->bytes,
			(off_t)(op->at + op->bytes));
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n < 0)
			return -errno;
		else
			op->bytes += (size_t)n;
	}
	buf[op->bytes] = '\0';
	op->data = TERN_TAKE(buf);
	return 0;
}

/* The file was made by this operation's predecessors, so its size is `at`. */
static int write_piece(const struct tern_file_op *op)
{
	int flags = op->at ? O_APPEND : O_CREAT | O_EXCL;
	TERN_CLEANUP(tern_cleanup_close)
	int fd = open(op->path, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | flags, 0666);

	return fd < 0 ? -errno : write_parts(fd, op->parts, op->part_count);
}

static int sync_file(const char *path)
{
	TERN_CLEANUP(tern_cleanup_close) int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int publish(const struct tern_file_op *op)
{
	int r = sync_file(op->path);

	if (r == 0 && rename(op->path, op->to) < 0)
		r = -errno;
	return r == 0 ? sync_directory_of(op->to) : r;
}

static bool is_entry(const struct dirent *entry)
{
	return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Appends the name and its NUL to the list. */
static int add_name(struct tern_file_op *op, size_t *room, const char *name)
{
	size_t bytes = strlen(name) + 1;

	if (*room - op->bytes < bytes) {
		size_t larger = 2 * *room + bytes;
		char *more = realloc(op->data, larger);

		if (!more)
			return -ENOMEM;
		op->data = more;
		*room = larger;
	}
	memcpy((char *)op->data + op->bytes, name, bytes);
	op->bytes += bytes;
	return 0;
}

static int list(struct tern_file_op *op)
{
	DIR *dir = opendir(op->path);
	const struct dirent *entry;
	size_t room = 0;
	int r = 0;

	if (!dir)
		return -errno;
	op->data = NULL;
	op->bytes = 0;
	/* readdir() tells an error by errno alone. */
	while (r == 0 && (errno = 0, entry = readdir(dir)))
		if (is_entry(entry))
			r = add_name(op, &room, entry->d_name);
	if (r == 0)
		r = -errno;
	closedir(dir);
	if (r < 0) {
		free(op->data);
		op->data = NULL;
		op->bytes = 0;
	}
	return r;
}

/* Reserves space for the file. If the file system cannot reserve (NFS), checks its free
 * space instead. */
static int take_room(int fd, uint64_t bytes)
{
	struct statvfs st;

	if (fallocate(fd, 0, 0, (off_t)bytes) == 0)
		return 0;
	if (errno != EOPNOTSUPP)
		return -errno;
	if (fstatvfs(fd, &st) < 0)
		return -errno;
	return bytes > (uint64_t)st.f_bavail * st.f_frsize ? -ENOSPC : 0;
}

int host_file_probe(const char *directory, uint64_t bytes)
{
	TERN_CLEANUP(tern_cleanup_close) int fd = -1;
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/.tern.%016llx.new", directory,
		    random_number()) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	unlink(path);
	r = take_room(fd, bytes);
	return r < 0 ? r : sync_directory(directory);
}

void host_file_run(struct tern_file_op *op)
{
	switch (op->kind) {
	case TERN_FILE_READ:
		op->status = host_file_read(op->path, NULL, NULL, &op->data, &op->bytes);
		break;
	case TERN_FILE_WRITE:
		op->status = write_whole(op);
		break;
	case TERN_FILE_LIST:
		op->status = list(op);
		break;
	case TERN_FILE_REMOVE:
		op->status = remove_file(op->path);
		break;
	case TERN_FILE_READ_PIECE:
		op->status = read_piece(op);
		break;
	case TERN_FILE_WRITE_PIECE:
		op->status = write_piece(op);
		break;
	case TERN_FILE_PUBLISH:
		op->status = publish(op);
		break;
	}
}
