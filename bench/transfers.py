# SPDX-License-Identifier: Apache-2.0
"""One-sided transfers between two processes. The question `transfers`: by NIXL over Tern and over UCX, and by Mooncake's
transfer engine. The question `windows`: by Tern itself, beside its messages.
"""
import contenders as who
import install
from figures import rounds_of
from measure import Contender, Question

K, M = 1 << 10, 1 << 20
SIZES = {64: "64 B", 4 * K: "4 KiB", 64 * K: "64 KiB", M: "1 MiB", 16 * M: "16 MiB"}
METRICS = [("p50_us", "us", "smaller"), ("p99_us", "us", "smaller"), ("cpu_s_per_gb", "s/GB", "smaller")]
ABOUT = ("A process of Python writes N bytes into memory of another one on the same host, and reads them, one transfer "
         "after the other; a figure is how long one takes, from the call until the library says that it is over. The end "
         "that asks looks again and again, the other one does nothing: Tern's thread sleeps there, UCX's and Mooncake's "
         "do as they like. Nobody is pinned. NIXL's backends run under the same program of NIXL; Mooncake is called "
         "itself, over tcp, which is what it has without an RDMA device. Processor time is that of both processes.")


def point(op, size):
    return f"{op}, {SIZES[size]}"


def plugin_folder(plan):
    return plan.make.tern_program.parent / "plugins/nixl"


def why_no_plugin(plan):
    """Why NIXL cannot run with Tern's backend; "" if it can."""
    missing = plan.make.missing.get("nixl-cu12", "")
    if not missing and not (plugin_folder(plan) / "libplugin_TERN.so").exists():
        missing = "the plug-in for NIXL was not built, which needs g++"
    return missing


def transfers(plan):
    points = [(size, rounds_of(size, plan.sizes(4000, 400), least=10, bytes_in_all=plan.sizes(2048, 256) * M))
              for size in SIZES]
    words = ["--size", ",".join(str(size) for size, _ in points), "--rounds", ",".join(str(n) for _, n in points)]
    program = [install.NIXL.python(), str(install.TOP / "bench/peers/transfers.py"), *words, "--engine"]
    quiet = {"NIXL_LOG_LEVEL": "ERROR", **who.KEEP_MEMORY}
    tern = {**quiet, "NIXL_PLUGIN_DIR": str(plugin_folder(plan))}

    def contender(key, title, engine, environment, fabric, missing, **more):
        return Contender(key, title, [*program, engine], environment, "poll", fabric, missing,
                         point=lambda line: point(line["op"], line["size"]), **more)

    no_plugin, no_nixl = why_no_plugin(plan), plan.make.missing.get("nixl-cu12", "")
    found = [contender(f"tern.{fabric}", f"NIXL over Tern, {fabric}", "nixl:TERN", {**tern, "TERN_FABRICS": value}, fabric,
                       no_plugin, ours=True) for fabric, value in (("tcp", "tcp"), ("shm", "auto"))]
    found += [contender("nixl.ucx.tcp", "NIXL over UCX, tcp", "nixl:UCX", {**quiet, "UCX_TLS": "tcp"}, "tcp", no_nixl),
              contender("nixl.ucx.shm", "NIXL over UCX, its choice on one host", "nixl:UCX", quiet, "shm", no_nixl),
              contender("mooncake.tcp", "Mooncake's transfer engine, tcp", "mooncake",
                        {"MC_FORCE_TCP": "1", "GLOG_minloglevel": "2", **who.KEEP_MEMORY}, "tcp",
                        plan.make.missing.get("mooncake", ""))]
    return Question("transfers", "One-sided transfers, by NIXL and Mooncake", ABOUT, found, METRICS,
                    axis="direction, bytes")


def windows(plan):
    sizes = [64, 4 * K, 64 * K, M]
    rounds = [rounds_of(size, plan.sizes(40000, 2000), least=10, bytes_in_all=plan.sizes(4096, 256) * M) for size in sizes]
    command = [str(plan.make.tern_program), "bench", "window", "--json", "--size", ",".join(map(str, sizes)),
               "--rounds", ",".join(map(str, rounds)), "--wait", "poll", "--fabric"]
    found = [Contender(f"tern.window.{fabric}", f"Tern's windows, {fabric}", [*command, fabric], {}, "poll", fabric,
                       ours=True, point=lambda line: point(line["op"], line["size"])) for fabric in ("tcp", "shm")]
    return Question("windows", "Puts and gets beside sends",
                    "N bytes are put into a window of another process on the same host, put with a notification behind them, "
                    "got from it, and sent to a receive that is posted; the four take turns. Both ends poll. A put and a get "
                    "take until their request has ended, a put with a notification until the owner's program has it, a send "
                    "until the answer of 8 bytes is here.", found,
                    [("p50_us", "us", "smaller"), ("p99_us", "us", "smaller")], axis="operation, bytes")
