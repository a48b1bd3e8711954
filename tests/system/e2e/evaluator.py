#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tern evaluator`, which evaluates the snapshots of a job.

usage: evaluator.py TERN
"""
import errno
import json
import os
import shutil
import signal
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
STEPS = 40
told = {}  # step: (loss, accuracy), as the job says with --eval-every and at its end


def goes_on(directory, steps, *more):
    """Trains up to this step, which is saved for certain, and returns the events."""
    resume = ["--resume", directory] if any(directory.glob("step-*.json")) else []
    return job.finish("train", *job.small("--slots", 4, "--workers", 2, "--servers", 2, "--snapshots", directory,
                                          "--snapshot-keep", 100, *resume, *more, steps=steps), "--json").events


def trained():
    """The directory of a job with snapshots of the steps 10, 20, 30 and 40 at least."""
    directory = job.SCRATCH / "trained"
    if not directory.exists():
        for steps in range(10, STEPS + 1, 10):
            events = goes_on(directory, steps, "--eval-every", 10)
            told.update({e["step"]: (e["test_loss"], e["test_accuracy"]) for e in events if e["event"] == "evaluated"})
            told[steps] = events[-1]["test_loss"], events[-1]["test_accuracy"]
    return directory


def copied(name):
    """A copy of the snapshots that a case may damage."""
    return Path(shutil.copytree(trained(), job.SCRATCH / name))


def manifests(directory):
    return sorted(directory.glob("step-*.json"))


def part_of(manifest, number=0):
    return manifest.with_name(f"{manifest.stem}.{number}.safetensors")


def words(directory, *more, model="mlp:24,16"):
    return ["evaluator", "--snapshots", directory, *job.small_data(model), *more]


def evaluated(directory, *more, code=0):
    """Runs an evaluator to its end, and returns the events of evaluations, and all events."""
    events = job.finish(*words(directory, "--json", *more), code=code).events
    return [e for e in events if e["event"] == "evaluated"], events


def texts(events, kind):
    return [e["text"] for e in events if e["event"] == kind]


def refused(*more, says, **kw):
    job.refused(*words(*more, **kw), says=[says])


def watching(directory, *more):
    """Starts an evaluator."""
    return job.Job(*words(directory, "--json", *more))


def is_evaluated(event):
    return event["event"] == "evaluated"


def its_results_are_those_of_the_job():
    events, _ = evaluated(trained(), "--once", "--all")
    assert [e["step"] for e in events] == [10, 20, 30, 40], events
    assert [e["snapshot"] for e in events] == [m.stem for m in manifests(trained())], events
    assert [e["steps"] for e in events] == [10, 20, 30, 40], events
    for e in events:
        assert (e["test_loss"], e["test_accuracy"]) == told[e["step"]], (e, told)


def once_evaluates_the_newest():
    events, _ = evaluated(trained(), "--once")
    assert [e["step"] for e in events] == [STEPS], events
    lines = job.finish(*words(trained(), "--once")).lines
    loss, accuracy = told[STEPS]
    assert lines == [f"step {STEPS}: test loss {loss:.4f}, accuracy {accuracy:.4f}"], lines


def each_snapshot_is_evaluated_as_it_is_published():
    """A signal ends the evaluator, with the exit code that it has of other commands."""
    for number, asked in enumerate((signal.SIGTERM, signal.SIGINT)):
        directory = job.SCRATCH / f"live-{number}"
        directory.mkdir()
        evaluator = watching(directory)
        try:
            evaluator.wait_event(lambda e: e["event"] == "note" and "no complete snapshot is in" in e["text"])
            for steps in 10, 20, 30:
                events = goes_on(directory, steps)
                event = evaluator.wait_event(is_evaluated)
                assert (event["step"], event["test_loss"]) == (steps, events[-1]["test_loss"]), (event, events[-1])
            evaluator.process.send_signal(asked)
            assert evaluator.end() == 128 + asked, evaluator.error
            assert (evaluator.last["event"], evaluator.last["code"]) == ("end", 128 + asked), evaluator.last
        finally:
            evaluator.kill()


def all_that_is_published_after_the_start_is_evaluated():
    """Also if the first look has found nothing, and the next one finds several snapshots."""
    directory = job.SCRATCH / "several"
    directory.mkdir()
    evaluator = watching(directory)
    try:
        evaluator.wait_event(lambda e: e["event"] == "note" and "no complete snapshot is in" in e["text"])
        evaluator.process.send_signal(signal.SIGSTOP)
        shutil.copytree(trained(), directory, dirs_exist_ok=True)
        evaluator.process.send_signal(signal.SIGCONT)
        assert [evaluator.wait_event(is_evaluated)["step"] for _ in range(4)] == [10, 20, 30, 40]
    finally:
        evaluator.kill()


def it_begins_with_the_newest_or_with_all():
    for more, steps in ([], [STEPS]), (["--all"], [10, 20, 30, 40]):
        evaluator = watching(trained(), *more)
        try:
            assert [evaluator.wait_event(is_evaluated)["step"] for _ in steps] == steps
            evaluator.process.terminate()
            assert evaluator.end() == 143 and not [e for e in evaluator.events[len(steps):] if is_evaluated(e)]
        finally:
            evaluator.kill()


def it_is_nice_and_says_how_far_it_is():
    evaluator = watching(trained())
    try:
        evaluator.wait_event(is_evaluated)
        assert os.getpriority(os.PRIO_PROCESS, evaluator.process.pid) == 19
        evaluator.process.send_signal(signal.SIGUSR1)
        status = evaluator.wait_event(lambda e: e["event"] == "status")["text"]
        assert status == f"1 snapshot evaluated, the last of step {STEPS}", status
    finally:
        evaluator.kill()


def a_damaged_snapshot_is_named_and_passed_over():
    directory = copied("damaged")
    first, second, third, last = manifests(directory)
    part = part_of(second)
    data = bytearray(part.read_bytes())
    data[-3] ^= 1
    part.write_bytes(data)
    third.write_bytes(third.read_bytes()[:-5])
    part_of(last, 1).unlink()
    events, every = evaluated(directory, "--once", "--all", code=1)
    assert [e["step"] for e in events] == [10], events
    warnings = texts(every, "warning")
    assert len(warnings) == 3, warnings
    for manifest, says, warning in zip((second, third, last), ("its digest is", third.name, "No such file"), warnings):
        assert warning.startswith(f"{manifest.stem} is damaged, and not evaluated: ") and says in warning, warnings


def after_a_damaged_snapshot_it_goes_on_with_the_next_one():
    directory = job.SCRATCH / "goes-on"
    goes_on(directory, 10)
    goes_on(directory, 20)
    part_of(manifests(directory)[-1]).unlink()
    evaluator = watching(directory)
    try:
        evaluator.wait_event(lambda e: e["event"] == "warning" and "is damaged, and not evaluated" in e["text"])
        goes_on(directory, 30)  # from step 10, the newest snapshot that is whole
        assert evaluator.wait_event(is_evaluated)["step"] in (20, 30)
    finally:
        evaluator.kill()


def write_end(pipe):
    """Waits until somebody reads the pipe, and returns a descriptor to write to it."""
    found = []

    def is_read():
        try:
            found.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            assert error.errno == errno.ENXIO, error
        return found

    job.wait_until(is_read)
    return found[0]


def a_snapshot_that_is_removed_while_it_is_read_is_no_error():
    """A part is a pipe here, which the evaluator reads until the case has removed the manifest."""
    directory = copied("removed")
    *_, before, last = manifests(directory)
    pipe = part_of(last, 1)
    pipe.unlink()
    os.mkfifo(pipe)
    evaluator = watching(directory, "--once")
    try:
        writer = write_end(pipe)
        last.unlink()
        os.write(writer, b"not the whole part")
        os.close(writer)
        assert evaluator.end() == 0, evaluator.error
    finally:
        evaluator.kill()
    assert texts(evaluator.events, "note") == [
        f"{last.stem}: the job has removed it while it was read: it is not evaluated"], evaluator.events
    assert [e["snapshot"] for e in evaluator.events if is_evaluated(e)] == [before.stem], evaluator.events


def snapshots_of_another_model_or_other_data_are_refused():
    newest = manifests(trained())[-1].stem
    refused(trained(), "--once", model="mlp:24,17",
            says=f"{newest} is of another job: tensor fc2.weight: this evaluator has the shape f32[24,17], the job "
                 "f32[24,16]")
    refused(trained(), "--once", model="mlp:24",
            says="is of another job: tensor fc2.weight: this evaluator has the shape f32[24,4]")
    job.write_idx("other", seed=2)
    other = ["--data", job.SCRATCH / "other-images.gz", "--labels", job.SCRATCH / "other-labels.gz"]
    refused(trained(), "--once", *other, says="data: this evaluator has as many records to train on as the job, but not")


def a_character_model_is_evaluated():
    text, directory = job.SCRATCH / "text.txt", job.SCRATCH / "text"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    data = ["--model", "charlm:8,8,16", "--data", text, "--split", "2000:500"]
    done = job.train(*data, "--optimizer", "adam", "--batch", 32, "--steps", 30, "--snapshots", directory)
    event = job.finish("evaluator", "--snapshots", directory, "--once", *data, "--json").events[0]
    assert (event["test_loss"], event["test_accuracy"]) == (done["test_loss"], done["test_accuracy"]), (event, done)


def header(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def the_best_parameters_are_kept():
    best, exported = job.SCRATCH / "best.safetensors", job.SCRATCH / "exported.safetensors"
    events, every = evaluated(trained(), "--once", "--all", "--save-best", best)
    highest = max(e["test_accuracy"] for e in events)
    chosen = next(e for e in events if e["test_accuracy"] == highest)
    assert [e["step"] for e in every if e["event"] == "saved"][-1] == chosen["step"], every
    metadata = header(best)[0]["__metadata__"]
    assert (int(metadata["tern_step"]), float(metadata["tern_test_accuracy"])) == (chosen["step"], highest), metadata
    job.finish("checkpoint", "export", trained() / f"{chosen['snapshot']}.json", "--to", exported)
    assert header(best)[1] == header(exported)[1]
    # An evaluator that is started again compares with the file that is there.
    before = best.read_bytes()
    _, every = evaluated(trained(), "--once", "--save-best", best)
    assert not [e for e in every if e["event"] == "saved"] and best.read_bytes() == before, every
    assert texts(every, "note") == [f"{best} has the parameters of step {chosen['step']}, accuracy {highest:.4f}: "
                                    "only better ones replace them"], every
    done = job.train(*job.small("--init-from", best, steps=1))
    assert done["steps"] == 1, done


def bad_arguments_are_refused_in_one_line():
    empty = job.SCRATCH / "empty"
    empty.mkdir()
    file = job.SCRATCH / "file"
    file.write_bytes(b"no safetensors")
    job.refused("evaluator", *job.small_data(), says=["--snapshots is missing"])
    refused(job.SCRATCH / "nowhere", says="nowhere: No such file or directory: begin the job first, or make the directory")
    refused(file, says="not a directory")
    refused(empty, "--once", says=f"--snapshots {empty}: no complete snapshot is there")
    refused(empty, "--nice", 20, says="--nice 20: must be 0 to 19")
    refused(empty, "--once", "--save-best", file, says=f"--save-best {file}: a file that no evaluator has written")
    refused(empty, "--once", "--save-best", empty, says="expected the path of a file")
    refused(empty, "--once", "--save-best", empty / "a" / "b", says="No such file or directory")
    refused(empty, "--steps", 3, says="--steps: no such option")
    job.refused("evaluator", "--snapshots", empty, "--model", "softmax", "--data", file,
                says=["there is no data to evaluate on: give --test or --split"])
    job.refused("evaluator", "--snapshots", empty, "--data", file, says=["--model is missing"])
    job.refused("evaluator", "--snapshots", empty, "--model", "softmax", "--data", job.SCRATCH / "nothing", "--test",
                file, says=["nothing: No such file or directory"])


tap.run([
    its_results_are_those_of_the_job,
    once_evaluates_the_newest,
    each_snapshot_is_evaluated_as_it_is_published,
    all_that_is_published_after_the_start_is_evaluated,
    it_begins_with_the_newest_or_with_all,
    it_is_nice_and_says_how_far_it_is,
    a_damaged_snapshot_is_named_and_passed_over,
    after_a_damaged_snapshot_it_goes_on_with_the_next_one,
    a_snapshot_that_is_removed_while_it_is_read_is_no_error,
    snapshots_of_another_model_or_other_data_are_refused,
    a_character_model_is_evaluated,
    the_best_parameters_are_kept,
    bad_arguments_are_refused_in_one_line,
])
