/* SPDX-License-Identifier: Apache-2.0 */
/* See verbs_bed.h: the test bed on simulated verbs devices. */
#include "tests/transport/verbs/verbs_bed.h"

#include <stdatomic.h>

static struct instance instance;
static const char *listen_at;
static _Atomic uint64_t skipped_ns;
static struct tern_env_ops env_ops;

static void address(char *out, unsigned number)
{
	(void)number;
	snprintf(out, BED_ADDRESS_MAX, "%s", listen_at);
}

static uint64_t now_ns(struct tern_env *env)
{
	(void)env;
	return tern_clock_ns() + skipped_ns;
}

void verbs_skip_ns(uint64_t ns)
{
	skipped_ns += ns;
}

/* ---- one domain for both ends, which the bed takes for a simulated world ---- */

struct shared {
	struct tern_domain *domain;
	struct log_env logs[2];
};

static void *shared_new(void)
{
	struct shared *shared = calloc(1, sizeof(*shared));

	assert_non_null(shared);
	assert_int_equal(
		tern_domain_new_hooked(&instance.opts, &instance.hooks, &shared->domain),
		0);
	log_env_init(&shared->logs[A]);
	log_env_init(&shared->logs[B]);
	return shared;
}

static void shared_free(void *arg)
{
	struct shared *shared = arg;

	tern_domain_free(shared->domain);
	free(shared);
}

static struct tern_env *shared_env(void *arg, unsigned side)
{
	return &((struct shared *)arg)->logs[side].env;
}

static struct tern_domain *shared_domain(void *arg, unsigned side)
{
	(void)side;
	return ((struct shared *)arg)->domain;
}

static void shared_step(void *arg)
{
	(void)arg;
}

static struct log_env *log_of(const struct bed *bed, unsigned side)
{
	return tern_container_of(bed->sides[side].port->env, struct log_env, env);
}

bool verbs_logged(const struct bed *bed, const char *text)
{
	return log_env_has(log_of(bed, A), text) || log_env_has(log_of(bed, B), text);
}

/* ---- the bed ---- */

struct verbs_bed_opts verbs_bed_defaults(void)
{
	return (struct verbs_bed_opts){.fake = fake_verbs_defaults()};
}

struct bed *verbs_bed_new(const struct verbs_bed_opts *given)
{
	struct verbs_bed_opts opts = given ? *given : verbs_bed_defaults();
	uint32_t bytes = opts.message_bytes ? opts.message_bytes : MESSAGE_BYTES;
	struct bed *bed;

	fake_verbs_reset(&opts.fake);
	listen_at = opts.listen ? opts.listen : "10.7.0.2:0";
	instance = (struct instance){
		.name = "verbs",
		.fabric = "verbs",
		.opts = {.verbs = opts.verbs ? opts.verbs : "from=10.7.0.1",
			/* The kernel would take long to collect huge pages. */
			.no_hugepages = true},
		.hooks = {.verbs_api = fake_verbs_api()},
		.can_sleep = true,
		.alone = true,
		.address = address,
	};
	if (opts.one_domain) {
		instance.world_new = shared_new;
		instance.world_free = shared_free;
		instance.world_env = shared_env;
		instance.world_domain = shared_domain;
		instance.world_step = shared_step;
	}
	bed = bed_new_sized(
		&instance, bytes, opts.b_message_bytes ? opts.b_message_bytes : bytes);
	env_ops = *log_of(bed, A)->env.ops;
	env_ops.now_ns = now_ns;
	env_ops.ticks = NULL;
	log_of(bed, A)->env.ops = log_of(bed, B)->env.ops = &env_ops;
	return bed;
}

void verbs_bed_free(struct bed *bed)
{
	bed_free(bed);
	fake_verbs_reset(NULL);
}

int verbs_say(struct link *link, size_t bytes)
{
	static _Thread_local _Alignas(64) uint64_t message[LONG_MESSAGE_BYTES / 8 + 1];
	int r;

	assert_true(SAY_HEAD_BYTES + bytes <= link->side->port->message_bytes);
	message[0] = link->said;
	message[1] = bytes;
	pattern_fill(message + 2, bytes, link->said, 0);
	r = link->side->fabric->ops->send(link->conn, message, SAY_HEAD_BYTES,
		(char *)message + SAY_HEAD_BYTES, bytes);
	/* The fabric has copied or sent the message, so the buffer may be overwritten. */
	memset(message, 0xa5, SAY_HEAD_BYTES + bytes);
	if (r == 0)
		link->said++;
	return r;
}

void verbs_say_surely(struct link *link, size_t bytes)
{
	int r;

	PUMP(link->side->bed, (r = verbs_say(link, bytes)) != -EAGAIN);
	assert_int_equal(r, 0);
}

void side_turns(struct side *side, unsigned count)
{
	while (count-- > 0)
		side_poll(side, 64);
}

/* ---- continuous operations ---- */

void load_init(struct load *load, struct link *link, struct link *other, uint64_t bytes)
{
	*load = (struct load){.link = link, .other = other, .message_bytes = 3000};
	load->here = side_memory(link->side, SLAB, bytes);
	load->there = side_memory(other->side, SLAB, bytes);
	load->region =
		link_expose(other, &load->there, TERN_ACCESS_READ | TERN_ACCESS_WRITE);
}

static bool push(struct load *load, struct work *works, unsigned *count, bool put)
{
	int r;

	if (*count == TERN_ARRAY_SIZE(load->puts))
		return false;
	r = put ? link_put(load->link, &works[*count], &load->here, &load->region, 0)
		: link_get(load->link, &works[*count], &load->here, &load->region, 0);
	if (r == 0)
		++*count;
	assert_true(r == 0 || r == -EAGAIN || r == -ENOTCONN);
	return r == 0;
}

bool load_push(struct load *load)
{
	bool any = false;
	int r;

	if (!load->link->conn)
		return false;
	r = link_say(load->link, load->message_bytes);
	assert_true(r == 0 || r == -EAGAIN || r == -ENOTCONN);
	any |= r == 0;
	any |= push(load, load->puts, &load->put_count, true);
	any |= push(load, load->gets, &load->get_count, false);
	return any;
}

unsigned load_ended(const struct load *load, int status)
{
	unsigned count = 0;

	for (unsigned i = 0; i < load->put_count; i++) {
		assert_int_equal(load->puts[i].done_count, 1);
		count += load->puts[i].status == status;
	}
	for (unsigned i = 0; i < load->get_count; i++) {
		assert_int_equal(load->gets[i].done_count, 1);
		count += load->gets[i].status == status;
	}
	return count;
}

/* ---- checks ---- */

void check_works(struct link *a, struct link *b)
{
	struct bed *bed = a->side->bed;

	for (int i = 0; i < 5; i++) {
		verbs_say_surely(a, 100);
		verbs_say_surely(b, 5000);
	}
	PUMP(bed, b->heard == a->said && a->heard == b->said);
	assert_int_equal(a->closed_count + b->closed_count, 0);
}

void check_ends(struct link *link, int status)
{
	PUMP(link->side->bed, link->closed_count);
	assert_int_equal(link->closed_count, 1);
	assert_int_equal(link->status, status);
}
