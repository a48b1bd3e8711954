/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows (include/tern/window.h): the owner's half is window.c; the other end's half is
 * remote.c (handles, and posting) and access.c. window_move.c moves what is in GPU memory.
 *
 * All that the two ends know of each other's windows belongs to one link. The end that
 * wants access asks with OPEN on each link, and the messages about windows are neither
 * numbered nor kept: when the link is lost, both ends forget what was under way, and the
 * end that wants access begins again on the next link. So no message of an old link can
 * end a put whose bytes were lost with it. Exceptions are NOTIFY, and MOVE and MOVED:
 * parts that window_move.c moves go on on the next link.
 */
#ifndef TERN_RENDEZVOUS_WINDOW_H
#define TERN_RENDEZVOUS_WINDOW_H

#include <tern/window.h>

#include "base/map.h"
#include "rendezvous/xfer.h"

/* Largest number of gets of the fabric that are in flight on a link for windows. */
#define TERN_WINDOW_GETS 16u

/* What the peer may do with a window, and how: bits of the field `channel` of OPENED. The
 * two lowest bits are enum tern_window_access. */
#define TERN_OPENED_GET (1u << 2) /* gets may use the region */
#define TERN_OPENED_PUT (1u << 3) /* puts may use the region */
#define TERN_OPENED_LANDS                                                                \
	(1u << 4) /* a put has landed when the fabric says that it ended */
/* The window is GPU memory, whose bytes travel as window_move.c says; without a region. */
#define TERN_OPENED_MOVES (1u << 5)
#define TERN_OPENED_BITS  (0x3fu)

/* ---- the owner's half ---- */

struct tern_window {
	struct tern_map_node by_id; /* node in rdv->windows.by_id */
	struct tern_list all;       /* node in rdv->windows.all */
	struct tern_rdv *rdv;
	uint64_t id, capability[2];
	struct tern_buf buf;
	/* Registration of the window's own, for fabrics that register memory; NULL: the
	 * domain has no such fabric, or it is GPU memory. */
	struct tern_mem *own;
	unsigned access;
	struct tern_list grants;
	/* Messages of peers by which bytes are just moved from or to the window. */
	uint32_t job_count;
	bool closing;
	/* The request of tern_window_close(); NULL: none. */
	struct tern_req *closer;
	struct tern_timer deadline;
};

/* The access of one peer to a window, on the present link. */
struct tern_grant {
	struct tern_map_node
		by_id; /* node in peer->windows.grants, under the window's id */
	struct tern_list of_window; /* node in window->grants */
	struct tern_list of_peer;   /* node in peer->windows.granted */
	struct tern_list queue;     /* node in peer->windows.closes, while CLOSE is due */
	struct tern_window *window;
	struct tern_peer *peer;
	struct tern_region region;
	struct tern_op op; /* withdraw */
	bool exposed, told, withdrawing;
};

enum tern_job_state {
	TERN_JOB_FREE,
	TERN_JOB_PULL, /* the bytes are to be read from the peer */
	TERN_JOB_PUSH, /* the bytes are to be put to the peer */
	TERN_JOB_MOVING,
	TERN_JOB_ANSWER, /* DONE is to be sent */
};

/* A WRITE, READ or FENCE of the peer that is not answered yet. */
struct tern_job {
	struct tern_op op;
	struct tern_list queue; /* node in peer->windows.jobs_due */
	struct tern_peer *peer;
	struct tern_window *window; /* NULL: its memory is not in use */
	struct tern_region region;
	uint64_t offset, bytes;
	uint32_t src;
	int status;
	uint8_t state; /* enum tern_job_state */
	bool op_out;   /* the fabric has not ended `op` yet */
	bool pushed;   /* `op` is a put */
	bool answered; /* DONE was sent, before the end of `op` */
};

/* ---- the other end's half ---- */

enum tern_remote_state {
	TERN_REMOTE_UNASKED, /* OPEN is to be sent on the present or the next link */
	TERN_REMOTE_ASKED,
	TERN_REMOTE_OPEN,
	TERN_REMOTE_OVER, /* `status` says why; for good */
};

/* A window of the peer. */
struct tern_remote {
	struct tern_list all;       /* node in peer->windows.remotes */
	struct tern_list queue;     /* node in peer->windows.asking or .leaving */
	struct tern_map_node by_id; /* node in peer->windows.handles, under `id` */
	struct tern_peer *peer;
	struct tern_window_desc desc;
	uint32_t id, users;
	uint8_t state; /* enum tern_remote_state */
	int status;
	uint32_t about; /* the bits of OPENED */
	struct tern_region region;
	struct tern_list waiting; /* requests that wait until the window is open */
	uint32_t access_count;    /* requests that have not ended */
	uint32_t moving;          /* of these: puts and gets that have not landed */
	/* The owner has closed the window, and waits for LEFT. */
	bool left_due;
};

enum tern_part_kind {
	TERN_PART_FREE,
	TERN_PART_PUT,     /* put of the fabric */
	TERN_PART_GET,     /* get of the fabric */
	TERN_PART_MESSAGE, /* WRITE, READ or FENCE was sent; DONE is awaited */
	TERN_PART_WITHDRAWING,
};

/* A part of a put or get that is under way. Its id on the wire is generation << 16 | index
 * of the entry in peer->windows.parts. */
struct tern_part {
	struct tern_op op;
	struct tern_peer *peer;
	struct tern_wreq *access;
	struct tern_region region; /* of our own memory, while `exposed` is set */
	uint32_t next;             /* index of the next free entry */
	uint16_t generation;
	uint8_t kind; /* enum tern_part_kind */
	bool exposed;
};

enum tern_wreq_kind {
	TERN_WREQ_PUT,
	TERN_WREQ_GET,
	TERN_WREQ_NOTIFY,
	TERN_WREQ_CLOSE, /* tern_window_close() */
};

/*
 *     OPENING --the window is open--> MOVING --[a note]--> SAYING --> UNACKED --> ENDED
 *        ^                              |
 *        +---------the link is lost-----+ (but not with `moves`)
 */
enum tern_wreq_state {
	TERN_WREQ_OPENING, /* in remote->waiting */
	TERN_WREQ_MOVING,  /* in windows.active while it has something to start */
	TERN_WREQ_SAYING,  /* NOTIFY is to be sent: in windows.saying */
	TERN_WREQ_UNACKED, /* NOTIFY was sent: in windows.unacked */
	TERN_WREQ_ENDED,
};

/* A request of window.h, in the caller's tern_req. */
struct tern_wreq {
	uint8_t req_kind; /* TERN_REQ_WINDOW */
	uint8_t kind;     /* enum tern_wreq_kind */
	uint8_t state;    /* enum tern_wreq_state */
	bool has_note;
	/* The fabric has taken puts of this request that need a FENCE; the FENCE was
	 * sent. */
	bool fence_due, fenced;
	bool moves; /* memory of a GPU takes part: window_move.c moves all its bytes */
	struct tern_list all;   /* node in peer->windows.all */
	struct tern_list queue; /* node in the list in which it waits */
	struct tern_list puts; /* a put that has not landed: node in peer->windows.puts */
	struct tern_peer *peer;
	struct tern_rdv *rdv;
	struct tern_remote *remote;
	const struct tern_piece *pieces; /* or &one */
	struct tern_piece one;
	uint64_t count, at; /* number of pieces; the piece that is being started */
	uint64_t moved;     /* bytes of that piece that were started */
	struct tern_note note;
	/* A put: its number, in the order of posting. A notification: that of the last
	 * put before it. */
	uint64_t number;
	uint32_t parts_out, done_seq;
	int status; /* why it will end; 0: nothing is wrong so far */
};
_Static_assert(sizeof(struct tern_wreq) <= sizeof(struct tern_xfer),
	"a request of a window must fit where one of a channel does");

static inline struct tern_wreq *tern_wreq_of(struct tern_req *req)
{
	return (struct tern_wreq *)(void *)req->priv;
}

/* ---- GPU memory ---- */

/* A part that window_move.c moves: this end's half of it. */
struct tern_move {
	struct tern_req req;
	struct tern_list node; /* in peer->windows.moves or .served */
	struct tern_peer *peer;
	uint32_t id; /* chosen by the end that accesses the window */
	/* 0, or why the part fails although this half may end well. */
	int status;
	bool get, empty, ended;
	/* The owner's end. NULL: the part was refused, or its half has ended. */
	struct tern_window *window;
	/* The other end. */
	struct tern_wreq *access;
	uint64_t bytes;
	bool answered; /* MOVED has arrived */
};

/* ---- functions ---- */

/* Sends a message about windows, which is neither numbered nor kept. -EAGAIN: no room. */
int tern_window_say(struct tern_peer *peer, struct tern_header *h, const void *payload);

/* Functions that window.c defines: */
int tern_window_on_open(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_write(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_read(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_fence(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_left(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_notify(struct tern_peer *peer, const struct tern_header *h);
/* Sends what the owner's half has to say. -EAGAIN: no room. */
int tern_window_pump_owner(struct tern_peer *peer);
/* Called when the link is lost, or the peer is DOWN: ends the peer's access. */
void tern_window_lost_owner(struct tern_peer *peer);
/* Finds the window that MOVE names, and the memory of its range, and holds the window: it
 * does not end before tern_window_unhold(). Returns 0 or the status of the refusal. */
int tern_window_hold(struct tern_peer *peer, const struct tern_header *h,
	struct tern_window **out, struct tern_buf *range);
void tern_window_unhold(struct tern_window *window);
/* Frees the windows of a context that is being freed, which has no peers any more. */
void tern_windows_end(struct tern_rdv *rdv);

/* Functions that access.c defines: */
int tern_window_on_opened(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_done(struct tern_peer *peer, const struct tern_header *h);
int tern_window_on_close(struct tern_peer *peer, const struct tern_header *h);
int tern_window_pump_access(struct tern_peer *peer);
void tern_window_lost_access(struct tern_peer *peer);
/* Called when the peer is DOWN, after tern_window_lost_access(): ends all requests. */
void tern_window_down_access(struct tern_peer *peer, int status);
/* Starts a request whose window is open, or ends it if the window lacks the right. */
void tern_wreq_begin(struct tern_wreq *x);
/* Lets a request in state MOVING go on: it has parts to start, or has landed. */
void tern_wreq_activate(struct tern_wreq *x);
/* Ends a request in state MOVING: at once, or when what it has started is over. */
void tern_wreq_stop(struct tern_wreq *x, int status);
/* Ends the notifications that the peer has acknowledged. */
void tern_wreq_acked(struct tern_peer *peer);
/* Ends a request: done() is called later. */
void tern_wreq_complete(struct tern_wreq *x, int status);
void tern_wreq_run_completed(struct tern_rdv *rdv);
/* Initialises a request; sets req->status and the like. */
struct tern_wreq *tern_wreq_init(
	struct tern_req *req, struct tern_rdv *rdv, enum tern_wreq_kind kind);

/* Functions that remote.c defines: */
void tern_remote_free(struct tern_remote *remote);
void tern_wreq_cancel(struct tern_wreq *x);

/* Functions that window_move.c defines: */
/* Returns the size of the next part of a piece of which `left` bytes are left. */
uint64_t tern_move_bytes(const struct tern_wreq *x, uint64_t left);
/* Starts a part of a request. -EAGAIN: no room. */
int tern_move_start(struct tern_wreq *x, const struct tern_piece *piece, uint64_t bytes);
int tern_move_on_move(struct tern_peer *peer, const struct tern_header *h);
int tern_move_on_moved(struct tern_peer *peer, const struct tern_header *h);
/* Sends MOVED for each part of the peer whose half here has ended. -EAGAIN: no room. */
int tern_move_answer(struct tern_peer *peer);
/* True if MOVED is to be sent. */
bool tern_moves_unanswered(const struct tern_peer *peer);
/* True if bytes of the window are being moved for the peer. */
bool tern_moves_use(const struct tern_peer *peer, const struct tern_window *window);
/* Called when the peer is DOWN: ends the parts of which this end's half has ended. */
void tern_moves_down(struct tern_peer *peer);
void tern_moves_fini(struct tern_peer *peer);

/* Functions that windows.c defines: */
void tern_windows_init(struct tern_peer_windows *windows, uint64_t secret);
void tern_windows_fini(struct tern_peer *peer);
void tern_windows_pump_now(struct tern_peer *peer);
/* Called when something about windows is to be sent or started. */
void tern_windows_due(struct tern_peer *peer);
void tern_windows_up(struct tern_peer *peer);
void tern_windows_lost(struct tern_peer *peer);
void tern_windows_down(struct tern_peer *peer, int status);

#endif
