/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs fabric on real devices, such as those in the virtual machine of
 * tests/system/rdma, which sets in the environment:
 *
 *     TERN_RDMA_ADDRESS   address of a device, to listen at
 *     TERN_RDMA_FROM      address of a device, from which conns start
 *
 * There are four instances: with the defaults; with a receive queue for each queue pair
 * instead of a shared one; with guard=on; and with small limits (no inline data, queues
 * half as deep as the default, one READ at a time).
 */
#include "tests/harness/bed.h"

#include <stdio.h>
#include <stdlib.h>

static const char *set_options(char *out, size_t bytes, const char *more)
{
	const char *from = getenv("TERN_RDMA_FROM");

	if (!getenv("TERN_RDMA_ADDRESS") || !from)
		return "no network of RDMA devices: TERN_RDMA_ADDRESS is not set";
	/* rxe (Soft-RoCE) sends packets again that a slow emulated machine has not
	 * acknowledged in time, and sometimes the receiving rxe refuses them then (see
	 * tests/system/rdma for networks with loss). So the timeout is longer than the
	 * default. */
	snprintf(out, bytes, "from=%s,timeout=18%s", from, more);
	return NULL;
}

static void verbs_address(char *out, unsigned number)
{
	(void)number;
	snprintf(out, BED_ADDRESS_MAX, "%s:0", getenv("TERN_RDMA_ADDRESS"));
}

/* The port number is below the range from which the system assigns ports, so no process
 * listens at it. */
static void verbs_nobody(char *out)
{
	snprintf(out, BED_ADDRESS_MAX, "%s:1027", getenv("TERN_RDMA_ADDRESS"));
}

static const char *const verbs_malformed[] = {"", ":", "127.0.0.1",
	"127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:12x", "127.0.0.1: 12",
	"127.0.0.1:99999999999999999999", NULL};

#define VERBS_INSTANCE(symbol, text, more)                                               \
	static char symbol##_options[128];                                               \
	static const char *symbol##_unavailable(void)                                    \
	{                                                                                \
		return set_options(symbol##_options, sizeof(symbol##_options), more);    \
	}                                                                                \
	INSTANCE(symbol) = {                                                             \
		.name = text,                                                            \
		.fabric = "verbs",                                                       \
		.opts = {.verbs = symbol##_options},                                     \
		.unavailable = symbol##_unavailable,                                     \
		.can_sleep = true,                                                       \
		.address = verbs_address,                                                \
		.nobody = verbs_nobody,                                                  \
		.malformed = verbs_malformed,                                            \
		.elsewhere = "192.0.2.1:0",                                              \
	}

VERBS_INSTANCE(verbs, "verbs", "");
VERBS_INSTANCE(verbs_own_queue, "verbs-own-queue", ",srq=off");
VERBS_INSTANCE(verbs_guard, "verbs-guard", ",guard=on");
VERBS_INSTANCE(verbs_least, "verbs-least", ",srq=off,inline=0,depth=128,reads=1");
