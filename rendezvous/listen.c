/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners, and the handlers of the events that fabrics report through their ports (a
 * port is a context's use of one fabric). A listener at "auto://HOST:PORT" listens on
 * several fabrics: on the one that chooses the port, and on the others whose addresses
 * follow from HOST:PORT (auto_listen in fabric.h).
 */
#include "rendezvous/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/sized.h"
#include "rendezvous/window.h"
#include "transport/addr.h"

/* ---- events of the ports ---- */

static void on_accepted(void *arg, struct tern_lsn *lsn, struct tern_conn *conn)
{
	struct tern_rdv *rdv = arg;
	struct tern_link *link = tern_link_new(rdv, conn, TERN_LINK_WAIT_HELLO);

	if (!link) {
		conn->user = NULL;
		conn->port->ops->conn_close(conn, false);
		return;
	}
	link->listener = lsn->user;
}

static void on_up(void *arg, struct tern_conn *conn)
{
	struct tern_link *link = conn->user;

	(void)arg;
	if (link && link->state == TERN_LINK_DIALLING)
		tern_link_hello(link);
}

static int on_message(void *arg, struct tern_conn *conn, const void *data, size_t bytes)
{
	struct tern_link *link = conn->user;

	(void)arg;
	if (!link || link->state == TERN_LINK_CLOSING)
		return 0;
	if (link->state == TERN_LINK_WAIT_WELCOME)
		tern_link_welcomed(link);
	else if (link->state != TERN_LINK_UP)
		return tern_link_handshake(link, data, bytes);
	if (link->state != TERN_LINK_UP)
		return 0;
	if (link->rail)
		return tern_rail_message(link, data, bytes);
	if (link->peer->link != link)
		return 0;
	return tern_stream_receive(link->peer, data, bytes);
}

static void on_writable(void *arg, struct tern_conn *conn)
{
	struct tern_link *link = conn->user;

	(void)arg;
	if (!link || link->state == TERN_LINK_CLOSING)
		return;
	if (link->state != TERN_LINK_UP)
		tern_link_writable(link);
	else if (link->rail)
		tern_rail_writable(link);
	else {
		tern_lend_answered(link->peer);
		tern_peer_pump(link->peer);
		/* There may have been no room for an acknowledgement or for credits
		 * before. */
		tern_stream_tell(link->peer);
	}
}

static void on_ended(void *arg, struct tern_conn *conn, int status)
{
	struct tern_link *link = conn->user;

	(void)arg;
	if (!link)
		return;
	if (link->state != TERN_LINK_CLOSING)
		tern_link_enter(link, TERN_LINK_CLOSING);
	link->over = true;
	if (link->peer)
		tern_peer_link_over(link->peer, link, status);
}

static void on_closed(void *arg, struct tern_conn *conn, int status)
{
	struct tern_link *link = conn->user;

	(void)arg;
	if (!link)
		return;
	if (link->peer && !link->over)
		tern_peer_link_over(link->peer, link, status);
	if (link->peer)
		tern_peer_link_closed(link->peer);
	tern_link_free(link);
}

static const struct tern_port_handler port_handler = {
	.accepted = on_accepted,
	.up = on_up,
	.message = on_message,
	.writable = on_writable,
	.ended = on_ended,
	.closed = on_closed,
};

/* ---- the layer ---- */

/* Releases the memory of peers that the receives of this list read in place; the program
 * cannot read it any more after this. Buffers from pools stay with the program. A receive
 * whose done() has not been called yet is left for a later call. */
static void let_go_of(struct tern_list *held)
{
	tern_list_for_each_safe (n, held) {
		struct tern_xfer *x = tern_list_entry(n, struct tern_xfer, all);

		if (tern_req_of(x)->status)
			continue;
		tern_xfer_release(x);
		x->rdv = NULL;
	}
}

static void let_go(struct tern_rdv *rdv)
{
	let_go_of(&rdv->held);
	tern_list_for_each (n, &rdv->peers)
		let_go_of(&tern_list_entry(n, struct tern_peer, node)->held);
}

static unsigned sends_of(const struct tern_peer *peer)
{
	unsigned count = 0;

	tern_list_for_each (n, &peer->xfers)
		count += tern_list_entry(n, struct tern_xfer, all)->is_send;
	return count;
}

/* Logs once, after a second, which peers tern_context_free() waits for: a peer may read
 * our memory in place without a time limit. */
static void say_who_reads(struct tern_rdv *rdv)
{
	if (rdv->said_who_reads ||
		tern_now_ns(rdv->ctx->env) - rdv->ending_ns < TERN_NS_PER_S)
		return;
	rdv->said_who_reads = true;
	tern_list_for_each (n, &rdv->peers) {
		const struct tern_peer *peer = tern_list_entry(n, struct tern_peer, node);
		unsigned count = sends_of(peer);

		if (count)
			tern_log(rdv->ctx->env, TERN_LOG_WARN,
				"%s: tern_context_free waits until the peer releases "
				"the tensors that it reads in place (%u), or its "
				"process ends",
				peer->name, count);
	}
}

static void rdv_free(void *arg)
{
	struct tern_rdv *rdv = arg;

	rdv->ending_ns = tern_now_ns(rdv->ctx->env);
	/* If the context of a peer is being freed too, its tern_context_free() waits
	 * until we no longer read its memory in place: so release that memory first. */
	let_go(rdv);
	tern_list_for_each_safe (n, &rdv->listeners)
		tern_listener_free(tern_list_entry(n, struct tern_listener, node));
	tern_list_for_each_safe (n, &rdv->peers)
		tern_peer_free(tern_list_entry(n, struct tern_peer, node));
	tern_list_for_each_safe (n, &rdv->links)
		tern_link_close(
			tern_list_entry(n, struct tern_link, node), -ECANCELED, false);
}

static void destroy(struct tern_rdv *rdv)
{
	tern_timer_clear(rdv->ctx, &rdv->feed_timer);
	tern_rdv_stage_fini(rdv);
	/* The context keeps using its list of deferred calls, so our entry must leave
	 * it. */
	tern_list_remove(&rdv->complete_call.node);
	tern_records_fini(rdv);
	tern_map_fini(&rdv->windows.by_id);
	tern_map_fini(&rdv->tokens);
	free(rdv);
}

static bool rdv_drained(void *arg)
{
	struct tern_rdv *rdv = arg;

	let_go(rdv);
	if (!tern_list_empty(&rdv->peers) || !tern_list_empty(&rdv->links)) {
		say_who_reads(rdv);
		return false;
	}
	tern_windows_end(rdv);
	tern_rdv_run_completed(rdv);
	let_go(rdv);
	destroy(rdv);
	return true;
}

int tern_rendezvous_init(struct tern_context *ctx)
{
	struct tern_rdv *rdv;
	int r;

	r = tern_secret_check(ctx->opts.secret);
	if (r < 0)
		return r;
	rdv = calloc(1, sizeof(*rdv));
	if (!rdv)
		return -ENOMEM;
	rdv->ctx = ctx;
	rdv->incarnation = tern_random(ctx->env);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(rdv->match_secret.word); i++)
		rdv->match_secret.word[i] = tern_random(ctx->env);
	tern_list_init(&rdv->peers);
	tern_list_init(&rdv->links);
	tern_admission_init(&rdv->half_open, tern_random(ctx->env));
	rdv->half_open_max = tern_half_open_max(ctx->file_max);
	tern_map_init(&rdv->tokens, rdv->match_secret.word[0]);
	tern_list_init(&rdv->listeners);
	tern_list_init(&rdv->completed);
	tern_list_init(&rdv->complete_call.node);
	rdv->complete_call.call = tern_rdv_complete_call;
	tern_list_init(&rdv->accesses_done);
	tern_list_init(&rdv->windows.all);
	tern_map_init(&rdv->windows.by_id, rdv->match_secret.word[0]);
	tern_list_init(&rdv->held);
	tern_list_init(&rdv->hungry);
	tern_rdv_stage_init(rdv);
	r = tern_records_init(rdv, ctx->opts.record_count);
	if (r < 0) {
		destroy(rdv);
		return r;
	}
	ctx->user = (struct tern_context_user){
		.handler = &port_handler,
		.arg = rdv,
		.message_bytes = TERN_MESSAGE_MAX,
		.free = rdv_free,
		.drained = rdv_drained,
	};
	return 0;
}

/* ---- listeners ---- */

static int add_lsn(
	struct tern_listener *l, struct tern_fabric *fabric, const char *address)
{
	struct tern_port *port;
	struct tern_lsn *lsn;
	int r = tern_context_port(l->rdv->ctx, fabric, &port);

	if (r == 0)
		r = port->ops->listen(port, address, &lsn);
	if (r < 0)
		return r;
	lsn->user = l;
	l->lsns[l->lsn_count++] = lsn;
	return 0;
}

/* Listens on a further fabric of an "auto" address, besides the fabric that chose the
 * port. If this fails, peers use the other fabrics. */
static void add_beside(
	struct tern_listener *l, struct tern_fabric *fabric, const char *host_port)
{
	const struct tern_fabric_ops *ops = fabric->ops;
	char address[128];
	int r;

	if (!ops->auto_listen ||
		ops->auto_listen(host_port, address, sizeof(address)) < 0)
		return;
	r = add_lsn(l, fabric, address);
	/* -EADDRNOTAVAIL is not worth a warning: on a machine with RDMA devices, the
	 * address may be that of a network card that is no RDMA device. */
	if (r < 0)
		tern_log(l->rdv->ctx->env,
			r == -EADDRNOTAVAIL ? TERN_LOG_DEBUG : TERN_LOG_WARN,
			"cannot listen with %s at %s: %s: peers%s will use %s",
			ops->title ? ops->title : ops->name, l->address,
			tern_status_text(r), ops->one_host ? " on this host" : "",
			l->lsns[0]->port->ops->name);
}

int tern_listen_sized(struct tern_context *ctx, const char *address,
	const struct tern_peer_opts *opts, size_t opts_bytes,
	void (*accept)(struct tern_peer *peer, void *arg), void *arg,
	struct tern_listener **out)
{
	struct tern_candidates where;
	struct tern_listener *l;
	const char *got, *fabric;
	struct tern_peer_opts own;
	bool is_auto;
	int r = tern_read_sized(&own, sizeof(own), opts, opts_bytes);

	if (r == 0)
		r = tern_secret_check(own.secret);
	if (r == 0)
		r = tern_address_listen(ctx->domain, address, &where, &is_auto);
	if (r < 0)
		return r;
	l = calloc(1, sizeof(*l) + ctx->domain->fabric_count * sizeof(l->lsns[0]));
	if (!l)
		return -ENOMEM;
	r = tern_secret_copy(&l->secret, own.secret);
	if (r < 0) {
		free(l);
		return r;
	}
	l->rdv = tern_rdv_of(ctx);
	l->accept = accept;
	l->accept_arg = arg;
	l->opts = own;
	if (own.name)
		snprintf(l->own_name, sizeof(l->own_name), "%s", own.name);
	l->opts.name = l->own_name;
	l->opts.secret = l->secret;
	r = add_lsn(l, where.at[0].fabric, where.at[0].address);
	if (r < 0) {
		tern_secret_free(l->secret);
		free(l);
		return r;
	}
	got = l->lsns[0]->port->ops->lsn_address(l->lsns[0]);
	fabric = is_auto ? "auto" : where.at[0].fabric->ops->name;
	snprintf(l->address, sizeof(l->address), "%s://%s", fabric, got);
	for (unsigned i = 0; is_auto && i < ctx->domain->fabric_count; i++)
		add_beside(l, ctx->domain->fabrics[i], got);
	tern_list_push(&l->rdv->listeners, &l->node);
	*out = l;
	return 0;
}

const char *tern_listener_address(const struct tern_listener *l)
{
	return l->address;
}

struct found {
	const char *fabric; /* with "://" */
	int fabric_length;
	char (*out)[TERN_ADDRESS_BYTES];
	unsigned count, max;
};

static void add_found(const char *host_port, void *arg)
{
	struct found *f = arg;

	if (f->count < f->max)
		snprintf(f->out[f->count], TERN_ADDRESS_BYTES, "%.*s%s", f->fabric_length,
			f->fabric, host_port);
	f->count++;
}

int tern_listener_addresses(
	const struct tern_listener *l, char (*out)[TERN_ADDRESS_BYTES], unsigned max)
{
	const char *rest = strstr(l->address, "://") + 3;
	struct found f = {.fabric = l->address,
		.fabric_length = (int)(rest - l->address),
		.out = out,
		.max = max};
	int r = tern_addr_reached(rest, add_found, &f);

	return r < 0 ? r : (int)f.count;
}

void tern_listener_refuse_new(struct tern_listener *l)
{
	l->refuses = true;
}

void tern_listener_free(struct tern_listener *l)
{
	if (!l)
		return;
	/* Links use their listener only while they are half-open (in their handshake). */
	tern_list_for_each (n, &l->rdv->half_open.all) {
		struct tern_link *link =
			tern_list_entry(n, struct tern_link, half_open.node);

		if (link->listener == l)
			link->listener = NULL;
	}
	for (unsigned i = 0; i < l->lsn_count; i++)
		l->lsns[i]->port->ops->lsn_close(l->lsns[i]);
	tern_list_remove(&l->node);
	tern_secret_free(l->secret);
	free(l);
}
