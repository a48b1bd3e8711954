# SPDX-License-Identifier: Apache-2.0
"""Which lines do the scenarios run? A build with the compiler's own counters (--coverage) tells, so the
sources need no marks.

A mark in reached.txt names a scenario, a file, and a line by its text: "train: server/late.c: stall(w, limit_ns);".
The scenario must run that line; a text that the file does not have exactly once is a mistake, too.
"""
import difflib
import json
import os
import shutil
import subprocess
from pathlib import Path

MARKS = Path(__file__).resolve().parent / "reached.txt"
COMPILER = "gcc"  # its gcov prints JSON
BUILD = "counted"  # the build with counters, in the copy
# The matrix products of a scenario are small: threads of OpenBLAS would only wait for each other.
ONE_THREAD = dict(os.environ, OPENBLAS_NUM_THREADS="1")


def missing():
    """Why lines cannot be counted here; None if they can."""
    for program in (COMPILER, "gcov"):
        if not shutil.which(program):
            return f"{program} is not here"
    return None


class Reach:
    """Which lines the scenarios run, in a copy of the sources whose folder BUILD has a build with counters."""

    def __init__(self, top, seeds):
        self.top, self.seeds, self.runs, self.failed = Path(top), seeds, {}, set()

    def counts(self, scenario):
        """{file: {line: how often it ran}} in the scenario. It must be called first before any patch is applied."""
        if scenario not in self.runs:
            self.runs[scenario] = self.run(scenario)
        return self.runs[scenario]

    def run(self, scenario):
        build = self.top / BUILD
        for old in build.rglob("*.gcda"):
            old.unlink()
        done = subprocess.run([build / "tests/system/sim/sim_run", "--scenario", scenario,
                               "--seeds", f"0:{self.seeds}"],
                              stdout=subprocess.DEVNULL, check=False, env=ONE_THREAD)
        if done.returncode:
            self.failed.add(scenario)
        told = subprocess.run(["gcov", "--json-format", "--stdout", *build.rglob("*.gcda")], cwd=build, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
        counts = {}
        for line in told.splitlines():
            for file in json.loads(line)["files"]:
                path = os.path.relpath(build / file["file"], self.top)
                lines = counts.setdefault(path, {})
                for one in file["lines"]:
                    number = one["line_number"]
                    lines[number] = lines.get(number, 0) + one["count"]
        return counts

    def check_seeds(self, scenario):
        """Asserts that no seed of the scenario fails."""
        self.counts(scenario)
        assert scenario not in self.failed, f"{scenario}: seeds of 0 to {self.seeds - 1} fail without any patch"

    def check_change(self, scenario, path, before, after):
        """Asserts that the scenario runs a line that a patch changes in the file; or, where the patch only adds lines,
        a line beside them."""
        lines = self.counts(scenario).get(path, {})
        for tag, first, last, _, _ in difflib.SequenceMatcher(None, before, after, False).get_opcodes():
            changed = range(first + 1, last + 1) if tag != "insert" else (first, first + 1)
            if tag != "equal" and any(lines.get(number) for number in changed):
                return
        raise AssertionError(f"{scenario} never comes to what is changed in {path}")

    def check_mark(self, scenario, path, text):
        number = line_of(self.top, path, text)
        ran = self.counts(scenario).get(path, {}).get(number)
        assert ran is not None, f"{path}:{number}: {text!r} is no code"
        assert ran > 0, f"{path}:{number}: {scenario} never comes to {text!r}"


def line_of(top, path, text):
    """The number of the only line that is `text`."""
    source = (Path(top) / path).read_text().splitlines()
    found = [number for number, line in enumerate(source, 1) if line.strip() == text]
    assert len(found) == 1, f"{path}: {len(found)} lines are {text!r}, a mark names one"
    return found[0]


def marks():
    """[(scenario, path, text)]"""
    lines = [line for line in MARKS.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(": ", 2)) for line in lines]
