#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a job outlives its workers as long as one is left, and whoever is killed or stands still is named.

usage: losses.py TERN
"""
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from running import after, by_hand, saved_by, started, training, undisturbed  # noqa: E402

job.use(sys.argv[1])


def processes_are_called_what_they_are():
    running = started("--servers", 2, "--workers", 2, "--fabric", "shm")
    try:
        for role, index in (("server", 0), ("server", 1), ("worker", 0), ("worker", 1)):
            pid = running.pid_of(role, index)
            comm = Path(f"/proc/{pid}/comm").read_text()
            assert comm == f"tern-{role} {index}\n", comm
    finally:
        after(running, lambda: running.process.send_signal(signal.SIGINT), code=130)


def killed_process_ends_the_job(role, index, *more):
    directory = job.SCRATCH / f"killed-{role}-{index}"
    running = started(*more, "--save", directory)
    pid = running.pid_of(role, index)
    error = after(running, lambda: os.kill(pid, signal.SIGKILL), code=1)
    assert error.splitlines()[-1] == (
        f"tern train: {role} {index} (pid {pid}) was killed by signal 9 (Killed)"), error
    last = running.events[-1]
    assert last["event"] == "failed" and last["code"] == 1 and last["text"] in error, last
    assert len({e["job"] for e in running.events}) == 1, running.events
    assert not directory.exists() or not list(directory.iterdir()), "something was saved"


def killed_server_is_named():
    killed_process_ends_the_job("server", 1, "--servers", 2, "--workers", 3, "--fabric", "shm")


def crash_leaves_a_backtrace():
    running = started("--workers", 1, "--fabric", "shm")
    pid = running.pid_of("worker", 0)
    lines = after(running, lambda: os.kill(pid, signal.SIGSEGV), code=1).splitlines()
    if any("Sanitizer" in line for line in lines):
        raise tap.Skip("a sanitizer has a handler of its own")
    assert "tern-worker 0: ended by SIGSEGV; where it was:" in lines, lines
    assert any("tern(" in line or "/exe(" in line or "[0x" in line for line in lines), lines
    assert lines[-1].endswith("was killed by signal 11 (Segmentation fault)"), lines


def killed_only_worker_is_named():
    killed_process_ends_the_job("worker", 0, "--workers", 1, "--fabric", "shm")


def killed_workers_cost_nothing(name, victims, *more):
    """The job saves the same bytes as if they had lived, and reports each loss once."""
    reference = undisturbed(*(["--clip-norm", "0.5"] if "--clip-norm" in more else []))
    running, directory = training(name, *more)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    pids = {i: running.pid_of("worker", i) for i in victims}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert saved_by(running, directory) == reference, "other bytes"
    told = {e["who"]: e["text"] for e in running.events if e["event"] == "lost"}
    assert told == {f"worker {i}": f"worker {i} (pid {pid}) was killed by signal 9 (Killed): "
                                   "its slots go to the other workers" for i, pid in pids.items()}
    slots = [e["text"] for e in running.events if " slots " in e.get("text", "")]
    assert len(slots) == len(victims), slots  # the workers that got the slots do not report it
    assert running.events[-1]["test_accuracy"] > 0.9, running.events[-1]
    assert len([e for e in running.events if e["event"] == "saved"]) == 1


def killed_first_worker_costs_nothing_over_shm():
    killed_workers_cost_nothing("first-shm", [0], "--workers", 3, "--fabric", "shm")


def killed_first_worker_costs_nothing_over_tcp():
    killed_workers_cost_nothing("first-tcp", [0], "--workers", 2, "--servers", 2,
                                "--fabric", "tcp")


def killed_worker_costs_nothing_over_shm():
    killed_workers_cost_nothing("second-shm", [1], "--workers", 2, "--servers", 2,
                                "--fabric", "shm")


def killed_worker_costs_nothing_over_tcp():
    killed_workers_cost_nothing("second-tcp", [1], "--workers", 3, "--fabric", "tcp")


def three_of_four_killed_workers_cost_nothing():
    killed_workers_cost_nothing("three", [0, 3, 1], "--workers", 4, "--servers", 2,
                                "--fabric", "shm", "--clip-norm", "0.5")


def killed_worker_is_not_the_end_in_async_mode():
    steps = job.enough(6000)
    running, directory = training("async", "--workers", 3, "--mode", "async", steps=steps)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    os.kill(running.pid_of("worker", 0), signal.SIGKILL)
    assert saved_by(running, directory)
    told = [e["text"] for e in running.events if e["event"] == "lost"]
    assert len(told) == 1 and told[0].endswith("the others go on without it"), told
    done = running.events[-1]
    assert done["steps"] < steps, done
    assert done["steps"] + done["steps_torn"] + done["steps_missing"] == steps, done
    assert any(f"{done['steps']} of {steps} steps were made" in e["text"]
               for e in running.events if e["event"] == "note"), running.events


def stopped_worker_is_left_behind(fabric):
    """The stopped worker's process lives and its kernel answers, but the job goes on without it.
    The launcher ends the process when the job is done."""
    running, directory = training(f"stopped-{fabric}", "--workers", 3, "--fabric", fabric,
                                  "--worker-timeout", 2)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    os.kill(running.pid_of("worker", 1), signal.SIGSTOP)
    assert saved_by(running, directory) == undisturbed(), "other bytes"
    told = [e["text"] for e in running.events if e["event"] == "lost"]
    assert len(told) == 1 and "has made no progress for" in told[0], told
    assert "the job goes on without worker 1" in told[0], told


def stopped_worker_is_left_behind_over_shm():
    stopped_worker_is_left_behind("shm")


def stopped_worker_is_left_behind_over_tcp():
    stopped_worker_is_left_behind("tcp")


def stopped_worker_is_waited_for():
    """Each server that lacks a gradient of it warns once, nothing is lost, and the job goes on with it."""
    running, directory = training("waits", "--workers", 3, "--servers", 2, "--worker-timeout", 0.5, "--on-stall", "wait")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    stopped = running.pid_of("worker", 1)
    os.kill(stopped, signal.SIGSTOP)

    running.wait_event(lambda e: e["event"] == "warning")
    time.sleep(2)  # four times the timeout
    os.kill(stopped, signal.SIGCONT)
    assert saved_by(running, directory) == undisturbed(), "other bytes"
    warned = [e["text"] for e in running.events if e["event"] == "warning"]
    assert len(warned) <= 2 and all("worker 1" in text and "the job waits (--on-stall wait)" in text
                                    for text in warned), warned
    assert not [e for e in running.events if e["event"] == "lost"], running.events


def stopped_worker_ends_the_job():
    running, directory = training("ends", "--workers", 3, "--worker-timeout", 0.5, "--on-stall", "end")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    stopped = running.pid_of("worker", 1)
    error = after(running, lambda: os.kill(stopped, signal.SIGSTOP), 1, limit_s=60)
    assert "worker 1" in error and "the job ends (--on-stall end)" in error, error
    assert not directory.exists()


def worker_that_comes_back_too_late_is_told_and_ends(fabric):
    directory = job.SCRATCH / f"late-{fabric}"
    server, worker = by_hand(2, directory, "--worker-timeout", 2, fabric=fabric)
    workers = [worker(0), worker(1)]
    try:
        workers[1].wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        workers[1].process.send_signal(signal.SIGSTOP)
        server.wait_event(lambda e: e["event"] == "lost")
        workers[1].process.send_signal(signal.SIGCONT)
        workers[1].end(20)
        workers[0].end()
        server.end(20)
    finally:
        for process in (server, *workers):
            process.kill()
    assert [w.code for w in workers] == [0, 1] and server.code == 0, server.error
    errors = [e["text"] for e in workers[1].events if e["event"] == "error"]
    assert len(errors) == 1 and "goes on without this worker" in errors[0], errors
    assert (directory / "model.safetensors").read_bytes()


def worker_that_comes_back_too_late_is_told_and_ends_over_shm():
    worker_that_comes_back_too_late_is_told_and_ends("shm")


def worker_that_comes_back_too_late_is_told_and_ends_over_tcp():
    worker_that_comes_back_too_late_is_told_and_ends("tcp")


def job_whose_last_worker_hangs_ends():
    """Only the servers and the launcher are left to wait for the hung worker."""
    running = started("--workers", 2, "--worker-timeout", 2)
    hung, killed = running.pid_of("worker", 1), running.pid_of("worker", 0)
    error = after(running, lambda: (os.kill(hung, signal.SIGSTOP), os.kill(killed, signal.SIGKILL)),
                  1, limit_s=60)
    assert "no worker is left" in error, error


def worker_that_dies_before_the_others_have_joined_makes_room():
    server, worker = by_hand(2, job.SCRATCH / "early")
    first = worker(0)
    others = []
    try:
        server.wait_event(lambda e: e["event"] == "note" and "joined, 1 of 2" in e["text"])
        first.process.kill()
        told = server.wait_event(lambda e: e["event"] == "note" and "worker 0" in e["text"])
        assert "before the steps began: its place is free again, and 0 of 2 workers have joined" in told["text"], told
        others = [worker(0), worker(1)]
        assert [process.end(60) for process in (*others, server)] == [0, 0, 0]
    finally:
        for process in (server, first, *others):
            process.kill()


def worker_that_was_killed_before_the_start_is_replaced_at_once():
    """The server has not noticed yet that the first worker is dead when the next one comes."""
    server, worker = by_hand(2, job.SCRATCH / "at-once", fabric="tcp")
    processes = [server, worker(0)]
    try:
        server.wait_event(lambda e: e["event"] == "note" and "joined, 1 of 2" in e["text"])
        processes[1].process.kill()
        processes[1].process.wait()  # on a busy host it may live on for a moment, and keep its place
        processes += [worker(0), worker(1)]
        codes = [process.end(60) for process in (*processes[2:], server)]
        assert codes == [0, 0, 0], [process.last for process in (server, *processes[2:])]
    finally:
        for process in processes:
            process.kill()


def workers_by_hand_go_on_alone():
    directory = job.SCRATCH / "alone"
    server, worker = by_hand(2, directory)
    workers = [worker(0), worker(1)]
    try:
        workers[1].wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        workers[0].process.kill()
        workers[1].end()
        server.end(20)
    finally:
        for process in (server, *workers):
            process.kill()
    assert (workers[1].code, server.code) == (0, 0), workers[1].error + server.error
    assert any(e["event"] == "lost" and "2 of its slots are computed here" in e["text"]
               for e in workers[1].events), workers[1].events
    assert any(e["event"] == "saved" for e in workers[1].events), workers[1].events
    assert [e["worker"] for e in server.events if e["event"] == "lost"] == [0]
    assert (directory / "model.safetensors").exists()


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


def server_that_stands_still_for_a_while_is_waited_for():
    """A server stands still, as under a debugger, for longer than any time-out of the transport."""
    jobs, servers = [], []
    for fabric in ("shm", "tcp"):
        jobs.append(training(f"still-{fabric}", "--workers", 2, "--fabric", fabric))
        running = jobs[-1][0]
        running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        servers.append(running.pid_of("server", 0))
        os.kill(servers[-1], signal.SIGSTOP)  # at once: the job takes two seconds
    time.sleep(15)
    for server in servers:
        os.kill(server, signal.SIGCONT)
    for running, directory in jobs:
        assert saved_by(running, directory) == undisturbed(), "other bytes"
        assert not [e for e in running.events if e["event"] == "lost"], running.events


tap.run([
    processes_are_called_what_they_are,
    killed_server_is_named,
    crash_leaves_a_backtrace,
    killed_only_worker_is_named,
    killed_first_worker_costs_nothing_over_shm,
    killed_first_worker_costs_nothing_over_tcp,
    killed_worker_costs_nothing_over_shm,
    killed_worker_costs_nothing_over_tcp,
    three_of_four_killed_workers_cost_nothing,
    killed_worker_is_not_the_end_in_async_mode,
    stopped_worker_is_left_behind_over_shm,
    stopped_worker_is_left_behind_over_tcp,
    stopped_worker_is_waited_for,
    stopped_worker_ends_the_job,
    worker_that_comes_back_too_late_is_told_and_ends_over_shm,
    worker_that_comes_back_too_late_is_told_and_ends_over_tcp,
    job_whose_last_worker_hangs_ends,
    worker_that_dies_before_the_others_have_joined_makes_room,
    worker_that_was_killed_before_the_start_is_replaced_at_once,
    workers_by_hand_go_on_alone,
    killed_launcher_leaves_nobody,
    stopped_worker_does_not_keep_the_others_from_ending,
    server_that_stands_still_for_a_while_is_waited_for,
])
