/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance list of the rendezvous: checks what include/tern/channel.h promises,
 * with two real contexts, on each fabric and set of options that
 * tests/harness/meson.build names.
 */
#include "tests/rendezvous/meet.h"

#include <string.h>

#include "base/util.h"

/* True if the sender copies a GPU tensor to host memory from which the peer reads. False
 * in a simulated world, whose domains do not take the instance's options. */
static bool lays_out(const struct instance *instance)
{
	return strcmp(instance->fabric, "shm") == 0 && (instance->gpus & 1 << A) &&
	       !instance->ipc && !instance->world_new;
}

static const char *missing(const struct instance *instance, unsigned needs)
{
	if ((needs & NEEDS_TCP) && !instance->sockets)
		return "the connections are not TCP sockets";
	if ((needs & NEEDS_SLEEP) && !instance->can_sleep)
		return "nothing to sleep on";
	if (((needs & NEEDS_EAGER) && (instance->gpus & 1 << A)) ||
		((needs & NEEDS_EAGER_B) && (instance->gpus & 1 << B)))
		return "tensors of a GPU do not leave at once";
	if ((needs & NEEDS_BOUNCE) && !lays_out(instance))
		return "no tensors of a GPU are laid out for the peer";
	if ((needs & NEEDS_PROCESS) && (instance->alone || instance->world_new))
		return "no second process";
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct conformance_test *const lists[] = {meet_paths, meet_pairing,
		meet_order, meet_cancel, meet_ends, meet_strangers, meet_flow, meet_death,
		meet_age, meet_any, meet_links, meet_windows, meet_notes,
		meet_window_strangers, meet_window_turns};

	return conformance_main(argc, argv, lists, TERN_ARRAY_SIZE(lists), missing);
}
