#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the curves of --logdir are those of the job's events, also of a job that goes back, and that a disk which
fails costs nothing but points. real_tensorboard.py reads them with TensorBoard.

usage: curves.py TERN [CURVES_DISK.so]
"""
import errno
import math
import os
import re
import resource
import shlex
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import event_files  # noqa: E402
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
NAMES = ("loss", "lr", "steps_per_s", "samples_per_s", "staleness_mean", "staleness_max")


def is_one(a, b):
    """True if these are the same number, of which an event has nine digits, and a point 24 bits."""
    return math.isclose(a, b, rel_tol=1e-6)


def progress(events):
    return [event for event in events if event["event"] == "progress"]


def values(events, name):
    """{step: the values of the progress events of this step}"""
    found = {}
    for event in progress(events):
        if event["step"] > 0 and name in event:
            found.setdefault(event["step"], []).append(event[name])
    return found


def are_of(curves, events):
    """Each number is a curve, with one point for each step of the events: the last of its values, of a rate the
    first."""
    for name in NAMES:
        told = values(events, name)
        place = 0 if name in ("steps_per_s", "samples_per_s") else -1
        points = curves.get(name, [])
        assert [step for step, _ in points] == sorted(told), (name, points, told)
        assert all(is_one(value, told[step][place]) for step, value in points), (name, points, told)


def program(*options):
    worker = shlex.join(map(str, [job.TERN, "worker", *job.small(*options)]))
    return ["sh", "-c", f'exec {worker} --join "$TERN_JOIN" --index "$TERN_INDEX" --workers "$TERN_WORKERS" >&2']


def run(name, *options):
    """The curves of a job under `tern run`, and its events, among them the progress that server 0 reports."""
    directory = job.SCRATCH / name
    events = job.finish("run", "--servers", 2, "--workers", 2, "--logdir", directory, "--json", "--",
                        *program(*options, "--servers", 2)).events
    assert len(event_files.files(directory)) == 1, event_files.files(directory)
    return event_files.curves(directory), events


def curves_are_those_of_the_events_of_a_sync_job():
    options = "--schedule", "linear", "--steps", job.enough(3000)
    curves, events = run("sync", *options)
    are_of(curves, events)
    assert set(curves) == {"loss", "lr", "steps_per_s", "samples_per_s", "metrics/test_loss", "metrics/test_accuracy"}
    assert curves["loss"][-1][0] == job.enough(3000)


def curves_are_those_of_the_events_of_an_async_job():
    curves, events = run("async", "--mode", "async", "--steps", job.enough(6000), "--eval-every", job.enough(600))
    are_of(curves, events)
    assert {"staleness_mean", "staleness_max"} <= set(curves), curves
    # A metric has the job's step, and not that of its worker, who makes half of them.
    steps = [step for step, _ in curves["metrics/test_loss"]]
    assert steps == sorted(steps) and steps[-1] == job.enough(6000), steps


def evaluations_of_train_are_points():
    directory = job.SCRATCH / "parent" / "evaluated"
    done = job.finish("train", *job.small(model="mlp:400,200", steps=60), "--logdir", directory, "--eval-every", 20,
                      "--json")
    curves = event_files.curves(directory)
    for name in ("test_loss", "test_accuracy"):
        told = {event["step"]: event[name] for event in done.events if event["event"] == "evaluated"}
        told[60] = done.last[name]
        points = dict(curves[f"metrics/{name}"])
        # Evaluations that follow each other in less than a fifth of a second share a point.
        assert 60 in points and all(is_one(value, told[step]) for step, value in points.items()), (points, told)
        assert len(curves[f"metrics/{name}"]) == len(points)


def long(steps):
    """Options of a job that still runs when something is done to it."""
    return job.small("--slots", 5, model="mlp:200,30", steps=steps)


def only_server_0_writes():
    directory = job.SCRATCH / "servers"
    done = job.finish("train", *job.small("--servers", 3, "--workers", 1), "--logdir", directory, "--json")
    path, = event_files.files(directory)
    assert re.fullmatch(r"events\.out\.tfevents\.\d{10}\..+\.\d+\.0", path.name), path
    assert done.last["event"] == "done"


def job_that_is_started_again_replaces_the_steps():
    """Server 0 is killed: another process goes on from the newest snapshot, and begins another file."""
    directory, steps = job.SCRATCH / "again", job.enough(4000)
    running = job.Job("train", *long(steps), "--snapshots", job.SCRATCH / "again-snapshots", "--snapshot-every",
                      steps // 40, "--logdir", directory, "--json")
    running.wait_event(lambda e: e["event"] == "snapshot")
    running.wait_event(lambda e: e["event"] == "progress")
    job.wait_until(lambda: event_files.curves(directory).get("loss"))
    before = event_files.curves(directory)["loss"]
    os.kill(running.pid_of("server", 0), signal.SIGKILL)
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert len(event_files.files(directory)) == 2, event_files.files(directory)
    assert before, "the file of a process that was killed is read"
    curves = event_files.curves(directory)
    for tag in ("loss", "lr", "steps_per_s"):
        shown = [step for step, _ in curves[tag]]
        assert shown == sorted(set(shown)) and shown[-1] == steps, (tag, shown)


def job_by_hand_that_goes_back_begins_a_file():
    """Server 1 is lost and comes again, while the process of server 0 stays."""
    directory, steps = job.SCRATCH / "hand", job.enough(4000)
    snapshots = "--snapshots", job.SCRATCH / "hand-snapshots", "--snapshot-every", steps // 40, "--server-wait", 60

    def server(index, *more):
        started = job.Job("server", "--fabric", "shm", "--index", index, *snapshots, "--logdir", directory, *more,
                          "--json")
        return started, started.wait_event(lambda e: e["event"] == "listening")["address"]

    (first, a), (second, b) = server(0), server(1)
    worker = job.Job("worker", *long(steps), "--servers", 2, "--fabric", "shm", "--join", f"{a},{b}", "--workers", 1,
                     "--index", 0, "--server-wait", 60, "--json")
    first.wait_event(lambda e: e["event"] == "snapshot")
    first.wait_event(lambda e: e["event"] == "progress")
    second.process.kill()
    second.end()
    third, _ = server(1, "--join", a)
    for process in (worker, first, third):
        assert process.end() == 0, process.error
    assert len(event_files.files(directory)) == 2, event_files.files(directory)
    shown = [step for step, _ in event_files.curves(directory)["loss"]]
    assert shown == sorted(set(shown)) and shown[-1] == steps, shown


def is_warning_of_curves(event):
    return event["event"] == "warning" and "--logdir" in event["text"]


def full_disk_costs_points_only():
    directory, steps = job.SCRATCH / "full", job.enough(4000)
    running = job.Job("train", *long(steps), "--logdir", directory, "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    pid = running.pid_of("server", 0)
    job.wait_until(lambda: event_files.files(directory))
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    size = event_files.files(directory)[0].stat().st_size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    told = running.wait_event(is_warning_of_curves)
    assert "File too large" in told["text"] and str(directory) in told["text"], told
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert len([e for e in running.events if is_warning_of_curves(e)]) == 1, running.events
    shown = event_files.curves(directory)["loss"]
    assert shown[-1][0] == steps and all(math.isfinite(value) for _, value in shown), shown


def job_with_curves_on(disk, name):
    """A job with snapshots, whose curves are on a disk that is broken while the file `disk` is there (curves_disk.c)."""
    with job.environment(LD_PRELOAD=sys.argv[2], CURVES_DISK=str(disk)):
        return job.Job("train", *long(job.enough(4000)), "--servers", 2, "--fabric", "tcp", "--snapshots",
                       job.SCRATCH / f"{name}-snapshots", "--snapshot-every", job.enough(100), "--logdir",
                       job.SCRATCH / name, "--json")


def broken_disk(name, error, says):
    """The disk of the curves breaks during the steps. Meanwhile a server is lost and comes again, the last snapshot is
    published, and the job comes to its end."""
    if len(sys.argv) < 3:
        raise tap.Skip("nothing can be preloaded into a program with a sanitizer")
    disk = job.SCRATCH / f"{name}-disk"
    running = job_with_curves_on(disk, name)
    try:
        job.wait_until(lambda: event_files.files(job.SCRATCH / name))
        (job.SCRATCH / "error").write_text(str(error))
        (job.SCRATCH / "error").rename(disk)
        running.wait_event(lambda e: e["event"] == "progress")
        os.kill(running.pid_of("server", 1), signal.SIGKILL)
        running.wait_event(lambda e: e["event"] == "restart" and e["who"] == "server 1")
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert running.last["event"] == "done" and disk.exists(), running.last
    assert any(e["event"] == "snapshot" and e["step"] == running.last["steps"] for e in running.events), running.events
    told = [e["text"] for e in running.events if is_warning_of_curves(e)]
    assert len(told) == 1 and says in told[0] and "the training goes on" in told[0], told


def full_disk_costs_no_snapshot_no_recovery_and_no_end():
    broken_disk("no-space", errno.ENOSPC, "No space left on device")


def disk_that_stands_still_costs_no_snapshot_no_recovery_and_no_end():
    """Points wait for the disk until the end of the job, which waits for 2 s."""
    broken_disk("stands", 0, "its disk does not answer")


def warned_of(process):
    """Waits for the warning that a file is in the place of the directory of the curves."""
    told = process.wait_event(is_warning_of_curves)["text"]
    assert "Not a directory" in told and "the training goes on" in told, told


def job_that_goes_on_is_not_refused_because_of_its_curves():
    """A file is where the directory of the curves was, when a job is resumed, and when a lost server 0 comes again by
    hand."""
    directory, blocked, steps = job.SCRATCH / "goes-on", job.SCRATCH / "blocked", job.enough(400)
    blocked.write_text("")
    logdir = "--logdir", blocked, "--json"
    job.train(*long(steps), "--snapshots", directory)
    resumed = job.Job("train", *long(2 * steps), "--snapshots", directory, "--resume", directory, *logdir)
    warned_of(resumed)
    assert resumed.end() == 0, resumed.error

    def server(index, *more):
        started = job.Job("server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--index", index, "--snapshots",
                          job.SCRATCH / "joins", *more)
        return started, started.wait_event(lambda e: e["event"] == "listening")["address"]

    (first, a), (second, b) = server(0, "--json"), server(1, "--json")
    worker = job.Job("worker", *long(10 * steps), "--servers", 2, "--fabric", "tcp", "--join", f"{a},{b}", "--workers", 1,
                     "--index", 0, "--server-wait", 60, "--json")
    worker.wait_event(lambda e: e["event"] == "progress")
    first.process.kill()
    first.end()
    third, _ = server(0, "--join", b, *logdir)
    warned_of(third)
    for process in worker, second, third:
        assert process.end() == 0, process.error


def a_directory_that_is_none_is_refused():
    empty = job.SCRATCH / "empty"
    empty.mkdir()
    for where, why in ((sys.argv[0], "Not a directory"), (Path(sys.argv[0]) / "below", "Not a directory"),
                       ("/proc/tern", "No such file or directory")):
        for command in (["train", *job.small()], ["run"], ["server", "--fabric", "shm"]):
            end = ["--", "true"] if command == ["run"] else []
            job.refused(*command, "--logdir", where, *end, says=[f"--logdir {where}: {why}: expected a directory"])
    job.refused("train", *job.small(), "--logdir", "", says=["--logdir: its value is empty"])
    job.refused("worker", *job.small(), "--logdir", empty, says=["--logdir: no such option"])
    assert not event_files.files(empty)


tap.run([curves_are_those_of_the_events_of_a_sync_job, curves_are_those_of_the_events_of_an_async_job,
         evaluations_of_train_are_points, only_server_0_writes, job_that_is_started_again_replaces_the_steps,
         job_by_hand_that_goes_back_begins_a_file, full_disk_costs_points_only,
         full_disk_costs_no_snapshot_no_recovery_and_no_end,
         disk_that_stands_still_costs_no_snapshot_no_recovery_and_no_end,
         job_that_goes_on_is_not_refused_because_of_its_curves, a_directory_that_is_none_is_refused])
