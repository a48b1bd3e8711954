# SPDX-License-Identifier: Apache-2.0
"""Workers compute their first slots twice: programs under `tern run` that are not deterministic are found out and
named, and those that are have the same bytes as without the check.

usage: verify.py TERN [CASE...], or as a worker: verify.py worker|quiet OUT HOW [INDEX]
"""
import importlib.util
import os
import re
import subprocess
import sys

import numpy
import pytern as tern

from jobs import HERE, SCRATCH, tap

RECORDS, WIDTH, STEPS, LIMIT_S = 200, 40, 25, 120
HAS_TORCH = importlib.util.find_spec("torch") is not None
CAUSES = ("Usual causes: random numbers not from the slot's seed, data not chosen by the slot, state kept between slots, "
          "threads (tern run --verify-first 0 switches this check off)")
# By HOW: what differs between the two computations of a slot. Only worker INDEX does it, if that is given.
HOW = {
    "random": "random numbers not from the seed",
    "data": "the next records, and not those of the slot",
    "state": "a sum that goes on",
    "forgets": "a tensor that is pushed the first time only",
    "sign": "-0.0 in the place of 0.0",
}


# ---- the worker ----

class Program:
    def __init__(self, how):
        self.how = how
        self.rng = numpy.random.default_rng()
        self.x = numpy.random.default_rng(5).standard_normal((RECORDS, WIDTH), numpy.float32)
        self.count = 0
        self.sum = numpy.zeros(WIDTH, numpy.float32)

    def gradient(self, slot, values):
        """Of the tensor that may differ."""
        self.count += 1
        rows = self.x[slot.records]
        if self.how == "data":
            rows = self.x[numpy.arange(self.count * 7, self.count * 7 + slot.batch) % RECORDS]
        keep = (self.rng if self.how == "random" else numpy.random.default_rng(slot.seed)).random(WIDTH) < 0.8
        got = (rows * (rows @ values - rows[:, 0])[:, None]).mean(0) * keep
        if self.how == "state":
            self.sum += got
            got = self.sum
        if self.how == "sign":
            got = numpy.full(WIDTH, -0.0 if slot.repeated else 0.0)
        return got.astype(numpy.float32)

    def compute(self, slot, bias, weights):
        got = self.gradient(slot, slot[weights])
        if self.how != "forgets" or not slot.repeated:
            slot.push(weights, got)
        slot.push(bias, numpy.array([0.5], numpy.float32))
        slot.loss(self.count if self.how == "loss" else 0.25)


def work(out, how, index=None):
    only = index is None or index == os.environ["TERN_INDEX"]
    program = Program(how if only else "plain")
    options = {"verify_first": int(how)} if how.isdigit() else {}
    repeated = []
    with tern.Session(steps=STEPS, slots=4, seed=6, optimizer=tern.Momentum(lr=0.01), records=RECORDS, batch=16,
                      **options) as session:
        bias, weights = session.tensor("bias", 1), session.tensor("weights", WIDTH, tern.normal(0.1))
        before = None
        for slot in session.slots():
            with slot:
                given = slot.step, slot.number, slot.seed, slot.records.tobytes(), slot[weights].tobytes()
                if slot.repeated:
                    assert given == before
                    repeated.append((slot.step, slot.number))
                before = None if slot.repeated else given
                program.compute(slot, bias, weights)
        print("repeated", len(repeated), flush=True)
        with session.finishing() as mine:
            if mine:
                numpy.savez(out, bias=bias.value, weights=weights.value)


# ---- the tests ----

def run(*command, workers=1, options=(), code=0, **environment):
    """Runs a program under `tern run`. Returns the lines of its output and of stderr."""
    done = subprocess.run([str(word) for word in [sys.argv[1], "run", "--workers", workers, *options, "--",
                                                  sys.executable, *command]],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
                          env=os.environ | environment)
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert done.returncode == code, f"exit code {done.returncode}: " + "\n".join(lines)
    return lines


def values(path):
    with numpy.load(path) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


def result(*arguments, **options):
    """Trains this file's program. Returns the bytes of its results, and the numbers of slots that came again."""
    out = SCRATCH / "out.npz"
    out.unlink(missing_ok=True)
    lines = run(__file__, "worker", out, *arguments, **options)
    return values(out), sorted(int(line.split()[-1]) for line in lines if ": repeated " in line), lines


def sentence(worker, slot, tensors="1 of 2", tensor="weights"):
    return (f"worker {worker} computed slot {slot} of step 0 twice, and {tensors} gradients differ, first that of tensor "
            f"{tensor}. {CAUSES}")


def fails_with(how):
    def test():
        for workers in (1, 2):
            lines = run(__file__, "worker", SCRATCH / "none", how, workers=workers, code=1)
            cause = lines[-1].removeprefix("tern run: ")
            # A worker may be given the slot of one that has failed before it has begun its own.
            assert cause in [f"worker {i} exited with code 1: pytern.Error: {sentence(i, slot)}"
                             for i in range(workers) for slot in range(workers)], cause
            for i in range(workers):
                assert any(f"worker {i}: pytern.Error: {sentence(i, slot)}" in lines for slot in range(workers)), \
                    "\n".join(lines)
    test.__name__ = f"a_program_with_{re.sub('[^a-z0-9]+', '_', HOW[how])}_is_named"
    return test


def a_program_that_catches_the_exception_is_named_by_the_server():
    for workers in (1, 2):
        lines = run(__file__, "quiet", SCRATCH / "none", "random", workers=workers, code=1)
        # The worker that the server misses first need not be the process that ends first.
        assert re.match(r"tern run: worker \d exited with code 3; server 0: no worker is left: worker \d \(", lines[-1]), lines
        assert lines[-1].partition("): ")[2] in [sentence(i, slot) for i in range(workers) for slot in range(workers)], lines


def the_other_worker_goes_on_with_the_right_bytes():
    expected, _, _ = result("plain")
    got, repeated, lines = result("random", 1, workers=2)
    assert got == expected
    assert repeated == [1], repeated  # of worker 0
    # `tern run` tells of the end of the process or, if the server is faster, of what the server says about the worker.
    told = [line for line in lines if line.startswith("tern run: worker 1 ")]
    assert len(told) == 1 and f"{sentence(1, 1)}: the job goes on without " in told[0], "\n".join(lines)


def bytes_do_not_depend_on_the_number_of_slots_that_are_verified():
    expected, repeated, _ = result("0")
    assert repeated == [0]
    for how, options, count in (("plain", (), 1), ("7", (), 7), ("plain", ("--verify-first", 100000), 4 * STEPS),
                                ("plain", ("--verify-first", 0), 0), ("2", ("--verify-first", 9), 2)):
        got, repeated, _ = result(how, options=options)
        assert got == expected and repeated == [count], (how, options, repeated)
    got, repeated, _ = result("plain", workers=3, options=("--verify-first", 5))
    assert got == expected and repeated == [5, 5, 5], repeated


def the_environment_counts_if_nothing_else_is_said():
    assert result("plain", TERN_VERIFY_FIRST="3")[1] == [3]
    assert result("plain", options=("--verify-first", 4), TERN_VERIFY_FIRST="3")[1] == [4]
    lines = run(__file__, "worker", SCRATCH / "none", "plain", code=1, TERN_VERIFY_FIRST="many")
    assert lines[-1].endswith("ValueError: TERN_VERIFY_FIRST=many: expected a number from 0 to 4294967295"), lines


def a_loss_that_differs_is_told_and_the_job_goes_on():
    expected, _, _ = result("plain")
    got, repeated, lines = result("loss")
    assert got == expected and repeated == [1]
    assert ("worker 0: tern: worker 0 computed slot 0 of step 0 twice: the gradients are the same, but the losses are 1 "
            "and 2") in lines, lines


def without_the_check_a_program_may_be_random():
    result("random", workers=2, options=("--verify-first", 0))


# A model with dropout whose masks come from a generator of the program's own.
OWN_GENERATOR = """
import pytern, pytern.torch, torch
from torch import nn
class Drop(nn.Module):
    generator = torch.Generator()
    generator.seed()
    def forward(self, x):
        return x * (torch.rand(x.shape, generator=self.generator) < 0.5)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), Drop(), nn.Linear(16, 1))
with pytern.Session(steps=9, slots=2) as session:
    server = pytern.torch.Server(model, session)
    for slot in session.slots():
        with slot:
            loss = model(torch.rand(32, 8)).square().mean()
            loss.backward()
            slot.loss(loss.item())
"""


def dropout_with_a_generator_of_its_own_is_named():
    if not HAS_TORCH:
        raise tap.Skip("python3-torch is not installed")
    for workers in (1, 2):
        lines = run("-c", OWN_GENERATOR, workers=workers, code=1)
        # All parameters differ but the bias in front of the normalisation, whose gradient is rounding errors or 0.
        assert "twice, and " in lines[-1] and f"differ, first that of tensor 0.weight. {CAUSES}" in lines[-1], lines[-1]


def torch_result(act, **environment):
    out = SCRATCH / "torch.npz"
    out.unlink(missing_ok=True)
    run(HERE / "torch_worker.py", out, act, OPTIMIZER="sgd", **environment)
    return values(out)


def statistics_and_sums_of_passes_begin_anew_in_the_second_computation():
    """The module of torch_worker.py has dropout and batch normalisation; "accumulate" makes two passes in a slot."""
    if not HAS_TORCH:
        raise tap.Skip("python3-torch is not installed")
    for act in ("plain", "accumulate"):
        assert torch_result(act, TERN_VERIFY_FIRST="0") == torch_result(act, TERN_VERIFY_FIRST="1000"), act


if sys.argv[1] == "worker":
    work(*sys.argv[2:])
elif sys.argv[1] == "quiet":
    try:
        work(*sys.argv[2:])
    except tern.Error:
        sys.exit(3)
else:
    CASES = [*map(fails_with, HOW), a_program_that_catches_the_exception_is_named_by_the_server,
             the_other_worker_goes_on_with_the_right_bytes,
             bytes_do_not_depend_on_the_number_of_slots_that_are_verified,
             the_environment_counts_if_nothing_else_is_said, a_loss_that_differs_is_told_and_the_job_goes_on,
             without_the_check_a_program_may_be_random, dropout_with_a_generator_of_its_own_is_named,
             statistics_and_sums_of_passes_begin_anew_in_the_second_computation]
    tap.run([case for case in CASES if len(sys.argv) < 3 or case.__name__ in sys.argv[2:]])
