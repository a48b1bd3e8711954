# SPDX-License-Identifier: Apache-2.0
"""What Tern is to reach, as rows that are computed from the results.

A row compares one figure of Tern with the best of some peers' (or with a plain number), round
by round: ours / theirs, or, where `invert` is set, theirs / ours, which for times says how many
times as fast Tern is.
"""
from dataclasses import dataclass, field

import figures

NOT_IN_BANDWIDTH = ("grpc.proto-unary.sleep",)  # the same with malloc's memory kept is faster
NOT_WITH_TWO_WORKERS = ("grpc.bytes", "grpc.proto")  # for the same reason
GRPC_BYTES = ["grpc.bytes-unary", "grpc.bytes-unary.malloc", "grpc.bytes-stream.malloc"]
GRPC_PROTO = ["grpc.proto-unary", "grpc.proto-unary.malloc", "grpc.proto-stream.malloc"]
K, M = 1 << 10, 1 << 20


@dataclass
class Goal:
    what: str
    question: str
    ours: str
    point: str
    metric: str
    against: str  # in words
    peers: list  # keys; the best of them counts. Empty: the figure itself
    sense: str = ""  # "<=" or ">="; "": no goal, only shown
    limit: float = None
    peer_point: str = ""  # if another one than ours
    smaller: bool = True  # the smaller figure is the better one
    invert: bool = False  # theirs / ours
    group: str = "transport"
    unit: str = ""

    @property
    def key(self):
        return f"{self.what} | {self.against} | {self.ours}"


def lat(what, ours, size, against, peers, sense, limit, question="roundtrip-tcp", **more):
    return Goal(what, question, ours, str(size), "p50_us", against, peers, sense, limit,
                unit="us", **more)


def waiting(keys, wait):
    return [f"{key}.{wait}" for key in keys]


def tcp_small():
    rows = []
    for size, text in ((64, "64 B"), (4 * K, "4 KiB")):
        rows += [
            lat(f"tcp, {text}, both polling, round trip", "tern.tcp.poll", size,
                "raw TCP, spinning", ["raw.tcp.poll"], "<=", 1.15),
            lat(f"tcp, {text}, both asleep, round trip", "tern.tcp.sleep", size,
                "raw TCP, blocking", ["raw.tcp.sleep"], "<=", 1.1),
            lat(f"tcp, {text}, both asleep, round trip", "tern.tcp.sleep", size,
                "gRPC byte buffers, sleeping", waiting(GRPC_BYTES, "sleep"), "<=", 0.8),
            lat(f"tcp, {text}, both polling, round trip", "tern.tcp.poll", size,
                "gRPC byte buffers, polling", ["grpc.bytes-unary.malloc.poll"], "", None),
            lat(f"tcp, {text}, polling against sleeping (not the same mode)", "tern.tcp.poll",
                size, "gRPC byte buffers, sleeping", waiting(GRPC_BYTES, "sleep"), "", None)]
    return rows


def tcp_large():
    big, peers = 64 * M, ["ucx.tcp.poll", "mpi.tcp.poll", "libfabric.tcp.poll",
                          "tensorpipe.uv.sleep", "zeromq.tcp.sleep"]
    both = [*waiting(GRPC_BYTES, "sleep"), "grpc.bytes-unary.malloc.poll"]
    proto = waiting(GRPC_PROTO, "sleep")
    rows = [lat("tcp, 1 MiB, polling, round trip", "tern.tcp.poll", M, "raw TCP, spinning",
                ["raw.tcp.poll"], "<=", 1.1),
            lat("tcp, 1 MiB, polling, times as fast", "tern.tcp.poll", M,
                "gRPC byte buffers, its best", both, ">=", 2, invert=True)]
    for against, keys, limit in (("raw TCP, spinning", ["raw.tcp.poll"], 0.97),
                                 ("the best other peer", peers, 1.0),
                                 ("gRPC byte buffers, its best", both, 1.4),
                                 ("gRPC protobuf, its best", proto, 10)):
        rows.append(lat("tcp, 64 MiB, 1 in flight, times as fast", "tern.tcp.poll", big, against,
                        keys, ">=", limit, invert=True))
        rows.append(Goal("tcp, 64 MiB, 16 in flight, rate", "bandwidth-tcp", "tern.tcp.poll",
                         f"{big}x16", "gb_per_s", against,
                         [k for k in keys if k not in NOT_IN_BANDWIDTH], ">=",
                         limit, smaller=False, unit="GB/s"))
    return rows


def shm():
    copies = ["ucx.posix.poll", "ucx.cma.poll", "mpi.vader.poll", "libfabric.shm.poll",
              "tensorpipe.shm.sleep"]
    rows = [lat("shm, 64 B, round trip", "tern.shm.poll", 64, "the best of UCX and OpenMPI",
                ["ucx.posix.poll", "ucx.cma.poll", "mpi.vader.poll"], "<=", 1.0,
                question="roundtrip-shm"),
            Goal("shm, 64 B, batched, messages a second", "rate", "tern.shm.poll",
                 "64", "msgs_per_s", "the number", [], ">=", 5e6, smaller=False, unit="/s"),
            lat("shm, 1 MiB into the receiver's tensor", "tern.shm.poll", M, "OpenMPI vader",
                ["mpi.vader.poll"], "<=", 1.0, question="roundtrip-shm"),
            lat("shm, 64 MiB into the receiver's tensor, written anew each time (not counted), times "
                "as fast", "tern.shm.poll", 64 * M, "the best peer", copies, ">=", 1.1,
                question="rewrite-shm", invert=True)]
    for size in (4 * K, 64 * K, M, 64 * M):
        # Allowed is 1.5 times the time of 64 B one way. The 8 bytes back take as long as 64 B, so
        # that is 1.25 times the round trip.
        rows.append(lat(f"shm, {figures.size_text(size)} handed over in place, round trip",
                        "tern.shm.peek", size, "Tern's own 64 B", ["tern.shm.poll"], "<=", 1.25,
                        question="roundtrip-shm", peer_point="64"))
    return rows


def verbs():
    rows = [Goal("verbs on rxe, 8 B, one way", "verbs", "tern.verbs", "latency, 8 B", "value",
                 "ib_send_lat at our size on the wire", ["ib_send_lat"], "<=", 1.15, unit="us")]
    for size in (64 * K, M):
        for wait in ("poll", "sleep"):
            rows.append(Goal(
                f"verbs on rxe, {figures.size_text(size)}, 16 in flight, {wait}", "verbs",
                "tern.verbs", f"{size >> 10} KiB x 16, {wait}", "value", "ib_write_bw",
                ["ib_write_bw"], ">=", 0.95, smaller=False, unit="MB/s"))
    return rows


def costs():
    x16 = f"{64 * M}x16"
    rows = [Goal(f"pool, {text}: give back and take", "pool", "tern.pool", str(size), "alloc_ns",
                 "the number", [], "<=", 50, unit="ns")
            for size, text in ((64, "64 B"), (4 * K, "4 KiB"), (M, "1 MiB"))]
    rows += [
        Goal("1,000 idle connections, processor time of both ends, of one core", "connections",
             "tern.tcp", "1000", "idle_cpu_percent", "the number", [], "<=", 0.1, unit="%"),
        Goal("1,000 idle connections, memory of both ends for each", "connections", "tern.tcp",
             "1000", "kib_per_connection", "the number", [], unit="KiB"),
        Goal("tcp, 64 MiB, 16 in flight, sleeping, processor time per GB", "bandwidth-tcp",
             "tern.tcp.sleep", x16, "cpu_s_per_gb", "raw TCP, blocking",
             ["raw.tcp.sleep"], "<=", 1.1, unit="s/GB"),
        Goal("tcp, 64 MiB, 16 in flight, sleeping, processor time per GB", "bandwidth-tcp",
             "tern.tcp.sleep", x16, "cpu_s_per_gb", "gRPC byte buffers, sleeping",
             waiting(GRPC_BYTES, "sleep"), "", None, unit="s/GB")]
    return rows


def servers():
    point = "100 MB, {}w 1s"
    rows = []
    for count in (1, 2):
        for fabric, peers in (
                ("tcp", [("raw C over TCP", ["raw.tcp"], "<=", 1.15, False),
                         ("gRPC byte buffers, its best", ["grpc.bytes", "grpc.bytes.malloc"],
                          ">=", 2, True),
                         ("dmlc ps-lite", ["ps-lite"], ">=", 1.6, True),
                         ("gRPC protobuf", ["grpc.proto", "grpc.proto.malloc"], ">=", 6,
                          True)]),
                ("shm", [("raw C over shm, with copies", ["raw.shm"], "<=", 1.0, False)])):
            for against, keys, sense, limit, invert in peers:
                keys = [key for key in keys if count == 1 or key not in NOT_WITH_TWO_WORKERS]
                rows.append(Goal(
                    f"{fabric}, 100 MB pushed and pulled, 1 server, {count} worker"
                    f"{'s' if count > 1 else ''}{', times as fast' if invert else ''}", "ps",
                    f"tern.{fabric}", point.format(count), "ms_per_round", against, keys, sense,
                    limit, invert=invert, group="parameter server", unit="ms"))
    rows.append(Goal("shm, 100 MB pushed and pulled, 1 server, 1 worker", "ps", "tern.shm",
                     point.format(1), "ms_per_round", "raw C over shm, in place too",
                     ["raw.inplace"], group="parameter server", unit="ms"))
    rows.append(Goal("tcp, ResNet-50's 161 tensors, against one of the same bytes, rate", "many",
                     "tern.tcp", "161 tensors", "gb_per_s", "Tern's own one tensor", ["tern.tcp"],
                     ">=", 0.8, peer_point="1 tensor", smaller=False, group="parameter server",
                     unit="GB/s"))
    return rows


GOALS = [*tcp_small(), *tcp_large(), *shm(), *verbs(), *costs(), *servers()]


def values(results, question, key, point, metric):
    q = results["questions"].get(question, {})
    return q.get("contenders", {}).get(key, {}).get("points", {}).get(point, {}).get(metric)


@dataclass
class Row:
    goal: Goal
    ours: float = None
    theirs: float = None
    peer: str = ""  # the one that was best
    ratio: figures.Figure = None
    met: bool = None  # None: nothing is asked, or it could not be measured
    why: str = ""
    without: list = field(default_factory=list)  # peers that have no figure: not in "the best"


def compute(goal, results):
    ours = values(results, goal.question, goal.ours, goal.point, goal.metric)
    if not ours:
        return Row(goal, why="not measured")
    row = Row(goal, ours=figures.figure(ours).median)
    if not goal.peers:
        row.ratio = figures.figure(ours)
    else:
        found = {k: values(results, goal.question, k, goal.peer_point or goal.point, goal.metric)
                 for k in goal.peers}
        row.peer = figures.best(found, goal.smaller)
        row.without = [key for key, figure in found.items() if not figure]
        if row.peer is None:
            row.why = "the peer is missing"
            return row
        theirs = found[row.peer]
        row.theirs = figures.figure(theirs).median
        row.ratio = figures.ratio(theirs, ours) if goal.invert else figures.ratio(ours, theirs)
    if row.ratio is None:
        row.why = "the peer's figure is 0"
    elif goal.sense:
        row.met = figures.meets(row.ratio.median, goal.sense, goal.limit)
    return row


def tails(results):
    """Goals of the p99, up to 64 KiB: at most 3 times Tern's p50, or the p99 of raw TCP or of one
    copy, whichever is larger."""
    rows = []
    for fabric, wait, peer, text in (
            ("tcp", "poll", "raw.tcp.poll", "raw TCP"), ("tcp", "sleep", "raw.tcp.sleep", "raw TCP"),
            ("shm", "poll", "limit.shm.memcpy", "one copy")):
        for size in (64, 4 * K, 64 * K):
            ours = f"tern.{fabric}.{wait}"

            def of(key, metric, question=f"roundtrip-{fabric}", at=str(size)):
                return values(results, question, key, at, metric)
            goal = Goal(f"{fabric}, {figures.size_text(size)}, {wait}, p99", f"roundtrip-{fabric}",
                        ours, str(size), "p99_us", f"the larger of 3 x its p50 and {text}'s p99",
                        [peer], "<=", 1.0, unit="us")
            p99, p50, raw = of(ours, "p99_us"), of(ours, "p50_us"), of(peer, "p99_us")
            if not p99 or not raw:
                rows.append(Row(goal, why="not measured"))
                continue
            bound = [max(3 * a, b) for a, b in zip(p50, raw)]
            ratio = figures.ratio(p99, bound)
            rows.append(Row(goal, figures.figure(p99).median, figures.figure(bound).median,
                            peer, ratio, ratio.median <= 1))
    return rows


def registrations(results):
    """The most memory registrations after the warm-up that any run of `tern bench` counted."""
    most, seen = 0, False
    for q in results["questions"].values():
        for entry in q["contenders"].values():
            for metrics in entry["points"].values() if entry["ours"] else ():
                for count in metrics.get("registrations", []):
                    most, seen = max(most, count), True
    goal = Goal("memory registrations after warm-up, in any run of `tern bench` over tcp or shm "
                "(of one over verbs any is a failure)", "all", "tern", "", "", "the number", [], "<=", 0)
    if not seen:
        return Row(goal, why="not measured")
    return Row(goal, most, None, "", figures.Figure(most, most, most), most == 0)


def rows(results):
    found = [compute(goal, results) for goal in GOALS]
    return [r for r in found if r.goal.group == "transport"] + tails(results) + [
        registrations(results)] + [r for r in found if r.goal.group != "transport"]
