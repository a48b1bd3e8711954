#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch, two ways. rpc: a parameter server with torch.distributed.rpc over TensorPipe's uv;
a worker's round is one call to each server, answered when all gradients are in the sum.
allreduce: no server; gloo sums the gradients, and each worker applies the same SGD.
"""
import multiprocessing
import os
import socket
import sys

import ps_common
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc


def gradient_of(count):
    return (torch.arange(count) % 8).float() / 8


# ---- a server, in its own process ----

class Shard:
    def __init__(self, count, workers):
        self.params, self.sums = torch.zeros(count), torch.zeros(count)
        self.workers, self.arrived = workers, 0
        self.answer = torch.futures.Future()


SHARD = None


@rpc.functions.async_execution
def push_pull(gradient):
    """A worker's call at a server. Calls of several workers run one after the other, because the
    server has one thread for them; all are answered when the last gradient is in the sum."""
    SHARD.sums += gradient
    SHARD.arrived += 1
    answer = SHARD.answer
    if SHARD.arrived == SHARD.workers:
        SHARD.params.add_(SHARD.sums, alpha=-ps_common.RATE / SHARD.workers)
        SHARD.sums.zero_()
        SHARD.arrived, SHARD.answer = 0, torch.futures.Future()
        answer.set_result(SHARD.params)
    return answer


def rpc_init(name, rank, options):
    rpc.init_rpc(name, rank=rank, world_size=options.servers + options.workers,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
                     num_worker_threads=1 if name.startswith("server") else 4,
                     _transports=["uv"], _channels=["basic"]))


def serve(options, index):
    global SHARD
    first, end = ps_common.range_of(options, index)
    SHARD = Shard(end - first, options.workers)
    rpc_init(f"server{index}", index, options)
    rpc.shutdown()


# ---- a worker ----

def rpc_round(options, gradient, params):
    def one_round():
        parts = []
        for s in range(options.servers):
            first, end = ps_common.range_of(options, s)
            parts.append(rpc.rpc_async(f"server{s}", push_pull, (gradient[first:end],)))
        for s, part in enumerate(parts):
            first, end = ps_common.range_of(options, s)
            params[first:end].copy_(part.wait())
    return one_round


def allreduce_round(options, gradient, params):
    sums = torch.empty_like(gradient)

    def one_round():
        sums.copy_(gradient)  # all_reduce() sums in place, and the gradient is needed again
        dist.all_reduce(sums)
        params.add_(sums, alpha=-ps_common.RATE / options.workers)
    return one_round


def work(options, index, meet, seconds):
    gradient = gradient_of(options.bytes // 4)
    params = torch.zeros(options.bytes // 4)
    if options.variant == "rpc":
        rpc_init(f"worker{index}", options.servers + index, options)
        one_round = rpc_round(options, gradient, params)
    else:
        dist.init_process_group("gloo", rank=index, world_size=options.workers)
        one_round = allreduce_round(options, gradient, params)
    took = ps_common.measure(one_round, lambda i: float(params[i]), options.rounds, meet.wait)
    with seconds.get_lock():
        seconds.value = max(seconds.value, took)
    # No orderly shutdown: if several agents shut down at once, some of them fail.
    meet.wait()
    os._exit(0)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    options = ps_common.parse(["rpc", "allreduce"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                      GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    meet, seconds = fork.Barrier(options.workers), fork.Value("d", 0.0)
    servers = options.servers if options.variant == "rpc" else 0
    servers = [fork.Process(target=serve, args=(options, i), daemon=True)
               for i in range(servers)]
    workers = [fork.Process(target=work, args=(options, i, meet, seconds))
               for i in range(options.workers)]
    for p in servers + workers:
        p.start()
    for p in workers:
        p.join()
        if p.exitcode:
            sys.exit(f"a process ended with status {p.exitcode}")
    for p in servers:
        p.kill()
    ps_common.report(options, "PyTorch", torch.__version__, seconds.value)


if __name__ == "__main__":
    main()
