/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head-of-line blocking with gRPC (beside.h). All calls use one channel, hence one
 * connection: a unary call for each small tensor, and for each flow of large tensors one
 * call that streams them as messages of 1 MiB, as gRPC's maintainers advise.
 *
 *     grpc_head_of_line ROUNDS
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "bench/beside.h"
#include "bench/pair.h"
#include "bench/two.h"
#include "grpc_codec.hh"

using grpc::ByteBuffer;
using grpc::Slice;

namespace
{

const char host[] = "127.0.0.1";
const char flow_method[] = "/flow";

/* The large tensor of a flow, which is sent or received over and over again. */
struct Tensor {
	unsigned char *data =
		static_cast<unsigned char *>(bench_memory(BESIDE_LARGE_BYTES, false));
	size_t offset = 0; /* of the next message */

	size_t part() const
	{
		return std::min(grpc_chunk_bytes(), BESIDE_LARGE_BYTES - offset);
	}
	void next()
	{
		offset = (offset + part()) % BESIDE_LARGE_BYTES;
	}
};

/* ---- the server ---- */

std::atomic<uint64_t> flowed_bytes{0};

/* A call, from the wait for it until its answer has left. */
struct Call {
	grpc::GenericServerContext context;
	grpc::GenericServerAsyncReaderWriter stream{&context};
	ByteBuffer request;
	std::unique_ptr<Tensor> tensor; /* of a flow */
	enum { kArriving, kReading, kAnswering } state = kArriving;
};

struct Server {
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::ServerCompletionQueue> queue;
	std::unique_ptr<grpc::Server> server;
	Codec codec{"bytes"};
	unsigned char small[BESIDE_SMALL_BYTES];

	void expect()
	{
		Call *c = new Call;
		service.RequestCall(&c->context, &c->stream, queue.get(), queue.get(), c);
	}
	void arrived(Call *c)
	{
		expect();
		if (c->context.method() == flow_method)
			c->tensor = std::make_unique<Tensor>();
		c->stream.Read(&c->request, c);
		c->state = Call::kReading;
	}
	void read(Call *c)
	{
		static const char reply[BESIDE_REPLY_BYTES] = {};

		if (c->tensor) {
			size_t bytes = c->tensor->part();
			codec.decode(&c->request, c->tensor->data + c->tensor->offset, bytes);
			c->request.Clear();
			c->tensor->next();
			flowed_bytes += bytes;
			c->stream.Read(&c->request, c);
			return;
		}
		codec.decode(&c->request, small, sizeof(small));
		c->stream.WriteAndFinish(codec.encode(reply, sizeof(reply)),
			grpc::WriteOptions(), grpc::Status::OK, c);
		c->state = Call::kAnswering;
	}
	void run()
	{
		void *tag;
		bool ok;

		while (queue->Next(&tag, &ok)) {
			Call *c = static_cast<Call *>(tag);
			if (!ok || c->state == Call::kAnswering)
				delete c;
			else if (c->state == Call::kArriving)
				arrived(c);
			else
				read(c);
		}
	}
};

void serve(int fd)
{
	auto *s = new Server;
	int port = grpc_serve(host, &s->service, &s->queue, &s->server);

	if (!port)
		pair_die("cannot listen");
	two_tell(fd, &port, sizeof(port));
	s->expect();
	std::thread([s] { s->run(); }).detach();
	for (;;) {
		char byte;
		/* Waits for a question without taking it. */
		if (recv(fd, &byte, 1, MSG_PEEK) != 1)
			_exit(1);
		beside_answer(fd, flowed_bytes);
	}
}

/* ---- the client ---- */

struct Flow {
	grpc::ClientContext context;
	std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
	Tensor tensor;
	bool writes = false; /* a message is being written */
};

struct Client {
	std::unique_ptr<grpc::GenericStub> stub;
	grpc::CompletionQueue queue;
	Codec codec{"bytes"};
	std::vector<std::unique_ptr<Flow>> flows;
	unsigned char small[BESIDE_SMALL_BYTES] = {};

	void write(Flow *f)
	{
		f->writes = true;
		f->stream->Write(
			codec.encode(f->tensor.data + f->tensor.offset, f->tensor.part()), f);
	}
	/* Drives the flows until the event with this tag has come. */
	void wait(void *wanted)
	{
		void *tag = nullptr;
		bool ok;

		while (tag != wanted) {
			if (!queue.Next(&tag, &ok) || !ok)
				pair_die("a call broke");
			if (tag == wanted)
				return;
			Flow *f = static_cast<Flow *>(tag);
			if (f->writes)
				f->tensor.next();
			write(f);
		}
	}
};

Client *client;

void connect_to(int fd)
{
	int port;

	two_hear(fd, &port, sizeof(port));
	client = new Client;
	client->stub = grpc_connect(host, port);
}

void trip()
{
	grpc::ClientContext context;
	ByteBuffer reply;
	grpc::Status status;

	context.set_wait_for_ready(true); /* the first one */
	auto reader = client->stub->PrepareUnaryCall(&context, "/small",
		client->codec.encode(client->small, sizeof(client->small)), &client->queue);
	reader->StartCall();
	reader->Finish(&reply, &status, &context);
	client->wait(&context);
	if (!status.ok() || reply.Length() != BESIDE_REPLY_BYTES)
		pair_die("a call: %s", status.error_message().c_str());
}

void start_flows()
{
	for (unsigned i = 0; i < BESIDE_FLOWS; i++) {
		client->flows.push_back(std::make_unique<Flow>());
		Flow *f = client->flows.back().get();
		f->stream = client->stub->PrepareCall(
			&f->context, flow_method, &client->queue);
		f->stream->StartCall(f);
	}
}

} // namespace

int main(int argc, char **argv)
{
	struct beside_ops ops = {};
	ops.usage = "grpc_head_of_line ROUNDS";
	ops.serve = serve;
	ops.connect = connect_to;
	ops.trip = trip;
	ops.start_flows = start_flows;
	return beside_main(argc, argv, &ops);
}
