/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head-of-line blocking with gRPC (beside.h): a unary call for each small tensor, and for
 * each flow of large tensors one call that streams them as messages of 1 MiB (by default), as
 * gRPC's maintainers advise. All calls use one channel, hence one connection; with `apart`, the
 * small tensors have a channel of their own.
 *
 *     grpc_head_of_line [apart] ROUNDS
 */
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "bench/beside.h"
#include "bench/two.h"
#include "grpc_server.hh"

namespace
{

const char flow_method[] = "/flow";

/* The large tensor of a flow, which is sent or received over and over again. */
struct Tensor {
	unsigned char *data =
		static_cast<unsigned char *>(bench_memory(BESIDE_LARGE_BYTES, false));
	size_t offset = 0; /* where the next message begins */

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

struct Server : GrpcServer {
	std::map<GrpcCall *, Tensor> tensors; /* by the call of the flow */
	std::atomic<uint64_t> flowed_bytes{0};

	Server() : GrpcServer(BESIDE_SMALL_BYTES)
	{
	}
	void read(GrpcCall *c) override
	{
		if (c->context.method() != flow_method) {
			GrpcServer::read(c);
			return;
		}
		Tensor &tensor = tensors[c];
		size_t bytes = tensor.part();
		codec.decode(&c->message, tensor.data + tensor.offset, bytes);
		c->message.Clear();
		tensor.next();
		flowed_bytes += bytes;
		c->stream.Read(&c->message, c);
	}
};

void serve(int fd)
{
	auto *s = new Server;
	int port = s->start();

	two_tell(fd, &port, sizeof(port));
	for (;;) {
		char byte;
		/* Waits for a question without taking it. */
		if (recv(fd, &byte, 1, MSG_PEEK) != 1)
			_exit(1);
		beside_answer(fd, s->flowed_bytes);
	}
}

/* ---- the client ---- */

struct Flow {
	grpc::ClientContext context;
	std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
	Tensor tensor;
	bool started = false; /* its first message is being written, or was */
};

bool apart;
std::unique_ptr<grpc::GenericStub> stub, small_stub; /* small_stub: only with `apart` */
grpc::CompletionQueue *queue;
std::vector<std::unique_ptr<Flow>> flows;
Codec codec("bytes");

void connect_to(int fd)
{
	int port;

	two_hear(fd, &port, sizeof(port));
	queue = new grpc::CompletionQueue;
	stub = grpc_connect(grpc_server_host, port);
	if (apart)
		small_stub = grpc_connect_apart(grpc_server_host, port);
}

void write_next(Flow *f)
{
	if (f->started)
		f->tensor.next();
	f->started = true;
	f->stream->Write(codec.encode(f->tensor.data + f->tensor.offset, f->tensor.part()), f);
}

void trip()
{
	static const char data[BESIDE_SMALL_BYTES] = {};
	GrpcUnary call(apart ? small_stub.get() : stub.get(), "/small", data, sizeof(data), queue);

	for (;;) {
		void *tag;
		bool ok;
		if (!queue->Next(&tag, &ok) || !ok)
			pair_die("a call broke");
		if (tag == &call)
			break;
		write_next(static_cast<Flow *>(tag));
	}
	call.check();
}

void start_flows()
{
	for (unsigned i = 0; i < BESIDE_FLOWS; i++) {
		flows.push_back(std::make_unique<Flow>());
		Flow *f = flows.back().get();
		f->stream = stub->PrepareCall(&f->context, flow_method, queue);
		f->stream->StartCall(f);
	}
}

} // namespace

int main(int argc, char **argv)
{
	struct beside_ops ops = {};
	apart = argc == 3 && std::string(argv[1]) == "apart";
	ops.usage = "grpc_head_of_line [apart] ROUNDS";
	ops.serve = serve;
	ops.connect = connect_to;
	ops.trip = trip;
	ops.start_flows = start_flows;
	return beside_main(argc == 2 || apart ? argc : 0, argv, &ops);
}
