#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the code that reads bytes of other processes and of files: builds the targets with clang and runs
them, as many at a time as there are processors.

usage: run.py [--seconds N] [--keep] [TARGET...]

Without --seconds each target runs for an hour. An input with a finding is kept in build-fuzz/TARGET/, and
the command that runs it again is printed. --keep writes the corpus, tests/fuzz/corpus, anew, from those
of its inputs and of the new ones that reach something that the others do not: a file for each target
with an input on each line, in hexadecimal digits.
"""
import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
BUILD = TOP / "build-fuzz"
CORPUS = HERE / "corpus"
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

TARGETS = sorted(p.stem.removeprefix("fuzz_") for p in HERE.glob("fuzz_*.c"))
SEEDED = ["session"]  # targets that can write inputs made by hand (--seeds)
OPTIONS = ["-Dfuzz=true", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dcuda=disabled",
           "-Dverbs=disabled", "-Doptimization=1"]
ENVIRONMENT = dict(os.environ, CC=os.environ.get("CC", "clang"),
                   UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")


def call(*command):
    done = subprocess.run(command, cwd=TOP, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout[-3000:]}")


def build():
    if not (BUILD / "build.ninja").exists():
        call("meson", "setup", BUILD, *OPTIONS)
    call("ninja", "-C", BUILD, *(f"tests/fuzz/fuzz_{target}" for target in TARGETS))


def emptied(directory):
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def unpack(target, directory):
    """A new target has no file yet: --keep makes it."""
    lines = (CORPUS / target).read_text().split() if (CORPUS / target).exists() else []
    for number, line in enumerate(lines):
        (directory / str(number)).write_bytes(bytes.fromhex(line))


def pack(target, directory):
    lines = sorted(path.read_bytes().hex() + "\n" for path in directory.iterdir())
    (CORPUS / target).write_text("".join(lines))


def fuzz(target, seconds, keep):
    """Runs one target. Returns the end of its output if it found something, else ""."""
    program, found, learnt = (BUILD / "tests/fuzz" / f"fuzz_{target}", BUILD / target,
                              BUILD / f"{target}-corpus")
    for directory in (found, learnt):
        directory.mkdir(exist_ok=True)
    known, seeds = emptied(BUILD / f"{target}-known"), emptied(BUILD / f"{target}-seeds")
    unpack(target, known)
    if target in SEEDED:
        call(program, "--seeds", seeds)
    # The entropic schedule took four fifths of the time of the target store, which has many features in each input.
    done = subprocess.run([program, f"-max_total_time={seconds}", "-entropic=0", f"-artifact_prefix={found}/",
                           "-rss_limit_mb=2048", "-timeout=20", "-max_len=4096", learnt, known, seeds],
                          env=ENVIRONMENT, text=True, errors="replace", stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE)
    if keep:
        merged = emptied(BUILD / f"{target}-merged")
        call(program, "-merge=1", merged, known, learnt)
        pack(target, merged)
    runs = next((line for line in done.stderr.splitlines() if line.startswith("Done ")), "")
    print(f"# {target}: {runs or 'ended'}", flush=True)
    return done.stderr[-6000:] if done.returncode else ""


def case_of(target, future):
    def case():
        text = future.result()
        assert not text, f"{text}\nagain: build-fuzz/tests/fuzz/fuzz_{target} build-fuzz/{target}/..."

    case.__name__ = f"fuzz_{target}_finds_nothing"
    return case


def main():
    parser = argparse.ArgumentParser(prog="run fuzz")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    arguments = parser.parse_args()
    for target in arguments.targets:
        if target not in TARGETS:
            parser.error(f"{target}: not one of {', '.join(TARGETS)}")
    if not shutil.which(ENVIRONMENT["CC"].split()[-1]):
        print("clang is not here")
        sys.exit(77)
    build()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tap.run([case_of(target, pool.submit(fuzz, target, arguments.seconds, arguments.keep))
                 for target in arguments.targets or TARGETS])


if __name__ == "__main__":
    main()
