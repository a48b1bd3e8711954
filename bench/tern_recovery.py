#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a job takes to go on after processes of it were killed (SIGKILL). Prints a line of JSON for each point.

usage: tern_recovery.py TERN_NULL WHO --model flat:BYTES,US --title TITLE --every N [--kills K] [--seed S]
"""
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import null_job
from null_job import NullJob, middle
from watched import until_new_step

STEPS = 2_000_000  # never made; up to here the parameters are exact numbers
# Steps that no process which is killed can have a part in: a step that is being made then may be completed, since all
# gradients of it may have arrived, but the next one needs gradients that are computed later.
BEYOND = 2


@dataclass
class Kill:
    """A kill, and what followed, as time.monotonic()."""
    at_s: float
    newest: int  # steps, of which a worker had the parameters before it
    known_s: float = 0  # a process said that another one was lost
    began_s: float = 0  # the job went on from a snapshot: the first gradient after it went back. 0: it did not go back
    new_s: float = 0  # a worker had the parameters after a step in which the killed process had no part


class Drill:
    """Kills processes of jobs. `options`: those of the command line."""

    def __init__(self, options, scratch):
        self.options, self.scratch, self.rng = options, scratch, random.Random(options.seed)
        self.kills, self.starts_s, self.jobs = [], [], 0
        self.job = self.snapshots = None

    def new_job(self, workers=2):
        if self.snapshots:
            shutil.rmtree(self.snapshots)
        self.jobs += 1
        folder = self.scratch / f"{self.jobs}"
        self.snapshots = folder / "snapshots"
        self.job = NullJob(self.options.program, folder, self.options.model[0], 2, workers, STEPS, self.snapshots,
                           self.options.every)
        return self.job

    def await_snapshot(self):
        """Waits for the next snapshot, and then for an arbitrary part of the time until the one after it."""
        since_s = time.monotonic()
        self.job.until(lambda: self.job.heard_of("snapshot", since_s), "a snapshot")
        time.sleep(self.rng.uniform(0, 1))

    def kill(self, pid):
        return Kill(null_job.kill(pid), self.job.marks.newest())

    def follow(self, kill, event, back_s=None):
        """Waits for the new step, and completes `kill`. event: what is said of the loss. back_s: after this time the
        job makes steps again, if it has gone back."""
        job = self.job
        took_s = until_new_step(kill.at_s, kill.newest + BEYOND - 1, job.marks.newest, job.heard_s,
                                job.has_ended)
        if took_s is None:
            sys.exit(f"the job has ended: {job.last_words()}")
        marks = [(at_s, step) for at_s, step in job.marks.all() if at_s > kill.at_s]
        kill.new_s = next(at_s for at_s, step in marks if step >= kill.newest + BEYOND)
        kill.known_s = job.until(lambda: job.heard_of(event, kill.at_s), f"the event {event}")
        if back_s:
            kill.began_s = next(at_s for at_s, _ in marks if at_s > back_s)
        self.kills.append(kill)

    # ---- who is killed ----

    def worker(self):
        """One of two workers, which is then started again: two points."""
        job = self.new_job()
        job.by_hand()
        for number in range(self.options.kills):
            self.await_snapshot()
            victim, index = job.processes["worker", number % 2], number % 2
            self.follow(self.kill(victim.process.pid), "lost")
            victim.end()
            start_s, worker = time.monotonic(), job.start_worker(index)
            path = job.marks.path(worker.process.pid)
            job.until(lambda: path.exists() and job.marks.of(path), "the first gradient of the worker that came again")
            self.starts_s.append(job.marks.of(path)[0][0] - start_s)

    def server(self):
        """One of two servers, which the user starts again at once, elsewhere."""
        job = self.new_job()
        job.by_hand()
        for number in range(self.options.kills):
            self.await_snapshot()
            victim, index = job.processes["server", number % 2], number % 2
            kill = self.kill(victim.process.pid)
            victim.end()
            job.start_server(index)
            self.follow(kill, "back", time.monotonic())

    def by_launcher(self, name, workers):
        """A process of `tern train`, which starts it again. Each kill is of a new job, since a launcher waits longer
        each further time."""
        for _ in range(self.options.kills):
            job = self.new_job(workers)
            job.by_launcher()
            self.await_snapshot()
            launcher = job.processes["train", 0]
            kill = self.kill(null_job.children(launcher.process.pid)[name])
            back_s = job.until(lambda: job.heard_of("restart", kill.at_s), "the event restart")
            self.follow(kill, "restart", back_s)
            job.end()

    def train_server(self):
        self.by_launcher("tern-server 1", 2)

    def last_worker(self):
        self.by_launcher("tern-worker 0", 1)

    def followed_server(self):
        """A server of `tern train`, whose follower takes its place. Each kill is of a new job, as above."""
        for _ in range(self.options.kills):
            job = self.new_job()
            job.by_launcher("--replicas", 2)
            self.await_snapshot()
            job.await_followers()
            launcher = job.processes["train", 0]
            self.follow(self.kill(null_job.children(launcher.process.pid)["tern-server 1"]), "restart")
            job.end()

    # ---- figures ----

    def reload_s(self):
        """How long it takes to read the newest snapshot and to compare its digests, as servers do when they start."""
        newest = max(self.snapshots.glob("step-*.json"))
        begin_s = time.monotonic()
        subprocess.run([self.options.program, "checkpoint", "verify", str(newest)], check=True,
                       stdout=subprocess.DEVNULL)
        return time.monotonic() - begin_s

    def lines(self):
        goes_back = self.kills[0].began_s > 0
        reload_s = self.reload_s() if goes_back else 0
        found = [line_of(self.options.title, self.kills, reload_s) | {"seed": self.options.seed}]
        if self.starts_s:
            found.append({"point": f"{self.options.title}, {AGAIN}", "kills": len(self.starts_s),
                          "new_step_s": middle(self.starts_s), "worst_s": max(self.starts_s)})
        return found


AGAIN = "started again"  # the point of a worker that was killed and comes again: from its start on
WHO = {"worker": Drill.worker, "server": Drill.server, "train-server": Drill.train_server,
       "last-worker": Drill.last_worker, "followed-server": Drill.followed_server}


def line_of(point, kills, reload_s):
    """The figures of several kills: medians, and the longest of the times until a new step."""
    new_s = [kill.new_s - kill.at_s for kill in kills]
    known_s = [kill.known_s - kill.at_s for kill in kills]
    line = {"point": point, "kills": len(kills), "new_step_s": middle(new_s), "worst_s": max(new_s),
            "detect_s": middle(known_s),
            "beyond_s": middle(new - known - reload_s for new, known in zip(new_s, known_s))}
    if kills[0].began_s:
        line |= {"reload_s": reload_s, "remade_s": middle(kill.new_s - kill.began_s for kill in kills)}
    return line


def parse():
    parser = null_job.parser(__doc__)
    parser.add_argument("who", choices=WHO, metavar="WHO", help=f"who is killed: {', '.join(WHO)}")
    parser.add_argument("--title", required=True, help="the model, in words")
    parser.add_argument("--kills", type=null_job.number, default=5, metavar="K",
                        help="how many processes are killed (default 5)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000,
                        help="of the moments (default: from the clock)")
    return parser.parse_args()


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="tern-recovery-") as scratch:
        drill = Drill(options, Path(scratch))
        try:
            WHO[options.who](drill)
            drill.job.end()
            for line in drill.lines():
                print(json.dumps(line))
        finally:
            if drill.job:
                drill.job.end()


if __name__ == "__main__":
    main()
