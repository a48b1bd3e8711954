/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Global state of the simulated RDMA provider: its lock, its steps (units of time), its
 * table of functions, and the count of open objects. Invariant: whenever the lock is
 * released, the fd of each channel is readable exactly if its queue has an event that no
 * test holds (an event of an id may be not due yet).
 */
#include "tests/fakes/verbs/verbs_world.h"

#include <sys/eventfd.h>

struct fake_world fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct fake_verbs_opts fake_verbs_defaults(void)
{
	return (struct fake_verbs_opts){
		.device_count = 2,
		.max_qp = 1024,
		.max_qp_wr = 8192,
		.max_sge = 8,
		.max_srq = 64,
		.max_srq_wr = 16384,
		.max_cqe = 65536,
		.max_inline = 256,
		.max_rd_atomic = 16,
		.max_msg_bytes = 1ull << 30,
		.seed = 1,
		.piece_bytes = 65536,
		.pieces_per_step = 4,
		.retry_steps = 1000,
	};
}

static void world_open(const struct fake_verbs_opts *opts)
{
	tern_assert(opts->device_count <= FAKE_VERBS_MAX_DEVICES);
	tern_assert(opts->piece_bytes > 0 && opts->pieces_per_step > 0);
	tern_assert(opts->stall_percent < 100);
	fake.opts = *opts;
	fake.rng = (struct tern_rng){.seed = opts->seed};
	fake.step = 0;
	tern_list_init(&fake.channels);
	tern_list_init(&fake.ids);
	tern_list_init(&fake.pds);
	tern_list_init(&fake.cqs);
	tern_list_init(&fake.comp_channels);
	tern_list_init(&fake.srqs);
	tern_list_init(&fake.qps);
	tern_list_init(&fake.active);
	fake.next_qp_num = 17;
	fake.next_port = 0;
	fake_faults_reset();
	fake_devices_open();
	fake.ready = true;
}

struct fake_world *fake_enter(void)
{
	pthread_mutex_lock(&fake.lock);
	if (!fake.ready) {
		struct fake_verbs_opts opts = fake_verbs_defaults();

		world_open(&opts);
	}
	return &fake;
}

void fake_leave(struct fake_world **world)
{
	pthread_mutex_unlock(&(*world)->lock);
}

/*
 * Advances time by a step. While a completion queue is armed, its thread may sleep until
 * an event, and all other threads too, so that nothing makes further steps. So then this
 * step goes on until no data moves any more.
 */
void fake_step(void)
{
	bool moved;

	fake.step++;
	if (!tern_list_empty(&fake.active))
		tern_list_push(&fake.active, tern_list_pop(&fake.active));
	do {
		moved = false;
		tern_list_for_each_safe (n, &fake.active) {
			moved |= fake_qp_step(tern_list_entry(n, struct fake_qp, active),
				fake.armed_count > 0);
		}
	} while (moved && fake.armed_count > 0);
}

uint64_t fake_delay(unsigned most_steps)
{
	return fake.step +
	       (most_steps ? tern_rng_below(&fake.rng, (uint64_t)most_steps + 1) : 0);
}

unsigned fake_round_up(unsigned count, unsigned most)
{
	unsigned up = 1;

	while (up < count)
		up *= 2;
	return TERN_MIN(up, most);
}

void fake_fd_set(int fd, bool *readable, bool want)
{
	eventfd_t count;

	if (*readable == want)
		return;
	*readable = want;
	if (want)
		tern_assert(eventfd_write(fd, 1) == 0);
	else
		tern_assert(eventfd_read(fd, &count) == 0);
}

static unsigned list_length(const struct tern_list *l)
{
	unsigned count = 0;

	tern_list_for_each (n, l)
		count++;
	return count;
}

static struct fake_verbs_live count_live(void)
{
	struct fake_verbs_live live = {
		.channels = list_length(&fake.channels),
		.ids = list_length(&fake.ids),
		.pds = list_length(&fake.pds),
		.mrs = fake.mr_count,
		.cqs = list_length(&fake.cqs),
		.comp_channels = list_length(&fake.comp_channels),
		.srqs = list_length(&fake.srqs),
		.qps = list_length(&fake.qps),
		.unacked_async_events = fake.unacked_async_count,
	};

	tern_list_for_each (n, &fake.channels)
		live.unacked_cm_events +=
			tern_list_entry(n, struct fake_channel, node)->unacked_count;
	tern_list_for_each (n, &fake.cqs)
		live.unacked_cq_events +=
			tern_list_entry(n, struct fake_cq, node)->unacked_count;
	return live;
}

struct fake_verbs_live fake_verbs_live(void)
{
	FAKE_LOCK();
	return count_live();
}

static void world_close(void)
{
	static const struct fake_verbs_live none;
	struct fake_verbs_live live = count_live();

	if (memcmp(&live, &none, sizeof(none)) != 0) {
		fprintf(stderr,
			"fake verbs: still open: %u channels, %u ids, %u cm events, "
			"%u pds, %u mrs, %u cqs, %u comp channels, %u srqs, %u qps, "
			"%u cq events, %u async events\n",
			live.channels, live.ids, live.unacked_cm_events, live.pds,
			live.mrs, live.cqs, live.comp_channels, live.srqs, live.qps,
			live.unacked_cq_events, live.unacked_async_events);
		tern_never("fake verbs: something is still open");
	}
	fake_devices_close();
	fake.ready = fake.fork_ready = fake.registered = false;
}

struct fake_verbs_opts fake_verbs_opts(void)
{
	return fake.opts;
}

void fake_verbs_reset(const struct fake_verbs_opts *opts)
{
	struct fake_verbs_opts defaults = fake_verbs_defaults();

	FAKE_LOCK();
	world_close();
	world_open(opts ? opts : &defaults);
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	static const char *const names[] = {
		[IBV_WC_SUCCESS] = "success",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
		[IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
		[IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_REM_OP_ERR] = "remote operation error",
		[IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
	};

	return status < TERN_ARRAY_SIZE(names) && names[status] ? names[status]
								: "unknown";
}

const struct tern_verbs_api *fake_verbs_api(void)
{
	static const struct tern_verbs_api api = {
		.version = TERN_VERBS_API_VERSION,
		.prepare_fork = fake_prepare_fork,
		.create_event_channel = fake_create_event_channel,
		.destroy_event_channel = fake_destroy_event_channel,
		.get_cm_event = fake_get_cm_event,
		.ack_cm_event = fake_ack_cm_event,
		.create_id = fake_create_id,
		.destroy_id = fake_destroy_id,
		.retire_id = fake_retire_id,
		.set_option = fake_set_option,
		.bind_addr = fake_bind_addr,
		.listen = fake_listen,
		.resolve_addr = fake_resolve_addr,
		.resolve_route = fake_resolve_route,
		.create_qp = fake_create_qp,
		.destroy_qp = fake_destroy_qp,
		.connect = fake_connect,
		.accept = fake_accept,
		.reject = fake_reject,
		.disconnect = fake_disconnect,
		.notify = fake_notify,
		.get_devices = fake_get_devices,
		.free_devices = fake_free_devices,
		.query_device = fake_query_device,
		.query_port = fake_query_port,
		.query_gid = fake_query_gid,
		.query_gid_type = fake_query_gid_type,
		.device_name = fake_device_name,
		.device_node = fake_device_node,
		.device_pci = fake_device_pci,
		.alloc_pd = fake_alloc_pd,
		.dealloc_pd = fake_dealloc_pd,
		.reg_mr = fake_reg_mr,
		.reg_dmabuf_mr = fake_reg_dmabuf_mr,
		.has_peermem = fake_has_peermem,
		.dereg_mr = fake_dereg_mr,
		.create_comp_channel = fake_create_comp_channel,
		.destroy_comp_channel = fake_destroy_comp_channel,
		.create_cq = fake_create_cq,
		.resize_cq = fake_resize_cq,
		.destroy_cq = fake_destroy_cq,
		.get_cq_event = fake_get_cq_event,
		.ack_cq_events = fake_ack_cq_events,
		.create_srq = fake_create_srq,
		.destroy_srq = fake_destroy_srq,
		.modify_qp = fake_modify_qp,
		.get_async_event = fake_get_async_event,
		.ack_async_event = fake_ack_async_event,
		.wc_status_str = wc_status_str,
	};

	return &api;
}
