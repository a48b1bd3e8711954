#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tern train --snapshots` whose servers, or last worker, are killed: only these processes are started again,
and all others stay. The results have the bytes of a job that nothing has happened to.

usage: in_place.py TERN
"""
import contextlib
import functools
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
import undisturbed  # noqa: E402
from undisturbed import saved  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(4_000)
EVERY = STEPS // 40
options = functools.partial(undisturbed.options, STEPS)


class Launched:
    """A `tern train` with snapshots, and the pids of its processes."""

    def __init__(self, name, *more, servers=2, workers=2, every=EVERY):
        self.save, self.snapshots = job.SCRATCH / name, job.SCRATCH / f"{name}-snapshots"
        self.running = job.Job("train", *options("--servers", servers, "--workers", workers, "--save", self.save,
                                                 "--snapshots", self.snapshots, "--snapshot-every", every, *more),
                               "--json")
        self.restarts = []

    def pids(self):
        return self.running.pids()

    def makes_new_steps(self):
        """Waits until the job has made a step that it had not before, and has taken its first snapshot. Then its workers
        stand still until go_on(), so that it does not come to its end before the test has looked at it."""
        if not any(e["event"] == "snapshot" for e in self.running.events):
            self.running.wait_event(lambda e: e["event"] == "snapshot")
        newest = max((e["step"] for e in self.running.events if e["event"] == "progress"), default=0)
        self.running.wait_event(lambda e: e["event"] == "progress" and e["step"] > newest)
        self.signal_workers(signal.SIGSTOP)

    def signal_workers(self, number):
        for (role, _), pid in self.pids().items():
            if role == "worker":
                with contextlib.suppress(ProcessLookupError):  # kill() has just killed it
                    os.kill(pid, number)

    def go_on(self):
        self.signal_workers(signal.SIGCONT)

    def kill(self, *victims, how=signal.SIGKILL):
        """Ends processes at once. Each must be started again. Returns what is said of that, by process. A worker that
        the servers have lost before they go back is started again alone, which is told with its loss."""
        pids = self.pids()
        for victim in victims:
            os.kill(pids[victim], how)
        self.go_on()
        told = {}
        while len(told) < len(victims):
            event = self.running.wait_event(lambda e: e["event"] in ("restart", "lost", "note")
                                            and re.search("(: |and )it is started again", e["text"]))
            told[re.search(r"(server|worker) (\d+)", event.get("who", event["text"])).groups()] = event
        assert {(role, int(index)) for role, index in told} == set(victims), told
        self.restarts += [event for event in told.values() if event["event"] == "restart"]
        return {(role, int(index)): event["text"] for (role, index), event in told.items()}

    def comes(self, victim, before):
        """Waits until the process is another one than before."""
        job.wait_until(lambda: self.pids().get(victim, before[victim]) != before[victim])

    def stays(self, before, *victims):
        """Only these processes are other ones than before, once the job makes new steps."""
        for victim in victims:
            self.comes(victim, before)
        self.makes_new_steps()
        now = self.pids()
        assert {who for who in now if now[who] != before[who]} == set(victims), (before, now, victims)

    def end(self):
        self.go_on()
        try:
            assert self.running.end() == 0, self.running.error
        finally:
            self.running.kill()
        assert self.running.events[-1]["event"] == "done", self.running.events[-1]
        assert len([e for e in self.running.events if e["event"] == "restart"]) == len(self.restarts)
        assert saved(self.save) == undisturbed.expected(STEPS), "other bytes"


def one_after_the_other(name, victims, *more, **counts):
    launched = Launched(name, *more, **counts)
    launched.makes_new_steps()
    for victim in victims:
        before = launched.pids()
        text = launched.kill(victim)[victim]
        way = "goes on from memory, or from" if victim[0] == "worker" else "goes back to"
        assert re.search(rf"{victim[0]} {victim[1]} \(pid {before[victim]}\) was killed by signal 9 \(Killed\): it is "
                         rf"started again.*, and the job {way} snapshot step-\S+ \(restart \d, at most 3 in 10 minutes\)",
                         text), text
        launched.stays(before, victim)
    launched.end()
    return launched


def one_of_two_servers_comes_again_twice():
    for fabric in job.fabrics("auto", "tcp", "shm"):
        launched = one_after_the_other(f"twice-{fabric}", [("server", 1)] * 2, "--fabric", fabric)
        first, second = launched.restarts
        assert "it is started again, and" in first["text"] and "it is started again in 1 s" in second["text"]
        assert [first["count"], second["count"]] == [1, 2]


def server_0_comes_again():
    for fabric in job.fabrics("tcp", "shm"):
        one_after_the_other(f"zero-{fabric}", [("server", 0), ("server", 1), ("server", 0)], "--fabric", fabric)


def single_server_comes_again_at_its_address():
    for fabric in job.fabrics("tcp", "auto"):
        one_after_the_other(f"single-{fabric}", [("server", 0)], "--fabric", fabric, servers=1)


def last_worker_comes_again():
    for fabric in job.fabrics("shm", "tcp"):
        one_after_the_other(f"last-{fabric}", [("worker", 0)] * 2, "--fabric", fabric, workers=1)


def both(name, *victims, fabric="tcp", **counts):
    """Processes that are killed at the same moment."""
    launched = Launched(name, "--fabric", fabric, **counts)
    launched.makes_new_steps()
    before = launched.pids()
    launched.kill(*victims)
    launched.stays(before, *victims)
    launched.end()


def worker_and_server_come_again_at_once():
    for fabric, index in ("tcp", 1), ("shm", 0):
        both(f"both-{fabric}", ("server", index), ("worker", 1), fabric=fabric)


def all_servers_come_again_at_once():
    both("all-servers", ("server", 0), ("server", 1))
    both("two-of-three", ("server", 0), ("server", 1), fabric="shm", servers=3)


def all_but_the_launcher_come_again_at_once():
    both("all", ("server", 0), ("server", 1), ("worker", 0), ("worker", 1))


def second_one_falls_while_the_job_goes_back():
    """Another server, the one that was just started again, or a worker."""
    for name, fabric, servers, first, second in [
            ("other", "tcp", 2, ("server", 1), ("server", 0)), ("same", "tcp", 2, ("server", 1), ("server", 1)),
            ("zero", "tcp", 2, ("server", 0), ("server", 1)), ("worker", "tcp", 2, ("server", 0), ("worker", 1)),
            ("single", "tcp", 1, ("server", 0), ("server", 0)), ("third", "shm", 3, ("server", 1), ("server", 2))]:
        launched = Launched(f"second-{name}", "--fabric", fabric, servers=servers)
        launched.makes_new_steps()
        before = launched.pids()
        launched.kill(first)
        launched.comes(first, before)
        launched.kill(second)
        launched.stays(before, first, second)
        launched.end()


def without_a_server_to_tell_the_workers_all_are_started_again():
    """Nobody is left over shm that the workers know."""
    launched = Launched("all-shm", "--fabric", "shm")
    launched.makes_new_steps()
    before = launched.pids()
    for index in 0, 1:
        os.kill(before["server", index], signal.SIGKILL)
    launched.go_on()
    text = launched.running.wait_event(lambda e: e["event"] == "restart" and "who" not in e)["text"]
    assert "all processes are started again, and the job goes on from snapshot step-" in text, text
    launched.makes_new_steps()
    assert not set(before.values()) & set(launched.pids().values())
    launched.restarts = [e for e in launched.running.events if e["event"] == "restart"]
    launched.end()


def without_its_port_all_are_started_again():
    """Another program takes the port of a killed server before the second restart, which comes after a pause."""
    launched = Launched("port", "--fabric", "tcp", servers=1)
    address = launched.running.wait_event(lambda e: e["event"] == "start")["join"].removeprefix("tcp://")
    launched.makes_new_steps()
    before, victim = launched.pids(), ("server", 0)
    launched.kill(victim)
    launched.comes(victim, before)
    launched.kill(victim)
    with socket.create_server((address.split(":")[0], int(address.split(":")[1]))):
        text = launched.running.wait_event(lambda e: e["event"] == "restart" and "who" not in e)["text"]
    assert re.search(r"server 0 \(pid \d+\) exited with status 1: all processes are started again", text), text
    launched.restarts = [e for e in launched.running.events if e["event"] == "restart"]
    launched.end()


def server_that_was_asked_to_end_comes_again():
    for index in 0, 1:
        launched = Launched(f"asked-{index}", "--fabric", "tcp")
        launched.makes_new_steps()
        before, victim = launched.pids(), ("server", index)
        assert "exited with status 75: it is started again" in launched.kill(victim, how=signal.SIGTERM)[victim]
        launched.stays(before, victim)
        launched.end()


def without_a_snapshot_it_goes_back_to_the_start():
    launched = Launched("start", "--fabric", "tcp", every=STEPS)
    launched.running.wait_event(undisturbed.makes_steps)
    before, victim = launched.pids(), ("server", 0)
    assert "goes back to its first step" in launched.kill(victim)[victim]
    launched.running.wait_event(lambda e: e["event"] == "snapshot")
    launched.end()
    assert before[victim] not in launched.running.processes()


def interrupted_job_saves():
    """Its servers do not take a snapshot and wait, but let the workers save."""
    for goes_back in False, True:
        launched = Launched(f"interrupted-{goes_back}", "--fabric", "tcp")
        launched.makes_new_steps()
        launched.go_on()
        if goes_back:
            launched.kill(("server", 1))
        launched.running.process.send_signal(signal.SIGTERM)
        try:
            assert launched.running.end() == 75, launched.running.error
        finally:
            launched.running.kill()
        assert goes_back or (launched.save / "interrupted.safetensors").exists()


def of_worker(name, index):
    return lambda e: e["event"] == name and e.get("worker") == index


def with_secret(name, *more, **counts):
    """A launched job that makes steps, the file with its secret, and where its servers are."""
    secret = job.SCRATCH / f"{name}-secret"
    secret.write_text("a secret of the job that its user knows\n")
    secret.chmod(0o600)
    launched = Launched(name, "--fabric", "tcp", "--secret-file", secret, *more, **counts)
    join = launched.running.wait_event(lambda e: e["event"] == "start")["join"]
    launched.makes_new_steps()
    return launched, secret, join


def with_added_worker(name, workers, *more, servers=2):
    """A launched job to which a user has added a worker by hand, and that worker."""
    launched, secret, join = with_secret(name, *more, servers=servers, workers=workers)
    added = job.Job("worker", *options("--servers", servers, "--workers", workers, "--fabric", "tcp", "--save", launched.save),
                    "--join", join, "--secret-file", secret, "--index", workers, "--json")
    added.wait_event(lambda e: e["event"] == "ready")
    launched.go_on()
    assert "slots are its" in launched.running.wait_event(of_worker("came", workers))["text"]
    return launched, added


def worker_that_a_user_has_added_stays_when_others_come_again():
    """A server is killed, and then the launcher's only worker, without which the job goes on: the added one lives."""
    launched, added = with_added_worker("added", 1)
    launched.makes_new_steps()
    before = launched.pids()
    launched.kill(("server", 1))
    launched.stays(before, ("server", 1))
    before = launched.pids()
    text = launched.kill(("worker", 0))["worker", 0]
    assert "its slots go to the other workers, and it is started again" in text, text
    launched.running.wait_event(of_worker("came", 0))
    launched.stays(before, ("worker", 0))
    launched.end()
    try:
        assert added.end() == 0, added.error
    finally:
        added.kill()
    assert any(e["event"] == "done" and e["finisher"] for e in added.events), added.events[-5:]
    assert "test_accuracy" not in launched.running.events[-1], launched.running.events[-1]
    assert len([e for e in added.events if e["event"] == "back"]) == 1, added.events


def added_worker_that_is_killed_costs_nothing():
    """The launcher says so, and does not start it again. When the job goes back later, it does not wait for it for long."""
    launched, added = with_added_worker("added-killed", 2, "--worker-timeout", 1000)
    launched.makes_new_steps()
    before = launched.pids()
    added.kill()
    launched.go_on()
    assert "the job goes on without worker 2" in launched.running.wait_event(of_worker("lost", 2))["text"]
    launched.stays(before)
    launched.kill(("server", 0))
    launched.stays(before, ("server", 0))
    launched.end()


def all_with_an_added_worker_are_lost_at_once():
    """The launcher knows that the job has three workers, and that its own are two. The job does not wait for the third one
    until --worker-timeout."""
    for servers in 2, 1:
        launched, added = with_added_worker(f"added-all-{servers}", 2, "--worker-timeout", 1000, servers=servers)
        launched.makes_new_steps()
        before = launched.pids()
        launched.kill(("server", 0))
        launched.stays(before, ("server", 0))
        added.kill()
        before = launched.pids()
        launched.kill(*before)
        launched.stays(before, *before)
        launched.end()


def removed_server_stays_away_when_all_others_come_again():
    """An operator removes a server, and later all other processes are killed at once. Only the launcher knows then which
    servers the job has."""
    for servers in 3, 2:
        launched, secret, join = with_secret(f"removed-{servers}", servers=servers)
        launched.go_on()
        job.finish("drain", "--join", join, "--server", servers - 1, "--secret-file", secret)
        job.wait_until(lambda: ("server", servers - 1) not in launched.pids())
        before = launched.pids()
        launched.kill(*before)
        launched.stays(before, *before)
        status = job.finish("status", "--join", join, "--secret-file", secret, "--json").last
        assert [s["server"] for s in status["servers"]] == list(range(servers - 1)), status
        before = launched.pids()
        assert "goes on from memory" in launched.kill(("worker", 0), ("worker", 1))["worker", 0]
        launched.stays(before, ("worker", 0), ("worker", 1))
        launched.end()


def server_comes_again_though_the_snapshots_are_gone():
    """The job waits for them, and goes on when they are back."""
    launched = Launched("gone")
    launched.makes_new_steps()
    away = launched.snapshots.rename(job.SCRATCH / "gone-away")
    before = launched.pids()
    text = launched.kill(("server", 1))["server", 1]
    assert "and the job waits for its snapshots, which are gone" in text, text
    launched.running.wait_event(lambda e: "and the job has to go on from one: put it back" in e.get("text", ""))
    away.rename(launched.snapshots)
    launched.stays(before, ("server", 1))
    launched.end()


def removed_server_is_not_started_again():
    """A server is lost for the second time, so the launcher waits for a second, and an operator removes it meanwhile."""
    launched, secret, join = with_secret("removed-lost", servers=3)
    before = launched.pids()
    launched.kill(("server", 2))
    launched.stays(before, ("server", 2))
    before = launched.pids()
    assert "started again in 1 s" in launched.kill(("server", 2))["server", 2]
    job.finish("drain", "--join", join, "--server", 2, "--secret-file", secret)
    launched.makes_new_steps()
    time.sleep(1.5)  # until after it would have come
    del before["server", 2]
    assert launched.pids() == before, launched.pids()
    launched.end()


def interrupted_launcher_ends_its_job_with_an_added_worker():
    launched, added = with_added_worker("added-interrupted", 2)
    launched.running.process.send_signal(signal.SIGTERM)
    try:
        assert launched.running.end() == 75, launched.running.error
        assert added.end() == 1, added.error
    finally:
        launched.running.kill()
        added.kill()
    assert (launched.save / "interrupted.safetensors").exists()


def without_restarts_the_job_ends():
    launched = Launched("none", "--restarts", 0)
    launched.makes_new_steps()
    os.kill(launched.running.pid_of("server", 1), signal.SIGKILL)
    launched.go_on()
    try:
        assert launched.running.end() == 1, launched.running.code
    finally:
        launched.running.kill()
    error = launched.running.error
    assert re.search(r"server 1 .* was killed by signal 9", error.splitlines()[-1]), error


tap.run([one_of_two_servers_comes_again_twice, server_0_comes_again, single_server_comes_again_at_its_address,
         last_worker_comes_again, worker_and_server_come_again_at_once, all_servers_come_again_at_once,
         all_but_the_launcher_come_again_at_once, second_one_falls_while_the_job_goes_back,
         without_a_server_to_tell_the_workers_all_are_started_again, without_its_port_all_are_started_again,
         server_that_was_asked_to_end_comes_again,
         worker_that_a_user_has_added_stays_when_others_come_again, added_worker_that_is_killed_costs_nothing,
         all_with_an_added_worker_are_lost_at_once, removed_server_stays_away_when_all_others_come_again,
         server_comes_again_though_the_snapshots_are_gone, removed_server_is_not_started_again,
         interrupted_launcher_ends_its_job_with_an_added_worker,
         without_a_snapshot_it_goes_back_to_the_start, interrupted_job_saves, without_restarts_the_job_ends])
