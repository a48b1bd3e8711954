# SPDX-License-Identifier: Apache-2.0
"""Who is measured: Tern and the peers, as commands.

All programs of bench/pair.h print what `tern bench --json` prints, so a question needs to name
only the programs and the sizes. A program that uses TCP, and has no option for the congestion
control, gets cubic from a preloaded socket() (peers/cubic.c).
"""
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import grpc_release
import install
from measure import Contender, json_lines

MPIRUN = ["mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "none", "--oversubscribe",
          "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "0"]
# By default malloc gives memory back to the system after each large message, gets it again, page by
# page, for the next one, and has small pages. Tern keeps its memory, in huge pages. These settings
# let the libraries do the same.
KEEP_MEMORY = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in (
    ("mmap_max", 0), ("trim_threshold", 1 << 40), ("top_pad", 64 << 20), ("hugetlb", 1)))}


@dataclass
class Peer:
    """A program of bench/peers in one of its variants."""
    key: str
    title: str
    program: str
    package: str  # what is to be installed for it to be built
    fabric: str
    wait: str
    variant: str = ""
    launcher: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    tests: tuple = ("lat", "bw", "rate")
    slow: bool = False  # large tensors take seconds
    program_wait: str = ""  # what the program is told, if that is not `wait`
    # Only a full run measures this one, since another way of the same peer was as fast in every size
    # (the reports of 2026-11-25, see the history of docs/benchmarks).
    rare: bool = False


def cubic():
    return {"LD_PRELOAD": str(install.PEERS / "cubic.so")}


def tcp_environment():
    return {**cubic(), **KEEP_MEMORY}


# By default UCX, OpenMPI and libfabric send 64 KiB over tcp only after a handshake (rendezvous).
# Sent without it (eagerly), 64 KiB take about half the time. Tensors of 256 KiB and more keep the handshake.
# UCX's segments of 8 KiB make 1 MiB take up to ten times as long with the release build.
UCX_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_RNDV_THRESH": "256K",
           "UCX_TCP_TX_SEG_SIZE": "128K", "UCX_TCP_RX_SEG_SIZE": "128K"}
UCX_SIZES = ("UCX_RNDV_THRESH", "UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE")
MPI_TCP = ["--mca", "btl_tcp_if_include", "lo", "--mca", "btl_tcp_eager_limit", "131072"]
UCX_TITLES = {"tcp": "tcp", "posix": "posix", "cma": "posix and cma"}
LIBFABRIC_TCP = {"FI_OFI_RXM_BUFFER_SIZE": "131072"}  # not for the rate, which it makes far lower


def mpi(btl):
    return [*MPIRUN, "--mca", "btl", f"{btl},self", *(MPI_TCP if btl == "tcp" else [])]


# How gRPC's messages carry a tensor. Serving systems use a `bytes` field of a protobuf.
CODECS = {"bytes": "byte buffers", "proto": "protobuf, repeated float",
          "protobytes": "protobuf, bytes field"}


WAYS = {"unary": "unary", "stream": "stream", "chunks": "stream of 1 MiB chunks"}


def grpc_peer(codec, way, kept, wait="sleep", rare=False):
    """gRPC over TCP with this codec and this way of calls. `kept`: malloc keeps its memory."""
    return Peer(f"grpc.{codec}-{way}{'.malloc' if kept else ''}.{wait}",
                f"gRPC, {CODECS[codec]}, {WAYS[way]}{', malloc keeps its memory' if kept else ''}",
                "grpc_pair", "libgrpc++-dev", "tcp", wait, f"{codec}-{way}",
                environment=tcp_environment() if kept else cubic(), slow=codec != "bytes", rare=rare,
                tests=("lat", "bw", "rate") if way == "stream" else ("lat", "bw"))


def grpc_unix(way, wait):
    """gRPC over a Unix socket, which is what it has for two processes of one host."""
    return Peer(f"grpc.bytes-{way}-unix.malloc.{wait}",
                f"gRPC, byte buffers, {WAYS[way]}, Unix socket, malloc keeps its memory",
                "grpc_pair", "libgrpc++-dev", "shm", wait, f"bytes-{way}-unix",
                environment=KEEP_MEMORY, rare=way == "unary",
                tests=("lat", "bw", "rate") if way == "stream" else ("lat", "bw"))


def grpc_callback(way):
    return Peer(f"grpc.bytes-callback-{way}.malloc.sleep",
                f"gRPC, byte buffers, {WAYS[way]}, callback API, malloc keeps its memory",
                "grpc_callback", "libgrpc++-dev", "tcp", "sleep", f"bytes-{way}",
                environment=tcp_environment(), rare=True,
                tests=("lat", "bw", "rate") if way == "stream" else ("lat", "bw"))


def grpc_peers():
    """Unary calls of byte buffers and of repeated floats that sleep: with malloc as it is, and with
    KEEP_MEMORY. The other variants only with KEEP_MEMORY, as a user who measures would run them."""
    return [grpc_peer("bytes", "unary", False, rare=True),
            *(grpc_peer("bytes", way, True, wait) for way in WAYS for wait in ("sleep", "poll")),
            grpc_callback("stream"), grpc_callback("chunks"),
            grpc_peer("proto", "unary", False, rare=True),
            *(grpc_peer(codec, way, True, wait, rare=codec == "protobytes" or wait == "poll")
              for codec in ("proto", "protobytes") for way in ("unary", "stream")
              for wait in ("sleep", "poll"))]


def ucx_peers(fabric, name, environment, waits=("poll",)):
    """UCX as Debian's build, and as a release build, which the same program finds by
    LD_LIBRARY_PATH."""
    release = {"LD_LIBRARY_PATH": str(install.UCX_RELEASE / "lib")}
    return [peer for wait in waits for peer in (
        Peer(f"ucx.{name}.{wait}", f"UCX, {UCX_TITLES[name]}", "ucx", "libucx-dev", fabric, wait,
             environment=environment),
        Peer(f"ucx-release.{name}.{wait}", f"UCX from PyPI, release build, {UCX_TITLES[name]}",
             "ucx", "libucx-cu12", fabric, wait, environment={**environment, **release}))]


def ucx_as_it_is(peer):
    """The environment of a UCX peer without what makes large messages faster: UCX's buffers and malloc
    are as they are by default."""
    return {name: value for name, value in peer.environment.items()
            if name not in UCX_SIZES and name not in KEEP_MEMORY}


def libfabric_tcp(environment, tests):
    return Peer("libfabric.tcp.poll", "libfabric, tcp", "libfabric", "libfabric-dev", "tcp", "poll",
                "tcp", environment=environment, tests=tests)


# A newer gRPC reads its sockets in threads of its event engine. Where an end has one core, each
# message then costs a change of threads; without them, the thread that asks the queue reads.
NO_ENGINE = {"GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener,"
             "-event_engine_for_all_other_endpoints,-event_engine_callback_cq"}


def grpc_core_peers():
    """gRPC through its C API: the same program with Debian's library, which has assertions, and
    with a release build of a newer one."""
    newer = f"gRPC core {grpc_release.VERSION} (release build)"
    release = ("grpc_core_release", grpc_release.PACKAGE)
    builds = [("core", "gRPC core, byte buffers", ("grpc_core", "libgrpc++-dev"), {}),
              ("release", f"{newer}, byte buffers, no event engine", release, NO_ENGINE),
              ("engine", f"{newer}, byte buffers", release, {})]
    return [Peer(f"grpc.{key}-{way}.{wait}", f"{title}, {way}", *program, "tcp", wait, way,
                 environment={**cubic(), **KEEP_MEMORY, **experiments},
                 rare=key == "engine" or way == "unary",
                 tests=("lat", "bw", "rate") if way == "stream" else ("lat", "bw"))
            for key, title, program, experiments in builds
            for way in ("unary", "stream", "chunks") if way != "chunks" or key == "release"
            for wait in ("poll", "sleep")]


def tcp_peers():
    waits = ("poll", "sleep")
    raw = [Peer(f"raw.tcp.{wait}", "raw TCP", "raw_tcp", "gcc", "tcp", wait, "plain")
           for wait in waits]
    raw += [Peer(f"raw.tcp.batched.{wait}", "raw TCP, several messages with a call", "raw_tcp",
                 "gcc", "tcp", wait, "batched", tests=("rate",)) for wait in waits]
    ucx = ucx_peers("tcp", "tcp", {**tcp_environment(), **UCX_TCP}, waits)
    return [*raw, *grpc_peers(), *grpc_core_peers(), *ucx,
            Peer("mpi.tcp.poll", "OpenMPI, tcp", "mpi", "libopenmpi-dev", "tcp", "poll",
                 launcher=mpi("tcp"), environment=tcp_environment()),
            libfabric_tcp(tcp_environment(), ("rate",)),
            libfabric_tcp({**tcp_environment(), **LIBFABRIC_TCP}, ("lat", "bw")),
            Peer("tensorpipe.uv.sleep", "TensorPipe, uv", "tensorpipe", "libtensorpipe-dev", "tcp",
                 "sleep", "uv", environment=tcp_environment()),
            Peer("zeromq.tcp.sleep", "ZeroMQ", "zeromq", "libzmq3-dev", "tcp", "sleep",
                 environment=tcp_environment())]


def shm_peers():
    return [Peer("limit.shm.memcpy", "limit: one copy, memcpy", "shm_copy", "gcc", "shm", "poll",
                 "memcpy"),
            Peer("limit.shm.around", "limit: one copy, around the cache", "shm_copy", "gcc", "shm",
                 "poll", "around"),
            *ucx_peers("shm", "posix", {**KEEP_MEMORY, "UCX_TLS": "posix"}),
            *ucx_peers("shm", "cma", {**KEEP_MEMORY, "UCX_TLS": "posix,cma"}),
            Peer("mpi.vader.poll", "OpenMPI, vader", "mpi", "libopenmpi-dev", "shm", "poll",
                 launcher=mpi("vader"), environment=KEEP_MEMORY),
            Peer("libfabric.shm.poll", "libfabric, shm", "libfabric", "libfabric-dev", "shm",
                 "poll", "shm", environment=KEEP_MEMORY),
            *(grpc_unix(way, wait) for way in ("unary", "stream") for wait in ("poll", "sleep")),
            # TensorPipe's thread polls the rings; `--wait sleep` is about the user's thread.
            Peer("tensorpipe.shm.poll", "TensorPipe, shm", "tensorpipe", "libtensorpipe-dev",
                 "shm", "poll", "shm", environment=KEEP_MEMORY, program_wait="sleep")]


def calibrated():
    """[(peer, the arguments of own_tool.py that run this library's ping-pong)]"""
    found = []
    for peer in (p for p in [*tcp_peers(), *shm_peers()] if "lat" in p.tests and p.wait == "poll"):
        if peer.program == "ucx" and ".cma." not in peer.key:
            found.append((peer, ["ucx_perftest", install.UCX_PERFTEST[peer.package]]))
        if peer.program == "libfabric" and peer.variant == "tcp":
            found.append((peer, ["fi_pingpong", "tcp;ofi_rxm"]))
    return found


def half_trips(tool):
    """Returns a parser that turns the lines of a program of pair.h into the figure that the tool prints:
    half a round trip."""
    def parse(out):
        return [{"size": line["size"], "version": line["version"],
                 "half_trip_us": (line["p50_us"] if tool == "ucx_perftest" else
                                  1e6 / line["msgs_per_s"]) / 2} for line in json_lines(out)]
    return parse


@dataclass
class PsPeer:
    """A parameter server of bench/peers."""
    key: str
    title: str
    program: str  # a .py runs in `python`
    package: str
    variant: str
    fabric: str
    environment: dict = field(default_factory=dict)
    python: str = ""
    least: int = 1  # fewest workers with which it is measured; `most`: the largest number
    most: int = 32
    # The contender is slow to run or to start, so it is measured only in few rounds, with 100 MB, one server, at most two workers.
    slow: bool = False
    narrow: bool = False  # asked only for 100 MB, one server, one worker
    rare: bool = False  # as in Peer: only a full run measures it


def ps_peers():
    return [PsPeer("raw.tcp", "raw C over TCP", "raw_ps", "gcc", "tcp", "tcp"),
            PsPeer("raw.shm", "raw C over shm, with copies", "raw_ps", "gcc", "shm", "shm"),
            PsPeer("raw.inplace", "raw C over shm, in place", "raw_ps", "gcc", "inplace", "shm",
                   narrow=True),
            PsPeer("grpc.bytes", "gRPC, byte buffers", "grpc_ps", "libgrpc++-dev", "bytes", "tcp",
                   cubic(), narrow=True, rare=True),
            PsPeer("grpc.bytes.malloc", "gRPC, byte buffers, malloc keeps its memory", "grpc_ps",
                   "libgrpc++-dev", "bytes", "tcp", tcp_environment()),
            PsPeer("grpc.bytes-chunks.malloc",
                   "gRPC, byte buffers, stream of 1 MiB chunks, malloc keeps its memory",
                   "grpc_ps_chunks", "libgrpc++-dev", "chunks", "tcp",
                   tcp_environment()),
            PsPeer("grpc.proto", "gRPC, protobuf, repeated float", "grpc_ps", "libgrpc++-dev",
                   "proto", "tcp", cubic(), slow=True, narrow=True, rare=True),
            PsPeer("grpc.proto.malloc",
                   "gRPC, protobuf, repeated float, malloc keeps its memory", "grpc_ps",
                   "libgrpc++-dev", "proto", "tcp", tcp_environment(), slow=True),
            PsPeer("grpc.protobytes.malloc",
                   "gRPC, protobuf, bytes field, malloc keeps its memory", "grpc_ps",
                   "libgrpc++-dev", "protobytes", "tcp", tcp_environment(), slow=True, rare=True),
            PsPeer("torch.rpc", "PyTorch, torch.distributed.rpc", "torch_ps.py", "python3-torch",
                   "rpc", "tcp", tcp_environment(), install.SYSTEM_PYTHON, least=2, most=2,
                   slow=True, rare=True),
            PsPeer("torch.gloo", "PyTorch, gloo all-reduce", "torch_ps.py", "python3-torch",
                   "allreduce", "tcp", tcp_environment(), install.SYSTEM_PYTHON, least=2, most=2,
                   slow=True),
            PsPeer("tensorflow", "TensorFlow, its parameter server", "tensorflow_ps.py",
                   "tensorflow-cpu", "ps", "tcp", tcp_environment(),
                   str(install.VENV / "bin/python"), most=1, slow=True, rare=True)]


class Maker:
    """Makes the contenders of one run. Knows which `tern` is measured, and what is missing."""

    def __init__(self, tern, missing):
        self.tern_program, self.missing = Path(tern), missing

    def why_missing(self, package, program):
        if package in self.missing:
            return f"{package}: {self.missing[package]}"
        if not program.exists():
            return f"{program.name} was not built, although there is {package}"
        return ""

    def tern(self, test, fabric, wait, points, inflight=1, key="", title="", **options):
        """`tern bench`. points: [(size, rounds)]; more options by their names."""
        command = [str(self.tern_program), "bench", test, "--fabric", fabric, "--wait", wait,
                   "--inflight", str(inflight), "--pin", "yes", "--json", *windows(points)]
        for name, value in options.items():
            command += [f"--{name}"] + ([] if value is True else [str(value)])
        return Contender(key or f"tern.{fabric}.{wait}", title or f"Tern, {fabric}", command,
                         wait=wait, fabric=fabric, ours=True)

    def pair(self, peer, test, sizes, inflight, *more):
        """The peer's program of bench/peers. `sizes`: its arguments --size and --rounds."""
        program = install.PEERS / peer.program
        command = [*peer.launcher, str(program), "--test", test, "--wait",
                   peer.program_wait or peer.wait, "--inflight", str(inflight), *sizes]
        if peer.variant:
            command += ["--variant", peer.variant]
        return Contender(peer.key, peer.title, [*command, *more], peer.environment, peer.wait,
                         peer.fabric, self.why_missing(peer.package, program))

    def peer(self, peer, test, points, inflight=1, rewrite=False, offer=0, threads=""):
        more = ["--rewrite"] if rewrite else []
        more += ["--offer", str(offer)] if offer else []
        more += ["--threads", threads] if threads else []
        return self.pair(peer, test, windows(points), inflight, *more)

    def step(self, peer, sizes, steps):
        """The peer's program, with `steps` steps; a step has one tensor of each of these sizes."""
        words = ["--size", ",".join(map(str, sizes)), "--rounds", str(steps)]
        return self.pair(peer, "step", words, len(sizes))

    def tern_step(self, fabric, wait, sizes, steps):
        return ours(self.step(tern_pair(fabric, wait), sizes, steps))

    def calibration(self, peer, tool, size, rounds):
        """Two contenders that run next to each other: the library in its program of bench/peers, and
        the library's own tool."""
        pair = self.peer(peer, "lat", [(size, rounds)])
        pair.key, pair.title = f"pair.{peer.key}", f"{peer.title}, {peer.program}.c"
        pair.fabric, pair.leads, pair.parse = peer.key, True, half_trips(tool[0])
        command = ["python3", str(install.TOP / "bench/own_tool.py"), *tool, str(size), str(rounds)]
        missing = pair.missing or ("" if shutil.which(tool[0]) or Path(tool[-1]).exists() else
                                   f"there is no {tool[0]}")
        return [pair, Contender(f"tool.{peer.key}", f"{peer.title}, {tool[0]}", command,
                                peer.environment, peer.wait, peer.key, missing)]

    def ps_peer(self, peer, size, workers, servers, rounds):
        arguments = ["--bytes", str(size), "--workers", str(workers), "--servers", str(servers),
                     "--rounds", str(rounds), "--variant", peer.variant]
        if peer.python:
            program = install.TOP / "bench/peers" / peer.program
            why = self.missing.get(peer.package, "")
            return Contender(peer.key, peer.title, [peer.python, str(program), *arguments],
                             peer.environment, "sleep", peer.fabric,
                             why and f"{peer.package}: {why}")
        program = install.PEERS / peer.program
        return Contender(peer.key, peer.title, [str(program), *arguments], peer.environment,
                         "sleep", peer.fabric, self.why_missing(peer.package, program))

    def null_data(self):
        """A data set of two records, for the model without arithmetic, which reads no records."""
        path = install.BUILD / "two.svm"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text("1 1:1\n-1 2:1\n")
        return path

    def program(self, name, key, title, arguments, package="gcc", **more):
        """A program of bench/ or bench/peers that is not a pair."""
        program = install.BUILD / name
        return Contender(key, title, [str(program), *map(str, arguments)],
                         missing=self.why_missing(package, program), **more)


def tern_pair(fabric, wait):
    """Tern as a program of bench/pair.h, for what `tern bench` does not measure."""
    return Peer(f"tern.{fabric}.{wait}", f"Tern, {fabric}", "../tern_pair", "gcc", fabric, wait, fabric)


def ours(contender):
    contender.ours = True
    return contender


def windows(points):
    return ["--size", ",".join(str(size) for size, _ in points), "--rounds",
            ",".join(str(rounds) for _, rounds in points)]


def absent(key, title, why):
    return Contender(key, title, missing=why)


NCCL = absent("nccl", "NCCL", "it needs a GPU, and this machine has none")
PS_LITE = absent("ps-lite", "dmlc ps-lite", "there is no package of it")
