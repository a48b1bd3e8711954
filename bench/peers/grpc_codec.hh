/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as gRPC's messages, in both directions. A variant's name begins with the codec:
 *
 * bytes: the message is a slice, which is the sender's tensor, without a copy; the
 * receiver copies the slices out. proto: a protobuf with `repeated float`, filled from the
 * tensor, serialized, parsed and copied out, as code made by protoc does. protobytes: the
 * same with a `bytes` field, as serving systems use it.
 */
#ifndef TERN_BENCH_GRPC_CODEC_H
#define TERN_BENCH_GRPC_CODEC_H

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "bench/pair.h"
#include "tensor.pb.h"

/* Returns the size of the messages into which the variants with chunks cut a tensor: 1 MiB, or
 * TERN_BENCH_GRPC_CHUNK, which bench/sweep.py sets. A receiver of gRPC refuses messages of more
 * than 4 MiB unless it is told otherwise, and gRPC's maintainers advise to send large data as a
 * stream of smaller messages. */
inline size_t grpc_chunk_bytes()
{
	const char *text = getenv("TERN_BENCH_GRPC_CHUNK");
	return text ? std::stoul(text) : 1 << 20;
}

inline const char *grpc_version()
{
	static std::string text = grpc::Version();
	return text.c_str();
}

/* Returns how many bytes of a tensor a message of this variant has at most. */
inline size_t grpc_message_bytes(const char *variant)
{
	return strstr(variant, "chunks") ? grpc_chunk_bytes() : SIZE_MAX;
}

/* Calls set(name, value) for each channel argument; a value is a number or text. Without
 * TERN_BENCH_GRPC: no retries, and the fewest filters, which saves a few percent of a small
 * call. bench/sweep.py sets TERN_BENCH_GRPC to try other arguments; what they bring is in
 * docs/benchmarks/grpc-settings.md. */
template <typename Set> void grpc_settings(Set set)
{
	const char *text = getenv("TERN_BENCH_GRPC");
	std::istringstream list(
		text ? text : "grpc.enable_retries=0,grpc.minimal_stack=1");
	std::string argument;
	while (std::getline(list, argument, ',')) {
		size_t equals = argument.find('=');
		if (equals == std::string::npos)
			pair_die("TERN_BENCH_GRPC: %s has no value", argument.c_str());
		std::string name = argument.substr(0, equals);
		std::string value = argument.substr(equals + 1);
		if (value.find_first_not_of("0123456789") == std::string::npos)
			set(name, std::stoi(value));
		else
			set(name, value);
	}
}

/* The host of servers that listen at a Unix socket in the abstract namespace; their port is
 * the number of the thread that starts them. */
inline const char grpc_unix_host[] = "unix-abstract:tern-bench";

inline std::string grpc_address(const std::string &host, int port)
{
	return host + (host == grpc_unix_host ? "-" : ":") + std::to_string(port);
}

/* Returns the channel arguments of all clients: those of grpc_settings(), and no limit of the
 * size of messages. */
inline grpc::ChannelArguments grpc_channel_arguments()
{
	grpc::ChannelArguments args;

	args.SetMaxReceiveMessageSize(-1);
	args.SetMaxSendMessageSize(-1);
	grpc_settings([&](const std::string &name, const auto &value) {
		if constexpr (std::is_same_v<decltype(value), const int &>)
			args.SetInt(name, value);
		else
			args.SetString(name, value);
	});
	return args;
}

inline std::unique_ptr<grpc::GenericStub> grpc_connect_with(
	const std::string &host, int port, const grpc::ChannelArguments &args)
{
	auto channel = grpc::CreateCustomChannel(
		grpc_address(host, port), grpc::InsecureChannelCredentials(), args);

	channel->GetState(true); /* begins to connect */
	return std::make_unique<grpc::GenericStub>(channel);
}

inline std::unique_ptr<grpc::GenericStub> grpc_connect(const std::string &host, int port)
{
	return grpc_connect_with(host, port, grpc_channel_arguments());
}

/* As grpc_connect(), but the channel has a connection of its own: otherwise channels with equal
 * arguments share one. */
inline std::unique_ptr<grpc::GenericStub> grpc_connect_apart(
	const std::string &host, int port)
{
	grpc::ChannelArguments args = grpc_channel_arguments();

	args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
	return grpc_connect_with(host, port, args);
}

/* Starts a server without a limit of the size of messages. Returns its port; 0 if it cannot
 * listen. */
inline int grpc_start(const std::string &host, grpc::ServerBuilder *builder,
	std::unique_ptr<grpc::Server> *server)
{
	int own = host == grpc_unix_host ? gettid() : 0, port = 0;

	builder->SetMaxReceiveMessageSize(-1);
	builder->SetMaxSendMessageSize(-1);
	grpc_settings([&](const std::string &name, const auto &value) {
		builder->AddChannelArgument(name, value);
	});
	builder->AddListeningPort(
		grpc_address(host, own), grpc::InsecureServerCredentials(), &port);
	*server = builder->BuildAndStart();
	return !*server || !port ? 0 : own ? own : port;
}

inline int grpc_serve(const std::string &host, grpc::AsyncGenericService *service,
	std::unique_ptr<grpc::ServerCompletionQueue> *queue,
	std::unique_ptr<grpc::Server> *server)
{
	grpc::ServerBuilder builder;

	builder.RegisterAsyncGenericService(service);
	*queue = builder.AddCompletionQueue();
	return grpc_start(host, &builder, server);
}

struct Codec {
	enum Kind { BYTES, FLOATS, FIELD } kind;
	tern_bench::Tensor floats;
	tern_bench::TensorBytes field;

	explicit Codec(const std::string &variant)
	{
		std::string name = variant.substr(0, variant.find('-'));
		kind = name == "proto" ? FLOATS : name == "protobytes" ? FIELD : BYTES;
	}

	template <typename Message>
	static grpc::ByteBuffer serialize(const Message &message)
	{
		grpc::ByteBuffer out;
		bool own;
		if (!grpc::SerializationTraits<Message>::Serialize(message, &out, &own)
				.ok())
			pair_die("protobuf refused to serialize");
		return out;
	}

	template <typename Message>
	static void parse(grpc::ByteBuffer *in, Message *message)
	{
		if (!grpc::SerializationTraits<Message>::Deserialize(in, message).ok())
			pair_die("protobuf refused to parse");
	}

	/* Makes a message of a tensor. With the codec `bytes`, the message refers to the tensor, which
	 * must stay as it is until the message was sent. */
	grpc::ByteBuffer encode(const void *data, size_t bytes)
	{
		if (kind == BYTES) {
			grpc::Slice slice(data, bytes, grpc::Slice::STATIC_SLICE);
			return grpc::ByteBuffer(&slice, 1);
		}
		if (kind == FIELD) {
			field.set_data(data, bytes);
			return serialize(field);
		}
		if (bytes % sizeof(float))
			pair_die("a protobuf of floats needs a multiple of 4 bytes");
		auto *values = floats.mutable_data();
		values->Resize(static_cast<int>(bytes / sizeof(float)), 0);
		memcpy(values->mutable_data(), data, bytes);
		return serialize(floats);
	}

	static void expect(size_t bytes, size_t expected)
	{
		if (bytes != expected)
			pair_die("a message of %zu bytes where %zu were sent", bytes,
				expected);
	}

	/* Calls take(data, n) for each contiguous part of the tensor in a message, in order. Exits if
	 * the tensor does not have `bytes` bytes. */
	template <typename Take> void parts(grpc::ByteBuffer *in, size_t bytes, Take take)
	{
		if (kind == FIELD) {
			parse(in, &field);
			expect(field.data().size(), bytes);
			take(field.data().data(), bytes);
			return;
		}
		if (kind == FLOATS) {
			parse(in, &floats);
			expect(static_cast<size_t>(floats.data_size()) * sizeof(float),
				bytes);
			take(floats.data().data(), bytes);
			return;
		}
		std::vector<grpc::Slice> slices;
		expect(in->Length(), bytes);
		if (!in->Dump(&slices).ok())
			pair_die("a message cannot be read");
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

/* Adds the slices of a message of floats to a sum. A slice may end inside a float: the
 * bytes of that float wait in `odd` for the rest. */
struct Adder {
	float *to;
	char odd[sizeof(float)];
	size_t odd_bytes = 0;

	void add(const void *data, size_t bytes)
	{
		auto *p = static_cast<const char *>(data);
		while (odd_bytes && bytes) {
			odd[odd_bytes++ % sizeof(float)] = *p++;
			bytes--;
			if (odd_bytes == sizeof(float)) {
				add_floats(odd, 1);
				odd_bytes = 0;
			}
		}
		add_floats(p, bytes / sizeof(float));
		p += bytes / sizeof(float) * sizeof(float);
		for (size_t i = 0; i < bytes % sizeof(float); i++)
			odd[odd_bytes++ % sizeof(float)] = p[i];
	}

	void add_floats(const char *from, size_t count) /* `from` need not be aligned */
	{
		for (size_t i = 0; i < count; i++) {
			float value;
			memcpy(&value, from + i * sizeof(float), sizeof(value));
			to[i] += value;
		}
		to += count;
	}
};

#endif
