# SPDX-License-Identifier: Apache-2.0
"""The question `nccl`: Tern's network plug-in for NCCL beside NCCL's own socket transport, which peers/nccl_net.c calls
in the same way. NCCL exports neither the table of its sockets nor a function that they need, so nm finds both in the
symbol table of PyPI's library.
"""
import functools
import platform
import subprocess

import contenders as who
import install
from figures import rounds_of
from measure import Contender, Question, json_lines

K, M = 1 << 10, 1 << 20
LARGE, INFLIGHT = 4 * M, 8
TABLE_BYTES = 176  # of version 11 of NCCL's interface, which version 2.28 has
TABLE, GET_DEVICE = "ncclNetSocket", "cudaGetDevice"
THREADS = "NCCL_SOCKET_NTHREADS"
METRICS = [("p50_us", "us", "smaller"), ("p99_us", "us", "smaller"), ("gb_per_s", "GB/s", "larger"),
           ("cpu_s_per_gb", "s/GB", "smaller")]
ABOUT = ("Two processes of one host call a network transport of NCCL as NCCL's proxy thread does, without NCCL's "
         "communicators, which need a GPU: memory of the host is registered once, requests are posted in advance, "
         "and both ends ask again and again whether the oldest request of each connection has ended, and give the "
         "processor up (sched_yield) when none has. Times: N bytes go out, and 8 bytes come back on a second "
         "connection, one message under way. GB/s: a stream of messages of 4 MiB, 8 under way, of which only the "
         "last one is answered. By default NCCL's sockets have one TCP connection here and no threads; the other "
         "rows have threads that move large messages (NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD), of which NCCL's "
         "documents name 4 with 4 connections each for networks of 100 Gb/s. Sockets with threads are not pinned, "
         "since the threads would share a core with the one that asks. With auto, Tern's plug-in takes shared memory "
         "on one host, where NCCL itself would use no network transport. NCCL gives a network up to 512 KiB at a time "
         "(its buffer of 4 MiB has 8 steps), and uses two or more connections: messages of 4 MiB on one connection "
         "compare the transports, and are not what NCCL does. Processor time is that of both processes "
         "with all their threads.")
# (key, title, environment). Which number of threads is the best one depends on the number of cores.
SOCKETS = [("nccl.socket", "NCCL's sockets", {}),
           *((f"nccl.socket.{n}x{n}", f"NCCL's sockets, {n} threads with {n} connections each",
              {THREADS: str(n), "NCCL_NSOCKS_PERTHREAD": str(n)}) for n in (2, 4))]


def library():
    return install.NCCL.site() / "nvidia/nccl/lib/libnccl.so.2"


def places(symbols):
    """The addresses of the table of NCCL's sockets and of its cudaGetDevice(), as nccl_net.c takes them, from the
    output of `nm -S`; "" if they are not there, or if the table has another size."""
    found = {words[3]: words for words in map(str.split, symbols.splitlines())
             if len(words) == 4 and words[3] in (TABLE, GET_DEVICE)}
    if len(found) < 2 or int(found[TABLE][1], 16) != TABLE_BYTES:
        return ""
    return ",".join(found[name][0] for name in (TABLE, GET_DEVICE))


@functools.cache
def sockets_of(path):
    """(the addresses of places(), "") of this library, or ("", why they are not known)."""
    if platform.machine() != "x86_64":
        return "", "NCCL's sockets can be called without a GPU on x86-64 only"
    try:
        symbols = subprocess.run(["nm", "-S", str(path)], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return "", f"nm cannot read {path.name}: {error}"
    found = places(symbols)
    return found, "" if found else f"{path.name} has no table {TABLE} of {TABLE_BYTES} bytes, or no {GET_DEVICE}"


def plugin(plan):
    return plan.make.tern_program.parent / "plugins/nccl/libnccl-net-tern.so"


def transports(plan, program):
    """[(key, title, fabric, [library, place of the table], environment, why it is missing)]"""
    unbuilt = plan.make.why_missing("gcc", program)
    ours = unbuilt or ("" if plugin(plan).exists() else "the plug-in for NCCL was not built")
    theirs, where = unbuilt or plan.make.missing.get("nccl", ""), ""
    if not theirs:
        where, theirs = sockets_of(library())
    lo = {"NCCL_SOCKET_IFNAME": "lo", "TERN_NET_IFNAME": "=lo", **who.KEEP_MEMORY}
    found = [(f"tern.{fabric}", title, fabric, [str(plugin(plan)), "exported"], {**lo, "TERN_FABRICS": value}, ours)
             for fabric, title, value in (("tcp", "NCCL over Tern, tcp", "tcp"),
                                          ("shm", "NCCL over Tern, auto: shared memory", "auto"))]
    return found + [(key, title, "tcp", [str(library()), where], {**lo, **who.cubic(), **more}, theirs)
                    for key, title, more in SOCKETS]


def times_only(out):
    """The lines of round trips without their rate, which is not that of a stream."""
    return [{name: value for name, value in line.items() if name != "gb_per_s"} for line in json_lines(out)]


def nccl(plan):
    program = install.PEERS / "nccl_net"
    sizes = plan.sizes([8, 4 * K, 64 * K, M, LARGE], [8, LARGE])
    points = [(size, rounds_of(size, plan.sizes(4000, 1000), least=8, bytes_in_all=256 * M)) for size in sizes]
    stream = [(LARGE, plan.sizes(500, 100))]
    found = []
    for words, parse, point in (
            (["--test", "lat", *who.windows(points)], times_only, None),
            (["--test", "rate", "--inflight", str(INFLIGHT), *who.windows(stream)], None,
             lambda line: f"{line['size']}x{line['inflight']}")):
        for key, title, fabric, table, environment, missing in transports(plan, program):
            pin = "no" if THREADS in environment else "yes"
            found.append(Contender(key, title, [str(program), *table, *words, "--wait", "poll", "--pin", pin],
                                   environment, "poll", fabric, missing, parse=parse, point=point,
                                   ours=key.startswith("tern.")))
    return Question("nccl", "NCCL's network transports", ABOUT, found, METRICS, axis="bytes of a message")
