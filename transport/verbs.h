/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the verbs fabric. Who does what:
 *
 *     verbs.c         fabric: devices, registrations; the vtable
 *     verbs_gpu.c     memory of GPUs as the devices reach it
 *     verbs_choice.c  the list of devices, and the choice of one of them
 *     verbs_opts.c    "gid=3,retry=7"
 *     verbs_port.c    poll and arm: completion queues, what else there is to hear
 *     verbs_slot.c    the registered slots that messages are sent from and received into
 *     verbs_async.c   the devices' own events
 *     verbs_cm.c      listening, connecting: librdmacm's events
 *     verbs_conn.c    a conn's queue pair from its making to its end
 *     verbs_tx.c      messages, puts and gets on their way out
 *     verbs_rx.c      what arrives
 *     verbs_load.c, verbs_module.c   libibverbs and librdmacm, if they are there
 *
 * One reliable queue pair per conn. Messages are SENDs into slots of a shared receive
 * queue (or of the queue pair's own one, where the device has no shared ones); a put is
 * an RDMA WRITE and a get an RDMA READ between registered memories. Order on the queue
 * pair is the order that fabric.h asks for.
 *
 * Flow control. Each end grants the other a window of messages when they connect, and has
 * a slot posted for every one of them, so a SEND never finds the receiver without one.
 * How many it has handled travels in every frame. Frames that carry no message (a credit,
 * a farewell) have slots of their own: at most VERBS_CONTROL of them are under way.
 *
 * Trust. Normally a region holds the keys of whole registrations, as everywhere in this
 * field: what a peer may write is agreed between the two ends and not enforced
 * (TERN_CAP_UNGUARDED). With the option guard=on no key leaves this process: peers send
 * their puts as messages, which are checked and copied (window.c), and cannot get.
 *
 * Memory that a device refuses to register takes the same way: its owner exposes it as a
 * guarded region for the peer to put into, exposes none of it for reading, and puts from
 * it through slots. So one such memory costs its own tensors a copy and nobody a conn.
 */
#ifndef TERN_TRANSPORT_VERBS_H
#define TERN_TRANSPORT_VERBS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/list.h"
#include "transport/addr.h"
#include "transport/domain.h"
#include "transport/fabric.h"
#include "transport/mem.h"
#include "transport/verbs_api.h"
#include "transport/window.h"

/* A region has one key per device, so this is part of the wire. */
#define VERBS_DEVICES_MAX 8
#define VERBS_NAME_MAX    64

/* ---- what travels ---- */

#define VERBS_MAGIC   0x4e524554u /* "TERN" */
#define VERBS_VERSION 2

enum verbs_flags {
	VERBS_GUARDED = 1 << 0, /* gives out no keys */
};

/* Private data of the connection request and of its answer: the least there is, 56 bytes
 * of InfiniBand's REQ behind librdmacm's own, bounds it. Little-endian. */
struct verbs_greeting {
	uint32_t magic;
	uint16_t version;
	uint16_t flags;
	int32_t status; /* of a rejection: why, a negative errno */
	uint32_t message_bytes;
	uint32_t window; /* messages that the other end may have under way */
	uint32_t device; /* which of the keys in a region is for this conn */
	uint32_t reserved[2];
};
_Static_assert(sizeof(struct verbs_greeting) == 32, "fits the private data of a REQ");

enum verbs_frame_type {
	VERBS_MESSAGE = 1, /* the end of a message, or all of it */
	VERBS_MORE = 2,    /* a part of a message that is longer than a slot */
	VERBS_PUT = 3,     /* verbs_put, then bytes for a window */
	VERBS_CREDIT = 4,  /* nothing but the head */
	VERBS_BYE = 5,     /* the end: nothing follows */
};

/* Before everything that is sent. Little-endian, as all of this. */
struct verbs_frame {
	uint32_t credit; /* how many messages, MOREs and PUTs the sender has handled */
	uint8_t type;
	uint8_t reserved[3];
};

struct verbs_put {
	uint32_t slot, generation;
	uint64_t offset;
};
_Static_assert(sizeof(struct verbs_frame) == 8 && sizeof(struct verbs_put) == 16, "wire");

/* What a tern_region is here, taken apart. On the wire: start; bytes, access << 48 and
 * guarded << 56; the keys, little-endian: those behind the fourth are zero, and so not
 * sent, on a machine without so many devices. */
#define VERBS_BYTES_MAX ((1ull << 48) - 1)
struct verbs_region {
	uint64_t start; /* address; slot | generation << 32 if guarded */
	uint64_t bytes;
	uint8_t access; /* enum tern_access */
	uint8_t guarded;
	uint32_t keys[VERBS_DEVICES_MAX];
};
void verbs_region_encode(const struct verbs_region *region, struct tern_region *out);
void verbs_region_decode(const struct tern_region *wire, struct verbs_region *out);

/* ---- options: verbs_opts.c ---- */

struct verbs_opts {
	char devices[VERBS_DEVICES_MAX][VERBS_NAME_MAX]; /* none: all of them */
	unsigned device_count;
	struct tern_addr from; /* where conns start; len 0: the system's choice */
	int gid_index;         /* -1: by address */
	int traffic_class;     /* -1: the system's */
	int timeout_exponent; /* an unanswered packet is sent again after 4.096 us << x */
	unsigned retry_count;
	unsigned depth;      /* work requests of a queue pair */
	unsigned inline_max; /* bytes to ask for */
	unsigned read_max;   /* reads under way on a conn; the device may have less */
	bool no_srq, guard;
};

/* "NAME=VALUE,...". -EINVAL, with a sentence in `error`. `text` may be NULL. */
int verbs_opts_parse(const char *text, struct verbs_opts *out, char *error, size_t bytes);

/* ---- the fabric: verbs.c ---- */

struct verbs_device {
	struct ibv_context *context; /* librdmacm's: never closed */
	struct ibv_pd *pd;           /* NULL until the first conn needs the device */
	struct ibv_device_attr attr;
	unsigned index;
	unsigned user_count; /* ports that have a queue on it */
	atomic_bool dead;    /* removed, or broken for good */
	atomic_bool told;    /* that it is dead has been logged */
	/* The last refusal that was logged: each attempt to connect meets it again. */
	int refused_status;
	uint64_t refused_bytes;
	bool gpu_refused; /* that it does not reach a GPU has been logged */
	bool gpu_taken;   /* it has registered memory of one */
};

/* A memory's registrations. */
struct verbs_reg {
	struct tern_list link; /* verbs_fabric.regs */
	struct tern_mem *mem;
	struct ibv_mr *mr[VERBS_DEVICES_MAX]; /* by device index; under the lock */
	/* Read without the lock; 0: not registered. */
	_Atomic uint32_t lkeys[VERBS_DEVICES_MAX], rkeys[VERBS_DEVICES_MAX];
	/* How the devices reach it, in a word for people; NULL: not all of them do. */
	_Atomic(const char *) way;
	const char *ways[VERBS_DEVICES_MAX]; /* of each; under the lock */
};

struct verbs_fabric {
	struct tern_fabric base;
	struct tern_list link; /* of verbs_async.c */
	const struct tern_verbs_api *api;
	struct verbs_opts opts;
	/* Covers what follows: ports of other threads bring devices into use while
	 * memories come and go. */
	pthread_mutex_t lock;
	struct verbs_device devices[VERBS_DEVICES_MAX];
	atomic_uint device_count;
	struct tern_addr own; /* of the first active port that has one; else len 0 */
	struct tern_list regs;
};

/* What a device and its peers may do with `mem`: flags of ibv_reg_mr(3). */
int verbs_access(const struct verbs_fabric *fabric, const struct tern_mem *mem);
/* Takes a device's registration of `reg` over. With the lock held. */
void verbs_reg_set(struct verbs_reg *reg, unsigned index, struct ibv_mr *mr);

/* Brings the devices into use. A negative errno: none of them can be. */
int verbs_start(struct verbs_fabric *fabric, struct tern_env *env);

/* The device with this context, made ready: every memory that there is is registered with
 * it. Counts a user. -ENOMEM; -ENODEV: not one of ours, or dead. */
int verbs_device_use(struct verbs_fabric *fabric, struct ibv_context *context,
	struct tern_env *env, struct verbs_device **out);

/* Is `context` a device of this fabric? Then it is dead from now on. */
void verbs_device_died(struct verbs_fabric *fabric, struct ibv_context *context);
/* Takes the user back. A dead device's registrations go with the last one. */
void verbs_device_put(struct verbs_fabric *fabric, struct verbs_device *device);

/* The key of `mem` for work requests on `device`. 0: the device is dead, and the conn
 * that asks must end; or it could not register `mem`, whose bytes are copied then. */
static inline uint32_t verbs_lkey(const struct tern_mem *mem,
	const struct verbs_device *device, const struct tern_fabric *fabric)
{
	struct verbs_reg *reg = tern_mem_reg(mem, fabric->index);

	return atomic_load_explicit(&reg->lkeys[device->index], memory_order_acquire);
}

/* Where devices find it. */
static inline uint64_t verbs_address(const struct tern_mem *mem, uint64_t offset)
{
	return (mem->kind == TERN_MEM_HOST ? (uintptr_t)mem->base : mem->address) +
	       offset;
}

/* The first IP address that the device has. With the lock held. -EADDRNOTAVAIL. */
int verbs_address_of(struct verbs_fabric *fabric, const struct verbs_device *device,
	struct tern_addr *out);

/* ---- memory of GPUs: verbs_gpu.c ---- */

/* Registers it with one device, which may not be able to: then nothing has changed. With
 * the lock held. */
void verbs_gpu_register(struct verbs_fabric *fabric, struct verbs_device *device,
	struct verbs_reg *reg, struct tern_env *env);
const char *verbs_gpu_reaches(const struct tern_conn *conn, const struct tern_mem *mem);

/* ---- slots: verbs_slot.c ---- */

/* The longest payload of one frame: an eager message of the default threshold and the
 * head of the layer above. */
#define VERBS_PAYLOAD  (8192u + 384u)
#define VERBS_SLOT_PAD 56u /* so that what follows the frame is 64-byte aligned */
#define VERBS_SLOT_BYTES                                                                 \
	(VERBS_SLOT_PAD + (uint32_t)sizeof(struct verbs_frame) + VERBS_PAYLOAD)
_Static_assert(VERBS_SLOT_BYTES % 64 == 0, "slots stay aligned");
#define VERBS_SLAB_SLOTS 256u
#define VERBS_SLABS_MAX  1024u /* for some 7,000 conns, at 310 KB each */

enum verbs_slot_place { VERBS_SLOT_FREE, VERBS_SLOT_SENDING, VERBS_SLOT_POSTED };

struct verbs_slot {
	void *owner;        /* POSTED: the verbs_queue or verbs_conn; SENDING: the conn */
	uint32_t next_free; /* index + 1 */
	enum verbs_slot_place place;
};

struct verbs_slots {
	struct tern_mem *slabs[VERBS_SLABS_MAX];
	struct verbs_slot *table; /* of slab_count * VERBS_SLAB_SLOTS */
	uint32_t slab_count;
	uint32_t free, free_count;
	uint32_t reserved; /* free ones that conns are entitled to */
	uint32_t owed;     /* free ones that are to be posted again: see queue_books */
};

/* ---- ports ---- */

#define VERBS_WINDOW      128u /* messages that a peer may have under way */
#define VERBS_WINDOW_MANY 16u  /* the same for conns beyond VERBS_FEW */
#define VERBS_FEW         16u
#define VERBS_DEPTH_MIN   16u
#define VERBS_CONTROL     4u
#define VERBS_SEND_SLOTS  16u /* that a conn can always have */
#define VERBS_SEND_COMMON 128u
#define VERBS_BATCH       16u /* work requests for one doorbell, completions of one poll */
#define VERBS_INLINE      256u
#define VERBS_PUTS_MAX    16u /* that wait for room */
#define VERBS_EAGER_BYTES 8192u
#define VERBS_CHUNK_BYTES (1u << 20)
/* How long a closing conn may take to send what it has, and a disconnect to be heard. */
#define VERBS_ACCEPT_NS (5 * TERN_NS_PER_S)
/* Conns that have been accepted and not heard of: the oldest goes for one more. */
#define VERBS_ACCEPTING_MAX 256u
#define VERBS_FLUSH_NS      TERN_NS_PER_S
#define VERBS_LINGER_NS     (200 * TERN_NS_PER_MS)
/* Polls of a busy port between two looks at what is not a completion queue. */
#define VERBS_ASK_POLLS 64u

struct verbs_conn;

/* One device as a port uses it. */
struct verbs_queue {
	struct tern_list link; /* verbs_port.queues */
	struct verbs_port *port;
	struct verbs_device *device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	/* NULL: queue pairs have their own. So have those that come when it is full. */
	struct ibv_srq *srq;
	int cq_entries, cq_used;
	uint32_t posted, wanted; /* slots in the SRQ */
	uint32_t srq_max;
	unsigned conn_count;
	bool broken;   /* the CQ cannot be read any more */
	bool notified; /* the next completion makes the channel readable */
	struct ibv_wc stash[VERBS_BATCH]; /* what arm() found */
	int stash_count;
	struct verbs_conn *hash[256]; /* by queue pair number */
};

struct verbs_port {
	struct tern_port base;
	struct tern_list link; /* of verbs_async.c */
	struct rdma_event_channel *channel;
	int epoll_fd, timer_fd, wake_fd;
	struct tern_list queues, lsns, conns, zombies;
	struct tern_list dirty;   /* conns with work requests that wait for a doorbell */
	struct tern_list blocked; /* conns that owe a `writable` */
	struct tern_list ending;  /* conns to be ended by this poll */
	struct verbs_slots slots;
	struct tern_windows windows; /* made with the first guarded region */
	char device[VERBS_NAME_MAX]; /* the only one that it uses; "": all */
	struct verbs_conn **table;   /* by index */
	uint32_t table_count;
	unsigned conn_count;
	uint64_t deadline_ns; /* the next of conns and zombies; UINT64_MAX: none */
	uint64_t timer_fd_ns; /* what timer_fd is set to */
	unsigned turn;
	bool armed, polling;
	bool bereft; /* a device is dead: its queue is to be freed when it is idle */
	unsigned accepting_count;
	/* Another thread has set a conn's async_status, or found a device dead. */
	atomic_bool events;
};

struct verbs_lsn {
	struct tern_lsn base;
	struct tern_list link;
	struct rdma_cm_id *id; /* NULL: its device was removed */
	struct tern_addr bound;
	uint64_t again_ns; /* without an id: when to look for the device */
	char address[VERBS_NAME_MAX];
};

/* An id that waits for the other end to hear of its disconnect. */
struct verbs_zombie {
	struct tern_list link;
	struct rdma_cm_id *id;
	uint64_t deadline_ns;
};

/* ---- conns ---- */

/*
 *     RESOLVING -> ROUTING -> CONNECTING -> UP -> FLUSHING
 *                              ACCEPTING -> UP
 *     each -> ENDING: in port->ending, and gone when that was gone through
 */
enum verbs_state {
	VERBS_RESOLVING,
	VERBS_ROUTING,
	VERBS_CONNECTING,
	VERBS_ACCEPTING,
	VERBS_UP,
	VERBS_FLUSHING, /* said BYE; ends when everything before it has left */
	VERBS_ENDING,
};

/* What the fabric keeps in a tern_op. */
struct verbs_op {
	struct tern_list link; /* verbs_conn.puts or gets, or nowhere */
	struct tern_mem *mem;
	uint64_t offset;
	uint64_t left; /* bytes without a work request */
	uint64_t remote;
	uint32_t key;        /* or the window's slot */
	uint32_t generation; /* the window's */
	bool guarded;        /* it is a window: bytes go as messages */
};
_Static_assert(sizeof(struct verbs_op) <= sizeof(((struct tern_op *)0)->priv), "fits");

enum verbs_work { VERBS_WORK_SEND, VERBS_WORK_WRITE, VERBS_WORK_READ };

/* A work request in the send queue. */
struct verbs_wr {
	enum verbs_work work;
	bool last;     /* completes op */
	uint32_t slot; /* to be freed, + 1; 0: none */
	struct tern_op *op;
};

struct verbs_conn {
	struct tern_conn base;
	struct tern_list link;    /* verbs_port.conns */
	struct tern_list all;     /* of verbs_async.c */
	struct tern_list dirty;   /* verbs_port.dirty */
	struct tern_list blocked; /* verbs_port.blocked */
	struct tern_list ending;  /* verbs_port.ending */
	enum verbs_state state;
	int status;
	uint32_t index;
	bool announced; /* the user knows it: `closed` is owed */
	bool by_user;   /* conn_close() was called */
	bool connected; /* disconnect says something */
	bool eof;       /* the peer said BYE */
	bool peer_gone; /* the peer disconnected */
	bool bye_sent;
	bool shares_srq; /* it receives from the SRQ; else it has a queue of its own */
	bool in_srq;     /* its receives are part of queue->wanted */
	atomic_int async_status; /* set by whoever read the device's events */
	struct verbs_lsn *lsn;
	struct rdma_cm_id *id;
	struct verbs_queue *queue; /* NULL: no queue pair */
	struct ibv_qp *qp;
	uint32_t qp_num;
	struct tern_addrs *addrs; /* while it is resolved: those to try */
	struct tern_addr from;    /* where it starts; len 0: as the options say */
	int cq_entries;           /* reserved in the queue's CQ */
	struct verbs_conn *hash_next;
	uint64_t deadline_ns;

	/* Out. Positions of the ring wrap; the ring is a power of two. */
	struct verbs_wr *ring;
	uint32_t ring_size, depth;
	uint32_t head,
		tail; /* [head, tail) is in the send queue or waits for a doorbell */
	uint32_t unsignalled;
	uint32_t probe_at;   /* of the last write of no bytes */
	uint32_t wait_count; /* those that wait for a doorbell */
	struct ibv_send_wr wr[VERBS_BATCH];
	struct ibv_sge sge[VERBS_BATCH][2];
	char (*stage)[VERBS_INLINE]; /* inline data of wr[] */
	uint32_t inline_max;
	uint32_t slots_held;         /* for sending */
	uint32_t sent, heard_credit; /* messages; what the peer says it has handled */
	uint32_t window;             /* granted by the peer */
	uint64_t piece_bytes;        /* most of one WRITE or READ */
	uint32_t peer_device;
	bool peer_guarded;
	uint32_t need;         /* blocked: frames that the refused call takes */
	struct tern_list puts; /* with bytes left, in their order */
	uint32_t put_count;
	struct tern_list gets;    /* with bytes left */
	uint32_t reads, read_max; /* under way */

	/* In. */
	uint32_t granted; /* window of the peer */
	uint32_t received, told;
	char *assembly; /* of MOREs */
	uint32_t assembly_bytes;
};

static inline struct verbs_fabric *verbs_fabric_of(struct tern_fabric *fabric)
{
	return tern_container_of(fabric, struct verbs_fabric, base);
}

static inline struct verbs_port *verbs_port_of(struct tern_port *port)
{
	return tern_container_of(port, struct verbs_port, base);
}

static inline struct verbs_conn *verbs_conn_of(struct tern_conn *conn)
{
	return tern_container_of(conn, struct verbs_conn, base);
}

static inline struct verbs_port *verbs_conn_port(const struct verbs_conn *conn)
{
	return verbs_port_of(conn->base.port);
}

static inline struct verbs_fabric *verbs_port_fabric(const struct verbs_port *port)
{
	return verbs_fabric_of(port->base.fabric);
}

static inline const struct tern_verbs_api *verbs_api_of(const struct verbs_port *port)
{
	return verbs_port_fabric(port)->api;
}

static inline struct verbs_op *verbs_op_of(struct tern_op *op)
{
	return (struct verbs_op *)op->priv;
}

/* ---- choice: verbs_choice.c ---- */

int verbs_devices(struct tern_fabric *base, struct tern_rdma_device *out, unsigned max);

/* An address as it was given, "HOST:PORT" or "HOST:PORT@DEVICE", taken apart. */
struct verbs_choice {
	char address[128];           /* without the device */
	char device[VERBS_NAME_MAX]; /* "": any */
	struct tern_addr own;        /* the device's; len 0: any */
};
/* Without a device in `text`, that of the port counts. -EINVAL: malformed; -ENODEV: no
 * such device (a log line says which there are); -EADDRNOTAVAIL: it has no address. */
int verbs_choose(struct verbs_port *port, const char *text, struct verbs_choice *out);
/* Was `context` chosen? */
bool verbs_is_choice(const struct verbs_port *port, const struct verbs_choice *choice,
	struct ibv_context *context);

/* ---- verbs_slot.c ---- */

void verbs_slots_fini(struct verbs_port *port);
/* Makes sure that so many more slots are free and not reserved. -ENOMEM. */
int verbs_slots_grow(struct verbs_port *port, uint32_t count);
/* Has `device` registered all of them? */
bool verbs_slots_reached(
	const struct verbs_port *port, const struct verbs_device *device);
/* The index of a free slot, or -EAGAIN. A conn's entitlement comes first. */
int verbs_slot_take(struct verbs_conn *conn);
/* After its SEND. */
void verbs_slot_give(struct verbs_port *port, uint32_t slot);
/* How many it can have now. */
uint32_t verbs_slot_count(const struct verbs_conn *conn);
/* Where the frame begins. */
char *verbs_slot_at(const struct verbs_port *port, uint32_t slot);
struct ibv_sge verbs_slot_sge(const struct verbs_port *port,
	const struct verbs_device *device, uint32_t slot, uint32_t bytes);
/* Posts free slots for receiving: `count` of them to the conn's own queue, or up to
 * `wanted` to the queue's SRQ. A negative errno: the device refused. */
int verbs_slots_post(struct verbs_conn *conn, uint32_t count);
int verbs_slots_refill(struct verbs_queue *queue);
/* How many slots the SRQ has, and should have. */
void verbs_queue_books(struct verbs_queue *queue, int posted, int wanted);
/* Was it posted to the SRQ? */
bool verbs_slot_is_shared(const struct verbs_queue *queue, uint32_t slot);
/* One that was received into: not posted any more. */
void verbs_slot_arrived(struct verbs_port *port, uint32_t slot);
/* All that `owner` has, after its queue was destroyed. */
void verbs_slots_reclaim(struct verbs_port *port, const void *owner);

/* ---- verbs_port.c ---- */

/* The port's queue of a device, made at first use. */
int verbs_queue_get(
	struct verbs_port *port, struct ibv_context *context, struct verbs_queue **out);
/* Room for `entries` more completions: enlarges the CQ if it must. -ENOMEM, -ENOSPC. */
int verbs_queue_reserve(struct verbs_queue *queue, int entries);
/* Handles what there is, all of it. */
void verbs_queue_drain(struct verbs_queue *queue);
/* Its device is gone or broken: ends what uses it, in other ports too. */
void verbs_device_failed(struct verbs_queue *queue, const char *what);
void verbs_port_deadline(struct verbs_port *port, uint64_t at_ns);
int verbs_poll(struct tern_port *base, int budget);
int verbs_arm(struct tern_port *base);
int verbs_fd(struct tern_port *base);
int verbs_port_new(struct tern_fabric *base, const struct tern_port_opts *opts,
	struct tern_port **out);
void verbs_port_free(struct tern_port *base);

/* ---- verbs_async.c: the devices' own events, for all of this process ---- */

void verbs_async_add_fabric(struct verbs_fabric *fabric);
void verbs_async_add_port(struct verbs_port *port);
void verbs_async_add_conn(struct verbs_conn *conn);
/* Takes any of them out again. */
void verbs_async_forget(struct tern_list *link);
/* Reads what the queue's device has to say. How many events. */
int verbs_async_read(struct verbs_queue *queue);
/* Tells every fabric and port of the process that the device is dead. */
void verbs_async_died(struct ibv_context *context);

/* ---- verbs_lsn.c ---- */

int verbs_listen(struct tern_port *base, const char *address, struct tern_lsn **out);
const char *verbs_lsn_address(struct tern_lsn *base);
void verbs_lsn_close(struct tern_lsn *base);
/* NULL: the id is no listener's. */
struct verbs_lsn *verbs_lsn_find(struct verbs_port *port, const struct rdma_cm_id *id);
/* Of a listener's id, but for a request to connect. */
void verbs_lsn_event(struct verbs_lsn *lsn, const struct rdma_cm_event *event);
/* Listens again where a device has returned. */
void verbs_lsn_expire(struct verbs_port *port, uint64_t now_ns);

/* ---- verbs_cm.c ---- */

int verbs_connect(struct tern_port *base, const char *address, struct tern_conn **out);
/* All events that wait. How many. */
int verbs_cm_poll(struct verbs_port *port);
/* An acceptor has heard its peer before librdmacm said that it is there. */
void verbs_cm_heard(struct verbs_conn *conn);

/* ---- verbs_conn.c ---- */

struct verbs_conn *verbs_conn_new(struct verbs_port *port);
/* Its queue pair, on the device that its id was bound to. */
int verbs_conn_open(struct verbs_conn *conn);
/* From now on it is ending with `status`; the first one counts. Callable anywhere. */
void verbs_conn_end(struct verbs_conn *conn, int status);
void verbs_conn_close(struct tern_conn *base, bool flush);
/* Everything that is in port->ending. How many. */
int verbs_end_all(struct verbs_port *port);
/* Deadlines that have passed. */
void verbs_conn_expire(struct verbs_port *port, uint64_t now_ns);
void verbs_zombie_free(struct verbs_port *port, struct verbs_zombie *zombie);
struct verbs_conn *verbs_conn_by_qp(struct verbs_queue *queue, uint32_t number);
/* One line at level WARN that names the peer, then the end with -EPROTO. */
void verbs_conn_blame(struct verbs_conn *conn, const char *what);

/* ---- verbs_tx.c ---- */

int verbs_send(struct tern_conn *base, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);
int verbs_put(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int verbs_get(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
/* Rings the doorbell for what waits. */
void verbs_tx_flush(struct verbs_conn *conn);
/* The peer has handled so many messages in all. */
void verbs_tx_credit(struct verbs_conn *conn, uint32_t credit);
/* The work requests up to position `at` have left the queue. */
void verbs_tx_done(struct verbs_conn *conn, uint32_t at);
uint64_t verbs_unanswered_ns(struct tern_conn *conn);
/* Frames without a message. -EAGAIN. */
int verbs_tx_control(struct verbs_conn *conn, enum verbs_frame_type type);
/* May something be sent that could not be before? */
bool verbs_tx_open(const struct verbs_conn *conn);
/* Sends BYE when everything else has been posted. */
void verbs_tx_farewell(struct verbs_conn *conn);
/* Ends every op with `status`: the queue pair is gone. */
void verbs_tx_abort(struct verbs_conn *conn, int status);

/* ---- verbs_rx.c ---- */

/* One frame of `bytes` in a slot that was posted. */
void verbs_rx(struct verbs_conn *conn, uint32_t slot, uint32_t bytes);
/* Says how much was handled, if the peer may be waiting for it. */
void verbs_rx_settle(struct verbs_conn *conn);

/* wr_id: a receive names its slot, a send its conn and position. */
#define VERBS_ID_RECV (1ull << 63)
static inline uint64_t verbs_id_send(const struct verbs_conn *conn, uint32_t at)
{
	return (uint64_t)conn->index << 32 | at;
}

#endif
