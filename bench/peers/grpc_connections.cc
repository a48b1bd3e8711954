/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections with gRPC: a channel each, which has a connection of its own, and unary
 * calls of byte buffers. The server has one completion queue and one thread for it.
 *
 *     grpc_connections COUNT,...
 */
#include "bench/ask.h"
#include "bench/two.h"
#include "grpc_server.hh"

namespace
{

void serve(int fd, unsigned)
{
	int port = (new GrpcServer(ASK_BYTES))->start();

	two_tell(fd, &port, sizeof(port));
	for (;;)
		ask_answer(fd); /* waits for the next question */
}

/* ---- the client ---- */

struct Connection {
	std::unique_ptr<grpc::GenericStub> stub;
	std::unique_ptr<GrpcUnary> call;
	bool answered = false;
};

int port;
grpc::CompletionQueue *queue;
std::vector<Connection> connections;

void prepare(int fd, unsigned count)
{
	two_hear(fd, &port, sizeof(port));
	queue = new grpc::CompletionQueue;
	connections.resize(count);
}

void connect_one(unsigned i)
{
	connections[i].stub = grpc_connect_apart(grpc_server_host, port);
}

void ask(unsigned i)
{
	static const char data[ASK_BYTES] = {};

	connections[i].answered = false;
	connections[i].call = std::make_unique<GrpcUnary>(
		connections[i].stub.get(), "/tensor", data, sizeof(data), queue);
}

/* Waits for the answer to call i. Answers to other calls may come before it, in any order. */
void get_answer(unsigned i)
{
	while (!connections[i].answered) {
		void *tag;
		bool ok;
		if (!queue->Next(&tag, &ok) || !ok)
			pair_die("a call broke");
		for (unsigned k = i;; k = (k + 1) % connections.size()) {
			if (connections[k].call.get() == tag) {
				connections[k].call->check();
				connections[k].answered = true;
				break;
			}
		}
	}
}

} // namespace

int main(int argc, char **argv)
{
	struct ask_ops ops = {};
	ops.usage = "grpc_connections COUNT,...";
	ops.serve = serve;
	ops.prepare = prepare;
	ops.connect = connect_one;
	ops.ask = ask;
	ops.get_answer = get_answer;
	return ask_main(argc, argv, &ops);
}
