/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter server over gRPC, with the codecs of grpc_codec.hh: a worker's round is one
 * unary call to each server, with its gradient; the answers, with the parameters, leave
 * when all workers' gradients are in the sum. Each process has one completion queue and one
 * thread.
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "bench/ps.h"
#include "grpc_codec.hh"

namespace
{

/* ---- the server ---- */

struct Call {
	enum { CALLED, READ, FINISHED } state = CALLED;
	grpc::GenericServerContext context;
	grpc::GenericServerAsyncReaderWriter stream{&context};
	grpc::ByteBuffer request;
};

struct Server {
	struct ps *p;
	size_t count;
	float *params, *sums;
	Codec codec;
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::Server> server;
	std::unique_ptr<grpc::ServerCompletionQueue> queue;
	std::vector<Call *> waiting; /* calls whose gradients are in the sum */

	explicit Server(struct ps *ps)
	    : p(ps), count(ps_first(ps, ps->index + 1) - ps_first(ps, ps->index)),
	      params(static_cast<float *>(bench_memory(count * sizeof(float), false))),
	      sums(static_cast<float *>(bench_memory(count * sizeof(float), false))),
	      codec(ps->variant)
	{
		int port = grpc_serve("127.0.0.1", &service, &queue, &server);
		if (!port)
			pair_die("cannot listen");
		ps_tell_port(p, port);
	}

	void expect()
	{
		auto *call = new Call;
		service.RequestCall(
			&call->context, &call->stream, queue.get(), queue.get(), call);
	}

	void add(Call *call)
	{
		Adder adder{sums, {}};
		codec.parts(&call->request, count * sizeof(float),
			[&](const void *data, size_t bytes) { adder.add(data, bytes); });
		call->request.Clear();
		waiting.push_back(call);
	}

	void answer_all()
	{
		ps_apply(p, params, sums, count);
		/* All workers get the same message: it is serialized once. */
		grpc::ByteBuffer message = codec.encode(params, count * sizeof(float));
		for (Call *call : waiting) {
			call->state = Call::FINISHED;
			call->stream.WriteAndFinish(
				message, grpc::WriteOptions(), grpc::Status::OK, call);
		}
		waiting.clear();
	}

	void run()
	{
		void *tag;
		bool ok;
		for (unsigned i = 0; i < 2 * p->workers; i++)
			expect();
		while (queue->Next(&tag, &ok)) {
			auto *call = static_cast<Call *>(tag);
			if (!ok)
				pair_die("a call broke");
			if (call->state == Call::CALLED) {
				call->state = Call::READ;
				call->stream.Read(&call->request, call);
				expect();
			} else if (call->state == Call::READ) {
				add(call);
				if (waiting.size() == p->workers)
					answer_all();
			} else {
				delete call;
			}
		}
	}
};

/* ---- a worker ---- */

struct Worker {
	std::vector<std::unique_ptr<grpc::GenericStub>> stubs; /* by server */
	grpc::CompletionQueue queue;
	Codec codec;
};

void join(struct ps *p)
{
	auto *w = new Worker{{}, {}, Codec(p->variant)};
	for (unsigned s = 0; s < p->servers; s++)
		w->stubs.push_back(grpc_connect("127.0.0.1", ps_port(p, s)));
	p->state = w;
}

void round(struct ps *p)
{
	struct Pending {
		grpc::ClientContext context;
		std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
		grpc::ByteBuffer reply;
		grpc::Status status;
	};
	auto *w = static_cast<Worker *>(p->state);
	std::vector<Pending> calls(p->servers);
	void *tag;
	bool ok;
	for (size_t s = 0; s < p->servers; s++) {
		size_t first = ps_first(p, s), count = ps_first(p, s + 1) - first;
		calls[s].reader = w->stubs[s]->PrepareUnaryCall(&calls[s].context,
			"/ps/round",
			w->codec.encode(p->gradient + first, count * sizeof(float)),
			&w->queue);
		calls[s].reader->StartCall();
		calls[s].reader->Finish(
			&calls[s].reply, &calls[s].status, reinterpret_cast<void *>(s));
	}
	for (unsigned i = 0; i < p->servers && w->queue.Next(&tag, &ok); i++) {
		size_t s = reinterpret_cast<size_t>(tag);
		size_t first = ps_first(p, s), count = ps_first(p, s + 1) - first;
		if (!calls[s].status.ok())
			pair_die("a call: %s", calls[s].status.error_message().c_str());
		w->codec.decode(
			&calls[s].reply, p->params + first, count * sizeof(float));
	}
}

} // namespace

int main(int argc, char **argv)
{
	struct ps_ops ops = {};
	ops.name = "gRPC";
	ops.variants = "bytes,proto,protobytes";
	ops.wait = "sleep";
	ops.version = grpc_version;
	ops.serve = [](struct ps *p) { (new Server(p))->run(); };
	ops.join = join;
	ops.round = round;
	return ps_main(argc, argv, &ops);
}
