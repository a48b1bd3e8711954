# SPDX-License-Identifier: Apache-2.0
"""Runs contenders in turn and collects what they print.

A contender is a command; each line of JSON on its stdout is one point of the question (a size,
a number of workers...) with its metrics. A question has several contenders. Every round runs
all of them, Tern between each two peers, in an order that is shuffled for each pair of rounds,
of which the second runs backwards. So a machine that gets slower, or has two speeds, is as slow
for both sides of a ratio, which is taken between neighbours.
"""
import ctypes
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import figures
import machine

TOP = Path(__file__).resolve().parents[1]
ORDER = ("In each round every peer runs once, and next to it Tern, over the same fabric and waiting "
         "in the same way: two peers share the run of Tern between them, and a peer's ratio is taken "
         "with that run. The order is shuffled anew for each pair of rounds, of which the second "
         "runs backwards. Tern's own figure of a round is the mean of its runs. In the virtual "
         "machine, contenders run forwards and backwards (A B B A). results.json beside this page has "
         "every value, and the command and the environment of every contender.")


@dataclass
class Contender:
    key: str  # names it in results.json and in goals.py, so it must stay the same
    title: str
    command: list = None
    environment: dict = field(default_factory=dict)
    wait: str = "-"  # "poll", "sleep", or what else it does
    fabric: str = "-"
    missing: str = ""  # why it cannot be run here
    point: object = None  # function: line of JSON -> name of the point; default: the line's size
    limit_s: int = 240
    parse: object = None  # function: stdout -> dictionaries; default: lines of JSON
    ours: bool = False
    leads: bool = False  # peers are run next to it, as next to one of ours

    def point_of(self, line):
        return str(self.point(line) if self.point else line["size"])

    def shown(self):
        """The command as one would type it in the top folder, with what it adds to the
        environment. No path of this machine is in it."""
        words = [f"{name}={value}" for name, value in self.environment.items()] + self.command
        text = shlex.join(words).replace(f"{TOP}/", "")
        data = os.environ.get("TERN_DATA_DIR")
        return text.replace(shlex.quote(data), "$TERN_DATA_DIR") if data else text


def mode(wait):
    """How a contender waits, as far as it decides who is compared with whom: what spins for some
    microseconds before it sleeps counts as sleeping."""
    return "sleep" if "sleep" in wait else wait


@dataclass
class Question:
    name: str
    title: str
    about: str
    contenders: list
    metrics: list  # (name, unit, "smaller" or "larger" is better), most important first
    axis: str = "bytes of a tensor"
    notes: list = field(default_factory=list)
    # Function that measures all rounds itself, where they cannot be run one by one:
    # number of rounds -> {key: {point: {metric: values}}}.
    all_rounds: object = None
    derived: bool = False  # computed from other questions' results, whenever these are there
    # Function that compares what a round's runs have printed: [(key, {point: line})] -> {key: why it cannot be right}.
    agree: object = None


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    pass


class Missing(Exception):
    """What a question needs cannot be had here."""


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def end_group(process):
    """Kills all that a contender has started: mpirun's ranks, servers, workers."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def dies_with_us(mask=()):
    """Returns a function for a child to call before its program begins, which gives it this signal
    mask. The child asks the kernel to kill it when this program dies, which may have no time to do so
    itself; if this program has died already, the child ends."""
    us = os.getpid()

    def ask():
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:
            os._exit(1)
    return ask


def run_group(command, limit_s, **more):
    """(exit status, stdout, stderr) of a command and all that it started. A signal that stops this
    program comes when the command can be ended, not while it is started."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        process = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True, preexec_fn=dies_with_us(mask),
                                   errors="replace", **more)
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise Failed(str(error)) from None
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
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
    """The measurements of a line, with five significant digits: more digits are noise, and would be
    most of the file."""
    return {name: float(f"{value:.5g}") for name, value in line.items() if name not in GIVEN and
            isinstance(value, (int, float)) and not isinstance(value, bool)}


class Record:
    """The results of a question, as results.json has them. Each list of values has a place for every
    round, which is None where a contender has no value of that round."""

    def __init__(self, question, rounds):
        self.question, self.rounds = question, rounds
        self.found = {c.key: {"title": c.title, "wait": c.wait, "fabric": c.fabric,
                              "ours": c.ours, "commands": [], "points": {}}
                      for c in question.contenders}
        for c in question.contenders:
            if c.command:
                self.found[c.key]["commands"].append(c.shown())
        self.missing = {c.title: c.missing for c in question.contenders if c.missing}
        self.leading = {c.key for c in question.contenders if c.ours or c.leads}
        self.failed, self.again = {}, []
        self.machine = {}
        self.seconds = 0.0

    def put(self, points, number, lines):
        """Adds the values of round `number` to `points`. lines: {point: {metric: value}}."""
        for point, line in lines.items():
            metrics = points.setdefault(point, {})
            for name, value in line.items():
                metrics.setdefault(name, [None] * self.rounds)[number] = value

    def tell(self, key, lines):
        """Keeps what a contender says of itself beside its figures: its version, and if it was pinned."""
        for line in lines.values():
            for name in ("version", "pinned"):
                if name in line and line[name] != "":
                    self.found[key][name] = line[name]

    def take(self, entry):
        """Adds one round, an entry of the journal. A contender that failed in it loses the figures of
        all rounds: some of its rounds would be compared with all rounds of the others."""
        led = {}  # {key of a leader: the lines of each of its runs in this round}
        for group in entry["groups"]:
            runs = {key: {point: numbers(line) for point, line in lines.items()}
                    for key, lines in group if key not in entry["failed"] and key in self.found}
            for key, lines in group:
                if key in runs:
                    self.tell(key, lines)
            leader = next((key for key in runs if key in self.leading), None)
            for key, lines in runs.items():
                if key == leader:
                    led.setdefault(key, []).append(lines)
                    continue
                self.put(self.found[key]["points"], entry["round"], lines)
                if leader:
                    beside = self.found[key].setdefault("beside", {}).setdefault(leader, {})
                    self.put(beside, entry["round"], self.asked_of(runs[leader]))
        for key, runs in led.items():
            self.put(self.found[key]["points"], entry["round"], mean_of(runs))
        for key, why in entry["failed"].items():
            self.failed[self.found.pop(key)["title"]] = why
        for name, value in entry["machine"].items():
            self.machine.setdefault(name, [None] * self.rounds)[entry["round"]] = value
        for key, took in entry["took_s"].items():
            if key in self.found:
                self.found[key]["took_s"] = round(self.found[key].get("took_s", 0) + took, 1)
        self.again += entry["again"]
        self.seconds += entry["seconds"]

    def asked_of(self, lines):
        """Of a run's lines, the metrics that the question names; the others are not compared."""
        names = {name for name, _, _ in self.question.metrics}
        return {point: {name: value for name, value in line.items() if name in names}
                for point, line in lines.items()}

    def take_all(self, entry):
        """Adds all rounds of a question that measures them itself."""
        for key, points in entry["points"].items():
            self.found[key]["points"] = points
        self.failed.update(entry["failed"])
        self.missing.update(entry["missing"])
        self.seconds += entry["seconds"]

    def as_json(self):
        q = self.question
        return {"title": q.title, "about": q.about, "axis": q.axis, "notes": q.notes + self.again,
                "metrics": q.metrics, "seconds": round(self.seconds, 1), "machine": self.machine,
                "contenders": {k: v for k, v in self.found.items() if v["points"]},
                "missing": self.missing, "failed": self.failed}


def mean_of(runs):
    """{point: {metric: mean}} of several runs of one contender. A point need not be in each run."""
    found = {}
    for lines in runs:
        for point, line in lines.items():
            for name, value in line.items():
                found.setdefault(point, {}).setdefault(name, []).append(value)
    return {point: {name: float(f"{figures.mean(values):.5g}") for name, values in metrics.items()}
            for point, metrics in found.items()}


# ---- the order of a round ----

def neighbourhoods(contenders):
    """[(leader or None, the peers that run next to it)]. Leaders are the contenders of Tern and those
    with `leads`; leaders that follow each other in the list are a block. A peer belongs to the last
    block before it, and there to the first leader that uses the peer's fabric and waits as the peer does; if
    there is none, the peer runs alone (None)."""
    found, block, led = [], {}, False
    for contender in contenders:
        lane = contender.fabric, mode(contender.wait)
        leads = contender.ours or contender.leads
        if leads:
            block = block if led else {}
            found.append((contender, []))
            block.setdefault(lane, found[-1][1])
        elif lane in block:
            block[lane].append(contender)
        else:
            found.append((None, [contender]))
        led = leads
    return found


def shuffled(items, dice):
    return dice.sample(items, len(items))


def order(contenders, name, number):
    """The runs of a round, as groups of neighbours."""
    dice = random.Random(f"{name} {number // 2}")
    groups = []
    for ours, peers in neighbourhoods(contenders):
        peers = shuffled(peers, dice)
        if ours is None:
            groups.append(peers)
            continue
        for first in range(0, max(len(peers), 1), 2):
            pair = peers[first:first + 2]
            groups.append([pair[0], ours, pair[1]] if len(pair) == 2 else [ours, *pair])
    groups = shuffled(groups, dice)
    return [group[::-1] for group in groups[::-1]] if number % 2 else groups


def try_twice(contender, entry, say):
    """The lines of a contender's run; None if it failed, which is noted in the round's `entry`. A peer
    gets a second try, since one that fails now and then must not cost the whole run. Tern gets none."""
    try:
        return run_once(contender)
    except Failed as failure:
        why = str(failure)
    say(f"  FAILED: {contender.title}: {why}")
    if contender.ours:
        entry["failed"][contender.key] = why
        return None
    try:
        lines = run_once(contender)
    except Failed as failure:
        say(f"  FAILED again: {contender.title}: {failure}")
        entry["failed"][contender.key] = str(failure)
        return None
    entry["again"].append(f"{contender.title} failed in round {entry['round'] + 1} ({why}) and was "
                          "run once more.")
    return lines


def one_round(question, contenders, number, say):
    entry = {"question": question.name, "round": number, "seconds": 0.0, "groups": [],
             "failed": {}, "again": [], "machine": {}, "took_s": {}}
    start, before = time.monotonic(), machine.counters()
    for group in order(contenders, question.name, number):
        runs = []
        for contender in group:
            if contender.key in entry["failed"]:
                continue  # another run of this contender has failed in this round
            began = time.monotonic()
            lines = try_twice(contender, entry, say)
            took = time.monotonic() - began
            entry["took_s"][contender.key] = entry["took_s"].get(contender.key, 0) + took
            if lines is not None:
                runs.append([contender.key, lines])
            if took > 10:
                say(f"  {contender.title}: {took:.0f} s in round {number + 1}")
        entry["groups"].append(runs)
    if question.agree:
        wrong = question.agree([run for runs in entry["groups"] for run in runs])
        for key, why in wrong.items():
            say(f"  FAILED: {key}: {why}")
        entry["failed"].update(wrong)
    entry["seconds"] = time.monotonic() - start
    entry["machine"] = machine.disturbance(before, machine.counters())
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
    record = Record(question, rounds)
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
