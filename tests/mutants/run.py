#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the simulator notice bugs? Each *.patch here is a bug that somebody could make. It is
applied to a copy of the sources, so these have no hooks, and the scenario that it names must fail for
at least a tenth of the seeds.

usage: run.py [--seeds N] [NAME...]
       run.py --applies

--applies only tests that every patch still applies: whoever changes the code under one writes it anew.
A patch begins with the lines "What:" (the bug, in words) and "Scenario:" (of tests/sim).
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
sys.path.insert(0, str(TOP / "tests"))
import tap  # noqa: E402

BUILT = ["base", "bench", "client", "docs", "include", "kernels", "ps", "rendezvous", "server", "tests",
         "tools", "transport", "meson.build", "meson_options.txt"]


def said(patch, key):
    return re.search(rf"^{key}: (.*)$", patch.read_text(), re.M).group(1)


def apply(directory, patch, *options):
    """Not in whatever repository the directory may lie in."""
    subprocess.run(["git", "apply", "-p1", *options, str(patch)], cwd=directory, check=True,
                   env=dict(os.environ, GIT_CEILING_DIRECTORIES=str(Path(directory).parent)))


class Copy:
    """A copy of the sources, built far enough for the scenarios."""

    def __init__(self, directory):
        self.top = Path(directory)
        for name in BUILT:
            source = TOP / name
            if source.is_dir():
                shutil.copytree(source, self.top / name,
                                ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.top / name)
        # Nothing is optimised: building takes longer than the seeds do.
        self.run("meson", "setup", "build", "-Dcuda=disabled", "-Doptimization=0")
        self.build()

    def run(self, *command):
        done = subprocess.run(command, cwd=self.top, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-3000:]}"

    def build(self):
        self.run("ninja", "-C", "build", "tests/sim/sim_run")

    def failures(self, scenario, seeds):
        done = subprocess.run([self.top / "build/tests/sim/sim_run", "--scenario", scenario,
                               "--seeds", f"0:{seeds}", "--count"], text=True,
                              stdout=subprocess.PIPE, check=False)
        return int(re.search(r"(\d+) failed$", done.stdout, re.M).group(1))


def is_noticed(copy, patch, seeds):
    apply(copy.top, patch)
    try:
        copy.build()
        failed = copy.failures(said(patch, "Scenario"), seeds)
    finally:
        apply(copy.top, patch, "--reverse")
    print(f"# {patch.stem}: {failed} of {seeds} seeds failed: {said(patch, 'What')}", flush=True)
    assert failed * 10 >= seeds, f"{patch.stem}: noticed by {failed} of {seeds} seeds only"


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
        tap.run([named(f"{p.stem}_applies", apply, TOP, p, "--check") for p in patches])
    if not patches:
        sys.exit(f"run.py: {' '.join(arguments.names)}: there is no such mutant")
    with tempfile.TemporaryDirectory(prefix="tern-mutants-") as directory:
        copy = Copy(directory)
        tap.run([named(f"{p.stem}_is_noticed", is_noticed, copy, p, arguments.seeds) for p in patches])


if __name__ == "__main__":
    sys.exit(main())
