#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern bench` beside perftest, over the same wire. This runs in the guest (see in_vm.py).

On an emulated machine two programs that poll starve the kernel's packet work now and then, for
milliseconds: averages have two humps, and no figure means much by itself. So every round runs
all contenders, in turn forwards and backwards (A B B A), so that a machine that gets slower is
as slow for each; of a latency the typical value is taken and not the average; and what is
shown is the median over the rounds, with the range. Compare the two sides, not two days.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import perftest

TERN_LIMIT_S = 120
BANDWIDTH_BYTES = 32 << 20  # sent in one run, which takes about a second
LATENCY_ROUNDS = 1000
LARGE_ROUNDS = 300  # each takes some milliseconds


class Question:
    """What is measured: `ours` and each of the peers is a function that gives one value."""

    def __init__(self, name, unit, ours, **peers):
        self.name, self.unit, self.ours, self.peers = name, unit, ours, peers


def tern(options, kind, size, rounds, wait="poll"):
    """Returns the figures of one run. Raises Failed with the last line on stderr, or if memory was
    registered after the warm-up."""
    command = [options.tern, "bench", kind, "--fabric", options.fabric, "--size", str(size),
               "--rounds", str(rounds), "--wait", wait, "--json"]
    if options.fabric == "verbs":  # across the wire, as perftest's
        command += ["--listen", "10.7.0.2:0", "--verbs", "from=10.7.0.1"]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=TERN_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise perftest.Failed(str(error)) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise perftest.Failed(f"{said[-1]} (exit status {done.returncode})")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["registrations"]:
        raise perftest.Failed(f"tern bench {kind}, {size} B: {found['registrations']} memory "
                              "registrations after the warm-up")
    return found


def latency(options, size, wire_bytes, *programs):
    """Asks for half a round trip in us. Tern's answer has 8 bytes, perftest's as many as it sends, so
    only at 8 bytes both do the same. perftest has halved it already."""
    rounds = LATENCY_ROUNDS if size < 4096 else LARGE_ROUNDS

    def ours():
        return tern(options, "lat", size, rounds)["p50_us"] / 2

    def peer(program):
        return lambda: perftest.run(program, wire_bytes, rounds)["typical_us"]

    return Question(f"latency, {size} B", "us", ours, **{p: peer(p) for p in programs})


def bandwidth(options, size, wait):
    """Asks for the bandwidth in 10^6 bytes/s; perftest reports 2^20 bytes/s. In perftest only the
    sender polls, so one of the two processors is left to the kernel, which is the device here. If
    both ends of `tern bench` poll, none is left. So both ways of waiting are shown."""
    count = max(BANDWIDTH_BYTES // size, 16)

    def ours():
        return tern(options, "bw", size, count, wait)["gb_per_s"] * 1e3

    def peer(program):
        return lambda: perftest.run(program, size, count)["average_mib_s"] * 1.048576

    return Question(f"{size >> 10} KiB x 16, {wait}", "MB/s", ours,
                    **{p: peer(p) for p in ("ib_write_bw",)})


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "values": values}


def measure(question, rounds):
    """Returns (summaries by contender's name, why ours is not among them). If a peer fails, all is
    over, since then the machine does not work."""
    contenders = {**question.peers, "tern": question.ours}
    values = {name: [] for name in contenders}
    failure = None
    for number in range(rounds):
        order = list(contenders)
        for name in order if number % 2 == 0 else reversed(order):
            try:
                values[name].append(contenders[name]())
            except perftest.Failed as why:
                if name != "tern":
                    raise
                failure = str(why)
        if failure:  # tern has failed, and would fail again in each round
            contenders.pop("tern", None)
            values.pop("tern", None)
    return {name: summary(v) for name, v in values.items()}, failure


def cell(found):
    if not found:
        return f"{'-':>8} {'':<18}"
    span = f"({found['min']:.1f}..{found['max']:.1f})"
    return f"{found['median']:>8.1f} {span:<18}"


def show(question, found):
    for peer in question.peers:
        ours = found.get("tern")
        ratio = f"{ours['median'] / found[peer]['median']:.2f}" if ours else "-"
        print(f"{question.name:<20} {question.unit:<5} {cell(ours)} {peer:<12} "
              f"{cell(found[peer])} {ratio:>5}", flush=True)


def parse():
    p = argparse.ArgumentParser(description="perftest and `tern bench`, run in turn")
    p.add_argument("tern", help="the program")
    p.add_argument("json", type=Path, help="where all values go")
    p.add_argument("--fabric", default="verbs", help="of tern bench (default: verbs)")
    p.add_argument("--rounds", type=int, default=7, help="(default: 7)")
    p.add_argument("--quick", action="store_true", help="3 rounds, fewer sizes")
    p.add_argument("--wire-bytes", type=int, default=88, metavar="N",
                   help="of perftest's message beside our 8 B tensor, which has a header on the "
                        "wire (default: 88)")
    options = p.parse_args()
    if options.quick:
        options.rounds = 3
    return options


def main():
    options = parse()
    questions = [latency(options, 8, options.wire_bytes, "ib_send_lat", "ib_write_lat"),
                 bandwidth(options, 1 << 16, "poll"), bandwidth(options, 1 << 16, "sleep")]
    if not options.quick:
        questions += [latency(options, 65536, 65536, "ib_write_lat", "ib_read_lat"),
                      bandwidth(options, 1 << 20, "poll"), bandwidth(options, 1 << 20, "sleep")]
    record = {"fabric": options.fabric, "rounds": options.rounds,
              "wire_bytes": options.wire_bytes, "kernel": os.uname().release, "questions": []}
    failures = []
    print(f"perf: tern over {options.fabric} beside perftest: medians of {options.rounds} rounds "
          "(least..most); a latency is half a round trip (ib_read_lat: the whole read); Tern's answer "
          "has 8 B, perftest's is as long as the message\n"
          f"{'':<26} {'tern':>8} {'':<18} {'peer':<12} {'':>8} {'':<18} tern/peer", flush=True)
    for question in questions:
        try:
            found, failure = measure(question, options.rounds)
        except perftest.Failed as why:
            sys.exit(f"perf: {question.name}: {why}")
        show(question, found)
        record["questions"].append({"name": question.name, "unit": question.unit, **found})
        if failure and failure not in failures:
            failures.append(failure)
    record["failures"] = failures
    options.json.write_text(json.dumps(record, indent=1) + "\n")
    for failure in failures:
        print(f"tern: cannot run: {failure}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
