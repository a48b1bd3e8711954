/* SPDX-License-Identifier: Apache-2.0 */
/* See secret.h. */
#include "tools/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "transport/addr.h"

#define MADE_BYTES 32u
/* an attacker who has recorded one handshake could try all shorter secrets */
#define BYTES_MIN 16

static bool usable(void)
{
	return tern_secret_check("any") == 0;
}

/* Checks that no other user can read the secret's file, since such a user could join the
 * job. */
static int check_file(int fd, const char *what, struct message *error)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return options_refuse(error, "%.400s: %s", what, strerror(errno));
	if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return options_refuse(error, "%.400s: must be a file", what);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return options_refuse(error,
			"%.400s: belongs to user %u, must belong to user %u or to root",
			what, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & 077)
		return options_refuse(error,
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
static int read_text(int fd, const char *what, struct secret *out, struct message *error)
{
	char text[SECRET_BYTES_MAX + 3];
	ssize_t n = read_all(fd, text, sizeof(text));
	int r = 0;

	if (n < 0)
		return options_refuse(error, "%.400s: %s", what, strerror((int)-n));
	if (n > 0 && text[n - 1] == '\n')
		n--;
	if (n > 0 && text[n - 1] == '\r')
		n--;
	if (n == 0)
		r = options_refuse(error, "%.400s: is empty, must hold a secret", what);
	else if (n > SECRET_BYTES_MAX)
		r = options_refuse(error, "%.400s: must be at most %d bytes", what,
			SECRET_BYTES_MAX);
	else if (memchr(text, 0, (size_t)n))
		r = options_refuse(
			error, "%.400s: has a byte 0 in it, must be text", what);
	else if (n < BYTES_MIN)
		r = options_refuse(error,
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

static int read_fd(
	const struct secret_settings *s, struct secret *out, struct message *error)
{
	char what[32];
	int r;

	snprintf(what, sizeof(what), "--secret-fd %u", (unsigned)s->fd);
	r = read_text((int)s->fd, what, out, error);
	close((int)s->fd);
	return r;
}

static int read_file(
	const char *option, const char *path, struct secret *out, struct message *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r;
	char what[400];

	snprintf(what, sizeof(what), "%s %.350s", option, path);
	if (fd < 0)
		return options_refuse(error, "%s: %s", what, strerror(errno));
	r = check_file(fd, what, error);
	/* The file was opened with O_NONBLOCK, since opening a pipe without a writer
	 * would block for ever. Reads may block, to wait for an existing writer, as in
	 * bash's <(COMMAND). */
	if (r == 0 && fcntl(fd, F_SETFL, O_RDONLY) < 0)
		r = options_refuse(error, "%s: %s", what, strerror(errno));
	if (r == 0)
		r = read_text(fd, what, out, error);
	close(fd);
	return r;
}

int secret_read(
	const struct secret_settings *s, struct secret *out, struct message *error)
{
	const char *named = getenv("TERN_SECRET_FILE");
	int r = 0;

	*out->text = '\0';
	if (s->insecure && (s->file || s->fd))
		return options_refuse(error,
			"--insecure means no secret: it excludes --secret-file and "
			"--secret-fd");
	if (s->fd && s->file)
		return options_refuse(
			error, "--secret-file and --secret-fd exclude each other");
	if (s->fd)
		r = read_fd(s, out, error);
	else if (s->file)
		r = read_file("--secret-file", s->file, out, error);
	else if (named && *named && !s->insecure)
		r = read_file("TERN_SECRET_FILE", named, out, error);
	if (r == 0 && *out->text && !usable())
		r = options_refuse(error,
			"%s: this tern was built without OpenSSL, which a secret needs",
			s->fd     ? "--secret-fd"
			: s->file ? "--secret-file"
				  : "TERN_SECRET_FILE");
	return r;
}

int secret_make(struct secret *out)
{
	unsigned char bytes[MADE_BYTES];
	ssize_t got;

	*out->text = '\0';
	if (!usable())
		return 0;
	got = getrandom(bytes, sizeof(bytes), 0);
	if (got != sizeof(bytes))
		return got < 0 ? -errno : -EIO;
	for (unsigned i = 0; i < MADE_BYTES; i++)
		snprintf(out->text + 2 * i, 3, "%02x", bytes[i]);
	explicit_bzero(bytes, sizeof(bytes));
	return 0;
}

void secret_forget(struct secret *secret)
{
	explicit_bzero(secret, sizeof(*secret));
}

int secret_check_listen(const struct secret_settings *s, const struct secret *secret,
	const struct fabric_settings *fabric, const char *option, const char *listen,
	struct message *error)
{
	const char *advice = usable() ? "give all processes of the job --secret-file, or "
					"--insecure if any of them may join"
				      : "this tern was built without OpenSSL and has no "
					"secrets: use --insecure if that is acceptable";

	if (*secret->text || s->insecure || fabric_stays_here(fabric))
		return 0;
	if (tern_addr_is_loopback(listen ? listen : fabric_default_listen(fabric)))
		return 0;
	if (listen)
		return options_refuse(error,
			"%s %.200s: lets in whoever connects from other hosts: %s",
			option, listen, advice);
	return options_refuse(error,
		"--fabric %s: lets in whoever connects from other hosts: %s",
		fabric_name(fabric), advice);
}
