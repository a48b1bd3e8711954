#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of jobs that are stopped and go on, that are asked for their status, and that are asked to end
before they have begun or while nobody reads their output.

usage: pauses.py TERN
"""
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from running import after, FOR_EVER, saved_by, started, training, undisturbed  # noqa: E402

job.use(sys.argv[1])


def state_of(pid):
    """Returns the state of the process as one letter, as in ps; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stopped_launcher_stops_the_job_which_goes_on_with_it():
    """The signals are those of Ctrl-Z and fg. No worker is lost because of the time in between."""
    timeout_s = 0.5 * job.SLOWNESS
    running, directory = training("ctrl-z", "--workers", 2, "--worker-timeout", timeout_s)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    everybody = list(running.processes())
    for _ in range(2):
        running.process.send_signal(signal.SIGTSTP)
        job.wait_until(lambda: all(state_of(pid) == "T" for pid in everybody))
        time.sleep(2 * timeout_s)
        running.process.send_signal(signal.SIGCONT)
        job.wait_until(lambda: not any(state_of(pid) == "T" for pid in everybody))
    assert saved_by(running, directory) == undisturbed(), "other bytes"
    assert not [e for e in running.events if e["event"] == "lost"], running.events


def stop_and_go_on(terminal):
    """Types Ctrl-Z, and fg when all processes stand still. The terminal signals only the launcher:
    its children are in process groups of their own."""
    everybody = terminal.processes()
    assert [os.getpgid(pid) for pid in everybody] == everybody
    terminal.type("\x1a")
    job.wait_until(lambda: all(state_of(pid) == "T" for pid in everybody))
    terminal.type("fg\n")
    job.wait_until(lambda: not any(state_of(pid) == "T" for pid in everybody))


def keys_at_a_terminal_stop_the_job_which_goes_on_with_fg():
    directory = job.SCRATCH / "keys"
    terminal = job.Terminal("keys")
    try:
        terminal.start("train", *job.small("--slots", 5, "--workers", 2, "--save", directory,
                                           steps=job.enough(4000)))
        job.wait_until(lambda: terminal.said('"progress"'))
        stop_and_go_on(terminal)
        job.wait_until(lambda: not terminal.processes(), 60)
    finally:
        terminal.close()
    log = terminal.log.read_text()
    assert '"lost"' not in log, log
    assert (directory / "model.safetensors").read_bytes() == undisturbed(), "other bytes"


def ctrl_c_after_fg_saves_and_leaves_nobody():
    directory, code = job.SCRATCH / "ctrl-c", job.SCRATCH / "ctrl-c.code"
    terminal = job.Terminal("ctrl-c")
    try:
        terminal.start("train", *job.small("--workers", 2, "--save", directory, steps=FOR_EVER))
        job.wait_until(lambda: terminal.said('"progress"'))
        stop_and_go_on(terminal)
        terminal.type("\x03")
        job.wait_until(lambda: not terminal.processes())
        terminal.type(f"echo $? >{code}\n")
        job.wait_until(lambda: code.exists() and code.read_text())
    finally:
        terminal.close()
    log = terminal.log.read_text()
    assert code.read_text() == "130\n", log
    assert "ended by SIGINT" in log, log
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]


def stopped_job_can_be_ended():
    running = started("--workers", 2)
    running.process.send_signal(signal.SIGTSTP)
    job.wait_until(lambda: state_of(running.process.pid) == "T")

    def end():
        running.process.terminate()
        running.process.send_signal(signal.SIGCONT)  # as a shell's kill does for a stopped job

    after(running, end, code=143)


def everybody_answers_the_question_for_the_status():
    running = started("--workers", 2)
    try:
        running.process.send_signal(signal.SIGUSR1)
        said = {}
        while len(said) < 4:
            event = running.wait_event(lambda e: e["event"] == "status")
            said[event.get("who", "train")] = event["text"]
        assert set(said) == {"train", "server 0", "worker 0", "worker 1"}, said
        assert re.fullmatch(rf"step \d+ of {FOR_EVER}, 3 of 3 processes run", said["train"]), said
        for who in "server", "worker":
            assert re.match(rf"step \d+ of {FOR_EVER}, this {who} waits for ", said[f"{who} 0"]), said
    finally:
        after(running, lambda: running.process.send_signal(signal.SIGINT), code=130)


def server_without_a_job_answers_on_stderr():
    server = job.Job("server", "--fabric", "shm")
    try:
        assert "listening" in server.process.stdout.readline()
        server.process.send_signal(signal.SIGUSR1)
        assert server.process.stderr.readline() == (
            "tern server 0: no job yet, this server waits for a worker\n")
        server.process.terminate()
        assert server.end(20) == 0, server.error
    finally:
        server.kill()


def question_before_the_children_are_ready_ends_nobody():
    running = job.Job("train", *job.small("--workers", 3, steps=5), "--json")
    status = Path(f"/proc/{running.process.pid}/status")
    catches = 1 << (signal.SIGUSR1 - 1)
    job.wait_until(lambda: int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & catches)
    for _ in range(100):
        running.process.send_signal(signal.SIGUSR1)
        time.sleep(0.005)
    assert running.end() == 0, running.error


def job_that_is_ended_while_its_workers_start_says_how_far_it_was():
    directory = job.SCRATCH / "start"
    running = job.Job("train", *job.small("--workers", 400, "--save", directory,
                                        steps=FOR_EVER), "--json")
    error = after(running, lambda: (running.wait_event(lambda e: e["event"] == "start"),
                                    running.process.terminate()), 143, limit_s=60)
    count = re.search(r"ended by SIGTERM at its start, with (\d+) of 401 processes started", error)
    assert count and int(count[1]) < 401, error
    assert not directory.exists()


def job_whose_output_nobody_reads_ends_when_it_is_asked():
    """A write to a full pipe blocks, but the job must still end when it is asked to."""
    directory = job.SCRATCH / "unread"
    ours, theirs = os.pipe()
    words = [job.TERN, "train", *map(str, job.small("--save", directory, steps=FOR_EVER)), "--json"]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs) as running:
        while b'"progress"' not in os.read(ours, 65536):
            pass
        # Opens the pipe again: this descriptor must not block, and the job's descriptor must.
        filler = os.open(f"/proc/self/fd/{theirs}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(filler, b"x")
        time.sleep(1)  # until the job has something to write
        running.terminate()
        try:
            assert running.wait(60) == 143
        finally:
            running.kill()
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    for fd in ours, theirs, filler:
        os.close(fd)


tap.run([
    stopped_launcher_stops_the_job_which_goes_on_with_it,
    keys_at_a_terminal_stop_the_job_which_goes_on_with_fg,
    ctrl_c_after_fg_saves_and_leaves_nobody,
    stopped_job_can_be_ended,
    everybody_answers_the_question_for_the_status,
    server_without_a_job_answers_on_stderr,
    question_before_the_children_are_ready_ends_nobody,
    job_that_is_ended_while_its_workers_start_says_how_far_it_was,
    job_whose_output_nobody_reads_ends_when_it_is_asked,
])
