/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that are left out (opts.omits, tern server --on-nan skip): those whose loss is NaN or infinite. Their
 * workers send zeros in place of the gradient, and say so (client/omit.c, ps/marks.h). The mean of
 * a step is then that over the other slots: the sum, in the tree over all slots as ever, is divided
 * by their number. Since everything that a slot computes follows from the job, so does which slots
 * are left out, and the bytes of the result do not depend on who was lost meanwhile.
 *
 * A step without any other slot ends the job: the training has diverged, and no step would follow.
 *
 * Server 0 records the slots, for people: nothing that is computed depends on the list.
 */
#include "server/server_state.h"

#include <errno.h>

#include "ps/marks.h"

bool omit_take(struct gradient *g, const struct server_peer *from)
{
	const struct chunk *c = g->chunk;
	struct tern_server *s = c->server;

	g->omitted = tern_marks_omitted(&g->req.shape);
	if (!g->omitted || s->opts.omits)
		return true;
	server_fail(s, -EPROTO,
		"worker %u leaves slot %u of step %llu out, and this server was started "
		"without --on-nan skip",
		from->index, (uint32_t)(g - c->gradients),
		(unsigned long long)c->version + 1);
	return false;
}

/* Records a slot, unless it was left out before the job went back. False: the job ends. */
static bool record(struct tern_server *s, struct tern_omitted_slot slot)
{
	struct tern_omitted *list = &s->history->omitted;
	int r = tern_omitted_add(list, slot);

	if (r > 0 && s->opts.omitted)
		s->opts.omitted(s->opts.arg, slot.step, slot.slot);
	if (r == -E2BIG)
		server_fail(s, -ERANGE,
			"slot %u of step %llu: the loss is no longer a number, and %u "
			"slots were left out already (--on-nan skip): too many for a "
			"failure of single slots",
			slot.slot, (unsigned long long)slot.step, list->count);
	else if (r < 0)
		server_fail(s, r, "no memory to record a slot that is left out");
	return r >= 0;
}

/* Each server sees the slots that are left out on each of its chunks: the first chunk of server 0
 * stands for all. */
static bool records(const struct chunk *c)
{
	return c->server->index == 0 && c == c->server->chunks;
}

bool omit_count(struct chunk *c)
{
	struct tern_server *s = c->server;

	c->omitted_count = 0;
	for (uint32_t i = 0; s->opts.omits && i < s->job.slots; i++) {
		if (!c->gradients[i].omitted)
			continue;
		c->omitted_count++;
		if (records(c) &&
			!record(s, (struct tern_omitted_slot){c->version + 1, i}))
			return false;
	}
	if (c->omitted_count < s->job.slots)
		return true;
	server_fail(s, -ERANGE,
		"step %llu: the loss of each of its %u slots is no longer a number: a "
		"lower "
		"learning rate may help",
		(unsigned long long)c->version + 1, s->job.slots);
	return false;
}

void omit_know(struct tern_server *s, const struct tern_omitted *list)
{
	for (uint32_t i = 0; s->index == 0 && i < list->count; i++)
		if (!record(s, list->slots[i]))
			return;
}
