/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the verbs fabric (RDMA through libibverbs and librdmacm). Its files:
 *
 *     verbs.c           fabric: devices, registrations; the vtable
 *     gpu.c             GPU memory that the devices can access (GPUDirect RDMA)
 *     choice.c          the list of devices, and the choice of one of them
 *     opts.c            parsing of options, "gid=3,retry=7"
 *     port.c            poll and arm: completion queues and all other events
 *     slot.c            slots: registered buffers for sending and receiving frames
 *     async.c           the devices' asynchronous events
 *     cm.c              connecting, accepting: librdmacm's events
 *     lsn.c             listening
 *     conn.c            a conn's queue pair, from creation to its end
 *     tx.c              sending messages, puts and gets
 *     rx.c              receiving
 *     retire.c          destroys librdmacm's ids on a thread of its own
 *     load.c, module.c  libibverbs and librdmacm, if they are there
 *
 * Each conn has one reliable queue pair. Messages are SENDs that arrive in slots
 * (registered buffers) posted to a shared receive queue (or to the queue pair's own
 * receive queue, if there is no shared one or it is full). A put is an RDMA WRITE and a
 * get an RDMA READ between registered memories (in several pieces, if it is large). The
 * order on the queue pair is the order that fabric.h requires.
 *
 * Flow control. When two ends connect, each grants the other a window: a number of
 * messages that may be in flight. The granting end posts a slot for each of these
 * messages, so a SEND never finds the receiver without a posted slot. Every frame carries
 * the number of messages that its sender has handled. Frames without a message (a credit
 * update, a BYE) have additional slots: at most VERBS_CONTROL of them are in flight.
 *
 * Trust. Normally a region contains the RDMA keys of a whole registered memory, as is
 * usual with RDMA: a peer is trusted to write only where it may, and nothing enforces
 * this (TERN_CAP_UNGUARDED). With the option guard=on no key leaves this process: peers
 * send their puts as messages, which are checked and copied (exposure.c), and get() is not
 * available.
 *
 * Host memory that a device refuses to register, except with -ENOMEM, is transferred in
 * the same way: its owner exposes it as a guarded region, into which the peer puts by
 * messages; it must not be exposed for reading; and puts from it are copied to slots
 * first. So tensors in such memory are copied once more, but the conn stays up.
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
#include "transport/exposure.h"

/* A region has one key per device, so this number is part of the wire format. */
#define VERBS_DEVICES_MAX 8
#define VERBS_NAME_MAX    64

/* ---- the wire format ---- */

#define VERBS_MAGIC   0x4e524554u /* "TERN" */
#define VERBS_VERSION 2

enum verbs_flags {
	/* The sender uses guard=on: its regions contain no keys, and peers put by
	 * messages. */
	VERBS_GUARDED = 1 << 0,
};

/* Private data of a connection request and of its answer, little-endian. The size is
 * limited by the smallest limit of all transports: 56 bytes, which librdmacm leaves of
 * the 92 bytes of InfiniBand's REQ. */
struct verbs_greeting {
	uint32_t magic;
	uint16_t version;
	uint16_t flags;
	int32_t status; /* in a rejection: the reason, a negative errno */
	uint32_t message_bytes;
	uint32_t window; /* number of messages that the other end may have in flight */
	/* Index of the sender's device: selects the key in a region for this conn. */
	uint32_t device;
	uint32_t reserved[2];
};
_Static_assert(sizeof(struct verbs_greeting) == 32, "fits the private data of a REQ");

enum verbs_frame_type {
	VERBS_MESSAGE = 1, /* a whole message, or its last part */
	VERBS_MORE = 2,    /* part of a message that is longer than a slot */
	/* A put to a guarded region: a struct verbs_put, then the bytes. */
	VERBS_PUT = 3,
	VERBS_CREDIT = 4, /* no payload: only updates the credit */
	VERBS_BYE = 5,    /* the sender's last frame */
};

/* Header of every frame. Little-endian, like all of the wire format. */
struct verbs_frame {
	/* Total number of MESSAGE, MORE and PUT frames that the sender of this frame
	 * has received and handled. */
	uint32_t credit;
	uint8_t type;
	uint8_t reserved[3];
};

/* Follows the header of a PUT frame: where its bytes must be written. `slot` is the index
 * of the exposure (transport/exposure.h), not one of the message slots of
 * slot.c. */
struct verbs_put {
	uint32_t slot, generation;
	uint64_t offset;
};
_Static_assert(sizeof(struct verbs_frame) == 8 && sizeof(struct verbs_put) == 16, "wire");

/* A decoded tern_region (the right to access a range of memory). On the wire: start; then
 * bytes, access << 48 and guarded << 56 in one word; then the keys, little-endian. On a
 * machine with at most four devices, the last four keys are zero, and are not sent. */
#define VERBS_BYTES_MAX ((1ull << 48) - 1)
struct verbs_region {
	uint64_t
		start; /* address; if guarded: index of the exposure | generation << 32 */
	uint64_t bytes;
	uint8_t access; /* enum tern_access */
	uint8_t guarded;
	uint32_t keys[VERBS_DEVICES_MAX];
};
void verbs_region_encode(const struct verbs_region *region, struct tern_region *out);
void verbs_region_decode(const struct tern_region *wire, struct verbs_region *out);

/* ---- options: opts.c ---- */

struct verbs_opts {
	/* Names of the devices to use; none: all devices. */
	char devices[VERBS_DEVICES_MAX][VERBS_NAME_MAX];
	unsigned device_count;
	/* Local address to connect from, unless a device was chosen (verbs_choose()); len
	 * 0: the system chooses. */
	struct tern_addr from;
	/* Index in the GID table of the first device: `from` becomes the IP address of
	 * this GID. -1: the option gid= was not given. */
	int gid_index;
	int traffic_class; /* -1: the system's default */
	/* Local ACK timeout: an unacknowledged packet is retransmitted after 4.096 us <<
	 * this. */
	int timeout_exponent;
	unsigned retry_count;
	unsigned depth;      /* size of a queue pair's send queue, in work requests */
	unsigned inline_max; /* inline data to request from the device, in bytes */
	/* Largest number of RDMA READs in flight on a conn; the devices of both ends may
	 * allow fewer. */
	unsigned read_max;
	bool no_srq, guard;
};

/* Parses "NAME=VALUE,...". -EINVAL: *error gets a sentence about it. `text` may be
 * NULL. */
int verbs_opts_parse(const char *text, struct verbs_opts *out, char *error, size_t bytes);

/* ---- the fabric: verbs.c ---- */

struct verbs_device {
	/* Opened by librdmacm for the whole process. This fabric never closes it;
	 * librdmacm may close a removed device when its last id is destroyed. */
	struct ibv_context *context;
	struct ibv_pd *pd; /* NULL: the device is not in use (yet, or any more) */
	struct ibv_device_attr attr;
	unsigned index;
	unsigned user_count; /* number of ports that have a verbs_queue on the device */
	atomic_bool dead;    /* removed, or failed permanently */
	atomic_bool told;    /* the failure was logged */
	/* The device did not report IBV_EVENT_QP_LAST_WQE_REACHED in time. */
	atomic_bool keeps_quiet;
	/* Status and size of the last refused registration that was logged, so that a
	 * retry does not log it again. */
	int refused_status;
	uint64_t refused_bytes;
	bool gpu_refused; /* the device could not register GPU memory; this was logged */
	bool gpu_taken;   /* the device has registered GPU memory at least once */
	/* Why the device refused the GPU memory that was registered last; "": it did
	 * not. */
	char gpu_refusal[164];
	/* Does the device register dma-bufs? Asked once (verbs_gpu_ways()). */
	enum { VERBS_DMA_BUF_UNKNOWN, VERBS_DMA_BUF_NO, VERBS_DMA_BUF_YES } dma_buf;
};

/* The registrations of one memory with all devices. */
struct verbs_reg {
	struct tern_list node; /* in verbs_fabric.regs */
	struct tern_mem *mem;
	/* The registrations, by device index; protected by the fabric's lock. */
	struct ibv_mr *mr[VERBS_DEVICES_MAX];
	/* Keys of the registrations, by device index; 0: not registered. Read without the
	 * lock. */
	_Atomic uint32_t lkeys[VERBS_DEVICES_MAX], rkeys[VERBS_DEVICES_MAX];
	/* How the devices access the memory, as text for people ("dma-buf"); NULL: at
	 * least one device cannot access it, or no device is in use. */
	_Atomic(const char *) way;
	/* The same for each device; protected by the fabric's lock. */
	const char *ways[VERBS_DEVICES_MAX];
};

struct verbs_fabric {
	struct tern_fabric base;
	struct tern_list node; /* in async.c's list of fabrics */
	const struct tern_verbs_api *api;
	struct verbs_opts opts;
	/* Protects all members below: a port on another thread may bring a device into
	 * use while memory is registered or unregistered. */
	pthread_mutex_t lock;
	struct verbs_device devices[VERBS_DEVICES_MAX];
	atomic_uint device_count;
	/* IP address of one device: a listener at every address of this machine announces
	 * it to peers. See find_devices(). len 0: no device has an IP address. */
	struct tern_addr own;
	struct tern_list regs;
};

/* Access flags (ibv_reg_mr(3)) for registering `mem`. */
int verbs_access(const struct verbs_fabric *fabric, const struct tern_mem *mem);
/* Stores the registration of `reg` with device `index`; `reg` then owns `mr`. The caller
 * holds the fabric's lock. */
void verbs_reg_set(struct verbs_reg *reg, unsigned index, struct ibv_mr *mr);

/* Brings all devices into use. A negative errno if none of them works. */
int verbs_start(struct verbs_fabric *fabric, struct tern_env *env);

/* Finds the device with this context; if it was plugged in after the fabric was opened,
 * adds it. At its first use all memory is registered with it. Increments its user_count.
 * -ENODEV: the option device= leaves it out, there are VERBS_DEVICES_MAX others, or it is
 * dead; -ENOMEM and other errors: it could not be started. */
int verbs_device_use(struct verbs_fabric *fabric, struct ibv_context *context,
	struct tern_env *env, struct verbs_device **out);

/* Marks the device with this context as dead, if this fabric has such a device. */
void verbs_device_died(struct verbs_fabric *fabric, struct ibv_context *context);
/* Decrements the device's user_count. When a dead device has no more users, its
 * registrations are released. */
void verbs_device_put(struct verbs_fabric *fabric, struct verbs_device *device);

/* The local key of `mem` for work requests on `device`. 0: the device is dead, and the
 * calling conn must end; or the device could not register `mem`, so its bytes must be
 * copied to slots. */
static inline uint32_t verbs_lkey(const struct tern_mem *mem,
	const struct verbs_device *device, const struct tern_fabric *fabric)
{
	struct verbs_reg *reg = tern_mem_reg(mem, fabric->index);

	return atomic_load_explicit(&reg->lkeys[device->index], memory_order_acquire);
}

/* The address of (mem, offset) in work requests: of host memory or of GPU memory. */
static inline uint64_t verbs_address(const struct tern_mem *mem, uint64_t offset)
{
	return (mem->kind == TERN_MEM_HOST ? (uintptr_t)mem->base : mem->address) +
	       offset;
}

/* The first IP address of the device. The caller holds the fabric's lock. -EADDRNOTAVAIL:
 * it has none. */
int verbs_address_of(struct verbs_fabric *fabric, const struct verbs_device *device,
	struct tern_addr *out);

/* ---- GPU memory: gpu.c ---- */

/* Registers GPU memory with one device. If the device cannot do that, `reg` stays as it
 * is, and the device is marked as refusing GPU memory (logged once). The caller holds the
 * fabric's lock. */
void verbs_gpu_register(struct verbs_fabric *fabric, struct verbs_device *device,
	struct verbs_reg *reg, struct tern_env *env);
const char *verbs_gpu_reaches(
	const struct tern_fabric *fabric, const struct tern_mem *mem);
/* How the device can get GPU memory, as its driver says: enum tern_gpu_way. The caller holds
 * the fabric's lock. */
uint32_t verbs_gpu_ways(struct verbs_fabric *fabric, struct verbs_device *device);

/* ---- slots: slot.c ---- */

/* Largest payload of one frame, in bytes: an eager message of the default threshold, and
 * the headers of the rendezvous layer. */
#define VERBS_PAYLOAD (8192u + 384u)
/* Unused bytes at the start of a slot. They align the payload, which follows the frame's
 * header, to 64 bytes. */
#define VERBS_SLOT_PAD 56u
#define VERBS_SLOT_BYTES                                                                 \
	(VERBS_SLOT_PAD + (uint32_t)sizeof(struct verbs_frame) + VERBS_PAYLOAD)
_Static_assert(VERBS_SLOT_BYTES % 64 == 0, "slots stay aligned");
/* Number of slots in a slab. A slab is one registered memory, which is divided into
 * slots. */
#define VERBS_SLAB_SLOTS 256u
/* Largest number of slabs that a port has for one device: enough for about 7,000 conns,
 * at 310 KB each (more for conns made while there are at most VERBS_FEW). */
#define VERBS_SLABS_MAX 1024u

enum verbs_slot_place { VERBS_SLOT_FREE, VERBS_SLOT_SENDING, VERBS_SLOT_POSTED };

struct verbs_slot {
	/* If POSTED: the verbs_queue or verbs_conn to whose receive queue it was posted;
	 * if SENDING: the verbs_conn. */
	void *owner;
	uint32_t next_free; /* next free slot, as index + 1 */
	enum verbs_slot_place place;
};

struct verbs_slots {
	struct tern_mem *slabs[VERBS_SLABS_MAX];
	struct verbs_slot *table; /* array of slab_count * VERBS_SLAB_SLOTS entries */
	uint32_t slab_count;
	uint32_t free, free_count;
	/* Number of free slots that are reserved for sending, over all conns. */
	uint32_t reserved;
	/* Number of free slots that must be kept for receives that the SRQ lacks:
	 * verbs_queue_books(). */
	uint32_t owed;
};

/* ---- ports ---- */

#define VERBS_WINDOW 128u /* number of messages that a peer may have in flight */
/* The same, for conns that are made when the port has more than VERBS_FEW conns. */
#define VERBS_WINDOW_MANY 16u
#define VERBS_FEW         16u
#define VERBS_DEPTH_MIN   16u
#define VERBS_CONTROL     4u
#define VERBS_SEND_SLOTS  16u /* number of slots that a conn is guaranteed for sending */
#define VERBS_SEND_COMMON 128u
/* Largest number of work requests posted at once, and of completions read at once. */
#define VERBS_BATCH  16u
#define VERBS_INLINE 256u
/* Largest number of puts of a conn that wait to be posted. */
#define VERBS_PUTS_MAX    16u
#define VERBS_EAGER_BYTES 8192u
#define VERBS_CHUNK_BYTES (1u << 20)
/* Time limits: VERBS_ACCEPT_NS for an accepted conn to come up, VERBS_FLUSH_NS for a
 * closing conn to send its data, VERBS_LINGER_NS for a disconnect to be acknowledged. */
#define VERBS_ACCEPT_NS (5 * TERN_NS_PER_S)
/* Largest number of half-open conns of a port (transport/admission.h). Each has a queue
 * pair and at least 310 KB of registered memory. */
#define VERBS_HALF_OPEN_MAX 256u
#define VERBS_FLUSH_NS      TERN_NS_PER_S
#define VERBS_LINGER_NS     (200 * TERN_NS_PER_MS)
/* A port checks for events other than completions once in this many polls, and after a
 * sleep or a failed work request. */
#define VERBS_ASK_POLLS 64u

struct verbs_conn;

/* State of a device in one port: its completion queue, receive queue and slots. */
struct verbs_queue {
	struct tern_list node; /* in verbs_port.queues */
	struct verbs_port *port;
	struct verbs_device *device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	/* Shared receive queue. NULL: each queue pair has its own receive queue, as do
	 * queue pairs that are made while the SRQ is full. */
	struct ibv_srq *srq;
	int cq_entries, cq_used;
	/* Number of slots that are posted to the SRQ, and that should be posted. */
	uint32_t posted, wanted;
	uint32_t srq_max;
	unsigned conn_count;
	bool broken; /* the CQ cannot be read any more, because reading it failed */
	/* A notification was requested: the next completion makes the channel
	 * readable. */
	bool notified;
	struct verbs_slots slots;
	/* Completions that arm() has read, for the next poll() to handle. */
	struct ibv_wc stash[VERBS_BATCH];
	int stash_count;
	struct verbs_conn *hash[256]; /* hash table of conns, by queue pair number */
};

struct verbs_port {
	struct tern_port base;
	struct tern_list node; /* in async.c's list of ports */
	struct rdma_event_channel *channel;
	int epoll_fd, timer_fd, wake_fd;
	struct tern_list queues, lsns, conns, zombies;
	struct tern_list dirty; /* conns with work requests that were not posted yet */
	/* Conns whose send() or put() returned -EAGAIN, so `writable` must be called
	 * later. */
	struct tern_list blocked;
	struct tern_list ending; /* conns that the current or next poll ends */
	/* Exposures of guarded regions: memory into which peers write by messages,
	 * because of the option guard=on or because a device could not register it.
	 * Allocated at the first use. */
	struct tern_exposures exposures;
	/* Name of the device for addresses that name none; "": any device. */
	char device[VERBS_NAME_MAX];
	struct verbs_conn **table; /* conns, by verbs_conn.index */
	uint32_t table_count;
	unsigned conn_count;
	/* Earliest of all deadlines of the port; UINT64_MAX: none. */
	uint64_t deadline_ns;
	uint64_t timer_fd_ns; /* time for which timer_fd is set; UINT64_MAX: it is off */
	unsigned turn;
	bool armed, polling;
	/* A device is dead; its verbs_queue must be freed when it has no more conns. */
	bool bereft;
	/* Accepted conns that have not completed the session's handshake. Those that have
	 * completed it meanwhile stay here until forget_owned() removes them. */
	struct tern_admission half_open;
	/* Set by any thread (async.c): a conn has an async_status, or a device is
	 * dead. */
	atomic_bool events;
};

struct verbs_lsn {
	struct tern_lsn base;
	struct tern_list node;
	struct rdma_cm_id *id; /* NULL: the listener's device was removed */
	struct tern_addr bound;
	uint64_t again_ns; /* if id is NULL: time of the next attempt to listen again */
	char address[VERBS_NAME_MAX];
};

/* A librdmacm id that is kept after the end of its conn, because the other end has not
 * acknowledged the disconnect yet, or because the device is dead and its verbs_queue must
 * be freed before the id. */
struct verbs_zombie {
	struct tern_list node;
	struct rdma_cm_id *id;
	uint64_t deadline_ns;
};

/* ---- conns ---- */

/*
 * States of a conn:
 *
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
	/* Closed by the user with `flush`: ends when all data, and a BYE after it, was
	 * sent, or after VERBS_FLUSH_NS. */
	VERBS_FLUSHING,
	VERBS_ENDING,
};

/* Contents of tern_op.priv: state of a put or get. */
struct verbs_op {
	struct tern_list node; /* in verbs_conn.puts or gets, or unlinked */
	struct tern_mem *mem;
	uint64_t offset;
	uint64_t left; /* number of bytes for which no work request was made yet */
	uint64_t remote;
	uint32_t key; /* remote key; if guarded: index of the exposure */
	uint32_t
		generation; /* if guarded: generation of the peer's struct tern_exposure */
	/* The target is a guarded region: bytes are sent as messages. */
	bool guarded;
};
_Static_assert(sizeof(struct verbs_op) <= sizeof(((struct tern_op *)0)->priv), "fits");

enum verbs_work { VERBS_WORK_SEND, VERBS_WORK_WRITE, VERBS_WORK_READ };

/* A work request of a conn: in its send queue, or not posted yet. */
struct verbs_wr {
	enum verbs_work work;
	bool last;     /* its completion completes `op` */
	uint32_t slot; /* slot to free at completion, as index + 1; 0: none */
	struct tern_op *op;
};

struct verbs_conn {
	struct tern_conn base;
	struct tern_list node;    /* in verbs_port.conns */
	struct tern_list all;     /* in async.c's list of conns */
	struct tern_list dirty;   /* in verbs_port.dirty */
	struct tern_list blocked; /* in verbs_port.blocked */
	struct tern_list ending;  /* in verbs_port.ending */
	enum verbs_state state;
	int status;
	uint32_t index;
	bool announced; /* the layer above knows the conn, so `closed` must be called */
	bool by_user;   /* conn_close() was called */
	/* established or accepted, so rdma_disconnect() notifies the peer */
	bool connected;
	bool eof; /* the peer has sent BYE */
	/* the peer will acknowledge no disconnect: it has disconnected, or the device is
	 * gone */
	bool peer_gone;
	bool bye_sent;
	/* The conn receives from the SRQ. False: from its queue pair's own receive
	 * queue. */
	bool shares_srq;
	bool in_srq; /* the conn's receives are included in queue->wanted */
	/* Error of the queue pair. Set by the thread that has read the device's
	 * asynchronous event. */
	atomic_int async_status;
	/* Set by the same thread: the failed or stopped queue pair takes no more receives
	 * of the SRQ. */
	atomic_bool took_last;
	struct verbs_lsn *lsn;
	/* In port->half_open: accepted, and not known yet to be part of a session. */
	struct tern_half_open half_open;
	struct rdma_cm_id *id;
	struct verbs_queue *queue; /* NULL: the conn has no device yet */
	struct ibv_qp *qp;
	uint32_t qp_num;
	struct tern_addrs *addrs; /* while RESOLVING: addresses left to try */
	/* Local address to use; len 0: that of the option from=. */
	struct tern_addr from;
	int cq_entries; /* entries reserved in the queue's CQ */
	struct verbs_conn *hash_next;
	uint64_t deadline_ns;

	/* Sending. The ring has an entry per work request that has not ended. Positions in
	 * the ring wrap; its size is a power of two. */
	struct verbs_wr *ring;
	uint32_t ring_size, depth;
	/* The work requests at positions [head, tail) are in the send queue, or not
	 * posted yet. */
	uint32_t head, tail;
	uint32_t unsignalled;
	/* Position of the last RDMA WRITE of 0 bytes, which probes the peer's NIC. */
	uint32_t probe_at;
	uint32_t wait_count; /* number of work requests that were not posted yet */
	struct ibv_send_wr wr[VERBS_BATCH];
	struct ibv_sge sge[VERBS_BATCH][2];
	char (*stage)[VERBS_INLINE]; /* buffers for inline data of wr[] */
	uint32_t inline_max;
	uint32_t slots_held; /* number of slots that the conn holds for sending */
	/* Number of frames sent that need a credit; number that the peer has reported as
	 * handled. */
	uint32_t sent, heard_credit;
	/* Number of messages that may be in flight to the peer, which granted them. */
	uint32_t window;
	uint64_t piece_bytes; /* largest size of one RDMA WRITE or READ */
	uint32_t peer_device;
	bool peer_guarded;
	/* If blocked: number of frames that the refused send() needs; 0: the refused call
	 * was put(). */
	uint32_t need;
	/* Puts with bytes for which no work request was made, in order. */
	struct tern_list puts;
	uint32_t put_count;
	struct tern_list gets;    /* gets with bytes for which no work request was made */
	uint32_t reads, read_max; /* number of RDMA READs in flight, and its limit */

	/* Receiving. */
	uint32_t granted; /* number of messages that the peer may have in flight */
	/* Number of frames received that needed a credit; its value when the peer was
	 * last told. */
	uint32_t received, told;
	/* Buffer in which the parts of a long message (MORE frames) are collected. */
	char *assembly;
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

/* An address as the user gave it, "HOST:PORT" or "HOST:PORT@DEVICE", split into its
 * parts. */
struct verbs_choice {
	char address[128];           /* without the device */
	char device[VERBS_NAME_MAX]; /* name of the device; "": any device */
	struct tern_addr own;        /* IP address of the device; len 0: any device */
};
/* Parses `text`. If it names no device, the port's device is used. -EINVAL: malformed;
 * -ENODEV: no such device; -EADDRNOTAVAIL: the device has no IP address. The last two are
 * logged with the device's name. */
int verbs_choose(struct verbs_port *port, const char *text, struct verbs_choice *out);
/* True if `context` is the chosen device, or any device may be used. */
bool verbs_is_choice(const struct verbs_port *port, const struct verbs_choice *choice,
	struct ibv_context *context);

/* ---- slot.c ---- */

void verbs_slots_fini(struct verbs_queue *queue);
/* Adds slabs until `count` slots and VERBS_SEND_COMMON more are free and not reserved.
 * -ENOMEM; -EIO: the device is dead, or refuses to register more memory. */
int verbs_slots_grow(struct verbs_queue *queue, uint32_t count);
/* Takes a free slot for sending. Returns its index; -EAGAIN: none is free, apart from
 * those reserved for other conns and for receiving. */
int verbs_slot_take(struct verbs_conn *conn);
/* Frees a slot after the SEND or RDMA WRITE from it has completed. */
void verbs_slot_give(struct verbs_queue *queue, uint32_t slot);
/* Number of slots that the conn could take for sending now. */
uint32_t verbs_slot_count(const struct verbs_conn *conn);
/* Address of the frame in a slot (after the padding). */
char *verbs_slot_at(const struct verbs_queue *queue, uint32_t slot);
struct ibv_sge verbs_slot_sge(
	const struct verbs_queue *queue, uint32_t slot, uint32_t bytes);
/* Post free slots for receiving: `count` of them to the conn's own receive queue, or to
 * the queue's SRQ until it has `wanted`. A negative errno: the device refused. */
int verbs_slots_post(struct verbs_conn *conn, uint32_t count);
int verbs_slots_refill(struct verbs_queue *queue);
/* Adds `posted` to the number of slots posted to the SRQ, and `wanted` to the number that
 * should be posted. Both may be negative. */
void verbs_queue_books(struct verbs_queue *queue, int posted, int wanted);
/* True if the slot was posted to the SRQ, false if to a conn's own receive queue. */
bool verbs_slot_is_shared(const struct verbs_queue *queue, uint32_t slot);
/* Frees a slot whose receive has completed, when its frame has been handled. */
void verbs_slot_arrived(struct verbs_queue *queue, uint32_t slot);
/* Frees all slots of `owner`, after its SRQ or queue pair was destroyed. */
void verbs_slots_reclaim(struct verbs_queue *queue, const void *owner);

/* ---- port.c ---- */

/* Returns the port's verbs_queue for the device with this context, which is made at the
 * first use. */
int verbs_queue_get(
	struct verbs_port *port, struct ibv_context *context, struct verbs_queue **out);
/* Reserves `entries` entries of the CQ for a conn, and enlarges the CQ if necessary.
 * -ENOSPC: more than the device allows; other errors: the device cannot enlarge the
 * CQ. */
int verbs_queue_reserve(struct verbs_queue *queue, int entries);
/* Handles all completions that are in the CQ now. */
void verbs_queue_drain(struct verbs_queue *queue);
/* Called when the device was removed or has failed: ends all conns on it, in other ports
 * too. */
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
/* Removes a fabric, port or conn from the process-wide lists of async.c. */
void verbs_async_forget(struct tern_list *node);
/* Handles the asynchronous events of the queue's device. Returns their number. */
int verbs_async_read(struct verbs_queue *queue);
/* Notifies every fabric and port of the process that the device is dead. */
void verbs_async_died(struct ibv_context *context);

/* ---- lsn.c ---- */

int verbs_listen(struct tern_port *base, const char *address, struct tern_lsn **out);
const char *verbs_lsn_address(struct tern_lsn *base);
void verbs_lsn_close(struct tern_lsn *base);
/* Finds the listener with this id. NULL: the id is not a listener's. */
struct verbs_lsn *verbs_lsn_find(struct verbs_port *port, const struct rdma_cm_id *id);
/* Handles an event of a listener's id, except connection requests. */
void verbs_lsn_event(struct verbs_lsn *lsn, const struct rdma_cm_event *event);
/* Called at the port's deadline: tries to listen again at each address whose device was
 * removed. If the device has not returned, sets the next deadline. */
void verbs_lsn_expire(struct verbs_port *port, uint64_t now_ns);

/* ---- cm.c ---- */

int verbs_connect(struct tern_port *base, const char *address, struct tern_conn **out);
/* Handles all waiting librdmacm events. Returns their number. */
int verbs_cm_poll(struct verbs_port *port);
/* Called on the accepting side when a frame arrives before librdmacm's ESTABLISHED event:
 * the conn is up then too. */
void verbs_cm_heard(struct verbs_conn *conn);

/* ---- conn.c ---- */

/* Makes a conn. `state`: RESOLVING at the connecting end, ACCEPTING at the other end. */
struct verbs_conn *verbs_conn_new(struct verbs_port *port, enum verbs_state state);
/* Changes the state. The diagram must have this transition (asserted). */
void verbs_conn_enter(struct verbs_conn *conn, enum verbs_state next);
/* Makes the queue pair, on the device to which librdmacm has bound the id. */
int verbs_conn_open(struct verbs_conn *conn);
/* Marks the conn as ending with `status` (after verbs_conn_close(): with 0, or -ECANCELED
 * if it was not connected). If called again, the first status counts. The next
 * verbs_end_all() does the rest, so any function may call this. */
void verbs_conn_end(struct verbs_conn *conn, int status);
void verbs_conn_close(struct tern_conn *base, bool flush);
/* Ends and frees all conns in port->ending. Returns their number. */
int verbs_end_all(struct verbs_port *port);
/* Handles all deadlines of the port that have passed. */
void verbs_conn_expire(struct verbs_port *port, uint64_t now_ns);
void verbs_zombie_free(struct verbs_port *port, struct verbs_zombie *zombie);
struct verbs_conn *verbs_conn_by_qp(struct verbs_queue *queue, uint32_t number);
/* Logs that the peer violated the protocol, and ends the conn with -EPROTO. */
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
/* Posts the collected work requests to the send queue, with one doorbell. */
void verbs_tx_flush(struct verbs_conn *conn);
/* Handles the credit in a received frame: the peer has handled `credit` messages in
 * total. */
void verbs_tx_credit(struct verbs_conn *conn, uint32_t credit);
/* Handles a completion: all work requests up to position `at` have completed. */
void verbs_tx_done(struct verbs_conn *conn, uint32_t at);
uint64_t verbs_unanswered_ns(struct tern_conn *conn);
/* Sends a frame without payload: a credit or a BYE. -EAGAIN: the send queue is full, or
 * no slot is free. */
int verbs_tx_control(struct verbs_conn *conn, enum verbs_frame_type type);
/* True if what a blocked send() or put() was waiting for is available now. */
bool verbs_tx_open(const struct verbs_conn *conn);
/* Sends BYE if all other data has been posted, and ends the conn when the BYE and all
 * data before it have been sent. */
void verbs_tx_farewell(struct verbs_conn *conn);
/* Completes every put and get with `status`, after the queue pair was destroyed. */
void verbs_tx_abort(struct verbs_conn *conn, int status);

/* ---- rx.c ---- */

/* Handles one received frame of `bytes` bytes in a slot. */
void verbs_rx(struct verbs_conn *conn, uint32_t slot, uint32_t bytes);
/* Sends a credit update if the peer may run out of credits. */
void verbs_rx_settle(struct verbs_conn *conn);

/* wr_id of a work request: a receive has VERBS_ID_RECV and its slot; a send has its
 * conn's index and its position in the conn's ring. */
#define VERBS_ID_RECV (1ull << 63)
static inline uint64_t verbs_id_send(const struct verbs_conn *conn, uint32_t at)
{
	return (uint64_t)conn->index << 32 | at;
}

#endif
