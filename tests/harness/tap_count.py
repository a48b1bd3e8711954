# SPDX-License-Identifier: Apache-2.0
"""Counts the single cases of programs that were run, from what they printed.

The programs of the suites print TAP (cmocka does if ENVIRONMENT is set, the scripts always do): a
case is a line "ok N - name" or "not ok N - name". A program that prints no TAP counts as one case;
exit code 77 means that it was skipped. A program is a dictionary as in meson's testlog.json: name,
result (OK, SKIP, FAIL, TIMEOUT...), returncode, stdout, stderr.
"""
import re

ENVIRONMENT = {
    "CMOCKA_MESSAGE_OUTPUT": "TAP",
    "PYTHONUNBUFFERED": "1",
}
SKIPPED = 77

CASE = re.compile(r"^(ok|not ok)\b(?:\s+(\d+))?\s*(?:-\s*)?(.*)$")
KILLED = re.compile(r"^# (\d+) processes killed, seed \d+$", re.MULTILINE)  # tests/harness/kills.py
SKIP = re.compile(r"#\s*SKIP\b\s*(.*)$", re.IGNORECASE)


def cases_of(output):
    """Returns how many cases the program has announced ("1..N"; None if it announced none), and a list with
    (verdict, name, reason) of each case that it reported. A program with several groups of cases announces each
    group, and the numbers are added. A skipped cmocka case has its reason in the line "skip: ..." or "skipped:
    ..." before the case's line."""
    cases, plan, reason = [], None, ""
    for line in output.splitlines():
        if re.fullmatch(r"1\.\.\d+", line):
            plan = (plan or 0) + int(line[3:])
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


def told_by_failures(output):
    """Returns the lines around each failed case's line, from the case before it to the one after it, and at most
    LINES_KEPT before it and LINES_KEPT from it on: cmocka
    prints the reason after the line, scripts print it before."""
    lines = output.splitlines()
    marks = [i for i, line in enumerate(lines) if CASE.match(line)]
    failed = [i for i in marks if lines[i].startswith("not ok") and not SKIP.search(lines[i])]
    told = []
    for mark in failed:
        before = max((i for i in marks if i < mark), default=-1)
        after = min((i for i in marks if i > mark), default=len(lines))
        told += lines[max(before + 1, mark - LINES_KEPT) : min(after, mark + LINES_KEPT)]
    return told


LINES_KEPT = 40
LINES_REPEATED = 8
SLOWEST = 10


def suite_of(name, otherwise):
    """Returns the first suite in a test's name, which meson writes as "project:suite+suite / program"; if there
    is none, returns `otherwise`."""
    m = re.match(r"[^:/]*:([^+/ ]+)", name)
    return m.group(1) if m else otherwise


class Count:
    """`verbose`: the report names every skipped case, not only how many there are."""

    def __init__(self, verbose=False):
        self.verbose = verbose
        self.passed = 0
        self.failed = []
        self.told = []  # the last lines of programs that failed: (program, lines)
        self.skipped = []  # (suite, program, case, reason, configuration)
        self.seconds = []  # (duration, program with its configuration)
        self.killed = []  # processes that tests have killed on purpose: (number, program with its configuration)

    def add_program(self, where, test):
        """Counts the cases of one program, which ran in the configuration `where`. A program that ended wrongly
        has failed, even if all cases that it reported passed."""
        program = test["name"].split(":")[-1].split("/")[-1].strip()
        suite = suite_of(test["name"], where)
        name = f"[{where}] {program}"
        if "duration" in test:
            self.seconds.append((test["duration"], name))
        killed = KILLED.findall(test.get("stdout", ""))
        if killed:
            self.killed.append((sum(map(int, killed)), name))
        plan, cases = cases_of(test.get("stdout", ""))
        for verdict, case, reason in cases:
            if verdict == "pass":
                self.passed += 1
            elif verdict == "skip":
                self.skip(suite, program, case, reason, where)
            else:
                self.failed.append(f"{name}: {case}")
        failed_cases = any(c[0] == "fail" for c in cases)
        result = test["result"]
        if result == "SKIP" and not cases:
            lines = (test.get("stdout", "") + test.get("stderr", "")).strip().splitlines()
            self.skip(suite, program, "all", lines[-1] if lines else "", where)
        elif result in ("OK", "SKIP"):
            if not cases:
                self.passed += 1
            elif plan != len(cases):
                self.failed.append(f"{name}: {len(cases)} of its {plan} cases were reported")
        elif not failed_cases:
            self.failed.append(f"{name}: {result.lower()}, exit status {test.get('returncode')}")
        if result not in ("OK", "SKIP"):
            self.tell(name, test)

    def tell(self, name, test):
        told = told_by_failures(test.get("stdout", ""))
        both = (test.get("stdout", "") + "\n" + test.get("stderr", "")).splitlines()
        self.told.append((name, [line for line in told or both if line.strip()][-LINES_REPEATED:]))
        if told:
            print(f"---- {name}: what its failed cases printed", *told, sep="\n")
        print(f"---- {name}: what it printed last")
        for stream in ("stdout", "stderr"):
            print("\n".join(test.get(stream, "").splitlines()[-LINES_KEPT:]))
        print("----", flush=True)

    def skip(self, suite, program, case, reason, where):
        self.skipped.append((suite, program, case, reason or "no reason given", where))

    def skipped_lines(self):
        """Returns one line for all cases of a suite that were skipped for the same reason; with `verbose`, also a
        line for each of these cases."""
        grouped = {}
        for suite, program, case, reason, where in self.skipped:
            grouped.setdefault((suite, reason), []).append((program, case, where))
        lines = []
        for (suite, reason), cases in grouped.items():
            builds = ", ".join(sorted({where for _, _, where in cases}))
            lines.append(f"{len(cases):4} of {suite} ({builds}): {reason}")
            if self.verbose:
                lines += [f"         {program}: {case}"
                          for program, case in sorted({c[:2] for c in cases})]
        return lines

    def slowest_lines(self):
        return [f"{duration:6.1f} s {name}"
                for duration, name in sorted(self.seconds, reverse=True)[:SLOWEST]]

    def report(self):
        """Prints the skipped cases, how many processes tests have killed, the slowest programs, the failed cases with their
        last lines (for readers who see only the end of a log) and, last, the numbers. Returns the exit status."""
        for line in self.skipped_lines():
            print(f"skipped: {line}")
        if self.skipped and not self.verbose:
            print("skipped: --verbose names every case")
        if self.killed:
            print(f"killed: {sum(number for number, _ in self.killed)} processes, each of which the others have named:",
                  ", ".join(f"{number} by {name}" for number, name in self.killed))
        for line in self.slowest_lines():
            print(f"slowest: {line}")
        for name, lines in self.told:
            for line in lines:
                print(f"{name}: {line}")
        for line in self.failed:
            print(f"FAILED: {line}")
        print(f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped",
              flush=True)
        return 1 if self.failed else 0
