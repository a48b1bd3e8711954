/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections with UCX: an endpoint for each, which the client connects to the address of
 * the server's listener, and active messages. Each end has one worker, and sleeps until the
 * worker has an event. The server answers through the endpoint that UCX passes to the handler
 * of a message.
 *
 *     ucx_connections COUNT,...
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "bench/ask.h"
#include "bench/pair.h"
#include "bench/peers/ucx_worker.h"
#include "bench/two.h"

enum { REQUEST_ID = 1, ANSWER_ID };

struct connection {
	ucp_ep_h ep;
	/* A request begins with the connection's number, which its answer repeats: both ends get
	 * the messages of all connections in one function. */
	uint64_t request[ASK_BYTES / sizeof(uint64_t)];
	uint64_t answer; /* at the server */
	void *sending;   /* UCX's handle of the request; NULL: it has left */
	bool is_answered;
};

static ucp_worker_h worker;
static struct connection *connections;
static unsigned connection_count;
static struct sockaddr_in server;

/* ---- both ends ---- */

static void open_worker(unsigned count, unsigned id, ucp_am_recv_callback_t received)
{
	ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
							UCP_AM_HANDLER_PARAM_FIELD_CB,
		.id = id,
		.cb = received};

	connection_count = count;
	connections = bench_memory(count * sizeof(*connections), false);
	worker = ucx_worker(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, false);
	ucx_must("handler", ucp_worker_set_am_recv_handler(worker, &handler));
}

/* Returns the connection whose number a message begins with. */
static struct connection *named_by(const void *data, size_t bytes, size_t expected)
{
	uint64_t number;

	if (bytes != expected)
		pair_die("a message has %zu bytes instead of %zu", bytes, expected);
	memcpy(&number, data, sizeof(number)); /* `data` may be at any address */
	if (number >= connection_count)
		pair_die("a message names connection %llu of %u",
			(unsigned long long)number, connection_count);
	return &connections[number];
}

/* Makes an endpoint that reports the loss of its connection, as UCX's example of a client and a
 * server (ucp_client_server.c) does. */
static ucp_ep_h new_ep(ucp_ep_params_t params, ucp_err_handler_cb_t failed)
{
	ucp_ep_h ep;

	params.field_mask |=
		UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
	params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
	params.err_handler.cb = failed;
	ucx_must("endpoint", ucp_ep_create(worker, &params, &ep));
	return ep;
}

/* ---- the server ---- */

static void answered(void *request, ucs_status_t status, void *arg)
{
	(void)status, (void)arg; /* an error if the client has exited meanwhile */
	ucp_request_free(request);
}

static ucs_status_t asked(void *arg, const void *header, size_t header_bytes, void *data,
	size_t bytes, const ucp_am_recv_param_t *param)
{
	struct connection *c = named_by(data, bytes, ASK_BYTES);
	ucp_request_param_t params = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.send = answered};
	void *sending;

	(void)arg, (void)header, (void)header_bytes;
	c->answer = (uint64_t)(c - connections);
	sending = ucp_am_send_nbx(param->reply_ep, ANSWER_ID, NULL, 0, &c->answer,
		sizeof(c->answer), &params);
	if (UCS_PTR_IS_ERR(sending))
		ucx_must("answer", UCS_PTR_STATUS(sending));
	return UCS_OK;
}

static void client_exited(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg, (void)ep, (void)status;
}

static void accept_one(ucp_conn_request_h request, void *arg)
{
	(void)arg;
	new_ep((ucp_ep_params_t){.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
		       .conn_request = request},
		client_exited);
}

/* Starts a listener at a port that the system chooses, and returns its address. */
static struct sockaddr_in start_listener(void)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	ucp_listener_params_t params = {
		.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
			      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
		.sockaddr = {(struct sockaddr *)&at, sizeof(at)},
		.conn_handler.cb = accept_one};
	ucp_listener_attr_t found = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
	ucp_listener_h listener;

	ucx_must("listen", ucp_listener_create(worker, &params, &listener));
	ucx_must("address", ucp_listener_query(listener, &found));
	return *(struct sockaddr_in *)&found.sockaddr;
}

static void serve(int fd, unsigned count)
{
	open_worker(count, REQUEST_ID, asked);
	server = start_listener();
	two_tell(fd, &server, sizeof(server));
	for (;;) {
		if (ucx_drive(&worker, 1, fd))
			ask_answer(fd);
	}
}

/* ---- the client ---- */

static ucs_status_t got_answer(void *arg, const void *header, size_t header_bytes,
	void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
	(void)arg, (void)header, (void)header_bytes, (void)param;
	named_by(data, bytes, ASK_REPLY_BYTES)->is_answered = true;
	return UCS_OK;
}

static void broken(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	(void)arg, (void)ep;
	ucx_must("a connection", status);
}

static void prepare(int fd, unsigned count)
{
	open_worker(count, ANSWER_ID, got_answer);
	two_hear(fd, &server, sizeof(server));
}

static void connect_one(unsigned i)
{
	connections[i].request[0] = i;
	connections[i].ep =
		new_ep((ucp_ep_params_t){.field_mask = UCP_EP_PARAM_FIELD_FLAGS |
						       UCP_EP_PARAM_FIELD_SOCK_ADDR,
			       .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
			       .sockaddr = {(struct sockaddr *)&server, sizeof(server)}},
			broken);
}

static void ask(unsigned i)
{
	struct connection *c = &connections[i];
	ucp_request_param_t params = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_REPLY};

	c->is_answered = false;
	c->sending = ucp_am_send_nbx(
		c->ep, REQUEST_ID, NULL, 0, c->request, sizeof(c->request), &params);
	if (UCS_PTR_IS_ERR(c->sending))
		ucx_must("send", UCS_PTR_STATUS(c->sending));
}

static void get_answer(unsigned i)
{
	struct connection *c = &connections[i];

	while (!c->is_answered)
		ucx_drive(&worker, 1, -1);
	ucx_finish(worker, c->sending, true);
}

int main(int argc, char **argv)
{
	return ask_main(argc, argv,
		&(struct ask_ops){.usage = "ucx_connections COUNT,...",
			.serve = serve,
			.prepare = prepare,
			.connect = connect_one,
			.ask = ask,
			.get_answer = get_answer});
}
