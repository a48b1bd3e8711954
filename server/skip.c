/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are not pushed. A tensor that no slot of a step has pushed is skipped: its
 * parameters keep their bytes, its state does not change, and the number of its updates,
 * which Adam's bias correction depends on, stands still. The learning rate follows the
 * steps of the job. In async mode each gradient is an update, so the tensors that it lacks
 * are skipped. A tensor that only some slots of a step have pushed is updated; the others
 * have sent zeros for it.
 *
 * A worker says by marks which tensors it did not push (ps/marks.h). A gradient counts as
 * arrived when its marks are here. Marks are combined as they come, so neither their order
 * nor the number of slots matters: a tensor is skipped if all gradients of the step have
 * come with marks, and all of them mark it.
 *
 * The chunks of a tensor come to the same decision, each for itself, since a slot marks a
 * tensor in all of its chunks.
 */
#include "server/server_state.h"

#include <errno.h>
#include <string.h>

#include "ps/marks.h"
#include "server/follow.h"

/* Tensors with the same rule and the same number of updates. */
struct skip_rule {
	const struct tern_optimizer *of;
	uint64_t update; /* 0: the rule does not depend on it */
	/* The rule `of`, with the learning rate of the step in place of a schedule. */
	struct tern_optimizer now;
};

/* Made when the first gradient comes with marks. */
struct skips {
	struct tern_marks_span tensors;
	/* Gradients of this update that have come with marks; and a bit for each tensor that
	 * all of them mark. */
	uint32_t marked_count;
	uint8_t *marks;
	uint64_t *skipped; /* by tensor: number of updates that it was left out of */
	/* The segments of the present update, and the rules that they have. */
	struct tern_updater_segment *segments;
	struct skip_rule *rules;
	unsigned segment_count, rule_count;
};

static void skips_free(struct skips *k)
{
	if (!k)
		return;
	free(k->marks);
	free(k->skipped);
	free(k->segments);
	free(k->rules);
	free(k);
}

void skip_fini(struct chunk *c)
{
	skips_free(c->skips);
}

uint32_t skip_tensor_count(const struct chunk *c)
{
	return (uint32_t)tern_marks_span(&c->server->job, c->plan).count;
}

static struct skips *skips_new(const struct chunk *c)
{
	struct skips *k = calloc(1, sizeof(*k));
	uint32_t n;

	if (!k)
		return NULL;
	k->tensors = tern_marks_span(&c->server->job, c->plan);
	n = k->tensors.count;
	k->marks = calloc(tern_marks_bytes(n), 1);
	k->skipped = calloc(n, sizeof(*k->skipped));
	k->segments = calloc(n, sizeof(*k->segments));
	k->rules = calloc(n, sizeof(*k->rules));
	if (k->marks && k->skipped && k->segments && k->rules)
		return k;
	skips_free(k);
	return NULL;
}

/* Returns the chunk's skips, which are made if it has none. NULL: no memory. */
static struct skips *skips_of(struct chunk *c)
{
	if (!c->skips)
		c->skips = skips_new(c);
	return c->skips;
}

int skip_copy(const struct chunk *c, uint64_t **skipped, uint32_t *count)
{
	const struct skips *k = c->skips;

	*skipped = NULL;
	*count = k ? k->tensors.count : 0;
	if (!k)
		return 0;
	*skipped = malloc(*count * sizeof(**skipped));
	if (!*skipped)
		return -ENOMEM;
	memcpy(*skipped, k->skipped, *count * sizeof(**skipped));
	return 0;
}

int skip_set(struct chunk *c, const uint64_t *skipped)
{
	struct skips *k = skips_of(c);

	if (!k)
		return -ENOMEM;
	memcpy(k->skipped, skipped, k->tensors.count * sizeof(*skipped));
	return 0;
}

/* ---- receiving marks ---- */

struct receipt {
	struct tern_req req;
	struct chunk *chunk;
	struct server_peer *from;
	struct tern_buf room;
	void (*got)(void *arg, int status, const uint8_t *marks);
	void *arg;
};

uint64_t skip_marks_bytes(const struct chunk *c)
{
	return tern_marks_bytes(tern_marks_span(&c->server->job, c->plan).count);
}

/* True if these are marks for the chunk. Otherwise ends the job. */
static bool takes(const struct receipt *r)
{
	uint64_t bytes = skip_marks_bytes(r->chunk);

	if (r->req.status == 0 && r->req.bytes == bytes)
		return true;
	server_fail(r->chunk->server, -EPROTO,
		"worker %u sent %llu bytes of marks for chunk %u: expected %llu",
		r->from->index, (unsigned long long)r->req.bytes, r->chunk->number,
		(unsigned long long)bytes);
	return false;
}

static void received(struct tern_req *req)
{
	struct receipt *r = req->arg;
	struct tern_server *s = r->chunk->server;
	int status = req->status;

	if (!s->over && (status == 0 || status == -EMSGSIZE) && !takes(r))
		status = -EPROTO;
	if (r->got)
		r->got(r->arg, status, tern_buf_ptr(&r->room));
	else if (status < 0)
		tern_talk_failed(&r->from->talk, status);
	r->from->marks_count--;
	tern_pool_put(s->staging, &r->room);
	free(r);
}

static int post(struct receipt *r, uint64_t step)
{
	struct tern_server *s = r->chunk->server;
	int status = tern_pool_get(s->staging, skip_marks_bytes(r->chunk), &r->room);

	if (status < 0)
		return status == -EAGAIN ? -ENOMEM : status;
	r->req.done = received;
	r->req.arg = r;
	status = tern_recv(r->from->data, &r->req, r->chunk->plan->marks_key, step,
		&r->room, NULL, 0);
	if (status < 0)
		tern_pool_put(s->staging, &r->room);
	else
		r->from->marks_count++;
	return status;
}

void skip_receive(struct chunk *c, struct server_peer *from, uint64_t step,
	void (*got)(void *arg, int status, const uint8_t *marks), void *arg)
{
	struct receipt *r = from->gone ? NULL : calloc(1, sizeof(*r));
	int status = -ENOMEM;

	if (r) {
		*r = (struct receipt){.chunk = c, .from = from, .got = got, .arg = arg};
		status = post(r, step);
	}
	if (status == 0)
		return;
	free(r);
	if (from->gone)
		status = -EPIPE; /* the worker was lost since */
	else
		server_fail(c->server, status,
			"cannot receive which tensors were not pushed: %s",
			tern_status_text(status));
	if (got)
		got(arg, status, NULL);
}

/* ---- combining them ---- */

void skip_begin(struct chunk *c)
{
	if (c->skips)
		c->skips->marked_count = 0;
}

void skip_add(struct chunk *c, const uint8_t *marks)
{
	struct skips *k = skips_of(c);

	if (!k) {
		server_fail(c->server, -ENOMEM,
			"no memory to count the updates of %llu tensors",
			(unsigned long long)tern_marks_span(&c->server->job, c->plan)
				.count);
		return;
	}
	for (uint64_t i = 0; i < tern_marks_bytes(k->tensors.count); i++)
		k->marks[i] = k->marked_count ? k->marks[i] & marks[i] : marks[i];
	k->marked_count++;
}

/* ---- the segments of an update ---- */

/* The rule for tensors that have `of` and are updated for the update-th time. */
static const struct skip_rule *rule_of(
	struct skips *k, const struct tern_optimizer *of, uint64_t step, uint64_t update)
{
	struct skip_rule *r;

	/* Only the rules with beta1 depend on it. */
	if (!tern_optimizer_has(of->kind, TERN_SETTING_beta1))
		update = 0;
	for (unsigned i = k->rule_count; i-- > 0;)
		if (k->rules[i].of == of && k->rules[i].update == update)
			return &k->rules[i];
	r = &k->rules[k->rule_count++];
	*r = (struct skip_rule){.of = of, .update = update, .now = *of};
	r->now.lr = tern_schedule_lr(&of->schedule, of->lr, step);
	r->now.schedule = (struct tern_schedule){.kind = TERN_SCHEDULE_CONSTANT};
	return r;
}

static void add_segment(struct skips *k, const struct tern_updater_segment *s)
{
	struct tern_updater_segment *next = &k->segments[k->segment_count];

	if (k->segment_count > 0 && next[-1].optimizer == s->optimizer) {
		next[-1].count += s->count;
	} else {
		*next = *s;
		k->segment_count++;
	}
}

static void add_tensor(struct chunk *c, uint32_t i, bool skipped, uint64_t step)
{
	const struct tern_ps_job *job = &c->server->job;
	struct skips *k = c->skips;
	const struct tern_param *p = &job->params[k->tensors.first + i];
	uint64_t first = TERN_MAX(p->first, c->plan->first);
	uint64_t end = TERN_MIN(p->first + p->count, c->plan->first + c->plan->count);
	struct tern_updater_segment s = {
		.first = first - c->plan->first, .count = end - first};

	k->skipped[i] += skipped;
	if (!skipped) {
		const struct skip_rule *r =
			rule_of(k, tern_ps_job_rule(job, p), step, step - k->skipped[i]);

		s.update = r->update;
		s.optimizer = &r->now;
	}
	add_segment(k, &s);
}

/* True if all gradients of this update have come with marks. */
static bool are_marked(const struct skips *k, const struct tern_ps_job *job)
{
	return k->marked_count == (job->mode == TERN_MODE_SYNC ? job->slots : 1);
}

void skip_prepare(struct chunk *c, struct tern_updater_step *step)
{
	const struct tern_ps_job *job = &c->server->job;
	struct skips *k = c->skips;
	bool skips;

	if (!k)
		return;
	skips = are_marked(k, job);
	k->segment_count = k->rule_count = 0;
	for (uint32_t i = 0; i < k->tensors.count; i++)
		add_tensor(c, i, skips && tern_marks_has(k->marks, i), step->step);
	step->segments = k->segments;
	step->segment_count = k->segment_count;
}

/* ---- a follower makes the same update ---- */

void skip_describe(const struct chunk *c, struct follow_head *head, uint8_t *marks)
{
	const struct skips *k = c->skips;

	if (!k)
		return;
	head->has_skips = 1;
	head->skips = are_marked(k, &c->server->job);
	memcpy(marks, k->marks, tern_marks_bytes(k->tensors.count));
}

int skip_take_over(struct chunk *c, const struct follow_head *head, const uint8_t *marks)
{
	struct skips *k;

	if (!head->has_skips)
		return 0;
	k = skips_of(c);
	if (!k)
		return -ENOMEM;
	k->marked_count = head->skips ? c->server->job.slots : 0;
	memcpy(k->marks, marks, tern_marks_bytes(k->tensors.count));
	return 0;
}

/* ---- tensors that are never pushed ---- */

void skip_warn(struct tern_server *s)
{
	const char *first = NULL;
	uint32_t count = 0;

	for (uint32_t i = 0; i < s->chunk_count; i++) {
		const struct chunk *c = &s->chunks[i];
		const struct skips *k = c->skips;

		for (uint32_t j = 0; k && j < k->tensors.count; j++) {
			const struct tern_param *p = &s->job.params[k->tensors.first + j];

			/* A tensor counts where it begins. */
			if (k->skipped[j] < c->version || p->first < c->plan->first)
				continue;
			if (count++ == 0)
				first = p->name;
		}
	}
	if (count == 1)
		server_warn(s,
			"no slot of the job has pushed tensor %.200s: it has its initial "
			"values",
			first);
	else if (count > 1)
		server_warn(s,
			"no slot of the job has pushed %u tensors of this server, first "
			"%.200s: they have their initial values",
			count, first);
}
