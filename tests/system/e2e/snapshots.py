#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a job goes on from its snapshots: with other numbers of processes, after any process was killed, and
after a snapshot was damaged. In each case the results have the bytes of a job that nothing has happened to.

usage: snapshots.py TERN [SLOW_FSYNC.so]
"""
import functools
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
STEPS, EVERY = job.enough(2400), job.enough(200)
MODEL = "mlp:200,30"  # several chunks


def options(*more, steps=STEPS):
    return job.small("--slots", 5, "--clip-norm", 1, *more, model=MODEL, steps=steps)


def saved(directory):
    return (directory / "model.safetensors").read_bytes()


@functools.cache
def expected(steps=STEPS):
    directory = job.SCRATCH / f"expected-{steps}"
    job.train(*options("--fabric", "shm", "--save", directory, steps=steps))
    return saved(directory)


def manifests(directory):
    return sorted(directory.glob("step-*.json"))


def started(name, *more, every=EVERY, steps=STEPS):
    """Starts a job that takes snapshots. Returns it, the directory of its snapshots, and that of its results."""
    snapshots, results = job.SCRATCH / f"{name}-snapshots", job.SCRATCH / f"{name}-results"
    return job.Job("train", *options("--save", results, "--snapshots", snapshots, "--snapshot-every", every, *more,
                                     steps=steps), "--json"), snapshots, results


def is_snapshot(after_step=0):
    return lambda e: e["event"] == "snapshot" and e["step"] > after_step


def killed(name, *more, snapshots=2):
    """Runs a job that is killed after so many snapshots. Returns the directories, as started()."""
    running, directory, results = started(name, *more)
    for _ in range(snapshots):
        running.wait_event(is_snapshot())
    running.kill()
    job.wait_until(lambda: not running.processes())
    return directory, results


def resumed(directory, results, *more):
    """Goes on, and returns the events of the job."""
    finished = job.finish("train", *options("--save", results, "--resume", directory, *more), "--json")
    assert saved(results) == expected(), "other bytes than a job without a break"
    return finished.events


def warnings_of(events):
    return [e["text"] for e in events if e["event"] == "warning"]


def goes_on_with_other_processes():
    directory, results = killed("other", "--servers", 2, "--workers", 2, "--fabric", "tcp")
    newest = int(manifests(directory)[-1].name.split("-")[1])
    assert newest >= 2 * EVERY, newest
    events = resumed(directory, results, "--servers", 3, "--workers", 1, "--fabric", "tcp", "--snapshots", directory,
                     "--snapshot-every", EVERY, "--snapshot-keep", 2)
    steps = [e["step"] for e in events if e["event"] == "progress"]
    assert min(steps) > newest, (min(steps), newest)
    assert [int(m.name.split("-")[1]) for m in manifests(directory)][-1] == STEPS
    assert len(manifests(directory)) == 2, "two were to be kept"
    parts = {p.name.split(".")[0] for p in directory.glob("*.safetensors")}
    assert parts == {m.name.split(".")[0] for m in manifests(directory)}, "parts without a manifest are left"


def finished_job_goes_on_for_more_steps():
    longer = STEPS + EVERY
    directory, results = job.SCRATCH / "longer-snapshots", job.SCRATCH / "longer-results"
    job.train(*options("--snapshots", directory))
    job.train(*options("--resume", directory, "--save", results, "--workers", 3, steps=longer))
    assert saved(results) == expected(longer)


def single_server_over_shm_costs_a_start_of_all():
    """Its address is that of its process, so all processes are started again. in_place.py has jobs that need not."""
    steps = 3 * STEPS
    running, directory, results = started("killed-shm", "--fabric", "shm", "--workers", 2, steps=steps)
    step = 0
    for restarts in 1, 2:
        step = running.wait_event(is_snapshot(step))["step"]
        before = running.pids()
        os.kill(before["server", 0], signal.SIGKILL)
        told = running.wait_event(lambda e: e["event"] == "restart")
        assert "server 0" in told["text"] and "all processes are started again" in told["text"], told
        assert "goes on from snapshot step-" in told["text"] and told["count"] == restarts and "who" not in told, told
        running.wait_event(is_snapshot(step))
        assert not set(before.values()) & set(running.pids().values())
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert saved(results) == expected(steps)


def job_is_not_started_again_for_ever():
    """Over shm all processes are started again, and over tcp the killed one."""
    for fabric in "shm", "tcp":
        for role in "server", "worker":
            running, _, _ = started(f"often-{fabric}-{role}", "--restarts", 1, "--fabric", fabric, steps=1_000_000)
            step = 0
            for restarts in 0, 1:
                step = running.wait_event(is_snapshot(step))["step"]
                os.kill(running.pid_of(role, 0), signal.SIGKILL)
                if restarts == 0:
                    running.wait_event(lambda e: e["event"] == "restart")
            try:
                assert running.end() == 1, running.code
            finally:
                running.kill()
            assert [e["event"] for e in running.events].count("restart") == 1
            last = running.error.splitlines()[-1]
            assert f"{role} 0" in last and "killed" in last, running.error


def damaged_snapshot_is_passed_over():
    directory, results = killed("damaged", "--workers", 2)
    newest = manifests(directory)[-1]
    part = directory / newest.name.replace(".json", ".0.safetensors")
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    events = resumed(directory, results)
    warnings = warnings_of(events)
    assert any(part.name in w and "cannot be used" in w and "digest" in w for w in warnings), warnings
    steps = [e["step"] for e in events if e["event"] == "progress"]
    assert 0 < min(steps) <= int(newest.name.split("-")[1]), steps[0]


def chosen_snapshot_is_taken():
    """Into another directory: in its own, the newer ones would be taken for those of the job that goes on."""
    directory, results = killed("chosen", snapshots=3)
    oldest, newest = manifests(directory)[0], manifests(directory)[-1]
    job.refused("train", *options("--save", results, "--resume", oldest, "--snapshots", directory),
                says=["newer", newest.name.removesuffix(".json"), "another directory"])
    job.refused("train", *options("--save", results, "--resume", directory, "--snapshots", expected_snapshots()),
                says=["an earlier job", str(expected_snapshots())])
    events = resumed(oldest, results, "--snapshots", job.SCRATCH / "chosen-others")
    notes = [e["text"] for e in events if e["event"] == "note"]
    assert any(oldest.name.removesuffix(".json") in n for n in notes), notes


def lost_directory_costs_snapshots_only():
    """The directory is away for a while."""
    running, directory, results = started("away", "--servers", 2)
    running.wait_event(is_snapshot())
    away = directory.rename(job.SCRATCH / "away")
    running.wait_event(lambda e: e["event"] == "warning")
    away.rename(directory)
    last = running.wait_event(is_snapshot())
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    warnings = warnings_of(running.events)
    assert all("No such file" in w and "nothing else is lost" in w for w in warnings), warnings
    assert saved(results) == expected() and manifests(directory), last


@functools.cache
def expected_snapshots():
    """A directory with the snapshots of another job."""
    directory = job.SCRATCH / "others"
    job.train(*options("--snapshots", directory, steps=20))
    return directory


def server_that_is_killed_at_the_end_costs_the_last_snapshot_only():
    """The server's second fsync() is that of the part of its last snapshot."""
    if len(sys.argv) < 3:
        raise tap.Skip("nothing can be preloaded into a program with a sanitizer")
    directory, results = job.SCRATCH / "at-end-snapshots", job.SCRATCH / "at-end-results"
    with job.environment(LD_PRELOAD=sys.argv[2], SLOW_FSYNC="2:20:server"):
        running = job.Job("train", *options("--save", results, "--snapshots", directory, steps=40), "--json")
    running.wait_event(lambda e: e["event"] == "saved")
    job.wait_until(lambda: not [w for w in running.processes().values() if w[1:2] == ["worker"]])
    os.kill(running.pid_of("server", 0), signal.SIGKILL)
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert running.events[-1]["event"] == "done", running.events[-1]
    warnings = warnings_of(running.events)
    assert len(warnings) == 1 and "the results are complete" in warnings[0] and "server 0" in warnings[0], warnings
    assert saved(results) == expected(40) and not manifests(directory)


def second_job_on_one_directory_is_refused():
    """Also before the first one has published a snapshot. When its server 0 is gone, however, another one may begin."""
    running, directory, _ = started("shared", "--fabric", "tcp", every="10m", steps=100_000_000)
    running.wait_event(lambda e: e["event"] == "progress")
    says = f"--snapshots {directory}: another job that runs has this directory (server 0: process "
    try:
        job.refused("train", *options("--snapshots", directory, steps=5), says=says)
        job.refused("server", "--listen", "127.0.0.1:0", "--index", 0, "--snapshots", directory, says=says)
    finally:
        running.kill()
    job.wait_until(lambda: not running.processes())
    job.train(*options("--snapshots", directory, steps=5))


def earlier_run_that_lives_on_publishes_nothing():
    """Another one has marked the directory."""
    running, directory, results = started("lives-on")
    running.wait_event(is_snapshot())
    (directory / ".tern-owner").write_text("0123456789abcdef")
    running.wait_event(lambda e: e["event"] == "warning")
    before = sorted(directory.iterdir())
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    warnings = warnings_of(running.events)
    assert all("another job takes snapshots" in w for w in warnings), warnings
    assert set(before) <= set(directory.iterdir()), "it has removed files of the other job"
    assert saved(results) == expected()


def full_disk_costs_snapshots_only():
    """A file system with room for one snapshot, which stays."""
    directory, results = job.SCRATCH / "full-snapshots", job.SCRATCH / "full-results"
    directory.mkdir()
    alone = ["unshare", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o size={4 * len(expected())} none {directory}"
    if subprocess.run([*alone, "sh", "-c", mount], capture_output=True).returncode:
        raise tap.Skip("no file system can be mounted here")
    show = f'{mount} && "$@"; code=$?; ls {directory} >{job.SCRATCH}/left; exit $code'
    running = job.Job("train", *options("--save", results, "--snapshots", directory, "--snapshot-every", EVERY),
                      "--json", prefix=[*alone, "sh", "-c", show, "sh"])
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    warnings = warnings_of(running.events)
    assert len(warnings) > 1 and all("No space left" in w and "snapshots before stay" in w for w in warnings), warnings
    published = [e["step"] for e in running.events if e["event"] == "snapshot"]
    assert len(published) == 1 and published[0] % EVERY == 0, published
    left = (job.SCRATCH / "left").read_text().split()
    assert len(left) == 2 and all(n.startswith(f"step-{published[0]:012}-") for n in left), left
    assert saved(results) == expected()


def signal_asks_for_a_snapshot():
    running, directory, _ = started("signal", every="10m")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    running.process.send_signal(signal.SIGUSR1)
    event = running.wait_event(is_snapshot())
    assert 0 < event["step"] < STEPS and Path(event["path"]).exists(), event
    running.kill()


def interrupted_job_is_resumed_by_the_words_of_its_refusal():
    directory, results = killed("again")
    job.refused("train", *options("--save", results, "--snapshots", directory),
                says=[str(directory), manifests(directory)[-1].name.removesuffix(".json"), f"--resume {directory}"])
    resumed(directory, results, "--snapshots", directory)


def wrong_options_are_refused():
    empty = job.SCRATCH / "empty"
    empty.mkdir(exist_ok=True)
    for more, says in [
            (["--resume", empty], ["--resume", str(empty), "no snapshot is there"]),
            (["--resume", job.SCRATCH / "none"], ["--resume", "none", "No such file or directory"]),
            (["--resume", sys.argv[0]], ["--resume", "expected a directory of snapshots"]),
            (["--snapshots", sys.argv[0]], ["--snapshots", "Not a directory"]),
            (["--snapshots", job.SCRATCH / "no" / "where"], ["--snapshots", "No such file or directory"]),
            (["--snapshots", empty, "--snapshot-every", "0"], ["--snapshot-every 0:", "30s, 10m or 2h"]),
            (["--snapshots", empty, "--snapshot-every", "5x"], ["--snapshot-every 5x:"]),
            (["--snapshots", empty, "--snapshot-keep", "0"], ["--snapshot-keep", "0"])]:
        job.refused("train", *options(*more), says=says)


def options_about_snapshots_need_a_directory():
    for more in ["--snapshot-every", "10m"], ["--snapshot-keep", 3]:
        for command in ["train", *options()], ["run", "--", "true"], ["server"]:
            job.refused(*command[:1], *more, *command[1:], says=[f"{more[0]} needs --snapshots DIR"])


def other_job_is_refused():
    directory, _ = killed("other-job")
    error = job.finish("train", *options("--resume", directory, "--seed", 8), code=1).error
    assert "seed" in error and "cannot be continued" in error, error
    error = job.finish("train", *options("--resume", directory, steps=1), code=1).error
    assert "steps" in error and "cannot be continued" in error, error


def launcher_waits_for_the_last_snapshot():
    """The server's second fsync(), that of its part, takes longer than `tern run` waits for servers that have nothing to
    do. The first one is that of a look whether the directory can be written to."""
    if len(sys.argv) < 3:
        raise tap.Skip("nothing can be preloaded into a program with a sanitizer")
    directory = job.SCRATCH / "slow-snapshots"
    worker = shlex.join(map(str, [job.TERN, "worker", *options(steps=40)]))
    program = worker + ' --join "$TERN_JOIN" --index "$TERN_INDEX" >&2'
    with job.environment(LD_PRELOAD=sys.argv[2], SLOW_FSYNC="2:7:server"):
        job.finish("run", "--snapshots", directory, "--", "sh", "-c", program)
    assert [int(m.name.split("-")[1]) for m in manifests(directory)] == [40]


tap.run([goes_on_with_other_processes, finished_job_goes_on_for_more_steps, single_server_over_shm_costs_a_start_of_all,
         job_is_not_started_again_for_ever, damaged_snapshot_is_passed_over, chosen_snapshot_is_taken,
         lost_directory_costs_snapshots_only, full_disk_costs_snapshots_only,
         server_that_is_killed_at_the_end_costs_the_last_snapshot_only, earlier_run_that_lives_on_publishes_nothing,
         second_job_on_one_directory_is_refused, signal_asks_for_a_snapshot,
         interrupted_job_is_resumed_by_the_words_of_its_refusal, wrong_options_are_refused,
         options_about_snapshots_need_a_directory, other_job_is_refused, launcher_waits_for_the_last_snapshot])
