#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests snapshots in async mode with real processes: a snapshot has the same steps of each worker in all chunks, and a job
that goes on from it, whatever was killed, ends with every step of every worker applied once.

usage: async_snapshots.py TERN
"""
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
STEPS, EVERY, WORKERS = job.enough(2400), job.enough(300), 3
LONG = 4 * STEPS  # is not done before it is killed
MODEL = "mlp:200,30"  # several chunks


def options(*more, steps=STEPS, mode="async"):
    return job.small("--mode", mode, "--workers", WORKERS, "--fabric", "tcp", *more, model=MODEL, steps=steps)


def started(name, *more, **settings):
    directory = job.SCRATCH / f"{name}-snapshots"
    return job.Job("train", *options("--snapshots", directory, "--snapshot-every", EVERY, *more, **settings),
                   "--json"), directory


def is_snapshot(after_step=0):
    return lambda e: e["event"] == "snapshot" and e["step"] > after_step


def shown(directory):
    return job.finish("checkpoint", "show", directory, "--json").events[-1]


def all_are_applied_once(directory, steps=STEPS):
    """The last snapshot has all steps of each worker, and none is torn. All snapshots are of one instant: `verify`
    compares what each chunk says with the manifest."""
    last = shown(directory)
    assert last["step"] == steps, last["step"]
    assert last["applied"] == [[steps // WORKERS + (k < steps % WORKERS)] * 2 for k in range(WORKERS)], last["applied"]
    job.finish("checkpoint", "verify", directory)


def killed_job_goes_on_with_each_step_once():
    running, directory = started("killed", "--servers", 2, "--restarts", 0, steps=LONG)
    running.wait_event(is_snapshot())
    running.wait_event(is_snapshot())
    running.kill()
    job.wait_until(lambda: not running.processes())
    before = shown(directory)
    assert sum(most for _, most in before["applied"]) == before["step"] >= 2 * EVERY, before["applied"]
    assert before["step"] < LONG, "the job had come to its end"
    job.finish("checkpoint", "verify", directory)
    finished = job.finish("train", *options("--servers", 3, "--snapshots", directory, "--resume", directory,
                                            "--snapshot-every", EVERY, steps=LONG), "--json")
    assert [e["step"] for e in finished.events if e["event"] == "snapshot"][-1] == LONG
    all_are_applied_once(directory, LONG)


def killed_server_costs_a_start_of_all():
    running, directory = started("server", "--servers", 2, mode="ssp:2")
    running.wait_event(is_snapshot())
    before = running.pids()
    os.kill(before["server", 1], signal.SIGKILL)
    told = running.wait_event(lambda e: e["event"] == "restart")
    assert "server 1" in told["text"] and "all processes are started again" in told["text"], told
    assert "goes on from snapshot step-" in told["text"] and "who" not in told, told
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    all_are_applied_once(directory)


def steps_of_a_lost_worker_are_made_after_resume():
    steps = 2 * STEPS
    running, directory = started("worker", "--servers", 1, steps=steps)
    running.wait_event(is_snapshot())
    os.kill(running.pids()["worker", 1], signal.SIGKILL)
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    last = shown(directory)
    assert last["step"] < steps and last["applied"][1][0] < steps // WORKERS, last["applied"]
    job.finish("train", *options("--servers", 2, "--snapshots", directory, "--resume", directory, steps=steps))
    all_are_applied_once(directory, steps)


def sigterm_takes_a_snapshot():
    running, directory = started("sigterm", "--snapshot-every", "1h", steps=50 * STEPS)
    running.wait_event(lambda e: e["event"] == "progress")
    os.kill(running.process.pid, signal.SIGTERM)
    try:
        assert running.end() == 75, running.error
    finally:
        running.kill()
    assert shown(directory)["step"] > 0
    evaluated = job.finish("evaluator", "--snapshots", directory, "--once", *job.small_data(MODEL), "--json").events
    assert [e["step"] for e in evaluated if e["event"] == "evaluated"] == [shown(directory)["step"]], evaluated


def jobs_that_differ_are_refused():
    directory = job.SCRATCH / "killed-snapshots"
    for more, says in [(["--workers", 2], ["go on with 3 workers"]), (["--mode", "sync"], ["mode"]),
                       (["--mode", "ssp:1"], ["mode"]), (["--seed", 8], ["seed"])]:
        error = job.finish("train", *options("--resume", directory, *more, steps=2 * LONG), code=1).error
        assert "cannot be continued" in error and all(text in error for text in says), error


tap.run([
    killed_job_goes_on_with_each_step_once,
    killed_server_costs_a_start_of_all,
    steps_of_a_lost_worker_are_made_after_resume,
    sigterm_takes_a_snapshot,
    jobs_that_differ_are_refused,
])
