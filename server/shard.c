/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks of this server, in registered memory. In sync mode a chunk has two versions
 * of its parameters, so that one can be sent while the next is made; in async mode it has
 * one, and copies of it are sent. It also has the optimizer's state.
 *
 * Parameters that workers pull as bf16 are float32 here, too. In sync mode a chunk of them
 * changes in place, and has two versions rounded to bf16, which are sent. A worker's last
 * version is sent as float32 in any case, since results are saved from it.
 */
#include "server/membership.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ps/sum.h"
#include "server/follow.h"
#include "server/snapshots.h"

#define STORE_SLAB (64ull << 20)
#define ROOMS_SLAB (64ull << 20)

/* True if the chunk keeps versions rounded to bf16. */
static bool has_bf16(const struct chunk *c)
{
	return c->plan->pull_bf16 && c->server->job.mode == TERN_MODE_SYNC;
}

float *chunk_w(const struct chunk *c, uint64_t version)
{
	return tern_vector(&c->w[has_bf16(c) ? 0 : version & 1]);
}

/* Where the chunk's version is, rounded to bf16; NULL: nobody pulls it so. */
static uint16_t *chunk_bf16(const struct chunk *c, uint64_t version)
{
	if (!has_bf16(c) || version >= c->server->job.steps)
		return NULL;
	return tern_buf_ptr(&c->bf16[version & 1]);
}

void chunk_round(struct chunk *c, uint64_t version)
{
	uint16_t *to = chunk_bf16(c, version);

	if (to)
		tern_updater_narrow(
			c->server->opts.updater, c->kept, to, chunk_w(c, version));
}

size_t chunk_version_bytes(const struct chunk *c)
{
	return c->plan->count * (has_bf16(c) ? sizeof(uint16_t) : sizeof(float));
}

/* bf16 exists in host memory only. */
int chunk_get_version(struct chunk *c, uint64_t version, void *out)
{
	if (!has_bf16(c))
		return tern_updater_copy(
			c->server->opts.updater, c->kept, out, chunk_w(c, version));
	memcpy(out, chunk_bf16(c, version), chunk_version_bytes(c));
	return 0;
}

int chunk_set_version(struct chunk *c, uint64_t version, const void *values)
{
	if (!has_bf16(c))
		return tern_updater_copy(
			c->server->opts.updater, c->kept, chunk_w(c, version), values);
	memcpy(chunk_bf16(c, version), values, chunk_version_bytes(c));
	return 0;
}

bool chunk_pulls_bf16(const struct chunk *c, uint64_t version, uint32_t worker)
{
	return c->plan->pull_bf16 &&
	       version < tern_ps_job_steps_of(&c->server->job, worker);
}

struct tern_tensor chunk_tensor(
	const struct chunk *c, const struct tern_buf *buf, bool bf16)
{
	struct tern_tensor tensor = {.buf = *buf,
		.shape = tern_shape_1d(bf16 ? TERN_BF16 : TERN_F32, c->plan->count)};

	tensor.buf.bytes = c->plan->count * (bf16 ? sizeof(uint16_t) : sizeof(float));
	return tensor;
}

bool shard_is_on_device(const struct tern_server *s)
{
	return s->opts.memory.kind == TERN_MEM_CUDA;
}

/* Computes the initial values of the parts of tensors that lie in the chunk. */
static void fill(const struct chunk *c, float *w)
{
	const struct tern_ps_job *job = &c->server->job;
	uint64_t at = c->plan->first, end = at + c->plan->count;

	for (uint32_t i = tern_ps_job_tensor_at(job, at); at < end; i++) {
		const struct tern_param *p = &job->params[i];
		uint64_t to = TERN_MIN(p->first + p->count, end);

		tern_param_init(
			p, job->seed, at - p->first, to - at, w + (at - c->plan->first));
		at = to;
	}
}

/* Sets the chunk's initial values. The CPU computes them also for chunks in GPU
 * memory. */
static int set_initial(struct chunk *c)
{
	float *values;
	int r;

	if (!shard_is_on_device(c->server)) {
		fill(c, chunk_w(c, 0));
		chunk_round(c, 0);
		return 0;
	}
	values = calloc(c->plan->count, sizeof(*values));
	if (!values)
		return -ENOMEM;
	fill(c, values);
	r = tern_updater_copy(c->server->opts.updater, c->kept, chunk_w(c, 0), values);
	free(values);
	return r;
}

/* Largest number of gradients, or partial sums, that one update takes. */
static uint32_t inputs_of(const struct tern_server *s)
{
	return s->window < s->job.slots ? TERN_SUM_MAX : s->job.slots;
}

/* Lists the parts of the chunk that have one rule each; neighbours with the same rule are
 * one. Returns their number. segments: NULL, or with room for so many. */
static unsigned list_rules(const struct chunk *c, struct tern_updater_segment *segments)
{
	const struct tern_ps_job *job = &c->server->job;
	uint64_t at = c->plan->first, end = at + c->plan->count;
	struct tern_updater_segment last = {0};
	unsigned count = 0;

	for (uint32_t i = tern_ps_job_tensor_at(job, at); at < end; i++) {
		const struct tern_param *p = &job->params[i];
		const struct tern_optimizer *rule = tern_ps_job_rule(job, p);
		uint64_t to = TERN_MIN(p->first + p->count, end);

		if (last.optimizer != rule) {
			last = (struct tern_updater_segment){
				.optimizer = rule, .first = at - c->plan->first};
			count++;
		}
		last.count += to - at;
		if (segments)
			segments[count - 1] = last;
		at = to;
	}
	return count;
}

/* Sets opts->optimizer, or opts->segments if the chunk has several rules. */
static int find_rules(struct chunk *c, struct tern_updater_opts *opts)
{
	struct tern_updater_segment only;
	unsigned count = list_rules(c, NULL);

	if (count == 1) {
		list_rules(c, &only);
		opts->optimizer = only.optimizer;
		return 0;
	}
	c->segments = calloc(count, sizeof(*c->segments));
	if (!c->segments)
		return -ENOMEM;
	list_rules(c, c->segments);
	opts->segments = c->segments;
	opts->segment_count = count;
	return 0;
}

static int make_state(struct chunk *c)
{
	struct tern_server *s = c->server;
	struct tern_updater_opts opts = {.count = c->plan->count,
		.gradient_count = s->job.mode == TERN_MODE_SYNC ? inputs_of(s) : 1,
		.two_phase = s->job.clip_norm > 0,
		.on_device = shard_is_on_device(s),
		.bf16 = c->plan->push_bf16,
		.folds = s->job.mode == TERN_MODE_SYNC && s->window < s->job.slots};
	int r = find_rules(c, &opts);

	return r < 0 ? r : tern_updater_chunk_new(s->opts.updater, &opts, &c->kept);
}

int chunk_make_publications(struct chunk *c, uint32_t first, uint32_t end)
{
	struct publication **grown =
		realloc(c->publications, end * sizeof(*c->publications));

	if (!grown)
		return -ENOMEM;
	c->publications = grown;
	for (uint32_t i = first; i < end; i++)
		grown[i] = calloc(2, sizeof(*grown[i]));
	for (uint32_t i = first; i < end; i++)
		if (!grown[i])
			return -ENOMEM;
	return 0;
}

static int make_lists(struct chunk *c)
{
	const struct tern_ps_job *job = &c->server->job;
	int r = chunk_make_publications(c, 0, job->workers);

	if (r < 0 || job->mode == TERN_MODE_ASYNC)
		return r < 0 ? r : async_init(c);
	c->gradients = calloc(job->slots, sizeof(*c->gradients));
	c->sources = calloc(job->slots, sizeof(*c->sources));
	return c->gradients && c->sources ? 0 : -ENOMEM;
}

static void name_chunk(struct tern_server *s, struct chunk *c, uint32_t number)
{
	c->server = s;
	c->number = number;
	c->plan = &s->plan.chunks[number];
	tern_list_init(&c->node);
	tern_list_init(&c->ready);
}

/* Returns how many versions of a chunk are kept. In async mode a chunk changes in place,
 * and workers get copies of it. */
static unsigned versions_of(const struct tern_ps_job *job)
{
	return job->mode == TERN_MODE_ASYNC ? 1 : 2;
}

static int make_versions(struct chunk *c)
{
	struct tern_pool *store = c->server->store;
	unsigned count = has_bf16(c) ? 1 : versions_of(&c->server->job);
	int r = 0;

	for (unsigned i = 0; i < count && r == 0; i++) {
		r = tern_pool_get(store, c->plan->count * sizeof(float), &c->w[i]);
		if (r == 0)
			chunk_pin(c, &c->w[i]);
	}
	for (unsigned i = 0; has_bf16(c) && i < 2 && r == 0; i++)
		r = tern_pool_get(store, c->plan->count * sizeof(uint16_t), &c->bf16[i]);
	return r == -EAGAIN ? -ENOMEM : r;
}

int chunk_make(struct chunk *c)
{
	int r = make_versions(c);

	if (r == 0)
		r = make_state(c);
	if (r == 0)
		r = make_lists(c);
	if (r == 0)
		r = c->server->from_memory ? memory_set(c) : set_initial(c);
	return r;
}

static int make_store(struct tern_server *s, uint64_t bytes)
{
	struct tern_pool_opts opts = {
		.slab_bytes = TERN_MIN(bytes + bytes / 16, STORE_SLAB),
		.kind = s->opts.memory.kind,
		.cuda_device = s->opts.memory.cuda_device};

	/* More than `bytes`: the end of a slab (a memory segment of the pool) may be too
	 * small for a chunk. */
	opts.max_bytes =
		TERN_MIN(bytes + bytes / 16 + opts.slab_bytes, TERN_POOL_BYTES_MAX);
	return tern_pool_new(s->opts.domain, &opts, &s->store);
}

/* Makes the pool of sync mode's gradients; those of async mode are in the store. The
 * staging budget limits it further. */
static int make_rooms(struct tern_server *s)
{
	const struct tern_pool_opts opts = {.slab_bytes = ROOMS_SLAB,
		.max_bytes = TERN_POOL_BYTES_MAX,
		.kind = s->opts.memory.kind,
		.cuda_device = s->opts.memory.cuda_device};

	if (shard_is_on_device(s) && s->job.mode == TERN_MODE_SYNC)
		return tern_pool_new(s->opts.domain, &opts, &s->rooms);
	s->rooms = s->staging;
	return 0;
}

/* Number of copies of its share that a server keeps in its pool: versions, and in
 * async mode also a gradient and a copy for each worker. */
static uint64_t copies_of(const struct tern_ps_job *job)
{
	return versions_of(job) +
	       (job->mode == TERN_MODE_ASYNC ? 2ull * job->workers : 0);
}

/* Number of vectors of the parameters' size in memory: the copies, those that the updater
 * keeps, and those of a snapshot. */
static uint64_t vectors_of(const struct tern_server *s, const struct tern_ps_job *job)
{
	bool has_m = tern_optimizer_has_m(job->optimizer.kind);
	bool has_v = tern_optimizer_has_v(job->optimizer.kind);

	for (uint32_t i = 0; i < job->rule_count; i++) {
		has_m = has_m || tern_optimizer_has_m(job->rules[i].kind);
		has_v = has_v || tern_optimizer_has_v(job->rules[i].kind);
	}
	/* A snapshot is copied to host memory. */
	return copies_of(job) + has_m + has_v + (job->clip_norm > 0) +
	       (snapshots_are_taken(s) && !shard_is_on_device(s) ? 1ull + has_m + has_v
								 : 0);
}

/* Bytes of one copy of a share, including the pool's rounding: 64 bytes for each buffer, of
 * which two versions have three if they are sent as bf16. */
static uint64_t bytes_of(const struct tern_plan_share *share)
{
	return share->element_count * sizeof(float) + share->chunk_count * 96ull;
}

/* Checks that the server's updater can handle the types of the job's tensors. */
static int check_types(const struct tern_server *s, const struct tern_ps_job *job,
	struct tern_ps_text *why)
{
	for (uint32_t i = 0; i < job->param_count; i++) {
		const struct tern_param *p = &job->params[i];

		if (tern_updater_takes_bf16(s->opts.updater) ||
			!(p->push_bf16 || p->pull_bf16))
			continue;
		snprintf(why->text, sizeof(why->text),
			"tensor %.100s: %s: expected f32, got bf16: this server updates "
			"parameters on %.100s, and only the CPU (--server-device cpu) "
			"takes bf16",
			p->name, p->push_bf16 ? "push" : "pull", s->opts.updater->name);
		return -EINVAL;
	}
	return 0;
}

static uint64_t memory_most(const struct tern_server *s)
{
	uint64_t most = TERN_POOL_BYTES_MAX;

	return s->opts.memory_bytes ? TERN_MIN(most, s->opts.memory_bytes) : most;
}

int shard_check_followed(
	const struct tern_server *s, uint64_t more_bytes, struct tern_ps_text *why)
{
	struct tern_plan_share share = tern_plan_share(&s->plan, &s->job, s->index);
	uint64_t vectors = vectors_of(s, &s->job) + 1, most = memory_most(s);

	if (more_bytes <= most && bytes_of(&share) <= (most - more_bytes) / vectors)
		return 0;
	snprintf(why->text, sizeof(why->text),
		"no room for what following server %u takes: %llu copies of its share "
		"of %llu bytes, and %llu bytes; the process can hold %llu bytes: use "
		"more "
		"servers, or a host with more memory",
		view_own_number(s), (unsigned long long)vectors,
		(unsigned long long)(share.element_count * sizeof(float)),
		(unsigned long long)more_bytes, (unsigned long long)most);
	return -E2BIG;
}

int shard_check(const struct tern_server *s, const struct tern_ps_job *job,
	uint32_t index, struct tern_ps_text *why)
{
	uint64_t most = memory_most(s);
	struct tern_plan_share share;
	struct tern_plan plan;

	if (check_types(s, job, why) < 0)
		return -EINVAL;
	if (tern_plan_measure(&plan, job) < 0) {
		snprintf(why->text, sizeof(why->text),
			"params: %llu elements are more than a job can have",
			(unsigned long long)job->element_count);
		return -E2BIG;
	}
	share = tern_plan_share(&plan, job, index);
	if (bytes_of(&share) <= most / vectors_of(s, job))
		return 0;
	snprintf(why->text, sizeof(why->text),
		"no room for the parameters: server %u's share of them has %llu bytes, "
		"and it keeps %llu copies; it can hold %llu bytes: use more servers",
		tern_view_number(job, index),
		(unsigned long long)(share.element_count * sizeof(float)),
		(unsigned long long)vectors_of(s, job), (unsigned long long)most);
	return -E2BIG;
}

/*
 * Sets `window`, the number of slots whose gradients a chunk accepts, counted from the
 * first that is not folded yet (added into a partial sum): all slots, or, if there are
 * more, at least as many as workers, so that it has a slot of each worker (slot i belongs
 * to worker i % workers): a worker then never waits until another one has sent two
 * gradients. Then it is a multiple of TERN_SUM_MAX, because gradients are folded in
 * groups of that size.
 */
static void set_window(struct tern_server *s)
{
	s->window = (uint32_t)tern_align_up(s->job.workers, TERN_SUM_MAX);
	s->window = TERN_MIN(s->window, s->job.slots);
	s->held_most = tern_sum_held_most(s->job.slots, s->window);
}

int shard_init(struct tern_server *s)
{
	struct tern_plan_share share = tern_plan_share(&s->plan, &s->job, s->index);
	int r;

	set_window(s);
	/* The budget must suffice for one chunk, for any number of slots. */
	s->staging_bytes = TERN_MAX(TERN_MIN(s->opts.staging_bytes, STAGING_MOST),
		s->held_most * s->plan.chunk_elements * sizeof(float));
	s->staging_left = s->staging_bytes;
	s->staging_most = s->held_most * share.element_count * sizeof(float);
	s->chunks = calloc(share.chunk_count + 1u, sizeof(*s->chunks));
	if (!s->chunks)
		return -ENOMEM;
	if (share.chunk_count == 0)
		return 0; /* there are more servers than chunks */
	r = make_store(s, copies_of(&s->job) * bytes_of(&share));
	if (r == 0)
		r = make_rooms(s);
	for (uint32_t i = 0; r == 0 && i < s->plan.chunk_count; i++)
		if (s->plan.chunks[i].server == s->index)
			name_chunk(s, &s->chunks[s->chunk_count++], i);
	return r;
}

static void make(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);

	c->status = chunk_make(c);
}

static void made(struct tern_task *task)
{
	struct chunk *c = tern_container_of(task, struct chunk, task);
	struct tern_server *s = c->server;
	const char *error =
		c->kept && *c->kept->error ? c->kept->error : s->opts.updater->error;

	if (c->status < 0) {
		server_fail(s, c->status, "no room for the parameters: %s",
			*error ? error : tern_status_text(c->status));
		return;
	}
	s->made_count++;
	if (s->over)
		return;
	if (start_find_present(s))
		shard_make(s);
	else
		start_forget(s);
}

void shard_make(struct tern_server *s)
{
	if (s->made_count < s->chunk_count)
		chunk_submit(&s->chunks[s->made_count], make, made);
	else if (!resume_load(s))
		join_shard_made(s);
}

void shard_loaded(struct tern_server *s)
{
	if (start_find_present(s))
		join_shard_made(s);
	else
		start_forget(s);
}

bool shard_is_made(const struct tern_server *s)
{
	return s->made_count == s->chunk_count && !resume_is_loading(s);
}

static void fini_chunk(struct chunk *c)
{
	struct tern_server *s = c->server;

	for (uint32_t i = 0; c->gradients && i < s->job.slots; i++) {
		struct gradient *g = &c->gradients[i];

		if (g->arrived && g->req.status == 0 && g->in_place)
			tern_release(&g->req);
		tern_pool_put(s->rooms, &g->room);
	}
	async_fini(c);
	for (int i = 0; i < 2; i++) {
		tern_pool_put(s->store, &c->w[i]);
		tern_pool_put(s->store, &c->bf16[i]);
	}
	tern_updater_chunk_free(s->opts.updater, c->kept);
	skip_fini(c);
	free(c->segments);
	free(c->gradients);
	free(c->sources);
	for (uint32_t i = 0; c->publications && i < s->job.workers; i++)
		free(c->publications[i]);
	free(c->publications);
}

void shard_fini(struct tern_server *s)
{
	tern_updater_unpin(s->opts.updater);
	for (uint32_t i = 0; i < s->chunk_count; i++)
		fini_chunk(&s->chunks[i]);
	free(s->chunks);
	tern_pool_free(s->store);
	if (s->rooms != s->staging)
		tern_pool_free(s->rooms);
	s->chunks = NULL;
	s->chunk_count = s->made_count = 0;
	s->store = s->rooms = NULL;
}

/* ---- work and versions ---- */

/* Makes version `to` out of `from` with the gradients and factors of `step`. */
static void update(
	struct chunk *c, uint64_t from, uint64_t to, struct tern_updater_step *step)
{
	step->step = c->version + 1;
	step->w_in = chunk_w(c, from);
	step->w_out = chunk_w(c, to);
	step->w_bf16 = chunk_bf16(c, to);
	skip_prepare(c, step);
	c->status = tern_updater_update(c->server->opts.updater, c->kept, step);
	if (c->status == 0)
		c->made = to;
	snapshot_in_update(c);
	follow_in_update(c);
}

void chunk_apply(struct chunk *c, uint64_t from, uint64_t to, const float *const *g,
	unsigned n, float scale, float clip)
{
	struct tern_updater_step step = {
		.gradients = g, .gradient_count = n, .scale = scale, .clip = clip};

	update(c, from, to, &step);
}

void chunk_apply_mean(struct chunk *c, const float *mean, float clip)
{
	struct tern_updater_step step = {.gradients = &mean,
		.gradient_count = 1,
		.is_mean = true,
		.scale = 1.0f,
		.clip = clip};

	update(c, c->version, c->version + 1, &step);
}

bool chunk_failed(struct chunk *c)
{
	server_updater_note(c->server);
	if (c->status < 0)
		server_fail(c->server, c->status, "%s", c->kept->error);
	return c->status < 0;
}

void chunk_pin(struct chunk *c, const struct tern_buf *buf)
{
	if (buf->mem && tern_mem_kind(buf->mem) == TERN_MEM_HOST)
		tern_updater_pin(c->server->opts.updater, tern_mem_base(buf->mem),
			tern_mem_bytes(buf->mem));
}

uint64_t chunk_gradient_bytes(const struct chunk *c)
{
	return c->plan->count * (c->plan->push_bf16 ? sizeof(uint16_t) : sizeof(float));
}

bool chunk_takes(const struct chunk *c, uint32_t worker, const struct tern_req *req)
{
	enum tern_dtype dtype = c->plan->push_bf16 ? TERN_BF16 : TERN_F32;
	uint64_t bytes = chunk_gradient_bytes(c);

	if (req->status == 0 && req->bytes == bytes && req->shape.dtype == dtype)
		return true;
	server_fail(c->server, -EPROTO,
		"worker %u sent a gradient of %llu bytes, %s, for chunk %u: expected "
		"%llu bytes, %s",
		worker, (unsigned long long)req->bytes, tern_dtype_name(req->shape.dtype),
		c->number, (unsigned long long)bytes, tern_dtype_name(dtype));
	return false;
}

void chunk_submit(struct chunk *c, void (*run)(struct tern_task *),
	void (*done)(struct tern_task *))
{
	struct tern_server *s = c->server;
	int r;

	c->task.run = run;
	c->task.done = done;
	/* Virtual time in the simulator: 1 us, and 1 ns for each 4 bytes. */
	c->task.cost_ns = 1000 + c->plan->count;
	r = tern_env_submit(s->env, &c->task);
	if (r < 0)
		server_fail(s, r, "no thread for computation: %s", tern_status_text(r));
}

static void published(struct tern_req *req)
{
	struct publication *p = req->arg;
	struct chunk *c = p->chunk;
	struct server_peer *worker = c->server->workers[p->worker];

	if (req->status < 0)
		tern_talk_failed(&worker->talk, req->status);
	else
		late_slot_begins(c, worker);
	c->sends_out[p->parity]--;
	if (c->server->job.mode == TERN_MODE_SYNC && c->sends_out[p->parity] == 0)
		sync_maybe_apply(c);
}

void chunk_publish_to(struct chunk *c, uint64_t version, struct server_peer *worker)
{
	unsigned parity = version & 1;
	bool bf16 = chunk_pulls_bf16(c, version, worker->index);
	struct tern_tensor tensor = chunk_tensor(c,
		bf16          ? &c->bf16[parity]
		: has_bf16(c) ? &c->w[0]
			      : &c->w[parity],
		bf16);
	struct publication *p = &c->publications[worker->index][parity];

	if (c->server->over || worker->gone)
		return;
	p->chunk = c;
	p->worker = worker->index;
	p->parity = parity;
	p->req.done = published;
	p->req.arg = p;
	c->sends_out[parity]++;
	tern_send(
		worker->data, &p->req, c->plan->parameter_key, version, &tensor, NULL, 0);
}

void chunk_publish(struct chunk *c)
{
	struct tern_server *s = c->server;
	bool last = c->version == s->job.steps;

	if (last)
		spare_say_last(s);
	for (uint32_t i = 0; i < s->job.workers; i++)
		if (last || s->workers[i]->follows)
			chunk_publish_to(c, c->version, s->workers[i]);
}
