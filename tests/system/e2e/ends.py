#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that however a job is asked to end, it says why, saves once, and leaves no process and no half-written
file.

usage: ends.py TERN [SLOW_FSYNC.so SLOW_READ.so]
"""
import contextlib
import json
import math
import os
import re
import resource
import shlex
import signal
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from running import after, at_work, by_hand, FOR_EVER, saved_by, started, training, undisturbed  # noqa: E402

job.use(sys.argv[1])
SLOW_FSYNC, SLOW_READ = 2, 3  # indices in sys.argv


@contextlib.contextmanager
def preloaded(which):
    """Processes that are started meanwhile preload the library sys.argv[which]."""
    if len(sys.argv) <= which:
        raise tap.Skip("nothing can be preloaded into a program with a sanitizer")
    os.environ["LD_PRELOAD"] = sys.argv[which]
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


def interrupted_by(number):
    """No process is left, and the parameters of the last step are in interrupted.safetensors."""
    directory = job.SCRATCH / f"interrupted-{number}"
    running = started("--servers", 2, "--workers", 2, "--save", directory)
    error = after(running, lambda: running.process.send_signal(number), code=128 + number)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    saved = [e for e in running.events if e["event"] == "saved"]
    assert len(saved) == 1 and saved[0]["path"].endswith("interrupted.safetensors"), saved
    assert 0 < saved[0]["step"] < FOR_EVER, saved
    # No "progress" is shown while the job is being ended, so the saved step is later than the last one that was shown.
    assert f"{signal.Signals(number).name} at step {saved[0]['step']} of" in error.splitlines()[-1], (saved, error)
    assert running.events[-1]["event"] == "failed" and running.events[-1]["code"] == running.code


def interrupt_saves_and_leaves_nobody():
    interrupted_by(signal.SIGINT)


def termination_saves_and_leaves_nobody():
    interrupted_by(signal.SIGTERM)


def hangup_saves_and_leaves_nobody():
    interrupted_by(signal.SIGHUP)


def interrupted_async_job_tells_whose_steps_it_has_saved():
    """Each worker makes half of the steps, and only one worker saves."""
    directory = job.SCRATCH / "interrupted-async"
    running = started("--workers", 2, "--mode", "async", "--save", directory)
    error = after(running, lambda: running.process.terminate(), code=143)
    saved = [e for e in running.events if e["event"] == "saved"]
    assert len(saved) == 1, saved
    assert (saved[0]["steps"], saved[0]["worker"]) == (FOR_EVER // 2, 0), saved
    assert error.splitlines()[-1].endswith(f" of {FOR_EVER // 2} of worker 0"), error


def terminated_after(steps, *options, meanwhile=lambda: None):
    """Runs `tern train` with these options, and asks it to end when it has made more than `steps`
    steps. Returns its last event of each name."""
    running = job.Job("train", *options, "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > steps)
    meanwhile()
    after(running, running.process.terminate, code=143)
    return {e["event"]: e for e in running.events}


def requeued_job_replaces_what_its_interrupted_run_saved():
    """Slurm requeues a job: it runs the same command line again, which begins with step 0."""
    directory = job.SCRATCH / "requeued"
    path = directory / "interrupted.safetensors"
    options = job.small("--workers", 2, "--save", directory, steps=job.enough(20_000))
    step = terminated_after(job.enough(2000), *options)["saved"]["step"]
    kept = path.read_bytes()
    # This run makes fewer steps than the first one, so it must not replace what that has saved.
    told = terminated_after(0, *options)["unsaved"]["text"]
    assert f"has step {step} of this job" in told, told
    assert path.read_bytes() == kept
    # --overwrite, which the command line of a batch job may have, changes nothing of that.
    told = terminated_after(0, *options, "--overwrite")["unsaved"]["text"]
    assert f"has step {step} of this job" in told and path.read_bytes() == kept, told
    # If somebody has moved the saved file meanwhile, nothing is lost, and this run saves.
    taken = directory / "taken"
    less = terminated_after(0, *options, meanwhile=lambda: path.rename(taken))["saved"]["step"]
    assert path.exists() and less < step, (less, step)
    taken.rename(path)
    assert terminated_after(step, *options, "--fabric", "tcp")["saved"]["step"] > step
    assert path.read_bytes() != kept
    job.refused("train", *options, "--seed", 8, says=["interrupted.safetensors", "--overwrite"])
    job.train(*options, "--workers", 3, "--slots", 2)
    assert [f.name for f in directory.iterdir()] == ["model.safetensors"]
    job.refused("train", *options, says=["model.safetensors", "--overwrite"])


def closed_terminal_saves_and_leaves_nobody():
    """The kernel and the shell send SIGHUP each: a second one must not cut the saving short."""
    directory = job.SCRATCH / "terminal"
    terminal = job.Terminal("terminal")
    try:
        terminal.start("train", *job.small("--save", directory, steps=FOR_EVER))
        job.wait_until(lambda: terminal.said('"progress"'))
    finally:
        terminal.close()
    job.wait_until(lambda: terminal.said('"failed"'))
    log = terminal.log.read_text()
    assert "ended by SIGHUP" in log, log
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], log


def repeated_termination_saves():
    directory = job.SCRATCH / "repeated"
    running = started("--save", directory)

    def terminate():
        for _ in range(3):
            running.process.terminate()
            time.sleep(0.001)

    error = after(running, terminate, code=143)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], error


def interrupt_before_the_first_step_leaves_no_directory():
    directory = job.SCRATCH / "no-step"
    server, worker = by_hand(2, directory)
    alone = worker(0)
    try:
        job.wait_until(directory.exists)
        alone.process.send_signal(signal.SIGHUP)
        assert alone.end(20) == 128 + signal.SIGHUP, alone.error
    finally:
        alone.kill()
        server.kill()
    assert not directory.exists()


def open_files(pid):
    """The paths of the files that the process has open."""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(fd))
    return links


def worker_that_reads_its_data_ends_when_it_is_asked():
    text = job.SCRATCH / "long.txt"
    text.write_bytes(b"to be read " * 400_000)  # reading it takes a minute
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        with preloaded(SLOW_READ):
            worker = job.Job("worker", "--model", "charlm:4,4,8", "--data", text, "--join",
                             "127.0.0.1:1", "--json")
        try:
            job.wait_until(lambda: str(text) in open_files(worker.process.pid))
            worker.process.send_signal(signal.SIGUSR1)
            said = worker.wait_event(lambda e: e["event"] == "status")["text"]
            assert said == f"it reads its data, {text}", said
            worker.process.send_signal(number)
            assert worker.end(20) == 128 + number, worker.error
        finally:
            worker.kill()


# ---- diverged ----------------------------------------------------------------------------

def diverging(*more, steps, lr):
    return ["train", *job.small("--optimizer", "sgd", "--json", *more, steps=steps, lr=lr)]


def higher_loss_than_at_the_start_is_said():
    risen = [e["text"] for e in job.finish(*diverging(steps=300, lr=10)).events
             if e["event"] == "note" and "diverged" in e["text"]]
    assert len(risen) == 1 and "the loss has risen from 1." in risen[0], risen
    well = job.finish("train", *job.small(steps=300), "--json")
    assert not [e for e in well.events if "diverged" in e.get("text", "")], well.events


def model_that_is_no_number_is_not_saved():
    directory = job.SCRATCH / "diverged"
    failed = job.finish(*diverging("--save", directory, steps=1000, lr=1e6), code=1)
    step = int(re.search(r"step (\d+): the loss is no longer a number", failed.error)[1])
    # A job that ends one step earlier has a loss that is a number, but parameters that are not.
    failed = job.finish(*diverging("--save", directory, "--split", "1000:200", steps=step - 1,
                                   lr=1e6), code=1)
    assert "their loss are no longer numbers" in failed.error, failed.error
    assert failed.events[-1]["event"] == "failed", failed.events
    assert not directory.exists() or not list(directory.iterdir())


def floats_of(directory):
    """The values of all parts of snapshots."""
    for part in directory.glob("*.safetensors"):
        data = part.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, tensor in json.loads(data[8:8 + size]).items():
            if name != "__metadata__" and tensor["dtype"] == "F32":
                begin, end = (8 + size + o for o in tensor["data_offsets"])
                yield from struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])


def model_that_is_no_number_is_in_no_snapshot():
    """The job ends with the name of the slot, or of the step whose snapshot was not taken, and good snapshots stay."""
    snapshots = job.SCRATCH / "diverged-snapshots"
    # The weight decay multiplies each parameter by -1.05 in a step.
    more = "--optimizer", "sgd", "--weight-decay", 2.004, "--snapshots", snapshots, "--snapshot-every", 50, "--json"
    failed = job.finish("train", *job.small(*more, steps=90000, lr=1, model="softmax"), code=1)
    error = failed.error.splitlines()[-1]
    assert re.search(r"slot 0 of step \d+: the loss is no longer a number|after step \d+ the parameters", error), error
    assert re.search(r"--resume \S+ goes on from step \d+", error), error
    values = list(floats_of(snapshots))
    assert values and all(map(math.isfinite, values))


# ---- asked to leave ----------------------------------------------------------------------

def terminated_worker_costs_nothing(victim, *more):
    """A worker that gets SIGTERM leaves; the other worker goes on, and saves the same bytes."""
    running, directory = training(f"left-{victim}", "--workers", 2, *more)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    os.kill(running.pid_of("worker", victim), signal.SIGTERM)
    assert saved_by(running, directory) == undisturbed(), "other bytes"
    for e in running.events:  # there is no "lost" if the job was done before the worker could leave
        assert e["event"] != "lost" or (e["worker"] == victim and "SIGTERM" in e["text"]), e


def terminated_first_worker_costs_nothing_over_tcp():
    terminated_worker_costs_nothing(0, "--servers", 2, "--fabric", "tcp")


def terminated_worker_costs_nothing_over_shm():
    terminated_worker_costs_nothing(1, "--fabric", "shm")


def terminated_worker_leaves_with_exit_code_0():
    directory = job.SCRATCH / "leave"
    server, worker = by_hand(2, directory, steps=FOR_EVER)
    workers = [worker(0), worker(1)]
    try:
        workers[0].wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        workers[0].process.terminate()
        assert workers[0].end(20) == 0, workers[0].error
        workers[1].process.terminate()  # the last worker
        assert workers[1].end(20) == 143, workers[1].error
        assert server.end(20) == 1, server.error
    finally:
        for process in (server, *workers):
            process.kill()
    assert "left" in workers[0].events[-1]["text"], workers[0].events[-1]
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    assert "every worker leaves: it was asked to end (SIGTERM)" in server.events[-1]["text"], server.events[-1]


def saved_paths(*processes):
    return [e["path"] for process in processes for e in process.events if e["event"] == "saved"]


def terminated_worker_beside_a_hung_one_saves(hung, *more):
    """Only the worker that is asked to end can save. If the hung worker goes on, it finishes the
    job; if it does not by its deadline, the job ends."""
    directory = job.SCRATCH / f"beside-{hung}{len(more)}"
    goes_on = not more
    directory.mkdir()
    server, worker = by_hand(2, directory, *more, steps=job.enough(8000))
    # Each worker has a directory of its own, as on two hosts.
    workers = [worker(i, directory / str(i)) for i in range(2)]
    stays, leaves = workers[hung], workers[1 - hung]
    path = directory / str(1 - hung) / "interrupted.safetensors"
    try:
        at_work(*workers)
        stays.process.send_signal(signal.SIGSTOP)
        leaves.process.terminate()
        assert leaves.end(20) == 0, leaves.error
        assert saved_paths(leaves) == [str(path)] and path.exists(), leaves.events
        if goes_on:
            stays.process.send_signal(signal.SIGCONT)
            assert stays.end() == 0, stays.error
        assert server.end(60) == (0 if goes_on else 1), server.error
    finally:
        for process in (server, *workers):
            process.kill()
    if goes_on:
        assert saved_paths(stays) == [str(directory / str(hung) / "model.safetensors")]


def terminated_worker_beside_a_hung_first_one_saves():
    terminated_worker_beside_a_hung_one_saves(0)


def terminated_worker_beside_a_hung_last_one_saves():
    terminated_worker_beside_a_hung_one_saves(1)


def job_that_is_left_by_the_last_worker_that_works_ends():
    terminated_worker_beside_a_hung_one_saves(0, "--worker-timeout", 8)


def terminated_server_beside_a_hung_worker_has_the_parameters_saved(fabric, servers):
    """Worker 0, which would save the parameters, hangs, and no other process knows that yet."""
    directory = job.SCRATCH / f"hung-{fabric}-{servers}"
    all_servers = [job.Job("server", "--fabric", fabric, "--index", i, "--json")
                   for i in range(servers)]
    join = ",".join(s.wait_event(lambda e: e["event"] == "listening")["address"]
                    for s in all_servers)
    workers = [job.Job("worker", *job.small("--workers", 3, "--servers", servers, "--join", join,
                                            "--fabric", fabric, "--save", directory,
                                            steps=FOR_EVER), "--index", i, "--json")
               for i in range(3)]
    everybody = all_servers + workers
    try:
        at_work(*workers)
        workers[0].process.send_signal(signal.SIGSTOP)
        all_servers[-1].process.terminate()
        codes = [process.end(20) for process in all_servers + workers[1:]]
    finally:
        for process in everybody:
            process.kill()
    assert codes == [1] * (servers - 1) + [143, 1, 1], codes
    assert saved_paths(*workers[1:]) == [str(directory / "interrupted.safetensors")]


def terminated_only_server_beside_a_hung_worker_has_the_parameters_saved():
    terminated_server_beside_a_hung_worker_has_the_parameters_saved("shm", 1)


def terminated_second_server_beside_a_hung_worker_has_the_parameters_saved():
    terminated_server_beside_a_hung_worker_has_the_parameters_saved("tcp", 2)


def beside_a_hung_server_0_and_worker_0_worker_1_saves(asked):
    """Server 0 would decide who saves, and worker 0 would save, but both hang."""
    directory = job.SCRATCH / f"both-hang-{asked}"
    servers = [job.Job("server", "--fabric", "shm", "--index", i, "--json") for i in range(2)]
    join = ",".join(s.wait_event(lambda e: e["event"] == "listening")["address"] for s in servers)
    workers = [job.Job("worker", *job.small("--workers", 2, "--servers", 2, "--join", join,
                                            "--fabric", "shm", "--save", directory,
                                            steps=FOR_EVER), "--index", i, "--json")
               for i in range(2)]
    try:
        at_work(*workers)
        for hung in servers[0], workers[0]:
            hung.process.send_signal(signal.SIGSTOP)
        {"server": servers, "worker": workers}[asked][1].process.terminate()
        workers[1].end(20)
    finally:
        for process in servers + workers:
            process.kill()
    assert saved_paths(workers[1]) == [str(directory / "interrupted.safetensors")], (
        workers[1].events)


def terminated_worker_beside_a_hung_server_and_worker_saves():
    beside_a_hung_server_0_and_worker_0_worker_1_saves("worker")


def terminated_server_beside_a_hung_server_and_worker_has_the_parameters_saved():
    beside_a_hung_server_0_and_worker_0_worker_1_saves("server")


def all_terminated_at_once_save_once():
    """A batch system ends a job by asking all its processes at the same time."""
    directory = job.SCRATCH / "scancel"
    server, worker = by_hand(2, directory, steps=FOR_EVER)
    everybody = [server, worker(0), worker(1)]
    try:
        at_work(*everybody[1:])
        for process in everybody:
            process.process.terminate()
        codes = [process.end(20) for process in everybody]
    finally:
        for process in everybody:
            process.kill()
    # A process that hears of the end from another one before its signal exits with 1, or dies of the signal if that comes
    # while it exits.
    assert set(codes) <= {143, 1, -signal.SIGTERM}, codes
    assert saved_paths(*everybody) == [str(directory / "interrupted.safetensors")]


def terminated_server_tells_why_and_nothing_is_lost():
    directory = job.SCRATCH / "server-ends"
    server, worker = by_hand(2, directory, steps=FOR_EVER)
    workers = [worker(0), worker(1)]
    try:
        at_work(*workers)
        server.process.terminate()
        codes = [process.end(20) for process in (server, *workers)]
    finally:
        for process in (server, *workers):
            process.kill()
    assert codes == [143, 1, 1], codes
    for process in workers:
        error = [e["text"] for e in process.events if e["event"] == "error"]
        assert error == ["server 0 ended the job: it was asked to end (SIGTERM)"], error
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]


# ---- disks -------------------------------------------------------------------------------

def terminated_server_waits_for_a_slow_disk():
    directory = job.SCRATCH / "slow-disk"
    with preloaded(SLOW_FSYNC):
        running = started("--save", directory)
    error = after(running, lambda: os.kill(running.pid_of("server", 0), signal.SIGTERM), code=1)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], error
    assert [e["path"] for e in running.events if e["event"] == "saved"] == [
        str(directory / "interrupted.safetensors")], running.events


def full_disk_at_the_end_loses_nothing():
    """The worker may not write so large a file, as if the disk were full. It keeps the parameters
    and tries again, here until the job is asked to end."""
    directory = job.SCRATCH / "full"
    running = job.Job("train", *job.small("--save", directory, steps=job.enough(4000)), "--json")
    try:
        running.wait_event(lambda e: e["event"] == "progress")
        pid = running.pid_of("worker", 0)
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, limits[1]))
        told = running.wait_event(lambda e: e["event"] == "unsaved")["text"]
        assert "File too large" in told and "tried again every 10 s" in told, told
        assert not list(directory.iterdir())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        running.process.terminate()
        assert running.end(20) == 143, running.error
    finally:
        running.kill()
    assert [f.name for f in directory.iterdir()] == ["model.safetensors"]


def terminated_server_without_a_job_has_not_failed():
    server = job.Job("server", "--fabric", "shm", "--json")
    try:
        server.wait_event(lambda e: e["event"] == "listening")
        server.process.terminate()
        assert server.end(20) == 0, server.error
    finally:
        server.kill()


def launched(command, directory, *more):
    """A job of `tern train`, or of `tern run` with `tern worker` as the program, that makes steps. Returns it and the
    addresses of its servers."""
    counts = ["--servers", 2, "--workers", 2]
    options = [*job.small(*counts, steps=FOR_EVER), "--save", directory]
    if command == "run":
        worker = shlex.join(map(str, [job.TERN, "worker", *options]))
        running = job.Job("run", *counts, *more, "--insecure", "--json", "--", "sh", "-c",
                          f'exec {worker} --join "$TERN_JOIN" --index "$TERN_INDEX" >&2')
    else:
        running = job.Job("train", *options, *more, "--insecure", "--json")
    join = running.wait_event(lambda e: e["event"] == "start")["join"]
    at_work(running)
    return running, join


def aborted_job_of_a_launcher_saves_and_is_not_started_again():
    for command in "train", "run":
        directory, snapshots = job.SCRATCH / f"aborted-{command}", job.SCRATCH / f"aborted-{command}-snapshots"
        running, join = launched(command, directory, "--snapshots", snapshots, "--snapshot-every", 500)
        error = after(running, lambda: job.finish("abort", "--join", join, "--why", "lr is too high"), code=1)
        assert re.search(r" on \S+ aborted the job: lr is too high", error.splitlines()[-1]), error
        assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
        assert not any(e["event"] == "restart" for e in running.events)


def writes_in(pid, directory):
    """True if the process has a file in this directory open, which may have no name yet."""
    return any(path.startswith(f"{directory}/") for path in open_files(pid))


def job_is_aborted_while_a_snapshot_is_written():
    """The second fsync() of each server is that of its part of the first snapshot, which is not published."""
    directory, snapshots = job.SCRATCH / "aborted-writing", job.SCRATCH / "aborted-writing-snapshots"
    with preloaded(SLOW_FSYNC), job.environment(SLOW_FSYNC="2:3:server"):
        running, join = launched("train", directory, "--snapshots", snapshots, "--snapshot-every", 50)
    job.wait_until(lambda: all(writes_in(running.pid_of("server", i), snapshots) for i in (0, 1)))
    error = after(running, lambda: job.finish("abort", "--join", join, "--why", "lr is too high"), code=1)
    assert re.search(r" on \S+ aborted the job: lr is too high", error.splitlines()[-1]), error
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    assert not list(snapshots.glob("step-*.json")), list(snapshots.iterdir())


def job_is_aborted_after_the_last_step():
    """The worker's second fsync() is that of the results, which the disk takes slowly."""
    directory = job.SCRATCH / "aborted-saving"
    with preloaded(SLOW_FSYNC), job.environment(SLOW_FSYNC="2:3:worker"):
        running = job.Job("train", *job.small("--workers", 2, "--save", directory, "--insecure"), "--json")
    join = running.wait_event(lambda e: e["event"] == "start")["join"]
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] == e["steps"])
    job.wait_until(lambda: any(writes_in(running.pid_of("worker", i), directory) for i in (0, 1)))
    error = after(running, lambda: job.finish("abort", "--join", join, "--why", "lr is too high"), code=1)
    assert "aborted the job: lr is too high" in error.splitlines()[-1], error
    assert [f.name for f in directory.iterdir()] == ["model.safetensors"]


def termination_with_snapshots_takes_one_and_asks_for_a_requeue():
    """The same command with --resume comes to the bytes of a job without a break."""
    snapshots = job.SCRATCH / "requeue-snapshots"
    more = "--snapshots", snapshots, "--servers", 2, "--workers", 2
    running, _ = training("requeue-first", *more)
    at_work(running)
    after(running, running.process.terminate, code=job.REQUEUE)
    assert running.last["code"] == job.REQUEUE, running.last
    said = [e["text"] for e in running.events if e["event"] == "note"]
    assert re.fullmatch(r"snapshot of step \d+; --resume \S+ goes on from it", said[-1]), said
    assert not [e for e in running.events if e["event"] == "status"], running.events
    assert saved_by(*training("requeue-next", *more, "--resume", snapshots)) == undisturbed()


def terminated_program_with_snapshots_asks_for_a_requeue():
    snapshots = job.SCRATCH / "program-snapshots"
    running, _ = launched("run", job.SCRATCH / "program", "--snapshots", snapshots)
    after(running, running.process.terminate, code=job.REQUEUE)
    assert any(re.match(r"snapshot of step \d+; --resume", e.get("text", "")) for e in running.events)


def end_without_a_snapshot_asks_for_no_requeue():
    """Ctrl-C takes none. Nor is one complete in time if a worker stands still, which is told."""
    for number, name in (signal.SIGINT, "ctrl-c"), (signal.SIGTERM, "late"):
        running, _ = launched("train", job.SCRATCH / name, "--snapshots", job.SCRATCH / f"{name}-snapshots",
                              "--drain-within", 2)
        if name == "late":
            os.kill(running.pid_of("worker", 1), signal.SIGSTOP)
        after(running, lambda: running.process.send_signal(number), code=128 + number)
        said = [e["text"] for e in running.events if e["event"] == "warning"]
        assert bool(said) == (name == "late") and all("no snapshot within 1.25 s" in s for s in said), said


def job_that_waits_for_a_worker_is_aborted():
    server = job.Job("server", "--listen", "127.0.0.1:0", "--json")
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    worker = job.Job("worker", *job.small("--workers", 2, "--join", address, "--index", 0), "--json")
    server.wait_event(lambda e: e["event"] == "joined")
    job.finish("abort", "--join", address, "--why", "the wrong data")
    for process in server, worker:
        assert process.end() == 1, process.code
        errors = [e["text"] for e in process.events if e["event"] == "error"]
        assert len(errors) == 1 and "aborted the job: the wrong data" in errors[0], errors


def abort_needs_a_server_and_a_short_reason():
    job.refused("abort", says=["--join is missing"])
    job.refused("abort", "--join", "tcp://127.0.0.1:9", "--why", "x" * 201, says=["--why", "201 bytes", "at most 200"])
    job.refused("abort", "--join", "tcp://127.0.0.1:9", "--wait", 0.3, says=["no answer: "], code=1)


def time_for_an_end_is_a_number_of_seconds():
    for command in "train", "run", "server", "worker":
        for value in "0", "soon", "1e9":
            job.refused(command, "--drain-within", value, says=[f"--drain-within {value}: "])


tap.run([
    interrupt_saves_and_leaves_nobody,
    termination_saves_and_leaves_nobody,
    hangup_saves_and_leaves_nobody,
    interrupted_async_job_tells_whose_steps_it_has_saved,
    closed_terminal_saves_and_leaves_nobody,
    repeated_termination_saves,
    requeued_job_replaces_what_its_interrupted_run_saved,
    interrupt_before_the_first_step_leaves_no_directory,
    worker_that_reads_its_data_ends_when_it_is_asked,
    higher_loss_than_at_the_start_is_said,
    model_that_is_no_number_is_not_saved,
    model_that_is_no_number_is_in_no_snapshot,
    terminated_first_worker_costs_nothing_over_tcp,
    terminated_worker_costs_nothing_over_shm,
    terminated_worker_leaves_with_exit_code_0,
    terminated_worker_beside_a_hung_first_one_saves,
    terminated_worker_beside_a_hung_last_one_saves,
    job_that_is_left_by_the_last_worker_that_works_ends,
    terminated_only_server_beside_a_hung_worker_has_the_parameters_saved,
    terminated_second_server_beside_a_hung_worker_has_the_parameters_saved,
    terminated_worker_beside_a_hung_server_and_worker_saves,
    terminated_server_beside_a_hung_server_and_worker_has_the_parameters_saved,
    all_terminated_at_once_save_once,
    terminated_server_tells_why_and_nothing_is_lost,
    terminated_server_waits_for_a_slow_disk,
    full_disk_at_the_end_loses_nothing,
    terminated_server_without_a_job_has_not_failed,
    aborted_job_of_a_launcher_saves_and_is_not_started_again,
    job_is_aborted_while_a_snapshot_is_written,
    job_is_aborted_after_the_last_step,
    termination_with_snapshots_takes_one_and_asks_for_a_requeue,
    terminated_program_with_snapshots_asks_for_a_requeue,
    end_without_a_snapshot_asks_for_no_requeue,
    job_that_waits_for_a_worker_is_aborted, abort_needs_a_server_and_a_short_reason,
    time_for_an_end_is_a_number_of_seconds,
])
