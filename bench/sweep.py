#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures peers with one setting changed at a time, and writes a table of what each brings.

contenders.py gives a peer the settings that it is fastest with; this program has all settings that
were tried, also those that change nothing. `./run bench` must have built the peers. Right before or
after each run with a setting there is one without it, and the ratio of these two is taken, because
a sweep takes long and a machine changes its speed meanwhile.

usage: sweep.py [--rounds N] [--out DIRECTORY] [NAME ...]
"""
import argparse
import datetime
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import contenders as who
import figures
import install
import machine
import report
import measure

K, M = 1 << 10, 1 << 20
COMMITTED = install.TOP / "docs/benchmarks"


@dataclass
class Setting:
    title: str
    environment: dict = field(default_factory=dict)
    without: tuple = ()  # environment variables of the peer that are left out


@dataclass
class Column:
    key: str  # key of a peer in contenders.py
    size: int
    rounds: int  # number of messages
    test: str = "lat"
    inflight: int = 1

    @property
    def title(self):
        way = f"{figures.size_text(self.size)} x {self.inflight}"
        return f"{self.key}, {way}, {'us' if self.test == 'lat' else 'GB/s'}"


@dataclass
class Sweep:
    about: str
    columns: list
    settings: list  # the first one is what the others are compared with


# ---- what is tried ----

def grpc_arguments(text):
    """The environment with `text` added to the channel arguments that grpc_codec.hh sets by default."""
    return {"TERN_BENCH_GRPC": f"grpc.enable_retries=0,grpc.minimal_stack=1,{text}".rstrip(",")}


def grpc():
    tcp = "grpc.experimental.tcp_"
    arguments = [
        ("frames of 1 MiB", f"grpc.http2.max_frame_size={M}"),
        ("frames of 16 MiB", "grpc.http2.max_frame_size=16777215"),
        ("stream windows of 4 MiB", f"grpc.http2.lookahead_bytes={4 * M}"),
        ("stream windows of 64 MiB", f"grpc.http2.lookahead_bytes={64 * M}"),
        ("no BDP probe", "grpc.http2.bdp_probe=0"),
        ("no BDP probe, windows of 64 MiB",
         f"grpc.http2.bdp_probe=0,grpc.http2.lookahead_bytes={64 * M}"),
        ("write buffer of 1 MiB", f"grpc.http2.write_buffer_size={M}"),
        ("write buffer of 8 MiB", f"grpc.http2.write_buffer_size={8 * M}"),
        ("reads of 256 KiB", f"{tcp}read_chunk_size={256 * K},{tcp}min_read_chunk_size={256 * K}"),
        ("reads of 4 MiB", f"{tcp}read_chunk_size={4 * M},{tcp}max_read_chunk_size={16 * M},"
         f"{tcp}min_read_chunk_size={4 * M}"),
        ("zero-copy sends", f"{tcp}tx_zerocopy_enabled=1"),
        ("optimised for throughput", "grpc.optimization_target=throughput")]
    experiments = ("tcp_frame_size_tuning", "tcp_read_chunks", "tcp_rcv_lowat",
                   "peer_state_based_framing", "flow_control_fixes")
    return Sweep(
        "gRPC's channel arguments, its experiments (GRPC_EXPERIMENTS), its way to poll and its "
        "memory. Its callback API is a contender of the report. Not tried: several threads at an "
        "end, since each end has one core.",
        [Column("grpc.bytes-unary.malloc.sleep", 64, 1000),
         Column("grpc.bytes-stream.malloc.sleep", 64, 1000),
         Column("grpc.bytes-stream.malloc.sleep", M, 100),
         Column("grpc.bytes-unary.malloc.sleep", 64 * M, 8),
         Column("grpc.bytes-chunks.malloc.sleep", 64 * M, 8),
         Column("grpc.bytes-chunks.malloc.sleep", 16 * M, 16, "bw", 16)],
        [Setting("as measured: no retries, minimal stack, malloc keeps its memory"),
         Setting("gRPC's defaults", {"TERN_BENCH_GRPC": ""}),
         *(Setting(title, grpc_arguments(text)) for title, text in arguments),
         *(Setting(f"experiment {name}", {"GRPC_EXPERIMENTS": name}) for name in experiments),
         Setting("all these experiments", {"GRPC_EXPERIMENTS": ",".join(experiments)}),
         Setting("poll() instead of epoll", {"GRPC_POLL_STRATEGY": "poll"}),
         *(Setting(f"chunks of {figures.size_text(size)}", {"TERN_BENCH_GRPC_CHUNK": str(size)})
           for size in (64 * K, 256 * K, 4 * M)),
         Setting("malloc as it comes", without=("GLIBC_TUNABLES",))])


def columns(keys, *points):
    return [Column(key, *point) for point in points for key in keys]


def ucx():
    default = {"UCX_TCP_TX_SEG_SIZE": "8K", "UCX_TCP_RX_SEG_SIZE": "64K"}
    tcp = [("TX segments of 64 KiB, as RX", {"UCX_TCP_TX_SEG_SIZE": "64K"}),
           ("TX and RX segments of 128 KiB",
            {"UCX_TCP_TX_SEG_SIZE": "128K", "UCX_TCP_RX_SEG_SIZE": "128K"}),
           ("TX and RX segments of 512 KiB",
            {"UCX_TCP_TX_SEG_SIZE": "512K", "UCX_TCP_RX_SEG_SIZE": "512K"}),
           ("no put", {"UCX_TCP_PUT_ENABLE": "n"}),
           ("rendezvous as UCX chooses", {"UCX_RNDV_THRESH": "auto"}),
           ("rendezvous from 64 KiB", {"UCX_RNDV_THRESH": "64K"}),
           ("rendezvous from 2 MiB", {"UCX_RNDV_THRESH": "2M"}),
           ("no rendezvous", {"UCX_RNDV_THRESH": "inf"}),
           ("rendezvous by active messages", {"UCX_RNDV_SCHEME": "am"}),
           ("zero-copy from 16 KiB", {"UCX_ZCOPY_THRESH": "16K"}),
           ("buffers of 4 MiB", {"UCX_TCP_SNDBUF": "4M", "UCX_TCP_RCVBUF": "4M"})]
    keys = ("ucx.tcp.poll", "ucx-release.tcp.poll")
    return Sweep("Over tcp, Debian's build and the release build. The report takes segments of 128 "
                 "KiB.",
                 columns(keys, (64, 2000), (64 * K, 1000), (M, 100), (64 * M, 8)),
                 [Setting("rendezvous from 256 KiB, UCX's segments (TX 8 KiB, RX 64 KiB)", default),
                  *(Setting(title, {**default, **change}) for title, change in tcp),
                  Setting("malloc as it comes", default, without=("GLIBC_TUNABLES",))])


def ucx_shm():
    shm = [("segments of 64 KiB", {"UCX_POSIX_SEG_SIZE": "64K"}),
           ("segments of 256 KiB", {"UCX_POSIX_SEG_SIZE": "256K"}),
           ("a queue of 256", {"UCX_POSIX_FIFO_SIZE": "256"}),
           ("huge pages in the queue", {"UCX_POSIX_FIFO_HUGETLB": "y"}),
           ("rendezvous from 64 KiB", {"UCX_RNDV_THRESH": "64K"}),
           ("no rendezvous", {"UCX_RNDV_THRESH": "inf"}),
           ("fragments of 4 MiB", {"UCX_RNDV_FRAG_SIZE": "host:4M"})]
    keys = ("ucx-release.posix.poll", "ucx-release.cma.poll")
    return Sweep("Through shared memory, the release build. Not tried: tensors in memory of "
                 "ucp_mem_map, which the receiver reads by ucp_rkey_ptr: that is another program "
                 "than one that sends from its own memory, as all do here.",
                 columns(keys, (64, 5000), (64 * K, 2000), (M, 200), (64 * M, 8)),
                 [Setting("as measured: UCX's defaults"), *(Setting(*setting) for setting in shm)])


def openmpi():
    def mca(**values):
        return {f"OMPI_MCA_{name}": str(value) for name, value in values.items()}
    keys = ("mpi.tcp.poll", "mpi.vader.poll")
    return Sweep("OpenMPI over tcp and shared memory (vader).",
                 columns(keys, (64 * K, 1000), (M, 200), (64 * M, 8)),
                 [Setting("as measured: 128 KiB without asking over tcp"),
                  Setting("tcp: fragments of 1 MiB", mca(btl_tcp_max_send_size=M,
                                                         btl_tcp_rdma_pipeline_send_length=M)),
                  Setting("tcp: socket buffers of 4 MiB", mca(btl_tcp_sndbuf=4 * M,
                                                              btl_tcp_rcvbuf=4 * M)),
                  Setting("vader: no single copy", mca(btl_vader_single_copy_mechanism="none")),
                  Setting("vader: 32 KiB without asking", mca(btl_vader_eager_limit=32 * K)),
                  Setting("vader: fragments of 128 KiB", mca(btl_vader_max_send_size=128 * K))])


SWEEPS = {"grpc": grpc, "ucx": ucx, "ucx-shm": ucx_shm, "openmpi": openmpi}


# ---- measuring ----

def contender(setting, column):
    peers = {peer.key: peer for peer in (*who.tcp_peers(), *who.shm_peers())}
    found = who.Maker("", {}).peer(peers[column.key], column.test, [(column.size, column.rounds)],
                                   column.inflight)
    kept = {name: value for name, value in found.environment.items() if name not in setting.without}
    found.environment = {**kept, **setting.environment}
    return found


def value_of(setting, column):
    """One run's figure of a column with a setting; None if the run fails."""
    one = contender(setting, column)
    try:
        if one.missing:
            raise measure.Failed(one.missing)
        line, = measure.run_once(one).values()
    except measure.Failed as why:
        print(f"  FAILED: {setting.title}: {column.key}: {why}", file=sys.stderr)
        return None
    return line["p50_us" if column.test == "lat" else "gb_per_s"]


def measured(sweep, rounds):
    """{(number of the setting, from 1, number of the column, from 0): (values with the setting, values
    with setting 0 measured beside them)}."""
    found = {}
    for number in range(rounds):
        for s, setting in enumerate(sweep.settings[1:], 1):
            for c, column in enumerate(sweep.columns):
                pair = [setting, sweep.settings[0]]
                values = [value_of(one, column) for one in (pair, pair[::-1])[number % 2]]
                kept = found.setdefault((s, c), ([], []))
                for place, value in zip(kept, (values, values[::-1])[number % 2]):
                    place.append(value)
        print(f"  round {number + 1} of {rounds}", file=sys.stderr)
    return found


# ---- the table ----

def cell(values, base, column):
    """A cell of the table: how many times as long it took as with the first setting, with the
    interval."""
    if None in values or None in base:
        return "fails"
    ratio = figures.ratio(values, base) if column.test == "lat" else figures.ratio(base, values)
    return report.interval_text(ratio)


def base_cell(found, c):
    """A cell of the table: the geometric mean of all values with the first setting."""
    values = [value for (_, column), (_, base) in found.items() if column == c for value in base]
    return "fails" if None in values else figures.number_text(figures.figure(values).mean)


def table(sweep, found):
    columns = range(len(sweep.columns))
    lines = ["| setting | " + " | ".join(column.title for column in sweep.columns) + " |",
             "|---|" + "---|" * len(sweep.columns),
             f"| {sweep.settings[0].title} | " + " | ".join(base_cell(found, c) for c in columns)
             + " |"]
    for s, setting in enumerate(sweep.settings[1:], 1):
        cells = [cell(*found[s, c], sweep.columns[c]) for c in columns]
        lines.append(f"| {setting.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(name, sweep, found, rounds, loads):
    here = machine.describe()
    kept = ("processor", "cores", "kernel", "tern")
    return "\n".join([
        f"# Settings of {name} that were tried", "",
        f"Written by bench/sweep.py on {datetime.date.today()}; rounds: {rounds}. {sweep.about}",
        "",
        "The first row has geometric means. The others say how many times as long it took with one "
        "setting changed, beside a run without the change; below 1 the setting is faster. "
        f"{figures.INTERVALS} If it contains 1, no difference was found. The load in the last line "
        "tells whether other programs ran meanwhile.", "",
        table(sweep, found), "",
        "; ".join(f"{what}: {here[what]}" for what in kept)
        + "; " + "; ".join(f"{what}: {text}" for what, text in here.items() if "build of" in what)
        + f"; load before and after: {loads[0]:.1f}, {loads[1]:.1f}.", ""])


def main():
    parser = argparse.ArgumentParser(prog="sweep.py", description="Settings of peers, one by one")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(SWEEPS)}")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--out", type=Path, default=COMMITTED, help="default: docs/benchmarks")
    options = parser.parse_args()
    unknown = set(options.names) - set(SWEEPS)
    if unknown or options.rounds < 1:
        parser.error(f"no such sweep: {', '.join(sorted(unknown))}" if unknown
                     else "--rounds must be at least 1")
    for name in options.names or SWEEPS:
        print(f"{name}:", file=sys.stderr)
        sweep, before = SWEEPS[name](), os.getloadavg()[0]
        found = measured(sweep, options.rounds)
        text = page(name, sweep, found, options.rounds, (before, os.getloadavg()[0]))
        (options.out / f"{name}-settings.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
