# SPDX-License-Identifier: Apache-2.0
"""What is asked of Tern and the peers. Each function makes one question; QUESTIONS names them
in the order of the report. Their argument `plan` says how much is measured: in a quick, a usual or
a full run.
"""
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import contenders as who
import scaling
import vm
from collectives import allreduce
from figures import rounds_of, size_text
from goals import GOALS, NOT_IN_BANDWIDTH
from measure import Failed, Question, json_lines
from nccl import nccl
from recovery import recovery, snapshots
from trainers import train
from transfers import transfers, windows

K, M = 1 << 10, 1 << 20
LATENCY = [("p50_us", "us", "smaller"), ("p99_us", "us", "smaller"), ("p999_us", "us", "smaller"),
           ("cpu_s_per_gb", "s/GB", "smaller")]
BANDWIDTH = [("gb_per_s", "GB/s", "larger"), ("cpu_s_per_gb", "s/GB", "smaller")]


@dataclass
class Plan:
    quick: bool
    make: who.Maker
    results: dict = field(default_factory=dict)  # of the questions that were measured before
    full: bool = False  # with peers that are `rare`, too

    def sizes(self, usual, quick, full=None):
        return quick if self.quick else full if self.full and full else usual

    def peers(self, question, peers, test):
        """The peers of a question that have its test. A quick run has only the plain C programs and
        the peers that a goal of the question names, if it has goals; of those it needs all, since the
        worst ratio counts."""
        asking = [goal for goal in GOALS if goal.question == question]
        return [p for p in peers if test in p.tests and (self.full or not p.rare) and
                (not self.quick or not asking or p.package == "gcc" or
                 any(goal.is_against(p.key) for goal in asking))]


def latency_points(sizes, fabric, wait):
    """[(size, rounds)]. Small tensors: as many rounds as take 20 to 150 ms, since the p99 of rounds
    that take a millisecond in all says little. Large ones: 256 MiB in all, and at least eight
    tensors."""
    most = 1000 if wait == "sleep" else 4000 if fabric == "tcp" else 40000
    return [(size, rounds_of(size, most, least=8, bytes_in_all=256 * M)) for size in sizes]


def latency_sizes(plan):
    usual = [64, 4 * K, 64 * K, M, 64 * M]
    return plan.sizes(usual, usual, full=[*usual[:-1], 16 * M, usual[-1]])


def roundtrip_tcp(plan):
    sizes = latency_sizes(plan)
    ours = [plan.make.tern("lat", "tcp", wait, latency_points(sizes, "tcp", wait))
            for wait in ("poll", "sleep")]
    theirs = [plan.make.peer(p, "lat", latency_points(sizes, "tcp", p.wait))
              for p in plan.peers("roundtrip-tcp", who.tcp_peers(), "lat")]
    return Question(
        "roundtrip-tcp", "Round trip over TCP by size",
        "A tensor of N bytes goes out, 8 bytes come back; one under way. Polling and sleeping "
        "are different things: compare within one of them.", [*ours, *theirs, who.NCCL], LATENCY)


def roundtrip_shm(plan):
    sizes = latency_sizes(plan)
    ours = [plan.make.tern("lat", "shm", wait, latency_points(sizes, "shm", wait))
            for wait in ("poll", "sleep")]
    # Reading in place copies nothing, so a large size takes no longer and gets as many rounds.
    peek = plan.make.tern("lat", "shm", "poll", [(size, 40000) for size in sizes],
                          key="tern.shm.peek", title="Tern, shm, in place", receive="peek")
    theirs = [plan.make.peer(p, "lat", latency_points(sizes, "shm", p.wait))
              for p in plan.peers("roundtrip-shm", who.shm_peers(), "lat")]
    return Question("roundtrip-shm", "Round trip through shared memory by size",
                    "As over TCP. The tensor is copied into the receiver's own; but `in place` "
                    "the receiver gets its address in the sender's memory, and reads nothing: "
                    "that shows what handing over costs.", [*ours, peek, *theirs], LATENCY)


# Tensors a second that an open loop offers, and how many of them are measured: a tenth and about
# half of what a sleeping or a polling round trip of raw TCP allows.
OFFERED = {"sleep": [(1000, 2000), (5000, 5000)], "poll": [(5000, 5000), (25000, 25000)]}


def open_loop(plan):
    size, found = 4 * K, []
    for wait, rates in OFFERED.items():
        for offer, rounds in rates if not plan.quick else rates[:1]:
            found.append(plan.make.tern("lat", "tcp", wait, [(size, rounds)], offer=offer))
            found += [plan.make.peer(p, "lat", [(size, rounds)], offer=offer)
                      for p in plan.peers("open-loop", who.tcp_peers(), "lat")
                      if p.wait == wait and not p.slow]
    for contender in found:
        contender.point = lambda line: f"{line['offered_per_s']}/s"
    return Question(
        "open-loop", "Round trips over TCP at a set rate",
        "A tensor of 4 KiB is due at fixed intervals, whether or not the answers keep up, and its "
        "round trip counts from when it was due. So a pause is paid by all tensors that it keeps "
        "waiting, as users would pay it, and not by one (no coordinated omission). A sleeping "
        "sender also pays for the timer that wakes it. One connection; one tensor is under way at "
        "a time.", found, LATENCY, axis="tensors a second")


def rewrite_shm(plan):
    points = latency_points(plan.sizes([M, 64 * M], [64 * M]), "shm", "poll")
    ours = [plan.make.tern("lat", "shm", "poll", points, rewrite=True)]
    theirs = [plan.make.peer(p, "lat", points, rewrite=True)
              for p in plan.peers("rewrite-shm", who.shm_peers(), "lat")]
    return Question("rewrite-shm", "Round trip through shared memory, the tensor written anew",
                    "The sender writes its tensor before each message, as a trainer does; the "
                    "round trip does not count that, `cpu_s_per_gb` does.", [*ours, *theirs], LATENCY)


def bandwidth(plan, fabric, peers):
    """The contenders of a bandwidth question. Sixteen tensors are in flight, which is enough for the
    full bandwidth. Sixteen of 64 MiB take 2 GB for both ends together, and to allocate that takes
    longer than to transfer it. So there are few sizes. On shm no goal asks for 64 MiB: sixteen of
    16 MiB exceed any cache."""
    inflight, largest = 16, 64 * M if fabric == "tcp" else 16 * M
    points = [(size, rounds_of(size, most=2000, least=inflight, bytes_in_all=256 * M))
              for size in plan.sizes([64 * K, M, largest], [largest])]
    found = [plan.make.tern("bw", fabric, wait, points, inflight) for wait in ("poll", "sleep")]
    found += [plan.make.peer(peer, "bw", points[-2:] if peer.slow else points, inflight)
              for peer in plan.peers(f"bandwidth-{fabric}", peers, "bw")
              if peer.key not in NOT_IN_BANDWIDTH]
    for contender in found:
        contender.point = lambda line: f"{line['size']}x{line['inflight']}"
    return found


def bandwidth_tcp(plan):
    return Question("bandwidth-tcp", "Bandwidth over TCP by size and tensors under way",
                    "Each tensor has memory of its own at both ends and is answered by 8 bytes; "
                    "`64 KiB x 16`: 16 under way. Processor time is that of both processes with all "
                    "their threads.", bandwidth(plan, "tcp", who.tcp_peers()), BANDWIDTH)


def bandwidth_shm(plan):
    return Question("bandwidth-shm", "Bandwidth through shared memory",
                    "As over TCP.", bandwidth(plan, "shm", who.shm_peers()), BANDWIDTH)


def both_directions(plan):
    inflight, found = 16, []
    for peers, fabric, sizes in (
            (who.tcp_peers(), "tcp", plan.sizes([64 * K, M, 16 * M], [64 * K, 16 * M])),
            (who.shm_peers(), "shm", [64 * K, M])):
        points = [(size, rounds_of(size, most=2000, least=2 * inflight, bytes_in_all=256 * M))
                  for size in sizes]
        found += [who.ours(plan.make.peer(who.tern_pair(fabric, wait), "both", points, inflight))
                  for wait in ("poll", "sleep")]
        found += [plan.make.peer(peer, "both", points, inflight)
                  for peer in plan.peers("both-directions", peers, "bw")
                  if not peer.slow and peer.program != "shm_copy"]
    for contender in found:
        contender.point = lambda line: f"{line['size']}x{line['inflight']}"
    return Question(
        "both-directions", "Tensors in both directions at once",
        "A tensor of N bytes goes out, and another one of N bytes comes back as its answer, 16 under "
        "way. An answer begins when its message has arrived, so while more messages come, both "
        "directions are in use. Each has memory of its own at both ends. GB/s and processor time "
        "count the bytes of both directions. Raw TCP's calls do not block, since two ends that wait "
        "in send() for each other would do so for ever. The response of a unary call of gRPC carries "
        "the tensor. Not measured: gRPC with protobuf, and the limit of shared memory, which is a copy "
        "in one direction.", found, BANDWIDTH)


def rate(plan):
    found = []
    # A round is long enough that a pause of the host's, some 20 ms, is not most of it.
    for peers, fabric, points in (
            (who.tcp_peers(), "tcp", [(size, 80_000) for size in plan.sizes([64, 512], [64])]),
            (who.shm_peers(), "shm", [(64, 800_000)])):
        few = [(size, rounds // 20) for size, rounds in points]
        for wait in ("poll", "sleep"):
            found.append(plan.make.tern("rate", fabric, wait, points, 256))
        for peer in plan.peers("rate", peers, "rate"):
            slow = peer.program in ("tensorpipe", "libfabric")
            found.append(plan.make.peer(peer, "rate", few if slow else points, 256))
    return Question("rate", "Small messages a second",
                    "256 under way, only the last is answered. Raw TCP makes a call for each "
                    "message at each end, or, as a limit, one for as many as 64 KiB hold; Tern "
                    "and ZeroMQ send several with one, gRPC's stream is asked to.", found,
                    [("msgs_per_s", "/s", "larger")])


# Programs of bench/peers that have --threads (bench/pair.h).
THREADED = ("raw_tcp", "grpc_pair", "grpc_callback", "grpc_core", "grpc_core_release", "ucx", "zeromq")


def threads(plan):
    counts, found = "1,2,4", []
    for peers, fabric in ((who.tcp_peers(), "tcp"), (who.shm_peers(), "shm")):
        points = [(64, 40_000), (64 * K, 2000)]
        found.append(who.ours(plan.make.peer(who.tern_pair(fabric, "sleep"), "rate", points, 64,
                                             threads=counts)))
        found += [plan.make.peer(peer, "rate", points, 64, threads=counts)
                  for peer in plan.peers("threads", peers, "rate")
                  if peer.wait == "sleep" and peer.program in THREADED and not peer.slow]
    for contender in found:
        contender.point = lambda line: f"{line['threads']} x {size_text(line['size'])}"
    return Question(
        "threads", "Several sending threads",
        "Each end is a process with several threads, and each thread of the sender has a connection of its "
        "own to a thread of the receiver: `2 x 64 B` is two threads at each end, and messages of 64 B. Each "
        "thread has 64 messages under way, of which only the last one is answered. The threads start at a "
        "barrier. Messages a second: the messages of all threads, divided by the time from the first start "
        "to the last end. Processor time is that of both processes, for each message. A thread has what the "
        "documents of the library recommend for it: a context of Tern's, a socket, a worker of UCX's, a "
        "socket of ZeroMQ's, or a channel of gRPC's with a completion queue. A process has one domain of "
        "Tern's, one context of UCX's, and one context of ZeroMQ's with an I/O thread for each thread. With "
        "gRPC, each thread of the receiver has a server of its own, and the callback API adds threads of "
        "gRPC's. All sleep, and no thread is pinned. Where the machine has fewer than two cores for each thread of "
        "an end, threads share cores, and processor time says more than messages a second. Not measured: "
        "UCX through shared memory, OpenMPI and libfabric, which only poll; TensorPipe; gRPC with protobuf; "
        "gRPC's unary calls, which are all answered.",
        found, [("msgs_per_s", "/s", "larger"), ("cpu_per_message_us", "us", "smaller")],
        axis="threads and bytes of a message")


def pool(plan):
    command = [str(plan.make.tern_program), "bench", "pool", "--size", "64,4K,1M", "--rounds",
               "300000", "--json"]
    ours = who.Contender("tern.pool", "Tern's pool", command, ours=True)
    theirs = plan.make.program("pool", "malloc", "malloc, which registers nothing",
                               ["64,4K,1M", 300000])
    return Question("pool", "Taking a tensor from the pool and giving it back",
                    "256 are out at any time, and which one is given back is random.",
                    [ours, theirs], [("alloc_ns", "ns", "smaller")])


def limits(plan):
    return Question("limits", "What memory gives here",
                    "One core: a copy with memcpy, one around the cache, and STREAM's triad.",
                    [plan.make.program("limits", "limits", "this machine", [])],
                    [("memcpy_gb_per_s", "GB/s", "larger"), ("around_gb_per_s", "GB/s", "larger"),
                     ("triad_gb_per_s", "GB/s", "larger")])


def calibration(plan):
    found = []
    for peer, tool in who.calibrated():
        found += plan.make.calibration(peer, tool, 8, 40000 if peer.fabric == "shm" else 8000)
    return Question(
        "calibration", "The programs of this report beside the libraries' own tools",
        "Half a round trip of 8 B there and 8 B back, polling: what a program of bench/ shows of a "
        "library beside what the library's own tool shows, with the same build and settings. It is the "
        "median with ucx_perftest, and the mean with fi_pingpong, which has no other. ucx_perftest and "
        "the programs of bench/ post a receive after the send before it; fi_pingpong posts the next "
        "receive before it answers.",
        found, [("half_trip_us", "us", "smaller")])


# ---- programs of their own ----

def by_point(line):
    return line["point"]


def ours_with(plan, program, *arguments, fabrics=("tcp", "shm")):
    return [plan.make.program(program, f"tern.{fabric}", f"Tern, {fabric}",
                              [fabric, *arguments], wait="sleep", fabric=fabric, ours=True,
                              point=by_point) for fabric in fabrics]


def sleeping_ucx():
    """[(name, peer)] of UCX's two builds, over TCP."""
    return [(peer.key.split(".")[0], peer) for peer in who.tcp_peers()
            if peer.program == "ucx" and peer.wait == "sleep"]


def connections(plan):
    counts = plan.sizes("1,100,1000", "1,100")  # a thousand take 17 s of idle waiting
    theirs = [plan.make.program(f"peers/{name}_connections", f"{name}.tcp", title, [counts], package,
                                environment=environment, wait="sleep", fabric="tcp", point=by_point)
              for name, title, package, environment in (
                  ("raw", "raw TCP, epoll", "gcc", {}),
                  ("grpc", "gRPC, a channel each, unary", "libgrpc++-dev", who.cubic()),
                  ("zeromq", "ZeroMQ, a DEALER each, one ROUTER", "libzmq3-dev", who.cubic()))]
    theirs += [plan.make.program("peers/ucx_connections", f"{name}.tcp",
                                 f"{peer.title}, an endpoint each, active messages", [counts],
                                 peer.package, environment=who.ucx_as_it_is(peer), wait="sleep",
                                 fabric="tcp", point=by_point) for name, peer in sleeping_ucx()]
    return Question(
        "connections", "Many connections to one server",
        "Each end has one context, thread or queue; some libraries start more threads. malloc has its "
        "default settings, and UCX's segments have their default sizes, since memory is measured. An "
        "endpoint of UCX's takes two sockets at each end: one finds the server, the other has the messages. "
        "The first byte: from connecting to the first answer, with all that a library sets up for its first "
        "connection; for UCX that includes a look at the machine's topology. Connections a second: the "
        "other connections, opened and asked at once, until all have answered. Memory: by how much the "
        "resident memory of both processes has grown then; the kernel's is not counted. Idle: the processor "
        "time of both processes in a second without messages, of one core; with 1,000 connections of Tern's "
        "in 5 s after 12 s of rest, when its keep-alive messages have become rare. The round trip: 64 bytes "
        "on one connection while the others are idle.",
        [*ours_with(plan, "connections", counts, fabrics=["tcp"]), *theirs,
         # For shm, no goal needs a thousand connections, and they would take 17 s of waiting.
         *ours_with(plan, "connections", "1,100", fabrics=["shm"])],
        [("first_byte_us", "us", "smaller"), ("connections_per_s", "/s", "larger"),
         ("kib_per_connection", "KiB", "smaller"), ("idle_cpu_percent", "%", "smaller"),
         ("p50_us", "us", "smaller")], axis="connections")


def resnet50_bytes():
    """The size of each parameter tensor of ResNet-50, in bytes."""
    text = Path(__file__).with_name("resnet50.h").read_text()
    elements = text[text.index("= {") + 3:text.index("};")]
    return [4 * int(number) for number in elements.split(",")]


def mixed_bytes():
    """64 random sizes from 64 B to 4 MiB, whose logarithms are evenly distributed."""
    draw = random.Random(1)
    return [round(64 * 2 ** draw.uniform(0, 16)) for _ in range(64)]


def many(plan):
    parameters = resnet50_bytes()
    sets = [(f"{len(parameters)} tensors", parameters), ("1 tensor", [sum(parameters)])]
    if plan.full:
        sets.append(("64 mixed", mixed_bytes()))
    found = []
    for name, sizes in sets:
        steps = plan.sizes(12, 5) if sum(sizes) > 50 * M else plan.sizes(60, 30)
        for fabric, peers in (("tcp", who.tcp_peers()), ("shm", who.shm_peers())):
            made = [plan.make.tern_step(fabric, wait, sizes, steps) for wait in ("poll", "sleep")]
            made += [plan.make.step(peer, sizes, steps)
                     for peer in plan.peers("many", peers, "bw") if not peer.slow]
            for contender in made:
                contender.point = lambda line, name=name: name
            found += made
    return Question("many", "Steps of many tensors against one large tensor",
                    "ResNet-50's 161 parameters, 102 MB in all, and one tensor of the same bytes; "
                    "in a full run also 64 tensors of 64 B to 4 MiB, 20 MB in all. All tensors of a "
                    "step are under way at once; the last one is answered, and then the next step "
                    "begins. gRPC's unary calls and the copies are all answered.", found,
                    [("gb_per_s", "GB/s", "larger"), ("cpu_s_per_gb", "s/GB", "smaller")],
                    axis="tensors")


def head_of_line(plan):
    tcp = plan.sizes(300, 200)
    # Through shared memory more rounds, so that it takes as long: some large tensors must end.
    shm = plan.sizes(4000, 2000)
    grpc = "gRPC, large tensors as streams of 1 MiB chunks"
    theirs = [plan.make.program("peers/grpc_head_of_line", key, title, [*words, tcp], "libgrpc++-dev",
                                environment=who.tcp_environment(), wait="sleep", fabric="tcp",
                                point=by_point)
              for key, title, words in (("grpc.tcp", grpc, []),
                                        ("grpc.apart.tcp", f"{grpc}, a second channel for the small one",
                                         ["apart"]))]
    for name, peer in sleeping_ucx():
        theirs += [plan.make.program("peers/ucx_head_of_line", key, title, [*words, tcp], peer.package,
                                     environment=peer.environment, wait="sleep", fabric="tcp",
                                     point=by_point)
                   for key, title, words in ((peer.key, peer.title, []),
                                             (f"{name}.apart.tcp", f"{peer.title}, a second worker for "
                                              "the small one", ["apart"]))]
    return Question(
        "head-of-line", "A small tensor beside large ones",
        "Round trips of a tensor of 4 KiB between two processes that exchange nothing else, and "
        "between two that also have two tensors of 256 MB always under way. Over TCP, Tern sends "
        "tensors of 2 MiB and more over a TCP connection of their own, and the small one as urgent. "
        "UCX has one connection, and in a second row another one, of a second worker, which the same "
        "thread drives. gRPC has one, whose calls share it fairly, and in a second row a channel more. "
        "What takes more than 4 s is asked for fewer round trips, and has a p99 only if "
        "they are at least 100.",
        [*ours_with(plan, "head_of_line", tcp, fabrics=["tcp"]), *theirs,
         *ours_with(plan, "head_of_line", shm, fabrics=["shm"])],
        [("p50_us", "us", "smaller"), ("p99_us", "us", "smaller"),
         ("beside_gb_per_s", "GB/s", "larger")], axis="beside")


def registration(plan):
    return Question("registration", "Registering memory on the way",
                    "Round trips of 1 MiB in memory of the pool, and in memory that both ends wrap "
                    "before and give back after each message.",
                    ours_with(plan, "registration", M, plan.sizes(400, 100)),
                    [("p50_us", "us", "smaller")], axis="memory")


# ---- the parameter server ----

RATE = repr(1 / 1024)  # PS_RATE of bench/ps.h
SHAPES = {"100 MB": ("flat:100000000", 100_000_000), "ResNet-50": ("resnet50", 4 * 25_557_032),
          "8 MB": ("flat:8000000", 8_000_000), "MLP 784-256-128-10": ("mlp", 4 * 235_146)}
SMALL_ROUNDS = 500


def ps_point(shape, workers, servers):
    return f"{shape}, {workers}w {servers}s"


def tern_rounds(out):
    """The figure of a run of `tern train --json`, from its event "done"."""
    done = [line for line in json_lines(out) if line.get("event") == "done"]
    return [{"ms_per_round": 1e3 / line["steps_per_s"]} for line in done if line["steps_per_s"]]


def ps_ours(plan, fabric, shape, workers, servers):
    model, size = SHAPES[shape]
    steps = SMALL_ROUNDS if size < 1 << 20 else plan.sizes(8, 5) * (1 if size > 8 * M else 4)
    return plan.make.program(
        "tern-null", f"tern.{fabric}", f"Tern, {fabric}",
        ["train", "--model", model, "--data", plan.make.null_data(), "--servers", servers,
         "--workers", workers, "--optimizer", "sgd", "--lr", RATE, "--batch", 1, "--steps", steps,
         "--fabric", fabric, "--json"],
        wait="sleep", fabric=fabric, ours=True, parse=tern_rounds,
        point=lambda line: ps_point(shape, workers, servers))


def ps_theirs(plan, shape, workers, servers):
    """The peers' parameter servers. They get the model as one tensor per server."""
    size = SHAPES[shape][1]
    rounds = SMALL_ROUNDS if size < 1 << 20 else plan.sizes(6, 3) * (1 if size > 8 * M else 4)
    found = []
    for peer in who.ps_peers():
        most = 1 if peer.narrow else min(peer.most, 2) if peer.slow else peer.most
        if (peer.slow or peer.narrow) and (shape != "100 MB" or servers > 1):
            continue
        if plan.quick and peer.python or peer.rare and not plan.full:
            continue
        if peer.least <= workers <= most:
            few = min(rounds, 3) if peer.slow else rounds
            contender = plan.make.ps_peer(peer, size, workers, servers, few)
            contender.point = lambda line: ps_point(shape, workers, servers)
            found.append(contender)
    return found


def ps_cases(plan, cases):
    found = []
    for case in cases:
        found += [ps_ours(plan, fabric, *case) for fabric in ("tcp", "shm")]
        found += ps_theirs(plan, *case)
    return found


def parameter_server(plan):
    cases = plan.sizes([("100 MB", 1, 1), ("100 MB", 2, 1), ("100 MB", 4, 1), ("100 MB", 2, 2),
                        ("ResNet-50", 1, 1),
                        *(("MLP 784-256-128-10", workers, 1) for workers in (1, 2, 4))],
                       [("100 MB", 1, 1), ("100 MB", 2, 1)])
    return Question(
        "ps", "Parameter server: push and pull with the update applied",
        "Each worker pushes its gradient and gets the new parameters; servers sum all gradients "
        "and apply SGD; some of the parameters (64; of Python's peers 6) are checked after every "
        "round. Peers' first two rounds are not counted, nor is Tern's first step, after which it "
        "has touched all of its memory. `2w 1s`: two workers, one "
        "server. Tern is the real `tern train` with a model that computes nothing; where "
        "there are two cores for each process, it spins for 20 us before it sleeps. Nobody is "
        "pinned, because there are more processes than cores. Raw C works on all connections at "
        "once and in pieces (256 KiB, over shm 1 MiB): a server answers with a piece when all "
        "workers have sent it. Tern's server reads gradients in place over shm, as "
        "`in place` does and `with copies` does not. gRPC sends a tensor as one message, and sums "
        "when it is there; with chunks, it sums and answers them one by one. What is slow is asked "
        "for 100 MB on one server by at most two workers; the limit in place, and gRPC with malloc "
        "as it comes, by one. Where there is no server (gloo), workers sum among themselves, so two of "
        "them move half as many bytes. TensorFlow applies gradients one by one, and has a coordinator, a "
        "process more.",
        [*ps_cases(plan, cases), who.PS_LITE], [("ms_per_round", "ms", "smaller")],
        axis="shape, workers, servers")


def incast(plan):
    cases = [("8 MB", workers, 1) for workers in plan.sizes((4, 8, 16, 32), (4, 32))]
    return Question(
        "incast", "Many workers push to one server at once",
        "As the parameter server's question: 8 MB, and up to 32 workers whose gradients arrive "
        "together. There are more processes than cores, so the order in which the system runs them "
        "is part of the time.", ps_cases(plan, cases), [("ms_per_round", "ms", "smaller")],
        axis="shape, workers, servers")


# ---- beyond this machine ----

def scaling_series(plan):
    """(notes, {key: {point: {"ms_per_step": [with the mean costs, with the least, with the most]}}})."""
    costs, why = scaling.costs_of(plan.results)
    if why:
        raise Failed(why)
    found = {which: scaling.series(plan.results, which, len(os.sched_getaffinity(0)),
                                   plan.sizes(4096, 256)) for which in scaling.SPREAD}
    said, mean = found["mean"]
    off = [mean["modelled"][point] / ms - 1 for point, ms in mean["measured"].items()]
    notes = [f"Costs: {costs.byte_ns:.3f} ns a byte and {costs.message_ns:.0f} ns a message at "
             f"each end, {costs.update_ns:.3f} ns a byte summed and updated; in the cluster a "
             f"wire of 100 Gb/s for each server and {scaling.COMPUTE_NS / 1e6:.0f} ms of "
             "computing for each step. They were measured over loopback, where both ends are the "
             "kernel's copies: network cards may cost more or less, and nothing here was measured "
             "on a cluster. The range of a model is that of its costs, all least or all most."]
    if off:
        notes.append(f"The model of this machine is {min(off):+.0%} to {max(off):+.0%} off what "
                     "was measured.")
    return notes + said, {key: {point: {"ms_per_step": [one[key][point] for _, one in found.values()]}
                                for point in points} for key, points in mean.items()}


def scaling_question(plan):
    named = [who.Contender("measured", "measured here, Tern over tcp, 1 server", wait="sleep",
                           ours=True),
             who.Contender("modelled", "model of this machine, 1 server"),
             *(who.Contender(f"cluster.{servers}", f"model of a cluster, servers: {servers}")
               for servers in scaling.CLUSTERS)]
    question = Question(
        "scaling", "Scaling beyond this machine",
        "A step with 100 MB of parameters, in virtual time (bench/scaling.py), with costs that "
        "were measured here as its parameters. The model of this machine stands beside what it "
        "showed: that is how far the rest can be believed.", named,
        [("ms_per_step", "ms", "smaller")], axis="workers", derived=True)

    def all_rounds(_rounds):
        question.notes, series = scaling_series(plan)
        return series
    question.all_rounds = all_rounds
    return question


# ---- in the virtual machine ----

def verbs(plan):
    return Question(
        "verbs", "RDMA verbs beside perftest, over Soft-RoCE in a virtual machine",
        "An emulated machine with two software devices: only ratios within one boot mean "
        "anything. A latency is half a round trip: of Tern's the tensor goes out and 8 B come back, "
        "of ib_send_lat's and ib_write_lat's the same size comes back, and ib_read_lat asks for it "
        "and gets it. So only the row of 8 B compares the same thing; at 64 KiB perftest moves twice "
        "the bytes. Beside our 8 B perftest sends 88, which is what ours are on the wire. `poll` and `sleep` say how Tern's ends wait; ib_write_bw is the same in "
        "both, and only its sender polls. Those of Tern's ends that poll are pinned; perftest's "
        "are not.",
        vm.contenders(plan.make.tern_program), [("value", "us or MB/s", "-")],
        axis="what", all_rounds=lambda rounds: vm.measure(plan.make.tern_program, rounds,
                                                          plan.quick))


QUESTIONS = {"roundtrip-tcp": roundtrip_tcp, "roundtrip-shm": roundtrip_shm,
             "open-loop": open_loop, "rewrite-shm": rewrite_shm, "bandwidth-tcp": bandwidth_tcp,
             "bandwidth-shm": bandwidth_shm, "both-directions": both_directions, "rate": rate,
             "threads": threads,
             "ps": parameter_server, "train": train, "allreduce": allreduce, "transfers": transfers, "windows": windows,
             "nccl": nccl, "snapshots": snapshots, "recovery": recovery,
             "incast": incast, "connections": connections, "many": many,
             "head-of-line": head_of_line, "registration": registration, "verbs": verbs,
             "pool": pool, "limits": limits, "calibration": calibration, "scaling": scaling_question}
# These are asked only in a full run, or by name.
SCENARIOS = ("open-loop", "both-directions", "threads", "train", "allreduce", "transfers", "windows", "nccl", "snapshots",
             "recovery", "incast", "connections", "many", "head-of-line")
