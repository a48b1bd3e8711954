/* SPDX-License-Identifier: Apache-2.0 */
/* See meet.h. */
#include "tools/meet.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/util.h"
#include "tools/report.h"
#include "transport/addr.h"

#define END_BYTES_MAX 1000
#define ANSWER_MS     500

/* Writes the path of a file of the directory: `suffix` follows BASE. */
static void path_of(const struct meet *m, const char *suffix, char *path)
{
	snprintf(path, PATH_MAX, "%s/%s%s", m->dir, m->base, suffix);
}

static void own_path(const struct meet *m, const char *suffix, char *path)
{
	char name[64];

	snprintf(name, sizeof(name), "-%llu-%s.%s", (unsigned long long)m->ranks.rank,
		m->token, suffix);
	path_of(m, name, path);
}

static int fail(struct message *error, const char *path, int number)
{
	options_refuse(error, "--rendezvous: %.400s: %s", path, strerror(number));
	return -EIO;
}

/* ---- the directory ---- */

/* Makes the user's own directory for jobs whose ranks are all on this host. Others can
 * write to /tmp, but not to this directory. */
static int make_own(struct meet *m, struct message *error)
{
	struct stat st;

	snprintf(m->dir, sizeof(m->dir), "/tmp/tern-%u", (unsigned)geteuid());
	if (mkdir(m->dir, 0700) < 0 && errno != EEXIST)
		return options_refuse(error,
			"%s: %s: give another directory, --rendezvous DIR", m->dir,
			strerror(errno));
	if (lstat(m->dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
		(st.st_mode & 077) == 0)
		return 0;
	return options_refuse(error,
		"%s: must be a directory of user %u with mode 0700: give another one, "
		"--rendezvous DIR",
		m->dir, (unsigned)geteuid());
}

static int use(struct meet *m, const char *dir, struct message *error)
{
	struct stat st;

	if (snprintf(m->dir, sizeof(m->dir), "%s", dir) >= (int)sizeof(m->dir))
		return options_refuse(error, "--rendezvous: the path is too long");
	if (stat(dir, &st) < 0)
		return options_refuse(
			error, "--rendezvous %.400s: %s", dir, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return options_refuse(
			error, "--rendezvous %.400s: must be a directory", dir);
	if (access(dir, R_OK | W_OK | X_OK) < 0)
		return options_refuse(
			error, "--rendezvous %.400s: %s", dir, strerror(errno));
	return 0;
}

int meet_open(
	struct meet *m, const struct ranks *ranks, const char *dir, struct message *error)
{
	int r;

	*m = (struct meet){.ranks = *ranks};
	snprintf(m->base, sizeof(m->base), "tern-%s.of-%llu", ranks->job,
		(unsigned long long)ranks->size);
	snprintf(m->token, sizeof(m->token), "%016llx",
		(unsigned long long)tern_random(tern_env_system()));
	r = dir ? use(m, dir, error) : make_own(m, error);
	if (r || ranks->rank)
		return r;
	m->tokens = json_object();
	m->seen = calloc(ranks->size, sizeof(*m->seen));
	return m->seen && m->tokens ? 0 : options_refuse(error, "%s", strerror(ENOMEM));
}

/* Writes a file of mode 0600 aside and renames it. Returns 0 or a negative errno. The file
 * is made anew: one that another user has put there could be read by that user. */
static int write_file(
	const struct meet *m, const char *path, const char *text, struct stat *st)
{
	char aside[PATH_MAX];
	size_t bytes = strlen(text);
	int fd, r = 0;

	own_path(m, "new", aside);
	unlink(aside);
	fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if (write(fd, text, bytes) != (ssize_t)bytes || fstat(fd, st) < 0)
		r = errno ? -errno : -ENOSPC;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && rename(aside, path) < 0)
		r = -errno;
	if (r)
		unlink(aside);
	return r;
}

/* Reads a file that only this user can have written. Returns its text, NULL with errno.
 * Opening a FIFO that another user has put there does not block. */
static char *read_file(const char *path, size_t max)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char *text = NULL;
	struct stat st;
	ssize_t n;

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 &&
		(!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077)) {
		errno = EPERM;
	} else if ((text = calloc(1, max + 1))) {
		n = read(fd, text, max);
		if (n < 0)
			free(TERN_TAKE(text));
	}
	close(fd);
	return text;
}

/* ---- rank 0 ---- */

static int write_servers(struct meet *m, struct message *error)
{
	char path[PATH_MAX], *text = json_dumps(m->servers, JSON_COMPACT);
	struct stat st;
	int r = text ? 0 : -ENOMEM;

	path_of(m, ".servers", path);
	if (r == 0)
		r = write_file(m, path, text, &st);
	if (r < 0) {
		fail(error, path, -r);
		r = -EIO;
	} else {
		m->dev = st.st_dev;
		m->ino = st.st_ino;
		m->said_count = m->seen_count;
	}
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
	return r;
}

int meet_publish(
	struct meet *m, const char *join, const char *secret, struct message *error)
{
	m->servers = json_pack(
		"{s:s, s:s*, s:O}", "join", join, "secret", secret, "tokens", m->tokens);
	if (!m->servers) {
		options_refuse(error, "%s", strerror(ENOMEM));
		return -EIO;
	}
	return write_servers(m, error);
}

/* Is BASE.servers the file that this process has written last? */
static bool is_mine(const struct meet *m)
{
	char path[PATH_MAX];
	struct stat st;

	path_of(m, ".servers", path);
	return m->servers && lstat(path, &st) == 0 && st.st_dev == m->dev &&
	       st.st_ino == m->ino;
}

static int check_mine(const struct meet *m, struct message *error)
{
	if (is_mine(m))
		return 0;
	options_refuse(error,
		"%.200s/%.200s.servers: another process has replaced or removed it: two "
		"jobs of the same name, or two processes with %s=0, use this directory",
		m->dir, m->base, m->ranks.rank_name);
	return -EIO;
}

/* Takes BASE-RANK-TOKEN.SUFFIX apart. */
static bool read_name(
	const struct meet *m, const char *name, unsigned *rank, char *token, char *suffix)
{
	size_t n = strlen(m->base);

	return strncmp(name, m->base, n) == 0 &&
	       sscanf(name + n, "-%u-%16[0-9a-f].%5[a-z]", rank, token, suffix) == 3 &&
	       *rank > 0 && *rank < m->ranks.size;
}

static void take_here(struct meet *m, unsigned rank, const char *token)
{
	json_object_set_new(m->tokens, token, json_true());
	if (!m->seen[rank]) {
		m->seen[rank] = true;
		m->seen_count++;
	}
}

static void remove_in(const struct meet *m, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", m->dir, name);
	unlink(path);
}

/* Handles a file of another rank. Returns true if it said a new token. */
static bool take_file(struct meet *m, const char *name,
	void (*ended)(void *arg, unsigned rank, const char *text), void *arg)
{
	char token[17], suffix[6], path[PATH_MAX], *text;
	bool new = false;
	unsigned rank;

	if (!read_name(m, name, &rank, token, suffix))
		return false;
	if (strcmp(suffix, "here") == 0 && m->servers) {
		take_here(m, rank, token);
		remove_in(m, name);
		new = true;
	} else if (strcmp(suffix, "end") == 0) {
		snprintf(path, sizeof(path), "%s/%s", m->dir, name);
		text = ended && json_object_get(m->tokens, token)
			       ? read_file(path, END_BYTES_MAX)
			       : NULL;
		if (text)
			ended(arg, rank, text);
		free(text);
		unlink(path);
	}
	return new;
}

int meet_serve(struct meet *m, void (*ended)(void *arg, unsigned rank, const char *text),
	void *arg, struct message *error)
{
	DIR *dir = opendir(m->dir);
	bool changed = false;
	struct dirent *e;

	if (!dir)
		return fail(error, m->dir, errno);
	while ((e = readdir(dir)))
		changed = take_file(m, e->d_name, ended, arg) || changed;
	closedir(dir);
	if (m->servers && !meet_all_here(m) && check_mine(m, error))
		return -EIO;
	return changed ? write_servers(m, error) : 0;
}

void meet_close(struct meet *m)
{
	struct message error;
	char path[PATH_MAX];

	if (m->ranks.rank) {
		own_path(m, "here", path);
		unlink(path);
	} else if (is_mine(m)) {
		path_of(m, ".servers", path);
		unlink(path);
		meet_serve(m, NULL, NULL, &error);
		unlink(path);
	}
	json_decref(m->servers);
	json_decref(m->tokens);
	free(m->seen);
	*m = (struct meet){0};
}

/* ---- the other ranks ---- */

int meet_call(struct meet *m, struct message *error)
{
	char path[PATH_MAX];
	int fd;

	own_path(m, "here", path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(error, path, errno);
	close(fd);
	return 0;
}

/* Takes the contents of BASE.servers. Returns 1, or 0 if they are not for this rank. */
static int take_servers(const struct meet *m, const json_t *servers, char *join,
	size_t bytes, struct secret *secret)
{
	const char *where = json_string_value(json_object_get(servers, "join"));
	const char *text = json_string_value(json_object_get(servers, "secret"));

	if (!where || !json_object_get(json_object_get(servers, "tokens"), m->token))
		return 0;
	snprintf(join, bytes, "%s", where);
	if (text)
		snprintf(secret->text, sizeof(secret->text), "%s", text);
	return 1;
}

int meet_find(struct meet *m, char *join, size_t bytes, struct secret *secret,
	struct message *error)
{
	char path[PATH_MAX], *text;
	/* 4,096 tokens, the addresses of 256 servers, and the secret */
	size_t max = 1u << 18;
	json_t *servers;
	int r;

	path_of(m, ".servers", path);
	text = read_file(path, max);
	/* a file that is replaced while it is read is ESTALE on NFS */
	if (!text && (errno == ENOENT || errno == ESTALE))
		return 0;
	if (!text && errno == EPERM) {
		options_refuse(error, "%.400s: must be a file of user %u with mode 0600",
			path, (unsigned)geteuid());
		return -EIO;
	}
	if (!text)
		return fail(error, path, errno);
	servers = json_loads(text, 0, NULL);
	r = take_servers(m, servers, join, bytes, secret);
	json_decref(servers);
	explicit_bzero(text, max);
	free(text);
	return r;
}

void meet_say_end(struct meet *m, const char *text)
{
	char servers[PATH_MAX], path[PATH_MAX];
	struct stat st;

	path_of(m, ".servers", servers);
	own_path(m, "end", path);
	if (access(servers, F_OK) == 0)
		write_file(m, path, text, &st);
	/* rank 0 has gone meanwhile, and nobody would remove the file */
	if (access(servers, F_OK) < 0)
		unlink(path);
}

/* ---- a port that all know ---- */

/* True if a connection to the address can be made. */
static bool answers(const struct tern_addr *addr)
{
	int fd =
		socket(addr->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	socklen_t bytes = sizeof(int);
	int error = 0;
	bool up;

	if (fd < 0)
		return false;
	up = connect(fd, (const struct sockaddr *)&addr->sa, addr->len) == 0 ||
	     (errno == EINPROGRESS && poll(&p, 1, ANSWER_MS) == 1 &&
		     getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && !error);
	close(fd);
	return up;
}

static bool one_is_listening(const char *address)
{
	struct tern_addrs addrs;

	if (tern_addr_resolve(address, false, &addrs) < 0)
		return false;
	for (unsigned i = 0; i < addrs.count; i++)
		if (answers(&addrs.addr[i]))
			return true;
	return false;
}

bool meet_is_listening(const char *join)
{
	char address[300];

	for (const char *at = join; *at;) {
		size_t n = strcspn(at, ",");

		snprintf(address, sizeof(address), "%.*s", (int)n, at);
		if (!one_is_listening(address))
			return false;
		at += n + (at[n] == ',');
	}
	return true;
}
