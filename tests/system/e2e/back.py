#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of servers that are lost during the steps and started again, elsewhere, while the other processes of the job
stay: it goes back to its newest snapshot, and has the bytes of a job that nothing has happened to.

usage: back.py TERN
"""
import functools
import re
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
import undisturbed  # noqa: E402
from undisturbed import makes_steps  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(6_000)
EVERY = STEPS // 40
options = functools.partial(undisturbed.options, STEPS)


def is_event(name):
    return lambda e: e["event"] == name


class Hand:
    """Servers and workers that are started by hand, as in so many terminals. `started`: how many of the workers, if not
    all of them are."""

    def __init__(self, name, fabric, servers=2, workers=2, wait=60, more=(), started=None):
        self.save, self.snapshots = job.SCRATCH / name, job.SCRATCH / f"{name}-snapshots"
        self.fabric, self.wait, self.more = fabric, ["--server-wait", wait], more
        self.servers = [self.server(i) for i in range(servers)]
        self.addresses = [self.address(s) for s in self.servers]
        self.common = options("--servers", servers, "--workers", workers, "--fabric", fabric, "--save", self.save)
        self.workers = [self.worker(i) for i in range(workers if started is None else started)]

    def server(self, index, *more):
        listen = ["--listen", "127.0.0.1:0"] if self.fabric == "tcp" and "--listen" not in more else []
        return job.Job("server", "--fabric", self.fabric, "--index", index, *listen, "--snapshots", self.snapshots,
                       "--snapshot-every", EVERY, *self.wait, *self.more, *more, "--json")

    @staticmethod
    def address(server):
        return server.wait_event(is_event("listening"))["address"]

    def worker(self, index, *more):
        """The last one of equal options counts."""
        return job.Job("worker", *self.common, "--join", ",".join(self.addresses), *self.wait, "--index", index, *more,
                       "--json")

    def lose(self, role, index, how):
        """Ends a process, and waits for its end."""
        lost = getattr(self, role)[index]
        lost.process.send_signal(how)
        lost.end()
        assert lost.code == {signal.SIGKILL: -9, signal.SIGTERM: job.REQUEUE}.get(how, 128 + how), f"exit code {lost.code}\n{lost.error}"
        return lost

    def replace(self, index):
        """Starts a server in the place of a lost one, and names one of the others to it."""
        self.servers[index] = self.server(index, "--join", self.addresses[1 - index])
        self.addresses[index] = self.address(self.servers[index])

    def others(self, gone):
        return [p for p in [*self.servers, *self.workers] if p is not gone]

    def end(self):
        undisturbed.end_well([*self.servers, *self.workers], self.save, STEPS)


def check_losses_are_told_before_the_steps(servers):
    """A server that has come in the place of a lost one leaves at the end of the job, or ends a connection that it does
    not need any more. Neither is a loss."""
    for server in servers:
        begun = max(i for i, e in enumerate(server.events) if e["event"] == "begun")
        told = [e["text"] for e in server.events[begun:] if "which was at" in e.get("text", "")]
        assert not told, told


def one_server_after_the_other(fabric, how):
    """Each of two servers is ended and started again at another address, so that none of the first ones is left. All
    others say what has happened, and stay."""
    hand = Hand(f"servers-{fabric}-{int(how)}", fabric)
    for index in (1, 0):
        hand.workers[0].wait_event(makes_steps)
        hand.servers[0].wait_event(is_event("snapshot"))
        lost = hand.lose("servers", index, how)
        for process in hand.others(lost):
            text = process.wait_event(is_event("back"))["text"]
            assert re.search(rf"server {index}|server (of )?\S+ is gone", text) and "newest snapshot" in text, text
        hand.replace(index)
        for process in [*hand.servers, *hand.workers]:
            text = process.wait_event(is_event("begun"))["text"]
            assert re.search("the steps go on from step [1-9]", text), text
    hand.end()
    check_losses_are_told_before_the_steps(hand.servers)
    # Programs are told who joins while the job goes on, and people only that it does.
    assert all(e["hidden"] for s in hand.servers for e in s.events if " joined, " in e.get("text", ""))


def killed_servers_come_again():
    for fabric in job.fabrics("shm", "tcp"):
        one_server_after_the_other(fabric, signal.SIGKILL)


def job_waits_for_a_directory_that_is_gone():
    """And does not begin at its first step. Server 0 says why, and the job goes on when the directory is back."""
    hand = Hand("gone", "tcp")
    hand.servers[0].wait_event(is_event("snapshot"))
    away = job.SCRATCH / "away"
    hand.snapshots.rename(away)
    hand.lose("servers", 1, signal.SIGKILL)
    hand.replace(1)
    hand.servers[0].wait_event(lambda e: re.search("no snapshot is in .* put it back", e.get("text", "")))
    away.rename(hand.snapshots)  # that which server 1 has made is empty
    hand.servers[0].wait_event(lambda e: e["event"] == "begun" and "go on from step 0" not in e["text"])
    hand.end()


def snapshot_of_another_job_is_named_until_it_is_removed():
    """Somebody has copied it into the directory. The workers wait meanwhile, and the job goes on without it."""
    other = job.SCRATCH / "foreign"
    job.train(*options("--snapshots", other, "--snapshot-every", "10m", "--lr", 0.25))
    hand = Hand("foreign-one", "tcp")
    hand.servers[0].wait_event(is_event("snapshot"))
    copies = [Path(shutil.copy(path, hand.snapshots)) for path in other.glob("step-*")]
    hand.lose("servers", 1, signal.SIGKILL)
    hand.replace(1)
    hand.workers[0].wait_event(lambda e: "if it is another job's, remove it from" in e.get("text", ""))
    for copy in copies:
        copy.unlink()
    hand.servers[0].wait_event(lambda e: e["event"] == "begun" and "go on from step 0" not in e["text"])
    hand.end()


def job_that_waits_in_vain_says_why_at_last():
    hand = Hand("gone-in-vain", "tcp", wait=8)
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.snapshots.rename(job.SCRATCH / "gone-for-good")
    hand.lose("servers", 1, signal.SIGKILL)
    hand.replace(1)
    try:
        assert hand.servers[0].end() == 1, hand.servers[0].error
        last = next(e["text"] for e in hand.servers[0].events if e["event"] == "error")
        assert "no snapshot is in" in last and "goes on from step" not in last, last
    finally:
        for process in [*hand.servers, *hand.workers]:
            process.kill()


def servers_that_were_asked_to_end_come_again():
    for fabric, how in zip(job.fabrics("tcp", "shm"), (signal.SIGTERM, signal.SIGINT)):
        one_server_after_the_other(fabric, how)


def single_server_comes_again_at_its_address():
    hand = Hand("single", "tcp", servers=1, workers=1)
    hand.servers[0].wait_event(is_event("snapshot"))
    lost = hand.lose("servers", 0, signal.SIGKILL)
    hand.workers[0].wait_event(is_event("back"))
    address = hand.addresses[0].split("://")[1]
    hand.servers[0] = hand.server(0, "--listen", address, "--resume", hand.snapshots)
    assert lost.code and hand.address(hand.servers[0]).endswith(address)
    hand.end()


def without_a_snapshot_it_goes_back_to_the_start():
    global EVERY
    every, EVERY = EVERY, STEPS
    hand = Hand("start", "tcp")
    EVERY = every
    hand.workers[1].wait_event(makes_steps)
    hand.lose("servers", 1, signal.SIGKILL)
    hand.replace(1)
    hand.end()


def notes(process, text):
    return [e["text"] for e in process.events if text in e.get("text", "")]


def last_worker_is_lost(fabric):
    """The only worker is killed and started again, twice. All servers have lived, so the job goes on at the step that it
    was at, and no server reads a snapshot."""
    hand = Hand(f"last-worker-{fabric}", fabric, workers=1)
    step = 0
    for life in (1, 2):
        hand.servers[0].wait_event(is_event("snapshot"))
        hand.workers[0].wait_event(makes_steps)
        hand.lose("workers", 0, signal.SIGKILL)
        for server in hand.servers:
            assert "have in memory" in server.wait_event(is_event("back"))["text"]
        hand.workers[0] = hand.worker(0)
        for server in hand.servers:
            text = server.wait_event(lambda e: "goes on at step" in e.get("text", ""))["text"]
            assert text.endswith("which all servers have in memory"), text
        steps = [int(re.search(r"at step (\d+)", notes(s, "goes on at step")[life - 1])[1]) for s in hand.servers]
        assert steps[0] == steps[1] > step, steps
        step = steps[0]
        saved = [e["step"] for e in hand.servers[0].events if e["event"] == "snapshot"]
        assert step >= saved[0], (step, saved)
    hand.end()
    for server in hand.servers:
        assert not notes(server, "goes on from snapshot"), server.events


def job_goes_on_from_memory_without_its_last_worker():
    for fabric in job.fabrics("tcp", "shm"):
        last_worker_is_lost(fabric)


def job_that_went_on_from_memory_without_a_snapshot_asks_for_no_requeue():
    """The step that it went on at is not that of a snapshot, so --resume would be refused. The servers, which keep the
    job in memory when its last worker leaves, are asked to end, too."""
    global EVERY
    every, EVERY = EVERY, STEPS
    hand = Hand("no-snapshot", "tcp", workers=1)
    EVERY = every
    hand.workers[0].wait_event(makes_steps)
    hand.lose("workers", 0, signal.SIGKILL)
    hand.workers[0] = hand.worker(0)
    for server in hand.servers:
        server.wait_event(lambda e: "goes on at step" in e.get("text", ""))
    hand.workers[0].wait_event(makes_steps)
    hand.workers[0].process.send_signal(signal.SIGTERM)
    assert hand.workers[0].end() == 128 + signal.SIGTERM, hand.workers[0].error
    for server in hand.servers:
        server.wait_event(is_event("back"))
        server.process.send_signal(signal.SIGTERM)
    for server in hand.servers:
        assert server.end() == 128 + signal.SIGTERM, server.error
    assert not list(hand.snapshots.glob("*.json"))


def comes(hand, index):
    return hand.servers[0].wait_event(lambda e: e["event"] == "came" and e["worker"] == index)["text"]


def workers_are_added_to_a_job():
    """A job of one worker gets two more, by the same command with the next numbers, although the second one is started
    first. Then its first worker is killed, and comes again by the command with which it began."""
    for fabric in job.fabrics("shm", "tcp"):
        hand = Hand(f"more-workers-{fabric}", fabric, workers=1)
        hand.workers[0].wait_event(makes_steps)
        hand.workers.append(hand.worker(2))
        hand.servers[0].wait_event(lambda e: "worker 2 waits until the job has a worker 1" in e.get("text", ""))
        hand.workers.append(hand.worker(1))
        assert re.search(r"from step \d+ on 2 of 5 slots are its", comes(hand, 1))
        assert re.search(r"from step \d+ on 1 of 5 slots are its", comes(hand, 2))
        hand.lose("workers", 0, signal.SIGKILL)
        hand.servers[0].wait_event(is_event("lost"))
        hand.workers[0] = hand.worker(0)
        comes(hand, 0)
        status = job.finish("status", "--join", hand.addresses[0], "--json").last
        assert status["job"]["workers"] == 3, status
        hand.end()
        assert not any(e["event"] == "back" for p in hand.servers for e in p.events)


def job_waits_without_workers():
    """Both workers are asked to end. The servers keep the job, and say so; other workers go on at the same step, of
    which there are more."""
    hand = Hand("no-workers", "tcp")
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.workers[0].wait_event(makes_steps)
    for worker in hand.workers:
        worker.process.send_signal(signal.SIGTERM)
    for worker in hand.workers:
        assert worker.end() == job.REQUEUE, worker.error
        assert any("keep the job in memory, and wait for another worker" in e.get("text", "") for e in worker.events)
    assert [f.name for f in hand.save.iterdir()] == ["interrupted.safetensors"]
    for server in hand.servers:
        assert "waits up to 60 s for a worker" in server.wait_event(is_event("back"))["text"]
    retry(lambda: job.finish("status", "--join", hand.addresses[0], "--json"))
    hand.workers = [hand.worker(i, "--workers", 3) for i in (2, 0, 1)]
    for server in hand.servers:
        server.wait_event(lambda e: e.get("text", "").endswith("which all servers have in memory"))
    hand.end()
    assert notes(hand.servers[0], "the job has 3 workers now"), hand.servers[0].events


def only_a_job_that_goes_back_gets_more_workers():
    said = "the job has 1 workers and cannot have worker 1"
    hand = Hand("fixed", "tcp", servers=1, workers=1, more=["--server-wait", 0])
    hand.workers[0].wait_event(makes_steps)
    job.refused("worker", *hand.common, "--join", hand.addresses[0], "--index", 1, code=1,
                says=["whose servers have --snapshots and no --server-wait 0"])
    for process in *hand.servers, *hand.workers:
        process.kill()
    hand = Hand("worker-that-cannot", "tcp", servers=1, workers=0)
    common = ["worker", *options("--servers", 1, "--workers", 1, "--fabric", "tcp"), "--join", hand.addresses[0], "--json"]
    first = job.Job(*common, "--index", 0, "--server-wait", 0)
    first.wait_event(makes_steps)
    job.refused(*common[:-1], "--index", 1, code=1, says=[said])
    for more in ["--server-wait", 0], ["--mode", "async"]:
        job.refused(*common[:-1], "--index", 1, *more, says=["--index 1", "counted from 0"])
    for process in first, *hand.servers:
        process.kill()


def those_that_wait_in_vain_end():
    """The lost server is not started again within --server-wait."""
    hand = Hand("in-vain", "shm", wait=2)
    hand.servers[0].wait_event(is_event("snapshot"))
    lost = hand.lose("servers", 1, signal.SIGKILL)
    for process in hand.others(lost):
        assert process.end() == 1, process.error
        errors = [e["text"] for e in process.events if e["event"] == "error"]
        assert len(errors) == 1 and re.search("has not gone on for|cannot be reached", errors[0]), errors


def those_that_wait_can_be_ended():
    hand = Hand("ended", "tcp")
    hand.servers[0].wait_event(is_event("snapshot"))
    lost = hand.lose("servers", 1, signal.SIGKILL)
    for process in hand.others(lost):
        process.wait_event(is_event("back"))
    time.sleep(1)
    for process in hand.others(lost):
        process.process.send_signal(signal.SIGTERM)
    for process in hand.others(lost):
        assert process.end() == job.REQUEUE, process.error


def worker_that_was_lost_too_comes_later():
    """A worker is lost beside a server. The job goes on without it, and it comes again then."""
    hand = Hand("worker-too", "tcp", servers=3, more=["--worker-timeout", 1])
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.lose("workers", 1, signal.SIGKILL)
    hand.lose("servers", 2, signal.SIGKILL)
    hand.servers[2] = hand.server(2, "--join", ",".join(hand.addresses[:2]))
    hand.addresses[2] = hand.address(hand.servers[2])
    assert "has not come" in hand.servers[0].wait_event(
        lambda e: e["event"] == "lost" and "has not come" in e["text"])["text"]
    hand.workers[1] = hand.worker(1)
    hand.servers[0].wait_event(is_event("came"))
    hand.end()


def drain(hand, server, *more, at=0, code=0):
    return job.finish("drain", "--join", hand.addresses[at], "--server", server, *more, "--json", code=code)


def begin_again(processes):
    for process in processes:
        process.wait_event(is_event("begun"))


def servers_are_added_and_removed():
    """A third server comes, the second one is removed and comes again elsewhere, and then the third one is removed. Any
    server tells where server 0 is, which removes."""
    hand = Hand("views", "tcp")
    hand.workers[0].wait_event(makes_steps)
    hand.servers.append(hand.server(2, "--join", hand.addresses[0]))
    hand.addresses.append(hand.address(hand.servers[2]))
    begin_again([hand.servers[2], *hand.servers[:2], *hand.workers])
    removed = hand.servers[1]
    drain(hand, 1, at=2)
    assert removed.end() == 0, removed.error
    assert any("goes on without it" in e.get("text", "") for e in removed.events), removed.events
    begin_again([hand.servers[0], hand.servers[2], *hand.workers])
    status = job.finish("status", "--join", hand.addresses[0], "--json").last
    assert [s["server"] for s in status["servers"]] == [0, 2], status
    hand.servers[1] = hand.server(1, "--join", hand.addresses[0])
    hand.addresses[1] = hand.address(hand.servers[1])
    begin_again([hand.servers[1], hand.servers[0], hand.servers[2], *hand.workers])
    drain(hand, 2)
    assert hand.servers.pop().end() == 0
    hand.end()
    for worker in hand.workers:
        told = " ".join(e["text"] for e in worker.events if e["event"] == "back")
        assert re.search("the job goes back: (server 0: )?server 1 is removed from the job: this worker waits", told), told
        assert "ended the job" not in told, told


def server_is_removed_before_the_steps():
    """A worker has told the servers the job, and waits for the other one. Before that nobody knows which servers the job
    has. The other worker comes with the list of servers that the job began with."""
    hand = Hand("removed-early", "tcp", servers=3, started=0)
    said = drain(hand, 1, code=1).error
    assert "no worker has told it the job yet" in said, said
    hand.workers.append(hand.worker(0))
    hand.servers[0].wait_event(is_event("joined"))
    drain(hand, 1, "--no-wait")
    removed = hand.servers.pop(1)
    assert removed.end() == 0, removed.error
    assert notes(removed, "goes on without it"), removed.events
    hand.workers.append(hand.worker(1))
    begin_again([*hand.servers, *hand.workers])
    status = job.finish("status", "--join", hand.addresses[0], "--json").last
    assert [s["server"] for s in status["servers"]] == [0, 2], status
    hand.end()


def new_worker_names_the_servers_that_are_left():
    """The numbers of the two servers are 0 and 2, and its user does not know the address that server 1 had."""
    hand = Hand("left", "tcp", servers=3)
    hand.workers[0].wait_event(makes_steps)
    drain(hand, 1)
    assert hand.servers.pop(1).end() == 0
    begin_again(hand.servers)
    hand.lose("workers", 1, signal.SIGKILL)
    del hand.addresses[1]
    hand.workers[1] = hand.worker(1, "--servers", 2)
    hand.workers[1].wait_event(makes_steps)
    hand.end()


def lost_server_is_removed():
    """The job waits for a server that is lost, and goes on without it when it is removed. A worker that was started with
    the old list of servers then comes, too."""
    hand = Hand("removed", "shm", servers=3)
    hand.servers[0].wait_event(is_event("snapshot"))
    lost = hand.lose("servers", 1, signal.SIGKILL)
    for process in hand.others(lost):
        process.wait_event(is_event("back"))
    hand.servers.remove(lost)
    retry(lambda: drain(hand, 1))
    begin_again([*hand.servers, *hand.workers])
    hand.lose("workers", 1, signal.SIGKILL)
    hand.servers[0].wait_event(is_event("lost"))
    hand.workers[1] = hand.worker(1)
    hand.servers[0].wait_event(is_event("came"))
    hand.end()


def removal_is_known_when_server_0_is_lost_at_once():
    """The job waits for its only worker, and its user, who knows of the removal, names the servers that are left."""
    hand = Hand("removed-known", "tcp", workers=1)
    hand.workers[0].wait_event(makes_steps)
    hand.servers.append(hand.server(2, "--join", hand.addresses[0]))
    begin_again([hand.servers[2], *hand.workers])
    hand.lose("workers", 0, signal.SIGKILL)
    for server in hand.servers:
        server.wait_event(is_event("back"))
    retry(lambda: drain(hand, 2, "--no-wait"))
    removed = hand.servers.pop()
    assert removed.end() == 0, removed.error
    hand.lose("servers", 0, signal.SIGKILL)
    hand.replace(0)
    hand.workers[0] = hand.worker(0)
    hand.end()


def removal_is_asked_for_again_when_server_0_is_lost():
    """Server 0 is killed before it has told anybody, since server 1 stands still and there is no snapshot yet."""
    hand = Hand("removed-again", "tcp")
    hand.workers[0].wait_event(makes_steps)
    removed = hand.servers[1]
    removed.process.send_signal(signal.SIGSTOP)
    asking = job.Job("drain", "--join", ",".join(hand.addresses), "--server", 1, "--wait", 60, "--json")
    asking.wait_event(is_event("draining"))
    hand.lose("servers", 0, signal.SIGKILL)
    removed.process.send_signal(signal.SIGCONT)
    hand.replace(0)
    asking.wait_event(is_event("drained"))
    assert asking.end() == 0, asking.error
    assert hand.servers.pop().end() == 0, removed.error
    hand.end()


def server_that_is_added_while_the_job_goes_back_waits_for_the_steps():
    hand = Hand("added-late", "tcp")
    hand.servers[0].wait_event(is_event("snapshot"))
    lost = hand.lose("servers", 1, signal.SIGKILL)
    for process in hand.others(lost):
        process.wait_event(is_event("back"))
    hand.servers.append(hand.server(2, "--join", hand.addresses[0]))
    hand.address(hand.servers[2])
    hand.replace(1)
    begin_again([hand.servers[2], hand.servers[1], hand.servers[0], *hand.workers])
    hand.end()


def earlier_run_that_goes_back_publishes_nothing():
    """While the job waits for a lost server, a newer run marks the directory of snapshots. The process of server 0 stays,
    so it knows that the mark is not its own."""
    hand = Hand("lives-on", "tcp")
    hand.servers[0].wait_event(is_event("snapshot"))
    lost = hand.lose("servers", 1, signal.SIGKILL)
    for process in hand.others(lost):
        process.wait_event(is_event("back"))
    mark = hand.snapshots / ".tern-owner"
    mark.write_text("0123456789abcdef")
    before = set(hand.snapshots.glob("*.json"))
    hand.replace(1)
    begun = hand.servers[0].wait_event(is_event("begun"))
    hand.end()
    later = [e for e in hand.servers[0].events if e["time"] > begun["time"]]
    told = [e["text"] for e in later if e["event"] == "warning"]
    assert told and all("another job takes snapshots" in text for text in told), told
    assert not any(e["event"] == "snapshot" for e in later), later
    assert set(hand.snapshots.glob("*.json")) == before and mark.read_text() == "0123456789abcdef"


def retry(action):
    """Does it until it succeeds: server 0 may be about to be made anew."""
    for attempt in range(100):
        try:
            return action()
        except AssertionError:
            if attempt == 99:
                raise
            time.sleep(0.1)


def who_cannot_be_removed_stays():
    hand = Hand("stays", "tcp")
    hand.workers[0].wait_event(makes_steps)
    assert "server 0 decides" in drain(hand, 0, code=1).error
    assert "has no server" in drain(hand, 7, code=1).error
    job.refused("drain", "--join", hand.addresses[0], says=["--server"])
    hand.end()


def server_that_cannot_hand_over_in_time_says_what_is_lost():
    """No snapshot can be taken, since a worker stands still."""
    hand = Hand("late", "tcp", more=["--drain-within", 2])
    hand.servers[0].wait_event(is_event("snapshot"))
    hand.workers[1].process.send_signal(signal.SIGSTOP)
    lost = hand.lose("servers", 0, signal.SIGTERM)
    said = [e["text"] for e in lost.events if e["event"] == "warning"]
    assert len(said) == 1 and re.match(r"no snapshot within 1.25 s: the steps since the snapshot of step \d+ are lost", said[0]), said
    hand.workers[1].process.send_signal(signal.SIGCONT)
    hand.replace(0)
    hand.end()


def abort(hand, at):
    """An operator ends the job. All of its processes end, and say who asked and why."""
    job.finish("abort", "--join", hand.addresses[at], "--why", "lr is too high", "--json")
    for process in [*hand.servers, *hand.workers]:
        assert process.end() == 1, process.error
        errors = [e["text"] for e in process.events if e["event"] == "error"]
        assert len(errors) == 1 and "aborted the job: lr is too high" in errors[0], errors


def aborted_job_saves_and_does_not_go_back():
    for at in 0, 1:
        hand = Hand(f"aborted-{at}", "tcp")
        hand.workers[0].wait_event(makes_steps)
        abort(hand, at)
        assert [f.name for f in hand.save.iterdir()] == ["interrupted.safetensors"]
        assert not any(e["event"] == "back" for p in [*hand.servers, *hand.workers] for e in p.events)


def job_that_waits_for_a_lost_server_is_aborted():
    for lost in 0, 1:
        hand = Hand(f"aborted-waiting-{lost}", "tcp", servers=3)
        hand.servers[0].wait_event(is_event("snapshot"))
        gone = hand.lose("servers", lost, signal.SIGKILL)
        for process in hand.others(gone):
            process.wait_event(is_event("back"))
        hand.servers.remove(gone)
        del hand.addresses[lost]
        abort(hand, 1)


def a_new_server_needs_a_number_and_time():
    for more, says in [(["--snapshots", job.SCRATCH], ["--join", "--index"]),
                       (["--index", 1], ["--join", "--snapshots"]),
                       (["--index", 1, "--snapshots", job.SCRATCH / "new", "--server-wait", 0], ["--join", "--server-wait"])]:
        job.refused("server", "--join", "tcp://127.0.0.1:9", *more, says=says)
    job.refused("server", "--replaces", says="--replaces: needs --join")


tap.run([killed_servers_come_again, job_waits_for_a_directory_that_is_gone,
         snapshot_of_another_job_is_named_until_it_is_removed, job_that_waits_in_vain_says_why_at_last,
         servers_that_were_asked_to_end_come_again, single_server_comes_again_at_its_address,
         job_goes_on_from_memory_without_its_last_worker,
         job_that_went_on_from_memory_without_a_snapshot_asks_for_no_requeue,
         workers_are_added_to_a_job, job_waits_without_workers, only_a_job_that_goes_back_gets_more_workers,
         without_a_snapshot_it_goes_back_to_the_start, those_that_wait_in_vain_end, those_that_wait_can_be_ended,
         worker_that_was_lost_too_comes_later, servers_are_added_and_removed,
         server_is_removed_before_the_steps, new_worker_names_the_servers_that_are_left, lost_server_is_removed,
         removal_is_known_when_server_0_is_lost_at_once, removal_is_asked_for_again_when_server_0_is_lost,
         server_that_is_added_while_the_job_goes_back_waits_for_the_steps, who_cannot_be_removed_stays,
         earlier_run_that_goes_back_publishes_nothing,
         aborted_job_saves_and_does_not_go_back, job_that_waits_for_a_lost_server_is_aborted,
         server_that_cannot_hand_over_in_time_says_what_is_lost,
         a_new_server_needs_a_number_and_time])
