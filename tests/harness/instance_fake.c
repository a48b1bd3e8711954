/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs fabric on simulated devices, of four kinds:
 *
 *     fake        like most real ones
 *     fake-own    no shared receive queues; grants less inline data than requested;
 *                 completions are delayed
 *     fake-least  the least of all: one READ in flight, one byte of inline data, short
 *                 queues; data, completions and events are delayed
 *     fake-guard  guard=on: peers get no memory keys; data, completions and events are
 *                 delayed
 *
 * Two domains in one process are two machines on one network.
 */
#include "tests/harness/bed.h"
#include "tests/fakes/verbs/fake_verbs.h"

#include <stdio.h>

static void fake_address(char *out, unsigned number)
{
	(void)number;
	snprintf(out, BED_ADDRESS_MAX, "10.7.0.2:0");
}

static void fake_nobody(char *out)
{
	snprintf(out, BED_ADDRESS_MAX, "10.7.0.2:1027");
}

static const char *const malformed[] = {
	"", ":", "127.0.0.1", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1: 12", NULL};

static const char *open_machine(const struct fake_verbs_opts *opts)
{
	fake_verbs_reset(opts);
	return NULL;
}

static const char *plain(void)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();

	return open_machine(&opts);
}

static const char *own(void)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();

	opts.max_srq = 0;
	opts.grant_less_inline = true;
	opts.max_inline = 60;
	opts.keep_stale_cqes = true;
	opts.delay_steps = 20;
	return open_machine(&opts);
}

static const char *least(void)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();

	opts.max_rd_atomic = 1;
	opts.max_inline = 1;
	opts.max_msg_bytes = 64u << 10;
	opts.stall_percent = 50;
	opts.delay_steps = 50;
	opts.cm_delay_steps = 50;
	opts.piece_bytes = 1000;
	opts.grant_more = true;
	opts.timewait_exit = true;
	return open_machine(&opts);
}

static const char *guard(void)
{
	struct fake_verbs_opts opts = fake_verbs_defaults();

	opts.delay_steps = 10;
	opts.cm_delay_steps = 30;
	opts.stall_percent = 20;
	opts.keep_stale_cqes = true;
	return open_machine(&opts);
}

/* The instance "fake" uses huge pages, and the other three below do not: the kernel takes
 * longer to collect the huge pages for a port's receive buffers than most tests run. */
#define FAKE(symbol, text, ...)                                                          \
	INSTANCE(fake_##symbol) = {                                                      \
		.name = text,                                                            \
		.fabric = "verbs",                                                       \
		.opts = {.verbs = __VA_ARGS__},                                          \
		.unavailable = symbol,                                                   \
		.can_sleep = true,                                                       \
		.alone = true,                                                           \
		.address = fake_address,                                                 \
		.nobody = fake_nobody,                                                   \
		.malformed = malformed,                                                  \
		.elsewhere = "192.0.2.1:0",                                              \
	}

FAKE(plain, "fake", "from=10.7.0.1");
FAKE(own, "fake-own", "from=10.7.0.1", .no_hugepages = true);
FAKE(least, "fake-least", "from=10.7.0.1,depth=128", .no_hugepages = true);
FAKE(guard, "fake-guard", "from=10.7.0.1,guard=on", .no_hugepages = true);

/* Set at program start, since the address of the simulated device's table of functions is
 * not a compile-time constant. */
__attribute__((constructor)) static void set_api(void)
{
	fake_plain.hooks.verbs_api = fake_verbs_api();
	fake_own.hooks.verbs_api = fake_verbs_api();
	fake_least.hooks.verbs_api = fake_verbs_api();
	fake_guard.hooks.verbs_api = fake_verbs_api();
}
