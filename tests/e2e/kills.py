#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and terminates processes of small jobs at random times. However that goes,
nobody hangs, no process and no half-written file is left, and a job that ends well has saved the
bytes of an undisturbed one. A job ends well if the launcher and all servers live and one worker
does: whoever is asked to leave (SIGTERM) costs nothing, and neither does one that stands still
for a while. A job that was ended by being asked to, once its steps had begun, has saved how far it came.

usage: kills.py TERN FIRST:COUNT    seeds; one that fails is named, and can be run alone
"""
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
FIRST, COUNT = (int(n) for n in sys.argv[2].split(":"))
LIMIT_S = 120
STEPS = 4000
ACTS_S = 0.4  # from the first step, or in some runs from the start; steps take longer than that
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHM = Path("/dev/shm")


class Process:
    """A `tern` whose output goes to a file, so that nobody need read it."""

    def __init__(self, run, name, *args):
        self.name = name
        self.log = run.directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [job.TERN, *map(str, args)], stdout=log, stderr=subprocess.STDOUT,
                env=dict(os.environ, **{job.MARK: run.mark}))

    def events(self):
        events = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # what is for people, or not whole yet
        return events

    def says(self, name):
        return any(e.get("event") == name for e in self.events())

    def ended(self):
        return self.process.poll() is not None


class Run:
    """One job, and what is done to it: all follows from the seed, but the times."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.directory = job.SCRATCH / f"run-{seed}"
        self.directory.mkdir()
        self.save = self.directory / "save"
        self.mark = f"kills-{os.getpid()}-{seed}"
        self.fabric = self.rng.choice(["shm", "tcp"])
        self.servers, self.workers = self.rng.randint(1, 2), self.rng.randint(1, 3)
        self.by_hand = self.rng.random() < 0.3
        self.for_good = seed % 5 == 4 and self.workers > 1  # somebody stands still
        self.acts = [self.choose() for _ in range(self.rng.randint(1, 3))]
        # A server or the launcher stands still for good: the job must end when it is asked to.
        self.frozen = self.rng.choice(["server", "launcher"]) if (
            seed % 5 == 3 and not self.by_hand) else None
        self.soon = seed % 6 == 3 and not self.for_good  # before the steps, too
        self.processes, self.done, self.landed, self.early = [], [], [], False

    def choose(self):
        """(when, signal, role, index); role "all" is everybody."""
        role = self.rng.choice(["worker"] * 6 + ["server", "launcher", "all"])
        number = self.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGTERM, signal.SIGSTOP])
        if role == "launcher" and self.by_hand:
            role = "worker"
        if role == "all":
            number = self.rng.choice(ENDS)
        index = self.rng.randrange({"worker": self.workers, "server": self.servers}.get(role, 1))
        if self.for_good:
            role, number = "worker", signal.SIGSTOP
            index = self.rng.randrange(1, self.workers)  # worker 0 is left
        return self.rng.uniform(0, ACTS_S), number, role, index

    def options(self):
        return job.small("--slots", 4, "--fabric", self.fabric, "--workers", self.workers,
                         "--servers", self.servers, steps=STEPS)

    def start(self):
        options = [*self.options(), "--save", self.save]
        # Whoever stands still for a while only (half a second) must not be lost for it.
        deadline = ["--worker-timeout", 2]
        if not self.by_hand:
            self.processes = [Process(self, "launcher", "train", *options, *deadline, "--json")]
            return
        servers = [Process(self, f"server-{i}", "server", "--fabric", self.fabric, "--index", i,
                           *deadline, "--json") for i in range(self.servers)]
        self.processes = servers
        job.wait_until(lambda: all(s.says("listening") for s in servers))
        join = ",".join(s.events()[0]["address"] for s in servers)
        self.processes = servers + [
            Process(self, f"worker-{i}", "worker", *options, "--join", join, "--index", i, "--json")
            for i in range(self.workers)]
        job.wait_until(lambda: any(p.says("begun") for p in self.processes))

    def stepping(self):
        return any(p.says("progress") or p.ended() for p in self.processes)

    def running(self):
        """(role, index): pid"""
        found = {}
        for p in Path("/proc").iterdir():
            if not p.name.isdigit():
                continue
            try:
                if f"{job.MARK}={self.mark}".encode() not in (p / "environ").read_bytes():
                    continue
                words = (p / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue  # gone, or not ours
            if len(words) > 2:  # no zombie
                index = int(words[words.index("--index") + 1]) if "--index" in words else 0
                found["launcher" if words[1] == "train" else words[1], index] = int(p.name)
        return found

    def act(self, number, role, index):
        pids = self.running()
        # The launcher gives up if a worker is lost before the steps begin.
        early = not self.stepping()
        self.early = self.early or (early and number != signal.SIGSTOP)
        victims = list(pids) if role == "all" else [(role, index)] if (role, index) in pids else []
        for victim in victims:
            try:
                os.kill(pids[victim], number)
            except ProcessLookupError:
                continue
            self.done.append((number, *victim))
        if victims:
            self.landed.append(role)
        if number == signal.SIGSTOP and victims and not self.for_good:
            time.sleep(self.rng.uniform(0, 0.5))
            for victim in victims:
                try:
                    os.kill(pids[victim], signal.SIGCONT)
                except ProcessLookupError:
                    pass  # another act had ended it

    def freeze(self):
        pids = self.running()
        launcher = self.processes[0].process
        if (self.frozen, 0) not in pids or launcher.poll() is not None:
            return  # it has ended
        os.kill(pids[self.frozen, 0], signal.SIGSTOP)
        time.sleep(self.rng.uniform(0, 1))
        launcher.send_signal(self.rng.choice(ENDS))
        launcher.send_signal(signal.SIGCONT)
        self.done.append((signal.SIGTERM, self.frozen, 0))
        launcher.wait(20)

    def may_fail(self):
        """Is there a reason for the job not to end well?"""
        hurt = {(role, index) for number, role, index in self.done if number != signal.SIGSTOP}
        lost = {index for role, index in hurt if role == "worker"}
        return (self.early or len(lost) == self.workers
                or any(role in ("server", "launcher") for role, _ in hurt))

    def must_save(self):
        """Was it only asked to end, while it had steps to make and everybody answered?"""
        asked = [(number, role) for number, role, _ in self.done if number != signal.SIGSTOP]
        again = len([1 for number, _ in asked if number == signal.SIGINT]) > 1
        return bool(asked) and not (self.early or self.frozen or again) and not any(
            number == signal.SIGKILL for number, _ in asked)

    def wait(self):
        end = time.monotonic() + LIMIT_S
        while not all(p.ended() for p in self.processes):
            waiting = [p for p in self.processes if not p.ended()]
            # By hand nobody ends those that stand still for good.
            if self.by_hand and all((signal.SIGSTOP, *p.name.split("-")) in
                                    {(n, r, str(i)) for n, r, i in self.done} for p in waiting):
                for p in waiting:
                    p.process.kill()
            assert time.monotonic() < end, f"{[p.name for p in waiting]} hang"
            time.sleep(0.02)

    def check(self):
        # A child of a killed launcher is ended by the kernel, in a moment.
        job.wait_until(lambda: not self.running())
        names = sorted(f.name for f in self.save.iterdir()) if self.save.exists() else []
        assert set(names) <= {"model.safetensors", "interrupted.safetensors"}, names
        well = (self.processes[0].process.returncode == 0 if not self.by_hand
                else any(p.says("done") for p in self.processes))
        assert well or self.may_fail(), "it did not end well, and nothing that was done excuses it"
        if well:
            assert names == ["model.safetensors"], names
        if self.must_save():
            assert len(names) == 1, f"asked to end, it saved {names}"
        if "model.safetensors" in names:
            assert (self.save / "model.safetensors").read_bytes() == reference(), (
                "other bytes than undisturbed")

    def go(self):
        shm = set(SHM.iterdir()) if SHM.exists() else set()
        self.start()
        if not self.soon:
            job.wait_until(self.stepping)
        start = time.monotonic()
        for when, number, role, index in sorted(self.acts):
            time.sleep(max(0, start + when - time.monotonic()))
            self.act(number, role, index)
        if self.frozen:
            self.freeze()
        self.wait()
        self.check()
        left = {f.name for f in (set(SHM.iterdir()) if SHM.exists() else set()) - shm
                if "tern" in f.name}
        assert not left, f"left in /dev/shm: {left}"

    def end(self):
        for pid in self.running().values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for p in self.processes:
            p.process.wait()

    def story(self):
        acts = [(signal.Signals(number).name, role, index) for number, role, index in self.done]
        logs = "".join(f"--- {p.name}: {p.process.returncode}\n"
                       + "\n".join(p.log.read_text(errors="replace").splitlines()[-6:]) + "\n"
                       for p in self.processes)
        return (f"{'by hand' if self.by_hand else 'train'}, {self.fabric}, {self.servers} servers, "
                f"{self.workers} workers; done: {acts}\n{logs}")


@functools.cache
def reference():
    """The bytes of an undisturbed job."""
    directory = job.SCRATCH / "reference"
    job.train(*job.small("--slots", 4, "--fabric", "shm", "--save", directory, steps=STEPS))
    return (directory / "model.safetensors").read_bytes()


def whatever_is_killed_nothing_hangs_or_differs():
    acts, landed = 0, 0
    for seed in range(FIRST, FIRST + COUNT):
        run = Run(seed)
        try:
            run.go()
        except AssertionError as e:
            again = f"{sys.argv[0]} TERN {seed}:1"
            raise AssertionError(f"seed {seed}: {e}\n{run.story()}again: {again}") from e
        finally:
            run.end()
        acts, landed = acts + len(run.acts), landed + len(run.landed)
    print(f"# {landed} of {acts} acts met a running process")
    assert COUNT < 10 or landed >= acts / 2, "most came too late: give the jobs more steps"


tap.run([whatever_is_killed_nothing_hangs_or_differs])
