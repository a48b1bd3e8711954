/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the shm fabric. See shm.c for its files.
 *
 * Lifetime: conns are freed only by shm_conn_reap() at the end of poll(), and so is the
 * memory of listeners. So whatever a handler does, the pointers that poll() holds stay
 * valid until its end.
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

#define SHM_EXPOSURE_COUNT 16384u /* of a port, at one time */
#define SHM_SLAB_COUNT     4096u  /* slabs of one peer that are mapped or asked for */
#define SHM_SLAB_BUCKETS   64u
#define SHM_VIEW_COUNT     1024u /* GPU memories of one peer that are open */
#define SHM_EAGER_BYTES    8192u
/* eager_bytes for tensors in slabs, which the peer copies itself. */
#define SHM_MAPPED_BYTES 1024u
#define SHM_GET_BYTES    (1u << 20)
/* Bytes of one op, or of several small ones, that one poll copies. */
#define SHM_PIECE_BYTES (256u << 10)
#define SHM_ADDRESS_MAX 80u
/* Accepted conns of a listener that have not sent HELLO: transport/admission.h. */
#define SHM_GREETING_MAX 256u

/*
 * Notes on the socket, each a packet of its own. A WAKE is sent to a peer whose `asleep`
 * asks for it. A peer that does not read its WAKEs fills its own socket, and is awake
 * then.
 */
enum shm_note_type {
	SHM_HELLO = 1,    /* from the connector, with its area */
	SHM_WELCOME = 2,  /* from the acceptor, with its area */
	SHM_REFUSE = 3,   /* from the acceptor, with the reason in `status` */
	SHM_WAKE = 4,     /* wake up and look at the area */
	SHM_BYE = 5,      /* the conn ends, the process goes on */
	SHM_SLAB_ASK = 6, /* asks for the slab `mem_id` */
	SHM_SLAB = 7,  /* the answer: that slab's descriptor, or the reason in `status` */
	SHM_GONE = 10, /* the owner has freed `mem_id`: unmap or close it */
	/* Only if both ends have said SHM_LENDS: see gpu.c. */
	/* GPU memory `mem_id` is offered; a struct tern_ipc_handle follows. */
	SHM_OFFER = 8,
	SHM_TAKEN = 9, /* answer to OFFER: opened, or `status` says why not */
	/* Memory that was refused for lack of a device may be offered again. */
	SHM_AGAIN = 11,
};

enum shm_note_flags {
	SHM_LENDS = 1 << 0, /* HELLO, WELCOME: the sender accepts OFFERs */
};

#define SHM_NOTE_MAGIC   0x6d687374u /* "tshm" */
#define SHM_NOTE_VERSION 6u

struct shm_note {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t message_bytes; /* HELLO, WELCOME: both ends must have the same value */
	uint32_t mem_id;
	int32_t status;
	uint32_t flags; /* enum shm_note_flags; unknown bits are ignored */
	/* HELLO, WELCOME: an address to test process_vm_readv with,. */
	uint64_t probe_address;
	uint64_t probe_word; /* and the word that must be read there */
};
_Static_assert(sizeof(struct shm_note) == 40, "no padding");

enum shm_region_kind {
	SHM_REGION_SLAB = 1, /* start: offset in the slab */
	SHM_REGION_USER = 2, /* start: address in the exposing process */
	SHM_REGION_GPU = 3,  /* start: offset in the memory that was offered */
};

/* Layout of a tern_region. */
struct shm_region {
	uint16_t kind;
	uint16_t slot;
	uint32_t generation;
	uint32_t mem_id;
	uint32_t reserved;
	uint64_t start;
	uint64_t bytes;
};
_Static_assert(
	sizeof(struct shm_region) == 32, "a region that is not wide: rendezvous/wire.h");

struct shm_exposure {
	struct tern_mem *mem; /* NULL: free */
	void *owner;
	uint64_t start; /* address */
	uint64_t bytes;
	uint32_t generation;
	uint32_t next_free; /* slot + 1; 0: none */
	bool readable;
};

enum shm_op_kind {
	SHM_OP_SLAB, /* get: copy from the mapping */
	SHM_OP_USER, /* get: copy by process_vm_readv, or by chunks */
	SHM_OP_PEEK, /* peek: waits for a slab */
};

/* Layout of tern_op.priv. */
struct shm_op {
	struct tern_list node; /* in a list of its conn or of a slab */
	char *target;
	uint64_t remote; /* offset in the slab, or address in the peer's process */
	uint64_t bytes;
	union {
		uint64_t asked;        /* USER by chunks: bytes asked for so far */
		struct shm_slab *slab; /* SLAB: the slab to read, once it is mapped */
	};
	uint64_t copied;
	uint32_t id; /* mem_id of a slab, or generation of an exposure */
	uint16_t slot;
	uint16_t kind;
};
_Static_assert(sizeof(struct shm_op) <= sizeof(((struct tern_op *)NULL)->priv), "fits");

enum shm_slab_state {
	SHM_SLAB_WANTED, /* not asked for yet, because the socket was full */
	SHM_SLAB_ASKED,
	SHM_SLAB_MAPPED,
};

/* A slab of the peer: slab.c. */
struct shm_slab {
	/* NULL: the conn has ended, and the last user unmaps the slab. */
	struct shm_conn *conn;
	/* If conn is NULL and peek_count > 0: the conn that it belonged to. */
	struct shm_conn *reader;
	struct tern_list node;    /* in conn->asking, or in conn->slabs when MAPPED */
	struct tern_list bucket;  /* in conn->slab_buckets */
	struct tern_list waiting; /* ops that wait until it is MAPPED */
	struct tern_list peeked;  /* in port->peeked while peek_count > 0 */
	uint64_t peek_count;
	uint64_t user_count; /* peeks, and gets that have started */
	const char *base;
	uint64_t bytes;
	uint32_t mem_id;
	enum shm_slab_state state;
};

/* What the fabric knows of a memory of ours (a slab, or GPU memory): its tern_mem_reg. */
struct shm_known {
	atomic_uint ref_count; /* the registration, and each struct shm_offer */
	atomic_bool gone;
	uint32_t mem_id;
	struct tern_ipc_handle handle; /* for GPU memory */
};

enum shm_offer_state {
	SHM_OFFER_WANTED, /* not sent yet, because the socket was full */
	SHM_OFFER_MADE,
	SHM_OFFER_TAKEN, /* the peer has opened the memory, or was sent the slab */
	SHM_OFFER_REFUSED,
	SHM_OFFER_GONE, /* freed; GONE was not sent yet, because the socket was full */
};

/* A record that the peer may have memory of ours open, or was asked to open it. */
struct shm_offer {
	struct tern_list node; /* in conn->offers */
	struct shm_known *known;
	enum shm_offer_state state;
	int status; /* REFUSED: the reason */
};

/* An answer to a packet of the peer that is still to be sent. */
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

/* Data of an epoll registration. */
struct shm_watch {
	enum shm_watch_kind kind;
};

struct shm_fabric {
	struct tern_fabric base;
	bool no_cma;
	atomic_uint gone_count; /* number of memories freed of which peers must be told */
	/* Counts registrations of GPU memory and closed views: after each of them a
	 * reader may be able to open what it had to refuse. */
	atomic_uint chance_count;
};

struct shm_port {
	struct tern_port base;
	int epoll_fd, timer_fd;
	struct shm_watch timer_watch;
	struct tern_list conns;  /* all conns, except those in the next three lists */
	struct tern_list dozing; /* UP and idle conns: only their sockets are watched */
	struct tern_list closed; /* conns for shm_conn_reap() to free */
	/* Conns that have ended but whose memory the peer still reads in place. */
	struct tern_list read;
	struct tern_list
		peeked;     /* slabs read in place, of all conns, ended ones included */
	uint32_t slab_max;  /* limit per conn: SHM_SLAB_COUNT */
	uint32_t gone_seen; /* last value seen of fabric->gone_count */
	struct tern_list lsns;
	/* Listeners closed in a handler: freed at the end of poll(). */
	struct tern_list dead_lsns;
	uint32_t conn_count;      /* number of conns in `conns` */
	uint32_t awake_count;     /* connections that are always kept awake */
	uint64_t doze_ns;         /* idle time before a connection may doze */
	uint32_t unsettled_count; /* conns whose socket must be looked at soon */
	uint32_t lull;            /* polls since sockets were looked at */
	uint64_t looked_ns;       /* time of the last look at the sockets */
	uint64_t timer_ns;        /* time for which timer_fd is set; 0: it is off */
	bool asleep;              /* sleep is announced in the areas of the conns */
	bool in_poll;
	char *message; /* buffer of a message while its handler runs */
	uint64_t ring_bytes, area_bytes;
	struct shm_exposure *exposures;
	uint32_t exposure_top;  /* slots from this one on were never used */
	uint32_t exposure_free; /* first free slot + 1; 0: none below the top */
};

struct shm_lsn {
	struct tern_lsn base;
	struct tern_list node;
	struct shm_watch watch;
	int fd;
	struct tern_admission greeting; /* conns that have not sent HELLO */
	/* Time at which to accept again after a lack of descriptors; 0: it accepts
	 * now. */
	uint64_t resume_ns;
	char address[SHM_ADDRESS_MAX + 1];
};

/*
 *     DIALLING ---> GREETING ---+
 *     (backlog full)            +--> UP --> PARTING --> CLOSED      any --> CLOSED
 *                   ACCEPTING --+
 *
 * UP -> PARTING: the peer has said BYE, or its connection was cut; the messages in its
 * ring are still delivered. CLOSED: only reap() is left to be done, which waits until the
 * peer reads none of our memory in place. The caller does not know of an ACCEPTING conn.
 */
enum shm_state {
	SHM_DIALLING,
	SHM_GREETING,
	SHM_ACCEPTING,
	SHM_UP,
	SHM_PARTING,
	SHM_CLOSED,
};

/* The op for which an ask is outstanding. */
struct shm_desk {
	struct tern_op *op; /* NULL: the op has failed meanwhile */
	char *target;
	uint64_t bytes;
};

struct shm_conn {
	struct tern_conn base;
	struct tern_list node;
	enum shm_state state;
	int status;                      /* CLOSED: status for the `closed` handler */
	struct shm_lsn *lsn;             /* ACCEPTING: the listener */
	struct tern_half_open half_open; /* in lsn->greeting */
	int fd, pidfd;
	struct shm_watch socket_watch, process_watch;
	pid_t pid;  /* in our pid namespace; 0: the peer is in one that we cannot see */
	bool known; /* the caller knows the conn, so `closed` is due */
	bool unsettled;   /* counted in port->unsettled_count */
	bool dozing;      /* in port->dozing */
	uint64_t used_ns; /* value of port->looked_ns at the last activity */
	bool blocked;     /* `writable` is due when the ring has room */
	bool starved;     /* `writable` is due when there is room for a slab */
	bool bye;         /* the peer has sent BYE */
	bool over;        /* the ops have ended, and BYE was sent */
	bool unread;      /* `over`, and the peer no longer reads our memory */
	bool cma;         /* process_vm_readv works on the peer */
	uint64_t due_ns;  /* DIALLING, ACCEPTING, PARTING: time to act without an event */
	uint64_t probe_word; /* word that the peer reads to test process_vm_readv */
	char address[SHM_ADDRESS_MAX + 1]; /* DIALLING */

	struct shm_area *own, *peer; /* NULL: not there yet */
	struct shm_ring ring;
	struct tern_list slabs;  /* mapped slabs of the peer, most recently used first */
	struct tern_list asking; /* slabs of the peer that are not mapped yet */
	struct tern_list slab_buckets[SHM_SLAB_BUCKETS];
	uint32_t slab_count; /* number of slabs in both lists */
	uint32_t busy_count; /* slabs in use or not mapped yet, which cannot be evicted */
	uint32_t peek_count; /* slabs read by peek() */
	/* Slabs of this conn that outlive it because they are read in place: `fd`
	 * stays open for them. */
	uint32_t held_count;

	/* Struct shm_offer (share.c) of this peer, newest first. */
	struct tern_list offers;
	bool gone_waits; /* a GONE could not be sent, because the socket was full */
	/* Answers that could not be sent, oldest first; NULL: none yet. */
	struct shm_owed *owed;
	uint32_t owed_count;
	uint32_t asking_count; /* slabs not mapped yet, and offers not answered yet */

	struct tern_list views; /* GPU memory of the peer that is open here: gpu.c */
	bool refused_for_now;   /* an AGAIN is due when fabric->chance_count changes */
	uint32_t chance_seen;   /* value of fabric->chance_count at the refusal */

	struct tern_list copying;   /* ops whose next piece can be copied now */
	struct tern_list bouncing;  /* ops with chunks left to ask for */
	struct tern_list answering; /* ops that have asked for all their chunks */
	struct shm_desk desks[SHM_CHUNK_COUNT];
	uint32_t asked, taken; /* asks made (own->asked); answers consumed */
	uint32_t answered;     /* asks answered (own->answered) */
};

#define shm_conn_of(ptr) tern_container_of(ptr, struct shm_conn, base)
#define shm_port_of(ptr) tern_container_of(ptr, struct shm_port, base)
#define shm_lsn_of(ptr)  tern_container_of(ptr, struct shm_lsn, base)

static inline struct shm_port *shm_conn_port(const struct shm_conn *conn)
{
	return shm_port_of(conn->base.port);
}

/* fd.c: sealed memory and packets with descriptors. */

/* Makes a zeroed memory of `bytes`. It is mapped writable here and, once sealed, can
 * be mapped writable nowhere else. */
int shm_memory_new(uint64_t bytes, int *fd, void **base);
/* Maps a peer's descriptor read-only and completely. -EPROTO if it is shorter than
 * min_bytes, or could become so. */
int shm_memory_map(int fd, uint64_t min_bytes, void **base, uint64_t *bytes);
/* Sends a note with a descriptor (-1: none). -EAGAIN: the socket is full; -ECONNRESET:
 * the other end is closed. */
int shm_note_send(int socket, const struct shm_note *note, int fd);
/* Sends an OFFER. Errors as shm_note_send(). */
int shm_offer_send(
	int socket, const struct shm_note *note, const struct tern_ipc_handle *handle);
/* Receives a note. 1: a note, and *fd, which the caller closes (-1: none), and the
 * handle of an OFFER; 0: end of file; -EAGAIN; -EPROTO; -EILSEQ: the sender has the
 * other byte order (it is emulated on this machine); -EMFILE: the note had a
 * descriptor and this process has no room for it. */
int shm_note_receive(
	int socket, struct shm_note *note, struct tern_ipc_handle *handle, int *fd);

/* name.c: entries of the fabric's ops. */
int shm_auto_dial(const char *host_port, tern_auto_add *add, void *arg);
int shm_auto_listen(const char *host_port, char *out, size_t size);

/* conn.c: a connection from connect to closed. */

int shm_connect(struct tern_port *port, const char *address, struct tern_conn **out);
void shm_conn_close(struct tern_conn *conn, bool flush);
/* Handles the listener's socket: accepts and reads notes. Returns the number of
 * events. */
int shm_accept(struct shm_lsn *lsn);
/* Handles the socket of a conn. Returns the number of events. */
int shm_conn_socket(struct shm_conn *conn);
/* Handles the end of the peer's process. */
int shm_conn_process(struct shm_conn *conn);
/* Handles what is due at this time. Returns the number of events. */
int shm_conn_due(struct shm_conn *conn, uint64_t now_ns);
/* The peer has ended the conn or its process: goes from UP to PARTING. No effect in
 * other states. */
void shm_conn_part(struct shm_conn *conn, bool bye);
/* PARTING with an empty ring: goes to CLOSED as soon as the status is known. */
void shm_conn_parted(struct shm_conn *conn);
void shm_conn_fail(struct shm_conn *conn, int status);
/* Ends the conn with -EPROTO and logs why. */
void shm_conn_blame(struct shm_conn *conn, const char *what);
void shm_conn_wake(struct shm_conn *conn); /* sends a WAKE to the sleeping peer */
void shm_conn_settle(struct shm_conn *conn);
/* Takes the conn out of polling: the peer then sends a WAKE. Only after sleep was
 * announced and no work was found. */
void shm_conn_doze(struct shm_conn *conn);
void shm_conn_rise(struct shm_conn *conn);
/* Wakes a dozing conn. Call it before anything that poll() or arm() must notice. */
static inline void shm_conn_rouse(struct shm_conn *conn)
{
	if (tern_unlikely(conn->dozing))
		shm_conn_rise(conn);
}
void shm_conn_reap(struct shm_conn *conn);
/* Updates `reading` in our area, after peek_count or held_count has changed. */
void shm_conn_say_reading(struct shm_conn *conn);
/* Counts one slab of held_count as released. */
void shm_conn_drop(struct shm_conn *conn);
int shm_watch_add(
	struct shm_port *port, int fd, struct shm_watch *watch, enum shm_watch_kind kind);
/* Converts a name to a socket address. Returns its length, or -EINVAL. */
struct sockaddr_un;
int shm_address(const char *name, struct sockaddr_un *address);

/* region.c: memory that peers may access. */

int shm_get(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int shm_peek(struct tern_conn *conn, struct tern_op *op, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, const void **out);
int shm_expose(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out);
int shm_withdraw(
	struct tern_port *port, struct tern_op *op, const struct tern_region *region);
/* Finds an exposure for the peer of `conn`; NULL: there is none. */
struct shm_exposure *shm_exposure_find(
	struct shm_conn *conn, uint32_t slot, uint32_t generation);

/* Decodes a region from the wire and checks that (offset, bytes) is inside. -ENOTCONN:
 * the conn is not up, or the region is malformed and the conn was cut. */
int shm_region_take(struct shm_conn *conn, const struct tern_region *wire,
	uint64_t offset, uint64_t bytes, struct shm_region *region);

/* share.c: memory of ours that peers may have open, and telling them when it is freed. */

int shm_mem_register(struct tern_fabric *fabric, struct tern_mem *mem, void **reg);
void shm_mem_unregister(struct tern_fabric *fabric, struct tern_mem *mem, void *reg);
/* Makes an offer, in its first state; NULL: no memory. */
struct shm_offer *shm_offer_new(
	struct shm_conn *conn, struct shm_known *known, enum shm_offer_state state);
struct shm_offer *shm_offer_find(struct shm_conn *conn, uint32_t mem_id);
void shm_offer_enter(
	struct shm_conn *conn, struct shm_offer *offer, enum shm_offer_state next);
void shm_offer_free(struct shm_conn *conn, struct shm_offer *offer);
/* Sends GONE for freed memory as long as the socket has room; conn->gone_waits if not. */
void shm_gone_say(struct shm_conn *conn);
/* Answers a packet with SHM_SLAB or SHM_TAKEN and `status`, now or when the socket has
 * room again: the socket of a peer that does not poll for a while may be full of
 * GONEs. A peer with more unanswered packets than it can have is cut. */
void shm_answer(
	struct shm_conn *conn, enum shm_note_type type, uint32_t mem_id, int status);
/* Sends queued answers as long as the socket has room. */
void shm_answers_say(struct shm_conn *conn);
/* Looks for freed memory, and tells each peer that may have it open. */
void shm_gone_look_now(struct shm_port *port);
static inline void shm_gone_look(struct shm_port *port)
{
	const struct shm_fabric *fabric =
		tern_container_of(port->base.fabric, struct shm_fabric, base);

	if (tern_unlikely(port->gone_seen != atomic_load(&fabric->gone_count)))
		shm_gone_look_now(port);
}

/* slab.c: slabs passed to the peer, and slabs of the peer. */

/* The peer's slab of a region, marked as used last; a new one is asked for. NULL: no
 * room for it now. */
struct shm_slab *shm_slab_of(struct shm_conn *conn, const struct shm_region *region);
/* True if a get that found no room for a slab may try again. */
bool shm_slab_roomy(const struct shm_conn *conn);
/* Hold and release a slab while a get reads it. */
void shm_slab_hold(struct shm_slab *slab);
void shm_slab_drop(struct shm_slab *slab);
/* Begins a peek. -ENOTSUP: too many slabs are read in place. */
int shm_slab_peek(struct shm_slab *slab);
void shm_unpeek(struct tern_port *port, const void *data);
void shm_slab_ask(struct shm_conn *conn, struct shm_slab *slab);
/* Called when a slab has arrived or was refused; when the peer asks for one of ours
 * (-EAGAIN: the socket is full); and when the owner has freed one. */
void shm_slab_arrived(struct shm_conn *conn, const struct shm_note *note, int fd);
int shm_slab_pass(struct shm_conn *conn, uint32_t mem_id);
void shm_slab_gone(struct shm_conn *conn, uint32_t mem_id);
void shm_slab_free_all(struct shm_conn *conn);
static inline bool shm_slab_holds(
	const struct shm_slab *slab, uint64_t offset, uint64_t bytes)
{
	return offset <= slab->bytes && bytes <= slab->bytes - offset;
}

/* gpu.c: GPU memory that the reader's device copies directly. */

int shm_offer(struct tern_conn *conn, const struct tern_mem *mem);
int shm_borrow(struct tern_conn *conn, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, struct tern_loan *out);
int shm_repay(struct tern_loan *loan);
bool shm_offer_was_taken(struct shm_conn *conn, const struct tern_mem *mem);
/* Sends the offers that found no room before. True: there is still no room. */
bool shm_offers_make(struct shm_conn *conn);
/* Handle an OFFER, TAKEN or AGAIN of the peer. */
void shm_offer_arrived(struct shm_conn *conn, const struct shm_note *note,
	const struct tern_ipc_handle *handle);
void shm_offer_answered(struct shm_conn *conn, const struct shm_note *note);
void shm_offer_again(struct shm_conn *conn);
/* The peer has freed the memory: closes it. False: it is not open here. */
bool shm_view_gone(struct shm_conn *conn, uint32_t mem_id);
/* Called in each poll(): sends AGAIN or GONE if something has changed here. */
void shm_gpu_chance(struct shm_conn *conn);
/* Asks for the refused offers again, if they may be accepted now. */
static inline void shm_gpu_step(struct shm_conn *conn)
{
	if (tern_unlikely(conn->refused_for_now))
		shm_gpu_chance(conn);
}
/* Called when the conn is freed. */
void shm_gpu_end(struct shm_conn *conn);

/* copy.c: copies the bytes of gets. */

/* Sets `gone` in our area. Call it before memory that was exposed to the peer may
 * change. */
void shm_say_gone(struct shm_conn *conn);
/* True if the peer has closed: bytes that were read from its memory before this call
 * may then be inconsistent. */
bool shm_peer_gone(const struct shm_conn *conn);

/* True if there is a piece to copy, an ask to answer, or an answer to take. */
bool shm_copy_ready(const struct shm_conn *conn);
/* Copies one piece of each kind of work. Returns the number of events. */
int shm_copy_step(struct shm_conn *conn);
void shm_op_start(struct shm_conn *conn, struct tern_op *op, struct shm_slab *slab);
/* Starts the ops that waited for `slab` if status is 0; otherwise ends them. */
void shm_op_release(struct shm_conn *conn, struct shm_slab *slab,
	struct tern_list *waiting, int status);
/* Ends every op of a conn. */
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
