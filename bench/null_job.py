# SPDX-License-Identifier: Apache-2.0
"""A job with the model without arithmetic (null_model.c), started by hand or by `tern train`: which steps its workers
have made when, to the microsecond, and what its servers say. tern_snapshots.py and tern_recovery.py measure with it.

The events `progress` come at most five times a second, so they say nothing of a single step, and cannot tell a step
that was made before a kill from one that was made after it. The workers' own marks can.
"""
import argparse
import os
import re
import signal
import statistics
import struct
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.append(str(TOP / "tests" / "harness"))
from watched import HANG_S, Watched  # noqa: E402

RATE = repr(1 / 1024)  # of null_model.c
MARK = struct.Struct("=QQ")  # struct mark of null_model.c
BYTES_MIN = 600_000  # of a smaller model, one of two servers might have no part, and its end would stop nobody


class Marks:
    """The marks of all workers of a job, also of those that were killed."""

    def __init__(self, directory):
        self.directory = directory
        self.environment = dict(os.environ, TERN_NULL_STEPS=str(directory / "marks"))

    def path(self, pid):
        return self.directory / f"marks.{pid}"

    def of(self, path):
        """[(time in s, number of steps that the parameters had)] of each gradient that one worker has begun."""
        data = path.read_bytes()
        return [(ns / 1e9, step) for ns, step in MARK.iter_unpack(data[:len(data) // MARK.size * MARK.size])]

    def all(self):
        """The same of all workers, by time."""
        return sorted(mark for path in self.directory.glob("marks.*") for mark in self.of(path))

    def newest(self):
        """The largest number of steps of which any worker has had the parameters; 0 before the first."""
        found = 0
        for path in self.directory.glob("marks.*"):
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size // MARK.size * MARK.size
                if size:
                    file.seek(size - MARK.size)
                    found = max(found, MARK.unpack(file.read(MARK.size))[1])
        return found


def first_times(marks):
    """[(number of steps, the first time at which a worker had the parameters after so many)], by number. What is made
    again after going back does not count."""
    found = {}
    for at_s, step in marks:
        found.setdefault(step, at_s)
    return sorted(found.items())


def step_times(marks):
    """The durations of the steps, in s: from the first worker that had the parameters before one to the first that had
    those after it. The first two steps are left out: memory is touched, and libraries are loaded."""
    times = [at_s for _, at_s in first_times(marks)][2:]
    return [after - before for before, after in zip(times, times[1:])]


class Timed(Watched):
    """`times` has for each of `events` when it was read, as time.monotonic()."""

    def __init__(self, *args, **more):
        self.times = []
        super().__init__(*args, **more)

    def take(self, event):
        self.times.append(self.heard_s)

    def heard_of(self, name, after_s):
        """When the first event of this name after `after_s` was read; None: there is none."""
        return next((at_s for at_s, e in zip(self.times, list(self.events)) if e["event"] == name and at_s > after_s),
                    None)


class NullJob:
    """A job by hand over tcp, or one of `tern train`. `snapshots`: a folder, or None. `via`: by hand, only server 0
    knows the folder, and the other servers send it their parts. End it with end()."""

    def __init__(self, program, directory, model, servers, workers, steps, snapshots=None, every="", via=False):
        self.program, self.directory, self.servers, self.workers = program, directory, servers, workers
        directory.mkdir(parents=True)
        data = directory / "two.svm"
        data.write_text("1 1:1\n-1 2:1\n")
        self.marks = Marks(directory)
        self.snapshots, self.via = ["--snapshots", snapshots, "--snapshot-every", every] if snapshots else [], via
        self.options = ["--model", model, "--data", data, "--batch", 1, "--steps", steps, "--optimizer", "sgd",
                        "--lr", RATE, "--slots", 2, "--servers", servers, "--workers", workers, "--fabric", "tcp"]
        self.processes, self.addresses, self.former = {}, {}, []

    def start(self, role, *words):
        return Timed([self.program, role, *words, "--json"], env=self.marks.environment)

    def take(self, key, process):
        if key in self.processes:
            self.former.append(self.processes[key])
        self.processes[key] = process
        return process

    def snapshot_words(self, index):
        if index == 0 or not (self.snapshots and self.via):
            return self.snapshots
        return ["--snapshots-via", self.addresses[0]]

    def start_server(self, index, *more):
        """A server. One that comes again is told where another one is."""
        others = [address for i, address in self.addresses.items() if i != index]
        joins = ["--join", others[0]] if index in self.addresses else []
        server = self.take(("server", index), self.start(
            "server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--index", index, *self.snapshot_words(index), *joins,
            *more))
        self.addresses[index] = self.event(server, "listening")["address"]
        return server

    def start_worker(self, index):
        addresses = ",".join(self.addresses[i] for i in range(self.servers))
        return self.take(("worker", index), self.start("worker", *self.options, "--join", addresses, "--index",
                                                       index))

    def by_hand(self):
        for index in range(self.servers):
            self.start_server(index)
        for index in range(self.workers):
            self.start_worker(index)

    def by_launcher(self, *more):
        self.take(("train", 0), self.start("train", *self.options, *self.snapshots, *more))

    def await_followers(self):
        """Waits until the follower of each server that `tern train` has started has all of its server's share."""
        told = "takes its place when that is lost"
        launcher = self.processes["train", 0]
        self.until(lambda: len({e["who"] for e in list(launcher.events) if told in e.get("text", "")}) == self.servers,
                   "a follower of each server")

    def all(self):
        return [*self.processes.values(), *self.former]

    def heard_s(self):
        return max(process.heard_s for process in self.all())

    def until(self, what, says):
        """Waits until what() is true, and returns it. SystemExit with `says` if the job hangs or ends before."""
        while True:
            over = time.monotonic() - self.heard_s() > HANG_S or self.has_ended()
            if found := what():
                return found
            if over:
                sys.exit(f"{says} did not come: {self.last_words()}")
            time.sleep(0.002)

    def has_ended(self):
        return not any(process.lives() for process in self.processes.values())

    def last_words(self):
        """What the processes have said of a failure."""
        said = [process.last("error", "failed", "warning") for process in self.all()]
        return "; ".join(event["text"] for event in said if event) or "no process says why"

    def event(self, process, *names):
        return self.until(lambda: process.last(*names), f"the event {' or '.join(names)}")

    def heard_of(self, name, after_s):
        """When the first event of this name after `after_s` was read, from any process; None: there is none."""
        return min((at_s for p in self.all() if (at_s := p.heard_of(name, after_s)) is not None), default=None)

    def end(self):
        """Kills all processes, and waits for their end. Those that a launcher has started may write snapshots until
        then."""
        started = [pid for p in self.all() if p.lives() for pid in children(p.process.pid).values()]
        for process in self.all():
            process.end()
        while any(map(peak_kib, started)):
            time.sleep(0.002)


def children(pid):
    """{name: pid} of the processes that `pid` has started, by what `ps -o comm` shows, without followers."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if b"--follow" not in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        except OSError:
            continue  # it has just ended
    return found


def peak_kib(pid):
    """The most resident memory that a process has had, in KiB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def kill(pid):
    """Kills a process. Returns when, as time.monotonic()."""
    at_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at_s


def middle(values):
    return statistics.median(values)


# ---- command lines ----

def model(text):
    """(spec, bytes of the parameters) of --model."""
    found = re.fullmatch(r"flat:(\d+)(,\d+)?", text)
    if not found or int(found[1]) < BYTES_MIN:
        raise argparse.ArgumentTypeError(
            f"{text}: expected flat:BYTES or flat:BYTES,US, with at least {BYTES_MIN} bytes")
    return text, int(found[1])


def number(text):
    """A whole number from 1 on."""
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1 on")
    return int(text)


def program(text):
    """The path of a program."""
    path = Path(text).resolve()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such program")
    return path


def parser(about):
    """The arguments that both programs take."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("program", type=program, metavar="TERN_NULL", help="tern with the model without arithmetic")
    found.add_argument("--model", type=model, required=True, metavar="flat:BYTES,US",
                       help="bytes of parameters, and processor time of a gradient")
    found.add_argument("--every", type=number, required=True, metavar="N", help="steps between two snapshots")
    return found
