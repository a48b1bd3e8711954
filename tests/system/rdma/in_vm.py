#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs suite.py and perf.py in a virtual machine and counts what they did.

usage: in_vm.py BUILD_DIRECTORY quick|full [NAME...]
       in_vm.py BUILD_DIRECTORY perf [OPTION...]

quick is a part of the suite, full is all of it. Both measure afterwards, quick with fewer rounds and sizes.
Names choose single cases, and then nothing is measured.
"""
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "harness"))
import tap_count  # noqa: E402

WHERE = "rdma"
QUICK_LIMIT_S, FULL_LIMIT_S, PERF_LIMIT_S = 1200, 5400, 1800
STOOD_STILL, UNKILLABLE = 126, 3  # exit statuses of vm and of suite.py


def results_of(build):
    """The directory that the guest may write to."""
    directory = build / "rdma"
    directory.mkdir(exist_ok=True)
    return directory


def vm(build, limit_s, *command):
    """Runs the command in a machine and prints its output. Returns its exit status and the last
    line, which is where a reason would be."""
    whole = [str(HERE / "vm"), "--limit", str(limit_s), "--writable", str(results_of(build)),
             "--", *map(str, command)]
    last = "no reason given"
    with subprocess.Popen(whole, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, errors="replace") as p:
        for line in p.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return p.returncode, last.removeprefix("vm: ")


def facts_of(log):
    """Returns the names of the planned cases that have not been run, and what is known of those that have."""
    facts = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    programs = [fact for fact in facts if "planned" not in fact]
    done = {program["name"] for program in programs}
    return [name for name in facts[0]["planned"] if name not in done] if facts else [], programs


def run_suite(count, build, asan, when, names=()):
    """Adds the suite's cases to the count. `asan`: a build of the same with AddressSanitizer, which
    full needs. If no machine can be had, the suite is skipped. If the machine does not come to its
    end, that is a failure, and so is each case that has not been run. A machine whose kernel stands
    still (which happens to emulated ones) or is broken by a case is followed once by a new machine, for
    the cases that are left; a case that broke it has failed."""
    log = results_of(build) / "suite.log"
    log.unlink(missing_ok=True)
    limit_s = QUICK_LIMIT_S if when == "quick" else FULL_LIMIT_S
    suite = ["python3", HERE / "suite.py", when, build, asan, log]
    status, last = vm(build, limit_s, *suite, *names)
    if status == tap_count.SKIPPED and not log.exists():
        count.skip(WHERE, WHERE, "all", last, WHERE)
        return
    left, programs = facts_of(log)
    if status in (STOOD_STILL, UNKILLABLE) and left:
        print(f"rdma: a new machine for {', '.join(left)}", flush=True)
        status, last = vm(build, limit_s, *suite, *left)
        left, programs = facts_of(log)
    for program in programs:
        count.add_program(WHERE, program)
    for name in left:
        count.failed.append(f"[{WHERE}] {name}: did not end")
    if status not in (0, 1, UNKILLABLE) or not programs:
        count.failed.append(f"[{WHERE}] the machine: exit status {status}: {last}")


def run_perf(count, build, options=()):
    """A measurement judges nothing, so it is one case: that there are figures."""
    status, last = vm(build, PERF_LIMIT_S, "python3", HERE / "perf.py", build / "tern",
                      results_of(build) / "perf.json", *options)
    if status == tap_count.SKIPPED:
        count.skip(WHERE, WHERE, "perf", last, WHERE)
    elif status:
        count.failed.append(f"[{WHERE}] perf: exit status {status}: {last}")
    else:
        count.passed += 1


def main():
    if len(sys.argv) < 3 or sys.argv[2] not in ("quick", "full", "perf"):
        sys.exit(__doc__)
    build, what, rest = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3:]
    count = tap_count.Count()
    if what == "perf":
        run_perf(count, build, rest)
    else:
        run_suite(count, build, build.parent / "asan", what, rest)
        if not rest:
            run_perf(count, build, ["--quick"] if what == "quick" else [])
    return count.report()


if __name__ == "__main__":
    sys.exit(main())
