#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""However a job ends, it says why and leaves nobody and nothing half done behind.

usage: ends.py TERN
"""
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
FOR_EVER = 100_000_000


def started(*more):
    """A job that would go on for ever, and is at work."""
    running = job.Job("train", *job.small(*more, steps=FOR_EVER), "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    return running


def after(running, act, code, limit_s=20):
    """act() makes it end with `code`: what it says on stderr."""
    try:
        act()
        running.end(limit_s)
    finally:
        running.kill()
    assert running.code == code, f"exit code {running.code}\n{running.error}"
    return running.error


def killed_process_is_named(role, index, fabric):
    directory = job.SCRATCH / f"killed-{role}-{fabric}"
    running = started("--servers", 2, "--workers", 3, "--fabric", fabric, "--save", directory)
    pid = running.pid_of(role, index)
    error = after(running, lambda: os.kill(pid, signal.SIGKILL), code=1)
    assert error.splitlines()[-1] == (
        f"tern train: {role} {index} (pid {pid}) was killed by signal 9 (Killed)"), error
    assert not directory.exists() or not list(directory.iterdir()), "something was saved"


def killed_worker_is_named_over_shm():
    killed_process_is_named("worker", 1, "shm")


def killed_worker_is_named_over_tcp():
    killed_process_is_named("worker", 2, "tcp")


def killed_first_worker_is_named():
    killed_process_is_named("worker", 0, "shm")


def killed_server_is_named():
    killed_process_is_named("server", 1, "shm")


def interrupted_by(number):
    running = started("--servers", 2, "--workers", 2)
    after(running, lambda: running.process.send_signal(number), code=130)


def interrupt_leaves_nobody():
    interrupted_by(signal.SIGINT)


def termination_leaves_nobody():
    interrupted_by(signal.SIGTERM)


def killed_launcher_leaves_nobody():
    running = started("--servers", 2, "--workers", 2)
    assert len(running.processes()) == 5, running.processes()
    running.process.kill()
    running.process.wait()
    job.wait_until(lambda: not running.processes())
    running.kill()


def stopped_worker_does_not_keep_the_others_from_ending():
    running = started("--workers", 2)
    os.kill(running.pid_of("worker", 1), signal.SIGSTOP)
    after(running, lambda: running.process.send_signal(signal.SIGINT), code=130)


tap.run([
    killed_worker_is_named_over_shm,
    killed_worker_is_named_over_tcp,
    killed_first_worker_is_named,
    killed_server_is_named,
    interrupt_leaves_nobody,
    termination_leaves_nobody,
    killed_launcher_leaves_nobody,
    stopped_worker_does_not_keep_the_others_from_ending,
])
