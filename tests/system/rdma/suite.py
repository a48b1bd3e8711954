#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases that need RDMA devices. This runs in the guest (see in_vm.py for the outside).

usage: suite.py quick|full BUILD_DIRECTORY ASAN_BUILD_DIRECTORY LOG [NAME...]

Appends to LOG what it will run and then, as each program ends, a line about it like those of
meson's testlog.json: tap_count.py counts both, and when the guest dies in the middle, what was
done until then is known. Exits with 3 if a program cannot be killed: the kernel is broken then, and
the remaining cases need a machine of their own.
"""
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "harness"))
import tap_count  # noqa: E402

LINKS = ("va", "vb")
# Environment of the test programs: the addresses of the devices, and how many times longer a test
# may take.
DEVICES = {"TERN_RDMA_ADDRESS": "10.7.0.2", "TERN_RDMA_FROM": "10.7.0.1",
           "TERN_TEST_PATIENCE": "5"}
# What netem does to packets in each direction. The queue must hold all packets in flight.
WIRES = {
    "plain": None,
    "loss": "loss 2%",
    "delay": "delay 5ms limit 10000",
}

# name; when: quick cases are run by `./run test`, full ones only when asked for; one of WIRES;
# limit in seconds; the program, where {tests} is the build's tests/ and {asan} another build, with
# sanitizers, beside it; shares: it may run beside its neighbours in the list that share too, since it
# is one thread of its own, and leaves the devices as they are.
Case = namedtuple("Case", "name when wire limit_s command shares", defaults=[False])
AT_ONCE = 2
UNKILLABLE = 3
DEATH_S = 60
FABRIC = "{tests}/transport/conformance_fabric "
RENDEZVOUS = "{tests}/rendezvous/conformance_rendezvous "
STORM = "{tests}/system/storm/storm "
JOBS = f"python3 {shlex.quote(str(HERE / 'jobs.py'))} "
WIRE = f"python3 {shlex.quote(str(HERE / 'wire.py'))} "
HOSTS = f"python3 {shlex.quote(str(HERE.parents[1] / 'bench/bench_hosts.py'))} {{tests}}/../tern {{tests}}/bench/raw_tcp "
CASES = [
    Case("wire-plain", "quick", "plain", 90, WIRE + "plain"),
    Case("wire-loss", "quick", "loss", 90, WIRE + "loss"),
    Case("wire-delay", "quick", "delay", 90, WIRE + "delay"),
    # Whole jobs over the devices.
    Case("jobs", "quick", "plain", 300, JOBS + "{tests}/../tern"),
    # The two hosts' benchmark over devices, and over a wire that delays and loses.
    Case("bench-hosts", "quick", "plain", 600, HOSTS + "devices"),
    Case("bench-hosts-netem", "full", "plain", 600, HOSTS + "netem"),
    # Two halves, which two processors run at once.
    Case("rendezvous-verbs-1", "quick", "plain", 600, RENDEZVOUS + "verbs 1/2", True),
    Case("rendezvous-verbs-2", "quick", "plain", 600, RENDEZVOUS + "verbs 2/2", True),
    Case("fabric-verbs", "quick", "plain", 600, FABRIC + "verbs", True),
    Case("storm-verbs", "quick", "plain", 90, STORM + "verbs 3", True),
    Case("storm-verbs-loss", "quick", "loss", 180, STORM + "verbs 2"),
    Case("storm-verbs-delay", "full", "delay", 300, STORM + "verbs 3 10"),
    Case("fabric-verbs-guard", "full", "plain", 400, FABRIC + "verbs-guard"),
    Case("fabric-verbs-own-queue", "full", "plain", 400, FABRIC + "verbs-own-queue"),
    Case("fabric-verbs-least", "full", "plain", 400, FABRIC + "verbs-least"),
    Case("rendezvous-verbs-guard", "full", "plain", 400, RENDEZVOUS + "verbs-guard"),
    Case("rendezvous-verbs-own-queue", "full", "plain", 400, RENDEZVOUS + "verbs-own-queue"),
    Case("rendezvous-verbs-least", "full", "plain", 400, RENDEZVOUS + "verbs-least"),
    # These look for memory errors and leaks, also in processes whose peers are killed.
    Case("jobs-asan", "full", "plain", 600, JOBS + "{asan}/tern"),
    Case("storm-verbs-asan", "full", "plain", 200, "{asan}/tests/system/storm/storm verbs 3"),
    Case("fabric-verbs-asan", "full", "plain", 900,
         "{asan}/tests/transport/conformance_fabric verbs"),
    # These need no device. They run here, too, since the guest's kernel and its emulated processor give other
    # timings.
    Case("fabric-tcp-epoll", "full", "plain", 300, FABRIC + "tcp-epoll"),
    Case("rendezvous-tcp-epoll", "full", "plain", 300, RENDEZVOUS + "tcp-epoll"),
    Case("storm-tcp-epoll", "full", "plain", 300, STORM + "tcp-epoll 5"),
]


def disturb(wire):
    """Makes the wire as WIRES says, whatever it was before."""
    for link in LINKS:
        # If this fails, there was nothing to remove.
        subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], capture_output=True)
        if WIRES[wire]:
            subprocess.run(["tc", "qdisc", "add", "dev", link, "root", "netem",
                            *WIRES[wire].split()], check=True)


def end_all_of(process):
    """Kills the program and what it has started, so that nothing disturbs the next case. Returns where in the
    kernel the program is if it does not die, else ""."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(DEATH_S)
        return ""
    except subprocess.TimeoutExpired:
        return f"it does not die of SIGKILL; its stack in the kernel:\n{stack_of(process.pid)}"


def stack_of(pid):
    try:
        return Path(f"/proc/{pid}/stack").read_text()
    except OSError as why:
        return str(why)


def run(case, build, asan):
    command = shlex.split(case.command.format(
        tests=shlex.quote(str(build / "tests")),
        asan=shlex.quote(str(asan))))
    start = time.monotonic()
    # Files and not pipes: a pipe does not end as long as a process of the program is left.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        environment = dict(os.environ, **tap_count.ENVIRONMENT, **DEVICES)
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=err, cwd="/tmp", start_new_session=True)
        try:
            status = process.wait(timeout=case.limit_s)
            result = {0: "OK", tap_count.SKIPPED: "SKIP"}.get(status, "FAIL")
        except subprocess.TimeoutExpired:
            status, result = None, "TIMEOUT"
        undead = end_all_of(process)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return {"name": case.name, "result": "TIMEOUT" if undead else result, "returncode": status, "undead": bool(undead),
            "duration": time.monotonic() - start, "stdout": texts[0], "stderr": texts[1] + undead}


def batches(cases):
    """Lists of cases that may run at once."""
    for shares, batch in itertools.groupby(cases, lambda case: case.shares and case.wire):
        yield from [list(batch)] if shares else ([case] for case in batch)


def main():
    when, build, asan, log = sys.argv[1], *map(Path, sys.argv[2:5])
    names = sys.argv[5:]
    unknown = set(names) - {case.name for case in CASES}
    if when not in ("quick", "full") or unknown:
        sys.exit(f"suite.py: {' '.join(unknown) or when}: not one of "
                 + " ".join(["quick", "full"] if not unknown else [c.name for c in CASES]))
    chosen = [c for c in CASES if c.name in names or not names and when in (c.when, "full")]
    good = True
    with open(log, "a") as lines:
        def note(fact):
            print(json.dumps(fact), file=lines, flush=True)

        note({"planned": [case.name for case in chosen]})
        number = 0
        for batch in batches(chosen):
            disturb(batch[0].wire)
            broken = False
            with ThreadPoolExecutor(AT_ONCE) as pool:
                running = [pool.submit(run, case, build, asan) for case in batch]
                for done in map(Future.result, as_completed(running)):
                    number += 1
                    note(done)
                    good = good and done["result"] in ("OK", "SKIP")
                    broken = broken or done["undead"]
                    print(f"rdma: {number:>3}/{len(chosen):<3} {done['name']:<36} "
                          f"{done['result'].lower():<8} {done['duration']:.2f}s", flush=True)
            if broken:
                return UNKILLABLE
            disturb("plain")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
