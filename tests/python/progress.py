# SPDX-License-Identifier: Apache-2.0
"""Jobs under `tern run` show how they train: losses, metrics, learning rates, staleness, and who is waited for; and their
workers evaluate.

usage: progress.py TERN, or as a worker: progress.py work OPTIONS ACT
"""
import json
import math
import os
import re
import subprocess
import sys
import time

import numpy
import pytern as tern

import jobs
from jobs import tap

import event_files  # of tests/harness, where jobs looks for modules

LIMIT_S = 120
STEPS = 12


# ---- the worker ----

def act(what, session, slot):
    if what == "metrics":
        session.metric("step", slot.step)
        session.metric("broken", float("nan"))
        session.metric("above", numpy.float32("inf"))
    elif what == "many":
        for i in range(20):
            session.metric(f"m{os.environ['TERN_INDEX']}.{i}", i)
    elif what == "twice":
        # The first computation of a slot is told, and the second one is not.
        session.metric("repeated", slot.repeated)
    elif what.startswith("die") and slot.evaluate and os.environ["TERN_INDEX"] == "0":
        os._exit(3)
    elif what.endswith("evaluate") and slot.evaluate:
        print("evaluates", os.environ["TERN_INDEX"], slot.step, slot.number, int(slot.repeated), flush=True)
        session.metric("evaluated", slot.step)
    elif what == "goes on" and slot.evaluate and slot.step == 4:
        for _ in range(12):
            time.sleep(0.25)
            session.goes_on()
    elif what == "nothing":
        print("a slot begins", file=sys.stderr)
    elif what == "stand" and (slot.step, slot.number) == (2, 1):
        time.sleep(1.6)


def work(options, what):
    with tern.Session(**{"steps": STEPS, "slots": 3, "optimizer": tern.SGD(lr=0.5), **eval(options, vars(tern))}) as session:
        w = session.tensor("w", 4)
        for i in range(6 if what == "idle" else 0):
            session.tensor(f"idle{i}", 20000)
        for slot in session.slots():
            with slot:
                act(what, session, slot)
                if what != "nothing":
                    slot.push(w, numpy.ones(4, numpy.float32))
                slot.loss(slot.number + 1, **({"weight": slot.number} if what == "weights" else {}))
        with session.finishing() as mine:
            if mine and what == "metrics":
                session.metric("final", 0.75)


# ---- the tests ----

def run(what, *options, workers=1, text=False, **session):
    """Trains under `tern run`. Returns the events, or with `text` what was printed on stderr."""
    command = [sys.argv[1], "run", "--workers", workers, *([] if text else ["--json"]), *options, "--", sys.executable,
               __file__, "work", f"dict({', '.join(f'{k}={v}' for k, v in session.items())})", what]
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    # JSON itself has no NaN: a line with one is an error here.
    return done.stderr if text else [json.loads(line, parse_constant=int) for line in done.stdout.splitlines()]


def progress(events):
    return [event for event in events if event["event"] == "progress"]


def metrics_are_in_progress_and_in_the_last_event():
    for workers in (1, 2):
        events = run("metrics", workers=workers)
        last = {"step": STEPS - 1, "broken": "nan", "above": "inf", "final": 0.75}
        assert progress(events)[-1]["metrics"] == last, events
        assert progress(events)[-1]["step"] == progress(events)[-1]["steps"] == STEPS
        assert events[-1]["event"] == "done" and events[-1]["metrics"] == last, events[-1]
        steps = [event["step"] for event in progress(events)]
        assert steps == sorted(steps), steps


def metrics_are_curves_of_the_logdir():
    directory = jobs.SCRATCH / "curves"
    run("metrics", "--logdir", directory, workers=2, steps=400)
    curves = event_files.curves(directory)
    assert all(math.isnan(value) for _, value in curves["metrics/broken"]), curves
    assert all(value == math.inf for _, value in curves["metrics/above"]), curves
    assert curves["metrics/final"] == [(400, 0.75)], curves
    # A slot of step t begins when t steps have been made.
    assert all(step == value for step, value in curves["metrics/step"]), curves
    assert curves["loss"][-1] == (400, 2.0), curves


def the_progress_line_has_metrics():
    line = run("metrics", text=True).splitlines()[-1]
    assert line.startswith(f"step {STEPS}/{STEPS}  loss 2.0000  "), line
    for part in (f"  step {STEPS - 1}", "  broken nan", "  above inf", "  final 0.75", "  lr 0.5", "  0s left"):
        assert part in line, line


def the_loss_is_the_mean_over_all_slots():
    for workers in (1, 2, 3):
        assert progress(run("plain", workers=workers))[-1]["loss"] == 2.0
        assert abs(progress(run("weights", workers=workers))[-1]["loss"] - (2 * 1 + 3 * 2) / 3) < 1e-7


def a_job_shows_a_bounded_number_of_metrics():
    events = run("many", workers=2)
    assert len(events[-1]["metrics"]) == 32, events[-1]
    notes = [event["text"] for event in events if "is not shown: a job has at most 32 of them" in event.get("text", "")]
    assert len(notes) == 1, notes


def metrics_of_the_second_computation_are_not_told():
    assert run("twice", steps=1, slots=1)[-1]["metrics"] == {"repeated": 0.0}
    assert run("twice", verify_first=STEPS)[-1]["metrics"] == {"repeated": 0.0}


def the_learning_rate_follows_the_schedule():
    for event in progress(run("stand", schedule="Linear()")):
        expected = 0.5 * (1 - (max(event["step"], 1) - 1) / STEPS)
        assert abs(event["lr"] - expected) < 1e-6, (event, expected)


def tensors_that_no_slot_pushes_are_told_by_all_servers():
    warned = {event["who"]: event["text"] for event in run("idle", "--servers", 2) if event["event"] == "warning"}
    assert set(warned) == {"server 0", "server 1"}, warned
    counts = []
    for text in warned.values():
        found = re.fullmatch("no slot of the job has pushed (\\d) tensors of this server, first idle\\d: they have their initial "
                             "values", text)
        assert found, text
        counts.append(int(found[1]))
    assert sum(counts) == 6, counts
    lines = [line for line in run("idle", text=True).splitlines() if "initial values" in line]
    assert lines == ["tern server 0: warning: no slot of the job has pushed 6 tensors of this server, first idle0: they have "
                     "their initial values"], lines


def a_slot_that_pushes_nothing_is_told_at_once_by_each_worker():
    for workers in (1, 2):
        lines = run("nothing", workers=workers, text=True).splitlines()
        for worker in range(workers):
            # Lines of different processes come in no order.
            said = [line for line in lines if line.startswith(f"worker {worker}: ")]
            told = [i for i, line in enumerate(said) if "of step 0 has pushed no gradient: gradients count only if" in line]
            assert told == [1] and said[0].endswith("a slot begins"), lines
        assert any("no slot of the job has pushed tensor w" in line for line in lines), lines


def who_is_waited_for_is_told_after_a_second():
    told = [event for event in progress(run("stand", workers=2)) if "waits_for" in event]
    assert told and told[0]["step"] == 2, told
    assert told[0]["waits_for"].startswith("worker 1 (") and told[0]["waits_for"].endswith("for slot 1 of step 3"), told


def evaluations(*options, what="evaluate", **session):
    """The evaluations that the workers print: (worker, step, slot, repeated) each."""
    events = run(what, *options, **session)
    told = [event["text"].split() for event in events if event["event"] == "output"]
    return sorted(tuple(int(word) for word in words[1:]) for words in told if words[:1] == ["evaluates"]), events


def one_slot_of_every_t_th_step_evaluates():
    for workers in (1, 3):
        got, events = evaluations(workers=workers, eval_every=5)
        # The first slot of the job is computed twice.
        assert got == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 5, 0, 0), (0, 10, 0, 0)], got
        assert events[-1]["metrics"] == {"evaluated": 10.0}
    assert evaluations(workers=2)[0] == []
    assert evaluations("--eval-every", 7, verify_first=0)[0] == [(0, 0, 0, 0), (0, 7, 0, 0)]
    # The program's own number goes before the option, also 0 (never).
    assert evaluations("--eval-every", 7, eval_every=11, verify_first=0)[0] == [(0, 0, 0, 0), (0, 11, 0, 0)]
    assert evaluations("--eval-every", 7, eval_every=0)[0] == []


def one_worker_evaluates_in_async_mode():
    for mode in ("'async'", "'ssp:1'"):
        got, _ = evaluations(workers=2, mode=mode, steps=24, eval_every=4)
        assert got == [(0, step, 0, 0) for step in (0, 4, 8)], got


def another_worker_evaluates_when_the_first_is_lost():
    got, events = evaluations(what="die, evaluate", workers=2, eval_every=5, verify_first=0)
    assert got == [(1, step, 0, 0) for step in (0, 5, 10)], got
    assert events[-1]["succeeded"] == 1, events[-1]


def a_worker_that_evaluates_for_long_is_not_lost_if_it_goes_on():
    events = run("goes on", "--worker-timeout", 0.5, workers=2, eval_every=4, verify_first=0)
    assert not [event for event in events if event["event"] == "lost"], events
    assert events[-1]["succeeded"] == 2, events[-1]


def staleness_is_told_in_async_mode():
    events = progress(run("plain", workers=2, mode="'async'", steps=4000))
    assert any(0 <= event["staleness_mean"] <= event["staleness_max"] for event in events
               if "staleness_mean" in event), events
    assert not any("staleness_mean" in event for event in progress(run("plain")))


if len(sys.argv) > 2:
    work(*sys.argv[2:])
else:
    tap.run([metrics_are_in_progress_and_in_the_last_event, metrics_are_curves_of_the_logdir,
             the_progress_line_has_metrics,
             the_loss_is_the_mean_over_all_slots, a_job_shows_a_bounded_number_of_metrics,
             metrics_of_the_second_computation_are_not_told, the_learning_rate_follows_the_schedule,
             tensors_that_no_slot_pushes_are_told_by_all_servers, a_slot_that_pushes_nothing_is_told_at_once_by_each_worker,
             who_is_waited_for_is_told_after_a_second, one_slot_of_every_t_th_step_evaluates,
             one_worker_evaluates_in_async_mode, another_worker_evaluates_when_the_first_is_lost,
             a_worker_that_evaluates_for_long_is_not_lost_if_it_goes_on, staleness_is_told_in_async_mode])
