# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers are Python programs: what they compute, and what becomes of workers that are lost.

usage: training.py TERN
"""
import functools
import random
import signal
import sys

from jobs import HERE, SCRATCH, TOP, Job, first_to_end, tap

EXAMPLE, WORKER = TOP / "docs" / "examples" / "logistic.py", HERE / "worker.py"
SENTENCE_OF_FORK = "Error: a shared context cannot be used by a child of the process that made it"


def run_example(name, workers, servers, fabric):
    """Trains the example, and returns the bytes of its result."""
    out = SCRATCH / f"{name}.npz"
    with Job(workers, servers, fabric) as job:
        for i in range(workers):
            job.worker(i, EXAMPLE, out)
        job.end()
        said = [line for w in job.workers.values() for line in w.lines if line and line.startswith("accuracy")]
    assert len(said) == 1 and float(said[0].split()[1]) > 0.9, said
    return out.read_bytes()


def bytes_are_the_same_for_any_number_of_workers_and_servers():
    first = run_example("first", 1, 1, "tcp")
    for workers, servers, fabric in ((2, 1, "tcp"), (3, 2, "tcp"), (1, 1, "auto"), (3, 2, "auto")):
        assert run_example(f"{workers}{servers}{fabric}", workers, servers, fabric) == first, (workers, servers, fabric)


def result(name, *acts, fabric="tcp", codes=(), options=()):
    """Trains tests/python/worker.py with a worker for each of `acts`. Returns the bytes of the result, and the
    processes of the workers. `codes`: exit codes, if not all are 0."""
    out = SCRATCH / f"{name}.npy"
    with Job(len(acts), 1, fabric, *options) as job:
        for i, act in enumerate(acts):
            job.worker(i, WORKER, out, *act)
        for i, process in job.workers.items():
            process.end(codes[i] if codes else 0)
        job.servers[0].end()
        return out.read_bytes(), job.workers


@functools.cache
def undisturbed():
    return result("undisturbed", ["plain"])[0]


def count_finishers(workers):
    return [line for w in workers.values() for line in w.lines].count("finisher")


SMALL = """
import sys
import numpy
import pytern
with pytern.Session(steps=20, **eval(sys.argv[1], vars(pytern))) as s:
    w = s.tensor("w", (5, 3), pytern.constant(1))
    for slot in s.slots():
        with slot:
            assert len(slot.records) == 0
            slot.push(w, numpy.ones(w.shape, numpy.float32))
            slot.loss(slot[w].mean())
    if s.finisher():
        print("value", w.value[0, 0])
        assert s.finisher() and len(set(w.value.reshape(-1))) == 1 and w.value[0, 0] < 1
"""


def every_optimizer_descends_in_all_modes():
    for rule in ("SGD()", "Momentum(weight_decay=0.01)", "Nesterov()", "Adagrad()", "RMSProp()", "Adam(beta2=0.99)",
                 "AdamW()"):
        for mode in ("sync", "async", "ssp:1"):
            with Job(2) as job:
                for i in range(2):
                    job.worker(i, "-c", SMALL, f"dict(optimizer={rule}, mode={mode!r})")
                job.end()


# Worker 1 is slow in steps 3 and 6, so worker 0 has the slots of steps 4 and 7 before their parameters. In step 6 worker 1
# raises after that, and worker 0 has to compute its slot before step 7.
EARLY = """
import os
import time
import numpy
import pytern
early, cancelled = [], []
with pytern.Session(steps=10, slots=2, verify_first=0, optimizer=pytern.SGD(lr=0.1)) as s:
    w = s.tensor("w", (5, 3), pytern.uniform(1))
    m = s.tensor("m", 2, optimizer=pytern.Mean())
    for slot in s.slots():
        early += [slot.step] * slot._early
        with slot:
            if os.environ["TERN_INDEX"] == "1" and slot.step in (3, 6):
                time.sleep(0.5)
                assert slot.step == 3, "no luck"
            slot.push(m, numpy.ones(2, numpy.float32))  # waits, and does not hide that the slot is cancelled
            try:
                slot.push(w, slot[w] * (slot.number + 1))
            except pytern.Cancelled:
                cancelled.append(slot.step)
                raise
            slot.loss(0)
        assert slot.cancelled == (slot.step in cancelled and slot._early)
    print({4, 7} <= set(early), cancelled)
    print(w.value.tobytes().hex())
    s.finisher()
"""


def a_slot_begins_while_its_parameters_arrive_and_is_cancelled_when_another_one_comes_first():
    with Job(1) as job:
        alone = job.worker(0, "-c", EARLY)
        job.end()
    with Job(2) as job:
        both = [job.worker(i, "-c", EARLY) for i in range(2)]
        job.workers.pop(1).end(1)
        job.end()
    assert "no luck" in both[1].error(), both[1].said()
    assert both[0].lines[:2] == ["True [7]", alone.lines[1]], (both[0].said(), alone.lines)


def write_secret(name, text):
    path = SCRATCH / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def the_secret_of_a_file_lets_a_worker_in():
    right, wrong = (write_secret(name, text) for name, text in (("right", "a" * 32), ("wrong", "b" * 32)))
    with Job(1, 1, "tcp", "--secret-file", right) as job:
        refused = job.worker(0, "-c", SMALL, f"dict(secret_file={str(wrong)!r})").end(1)
        assert refused.error().splitlines()[-1].endswith("refused: the peer has another secret"), refused.said()
        job.worker(0, "-c", SMALL, f"dict(secret_file={str(right)!r})", TERN_SECRET_FILE=wrong)
        job.end()


def exactly_one_worker_is_the_finisher():
    got, workers = result("one", ["plain"], ["plain"], ["plain"])
    assert got == undisturbed()
    assert count_finishers(workers) == 1


def a_worker_that_does_not_ask_for_the_finisher_ends_with_the_job():
    with Job(2) as job:
        job.worker(0, WORKER, SCRATCH / "none", "ask nothing")
        job.worker(1, WORKER, SCRATCH / "none", "ask nothing")
        job.end()


def a_worker_that_is_killed_is_replaced():
    step = random.randrange(55)
    print(f"# killed at step {step}")
    for fabric in ("tcp", "auto"):
        got, _ = result("killed", ["plain"], ["kill", step], fabric=fabric, codes=(0, -signal.SIGKILL))
        assert got == undisturbed()


def a_worker_that_raises_leaves_and_the_others_hear_why():
    got, workers = result("raised", ["plain"], ["raise", 20], ["plain"], codes=(0, 1, 0))
    assert got == undisturbed()
    assert workers[1].error().endswith("ValueError: no luck\ntoday"), workers[1].said()
    notes = [line for line in workers[0].lines if line and line.startswith("note ")]
    assert any("today" in note for note in notes), notes


def the_only_worker_that_raises_ends_the_job():
    with Job(1) as job:
        job.worker(0, WORKER, SCRATCH / "none", "raise", 5).end(1)
        job.servers[0].end(1)


def a_slot_without_a_loss_is_an_error_that_says_so():
    _, workers = result("silent", ["plain"], ["silent"], codes=(0, 1))
    assert "ended without a loss: call slot.loss(value)" in workers[1].error(), workers[1].said()


def interrupt(job, process):
    process.process.send_signal(signal.SIGINT)
    process.end(-signal.SIGINT)
    assert "KeyboardInterrupt" in process.error(), process.said()


def ctrl_c_ends_a_worker_that_computes():
    out = SCRATCH / "interrupted.npy"
    with Job(2) as job:
        job.worker(0, WORKER, out, "plain")
        job.worker(1, WORKER, out, "interrupt", 10).wait_line(lambda line: line == "computing")
        interrupt(job, job.workers[1])
        del job.workers[1]
        job.end()
    assert out.read_bytes() == undisturbed()


def ctrl_c_ends_a_worker_that_waits_for_a_slot():
    """The job has a second worker, which never comes."""
    with Job(2) as job:
        process = job.worker(0, "-c", "import pytern, sys\n"
                             "with pytern.Session(steps=9) as s:\n"
                             "    s.tensor('w', 3)\n"
                             "    slots = s.slots()\n"
                             "    print('waiting', flush=True)\n"
                             "    next(slots)")
        process.wait_line(lambda line: line == "waiting")
        interrupt(job, process)


def gradients_of_other_types_are_converted_with_one_warning():
    got, workers = result("float64", ["float64"], ["plain"])
    assert got == undisturbed()
    warnings = [line.partition("Warning: ")[2] for line in workers[0].errors if line and "Warning" in line]
    assert warnings == ["tensor w: its gradient is float64 and is converted to float32 in each push",
                        "tensor b: its gradient is not contiguous and is copied in each push"], warnings
    assert not workers[1].error(), workers[1].error()


def threads_may_push():
    assert result("threads", ["threads"], ["threads"])[0] == undisturbed()


def threads_that_call_everything_at_the_wrong_time_break_nothing():
    with Job(1) as job:
        process = job.worker(0, WORKER, SCRATCH / "hammered.npy", "hammer")
        job.end()
        assert int(process.lines[-2].split()[1]) > 1000, process.said()
        assert "Exception in thread" not in process.error(), process.said()


def the_end_of_a_slot_waits_for_a_push_in_another_thread():
    """A push that comes after the end raises. One that came before takes some milliseconds for its copy."""
    with Job(1) as job:
        job.worker(0, "-c", "import contextlib, numpy, pytern, threading, time\n"
                   "def push(slot):\n"
                   "    with contextlib.suppress(pytern.Error):\n"
                   "        slot.push(w, ones)\n"
                   "with pytern.Session(steps=10, verify_first=0) as s:\n"
                   "    w = s.tensor('w', 1 << 23)\n"
                   "    ones = numpy.ones(w.shape, numpy.float32)\n"
                   "    for slot in s.slots():\n"
                   "        with slot:\n"
                   "            slot.loss(0)\n"
                   "            thread = threading.Thread(target=push, args=[slot])\n"
                   "            thread.start()\n"
                   "            time.sleep(0.001)\n"
                   "        thread.join()\n"
                   "    with s.finishing():\n"
                   "        assert (w.value == w.value[0]).all()")
        job.end()


def a_forked_child_is_refused_and_its_destructors_say_nothing():
    got, workers = result("forked", ["plain"], ["fork", 30])
    assert got == undisturbed()
    told = [line for line in workers[1].lines if line and "child" in line]
    assert told == [SENTENCE_OF_FORK] * 7, "\n".join(map(str, workers[1].lines))
    assert not workers[1].error(), workers[1].error()


def a_spawned_child_that_opens_a_session_again_is_refused():
    program = SCRATCH / "spawns.py"
    program.write_text("import multiprocessing, pytern\n"
                       "def nothing(): pass\n"
                       "with pytern.Session(steps=3) as s:\n"
                       "    w = s.tensor('w', 3)\n"
                       "    for slot in s.slots():\n"
                       "        with slot:\n"
                       "            slot.loss(0)\n"
                       "            if slot.step == 1:\n"
                       "                child = multiprocessing.get_context('spawn').Process(target=nothing)\n"
                       "                child.start()\n"
                       "                child.join()\n"
                       "                print('child', child.exitcode)\n")
    with Job(1) as job:
        job.worker(0, program)
        job.end()
        assert "child 1" in job.workers[0].lines, job.workers[0].said()
        assert 'put what opens the session under `if __name__ == "__main__":`' in job.workers[0].error()


def another_worker_finishes_if_the_finisher_is_killed():
    out = SCRATCH / "finisher.npy"
    with Job(2) as job:
        first = job.worker(0, WORKER, out, "finish slowly")
        job.worker(1, WORKER, out, "plain")
        first.wait_line(lambda line: line == "finisher")
        assert not out.exists()
        first.process.kill()
        job.workers.pop(0).end(-signal.SIGKILL)
        job.end()
    assert out.read_bytes() == undisturbed()


def another_worker_finishes_if_the_finisher_raises():
    got, workers = result("disk", ["finish badly"], ["plain"], codes=(1, 0))
    assert got == undisturbed()
    assert workers[0].error().endswith("OSError: the disk is full")
    assert count_finishers(workers) == 2


def mistakes_are_told_in_a_sentence():
    _, workers = result("mistakes", ["plain"], ["mistakes", 3])
    told = [line for line in workers[1].lines if line and not line.startswith(("step", "note"))]
    size, offset = 0, 0
    for line in told:
        if f": {1 << 40} bytes at " in line:
            offset, size = int(line.split()[4][:-1]), int(line.split()[-1])
    assert size > 0 and size % 4096 == 0 and 0 <= offset < size
    assert told == [
        "ValueError: tensor w: expected a gradient of shape (30, 10), got (3, 4)",
        "ValueError: tensor w: expected a gradient of shape (30, 10), got (10, 30)",
        "TypeError: tensor w: expected a gradient of real numbers, got dtype complex128",
        "TypeError: expected a tensor that Session.tensor() has returned, got str",
        "TypeError: tensor w: expected a gradient of real numbers, got dtype object",
        "TypeError: loss: expected a number, got str",
        "Error: finisher() has an answer after the last slot: the loop over slots() has not come to its end",
        "Error: a tensor cannot be declared after the session has started",
        "Error: slot 1 of step 3 was not ended: compute each slot inside `with slot:`",
        "ValueError: assignment destination is read-only",
        "ValueError: assignment destination is read-only",
        f"ValueError: 1 bytes at -1: the mapping has {size}",
        f"ValueError: {1 << 40} bytes at {offset}: the mapping has {size}",
        "IndexError: tensor 9: the session has 2 tensors",
        *["Error: the slot has ended: its parameters and records are only there inside its `with` block"] * 2,
        "Error: tensor b was pushed before in this slot"], "\n".join(told)


def a_slot_that_has_ended_raises():
    _, workers = result("ended", ["plain"])
    told = [line for line in workers[0].lines if line and line.startswith("Error")]
    assert told == ["Error: the slot has ended: its parameters and records are only there inside its `with` block",
                    "Error: slot 5 of step 59 has ended: its loss is known",
                    "Error: slot 5 of step 59 has ended: it can be entered once",
                    "Error: the session is closed"], told


def a_loss_that_is_no_number_ends_the_job():
    with Job(1) as job:
        process = job.worker(0, WORKER, SCRATCH / "none", "nan", 5).end(1)
        assert "no longer a number" in process.error().splitlines()[-1], process.said()


# A program whose losses are numbers, whatever its gradients and parameters are.
BLIND = """
import sys
import numpy
import pytern
with pytern.Session(steps=100_000_000, verify_first=0, clip_norm=float(sys.argv[1])) as s:
    w = s.tensor("w", (5, 3), pytern.constant(1))
    for slot in s.slots():
        with slot:
            slot.push(w, numpy.full(w.shape, numpy.nan if slot.step > 50 else 0, numpy.float32))
            slot.loss(1)
"""


def parameters_that_are_no_numbers_are_in_no_snapshot_and_end_the_job():
    snapshots = SCRATCH / "blind"
    with Job(1, 2, "tcp", "--snapshots", snapshots, "--snapshot-every", 10) as job:
        process = job.worker(0, "-c", BLIND, 0).end(1)
        assert "are no longer finite numbers" in process.error().splitlines()[-1], process.said()
        for server in job.servers:
            server.end(1)
        assert "no snapshot of step" in "\n".join(map(str, job.servers[0].lines)), job.servers[0].said()
    steps = [int(manifest.name.split("-")[1]) for manifest in snapshots.glob("*.json")]
    assert all(step <= 51 for step in steps), steps


def gradients_that_are_no_numbers_end_a_job_that_clips_them():
    with Job(1, 2) as job:
        process = job.worker(0, "-c", BLIND, 1).end(1)
        assert "step 52: the norm of the gradients is no longer a finite number (nan)" in process.error(), process.said()


def a_worker_that_stood_still_hears_that_its_slot_is_revoked():
    out = SCRATCH / "stood.npy"
    with Job(2, 1, "tcp", "--worker-timeout", "1") as job:
        job.worker(0, WORKER, out, "plain")
        job.worker(1, WORKER, out, "stand", 10)
        job.end()
        assert "revoked" in job.workers[1].lines, job.workers[1].said()
    assert out.read_bytes() == undisturbed()


SLOW = """
import os
import time
import numpy
import pytern
with pytern.Session(steps=20, note=lambda line: print("note", line)) as s:
    w = s.tensor("w", 5)
    for slot in s.slots():
        with slot:
            slot.push(w, numpy.ones(5, numpy.float32))
            slot.loss(1)
    while s.finisher() and os.environ["TERN_INDEX"] == "0":
        time.sleep(0.1)
"""


def a_finisher_that_takes_long_hears_of_the_timeout_and_of_goes_on():
    """All steps are done, so the others have no slot of it to compute, and say nothing of the kind."""
    with Job(2, 1, "tcp", "--worker-timeout", "1") as job:
        slow, other = (job.worker(i, "-c", SLOW) for i in range(2))
        other.end()
        job.servers[0].end()
        told = next(line for line in job.servers[0].lines if line and '"lost"' in line)
        slow.kill()
    assert "has made no progress for 1.0 s (--worker-timeout), and others wait for the end of the job" in told, told
    assert "must call goes_on() every few seconds" in told, told
    assert "computed here" not in other.said(), other.said()


def a_session_can_be_closed_by_another_thread():
    got, workers = result("closed", ["plain"], ["close", 10])
    assert got == undisturbed()
    assert "Error: the session is closed" in workers[1].lines, workers[1].said()


def workers_that_describe_other_jobs_are_refused():
    """The servers take the job of the worker that comes first, and refuse the second one."""
    with Job(2) as job:
        for i in range(2):
            job.worker(i, "-c", "import pytern\n"
                       f"with pytern.Session(steps=9 + {i}) as s:\n"
                       "    s.tensor('w', 3)\n"
                       "    next(s.slots())")
        refused = first_to_end(job.workers.values()).end(1)
    assert refused.error().splitlines()[-1].startswith("pytern.Error: "), refused.said()
    assert "steps" in refused.error().splitlines()[-1], refused.said()


CASES = [
    bytes_are_the_same_for_any_number_of_workers_and_servers,
    every_optimizer_descends_in_all_modes,
    a_slot_begins_while_its_parameters_arrive_and_is_cancelled_when_another_one_comes_first,
    the_secret_of_a_file_lets_a_worker_in,
    exactly_one_worker_is_the_finisher,
    a_worker_that_does_not_ask_for_the_finisher_ends_with_the_job,
    a_worker_that_is_killed_is_replaced,
    a_worker_that_raises_leaves_and_the_others_hear_why,
    the_only_worker_that_raises_ends_the_job,
    a_slot_without_a_loss_is_an_error_that_says_so,
    ctrl_c_ends_a_worker_that_computes,
    ctrl_c_ends_a_worker_that_waits_for_a_slot,
    gradients_of_other_types_are_converted_with_one_warning,
    threads_may_push,
    threads_that_call_everything_at_the_wrong_time_break_nothing,
    the_end_of_a_slot_waits_for_a_push_in_another_thread,
    a_forked_child_is_refused_and_its_destructors_say_nothing,
    a_spawned_child_that_opens_a_session_again_is_refused,
    another_worker_finishes_if_the_finisher_is_killed,
    another_worker_finishes_if_the_finisher_raises,
    mistakes_are_told_in_a_sentence,
    a_slot_that_has_ended_raises,
    a_loss_that_is_no_number_ends_the_job,
    parameters_that_are_no_numbers_are_in_no_snapshot_and_end_the_job,
    gradients_that_are_no_numbers_end_a_job_that_clips_them,
    a_worker_that_stood_still_hears_that_its_slot_is_revoked,
    a_finisher_that_takes_long_hears_of_the_timeout_and_of_goes_on,
    a_session_can_be_closed_by_another_thread,
    workers_that_describe_other_jobs_are_refused,
]
tap.run([case for case in CASES if len(sys.argv) < 3 or case.__name__ in sys.argv[2:]])
