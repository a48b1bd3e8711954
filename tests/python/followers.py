# SPDX-License-Identifier: Apache-2.0
"""Programs under `tern run --replicas 2` whose servers, or followers of servers, are killed. The follower of a killed
server takes its place, the programs stay, and no step is made again. The results have the bytes of a job that nothing
has happened to.

usage: followers.py TERN FACTORISE [CASE...]
"""
import contextlib
import itertools
import os
import re
import signal
import sys

import frameworks
from jobs import SCRATCH, tap
from launched import TORCH, Launched, job

PROGRAM = """if True:
    import sys, pytern
    mode, wait = sys.argv[1:]
    with pytern.Session(steps=3, mode=mode, server_wait=int(wait)) as session:
        w = session.tensor("w", 2)
        for slot in session.slots():
            with slot:
                slot.push(w, slot[w])
                slot.loss(0)
"""


class Followed(Launched):
    """A `tern run --replicas 2`, whose servers have complete followers."""

    def __init__(self, name, **more):
        self.hurt = 0  # number of events before a process was killed last
        super().__init__(name, "--replicas", 2, **more)
        self.servers = range(more.get("servers", 2))

    def stand_still(self):
        """The programs stand still until server 0 knows its follower. Those in C, which cannot be slowed down, might be
        through by then."""
        self.wait("progress")
        programs = [pid for (role, _), pid in self.pids().items() if role == "worker"]
        for pid in programs:
            os.kill(pid, signal.SIGSTOP)
        if not self.said("server 0 is followed by"):
            self.wait("note", "server 0 is followed by")
        for pid in programs:
            os.kill(pid, signal.SIGCONT)

    def complete(self, *indices):
        """Waits until these followers have all of their servers' shares, since a process was killed last."""
        def has_all(event):
            return event["event"] == "note" and "takes its place when that is lost" in event["text"]
        missing = {f"follower {index}" for index in indices}
        missing -= {e["who"] for e in self.running.events[self.hurt:] if has_all(e)}
        while missing:
            missing.discard(self.running.wait_event(has_all)["who"])

    def kill(self, *victims, how=signal.SIGKILL):
        self.hurt = len(self.running.events)
        return super().kill(*victims, how=how)

    def take_over(self, index):
        """Kills a server. Its follower is the server then, and the job makes a step that it had not made before."""
        before = self.kill(("server", index))
        server, follower = before.pop(("server", index)), before.pop(("follower", index))
        text = self.wait("restart")["text"]
        assert re.search(rf"server {index} \(pid {server}\) was killed by signal 9 \(Killed\): its follower \(pid {follower}\) "
                         r"takes its place, and the job goes on from memory; a new follower is started.* \(restart \d, at "
                         r"most 3 in 10 minutes\)", text), text
        self.makes_new_steps()
        now = self.pids()
        assert now["server", index] == follower, (before, now)
        assert before.items() <= now.items(), (before, now)  # all others have stayed

    def check_no_step_repeated(self):
        """The programs were given no step again that was made. They may have two slots of steps that were not: that of
        the next one is handed out before its parameters are here."""
        told = [re.match(r"from (\d+) to (\d+)$", e["text"]) for e in self.running.events if e["event"] == "output"]
        assert all(int(t[1]) - int(t[2]) <= 2 for t in told if t), ([t[0] for t in told if t], self.restarts())
        steps = [e["step"] for e in self.running.events if e["event"] == "progress"]
        # Server 0 may have made a step that another server had not.
        assert all(after >= before - 1 for before, after in itertools.pairwise(steps)), (steps, self.restarts())
        assert not self.said("goes on from snapshot"), self.restarts()

    def end(self, code=0, from_memory=True):
        super().end(code)
        if from_memory:
            self.check_no_step_repeated()


@contextlib.contextmanager
def followed(name, **more):
    """A job that makes steps and whose followers are complete. It is ended at the end of the block."""
    running = Followed(name, **more)
    try:
        if running.kind == "c-followed":
            running.stand_still()
        running.complete(*running.servers)
        yield running
    finally:
        running.running.kill()


def follower_of_a_single_server_takes_over_under_c_programs():
    """No other server can tell the programs where the follower is, and no other process can use the address of a server
    over shm."""
    with followed("c", kind="c-followed", fabric="shm", servers=1) as run:
        run.take_over(0)
        run.end()


def followers_take_over_one_after_the_other_under_numpy_programs():
    with followed("numpy") as run:
        run.take_over(0)
        run.complete(0, 1)  # that of the other server follows anew when the job has gone on
        run.take_over(1)
        run.end()


def followers_take_over_under_torch_programs():
    if not TORCH:
        raise tap.Skip(frameworks.why_not("torch"))
    with followed("torch", kind="torch", fabric="auto") as run:
        run.take_over(0)
        run.end()


def killed_follower_is_started_again():
    with followed("follower") as run:
        before = run.kill(("follower", 1))
        text = run.wait("restart")["text"]
        assert re.search(r"follower 1 \(pid \d+\) was killed by signal 9 \(Killed\): it is started again \(restart 1", text), text
        run.complete(1)
        run.stays(before, ("follower", 1))
        run.take_over(1)
        run.end()


def without_both_the_job_goes_back():
    """A server and its follower are killed at the same moment."""
    with followed("both") as run:
        run.makes_new_steps()  # and has a snapshot
        before = run.kill(("follower", 1), ("server", 1))
        run.wait("restart", "server 1 .* it is started again, and the job goes back to snapshot")
        run.complete(0, 1)
        run.stays(before, ("follower", 1), ("server", 1))
        run.end(from_memory=False)


def launcher_learns_late_who_is_the_server():
    """The launcher stands still while a server is killed and its follower takes the place by itself."""
    with followed("late") as run:
        run.makes_new_steps()
        run.running.process.send_signal(signal.SIGSTOP)
        before = run.kill(("server", 1))
        newest = max(SCRATCH.glob("late.snapshots/*.json"))
        job.wait_until(lambda: max(SCRATCH.glob("late.snapshots/*.json")) > newest)  # steps were made since
        run.running.process.send_signal(signal.SIGCONT)
        run.complete(1)
        run.makes_new_steps()
        assert run.pids()["server", 1] == before["follower", 1]
        run.take_over(0)
        run.end()


def programs_that_exclude_followers_are_refused():
    for mode, wait, says in [("async", 60, "--replicas 2 needs sync mode, and the job of the programs is in async mode"),
                             ("ssp:2", 60, "--replicas 2 needs sync mode, and the job of the programs is in ssp:2 mode"),
                             ("sync", 0, "--replicas 2 needs programs that go back with their job, and a session has "
                              "server_wait=0")]:
        run = job.finish("run", "--json", "--servers", 2, "--workers", 2, "--snapshots", SCRATCH / "refused.snapshots",
                         "--replicas", 2, "--", sys.executable, "-c", PROGRAM, mode, wait, code=2)
        [line] = run.error.splitlines()
        assert line.startswith(f"tern run: {says}"), line


def replicas_are_refused_where_they_are_of_no_use():
    def refused(*more, says):
        job.refused("run", "--replicas", 2, *more, "--", "true", says=[f"tern run: --replicas 2 needs {says}"])

    snapshots = "--snapshots", SCRATCH / "none"
    refused(says="--snapshots DIR")
    refused(*snapshots, "--restarts", 0, says="--restarts above 0")
    refused(*snapshots, "--server-device", "cuda", says="--server-device cpu")
    with job.environment(TERN_SERVER_WAIT="0"):
        refused(*snapshots, says="programs that go back with their job: unset TERN_SERVER_WAIT=0")


CASES = [follower_of_a_single_server_takes_over_under_c_programs,
         followers_take_over_one_after_the_other_under_numpy_programs, followers_take_over_under_torch_programs,
         killed_follower_is_started_again, without_both_the_job_goes_back, launcher_learns_late_who_is_the_server,
         programs_that_exclude_followers_are_refused, replicas_are_refused_where_they_are_of_no_use]
tap.run([case for case in CASES if len(sys.argv) < 4 or case.__name__ in sys.argv[3:]])
