#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of servers with followers: when a server is lost, its follower comes in its place, and the job goes on from
memory, without a snapshot. The results have the bytes of a job that nothing has happened to.

usage: follow.py TERN
"""
import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
import undisturbed  # noqa: E402
from undisturbed import makes_steps, saved  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(4_000)
EVERY = STEPS // 10
PIDFD_GETFD = 438  # the number of this system call, on all architectures
options = functools.partial(undisturbed.options, STEPS)


def is_event(name):
    return lambda e: e["event"] == name


def says(text):
    return lambda e: text in e.get("text", "")


def texts(processes, text):
    """The lines of the processes that have this text."""
    return [e["text"] for p in processes for e in p.events if says(text)(e)]


def process_name(pid):
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def check_no_step_repeated(process):
    """Neither a worker nor the launcher, which shows the progress of one, has gone back to an earlier step."""
    steps = [e["step"] for e in process.events if e["event"] == "progress"]
    assert steps == sorted(steps), steps


class Hand:
    """Servers, followers and workers that are started by hand, as in so many terminals."""

    def __init__(self, name, fabric, servers=2, workers=2, worker_timeout=30):
        self.save, self.snapshots = job.SCRATCH / name, job.SCRATCH / f"{name}-snapshots"
        self.fabric, self.worker_timeout = fabric, worker_timeout
        self.servers = [self.server(i) for i in range(servers)]
        self.addresses = [self.address(s) for s in self.servers]
        self.workers = []
        if workers:
            self.start_workers(workers)

    def start_workers(self, workers):
        common = options("--servers", len(self.servers), "--workers", workers, "--fabric", self.fabric, "--save", self.save)
        self.workers = [job.Job("worker", *common, "--join", ",".join(self.addresses), "--server-wait", 60, "--index", i,
                                "--json") for i in range(workers)]
        self.workers[0].wait_event(makes_steps)

    def server(self, index, *more):
        listen = ["--listen", "127.0.0.1:0"] if self.fabric == "tcp" and "--listen" not in more else []
        return job.Job("server", "--fabric", self.fabric, "--index", index, *listen, "--snapshots", self.snapshots,
                       "--snapshot-every", EVERY, "--server-wait", 60, "--worker-timeout", self.worker_timeout, *more,
                       "--json")

    @staticmethod
    def address(server):
        return server.wait_event(is_event("listening"))["address"]

    def follow(self, index):
        """Starts a follower of a server, and waits until it has all of the server's share. The workers stand still until it
        is known to the server, so that the job is not over before that."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGSTOP)
        follower = self.server(index, "--follow", self.addresses[index])
        follower.address = self.address(follower)
        follower.wait_event(says("follows server"))
        for worker in self.workers:
            worker.process.send_signal(signal.SIGCONT)
        told = self.servers[index].wait_event(lambda e: e["event"] == "followed" and e["address"] == follower.address)
        for worker in self.workers:  # they have heard of the follower, too
            worker.wait_event(lambda e: e["event"] == "progress" and e["time"] > told["time"])
        return follower

    def take_over(self, index, follower, how=signal.SIGKILL):
        """Ends a server. Its follower takes its place, and the job makes steps again."""
        lost = self.servers[index]
        lost.process.send_signal(how)
        assert lost.end() == (-how if how == signal.SIGKILL else job.REQUEUE), (lost.code, lost.error)
        follower.wait_event(is_event("begun"))
        self.servers[index], self.addresses[index] = follower, follower.address
        self.workers[0].wait_event(is_event("begun"))
        self.workers[0].wait_event(makes_steps)

    def end(self, from_memory=True):
        processes = [*self.servers, *self.workers]
        undisturbed.end_well(processes, self.save, STEPS)
        without = texts(self.servers, "begins without")
        assert not without, without
        read = texts(self.servers, "goes on from snapshot")
        assert bool(read) != from_memory, read
        for worker in self.workers if from_memory else []:
            check_no_step_repeated(worker)


def followers_take_over_one_after_the_other():
    """Server 1 of two is killed, and then the follower that has taken its place."""
    hand = Hand("hand", "tcp")
    for _ in range(2):
        follower = hand.follow(1)
        # server 0, which is asked, has no follower
        [answer] = job.finish("status", "--join", hand.addresses[0], "--json").lines
        followers = [s.get("follower", {}).get("address") for s in json.loads(answer)["servers"]]
        assert followers == [None, follower.address], answer
        hand.take_over(1, follower)
    hand.end()


def follower_of_a_single_server_takes_over():
    """No other server can tell the workers where the follower is."""
    for fabric in "tcp", "shm":
        hand = Hand(f"single-{fabric}", fabric, servers=1)
        hand.take_over(0, hand.follow(0))
        hand.end()


def followers_of_servers_that_are_asked_to_end_take_over():
    hand = Hand("asked", "tcp")
    for index in 0, 1:
        hand.take_over(index, hand.follow(index), signal.SIGTERM)
    hand.end()


def lost_follower_costs_nothing():
    """A follower is killed, and one stands still. The server goes on without it each time, and with another one."""
    hand = Hand("follower", "tcp", servers=1, workers=1, worker_timeout=4)
    killed = hand.follow(0)
    hand.workers[0].process.send_signal(signal.SIGSTOP)  # until the next follower is known: the job is not to end before
    killed.process.kill()
    killed.end()
    hand.servers[0].wait_event(says("goes on without its follower"))
    stopped = hand.follow(0)
    stopped.process.send_signal(signal.SIGSTOP)
    hand.servers[0].wait_event(says("goes on without its follower"))
    hand.workers[0].wait_event(makes_steps)
    stopped.process.kill()
    stopped.end()
    hand.take_over(0, hand.follow(0))
    hand.end()


def is_connected_to(address):
    """True if some process has a TCP connection to this address."""
    port = f":{int(address.rsplit(':', 1)[1]):04X}"
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()]
    return any(remote.endswith(port) and state == "01" for _, _, remote, state, *_ in lines)


def follower_that_stands_still_while_processes_join_is_not_waited_for():
    """It has asked the server, and stands still until the job is over."""
    hand = Hand("early", "tcp", servers=1, workers=0, worker_timeout=600)
    follower = hand.server(0, "--follow", hand.addresses[0])
    job.wait_until(lambda: is_connected_to(hand.addresses[0]))
    follower.process.send_signal(signal.SIGSTOP)
    hand.start_workers(1)
    hand.end()
    follower.kill()


def without_both_the_job_goes_back():
    """A server and its follower are killed at the same moment."""
    hand = Hand("both", "tcp", workers=1)
    hand.servers[0].wait_event(is_event("snapshot"))
    follower = hand.follow(1)
    for process in follower, hand.servers[1]:
        process.process.kill()
    for process in follower, hand.servers[1]:
        process.end()
    hand.servers[1] = hand.server(1, "--join", hand.addresses[0])
    hand.servers[1].wait_event(is_event("begun"))
    hand.end(from_memory=False)


def follower_of_a_removed_server_leaves():
    """The job goes on without server 1, which its follower does not bring back."""
    hand = Hand("removed", "tcp")
    follower = hand.follow(1)
    job.finish("drain", "--join", hand.addresses[0], "--server", 1, "--json", code=0)
    assert follower.end() == 0, follower.error
    assert any(says("server 1 was removed from the job")(e) for e in follower.events), follower.events
    removed = hand.servers.pop()
    assert removed.end() == 0, removed.error
    hand.end(from_memory=False)


class Launched:
    """A `tern train --replicas 2`."""

    def __init__(self, name, *more, servers=2):
        self.save, self.snapshots = job.SCRATCH / name, job.SCRATCH / f"{name}-snapshots"
        self.running = job.Job("train", *options("--servers", servers, "--workers", 2, "--save", self.save,
                                                 "--replicas", 2, "--snapshots", self.snapshots, "--snapshot-every", EVERY,
                                                 *more), "--json")
        self.servers, self.pids = range(servers), {}
        self.hurt = 0  # number of events before a process was killed last
        self.complete(*self.servers)

    def complete(self, *wanted):
        """Waits until these followers have all of their servers' shares, since a process was killed last."""
        has_all = says("takes its place when that is lost")
        missing = {f"follower {index}" for index in wanted}
        missing -= {e["who"] for e in self.running.events[self.hurt:] if has_all(e)}
        while missing:
            missing.discard(self.running.wait_event(has_all)["who"])
        self.pids = self.running.pids() | {k: v for k, v in self.pids.items() if k[0] == "server"}

    def kill(self, role, index):
        """Kills a process, and returns what is said of that."""
        self.hurt = len(self.running.events)
        os.kill(self.pids[role, index], signal.SIGKILL)
        told = self.running.wait_event(is_event("restart"))
        assert told["who"] == f"{role} {index}", told
        return told["text"]

    def take_over(self, index):
        """Kills a server, and waits for a new step."""
        follower = self.pids["follower", index]
        assert process_name(follower) == f"tern-follow {index}"
        text = self.kill("server", index)
        assert re.search(rf"server {index} \(pid {self.pids['server', index]}\) was killed by signal 9 \(Killed\): its "
                         rf"follower \(pid {follower}\) takes its place, and the job goes on from memory; a new follower is "
                         r"started.* \(restart \d, at most 3 in 10 minutes\)", text), text
        self.pids["server", index] = follower
        step = max(e["step"] for e in self.running.events if e["event"] == "progress")
        self.running.wait_event(says("which all servers have in memory"))
        assert process_name(follower) == f"tern-server {index}"
        self.running.wait_event(lambda e: e["event"] == "progress" and e["step"] > step)

    def check_told_once(self):
        """Workers that join again when the job goes on are told as lost by nobody. That a follower has everything is told by
        the launcher, and not by its server, too."""
        told = texts([self.running], "goes on without worker") + texts([self.running], "it has all ")
        assert not told, told
        assert not texts([self.running], "the follower at "), self.running.events

    def end(self, from_memory=True):
        try:
            assert self.running.end() == 0, self.running.error
        finally:
            self.running.kill()
        self.check_told_once()
        read = texts([self.running], "goes on from snapshot")
        assert bool(read) != from_memory, read
        if from_memory:
            check_no_step_repeated(self.running)
        assert saved(self.save) == undisturbed.expected(STEPS), "other bytes"


def launcher_starts_followers_again():
    """A follower is killed, and then each of the servers."""
    launched = Launched("train", "--fabric", "shm")
    text = launched.kill("follower", 1)
    assert re.search(r"follower 1 \(pid \d+\) was killed by signal 9 \(Killed\): it is started again \(restart 1", text), text
    launched.complete(1)
    launched.take_over(0)
    launched.complete(0, 1)  # that of the other server follows anew when the job has gone on
    launched.take_over(1)
    launched.end()


def launcher_learns_late_who_is_the_server():
    """The launcher stands still while a server is killed and its follower takes the place by itself."""
    launched = Launched("train-late", "--fabric", "shm")

    def names():
        return {path.name for path in launched.snapshots.glob("*.json")}

    launched.running.process.send_signal(signal.SIGSTOP)
    os.kill(launched.pids["server", 1], signal.SIGKILL)
    before = names()
    job.wait_until(lambda: len(names() - before) > 1)  # steps were made since
    launched.running.process.send_signal(signal.SIGCONT)
    launched.complete(1)
    launched.end()


def cut_connections(pid):
    """Shuts down all sockets of a process, as if its host was cut off: pidfd_getfd() gives this process the sockets."""
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if not os.readlink(fd).startswith("socket:"):
            continue
        own = libc.syscall(PIDFD_GETFD, process, int(fd.name), 0)
        if own < 0:
            raise tap.Skip(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=own) as end, contextlib.suppress(OSError):  # one that is not connected
            end.shutdown(socket.SHUT_RDWR)
    os.close(process)


def launcher_kills_a_server_that_the_job_has_lost():
    """A server stands still, and its connections are cut: its follower takes its place while it lives."""
    launched = Launched("train-cut", "--fabric", "tcp")
    server, follower = launched.pids["server", 1], launched.pids["follower", 1]
    os.kill(server, signal.SIGSTOP)
    cut_connections(server)
    told = launched.running.wait_event(says("has taken the place of"))["text"]
    assert told == (f"follower 1 (pid {follower}) has taken the place of server 1 (pid {server}), and the job goes on from "
                    "memory; the former process is killed, since the job has lost it"), told
    launched.complete(1)
    launched.end()


def launcher_starts_a_server_again_without_its_follower():
    """Both replicas of a server are killed at the same moment."""
    launched = Launched("train-both", "--fabric", "tcp")
    launched.running.wait_event(is_event("snapshot"))
    for victim in ("follower", 1), ("server", 1):
        os.kill(launched.pids[victim], signal.SIGKILL)
    launched.running.wait_event(says("it is started again, and the job goes back to snapshot"))
    launched.complete(0, 1)
    launched.end(from_memory=False)


def no_process_follows_itself():
    for own in "127.0.0.1:7431", "tcp://127.0.0.1:7431":
        job.refused("server", "--listen", "127.0.0.1:7431", "--follow", own, "--snapshots", job.SCRATCH / "own",
                    says=[f"--follow {own}: is the address of this process (--listen)"])


def replicas_are_refused_where_they_are_of_no_use():
    def refused(*more, says):
        job.refused("train", *options("--replicas", 2, *more), says=[says])

    refused(says="--replicas 2 needs --snapshots DIR")
    refused("--mode", "async", says="--replicas 2 needs --mode sync")
    refused("--snapshots", job.SCRATCH / "none", "--restarts", 0, says="--replicas 2 needs --restarts above 0")
    refused("--snapshots", job.SCRATCH / "none", "--server-device", "cuda", says="--replicas 2 needs --server-device cpu")
    refused("--snapshots", job.SCRATCH / "none", "--listen", "127.0.0.1:7411",
            says="--listen 127.0.0.1:7411: 2 servers and followers cannot share a port")
    refused("--replicas", 3, says="--replicas 3: must be 1 to 2")


tap.run([followers_take_over_one_after_the_other, follower_of_a_single_server_takes_over,
         followers_of_servers_that_are_asked_to_end_take_over, lost_follower_costs_nothing,
         follower_that_stands_still_while_processes_join_is_not_waited_for,
         without_both_the_job_goes_back, follower_of_a_removed_server_leaves, launcher_starts_followers_again,
         launcher_learns_late_who_is_the_server, launcher_kills_a_server_that_the_job_has_lost,
         launcher_starts_a_server_again_without_its_follower, no_process_follows_itself,
         replicas_are_refused_where_they_are_of_no_use])
