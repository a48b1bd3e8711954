/* SPDX-License-Identifier: Apache-2.0 */
/* See cut.h. */
#include "server/cut.h"

#include <errno.h>
#include <string.h>

#include "server/snapshot_state.h"

static struct cut *cut_of(const struct tern_server *s)
{
	return s->snapshots ? &s->snapshots->cut : NULL;
}

static void enter(struct cut *cut, enum cut_state next)
{
	static const uint8_t edges[] = {
		[CUT_OPEN] = 1 << CUT_CLOSED,
		[CUT_CLOSED] = 1 << CUT_DRAINING | 1 << CUT_OPEN,
		[CUT_DRAINING] = 1 << CUT_OPEN,
	};

	tern_assert(edges[cut->state] >> next & 1);
	cut->state = next;
}

/* ---- the numbers ---- */

json_t *cut_list(const struct tern_server *s, const uint64_t *steps)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < s->job.workers; i++)
		json_array_append_new(list, json_integer((json_int_t)steps[i]));
	return list;
}

bool cut_read(const struct tern_server *s, const json_t *list, uint64_t *steps)
{
	if (json_array_size(list) != s->job.workers)
		return false;
	for (uint32_t i = 0; i < s->job.workers; i++) {
		const json_t *number = json_array_get(list, i);
		json_int_t n = json_integer_value(number);

		if (!json_is_integer(number) || n < 0 ||
			(uint64_t)n > tern_ps_job_steps_of(&s->job, i))
			return false;
		steps[i] = (uint64_t)n;
	}
	return true;
}

uint64_t cut_sum(const struct tern_server *s)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->job.workers; i++)
		sum += cut_of(s)->steps[i];
	return sum;
}

/* ---- closing ---- */

/* Raises the cut by what the chunks of this server have, or will have in a moment. */
static void count_own(struct tern_server *s)
{
	struct cut *cut = cut_of(s);

	for (uint32_t i = 0; i < s->chunk_count; i++)
		for (uint32_t k = 0; k < s->job.workers; k++)
			cut->steps[k] = TERN_MAX(
				cut->steps[k], async_steps_begun(&s->chunks[i], k));
}

static void close_here(struct tern_server *s, uint32_t number)
{
	struct cut *cut = cut_of(s);

	enter(cut, CUT_CLOSED);
	cut->number = number;
	memset(cut->steps, 0, s->job.workers * sizeof(*cut->steps));
	count_own(s);
}

static void one_heard(struct tern_server *s, uint32_t server)
{
	struct cut *cut = cut_of(s);

	cut->heard[server] = true;
	if (--cut->unheard == 0)
		cut_known(s);
}

void cut_begin(struct tern_server *s, uint32_t number)
{
	struct cut *cut = cut_of(s);

	memset(cut->heard, 0, s->job.server_count * sizeof(*cut->heard));
	cut->unheard = s->job.server_count;
	close_here(s, number);
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (others_find(s, i))
			tern_talk_say(&others_find(s, i)->talk,
				json_pack("{s:s, s:I}", "type", "cut", "number",
					(json_int_t)number));
	for (uint32_t i = 1; i < s->job.server_count; i++)
		if (!others_find(s, i))
			snapshots_on_lost(s, i);
	one_heard(s, 0);
}

void cut_on_lost(struct tern_server *s, uint32_t server)
{
	struct cut *cut = cut_of(s);

	if (cut->state == CUT_CLOSED && !cut->heard[server])
		one_heard(s, server);
}

/* Another server: server 0 begins a snapshot. */
void cut_on_cut(struct server_peer *zero, const json_t *message)
{
	struct tern_server *s = zero->server;
	const json_t *number = json_object_get(message, "number");
	json_int_t n = json_integer_value(number);

	if (!json_is_integer(number) || n < 0 || n > UINT32_MAX) {
		server_fail(s, -EPROTO,
			"server 0 began a snapshot of number %lld: expected a number of "
			"32 bits",
			(long long)n);
		return;
	}
	if (!s->running || !s->snapshots || s->snapshots->taking ||
		cut_of(s)->state != CUT_OPEN) {
		server_fail(s, -EPROTO, "server 0 began a snapshot %s",
			!s->running     ? "before the steps"
			: !s->snapshots ? "and takes none"
					: "before the last ended");
		return;
	}
	close_here(s, (uint32_t)n);
	tern_talk_say(&zero->talk, json_pack("{s:s, s:I, s:o}", "type", "cut", "number",
					   n, "steps", cut_list(s, cut_of(s)->steps)));
}

/* Server 0: another server has told its steps. */
void cut_on_steps(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	struct cut *cut = cut_of(s);
	uint64_t *steps = calloc(s->job.workers, sizeof(*steps));

	if (!steps) {
		server_fail(s, -ENOMEM, "no memory to read which steps were applied");
		return;
	}
	if (!cut || cut->state != CUT_CLOSED || cut->heard[p->index] ||
		json_integer_value(json_object_get(message, "number")) != cut->number ||
		!cut_read(s, json_object_get(message, "steps"), steps)) {
		server_refuse(p,
			"its message \"cut\" was not asked for, or has no list of the "
			"steps of %u workers",
			s->job.workers);
	} else {
		for (uint32_t k = 0; k < s->job.workers; k++)
			cut->steps[k] = TERN_MAX(cut->steps[k], steps[k]);
		one_heard(s, p->index);
	}
	free(steps);
}

/* ---- draining ---- */

bool cut_defers(const struct chunk *c, uint32_t worker, uint64_t step)
{
	const struct cut *cut = cut_of(c->server);

	if (!cut || cut->state == CUT_OPEN)
		return false;
	return cut->state == CUT_CLOSED ||
	       (c->copy && !c->copy->begun && step >= cut->steps[worker]);
}

/* True if the chunk has all steps before the cut, but for those of lost workers. */
static bool has_all(const struct chunk *c)
{
	const struct tern_server *s = c->server;

	for (uint32_t k = 0; k < s->job.workers; k++)
		if (async_steps_begun(c, k) < cut_of(s)->steps[k] &&
			lease_is_live(s->workers[k]))
			return false;
	return true;
}

void cut_maybe_copy(struct chunk *c)
{
	const struct tern_server *s = c->server;
	struct cut *cut = cut_of(s);

	if (!cut || cut->state != CUT_DRAINING || !c->copy || c->copy->begun || s->over ||
		!has_all(c))
		return;
	for (uint32_t k = 0; k < s->job.workers; k++) {
		c->copy->applied[k] = async_steps_begun(c, k);
		cut->least[k] = TERN_MIN(cut->least[k], c->copy->applied[k]);
	}
	snapshot_copy_between(c);
}

void cut_drain(struct tern_server *s)
{
	struct cut *cut = cut_of(s);

	enter(cut, CUT_DRAINING);
	memcpy(cut->least, cut->steps, s->job.workers * sizeof(*cut->least));
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++)
		async_go_on(&s->chunks[i]);
}

void cut_open(struct tern_server *s)
{
	struct cut *cut = cut_of(s);

	if (cut->state == CUT_OPEN)
		return;
	enter(cut, CUT_OPEN);
	for (uint32_t i = 0; i < s->chunk_count && !s->over; i++)
		async_go_on(&s->chunks[i]);
}

/* ---- birth and death ---- */

int cut_init(struct tern_server *s)
{
	struct cut *cut = cut_of(s);

	if (s->job.mode != TERN_MODE_ASYNC)
		return 0;
	cut->steps = calloc(s->job.workers, sizeof(*cut->steps));
	cut->least = calloc(s->job.workers, sizeof(*cut->least));
	cut->heard = calloc(s->job.server_count, sizeof(*cut->heard));
	return cut->steps && cut->least && cut->heard ? 0 : -ENOMEM;
}

void cut_fini(struct cut *cut)
{
	free(cut->steps);
	free(cut->least);
	free(cut->heard);
}
