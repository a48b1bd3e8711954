#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the question `train` of ./run bench: its contenders in PyTorch as a quick run has them, with images that are
made up, and with the PyTorch that is here. Times are not judged.

usage: bench_trainers.py TERN (whose build folder has the package pytern, too)
"""
import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "python"), str(TOP / "tests" / "harness"), str(TOP / "bench")]
import with_torch  # noqa: E402, F401  (first: it may start this script again, with another Python)
import contenders  # noqa: E402
import install  # noqa: E402
import measure  # noqa: E402
import questions  # noqa: E402
import tap  # noqa: E402
import trainers  # noqa: E402

TERN = Path(sys.argv[1]).resolve()
os.environ.pop("TERN_DATA_DIR", None)
STARTS = """
import sys
sys.path.insert(0, "{top}/bench/peers")
import train_common
import pytern as tern
with tern.Session(steps=1, seed=train_common.SEED) as session:
    tensors = [(session.tensor(name, shape, tern.uniform(bound)), (name, shape, ("uniform", bound)))
               for name, shape, bound in (("0.weight", (300, 70), 70 ** -0.5), ("layers.1.in", (7,), 3))]
    for slot in session.slots():
        with slot:
            for tensor, start in tensors:
                assert slot[tensor].tobytes() == train_common.initial(*start).tobytes(), start
            slot.loss(0)
    with session.finishing():
        print("equal")
"""


@contextlib.contextmanager
def this_python():
    """The contenders run with this Python, whatever is installed below build-bench."""
    with mock.patch.object(install, "torch_python", lambda: sys.executable), \
            mock.patch.object(install, "has_torch", lambda: True):
        yield


def word_after(contender, option):
    return contender.command[contender.command.index(option) + 1]


def asked():
    """{(key, model, number of workers): contender} of a quick run, without TensorFlow."""
    with this_python():
        question = trainers.train(questions.Plan(True, contenders.Maker(TERN, {})))
    return {(c.key, word_after(c, "--model"), int(word_after(c, "--workers"))): c
            for c in question.contenders if c.key != "tensorflow"}


# Contenders of this test, and the number of workers of which each has the batches. Each number has one of Tern's
# fabrics.
SHORT = [("tern.tcp", "mlp", 1), ("torch.alone", "mlp", 1), ("tern.shm", "mlp", 2), ("torch.ddp", "mlp", 2),
         ("torch.alone", "mlp", 2), ("tern.tcp", "transformer", 2), ("torch.ddp", "transformer", 2)]


def short():
    """The contenders of SHORT. PyTorch alone computes also the batches of two workers, one after the other."""
    found = asked()
    alone = found["torch.alone", "mlp", 1]
    found["torch.alone", "mlp", 2] = dataclasses.replace(alone, command=[*alone.command, "--workers", "2"])
    return [found[which] for which in SHORT]


def everybody_does_the_same_work_and_prints_all_figures():
    """With the batches of equally many workers, all have the same loss after the same steps."""
    runs = []
    for contender in short():
        assert not contender.missing, contender.missing
        runs.append((contender.key, measure.run_once(contender)))
        for point, line in runs[-1][1].items():
            assert min(line["samples_per_s"], line["cpu_ms_per_step"]) > 0 and line["same_steps"], line
            assert ("accuracy_s" in line) == point.startswith("MLP") and line["data"] in ("synthetic", "LICENSE"), line
            print(f"# {contender.key}, {point}: loss {line['loss']:.6f}")
    points = [point for _, lines in runs for point in lines]
    assert sorted(points.count(point) for point in set(points)) == [2, 2, 3], points
    wrong = trainers.disagreeing(runs)
    assert not wrong, wrong


def who_does_not_learn_fails():
    contender = asked()["torch.alone", "mlp", 1]
    for changed, words in ((["--accuracy", "1.1"], "120 steps, not 1.1"), (["--steps", "1"], "after 1 steps, and was"),
                           (["--data", "/nowhere"], "/nowhere/t10k-images-idx3-ubyte.gz: No such file")):
        contender.command = [*contender.command, *changed]
        try:
            measure.run_once(contender)
            assert False, f"{changed}: it must fail"
        except measure.Failed as why:
            assert words in str(why), why
        contender.command = contender.command[:-2]


def the_first_values_are_those_of_the_servers():
    status, out, err = measure.run_group(
        [str(TERN), "run", "--servers", "1", "--workers", "1", "--", sys.executable, "-c", STARTS.format(top=TOP)], 60,
        env={**os.environ, "PYTHONPATH": str(TERN.parent / "python")})
    assert (status, out) == (0, "worker 0: equal\n"), (status, out, err)


tap.run([
    the_first_values_are_those_of_the_servers,
    everybody_does_the_same_work_and_prints_all_figures,
    who_does_not_learn_fails,
])
