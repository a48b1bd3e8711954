/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TensorPipe, with which torch.distributed.rpc moves tensors: "uv" is TCP with TensorPipe's
 * basic channel, "shm" its shared memory transport with the channel "cma", which reads the
 * other process's memory. Tensors go from and to the user's memory. TensorPipe's own thread
 * waits for events, and the user's thread waits for that thread, so polling is not offered.
 */
#include <tensorpipe/tensorpipe.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "bench/pair.h"

namespace tp = tensorpipe;

namespace
{

constexpr size_t kUrlBytes = 256;

struct End {
	struct pair *p;
	std::shared_ptr<tp::Context> context = std::make_shared<tp::Context>();
	std::shared_ptr<tp::Pipe> pipe;
	std::shared_ptr<tp::Listener> listener;
	std::mutex mutex;
	std::condition_variable changed;
	uint64_t posted = 0, written = 0, received = 0, awaited = 0; /* messages of this size */
	char reply[PAIR_REPLY_BYTES] = {};

	template <typename Until> void wait(Until until)
	{
		std::unique_lock<std::mutex> lock(mutex);
		changed.wait(lock, until);
	}
	void count(uint64_t End::*what)
	{
		std::lock_guard<std::mutex> lock(mutex);
		this->*what += 1;
		changed.notify_all();
	}
	void must(const tp::Error &error)
	{
		if (error && !closing)
			pair_die("%s", error.what().c_str());
	}
	std::atomic<bool> closing{false};

	/* Returns the memory into which this end receives tensor n: the receiver message n, the
	 * sender (with both_ways) answer n. */
	unsigned char *place(uint64_t n) const
	{
		return p->sender ? pair_reply(p, n) : pair_tensor(p, n);
	}

	/* Reads the next message into its place, which follows from its number, and when it has
	 * arrived calls read_next() again. So a read is always posted. */
	void read_next()
	{
		pipe->readDescriptor(
			[this](const tp::Error &error, tp::Descriptor descriptor) {
				must(error);
				if (error)
					return;
				tp::Allocation allocation;
				if (descriptor.tensors.size() == 1) {
					if (descriptor.tensors[0].length !=
						pair_bytes(p, received))
						pair_die("a tensor of another size");
					allocation.tensors.resize(1);
					allocation.tensors[0].buffer =
						tp::CpuBuffer{.ptr = place(received)};
				} else {
					allocation.payloads.resize(1);
					allocation.payloads[0].data = reply;
				}
				pipe->read(std::move(allocation),
					[this](const tp::Error &failure) {
						must(failure);
						if (failure)
							return;
						count(&End::received);
						read_next();
					});
			});
	}

	void write(tp::Message message)
	{
		posted++;
		pipe->write(std::move(message), [this](const tp::Error &error) {
			must(error);
			count(&End::written);
		});
	}

	void write_tensor(unsigned char *tensor, size_t bytes)
	{
		tp::Message message;
		message.tensors.resize(1);
		message.tensors[0].buffer = tp::CpuBuffer{.ptr = tensor};
		message.tensors[0].length = bytes;
		write(std::move(message));
	}
};

End *end_of(struct pair *p)
{
	return static_cast<End *>(p->state);
}

void open(struct pair *p)
{
	auto *end = new End;
	char url[kUrlBytes] = {};
	bool uv = strcmp(p->variant, "uv") == 0;

	end->p = p;
	p->state = end;
	if (uv) {
		end->context->registerTransport(0, "uv", tp::transport::uv::create());
		end->context->registerChannel(0, "basic", tp::channel::basic::create());
	} else {
		end->context->registerTransport(0, "shm", tp::transport::shm::create());
		end->context->registerChannel(0, "basic", tp::channel::basic::create());
		end->context->registerChannel(1, "cma", tp::channel::cma::create());
	}
	if (p->sender) {
		pair_hear(p, url, sizeof(url));
		end->pipe = end->context->connect(url);
	} else {
		end->listener = end->context->listen({uv ? "uv://" + std::string(p->host) : "shm://"});
		std::string where = end->listener->url(p->variant);
		where.copy(url, sizeof(url) - 1);
		pair_tell(p, url, sizeof(url));
		end->listener->accept(
			[end](const tp::Error &error, std::shared_ptr<tp::Pipe> pipe) {
				end->must(error);
				std::lock_guard<std::mutex> lock(end->mutex);
				end->pipe = std::move(pipe);
				end->changed.notify_all();
			});
		end->wait([end] { return end->pipe != nullptr; });
	}
	end->read_next();
}

void begin(struct pair *p)
{
	std::lock_guard<std::mutex> lock(end_of(p)->mutex);
	end_of(p)->posted = end_of(p)->written = end_of(p)->received = end_of(p)->awaited = 0;
}

void post(struct pair *p, uint64_t n)
{
	end_of(p)->write_tensor(pair_tensor(p, n), pair_bytes(p, n));
}

void await(struct pair *p, uint64_t n)
{
	End *end = end_of(p);
	if (pair_answered(p, n))
		end->awaited++;
	end->wait([=] { return end->written > n && end->received >= end->awaited; });
}

void receive(struct pair *p, uint64_t n)
{
	End *end = end_of(p);
	end->wait([=] { return end->received > n; });
}

void answer(struct pair *p, uint64_t n)
{
	if (!pair_answered(p, n))
		return;
	if (p->both_ways) {
		end_of(p)->write_tensor(pair_reply(p, n), pair_bytes(p, n));
		return;
	}
	tp::Message message;
	message.payloads.resize(1);
	message.payloads[0].data = end_of(p)->reply;
	message.payloads[0].length = PAIR_REPLY_BYTES;
	end_of(p)->write(std::move(message));
}

void flush(struct pair *p)
{
	End *end = end_of(p);
	end->wait([=] { return end->written == end->posted; });
}

void close(struct pair *p)
{
	end_of(p)->closing = true;
	end_of(p)->context->close();
}

} // namespace

int main(int argc, char **argv)
{
	struct pair_ops ops = {};
	ops.name = "TensorPipe";
	ops.variants = "uv,shm";
	ops.waits = "sleep";
	ops.version = [] { return "2022-05-13"; };
	ops.open = open;
	ops.begin = begin;
	ops.post = post;
	ops.await = await;
	ops.receive = receive;
	ops.answer = answer;
	ops.flush = flush;
	ops.both_ways = true;
	ops.close = close;
	return pair_main(argc, argv, &ops);
}
