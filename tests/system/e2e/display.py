#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what people see of a job: its progress on terminals of several widths, and its rates.

usage: display.py TERN
"""
import fcntl
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from running import FOR_EVER  # noqa: E402

job.use(sys.argv[1])


def shown(columns, **environment):
    """All that a job writes to a terminal of so many columns."""
    environment = {"NO_COLOR": "", "TERM": "xterm", **environment}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([job.TERN, "train", *map(str, job.small(steps=3000))], stdout=theirs,
                          stderr=theirs, env={**os.environ, **environment}) as process:
        os.close(theirs)
        text = b""
        try:
            while True:
                text += os.read(ours, 65536)
        except OSError:
            pass  # the other end is closed
    os.close(ours)
    assert process.returncode == 0, text
    return text.decode()


def progress_lines(columns):
    lines = re.findall(r"\r([^\r\n\x1b]*)\x1b\[K", shown(columns))
    assert lines and all(line.startswith("step ") for line in lines), lines
    assert all(len(line) < columns for line in lines), lines
    return lines


def wide_terminal_has_everything():
    line = progress_lines(132)[-1]
    assert re.fullmatch(r"step 3000/3000  loss [\d.]+  lr 0.01  \d+ samples/s  [\d.]+ MB/s  0s left", line), line


def usual_terminal_has_one_line():
    assert "samples/s" in progress_lines(80)[-1]


def narrow_terminal_leaves_out_what_does_not_fit():
    line = progress_lines(40)[-1]
    assert re.fullmatch(r"step 3000/3000  loss [\d.]+  0s left", line), line


def tiny_terminal_has_what_fits():
    progress_lines(12)


def plain_text_is_written_where_it_was_asked_for():
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        text = shown(80, **environment).replace("\r\n", "\n")
        assert "step 3000/3000" in text, text
        assert not [c for c in text if c < " " and c != "\n"], repr(text)


def progress_and_results_are_apart():
    done = subprocess.run([job.TERN, "train", *map(str, job.small(steps=3000))], text=True,
                          capture_output=True)
    assert done.returncode == 0, done
    assert "step " not in done.stdout and "done: 3000 steps" in done.stdout, done.stdout
    assert all(line.startswith("step ") for line in done.stderr.splitlines()), done.stderr
    assert "step 3000/3000" in done.stderr, done.stderr


def rates_at_the_end_leave_out_the_first_step():
    done = job.finish("train", *job.small(steps=4), "--json")
    reports = {event["step"]: event for event in done.events if event["event"] == "progress"}
    # A report's rate is that of all steps since the beginning, as long as there are few of them.
    first_s = 1 / reports[1]["steps_per_s"]
    all_s = 4 / reports[4]["steps_per_s"]
    end = done.events[-1]
    assert math.isclose(3 / end["steps_per_s"], all_s - first_s, rel_tol=1e-3), done.events
    assert math.isclose(end["samples_per_s"] / end["steps_per_s"], 16, rel_tol=1e-6), end
    # Each step moves a gradient and a version of 1,356 parameters; the first version does not count.
    moved = end["mb_per_s"] * 1e6 / end["steps_per_s"]
    assert math.isclose(moved, 2 * 4 * 1356, rel_tol=1e-6), end


def single_step_has_a_rate():
    end = job.train(*job.small(steps=1))
    assert end["steps_per_s"] > 0, end


def steps_of(done, name):
    return [event["step"] for event in done.events if event["event"] == name]


def evaluations_are_shown_and_change_nothing():
    options = "--workers", 2, "--slots", 3, "--save", job.SCRATCH / "evaluated", "--overwrite"
    saved = job.SCRATCH / "evaluated" / "model.safetensors"
    assert not steps_of(job.finish("train", *job.small(*options), "--json"), "evaluated")
    expected = saved.read_bytes()
    done = job.finish("train", *job.small(*options), "--eval-every", 15, "--json")
    assert saved.read_bytes() == expected
    assert steps_of(done, "evaluated") == [0, 15, 30], done.events
    told = [event for event in done.events if event["event"] == "evaluated"]
    assert told[0]["test_loss"] > told[2]["test_loss"] > 0, told
    assert told[0]["test_accuracy"] < told[2]["test_accuracy"] <= 1, told
    lines = job.finish("train", *job.small(*options), "--eval-every", 20).lines
    assert [line.split(":")[0] for line in lines if "test loss" in line] == ["step 0", "step 20"], lines


def one_worker_evaluates_in_async_mode():
    for mode in ("async", "ssp:1"):
        done = job.finish("train", *job.small("--workers", 2, "--mode", mode, steps=40), "--eval-every", 8, "--json")
        assert steps_of(done, "evaluated") == [0, 8, 16], done.events


def an_evaluation_needs_data():
    data = job.SCRATCH / "one"
    data.write_text("+1 1:1\n-1 2:1\n")
    job.refused("train", "--model", "logreg", "--data", data, "--eval-every", 5,
                says=["--eval-every 5: there is no data to test on: give --test or --split"])


def progress_has_the_learning_rate_and_the_metrics():
    done = job.finish("train", *job.small("--schedule", "linear", steps=20), "--eval-every", 5, "--json")
    told = [event for event in done.events if event["event"] == "progress"]
    for event in told:
        assert math.isclose(event["lr"], 0.01 * (1 - (event["step"] - 1) / 20), rel_tol=1e-5), event


def who_is_waited_for_is_in_the_progress():
    """A worker that stands still: after a second it is named, also in async mode if others wait."""
    running = job.Job("train", *job.small("--workers", 2, steps=FOR_EVER), "--eval-every", 10, "--json")
    try:
        running.wait_event(lambda e: e["event"] == "progress" and "metrics" in e)
        os.kill(running.pid_of("worker", 1), signal.SIGSTOP)
        event = running.wait_event(lambda e: e["event"] == "progress" and "waits_for" in e)
        assert event["waits_for"].startswith("worker 1 (") and event["loss"] > 0, event
        assert set(event["metrics"]) == {"test_loss", "test_accuracy"}, event
    finally:
        running.kill()


def staleness_is_in_the_progress_of_async_mode():
    running = job.Job("train", *job.small("--workers", 2, "--mode", "async", steps=FOR_EVER), "--json")
    try:
        event = running.wait_event(lambda e: e["event"] == "progress" and e.get("staleness_mean"))
        assert 0 < event["staleness_mean"] <= event["staleness_max"] and math.isclose(event["lr"], 0.01, rel_tol=1e-6), event
    finally:
        running.kill()


tap.run([
    wide_terminal_has_everything,
    usual_terminal_has_one_line,
    narrow_terminal_leaves_out_what_does_not_fit,
    tiny_terminal_has_what_fits,
    plain_text_is_written_where_it_was_asked_for,
    progress_and_results_are_apart,
    rates_at_the_end_leave_out_the_first_step,
    single_step_has_a_rate,
    evaluations_are_shown_and_change_nothing,
    one_worker_evaluates_in_async_mode,
    an_evaluation_needs_data,
    progress_has_the_learning_rate_and_the_metrics,
    who_is_waited_for_is_in_the_progress,
    staleness_is_in_the_progress_of_async_mode,
])
