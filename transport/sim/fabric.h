/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that fabric.c (conns and their ends) and move.c (data on conns) share. */
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
	uint32_t generation, landing; /* landing: pieces of puts on their way to it */
	bool used, withdrawn;         /* withdrawn: waits for pieces to land */
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
	struct tern_list peeks; /* struct reading */
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
	/* In port->sides, and in the list of all conns of the world. */
	struct tern_list node, of_sim;
	struct side *other; /* NULL: not yet known, or freed */
	enum side_state state;
	unsigned refs; /* number of events that refer to it */
	bool wants_room, end_posted, reported, refused;
	/* peek()s by which the other end reads memory of this side. */
	unsigned reader_count;
	int status;
	/* Time at which the last thing sent takes effect at the other side. */
	uint64_t last_ns;
	struct tern_list works, incoming;
	struct tern_sim_event end, connect, up;
	char address[64];
};

/* Memory that a port reads in place, also after the conn has ended. */
struct reading {
	struct tern_list node;
	struct side *owner; /* holds a reference */
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

struct item { /* an event for a port's next poll to report */
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
	/* In the target side's list `incoming`. A piece that was taken out of it is ignored
	 * when its event comes. */
	struct tern_list node;
	struct work *work;
	uint64_t from, bytes;
};

struct work { /* a put, get or peek under way */
	struct tern_list
		node; /* in side->works, with a reference; not linked: its op is done */
	struct side *side;
	struct tern_op *op;
	struct tern_mem *mem;
	uint64_t offset, bytes, remote_offset;
	uint32_t entry, generation;
	/* put: bytes at the time of the call; NULL: they are read when they land. */
	unsigned char *snapshot;
	struct piece pieces[PIECES_MAX];
	unsigned piece_count, refs;
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

/* fabric.c */
void sim_side_put(struct side *s);
struct item *sim_item_new(enum item_kind kind, struct side *side);
void sim_post(struct item *i);
/* Reported only if the side still exists then. */
void sim_post_event(struct tern_sim_event *event);
bool sim_is_up(const struct side *s);

/* Goes to ENDED: `closed` will be reported, once the other end reads nothing in place
 * any more. */
void sim_report_end(struct side *s);

/* move.c */
/* Ends one peek. */
void sim_read_no_more(struct reading *reading);
void sim_work_put(struct work *w);
/* Ends the op, together with its side. The memory belongs to the caller again: what is
 * under way lands with its present contents, or not at all. */
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
