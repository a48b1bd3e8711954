/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/cmocka.h"
#include "tests/plugins/nixl_pair.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/util.h"

const char *nixl_path;

void *open_plugin(void)
{
	void *plugin = NULL;
	const char *why = nixl_open(nixl_path, &plugin);

	if (why)
		fail_msg("%s", why);
	return plugin;
}

/* ---- two agents ---- */

void fill_side(struct side *s, uint64_t seed)
{
	for (unsigned k = 0; k < REGIONS; k++)
		for (unsigned n = 0; n < REGION; n += 8) {
			uint64_t word = tern_rng_at(seed, k, n, 0);

			memcpy(s->data[k] + n, &word, sizeof(word));
		}
}

void open_side(struct side *s, const char *name)
{
	s->agent = nixl_agent_new(open_plugin(), name, NULL);
	assert_non_null(s->agent);
	for (unsigned k = 0; k < REGIONS; k++) {
		s->data[k] = mmap(NULL, REGION, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		assert_true(s->data[k] != MAP_FAILED);
		assert_int_equal(
			nixl_register(s->agent, s->data[k], REGION, false, &s->own[k]),
			0);
	}
}

void close_side(struct side *s)
{
	for (unsigned k = 0; k < REGIONS; k++) {
		if (s->own[k])
			assert_int_equal(nixl_deregister(s->agent, s->own[k]), 0);
		munmap(s->data[k], REGION);
	}
	nixl_agent_free(s->agent);
}

void open_pair(struct pair *p)
{
	*p = (struct pair){0};
	open_side(&p->i, "I");
	open_side(&p->t, "T");
	assert_int_equal(nixl_load_info(p->i.agent, "T", nixl_info(p->t.agent)), 0);
	assert_int_equal(nixl_load_info(p->t.agent, "I", nixl_info(p->i.agent)), 0);
	for (unsigned k = 0; k < REGIONS; k++)
		assert_int_equal(nixl_load(p->i.agent, "T", nixl_text(p->t.own[k]),
					 (uintptr_t)p->t.data[k], REGION, &p->remote[k]),
			0);
	assert_int_equal(nixl_connect(p->i.agent, "T"), 0);
}

void close_pair(struct pair *p)
{
	for (unsigned k = 0; k < REGIONS; k++)
		assert_int_equal(nixl_unload(p->i.agent, p->remote[k]), 0);
	assert_int_equal(nixl_disconnect(p->i.agent, "T"), 0);
	close_side(&p->i);
	close_side(&p->t);
}

int end_of(struct nixl_handle *h, int status)
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;

	while (status == IN_PROGRESS) {
		assert_true(tern_clock_ns() < limit_ns);
		sched_yield();
		status = nixl_check(h);
	}
	return status;
}

int run(struct nixl_handle *h, const char *note)
{
	return end_of(h, nixl_post(h, note, note ? strlen(note) : 0));
}

struct nixl_range range_of(
	const struct pair *p, unsigned k, size_t local, size_t remote, size_t bytes)
{
	return (struct nixl_range){.local = p->i.own[k],
		.remote = p->remote[k],
		.at = p->i.data[k] + local,
		.remote_at = (uintptr_t)p->t.data[k] + remote,
		.bytes = bytes};
}

struct nixl_handle *prepare(
	struct pair *p, bool write, const struct nixl_range *ranges, size_t count)
{
	struct nixl_handle *h;

	assert_int_equal(nixl_prepare(p->i.agent, "T", write, ranges, count, &h), 0);
	return h;
}

/* ---- a target in a child ---- */

int serve(const char *mark)
{
	struct side s;
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_side(&s, "T");
	/* Registered anew, so that race detectors see that it is filled before others write. */
	assert_int_equal(nixl_deregister(s.agent, s.own[0]), 0);
	memset(s.data[0], atoi(mark), REGION);
	assert_int_equal(nixl_register(s.agent, s.data[0], REGION, false, &s.own[0]), 0);
	printf("%s\n%s\n%p\n", nixl_info(s.agent), nixl_text(s.own[0]),
		(void *)s.data[0]);
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	return 0;
}

void start_child(struct child *c, unsigned mark)
{
	int in[2], out[2];
	char number[8];
	FILE *lines;

	assert_true(pipe(in) == 0 && pipe(out) == 0);
	snprintf(number, sizeof(number), "%u", mark);
	c->pid = fork();
	if (c->pid == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		for (int fd = 3; fd < 200; fd++)
			close(fd);
		execl("/proc/self/exe", "test", nixl_path, number, NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	c->to = in[1];
	lines = fdopen(out[0], "r");
	assert_int_equal(
		fscanf(lines, "%899[^\n]\n%199[^\n]\n%zx", c->info, c->text, &c->base),
		3);
	fclose(lines);
}

void end_child(struct child *c, int by)
{
	kill(c->pid, by);
	waitpid(c->pid, NULL, 0);
	close(c->to);
}

struct nixl_region *load_child(struct side *s, const struct child *c)
{
	struct nixl_region *remote;

	assert_int_equal(nixl_load_info(s->agent, "T", c->info), 0);
	assert_int_equal(nixl_load(s->agent, "T", c->text, c->base, REGION, &remote), 0);
	return remote;
}

/* ---- notifications ---- */

uint64_t sum_of(const void *data, size_t bytes)
{
	uint64_t sum = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < bytes; i++)
		sum = (sum ^ ((const unsigned char *)data)[i]) * 0x100000001b3ull;
	return sum;
}

static void take(void *arg, const char *name, const void *data, size_t bytes)
{
	struct notes *n = arg;

	n->count++;
	snprintf(n->name, sizeof(n->name), "%s", name);
	snprintf(n->last, sizeof(n->last), "%.*s", (int)TERN_MIN(bytes, (size_t)60),
		(const char *)data);
	n->bytes = bytes;
	n->sum = sum_of(data, bytes);
}

void await_notes(struct nixl_agent *a, struct notes *n, unsigned count)
{
	uint64_t limit_ns = tern_clock_ns() + LIMIT_NS;

	while (n->count < count) {
		assert_true(tern_clock_ns() < limit_ns);
		assert_int_equal(nixl_take(a, take, n), 0);
		sched_yield();
	}
	assert_int_equal(n->count, count);
}

/* ---- stderr ---- */

void collect(struct lines *l)
{
	l->file = tmpfile();
	assert_non_null(l->file);
	fflush(stderr);
	l->former = dup(2);
	dup2(fileno(l->file), 2);
}

void collected(struct lines *l)
{
	size_t n;

	fflush(stderr);
	dup2(l->former, 2);
	close(l->former);
	rewind(l->file);
	n = fread(l->text, 1, sizeof(l->text) - 1, l->file);
	l->text[n] = '\0';
	fclose(l->file);
}

void has(const struct lines *l, const char *text)
{
	if (!strstr(l->text, text))
		fail_msg("\"%s\" is not in \"%s\"", text, l->text);
}
