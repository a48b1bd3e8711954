/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections with gRPC: a channel each, which has a connection of its own, and unary
 * calls of byte buffers. The server has one completion queue and one thread for it.
 *
 *     grpc_connections COUNT,...
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/ask.h"
#include "bench/pair.h"
#include "bench/two.h"
#include "grpc_codec.hh"

using grpc::ByteBuffer;
using grpc::Slice;

namespace
{

const char host[] = "127.0.0.1";

ByteBuffer message(size_t bytes)
{
	static const char zeros[ASK_BYTES] = {};
	Slice slice(zeros, bytes, Slice::STATIC_SLICE);
	return ByteBuffer(&slice, 1);
}

/* ---- the server ---- */

/* A call, from the wait for it until its answer has left. */
struct Call {
	grpc::GenericServerContext context;
	grpc::GenericServerAsyncReaderWriter stream{&context};
	ByteBuffer request;
	enum { kArriving, kReading, kAnswering } state = kArriving;
};

struct Server {
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::ServerCompletionQueue> queue;
	std::unique_ptr<grpc::Server> server;

	void expect()
	{
		Call *c = new Call;
		service.RequestCall(&c->context, &c->stream, queue.get(), queue.get(), c);
	}
	void next(Call *c, bool ok)
	{
		if (!ok || c->state == Call::kAnswering) {
			delete c;
			return;
		}
		if (c->state == Call::kArriving) {
			expect();
			c->stream.Read(&c->request, c);
			c->state = Call::kReading;
			return;
		}
		if (c->request.Length() != ASK_BYTES)
			pair_die("a request of %zu bytes", c->request.Length());
		c->stream.WriteAndFinish(message(ASK_REPLY_BYTES), grpc::WriteOptions(),
			grpc::Status::OK, c);
		c->state = Call::kAnswering;
	}
	void run()
	{
		void *tag;
		bool ok;
		while (queue->Next(&tag, &ok))
			next(static_cast<Call *>(tag), ok);
	}
};

void serve(int fd, unsigned)
{
	auto *s = new Server;
	int port = grpc_serve(host, &s->service, &s->queue, &s->server);

	if (!port)
		pair_die("cannot listen");
	two_tell(fd, &port, sizeof(port));
	s->expect();
	std::thread([s] { s->run(); }).detach();
	for (;;)
		ask_answer(fd); /* blocks until there is a question */
}

/* ---- the client ---- */

struct Connection {
	std::shared_ptr<grpc::Channel> channel;
	std::unique_ptr<grpc::GenericStub> stub;
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
	grpc::ChannelArguments args = grpc_channel_arguments();

	/* Channels with equal arguments would share one connection. */
	args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
	connections[i].channel = grpc::CreateCustomChannel(
		grpc_address(host, port), grpc::InsecureChannelCredentials(), args);
	connections[i].stub = std::make_unique<grpc::GenericStub>(connections[i].channel);
	connections[i].channel->GetState(true); /* starts to connect */
}

void wait_until_up(unsigned count)
{
	auto limit = std::chrono::system_clock::now() + std::chrono::seconds(60);

	for (unsigned i = 0; i < count; i++) {
		if (!connections[i].channel->WaitForConnected(limit))
			pair_die("connection %u does not come up", i);
	}
}

void trip(unsigned i)
{
	grpc::ClientContext context;
	ByteBuffer reply;
	grpc::Status status;
	void *tag;
	bool ok;

	context.set_wait_for_ready(true); /* the first one */
	auto reader = connections[i].stub->PrepareUnaryCall(
		&context, "/tensor/0", message(ASK_BYTES), queue);
	reader->StartCall();
	reader->Finish(&reply, &status, nullptr);
	if (!queue->Next(&tag, &ok) || !ok || !status.ok() ||
		reply.Length() != ASK_REPLY_BYTES)
		pair_die("a call: %s", status.error_message().c_str());
}

} // namespace

int main(int argc, char **argv)
{
	struct ask_ops ops = {};
	ops.usage = "grpc_connections COUNT,...";
	ops.serve = serve;
	ops.prepare = prepare;
	ops.connect = connect_one;
	ops.wait_until_up = wait_until_up;
	ops.trip = trip;
	return ask_main(argc, argv, &ops);
}
