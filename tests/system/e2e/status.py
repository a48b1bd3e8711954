#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tern status`: what it says of a job that waits, makes steps, stands still or goes back, and that
the job is not disturbed by it.

usage: status.py TERN
"""
import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
import undisturbed  # noqa: E402
from running import FOR_EVER  # noqa: E402
from undisturbed import makes_steps  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(8_000)


def status(*addresses, more=(), code=0):
    """What the job says when these servers are asked."""
    done = job.finish("status", "--join", ",".join(addresses), "--json", *more, code=code)
    assert len(done.lines) == 1 and not done.error, (done.lines, done.error)
    return json.loads(done.lines[0])


def text(*addresses):
    done = job.finish("status", "--join", ",".join(addresses))
    assert not done.error, done.error
    return "\n".join(done.lines)


def until(wanted, *addresses, more=()):
    """Asks until wanted(answer) holds, and returns that answer."""
    found = []

    def asked():
        found.append(status(*addresses, more=more))
        return wanted(found[-1])

    job.wait_until(asked)
    return found[-1]


class Hand:
    """Servers and workers that are started by hand."""

    def __init__(self, name, *more, servers=2, workers=2, steps=None, snapshots=True, of_worker=()):
        self.save, self.snapshots = job.SCRATCH / name, job.SCRATCH / f"{name}-snapshots"
        self.more = [*more, *(["--snapshots", self.snapshots, "--snapshot-every", STEPS // 40] if snapshots else [])]
        self.servers, self.addresses, self.workers = [], [], []
        for index in range(servers):
            self.serve(index)
        self.common = undisturbed.options(steps or STEPS, "--servers", servers, "--workers", workers, "--fabric", "tcp",
                                          "--save", self.save, "--join", ",".join(self.addresses), *of_worker)

    def serve(self, index, *more):
        self.servers[index:index + 1] = [job.Job("server", "--fabric", "tcp", "--listen", "127.0.0.1:0",
                                                 "--index", index, *self.more, *more, "--json")]
        event = self.servers[index].wait_event(lambda e: e["event"] == "listening")
        self.addresses[index:index + 1] = [event["address"]]

    def work(self, *indices):
        for index in indices:
            self.workers.append(job.Job("worker", *self.common, "--index", index, "--json"))

    def end_well(self):
        undisturbed.end_well([*self.servers, *self.workers], self.save, STEPS)

    def kill(self):
        for process in [*self.servers, *self.workers]:
            process.kill()


@contextlib.contextmanager
def working(name, *more, **opts):
    """A job of two servers and two workers, which makes steps until it is killed."""
    hand = Hand(name, *more, steps=FOR_EVER, **opts)
    try:
        hand.work(0, 1)
        hand.workers[0].wait_event(makes_steps)
        yield hand
    finally:
        hand.kill()


def states(answer, kind):
    return [p["state"] for p in answer[kind]]


def it_waits_until_all_workers_are_here():
    hand = Hand("waits")
    for address in hand.addresses:
        answer = status(address)
        assert (answer["state"], answer["waits_for"]) == ("no_job", "a worker"), answer
    assert "no job yet" in text(hand.addresses[0])
    hand.work(1)
    answer = until(lambda a: a.get("joined") == 1, hand.addresses[0])
    assert (answer["state"], answer["waits_for"], states(answer, "workers")) == (
        "starts", "worker 0", ["missing", "joined"]), answer
    assert answer["job"]["steps"] == STEPS and answer["job"]["servers"] == 2, answer
    assert re.search("waits for +worker 0", text(hand.addresses[0]))
    hand.work(0)
    hand.end_well()


def any_server_gives_the_whole_picture():
    with working("picture") as hand:
        hand.servers[0].wait_event(lambda e: e["event"] == "snapshot")
        for address in reversed(hand.addresses):
            answer = until(lambda a: a.get("steps_per_s", 0) > 0 and "loss" in a, address)
            assert answer["server"] == 0 and answer["asked"] == hand.addresses[0] and "partial" not in answer, answer
            assert answer["state"] == "steps" and answer["step"] > 0 and answer["samples_per_s"] > 0, answer
            assert states(answer, "servers") == states(answer, "workers") == ["joined"] * 2, answer
            assert [s["address"] for s in answer["servers"]] == hand.addresses, answer
            assert sum(w["slots"] for w in answer["workers"]) == 5, answer
            assert answer["workers"][1]["name"].startswith("worker 1 (tcp 127.0.0.1:"), answer
            snapshot = answer["snapshot"]
            assert snapshot["failures"] == 0 and snapshot["step"] % (STEPS // 40) == 0 and snapshot["bytes"] > 0, answer
            assert Path(snapshot["path"]).parent == hand.snapshots, answer
            assert answer["recoveries"] == {"workers_lost": 0, "workers_came": 0, "back": 0}, answer
        shown = text(hand.addresses[1])
        for wanted in (r"^state +(makes steps|no progress)", rf"^step +\d+ of {FOR_EVER} +[\d.e+]+ steps/s", r"^training +loss",
                       r"^snapshot +step \d+, .* ago", r"^1 +joined +2 +\S+ +worker 1 \(tcp"):
            assert re.search(wanted, shown, re.M), (wanted, shown)


def many_may_ask_at_once():
    """Meanwhile a worker stands still, so the job cannot end. Nothing happens to it otherwise."""
    hand = Hand("many", "--worker-timeout", 3600)
    hand.work(0, 1)
    hand.workers[0].wait_event(makes_steps)
    hand.workers[1].process.send_signal(signal.SIGSTOP)
    for _ in range(2):
        asked = [job.Job("status", "--join", hand.addresses[i % 2], "--wait", 60, "--json") for i in range(20)]
        for one in asked:
            assert one.end() == 0, one.error
            assert json.loads(one.lines[0])["job"]["workers"] == 2, one.lines
    hand.workers[1].process.send_signal(signal.SIGCONT)
    hand.end_well()


def a_lost_server_is_named_until_it_comes_again():
    with working("back") as hand:
        hand.servers[0].wait_event(lambda e: e["event"] == "snapshot")
        hand.servers[1].process.kill()
        hand.servers[1].end()
        answer = until(lambda a: a.get("joined") == 2 and a["state"] == "back", hand.addresses[0])
        assert answer["waits_for"] == "server 1" and states(answer, "servers") == ["joined", "missing"], answer
        assert answer["recoveries"]["back"] == 1 and answer["recoveries"]["back_for_s"] > 0, answer
        assert answer["snapshot"]["step"] > 0, answer
        assert "the job goes back, for" in text(hand.addresses[0])
        hand.serve(1, "--join", hand.addresses[0])
        answer = until(lambda a: a["state"] == "steps", hand.addresses[1], hand.addresses[0])
        assert answer["recoveries"]["last_back_s"] > 0 and answer["job"]["first_step"] > 0, answer


def another_server_tells_what_it_knows_without_server_0():
    hand = Hand("partial")
    hand.work(0, 1)
    hand.servers[0].wait_event(lambda e: e["event"] == "snapshot")
    hand.servers[0].process.kill()
    hand.servers[0].end()
    answer = until(lambda a: a["state"] == "back" and "partial" in a, hand.addresses[1], hand.addresses[0])
    assert answer["server"] == 1 and hand.addresses[0] in answer["partial"], answer
    assert "only server 1 has answered" in text(hand.addresses[1])
    hand.serve(0, "--join", hand.addresses[1])
    hand.end_well()


def lost_and_late_workers_are_named():
    hand = Hand("late", "--worker-timeout", 100, steps=FOR_EVER, workers=3)
    try:
        hand.work(0, 1, 2)
        hand.workers[0].wait_event(makes_steps)
        hand.workers[1].process.kill()
        answer = until(lambda a: a["lost"] == 1 and a["recoveries"]["workers_lost"] == 1, hand.addresses[1])
        assert states(answer, "workers") == ["joined", "lost", "joined"], answer
        hand.workers[2].process.send_signal(signal.SIGSTOP)
        answer = until(lambda a: a["quiet_s"] > 2 and a["workers"][2].get("silent_s", 0) > 1, hand.addresses[0])
        assert re.search(r"worker 2 .* for slot \d of step \d+", answer["waits_for"]), answer
        # After a slow step that takes three times as long.
        job.wait_until(lambda: re.search(r"^state +no progress for \d", text(hand.addresses[0]), re.M))
        shown = text(hand.addresses[0])
        assert re.search(r"^waits for +worker 2 ", shown, re.M), shown
    finally:
        hand.kill()


def async_jobs_have_staleness_and_steps_of_each_worker():
    with working("async", snapshots=False, of_worker=["--mode", "async"]) as hand:
        answer = until(lambda a: a.get("steps_per_s", 0) > 0 and "staleness" in a, hand.addresses[1])
        assert answer["job"]["mode"] == "async" and "snapshot" not in answer, answer
        assert answer["staleness"]["max"] >= answer["staleness"]["mean"] >= 0, answer
        assert all(w["step"] > 0 for w in answer["workers"]), answer
        assert re.search(r"^staleness +[\d.]+ versions on average", text(*hand.addresses), re.M)


def secret_is_needed():
    for name in "secret", "other":
        (job.SCRATCH / name).write_text(f"{name} of sixteen bytes or more")
        (job.SCRATCH / name).chmod(0o600)
    hand = Hand("secret-job", "--secret-file", job.SCRATCH / "secret")
    try:
        assert status(hand.addresses[0], more=["--secret-file", job.SCRATCH / "secret"])["state"] == "no_job"
        for more in ["--secret-file", job.SCRATCH / "other"], []:
            job.refused("status", "--join", hand.addresses[0], *more, says=["no answer: tcp://", "secret"], code=1)
    finally:
        hand.kill()


def jobs_of_a_launcher_can_be_asked():
    for name, command in ("train", ["train", *job.small("--servers", 2, "--workers", 2, steps=FOR_EVER)]), (
            "run", ["run", "--servers", 2, "--workers", 2, "--", "sleep", 100]):
        secret = job.SCRATCH / f"secret-of-{name}"
        secret.write_text("a secret of sixteen bytes or more")
        secret.chmod(0o600)
        launcher = job.Job(command[0], "--secret-file", secret, "--json", *command[1:])
        try:
            join = launcher.wait_event(lambda e: e["event"] == "start")["join"]
            answer = until(lambda a: name == "run" or a["state"] == "steps", join, more=["--secret-file", secret])
            assert answer["state"] == ("steps" if name == "train" else "no_job"), answer
            job.refused("status", "--join", join, says=["no answer: ", "secret"], code=1)
            launcher.process.terminate()
            assert launcher.end() == 143, launcher.error
        finally:
            launcher.kill()
    job.refused("train", *job.small("--secret-file", "/none"), says=["--secret-file"])
    job.refused("train", *job.small("--secret-file", "/none", "--insecure"), says=["--insecure", "--secret-file"])


def wrong_input_is_refused():
    for words, says in (([], "--join is missing"), (["--join", "nonsense"], "--join nonsense: "),
                        (["--join", "a:1,,b:2"], "address 2 is empty"),
                        (["--join", "127.0.0.1:9", "--wait", 0], "--wait 0"),
                        (["--join", "127.0.0.1:9", "--secret-file", "/none"], "--secret-file"),
                        (["--join", "127.0.0.1:9", "--log-level", "loud"], "--log-level loud")):
        job.refused("status", *words, says=[says])
    job.refused("status", "--join", "tcp://127.0.0.1:9", "--wait", 1.5, code=1,
                says=["no answer: tcp://127.0.0.1:9: Connection refused"])


def stopped_server_does_not_keep_anybody():
    hand = Hand("stopped")
    hand.work(0, 1)
    hand.workers[0].wait_event(makes_steps)
    hand.servers[0].process.send_signal(signal.SIGSTOP)
    answer = status(*hand.addresses)
    assert answer["server"] == 1 and "partial" in answer, answer
    done = subprocess.run([job.TERN, "status", "--join", hand.addresses[0], "--wait", "0.5"], capture_output=True,
                          text=True, timeout=job.LIMIT_S)
    assert done.returncode == 1 and "timed out" in done.stderr, done
    hand.servers[0].process.send_signal(signal.SIGCONT)
    hand.end_well()


tap.run([it_waits_until_all_workers_are_here, any_server_gives_the_whole_picture,
         many_may_ask_at_once, a_lost_server_is_named_until_it_comes_again,
         another_server_tells_what_it_knows_without_server_0, lost_and_late_workers_are_named,
         async_jobs_have_staleness_and_steps_of_each_worker, secret_is_needed, jobs_of_a_launcher_can_be_asked,
         wrong_input_is_refused, stopped_server_does_not_keep_anybody])
