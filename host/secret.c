/* SPDX-License-Identifier: Apache-2.0 */
#include "host/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* an attacker who has recorded one handshake could try all shorter secrets */
#define BYTES_MIN 16

static int refuse(struct secret_error *error, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Sets error->text. Returns -EINVAL. */
static int refuse(struct secret_error *error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(error->text, sizeof(error->text), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* Checks that no other user can read the secret's file, since such a user could join the
 * job. */
static int check_file(int fd, const char *what, struct secret_error *error)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return refuse(error, "%.400s: %s", what, strerror(errno));
	if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return refuse(error, "%.400s: must be a file", what);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return refuse(error,
			"%.400s: belongs to user %u, must belong to user %u or to root",
			what, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & 077)
		return refuse(error,
			"%.400s: other users can read or change it (mode %04o), must be "
			"0600",
			what, (unsigned)st.st_mode & 07777);
	return 0;
}

/* Reads to the end of the file, but at most `room` bytes. */
static ssize_t read_all(int fd, char *to, size_t room)
{
	size_t bytes = 0;
	ssize_t n;

	do {
		n = read(fd, to + bytes, room - bytes);
		if (n > 0)
			bytes += (size_t)n;
	} while ((n > 0 && bytes < room) || (n < 0 && errno == EINTR));
	return n < 0 ? -errno : (ssize_t)bytes;
}

/* Reads a secret as text. A newline at the end, which editors and echo append, is not
 * part of it. */
int secret_read_fd(
	int fd, const char *what, struct secret *out, struct secret_error *error)
{
	char text[SECRET_BYTES_MAX + 3];
	ssize_t n = read_all(fd, text, sizeof(text));
	int r = 0;

	if (n < 0)
		return refuse(error, "%.400s: %s", what, strerror((int)-n));
	if (n > 0 && text[n - 1] == '\n')
		n--;
	if (n > 0 && text[n - 1] == '\r')
		n--;
	if (n == 0)
		r = refuse(error, "%.400s: is empty, must hold a secret", what);
	else if (n > SECRET_BYTES_MAX)
		r = refuse(error, "%.400s: must be at most %d bytes", what,
			SECRET_BYTES_MAX);
	else if (memchr(text, 0, (size_t)n))
		r = refuse(error, "%.400s: has a byte 0 in it, must be text", what);
	else if (n < BYTES_MIN)
		r = refuse(error,
			"%.400s: has %zd bytes, must have %d or more that nobody can "
			"guess; to make some: head -c 32 /dev/urandom | base64",
			what, n, BYTES_MIN);
	if (r == 0) {
		memcpy(out->text, text, (size_t)n);
		out->text[n] = '\0';
	}
	explicit_bzero(text, sizeof(text));
	return r;
}

int secret_read_file(const char *option, const char *path, struct secret *out,
	struct secret_error *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r;
	char what[400];

	snprintf(what, sizeof(what), "%s %.350s", option, path);
	if (fd < 0)
		return refuse(error, "%s: %s", what, strerror(errno));
	r = check_file(fd, what, error);
	/* The file was opened with O_NONBLOCK, since opening a pipe without a writer
	 * would block for ever. Reads may block, to wait for an existing writer, as in
	 * bash's <(COMMAND). */
	if (r == 0 && fcntl(fd, F_SETFL, O_RDONLY) < 0)
		r = refuse(error, "%s: %s", what, strerror(errno));
	if (r == 0)
		r = secret_read_fd(fd, what, out, error);
	close(fd);
	return r;
}
