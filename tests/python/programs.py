# SPDX-License-Identifier: Apache-2.0
"""Trains the examples under `tern run`, on different numbers of workers and servers, over tcp and shared memory, and
with a worker that is lost at a random time. Each example must always save the same bytes.

The normal run takes a covering selection: every pair of values of two properties occurs. With "all", every
combination is run.

usage: programs.py TERN FACTORISE [all]
"""
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import frameworks
import jobs
from jobs import SCRATCH, TOP, tap

TERN, FACTORISE, *rest = sys.argv[1:]
EXAMPLES = TOP / "docs" / "examples"
TORCH, JAX = frameworks.find("torch"), frameworks.find("jax")
TEXT = SCRATCH / "text"
# By name: the words of a command that saves its results to the file OUT. Each makes steps for some two seconds with
# one worker.
PROGRAMS = {
    "c": [FACTORISE, "OUT", 12000],
    "numpy": [sys.executable, EXAMPLES / "logistic.py", "OUT", 2500],
}
if TORCH:
    PROGRAMS |= {
        "cnn": [TORCH, EXAMPLES / "torch_mnist.py", "--steps", 25, *jobs.make_images(), "OUT"],
        "transformer": [TORCH, EXAMPLES / "torch_text.py", "--steps", 25, TEXT, "OUT"],
    }
if JAX:
    PROGRAMS["jax"] = [JAX, EXAMPLES / "jax_mlp.py", "OUT"]
PROPERTIES = {
    "program": list(PROGRAMS),
    "fabric": ["tcp", "shm"],
    "workers": [1, 2, 3],
    "servers": [1, 2],
    # Of the last worker. SIGINT raises an exception in Python.
    "ending": ["none", "SIGKILL", "SIGTERM", "SIGINT"],
}
SEED = 20261126
TRIES = 4
LIMIT_S = 240


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


def lose_one(job, folder, workers, ending, after):
    """Ends the last worker by a signal, some time after the steps have begun. Returns that time."""
    for line in job.stderr:
        if f"joined, {workers} of {workers}" in line:
            break
    begun = time.monotonic()
    if ending != "none":
        time.sleep(after)
        with contextlib.suppress(ProcessLookupError):  # the job has ended already
            os.kill(int((folder / str(workers - 1)).read_text()), signal.Signals[ending])
    return begun


def train(program, fabric, workers, servers, ending, after=0.0):
    """Runs a job. Returns the bytes that it has saved, the seconds that its steps took, and whether it lost a worker."""
    folder = SCRATCH / f"{program}-{fabric}-{workers}-{servers}-{ending}-{after}"
    folder.mkdir()
    out = folder / "results.npz"  # one name for all: PyTorch writes it into the file
    command = [TERN, "run", "--fabric", fabric, "--servers", servers, "--workers", workers, "--", sys.executable,
               Path(__file__).with_name("tell_pid.py"), folder,
               *(out if word == "OUT" else word for word in PROGRAMS[program])]
    with subprocess.Popen([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as job:
        limit = threading.Timer(LIMIT_S, job.kill)
        limit.start()
        begun = lose_one(job, folder, workers, ending, after)
        said = job.stderr.read()
        code = job.wait()
        limit.cancel()
    assert code == 0, f"exit code {code}: {said}"
    return out.read_bytes(), time.monotonic() - begun, f"tern run: worker {workers - 1} " in said


EXPECTED = {}


def expected(program):
    """The bytes of an undisturbed job with one worker, and the seconds that its steps took."""
    if program not in EXPECTED:
        EXPECTED[program] = train(program, "tcp", 1, 1, "none")[:2]
    return EXPECTED[program]


def test_of(case):
    def test():
        values, seconds = expected(case["program"])
        # At a random time of the steps, which several workers may make faster.
        after = random.Random(str(case) + str(SEED)).uniform(0, 0.3) * seconds
        for _ in range(TRIES):
            got, _, lost = train(**case, after=after)
            assert got == values, f"other bytes: {case}"
            if lost or case["ending"] == "none":
                return
            after /= 4  # the machine is faster now
        raise AssertionError("the job always ended before a worker was lost")
    test.__name__ = "_".join(str(value) for value in case.values())
    return test


def programs_of_pytorch():
    raise tap.Skip(frameworks.why_not("torch"))


def programs_of_jax():
    raise tap.Skip(frameworks.why_not("jax"))


if __name__ == "__main__":
    TEXT.write_text("the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 40)
    tests = [test_of(case) for case in (possible() if "all" in rest else covering())]
    tap.run([*tests, *([] if TORCH else [programs_of_pytorch]), *([] if JAX else [programs_of_jax])])
