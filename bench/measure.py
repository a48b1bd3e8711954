# SPDX-License-Identifier: Apache-2.0
"""Runs contenders in turn and collects what they print.

A contender is a command; each line of JSON on its stdout is one point of the question (a size,
a number of workers...) with its metrics. A question has several contenders. Every round runs
all of them, and the next round runs them backwards: A B B A. So a machine that gets slower, or
has two speeds, is as slow for each, and ratios are taken within a round.
"""
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field


@dataclass
class Contender:
    key: str  # stable: ratios are compared with committed ones by it
    title: str
    command: list = None
    environment: dict = field(default_factory=dict)
    wait: str = "-"  # "poll", "sleep", or what else it does
    fabric: str = "-"
    missing: str = ""  # why it cannot be run here
    point: object = None  # line of JSON -> name of the point; default: its size
    limit_s: int = 240
    parse: object = None  # stdout -> dictionaries; default: lines of JSON
    ours: bool = False

    def point_of(self, line):
        return str(self.point(line) if self.point else line["size"])


@dataclass
class Question:
    name: str
    title: str
    about: str
    contenders: list
    metrics: list  # (name, unit, "smaller" or "larger" is better), most important first
    axis: str = "bytes of a tensor"
    notes: list = field(default_factory=list)
    # Measures all rounds itself, where they cannot be run one by one:
    # rounds -> {key: {point: {metric: values}}}.
    all_rounds: object = None
    derived: bool = False  # computed from other questions' results, whenever these are there


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    pass


class Missing(Exception):
    """What a question needs cannot be had here."""


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def end_group(process):
    """Whatever a contender started dies with it: mpirun's ranks, servers, workers."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def dies_with_us():
    """Returns what a child does before its program begins: it asks the kernel to kill it when this
    program dies, which may have no time to do so itself; if that has happened already, it ends."""
    us = os.getpid()

    def ask():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:
            os._exit(1)
    return ask


def run_group(command, limit_s, **more):
    """(exit status, stdout, stderr) of a command and all that it started."""
    try:
        process = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True, preexec_fn=dies_with_us(),
                                   errors="replace", **more)
    except OSError as error:
        raise Failed(str(error)) from None
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {limit_s} s") from None
    finally:
        end_group(process)
        process.wait()
    return process.returncode, out, err


def run_once(contender):
    """{point: {metric: value}} of one run; Failed with the last line that it said."""
    status, out, err = run_group(contender.command, contender.limit_s,
                                 env={**os.environ, **contender.environment})
    if status:
        said = [line for line in err.splitlines() if line.strip()] or ["it said nothing"]
        raise Failed(f"exit status {status}: {said[-1].strip()}")
    lines = (contender.parse or json_lines)(out)
    if not lines:
        raise Failed("it printed no figures")
    return {contender.point_of(line): line for line in lines}


# Keys of a result that repeat what was asked for; the other keys are measurements.
GIVEN = {"size", "inflight", "rounds", "bytes", "workers", "servers"}


def numbers(line):
    """Five digits: the sixth is noise, and would be most of the file."""
    return {name: float(f"{value:.5g}") for name, value in line.items() if name not in GIVEN and
            isinstance(value, (int, float)) and not isinstance(value, bool)}


class Record:
    """What a question has shown: goes into results.json as it is."""

    def __init__(self, question):
        self.question = question
        self.found = {c.key: {"title": c.title, "wait": c.wait, "fabric": c.fabric,
                              "ours": c.ours, "points": {}} for c in question.contenders}
        self.missing = {c.title: c.missing for c in question.contenders if c.missing}
        self.failed, self.again = {}, []
        self.seconds = 0.0

    def add(self, key, lines):
        entry = self.found[key]
        for point, line in lines.items():
            metrics = entry["points"].setdefault(point, {})
            for name, value in numbers(line).items():
                metrics.setdefault(name, []).append(value)
            if line.get("version"):
                entry["version"] = line["version"]
            if "pinned" in line:
                entry["pinned"] = line["pinned"]

    def take(self, entry):
        """One round. A contender that failed has no figures: half of its rounds would be
        compared with all of the others'."""
        for key, lines in entry["runs"]:
            if key not in entry["failed"] and key in self.found:
                self.add(key, lines)
        for key, why in entry["failed"].items():
            self.failed[self.found.pop(key)["title"]] = why
        self.again += entry["again"]
        self.seconds += entry["seconds"]

    def take_all(self, entry):
        """All rounds, of a question that measures them itself."""
        for key, points in entry["points"].items():
            self.found[key]["points"] = points
        self.failed.update(entry["failed"])
        self.missing.update(entry["missing"])
        self.seconds += entry["seconds"]

    def as_json(self):
        q = self.question
        return {"title": q.title, "about": q.about, "axis": q.axis, "notes": q.notes + self.again,
                "metrics": q.metrics, "seconds": round(self.seconds, 1),
                "contenders": {k: v for k, v in self.found.items() if v["points"]},
                "missing": self.missing, "failed": self.failed}


def try_twice(contender, number, entry, say):
    """Runs a contender, and adds its figures or its failure to the round. A peer gets a second
    try, since one that fails now and then must not cost the whole run. Tern gets none."""
    try:
        entry["runs"].append([contender.key, run_once(contender)])
        return
    except Failed as failure:
        why = str(failure)
    say(f"  FAILED: {contender.title}: {why}")
    if contender.ours:
        entry["failed"][contender.key] = why
        return
    try:
        entry["runs"].append([contender.key, run_once(contender)])
        entry["again"].append(f"{contender.title} failed in round {number + 1} ({why}) and was "
                              "run once more.")
    except Failed as failure:
        say(f"  FAILED again: {contender.title}: {failure}")
        entry["failed"][contender.key] = str(failure)


def one_round(question, contenders, number, say):
    entry = {"question": question.name, "round": number, "seconds": 0.0, "runs": [], "failed": {},
             "again": []}
    start = time.monotonic()
    for contender in contenders if number % 2 == 0 else contenders[::-1]:
        if contender.key in entry["failed"]:
            continue  # another run of it has failed
        began = time.monotonic()
        try_twice(contender, number, entry, say)
        took = time.monotonic() - began
        if took > 10:
            say(f"  {contender.title}: {took:.0f} s in round {number + 1}")
    entry["seconds"] = time.monotonic() - start
    return entry


def all_rounds(question, rounds, say):
    entry = {"question": question.name, "round": 0, "points": {}, "failed": {}, "missing": {}}
    start = time.monotonic()
    try:
        entry["points"] = question.all_rounds(rounds)
    except Failed as why:
        say(f"  FAILED: {why}")
        entry["failed"][question.title] = str(why)
    except Missing as why:
        say(f"  missing: {why}")
        entry["missing"] = {c.title: str(why) for c in question.contenders}
    entry["seconds"] = time.monotonic() - start
    return entry


def ask(question, rounds, journal, say=lambda text: print(text, file=sys.stderr, flush=True)):
    """The Record of all rounds of a question. Rounds in the journal are taken from it; the others
    are measured and added to it."""
    record = Record(question)
    running = [c for c in question.contenders if not c.missing]
    kept = [] if question.derived else journal.rounds(question.name)
    for title, why in record.missing.items():
        say(f"  missing: {title}: {why}")
    if kept:
        say(f"  {question.name}: {len(kept)} kept")
    if question.all_rounds:
        if running and not kept:
            kept = [all_rounds(question, rounds, say)]
            if not question.derived:
                journal.add(kept[0])
        for entry in kept:
            record.take_all(entry)
        return record
    for number in range(rounds if running else 0):
        if number < len(kept):
            entry = kept[number]
        else:
            entry = one_round(question, [c for c in running if c.key in record.found], number, say)
            journal.add(entry)
        record.take(entry)
        if number >= len(kept):
            say(f"  {question.name}: round {number + 1} of {rounds}, {record.seconds:.0f} s")
    return record
