/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots that two workers have computed (ps/twice.h). If the two gradients differ, equal bytes
 * are lost, although both workers have described the same arithmetic. That cannot be
 * repaired: chunks of both are in the step. So the server warns of it, once, and the job goes on.
 */
#include "server/server_state.h"

#include "ps/twice.h"

/* True if digests of a second worker will be compared. Jobs without a description of the
 * arithmetic promise no equal bytes. */
static bool can_be_compared(const struct tern_server *s)
{
	return *s->job.arithmetic && s->job.workers > 1 && !s->twice_told;
}

void twice_note(struct gradient *g, const struct server_peer *from, const float *values,
	const uint8_t *marks)
{
	const struct chunk *c = g->chunk;
	const struct tern_server *s = c->server;

	/* The CPU cannot read gradients in GPU memory. */
	if (!shard_is_on_device(s) && can_be_compared(s) &&
		c - s->chunks < TERN_TWICE_MAX)
		g->seen[c->version & 1] = (struct seen){.step = c->version + 1,
			.worker = from->index,
			.digest = tern_twice_digest(
				c->plan, values, marks, marks ? skip_marks_bytes(c) : 0)};
}

static void tell(const struct server_peer *p, const struct chunk *c,
	const struct seen *seen, uint32_t slot, uint32_t count)
{
	struct tern_server *s = p->server;
	uint32_t tensor = tern_ps_job_tensor_at(&s->job, c->plan->first);

	s->twice_told = true;
	server_warn(s,
		"slot %u of step %llu was computed by worker %u and by worker %u, and "
		"their gradients differ in %u %s of this server, first in one with "
		"tensor %.100s: the result depends on which worker was lost. Their "
		"arithmetic has the same name, which does not name all that bits depend "
		"on",
		slot, (unsigned long long)seen->step - 1, seen->worker, p->index, count,
		count == 1 ? "chunk" : "chunks", s->job.params[tensor].name);
}

static bool is_list(const json_t *digests)
{
	for (size_t i = 0; i < json_array_size(digests); i++)
		if (!json_is_integer(json_array_get(digests, i)))
			return false;
	return json_is_array(digests) && json_array_size(digests) <= TERN_TWICE_MAX;
}

static void compare(const struct server_peer *p, uint32_t slot, uint64_t version,
	const json_t *digests)
{
	const struct tern_server *s = p->server;
	const struct chunk *first = NULL;
	const struct seen *first_seen = NULL;
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->chunk_count && i < json_array_size(digests); i++) {
		const struct chunk *c = &s->chunks[i];
		const struct seen *seen = &c->gradients[slot].seen[version & 1];

		if (seen->step != version + 1 || seen->worker == p->index ||
			seen->digest ==
				(uint64_t)json_integer_value(json_array_get(digests, i)))
			continue;
		if (count++ == 0) {
			first = c;
			first_seen = seen;
		}
	}
	if (count > 0)
		tell(p, first, first_seen, slot, count);
}

void twice_on_digests(struct server_peer *p, const json_t *message)
{
	struct tern_server *s = p->server;
	const json_t *digests = json_object_get(message, "digests");
	json_int_t slot = -1, version = -1;

	if (json_unpack((json_t *)(uintptr_t)message, "{s:I, s:I}", "slot", &slot,
		    "version", &version) < 0 ||
		slot < 0 || slot >= s->job.slots || version < 0 || !is_list(digests))
		server_refuse(p,
			"its message \"digests\" has slot %lld and version %lld: "
			"expected "
			"a slot from 0 to %u, a version from 0, and a list of at most %u "
			"integers",
			(long long)slot, (long long)version, s->job.slots - 1,
			TERN_TWICE_MAX);
	else if (s->running && can_be_compared(s))
		compare(p, (uint32_t)slot, (uint64_t)version, digests);
}
