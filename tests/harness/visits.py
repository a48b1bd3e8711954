#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how many files one tensor passes through, at both ends, as a measure of how well the code is
divided: a row for each instance (tests/harness/instances.c) and size, with these columns:

    calls       of functions of Tern (none is inlined)
    moves       calls of a function of another file than the caller's; functions of headers count as the
                caller's, since they are inlined otherwise
    files       that are entered
    re-entries  moves, within tern_send, into a file that tern_send has been in before
    gpu         moves into files about GPUs, which a tensor of host memory has no need of

usage: visits.py [--trace] [INSTANCE[:BYTES]...]     (tcp-epoll, shm, fake; 1 MiB and 64 B)

--trace prints each call instead, indented, with its file. Builds in build-visits/.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUILD = TOP / "build-visits"
PROGRAM = BUILD / "tests" / "harness" / "visits"
DEFAULT = [f"{name}:{size}" for size in (1 << 20, 64) for name in ("tcp-epoll", "shm", "fake")]
GPU_FILES = ("transport/gpu/", "transport/shm/gpu.c", "rendezvous/stage.c", "rendezvous/direct.c",
             "rendezvous/lend.c", "base/cuda")


def run(*command):
    done = subprocess.run(command, cwd=TOP, text=True, capture_output=True, env=dict(os.environ, CC="gcc"))
    if done.returncode:
        sys.exit(f"visits: {' '.join(map(str, command))}: exit status {done.returncode}\n"
                 f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build():
    if not (BUILD / "build.ninja").exists():
        run("meson", "setup", str(BUILD), "-Dbuildtype=debug",
            "-Dc_args=-finstrument-functions -fno-inline -fno-stack-protector")
    run("ninja", "-C", str(BUILD), str(PROGRAM.relative_to(BUILD)))


def places(addresses):
    """The function and the file of each address."""
    ordered = sorted(addresses)
    lines = run("addr2line", "-f", "-e", str(PROGRAM), *(f"0x{a}" for a in ordered)).splitlines()
    found = {}
    for address, function, where in zip(ordered, lines[::2], lines[1::2]):
        path = os.path.normpath(BUILD / where.rsplit(":", 1)[0])
        found[address] = function, os.path.relpath(path, TOP)
    return found


def trace_of(instance, size):
    """(depth, function, file, caller's file) of each call, in order. A function of a header has the file of
    its caller."""
    lines = run(str(PROGRAM), instance, str(size)).split()
    where = places({line[1:] for line in lines})
    stack, calls = [], []
    for line in lines:
        if line[0] == "-":
            stack.pop()
            continue
        function, path = where[line[1:]]
        caller = stack[-1] if stack else ""
        path = caller if path.endswith(".h") and caller else path
        calls.append((len(stack), function, path, caller))
        stack.append(path)
    return calls


def re_entries(calls):
    seen, count, inside = set(), 0, False
    for depth, function, path, caller in calls:
        if depth == 0:
            inside, seen = function.startswith("tern_send"), set()
        if inside and path != caller:
            count += path in seen
        seen.add(path)
    return count


def row(calls):
    moves = [(path, caller) for _, _, path, caller in calls if path != caller]
    return (len(calls), len(moves), len({c[2] for c in calls}), re_entries(calls),
            sum(path.startswith(GPU_FILES) for path, _ in moves))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].splitlines()[0])
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("what", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    build()
    if not arguments.trace:
        print(f"{'instance':<12}{'bytes':>9}{'calls':>8}{'moves':>8}{'files':>8}{'re-entries':>12}{'gpu':>6}")
    for what in arguments.what:
        instance, _, size = what.partition(":")
        calls = trace_of(instance, int(size or 1 << 20))
        if arguments.trace:
            for depth, function, path, _ in calls:
                print(f"{'  ' * depth}{function}  {path}")
        else:
            print(f"{instance:<12}{size or 1 << 20:>9}" +
                  "".join(f"{n:>{w}}" for n, w in zip(row(calls), (8, 8, 8, 12, 6))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
