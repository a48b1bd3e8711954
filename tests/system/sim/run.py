#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios of the simulator with many seeds, as many at a time as there are processors, and prints the command for
each seed that fails.

usage: run.py SIM_RUN [--seeds A..B] [--minutes M] [SCENARIO...]

The seeds are A to B; without B there is no end, and without --seeds they begin with 0. No batch of seeds is begun after M
minutes; with neither B nor --minutes, after 10. Without SCENARIO all scenarios take turns. The exit code is 1 if a seed has
failed.
"""
import argparse
import collections
import itertools
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

BATCH = 20  # seeds
LIMIT_S = 900  # of a batch: a scenario that never ends has failed
DEFAULT_MINUTES = 10


def known(sim_run):
    done = subprocess.run([sim_run, "--help"], capture_output=True, text=True, check=False)
    return re.search(r"^names: (.*)", done.stderr, re.M)[1].split()


def seeds(text):
    """The first and the last one; inf: there is no last one."""
    found = re.fullmatch(r"(\d+)\.\.(\d*)", text)
    if not found or (found[2] and int(found[1]) > int(found[2])):
        raise argparse.ArgumentTypeError(f"{text}: expected A..B with A at most B, or A..")
    return int(found[1]), int(found[2]) if found[2] else float("inf")


def minutes(text):
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sim_run")
    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*")
    parser.add_argument("--seeds", type=seeds, default=(0, float("inf")), metavar="A..B")
    parser.add_argument("--minutes", type=minutes, metavar="M")
    asked = parser.parse_intermixed_args()
    names = known(asked.sim_run)
    for name in asked.scenarios:
        if name not in names:
            parser.error(f"{name}: no such scenario; there are {', '.join(names)}")
    if asked.minutes is None and asked.seeds[1] == float("inf"):
        asked.minutes = DEFAULT_MINUTES
    asked.scenarios = asked.scenarios or names
    return asked


def batches(asked):
    """Yields (scenario, first seed, count) while there is time."""
    end_s = time.monotonic() + 60 * asked.minutes if asked.minutes else float("inf")
    first, last = asked.seeds
    for begin in itertools.count(first, BATCH):
        for scenario in asked.scenarios:
            if begin > last or time.monotonic() > end_s:
                return
            yield scenario, begin, int(min(BATCH, last - begin + 1))


def run(sim_run, scenario, first, count):
    """Returns the scenario, the number of its seeds, and a line for each that has failed."""
    try:
        done = subprocess.run([sim_run, "--scenario", scenario, "--seeds", f"{first}:{count}"], capture_output=True,
                              text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return scenario, count, [f"no end after {LIMIT_S} s: {sim_run} --scenario {scenario} --seeds {first}:{count}"]
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED: ")]
    if done.returncode and not failed:
        failed = [f"exit code {done.returncode}: {sim_run} --scenario {scenario} --seeds {first}:{count}\n{done.stderr}"]
    return scenario, count, failed


def main():
    asked = parse()
    made, failed, waits = collections.Counter(), 0, set()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        def take(future):
            nonlocal failed
            scenario, count, lines = future.result()
            made[scenario] += count
            failed += len(lines)
            for line in lines:
                print(line, flush=True)

        for batch in batches(asked):
            waits.add(pool.submit(run, asked.sim_run, *batch))
            while len(waits) >= os.cpu_count():
                ended = {future for future in waits if future.done()}
                for future in ended:
                    take(future)
                waits -= ended
                time.sleep(0.02)
        for future in waits:
            take(future)
    for scenario, count in made.items():
        print(f"{scenario:20}{count:>8} seeds")
    print(f"{sum(made.values())} seeds of {len(made)} scenarios: {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
