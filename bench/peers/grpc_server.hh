/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What those programs of gRPC share whose server is a process of two.h: a server, whose thread
 * answers unary calls with 8 bytes, and a unary call of the client.
 */
#ifndef TERN_BENCH_GRPC_SERVER_H
#define TERN_BENCH_GRPC_SERVER_H

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/pair.h"
#include "grpc_codec.hh"

inline const char grpc_server_host[] = "127.0.0.1";
inline const size_t grpc_reply_bytes = 8;

/* A call at the server: exists from the time when the server begins to wait for it until its
 * answer has left. */
struct GrpcCall {
	grpc::GenericServerContext context;
	grpc::GenericServerAsyncReaderWriter stream{&context};
	grpc::ByteBuffer message;
	enum { kArriving, kReading, kAnswering } state = kArriving;
	virtual ~GrpcCall() = default;
};

struct GrpcServer {
	grpc::AsyncGenericService service;
	std::unique_ptr<grpc::ServerCompletionQueue> queue;
	std::unique_ptr<grpc::Server> server;
	Codec codec{"bytes"};
	std::vector<char> request;

	/* A server for requests of `request_bytes` bytes. */
	explicit GrpcServer(size_t request_bytes) : request(request_bytes)
	{
	}
	virtual ~GrpcServer() = default;

	/* Returns the port; a thread serves from now on. */
	int start()
	{
		int port = grpc_serve(grpc_server_host, &service, &queue, &server);
		if (!port)
			pair_die("cannot listen");
		expect();
		std::thread([this] { run(); }).detach();
		return port;
	}
	/* Called when a message of the call `c` has arrived: copies it out, and sends the answer. */
	virtual void read(GrpcCall *c)
	{
		static const char reply[grpc_reply_bytes] = {};

		codec.decode(&c->message, request.data(), request.size());
		c->stream.WriteAndFinish(codec.encode(reply, sizeof(reply)),
			grpc::WriteOptions(), grpc::Status::OK, c);
		c->state = GrpcCall::kAnswering;
	}

    private:
	void expect()
	{
		GrpcCall *c = new GrpcCall;
		service.RequestCall(&c->context, &c->stream, queue.get(), queue.get(), c);
	}
	void event(GrpcCall *c, bool ok)
	{
		if (!ok || c->state == GrpcCall::kAnswering) {
			delete c;
			return;
		}
		if (c->state == GrpcCall::kReading) {
			read(c);
			return;
		}
		expect();
		c->state = GrpcCall::kReading;
		c->stream.Read(&c->message, c);
	}
	void run()
	{
		void *tag;
		bool ok;
		while (queue->Next(&tag, &ok))
			event(static_cast<GrpcCall *>(tag), ok);
	}
};

/* A unary call at the client. The address of this struct is the tag of the call's only event
 * in `queue`. */
struct GrpcUnary {
	grpc::ClientContext context;
	std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
	grpc::ByteBuffer reply;
	grpc::Status status;

	GrpcUnary(grpc::GenericStub *stub, const char *method, const void *data, size_t bytes,
		grpc::CompletionQueue *queue)
	{
		grpc::Slice slice(data, bytes, grpc::Slice::STATIC_SLICE);
		context.set_wait_for_ready(true); /* the connection may not be up yet */
		reader = stub->PrepareUnaryCall(
			&context, method, grpc::ByteBuffer(&slice, 1), queue);
		reader->StartCall();
		reader->Finish(&reply, &status, this);
	}
	/* To be called when the event has come: exits if the call has failed. */
	void check() const
	{
		if (!status.ok() || reply.Length() != grpc_reply_bytes)
			pair_die("a call: %s", status.error_message().c_str());
	}
};

#endif
