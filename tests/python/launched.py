# SPDX-License-Identifier: Apache-2.0
"""For in_place.py and followers.py: a `tern run --snapshots`, whose processes are killed. Their command lines begin with
TERN FACTORISE."""
import contextlib
import functools
import os
import re
import signal
import sys
from pathlib import Path

import frameworks
from jobs import HERE, SCRATCH, TOP

sys.path.insert(0, str(TOP / "tests" / "system" / "e2e"))
import job  # noqa: E402

job.use(sys.argv[1])
FACTORISE = sys.argv[2]
TORCH = frameworks.find("torch")
STEPS = {"c": 40_000, "c-followed": 12_000, "numpy": 1_000, "torch": 200}


def command(kind, out):
    if kind.startswith("c"):
        return [FACTORISE, out, STEPS[kind]]
    python = sys.executable if kind == "numpy" else TORCH
    return [python, "-X", "faulthandler", HERE / "back_worker.py", kind, out, STEPS[kind]]


@functools.cache
def undisturbed(kind):
    out = SCRATCH / f"{kind}.undisturbed"
    job.finish("run", "--", *command(kind, out))
    return out.read_bytes()


class Launched:
    """A `tern run` with snapshots, and the pids of its processes."""

    def __init__(self, name, *more, kind="numpy", fabric="tcp", servers=2, workers=2, **variables):
        self.kind, self.out = kind, SCRATCH / name
        with job.environment(BACK_SLOW="1", **variables):
            self.running = job.Job(
                "run", "--json", "--fabric", fabric, "--servers", servers, "--workers", workers, "--snapshots",
                f"{self.out}.snapshots", "--snapshot-every", STEPS[kind] // 40, *more, "--", *command(kind, self.out))

    def wait(self, name, says=""):
        return self.running.wait_event(lambda e: e["event"] == name and re.search(says, e.get("text", "")))

    def pids(self):
        """{(role, index): pid}"""
        found = {}
        for pid, words in job.tree(self.running.process.pid).items():
            if words[1:2] == ["server"]:
                follows = "--follow" in words and pid not in job.promoted(self.running.events)
                found["follower" if follows else "server", int(words[words.index("--index") + 1])] = pid
            elif job.index_of_program(pid) is not None:
                found["worker", job.index_of_program(pid)] = pid
        return found

    def makes_new_steps(self):
        """Waits until the job makes a step that it had not made before, and has a snapshot. Programs in C, which cannot
        be slowed down, might be through by then."""
        if not self.kind.startswith("c") and not any(e["event"] == "snapshot" for e in self.running.events):
            self.wait("snapshot")
        newest = max((e["step"] for e in self.running.events if e["event"] == "progress"), default=0)
        self.running.wait_event(lambda e: e["event"] == "progress" and e["step"] > newest)

    def kill(self, *victims, how=signal.SIGKILL):
        """Ends processes at the same moment. Returns the pids before."""
        before = self.pids()
        for victim in victims:
            os.kill(before[victim], how)
        return before

    def comes(self, before, *victims):
        """Waits until these processes are other ones than before."""
        for victim in victims:
            job.wait_until(lambda: self.pids().get(victim, before[victim]) != before[victim])

    def stays(self, before, *victims):
        """Only these processes are other ones than before, once the job makes new steps."""
        self.comes(before, *victims)
        self.makes_new_steps()
        now = self.pids()
        assert {who for who in now if now[who] != before[who]} == set(victims), (before, now, victims, self.restarts())

    def comes_again(self, *victims, how=signal.SIGKILL):
        """These processes are started again, and all others stay. Returns what is said of the first."""
        before = self.kill(*victims, how=how)
        text = self.wait("restart")["text"]
        self.stays(before, *victims)
        return text

    def all_come_again(self, before, says):
        """All processes are started again, with these words."""
        event = self.wait("restart", "all processes")
        assert "who" not in event and re.search(says, event["text"]), event
        self.makes_new_steps()
        assert not set(before.values()) & set(self.pids().values())

    def end(self, code=0):
        Path(f"{self.out}.go").touch()
        try:
            assert self.running.end() == code, self.running.error + "".join(self.running.lines[-5:])
        finally:
            self.running.kill()
        if code == 0:
            assert self.running.events[-1]["event"] == "done", self.running.events[-1]
            assert self.out.read_bytes() == undisturbed(self.kind), "other bytes"

    def restarts(self):
        return [e["text"] for e in self.running.events if e["event"] == "restart"]

    def said(self, text):
        return any(text in e.get("text", "") for e in self.running.events)


@contextlib.contextmanager
def launched(*words, **more):
    """A job that makes steps, and is ended at the end of the block."""
    running = Launched(*words, **more)
    try:
        running.makes_new_steps()
        yield running
    finally:
        running.running.kill()
