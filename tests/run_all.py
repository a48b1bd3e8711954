#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds each configuration, runs its suites, and counts single cases (see tap_count.py).
The last line is always "N passed, N failed, N skipped".
"""
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import tap_count

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests" / "rdma"))
import in_vm  # noqa: E402

BUILDS = TOP / "build-test"

# name, compiler, meson options, suites left out (none: everything runs), limit in seconds,
# factor on the tests' own time limits.
CONFIGURATIONS = [
    ("gcc", "gcc", ["-Dwerror=true"], [], 900, 1),
    ("asan", "clang", ["-Dwerror=true", "-Db_sanitize=address,undefined", "-Db_lundef=false"],
     ["install", "tidy"], 900, 4),
    # One context is one thread, and these have one in all; ports share devices between
    # threads, so the fabrics' own list is run.
    ("tsan", "gcc", ["-Db_sanitize=thread", "-Db_lundef=false"],
     ["sim", "rendezvous", "e2e", "install", "tidy"], 900, 6),
]

ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    **tap_count.ENVIRONMENT,
}


def stream(command, env, limit, keep=None):
    """Runs it and prints the lines that `keep` picks: exit status, all lines. Asks it to end
    after `limit` seconds; then the status is -1."""
    lines, late = [], []
    with subprocess.Popen(command, env=env, cwd=TOP, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace") as p:
        timer = threading.Timer(limit, lambda: (late.append(True), p.terminate()))
        timer.start()
        for line in p.stdout:
            lines.append(line.rstrip())
            shown = keep(line.rstrip()) if keep else None
            if shown:
                print(shown, flush=True)
        status = p.wait()
        timer.cancel()
    return (-1 if late else status), lines


def build(name, compiler, options, env):
    directory = BUILDS / name
    if not (directory / "build.ninja").exists():
        status, lines = stream(["meson", "setup", str(directory), *options],
                               dict(env, CC=compiler), 120)
        if status:
            return lines
    status, lines = stream(["ninja", "-C", str(directory)], env, 900)
    return lines if status else None


def run(count, configuration):
    name, compiler, options, left_out, limit, factor = configuration
    env = dict(os.environ, **ENVIRONMENT)
    start = time.monotonic()
    print(f"{name}: building with {compiler} {' '.join(options)}", flush=True)
    problem = build(name, compiler, options, env)
    if problem is not None:
        print("\n".join(problem[-60:]))
        count.failed.append(f"[{name}] the build")
        return
    print(f"{name}: built in {time.monotonic() - start:.0f} s", flush=True)
    directory = BUILDS / name
    log = directory / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    command = ["meson", "test", "-C", str(directory), "--no-rebuild", "-t", str(factor)]
    for suite in left_out:
        command += ["--no-suite", suite]

    def line_of_test(line):
        m = re.match(r"^\s*(\d+/\d+)\s+(.*?)\s+([A-Z]+)\s+([\d.]+s).*$", line)
        if not m:
            return None
        where, test, result, seconds = m.groups()
        return f"{name}: {where:>7} {test:<36} {result.lower():<8} {seconds}"

    status, lines = stream(command, env, limit, line_of_test)
    tests = [json.loads(t) for t in log.read_text().splitlines()] if log.exists() else []
    for test in tests:
        count.add_program(name, test)
    if status == -1:
        count.failed.append(f"[{name}] ended after its limit of {limit} s")
    elif not tests:
        print("\n".join(lines[-30:]))
        count.failed.append(f"[{name}] no test ran")


def run_rdma(count):
    """The quick cases of tests/rdma with gcc's build, which is there unless only they were
    asked for."""
    name, compiler, options = CONFIGURATIONS[0][:3]
    print(f"{in_vm.WHERE}: building with {compiler} {' '.join(options)}", flush=True)
    problem = build(name, compiler, options, dict(os.environ))
    if problem is not None:
        print("\n".join(problem[-60:]))
        count.failed.append(f"[{in_vm.WHERE}] the build")
        return
    in_vm.run_suite(count, BUILDS / name, "quick")


def main():
    asked = ["gcc" if name == "quick" else name for name in sys.argv[1:]]
    known = [c[0] for c in CONFIGURATIONS] + [in_vm.WHERE]
    for name in asked:
        if name not in known:
            sys.exit(f"run test: {name}: not one of quick, {', '.join(known)}")
    if "TERN_DATA_DIR" not in os.environ:
        print("TERN_DATA_DIR is not set: tests that need the data sets will be skipped")
    count = tap_count.Count()
    for configuration in CONFIGURATIONS:
        if not asked or configuration[0] in asked:
            run(count, configuration)
    if not asked or in_vm.WHERE in asked:
        run_rdma(count)
    return count.report()


if __name__ == "__main__":
    sys.exit(main())
