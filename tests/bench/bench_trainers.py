#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the question `train` of ./run bench: its contenders in PyTorch as a quick run has them, with images that are
made up, and with the PyTorch that is here. Times are not judged.

usage: bench_trainers.py TERN (whose build folder has the package pytern, too)
"""
import contextlib
import dataclasses
import json
import os
import sys
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "python"), str(TOP / "tests" / "harness"), str(TOP / "bench"),
                str(TOP / "bench" / "peers")]
import with_torch  # noqa: E402, F401  (first: it may start this script again, with another Python)
import contenders  # noqa: E402
import install  # noqa: E402
import measure  # noqa: E402
import questions  # noqa: E402
import tap  # noqa: E402
import train_common  # noqa: E402
import trainers  # noqa: E402

TERN = Path(sys.argv[1]).resolve()
os.environ.pop("TERN_DATA_DIR", None)
STARTS = """
import sys
sys.path.insert(0, "{top}/bench")
import tern_train
import torch
from tern_train import tern, torch_models, train_common
options = train_common.parse(arguments=["--model", "{model}", "--steps", "1"])
data = train_common.data_of(options)
module = torch_models.make(options.model, data)
first = [p.detach().numpy().tobytes() for p in module.parameters()]
with torch.no_grad():
    for p in module.parameters():
        p.fill_(7)
with tern.Session(steps=1, seed=train_common.SEED) as session:
    tern.torch.Server(module, session, init=tern_train.begins(options.model, data))
    for slot in session.slots():
        with slot:
            assert [p.detach().numpy().tobytes() for p in module.parameters()] == first
            slot.loss(0)
    with session.finishing():
        print(len(first), "equal")
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
            if "accuracy_s" in line:
                samples = line["accuracy_s"] * line["samples_per_s"]
                looks = samples / (train_common.EVERY * line["workers"] * train_common.MODELS[line["model"]].batch)
                assert abs(looks - round(looks)) < 1e-6 and 0 < round(looks) <= 120 / train_common.EVERY, line
            print(f"# {contender.key}, {point}: loss {line['loss']:.6f}")
    points = [point for _, lines in runs for point in lines]
    assert sorted(points.count(point) for point in set(points)) == [2, 2, 3], points
    wrong = trainers.disagreeing(runs)
    assert not wrong, wrong


def looks_of(*arguments, accuracies=()):
    """Plays a training whose looks find these accuracies. Returns the steps that worker 0 looks at, those whose
    beginning the coordinator of TensorFlow waits for, and the printed line."""
    steps, due, losses, found = [], [], iter(range(100, 0, -5)), iter(accuracies)
    options = train_common.parse(arguments=["--model", "mlp", *arguments])
    data = mock.Mock()
    data.name = "made up"

    def test():
        steps.append(step)
        return float(next(losses)), next(found, 0.0)

    run = train_common.Run(options, data, test)
    for step in (0, *range(train_common.steps_of(options))):  # Tern's workers compute their first slot twice
        due += [step] if run.is_due(step) else []
        run.before(step)
    step = "end"
    with mock.patch("builtins.print") as said:
        run.end()
    return steps, sorted(set(due)), json.loads(said.call_args.args[0])


def nobody_looks_while_steps_are_timed():
    steps, due, line = looks_of("--learn", "90", "--steps", "100", "--accuracy", "0.5",
                                accuracies=(0, 0.1, 0.2, 0.3, 0.4, 0.5))
    assert steps == [0, 20, 40, 60, 80, 90, "end"] and due == [0, 20, 40, 60, 80, 90, 95], (steps, due)
    assert line["loss"] == 90, line  # the third look's, after 40 steps
    assert abs(line["accuracy_s"] * line["samples_per_s"] - 90 * 128) < 1e-3, line
    steps, due, line = looks_of("--learn", "90", "--steps", "100", "--accuracy", "0.5", accuracies=(0, 0.6))
    assert steps == [0, 20, 40, "end"] and due == [0, 20, 40, 95], (steps, due)
    assert abs(line["accuracy_s"] * line["samples_per_s"] - 20 * 128) < 1e-3, line
    steps, due, line = looks_of("--steps", "100")
    assert steps == [0, "end"] and due == [0, 5] and line["loss"] == 95 and "accuracy_s" not in line, (steps, due, line)


def who_does_not_learn_fails():
    contender = asked()["torch.alone", "mlp", 1]
    command = contender.command
    for changed, words in ((["--accuracy", "1.1"], "120 steps, not 1.1"),
                           (["--learn", "0", "--steps", "1"], "after 6 steps, and was"),
                           (["--data", "/nowhere"], "/nowhere/t10k-images-idx3-ubyte.gz: No such file")):
        contender.command = [*command, *changed]
        try:
            measure.run_once(contender)
            assert False, f"{changed}: it must fail"
        except measure.Failed as why:
            assert words in str(why), why


def the_first_values_are_those_of_the_servers():
    """In Tern's program the servers make them, and other contenders take them from train_common.initial()."""
    for model, count in (("mlp", 6), ("transformer", 27)):
        status, out, err = measure.run_group(
            [str(TERN), "run", "--servers", "1", "--workers", "1", "--", sys.executable, "-c",
             STARTS.format(top=TOP, model=model)], 60,
            env={**os.environ, "PYTHONPATH": str(TERN.parent / "python")})
        assert (status, out) == (0, f"worker 0: {count} equal\n"), (model, status, out, err)


tap.run([
    nobody_looks_while_steps_are_timed,
    the_first_values_are_those_of_the_servers,
    everybody_does_the_same_work_and_prints_all_figures,
    who_does_not_learn_fails,
])
