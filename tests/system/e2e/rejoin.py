#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of workers that come in the place of lost ones while the steps run: started by hand, or by the launcher. The
results have the bytes of a job that nothing has happened to.

usage: rejoin.py TERN
"""
import functools
import os
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
import undisturbed  # noqa: E402
from undisturbed import makes_steps, saved  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(8_000)
options = functools.partial(undisturbed.options, STEPS)


def has_come(index):
    return lambda e: e["event"] == "came" and e["worker"] == index


class Hand:
    """Two servers, and workers that are started by hand."""

    def __init__(self, name, fabric):
        self.save = job.SCRATCH / name
        listen = ["--listen", "127.0.0.1:0"] if fabric == "tcp" else []
        self.servers = [job.Job("server", "--fabric", fabric, "--index", i, *listen, "--json") for i in range(2)]
        addresses = [s.wait_event(lambda e: e["event"] == "listening")["address"] for s in self.servers]
        self.common = options("--servers", 2, "--workers", 2, "--join", ",".join(addresses), "--fabric", fabric, "--save",
                              self.save)
        self.workers = [self.worker(i) for i in range(2)]

    def worker(self, index):
        return job.Job("worker", *self.common, "--index", index, "--json")

    def end(self, alive):
        """All that are left end well, with the right bytes."""
        undisturbed.end_well([*self.servers, *alive], self.save, STEPS)


def one_worker_after_the_other(fabric, end):
    """Each worker is ended and started again, so that none of the first ones is left."""
    hand = Hand(f"hand-{fabric}-{end}", fabric)
    for index in range(2):
        hand.workers[index].wait_event(makes_steps)
        hand.workers[index].process.send_signal(end)
        hand.workers[index].end()
        hand.workers[index] = hand.worker(index)
        text = hand.servers[0].wait_event(has_come(index))["text"]
        assert re.search(rf"worker {index} .* has come: from step \d+ on [23] of 5 slots are its", text), text
    hand.end(hand.workers)


def killed_workers_come_again():
    for fabric in job.fabrics("shm", "tcp"):
        one_worker_after_the_other(fabric, signal.SIGKILL)


def workers_that_were_asked_to_end_come_again():
    for fabric in job.fabrics("tcp", "shm"):
        one_worker_after_the_other(fabric, signal.SIGTERM)


def only_one_takes_a_place():
    hand = Hand("two", "tcp")
    hand.workers[0].wait_event(makes_steps)
    job.refused("worker", *hand.common, "--index", 1, says=["worker 1 has joined already"], code=1)
    hand.workers[1].process.kill()
    hand.workers[1].end()
    hand.workers[1] = hand.worker(1)
    hand.servers[0].wait_event(has_come(1))
    job.refused("worker", *hand.common, "--index", 1, says=["worker 1 has joined already"], code=1)
    hand.end(hand.workers)


def in_async_mode_nobody_comes():
    server = job.Job("server", "--fabric", "tcp", "--json")
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    common = job.small("--mode", "async", "--workers", 2, "--join", address, "--fabric", "tcp", steps=job.enough(20_000))
    workers = [job.Job("worker", *common, "--index", i, "--json") for i in range(2)]
    workers[0].wait_event(makes_steps)
    workers[1].process.kill()
    server.wait_event(lambda e: e["event"] == "lost")
    job.refused("worker", *common, "--index", 1, code=1,
                says=["worker 1 of this job was lost: in async mode the job goes on without it"])
    for process in workers[0], server:
        process.kill()
    workers[1].kill()


def launcher_starts_killed_workers_again():
    save = job.SCRATCH / "launcher"
    running = job.Job("train", *options("--servers", 2, "--workers", 3, "--restarts", 2, "--save", save),
                      "--json")
    try:
        for index in 1, 0:
            running.wait_event(makes_steps)
            os.kill(running.pid_of("worker", index), signal.SIGKILL)
            text = running.wait_event(lambda e: e["event"] == "lost")["text"]
            assert "its slots go to the other workers, and it is started again (restart 1, at most 2 in 10 " \
                   "minutes)" in text, text
            running.wait_event(has_come(index))
        running.end()
    finally:
        running.kill()
    assert running.code == 0, running.error
    assert running.events[-1]["event"] == "done"
    assert saved(save) == undisturbed.expected(STEPS), "other bytes"


def launcher_gives_up_after_so_many_restarts():
    save = job.SCRATCH / "gives-up"
    running = job.Job("train", *options("--workers", 2, "--restarts", 1, "--save", save), "--json")
    try:
        for restarts in (True, False):
            running.wait_event(makes_steps)
            os.kill(running.pid_of("worker", 1), signal.SIGKILL)
            text = running.wait_event(lambda e: e["event"] == "lost")["text"]
            assert ("started again" in text) == restarts, text
            if restarts:
                running.wait_event(has_come(1))
        running.end()
    finally:
        running.kill()
    assert running.code == 0, running.error
    assert saved(save) == undisturbed.expected(STEPS), "other bytes"


def program_that_was_killed_comes_again():
    """Under `tern run` each worker is a shell that becomes a program."""
    save = job.SCRATCH / "program"
    worker = ' '.join(str(word) for word in options("--save", save))
    script = (f'exec {job.TERN} worker {worker} --join "$TERN_JOIN" --index "$TERN_INDEX" --workers "$TERN_WORKERS" '
              '--json')
    running = job.Job("run", "--workers", 2, "--restarts", 3, "--json", "--", "sh", "-c", script)
    try:
        running.wait_event(makes_steps)
        os.kill(running.pid_of("worker", 1), signal.SIGKILL)
        text = running.wait_event(lambda e: e["event"] == "lost")["text"]
        assert text.startswith("worker 1 was killed by signal 9") and "it is started again (restart 1" in text, text
        running.wait_event(has_come(1))
        running.end()
    finally:
        running.kill()
    assert running.code == 0, running.error
    assert running.events[-1]["event"] == "done" and running.events[-1]["succeeded"] == 2, running.events[-1]
    assert saved(save) == undisturbed.expected(STEPS), "other bytes"


tap.run([killed_workers_come_again, workers_that_were_asked_to_end_come_again, only_one_takes_a_place,
         in_async_mode_nobody_comes, launcher_starts_killed_workers_again, launcher_gives_up_after_so_many_restarts,
         program_that_was_killed_comes_again])
