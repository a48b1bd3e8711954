/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory, and memory of other agents: core.h. */
#include "plugins/nixl/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_WORD "tern1"

/* ---- of this agent ---- */

/* "tern1", the address and the bytes of the descriptor, in hexadecimal. */
static void write_text(struct memory *m)
{
	struct tern_window_desc desc;
	const unsigned char *bytes = (const unsigned char *)&desc;
	int n = sprintf(m->text, TEXT_WORD " %016" PRIxPTR " ", m->base);

	tern_window_describe(m->window, &desc);
	for (size_t i = 0; i < sizeof(desc); i++)
		n += sprintf(m->text + n, "%02x", bytes[i]);
}

int memory_register(
	struct engine *e, bool gpu, uintptr_t base, size_t bytes, struct memory **out)
{
	struct tern_context *ctx = tern_shared_context(e->shared);
	struct tern_domain *domain = tern_context_domain(ctx);
	struct memory *m = calloc(1, sizeof(*m));
	int r;

	*out = NULL;
	if (!m || !engine_lock(e)) {
		free(m);
		return RESULT_BACKEND;
	}
	m->base = base;
	m->bytes = bytes;
	r = gpu ? tern_mem_wrap_cuda(domain, base, bytes, &m->mem)
		: tern_mem_wrap(domain, (void *)base, bytes, &m->mem);
	if (r == 0)
		r = tern_window_new(ctx,
			&(struct tern_buf){.mem = m->mem, .bytes = bytes},
			TERN_WINDOW_READ | TERN_WINDOW_WRITE, &m->window);
	if (r == 0)
		write_text(m);
	else
		tern_mem_put(m->mem);
	tern_shared_unlock(e->shared);
	if (r == 0) {
		*out = m;
		return RESULT_OK;
	}
	free(m);
	nixl_warn("agent %s: cannot register %zu bytes at %#" PRIxPTR "%s: %s", e->name,
		bytes, base, gpu ? " of a GPU" : "", tern_status_text(r));
	return r == -EINVAL || r == -EFAULT || r == -ENODEV || r == -ENOSYS
		       ? RESULT_INVALID
		       : RESULT_BACKEND;
}

int memory_deregister(struct engine *e, struct memory *m)
{
	int r;

	requests_leave(e, m->mem);
	if (!engine_lock(e))
		return RESULT_BACKEND;
	r = tern_window_close(m->window, &m->closed, 0);
	tern_shared_unlock(e->shared);
	if (r == 0)
		r = tern_shared_wait(e->shared, &m->closed, TERN_NEVER);
	if (r < 0) { /* the engine may still use the memory */
		nixl_warn("agent %s: cannot deregister %zu bytes at %#" PRIxPTR ": %s",
			e->name, m->bytes, m->base, tern_status_text(r));
		return RESULT_BACKEND;
	}
	tern_shared_lock(e->shared);
	tern_mem_put(m->mem);
	tern_shared_unlock(e->shared);
	free(m);
	return RESULT_OK;
}

const char *memory_text(const struct memory *m)
{
	return m->text;
}

/* ---- of other agents ---- */

static bool read_text(const char *text, uintptr_t *base, struct tern_window_desc *desc)
{
	unsigned char *bytes = (unsigned char *)desc;
	unsigned value;
	int n = 0;

	if (sscanf(text, TEXT_WORD " %16" SCNxPTR " %n", base, &n) != 1 || n == 0 ||
		strspn(text + n, "0123456789abcdef") != 2 * sizeof(*desc) ||
		text[n + 2 * sizeof(*desc)] != '\0')
		return false;
	for (size_t i = 0; i < sizeof(*desc); i++) {
		sscanf(text + n + 2 * i, "%2x", &value);
		bytes[i] = (unsigned char)value;
	}
	return true;
}

void target_put(struct target *t)
{
	if (--t->users > 0)
		return;
	if (t->agent->peer && t->remote)
		tern_remote_close(t->remote);
	agent_put(t->agent);
	free(t);
}

int target_open(struct target *t)
{
	struct agent *a = t->agent;
	int r = agent_dial(a);

	if (r != RESULT_OK || t->remote)
		return r;
	r = tern_remote_open(a->peer, &t->desc, &t->remote);
	return r == 0 ? RESULT_OK : agent_result(a, "cannot open memory of", r);
}

static int load(struct engine *e, const char *name, struct target *t)
{
	struct agent *a = agent_find(e, name);
	int r;

	if (!a) {
		nixl_warn("agent %s: agent %s is unknown: load its metadata first",
			e->name, name);
		return RESULT_NOT_FOUND;
	}
	if (a->incarnation != t->desc.incarnation) {
		nixl_warn("agent %s: the memory is of another process than the "
			  "connection information of agent %s, which was restarted: "
			  "load its metadata again",
			e->name, name);
		return RESULT_MISMATCH;
	}
	t->agent = a;
	r = target_open(t);
	if (r == RESULT_OK)
		a->users++;
	return r;
}

int target_load(
	struct engine *e, const char *agent, const char *text, struct target **out)
{
	struct target *t = calloc(1, sizeof(*t));
	int r;

	*out = NULL;
	if (!t)
		return RESULT_BACKEND;
	t->users = 1;
	if (!read_text(text, &t->base, &t->desc)) {
		nixl_warn("agent %s: the metadata of memory of agent %s is not of this "
			  "version of Tern: %.80s",
			e->name, agent, text);
		free(t);
		return RESULT_MISMATCH;
	}
	if (!engine_lock(e)) {
		free(t);
		return RESULT_BACKEND;
	}
	r = load(e, agent, t);
	tern_shared_unlock(e->shared);
	if (r == RESULT_OK)
		*out = t;
	else
		free(t);
	return r;
}

int target_unload(struct engine *e, struct target *t)
{
	if (!engine_lock(e))
		return RESULT_BACKEND;
	target_put(t);
	tern_shared_unlock(e->shared);
	return RESULT_OK;
}
