/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/load.h"

#include <stdbool.h>

#include "base/clock.h"
#include "base/util.h"

/* Bytes that a connection must have carried for the time to say how fast it is. Fewer may
 * take as long as a message there and back, and only say that it is no slower. */
#define SAMPLE_BYTES (4u << 20)

/* A connection that carries nothing for so long is expected to be twice as fast as it was, so
 * that it is tried again. */
#define FORGET_NS (10 * TERN_NS_PER_S)

void tern_load_give(struct tern_load *load, uint64_t bytes, uint64_t now_ns)
{
	if (load->given == 0)
		load->since_ns = now_ns;
	load->given += bytes;
	load->free_ns = TERN_MAX(load->free_ns, now_ns) +
			(uint64_t)((double)bytes * load->ns_per_byte);
}

void tern_load_carried(struct tern_load *load, uint64_t now_ns)
{
	double known = load->ns_per_byte;

	if (load->given) {
		double found = (double)(now_ns - load->since_ns) / (double)load->given;

		if (load->given >= SAMPLE_BYTES)
			load->ns_per_byte = known > 0 ? (known + found) / 2 : found;
		else
			load->ns_per_byte = TERN_MIN(known, found);
	}
	load->given = load->asked = 0;
	load->free_ns = now_ns;
}

static double expected_ns_per_byte(const struct tern_load *load, uint64_t now_ns)
{
	uint64_t halvings = load->given ? 0 : (now_ns - load->free_ns) / FORGET_NS;

	return load->ns_per_byte / (double)(1ull << TERN_MIN(halvings, 60u));
}

unsigned tern_load_best(const struct tern_load *loads, unsigned count, uint32_t up,
	uint32_t room, unsigned first, uint64_t bytes, uint64_t now_ns)
{
	unsigned best = count;
	uint64_t best_ns = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned k = (first + i) % count;
		const struct tern_load *load = &loads[k];
		bool has_room = room >> k & 1;
		uint64_t ns =
			TERN_MAX(load->free_ns, now_ns) +
			(uint64_t)((double)bytes * expected_ns_per_byte(load, now_ns));

		/* A connection that is full and late is slower than was measured, so nobody
		 * knows how long it takes. */
		if (!(up >> k & 1) || (!has_room && load->free_ns <= now_ns))
			continue;
		if (best == count || ns < best_ns ||
			(ns == best_ns && has_room && !(room >> best & 1))) {
			best = k;
			best_ns = ns;
		}
	}
	return best < count && room >> best & 1 ? best : count;
}
