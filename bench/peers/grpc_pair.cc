/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC's generic API, with the codecs of grpc_codec.hh: {bytes, proto, protobytes} x
 * {unary, stream}, bytes-chunks, and bytes-{unary, stream}-unix over a Unix socket. unary:
 * a call per tensor. stream: one call, a message per tensor. chunks: one call, and a
 * message for each chunk of a tensor (grpc_chunk_bytes()), by default 1 MiB.
 *
 * Both ends have one completion queue and one thread. Polling asks the queue with a
 * deadline that has passed; sleeping waits in it. With several threads, each has a queue, and
 * a channel or a server. Each server has an address of its own, so channels share no
 * connection.
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bench/pair.h"
#include "grpc_codec.hh"

using grpc::ByteBuffer;
using grpc::Slice;

namespace
{

enum Kind : uintptr_t { kCall, kRead, kWrite, kFinish, kKinds };

/* Returns the tag of an operation: its kind, and its slot (the unary server: its call). */
void *tag_of(Kind kind, size_t slot)
{
	return reinterpret_cast<void *>(slot * kKinds + kind + 1);
}

/* What both ends share, with unary calls and with a stream. */
struct End {
	struct pair *p;
	Codec codec;
	size_t message_bytes; /* size of the largest message */
	grpc::CompletionQueue *cq = nullptr;

	explicit End(struct pair *pair)
	    : p(pair), codec(pair->variant),
	      message_bytes(grpc_message_bytes(pair->variant))
	{
	}
	virtual ~End() = default;
	/* Returns the host at which the server listens. */
	std::string host() const
	{
		return strstr(p->variant, "-unix") ? grpc_unix_host : p->host;
	}
	virtual void begin() = 0;
	virtual void event(Kind kind, size_t slot, bool ok) = 0;
	virtual void post(uint64_t)
	{
	}
	virtual void await(uint64_t)
	{
	}
	virtual void receive(uint64_t)
	{
	}
	virtual void answer(uint64_t)
	{
	}
	virtual void flush()
	{
	}

	/* Returns the size of the message that begins at this offset of tensor n. */
	size_t part(uint64_t n, size_t offset) const
	{
		return std::min(message_bytes, pair_bytes(p, n) - offset);
	}
	/* Moves *offset behind the message that begins there. If that was the last one of tensor n,
	 * sets *offset to 0 and returns true. */
	bool next(uint64_t n, size_t *offset) const
	{
		*offset += part(n, *offset);
		if (*offset < pair_bytes(p, n))
			return false;
		*offset = 0;
		return true;
	}

	/* Handles the next event of the queue. If there is none: waits for it, or with `poll` does
	 * nothing. */
	void step(bool poll)
	{
		void *tag;
		bool ok;
		if (poll) {
			auto got = cq->AsyncNext(
				&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
			if (got == grpc::CompletionQueue::TIMEOUT)
				return;
			if (got == grpc::CompletionQueue::SHUTDOWN)
				pair_die("the queue ended");
		} else if (!cq->Next(&tag, &ok)) {
			pair_die("the queue ended");
		}
		uintptr_t value = reinterpret_cast<uintptr_t>(tag) - 1;
		event(static_cast<Kind>(value % kKinds), value / kKinds, ok);
	}

	template <typename Until> void drive(Until until)
	{
		while (!until())
			step(p->poll);
	}

	/* Returns answer n as one message: with both_ways the tensor (the stream writes that in
	 * parts instead), else 8 bytes. */
	ByteBuffer reply(uint64_t n)
	{
		if (p->both_ways)
			return codec.encode(pair_reply(p, n), pair_bytes(p, n));
		static const char eight[PAIR_REPLY_BYTES] = {};
		Slice slice(eight, sizeof(eight), Slice::STATIC_SLICE);
		return ByteBuffer(&slice, 1);
	}
};

/* ---- senders ---- */

struct Client : End {
	grpc::CompletionQueue queue;
	std::unique_ptr<grpc::GenericStub> stub;

	Client(struct pair *pair, int port) : End(pair), stub(grpc_connect(host(), port))
	{
		cq = &queue;
	}
};

struct UnaryClient : Client {
	struct Call {
		std::unique_ptr<grpc::ClientContext> context;
		std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
		ByteBuffer reply;
		grpc::Status status;
		std::string method;
		bool busy = false;
	};
	std::deque<Call> calls; /* by slot */
	using Client::Client;

	void begin() override
	{
		calls.resize(p->inflight);
		for (size_t i = 0; i < calls.size(); i++)
			calls[i].method = "/tensor/" + std::to_string(i);
	}
	void post(uint64_t n) override
	{
		size_t slot = n % p->inflight;
		Call &c = calls[slot];
		c.busy = true;
		c.context = std::make_unique<grpc::ClientContext>();
		c.reader = stub->PrepareUnaryCall(c.context.get(), c.method,
			codec.encode(pair_tensor(p, n), pair_bytes(p, n)), cq);
		c.reader->StartCall();
		c.reader->Finish(&c.reply, &c.status, tag_of(kFinish, slot));
	}
	void event(Kind, size_t slot, bool ok) override
	{
		Call &c = calls[slot];
		if (!ok || !c.status.ok())
			pair_die("a call: %s", c.status.error_message().c_str());
		if (p->both_ways)
			codec.decode(&c.reply, pair_reply(p, slot), pair_bytes(p, slot));
		c.busy = false;
	}
	void await(uint64_t n) override
	{
		drive([&] { return !calls[n % p->inflight].busy; });
	}
};

/* Tensors are written in order, one message at a time. */
struct StreamClient : Client {
	grpc::ClientContext context;
	std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
	ByteBuffer reply;
	bool ready = false, writing = false;
	/* tensors of this size (posted, written), and their answers */
	uint64_t posted = 0, written = 0, answers = 0, awaited = 0;
	size_t offset = 0; /* in tensor `written`: what is before it was written */
	size_t answer_offset = 0; /* in answer `answers`: what is before it has arrived */

	using Client::Client;

	void open()
	{
		stream = stub->PrepareCall(&context, "/tensor/stream", cq);
		stream->StartCall(tag_of(kCall, 0));
		drive([&] { return ready; });
		stream->Read(&reply, tag_of(kRead, 0));
	}
	void begin() override
	{
		posted = written = answers = awaited = 0;
	}
	void event(Kind kind, size_t, bool ok) override
	{
		if (!ok)
			pair_die("the stream broke");
		if (kind == kCall)
			ready = true;
		if (kind == kWrite) {
			writing = false;
			written += next(written, &offset);
			write();
		}
		if (kind == kRead) {
			answers += take_answer();
			stream->Read(&reply, tag_of(kRead, 0));
		}
	}
	/* Takes a message that belongs to an answer; with both_ways, copies it. True if the answer
	 * is complete. */
	bool take_answer()
	{
		if (!p->both_ways)
			return true;
		codec.decode(&reply, pair_reply(p, answers) + answer_offset,
			part(answers, answer_offset));
		reply.Clear();
		return next(answers, &answer_offset);
	}
	void write()
	{
		if (writing || written == posted)
			return;
		size_t bytes = part(written, offset);
		grpc::WriteOptions options;
		/* The message may leave together with the next. */
		if (offset + bytes < pair_bytes(p, written) || !pair_answered(p, written))
			options.set_buffer_hint();
		writing = true;
		stream->Write(codec.encode(pair_tensor(p, written) + offset, bytes),
			options, tag_of(kWrite, 0));
	}
	void post(uint64_t) override
	{
		posted++;
		write();
	}
	void await(uint64_t n) override
	{
		if (pair_answered(p, n))
			awaited++;
		drive([&] { return written > n && answers >= awaited; });
	}
};

/* ---- receivers ---- */

struct Server : End {
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::Server> server;
	std::unique_ptr<grpc::ServerCompletionQueue> queue;

	explicit Server(struct pair *pair) : End(pair)
	{
		int port = grpc_serve(host(), &service, &queue, &server);
		if (!port)
			pair_die("cannot listen");
		cq = queue.get();
		pair_tell(p, &port, sizeof(port));
	}
};

struct UnaryServer : Server {
	struct Call {
		grpc::GenericServerContext context;
		grpc::GenericServerAsyncReaderWriter stream{&context};
		ByteBuffer request;
		size_t slot = 0;
	};
	std::vector<std::unique_ptr<Call>> calls;
	std::vector<Call *> ready; /* by slot: the call whose tensor has arrived; or null */
	size_t leaving = 0; /* answers that have not left yet */

	using Server::Server;

	void expect(size_t i)
	{
		calls[i] = std::make_unique<Call>();
		Call &c = *calls[i];
		service.RequestCall(
			&c.context, &c.stream, cq, queue.get(), tag_of(kCall, i));
	}
	void begin() override
	{
		ready.assign(p->inflight, nullptr);
		if (!calls.empty())
			return;
		calls.resize(2 * p->inflight);
		for (size_t i = 0; i < calls.size(); i++)
			expect(i);
	}
	void event(Kind kind, size_t i, bool ok) override
	{
		Call &c = *calls[i];
		if (!ok)
			pair_die("a call broke");
		if (kind == kCall) {
			c.slot =
				std::stoul(c.context.method().substr(strlen("/tensor/")));
			c.stream.Read(&c.request, tag_of(kRead, i));
		} else if (kind == kRead) {
			codec.decode(&c.request, pair_tensor(p, c.slot),
				pair_bytes(p, c.slot));
			c.request.Clear();
			ready.at(c.slot) = &c;
		} else if (kind == kFinish) {
			leaving--;
			expect(i);
		}
	}
	void receive(uint64_t n) override
	{
		drive([&] { return ready[n % p->inflight] != nullptr; });
	}
	void answer(uint64_t n) override
	{
		Call *c = ready[n % p->inflight];
		size_t i = 0;
		while (calls[i].get() != c)
			i++;
		ready[n % p->inflight] = nullptr;
		leaving++;
		c->stream.WriteAndFinish(reply(n), grpc::WriteOptions(), grpc::Status::OK,
			tag_of(kFinish, i));
	}
	void flush() override
	{
		if (p->both_ways)
			drive([&] { return leaving == 0; });
	}
};

struct StreamServer : Server {
	grpc::GenericServerContext context;
	grpc::GenericServerAsyncReaderWriter stream{&context};
	ByteBuffer request;
	bool connected = false, writing = false;
	uint64_t received = 0; /* tensors of this size that have arrived */
	size_t offset = 0;     /* where the next message belongs in tensor `received` */
	/* With both_ways: answers of this size that answer() has started, and that have left; and
	 * where the next message begins in answer `written`. */
	uint64_t answered = 0, written = 0;
	size_t answer_offset = 0;

	using Server::Server;

	void open()
	{
		service.RequestCall(&context, &stream, cq, queue.get(), tag_of(kCall, 0));
		drive([&] { return connected; });
		stream.Read(&request, tag_of(kRead, 0));
	}
	void begin() override
	{
		received = answered = written = 0;
	}
	void event(Kind kind, size_t, bool ok) override
	{
		if (!ok)
			pair_die("the stream broke");
		if (kind == kCall)
			connected = true;
		if (kind == kWrite) {
			writing = false;
			if (p->both_ways) {
				written += next(written, &answer_offset);
				write();
			}
		}
		if (kind == kRead) {
			codec.decode(&request, pair_tensor(p, received) + offset,
				part(received, offset));
			request.Clear();
			received += next(received, &offset);
			stream.Read(&request, tag_of(kRead, 0));
		}
	}
	void receive(uint64_t n) override
	{
		drive([&] { return received > n; });
	}
	/* With both_ways: writes the next message of the answers, unless one is being written. */
	void write()
	{
		if (writing || written == answered)
			return;
		size_t bytes = part(written, answer_offset);
		grpc::WriteOptions options;
		if (answer_offset + bytes < pair_bytes(p, written))
			options.set_buffer_hint();
		writing = true;
		stream.Write(codec.encode(pair_reply(p, written) + answer_offset, bytes),
			options, tag_of(kWrite, 0));
	}
	void answer(uint64_t n) override
	{
		if (!pair_answered(p, n))
			return;
		if (p->both_ways) {
			answered++;
			write();
			return;
		}
		drive([&] { return !writing; });
		writing = true;
		stream.Write(reply(n), tag_of(kWrite, 0));
	}
	void flush() override
	{
		drive([&] { return written == answered; });
	}
};

/* ---- what pair_main calls ---- */

End *end_of(struct pair *p)
{
	return static_cast<End *>(p->state);
}

End *make_server(struct pair *p, bool stream)
{
	if (!stream)
		return new UnaryServer(p);
	return new StreamServer(p);
}

End *make_client(struct pair *p, bool stream)
{
	int port;
	pair_hear(p, &port, sizeof(port));
	if (!stream)
		return new UnaryClient(p, port);
	return new StreamClient(p, port);
}

void open(struct pair *p)
{
	bool stream = strstr(p->variant, "unary") == nullptr;
	End *end = p->sender ? make_client(p, stream) : make_server(p, stream);
	p->state = end;
	if (auto *client = dynamic_cast<StreamClient *>(end))
		client->open();
	if (auto *server = dynamic_cast<StreamServer *>(end))
		server->open();
}

} // namespace

int main(int argc, char **argv)
{
	struct pair_ops ops = {};
	ops.name = "gRPC";
	ops.variants = "bytes-unary,bytes-stream,bytes-chunks,proto-unary,proto-stream,"
		       "protobytes-unary,protobytes-stream,bytes-unary-unix,"
		       "bytes-stream-unix";
	ops.waits = "poll,sleep";
	ops.version = grpc_version;
	ops.open = open;
	ops.begin = [](struct pair *p) { end_of(p)->begin(); };
	ops.post = [](struct pair *p, uint64_t n) { end_of(p)->post(n); };
	ops.await = [](struct pair *p, uint64_t n) { end_of(p)->await(n); };
	ops.receive = [](struct pair *p, uint64_t n) { end_of(p)->receive(n); };
	ops.answer = [](struct pair *p, uint64_t n) { end_of(p)->answer(n); };
	ops.flush = [](struct pair *p) { end_of(p)->flush(); };
	ops.progress = [](struct pair *p) { end_of(p)->step(true); };
	ops.both_ways = true;
	ops.threads = true;
	return pair_main(argc, argv, &ops);
}
