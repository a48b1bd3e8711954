#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that TensorBoard reads what --logdir writes: its own reader of Python, and the program `tensorboard` with its
faster reader, while the job runs and after it has gone back. Skipped unless bench/install.py has installed TensorBoard,
whose Python then runs this script.

usage: real_tensorboard.py TERN
"""
import contextlib
import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
PYTHON = TOP / "build-bench" / "tensorboard" / "bin" / "python"
if Path(sys.prefix) != PYTHON.parents[1]:
    if not PYTHON.exists():
        print("skipped: TensorBoard is not installed: ./run test installs it")
        sys.exit(77)
    os.execv(PYTHON, [PYTHON, *sys.argv])

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

sys.path.insert(0, str(TOP / "tests" / "harness"))
import event_files  # noqa: E402
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
STEPS = job.enough(4000)
PORT = re.compile(r"TensorBoard \S+ at http://[^:]+:(\d+)/")


def is_point(e):
    return e["event"] == "progress" and e["step"] > 0


def read(directory):
    """{tag: [(step, value), ...]} as TensorBoard's reader of Python has them, with all points."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def is_one(a, b):
    """True if these are the same number, of which an event has nine digits, and a point 24 bits."""
    return math.isclose(a, b, rel_tol=1e-6)


def same(a, b):
    """True if the curves have the same points; a NaN is like another one."""
    return [(step, str(value)) for step, value in a] == [(step, str(value)) for step, value in b]


def finished(name, *more, steps):
    """The directory of a job under `tern run`, and its events."""
    directory = job.SCRATCH / name
    words = " ".join(map(str, [job.TERN, "worker", *job.small(*more, steps=steps)]))
    events = job.finish("run", "--workers", 2, "--logdir", directory, "--json", "--", "sh", "-c",
                        f'exec {words} --join "$TERN_JOIN" --index "$TERN_INDEX" --workers "$TERN_WORKERS" >&2').events
    return directory, [event for event in events if event["event"] == "progress"]


def the_reader_of_python_has_the_curves_of_the_events():
    for mode, steps in (("sync", 2000), ("async", 4000)):
        directory, events = finished(mode, "--mode", mode, "--schedule", "linear", steps=steps)
        curves = read(directory)
        for name in ("loss", "lr", *(["staleness_mean"] if mode == "async" else [])):
            told = {e["step"]: e[name] for e in events if e["step"] and name in e}
            assert [step for step, _ in curves[name]] == sorted(told), (name, curves[name], told)
            assert all(is_one(value, told[step]) for step, value in curves[name]), (name, curves, told)
        # The last event has the results on the test data.
        for name, value in events[-1]["metrics"].items():
            step, shown = curves[f"metrics/{name}"][-1]
            assert step == steps and is_one(shown, value), (name, curves, events[-1])


def gone_back(name):
    """The directory of a job whose server was killed, and that was started again from a snapshot."""
    directory = job.SCRATCH / name
    running = job.Job("train", *job.small("--slots", 5, model="mlp:200,30", steps=STEPS), "--snapshots",
                      job.SCRATCH / f"{name}-snapshots", "--snapshot-every", STEPS // 40, "--logdir", directory,
                      "--json")
    running.wait_event(lambda e: e["event"] == "snapshot")
    running.wait_event(is_point)
    job.wait_until(lambda: event_files.curves(directory).get("loss"))
    os.kill(running.pid_of("server", 0), signal.SIGKILL)
    try:
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert len(event_files.files(directory)) == 2
    return directory


def steps_that_were_made_again_are_shown_once():
    directory = gone_back("back")
    curves, expected = read(directory), event_files.curves(directory)
    assert set(curves) == set(expected)
    for tag, points in curves.items():
        assert same(points, expected[tag]), (tag, points, expected[tag])
    steps = [step for step, _ in curves["loss"]]
    assert steps == sorted(set(steps)) and steps[-1] == STEPS, steps


@contextlib.contextmanager
def viewer(directory):
    """Runs `tensorboard`. Yields a function that returns what it shows of a curve, [] of one that it does not know."""
    command = [PYTHON, "-m", "tensorboard.main", "--logdir", directory, "--host", "127.0.0.1", "--port", "0",
               "--reload_interval", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if PORT.search(line):
                    break
            port = int(PORT.search(lines[-1])[1])

            def shown(tag):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", "/data/plugin/scalars/scalars?" +
                                   urllib.parse.urlencode({"run": ".", "tag": tag}))
                answer = connection.getresponse()
                with contextlib.closing(connection):
                    return [(step, value) for _, step, value in json.load(answer)] if answer.status == 200 else []
            yield shown
        finally:
            process.terminate()
            process.stderr.read()


def the_program_shows_a_job_that_runs():
    directory = job.SCRATCH / "live"
    directory.mkdir()
    running = job.Job("train", *job.small(model="mlp:200,30", steps=10**9), "--logdir", directory, "--json")
    try:
        running.wait_event(is_point)
        with viewer(directory) as shown:
            job.wait_until(lambda: shown("loss"), 60)
            first = shown("loss")
            job.wait_until(lambda: len(shown("loss")) > len(first), 60)
            assert shown("loss")[:len(first)] == first
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.end()


def the_program_shows_steps_that_were_made_again_once():
    directory = gone_back("shown")
    expected = event_files.curves(directory, fast=True)
    with viewer(directory) as shown:
        job.wait_until(lambda: shown("lr")[-1:] == expected["lr"][-1:], 60)
        for tag, points in expected.items():
            steps = [step for step, _ in points]
            assert same(shown(tag), points) and steps == sorted(set(steps)), (tag, shown(tag), points)


tap.run([the_reader_of_python_has_the_curves_of_the_events, steps_that_were_made_again_are_shown_once,
         the_program_shows_a_job_that_runs, the_program_shows_steps_that_were_made_again_once])
