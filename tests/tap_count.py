# SPDX-License-Identifier: Apache-2.0
"""Counts the single cases of programs that were run, from what they printed.

The programs of the suites print TAP (cmocka does when it is asked to, the scripts always do),
so a case is a line "ok N - name"; a program that prints none of it is one case, and exit code
77 means that it was skipped. A program is a dictionary as in meson's testlog.json: name, result
(OK, SKIP, FAIL, TIMEOUT...), returncode, stdout, stderr.
"""
import re

ENVIRONMENT = {
    "CMOCKA_MESSAGE_OUTPUT": "TAP",
    "PYTHONUNBUFFERED": "1",
}
SKIPPED = 77

CASE = re.compile(r"^(ok|not ok)\b(?:\s+(\d+))?\s*(?:-\s*)?(.*)$")
SKIP = re.compile(r"#\s*SKIP\b\s*(.*)$", re.IGNORECASE)


def cases_of(output):
    """How many cases were announced, None without any, and (verdict, name, reason) of each TAP
    line. A program of several groups announces each. A skipped cmocka case has its reason in
    the line "skip: ..." or "skipped: ..." before it."""
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


class Count:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []  # (program, case, reason, configuration)

    def add_program(self, where, test):
        """One program's cases. Whatever its cases say, a program that ends wrongly has failed."""
        program = test["name"].split(":")[-1].split("/")[-1].strip()
        name = f"[{where}] {program}"
        plan, cases = cases_of(test.get("stdout", ""))
        for verdict, case, reason in cases:
            if verdict == "pass":
                self.passed += 1
            elif verdict == "skip":
                self.skipped.append((program, case, reason or "no reason given", where))
            else:
                self.failed.append(f"{name}: {case}")
        failed_cases = any(c[0] == "fail" for c in cases)
        result = test["result"]
        if result == "SKIP" and not cases:
            lines = (test.get("stdout", "") + test.get("stderr", "")).strip().splitlines()
            self.skipped.append((program, "all", lines[-1] if lines else "no reason given", where))
        elif result in ("OK", "SKIP"):
            if not cases:
                self.passed += 1
            elif plan != len(cases):
                self.failed.append(f"{name}: {len(cases)} of its {plan} cases were reported")
        elif not failed_cases:
            self.failed.append(f"{name}: {result.lower()}, exit status {test.get('returncode')}")
        if result not in ("OK", "SKIP"):
            print(f"---- {name}: what it printed last")
            for stream in ("stdout", "stderr"):
                print("\n".join(test.get(stream, "").splitlines()[-40:]))
            print("----", flush=True)

    def skipped_lines(self):
        """One line for all cases of a program with one reason."""
        grouped = {}
        for program, case, reason, where in self.skipped:
            cases, builds = grouped.setdefault((program, reason), (set(), set()))
            cases.add(case)
            builds.add(where)
        return [f"{program}: {reason} ({', '.join(sorted(builds))}): {', '.join(sorted(cases))}"
                for (program, reason), (cases, builds) in grouped.items()]

    def report(self):
        """Prints what was skipped, what failed and, last, the numbers; the exit status."""
        for line in self.skipped_lines():
            print(f"skipped: {line}")
        for line in self.failed:
            print(f"FAILED: {line}")
        print(f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped",
              flush=True)
        return 1 if self.failed else 0
