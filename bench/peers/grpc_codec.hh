/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as gRPC's byte buffers, both ways. bytes: the slice is the tensor, without a
 * copy, and the receiver copies the slices out. proto: a message of packed floats, filled
 * from the tensor, serialized, parsed and copied out, as code made by protoc does.
 */
#ifndef TERN_BENCH_GRPC_CODEC_H
#define TERN_BENCH_GRPC_CODEC_H

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/pair.h"
#include "tensor.pb.h"

inline const char *grpc_version()
{
	static std::string text = grpc::Version();
	return text.c_str();
}

/* No retries, and no filters for what nobody asked for: a few percent of a small call.
 * Larger frames, windows and reads were tried as well, and change nothing that can be
 * told from noise. */
template <typename Set> void grpc_settings(Set set)
{
	set(GRPC_ARG_ENABLE_RETRIES, 0);
	set(GRPC_ARG_MINIMAL_STACK, 1);
}

/* To a server, for any message size. */
inline std::unique_ptr<grpc::GenericStub> grpc_connect(const std::string &host, int port)
{
	grpc::ChannelArguments args;

	args.SetMaxReceiveMessageSize(-1);
	args.SetMaxSendMessageSize(-1);
	grpc_settings([&](const char *name, int value) { args.SetInt(name, value); });
	return std::make_unique<grpc::GenericStub>(
		grpc::CreateCustomChannel(host + ":" + std::to_string(port),
			grpc::InsecureChannelCredentials(), args));
}

/* Starts a server of any message size at a port of its own: 0 if it cannot listen. */
inline int grpc_serve(const std::string &host, grpc::AsyncGenericService *service,
	std::unique_ptr<grpc::ServerCompletionQueue> *queue,
	std::unique_ptr<grpc::Server> *server)
{
	grpc::ServerBuilder builder;
	int port = 0;

	builder.SetMaxReceiveMessageSize(-1);
	builder.SetMaxSendMessageSize(-1);
	grpc_settings([&](const char *name, int value) {
		builder.AddChannelArgument(name, value);
	});
	builder.RegisterAsyncGenericService(service);
	builder.AddListeningPort(host + ":0", grpc::InsecureServerCredentials(), &port);
	*queue = builder.AddCompletionQueue();
	*server = builder.BuildAndStart();
	return *server ? port : 0;
}

struct Codec {
	bool proto;
	tern_bench::Tensor message;

	grpc::ByteBuffer encode(const void *data, size_t bytes)
	{
		if (!proto) {
			grpc::Slice slice(data, bytes, grpc::Slice::STATIC_SLICE);
			return grpc::ByteBuffer(&slice, 1);
		}
		if (bytes % sizeof(float))
			pair_die("a protobuf of floats needs a multiple of 4 bytes");
		auto *field = message.mutable_data();
		field->Resize(static_cast<int>(bytes / sizeof(float)), 0);
		memcpy(field->mutable_data(), data, bytes);
		grpc::ByteBuffer out;
		bool own;
		if (!grpc::SerializationTraits<tern_bench::Tensor>::Serialize(
			    message, &out, &own)
				.ok())
			pair_die("protobuf refused to serialize");
		return out;
	}

	/* take(data, bytes) is called for each contiguous part, in order. */
	template <typename Take> void parts(grpc::ByteBuffer *in, size_t bytes, Take take)
	{
		if (proto) {
			if (!grpc::SerializationTraits<tern_bench::Tensor>::Deserialize(
				    in, &message)
					.ok() ||
				static_cast<size_t>(message.data_size()) *
						sizeof(float) !=
					bytes)
				pair_die("protobuf refused to parse");
			take(message.data().data(), bytes);
			return;
		}
		std::vector<grpc::Slice> slices;
		if (in->Length() != bytes || !in->Dump(&slices).ok())
			pair_die("a message of %zu bytes where %zu were sent",
				in->Length(), bytes);
		for (const grpc::Slice &slice : slices)
			take(slice.begin(), slice.size());
	}

	void decode(grpc::ByteBuffer *in, void *data, size_t bytes)
	{
		char *to = static_cast<char *>(data);
		parts(in, bytes, [&](const void *from, size_t n) {
			memcpy(to, from, n);
			to += n;
		});
	}
};

#endif
