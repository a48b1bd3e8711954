/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the shm fabric. See shm.c for how its files fit together.
 *
 * Who may free what, when: conns are freed by shm_conn_reap() at the end of poll() and
 * nowhere else, listeners' memory likewise, so whatever a handler does, pointers held by
 * poll() stay good until its end.
 */
#ifndef TERN_TRANSPORT_SHM_H
#define TERN_TRANSPORT_SHM_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/list.h"
#include "transport/fabric.h"
#include "transport/gpu_ipc.h"
#include "transport/mem.h"
#include "transport/shm_ring.h"

#define SHM_EXPOSURE_COUNT 16384u /* of a port, at one time */
#define SHM_SLAB_COUNT     4096u  /* of one peer, asked for or mapped */
#define SHM_SLAB_BUCKETS   64u
#define SHM_VIEW_COUNT     1024u /* memories of GPUs opened of one peer */
#define SHM_EAGER_BYTES    8192u
#define SHM_MAPPED_BYTES                                                                 \
	1024u /* the same for slabs, which the peer copies from itself                   \
	       */
#define SHM_GET_BYTES   (1u << 20)
#define SHM_PIECE_BYTES (256u << 10) /* copied by one poll: of one op, or small ones */
#define SHM_ADDRESS_MAX 80u
#define SHM_GREETING_COUNT                                                               \
	64u /* accepted conns of a listener that have not said hello: the oldest goes    \
	     */

/*
 * What travels over the socket, each a packet of its own. A WAKE is sent to a peer whose
 * `asleep` says so; a peer that does not read them fills its own socket and is awake
 * then.
 */
enum shm_note_type {
	SHM_HELLO = 1,    /* connector: with its area */
	SHM_WELCOME = 2,  /* acceptor: with its area */
	SHM_REFUSE = 3,   /* acceptor: `status` */
	SHM_WAKE = 4,     /* look at the area */
	SHM_BYE = 5,      /* the conn ends, the process lives */
	SHM_SLAB_ASK = 6, /* for the slab of `mem_id` */
	SHM_SLAB = 7,     /* with that slab, or `status` and no slab */
	SHM_GONE = 10,    /* the owner has freed `mem_id`: to be unmapped, or closed */
	/* Where both ends have said SHM_LENDS: see shm_gpu.c. */
	SHM_OFFER = 8,  /* memory `mem_id` of a GPU; a struct tern_ipc_handle behind it */
	SHM_TAKEN = 9,  /* it was opened, or `status` says why not */
	SHM_AGAIN = 11, /* what was refused for want of a device may be offered anew */
};

enum shm_note_flags {
	SHM_LENDS = 1 << 0, /* HELLO, WELCOME: memory of GPUs may be offered to us */
};

#define SHM_NOTE_MAGIC   0x6d687374u /* "tshm" */
#define SHM_NOTE_VERSION 5u

struct shm_note {
	uint32_t magic;
	uint16_t version;
	uint16_t type;
	uint32_t message_bytes; /* HELLO, WELCOME: must be the same */
	uint32_t mem_id;
	int32_t status;
	uint32_t flags;         /* enum shm_note_flags; others mean nothing */
	uint64_t probe_address; /* HELLO, WELCOME: can you read here by process_vm_readv
				   ... */
	uint64_t probe_word;    /* ... this? */
};
_Static_assert(sizeof(struct shm_note) == 40, "no padding");

enum shm_region_kind {
	SHM_REGION_SLAB = 1, /* start: offset in the slab */
	SHM_REGION_USER = 2, /* start: address in the exposing process */
	SHM_REGION_GPU = 3,  /* start: offset in the memory that was offered */
};

/* What is in a tern_region. */
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
	SHM_OP_USER, /* get: process_vm_readv, or chunks */
	SHM_OP_PEEK, /* waits for a slab */
};

/* In tern_op.priv. */
struct shm_op {
	struct tern_list link; /* in a list of its conn's or of a slab's */
	char *target;
	uint64_t remote; /* offset in the slab, or address in the peer */
	uint64_t bytes;
	union {
		uint64_t asked;        /* USER by chunks: so far */
		struct shm_slab *slab; /* SLAB: what it reads, once that is mapped */
	};
	uint64_t copied;
	uint32_t id; /* mem_id, or generation */
	uint16_t slot;
	uint16_t kind;
};
_Static_assert(sizeof(struct shm_op) <= sizeof(((struct tern_op *)NULL)->priv), "fits");

enum shm_slab_state {
	SHM_SLAB_WANTED, /* not asked for yet: the socket was full */
	SHM_SLAB_ASKED,
	SHM_SLAB_MAPPED,
};

/* A slab of the peer's: shm_slab.c. */
struct shm_slab {
	struct shm_conn *conn;    /* NULL: the last user unmaps it */
	struct shm_conn *reader;  /* conn NULL and peek_count > 0: whose it was */
	struct tern_list link;    /* conn->asking or, MAPPED, conn->slabs */
	struct tern_list bucket;  /* in conn->slab_buckets */
	struct tern_list waiting; /* ops, until it is MAPPED */
	struct tern_list peeked;  /* port->peeked, while peek_count > 0 */
	uint64_t peek_count;
	uint64_t user_count; /* peeks, and gets that have started */
	const char *base;
	uint64_t bytes;
	uint32_t mem_id;
	enum shm_slab_state state;
};

/* Memory of ours, a slab or a GPU's, as the fabric knows it: its tern_mem_reg. */
struct shm_known {
	atomic_uint ref_count; /* the registration, and each struct shm_offer */
	atomic_bool gone;
	uint32_t mem_id;
	struct tern_ipc_handle handle; /* of a GPU's */
};

enum shm_offer_state {
	SHM_OFFER_WANTED, /* not made yet: the socket was full */
	SHM_OFFER_MADE,
	SHM_OFFER_TAKEN, /* the peer has opened it, or was passed the slab */
	SHM_OFFER_REFUSED,
	SHM_OFFER_GONE, /* the peer is to be told: the socket was full */
};

/* That the peer may have memory of ours open, or was asked to open it. */
struct shm_offer {
	struct tern_list link; /* conn->offers */
	struct shm_known *known;
	enum shm_offer_state state;
	int status; /* REFUSED: why */
};

/* An answer to a packet of the peer's. */
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

/* What epoll points at. */
struct shm_watch {
	enum shm_watch_kind kind;
};

struct shm_fabric {
	struct tern_fabric base;
	bool no_cma;
	atomic_uint gone_count; /* memories freed of which peers have to be told */
	/* Memory of GPUs that was registered, views that were closed: what a reader had
	 * to refuse it may be able to take behind each of these. */
	atomic_uint chance_count;
};

struct shm_port {
	struct tern_port base;
	int epoll_fd, timer_fd;
	struct shm_watch timer_watch;
	struct tern_list conns;  /* all but those of the next two */
	struct tern_list dozing; /* UP and idle: only their sockets are looked at */
	struct tern_list closed; /* to be reaped */
	struct tern_list read;   /* reaped, but for memory that the peer reads in place */
	struct tern_list
		peeked;    /* slabs that are read in place, of all conns, past ones too */
	uint32_t slab_max; /* SHM_SLAB_COUNT */
	uint32_t gone_seen; /* fabric->gone_count */
	struct tern_list lsns;
	struct tern_list dead_lsns; /* closed in a handler: freed at the end of poll() */
	uint32_t conn_count;        /* in `conns` */
	uint32_t awake_count;       /* so many of them never doze */
	uint64_t doze_ns;           /* nor one in which something moved since then */
	uint32_t unsettled_count;   /* conns that need the socket looked at soon */
	uint32_t lull;              /* polls without a look at the sockets */
	uint64_t looked_ns;         /* when the last look was */
	uint64_t timer_ns;          /* when timer_fd fires; 0: it does not */
	bool asleep;                /* the conns' areas say so */
	bool in_poll;
	char *message; /* where a message is while its handler runs */
	uint64_t ring_bytes, area_bytes;
	struct shm_exposure *exposures;
	uint32_t exposure_top;  /* no slot from here on was ever used */
	uint32_t exposure_free; /* slot + 1; 0: none below the top */
};

struct shm_lsn {
	struct tern_lsn base;
	struct tern_list link;
	struct shm_watch watch;
	int fd;
	uint32_t greeting_count;
	uint64_t resume_ns; /* no descriptors were left: try again then; 0: it listens */
	char address[SHM_ADDRESS_MAX + 1];
};

/*
 *     DIALLING ---> GREETING ---+
 *     (backlog full)            +--> UP --> PARTING --> CLOSED      any --> CLOSED
 *                   ACCEPTING --+
 *
 * UP -> PARTING: the peer has said BYE, or is cut off: what stands in its ring is
 * delivered first. CLOSED: reap() is all that is left to be done, perhaps not before
 * the peer reads nothing of ours in place. An ACCEPTING conn is not known to the caller.
 */
enum shm_state {
	SHM_DIALLING,
	SHM_GREETING,
	SHM_ACCEPTING,
	SHM_UP,
	SHM_PARTING,
	SHM_CLOSED,
};

/* Which op an outstanding ask is for. */
struct shm_desk {
	struct tern_op *op; /* NULL: it failed meanwhile */
	char *target;
	uint64_t bytes;
};

struct shm_conn {
	struct tern_conn base;
	struct tern_list link;
	enum shm_state state;
	int status;          /* CLOSED: what `closed` is called with */
	struct shm_lsn *lsn; /* ACCEPTING */
	int fd, pidfd;
	struct shm_watch socket_watch, process_watch;
	pid_t pid;        /* as we see it; 0: of a namespace that we do not see */
	bool known;       /* to the caller: `closed` is due */
	bool unsettled;   /* counted in port->unsettled_count */
	bool dozing;      /* in port->dozing */
	uint64_t used_ns; /* port->looked_ns when something moved last */
	bool blocked;     /* `writable` is due when the ring has room */
	bool starved;     /* the same, when there is room for a slab */
	bool bye;         /* the peer has said so */
	bool over;        /* ops have ended, and the peer was told */
	bool unread;      /* over, and the peer reads nothing of ours any more */
	bool cma;         /* process_vm_readv works */
	uint64_t due_ns;  /* DIALLING, ACCEPTING, PARTING: when to act without an event */
	uint64_t probe_word;               /* for the peer to read */
	char address[SHM_ADDRESS_MAX + 1]; /* DIALLING */

	struct shm_area *own, *peer; /* NULL: not there yet */
	struct shm_ring ring;
	struct tern_list slabs;  /* of the peer's, mapped: last used first */
	struct tern_list asking; /* ... that are not mapped yet */
	struct tern_list slab_buckets[SHM_SLAB_BUCKETS];
	uint32_t slab_count; /* of both */
	uint32_t busy_count; /* ... in use or not mapped yet: they cannot give way */
	uint32_t peek_count; /* ... peeked at */
	uint32_t held_count; /* peeked at and no more among them: `fd` stays open */

	struct tern_list offers; /* shm_share.c: to the peer, last made first */
	bool gone_waits;         /* some GONE found no room */
	struct shm_owed *owed;   /* answers that found none, first asked first; or NULL */
	uint32_t owed_count;
	uint32_t asking_count;   /* slabs not mapped yet, offers not answered yet */

	struct tern_list views; /* shm_gpu.c: what it offered and we opened */
	uint32_t view_count;
	bool refused_for_now; /* AGAIN is due at the next chance */
	uint32_t chance_seen; /* fabric->chance_count, when it was refused */

	struct tern_list copying;   /* ops whose next piece can be copied now */
	struct tern_list bouncing;  /* ops with chunks left to be asked for */
	struct tern_list answering; /* ops that have asked for all */
	struct shm_desk desks[SHM_CHUNK_COUNT];
	uint32_t asked, taken; /* own->asked; answers used */
	uint32_t answered;     /* own->answered */
};

#define shm_conn_of(ptr) tern_container_of(ptr, struct shm_conn, base)
#define shm_port_of(ptr) tern_container_of(ptr, struct shm_port, base)
#define shm_lsn_of(ptr)  tern_container_of(ptr, struct shm_lsn, base)

static inline struct shm_port *shm_conn_port(const struct shm_conn *conn)
{
	return shm_port_of(conn->base.port);
}

/* shm_fd.c: sealed memory and packets with descriptors. */

/* A new memory of `bytes` zeroes, mapped writable here and, once sealed, nowhere else. */
int shm_memory_new(uint64_t bytes, int *fd, void **base);
/* Maps what a peer passed, read-only and whole, if it can never become smaller than
 * min_bytes: -EPROTO if it can, or is. */
int shm_memory_map(int fd, uint64_t min_bytes, void **base, uint64_t *bytes);
/* fd -1: none. -EAGAIN; -ECONNRESET: the other end is closed. */
int shm_note_send(int socket, const struct shm_note *note, int fd);
/* An OFFER. The same. */
int shm_offer_send(
	int socket, const struct shm_note *note, const struct tern_ipc_handle *handle);
/* 1: a note, and *fd (-1: none), which the caller closes; of an OFFER, the handle, too.
 * 0: the end. -EAGAIN; -EPROTO; -EILSEQ: from a machine of the other byte order, which
 * is emulated here; -EMFILE: it had a descriptor and this process has no room. */
int shm_note_receive(
	int socket, struct shm_note *note, struct tern_ipc_handle *handle, int *fd);

/* shm_conn.c: from connect to closed. */

int shm_connect(struct tern_port *port, const char *address, struct tern_conn **out);
void shm_conn_close(struct tern_conn *conn, bool flush);
/* Takes what the kernel has for us from the listener. How many events. */
int shm_accept(struct shm_lsn *lsn);
/* The same for the socket of a conn. */
int shm_conn_socket(struct shm_conn *conn);
/* The process has ended. */
int shm_conn_process(struct shm_conn *conn);
/* Something is due by the clock. How many events. */
int shm_conn_due(struct shm_conn *conn, uint64_t now_ns);
/* The peer has ended the conn or its process: UP -> PARTING. Harmless else. */
void shm_conn_part(struct shm_conn *conn, bool bye);
/* PARTING, and nothing is left in the ring: -> CLOSED as soon as it is known with what.
 */
void shm_conn_parted(struct shm_conn *conn);
void shm_conn_fail(struct shm_conn *conn, int status);
/* -EPROTO, with a line that says why. */
void shm_conn_blame(struct shm_conn *conn, const char *what);
void shm_conn_wake(struct shm_conn *conn); /* the peer sleeps */
void shm_conn_settle(struct shm_conn *conn);
/* From now on poll() does not look at it, and the peer sends a WAKE. Only where sleep was
 * announced and there was nothing to do. */
void shm_conn_doze(struct shm_conn *conn);
void shm_conn_rise(struct shm_conn *conn);
/* To be called before anything that poll() or arm() has to see. */
static inline void shm_conn_rouse(struct shm_conn *conn)
{
	if (tern_unlikely(conn->dozing))
		shm_conn_rise(conn);
}
void shm_conn_reap(struct shm_conn *conn);
/* `reading` of our area, after peek_count or held_count has changed. */
void shm_conn_say_reading(struct shm_conn *conn);
/* One of held_count was released. */
void shm_conn_drop(struct shm_conn *conn);
int shm_watch_add(
	struct shm_port *port, int fd, struct shm_watch *watch, enum shm_watch_kind kind);
/* Fills `address` from what the caller gave. Bytes of it, or -EINVAL. */
struct sockaddr_un;
int shm_address(const char *name, struct sockaddr_un *address);

/* shm_region.c: memory that peers reach. */

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

/* Copies a region from the wire and checks (offset, bytes) in it. -ENOTCONN: the conn is
 * not up; or it is wrong, and the conn was cut for it. */
int shm_region_take(struct shm_conn *conn, const struct tern_region *wire,
	uint64_t offset, uint64_t bytes, struct shm_region *region);

/* shm_share.c: what peers may have open of ours, and that they hear when it goes. */

int shm_mem_register(struct tern_fabric *fabric, struct tern_mem *mem, void **reg);
void shm_mem_unregister(struct tern_fabric *fabric, struct tern_mem *mem, void *reg);
/* In the first of these states; NULL: no memory. */
struct shm_offer *shm_offer_new(
	struct shm_conn *conn, struct shm_known *known, enum shm_offer_state state);
struct shm_offer *shm_offer_find(struct shm_conn *conn, uint32_t mem_id);
void shm_offer_enter(
	struct shm_conn *conn, struct shm_offer *offer, enum shm_offer_state next);
void shm_offer_free(struct shm_conn *conn, struct shm_offer *offer);
/* Says GONE of what was freed, as far as the socket has room: conn->gone_waits. */
void shm_gone_say(struct shm_conn *conn);
/* Answers a packet with SHM_SLAB or SHM_TAKEN (`status` of it), now or when the socket has
 * room again: a peer that does not poll for a while may find it full of GONEs. One that
 * asks for more than it can have is cut. */
void shm_answer(
	struct shm_conn *conn, enum shm_note_type type, uint32_t mem_id, int status);
/* As far as the socket has room: conn->owed_count. */
void shm_answers_say(struct shm_conn *conn);
/* Looks for what was freed, and tells each peer that may have it open. */
void shm_gone_look_now(struct shm_port *port);
static inline void shm_gone_look(struct shm_port *port)
{
	const struct shm_fabric *fabric =
		tern_container_of(port->base.fabric, struct shm_fabric, base);

	if (tern_unlikely(port->gone_seen != atomic_load(&fabric->gone_count)))
		shm_gone_look_now(port);
}

/* shm_slab.c: slabs passed to the peer, and its own. */

/* The peer's slab of a region, last used now; asked for if it is new. NULL: there is no
 * room for it now. */
struct shm_slab *shm_slab_of(struct shm_conn *conn, const struct shm_region *region);
/* May a get that found no room try again? */
bool shm_slab_roomy(const struct shm_conn *conn);
/* A get starts or ends to read it. */
void shm_slab_hold(struct shm_slab *slab);
void shm_slab_drop(struct shm_slab *slab);
/* Begins a peek. -ENOTSUP: too many slabs are peeked at. */
int shm_slab_peek(struct shm_slab *slab);
void shm_unpeek(struct tern_port *port, const void *data);
void shm_slab_ask(struct shm_conn *conn, struct shm_slab *slab);
/* A slab arrived or was refused; was asked for by the peer (-EAGAIN: the socket is full);
 * was freed by its owner. */
void shm_slab_arrived(struct shm_conn *conn, const struct shm_note *note, int fd);
int shm_slab_pass(struct shm_conn *conn, uint32_t mem_id);
void shm_slab_gone(struct shm_conn *conn, uint32_t mem_id);
void shm_slab_free_all(struct shm_conn *conn);
static inline bool shm_slab_holds(
	const struct shm_slab *slab, uint64_t offset, uint64_t bytes)
{
	return offset <= slab->bytes && bytes <= slab->bytes - offset;
}

/* shm_gpu.c: memory of GPUs that the reader's device copies. */

int shm_offer(struct tern_conn *conn, const struct tern_mem *mem);
int shm_borrow(struct tern_conn *conn, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, struct tern_loan *out);
int shm_repay(struct tern_loan *loan);
bool shm_offer_was_taken(struct shm_conn *conn, const struct tern_mem *mem);
/* Makes those that found no room. True: there is none yet. */
bool shm_offers_make(struct shm_conn *conn);
/* What the peer says. */
void shm_offer_arrived(struct shm_conn *conn, const struct shm_note *note,
	const struct tern_ipc_handle *handle);
void shm_offer_answered(struct shm_conn *conn, const struct shm_note *note);
void shm_offer_again(struct shm_conn *conn);
/* The peer has freed it. False: we have it not open. */
bool shm_view_gone(struct shm_conn *conn, uint32_t mem_id);
/* In each poll(): tells the peer what has changed here. */
void shm_gpu_step(struct shm_conn *conn);
/* The conn is being freed. */
void shm_gpu_end(struct shm_conn *conn);

/* shm_copy.c: moving the bytes of gets. */

/* To be called before what was exposed to the peer may change. */
void shm_say_gone(struct shm_conn *conn);
/* Has the peer closed? Bytes of its memory that were read before this was asked may be
 * torn if so. */
bool shm_peer_gone(const struct shm_conn *conn);

/* Is there a piece to copy, an ask to answer, an answer to take? */
bool shm_copy_ready(const struct shm_conn *conn);
/* Moves one piece of each kind of work. How many events. */
int shm_copy_step(struct shm_conn *conn);
void shm_op_start(struct shm_conn *conn, struct tern_op *op, struct shm_slab *slab);
/* What waited for `slab` can start: status 0; or ends. */
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
