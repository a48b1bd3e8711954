/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the verbs fabric. Its files:
 *
 *     verbs.c           fabric: devices, registrations; the vtable
 *     gpu.c             GPU memory, as far as the devices reach it
 *     choice.c          the list of devices, and the choice of one of them
 *     opts.c            parsing of options, "gid=3,retry=7"
 *     port.c            poll and arm: completion queues and all other events
 *     slot.c            the registered slots that messages are sent from and received into
 *     async.c           the devices' asynchronous events
 *     cm.c              listening, connecting: librdmacm's events
 *     conn.c            a conn's queue pair, from creation to its end
 *     tx.c              sending messages, puts and gets
 *     rx.c              receiving
 *     load.c, module.c  libibverbs and librdmacm, if they are there
 *
 * Each conn has one reliable queue pair. Messages are SENDs into slots of a shared
 * receive queue (or of the queue pair's own receive queue, if the device has no shared
 * ones). A put is an RDMA WRITE and a get an RDMA READ between registered memories. The
 * order on the queue pair is the order that fabric.h requires.
 *
 * Flow control. When two ends connect, each grants the other a window of messages, and
 * posts a slot for every one of them, so a SEND never finds the receiver without a slot.
 * Every frame carries the number of messages that its sender has handled. Frames without
 * a message (a credit, a goodbye) have slots of their own: at most VERBS_CONTROL of them
 * are in flight.
 *
 * Trust. Normally a region holds the keys of whole registrations, as is usual with RDMA:
 * a peer is trusted to write only where it may, and nothing enforces this
 * (TERN_CAP_UNGUARDED). With the option guard=on no key leaves this process: peers send
 * their puts as messages, which are checked and copied (window.c), and cannot get.
 *
 * Memory that a device refuses to register is transferred in the same way: its owner
 * exposes it as a guarded region for the peer to put into, exposes none of it for
 * reading, and puts from it through slots. So such memory costs its own tensors a copy,
 * and breaks no conn.
 */
#ifndef TERN_TRANSPORT_VERBS_VERBS_H
#define TERN_TRANSPORT_VERBS_VERBS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/list.h"
#include "transport/addr.h"
#include "transport/admission.h"
#include "transport/domain.h"
#include "transport/fabric.h"
#include "transport/memory/mem.h"
#include "transport/verbs/api.h"
#include "transport/window.h"

/* A region has one key per device, so this number is part of the wire format. */
#define VERBS_DEVICES_MAX 8
#define VERBS_NAME_MAX    64

/* ---- the wire format ---- */

#define VERBS_MAGIC   0x4e524554u /* "TERN" */
#define VERBS_VERSION 2

enum verbs_flags {
	VERBS_GUARDED = 1 << 0, /* the sender gives out no keys */
};

/* Private data of a connection request and of its answer, little-endian. The size is
 * bounded by the smallest limit: 56 bytes of InfiniBand's REQ, after librdmacm's own. */
struct verbs_greeting {
	uint32_t magic;
	uint16_t version;
	uint16_t flags;
	int32_t status; /* of a rejection: the reason, a negative errno */
	uint32_t message_bytes;
	uint32_t window; /* messages that the other end may have in flight */
	uint32_t device; /* index of the keys in a region that are for this conn */
	uint32_t reserved[2];
};
_Static_assert(sizeof(struct verbs_greeting) == 32, "fits the private data of a REQ");

enum verbs_frame_type {
	VERBS_MESSAGE = 1, /* a whole message, or its last part */
	VERBS_MORE = 2,    /* part of a message that is longer than a slot */
	VERBS_PUT = 3,     /* a verbs_put, then bytes for a window */
	VERBS_CREDIT = 4,  /* nothing but the header */
	VERBS_BYE = 5,     /* the last frame */
};

/* Header of every frame. Little-endian, like everything here. */
struct verbs_frame {
	/* Number of MESSAGE, MORE and PUT frames that the sender has handled. */
	uint32_t credit;
	uint8_t type;
	uint8_t reserved[3];
};

struct verbs_put {
	uint32_t slot, generation;
	uint64_t offset;
};
_Static_assert(sizeof(struct verbs_frame) == 8 && sizeof(struct verbs_put) == 16, "wire");

/* A decoded tern_region. On the wire: start; then bytes, access << 48 and guarded <<
 * 56 in one word; then the keys, little-endian. Keys after the fourth are zero on a
 * machine with at most four devices, and then are not sent. */
#define VERBS_BYTES_MAX ((1ull << 48) - 1)
struct verbs_region {
	uint64_t start; /* address; if guarded, slot | generation << 32 */
	uint64_t bytes;
	uint8_t access; /* enum tern_access */
	uint8_t guarded;
	uint32_t keys[VERBS_DEVICES_MAX];
};
void verbs_region_encode(const struct verbs_region *region, struct tern_region *out);
void verbs_region_decode(const struct tern_region *wire, struct verbs_region *out);

/* ---- options: opts.c ---- */

struct verbs_opts {
	char devices[VERBS_DEVICES_MAX][VERBS_NAME_MAX]; /* none: all devices */
	unsigned device_count;
	struct tern_addr from; /* local address of conns; len 0: the system chooses */
	int gid_index;         /* -1: chosen by address */
	int traffic_class;     /* -1: the system's default */
	/* An unacknowledged packet is sent again after 4.096 us << this. */
	int timeout_exponent;
	unsigned retry_count;
	unsigned depth;      /* work requests in a queue pair */
	unsigned inline_max; /* inline data to ask for, in bytes */
	unsigned read_max;   /* reads in flight on a conn; the device may allow fewer */
	bool no_srq, guard;
};

/* Parses "NAME=VALUE,...". -EINVAL, with a sentence in `error`. `text` may be NULL. */
int verbs_opts_parse(const char *text, struct verbs_opts *out, char *error, size_t bytes);

/* ---- the fabric: verbs.c ---- */

struct verbs_device {
	struct ibv_context *context; /* owned by librdmacm, never closed */
	struct ibv_pd *pd;           /* NULL until the first conn needs the device */
	struct ibv_device_attr attr;
	unsigned index;
	unsigned user_count; /* number of ports that have a queue on it */
	atomic_bool dead;    /* removed, or permanently broken */
	atomic_bool told;    /* its death was logged */
	/* The last refusal that was logged, so that repeated attempts to connect do
	 * not log it again. */
	int refused_status;
	uint64_t refused_bytes;
	bool gpu_refused; /* it was logged that the device cannot access GPU memory */
	bool gpu_taken;   /* it has registered GPU memory */
};

/* The registrations of one memory. */
struct verbs_reg {
	struct tern_list node; /* in verbs_fabric.regs */
	struct tern_mem *mem;
	struct ibv_mr *mr[VERBS_DEVICES_MAX]; /* by device index; protected by the lock */
	/* Read without the lock; 0: not registered. */
	_Atomic uint32_t lkeys[VERBS_DEVICES_MAX], rkeys[VERBS_DEVICES_MAX];
	/* Name of the way in which all devices access it, for people; NULL: not all of
	 * them can. */
	_Atomic(const char *) way;
	/* The way of each device; protected by the lock. */
	const char *ways[VERBS_DEVICES_MAX];
};

struct verbs_fabric {
	struct tern_fabric base;
	struct tern_list node; /* in a list of async.c */
	const struct tern_verbs_api *api;
	struct verbs_opts opts;
	/* Protects everything below: ports on other threads bring devices into use
	 * while memory is registered and unregistered. */
	pthread_mutex_t lock;
	struct verbs_device devices[VERBS_DEVICES_MAX];
	atomic_uint device_count;
	/* Address of the first active port that has one; otherwise len 0. */
	struct tern_addr own;
	struct tern_list regs;
};

/* Access flags of ibv_reg_mr(3) for `mem`, for the device and its peers. */
int verbs_access(const struct verbs_fabric *fabric, const struct tern_mem *mem);
/* Stores a device's registration in `reg`, which then owns it. The caller holds the
 * lock. */
void verbs_reg_set(struct verbs_reg *reg, unsigned index, struct ibv_mr *mr);

/* Brings the devices into use. A negative errno if none of them works. */
int verbs_start(struct verbs_fabric *fabric, struct tern_env *env);

/* Finds the device with this context and brings it into use: all memory is then
 * registered with it. Counts one user. -ENOMEM; -ENODEV: not a device of this fabric,
 * or dead. */
int verbs_device_use(struct verbs_fabric *fabric, struct ibv_context *context,
	struct tern_env *env, struct verbs_device **out);

/* Marks the device with this context as dead, if it is one of this fabric. */
void verbs_device_died(struct verbs_fabric *fabric, struct ibv_context *context);
/* Uncounts a user. The registrations of a dead device are released with its last user. */
void verbs_device_put(struct verbs_fabric *fabric, struct verbs_device *device);

/* The local key of `mem` for work requests on `device`. 0: the device is dead, and the
 * calling conn must end; or the device could not register `mem`, whose bytes are then
 * copied. */
static inline uint32_t verbs_lkey(const struct tern_mem *mem,
	const struct verbs_device *device, const struct tern_fabric *fabric)
{
	struct verbs_reg *reg = tern_mem_reg(mem, fabric->index);

	return atomic_load_explicit(&reg->lkeys[device->index], memory_order_acquire);
}

/* The address of `mem` + offset for devices. */
static inline uint64_t verbs_address(const struct tern_mem *mem, uint64_t offset)
{
	return (mem->kind == TERN_MEM_HOST ? (uintptr_t)mem->base : mem->address) +
	       offset;
}

/* The first IP address of the device. The caller holds the lock. -EADDRNOTAVAIL. */
int verbs_address_of(struct verbs_fabric *fabric, const struct verbs_device *device,
	struct tern_addr *out);

/* ---- GPU memory: gpu.c ---- */

/* Registers GPU memory with one device. If the device cannot, nothing changes. The
 * caller holds the lock. */
void verbs_gpu_register(struct verbs_fabric *fabric, struct verbs_device *device,
	struct verbs_reg *reg, struct tern_env *env);
const char *verbs_gpu_reaches(const struct tern_conn *conn, const struct tern_mem *mem);

/* ---- slots: slot.c ---- */

/* Largest payload of one frame: an eager message of the default threshold and the
 * headers of the layer above. */
#define VERBS_PAYLOAD (8192u + 384u)
/* So that the data after the frame header is 64-byte aligned. */
#define VERBS_SLOT_PAD 56u
#define VERBS_SLOT_BYTES                                                                 \
	(VERBS_SLOT_PAD + (uint32_t)sizeof(struct verbs_frame) + VERBS_PAYLOAD)
_Static_assert(VERBS_SLOT_BYTES % 64 == 0, "slots stay aligned");
#define VERBS_SLAB_SLOTS 256u
#define VERBS_SLABS_MAX  1024u /* of a device: for some 7,000 conns, 310 KB each */

enum verbs_slot_place { VERBS_SLOT_FREE, VERBS_SLOT_SENDING, VERBS_SLOT_POSTED };

struct verbs_slot {
	void *owner;        /* POSTED: its verbs_queue or verbs_conn; SENDING: its conn */
	uint32_t next_free; /* index + 1 */
	enum verbs_slot_place place;
};

struct verbs_slots {
	struct tern_mem *slabs[VERBS_SLABS_MAX];
	struct verbs_slot *table; /* array of slab_count * VERBS_SLAB_SLOTS */
	uint32_t slab_count;
	uint32_t free, free_count;
	uint32_t reserved; /* free slots that conns are entitled to */
	/* Free slots that are to be posted again: see verbs_queue_books(). */
	uint32_t owed;
};

/* ---- ports ---- */

#define VERBS_WINDOW      128u /* messages that a peer may have in flight */
#define VERBS_WINDOW_MANY 16u  /* the same for conns beyond VERBS_FEW */
#define VERBS_FEW         16u
#define VERBS_DEPTH_MIN   16u
#define VERBS_CONTROL     4u
#define VERBS_SEND_SLOTS  16u /* slots that a conn is guaranteed for sending */
#define VERBS_SEND_COMMON 128u
/* Work requests per doorbell, completions per poll of a CQ. */
#define VERBS_BATCH       16u
#define VERBS_INLINE      256u
#define VERBS_PUTS_MAX    16u /* puts that may wait for room */
#define VERBS_EAGER_BYTES 8192u
#define VERBS_CHUNK_BYTES (1u << 20)
/* Limits: time for an accepted conn to come up, for a closing conn to send its data,
 * and for a disconnect to be acknowledged. */
#define VERBS_ACCEPT_NS (5 * TERN_NS_PER_S)
/* Half-open conns, each of which has a queue pair and 310 KB of registered memory:
 * transport/admission.h. */
#define VERBS_HALF_OPEN_MAX 256u
#define VERBS_FLUSH_NS      TERN_NS_PER_S
#define VERBS_LINGER_NS     (200 * TERN_NS_PER_MS)
/* A busy port polls this often between two looks at events other than completions. */
#define VERBS_ASK_POLLS 64u

struct verbs_conn;

/* A device, as one port uses it. */
struct verbs_queue {
	struct tern_list node; /* in verbs_port.queues */
	struct verbs_port *port;
	struct verbs_device *device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	/* Shared receive queue. NULL: each queue pair has its own. So have queue pairs
	 * that are made when it is full. */
	struct ibv_srq *srq;
	int cq_entries, cq_used;
	uint32_t posted, wanted; /* slots in the SRQ: posted now, wanted */
	uint32_t srq_max;
	unsigned conn_count;
	bool broken;   /* the CQ cannot be read any more */
	bool notified; /* the next completion makes the channel readable */
	struct verbs_slots slots;
	struct ibv_wc stash[VERBS_BATCH]; /* completions that arm() found */
	int stash_count;
	struct verbs_conn *hash[256]; /* conns, by queue pair number */
};

struct verbs_port {
	struct tern_port base;
	struct tern_list node; /* in a list of async.c */
	struct rdma_event_channel *channel;
	int epoll_fd, timer_fd, wake_fd;
	struct tern_list queues, lsns, conns, zombies;
	struct tern_list dirty;   /* conns with work requests that wait for a doorbell */
	struct tern_list blocked; /* conns that owe a `writable` */
	struct tern_list ending;  /* conns to be ended by this poll */
	struct tern_windows windows; /* allocated for the first guarded region */
	char device[VERBS_NAME_MAX]; /* the only device to use; "": all */
	struct verbs_conn **table;   /* conns, by index */
	uint32_t table_count;
	unsigned conn_count;
	uint64_t deadline_ns; /* next deadline of conns and zombies; UINT64_MAX: none */
	uint64_t timer_fd_ns; /* time for which timer_fd is set */
	unsigned turn;
	bool armed, polling;
	bool bereft; /* A device is dead: its queue is to be freed when it is idle. */
	/* Accepted conns; some may be of a session by now. */
	struct tern_admission half_open;
	/* Another thread has set a conn's async_status, or found a device dead. */
	atomic_bool events;
};

struct verbs_lsn {
	struct tern_lsn base;
	struct tern_list node;
	struct rdma_cm_id *id; /* NULL: its device was removed */
	struct tern_addr bound;
	uint64_t again_ns; /* without an id: time to look for the device again */
	char address[VERBS_NAME_MAX];
};

/* An id whose disconnect the other end has not acknowledged yet. */
struct verbs_zombie {
	struct tern_list node;
	struct rdma_cm_id *id;
	uint64_t deadline_ns;
};

/* ---- conns ---- */

/*
 *     RESOLVING -> ROUTING -> CONNECTING --+
 *                              ACCEPTING --+--> UP -> FLUSHING      any -> ENDING
 *
 * ENDING: the conn is in port->ending, and verbs_end_all() frees it.
 */
enum verbs_state {
	VERBS_RESOLVING,
	VERBS_ROUTING,
	VERBS_CONNECTING,
	VERBS_ACCEPTING,
	VERBS_UP,
	/* BYE was requested: the conn ends when everything has been sent. */
	VERBS_FLUSHING,
	VERBS_ENDING,
};

/* Layout of tern_op.priv. */
struct verbs_op {
	struct tern_list node; /* in verbs_conn.puts or gets, or unlinked */
	struct tern_mem *mem;
	uint64_t offset;
	uint64_t left; /* bytes for which no work request was made yet */
	uint64_t remote;
	uint32_t key;        /* remote key, or slot of the window */
	uint32_t generation; /* generation of the window */
	bool guarded;        /* the target is a window: bytes are sent as messages */
};
_Static_assert(sizeof(struct verbs_op) <= sizeof(((struct tern_op *)0)->priv), "fits");

enum verbs_work { VERBS_WORK_SEND, VERBS_WORK_WRITE, VERBS_WORK_READ };

/* A work request in the send queue. */
struct verbs_wr {
	enum verbs_work work;
	bool last;     /* its completion completes op */
	uint32_t slot; /* slot to free + 1; 0: none */
	struct tern_op *op;
};

struct verbs_conn {
	struct tern_conn base;
	struct tern_list node;    /* in verbs_port.conns */
	struct tern_list all;     /* in the list of conns of async.c */
	struct tern_list dirty;   /* in verbs_port.dirty */
	struct tern_list blocked; /* in verbs_port.blocked */
	struct tern_list ending;  /* in verbs_port.ending */
	enum verbs_state state;
	int status;
	uint32_t index;
	bool announced; /* the layer above knows the conn, so `closed` is due */
	bool by_user;   /* conn_close() was called */
	bool connected; /* established: rdma_disconnect() reaches the peer */
	bool eof;       /* the peer has sent BYE */
	bool peer_gone; /* the peer disconnected */
	bool bye_sent;
	/* It receives from the SRQ; otherwise from its own receive queue. */
	bool shares_srq;
	bool in_srq; /* its receives are counted in queue->wanted */
	/* Set by whichever thread has read the device's events. */
	atomic_int async_status;
	struct verbs_lsn *lsn;
	struct tern_half_open half_open; /* accepted, and not of a session yet */
	struct rdma_cm_id *id;
	struct verbs_queue *queue; /* NULL: no queue pair */
	struct ibv_qp *qp;
	uint32_t qp_num;
	struct tern_addrs *addrs; /* addresses left to try, while it resolves */
	struct tern_addr from;    /* local address; len 0: as the options say */
	int cq_entries;           /* entries reserved in the queue's CQ */
	struct verbs_conn *hash_next;
	uint64_t deadline_ns;

	/* Sending. Positions in the ring wrap; its size is a power of two. */
	struct verbs_wr *ring;
	uint32_t ring_size, depth;
	/* Requests [head, tail) are in the send queue or wait for a doorbell. */
	uint32_t head, tail;
	uint32_t unsignalled;
	uint32_t probe_at;   /* position of the last write of 0 bytes */
	uint32_t wait_count; /* requests that wait for a doorbell */
	struct ibv_send_wr wr[VERBS_BATCH];
	struct ibv_sge sge[VERBS_BATCH][2];
	char (*stage)[VERBS_INLINE]; /* inline data of wr[] */
	uint32_t inline_max;
	uint32_t slots_held; /* slots held for sending */
	/* Messages sent; messages that the peer has reported as handled. */
	uint32_t sent, heard_credit;
	uint32_t window;      /* window that the peer granted */
	uint64_t piece_bytes; /* largest size of one WRITE or READ */
	uint32_t peer_device;
	bool peer_guarded;
	uint32_t need; /* if blocked: number of frames that the refused call needs */
	struct tern_list puts; /* puts with bytes left, in order */
	uint32_t put_count;
	struct tern_list gets;    /* gets with bytes left */
	uint32_t reads, read_max; /* reads in flight, and their limit */

	/* Receiving. */
	uint32_t granted; /* window granted to the peer */
	uint32_t received, told;
	char *assembly; /* buffer that assembles MOREs */
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

/* ---- choice: choice.c ---- */

int verbs_devices(struct tern_fabric *base, struct tern_rdma_device *out, unsigned max);

/* An address as the user gave it, "HOST:PORT" or "HOST:PORT@DEVICE", split. */
struct verbs_choice {
	char address[128];           /* without the device */
	char device[VERBS_NAME_MAX]; /* "": any */
	struct tern_addr own;        /* address of the device; len 0: any */
};
/* Parses `text`. Without a device in it, the port's device is used. -EINVAL:
 * malformed; -ENODEV: no such device (a log line lists the devices); -EADDRNOTAVAIL:
 * the device has no address. */
int verbs_choose(struct verbs_port *port, const char *text, struct verbs_choice *out);
/* True if `context` is the chosen device, or any device may be used. */
bool verbs_is_choice(const struct verbs_port *port, const struct verbs_choice *choice,
	struct ibv_context *context);

/* ---- slot.c ---- */

void verbs_slots_fini(struct verbs_queue *queue);
/* Makes sure that `count` more slots are free and not reserved. -ENOMEM; -EIO: the
 * device refuses to register more memory. */
int verbs_slots_grow(struct verbs_queue *queue, uint32_t count);
/* Takes a free slot for sending. Returns its index, or -EAGAIN. Slots that other conns
 * are entitled to are not taken. */
int verbs_slot_take(struct verbs_conn *conn);
/* Gives the slot back after its SEND has completed. */
void verbs_slot_give(struct verbs_queue *queue, uint32_t slot);
/* Number of slots that the conn could take now. */
uint32_t verbs_slot_count(const struct verbs_conn *conn);
/* Address of the frame in a slot. */
char *verbs_slot_at(const struct verbs_queue *queue, uint32_t slot);
struct ibv_sge verbs_slot_sge(
	const struct verbs_queue *queue, uint32_t slot, uint32_t bytes);
/* Posts free slots for receiving: `count` of them to the conn's own queue, or up to
 * `wanted` to the queue's SRQ. A negative errno: the device refused. */
int verbs_slots_post(struct verbs_conn *conn, uint32_t count);
int verbs_slots_refill(struct verbs_queue *queue);
/* Adds to the number of slots that the SRQ has, and should have. */
void verbs_queue_books(struct verbs_queue *queue, int posted, int wanted);
/* True if the slot was posted to the SRQ. */
bool verbs_slot_is_shared(const struct verbs_queue *queue, uint32_t slot);
/* Marks a slot that was received into: it is not posted any more. */
void verbs_slot_arrived(struct verbs_queue *queue, uint32_t slot);
/* Frees all slots of `owner`, after its SRQ or queue pair was destroyed. */
void verbs_slots_reclaim(struct verbs_queue *queue, const void *owner);

/* ---- port.c ---- */

/* The port's queue for a device, made at the first use. */
int verbs_queue_get(
	struct verbs_port *port, struct ibv_context *context, struct verbs_queue **out);
/* Reserves `entries` completions in the CQ, and enlarges it if necessary. -ENOMEM,
 * -ENOSPC. */
int verbs_queue_reserve(struct verbs_queue *queue, int entries);
/* Handles all completions that are there. */
void verbs_queue_drain(struct verbs_queue *queue);
/* The device is gone or broken: ends everything that uses it, in other ports too. */
void verbs_device_failed(struct verbs_queue *queue, const char *what);
void verbs_port_deadline(struct verbs_port *port, uint64_t at_ns);
int verbs_poll(struct tern_port *base, int budget);
int verbs_arm(struct tern_port *base);
int verbs_fd(struct tern_port *base);
int verbs_port_new(struct tern_fabric *base, const struct tern_port_opts *opts,
	struct tern_port **out);
void verbs_port_free(struct tern_port *base);

/* ---- async.c: asynchronous events of the devices, for the whole process ---- */

void verbs_async_add_fabric(struct verbs_fabric *fabric);
void verbs_async_add_port(struct verbs_port *port);
void verbs_async_add_conn(struct verbs_conn *conn);
/* Removes a fabric, port or conn from async.c's lists. */
void verbs_async_forget(struct tern_list *node);
/* Reads the events of the queue's device. Returns how many. */
int verbs_async_read(struct verbs_queue *queue);
/* Tells every fabric and port of the process that the device is dead. */
void verbs_async_died(struct ibv_context *context);

/* ---- lsn.c ---- */

int verbs_listen(struct tern_port *base, const char *address, struct tern_lsn **out);
const char *verbs_lsn_address(struct tern_lsn *base);
void verbs_lsn_close(struct tern_lsn *base);
/* NULL: the id is not a listener's. */
struct verbs_lsn *verbs_lsn_find(struct verbs_port *port, const struct rdma_cm_id *id);
/* Handles an event of a listener's id, other than a connection request. */
void verbs_lsn_event(struct verbs_lsn *lsn, const struct rdma_cm_event *event);
/* Listens again on devices that have returned. */
void verbs_lsn_expire(struct verbs_port *port, uint64_t now_ns);

/* ---- cm.c ---- */

int verbs_connect(struct tern_port *base, const char *address, struct tern_conn **out);
/* Handles all waiting events. Returns how many. */
int verbs_cm_poll(struct verbs_port *port);
/* Called on the accepting side when data arrives before librdmacm's ESTABLISHED event. */
void verbs_cm_heard(struct verbs_conn *conn);

/* ---- conn.c ---- */

/* `state`: RESOLVING for a conn that dials, ACCEPTING for the other end. */
struct verbs_conn *verbs_conn_new(struct verbs_port *port, enum verbs_state state);
/* Changes the state, by an edge of the diagram. */
void verbs_conn_enter(struct verbs_conn *conn, enum verbs_state next);
/* Makes the queue pair, on the device to which the id is bound. */
int verbs_conn_open(struct verbs_conn *conn);
/* Marks the conn as ending with `status`; the first status counts. Callable anywhere. */
void verbs_conn_end(struct verbs_conn *conn, int status);
void verbs_conn_close(struct tern_conn *base, bool flush);
/* Ends all conns in port->ending. Returns how many. */
int verbs_end_all(struct verbs_port *port);
/* Handles the deadlines that have passed. */
void verbs_conn_expire(struct verbs_port *port, uint64_t now_ns);
void verbs_zombie_free(struct verbs_port *port, struct verbs_zombie *zombie);
struct verbs_conn *verbs_conn_by_qp(struct verbs_queue *queue, uint32_t number);
/* Logs a warning that names the peer, and ends the conn with -EPROTO. */
void verbs_conn_blame(struct verbs_conn *conn, const char *what);

/* ---- tx.c ---- */

int verbs_send(struct tern_conn *base, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);
int verbs_put(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int verbs_get(struct tern_conn *base, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
/* Posts the gathered work requests with one doorbell. */
void verbs_tx_flush(struct verbs_conn *conn);
/* The peer reports that it has handled `credit` messages in all. */
void verbs_tx_credit(struct verbs_conn *conn, uint32_t credit);
/* The work requests up to position `at` have completed. */
void verbs_tx_done(struct verbs_conn *conn, uint32_t at);
uint64_t verbs_unanswered_ns(struct tern_conn *conn);
/* Sends a frame without a message. -EAGAIN. */
int verbs_tx_control(struct verbs_conn *conn, enum verbs_frame_type type);
/* True if something that had to wait may be sent now. */
bool verbs_tx_open(const struct verbs_conn *conn);
/* Sends BYE once everything else has been posted. */
void verbs_tx_farewell(struct verbs_conn *conn);
/* Ends every op with `status`, after the queue pair was destroyed. */
void verbs_tx_abort(struct verbs_conn *conn, int status);

/* ---- rx.c ---- */

/* Handles one received frame of `bytes` in a slot. */
void verbs_rx(struct verbs_conn *conn, uint32_t slot, uint32_t bytes);
/* Sends a credit if the peer may be waiting for one. */
void verbs_rx_settle(struct verbs_conn *conn);

/* wr_id of a receive names its slot; wr_id of a send names its conn and position. */
#define VERBS_ID_RECV (1ull << 63)
static inline uint64_t verbs_id_send(const struct verbs_conn *conn, uint32_t at)
{
	return (uint64_t)conn->index << 32 | at;
}

#endif
