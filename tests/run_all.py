#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds each configuration, runs its suites, and counts single cases.

The programs of the suites print TAP (cmocka does when it is asked to, the scripts always do),
so a case is a line "ok N - name"; a program that prints none of it is one case, and exit code
77 means that it was skipped. The last line is always "N passed, N failed, N skipped".
"""
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BUILDS = TOP / "build-test"

# name, compiler, meson options, suites left out (none: everything runs), limit in seconds,
# factor on the tests' own time limits.
CONFIGURATIONS = [
    ("gcc", "gcc", ["-Dwerror=true"], [], 900, 1),
    ("asan", "clang", ["-Dwerror=true", "-Db_sanitize=address,undefined", "-Db_lundef=false"],
     ["install", "tidy"], 900, 4),
    # One context is one thread; the simulator has one in all.
    ("tsan", "gcc", ["-Db_sanitize=thread", "-Db_lundef=false"],
     ["sim", "e2e", "install", "tidy"], 900, 6),
]

ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    "CMOCKA_MESSAGE_OUTPUT": "TAP",
    "PYTHONUNBUFFERED": "1",
}

CASE = re.compile(r"^(ok|not ok)\b(?:\s+(\d+))?\s*(?:-\s*)?(.*)$")
SKIP = re.compile(r"#\s*SKIP\b\s*(.*)$", re.IGNORECASE)


class Count:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []  # (program, case, reason, configuration)

    def skipped_lines(self):
        """One line for all cases of a program with one reason."""
        grouped = {}
        for program, case, reason, where in self.skipped:
            cases, builds = grouped.setdefault((program, reason), (set(), set()))
            cases.add(case)
            builds.add(where)
        return [f"{program}: {reason} ({', '.join(sorted(builds))}): {', '.join(sorted(cases))}"
                for (program, reason), (cases, builds) in grouped.items()]


def cases_of(output):
    """(verdict, name, reason) of each TAP line. A skipped cmocka case has its reason in the
    line "skip: ..." or "skipped: ..." before it."""
    cases, plan, reason = [], None, ""
    for line in output.splitlines():
        if re.fullmatch(r"1\.\.\d+", line):
            plan = int(line[3:])
        elif line.lower().startswith(("skip: ", "skipped: ")):
            reason = line.partition(": ")[2]
        m = CASE.match(line)
        if not m or plan is None:
            continue
        skip = SKIP.search(m.group(3))
        if skip:
            name = m.group(3)[: skip.start()].strip(" -")
            cases.append(("skip", name or skip.group(1), (skip.group(1) if name else reason)))
            reason = ""
        else:
            cases.append(("pass" if m.group(1) == "ok" else "fail", m.group(3), ""))
    return plan, cases


def add_program(count, where, test):
    """One program's cases. Whatever its cases say, a program that ends wrongly has failed."""
    program = test["name"].split(":")[-1].split("/")[-1].strip()
    name = f"[{where}] {program}"
    plan, cases = cases_of(test.get("stdout", ""))
    for verdict, case, reason in cases:
        if verdict == "pass":
            count.passed += 1
        elif verdict == "skip":
            count.skipped.append((program, case, reason or "no reason given", where))
        else:
            count.failed.append(f"{name}: {case}")
    failed_cases = any(c[0] == "fail" for c in cases)
    result = test["result"]
    if result == "SKIP" and not cases:
        lines = (test.get("stdout", "") + test.get("stderr", "")).strip().splitlines()
        count.skipped.append((program, "all", lines[-1] if lines else "no reason given", where))
    elif result in ("OK", "SKIP"):
        if not cases:
            count.passed += 1
        elif plan != len(cases):
            count.failed.append(f"{name}: {len(cases)} of its {plan} cases were reported")
    elif not failed_cases:
        count.failed.append(f"{name}: {result.lower()}, exit status {test.get('returncode')}")
    if result not in ("OK", "SKIP"):
        print(f"---- {name}: what it printed last")
        for stream in ("stdout", "stderr"):
            print("\n".join(test.get(stream, "").splitlines()[-40:]))
        print("----", flush=True)


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
        add_program(count, name, test)
    if status == -1:
        count.failed.append(f"[{name}] ended after its limit of {limit} s")
    elif not tests:
        print("\n".join(lines[-30:]))
        count.failed.append(f"[{name}] no test ran")


def main():
    asked = sys.argv[1:]
    known = [c[0] for c in CONFIGURATIONS]
    if asked == ["quick"]:
        asked = ["gcc"]
    for name in asked:
        if name not in known:
            sys.exit(f"run test: {name}: not one of quick, {', '.join(known)}")
    if "TERN_DATA_DIR" not in os.environ:
        print("TERN_DATA_DIR is not set: tests that need the data sets will be skipped")
    count = Count()
    for configuration in CONFIGURATIONS:
        if not asked or configuration[0] in asked:
            run(count, configuration)
    for line in count.skipped_lines():
        print(f"skipped: {line}")
    for line in count.failed:
        print(f"FAILED: {line}")
    print(f"{count.passed} passed, {len(count.failed)} failed, {len(count.skipped)} skipped",
          flush=True)
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
