#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hurts jobs that take snapshots, at times that follow from the seed, while processes join, while steps are made, while
a snapshot is written, while a job goes on after another fault, and at the end: kills, signals, stops, servers that are
added and removed, full disks, and between two hosts cut links and lost packets. In the end each job has saved the bytes
of a job that nothing has happened to. The kinds of jobs take turns:

  launcher  tern train starts all processes (chaos_launched.py)
  hand      a user starts servers and workers by hand (chaos_hand.py)
  hosts     as by hand, on two hosts (network namespaces), whose link is cut or loses packets
  program   tern run, with a user's PyTorch model
  mnist     as launcher, with the images of MNIST, which TERN_DATA_DIR names

Servers have followers in half of the jobs of the first four kinds. What the machine does not allow is left out, and a
case in the output says so.

usage: chaos.py TERN [--kills K] [--seed S] [--only launcher|hand|hosts|program|mnist]
"""
import argparse
import collections
import contextlib
import functools
import os
import random
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "harness"), str(TESTS / "python")]
import frameworks  # noqa: E402
import job  # noqa: E402
import tap  # noqa: E402
import undisturbed  # noqa: E402
from chaos_hand import HandStory  # noqa: E402
from chaos_launched import LaunchedStory  # noqa: E402
from chaos_story import PHASES, Table  # noqa: E402
from small_disk import SmallDisk  # noqa: E402
from wired_hosts import two_wired_hosts  # noqa: E402

STEPS, EVERY = job.enough(2400), job.enough(150)
PROGRAM_STEPS, PROGRAM_EVERY = 60, 6
TOLD_EVERY = 100  # faults
SLOW_S = 10  # what has happened is told of a job that needs longer than this until a new step
MNIST_STEPS, MNIST_EVERY = job.enough(600), job.enough(40)
EXAMPLE = TESTS.parent / "docs" / "examples" / "torch_text.py"
options = functools.partial(undisturbed.options, STEPS)


def train(launcher, results):
    return ["train", *options(*launcher, "--save", results, "--overwrite")]


# ---- MNIST ----

def train_mnist(launcher, results):
    data = job.data_dir()
    return ["train", *launcher, "--model", "mlp:128", "--data", data / "t10k-images-idx3-ubyte.gz",
            "--labels", data / "t10k-labels-idx1-ubyte.gz", "--split", "8000:2000", "--optimizer", "adam",
            "--slots", 3, "--batch", 32, "--steps", MNIST_STEPS, "--seed", 7, "--save", results, "--overwrite"]


@functools.cache
def expected_of_mnist():
    results = job.SCRATCH / "expected-mnist"
    job.finish(*train_mnist(["--fabric", "shm"], results))
    return undisturbed.saved(results)


# ---- a program of PyTorch ----

def run_program(launcher, results):
    results.mkdir(exist_ok=True)
    text = job.SCRATCH / "text"
    if not text.exists():
        rng = random.Random(5)
        text.write_text("".join(rng.choice("a tern moves tensors ") for _ in range(20_000)))
    program = [frameworks.find("torch"), EXAMPLE, "--steps", PROGRAM_STEPS, text, results / "model.pt"]
    return ["run", *launcher, "--", *program]


def saved_by_program(results):
    return (results / "model.pt").read_bytes()


@functools.cache
def expected_of_program():
    results = job.SCRATCH / "expected-program"
    job.finish(*run_program(["--workers", 2, "--json"], results))
    return saved_by_program(results)


# ---- what the machine allows ----

def try_hosts():
    with two_wired_hosts(0):
        pass


def try_disk():
    SmallDisk(job.SCRATCH / "disk", 1 << 20).end()


def try_program():
    python = frameworks.find("torch")
    if not python:
        raise tap.Skip(frameworks.why_not("torch"))
    done = subprocess.run([python, "-c", "import pytern.torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise tap.Skip(f"no pytern.torch here: {done.stderr.strip().splitlines()[-1]}")


# Parts that are left out on machines that do not allow them: a function that fails there, and the case in the output.
PARTS = {"hosts": (try_hosts, "links between two hosts are cut and lose packets"),
         "disk": (try_disk, "the disk of the snapshots is full for a while"),
         "program": (try_program, "a model in PyTorch trains under tern run"),
         "mnist": (job.data_dir, "MNIST trains under tern train")}


def find_missing():
    """Why a part is left out, by its name."""
    missing = {}
    for name, (attempt, _) in PARTS.items():
        try:
            attempt()
        except tap.Skip as why:
            missing[name] = str(why)
    return missing


# ---- the jobs ----

def kind_of(seed, only, missing):
    if only:
        return only
    for kind, turn in ("program", 6), ("mnist", 14):
        if seed % 16 == turn and kind not in missing:
            return kind
    if seed % 4 == 3 and "hosts" not in missing:
        return "hosts"
    return ["launcher", "hand"][seed % 2]


def make_story(kind, seed, left, missing, resources):
    """The story of a job, and the bytes that it has to save. Its disk and its hosts are closed with `resources`."""
    if kind == "program":
        story = LaunchedStory(seed, left, PROGRAM_STEPS, run_program, PROGRAM_EVERY, followers=True)
        return story, saved_by_program, expected_of_program()
    if kind == "mnist":
        story = LaunchedStory(seed, left, MNIST_STEPS, train_mnist, MNIST_EVERY)
        return story, undisturbed.saved, expected_of_mnist()
    disk = hosts = None
    if kind == "hosts":
        hosts = resources.enter_context(two_wired_hosts(seed))
    elif "disk" not in missing and random.Random(seed).random() < 0.3:
        # Room for four snapshots, each with the parameters and the two state vectors of Adam.
        disk = SmallDisk(job.SCRATCH / f"{seed}-disk", 14 * len(undisturbed.expected(STEPS)))
        resources.callback(disk.end)
    if kind == "launcher":
        story = LaunchedStory(seed, left, STEPS, train, EVERY, disk, followers=True)
    else:
        story = HandStory(seed, left, STEPS, options, EVERY, disk, hosts, followers=True)
    return story, undisturbed.saved, undisturbed.expected(STEPS)


def tell_slow(kind, seed, story):
    for fault, took_s in story.recovered_s:
        if took_s > SLOW_S:
            print(f"seed {seed} ({kind}): {took_s:.2f} s until a new step after {fault}", *story.log, sep="\n# ", flush=True)


def live_through(kind, seed, left, missing, table):
    """Returns whether the job has ended with the right bytes."""
    with contextlib.ExitStack() as resources:
        story, saved, expected = make_story(kind, seed, left, missing, resources)
        try:
            story.tell()
            assert saved(story.results) == expected, "other bytes"
            return True
        except Exception as error:  # one job must not cost the table of all others
            print(f"seed {seed} ({kind}): {type(error).__name__}: {error}", *[n for n in story.log if n.startswith("---")], *story.log[-12:],
                  sep="\n  ", flush=True)
            return False
        finally:
            story.end()
            table.take(story)
            tell_slow(kind, seed, story)


def report(table, jobs, failed, missing):
    """Prints the table and the cases."""
    table.show()
    print(f"{table.count()} faults in {sum(jobs.values())} jobs: {failed} jobs have other bytes, or hang")
    print(f"1..{1 + len(PARTS)}")
    print("not ok" if failed else "ok", 1, "- every job has the bytes of an undisturbed one")
    happened = {"hosts": jobs["hosts"], "disk": any(table.hit["full disk", phase] for phase in PHASES),
                "program": jobs["program"], "mnist": jobs["mnist"]}
    for number, (name, (_, case)) in enumerate(PARTS.items(), 2):
        why = missing.get(name, "" if happened[name] else "none of these jobs")
        print(f"ok {number} - {case}" + (f" # SKIP {why}" if why else ""))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tern")
    parser.add_argument("--kills", type=int, default=20, help="how many faults are counted (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds; each job has one (default 1)")
    parser.add_argument("--only", choices=["launcher", "hand", "hosts", "program", "mnist"],
                        help="only jobs of this kind")
    return parser.parse_args()


def hurt_all(asked, missing, table, jobs):
    """Makes jobs until enough faults are counted. Returns how many have failed."""
    failed, seed, told = 0, asked.seed, 0
    while table.count() < asked.kills:
        if table.count() >= told + TOLD_EVERY:
            told = table.count()
            print(f"# {told} faults in {sum(jobs.values())} jobs, {failed} failed", flush=True)
        kind = kind_of(seed, asked.only, missing)
        failed += not live_through(kind, seed, asked.kills - table.count(), missing, table)
        jobs[kind] += 1
        seed += 1
    return failed


def main():
    asked = parse()
    job.use(asked.tern)
    os.environ["PYTHONPATH"] = str(Path(job.TERN).parent / "python")  # the package of this build
    missing = find_missing()
    if asked.only in missing:
        sys.exit(f"chaos.py: --only {asked.only}: {missing[asked.only]}")
    table, jobs = Table(), collections.Counter()
    failed = hurt_all(asked, missing, table, jobs)
    report(table, jobs, failed, missing)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
