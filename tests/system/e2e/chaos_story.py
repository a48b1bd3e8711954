# SPDX-License-Identifier: Apache-2.0
"""For chaos.py: what all of its jobs have in common, and the table of what has hit which phase.

A fault counts only if the events of the job, and its directory of snapshots, show that it hit the phase that was meant:
they are looked at before the fault, and again when everything that was said before it has been read."""
import collections
import random
import statistics
import time

import job
from watched import HANG_S, until_new_step

PHASES = "join", "steps", "snapshot", "recovery", "end"
# The rows of the table. Each row tells who is hit and how.
FAULTS = ("kill server", "kill worker", "kill follower", "kill launcher", "SIGTERM server", "SIGTERM worker",
          "SIGTERM follower", "SIGINT", "SIGINT follower", "SIGSTOP", "SIGSTOP follower", "drain", "add", "full disk", "cut",
          "loss")
READ_S = 0.01  # within this time the events that a process had printed before a fault are read
LONG_S = 4  # how long a full disk or a cut is kept at most


class Table:
    """How often each fault has hit each phase, and how long jobs took until they made a new step."""

    def __init__(self):
        self.hit, self.missed = collections.Counter(), collections.Counter()
        self.recovered_s = collections.defaultdict(list)

    def take(self, story):
        self.hit.update(story.hit)
        self.missed.update(story.missed)
        for fault, took_s in story.recovered_s:
            self.recovered_s[fault].append(took_s)

    def count(self):
        return sum(self.hit.values())

    def show(self):
        """Prints the table. `missed` has the faults that came too late for the phase, and are not counted."""
        print(f"{'':16}" + "".join(f"{phase:>9}" for phase in PHASES) + "   missed   until a new step")
        for fault in FAULTS:
            counts = "".join(f"{self.hit[fault, phase]:>9}" for phase in PHASES)
            missed = sum(self.missed[fault, phase] for phase in PHASES)
            print(f"{fault:16}{counts}{missed:>9}   {times(self.recovered_s[fault])}".rstrip())
        print("all: " + times([took_s for of_one in self.recovered_s.values() for took_s in of_one]))


def times(all_s):
    if not all_s:
        return ""
    return f"median {statistics.median(all_s):.2f} s, longest {max(all_s):.2f} s, of {len(all_s)}"


class Story:
    """One job, whatever happens to its processes. At most `left` faults are counted. A subclass has stage(), which says
    in which of the phases the job is by its events alone; is_over(): it has ended well; lives(): it may come to another
    phase without its user; step(), heard_s() and events(); tend(), which does what the user does meanwhile; and
    possible(), the faults that can happen now."""

    def __init__(self, seed, left, steps, disk=None):
        self.rng = random.Random(seed)
        self.left, self.steps, self.disk = left, steps, disk
        self.directory, self.results = job.SCRATCH / f"{seed}-snapshots", job.SCRATCH / f"{seed}-results"
        self.seen, self.prefix = self.directory, []
        if disk:
            self.directory, self.seen, self.prefix = disk.at / "snapshots", disk.seen / "snapshots", disk.prefix
        self.fabric = self.rng.choice(["shm", "tcp"])
        self.hit, self.missed, self.recovered_s, self.log = [], [], [], []

    def writing(self):
        """The snapshots that have parts, but no manifest yet."""
        manifests = {p.stem for p in self.seen.glob("step-*.json")}
        return {p.name.split(".")[0] for p in self.seen.glob("step-*.safetensors")} - manifests

    def has_snapshots(self):
        return any(self.seen.glob("step-*.json"))

    def phase(self):
        stage = self.stage()
        return "snapshot" if stage == "steps" and self.writing() else stage

    def draw_phases(self, phases):
        """The phases of one to four faults, in turn. That at the end is the last one, since the job makes no steps then."""
        return sorted((self.rng.choice(phases) for _ in range(self.rng.randint(1, 4))), key=lambda phase: phase == "end")

    def wait_for_end(self):
        """Waits for as long as the job takes: a user starts again what has ended meanwhile."""
        while self.stage() != "end" and not self.is_over():
            if time.monotonic() - self.heard_s() > HANG_S:
                return False
            self.tend()
            time.sleep(0.002)
        return not self.is_over()

    def wait_for(self, phase):
        """Waits until the job is in this phase, at a random moment. False: it has ended, or does not come to it."""
        if phase == "end":
            return self.wait_for_end()
        if phase == "join" and self.stage() != phase:
            return False  # it comes once only
        # A recovery begins soon after a fault, or this fault needs none.
        limit_s = time.monotonic() + (1.5 if phase == "recovery" else 5)
        time.sleep(self.rng.uniform(0, 0.6) if phase == "steps" else self.rng.uniform(0, 0.05))
        while self.phase() != phase:
            if not self.lives() or time.monotonic() > limit_s:
                return False
            time.sleep(0.001)
        return True

    def strike(self, fault, phase, what, act):
        """Lets act() happen to the job. Returns whether it has hit the phase. A fault may begin a recovery at once."""
        writing, was = self.writing(), self.step()
        self.log.append(f"--- {what} in {phase}, at step {was}")
        self.watch = fault, time.monotonic(), was
        act()
        writing &= self.writing()
        time.sleep(READ_S)
        stage = self.stage()
        if phase == "snapshot":
            return bool(writing) and stage in ("steps", "recovery")
        return stage in (phase, "recovery")

    def count(self, fault, phase, is_hit):
        (self.hit if is_hit else self.missed).append((fault, phase))
        if not is_hit:
            self.log.append(f"--- {fault}: not counted, since the events do not show that it has hit {phase}")
        return True

    def is_over_now(self, fault):
        """A fault that lasts is over: the time until a new step counts from here."""
        self.watch = fault, time.monotonic(), self.step()

    def tend_until(self, is_enough, limit_s):
        limit_s += time.monotonic()
        while not is_enough() and time.monotonic() < limit_s:
            self.tend()
            time.sleep(0.02)

    def fill_disk(self, phase):
        """The file system of the snapshots is full until a process has said so, and for a while after that."""
        before = len(self.log)

        def is_told():
            return any("No space left" in line for line in self.log[before:])
        is_hit = self.strike("full disk", phase, "the disk is full", self.disk.fill)
        self.tend_until(is_told, LONG_S)
        self.tend_until(lambda: False, self.rng.uniform(0, 0.5))
        self.disk.free()
        self.is_over_now("full disk")
        self.log.append("--- the disk has room again")
        return self.count("full disk", phase, is_hit and is_told())

    def hurt(self, phase):
        """Lets one of the possible faults happen in this phase. False: the job was not in it, or has no such fault."""
        if len(self.hit) >= self.left or not self.wait_for(phase) or self.is_over():
            return False
        possible = self.possible(phase)
        return bool(possible) and self.rng.choice(possible)(phase)

    def measure(self):
        """How long it takes until the job has made a step that it had not made before."""
        fault, at_s, step = self.watch
        if until_new_step(at_s, step, self.step, self.heard_s, self.is_over, self.tend) is not None:
            # The new step may have been made long before, while the next fault was waited for.
            made_s = min(e["heard_s"] for e in self.events() if e["event"] == "progress" and e["step"] > step)
            self.recovered_s.append((fault, max(0, made_s - at_s)))

    def tend_to_the_end(self):
        begun_s = time.monotonic()
        while not self.is_over():
            assert time.monotonic() - self.heard_s() < HANG_S, "no event: it hangs"
            assert time.monotonic() - begun_s < 4 * HANG_S, "it does not come to its end, though nothing happens to it"
            self.tend()
            time.sleep(0.02)
