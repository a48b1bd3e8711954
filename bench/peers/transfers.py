#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes of this host, of which one writes into memory of the other and reads from it, by NIXL with one of its
backends, or by Mooncake's transfer engine. Prints a line of JSON for each size and direction: how long a transfer takes
at the end that asks for it, which looks again and again whether it is over.
"""
import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
import zlib
from importlib.metadata import version

import numpy

SPAWN = multiprocessing.get_context("spawn")
WARM = 20  # at most: a tenth of the rounds, and at least 2


class Nixl:
    """One end: an agent of NIXL, with memory that it has registered."""

    def __init__(self, backend, data):
        from nixl_cu12 import nixl_agent, nixl_agent_config

        self.backend, self.data, self.handles = backend, data, []
        self.agent = nixl_agent(f"agent-{os.getpid()}", nixl_agent_config(backends=[backend]))
        self.memory = self.agent.register_memory([(data.ctypes.data, data.nbytes, 0, "")], "DRAM", backends=[backend])

    def where(self):
        return self.agent.get_agent_metadata(), self.data.ctypes.data

    def reach(self, where):
        metadata, self.there = where
        self.name = self.agent.add_remote_agent(metadata)

    def prepare(self, op, size):
        """Returns a function that makes a transfer, from the call until NIXL says that it is over."""
        local = self.agent.get_xfer_descs([(self.data.ctypes.data, size, 0)], "DRAM")
        remote = self.agent.get_xfer_descs([(self.there, size, 0)], "DRAM")
        handle = self.agent.initialize_xfer(op.upper(), local, remote, self.name, b"", backends=[self.backend])
        self.handles.append(handle)

        def transfer():
            state = self.agent.transfer(handle)
            while state == "PROC":
                os.sched_yield()  # the two processes may have one core
                state = self.agent.check_xfer_state(handle)
            if state != "DONE":
                sys.exit(f"NIXL, {self.backend}: a transfer ended with {state}")
        return transfer

    def end(self):
        for handle in self.handles:
            self.agent.release_xfer_handle(handle)
        self.agent.deregister_memory(self.memory, backends=[self.backend])


class Mooncake:
    """One end: a transfer engine of Mooncake over tcp."""

    def __init__(self, _backend, data):
        from mooncake.engine import TransferEngine

        self.engine, self.data = TransferEngine(), data
        self.must(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
        self.must(self.engine.register_memory(data.ctypes.data, data.nbytes))

    def must(self, status):
        if status:
            sys.exit(f"Mooncake: a call failed with {status}")

    def where(self):
        return f"127.0.0.1:{self.engine.get_rpc_port()}", self.data.ctypes.data

    def reach(self, where):
        self.name, self.there = where

    def prepare(self, op, size):
        call = self.engine.transfer_sync_write if op == "write" else self.engine.transfer_sync_read
        return lambda: self.must(call(self.name, self.data.ctypes.data, self.there, size))

    def end(self):
        self.must(self.engine.unregister_memory(self.data.ctypes.data))


def make(name, size):
    """The end of engine `name`, such as "nixl:UCX" or "mooncake", with `size` bytes of memory."""
    kind, _, backend = name.partition(":")
    return {"nixl": Nixl, "mooncake": Mooncake}[kind](backend, numpy.zeros(size, dtype=numpy.uint8))


def busy_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def be_target(pipe, name, size):
    """Answers what the other process asks: its processor time, and a sum over its first bytes. A number of bytes with
    a minus sign: fill them with random ones first."""
    end = make(name, size)
    pipe.send(end.where())
    while (count := pipe.recv()) is not None:
        if count < 0:
            end.data[:-count] = numpy.random.default_rng(2).integers(0, 256, -count, dtype=numpy.uint8)
        pipe.send((busy_s(), zlib.crc32(end.data[:abs(count)])))
    end.end()


def ask(pipe, count):
    pipe.send(count)
    return pipe.recv()


def percentile(sorted_times, part):
    return sorted_times[min(len(sorted_times) - 1, int(part * len(sorted_times)))]


def measure(end, pipe, op, size, rounds):
    """(times of the transfers in us, sorted; processor time in s of both processes)"""
    transfer, times = end.prepare(op, size), []
    if op == "write":
        end.data[:size] = numpy.random.default_rng(size).integers(0, 256, size, dtype=numpy.uint8)
    else:
        ask(pipe, -size)
    for _ in range(max(2, min(WARM, rounds // 10))):
        transfer()
    theirs, began = ask(pipe, 0)[0], busy_s()
    for _ in range(rounds):
        start = time.perf_counter()
        transfer()
        times.append((time.perf_counter() - start) * 1e6)
    used = busy_s() - began
    theirs = ask(pipe, size)[0] - theirs
    if zlib.crc32(end.data[:size]) != ask(pipe, size)[1]:
        sys.exit(f"{op} of {size} bytes: the other process has other bytes")
    return sorted(times), used + theirs


def run(options, pipe):
    sizes, rounds = ([int(word) for word in text.split(",")] for text in (options.size, options.rounds))
    target = SPAWN.Process(target=be_target, args=(pipe[1], options.engine, max(sizes)), daemon=True)
    target.start()
    where, end = pipe[0].recv(), make(options.engine, max(sizes))
    end.reach(where)
    package = "nixl-cu12" if options.engine.startswith("nixl") else "mooncake-transfer-engine-non-cuda"
    for size, count in zip(sizes, rounds):
        for op in ("write", "read"):
            times, used_s = measure(end, pipe[0], op, size, count)
            print(json.dumps({
                "peer": options.engine, "version": version(package), "op": op, "size": size,
                "p50_us": percentile(times, 0.5), "p99_us": percentile(times, 0.99),
                "cpu_s_per_gb": used_s * 1e9 / (size * count)}), flush=True)
    end.end()
    pipe[0].send(None)
    target.join()
    sys.stdout.flush()
    os._exit(0)  # at a usual end NIXL with UCX may crash: its threads outlive what they use


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("nixl:TERN", "nixl:UCX", "mooncake"), required=True)
    parser.add_argument("--size", required=True, help="bytes of the transfers, with commas between them")
    parser.add_argument("--rounds", required=True, help="measured transfers of each size, with commas between them")
    run(parser.parse_args(), SPAWN.Pipe())


if __name__ == "__main__":
    main()
