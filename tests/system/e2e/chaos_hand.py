# SPDX-License-Identifier: Apache-2.0
"""For chaos.py: a job whose servers and workers a user has started by hand, and starts again when they are lost:
servers at other ports, and one of the others is told where they are. All others stay. In some jobs the user starts a
follower of each server, which takes its place. Processes are killed (SIGKILL), asked to end (SIGTERM, SIGINT), or
stopped for a while (SIGSTOP, SIGCONT). Servers are added, and removed by `tern drain`. On two hosts the link between
them is cut, or loses packets."""
import signal
import time

import job
from chaos_story import Story
from watched import HANG_S, Watched

WAYS = [signal.SIGKILL] * 5 + [signal.SIGTERM, signal.SIGINT, signal.SIGSTOP]
MORE_WAYS = [signal.SIGTERM] * 3  # while processes join and at the end, which are short
SERVERS_MAX = 4
ANSWER_S = 2  # how long the answer to a command is waited for


class Process(Watched):
    """A server, follower or worker. `prefix`: the beginning of the command, such as one that runs it on another host."""

    def __init__(self, prefix, args, log, name):
        self.begun_s = 0  # when the steps began
        self.is_complete = False  # it follows a server, and has all of its share
        super().__init__([*prefix, job.TERN, *args, "--json"], log, name)

    def take(self, event):
        if event["event"] == "begun":
            self.begun_s = self.heard_s
        elif " follows server " in event.get("text", ""):
            self.is_complete = False
        elif "and can take its place" in event.get("text", ""):
            self.is_complete = True

    def makes_steps(self):
        """The job has begun for this process, and has not gone back since."""
        event = self.last("begun", "back")
        return event is not None and event["event"] == "begun"


class HandStory(Story):
    """`options` makes the options of a worker; a snapshot is taken each `every` steps. With `wire` each process runs on
    one of its two hosts. With `followers` servers may be followed."""

    def __init__(self, seed, left, steps, options, every, disk=None, wire=None, followers=False):
        super().__init__(seed, left, steps, disk)
        self.options, self.every, self.wire = options, every, wire
        self.fabric = "tcp" if wire else self.fabric
        # Over shm a server never comes at its old address, so another one must always know where it is.
        self.least = 2 if self.fabric == "shm" else 1
        self.servers = list(range(self.rng.randint(self.least, 3)))  # numbers of the servers that the user wants
        self.members = set(self.servers)  # those that are in the job: one that is added is not, at first
        self.worker_count = self.rng.randint(1, 3)
        self.is_followed = followers and self.rng.random() < 0.5
        self.leaving = {}  # servers that are being removed: the command that asks for it
        self.addresses, self.hosts, self.processes, self.former = {}, {}, {}, []
        self.moved_s = 0  # when a server came to its address
        self.hurt_s = 0  # when a server was killed or asked to end
        self.secret = job.SCRATCH / "secret"
        if not self.secret.exists():
            self.secret.touch(0o600)
            self.secret.write_text("a secret that the test has made up\n")

    # ---- what the user types ----

    def host(self, role, index):
        """The address and the prefix of the host where this process runs, also when it is started again."""
        if not self.wire:
            return "127.0.0.1", self.prefix
        self.hosts.setdefault((role, index), self.rng.randrange(2))
        return self.wire.hosts[self.hosts[role, index]]

    def server_words(self, index, *more):
        return ["server", "--fabric", self.fabric, "--index", index, "--snapshots", self.directory,
                "--snapshot-every", self.every, "--worker-timeout", 2, *more]

    def start_server(self, index):
        """A server that was lost comes elsewhere, if the user can name another one, and all know where the others are.
        Server 0 is named if it lives, since it adds those that are not in the job."""
        others = [i for i in self.servers if i != index and i in self.members]
        again, is_new = index in self.addresses, index not in self.members
        moves = again and others and self.is_settled(index)
        where = []
        if self.fabric != "shm":
            at = self.addresses[index].split("://")[1] if again and not moves and not is_new else None
            where = ["--listen", at or f"{self.host('server', index)[0]}:0"]
        more = []
        if is_new:
            more = ["--join", self.addresses[0]]
        elif again and others:
            more = ["--join", ",".join(self.addresses[i] for i in others)]
        elif again and self.has_snapshots():
            more = ["--resume", self.directory]
        self.take("server", index, self.server_words(index, *where, *more))
        server = self.processes["server", index]
        job.wait_until(lambda: server.last("listening") or not server.lives())
        if server.last("listening"):
            self.moved_s = time.monotonic()
            self.addresses[index] = server.last("listening")["address"]

    def start_follower(self, index):
        where = [] if self.fabric == "shm" else ["--listen", f"{self.host('follower', index)[0]}:0"]
        self.take("follower", index, self.server_words(index, "--follow", self.addresses[index], *where))

    def follower_takes_over(self, index):
        """The follower of a lost server is the server from now on, if it has all of its share. Else the user ends it."""
        follower = self.processes.pop(("follower", index), None)
        if not follower:
            return False
        if not follower.lives() or not follower.is_complete:
            follower.end()
            self.former.append(follower)
            return False
        self.log.append(f"--- follower {index} is the server now")
        self.former.append(self.processes["server", index])
        self.processes["server", index] = follower
        self.addresses[index] = follower.last("listening")["address"]
        self.hosts["server", index] = self.hosts.get(("follower", index))
        self.moved_s = time.monotonic()
        return True

    def start_worker(self, index):
        members = sorted(self.members)
        self.take("worker", index, [
            "worker", *self.options("--fabric", self.fabric, "--servers", len(members), "--workers", self.worker_count,
                                    "--save", self.results, "--overwrite"),
            "--join", ",".join(self.addresses[i] for i in members), "--index", index])

    def take(self, role, index, args):
        if (role, index) in self.processes:
            self.former.append(self.processes[role, index])
        secret = ["--secret-file", self.secret] if self.wire else []
        self.processes[role, index] = Process(
            self.host(role, index)[1], [*args, *secret], self.log, f"{role} {index}: ")

    def start_again(self, role, index):
        if role == "worker":
            self.start_worker(index)
        elif not self.follower_takes_over(index):
            self.start_server(index)

    def is_settled(self, but=None):
        """True if all servers (but one) are there, and all workers that live know where they are."""
        servers = [self.processes["server", i] for i in self.servers if i != but]
        return all(s.lives() and s.begun_s > self.moved_s for s in servers)

    def has_begun_since(self, then_s):
        return all(self.processes["server", i].begun_s > then_s for i in self.servers)

    # ---- what chaos_story.py asks for ----

    def all(self):
        return [*self.processes.values(), *self.former]

    def is_over(self):
        return any(p.last("done") for p in self.all())

    def lives(self):
        return not self.is_over()

    def step(self):
        return max((p.step() for p in self.all()), default=0)

    def events(self):
        return [event for process in self.all() for event in list(process.events)]

    def heard_s(self):
        return max(p.heard_s for p in self.processes.values())

    def stage(self):
        living = [p for (role, _), p in self.processes.items() if role != "follower" and p.lives()]
        if not all(p.makes_steps() for p in living):
            return "recovery" if any(p.last("begun", "back") for p in self.all()) else "join"
        return "end" if self.step() == self.steps else "steps"

    def tend(self):
        """The user starts again what has ended, after a while, unless the job is done."""
        self.members |= {i for i in self.servers if self.processes["server", i].begun_s}
        for index, asking in list(self.leaving.items()):
            if asking.lives():
                continue
            asking.end()  # all of its events are read then
            if not (asking.last("drained") and self.processes["server", index].lives()):
                self.remove_server(index, asking)
        for (role, index), process in list(self.processes.items()):
            if role != "follower" and not process.lives() and not self.is_over() and not (
                    role == "server" and index in self.leaving):
                time.sleep(self.rng.uniform(0, 0.5))
                self.start_again(role, index)
        if self.is_followed and self.stage() == "steps":
            self.tend_followers()

    def has_followers(self):
        followers = [self.processes.get(("follower", i)) for i in self.servers]
        return self.is_over() or all(f and f.is_complete and f.lives() for f in followers)

    def tend_followers(self):
        for index in self.servers:
            server, follower = self.processes["server", index], self.processes.get(("follower", index))
            if server.lives() and server.makes_steps() and not (follower and follower.lives()):
                self.start_follower(index)

    def possible(self, phase):
        chosen = [self.signal_one] * 3
        if self.disk:
            chosen += [self.fill_disk] * 5
        if self.wire:
            chosen += [self.cut_link] * 2 + [self.lose_packets] * 2
        if not self.leaving and self.processes["server", 0].lives() and (phase == "join" or self.is_settled()):
            chosen += [self.add_server] * 2 * (len(self.servers) < SERVERS_MAX)
            chosen += [self.drain_server] * 2 * (len(self.servers) > self.least)
        return chosen

    # ---- what happens ----

    def signal_one(self, phase):
        """Ends or stops a process."""
        role = self.rng.choice(["server", "server", "worker"] + ["follower"] * 2 * self.is_followed)
        if self.fabric == "shm" and role == "server" and not (self.is_settled() and self.has_begun_since(self.hurt_s)):
            role = "worker"
        victims = [(i, p) for (what, i), p in self.processes.items()
                   if what == role and p.lives() and not (role == "server" and i in self.leaving)]
        if not victims or self.is_over():
            return False
        index, victim = self.rng.choice(victims)
        way = self.rng.choice(WAYS + MORE_WAYS * (phase in ("join", "end")))
        fault = {signal.SIGKILL: f"kill {role}", signal.SIGTERM: f"SIGTERM {role}"}.get(way, way.name)
        if role == "follower" and way in (signal.SIGSTOP, signal.SIGINT):
            fault = f"{way.name} follower"
        is_hit = self.strike(fault, phase, f"{way.name} to {role} {index}", lambda: victim.process.send_signal(way))
        if role == "server" and way != signal.SIGSTOP:
            self.hurt_s = time.monotonic()
        if way == signal.SIGSTOP:
            time.sleep(self.rng.uniform(0, 3))
            victim.process.send_signal(signal.SIGCONT)
            self.is_over_now(fault)
        elif way == signal.SIGKILL:
            victim.process.wait()
            is_hit = is_hit and victim.process.returncode == -signal.SIGKILL  # it had not ended by itself before
        return self.count(fault, phase, is_hit)

    def add_server(self, phase):
        index = min(set(range(SERVERS_MAX + 1)) - set(self.servers) - set(self.leaving))
        is_hit = self.strike("add", phase, f"server {index} is added", lambda: self.start_server(index))
        self.servers.append(index)
        return self.count("add", phase, is_hit and self.processes["server", index].last("listening") is not None)

    def drain_server(self, phase):
        """The command asks until the job has gone on without the server, while other faults happen."""
        index = self.rng.choice([i for i in self.servers if i])
        secret = ["--secret-file", self.secret] if self.wire else []
        words = [*self.host("server", 0)[1], job.TERN, "drain", "--server", index, *secret, "--json", "--wait", HANG_S,
                 "--join", ",".join(self.addresses[i] for i in sorted(self.members))]

        def drain():
            self.leaving[index] = asking = Watched(words, self.log, f"drain {index}: ")
            limit_s = time.monotonic() + ANSWER_S
            while asking.lives() and not asking.last("draining") and time.monotonic() < limit_s:
                time.sleep(0.001)
        is_hit = self.strike("drain", phase, f"server {index} is removed", drain)
        self.servers.remove(index)
        self.former.append(self.leaving[index])
        # At the end of the job nothing is removed any more, and the command says so.
        return self.count("drain", phase, is_hit and (phase == "end" or self.leaving[index].last("draining") is not None))

    def remove_server(self, index, asking):
        """The command has ended. If it has failed, which it may when the job begins or ends, the server stays."""
        del self.leaving[index]
        is_drained = asking.last("drained") is not None
        assert (asking.process.returncode == 0) == is_drained, "the exit code of tern drain"
        if is_drained:
            self.members.discard(index)
            self.former += [self.processes.pop(k) for k in list(self.processes) if k[1] == index and k[0] != "worker"]
            del self.addresses[index]
        else:
            text = asking.last("failed")["text"]
            self.log.append(f"--- server {index} is not removed: {text}")
            assert self.is_over() or "is ending" in text or "no worker has told it the job yet" in text, text
            self.servers.append(index)

    def cut_link(self, phase):
        return self.disturb_link("cut", phase, 1, self.rng.uniform(0.2, 3))

    def lose_packets(self, phase):
        return self.disturb_link("loss", phase, 0.05, self.rng.uniform(1, 4))

    def disturb_link(self, fault, phase, share, long_s):
        """The wire drops this share of the packets for so long."""
        dropped = []
        is_hit = self.strike(fault, phase, f"the link drops {share:.0%} for {long_s:.1f} s",
                             lambda: dropped.append(self.wire.lose(share)))
        self.tend_until(lambda: False, long_s)
        dropped.append(self.wire.lose(0))
        self.log.append(f"--- the link is whole again, {dropped[1] - dropped[0]} packets were dropped")
        self.is_over_now(fault)
        return self.count(fault, phase, is_hit and dropped[1] > dropped[0])

    def tell(self):
        is_early = self.rng.random() < 0.3
        for index in self.servers:
            self.start_server(index)
        for index in self.servers if is_early and self.is_followed else []:
            self.start_follower(index)
        for index in range(self.worker_count):
            self.start_worker(index)
        phases = ["steps", "steps", "snapshot", "end"]
        if is_early and self.hurt("join"):
            self.tend()
            self.measure()
        for phase in self.draw_phases(phases):
            if self.is_followed:
                self.tend_until(self.has_followers, self.rng.uniform(0, 2))
            if not self.hurt(phase):
                continue
            if self.rng.random() < 0.6:  # a second one, while the job goes back
                self.hurt("recovery")
            self.tend()
            if self.rng.random() < 0.3:  # a third one, once the first is started again
                self.hurt("recovery")
            self.measure()
        self.tend_to_the_end()
        job.wait_until(lambda: all(not p.lives() or not p.makes_steps() for p in self.processes.values()), limit_s=30)

    def end(self):
        for process in self.all():
            process.end()
