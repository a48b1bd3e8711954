#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds each configuration, runs its suites, and counts single cases (see tap_count.py).
The last line is always "N passed, N failed, N skipped".

usage: run_all.py [--verbose] [CONFIGURATION|quick|plugins|long...]

Without a name: all configurations, and the quick cases in the virtual machine. quick is gcc. plugins is Tern under
other frameworks, which it installs: suite plugins of the gcc build, with many processes killed. long is what takes too
long for every change: suite long of the gcc build, plugins, what the sanitizers leave out (suite rest), and all cases
in the virtual machine.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "tests" / "system" / "rdma"), str(TOP / "bench")]
import in_vm  # noqa: E402
import install  # noqa: E402
import tap_count  # noqa: E402

BUILDS = TOP / "build-test"

# Most tests sleep for most of their time.
TESTS_AT_ONCE = 2 * os.cpu_count()
# Seconds after which a line says how far the tests are, if none of them has ended meanwhile.
QUIET_S = 30
SETUP_LIMIT_S, BUILD_LIMIT_S = 300, 1800
# Six times the longest test of suite long.
LONG_LIMIT_S = 6 * 3600

# name, compiler, meson options, suites left out (none: all but suite long run), limit in seconds,
# factor on the tests' own time limits. With -Dwerror=true everything is built, for its warnings;
# else what the tests that run need. A tenth of a run is the compiler's: lines are all that a
# stack's trace needs (-g1), and the sanitizers find the same at -O1.
CONFIGURATIONS = [
    ("gcc", "gcc", ["-Dwerror=true", "-Dc_args=-g1"], [], 3000, 1),
    ("asan", "clang", ["-Dwerror=true", "-Dc_args=-g1", "-Doptimization=1", "-Db_sanitize=address,undefined",
                       "-Db_lundef=false"], ["install", "once", "tidy"], 1800, 4),
    # A context belongs to one thread. Programs with one thread in all are left out (unit tests with
    # more are suite threads); ports share devices between threads, so the fabrics' own tests are run.
    ("tsan", "gcc", ["-Dc_args=-g1", "-Doptimization=1", "-Db_sanitize=thread", "-Db_lundef=false"],
     ["unit", "sim", "rendezvous", "group", "e2e", "install", "once", "tidy"], 1200, 6),
]

CXX = {"gcc": "g++", "clang": "clang++"}

# The builds that the other parts use.
NEEDED = {in_vm.WHERE: ["gcc"], "plugins": ["gcc"], "long": ["gcc", "asan", "tsan"]}

# How many processes each test of ./run test plugins kills that kills any (tests/harness/kills.py), and a factor on the
# tests' own time limits, which are for 20.
KILLS, KILLS_FACTOR = 200, 6

ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    **tap_count.ENVIRONMENT,
}


# In front of a command, it lets this run only when nothing else does, in a session of its own. Within a session the
# policy decides. Between sessions, and meson runs each test in another one, Linux shares the processors by the
# sessions' own nice values, if it has these (autogroup).
IDLE = ["sh", "-c", '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec chrt --idle 0 "$@"', "sh"]
idle_processes = []


def stream(command, env, limit, keep=None):
    """Runs the command, prints what `keep` returns for each line, and returns (exit status, all lines). After
    `limit` seconds it asks the command to end; then the status is -1."""
    lines, late, idle = [], [], command[:len(IDLE)] == IDLE
    with subprocess.Popen(command, env=env, cwd=TOP, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace", start_new_session=idle) as p:
        idle_processes.extend([p] if idle else [])
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


def needed_by_tests(directory, left_out):
    """Returns the files that are needed by the tests outside of the suites left out, and of suite long but for rest."""
    def told(what):
        return json.loads(subprocess.run(["meson", "introspect", what, str(directory)], check=True,
                                         stdout=subprocess.PIPE).stdout)

    files = {target["id"]: target["filename"] for target in told("--targets")}
    wanted = set()
    for test in told("--tests"):
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if not suites & {*left_out} and ("long" not in suites or "rest" in suites):
            wanted.update(os.path.relpath(file, directory) for id in test["depends"] for file in files[id])
    return sorted(wanted)


def linked_fast(options):
    """Further options of a build with these: with gold, which binutils has, linking takes half the processor time. But
    gold does not find __cpu_model of GCC after link-time optimisation, which builds without a sanitizer have."""
    return [f"-D{language}_link_args=-fuse-ld=gold" for language in ("c", "cpp")
            if shutil.which("ld.gold") and any("b_sanitize" in option for option in options)]


def build(name, compiler, options, left_out, idle, limit):
    """Returns None, or what the program that failed has printed. `idle`: the command before ninja, or []. `limit`: of
    ninja, in seconds."""
    def finished(command, env, limit):
        status, lines = stream(command, env, limit)
        return [] if status == 0 else [*lines, f"it has not ended in {limit} s" if status == -1 else
                                       f"it ended with status {status}"]

    directory, start = BUILDS / name, time.monotonic()
    print(f"{name}: building with {compiler} {' '.join(options)}", flush=True)
    if not (directory / "build.ninja").exists():
        problem = finished(["meson", "setup", str(directory), *options, *linked_fast(options)],
                           dict(os.environ, CC=compiler, CXX=CXX[compiler]), SETUP_LIMIT_S)
        if problem:
            return problem
    wanted = [] if "-Dwerror=true" in options else needed_by_tests(directory, left_out)
    problem = finished([*idle, "ninja", "-C", str(directory), *wanted], dict(os.environ), limit)
    if problem:
        return problem
    print(f"{name}: built in {time.monotonic() - start:.0f} s", flush=True)
    return None


class Builder:
    """Builds the configurations one after the other on a thread of its own: the first at once, the others
    beside the tests of those before, when these leave a processor idle. (Beside a compiler that is only nice, jobs of
    several processes, which wait for each other in many short steps, take several times as long.)"""

    def __init__(self, count, names):
        self.count, self.thread = count, ThreadPoolExecutor(1)
        self.builds, limit, idle = {}, BUILD_LIMIT_S, []
        for name, *how, tests_limit, _ in CONFIGURATIONS:
            if name in names:
                self.builds[name] = self.thread.submit(build, name, *how, idle, limit)
                idle = IDLE
                limit += tests_limit  # a busy host leaves the next build nothing before these tests have ended

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in idle_processes:  # after Ctrl-C, which does not reach them
            process.terminate()
        self.thread.shutdown(cancel_futures=True)

    def has(self, name):
        """Waits until the configuration is built; says why and counts a failure if it cannot be."""
        problem = self.builds[name].result()
        if problem is None:
            return True
        what = f"[{name}] the build"
        if what not in self.count.failed:
            print("\n".join(problem[-60:]))
            self.count.failed.append(what)
        return False


class Progress:
    """Prints a line for each test that ended, and one now and then while none does."""

    def __init__(self, name):
        self.name, self.done, self.start = name, "0/?", time.monotonic()
        self.restart()

    def restart(self):
        self.timer = threading.Timer(QUIET_S, self.say_so)
        self.timer.daemon = True
        self.timer.start()

    def say_so(self):
        print(f"{self.name}: {self.done:>7} done after {time.monotonic() - self.start:.0f} s", flush=True)
        self.restart()

    def line_of_test(self, line):
        m = re.match(r"^\s*(\d+/\d+)\s+(.*?)\s+([A-Z]+)\s+([\d.]+s).*$", line)
        if not m:
            return None
        self.done, test, result, seconds = m.groups()
        self.timer.cancel()
        self.restart()
        return f"{self.name}: {self.done:>7} {test:<36} {result.lower():<8} {seconds}"


def run_tests(count, name, directory, limit, selection, environment={}):
    """Runs those tests of the build in `directory` that `selection` (options of `meson test`) selects, and counts
    their cases. `environment`: variables for the tests."""
    log = directory / "meson-logs" / "testlog.json"
    for old in log.parent.glob("testlog*.json"):
        old.unlink()
    progress = Progress(name)
    command = ["meson", "test", "-C", str(directory), "--no-rebuild", "--num-processes", str(TESTS_AT_ONCE)]
    status, lines = stream([*command, *selection], dict(os.environ, **ENVIRONMENT, **environment), limit,
                           progress.line_of_test)
    progress.timer.cancel()
    logs = [*log.parent.glob("testlog*.json")]  # the file's name contains that of meson's setup
    tests = [json.loads(t) for t in logs[0].read_text().splitlines()] if logs else []
    for test in tests:
        count.add_program(name, test)
    if status == -1:
        count.failed.append(f"[{name}] ended after its limit of {limit} s")
    elif not tests:
        print("\n".join(lines[-30:]))
        count.failed.append(f"[{name}] no test ran")


def without(suites):
    """Returns the options of `meson test` that leave these suites out."""
    return [option for suite in suites for option in ("--no-suite", suite)]


def run(count, builder, configuration):
    name, _, _, left_out, limit, factor = configuration
    if not builder.has(name):
        return
    run_tests(count, name, BUILDS / name, limit, [*without(left_out), "-t", str(factor)])


def run_rdma(count, builder, when):
    """Runs the cases of tests/system/rdma in the virtual machine: the quick ones with the build of gcc, all of
    them (`when` is "full") also with the build of asan."""
    if all(builder.has(name) for name in NEEDED[in_vm.WHERE if when == "quick" else "long"]):
        in_vm.run_suite(count, BUILDS / "gcc", BUILDS / "asan", when)


def run_plugins(count, builder):
    """Runs Tern under other frameworks, which it installs. One that cannot be installed is counted as skipped."""
    for name, why in install.plugins(print).items():
        count.skip("plugins", name, "all", f"{name} cannot be installed: {why}", "plugins")
    if not builder.has("gcc"):
        return
    chosen = {"TERN_PLUGIN_KILLS": str(KILLS), "TERN_PLUGIN_SEED": str(time.time_ns() % 1_000_000)}
    chosen.update({name: os.environ[name] for name in chosen if name in os.environ})
    print(f"plugins: {' '.join(f'{name}={value}' for name, value in chosen.items())}", flush=True)
    run_tests(count, "plugins", BUILDS / "gcc", LONG_LIMIT_S,
              ["--setup", "long", "--suite", "plugins", "-t", str(KILLS_FACTOR)], chosen)


def run_long(count, builder):
    for name, _, _, left_out, _, factor in CONFIGURATIONS:
        suite, left_out = ("long", ["plugins"]) if name == "gcc" else ("rest", left_out)
        if builder.has(name):
            run_tests(count, f"{suite} {name}", BUILDS / name, LONG_LIMIT_S,
                      ["--setup", "long", "--suite", suite, *without(left_out), "-t", str(factor)])
    run_rdma(count, builder, "full")


def main():
    known = [c[0] for c in CONFIGURATIONS] + ["quick", *NEEDED]
    parser = argparse.ArgumentParser(prog="run test", usage="%(prog)s [--verbose] [NAME...]")
    parser.add_argument("--verbose", action="store_true", help="name every skipped case")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in known:
            parser.error(f"{name}: not one of {', '.join(known)}")
    asked = ["gcc" if name == "quick" else name for name in arguments.names]
    asked = asked or [*[c[0] for c in CONFIGURATIONS], in_vm.WHERE]
    if "TERN_DATA_DIR" not in os.environ:
        print("TERN_DATA_DIR is not set: tests that need the data sets will be skipped")
    count = tap_count.Count(arguments.verbose)
    builds = {build for name in asked for build in NEEDED.get(name, [name])}
    with Builder(count, builds) as builder:
        for configuration in CONFIGURATIONS:
            if configuration[0] in asked:
                run(count, builder, configuration)
        if in_vm.WHERE in asked:
            run_rdma(count, builder, "quick")
        if {"plugins", "long"} & {*asked}:
            run_plugins(count, builder)
        if "long" in asked:
            run_long(count, builder)
    return count.report()


if __name__ == "__main__":
    sys.exit(main())
