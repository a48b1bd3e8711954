/* SPDX-License-Identifier: Apache-2.0 */
/* What sim_fabric.c (conns and their ends) and sim_move.c (what goes over them) share. */
#ifndef TERN_TRANSPORT_SIM_FABRIC_H
#define TERN_TRANSPORT_SIM_FABRIC_H

#include "transport/sim.h"

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
	uint32_t generation, landing; /* landing: pieces on their way here */
	bool used, withdrawn;         /* withdrawn: waits for the pieces */
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
	struct tern_list node, of_sim; /* port->sides; the world's conns */
	struct side *other;            /* NULL: not yet, or freed */
	enum side_state state;
	unsigned refs; /* events that are about it */
	bool wants_room, end_posted, reported, refused;
	unsigned reader_count; /* peeks of the other end's at memory of ours */
	int status;
	uint64_t last_ns; /* when the last thing we sent takes effect there */
	struct tern_list works, incoming;
	struct tern_sim_event end, connect, up;
	char address[64];
};

/* What a port reads in place, also when the conn is gone. */
struct reading {
	struct tern_list node;
	struct side *owner; /* with a reference */
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

struct item { /* what a port's next poll will report */
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
	struct tern_list
		node; /* the target side's incoming; not linked: it comes to nothing */
	struct work *work;
	uint64_t from, bytes;
};

struct work { /* a put, get or peek under way */
	struct tern_list
		node; /* side->works, with a reference; not linked: its op is done */
	struct side *side;
	struct tern_op *op;
	struct tern_mem *mem;
	uint64_t offset, bytes, remote_offset;
	uint32_t slot, generation;
	unsigned char *snapshot; /* put: as it was; NULL: read when it lands */
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

/* sim_fabric.c */
void sim_side_put(struct side *s);
struct item *sim_item_new(enum item_kind kind, struct side *side);
void sim_post(struct item *i);
void sim_post_event(struct tern_sim_event *event); /* if the side still listens then */
bool sim_is_up(const struct side *s);

/* ENDED: `closed` is to be reported, unless the other end reads in place. */
void sim_report_end(struct side *s);

/* sim_move.c */
/* Ends one peek. */
void sim_read_no_more(struct reading *reading);
void sim_work_put(struct work *w);
/* Its op ends with its side: our memory is the caller's again, and what is under way
 * lands as it is now, or not at all. */
void sim_work_cut(struct work *w);
void sim_window_landed(struct sim_port *port, uint32_t slot, uint32_t generation);
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
