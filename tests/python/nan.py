# SPDX-License-Identifier: Apache-2.0
"""--on-nan skip: slots whose loss is no number are left out of their steps, and the rest of the training goes on. The
results have the same bytes for any numbers of workers and servers, whoever is killed meanwhile.

usage: nan.py TERN
"""
import json
import os
import signal
import sys

import frameworks
import nan_worker
import numpy
from jobs import HERE, SCRATCH, TOP, tap

sys.path.insert(0, str(TOP / "tests" / "system" / "e2e"))
import job  # noqa: E402

job.use(sys.argv[1])
TORCH = frameworks.find("torch")
STEPS = 60
BAD = [(1, 0), (7, 3), (8, 0), (8, 1), (8, 2), (31, 2), (59, 1), (60, 0)]


def command(kind, out, bad=BAD):
    python = TORCH if kind == "torch" else sys.executable
    return ["--", python, HERE / "nan_worker.py", kind, out, STEPS, *(f"{step}:{slot}" for step, slot in bad)]


def options(servers, workers):
    return "--json", "--on-nan", "skip", "--fabric", "tcp", "--servers", servers, "--workers", workers


def skipped(events):
    return sorted((e["step"], e["slot"]) for e in events if e["event"] == "skipped")


def trained(name, *more, kind="numpy", servers=1, workers=1):
    """Runs a job to its end, and returns the bytes of its result."""
    out = SCRATCH / name
    events = job.finish("run", *options(servers, workers), *more, *command(kind, out)).events
    assert skipped(events) == BAD and events[-1]["skipped"] == len(BAD), (skipped(events), events[-1])
    return out.read_bytes()


def reference(records):
    """The result by the formula, in which the mean of each step is over the slots that have a loss. `records`:
    {(step, slot): numbers}."""
    w = numpy.full(nan_worker.WIDTH, 0.5)
    for step in range(1, STEPS + 1):
        counted = [nan_worker.gradient(w, records[step, slot])[0] for slot in range(nan_worker.SLOTS)
                   if (step, slot) not in BAD]
        w -= nan_worker.LR * numpy.mean(counted, axis=0)
    return w


def result_is_that_of_the_other_slots():
    result = numpy.frombuffer(trained("formula"), numpy.float32)
    records = {(step, slot): numbers for step, slot, numbers in json.loads((SCRATCH / "formula.records").read_text())}
    assert numpy.allclose(result, reference(records), rtol=1e-4, atol=1e-5), result


def bytes_are_the_same_for_any_numbers_of_processes():
    expected = trained("one")
    assert trained("many", servers=2, workers=3) == expected
    assert trained("twice", "--verify-first", 8, servers=2, workers=2) == expected


def losses_of_processes_change_nothing():
    """A server is killed, and then a worker; and the job goes on from an older snapshot, in other processes."""
    out, snapshots = SCRATCH / "killed", SCRATCH / "killed.snapshots"
    expected = trained("undisturbed")
    running = job.Job("run", *options(2, 2), "--snapshots", snapshots, "--snapshot-every", 10, "--snapshot-keep", 9,
                      *command("numpy", out))
    try:
        running.wait_event(lambda e: e["event"] == "snapshot")
        os.kill(running.pid_of("server", 0), signal.SIGKILL)
        running.wait_event(lambda e: e["event"] == "snapshot" and e["step"] >= 30)
        victim = next(pid for pid in running.processes() if job.index_of_program(pid) == 1)
        os.kill(victim, signal.SIGKILL)
        assert running.end() == 0, running.error
    finally:
        running.kill()
    assert out.read_bytes() == expected and skipped(running.events) == BAD, skipped(running.events)
    manifests = sorted(snapshots.glob("step-*.json"))
    for manifest in manifests:
        content = json.loads(manifest.read_text())
        below = [list(pair) for pair in BAD if pair[0] <= content["step"]]
        assert content.get("omitted", []) == below, content["omitted"]
    assert trained("resumed", "--resume", manifests[0], workers=3) == expected


def torch_programs_train_without_the_slots():
    if not TORCH:
        raise tap.Skip(frameworks.why_not("torch"))
    expected = trained("torch-one", kind="torch")
    assert trained("torch-many", kind="torch", servers=2, workers=2) == expected
    assert numpy.isfinite(numpy.frombuffer(expected, numpy.float32)).all()


def step_without_any_loss_ends_the_job():
    failed = job.finish("run", *options(2, 2), *command("numpy", SCRATCH / "all", [(9, "all")]), code=1)
    last = failed.error.splitlines()[-1] if failed.error else json.dumps(failed.events[-1])
    assert "step 9: the loss of each of its 4 slots is no longer a number" in last, last


def slot_ends_the_job_without_the_option():
    failed = job.finish("run", "--json", *command("numpy", SCRATCH / "stop", [(9, 2)]), code=1)
    last = failed.error.splitlines()[-1] if failed.error else json.dumps(failed.events[-1])
    assert "slot 2 of step 9: the loss is no longer a number (nan)" in last, last


def other_modes_are_refused():
    program = ("import pytern as tern\nwith tern.Session(steps=3, mode='async') as s:\n"
               "    s.tensor('w', (3,))\n    next(s.slots())\n")
    failed = job.finish("run", "--on-nan", "skip", "--", sys.executable, "-c", program, code=1)
    assert "mode: this server has --on-nan skip, which needs sync, and the job has async" in failed.error, failed.error


def built_in_model_trains_without_the_slots():
    """A feature of one record is so large that the loss of each slot with this record is none."""
    data, rng = SCRATCH / "one.svm", numpy.random.default_rng(3)
    data.write_text("".join(f"{label} 0:{3e38 if i == 77 else label + value:.6g} 1:{3e38 if i == 77 else value:.6g}\n"
                            for i, (label, value) in enumerate(zip(rng.choice([-1, 1], 400), rng.normal(size=400)))))

    def train(name, *more):
        words = "--model", "mlp:30", "--data", data, "--batch", 10, "--slots", 4, "--steps", 40, "--save", SCRATCH / name
        events = job.finish("train", "--json", "--on-nan", "skip", *words, *more).events
        assert len(skipped(events)) == events[-1]["skipped"] > 1, events[-1]
        return (SCRATCH / name / "model.safetensors").read_bytes(), skipped(events)

    assert train("built-in") == train("built-in-many", "--workers", 3, "--servers", 2)


CASES = [result_is_that_of_the_other_slots, bytes_are_the_same_for_any_numbers_of_processes,
         losses_of_processes_change_nothing, torch_programs_train_without_the_slots, step_without_any_loss_ends_the_job,
         slot_ends_the_job_without_the_option, other_modes_are_refused, built_in_model_trains_without_the_slots]
tap.run([case for case in CASES if len(sys.argv) < 3 or case.__name__ in sys.argv[2:]])
