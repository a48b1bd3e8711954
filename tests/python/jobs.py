# SPDX-License-Identifier: Apache-2.0
"""Starts parameter servers, and Python programs as their workers, for the tests of the Python package."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import pytern

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402, F401

LIMIT_S = 60
_scratch = tempfile.TemporaryDirectory(prefix="tern-python-")
SCRATCH = Path(_scratch.name)


def make_images():
    """IDX files of images in which the place of a bright square is the label."""
    rng = numpy.random.default_rng(4)
    labels = rng.integers(0, 10, 400).astype(numpy.uint8)
    images = rng.integers(0, 100, (400, 28, 28)).astype(numpy.uint8)
    for image, label in zip(images, labels):
        image[label // 5 * 14:label // 5 * 14 + 10, label % 5 * 5:label % 5 * 5 + 6] = 250
    paths = SCRATCH / "images", SCRATCH / "labels"
    for path, array in zip(paths, (images, labels)):
        path.write_bytes(bytes([0, 0, 8, array.ndim]) + numpy.array(array.shape, ">u4").tobytes() + array.tobytes())
    return paths


def close_while_used(thing, *calls):
    """Closes it while threads call these functions of it again and again, until they raise pytern.Error."""
    go = threading.Event()

    def use(call):
        go.wait()
        with contextlib.suppress(pytern.Error):
            while True:
                call()
    threads = [threading.Thread(target=use, args=(call,)) for call in calls for _ in range(2)]
    for thread in threads:
        thread.start()
    go.set()
    time.sleep(0.001)
    thing.close()
    for thread in threads:
        thread.join()


class Process:
    """A program that runs. Its stdout and stderr are read line by line, in the background."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen([str(word) for word in command], text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                        env={**os.environ, **{k: str(v) for k, v in environment.items()}})
        self.lines, self.errors = [], []
        self.changed = threading.Condition()
        self.readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in (
            (self.process.stdout, self.lines), (self.process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            with self.changed:
                lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            lines.append(None)
            self.changed.notify_all()

    def wait_line(self, is_it):
        """Returns the first line of stdout for which is_it(line) is true."""
        def found():
            return [line for line in self.lines if line is None or is_it(line)]
        with self.changed:
            assert self.changed.wait_for(found, LIMIT_S), f"no such line: {self.said()}"
            line = found()[0]
        assert line is not None, f"no such line: {self.said()}"
        return line

    def end(self, code=0):
        """Waits for the end of the program, whose exit code must be `code`."""
        try:
            got = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said()}") from None
        for reader in self.readers:
            reader.join(LIMIT_S)
        assert got == code, f"exit code {got}, expected {code}: {self.said()}"
        return self

    def said(self):
        return "\n".join(str(line) for line in [*self.process.args, *self.lines[-20:], *self.errors[-30:]])

    def error(self):
        return "\n".join(line for line in self.errors if line is not None)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


def first_to_end(processes):
    """Waits until one of the processes ends, and returns it."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for process in processes:
            if process.process.poll() is not None:
                return process
        time.sleep(0.01)
    raise AssertionError("no process ends")


class Job:
    """Servers of a job, and its workers. `with Job(...) as job:` ends all of them at the end of the block."""

    def __init__(self, workers, servers=1, fabric="tcp", *options):
        self.count = workers
        self.servers, self.workers = [], {}
        for i in range(servers):
            self.servers.append(Process(sys.argv[1], "server", "--fabric", fabric, "--listen", "127.0.0.1:0", "--index",
                                        i, "--json", *options))
        self.join = ",".join(json.loads(s.wait_line(lambda line: '"listening"' in line))["address"]
                             for s in self.servers)

    def worker(self, index, *command, **environment):
        """Starts worker `index`: a Python program and its arguments."""
        self.workers[index] = Process(
            sys.executable, "-X", "faulthandler", "-W", "always", *command, TERN_JOIN=self.join,
            TERN_WORKERS=self.count, TERN_INDEX=index, MALLOC_PERTURB_=165, **environment)
        return self.workers[index]

    def end(self, servers=0):
        """Waits for the end of all processes, in which no worker may fail."""
        for process in self.workers.values():
            process.end()
        for process in self.servers:
            process.end(servers)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in [*self.workers.values(), *self.servers]:
            process.kill()
