#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the simulator notice bugs? Each *.patch here is a bug that somebody could make. run.py
applies it to a copy of the sources, so the sources need no hooks. The scenario that the patch names must
then fail for at least a tenth of the seeds; when so many have failed, the other seeds are not run. Before a
patch is applied, the scenario must fail for none of the first third of the seeds (at most
REACH_SEEDS), or a later failure would prove nothing; and it must run a line that the patch changes in each
file, and, unless NAMEs are given, the lines in reached.txt (reach.py). These two need gcc and gcov.

A bug that only a hostile or broken process brings to light, or a certain order of few events, does not show
itself in a scenario. Such a patch names a unit test, which must pass before the patch and fail with it.

usage: run.py [--seeds N] [NAME...]
       run.py --applies

--applies only tests that every patch still applies, and that every mark names a line: whoever changes the
code of a patch or a mark must write the patch or mark anew.
A patch begins with the lines "What:" (the bug, in words) and "Scenario:" (of tests/system/sim) or "Test:" (its name
in meson).
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import reach  # noqa: E402
import tap  # noqa: E402

# A situation that a tenth of the seeds must notice arises in the first of them.
REACH_SHARE, REACH_SEEDS = 3, 300


def said(patch, key):
    """What the patch says of it; None: nothing."""
    found = re.search(rf"^{key}: (.*)$", patch.read_text(), re.M)
    return found and found.group(1)


def apply(directory, patch, *options):
    """Applies the patch in `directory`, and not in a git repository that contains the directory."""
    subprocess.run(["git", "apply", "-p1", *options, str(patch)], cwd=directory, check=True,
                   env=dict(os.environ, GIT_CEILING_DIRECTORIES=str(Path(directory).parent)))


class Copy:
    """A copy of the sources; if `simulates`, built far enough for the scenarios."""

    def __init__(self, directory, simulates):
        self.top = Path(directory)
        for source in TOP.iterdir():
            name = source.name
            if name.startswith((".", "build")) or name == "shared":
                continue
            if source.is_dir():
                shutil.copytree(source, self.top / name,
                                ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.top / name)
        self.counts = simulates and not reach.missing()
        # The counters make the scenarios several times slower, so only one build has them. The other build is
        # optimised only as far as its seeds gain more time than the compiler takes longer.
        self.run("meson", "setup", "build", "-Dcuda=disabled", "-Doptimization=1")
        if simulates:
            self.build("build")
        if self.counts:
            self.run("meson", "setup", reach.BUILD, "-Dcuda=disabled", "-Doptimization=0", "-Db_coverage=true",
                     CC=reach.COMPILER)
            self.build(reach.BUILD)

    def run(self, *command, **environment):
        done = subprocess.run(command, cwd=self.top, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=dict(os.environ, **environment))
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}"

    def build(self, directory):
        self.run("ninja", "-C", directory, "tests/system/sim/sim_run")

    def test_fails(self, name):
        """Builds and runs a unit test."""
        done = subprocess.run(["meson", "test", "-C", "build", name], cwd=self.top, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        counts = re.findall(r"^(?:Fail|Timeout): +(\d+)", done.stdout, re.M)
        assert len(counts) == 2, f"{name} cannot be built, or is no test:\n{done.stdout[-3000:]}"
        return any(map(int, counts))

    def failures(self, scenario, seeds):
        """How many of the seeds failed, and how many were run until a tenth of them had failed."""
        done = subprocess.run([self.top / "build/tests/system/sim/sim_run", "--scenario", scenario,
                               "--seeds", f"0:{seeds}", "--count", str((seeds + 9) // 10)], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                              env=reach.ONE_THREAD)
        last, failed = re.search(r"seeds 0 to (\d+): (\d+) failed$", done.stdout, re.M).groups()
        return int(failed), int(last) + 1


def changed(patch):
    return re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.M)


def fails_for_no_seed(copy, reached, scenario):
    if not copy.counts:
        raise tap.Skip(reach.missing())
    reached.check_seeds(scenario)


def is_noticed(copy, reached, patch, seeds):
    before = {path: (copy.top / path).read_text().splitlines() for path in changed(patch)}
    apply(copy.top, patch)
    try:
        for path in before if copy.counts else ():
            reached.check_change(said(patch, "Scenario"), path, before[path],
                                 (copy.top / path).read_text().splitlines())
        copy.build("build")
        failed, run = copy.failures(said(patch, "Scenario"), seeds)
    finally:
        apply(copy.top, patch, "--reverse")
    print(f"# {patch.stem}: {failed} of {run} seeds failed: {said(patch, 'What')}", flush=True)
    assert failed * 10 >= seeds, f"{patch.stem}: noticed by {failed} of {seeds} seeds only"


def passes(copy, test):
    assert not copy.test_fails(test), f"{test} fails without any patch"


def is_noticed_by_test(copy, patch):
    apply(copy.top, patch)
    try:
        assert copy.test_fails(said(patch, "Test")), f"{patch.stem}: {said(patch, 'Test')} passes"
    finally:
        apply(copy.top, patch, "--reverse")


def is_reached(copy, reached, *mark):
    if not copy.counts:
        raise tap.Skip(reach.missing())
    reached.check_mark(*mark)


def named(name, function, *arguments):
    def case():
        function(*arguments)

    case.__name__ = name.replace("-", "_")
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--applies", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    patches = sorted(p for p in HERE.glob("*.patch") if not arguments.names or p.stem in arguments.names)
    if arguments.applies:
        tap.run([named(f"{p.stem}_applies", apply, TOP, p, "--check") for p in patches]
                + [named(f"{path} has one line {text}", reach.line_of, TOP, path, text)
                   for _, path, text in reach.marks()])
    if not patches:
        sys.exit(f"run.py: {' '.join(arguments.names)}: there is no such mutant")
    with tempfile.TemporaryDirectory(prefix="tern-mutants-") as directory:
        simulated = [p for p in patches if said(p, "Scenario")]
        tested = [p for p in patches if said(p, "Test")]
        copy = Copy(directory, bool(simulated))
        reached = reach.Reach(directory, min(arguments.seeds // REACH_SHARE + 1, REACH_SEEDS))
        scenarios = sorted({said(p, "Scenario") for p in simulated})
        # The lines are counted first, before any patch is applied to the copy.
        for scenario in scenarios if copy.counts else ():
            reached.counts(scenario)
        unpatched = [named(f"{scenario}_unpatched_fails_for_no_seed", fails_for_no_seed, copy, reached,
                           scenario) for scenario in scenarios]
        marks = [] if arguments.names else [
            named(f"{scenario} comes to {path}: {text}", is_reached, copy, reached, scenario, path, text)
            for scenario, path, text in reach.marks()]
        tap.run(unpatched + marks
                + [named(f"{p.stem}_is_noticed", is_noticed, copy, reached, p, arguments.seeds)
                   for p in simulated]
                + [named(f"{test}_unpatched_passes", passes, copy, test)
                   for test in sorted({said(p, "Test") for p in tested})]
                + [named(f"{p.stem}_is_noticed", is_noticed_by_test, copy, p) for p in tested])


if __name__ == "__main__":
    sys.exit(main())
