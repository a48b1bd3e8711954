/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of how a tensor is shared between rails of different speeds, in virtual time: each
 * rail carries bytes at its rate, and takes in more than it has carried, like a socket. */
#include "tests/harness/cmocka.h"

#include <string.h>

#include "base/util.h"
#include "rendezvous/load.h"

#define RAILS         3u
#define PUTS          4u
#define CHUNK         (1u << 20)
#define TENSOR        (64ull << 20)
#define SOCKET_BYTES  (4ull << 20)
#define STEP_NS       10000u
#define ROUND_TRIP_NS 200000u

struct rail {
	double bytes_per_ns;
	uint64_t given;        /* bytes of all chunks so far */
	double carried;        /* of these */
	uint64_t ends[PUTS];   /* value of `given` at the end of the chunk; 0: free */
	uint64_t confirmed_ns; /* when the peer's confirmation arrives; 0: not asked */
	bool used;             /* by this tensor */
};

struct bench {
	struct tern_load loads[RAILS];
	struct rail rails[RAILS];
	uint64_t now_ns;
};

static uint32_t bits(const struct bench *b, bool with_room)
{
	uint32_t found = 0;

	for (unsigned i = 0; i < RAILS; i++) {
		bool has_room = false;

		for (unsigned k = 0; k < PUTS; k++)
			has_room |= b->rails[i].ends[k] == 0;
		if (b->rails[i].bytes_per_ns > 0 && (has_room || !with_room))
			found |= 1u << i;
	}
	return found;
}

static void give(struct bench *b, unsigned k)
{
	struct rail *r = &b->rails[k];
	unsigned i = 0;

	while (r->ends[i])
		i++;
	r->given += CHUNK;
	r->ends[i] = r->given;
	r->used = true;
	tern_load_give(&b->loads[k], CHUNK, b->now_ns);
}

static void step(struct bench *b)
{
	b->now_ns += STEP_NS;
	for (unsigned k = 0; k < RAILS; k++) {
		struct rail *r = &b->rails[k];

		r->carried += r->bytes_per_ns * STEP_NS;
		r->carried = TERN_MIN(r->carried, (double)r->given);
		for (unsigned i = 0; i < PUTS; i++)
			if (r->carried + SOCKET_BYTES >= (double)r->ends[i])
				r->ends[i] = 0;
	}
}

/* Sends a tensor. Returns how long it took, in nanoseconds. */
static uint64_t send_tensor(struct bench *b)
{
	uint64_t start_ns = b->now_ns, left = TENSOR;
	unsigned first = 0, open = 1;

	while (left) {
		unsigned k = tern_load_best(b->loads, RAILS, bits(b, false),
			bits(b, true), first, CHUNK, b->now_ns);

		if (k == RAILS) {
			step(b);
			continue;
		}
		first = k + 1;
		give(b, k);
		left -= CHUNK;
	}
	for (unsigned k = 0; k < RAILS; k++)
		b->loads[k].asked = b->loads[k].given;
	while (open) {
		step(b);
		open = 0;
		for (unsigned k = 0; k < RAILS; k++) {
			struct rail *r = &b->rails[k];

			if (r->used && !r->confirmed_ns && r->carried >= (double)r->given)
				r->confirmed_ns = b->now_ns + ROUND_TRIP_NS;
			if (r->used && r->confirmed_ns && b->now_ns >= r->confirmed_ns) {
				tern_load_carried(&b->loads[k], b->now_ns);
				r->used = false;
				r->confirmed_ns = 0;
			}
			open += r->used;
		}
	}
	return b->now_ns - start_ns;
}

/* How much longer tensors take than all rails together would need, as the mean of `count`
 * tensors. */
static double cost(struct bench *b, unsigned count)
{
	double all = 0, ideal;
	uint64_t took_ns = 0;

	for (unsigned k = 0; k < RAILS; k++)
		all += b->rails[k].bytes_per_ns;
	ideal = (double)TENSOR / all + ROUND_TRIP_NS;
	for (unsigned i = 0; i < count; i++)
		took_ns += send_tensor(b);
	return (double)took_ns / count / ideal;
}

static void check_range(double found, double least, double most)
{
	if (found < least || found > most)
		fail_msg("%.3f is not from %.3f to %.3f", found, least, most);
}

static void test_equal_rails_are_used_equally(void **state)
{
	struct bench b = {.rails = {{.bytes_per_ns = 0.05}, {.bytes_per_ns = 0.05},
				  {.bytes_per_ns = 0.05}}};

	(void)state;
	check_range(cost(&b, 1), 1, 1.1);
	check_range(cost(&b, 20), 1, 1.1);
}

static void test_a_slow_rail_holds_nobody_up(void **state)
{
	struct bench b = {
		.rails = {{.bytes_per_ns = 0.05}, {0}, {.bytes_per_ns = 0.0125}}};
	uint64_t before;

	(void)state;
	check_range(cost(&b, 1), 1.3, 2); /* its speed is not known yet */
	cost(&b, 2);
	before = b.rails[2].given;
	check_range(cost(&b, 20), 1, 1.1);
	check_range(
		(double)(b.rails[2].given - before) / (20 * (double)TENSOR), 0.15, 0.25);
	assert_int_equal(b.rails[1].given, 0);
}

static void test_a_very_slow_rail_is_looked_at_again(void **state)
{
	struct bench b = {
		.rails = {{.bytes_per_ns = 0.05}, {.bytes_per_ns = 0.0005}, {0}}};

	(void)state;
	cost(&b, 3);
	check_range(cost(&b, 20), 1, 1.6);
	b.rails[1].bytes_per_ns = 0.05; /* as fast as the other one */
	cost(&b, 60);
	check_range(cost(&b, 10), 1, 1.1);
}

static void test_a_rail_that_becomes_slow_is_given_less(void **state)
{
	struct bench b = {.rails = {{.bytes_per_ns = 0.05}, {.bytes_per_ns = 0.05}, {0}}};

	(void)state;
	cost(&b, 3);
	b.rails[0].bytes_per_ns = 0.0125;
	cost(&b, 4);
	check_range(cost(&b, 10), 1, 1.1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equal_rails_are_used_equally),
		cmocka_unit_test(test_a_slow_rail_holds_nobody_up),
		cmocka_unit_test(test_a_very_slow_rail_is_looked_at_again),
		cmocka_unit_test(test_a_rail_that_becomes_slow_is_given_less),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
