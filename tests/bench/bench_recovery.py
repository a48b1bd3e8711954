#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the questions `snapshots` and `recovery` of ./run bench: what they compute from the marks of workers, and
their programs with small models. No figure is judged.

usage: bench_recovery.py TERN_NULL
"""
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "bench")]
import contenders  # noqa: E402
import install  # noqa: E402
import measure  # noqa: E402
import null_job  # noqa: E402
import questions  # noqa: E402
import tap  # noqa: E402
import tern_recovery  # noqa: E402
import tern_snapshots  # noqa: E402

TERN_NULL = Path(sys.argv[1]).resolve()
# A 64th of its number of floats is 7 modulo 8. null_model.c must compare some values other than 0 of such a model, too.
SMALL = ["--model", "flat:601856,100"]


def lines_of(script, *words):
    """{point: line} of what the program prints."""
    done = subprocess.run([sys.executable, str(TOP / "bench" / script), str(TERN_NULL), *map(str, words)],
                          capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    print("\n".join(f"# {line}" for line in done.stdout.splitlines()))
    return {line["point"]: line for line in measure.json_lines(done.stdout)}


def a_step_lasts_from_the_first_worker_that_has_its_parameters():
    """What is made again after a job went back counts neither as a step nor as the end of one."""
    marks = [(0.0, 0), (0.1, 0), (1.0, 1), (1.2, 1), (2.0, 2), (4.0, 3), (4.5, 2), (4.6, 3), (5.0, 4)]
    assert null_job.first_times(marks) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0)]
    assert null_job.step_times(marks) == [2.0, 1.0]


def marks_of_all_workers_are_read_and_a_part_of_one_is_not():
    with tempfile.TemporaryDirectory() as directory:
        marks = null_job.Marks(Path(directory))
        assert marks.newest() == 0 and marks.all() == []
        marks.path(7).write_bytes(null_job.MARK.pack(3_000_000_000, 2) + b"half of one")
        marks.path(8).write_bytes(null_job.MARK.pack(1_000_000_000, 1) + null_job.MARK.pack(2_000_000_000, 3))
        assert marks.newest() == 3 and marks.all() == [(1.0, 1), (2.0, 3), (3.0, 2)], marks.all()
        assert marks.environment["TERN_NULL_STEPS"] == f"{directory}/marks"


def what_snapshots_cost_is_the_difference_of_both_kinds_of_jobs():
    options = mock.Mock(model=("flat:1048576", 1 << 20), every=5, via=False)
    event = {"event": "snapshot", "step": 5, "seconds": 0.5, "bytes": 1000}
    without = [{"times": [1.0, 1.0, 1.0, 1.0], "kib": 3072, "saved": [], "left_out": 0}] * 2
    saving = [{"times": [1.0, 1.0, 3.0, 1.0], "kib": 4608, "saved": [event], "left_out": 1}] * 2
    plain, found = tern_snapshots.compare(options, without, saving)
    assert (plain["point"], plain["steps_per_s"], plain["delay_steps"], plain["server_mib"]) == ("without", 1, 0, 3)
    want = {"point": "with", "longest_ms": 3000, "median_ms": 1000, "delay_steps": 2, "extra_copies": 1.5,
            "lost_ms": 2000, "snapshot_s": 0.5, "snapshots": 2, "left_out": 2, "server_mib": 4.5}
    assert {name: found[name] for name in want} == want, found
    options.via = True  # a server has half of the parameters
    assert tern_snapshots.compare(options, without, saving)[1]["extra_copies"] == 3
    try:
        tern_snapshots.compare(options, without, without)
        assert False, "a job without a snapshot has no costs of one"
    except SystemExit as why:
        assert "no snapshot was complete" in str(why), why


def what_follows_a_kill_is_told_as_medians_and_the_worst():
    kills = [tern_recovery.Kill(at_s, 5, known_s=at_s + 0.5, began_s=at_s + took_s - 0.25, new_s=at_s + took_s)
             for at_s, took_s in ((10.0, 2.0), (20.0, 7.0), (30.0, 3.0))]
    found = tern_recovery.line_of("m", kills, reload_s=0.25)
    assert found == {"point": "m", "kills": 3, "new_step_s": 3.0, "worst_s": 7.0, "detect_s": 0.5, "beyond_s": 2.25,
                     "reload_s": 0.25, "remade_s": 0.25}, found
    for kill in kills:
        kill.began_s = 0
    assert "remade_s" not in tern_recovery.line_of("m", kills, 0), "a job that has not gone back makes nothing again"


def snapshots_are_measured():
    for more in [], ["--via"]:
        found = lines_of("tern_snapshots.py", *SMALL, "--every", 60, "--steps", 200, *more)
        assert list(found) == ["without", "with"], found
        for line in found.values():
            assert 0 < line["median_ms"] <= line["longest_ms"] and line["server_mib"] > 0, line
        # All of the parameters, also those of a server that sends its part.
        assert found["with"]["snapshots"] > 0 and found["with"]["snapshot_mb"] >= 0.6, found


def each_kind_of_kill_is_measured():
    for who in tern_recovery.WHO:
        kills = 2 if who in ("worker", "server") else 1
        found = lines_of("tern_recovery.py", who, *SMALL, "--title", "m", "--every", 50, "--kills", kills, "--seed", 3)
        assert list(found) == (["m", "m, started again"] if who == "worker" else ["m"]), found
        line = found["m"]
        assert line["kills"] == kills and 0 < line["new_step_s"] <= line["worst_s"] and line["detect_s"] > 0, line
        assert ("remade_s" in line, "reload_s" in line) == (who not in ("worker", "followed-server"),) * 2, line
        assert 0 <= line.get("remade_s", 0) <= line["worst_s"], line


def the_questions_have_all_points_of_their_goals():
    plan = questions.Plan(True, contenders.Maker("/nowhere/tern", {}))
    with mock.patch.object(install, "BUILD", TERN_NULL.parent):
        asked = {name: questions.QUESTIONS[name](plan) for name in ("snapshots", "recovery")}
    names = {name: {metric for metric, _, _ in question.metrics} for name, question in asked.items()}
    commands = {(c.key, word) for q in asked.values() for c in q.contenders for word in c.command}
    for goal in questions.GOALS:
        if goal.question == "recovery":
            assert (goal.ours, goal.point) in commands, goal
        if goal.question in asked:
            assert goal.metric in names[goal.question], goal
    assert not any(c.missing for q in asked.values() for c in q.contenders)
    with mock.patch.object(install, "BUILD", Path("/nowhere")):
        why = {c.missing for c in questions.QUESTIONS["recovery"](plan).contenders}
    assert why == {"tern-null was not built, although there is gcc"}, why


def wrong_arguments_are_refused_in_a_line():
    right = [str(TERN_NULL), *SMALL, "--every", "5"]
    for script, words, why in (
            ("tern_snapshots.py", [*right, "--steps", "0"], "--steps: 0: expected a whole number"),
            ("tern_snapshots.py", ["/nowhere", *right[1:], "--steps", "9"], "TERN_NULL: /nowhere: no such program"),
            ("tern_snapshots.py", [right[0], "--model", "mlp", *right[3:], "--steps", "9"], "mlp: expected flat:BYTES"),
            ("tern_snapshots.py", [right[0], "--model", "flat:9", *right[3:], "--steps", "9"], "at least 600000 bytes"),
            ("tern_snapshots.py", [*right[:-1], "50", "--steps", "9"], "no snapshot was complete"),
            ("tern_recovery.py", [right[0], "launcher", *right[1:], "--title", "m"], "invalid choice: 'launcher'"),
            ("tern_recovery.py", [right[0], "server", *right[1:], "--title", "m", "--kills", "x"], "x: expected a")):
        done = subprocess.run([sys.executable, str(TOP / "bench" / script), *words], capture_output=True, text=True,
                              timeout=60)
        assert done.returncode and not done.stdout and why in done.stderr.splitlines()[-1], (words, done)


if __name__ == "__main__":
    tap.run([a_step_lasts_from_the_first_worker_that_has_its_parameters,
             marks_of_all_workers_are_read_and_a_part_of_one_is_not,
             what_snapshots_cost_is_the_difference_of_both_kinds_of_jobs,
             what_follows_a_kill_is_told_as_medians_and_the_worst, snapshots_are_measured,
             each_kind_of_kill_is_measured, the_questions_have_all_points_of_their_goals,
             wrong_arguments_are_refused_in_a_line])
