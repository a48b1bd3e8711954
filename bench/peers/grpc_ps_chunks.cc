/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A parameter server over gRPC with the tensor cut into messages (grpc_chunk_bytes(), by default
 * 1 MiB). A worker has one stream to each server for all rounds. It writes its gradient chunk by
 * chunk and reads parameters at the same time, on all streams at once. A server updates a
 * chunk and writes it to all workers as soon as it has added that chunk of all of them.
 *
 * Both ends count elements from the first round on, and never start again: position x is
 * element x % count of round x / count. A chunk does not reach into the next round.
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/ps.h"
#include "grpc_codec.hh"

namespace
{

const uint64_t CHUNK = grpc_chunk_bytes() / sizeof(float);

enum Kind : uintptr_t { kCall, kRead, kWrite, kKinds };

/* Returns the tag of an operation: its kind, and the index of its stream. */
void *tag_of(Kind kind, size_t stream)
{
	return reinterpret_cast<void *>(stream * kKinds + kind + 1);
}

/* Waits for the next event of a queue. Returns false if the operation has failed. */
bool next_event(grpc::CompletionQueue *queue, Kind *kind, size_t *stream)
{
	void *tag;
	bool ok;
	if (!queue->Next(&tag, &ok))
		pair_die("the queue ended");
	uintptr_t value = reinterpret_cast<uintptr_t>(tag) - 1;
	*kind = static_cast<Kind>(value % kKinds);
	*stream = value / kKinds;
	return ok;
}

/* Returns the number of elements of the chunk that begins at this position. `count`: number of
 * the server's elements. */
size_t chunk_at(uint64_t position, size_t count)
{
	return std::min<uint64_t>(CHUNK, count - position % count);
}

/* ---- the server ---- */

struct Link {
	grpc::GenericServerContext context;
	grpc::GenericServerAsyncReaderWriter stream{&context};
	grpc::ByteBuffer request;
	/* positions up to which the worker's gradient was added, and parameters were sent to it */
	uint64_t added = 0, written = 0;
	bool open = false, writing = false;
};

struct Server {
	struct ps *p;
	size_t count;
	uint64_t end; /* position after the last round */
	float *params, *sums;
	uint64_t updated = 0; /* position up to which the parameters are updated */
	Codec codec{"bytes"};
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::Server> server;
	std::unique_ptr<grpc::ServerCompletionQueue> queue;
	std::vector<std::unique_ptr<Link>>
		links; /* by worker, in the order of their calls */

	explicit Server(struct ps *ps)
	    : p(ps), count(ps_first(ps, ps->index + 1) - ps_first(ps, ps->index)),
	      end(static_cast<uint64_t>(ps->rounds) * count),
	      params(static_cast<float *>(bench_memory(count * sizeof(float), false))),
	      sums(static_cast<float *>(bench_memory(count * sizeof(float), false)))
	{
		int port = grpc_serve("127.0.0.1", &service, &queue, &server);
		if (!port)
			pair_die("cannot listen");
		for (size_t i = 0; i < p->workers; i++) {
			links.push_back(std::make_unique<Link>());
			service.RequestCall(&links[i]->context, &links[i]->stream,
				queue.get(), queue.get(), tag_of(kCall, i));
		}
		ps_tell_port(p, port);
	}

	void write(size_t i)
	{
		Link &link = *links[i];
		if (link.writing || link.written == updated)
			return;
		size_t n = chunk_at(link.written, count);
		link.writing = true;
		link.stream.Write(
			codec.encode(params + link.written % count, n * sizeof(float)),
			tag_of(kWrite, i));
	}

	/* Updates all chunks that every worker has sent, and begins to write them to the workers. */
	void update()
	{
		uint64_t complete = end;
		for (const auto &link : links)
			complete = std::min(complete, link->added);
		while (updated < complete) {
			size_t n = chunk_at(updated, count), at = updated % count;
			ps_apply(p, params + at, sums + at, n);
			updated += n;
		}
		for (size_t i = 0; i < links.size(); i++)
			write(i);
	}

	void add(Link *link)
	{
		size_t n = chunk_at(link->added, count);
		Adder adder{sums + link->added % count, {}};
		codec.parts(&link->request, n * sizeof(float),
			[&](const void *data, size_t bytes) { adder.add(data, bytes); });
		link->request.Clear();
		link->added += n;
	}

	void run()
	{
		Kind kind;
		size_t i;
		for (;;) {
			bool ok = next_event(queue.get(), &kind, &i);
			Link &link = *links[i];
			/* A stream may fail only after its worker's last round, when the worker exits. */
			if (!ok && link.added < end)
				pair_die("a stream broke");
			if (kind == kRead) {
				add(&link);
				update();
			}
			if (kind == kWrite) {
				link.writing = false;
				link.written += chunk_at(link.written, count);
				write(i);
			}
			if (kind != kWrite && link.added < end)
				link.stream.Read(&link.request, tag_of(kRead, i));
		}
	}
};

/* ---- a worker ---- */

struct Stream {
	std::unique_ptr<grpc::GenericStub> stub;
	grpc::ClientContext context;
	std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
	grpc::ByteBuffer reply;
	size_t first, count;            /* the range of the elements that the server has */
	uint64_t written = 0, read = 0; /* positions up to which the gradient and parameters have moved */
};

struct Worker {
	struct ps *p;
	grpc::CompletionQueue queue;
	Codec codec{"bytes"};
	std::vector<std::unique_ptr<Stream>> streams; /* by server */

	explicit Worker(struct ps *ps) : p(ps)
	{
		for (unsigned i = 0; i < p->servers; i++) {
			auto stream = std::make_unique<Stream>();
			stream->stub = grpc_connect("127.0.0.1", ps_port(p, i));
			stream->call = stream->stub->PrepareCall(
				&stream->context, "/ps/rounds", &queue);
			stream->call->StartCall(tag_of(kCall, i));
			stream->first = ps_first(p, i);
			stream->count = ps_first(p, i + 1) - stream->first;
			streams.push_back(std::move(stream));
		}
		for (unsigned i = 0; i < p->servers; i++)
			drive();
	}

	/* Waits for an event, and handles it. Returns 1 if its stream has thereby completed the round,
	 * else 0. */
	unsigned drive()
	{
		Kind kind;
		size_t i;
		if (!next_event(&queue, &kind, &i))
			pair_die("a stream broke");
		Stream &s = *streams[i];
		if (kind == kWrite) {
			s.written += chunk_at(s.written, s.count);
			if (s.written % s.count)
				write(i);
		}
		if (kind == kRead) {
			size_t n = chunk_at(s.read, s.count);
			codec.decode(&s.reply, p->params + s.first + s.read % s.count,
				n * sizeof(float));
			s.read += n;
			if (s.read % s.count)
				s.call->Read(&s.reply, tag_of(kRead, i));
		}
		return kind != kCall && s.written == s.read && s.read % s.count == 0;
	}

	void write(size_t i)
	{
		Stream &s = *streams[i];
		size_t n = chunk_at(s.written, s.count);
		s.call->Write(codec.encode(p->gradient + s.first + s.written % s.count,
				      n * sizeof(float)),
			tag_of(kWrite, i));
	}

	void round()
	{
		for (size_t i = 0; i < streams.size(); i++) {
			streams[i]->call->Read(&streams[i]->reply, tag_of(kRead, i));
			write(i);
		}
		for (unsigned done = 0; done < p->servers;)
			done += drive();
	}
};

} // namespace

int main(int argc, char **argv)
{
	struct ps_ops ops = {};
	ops.name = "gRPC";
	ops.variants = "chunks";
	ops.wait = "sleep";
	ops.version = grpc_version;
	ops.serve = [](struct ps *p) { (new Server(p))->run(); };
	ops.join = [](struct ps *p) { p->state = new Worker(p); };
	ops.round = [](struct ps *p) { static_cast<Worker *>(p->state)->round(); };
	return ps_main(argc, argv, &ops);
}
