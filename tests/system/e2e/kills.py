#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills and stops processes of small jobs, and asks them to end, at random times. Whatever happens,
no process hangs or crashes, and no process and no half-written file is left. Once its steps have begun,
a job ends well if the launcher and all servers live and one worker goes on: a worker that is asked to
leave (SIGTERM) or that stands still costs nothing. A job that ends well has, in sync mode, saved the same
bytes as an undisturbed one. A job that was only asked to end, after its steps had begun, has saved its
parameters (see must_save()), in sync mode those that an undisturbed job has after as many steps, and the
same command line may be run again after it.

usage: kills.py TERN FIRST:COUNT    seeds; one that fails is named, and can be run alone
"""
import functools
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
FIRST, COUNT = (int(n) for n in sys.argv[2].split(":"))
HANG_S = 60  # a job that makes no step for so long hangs
STEPS = 4000
ACTS_S = 0.4  # acts begin within this time after the first step, or after the start; all steps take longer
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HARMLESS = (signal.SIGSTOP, signal.SIGCONT, signal.SIGUSR1)
FINISHED, INTERRUPTED = "model.safetensors", "interrupted.safetensors"


class Process:
    """A `tern` whose output goes to a file, so that nobody need read it."""

    def __init__(self, run, name, *args):
        self.name = name
        self.log = run.directory / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [job.TERN, *map(str, args)], stdout=log, stderr=subprocess.STDOUT,
                env=dict(os.environ, **{job.MARK: run.mark}))

    def text(self):
        return self.log.read_text(errors="replace")

    def place(self):
        """Returns (role, index)."""
        role, _, index = self.name.partition("-")
        return role, int(index or 0)

    def events(self):
        events = []
        for line in self.text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # a line for people, or the beginning of a line
        return events

    def says(self, name):
        return any(e.get("event") == name for e in self.events())

    def ended(self):
        return self.process.poll() is not None


class Run:
    """One job, and what is done to it. All of this follows from the seed, except the times."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.directory = job.SCRATCH / f"run-{seed}"
        self.directory.mkdir()
        self.save = self.directory / "save"
        self.mark = f"kills-{os.getpid()}-{seed}"
        self.fabric = self.rng.choice(["shm", "tcp"])
        self.servers, self.workers = self.rng.randint(1, 2), self.rng.randint(1, 3)
        self.model = self.rng.choice(["mlp:24,16", "mlp:200,30"])  # one chunk, or several
        self.slots = self.rng.choice([1, 4, 4])  # with 1, all workers but one have no slot
        self.mode = self.rng.choice(["sync"] * 4 + ["async"])
        self.by_hand = self.rng.random() < 0.3
        self.timeout_s = self.rng.choice([2, 5])  # less and more than a leaving worker may wait
        # The worker that stands still for good, if there is one.
        self.hung = self.rng.randrange(self.workers) if seed % 5 == 4 and self.workers > 1 else None
        self.acts = [act for _ in range(self.rng.randint(1, 3)) for act in self.choose()]
        if self.hung is not None:
            self.acts.append((self.rng.uniform(0, ACTS_S), signal.SIGSTOP, "worker", self.hung))
        # The server or launcher that stands still for good, if there is one: the job must still end
        # when it is asked to.
        self.frozen = self.rng.choice(
            [("launcher", 0), ("server", self.rng.randrange(self.servers))]) if (
            seed % 5 == 3 and not self.by_hand) else None
        # Acts may come before the first step. By hand all workers have begun by then.
        self.soon = seed % 6 == 3 and self.hung is None
        self.processes, self.done, self.landed, self.early = [], [], [], False

    def choose(self):
        """Returns an act (when, signal, role, index) and, if it stops a process, the act that
        undoes it. Role "all" means all processes."""
        when = self.rng.uniform(0, ACTS_S)
        role = self.rng.choice(["worker"] * 6 + ["server", "launcher", "all"])
        number = self.rng.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP, signal.SIGUSR1,
                                  signal.SIGTERM, *ENDS])
        if role == "launcher" and self.by_hand:
            role = "worker"
        if role == "launcher" and number == signal.SIGUSR1:
            number = signal.SIGTERM  # SIGUSR1 may come before the launcher catches it
        if role == "all":
            number = self.rng.choice(ENDS)
        index = self.rng.randrange({"worker": self.workers, "server": self.servers}.get(role, 1))
        acts = [(when, number, role, index)]
        if number == signal.SIGSTOP and (role, index) != ("worker", self.hung):
            acts.append((when + self.rng.uniform(0, 0.5), signal.SIGCONT, role, index))
        return acts

    def options(self):
        return [*job.small("--slots", self.slots, "--mode", self.mode, "--workers", self.workers,
                           model=self.model, steps=STEPS), "--save", self.save]

    def start(self):
        options = [*self.options(), "--fabric", self.fabric, "--servers", self.servers]
        # A worker that stands still for half a second or less must not be lost for that.
        deadline = ["--worker-timeout", self.timeout_s]
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
        # If a worker is lost before all workers have begun, the servers wait for another one in its place.
        job.wait_until(lambda: all(p.says("begun") for p in self.processes[self.servers:]))

    def stepping(self):
        return any(p.says("progress") or p.ended() for p in self.processes)

    def running(self):
        """Returns {(role, index): pid} of the running processes."""
        found = self.copies()
        # A child that is still a copy of its parent does not count: fork() makes one that lives
        # until exec(), and LeakSanitizer makes one while it looks for leaks. If the latter is
        # killed, its parent waits for it for ever.
        return {place: pid for pid, (place, parent) in found.items()
                if parent not in found or found[parent][0] != place}

    def copies(self):
        """Returns {pid: ((role, index), pid of the parent)}."""
        found = {}
        for p in Path("/proc").iterdir():
            if not p.name.isdigit():
                continue
            try:
                if f"{job.MARK}={self.mark}".encode() not in (p / "environ").read_bytes():
                    continue
                words = (p / "cmdline").read_bytes().decode().split("\0")
                parent = int((p / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # the process has ended, or is another user's
            if len(words) > 2:  # a zombie has no command line
                index = int(words[words.index("--index") + 1]) if "--index" in words else 0
                found[int(p.name)] = ("launcher" if words[1] == "train" else words[1], index), parent
        return found

    def act(self, number, role, index):
        pids = self.running()
        early = not self.stepping()
        victims = list(pids) if role == "all" else [(role, index)] if (role, index) in pids else []
        for victim in victims:
            try:
                os.kill(pids[victim], number)
            except ProcessLookupError:
                continue  # it has ended meanwhile
            self.done.append((number, *victim))
        if victims and number != signal.SIGCONT:
            self.landed.append(role)
        # The launcher gives up if a worker is lost before the steps begin.
        self.early = self.early or (early and bool(victims) and number not in HARMLESS)

    def freeze(self):
        pids = self.running()
        launcher = self.processes[0].process
        if self.frozen not in pids or launcher.poll() is not None:
            return  # it has ended
        os.kill(pids[self.frozen], signal.SIGSTOP)
        time.sleep(self.rng.uniform(0, 1))
        launcher.send_signal(self.rng.choice(ENDS))
        launcher.send_signal(signal.SIGCONT)
        self.done.append((signal.SIGTERM, *self.frozen))
        job.wait_until(lambda: launcher.poll() is not None)

    def hurt(self):
        """Returns (role, index) of the processes that were killed or asked to end."""
        return {(role, index) for number, role, index in self.done if number not in HARMLESS}

    def may_fail(self):
        """Is there a reason for the job not to end well?"""
        lost = {index for role, index in self.hurt() if role == "worker"} | {self.hung} - {None}
        return (self.early or len(lost) == self.workers
                or any(role in ("server", "launcher") for role, _ in self.hurt()))

    def must_save(self):
        """Was the job only asked to end, while it had steps to make and a worker that runs had parameters?"""
        asked = [act for act in self.done if act[0] not in HARMLESS]
        interrupts = [act for act in asked if act[0] == signal.SIGINT]
        aborted = len(interrupts) > len(set(interrupts))
        able = set(range(min(self.slots, self.workers))) - {self.hung}
        return (bool(asked) and bool(able) and not (self.early or self.frozen or aborted)
                and not any(number == signal.SIGKILL for number, _, _ in asked))

    def step(self):
        """The newest step of which any process has told."""
        return max((e["step"] for p in self.processes for e in p.events() if e.get("event") == "progress"),
                   default=0)

    def wait(self):
        step, until = -1, 0
        while not all(p.ended() for p in self.processes):
            waiting = [p for p in self.processes if not p.ended()]
            # By hand there is no launcher to end the worker that stands still for good.
            if [p.name for p in waiting] == [f"worker-{self.hung}"]:
                waiting[0].process.kill()
            if time.monotonic() >= until:
                before, step, until = step, self.step(), time.monotonic() + HANG_S
                assert step > before, f"{[p.name for p in waiting]} hang after step {step}"
            time.sleep(0.02)

    # ---- what has come of it -------------------------------------------------------------

    def check_ends(self):
        """No process has crashed. By hand, if the job has ended well, so has each process to which
        nothing was done."""
        for p in self.processes:
            crash = re.search(r"; where it was:|Sanitizer|killed by signal (4|6|7|8|11) ", p.text())
            assert not crash, f"{p.name} has crashed: {crash[0]}"
        if not self.by_hand or not self.well():
            return
        hurt = self.hurt() | {("worker", self.hung)}
        codes = {p.name: p.process.returncode for p in self.processes
                 if p.place() not in hurt and p.process.returncode != 0}
        assert not codes, f"exit codes of processes that were let alone: {codes}"

    def well(self):
        return (any(p.says("done") for p in self.processes) if self.by_hand
                else self.processes[0].process.returncode == 0)

    def expected(self, steps):
        return reference(self.model, self.slots, steps)

    def check_saved(self):
        names = sorted(f.name for f in self.save.iterdir()) if self.save.exists() else []
        assert set(names) <= {FINISHED, INTERRUPTED}, names
        if self.well():
            assert names == [FINISHED], names
        if self.must_save():
            assert len(names) == 1, f"asked to end, it saved {names}"
        if self.mode == "sync" and FINISHED in names:
            assert (self.save / FINISHED).read_bytes() == self.expected(STEPS), (
                "other bytes than undisturbed")
        if self.mode == "sync" and INTERRUPTED in names:
            metadata, data = parts((self.save / INTERRUPTED).read_bytes())
            steps = int(metadata["tern_step"])
            assert data == parts(self.expected(steps))[1], f"not the parameters of step {steps}"
        return names

    def run_again(self):
        """Runs the same command line again, undisturbed."""
        again = job.Job("train", *self.options(), "--json")
        try:
            assert again.end() == 0, f"the same command line again: {again.error}"
        finally:
            again.kill()
        names = [f.name for f in self.save.iterdir()]
        assert names == [FINISHED], f"the same command line again: {names}"

    def go(self):
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
        # The kernel ends the children of a killed launcher, but not immediately.
        job.wait_until(lambda: not self.running())
        assert self.well() or self.may_fail(), (
            "it did not end well, and nothing that was done excuses it")
        self.check_ends()
        if self.check_saved() == [INTERRUPTED]:
            self.run_again()

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
        return (f"{'by hand' if self.by_hand else 'train'}, {self.mode}, {self.fabric}, "
                f"{self.model}, {self.servers} servers, {self.workers} workers, {self.slots} slots, "
                f"worker {self.hung} hangs; done: {acts}\n{logs}")


def parts(file):
    """Metadata and data of a safetensors file."""
    header = struct.unpack_from("<Q", file)[0]
    return json.loads(file[8:8 + header])["__metadata__"], file[8 + header:]


@functools.cache
def reference(model, slots, steps):
    """Returns the bytes that an undisturbed job saves."""
    directory = job.SCRATCH / f"reference-{model}-{slots}-{steps}"
    job.train(*job.small("--slots", slots, "--fabric", "shm", "--save", directory, model=model,
                         steps=steps))
    return (directory / FINISHED).read_bytes()


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
        acts += sum(act[1] != signal.SIGCONT for act in run.acts)
        landed += len(run.landed)
    print(f"# {landed} of {acts} acts met a running process")
    assert COUNT < 10 or landed >= acts / 2, "most came too late: give the jobs more steps"


tap.run([whatever_is_killed_nothing_hangs_or_differs])
