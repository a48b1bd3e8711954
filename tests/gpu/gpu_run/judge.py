# SPDX-License-Identifier: Apache-2.0
"""What a program's end and output mean: pass, fail or skip, and the line that says why."""
import hashlib
import json
import math
import re
from dataclasses import dataclass, field

import figures
import tap_count
from gpu_run import process

FOUND = 99  # the status that a checker is asked to end with if it found anything
REFUSED = re.compile(r"device not supported|not supported on this (device|platform)|"
                     r"unable to (find|initialize)|no supported|LibraryNotLoaded|ERR_NVGPUCTRPERM", re.I)
NO_TIME = "time"
HASH = re.compile(r"^(?:# )?hash of (.+): ([0-9a-f]+)$", re.M)


@dataclass
class Verdict:
    verdict: str  # pass, fail, skip
    line: str = ""
    passed: int = 0
    failed: list = field(default_factory=list)  # names of the cases
    skipped: list = field(default_factory=list)  # (case, reason)
    rows: list = field(default_factory=list)  # see figures.py
    hashes: dict = field(default_factory=dict)


def skip(line):
    return Verdict("skip", line, skipped=[("all", line)])


def fail(line, **more):
    return Verdict("fail", line, failed=[line], **more)


def last_line(text):
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")


def how_it_ended(ended):
    if ended.status < 0:
        return f"ended by signal {-ended.status}"
    return f"ended with status {ended.status}: {last_line(ended.err or ended.out)}"


SILENCE_S = 20  # a program that is slow, but does not hang, has printed a case or a row within this time


def of_killed(ended, limit_s, own_limit_s):
    """Judges a program that was killed after limit_s. If limit_s was the program's own limit, or it had
    printed no case and no row within SILENCE_S, the program hangs, and has failed. It has also failed if one of the
    cases that it printed had. Otherwise there was too little time for it: it is skipped, but its rows are kept. A
    program whose own limit is infinite may be as slow
    and silent as it is."""
    cases = tap_count.cases_of(ended.out)[1]
    failed = [name for verdict, name, _ in cases if verdict == "fail"]
    rows = [row for row in rows_in(ended.out) if "ours_us" in row]
    silent = not cases and not rows and limit_s >= SILENCE_S and own_limit_s < math.inf
    if limit_s >= own_limit_s or failed or silent:
        return fail(*failed[:1] or [f"did not end within {limit_s:.0f} s"], rows=rows)
    found = skip(f"{NO_TIME}: {limit_s:.0f} s were left")
    found.rows = rows
    return found


def of_cases(ended):
    """Judges a program by the TAP that it prints. Without TAP the whole program is one case."""
    if ended.status == tap_count.SKIPPED:
        return skip(last_line(ended.out + ended.err))
    plan, cases = tap_count.cases_of(ended.out)
    found = Verdict("pass", hashes=dict(HASH.findall(ended.out)))
    for verdict, case, reason in cases:
        if verdict == "pass":
            found.passed += 1
        elif verdict == "skip":
            found.skipped.append((case, reason))
        else:
            found.failed.append(case)
    if ended.status == 0 and not cases:
        found.passed = 1
    elif ended.status != 0 and not found.failed:
        found.failed.append(how_it_ended(ended))
    elif plan is not None and plan != len(cases):
        found.failed.append(f"{len(cases)} of its {plan} cases were reported")
    if found.failed:
        found.verdict, found.line = "fail", found.failed[0]
    return found


def rows_in(out):
    """The rows that are complete: the last line of a program that was killed may not be."""
    rows = []
    for line in out.splitlines():
        if line.startswith("{"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def of_rows(ended):
    """Judges a measurement. Each row counts as a case; a missed goal is no failure."""
    if ended.status == tap_count.SKIPPED:
        return skip(last_line(ended.out + ended.err))
    found = Verdict("pass", rows=rows_in(ended.out))
    for row in found.rows:
        name = f"{row['name']}, beside {row['peer']}"
        verdict = figures.verdict_of(row)
        if verdict == "wrong":
            found.failed.append(f"{name}: {row['wrong']}")
        elif verdict == "missing":
            found.skipped.append((name, row["missing"]))
        else:
            found.passed += 1
    if ended.status:
        found.failed.append(how_it_ended(ended))
    elif not found.rows:
        found.failed.append("it printed no figures")
    if found.failed:
        found.verdict, found.line = "fail", found.failed[0]
    return found


def of_checker(ended):
    """Judges a program that ran under compute-sanitizer."""
    out = ended.out + ended.err
    summary = re.findall(r"^=+ (?:ERROR SUMMARY|RACECHECK SUMMARY): .*$", out, re.M)
    line = summary[-1].strip("= ") if summary else last_line(out).strip("= ")
    if ended.status == 0:
        return Verdict("pass", line, passed=1)
    refused = next((text for text in out.splitlines() if text.startswith("=") and REFUSED.search(text)), None)
    if refused:
        return skip(refused.strip("= "))
    if ended.status == tap_count.SKIPPED:
        return skip(line)
    return fail(line if ended.status == FOUND else f"the program {how_it_ended(ended)}")


def of_tool(ended):
    """Judges a tool by its exit status; its output is kept as it is."""
    out = ended.out + ended.err
    refused = next((text for text in out.splitlines() if REFUSED.search(text)), None)
    if ended.status and refused:
        return skip(refused.strip("= "))
    if ended.status:
        return fail(how_it_ended(ended))
    return Verdict("pass", passed=1)


def of_job(saved, plain):
    """Returns what judges a whole job, which is to save parameters in the file `saved`, with the same hash as
    other jobs. `plain`: the job was asked to use no CUDA graphs."""
    def judge(ended):
        events = rows_in(ended.out)
        if ended.status:
            error = next((e.get("error") for e in reversed(events) if e.get("error")), None)
            return fail(error or how_it_ended(ended))
        if not saved.is_file():
            return fail("it saved nothing")
        texts = [e.get("text", "") for e in events if e.get("event") == "device" and e.get("role") == "worker"]
        if not texts or not all(("plain launches" in text) == plain for text in texts):
            return fail(f"expected {'plain launches' if plain else 'CUDA graphs'}: {texts}")
        return Verdict("pass", passed=1, hashes={"saved parameters": hashlib.sha256(saved.read_bytes()).hexdigest()})
    return judge
