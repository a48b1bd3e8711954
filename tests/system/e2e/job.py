# SPDX-License-Identifier: Apache-2.0
"""Runs `tern` for a test: reads its JSON lines, checks its exit code, and that it leaves no process."""
import contextlib
import gzip
import json
import os
import pty
import random
import re
import select
import shlex
import signal
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path

import tap

LIMIT_S = 240
REQUEUE = 75  # exit code after SIGTERM if the job can go on from a snapshot
# How many times as long a step takes as without a sanitizer.
SLOWNESS = int(os.environ.get("TERN_TEST_SLOWNESS", "1"))
MARK = "TERN_TEST_MARK"
_scratch = tempfile.TemporaryDirectory(prefix="tern-e2e-")
SCRATCH = Path(_scratch.name)
TERN = None  # set by use()
DRIVERS = []  # set by use_drivers(): simulated CUDA drivers that tern may load
# tern goes on ignoring a signal that was ignored when it began, as under nohup or in the background of a
# shell. The tests send these signals, so the loop makes them end a program again.
for ignored in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)


def use(program):
    global TERN
    TERN = str(Path(program).resolve())


def use_drivers(paths):
    DRIVERS.extend(Path(p).resolve() for p in paths)


@contextlib.contextmanager
def environment(**variables):
    """Programs started meanwhile have these variables in their environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def simulated_gpus(machine=""):
    """Programs started meanwhile find the simulated driver, with `machine` in FAKE_CUDA."""
    if not DRIVERS:
        raise tap.Skip("this tern was built without CUDA")
    with environment(LD_LIBRARY_PATH=":".join(sorted({str(d.parent) for d in DRIVERS})), FAKE_CUDA=machine):
        yield


def data_dir():
    """Returns the directory of the real data sets; skips the case if TERN_DATA_DIR is not set."""
    if "TERN_DATA_DIR" not in os.environ:
        raise tap.Skip("TERN_DATA_DIR is not set")
    return Path(os.environ["TERN_DATA_DIR"])


def marked(mark):
    """Returns {pid: command line} of every running process with this mark."""
    found = {}
    for p in Path("/proc").iterdir():
        if not p.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (p / "environ").read_bytes():
                words = command_line(p.name)
                if words != [""]:  # a zombie has no command line
                    found[int(p.name)] = words
        except OSError:
            continue  # the process has ended, or is another user's
    return found


def command_line(pid):
    return [w.decode() for w in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]


def tree(pid):
    """Returns {pid: command line} of a process and its descendants. Unlike marked() it is quick however many other
    processes there are, so a job cannot come to its end meanwhile."""
    found, unseen = {}, [pid]
    while unseen:
        pid = unseen.pop()
        try:
            for task in Path(f"/proc/{pid}/task").iterdir():
                unseen += map(int, (task / "children").read_text().split())
            words = command_line(pid)
        except OSError:
            continue  # the process, or one of its threads, has ended
        if words != [""]:  # a zombie has no command line
            found[pid] = words
    return found


def index_of_program(pid):
    """The number of the worker that this program of `tern run` is; None: it is none."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it has ended
    return next((int(v.removeprefix(b"TERN_INDEX=")) for v in variables if v.startswith(b"TERN_INDEX=")), None)


def promoted(events):
    """The pids of followers that have taken the places of servers, by the events of a launcher."""
    told = (re.search(r"its follower \(pid (\d+)\) takes its place|follower \d+ \(pid (\d+)\) has taken the place",
                      e["text"]) for e in events if e["event"] in ("restart", "note"))
    return {int(found[1] or found[2]) for found in told if found}


class Job:
    """A running `tern`. Its processes are told from others by a mark in their environment."""

    def __init__(self, *args, prefix=()):
        """`prefix`: the beginning of a command that runs it, such as on another host."""
        self.mark = uuid.uuid4().hex
        self.args = [str(a) for a in args]
        self.process = subprocess.Popen(
            [*prefix, TERN, *self.args], env=dict(os.environ, **{MARK: self.mark}), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=os.setpgrp)
        self.lines = []
        self.events = []

    def wait_event(self, wanted):
        """Waits for the next event for which wanted(event) holds, and returns it."""
        for line in self.process.stdout:
            event = self._take(line)
            if wanted(event):
                return event
        raise AssertionError(f"{self.args}: ended without the event\n{self.process.stderr.read()}"
                             + "".join(self.lines[-20:]))

    def _take(self, line):
        self.lines.append(line)
        event = json.loads(line)
        self.events.append(event)
        return event

    def _rest(self, limit_s):
        """Waits for the end, and returns what is left of stdout and of stderr. Popen.communicate() would lose what
        wait_event() has read ahead."""
        rest = {}

        def read(stream):
            rest[stream] = stream.read()

        streams = [self.process.stdout, self.process.stderr]
        readers = [threading.Thread(target=read, args=[stream], daemon=True) for stream in streams]
        until = time.monotonic() + limit_s
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0, until - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, limit_s)
        self.process.wait(limit_s)
        return [rest[stream] for stream in streams]

    def end(self, limit_s=LIMIT_S):
        """Waits for the end, and returns the exit code. No process may be left."""
        out, self.error = self._rest(limit_s)
        self.lines += out.splitlines()
        if "--json" in self.args:
            self.events += [json.loads(line) for line in out.splitlines()]
        self.last = self.events[-1] if self.events else None
        if self.last and self.last.get("event") == "end":
            self.events.pop()  # this event says only that the job has ended
        self.code = self.process.returncode
        left = self.processes()
        assert not left, f"{self.args}: processes {left} are left"
        return self.code

    def processes(self):
        """Returns {pid: command line} of every running process of this job."""
        return marked(self.mark)

    def pids(self):
        """Returns {(role, index): pid} of the processes that run `tern ROLE ... --index INDEX`. A process that was
        started as a follower (`tern server --follow`) counts as one, also after it has become a server."""
        return {("follower" if "--follow" in words else words[1], int(words[words.index("--index") + 1])): pid
                for pid, words in tree(self.process.pid).items() if "--index" in words}

    def pid_of(self, role, index):
        """pid of the process that runs `tern ROLE ... --index INDEX`."""
        found = self.pids()
        assert (role, index) in found, f"no {role} {index} among {self.processes()}"
        return found[role, index]

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Terminal:
    """A shell at a terminal of its own, in which keys can be typed: "\\x1a" is Ctrl-Z. It runs one
    `tern` at a time, which prints into `log`."""

    def __init__(self, name):
        self.log = SCRATCH / f"{name}.log"
        self.mark = uuid.uuid4().hex
        self.shell, self.keys = pty.fork()
        if self.shell == 0:
            os.environ[MARK] = self.mark
            os.execvp("bash", ["bash", "--norc", "--noediting", "-i"])
        self.closed = False
        self.reader = threading.Thread(target=self._read_all)
        self.reader.start()

    def _read_all(self):
        """Reads what the shell prints, so that the shell does not block. Polls, since a blocked
        read would keep the terminal open."""
        with contextlib.suppress(OSError):  # the shell has ended
            while not self.closed:
                if select.select([self.keys], [], [], 0.05)[0]:
                    os.read(self.keys, 4096)

    def type(self, keys):
        os.write(self.keys, keys.encode())

    def start(self, *args):
        words = shlex.join(map(str, [TERN, *args, "--json"]))
        self.type(f"{words} >{self.log} 2>&1\n")

    def said(self, text):
        return self.log.exists() and text in self.log.read_text()

    def processes(self):
        """pids of the `tern` that runs, and of its children."""
        return [pid for pid in marked(self.mark) if pid != self.shell]

    def close(self):
        """Closes the terminal, as closing its window would."""
        self.closed = True
        self.reader.join()
        os.close(self.keys)
        os.waitpid(self.shell, 0)


def finish(*args, code=0):
    """Runs `tern` with these arguments to its end. Its exit code must be `code`."""
    job = Job(*args)
    try:
        job.end()
    finally:
        job.kill()
    assert job.code == code, (f"{job.args}: exit code {job.code}, expected {code}\n"
                              + "\n".join(job.lines[-5:]) + "\n" + job.error)
    return job


def train(*args):
    """Runs `tern train --json`, which must succeed, and returns its last event."""
    job = finish("train", *args, "--json")
    assert job.events[-1]["event"] == "done", job.events[-1]
    return job.events[-1]


def refused(*args, says, code=2):
    """Checks that `tern` ends with `code` and, beside its progress, one line on stderr, which has
    every text of `says`."""
    job = finish(*args, code=code)
    # LeakSanitizer prints a line with "Unable to get registers" if a thread ends while it looks for leaks.
    lines = [line for line in job.error.splitlines()
             if "Unable to get registers" not in line and not line.startswith("step ")]
    assert len(lines) == 1, f"{args}: not one line: {job.error}"
    for text in says:
        assert text in lines[0], f"{args}: {text!r} is not in {lines[0]!r}"


def info():
    """Returns what `tern info` says of this machine."""
    return json.loads(finish("info", "--json").lines[0])


def fabric_missing(name):
    """Returns why this fabric does not work here; None if it does."""
    return {f["name"]: f.get("why") for f in info()["fabrics"]}.get(name, "without rdma-core")


def wait_until(what, limit_s=20):
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


# ---- data that is made up ----------------------------------------------------------------

SIDE, CLASSES = 6, 4


def write_idx(name, count=1200, seed=1, label_max=CLASSES - 1):
    """Writes images of noise with one bright quarter, whose number is the label. Returns the two paths."""
    rng = random.Random(seed)
    pixels, labels = bytearray(), bytearray()
    for _ in range(count):
        label = rng.randint(0, label_max)
        labels.append(label)
        for y in range(SIDE):
            for x in range(SIDE):
                quarter = (y >= SIDE // 2) * 2 + (x >= SIDE // 2)
                pixels.append(rng.randint(90, 255) if quarter == label % 4
                              else rng.randint(0, 140))
    images = SCRATCH / f"{name}-images.gz"
    label_file = SCRATCH / f"{name}-labels.gz"
    images.write_bytes(gzip.compress(
        struct.pack(">IIII", 0x803, count, SIDE, SIDE) + bytes(pixels)))
    label_file.write_bytes(gzip.compress(struct.pack(">II", 0x801, count) + bytes(labels)))
    return images, label_file


def enough(steps):
    """As many steps as take about as long as `steps` do without a sanitizer, for jobs that must still run when
    something is done to them."""
    return steps // SLOWNESS


def fabrics(first, *others):
    """The fabrics that a case runs over: the first one in CI, all of them in `./run test long` (suite long)."""
    return [first, *others] if os.environ.get("TERN_TEST_FABRICS") == "all" else [first]


def small_data(model="mlp:24,16"):
    """The options of small() that an evaluator has, too."""
    images, labels = SCRATCH / "small-images.gz", SCRATCH / "small-labels.gz"
    if not images.exists():
        write_idx("small")
    return ["--model", model, "--data", images, "--labels", labels, "--split", "1000:200"]


def small(*more, model="mlp:24,16", steps=40, lr="0.01"):
    """Options of a job that takes a second or two and learns."""
    return [*small_data(model), "--batch", 16, "--steps", steps, "--optimizer", "adam", "--lr", lr, "--seed", 7,
            *more]
