# SPDX-License-Identifier: Apache-2.0
"""A model of a step of the parameter server in virtual time, for more workers than fit here.

Three kinds of resources do one thing at a time: a worker, a server, and a server's wire. A
step of a worker: it computes, then its gradient leaves in chunks, spread over the servers; a
chunk crosses the server's wire, then the server receives it and adds it to the sum; when the
last worker's part of a chunk is in, the server updates it and sends it to every worker, each of
which receives it. A step ends when the last worker has the last chunk. Costs are measured:

    byte_ns      a byte received or sent by one process (bandwidth, sleeping)
    message_ns   what a message costs beside its bytes (message rate)
    update_ns    a byte summed and updated (raw C in place)

With `cores`, all processes share that number of cores: this models the present machine, and is
compared with what was measured on it. Without, each process has its own core: a cluster.
"""
import heapq
from dataclasses import dataclass

import figures

CHUNK_BYTES = 4 << 20


@dataclass
class Costs:
    byte_ns: float
    message_ns: float
    update_ns: float
    wire_byte_ns: float = 0.08  # 0.08: a wire of 100 Gb/s; 0: no wire (one machine)
    compute_ns: float = 0.0  # how long a worker computes before its gradient is there
    cores: int = 0  # that all processes share; 0: each process has its own


class Resource:
    """Does one thing at a time, in the order in which use() is called; counts how long it was busy."""

    def __init__(self):
        self.free_ns = self.busy_ns = 0.0

    def use(self, at_ns, for_ns):
        self.free_ns = max(self.free_ns, at_ns) + for_ns
        self.busy_ns += for_ns
        return self.free_ns


class Cores:
    """A few cores that all processes share: a piece of work goes to the first that is free."""

    def __init__(self, count):
        self.free_ns = [0.0] * count

    def use(self, at_ns, for_ns):
        end = max(heapq.heappop(self.free_ns), at_ns) + for_ns
        heapq.heappush(self.free_ns, end)
        return end


class Process:
    def __init__(self, cores):
        self.own, self.cores = Resource(), cores

    def use(self, at_ns, for_ns):
        if self.cores is None:
            return self.own.use(at_ns, for_ns)
        end = self.cores.use(max(at_ns, self.own.free_ns), for_ns)
        self.own.free_ns = end
        self.own.busy_ns += for_ns
        return end


def chunks_of(size, servers):
    """The bytes of each chunk of `size` bytes. All servers have the same number of chunks, at
    least one."""
    count = max(servers, -(-size // CHUNK_BYTES))
    count = -(-count // servers) * servers  # as many on each
    return [size / count] * count


def step(size, workers, servers, costs):
    """(ns of a step, the resource that is busiest in it, not counting the workers' computing)."""
    shared = Cores(costs.cores) if costs.cores else None
    worker = [Process(shared) for _ in range(workers)]
    server = [Process(shared) for _ in range(servers)]
    inward, outward = ([Resource() for _ in range(servers)] for _ in "io")
    chunks = chunks_of(size, servers)
    events, order = [], 0

    def at(time_ns, *what):
        nonlocal order
        order += 1
        heapq.heappush(events, (time_ns, order, *what))

    arrived = [0] * len(chunks)
    end_ns = 0.0
    for w in range(workers):
        at(worker[w].use(0, costs.compute_ns), "send", w, 0)
    while events:
        now_ns, _, what, w, c = heapq.heappop(events)
        s = c % servers
        move_ns = costs.message_ns + chunks[c] * costs.byte_ns
        wire_ns = chunks[c] * costs.wire_byte_ns
        if what == "send":  # the worker's next chunk follows when this one has left
            left = worker[w].use(now_ns, move_ns)
            at(inward[s].use(left, wire_ns), "arrive", w, c)
            if c + 1 < len(chunks):
                at(left, "send", w, c + 1)
        elif what == "arrive":
            added = server[s].use(now_ns, move_ns + chunks[c] * costs.update_ns)
            arrived[c] += 1
            if arrived[c] == workers:
                for other in range(workers):
                    at(added, "answer", other, c)
        elif what == "answer":
            sent = server[s].use(now_ns, move_ns)
            at(outward[s].use(sent, wire_ns), "pulled", w, c)
        else:
            end_ns = max(end_ns, worker[w].use(now_ns, move_ns))
    busy = {"server": max(p.own.busy_ns for p in server),
            "server's wire": max(r.busy_ns for r in (*inward, *outward)),
            "worker": max(p.own.busy_ns for p in worker) - costs.compute_ns}
    return end_ns, "cores" if costs.cores else max(busy, key=busy.get)


# ---- costs from what was measured, and the series of the report ----

MODEL_BYTES = 100_000_000
COMPUTE_NS = 100e6  # of a worker: what a model of this size takes on a GPU, about
CLUSTERS = (1, 8, 64)  # numbers of servers of the clusters


SPREAD = ("mean", "low", "high")  # members of figures.Figure: what the report shows of a figure


def measured(results, question, key, point, metric, which="mean"):
    """The mean over the rounds, or the least or largest value (`which`); None if not measured."""
    q = results.get(question, {}).get("contenders", {})
    values = q.get(key, {}).get("points", {}).get(point, {}).get(metric)
    return getattr(figures.figure(values), which) if values else None


def costs_of(results, which="mean"):
    """(Costs, "") or (None, which figure is missing). The measured processor time is that of both ends,
    so each end costs half of it."""
    large = measured(results, "bandwidth-tcp", "tern.tcp.sleep", f"{64 << 20}x16", "cpu_s_per_gb",
                     which)
    small = measured(results, "rate", "tern.tcp.sleep", "64", "cpu_s_per_gb", which)
    update = measured(results, "ps", "raw.inplace", "100 MB, 1w 1s", "ms_per_round", which)
    for name, value in (("bandwidth-tcp", large), ("rate", small), ("ps", update)):
        if value is None:
            return None, f"needs the results of {name}"
    return Costs(byte_ns=large / 2, message_ns=small * 64 / 2,
                 update_ns=update * 1e6 / MODEL_BYTES), ""


def this_machine(results, costs, cores, which="mean"):
    """{"modelled": {point: ms}, "measured": {point: ms}} with one server and 1, 2, 4 workers."""
    here = Costs(costs.byte_ns, costs.message_ns, costs.update_ns, wire_byte_ns=0, cores=cores)
    found = {"modelled": {}, "measured": {}}
    for workers in (1, 2, 4):
        ms = measured(results, "ps", "tern.tcp", f"100 MB, {workers}w 1s", "ms_per_round",
                      which)
        if ms is not None:
            found["measured"][str(workers)] = ms
        found["modelled"][str(workers)] = step(MODEL_BYTES, workers, 1, here)[0] / 1e6
    return found


def cluster(costs, servers, most):
    """({workers: ms of a step}, a sentence about where it stops scaling)."""
    alone = Costs(costs.byte_ns, costs.message_ns, costs.update_ns, costs.wire_byte_ns, COMPUTE_NS)
    found, stopped = {}, ""
    workers = 1
    while workers <= most:
        took_ns, bottleneck = step(MODEL_BYTES, workers, servers, alone)
        found[str(workers)] = took_ns / 1e6
        if not stopped and took_ns > 1.25 * found["1"] * 1e6:
            stopped = (f"Servers: {servers}. Of 1, 4, 16... workers, {workers} are the first "
                       f"whose step takes more than 1.25 times one worker's "
                       f"({took_ns / 1e6 / found['1']:.2g} times); busiest there: the "
                       f"{bottleneck}.")
        workers *= 4
    return found, stopped or f"Servers: {servers}. It scales to {most} workers."


def series(results, which, cores, most):
    """(sentences about the clusters, {key: {workers: ms of a step}}) with the costs of the mean, the
    cheapest or the dearest rounds."""
    costs, _ = costs_of(results, which)
    found, said = this_machine(results, costs, cores, which), []
    for servers in CLUSTERS:
        found[f"cluster.{servers}"], sentence = cluster(costs, servers, most)
        said.append(sentence)
    return said, found
