#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills processes of jobs that take snapshots (SIGKILL), at times that follow from the seed: servers, workers and the
launcher, while processes join, while steps are made, while a snapshot is written, while a job goes on after another
kill, and at the end. A launcher that was killed, or has given up, is started again by its user, with other numbers of
servers and workers. Every second job is one whose processes a user starts by hand (chaos_hand.py). In the end each job has saved the bytes of a job that nothing has happened to. A kill counts only
if the job was in the phase that was meant.

usage: chaos.py TERN [--kills K] [--seed S] [--only launcher|hand]
"""
import argparse
import collections
import functools
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import job  # noqa: E402
import undisturbed  # noqa: E402
from chaos_hand import HandStory  # noqa: E402
from watched import HANG_S, Watched, until_new_step  # noqa: E402

STEPS, EVERY = job.enough(2400), job.enough(150)
PHASES = "join", "steps", "snapshot", "recovery", "end"
options = functools.partial(undisturbed.options, STEPS)


class Life(Watched):
    """One `tern train`, from its start to its end."""

    def __init__(self, args, log, again):
        self.mark, self.again = f"chaos-{os.getpid()}-{random.getrandbits(60)}", again
        super().__init__([job.TERN, *args], log, env=dict(os.environ, **{job.MARK: self.mark}))

    def phase(self, directory):
        """What the job does just now."""
        since = [e["event"] for e in list(self.events)]
        again = self.again
        if "restart" in since:
            again = True
            since = since[len(since) - since[::-1].index("restart"):]
        if "progress" not in since:
            return "recovery" if again else "join"
        if any(e["event"] == "progress" and e["step"] == STEPS for e in list(self.events)):
            return "end"
        manifests = {p.stem for p in directory.glob("step-*.json")}
        parts = {p.name.split(".")[0] for p in directory.glob("step-*.safetensors")}
        return "snapshot" if parts - manifests else "steps"

    def processes(self):
        """{(role, index): pid}"""
        found = {}
        for pid, words in job.marked(self.mark).items():
            if len(words) > 2 and words[1] in ("server", "worker"):
                found[words[1], int(words[words.index("--index") + 1])] = pid
            elif len(words) > 2 and words[1] == "train":
                found["launcher", 0] = self.process.pid
        return found

    def wait(self):
        self.process.wait()
        self.reader.join()
        # The kernel ends the children of a killed launcher, but not immediately.
        job.wait_until(lambda: not job.marked(self.mark))
        return self.process.returncode


class Story:
    """One job, whatever becomes of its processes."""

    def __init__(self, seed, kills_left):
        self.rng = random.Random(seed)
        self.seed, self.kills_left = seed, kills_left
        self.directory, self.results = job.SCRATCH / f"{seed}-snapshots", job.SCRATCH / f"{seed}-results"
        self.fabric = self.rng.choice(["shm", "tcp"])
        self.killed, self.recovered_s, self.log = [], [], []

    def start(self):
        servers, workers = self.rng.randint(1, 3), self.rng.randint(1, 3)
        more = ["--resume", self.directory] if list(self.directory.glob("step-*.json")) else []
        self.life = Life(["train", *options(
            "--fabric", self.fabric, "--servers", servers, "--workers", workers, "--save", self.results,
            "--overwrite", "--snapshots", self.directory, "--snapshot-every", EVERY, *more), "--json"],
            self.log, again=bool(self.killed))

    def kill_in(self, phase):
        """Kills a process when the job is in this phase. False: the job has ended, or was not in it for long."""
        role = self.rng.choice(["server"] * 3 + ["worker"] * 2 + ["launcher"])
        limit_s = time.monotonic() + 10
        time.sleep(self.rng.uniform(0, 0.6) if phase == "steps" else self.rng.uniform(0, 0.05))
        victims = []
        while not victims:
            if not self.life.lives() or time.monotonic() > limit_s:
                return False
            time.sleep(0.001)
            if self.life.phase(self.directory) == phase:
                victims = [v for v in self.life.processes() if v[0] == role]
        victim = self.rng.choice(victims)
        was = self.life.step()
        try:
            os.kill(self.life.processes()[victim], signal.SIGKILL)
        except (KeyError, ProcessLookupError):
            return False
        self.killed.append((phase, role))
        self.log.append(f"--- killed {victim} in {phase}, at step {was}")
        self.watch = time.monotonic(), was
        return True

    def go_on(self):
        """Starts the job again if its launcher is gone. True: it has ended well."""
        if self.life.lives():
            return False
        if self.life.wait() == 0:
            return True
        self.log.append(f"--- the launcher has ended with {self.life.process.returncode}")
        self.start()
        return False

    def measure(self):
        """How long it takes until the job has made a step that it had not made before the kill."""
        at_s, step = self.watch
        life = self.life
        took_s = until_new_step(at_s, step, life.step, lambda: life.heard_s, lambda: not life.lives())
        if took_s is not None:
            self.recovered_s.append(took_s)

    def tell(self):
        self.start()
        for _ in range(self.rng.randint(1, 4)):
            if len(self.killed) < self.kills_left and self.kill_in(self.rng.choice(PHASES)):
                if self.rng.random() < 0.5:  # a second one, while the job goes on after the first
                    self.go_on_soon()
                    self.kill_in("recovery")
                self.go_on_soon()
                self.measure()
        while not self.go_on():
            assert time.monotonic() - self.life.heard_s < HANG_S, "no event: it hangs"
            time.sleep(0.02)

    def go_on_soon(self):
        """Gives the launcher time to end, if it was killed or gives up."""
        limit_s = time.monotonic() + 0.5
        while time.monotonic() < limit_s and self.life.lives():
            time.sleep(0.01)
        self.go_on()

    def end(self):
        for pid in job.marked(self.life.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.life.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tern")
    parser.add_argument("--kills", type=int, default=20, help="how many processes are killed (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="the first of the seeds; each job has one (default 1)")
    parser.add_argument("--only", choices=["launcher", "hand"], help="only jobs that are started so")
    asked = parser.parse_args()
    job.use(asked.tern)
    undisturbed.expected(STEPS)
    table, recovered_s, jobs, seed, failed = collections.Counter(), [], 0, asked.seed, 0
    while sum(table.values()) < asked.kills:
        left = asked.kills - sum(table.values())
        if (asked.only or ["launcher", "hand"][seed % 2]) == "hand":
            story = HandStory(seed, left, options, STEPS, EVERY)
        else:
            story = Story(seed, left)
        try:
            story.tell()
            assert undisturbed.saved(story.results) == undisturbed.expected(STEPS), "other bytes"
        except AssertionError as error:
            failed += 1
            print(f"seed {seed}: {error}; killed: {story.killed}", *[n for n in story.log if n.startswith("---")],
                  *story.log[-12:], sep="\n  ", flush=True)
        finally:
            story.end()
        table.update(story.killed)
        recovered_s += story.recovered_s
        jobs += 1
        seed += 1
    for phase in PHASES:
        print(f"killed in {phase}: " + ", ".join(
            f"{table[phase, role]} {role}s" for role in ("server", "worker", "launcher")))
    if recovered_s:
        print(f"until a new step was made: median {statistics.median(recovered_s):.2f} s, "
              f"longest {max(recovered_s):.2f} s, of {len(recovered_s)}")
    print(f"{sum(table.values())} killed in {jobs} jobs: {failed} jobs have other bytes, or hang")
    print("1..1")
    print("not ok" if failed else "ok", 1, "- every job has the bytes of an undisturbed one")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
