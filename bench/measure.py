# SPDX-License-Identifier: Apache-2.0
"""Runs contenders in turn and collects what they print.

A contender is a command; each line of JSON on its stdout is one point of the question (a size,
a number of workers...) with its metrics. A question has several contenders. Every round runs
all of them, and the next round runs them backwards: A B B A. So a machine that gets slower, or
has two speeds, is as slow for each, and ratios are taken within a round.
"""
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


class Failed(Exception):
    pass


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def end_group(process):
    """Whatever a contender started dies with it: mpirun's ranks, servers, workers."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_once(contender):
    """{point: {metric: value}} of one run; Failed with the last line that it said."""
    environment = {**os.environ, **contender.environment}
    try:
        process = subprocess.Popen(contender.command, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment, start_new_session=True, errors="replace")
    except OSError as error:
        raise Failed(str(error)) from None
    try:
        out, err = process.communicate(timeout=contender.limit_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {contender.limit_s} s") from None
    finally:
        end_group(process)
        process.wait()
    if process.returncode:
        said = [line for line in err.splitlines() if line.strip()] or ["it said nothing"]
        raise Failed(f"exit status {process.returncode}: {said[-1].strip()}")
    lines = (contender.parse or json_lines)(out)
    if not lines:
        raise Failed("it printed no figures")
    return {contender.point_of(line): line for line in lines}


# What was asked for, and not what was found.
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
        self.failed = {}
        self.seconds = 0.0

    def add(self, contender, lines):
        entry = self.found[contender.key]
        for point, line in lines.items():
            metrics = entry["points"].setdefault(point, {})
            for name, value in numbers(line).items():
                metrics.setdefault(name, []).append(value)
            if line.get("version"):
                entry["version"] = line["version"]
            if "pinned" in line:
                entry["pinned"] = line["pinned"]

    def drop(self, contender, why):
        """A contender that fails once has no figures: half of its rounds would be compared
        with all of the others'."""
        self.failed[contender.title] = why
        self.found.pop(contender.key, None)

    def as_json(self):
        q = self.question
        return {"title": q.title, "about": q.about, "axis": q.axis, "notes": q.notes,
                "metrics": q.metrics, "seconds": round(self.seconds, 1),
                "contenders": {k: v for k, v in self.found.items() if v["points"]},
                "missing": self.missing, "failed": self.failed}


def ask(question, rounds, say=lambda text: print(text, file=sys.stderr, flush=True)):
    """All rounds of a question."""
    record = Record(question)
    running = [c for c in question.contenders if not c.missing]
    start = time.monotonic()
    for title, why in record.missing.items():
        say(f"  missing: {title}: {why}")
    if question.all_rounds and running:
        try:
            for key, points in question.all_rounds(rounds).items():
                record.found[key]["points"] = points
        except Failed as why:
            say(f"  FAILED: {why}")
            record.failed[question.title] = str(why)
        running = []
    for number in range(rounds if running else 0):
        for contender in running if number % 2 == 0 else running[::-1]:
            if contender.key not in record.found:
                continue  # another run of it has failed
            began = time.monotonic()
            try:
                record.add(contender, run_once(contender))
            except Failed as why:
                say(f"  FAILED: {contender.title}: {why}")
                record.drop(contender, str(why))
                running = [c for c in running if c.key != contender.key]
            took = time.monotonic() - began
            if took > 10:
                say(f"  {contender.title}: {took:.0f} s in round {number + 1}")
        say(f"  {question.name}: round {number + 1} of {rounds}, "
            f"{time.monotonic() - start:.0f} s")
    record.seconds = time.monotonic() - start
    return record
