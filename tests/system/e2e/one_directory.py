#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of jobs by hand in which only server 0 has a directory for snapshots: the other servers send it their parts,
and read what they need from it when the job goes on (--snapshots-via). The results have the bytes of a job that nothing
has happened to.

usage: one_directory.py TERN
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
import undisturbed  # noqa: E402
from undisturbed import makes_steps  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(3_000)
EVERY = STEPS // 20
LONG = 2 * STEPS  # is not done before a server is added
WAIT = ["--server-wait", 60]


def is_event(name):
    return lambda e: e["event"] == name


class Hand:
    """Servers and workers that are started by hand. Server 0 has the directory."""

    def __init__(self, name, servers, more=(), directory=None, mode=(), steps=STEPS):
        self.save, self.snapshots = job.SCRATCH / name, directory or job.SCRATCH / f"{name}-snapshots"
        self.servers, self.addresses, self.steps = [], [], steps
        self.start(0, *more)
        for index in range(1, servers):
            self.start(index)
        self.common = [*undisturbed.options(steps, "--servers", servers, "--workers", 2, "--fabric", "tcp"), *mode,
                       "--save", self.save]
        self.workers = [job.Job("worker", *self.common, "--join", ",".join(self.addresses), "--server-wait", 60,
                                "--index", i, "--json") for i in range(2)]

    def start(self, index, *more):
        """Starts a server; if it was there before, in the place of that one."""
        where = (["--snapshots", self.snapshots, "--snapshot-every", EVERY] if index == 0
                 else ["--snapshots-via", self.addresses[0]])
        server = job.Job("server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--index", index, *where, *WAIT,
                         *more, "--json")
        self.servers[index:index + 1] = [server]
        self.addresses[index:index + 1] = [server.wait_event(is_event("listening"))["address"]]

    def lose(self, index):
        self.servers[index].process.kill()
        self.servers[index].end()

    def all(self):
        return [*self.servers, *self.workers]

    def kill(self):
        for process in self.all():
            process.kill()

    def end(self):
        undisturbed.end_well(self.all(), self.save, self.steps)
        job.finish("checkpoint", "verify", self.snapshots)


def begin(processes):
    for process in processes:
        process.wait_event(is_event("begun"))


def killed_servers_come_again():
    """Server 1 is killed, and comes again with its part from server 0; then server 0, which has the files and comes at
    another address, of which server 1 hears."""
    hand = Hand("servers", 2)
    for index in 1, 0:
        hand.workers[0].wait_event(makes_steps)
        hand.servers[0].wait_event(is_event("snapshot"))
        hand.lose(index)
        hand.start(index, "--join", hand.addresses[1 - index])
        begin(hand.all())
    hand.end()


def killed_job_goes_on_with_other_servers():
    hand = Hand("first", 3)
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.kill()
    for servers, name in (2, "second"), (4, "third"):
        hand = Hand(name, servers, ["--resume", hand.snapshots], hand.snapshots)
        begin(hand.servers)
        if servers == 2:
            hand.servers[0].wait_event(is_event("snapshot"))
            hand.kill()
    hand.end()


def server_is_added_and_removed():
    hand = Hand("views", 1, steps=LONG)
    hand.workers[0].wait_event(makes_steps)
    hand.start(1, "--join", hand.addresses[0])
    begin([hand.servers[1]])
    hand.servers[0].wait_event(is_event("snapshot"))
    job.finish("drain", "--join", hand.addresses[0], "--server", 1)
    assert hand.servers.pop().end() == 0
    hand.end()


def follower_takes_the_place_of_a_server_without_a_directory():
    hand = Hand("followed", 2)
    common = ["--fabric", "tcp", "--listen", "127.0.0.1:0", "--snapshots-via", hand.addresses[0], *WAIT]
    follower = job.Job("server", "--follow", hand.addresses[1], *common, "--json")
    address = follower.wait_event(is_event("listening"))["address"]
    hand.servers[1].wait_event(lambda e: e["event"] == "followed" and e["address"] == address)
    hand.lose(1)
    hand.servers[1] = follower
    begin([follower])
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.end()


def async_jobs_have_whole_snapshots():
    hand = Hand("async", 2, mode=["--mode", "async"])
    try:
        for process in hand.all():
            process.end()
            assert process.code == 0, process.error
    finally:
        hand.kill()
    last = job.finish("checkpoint", "show", hand.snapshots, "--json").events[-1]
    assert last["step"] == STEPS, last
    job.finish("checkpoint", "verify", hand.snapshots)


def part_that_does_not_fit_is_given_up():
    """The directory of server 0 goes: the steps go on without a snapshot."""
    hand = Hand("gone", 2)
    hand.servers[0].wait_event(is_event("snapshot"))
    os.rename(hand.snapshots, job.SCRATCH / "elsewhere")
    text = hand.servers[0].wait_event(lambda e: e["event"] == "warning" and "no snapshot" in e["text"])["text"]
    assert "nothing else is lost" in text, text
    os.rename(job.SCRATCH / "elsewhere", hand.snapshots)
    hand.end()


def wrong_options_are_refused():
    via = ["--snapshots-via", "tcp://127.0.0.1:9"]
    two = ["--index", 1, "--snapshots", job.SCRATCH / "two"]
    for more, says in [(two, ["--snapshots-via", "not with --snapshots"]),
                       (["--index", 1, "--resume", job.SCRATCH], ["--snapshots-via", "not with --resume"]),
                       (["--index", 1, "--snapshot-every", 5], ["--snapshots-via", "not with --snapshot-every"]),
                       (["--index", 1, "--snapshot-keep", 5], ["--snapshots-via", "not with --snapshot-keep"]),
                       (["--index", 0], ["--snapshots-via", "an --index above 0"]),
                       ([], ["--snapshots-via", "an --index above 0"]),
                       (["--follow", "tcp://127.0.0.1:9"], ["--snapshots-via", "a follower of server 0"])]:
        job.refused("server", *via, *more, says=says)
    job.refused("server", "--index", 1, "--snapshots-via", "nowhere", says=["--snapshots-via nowhere"])
    job.refused("server", "--index", 1, "--snapshots-via", "tcp://127.0.0.1:8,tcp://127.0.0.1:9", says=["one address"])


def server_zero_without_a_directory_is_told_of():
    zero = job.Job("server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--json")
    other = job.Job("server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--index", 1, "--json")
    try:
        for server, why in (zero, "server 0 was started without --snapshots"), (other, "this is server 1"):
            address = server.wait_event(is_event("listening"))["address"]
            asker = job.finish("server", "--index", 2, "--listen", "127.0.0.1:0", "--fabric", "tcp", "--snapshots-via",
                               address, code=2)
            assert why in asker.error, asker.error
    finally:
        zero.kill()
        other.kill()


tap.run([wrong_options_are_refused, server_zero_without_a_directory_is_told_of, killed_servers_come_again,
         killed_job_goes_on_with_other_servers, server_is_added_and_removed,
         follower_takes_the_place_of_a_server_without_a_directory, async_jobs_have_whole_snapshots,
         part_that_does_not_fit_is_given_up])
