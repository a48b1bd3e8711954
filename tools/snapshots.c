/* SPDX-License-Identifier: Apache-2.0 */
/* See snapshots.h. */
#include "tools/snapshots.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/host_file.h"

#define EVERY_MOST 1000000000ull
/* Locked by server 0 of a job for as long as its process lives; says who that is. */
#define LOCK_FILE ".tern-lock"

int snapshots_parse_every(const char *text, void *at, struct message *why)
{
	static const struct {
		const char *unit;
		uint64_t seconds; /* 0: steps */
	} units[] = {{"", 0}, {"s", 1}, {"m", 60}, {"h", 3600}};
	struct snapshot_every *every = at;
	char *end;
	unsigned long long n = strtoull(text, &end, 10);

	*every = (struct snapshot_every){0};
	for (size_t i = 0; i < TERN_ARRAY_SIZE(units); i++) {
		if (strcmp(end, units[i].unit) != 0)
			continue;
		if (*text < '0' || *text > '9' || n < 1 ||
			n > EVERY_MOST / TERN_MAX(units[i].seconds, 1ull))
			break;
		if (units[i].seconds)
			every->ns = n * units[i].seconds * TERN_NS_PER_S;
		else
			every->steps = n;
		return 0;
	}
	return options_refuse(why,
		"a number of steps from 1 to %llu, or a time such as 30s, 10m or 2h",
		EVERY_MOST);
}

bool snapshots_has(const struct snapshots_found *found, struct tern_snapshot_id id)
{
	const struct tern_snapshot_id *ids = found->ids;
	size_t count = found->count;

	while (count) {
		size_t middle = count / 2;
		int order = tern_snapshot_compare(ids[middle], id);

		if (order == 0)
			return true;
		if (order < 0) {
			ids += middle + 1;
			count -= middle + 1;
		} else {
			count = middle;
		}
	}
	return false;
}

static void count_loose(const struct tern_file_op *op, struct snapshots_found *out)
{
	const char *names = op->data;

	for (size_t at = 0; at < op->bytes; at += strlen(names + at) + 1) {
		struct tern_snapshot_id id;
		uint32_t part;

		if (tern_snapshot_name_read(names + at, &id, &part) &&
			part != TERN_SNAPSHOT_MANIFEST && !snapshots_has(out, id))
			out->loose_parts++;
	}
}

int snapshots_list(const char *directory, struct snapshots_found *out)
{
	struct tern_file_op op = {.kind = TERN_FILE_LIST, .path = directory};
	int r;

	*out = (struct snapshots_found){0};
	host_file_run(&op);
	r = op.status;
	if (r == 0)
		r = tern_snapshot_list(op.data, op.bytes, &out->ids, &out->count);
	if (r == 0)
		count_loose(&op, out);
	free(op.data);
	return r;
}

int snapshots_newest(const char *directory, struct tern_snapshot_id *id)
{
	struct snapshots_found found;
	int r = snapshots_list(directory, &found);

	if (r == 0 && found.count == 0)
		r = -ENOENT;
	if (r == 0)
		*id = found.ids[found.count - 1];
	free(found.ids);
	return r;
}

struct look {
	char *directory;
	struct tern_snapshot_id id;
	int status;
};

static void *look(void *arg)
{
	struct look *l = arg;

	l->status = snapshots_newest(l->directory, &l->id);
	return NULL;
}

/* As snapshots_newest(). -ETIMEDOUT: the disk has not answered for a second. Then the thread and what it uses
 * are left behind, since the process ends soon. */
static int newest_in_time(const char *directory, struct tern_snapshot_id *id)
{
	struct look *l = calloc(1, sizeof(*l));
	struct timespec until;
	pthread_t thread;
	int r = -ENOMEM;

	if (l)
		l->directory = strdup(directory);
	if (l && l->directory)
		r = -pthread_create(&thread, NULL, look, l);
	if (r == 0) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		if (pthread_timedjoin_np(thread, NULL, &until) != 0) {
			pthread_detach(thread);
			return -ETIMEDOUT;
		}
		r = l->status;
		*id = l->id;
	}
	if (l)
		free(l->directory);
	free(l);
	return r;
}

void snapshots_say_resume(const char *directory, char *text, size_t bytes)
{
	struct tern_snapshot_id id;
	size_t n = strlen(text);

	if (!strstr(text, "--resume") && newest_in_time(directory, &id) == 0)
		snprintf(text + n, bytes - n, ": --resume %.200s goes on from step %llu",
			directory, (unsigned long long)id.step);
}

bool snapshots_can_resume(const struct snapshot_settings *s)
{
	struct tern_snapshot_id id;

	return s->directory && (s->resume || snapshots_newest(s->directory, &id) == 0);
}

bool snapshots_is_manifest(const char *path, struct tern_snapshot_id *id)
{
	const char *slash = strrchr(path, '/');
	uint32_t part;

	return tern_snapshot_name_read(slash ? slash + 1 : path, id, &part) &&
	       part == TERN_SNAPSHOT_MANIFEST;
}

static int check_resume(const char *path, struct message *error)
{
	struct tern_snapshot_id id;
	struct stat st;
	int r;

	if (stat(path, &st) < 0)
		return options_refuse(
			error, "--resume %.300s: %s", path, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return snapshots_is_manifest(path, &id)
			       ? 0
			       : options_refuse(error,
					 "--resume %.300s: expected a directory of "
					 "snapshots, or a manifest, step-....json",
					 path);
	r = snapshots_newest(path, &id);
	if (r == -ENOENT)
		return options_refuse(error,
			"--resume %.300s: no snapshot is there: a job that begins has "
			"--snapshots alone",
			path);
	return r == 0 ? 0
		      : options_refuse(error, "--resume %.300s: %s", path, strerror(-r));
}

/* True if both are the same directory. */
static bool are_one(const char *a, const char *b)
{
	struct stat x, y;

	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

/* The directory that --resume names, or that of the manifest that it names. NULL: no
 * memory. */
static char *resume_directory(const char *path)
{
	const char *slash = strrchr(path, '/');
	struct tern_snapshot_id id;

	if (!snapshots_is_manifest(path, &id))
		return strdup(path);
	return slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
}

/* Checks that the job goes on from the newest snapshot of its directory. Others in it would be
 * taken for the job's own later, and some would be removed. */
static int check_lineage(const struct snapshot_settings *s, struct message *error)
{
	struct tern_snapshot_id newest, wanted;
	char *from = s->resume ? resume_directory(s->resume) : NULL;
	bool same = from && are_one(from, s->directory);
	int r = snapshots_newest(s->directory, &newest);

	free(from);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return options_refuse(
			error, "--snapshots %.300s: %s", s->directory, strerror(-r));
	if (!same)
		return options_refuse(error,
			"--snapshots %.200s: an earlier job has left snapshots there, "
			"the "
			"newest %s: --resume %.200s goes on from it, or choose another "
			"directory",
			s->directory, tern_snapshot_short_name(newest).text,
			s->directory);
	if (!snapshots_is_manifest(s->resume, &wanted) ||
		tern_snapshot_compare(wanted, newest) == 0)
		return 0;
	return options_refuse(error,
		"--snapshots %.200s: there is a newer snapshot than that of --resume, "
		"%s: "
		"choose another directory",
		s->directory, tern_snapshot_short_name(newest).text);
}

static int check_directory(const struct snapshot_settings *s, struct message *error)
{
	int r;

	if (mkdir(s->directory, 0777) < 0 && errno != EEXIST)
		return options_refuse(
			error, "--snapshots %.300s: %s", s->directory, strerror(errno));
	r = host_file_probe(s->directory, 1);
	return r < 0 ? options_refuse(error, "--snapshots %.300s: %s", s->directory,
			       strerror(-r))
		     : check_lineage(s, error);
}

/* The option about when or how many snapshots are taken that was given; NULL: none. */
static const char *option_of_kind(const struct snapshot_settings *s)
{
	return s->every.steps || s->every.ns ? "--snapshot-every"
	       : s->keep                     ? "--snapshot-keep"
					     : NULL;
}

int snapshots_check(const struct snapshot_settings *s, struct message *error)
{
	const char *kind = option_of_kind(s);
	int r;

	if (kind && !snapshots_are_on(s))
		return options_refuse(error,
			"%s needs --snapshots DIR: without a directory no snapshot is "
			"taken",
			kind);
	r = s->directory ? check_directory(s, error) : 0;
	return r == 0 && s->resume ? check_resume(s->resume, error) : r;
}

/* Reads who has locked the directory, as the process has written it. */
static void read_holder(int fd, char *text, size_t bytes)
{
	ssize_t n = pread(fd, text, bytes - 1, 0);

	text[TERN_MAX(n, 0)] = '\0';
	for (char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
}

static void write_holder(int fd)
{
	char host[80] = "", text[120];
	int n;

	gethostname(host, sizeof(host) - 1);
	n = snprintf(text, sizeof(text), "process %ld on %s", (long)getpid(), host);
	/* A job that is refused names this process. If the text cannot be written, the lock holds without it. */
	if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) < 0)
		return;
}

int snapshots_lock(const char *directory, bool keep, struct message *error)
{
	char *path = tern_snapshot_path(directory, LOCK_FILE), holder[120];
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
	int r;

	if (fd < 0 && errno == EACCES) /* it is another user's, whose job has ended */
		fd = open(path, O_RDONLY | O_CLOEXEC);
	r = fd < 0 ? errno : 0;
	free(path);
	if (fd < 0)
		return options_refuse(error, "--snapshots %.300s: %s: %s", directory,
			LOCK_FILE, strerror(r));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
		read_holder(fd, holder, sizeof(holder));
		close(fd);
		return options_refuse(error,
			"--snapshots %.200s: another job that runs has this directory "
			"(server 0: %s): choose another one",
			directory, *holder ? holder : "an unknown process");
	}
	if (keep)
		write_holder(fd); /* the file stays open until the process ends */
	else
		close(fd);
	return 0;
}

int snapshots_check_via(const struct snapshot_settings *s, uint64_t index,
	const char *follow, struct message *error)
{
	const char *why = NULL, *kind = option_of_kind(s);

	if (!s->via)
		return 0;
	if (kind)
		return options_refuse(error,
			"--snapshots-via %.300s: not with %s: server 0 says when "
			"snapshots are taken, and how many are kept",
			s->via, kind);
	if (s->directory)
		why = "not with --snapshots: it is for a server that does not see the "
		      "directory";
	else if (s->resume)
		why = "not with --resume: all servers begin with the snapshot of server "
		      "0";
	else if (follow && strcmp(follow, s->via) == 0)
		why = "a follower of server 0 needs --snapshots, with the directory of "
		      "server 0";
	else if (!follow && (index == 0 || index == UINT64_MAX))
		why = "needs an --index above 0: server 0 has the directory, as "
		      "--snapshots";
	return why ? options_refuse(error, "--snapshots-via %.300s: %s", s->via, why) : 0;
}

struct tern_server_snapshot_opts snapshots_opts(const struct snapshot_settings *s)
{
	return (struct tern_server_snapshot_opts){.directory = s->directory,
		.via = s->via,
		.every_steps = s->every.steps,
		.every_ns = s->every.ns,
		.keep = (uint32_t)s->keep};
}

size_t snapshots_args(
	const struct snapshot_settings *s, const char **args, struct snapshot_args *text)
{
	size_t n = 0;

	if (s->directory) {
		args[n++] = "--snapshots";
		args[n++] = s->directory;
	}
	if (s->directory && (s->every.steps || s->every.ns)) {
		snprintf(text->every, sizeof(text->every), "%llu%s",
			(unsigned long long)(s->every.steps
						     ? s->every.steps
						     : s->every.ns / TERN_NS_PER_S),
			s->every.steps ? "" : "s");
		args[n++] = "--snapshot-every";
		args[n++] = text->every;
	}
	if (s->directory && s->keep) {
		snprintf(text->keep, sizeof(text->keep), "%llu",
			(unsigned long long)s->keep);
		args[n++] = "--snapshot-keep";
		args[n++] = text->keep;
	}
	if (s->resume) {
		args[n++] = "--resume";
		args[n++] = s->resume;
	}
	return n;
}
