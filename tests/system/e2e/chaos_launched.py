# SPDX-License-Identifier: Apache-2.0
"""For chaos.py: jobs that `tern train` or `tern run` has started. A launcher that was killed, was interrupted or has
given up is started again by its user, with other numbers of servers and workers."""
import os
import random
import signal
import time

import job
from chaos_story import PHASES, Story
from watched import Watched


def is_signalled(pid, number):
    """False: the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Life(Watched):
    """One launcher, from its start to its end, with all processes that it starts."""

    def __init__(self, command, log, steps, again):
        self.mark, self.steps, self.again = f"chaos-{os.getpid()}-{random.getrandbits(60)}", steps, again
        super().__init__(command, log, env=dict(os.environ, **{job.MARK: self.mark}))

    def stage(self):
        events = list(self.events)
        since = [e["event"] for e in events]
        again = self.again
        if "restart" in since:
            again = True
            since = since[len(since) - since[::-1].index("restart"):]
        if "progress" not in since:
            return "recovery" if again else "join"
        return "end" if any(e["event"] == "progress" and e["step"] == self.steps for e in events) else "steps"

    def processes(self):
        """{(role, index): pid}"""
        found = {}
        for pid, words in job.marked(self.mark).items():
            if pid == self.process.pid:
                found["launcher", 0] = pid
            elif words[1:2] in (["server"], ["worker"]):
                follows = "--follow" in words and pid not in job.promoted(list(self.events))
                found["follower" if follows else words[1], int(words[words.index("--index") + 1])] = pid
            elif job.index_of_program(pid) is not None:
                found["worker", job.index_of_program(pid)] = pid
        return found

    def wait(self):
        self.process.wait()
        self.reader.join()
        # The kernel ends the children of a killed launcher, but not immediately.
        job.wait_until(lambda: not job.marked(self.mark))
        return self.process.returncode


class LaunchedStory(Story):
    """`command` makes the words of the command line from the options of the launcher and the file of the results. A
    snapshot is taken each `every` steps. With `followers` each server may have one."""

    def __init__(self, seed, left, steps, command, every, disk=None, followers=False):
        super().__init__(seed, left, steps, disk)
        self.command, self.every, self.is_done = command, every, False
        self.replicas = ["--replicas", 2] if followers and self.rng.random() < 0.5 else []

    def start(self):
        servers, workers = self.rng.randint(1, 3), self.rng.randint(1, 3)
        more = ["--resume", self.directory] if self.has_snapshots() else []
        launcher = ["--fabric", self.fabric, "--servers", servers, "--workers", workers, "--snapshots", self.directory,
                    "--snapshot-every", self.every, *self.replicas, "--json", *more]
        self.life = Life([*self.prefix, job.TERN, *self.command(launcher, self.results)], self.log, self.steps,
                         again=bool(self.hit or self.missed))

    # ---- what chaos_story.py asks for ----

    def stage(self):
        return self.life.stage()

    def step(self):
        return self.life.step()

    def events(self):
        return list(self.life.events)

    def heard_s(self):
        return self.life.heard_s

    def is_over(self):
        return self.is_done

    def lives(self):
        return self.life.lives()

    def tend(self):
        """Starts the job again if its launcher is gone."""
        if self.is_done or self.life.lives():
            return
        if self.life.wait() == 0:
            self.is_done = True
            return
        self.log.append(f"--- the launcher has ended with {self.life.process.returncode}")
        self.start()

    def possible(self, phase):
        return [self.signal_one] * 3 + ([self.fill_disk] * 3 if self.disk else [])

    # ---- what happens ----

    def victims(self, role, phase):
        """Its processes of this role, which may have to be started first."""
        found = []
        while not found and self.lives() and self.phase() == phase:
            found = [v for v in self.life.processes().items() if v[0][0] == role]
        return found

    def signal_one(self, phase):
        role = self.rng.choice(["server"] * 3 + ["worker"] * 2 + ["launcher"] + ["follower"] * (3 if self.replicas else 0))
        victims = self.victims(role, phase)
        if not victims:
            return False
        (_, index), pid = self.rng.choice(victims)
        way = self.rng.choice([signal.SIGKILL] * 2 + [signal.SIGINT] if role == "launcher" else
                              [signal.SIGKILL] * 5 + [signal.SIGSTOP])
        fault = f"kill {role}" if way == signal.SIGKILL else f"{way.name} follower" if role == "follower" else way.name
        is_sent = []
        is_hit = self.strike(fault, phase, f"{way.name} to {role} {index}", lambda: is_sent.append(is_signalled(pid, way)))
        if way == signal.SIGSTOP and is_sent[0]:
            time.sleep(self.rng.uniform(0, 3))
            is_signalled(pid, signal.SIGCONT)  # its launcher may have killed it meanwhile
            self.is_over_now(fault)
        return self.count(fault, phase, is_hit and is_sent[0])

    def tell(self):
        self.start()
        for phase in self.draw_phases(PHASES):
            if self.hurt(phase):
                if self.rng.random() < 0.5:  # a second one, while the job goes on after the first
                    self.tend_for_launcher()
                    self.hurt("recovery")
                self.tend_for_launcher()
                self.measure()
        self.tend_to_the_end()

    def tend_for_launcher(self):
        """Gives the launcher time to end, if it was killed or gives up."""
        limit_s = time.monotonic() + 0.5
        while time.monotonic() < limit_s and self.life.lives():
            time.sleep(0.01)
        self.tend()

    def end(self):
        for pid in job.marked(self.life.mark):
            is_signalled(pid, signal.SIGKILL)
        self.life.wait()
