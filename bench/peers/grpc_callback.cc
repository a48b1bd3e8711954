/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC's callback API: one call for all messages, with byte buffers. stream: a message per
 * tensor. chunks: a message for each chunk of a tensor (grpc_chunk_bytes()), by default 1 MiB.
 * gRPC's own threads call the reactors (Client and Server below), which write and read; the
 * main thread sleeps until they have done what it waits for. All threads of a pinned end share
 * its core, so there is no polling.
 */
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "bench/pair.h"
#include "grpc_codec.hh"

using grpc::ByteBuffer;

namespace
{

/* What both ends share. `mutex` protects the members that gRPC's threads change, too. begin()
 * takes it after pair.c has changed the sizes of messages, so gRPC's threads see the new
 * ones. */
struct End {
	struct pair *p;
	Codec codec{"bytes"};
	size_t message_bytes; /* size of the largest message */
	size_t offset = 0;    /* where the next message begins in its tensor */
	size_t answer_offset = 0; /* with both_ways: the same of the answers */
	std::mutex mutex;
	std::condition_variable changed;
	bool broken = false;

	explicit End(struct pair *pair)
	    : p(pair), message_bytes(grpc_message_bytes(pair->variant))
	{
	}
	virtual ~End() = default;
	virtual void begin() = 0;

	/* Returns the size of the message that begins at offset `from` of tensor n. */
	size_t part(uint64_t n, size_t from) const
	{
		return std::min(message_bytes, pair_bytes(p, n) - from);
	}

	/* Moves *from behind the message that begins there. If that was the last one of tensor n,
	 * sets *from to 0 and returns true. */
	bool next(uint64_t n, size_t *from)
	{
		*from += part(n, *from);
		if (*from < pair_bytes(p, n))
			return false;
		*from = 0;
		return true;
	}

	template <typename Until> void wait(Until until)
	{
		std::unique_lock<std::mutex> lock(mutex);
		changed.wait(lock, [&] { return broken || until(); });
		if (!until())
			pair_die("the stream broke");
	}

	/* Called when an operation of the reactor is done: runs action(), unless the operation has
	 * failed. A failure is an error only if wait() waits for something, because the other end
	 * may exit first. */
	template <typename Action> void done(bool ok, Action action)
	{
		std::lock_guard<std::mutex> lock(mutex);
		if (ok)
			action();
		else
			broken = true;
		changed.notify_one();
	}
};

struct Client : End, grpc::ClientBidiReactor<ByteBuffer, ByteBuffer> {
	std::unique_ptr<grpc::GenericStub> stub;
	grpc::ClientContext context;
	ByteBuffer message, reply;
	bool writing = false;
	/* tensors of this size (posted, written), and their answers */
	uint64_t posted = 0, written = 0, answers = 0, awaited = 0;

	Client(struct pair *pair, int port) : End(pair), stub(grpc_connect(pair->host, port))
	{
		stub->PrepareBidiStreamingCall(&context, "/tensor/stream", {}, this);
		StartRead(&reply);
		StartCall();
	}
	void begin() override
	{
		std::lock_guard<std::mutex> lock(mutex);
		posted = written = answers = awaited = 0;
	}
	void write()
	{
		if (writing || written == posted)
			return;
		writing = true;
		size_t bytes = part(written, offset);
		message = codec.encode(pair_tensor(p, written) + offset, bytes);
		grpc::WriteOptions options;
		/* The message may leave together with the next. */
		if (offset + bytes < pair_bytes(p, written) || !pair_answered(p, written))
			options.set_buffer_hint();
		StartWrite(&message, options);
	}
	void OnWriteDone(bool ok) override
	{
		done(ok, [&] {
			writing = false;
			written += next(written, &offset);
			write();
		});
	}
	void OnReadDone(bool ok) override
	{
		done(ok, [&] { answers += take_answer(), StartRead(&reply); });
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
	void post()
	{
		std::lock_guard<std::mutex> lock(mutex);
		posted++;
		write();
	}
	void await(uint64_t n)
	{
		awaited += pair_answered(p, n);
		wait([&] { return written > n && answers >= awaited; });
	}
};

struct Server : End, grpc::CallbackGenericService, grpc::ServerGenericBidiReactor {
	std::unique_ptr<grpc::Server> server;
	ByteBuffer request, reply;
	bool writing = false;
	uint64_t received = 0; /* tensors of this size */
	/* With both_ways: answers of this size that answer() has started, and that have left. */
	uint64_t answered = 0, written = 0;

	explicit Server(struct pair *pair) : End(pair)
	{
		static const char eight[PAIR_REPLY_BYTES] = {};
		if (!p->both_ways)
			reply = codec.encode(eight, sizeof(eight));
		grpc::ServerBuilder builder;
		builder.RegisterCallbackGenericService(this);
		int port = grpc_start(pair->host, &builder, &server);
		if (!port)
			pair_die("cannot listen");
		pair_tell(p, &port, sizeof(port));
	}
	grpc::ServerGenericBidiReactor *CreateReactor(
		grpc::GenericCallbackServerContext *) override
	{
		StartRead(&request);
		return this;
	}
	void begin() override
	{
		std::lock_guard<std::mutex> lock(mutex);
		received = answered = written = 0;
	}
	void OnReadDone(bool ok) override
	{
		done(ok, [&] {
			codec.decode(&request, pair_tensor(p, received) + offset,
				part(received, offset));
			request.Clear();
			received += next(received, &offset);
			StartRead(&request);
		});
	}
	void OnWriteDone(bool ok) override
	{
		done(ok, [&] {
			writing = false;
			if (p->both_ways) {
				written += next(written, &answer_offset);
				write();
			}
		});
	}
	/* With both_ways: writes the next message of the answers, unless one is being written. */
	void write()
	{
		if (writing || written == answered)
			return;
		size_t bytes = part(written, answer_offset);
		reply = codec.encode(pair_reply(p, written) + answer_offset, bytes);
		grpc::WriteOptions options;
		if (answer_offset + bytes < pair_bytes(p, written))
			options.set_buffer_hint();
		writing = true;
		StartWrite(&reply, options);
	}
	void OnDone() override
	{
	}
	void receive(uint64_t n)
	{
		wait([&] { return received > n; });
	}
	void answer(uint64_t n)
	{
		if (!pair_answered(p, n))
			return;
		if (p->both_ways) {
			std::lock_guard<std::mutex> lock(mutex);
			answered++;
			write();
			return;
		}
		wait([&] { return !writing; });
		writing = true;
		StartWrite(&reply);
	}
	void flush()
	{
		wait([&] { return written == answered; });
	}
};

Client *client_of(struct pair *p)
{
	return static_cast<Client *>(static_cast<End *>(p->state));
}

Server *server_of(struct pair *p)
{
	return static_cast<Server *>(static_cast<End *>(p->state));
}

void open(struct pair *p)
{
	int port;
	if (!p->sender) {
		p->state = static_cast<End *>(new Server(p));
		return;
	}
	pair_hear(p, &port, sizeof(port));
	p->state = static_cast<End *>(new Client(p, port));
}

} // namespace

int main(int argc, char **argv)
{
	struct pair_ops ops = {};
	ops.name = "gRPC";
	ops.variants = "bytes-stream,bytes-chunks";
	ops.waits = "sleep";
	ops.version = grpc_version;
	ops.open = open;
	ops.begin = [](struct pair *p) { static_cast<End *>(p->state)->begin(); };
	ops.post = [](struct pair *p, uint64_t) { client_of(p)->post(); };
	ops.await = [](struct pair *p, uint64_t n) { client_of(p)->await(n); };
	ops.receive = [](struct pair *p, uint64_t n) { server_of(p)->receive(n); };
	ops.answer = [](struct pair *p, uint64_t n) { server_of(p)->answer(n); };
	ops.flush = [](struct pair *p) { server_of(p)->flush(); };
	ops.both_ways = true;
	ops.threads = true;
	return pair_main(argc, argv, &ops);
}
