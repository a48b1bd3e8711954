# SPDX-License-Identifier: Apache-2.0
"""Measures NIXL with Tern's backend against NIXL with UCX, between two processes of this host. Each backend has
its own two processes, and the two take turns, some transfers at a time, so that both see the same load of the
machine. Who has not its turn is stopped, since UCX's progress threads run all the time. Prints the median time of a transfer, from transfer() until check_xfer_state() says DONE, and the ratio
of the two (below 1: Tern is faster).

It needs a Python with NIXL, into which the plug-in is linked as docs/plugins.md says: this one, or that which
./run test has installed.

usage: nixl.py [--tcp] [--rounds N] [--sizes BYTES,BYTES...]
"""
import argparse
import importlib.util
import multiprocessing
import os
import signal
import statistics
import sys
import time

import install

BACKENDS = ("TERN", "UCX")
SIZES = [64, 4096, 65536, 1 << 20, 16 << 20]
WORK_BYTES = 32 << 20  # moved in one turn at most
SPAWN = multiprocessing.get_context("spawn")


def agent(name, backend):
    from nixl_cu12 import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=[backend]))


def memory(a, backend, size, value):
    import numpy

    data = numpy.full(size, value, dtype=numpy.uint8)
    a.register_memory([(data.ctypes.data, size, 0, "")], "DRAM", backends=[backend])
    return data


def target(pipe, backend, size):
    a = agent("T", backend)
    data = memory(a, backend, size, 0)
    pipe.send((a.get_agent_metadata(), data.ctypes.data))
    pipe.recv()


def initiator(pipe, backend, size, metadata, address):
    a = agent("I", backend)
    data = memory(a, backend, size, 3)
    name = a.add_remote_agent(metadata)
    handles = {}
    while True:
        op, bytes_, count = pipe.recv()
        if not op:
            return
        if (op, bytes_) not in handles:
            local = a.get_xfer_descs([(data.ctypes.data, bytes_, 0)], "DRAM")
            remote = a.get_xfer_descs([(address, bytes_, 0)], "DRAM")
            handles[op, bytes_] = a.initialize_xfer(op, local, remote, name, b"", backends=[backend])
        handle, times = handles[op, bytes_], []
        for _ in range(count):
            start = time.perf_counter()
            state = a.transfer(handle)
            while state == "PROC":
                os.sched_yield()  # the two processes may have one core
                state = a.check_xfer_state(handle)
            assert state == "DONE", state
            times.append(time.perf_counter() - start)
        pipe.send(times)


class Pair:
    """The two processes of a backend."""

    def __init__(self, backend, size):
        self.to_target, theirs = SPAWN.Pipe()
        self.target = SPAWN.Process(target=target, args=(theirs, backend, size), daemon=True)
        self.target.start()
        metadata, address = self.to_target.recv()
        self.pipe, theirs = SPAWN.Pipe()
        self.initiator = SPAWN.Process(target=initiator, args=(theirs, backend, size, metadata, address), daemon=True)
        self.initiator.start()
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        for process in (self.target, self.initiator):
            os.kill(process.pid, number)

    def run(self, op, size, count):
        self.signal(signal.SIGCONT)
        self.pipe.send((op, size, count))
        times = self.pipe.recv()
        self.signal(signal.SIGSTOP)
        return times

    def end(self):
        self.signal(signal.SIGCONT)
        self.pipe.send((None, 0, 0))
        self.initiator.join()
        self.to_target.send("end")
        self.target.join()


def measure(pairs, op, size, rounds):
    """The times of each backend, in seconds."""
    count = max(2, min(200, WORK_BYTES // size))
    times = {backend: [] for backend in pairs}
    for number in range(rounds + 1):
        for backend in sorted(pairs, reverse=number % 2 == 0):
            took = pairs[backend].run(op, size, count)
            if number:  # the first round warms up
                times[backend] += took
    return times


def report(pairs, sizes, rounds):
    print(f"{'':5} {'bytes':>10} {'TERN us':>10} {'UCX us':>10} {'ratio':>6} {'TERN GB/s':>10} {'UCX GB/s':>9}")
    for size in sizes:
        for op in ("WRITE", "READ"):
            times = measure(pairs, op, size, rounds)
            tern, ucx = (statistics.median(times[backend]) for backend in BACKENDS)
            print(f"{op:5} {size:10} {tern * 1e6:10.1f} {ucx * 1e6:10.1f} {tern / ucx:6.2f} "
                  f"{size / tern / 1e9:10.2f} {size / ucx / 1e9:9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tcp", action="store_true", help="both over tcp")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each backend for a size (10)")
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], default=SIZES,
                        help="bytes of a transfer")
    options = parser.parse_args()
    if options.rounds < 1 or min(options.sizes) < 1:
        parser.error("--rounds and --sizes: expected 1 or more")
    if not importlib.util.find_spec("nixl_cu12"):
        python = str(install.NIXL / "bin/python")
        if sys.executable != python and os.access(python, os.X_OK):
            os.execv(python, [python, *sys.argv])
        print("skipped: this Python has no NIXL, and ./run test has not installed it")
        sys.exit(77)
    if options.tcp:
        os.environ |= {"TERN_FABRICS": "tcp", "UCX_TLS": "tcp"}
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {'tcp' if options.tcp else 'any fabric'}")
    pairs = {backend: Pair(backend, max(options.sizes)) for backend in BACKENDS}
    report(pairs, options.sizes, options.rounds)
    for pair in pairs.values():
        pair.end()


if __name__ == "__main__":
    main()
