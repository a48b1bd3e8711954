# SPDX-License-Identifier: Apache-2.0
"""What Tern is to reach, as rows that are computed from the results.

A row compares one figure of Tern with that of the peer against which Tern does worst, or with
a plain number, round by round: ours / theirs, or, where `invert` is set, theirs / ours, which
for times says how many times as fast Tern is. Both sides of a goal wait in the same way: a row
that compares two ways says so and asks for nothing.
"""
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import contenders
import figures

NOT_IN_BANDWIDTH = ("grpc.proto-unary.sleep",)  # the same with malloc's memory kept is faster
# Pattern of the keys of all gRPC peers with byte buffers: bytes-, core-, release- and engine-.
GRPC_BYTES = "grpc.[bcre]*.{}"
GRPC_PROTO = "grpc.proto-*.{}"
K, M = 1 << 10, 1 << 20
POLLS = {"poll": "both polling", "sleep": "both asleep"}
RAW = {"poll": "raw TCP, spinning", "sleep": "raw TCP, blocking"}
GRPC = {"poll": "gRPC byte buffers, polling", "sleep": "gRPC byte buffers, sleeping"}


@dataclass
class Goal:
    what: str
    question: str
    ours: str
    point: str
    metric: str
    against: str  # the peers, or the plain number, in words
    peers: list  # keys, or patterns of keys as of a shell; the worst ratio counts. Empty: no peer
    sense: str = ""  # "<=" or ">="; "": no goal, only shown
    limit: float = None
    peer_point: str = ""  # the peers' point, if it is another one than `point`
    # The peers' question, if it is another one; then the two were not measured beside each other.
    peer_question: str = ""
    smaller: bool = True  # the smaller figure is the better one
    invert: bool = False  # the ratio is theirs / ours, and not ours / theirs
    over: str = ""  # instead of peers: another metric of Tern's own, by which `metric` is divided
    group: str = "transport"
    unit: str = ""

    @property
    def key(self):
        return f"{self.what} | {self.against} | {self.ours}"

    @property
    def less_is_better(self):
        """True if less is better of the ratio, or of the figure if there is no peer."""
        return self.smaller != self.invert

    @property
    def opponent(self):
        """The group of peers, one of OPPONENTS, in which the verdict on this goal is counted."""
        if not self.peers or self.peers[0].startswith("tern."):
            return "plain numbers"
        if self.peers[0].startswith("tool."):
            return "libraries' own tools"
        words = set(self.peers[0].split("."))
        if words & {"torch", "tensorflow"}:
            return "training frameworks"
        return ("gRPC" if "grpc" in words else "raw C and limits" if words & {"raw", "limit"} else
                "perftest" if self.peers[0].startswith("ib_") else
                "shm libraries" if words & {"posix", "cma", "vader", "shm"} else "other tcp peers")

    def is_against(self, key):
        return any(fnmatchcase(key, pattern) for pattern in self.peers)


OPPONENTS = ("gRPC", "other tcp peers", "shm libraries", "perftest", "raw C and limits",
             "training frameworks", "plain numbers", "libraries' own tools")


def lat(what, ours, size, against, peers, sense, limit, question="roundtrip-tcp", **more):
    return Goal(what, question, ours, str(size), "p50_us", against, peers, sense, limit,
                unit="us", **more)


def tcp_small():
    rows = []
    for size, text in ((64, "64 B"), (4 * K, "4 KiB")):
        for wait, of_raw, of_grpc in (("poll", 1.15, None), ("sleep", 1.1, 0.8)):
            what, ours = f"tcp, {text}, {POLLS[wait]}, round trip", f"tern.tcp.{wait}"
            rows += [lat(what, ours, size, RAW[wait], [f"raw.tcp.{wait}"], "<=", of_raw),
                     lat(what, ours, size, GRPC[wait], [GRPC_BYTES.format(wait)],
                         "<=" if of_grpc else "", of_grpc)]
        rows.append(lat(f"tcp, {text}, polling against sleeping (not the same mode)",
                        "tern.tcp.poll", size, GRPC["sleep"], [GRPC_BYTES.format("sleep")], "",
                        None))
    return rows


def tcp_large():
    """Peers that can only sleep, TensorPipe and ZeroMQ, are compared with Tern asleep."""
    rows = [lat("tcp, 1 MiB, both polling, round trip", "tern.tcp.poll", M, RAW["poll"],
                ["raw.tcp.poll"], "<=", 1.1)]
    rows += [lat(f"tcp, 1 MiB, {POLLS[wait]}, times as fast", f"tern.tcp.{wait}", M, GRPC[wait],
                 [GRPC_BYTES.format(wait)], ">=", 2, invert=True) for wait in ("poll", "sleep")]
    libraries = {"poll": ["ucx*.tcp.poll", "mpi*.tcp.poll", "libfabric*.tcp.poll"],
                 "sleep": ["ucx*.tcp.sleep", "tensorpipe.uv.sleep", "zeromq.tcp.sleep"]}
    for wait, against, keys, limit in (
            ("poll", RAW["poll"], ["raw.tcp.poll"], 0.97),
            ("poll", "UCX, OpenMPI and libfabric, polling", libraries["poll"], 1.0),
            ("sleep", "UCX, TensorPipe and ZeroMQ, sleeping", libraries["sleep"], 1.0),
            ("poll", GRPC["poll"], [GRPC_BYTES.format("poll")], 1.4),
            ("sleep", GRPC["sleep"], [GRPC_BYTES.format("sleep")], 1.4),
            ("sleep", "gRPC protobuf, sleeping", [GRPC_PROTO.format("sleep")], 10)):
        rows.append(lat(f"tcp, 64 MiB, 1 in flight, {POLLS[wait]}, times as fast",
                        f"tern.tcp.{wait}", 64 * M, against, keys, ">=", limit, invert=True))
        rows.append(Goal(f"tcp, 64 MiB, 16 in flight, {POLLS[wait]}, rate", "bandwidth-tcp",
                         f"tern.tcp.{wait}", f"{64 * M}x16", "gb_per_s", against, keys, ">=",
                         limit, smaller=False, unit="GB/s"))
    return rows


SHM_LIBRARIES = ["ucx*.posix.poll", "ucx*.cma.poll", "mpi*.vader.poll"]


def shm():
    copies = [*SHM_LIBRARIES, "libfabric*.shm.poll", "tensorpipe.shm.poll"]
    rows = [lat("shm, 64 B, both polling, round trip", "tern.shm.poll", 64, "UCX and OpenMPI",
                SHM_LIBRARIES, "<=", 1.0, question="roundtrip-shm"),
            Goal("shm, 64 B, batched, messages a second", "rate", "tern.shm.poll",
                 "64", "msgs_per_s", "the number", [], ">=", 5e6, smaller=False, unit="/s"),
            lat("shm, 1 MiB into the receiver's tensor", "tern.shm.poll", M, "OpenMPI vader",
                ["mpi*.vader.poll"], "<=", 1.0, question="roundtrip-shm"),
            lat("shm, 64 MiB into the receiver's tensor, written anew each time (not counted), times "
                "as fast", "tern.shm.poll", 64 * M, "UCX, OpenMPI, libfabric and TensorPipe",
                copies, ">=", 1.1, question="rewrite-shm", invert=True)]
    for size in (4 * K, 64 * K, M, 64 * M):
        # Allowed is 1.5 times the time of 64 B one way. The 8 bytes back take as long as 64 B, so
        # that is 1.25 times the round trip.
        rows.append(lat(f"shm, {figures.size_text(size)} handed over in place, round trip",
                        "tern.shm.peek", size, "Tern's own 64 B", ["tern.shm.poll"], "<=", 1.25,
                        question="roundtrip-shm", peer_point="64"))
    return rows + shm_asleep() + shm_and_unix_sockets()


def shm_and_unix_sockets():
    return [lat(f"shm, {figures.size_text(size)}, {POLLS[wait]}, times as fast", f"tern.shm.{wait}",
                size, f"{GRPC[wait]}, over a Unix socket", [f"grpc.bytes-*-unix.malloc.{wait}"], "",
                None, question="roundtrip-shm", invert=True)
            for wait in ("poll", "sleep") for size in (64, M)]


def shm_asleep():
    """No library sleeps over shared memory, so Tern asleep is compared with raw sockets."""
    rows = []
    for size in (64, 4 * K, 64 * K):
        text = figures.size_text(size)
        rows += [lat(f"shm, {text}, asleep, against a socket asleep, round trip", "tern.shm.sleep",
                     size, RAW["sleep"], ["raw.tcp.sleep"], "<=", 1.0, question="roundtrip-shm",
                     peer_question="roundtrip-tcp"),
                 lat(f"shm, {text}, asleep against polling (not the same mode)", "tern.shm.sleep",
                     size, "TensorPipe, shm, whose thread polls", ["tensorpipe.shm.poll"], "",
                     None, question="roundtrip-shm")]
    return rows


def verbs():
    """Rows without a goal: Soft-RoCE in an emulated machine says little about real cards. ib_write_bw's
    sender polls and its receiver does nothing, so Tern asleep is not even in the same mode."""
    rows = [Goal("verbs on rxe, 8 B there and 8 B back, half a round trip", "verbs", "tern.verbs",
                 "latency, 8 B", "value", "ib_send_lat at our size on the wire", ["ib_send_lat"],
                 unit="us")]
    for size in (64 * K, M):
        for wait, note in (("poll", ""), ("sleep", " (not the same mode)")):
            rows.append(Goal(
                f"verbs on rxe, {figures.size_text(size)}, 16 in flight, {wait}{note}", "verbs",
                "tern.verbs", f"{size >> 10} KiB x 16, {wait}", "value", "ib_write_bw",
                ["ib_write_bw"], smaller=False, unit="MB/s"))
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
             "tern.tcp.sleep", x16, "cpu_s_per_gb", RAW["sleep"], ["raw.tcp.sleep"], "<=", 1.1,
             unit="s/GB"),
        Goal("tcp, 64 MiB, 16 in flight, sleeping, processor time per GB", "bandwidth-tcp",
             "tern.tcp.sleep", x16, "cpu_s_per_gb", GRPC["sleep"], [GRPC_BYTES.format("sleep")],
             "", None, unit="s/GB")]
    return rows


def tails():
    """The p99 up to 64 KiB: how far it lies above Tern's own p50, and what it is beside a peer's."""
    rows = []
    for fabric, wait, peers in (
            ("tcp", "poll", [(RAW["poll"], ["raw.tcp.poll"])]),
            ("tcp", "sleep", [(RAW["sleep"], ["raw.tcp.sleep"])]),
            ("shm", "poll", [("UCX and OpenMPI", SHM_LIBRARIES),
                             ("one copy", ["limit.shm.memcpy"])])):
        for size in (64, 4 * K, 64 * K):
            what = f"{fabric}, {figures.size_text(size)}, {POLLS[wait]}, p99"
            common = (f"roundtrip-{fabric}", f"tern.{fabric}.{wait}", str(size), "p99_us")
            rows.append(Goal(f"{what} over p50", *common, "the number", [], "<=", 2, over="p50_us"))
            rows += [Goal(what, *common, f"the p99 of {against}", keys, "<=", 1.1, unit="us")
                     for against, keys in peers]
    return rows


def calibration():
    """A library must not be slower in a program of bench/ than in its own tool: at most 1.1 times."""
    return [Goal(f"{peer.title}, 8 B, half a round trip in {peer.program}.c", "calibration",
                 f"pair.{peer.key}", "8", "half_trip_us", f"its own {tool[0]}", [f"tool.{peer.key}"],
                 "<=", 1.1, unit="us") for peer, tool in contenders.calibrated()]


# Titles of the models of the question `train`, as the points of bench/trainers.py have them.
WIDE = "MLP 784-4096-4096-10"
TRAINED = ("MLP 784-256-128-10", WIDE, "transformer")
PS_GRPC, PS_PROTO = ["grpc.bytes*"], ["grpc.proto*"]


def servers():
    rows = []
    for count in (1, 2):
        what = f"100 MB pushed and pulled, 1 server, {count} worker{'s' if count > 1 else ''}"
        rows += server_rows(what, f"100 MB, {count}w 1s", [
            ("tcp", "raw C over TCP", ["raw.tcp"], "<=", 1.15, False),
            ("tcp", "gRPC byte buffers", PS_GRPC, ">=", 2, True),
            ("tcp", "dmlc ps-lite", ["ps-lite"], ">=", 1.6, True),
            ("tcp", "gRPC protobuf", PS_PROTO, ">=", 6, True),
            ("shm", "raw C over shm, with copies", ["raw.shm"], "<=", 1.0, False)])
    rows += server_rows("100 MB pushed and pulled, 1 server, 1 worker", "100 MB, 1w 1s", [
        ("shm", "raw C over shm, in place too", ["raw.inplace"], "", None, False)])
    rows += server_rows("a small model (0.94 MB) pushed and pulled, 1 server, 1 worker",
                        "MLP 784-256-128-10, 1w 1s", [
                            ("tcp", "raw C over TCP", ["raw.tcp"], "<=", 1.25, False),
                            ("tcp", "gRPC byte buffers", PS_GRPC, ">=", 1, True),
                            ("shm", "raw C over shm, with copies", ["raw.shm"], "<=", 1.0, False)])
    return rows + many_tensors()


def many_tensors():
    """Goals of a step that moves the 161 tensors of ResNet-50's parameters."""
    common = ("161 tensors", "gb_per_s")
    rows = []
    for wait in ("poll", "sleep"):
        ours = f"tern.tcp.{wait}"
        more = {"smaller": False, "group": "parameter server", "unit": "GB/s"}
        what = f"tcp, ResNet-50's 161 tensors, {POLLS[wait]}, rate"
        rows += [Goal(f"{what} against one of the same bytes", "many", ours, *common,
                      "Tern's own one tensor", [ours], ">=", 0.8, peer_point="1 tensor", **more),
                 Goal(what, "many", ours, *common, RAW[wait], [f"raw.tcp.{wait}"], "", **more),
                 Goal(what, "many", ours, *common, GRPC[wait], [GRPC_BYTES.format(wait)], "", **more)]
    return rows


def server_rows(what, point, peers):
    return [Goal(f"{fabric}, {what}{', times as fast' if invert else ''}", "ps", f"tern.{fabric}",
                 point, "ms_per_round", against, keys, sense, limit, invert=invert,
                 group="parameter server", unit="ms")
            for fabric, against, keys, sense, limit, invert in peers]


def training():
    """A model in PyTorch that is trained with Tern's server. PyTorch alone has no goal: it does less work."""
    rows = []
    for title in TRAINED:
        limit = 1.5 if title == WIDE else 1.0
        for fabric, ddp in (("tcp", "torch.ddp"), ("shm", "torch.ddp.shm")):
            common = {"smaller": False, "group": "training", "unit": "/s"}
            ours = ("train", f"tern.{fabric}")
            one, two = (f"{title}, {workers}w" for workers in (1, 2))
            what = f"{fabric}, {title} in PyTorch"
            rows += [Goal(f"{what}, 2 workers, rate", *ours, two, "samples_per_s", "DDP over gloo, 2 workers",
                          [ddp], ">=", limit, **common),
                     Goal(f"{what}, 1 worker and a server, rate", *ours, one, "samples_per_s",
                          "PyTorch alone, one process", ["torch.alone"], **common),
                     Goal(f"{what}, 2 workers and a server, rate", *ours, two, "samples_per_s",
                          "PyTorch alone, one process", ["torch.alone"], peer_point=one, **common),
                     Goal(f"{what}, 2 workers, rate (the peer is asynchronous)", *ours, two, "samples_per_s",
                          "TensorFlow's ParameterServerStrategy, 2 workers", ["tensorflow"], **common)]
    return rows


def allreduces():
    """Tern's backend of PyTorch beside gloo."""
    rows = []
    for fabric, gloo in (("tcp", "torch.gloo"), ("shm", "torch.gloo.shm")):
        what, ours = f"{fabric}, all-reduce in PyTorch", {"question": "allreduce", "group": "collectives"}
        rows += [lat(f"{what}, 4 KiB", f"tern.{fabric}", 4 * K, "gloo", [gloo], "<=", 0.3, **ours),
                 lat(f"{what}, 64 MiB, times as fast", f"tern.{fabric}", 64 * M, "gloo", [gloo], ">=", 1.5, invert=True,
                     **ours),
                 Goal(f"{fabric}, {WIDE} in PyTorch, 2 workers, DDP over Tern", "train", f"tern.ddp.{fabric}",
                      f"{WIDE}, 2w", "samples_per_s", "DDP over gloo, 2 workers",
                      ["torch.ddp" if fabric == "tcp" else "torch.ddp.shm"], ">=", 1.3, smaller=False, unit="/s",
                      group="collectives")]
    return rows


def one_sided():
    """NIXL over Tern beside NIXL over UCX and beside Mooncake."""
    rows = []
    for op in ("write", "read"):
        for text in ("64 B", "4 KiB", "64 KiB", "1 MiB", "16 MiB"):
            at = {"question": "transfers", "group": "one-sided"}
            where = f"{op}, {text}"
            rows += [lat(f"shm, NIXL, {where}", "tern.shm", where, "NIXL over UCX", ["nixl.ucx.shm"], "<=", 1.0, **at),
                     lat(f"tcp, NIXL, {where}, times as fast", "tern.tcp", where, "NIXL over UCX", ["nixl.ucx.tcp"], ">=", 2,
                         invert=True, **at),
                     lat(f"tcp, NIXL, {where}, times as fast", "tern.tcp", where, "Mooncake", ["mooncake.tcp"], ">=", 2,
                         invert=True, **at)]
    for fabric in ("tcp", "shm"):
        for text in ("64 B", "4 KiB"):
            rows.append(lat(f"{fabric}, put, {text}", f"tern.window.{fabric}", f"put, {text}", "a send",
                            [f"tern.window.{fabric}"], "<=", 1.1, peer_point=f"send, {text}", question="windows",
                            group="one-sided"))
    return rows


def nccl():
    """Tern's plug-in beside NCCL's own sockets. No goal over shared memory, where NCCL has a transport of its own."""
    rows = []
    for fabric, time, rate in (("tcp", "<=", ">="), ("shm", "", "")):
        ours, limit = f"tern.{fabric}", 1.0 if time else None
        what, against, peers = f"{fabric}, NCCL", "NCCL's sockets", ["nccl.socket*"]
        rows += [lat(f"{what}, 8 B, both polling, round trip", ours, 8, against, peers, time, limit, question="nccl",
                     group="plug-ins"),
                 Goal(f"{what}, 4 MiB, 8 in flight, both polling, rate", "nccl", ours, f"{4 * M}x8", "gb_per_s",
                      against, peers, rate, limit, smaller=False, group="plug-ins", unit="GB/s")]
    return rows


def snapshots():
    """What snapshots cost while a job trains."""
    rows, delay = [], "by how many median steps the longest step is longer"
    for key, model in (("small", "1 MB"), ("large", "100 MB"), ("via", "100 MB on two servers, --snapshots-via")):
        ours, alone = ("snapshots", f"tern.{key}"), ("the number", [])
        # The goal is one copy of the server's share. The thread that writes needs memory besides: up to a hundredth of
        # the large model, and as much as the parameters of the small one. So do the pieces of other servers' parts.
        copies = ("<=", 1.01) if key == "large" else ("", None)
        rows += [Goal(f"snapshots, {model}, rate", *ours, "with", "steps_per_s", "the same without", [f"tern.{key}"],
                      ">=", 0.9, peer_point="without", smaller=False, unit="/s", group="survival"),
                 Goal(f"snapshots, {model}, {delay}", *ours, "with", "delay_steps", *alone, "<=", 1, group="survival"),
                 Goal(f"without snapshots, {model}, {delay}", *ours, "without", "delay_steps", *alone,
                      group="survival"),
                 Goal(f"snapshots, {model}, copies of its share that a server has more", *ours, "with", "extra_copies",
                      *alone, *copies, group="survival")]
    return rows


def recovery():
    """How long a job takes to go on after kill -9, without the time until the loss is known and without reading."""
    models = {"1 MB": "1 MB, 3 ms of computing", "100 MB": "100 MB, 50 ms of computing"}
    return [Goal(f"kill -9 of {what}, {model}, until a new step, without {known}", "recovery", f"tern.{who}",
                 models[model], "beyond_s", "the number", [], "<=" if limit else "", limit, unit="s", group="survival")
            for who, what, known, model, limit in (
                ("worker", "a worker of two", "detection", "1 MB", 0.5),
                ("server", "a server of two, by hand", "detection and reading", "1 MB", 2),
                ("server", "a server of two, by hand", "detection and reading", "100 MB", 2),
                ("train-server", "a server of two, tern train", "detection and reading", "1 MB", 2),
                ("train-server", "a server of two, tern train", "detection and reading", "100 MB", 2),
                ("followed-server", "a server of two with a follower, tern train", "detection", "1 MB", 2),
                ("followed-server", "a server of two with a follower, tern train", "detection", "100 MB", 2),
                ("last-worker", "the only worker, tern train", "detection and reading", "1 MB", None))]


GOALS = [*tcp_small(), *tcp_large(), *shm(), *verbs(), *costs(), *tails(), *calibration(), *servers(), *training(),
         *allreduces(), *one_sided(), *nccl(), *snapshots(), *recovery()]


# ---- figures from the results ----

def values(results, question, key, point, metric):
    q = results["questions"].get(question, {})
    return q.get("contenders", {}).get(key, {}).get("points", {}).get(point, {}).get(metric)


def neighbours(question, ours, peer, point, metric):
    """(Tern's values, the peer's) of one question, (None, None) if one of them has none. Tern's are
    those of its runs next to the peer's, if that is known."""
    contenders = question["contenders"]
    theirs = contenders[peer]["points"].get(point, {}).get(metric)
    beside = contenders[peer].get("beside", {}).get(ours, contenders[ours]["points"])
    found = beside.get(point, {}).get(metric)
    return (found, theirs) if found and theirs else (None, None)


@dataclass
class Row:
    goal: Goal
    ours: float = None
    theirs: float = None
    peer: str = ""  # key of the peer against which Tern's ratio is worst
    ratio: figures.Interval = None  # or the interval of Tern's figure, if there is no peer
    verdict: str = ""  # "met", "missed", "undecided"; "": there is no goal, or no figure
    why: str = ""  # why there is no figure
    without: list = field(default_factory=list)  # patterns of peers that have no figure


def worst(goal, pairs):
    """(key of the peer against which Tern does worst, the Interval of that ratio). pairs: {key of a
    peer: (Tern's values, the peer's)}."""
    ratios = {key: figures.ratio(*(pair[::-1] if goal.invert else pair))
              for key, pair in pairs.items()}
    ratios = {key: found for key, found in ratios.items() if found}
    if not ratios:
        return "", None
    key = (max if goal.less_is_better else min)(ratios, key=lambda k: ratios[k].value)
    return key, ratios[key]


def against_peers(goal, results, ours):
    question = goal.peer_question or goal.question
    contenders = results["questions"].get(question, {}).get("contenders", {})
    pairs = {}
    for key in filter(goal.is_against, contenders):
        if goal.peer_point or goal.peer_question:
            pair = ours, values(results, question, key, goal.peer_point or goal.point, goal.metric)
        else:
            pair = neighbours(results["questions"][question], goal.ours, key, goal.point,
                              goal.metric)
        if all(pair):
            pairs[key] = pair
    row = Row(goal, figures.figure(ours).mean)
    row.without = [pattern for pattern in goal.peers
                   if not any(fnmatchcase(key, pattern) for key in pairs)]
    row.peer, row.ratio = worst(goal, pairs)
    if row.ratio:
        row.ours, row.theirs = (figures.figure(side).mean for side in pairs[row.peer])
    else:
        row.why = "the peer's figure is 0" if pairs else "the peer is missing"
    return row


def compute(goal, results):
    ours = values(results, goal.question, goal.ours, goal.point, goal.metric)
    if not ours:
        return Row(goal, why="not measured")
    if goal.peers:
        row = against_peers(goal, results, ours)
    else:
        row = Row(goal)
        row.ratio = figures.interval(ours) if not goal.over else figures.ratio(
            ours, values(results, goal.question, goal.ours, goal.point, goal.over))
        row.ours = row.ratio.value
    if row.ratio and goal.sense:
        row.verdict = figures.judge(row.ratio, goal.sense, goal.limit)
    return row


def registrations(results):
    """The most memory registrations after the warm-up that any run of `tern bench` counted."""
    most, seen = 0, False
    for q in results["questions"].values():
        for entry in q["contenders"].values():
            for metrics in entry["points"].values() if entry["ours"] else ():
                for count in figures.present(metrics.get("registrations", [])):
                    most, seen = max(most, count), True
    goal = Goal("memory registrations after warm-up, in any run of `tern bench` over tcp or shm "
                "(of one over verbs any is a failure)", "all", "tern", "", "", "the number", [], "<=", 0)
    if not seen:
        return Row(goal, why="not measured")
    return Row(goal, most, None, "", figures.Interval(most, most, most),
               "missed" if most else "met")


def rows(results):
    found = [compute(goal, results) for goal in GOALS]
    return [r for r in found if r.goal.group == "transport"] + [registrations(results)] + [
        r for r in found if r.goal.group != "transport"]


def counted(found):
    """{opponent: {verdict: number of rows}} of the rows that have a goal."""
    counts = {name: {"met": 0, "missed": 0, "undecided": 0, "not measured": 0}
              for name in OPPONENTS}
    for row in found:
        if row.goal.sense:
            counts[row.goal.opponent][row.verdict or "not measured"] += 1
    return counts
