/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of windows (meet_windows.c, meet_notes.c) share: a window at end B that
 * end A has opened. */
#ifndef TERN_TESTS_RENDEZVOUS_MEET_WINDOW_H
#define TERN_TESTS_RENDEZVOUS_MEET_WINDOW_H

#include "tests/rendezvous/meet.h"

struct pane {
	struct meet *meet;
	/* Memory of A and of B: in a GPU, where the instance says so. */
	struct memory_box boxes[2];
	struct tern_buf room; /* at B, the memory of the window */
	struct tern_window *window;
	struct tern_window_desc desc;
	struct tern_remote *remote; /* at A */
};

static inline void pane_init_box(struct pane *pane, unsigned side)
{
	struct end *end = &pane->meet->ends[side];

	box_init(&pane->boxes[side], end->domain);
	pane->boxes[side].gpu = end->box.gpu;
}

static inline struct tern_buf pane_memory(
	struct pane *pane, enum side_name side, enum memory kind, uint64_t bytes)
{
	return box_take(&pane->boxes[side], kind, bytes);
}

static inline void pane_open(struct pane *pane, enum memory kind, uint64_t bytes)
{
	pane->room = pane_memory(pane, B, kind, bytes);
	buf_fill(&pane->room, 1000);
	assert_int_equal(tern_window_new(pane->meet->ends[B].ctx, &pane->room,
				 TERN_WINDOW_READ | TERN_WINDOW_WRITE, &pane->window),
		0);
	tern_window_describe(pane->window, &pane->desc);
	assert_int_equal(
		tern_remote_open(pane->meet->ends[A].peer, &pane->desc, &pane->remote),
		0);
}

static inline void pane_init(struct pane *pane, const struct instance *instance,
	const struct tern_context_opts *opts, enum memory kind, uint64_t bytes)
{
	memset(pane, 0, sizeof(*pane));
	pane->meet = meet_new_with(instance, opts, opts);
	for (unsigned i = 0; i < 2; i++)
		pane_init_box(pane, i);
	pane_open(pane, kind, bytes);
}

/* As pane_init(), with host memory at both ends in any case: for tests of what the fabric
 * itself does with windows. */
static inline void pane_init_host(struct pane *pane, const struct instance *instance,
	const struct tern_context_opts *opts, enum memory kind, uint64_t bytes)
{
	memset(pane, 0, sizeof(*pane));
	pane->meet = meet_new_with(instance, opts, opts);
	for (unsigned i = 0; i < 2; i++)
		box_init(&pane->boxes[i], pane->meet->ends[i].domain);
	pane_open(pane, kind, bytes);
}

static inline void pane_fini(struct pane *pane)
{
	struct meet *meet = pane->meet;

	/* The windows of a context end with it, and use the memory until then. */
	for (unsigned i = 0; i < 2; i++) {
		struct end *end = &meet->ends[i];

		if (i == B && end->ctx)
			tern_listener_free(meet->listener);
		if (end->peer)
			tern_peer_free(end->peer);
		end->peer = NULL;
		end->working = true;
		tern_context_free(end->ctx);
		end->working = false;
		end->ctx = NULL;
	}
	for (unsigned i = 0; i < 2; i++)
		box_free(&pane->boxes[i]);
	meet_free(meet);
}

static inline int call_put(struct call *call, struct pane *pane,
	const struct tern_buf *from, uint64_t offset, const struct tern_note *note)
{
	call_init(call, &pane->meet->ends[A]);
	return call_started(call, tern_put(pane->remote, &call->req, from, offset, note));
}

static inline int call_get(
	struct call *call, struct pane *pane, const struct tern_buf *to, uint64_t offset)
{
	call_init(call, &pane->meet->ends[A]);
	return call_started(call, tern_get(pane->remote, &call->req, to, offset));
}

static inline int call_close(struct call *call, struct pane *pane, uint64_t timeout_ns)
{
	call_init(call, &pane->meet->ends[B]);
	return call_started(
		call, tern_window_close(pane->window, &call->req, timeout_ns));
}

#endif
