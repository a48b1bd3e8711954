/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults that tests inject. Invariant: without an injected fault, the simulated provider
 * fails only because of a mistake of its user, a limit in the options, or one of the
 * addresses that fake_verbs.h makes unreachable.
 */
#include "tests/fakes/verbs/verbs_world.h"

/* Functions whose calls are counted. Frequent ones come first, since names are searched
 * in order. */
static const char *const functions[] = {"poll_cq", "post_send", "post_recv",
	"post_srq_recv", "prepare_fork", "get_cm_event", "get_cq_event", "ack_cq_events",
	"get_async_event", "req_notify_cq", "create_event_channel",
	"destroy_event_channel", "ack_cm_event", "create_id", "destroy_id", "set_option",
	"bind_addr", "listen", "resolve_addr", "resolve_route", "create_qp", "destroy_qp",
	"connect", "accept", "reject", "disconnect", "notify", "get_devices",
	"query_device", "query_port", "query_gid", "query_gid_type", "alloc_pd",
	"dealloc_pd", "reg_mr", "reg_dmabuf_mr", "has_peermem", "dereg_mr",
	"create_comp_channel", "destroy_comp_channel", "create_cq", "resize_cq",
	"destroy_cq", "create_srq", "destroy_srq", "modify_qp", "ack_async_event"};

#define FAULTS_MAX  16
#define EVENT_TYPES (RDMA_CM_EVENT_TIMEWAIT_EXIT + 1)

struct fault {
	unsigned function;
	unsigned at_call; /* number of the call that fails; 0: the entry is free */
	int err;
};

static struct {
	unsigned call_count[TERN_ARRAY_SIZE(functions)];
	struct fault faults[FAULTS_MAX];
	bool cut[FAKE_VERBS_MAX_DEVICES][FAKE_VERBS_MAX_DEVICES];
	bool port_down[FAKE_VERBS_MAX_DEVICES];
	bool wire_held;
	bool completions_held[2]; /* indexed by enum fake_verbs_side */
	/* Indexed by event type and enum fake_verbs_end. */
	bool event_held[EVENT_TYPES][2];
	unsigned event_lost_count[EVENT_TYPES][2];
	uintptr_t refused;
	size_t refused_bytes;
	int refused_err;
	/* Errno of fake_verbs_refuse_at(), indexed by device. */
	int refused_at[FAKE_VERBS_MAX_DEVICES];
} state;

void fake_faults_reset(void)
{
	memset(&state, 0, sizeof(state));
}

static unsigned function_index(const char *name)
{
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(functions); i++) {
		if (strcmp(functions[i], name) == 0)
			return i;
	}
	tern_never("fake verbs: no such function");
}

int fake_fault(const char *name)
{
	unsigned i = function_index(name);

	state.call_count[i]++;
	for (unsigned f = 0; f < FAULTS_MAX; f++) {
		struct fault *fault = &state.faults[f];

		if (fault->function == i && fault->at_call == state.call_count[i]) {
			fault->at_call = 0;
			return fault->err;
		}
	}
	return 0;
}

void fake_verbs_refuse(const void *base, size_t bytes, int err)
{
	FAKE_LOCK();
	state.refused = (uintptr_t)base;
	state.refused_bytes = bytes;
	state.refused_err = err;
}

void fake_verbs_refuse_at(unsigned device, int err)
{
	FAKE_LOCK();
	tern_assert(device < fake.device_count);
	state.refused_at[device] = err;
}

int fake_refusal(
	const struct fake_device *device, uintptr_t base, size_t bytes, int access)
{
	bool apart = base >= state.refused + state.refused_bytes ||
		     state.refused >= base + bytes;

	if (state.refused_at[device->index])
		return -state.refused_at[device->index];
	return apart || !(access & IBV_ACCESS_LOCAL_WRITE) ? 0 : -state.refused_err;
}

unsigned fake_verbs_calls(const char *function)
{
	FAKE_LOCK();
	return state.call_count[function_index(function)];
}

void fake_verbs_fail(const char *function, unsigned nth, int err)
{
	FAKE_LOCK();
	unsigned i = function_index(function);
	tern_assert(nth > 0 && err > 0);
	for (unsigned f = 0; f < FAULTS_MAX; f++) {
		if (state.faults[f].at_call == 0) {
			state.faults[f] = (struct fault){.function = i,
				.at_call = state.call_count[i] + nth,
				.err = err};
			return;
		}
	}
	tern_never("fake verbs: too many faults at a time");
}

bool fake_wire_is_cut(const struct fake_device *a, const struct fake_device *b)
{
	return a->removed || b->removed || state.port_down[a->index] ||
	       state.port_down[b->index] || state.cut[a->index][b->index];
}

bool fake_port_is_down(const struct fake_device *device)
{
	return device->removed || state.port_down[device->index];
}

bool fake_wire_is_held(void)
{
	return state.wire_held;
}

bool fake_completions_held(enum fake_side side)
{
	return state.completions_held[side];
}

/* Returns the type of the event as the user will see it, and sets *end to the kind of its
 * id: indices of the tables of faults. */
static unsigned event_type(const struct fake_event *event, unsigned *end)
{
	*end = FAKE_ID(event->base.id)->passive ? FAKE_VERBS_PASSIVE : FAKE_VERBS_ACTIVE;
	return event->base.event == RDMA_CM_EVENT_CONNECT_RESPONSE
		       ? RDMA_CM_EVENT_ESTABLISHED
		       : event->base.event;
}

bool fake_event_held(const struct fake_event *event)
{
	unsigned end, type = event_type(event, &end);

	return state.event_held[type][end];
}

bool fake_event_lost(struct fake_event *event)
{
	unsigned end, type = event_type(event, &end);

	if (state.event_lost_count[type][end] == 0)
		return false;
	state.event_lost_count[type][end]--;
	if (type == RDMA_CM_EVENT_ESTABLISHED && end == FAKE_VERBS_PASSIVE)
		FAKE_ID(event->base.id)->established_lost = true;
	return true;
}

static struct fake_qp *find_qp(uint32_t qp_num)
{
	tern_list_for_each (n, &fake.qps) {
		struct fake_qp *qp = tern_list_entry(n, struct fake_qp, node);

		if (qp->base.qp_num == qp_num)
			return qp;
	}
	return NULL;
}

unsigned fake_verbs_qps(struct fake_verbs_qp *out, unsigned max)
{
	unsigned count = 0;

	FAKE_LOCK();
	tern_list_for_each (n, &fake.qps) {
		const struct fake_qp *qp = tern_list_entry(n, struct fake_qp, node);

		if (count++ >= max)
			continue;
		out[count - 1] = (struct fake_verbs_qp){.qp_num = qp->base.qp_num,
			.peer_qp_num = qp->peer ? qp->peer->base.qp_num : 0,
			.device = FAKE_DEVICE(qp->base.context)->index,
			.passive = qp->id->passive,
			.state = qp->base.state,
			.send_count = (unsigned)(qp->sq_tail - qp->sq_next),
			.recv_count = qp->rq->posted_count};
	}
	return count;
}

void fake_verbs_qp_fatal(uint32_t qp_num)
{
	FAKE_LOCK();
	struct fake_qp *qp = find_qp(qp_num);
	if (!qp)
		return;
	fake_async_raise(FAKE_DEVICE(qp->base.context), IBV_EVENT_QP_FATAL, &qp->base);
	fake_qp_error(qp);
	fake_step();
}

void fake_verbs_qp_break(uint32_t qp_num)
{
	FAKE_LOCK();
	struct fake_qp *qp = find_qp(qp_num);
	if (!qp)
		return;
	qp->fail_next = true;
	fake_qp_activate(qp);
	fake_step();
}

void fake_verbs_remove_device(unsigned index)
{
	FAKE_LOCK();
	tern_assert(index < fake.device_count);
	struct fake_device *device = fake.devices[index];
	if (device->removed)
		return;
	device->removed = true;
	fake_async_raise(device, IBV_EVENT_DEVICE_FATAL, NULL);
	tern_list_for_each (n, &fake.qps) {
		struct fake_qp *qp = tern_list_entry(n, struct fake_qp, node);

		if (qp->base.context == &device->base)
			fake_qp_error(qp);
	}
	tern_list_for_each (n, &fake.ids) {
		struct fake_id *id = tern_list_entry(n, struct fake_id, node);

		if (id->base.verbs == &device->base)
			fake_id_tell(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
	}
	fake_step();
}

void fake_verbs_return_device(unsigned index)
{
	FAKE_LOCK();
	tern_assert(index < fake.device_count);
	if (fake.devices[index]->removed)
		fake_device_renew(index);
	fake_step();
}

void fake_verbs_cut(unsigned device, unsigned other, bool cut)
{
	FAKE_LOCK();
	tern_assert(device < fake.device_count && other < fake.device_count);
	state.cut[device][other] = state.cut[other][device] = cut;
	fake_step();
}

void fake_verbs_port(unsigned device, bool up)
{
	FAKE_LOCK();
	tern_assert(device < fake.device_count);
	if (state.port_down[device] != up)
		return;
	state.port_down[device] = !up;
	fake_async_raise(fake.devices[device],
		up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR, NULL);
	fake_step();
}

void fake_verbs_hold_wire(bool hold)
{
	FAKE_LOCK();
	state.wire_held = hold;
	fake_step();
}

void fake_verbs_hold_completions(enum fake_verbs_side side, bool hold)
{
	FAKE_LOCK();
	state.completions_held[side == FAKE_VERBS_SENDS ? FAKE_SEND : FAKE_RECV] = hold;
	fake_step();
}

static unsigned checked(enum rdma_cm_event_type type)
{
	tern_assert(type < EVENT_TYPES);
	return type;
}

void fake_verbs_hold_cm(enum rdma_cm_event_type type, enum fake_verbs_end end, bool hold)
{
	FAKE_LOCK();
	state.event_held[checked(type)][end] = hold;
	tern_list_for_each (n, &fake.channels)
		fake_channel_update(tern_list_entry(n, struct fake_channel, node));
}

void fake_verbs_lose_cm(
	enum rdma_cm_event_type type, enum fake_verbs_end end, unsigned count)
{
	FAKE_LOCK();
	state.event_lost_count[checked(type)][end] = count;
}
