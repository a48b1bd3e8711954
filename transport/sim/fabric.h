/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by fabric.c (simulated connections and their ends) and move.c
 * (messages, puts and gets on them). */
#ifndef TERN_TRANSPORT_SIM_FABRIC_H
#define TERN_TRANSPORT_SIM_FABRIC_H

#include "transport/sim/sim.h"

#define WINDOWS_MAX 4096u
#define PIECES_MAX  4u
#define PATIENCE    50u

enum side_state {
	SIDE_DIALLING,
	SIDE_UP,
	SIDE_ENDING,
	SIDE_ENDED,
};

struct window {
	/* landing: number of pieces of puts that have not arrived yet */
	uint32_t generation, landing;
	/* withdrawn: revoked; the window is freed when `landing` is 0 */
	bool used, withdrawn;
	void *owner;
	struct tern_mem *mem;
	uint64_t offset, bytes;
	enum tern_access access;
	struct tern_op *op;
};

struct sim_fabric {
	struct tern_fabric base;
	struct tern_sim_process *process;
	struct tern_list ports;
};

struct sim_port {
	struct tern_port base;
	struct tern_list node, sides, inbox;
	/* List of struct reading: memory that this port reads in place. */
	struct tern_list peeks;
	struct tern_sim_process *process;
	struct window windows[WINDOWS_MAX];
	uint64_t idle_ns;
	unsigned idle_polls;
};

struct sim_lsn {
	struct tern_lsn base;
	struct tern_list node;
	char address[64];
};

struct side {
	struct tern_conn base;
	/* node: in port->sides; of_sim: in the simulator's list of all connections */
	struct tern_list node, of_sim;
	/* The other end of the connection; NULL: not known yet, or freed. */
	struct side *other;
	enum side_state state;
	/* Number of events, items, works and peeks that refer to this structure, and one
	 * until `closed` was reported. */
	unsigned refs;
	bool wants_room, end_posted, reported, refused;
	/* Number of peek()s by which the other end currently reads memory of this end. */
	unsigned reader_count;
	int status;
	/* Time at which the last data sent arrives at the other end. */
	uint64_t last_ns;
	struct tern_list works, incoming;
	struct tern_sim_event end, connect, up;
	char address[64];
};

/* Memory of a peer that a port reads in place (peek()), perhaps beyond the end of the
 * conn. */
struct reading {
	/* node: in reader->peeks; of_sim: in the simulator's list of all readings */
	struct tern_list node, of_sim;
	struct sim_port *reader;
	/* End of the connection that owns the memory; this structure holds a reference
	 * to it. */
	struct side *owner;
	const void *data;
};

enum item_kind {
	ITEM_ACCEPTED,
	ITEM_UP,
	ITEM_MESSAGE,
	ITEM_WRITABLE,
	ITEM_DONE,
	ITEM_ENDED,
	ITEM_CLOSED,
};

struct item { /* An event that a port's next poll reports to the layer above. */
	struct tern_sim_event event;
	struct tern_list node;
	enum item_kind kind;
	struct side *side;
	struct sim_lsn *lsn;
	struct work *work;
	struct tern_op *op;
	int status;
	size_t bytes;
	void *data;
};

struct piece {
	struct tern_sim_event event;
	/* In the target end's list `incoming`. A piece that was removed from this list is
	 * ignored when its event occurs. */
	struct tern_list node;
	struct work *work;
	uint64_t from, bytes;
};

/* A put, get or peek in flight. */
struct work {
	/* In side->works, which holds a reference; not linked: the op was completed. */
	struct tern_list node;
	struct side *side;
	struct tern_op *op;
	struct tern_mem *mem;
	uint64_t offset, bytes, remote_offset;
	uint32_t entry, generation;
	/* Puts: the bytes as they were at the time of the call, or at the end of the
	 * connection (sim_work_cut()); NULL: the bytes are read from the source when a
	 * piece arrives. */
	unsigned char *snapshot;
	struct piece pieces[PIECES_MAX];
	unsigned piece_count, refs;
	unsigned landed_count; /* pieces that were written to the target */
	struct tern_sim_event done;
};

static inline struct sim_port *port_of(struct tern_port *p)
{
	return tern_container_of(p, struct sim_port, base);
}

static inline struct side *side_of(struct tern_conn *c)
{
	return tern_container_of(c, struct side, base);
}

static inline struct sim_port *side_port(const struct side *s)
{
	return port_of(s->base.port);
}

static inline struct tern_sim *sim_of(const struct sim_port *p)
{
	return tern_sim_of(p->process);
}

static inline uint64_t later(struct tern_sim *sim)
{
	return tern_sim_now_ns(sim) + tern_sim_delay(sim);
}

/* Functions of fabric.c. */
void sim_side_put(struct side *s);
struct item *sim_item_new(enum item_kind kind, struct side *side);
void sim_post(struct item *i);
/* Posts the item of `event` if its end of the connection can still receive; otherwise
 * frees the item. */
void sim_post_event(struct tern_sim_event *event);
bool sim_is_up(const struct side *s);

/* Reports to the program of `s` that its conn has ended: by `ended` while the other end
 * still reads memory of `s` in place, otherwise by `closed`. After the last read it is
 * called again, for `closed`. */
void sim_report_end(struct side *s);

/* Functions of move.c. */
/* Ends one peek(): the memory is no longer read in place. */
void sim_read_no_more(struct reading *reading);
void sim_work_put(struct work *w);
/* Copies the data of the op's pieces in flight, which may still arrive. Must be called
 * when a connection has ended, before its op is completed: after that the caller may
 * reuse the memory. */
void sim_work_cut(struct work *w);
void sim_window_landed(struct sim_port *port, uint32_t entry, uint32_t generation);
int sim_expose(struct tern_conn *conn, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out);
int sim_withdraw(
	struct tern_port *base, struct tern_op *op, const struct tern_region *region);
int sim_send(struct tern_conn *conn, const void *head, size_t head_bytes,
	const void *payload, size_t payload_bytes);
int sim_put(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int sim_get(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset);
int sim_peek(struct tern_conn *conn, struct tern_op *op, const struct tern_region *remote,
	uint64_t remote_offset, uint64_t bytes, const void **out);
void sim_unpeek(struct tern_port *port, const void *data);

#endif
