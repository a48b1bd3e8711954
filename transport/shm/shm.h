/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the shm fabric (see shm.c for the list of its files). Terms: an area is
 * the memory of one end of a connection, which the other end maps (ring.h); a slab is a
 * memory segment of a pool, which peers map; a note is a small packet on the connection's
 * Unix socket.
 *
 * Lifetime: while poll() runs, the conns and listeners that it may use are freed only at
 * its end (conns by shm_conn_reap()). So whatever a handler does, the pointers that
 * poll() uses stay valid until poll() returns.
 */
#ifndef TERN_TRANSPORT_SHM_SHM_H
#define TERN_TRANSPORT_SHM_SHM_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "transport/admission.h"
#include "transport/fabric.h"
#include "transport/gpu/ipc.h"
#include "transport/memory/mem.h"
#include "transport/shm/ring.h"

/* Largest number of regions that a port exposes at one time. */
#define SHM_EXPOSURE_COUNT 16384u
/* Largest number of slabs (memory segments) of one peer that are mapped or requested. */
#define SHM_SLAB_COUNT   4096u
#define SHM_SLAB_BUCKETS 64u
/* Largest number of GPU memories of one peer that are open at one time. */
#define SHM_VIEW_COUNT  1024u
#define SHM_EAGER_BYTES 8192u
/* Default eager threshold for tensors in slabs: the peer maps a slab and copies larger
 * tensors itself. */
#define SHM_MAPPED_BYTES 1024u
#define SHM_GET_BYTES    (1u << 20)
/* Number of bytes that one poll() copies on each conn for a get, or for several small
 * gets. */
#define SHM_PIECE_BYTES (256u << 10)
#define SHM_ADDRESS_MAX 80u
/* Largest number of accepted conns of a listener that have not completed the handshake
 * (transport/admission.h). */
#define SHM_GREETING_MAX 256u

/* Types of notes: packets on the Unix socket of a connection. A WAKE is sent to a peer
 * that has announced in its area that it sleeps. If the socket is full the WAKE is
 * dropped: a peer with unread packets does not sleep. */
enum shm_note_type {
	SHM_HELLO = 1,    /* from the connector, with the descriptor of its area */
	SHM_WELCOME = 2,  /* from the acceptor, with the descriptor of its area */
	SHM_REFUSE = 3,   /* from the acceptor; `status` is the reason */
	SHM_WAKE = 4,     /* wake up and check the area for work */
	SHM_BYE = 5,      /* the connection ends, but the sender's process goes on */
	SHM_SLAB_ASK = 6, /* asks for the descriptor of the slab `mem_id` */
	/* The answer to SLAB_ASK: the slab's descriptor, or the reason for refusal in
	 * `status`. */
	SHM_SLAB = 7,
	SHM_GONE = 10, /* the sender has freed memory `mem_id`: unmap or close it */
	/* OFFER, TAKEN and AGAIN are sent only if both ends have set SHM_LENDS: see
	 * gpu.c. */
	/* Offers GPU memory `mem_id` for direct reading; a struct tern_ipc_handle
	 * follows. */
	SHM_OFFER = 8,
	/* Answer to OFFER: status 0: the memory was opened; otherwise `status` is the
	 * reason. */
	SHM_TAKEN = 9,
	/* The receiver may repeat OFFERs that were refused with -ENODEV or -EBUSY. */
	SHM_AGAIN = 11,
};

enum shm_note_flags {
	/* In HELLO and WELCOME: the sender accepts OFFERs of GPU memory. */
	SHM_LENDS = 1 << 0,
};

#define SHM_NOTE_MAGIC   0x6d687374u /* "tshm" */
#define SHM_NOTE_VERSION 7u

struct shm_note {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t message_bytes; /* HELLO, WELCOME: both ends must have the same value */
	uint32_t mem_id;
	int32_t status;
	uint32_t flags; /* enum shm_note_flags; the receiver ignores unknown bits */
	/* In HELLO and WELCOME: an address in the sender's process. The receiver tests
	 * whether it can read from there with process_vm_readv(). */
	uint64_t probe_address;
	uint64_t probe_word; /* the value at probe_address */
};
_Static_assert(sizeof(struct shm_note) == 40, "no padding");

enum shm_region_kind {
	SHM_REGION_SLAB = 1, /* `start` is an offset in the slab */
	/* `start` is an address in the process that exposed the region */
	SHM_REGION_USER = 2,
	SHM_REGION_GPU = 3, /* `start` is an offset in the GPU memory that was offered */
};

/* Contents of a tern_region (the right to access a range of memory) of this fabric. */
struct shm_region {
	uint16_t kind;
	uint16_t slot;
	uint32_t generation;
	uint32_t mem_id;
	uint32_t reserved;
	uint64_t start;
	uint64_t bytes;
	/* Where to put: an address in the process that exposed the region; 0: nowhere. */
	uint64_t address;
};
_Static_assert(offsetof(struct shm_region, address) == 32,
	"a region without puts is not wide: rendezvous/wire.h");
_Static_assert(sizeof(struct shm_region) <= sizeof(struct tern_region), "fits");

struct shm_exposure {
	struct tern_mem *mem; /* NULL: the entry is free */
	void *owner;
	uint64_t start; /* address of the range in this process; 0 for GPU memory */
	uint64_t bytes;
	uint32_t generation;
	/* Next free entry, as index in port->exposures + 1; 0: none. */
	uint32_t next_free;
	bool readable;
};

enum shm_op_kind {
	SHM_OP_SLAB, /* get() from a slab: copies from its mapping */
	/* get() from other memory: by process_vm_readv(), or the peer copies it in
	 * chunks */
	SHM_OP_USER,
	SHM_OP_PEEK, /* peek() that waits until a slab is mapped */
	SHM_OP_PUT,  /* put(), by shm_process_write() */
};

/* Contents of tern_op.priv: state of a get(), peek() or put(). */
struct shm_op {
	struct tern_list
		node; /* in a list of what the op waits for: the conn or a slab */
	char *local; /* memory of this process: the target of a get, the source of a put */
	uint64_t remote; /* offset in the slab, or address in the peer's process */
	uint64_t bytes;
	union {
		/* SHM_OP_USER by chunks: number of bytes requested so far */
		uint64_t asked;
		/* SHM_OP_SLAB: the slab to read, once it is mapped */
		struct shm_slab *slab;
	};
	uint64_t copied;
	uint32_t id; /* mem_id of the slab, or generation of the exposed region */
	uint16_t slot;
	uint16_t kind;
};
_Static_assert(sizeof(struct shm_op) <= sizeof(((struct tern_op *)NULL)->priv), "fits");

enum shm_slab_state {
	SHM_SLAB_WANTED, /* to be requested from the peer; the socket was full */
	SHM_SLAB_ASKED,
	SHM_SLAB_MAPPED,
};

/* A slab of the peer: shared memory from which the peer's pool allocates tensors; see
 * slab.c. */
struct shm_slab {
	/* NULL: the slab was removed from its conn, because the conn has ended or the
	 * peer has freed the slab; the last user of the slab then unmaps it. */
	struct shm_conn *conn;
	/* If `conn` is NULL and peek_count > 0: the conn that the slab was removed from.
	 * Its socket stays open until the last unpeek(). */
	struct shm_conn *reader;
	struct tern_list node;    /* in conn->asking; when MAPPED, in conn->slabs */
	struct tern_list bucket;  /* in conn->slab_buckets */
	struct tern_list waiting; /* ops that wait until the slab is MAPPED */
	struct tern_list peeked;  /* in port->peeked while peek_count > 0 */
	uint64_t peek_count;
	/* Number of peeks, and of gets that copy from the slab now. */
	uint64_t user_count;
	const char *base;
	uint64_t bytes;
	uint32_t mem_id;
	enum shm_slab_state state;
};

/* State of a slab or GPU memory of this process in the fabric; tern_mem_reg() returns
 * it. */
struct shm_known {
	/* One reference for the registration, and one for each struct shm_offer. */
	atomic_uint ref_count;
	atomic_bool gone;
	uint32_t mem_id;
	struct tern_ipc_handle handle; /* only for GPU memory */
};

enum shm_offer_state {
	SHM_OFFER_WANTED, /* to be offered; the socket was full */
	SHM_OFFER_MADE,
	/* The peer has opened the GPU memory, or has been sent the slab. */
	SHM_OFFER_TAKEN,
	SHM_OFFER_REFUSED,
	SHM_OFFER_GONE, /* the memory was freed; a GONE note must still be sent */
};

/* Memory of this process that one peer may have open, or was asked to open. */
struct shm_offer {
	struct tern_list node; /* in conn->offers */
	struct shm_known *known;
	enum shm_offer_state state;
	int status; /* if REFUSED: the peer's reason */
};

/* An answer to a request of the peer that could not be sent yet, because the socket was
 * full. */
struct shm_owed {
	uint16_t type; /* SHM_SLAB or SHM_TAKEN */
	int32_t status;
	uint32_t mem_id;
};

enum shm_watch_kind {
	SHM_WATCH_TIMER,
	SHM_WATCH_LISTENER,
	SHM_WATCH_SOCKET,
	SHM_WATCH_PROCESS,
};

/* User data of an epoll registration: tells what kind of object the descriptor belongs
 * to. */
struct shm_watch {
	enum shm_watch_kind kind;
};

struct shm_fabric {
	struct tern_fabric base;
	bool no_cma;
	/* Number of memories freed so far while a peer might have had them open; never
	 * decreases. */
	atomic_uint gone_count;
	/* Incremented when GPU memory is registered and when memory of a peer is closed:
	 * after either, this process may be able to open GPU memory that it had to
	 * refuse. */
	atomic_uint chance_count;
};

struct shm_port {
	struct tern_port base;
	int epoll_fd, timer_fd;
	struct shm_watch timer_watch;
	/* All conns, except those in the lists dozing, closed and read. */
	struct tern_list conns;
	/* Idle conns in state UP of which poll() checks only the descriptors. */
	struct tern_list dozing;
	struct tern_list closed; /* conns to be freed by shm_conn_reap() */
	/* Ended conns whose peers still read memory of this process in place. */
	struct tern_list read;
	/* Ended conns whose peers are just writing to memory of this process. */
	struct tern_list written;
	/* Slabs that this port reads in place, also of ended conns. */
	struct tern_list peeked;
	/* Largest number of slabs per conn, mapped or requested: SHM_SLAB_COUNT. */
	uint32_t slab_max;
	/* Value of fabric->gone_count when freed memory was last looked for. */
	uint32_t gone_seen;
	struct tern_list lsns;
	/* Listeners closed in a handler; poll() frees them before it returns. */
	struct tern_list dead_lsns;
	uint32_t conn_count; /* number of conns in `conns` */
	/* A conn may begin to doze only while `conns` has more conns than this. */
	uint32_t awake_count;
	uint64_t doze_ns; /* idle time before a connection may doze */
	/* Number of conns for which every poll() must check the descriptors. */
	uint32_t unsettled_count;
	/* Counts polls, to check the clock every LULL_POLLS polls. */
	uint32_t lull;
	uint64_t looked_ns; /* time when the sockets were last checked */
	uint64_t timer_ns;  /* time for which timer_fd is set; 0: it is off */
	/* The areas of the conns tell the peers that this end sleeps. */
	bool asleep;
	bool in_poll;
	char *message; /* buffer for a received message */
	uint64_t ring_bytes, area_bytes;
	struct shm_exposure *exposures;
	uint32_t exposure_top; /* entries from this index on were never used */
	/* First free entry, as index + 1; 0: none below exposure_top. */
	uint32_t exposure_free;
};

struct shm_lsn {
	struct tern_lsn base;
	struct tern_list node;
	struct shm_watch watch;
	int fd;
	/* accepted conns whose peers have not sent HELLO */
	struct tern_admission greeting;
	/* Time at which to accept again after descriptors or memory ran out; 0: it
	 * accepts now. */
	uint64_t resume_ns;
	char address[SHM_ADDRESS_MAX + 1];
};

/*
 * States of a connection:
 *
 *     DIALLING ---> GREETING ---+
 *     (backlog full)            +--> UP --> PARTING --> CLOSED      any --> CLOSED
 *                   ACCEPTING --+
 *
 * UP -> PARTING: the peer has sent BYE, has set `gone` in its area, has closed its
 * socket, or its process has ended; the messages in its ring are still delivered. CLOSED:
 * only shm_conn_reap() must still run, which waits until the peer writes to none of our
 * memory and reads none of it in place. The layer above does not know of an ACCEPTING conn
 * yet.
 */
enum shm_state {
	SHM_DIALLING,
	SHM_GREETING,
	SHM_ACCEPTING,
	SHM_UP,
	SHM_PARTING,
	SHM_CLOSED,
};

/* A request to the peer to copy a piece of memory into a chunk: what to do with the
 * answer. */
struct shm_desk {
	/* The get() that needs the piece; NULL: it has failed meanwhile. */
	struct tern_op *op;
	char *target;
	uint64_t bytes;
};

struct shm_conn {
	struct tern_conn base;
	struct tern_list node;
	enum shm_state state;
	/* If CLOSED: status to report to the `closed` handler. */
	int status;
	struct shm_lsn *lsn;             /* if ACCEPTING: the listener */
	struct tern_half_open half_open; /* in lsn->greeting */
	int fd, pidfd;
	struct shm_watch socket_watch, process_watch;
	/* Id of the peer's process in our pid namespace; 0: the peer is in a pid
	 * namespace that we cannot see. */
	pid_t pid;
	bool known; /* the layer above knows the conn, so `closed` must be called */
	/* Counted in port->unsettled_count: every poll() checks the descriptors. */
	bool unsettled;
	bool dozing;      /* in port->dozing: poll() checks only the descriptors */
	uint64_t used_ns; /* value of port->looked_ns when the conn was last active */
	bool blocked;     /* `writable` must be called when the ring has free space */
	/* A get was refused because no more slabs of the peer can be mapped; `writable`
	 * must be called when one can be. */
	bool starved;
	bool bye;  /* the peer has sent BYE, or has set `gone` in its area */
	bool over; /* shm_conn_reap() has sent BYE and has completed the ops */
	/* `over`, and the peer no longer reads memory of this process in place */
	bool unread;
	bool cma; /* process_vm_readv() works on the peer's process */
	/* If DIALLING, ACCEPTING or PARTING: time to act if no event has come; 0:
	 * none. */
	uint64_t due_ns;
	uint64_t probe_word; /* word that the peer reads to test process_vm_readv() */
	uint64_t their_address, their_word; /* the same of the peer */
	/* Time at which shm_process_is_there() last found the peer; 0: never. */
	uint64_t there_ns;
	/* The peer's memory as a file, opened at the first small put; -1: it cannot be. */
	int memory_fd;
	bool memory_opened;
	/* Time at which this end began to wait for the end of a write of the peer; 0: it
	 * does not. */
	uint64_t written_ns;
	bool told_written;                 /* the log says that it waits */
	char address[SHM_ADDRESS_MAX + 1]; /* if DIALLING: the address to connect to */

	/* Areas (ring.h) of both ends; NULL: not mapped yet, or unmapped at the end. */
	struct shm_area *own, *peer;
	struct shm_ring ring;
	struct tern_list slabs;  /* mapped slabs of the peer, most recently used first */
	struct tern_list asking; /* slabs of the peer that are not mapped yet */
	struct tern_list slab_buckets[SHM_SLAB_BUCKETS];
	uint32_t slab_count; /* number of slabs in `slabs` and `asking` */
	/* Number of slabs that cannot be evicted, because they are in use or not mapped
	 * yet. */
	uint32_t busy_count;
	uint32_t peek_count; /* number of slabs read in place by peek() */
	/* Number of slabs that are still read in place after they were removed from this
	 * conn (the conn has ended, or the peer has freed them): the socket `fd` stays
	 * open until they are released. */
	uint32_t held_count;

	/* List of struct shm_offer (share.c): memory that this peer may have open, most
	 * recently used first. */
	struct tern_list offers;
	bool gone_waits; /* a GONE note could not be sent, because the socket was full */
	/* Answers that could not be sent, oldest first; NULL: the array was not needed
	 * yet. */
	struct shm_owed *owed;
	uint32_t owed_count;
	/* Number of requests without an answer: slabs not mapped yet, offers not answered
	 * yet. */
	uint32_t asking_count;

	/* List of struct shm_view: GPU memory of the peer that this process has open
	 * (gpu.c). */
	struct tern_list views;
	/* This process had to refuse GPU memory of the peer: send AGAIN when
	 * fabric->chance_count changes. */
	bool refused_for_now;
	uint32_t chance_seen; /* value of fabric->chance_count at that refusal */

	struct tern_list copying; /* gets and puts of which a piece can be copied now */
	/* Gets with pieces that must still be requested from the peer. */
	struct tern_list bouncing;
	struct tern_list answering; /* gets that have requested all their pieces */
	struct shm_desk desks[SHM_CHUNK_COUNT];
	/* asked: requests made (as own->asked); taken: answers handled */
	uint32_t asked, taken;
	uint32_t answered; /* requests of the peer answered (as own->answered) */
};

#define shm_conn_of(ptr) tern_container_of(ptr, struct shm_conn, base)
#define shm_port_of(ptr) tern_container_of(ptr, struct shm_port, base)
#define shm_lsn_of(ptr)  tern_container_of(ptr, struct shm_lsn, base)

static inline struct shm_port *shm_conn_port(const struct shm_conn *conn)
{
	return shm_port_of(conn->base.port);
}

/* fd.c: sealed memory, and packets that carry descriptors. */

/* Makes shared memory of `bytes` zeros, mapped writable in this process. The memory is
 * sealed: no other writable mapping of it can be made (see tern_memfd_seal()). */
int shm_memory_new(uint64_t bytes, int *fd, void **base);
/* Maps the memory of a peer's descriptor, all of it and read-only. -EPROTO: the memory is
 * shorter than min_bytes, or could be shortened later. */
int shm_memory_map(int fd, uint64_t min_bytes, void **base, uint64_t *bytes);
/* Sends a note, together with a descriptor (-1: none). -EAGAIN: the socket is full;
 * -ECONNRESET: the other end is closed. */
int shm_note_send(int socket, const struct shm_note *note, int fd);
/* Sends an OFFER. Errors as shm_note_send(). */
int shm_offer_send(
	int socket, const struct shm_note *note, const struct tern_ipc_handle *handle);
/* Receives a note. 1: a note was received; *fd is its descriptor, which the caller must
 * close (-1: none); for an OFFER, *handle is set. 0: end of file; -EAGAIN: no note is
 * there; -ECONNRESET: the socket has failed; -EPROTO: the packet is malformed; -EILSEQ:
 * the sender has the other byte order (an emulated program on this machine); -EMFILE: the
 * note had a descriptor, and this process has too many open. */
int shm_note_receive(
	int socket, struct shm_note *note, struct tern_ipc_handle *handle, int *fd);

/* name.c: addresses of listeners at "auto://HOST:PORT". */
int shm_auto_dial(const char *host_port, tern_auto_add *add, void *arg);
int shm_auto_listen(const char *host_port, char *out, size_t size);

/* conn.c: a connection from connect() until its `closed` handler was called. */

int shm_connect(struct tern_port *port, const char *address, struct tern_conn **out);
void shm_conn_close(struct tern_conn *conn, bool flush);
/* Accepts connections of a listener. Returns the number of events. */
int shm_accept(struct shm_lsn *lsn);
/* Handles events of a conn's socket. Returns the number of events. */
int shm_conn_socket(struct shm_conn *conn);
/* Handles the end of the peer's process. Returns the number of events. */
int shm_conn_process(struct shm_conn *conn);
/* Acts if conn->due_ns has passed. Returns the number of events. */
int shm_conn_due(struct shm_conn *conn, uint64_t now_ns);
/* Goes from UP to PARTING, because the peer has ended the conn (`bye`) or its process. No
 * effect in other states. */
void shm_conn_part(struct shm_conn *conn, bool bye);
/* For a conn in PARTING whose ring is empty: goes to CLOSED, unless it still waits to
 * learn whether the peer's process has ended. */
void shm_conn_parted(struct shm_conn *conn);
void shm_conn_fail(struct shm_conn *conn, int status);
/* Logs what the peer did wrong, and ends the conn with -EPROTO. */
void shm_conn_blame(struct shm_conn *conn, const char *what);
void shm_conn_wake(struct shm_conn *conn); /* sends a WAKE to the sleeping peer */
void shm_conn_settle(struct shm_conn *conn);
/* Excludes an idle conn from polling; from then on the peer sends a WAKE if there is
 * work. Call it only after shm_sleep() and a further check that found no work. */
void shm_conn_doze(struct shm_conn *conn);
void shm_conn_rise(struct shm_conn *conn);
/* Ends the dozing of a conn. Call this before any change that poll() or arm() must
 * notice. */
static inline void shm_conn_rouse(struct shm_conn *conn)
{
	if (tern_unlikely(conn->dozing))
		shm_conn_rise(conn);
}
/* Ends a CLOSED conn. False: it is in port->written or port->read, and this must be called
 * again, since the peer still accesses memory of this process. */
bool shm_conn_reap(struct shm_conn *conn);
/* Stores in our area how many slabs this end reads in place. Call it after peek_count or
 * held_count has changed. */
void shm_conn_say_reading(struct shm_conn *conn);
/* Decrements held_count, after a slab that was removed from the conn is no longer read in
 * place. If the conn has ended and this was the last such slab, closes its socket and
 * frees it. */
void shm_conn_drop(struct shm_conn *conn);
int shm_watch_add(
	struct shm_port *port, int fd, struct shm_watch *watch, enum shm_watch_kind kind);
/* Converts an address (a name) to a socket address. Returns its length, or -EINVAL. */
struct sockaddr_un;
int shm_address(const char *name, struct sockaddr_un *address);

/* process.c: the process at the other end. */

/* Stores the peer's pid and pidfd. -EACCES: its user is neither ours nor root. */
int shm_process_identify(struct shm_conn *conn);
/* Stores whether this process may read and write its memory; `note` is its HELLO or
 * WELCOME. */
void shm_process_probe(struct shm_conn *conn, const struct shm_note *note);
/* True if the peer's process runs, so that its pid is not reused, and still has its probe
 * word, so it has not called execve(). */
bool shm_process_is_there(struct shm_conn *conn);
/* Writes to the peer's memory only. Returns the number of bytes written, or a negative
 * errno: -ENOTCONN or -ESRCH if it is gone, -EFAULT if its memory or `data` is no memory, or
 * may not be accessed so. Memory that it has made read-only may be written to all the same,
 * as by an RDMA card. */
int64_t shm_process_write(
	struct shm_conn *conn, uint64_t address, const void *data, uint64_t bytes);
/* True if it is known to have ended. */
bool shm_process_has_exited(const struct shm_conn *conn);
/* True if it has closed its socket. Its threads have returned from all system calls then,
 * whether it has ended or runs another program. */
bool shm_process_has_hung_up(const struct shm_conn *conn);

/* region.c: exposing memory to peers, and starting gets, puts and peeks. */

int shm_get(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int shm_put(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int shm_peek(struct tern_conn *conn, struct tern_op *op, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, const void **out);
int shm_expose(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out);
int shm_withdraw(
	struct tern_port *port, struct tern_op *op, const struct tern_region *region);
/* Finds the exposed memory that the peer of `conn` may read; NULL: there is none. */
struct shm_exposure *shm_exposure_find(
	struct shm_conn *conn, uint32_t slot, uint32_t generation);

/* Decodes a region received from the peer, and checks that (offset, bytes) is inside.
 * -ENOTCONN: the conn is not up, or the region was malformed and the conn was cut. */
int shm_region_take(struct shm_conn *conn, const struct tern_region *wire,
	uint64_t offset, uint64_t bytes, struct shm_region *region);

/* share.c: memory of this process that peers may have open; notes to them when it is
 * freed. */

int shm_mem_register(struct tern_fabric *fabric, struct tern_mem *mem, void **reg);
void shm_mem_unregister(struct tern_fabric *fabric, struct tern_mem *mem, void *reg);
/* Adds an entry with this state to conn->offers; NULL: out of memory. */
struct shm_offer *shm_offer_new(
	struct shm_conn *conn, struct shm_known *known, enum shm_offer_state state);
struct shm_offer *shm_offer_find(struct shm_conn *conn, uint32_t mem_id);
void shm_offer_enter(
	struct shm_conn *conn, struct shm_offer *offer, enum shm_offer_state next);
void shm_offer_free(struct shm_conn *conn, struct shm_offer *offer);
/* Sends GONE notes for freed memory; sets conn->gone_waits if the socket is full. */
void shm_gone_say(struct shm_conn *conn);
/* Answers a request of the peer with SHM_SLAB or SHM_TAKEN. `status` is only for
 * SHM_TAKEN; for SHM_SLAB, shm_slab_pass() finds it. If the socket is full of notes that
 * the peer has not read yet, the answer is queued. A peer with more requests than the
 * queue can hold is cut. */
void shm_answer(
	struct shm_conn *conn, enum shm_note_type type, uint32_t mem_id, int status);
/* Sends queued answers until the socket is full. */
void shm_answers_say(struct shm_conn *conn);
/* Looks for memory that was freed, and sends GONE to each peer that may have it open. */
void shm_gone_look_now(struct shm_port *port);
static inline void shm_gone_look(struct shm_port *port)
{
	const struct shm_fabric *fabric =
		tern_container_of(port->base.fabric, struct shm_fabric, base);

	if (tern_unlikely(port->gone_seen != atomic_load(&fabric->gone_count)))
		shm_gone_look_now(port);
}

/* slab.c: sending our slabs (memory segments) to the peer, and mapping the peer's
 * slabs. */

/* Finds the mapping of the slab that contains a region, or requests the slab from the
 * peer; marks it as most recently used. NULL: no further slab can be mapped now. */
struct shm_slab *shm_slab_of(struct shm_conn *conn, const struct shm_region *region);
/* True if a get() that could not map a slab may try again. */
bool shm_slab_roomy(const struct shm_conn *conn);
/* Protect a slab from unmapping while a get() reads it, and end that. */
void shm_slab_hold(struct shm_slab *slab);
void shm_slab_drop(struct shm_slab *slab);
/* Begins to read the slab in place. -ENOTSUP: too many slabs are read in place;
 * -ENOTCONN: the peer has closed the conn. */
int shm_slab_peek(struct shm_slab *slab);
void shm_unpeek(struct tern_port *port, const void *data);
void shm_slab_ask(struct shm_conn *conn, struct shm_slab *slab);
/* Handle notes of the peer: SLAB (a slab has arrived, or was refused), SLAB_ASK (the peer
 * wants one of our slabs; returns -EAGAIN if the socket is full), GONE (the peer has
 * freed a slab). */
void shm_slab_arrived(struct shm_conn *conn, const struct shm_note *note, int fd);
int shm_slab_pass(struct shm_conn *conn, uint32_t mem_id);
void shm_slab_gone(struct shm_conn *conn, uint32_t mem_id);
void shm_slab_free_all(struct shm_conn *conn);
static inline bool shm_slab_holds(
	const struct shm_slab *slab, uint64_t offset, uint64_t bytes)
{
	return offset <= slab->bytes && bytes <= slab->bytes - offset;
}

/* gpu.c: GPU memory of one process that a GPU of the other process reads directly. */

int shm_offer(struct tern_conn *conn, const struct tern_mem *mem);
int shm_borrow(struct tern_conn *conn, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, struct tern_loan *out);
int shm_repay(struct tern_loan *loan);
bool shm_offer_was_taken(struct shm_conn *conn, const struct tern_mem *mem);
/* Sends GONE notes and offers that could not be sent before. True: the socket is full
 * again. */
bool shm_offers_make(struct shm_conn *conn);
/* Handle the notes OFFER, TAKEN and AGAIN of the peer. */
void shm_offer_arrived(struct shm_conn *conn, const struct shm_note *note,
	const struct tern_ipc_handle *handle);
void shm_offer_answered(struct shm_conn *conn, const struct shm_note *note);
void shm_offer_again(struct shm_conn *conn);
/* Handles GONE: closes GPU memory that the peer has freed. If it is on loan (borrow()),
 * cuts the conn instead. False: it is not open on this conn. */
bool shm_view_gone(struct shm_conn *conn, uint32_t mem_id);
/* Sends AGAIN, which asks the peer to repeat refused offers, if fabric->chance_count has
 * changed since the refusal. */
void shm_gpu_chance(struct shm_conn *conn);
/* Called in each poll(): asks the peer to repeat the offers that this end had to refuse,
 * if this end may be able to accept them now. */
static inline void shm_gpu_step(struct shm_conn *conn)
{
	if (tern_unlikely(conn->refused_for_now))
		shm_gpu_chance(conn);
}
/* Frees all offers of the conn, and closes the peer's GPU memory; memory from which
 * copies are in flight is closed by the last repay(). Called when the conn is freed. */
void shm_gpu_end(struct shm_conn *conn);

/* copy.c: copying the bytes of get() and put() calls. */

/* Sets `gone` in our area: bytes that the peer reads from now on may be wrong. Call this
 * before memory that was exposed to the peer may change. */
void shm_say_gone(struct shm_conn *conn);
/* True if the peer has closed the conn: bytes that were read from its memory before this
 * call may then be inconsistent. */
bool shm_peer_gone(const struct shm_conn *conn);

/* True if shm_copy_step() has work: a piece to copy or to request, or a request or answer
 * of the peer. */
bool shm_copy_ready(const struct shm_conn *conn);
/* One step of copying: answers one request of the peer, requests pieces for which chunks
 * are free, takes one answer, and copies pieces of up to SHM_PIECE_BYTES in total.
 * Returns the number of events. */
int shm_copy_step(struct shm_conn *conn);
void shm_op_start(struct shm_conn *conn, struct tern_op *op, struct shm_slab *slab);
/* Called when `slab` was mapped (status 0): starts the gets that waited for it, and
 * completes the waiting peeks, whose callers then repeat them. Otherwise completes all of
 * them with `status`. */
void shm_op_release(struct shm_conn *conn, struct shm_slab *slab,
	struct tern_list *waiting, int status);
/* Completes every get, put and peek of a conn with `status`. */
void shm_op_fail_all(struct shm_conn *conn, int status);
static inline struct shm_op *shm_op_of(struct tern_op *op)
{
	return (struct shm_op *)(void *)op->priv;
}

static inline struct tern_op *shm_op_outer(struct shm_op *op)
{
	return (struct tern_op *)(void *)((char *)op - offsetof(struct tern_op, priv));
}

#endif
