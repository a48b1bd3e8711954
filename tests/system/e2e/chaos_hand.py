# SPDX-License-Identifier: Apache-2.0
"""For chaos.py: a job whose servers and workers a user has started by hand, and starts again when they are lost: servers at
other ports, and one of the others is told where they are. All others stay. Processes are killed (SIGKILL), asked to end
(SIGTERM, SIGINT), or stopped for a while (SIGSTOP, SIGCONT)."""
import random
import signal
import time

import job
from watched import HANG_S, Watched, until_new_step

WAYS = [signal.SIGKILL] * 5 + [signal.SIGTERM, signal.SIGINT, signal.SIGSTOP]


class Process(Watched):
    """A server or worker."""

    def __init__(self, args, log):
        self.begun_s = 0  # when the steps began
        super().__init__([job.TERN, *args, "--json"], log, f"{args[0]} {args[args.index('--index') + 1]}: ")

    def take(self, event):
        if event["event"] == "begun":
            self.begun_s = self.heard_s

    def makes_steps(self):
        """The job has begun for this process, and has not gone back since."""
        event = self.last("begun", "back")
        return event is not None and event["event"] == "begun"


class HandStory:
    """`options` makes the options of a worker, of a job of so many steps; a snapshot is taken each `every` steps."""

    def __init__(self, seed, kills_left, options, steps, every):
        self.rng = random.Random(seed)
        self.kills_left, self.options, self.steps, self.every = kills_left, options, steps, every
        self.directory, self.results = job.SCRATCH / f"{seed}-snapshots", job.SCRATCH / f"{seed}-results"
        self.fabric = self.rng.choice(["shm", "tcp"])
        self.killed, self.recovered_s, self.log, self.former = [], [], [], []
        # Over shm a server never comes at its old address, so another one must always know where it is.
        self.counts = {"server": self.rng.randint(1 if self.fabric == "tcp" else 2, 3), "worker": self.rng.randint(1, 3)}
        self.addresses = {}
        self.processes = {}
        self.moved_s = 0  # when a server came to its address
        self.hurt_s = 0  # when a server was killed or asked to end

    # ---- what the user types ----

    def start_server(self, index):
        """A server that was lost comes elsewhere, if the user can name another one, and all know where the others are."""
        others = [i for i in range(self.counts["server"]) if i != index]
        again = index in self.addresses
        moves = again and others and self.is_settled(index)
        old = self.addresses[index].split("://")[1] if again else None
        where = [] if self.fabric == "shm" else ["--listen", "127.0.0.1:0" if moves or not again else old]
        more = []
        if again and others:
            more = ["--join", ",".join(self.addresses[i] for i in others)]
        elif again and list(self.directory.glob("step-*.json")):
            more = ["--resume", self.directory]
        self.take("server", index, ["server", "--fabric", self.fabric, "--index", index, *where, "--snapshots", self.directory,
                                    "--snapshot-every", self.every, "--worker-timeout", 2, *more])
        server = self.processes["server", index]
        job.wait_until(lambda: server.last("listening") or not server.lives())
        if server.last("listening"):
            self.moved_s = time.monotonic()
            self.addresses[index] = server.last("listening")["address"]

    def start_worker(self, index):
        self.take("worker", index, [
            "worker", *self.options("--fabric", self.fabric, "--servers", self.counts["server"], "--workers",
                                    self.counts["worker"], "--save", self.results, "--overwrite"),
            "--join", ",".join(self.addresses[i] for i in range(self.counts["server"])), "--index", index])

    def take(self, role, index, args):
        if (role, index) in self.processes:
            self.former.append(self.processes[role, index])
        self.processes[role, index] = Process(args, self.log)

    def start(self, role, index):
        self.start_server(index) if role == "server" else self.start_worker(index)

    def is_settled(self, but=None):
        """True if all servers (but one) are there, and all workers that live know where they are."""
        servers = [self.processes["server", i] for i in range(self.counts["server"]) if i != but]
        return all(s.lives() and s.begun_s > self.moved_s for s in servers)

    def has_begun_since(self, then_s):
        return all(self.processes["server", i].begun_s > then_s for i in range(self.counts["server"]))

    # ---- what happens ----

    def is_done(self):
        return any(p.last("done") for p in [*self.processes.values(), *self.former])

    def step(self):
        return max((p.step() for p in [*self.processes.values(), *self.former]), default=0)

    def phase(self):
        living = [p for p in self.processes.values() if p.lives()]
        if not all(p.makes_steps() for p in living):
            return "recovery" if any(p.last("begun", "back") for p in living) else "join"
        if self.step() == self.steps:
            return "end"
        manifests = {p.stem for p in self.directory.glob("step-*.json")}
        return "snapshot" if {p.name.split(".")[0] for p in self.directory.glob("step-*.safetensors")} - manifests else "steps"

    def hurt(self, phase):
        """Ends or stops a process when the job is in this phase. None: the job has ended, or was not in it for long."""
        limit_s = time.monotonic() + 5
        time.sleep(self.rng.uniform(0, 0.6) if phase == "steps" else self.rng.uniform(0, 0.05))
        while self.phase() != phase:
            if self.is_done() or time.monotonic() > limit_s:
                return None
            time.sleep(0.001)
        role = self.rng.choice(["server", "server", "worker"])
        if self.fabric == "shm" and not (self.is_settled() and self.has_begun_since(self.hurt_s)):
            role = "worker"
        index, way = self.rng.randrange(self.counts[role]), self.rng.choice(WAYS)
        victim, was = self.processes[role, index], self.step()
        if not victim.lives() or self.is_done():
            return None
        victim.process.send_signal(way)
        if role == "server" and way != signal.SIGSTOP:
            self.hurt_s = time.monotonic()
        self.killed.append((phase, role))
        self.log.append(f"--- {way.name} to {role} {index} in {phase}, at step {was}")
        self.watch = time.monotonic(), was
        if way == signal.SIGSTOP:
            time.sleep(self.rng.uniform(0, 3))
            victim.process.send_signal(signal.SIGCONT)
        return role, index

    def replace_lost(self):
        """The user starts again what has ended, after a while, unless the job is done."""
        for (role, index), process in list(self.processes.items()):
            if not process.lives() and not self.is_done():
                time.sleep(self.rng.uniform(0, 0.5))
                self.start(role, index)

    def heard_s(self):
        return max(p.heard_s for p in self.processes.values())

    def measure(self):
        """How long it takes until the job has made a step that it had not made before."""
        at_s, step = self.watch
        took_s = until_new_step(at_s, step, self.step, self.heard_s, self.is_done, self.replace_lost)
        if took_s is not None:
            self.recovered_s.append(took_s)

    def tell(self):
        for role in "server", "worker":
            for index in range(self.counts[role]):
                self.start(role, index)
        for _ in range(self.rng.randint(1, 4)):
            if len(self.killed) >= self.kills_left or not self.hurt(self.rng.choice(["steps", "steps", "snapshot", "end"])):
                continue
            if self.rng.random() < 0.6:  # a second one, while the job goes back
                self.hurt("recovery")
            self.replace_lost()
            if self.rng.random() < 0.3:  # a third one, once the first is started again
                self.hurt("recovery")
            self.measure()
        while not self.is_done():
            assert time.monotonic() - self.heard_s() < HANG_S, "no event: it hangs"
            self.replace_lost()
            time.sleep(0.02)
        job.wait_until(lambda: all(not p.lives() or not p.makes_steps() for p in self.processes.values()), limit_s=30)

    def end(self):
        for process in [*self.processes.values(), *self.former]:
            process.end()
