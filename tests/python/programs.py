# SPDX-License-Identifier: Apache-2.0
"""Trains the examples under `tern run`, on different numbers of workers and servers, over tcp and shared memory, and
with a worker that is lost at a random time. Each example must always save the same bytes.

The normal run takes a covering selection: every pair of values of two properties occurs. With "all", every
combination is run.

usage: programs.py TERN FACTORISE [all]
"""
import itertools
import random
import subprocess
import sys
import time
from pathlib import Path

import jobs
from jobs import SCRATCH, TOP, tap

TERN, FACTORISE, *rest = sys.argv[1:]
EXAMPLES = TOP / "docs" / "examples"
# The program, and the number of steps that it makes: about two seconds' worth with one worker.
PROGRAMS = {
    "c": ([FACTORISE], 12000),
    "numpy": ([sys.executable, EXAMPLES / "logistic.py"], 2500),
}
PROPERTIES = {
    "program": list(PROGRAMS),
    "fabric": ["tcp", "shm"],
    "workers": [1, 2, 3],
    "servers": [1, 2],
    "ending": ["none", "SIGKILL", "SIGTERM"],
}
SEED = 20261126


def possible():
    """All combinations: one worker alone cannot be lost."""
    for values in itertools.product(*PROPERTIES.values()):
        case = dict(zip(PROPERTIES, values))
        if case["workers"] > 1 or case["ending"] == "none":
            yield case


def pairs(case):
    return set(itertools.combinations(sorted(case.items()), 2))


def covering():
    """A selection of cases in which every possible pair of values occurs, chosen greedily."""
    rng = random.Random(SEED)
    cases = list(possible())
    rng.shuffle(cases)
    left = set().union(*map(pairs, cases))
    while left:
        best = max(cases, key=lambda case: len(pairs(case) & left))
        left -= pairs(best)
        yield best


def train(program, fabric, workers, servers, ending, after=0.0):
    """Runs a job, and returns the bytes that it has saved and the seconds that it took."""
    command, steps = PROGRAMS[program]
    out = SCRATCH / f"{program}-{fabric}-{workers}-{servers}-{ending}.npz"
    out.unlink(missing_ok=True)
    doomed = [sys.executable, Path(__file__).with_name("doomed.py"), workers - 1, ending, after]
    started = time.monotonic()
    done = subprocess.run([str(word) for word in [
        TERN, "run", "--fabric", fabric, "--servers", servers, "--workers", workers, "--", *doomed, *command, out,
        steps]], capture_output=True, text=True, timeout=jobs.LIMIT_S, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    if ending != "none":
        assert f"worker {workers - 1}" in done.stderr, f"nothing was lost: {done.stderr}"
    return out.read_bytes(), seconds


EXPECTED = {}


def expected(program):
    """The bytes of an undisturbed job with one worker, and the seconds that it took."""
    if program not in EXPECTED:
        EXPECTED[program] = train(program, "tcp", 1, 1, "none")
    return EXPECTED[program]


def test_of(case):
    def test():
        values, seconds = expected(case["program"])
        # At a random time of the steps. The start takes less than half of the time.
        after = random.Random(str(case) + str(SEED)).uniform(0.5, 0.8) * seconds
        got, _ = train(**case, after=after)
        assert got == values, f"other bytes: {case}"
    test.__name__ = "_".join(str(value) for value in case.values())
    return test


if __name__ == "__main__":
    tap.run([test_of(case) for case in (possible() if "all" in rest else covering())])
