#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""However a job ends, it says why and leaves nobody and nothing half done behind; and it does
not end when workers do, as long as one is left.

usage: ends.py TERN [SLOW_FSYNC.so SLOW_READ.so]
"""
import contextlib
import functools
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
FOR_EVER = 100_000_000
SLOW_FSYNC, SLOW_READ = 2, 3  # in sys.argv


@contextlib.contextmanager
def preloaded(which):
    """What is started meanwhile has the library sys.argv[which] in it."""
    if len(sys.argv) <= which:
        raise tap.Skip("nothing can be preloaded into a program with a sanitizer")
    os.environ["LD_PRELOAD"] = sys.argv[which]
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


def started(*more):
    """A job that would go on for ever, and is at work."""
    running = job.Job("train", *job.small(*more, steps=FOR_EVER), "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    return running


def after(running, act, code, limit_s=20):
    """act() makes it end with `code`: what it says on stderr."""
    try:
        act()
        running.end(limit_s)
    finally:
        running.kill()
    assert running.code == code, f"exit code {running.code}\n{running.error}"
    return running.error


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


# ---- the job outlives a worker -----------------------------------------------------------

def saved_by(running, directory):
    """The bytes that the job saves; nothing half done is beside them."""
    try:
        running.end()
    finally:
        running.kill()
    assert running.code == 0, f"exit code {running.code}\n{running.error}"
    files = list(directory.iterdir())
    assert [f.name for f in files] == ["model.safetensors"], files
    return files[0].read_bytes()


def training(name, *more, steps=4000):
    """A job that saves: it, and where."""
    directory = job.SCRATCH / name
    return job.Job("train", *job.small("--slots", 5, "--save", directory, *more, steps=steps),
                   "--json"), directory


@functools.cache
def undisturbed(*more):
    """The bytes that training() saves if nothing happens to it, whatever its processes are."""
    return saved_by(*training("undisturbed" + "".join(more), "--fabric", "shm", *more))


def killed_workers_cost_nothing(name, victims, *more):
    """The same bytes as if they had lived; each loss is told once."""
    reference = undisturbed(*(["--clip-norm", "0.5"] if "--clip-norm" in more else []))
    running, directory = training(name, *more)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    pids = {i: running.pid_of("worker", i) for i in victims}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert saved_by(running, directory) == reference, "other bytes"
    told = {e["who"]: e["text"] for e in running.events if e["event"] == "lost"}
    assert told == {f"worker {i}": f"worker {i} (pid {pid}) was killed by signal 9 (Killed): "
                                   "its slots go to the others" for i, pid in pids.items()}
    slots = [e["text"] for e in running.events if " slots " in e.get("text", "")]
    assert len(slots) == len(victims), slots  # not by the workers that have them now, too
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
    running, directory = training("async", "--workers", 3, "--mode", "async", steps=6000)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    os.kill(running.pid_of("worker", 0), signal.SIGKILL)
    assert saved_by(running, directory)
    told = [e["text"] for e in running.events if e["event"] == "lost"]
    assert len(told) == 1 and told[0].endswith("the others go on without it"), told
    done = running.events[-1]
    assert done["steps"] < 6000, done
    assert done["steps"] + done["steps_torn"] + done["steps_missing"] == 6000, done
    assert any(f"{done['steps']} of 6000 steps were made" in e["text"]
               for e in running.events if e["event"] == "note"), running.events


def stopped_worker_is_left_behind(fabric):
    """Its process lives and its kernel answers; at the end it is still there, and ended."""
    running, directory = training(f"stopped-{fabric}", "--workers", 3, "--fabric", fabric,
                                  "--worker-timeout", 0.5)
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


def worker_that_comes_back_too_late_is_told_and_ends(fabric):
    directory = job.SCRATCH / f"late-{fabric}"
    server, worker = by_hand(2, directory, "--worker-timeout", 0.5, fabric=fabric)
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


def by_hand(workers, directory, *more, fabric="shm", steps=4000):
    """A server, and what starts worker i of its job."""
    server = job.Job("server", "--fabric", fabric, "--json", *more)
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    common = job.small("--slots", 4, "--workers", workers, "--join", address, "--fabric",
                       fabric, steps=steps)
    return server, lambda i, save=directory: job.Job("worker", *common, "--save", save, "--index",
                                                     i, "--json")


def job_whose_last_worker_hangs_ends():
    """Nobody waits for it but the servers and the launcher."""
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
        assert "before the steps began: 0 of 2 workers are here" in told["text"], told
        others = [worker(0), worker(1)]
        assert [process.end(60) for process in (*others, server)] == [0, 0, 0]
    finally:
        for process in (server, first, *others):
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


# ---- interrupted, and worse --------------------------------------------------------------

def interrupted_by(number):
    """Nobody is left, and the parameters are: those of the last step, under a name of their own."""
    directory = job.SCRATCH / f"interrupted-{number}"
    running = started("--servers", 2, "--workers", 2, "--save", directory)
    error = after(running, lambda: running.process.send_signal(number), code=128 + number)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    saved = [e for e in running.events if e["event"] == "saved"]
    assert len(saved) == 1 and saved[0]["path"].endswith("interrupted.safetensors"), saved
    assert 0 < saved[0]["step"] < FOR_EVER, saved
    assert signal.Signals(number).name in error.splitlines()[-1], error
    assert running.events[-1]["event"] == "failed" and running.events[-1]["code"] == running.code


def interrupt_saves_and_leaves_nobody():
    interrupted_by(signal.SIGINT)


def termination_saves_and_leaves_nobody():
    interrupted_by(signal.SIGTERM)


def hangup_saves_and_leaves_nobody():
    interrupted_by(signal.SIGHUP)


def interrupted_async_job_tells_whose_steps_it_has_saved():
    """Each worker takes half of the steps, and one of them saves."""
    directory = job.SCRATCH / "interrupted-async"
    running = started("--workers", 2, "--mode", "async", "--save", directory)
    error = after(running, lambda: running.process.terminate(), code=143)
    saved = [e for e in running.events if e["event"] == "saved"]
    assert len(saved) == 1, saved
    assert (saved[0]["steps"], saved[0]["worker"]) == (FOR_EVER // 2, 0), saved
    assert error.splitlines()[-1].endswith(f" of {FOR_EVER // 2} of worker 0"), error


def terminated_after(steps, *options, meanwhile=lambda: None):
    """`tern train` with these options, asked to end when it has made more than so many steps."""
    running = job.Job("train", *options, "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > steps)
    meanwhile()
    after(running, running.process.terminate, code=143)
    return {e["event"]: e for e in running.events}


def requeued_job_replaces_what_its_interrupted_run_saved():
    """As Slurm does it: the same command line again, which begins anew."""
    directory = job.SCRATCH / "requeued"
    path = directory / "interrupted.safetensors"
    options = job.small("--workers", 2, "--save", directory, steps=20_000)
    step = terminated_after(2000, *options)["saved"]["step"]
    kept = path.read_bytes()
    # Less than the first run: that would lose what the first one had done.
    told = terminated_after(0, *options)["unsaved"]["text"]
    assert f"has step {step} of an earlier run" in told, told
    assert path.read_bytes() == kept
    # What somebody has taken away meanwhile is not there to be lost.
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


def has_open(pid, path):
    """Does the process have the file open?"""
    links = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(fd))
    return str(path) in links


def worker_that_reads_its_data_ends_when_it_is_asked():
    text = job.SCRATCH / "long.txt"
    text.write_bytes(b"to be read " * 400_000)  # takes a minute
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        with preloaded(SLOW_READ):
            worker = job.Job("worker", "--model", "charlm:4,4,8", "--data", text, "--join",
                             "127.0.0.1:1", "--json")
        try:
            job.wait_until(lambda: has_open(worker.process.pid, text))
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
    # The last step before has no loss that could tell.
    failed = job.finish(*diverging("--save", directory, "--split", "1000:200", steps=step - 1,
                                   lr=1e6), code=1)
    assert "their loss are no longer numbers" in failed.error, failed.error
    assert failed.events[-1]["event"] == "failed", failed.events
    assert not directory.exists() or not list(directory.iterdir())


# ---- asked to leave ----------------------------------------------------------------------

def terminated_worker_costs_nothing(victim, *more):
    """The others go on, and come to the same bytes."""
    running, directory = training(f"left-{victim}", "--workers", 2, *more)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    os.kill(running.pid_of("worker", victim), signal.SIGTERM)
    assert saved_by(running, directory) == undisturbed(), "other bytes"
    for e in running.events:  # none, if the job was done before the worker could go
        assert e["event"] != "lost" or (e["worker"] == victim and "SIGTERM" in e["text"]), e


def terminated_first_worker_costs_nothing_over_tcp():
    terminated_worker_costs_nothing(0, "--servers", 2, "--fabric", "tcp")


def terminated_worker_costs_nothing_over_shm():
    terminated_worker_costs_nothing(1, "--fabric", "shm")


def terminated_worker_leaves_with_exit_code_0():
    directory = job.SCRATCH / "leave"
    server, worker = by_hand(2, directory, steps=20000)
    workers = [worker(0), worker(1)]
    try:
        workers[0].wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        workers[0].process.terminate()
        assert workers[0].end(20) == 0, workers[0].error
        workers[1].process.terminate()  # nobody is left
        assert workers[1].end(20) == 143, workers[1].error
        assert server.end(20) == 1, server.error
    finally:
        for process in (server, *workers):
            process.kill()
    assert "left" in workers[0].events[-1]["text"], workers[0].events[-1]
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    assert "every worker was asked to end" in server.events[-1]["text"], server.events[-1]


def at_work(*processes):
    for process in processes:
        process.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)


def saved_paths(*processes):
    return [e["path"] for process in processes for e in process.events if e["event"] == "saved"]


def terminated_worker_beside_a_hung_one_saves(hung, *more):
    """It is the only one that can. When the other one goes on it finishes the job; if it
    does not by its deadline, the job ends."""
    directory = job.SCRATCH / f"beside-{hung}{len(more)}"
    goes_on = not more
    directory.mkdir()
    server, worker = by_hand(2, directory, *more, steps=20000)
    # As on two hosts, each with directories of its own.
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
    """Worker 0, which would save them, does not answer, and nobody knows that yet."""
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
    """Server 0 decides who saves, and worker 0 would be the one."""
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
    """As batch systems end a job."""
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
    # Whom another one told of the end first has not been ended by the signal.
    assert set(codes) <= {143, 1}, codes
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


def terminated_server_waits_for_a_slow_disk():
    directory = job.SCRATCH / "slow-disk"
    with preloaded(SLOW_FSYNC):
        running = started("--save", directory)
    error = after(running, lambda: os.kill(running.pid_of("server", 0), signal.SIGTERM), code=1)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], error
    assert [e["path"] for e in running.events if e["event"] == "saved"] == [
        str(directory / "interrupted.safetensors")], running.events


def full_disk_at_the_end_loses_nothing():
    """As with a disk that is full: the worker may not write that much. The parameters wait for
    room, here until the job is ended."""
    directory = job.SCRATCH / "full"
    running = job.Job("train", *job.small("--save", directory, steps=4000), "--json")
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


# ---- stopped, and asked ------------------------------------------------------------------

def state_of(pid):
    """Its letter in ps; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stopped_launcher_stops_the_job_which_goes_on_with_it():
    """As Ctrl-Z and fg do. Nobody is lost for the time in between."""
    running, directory = training("ctrl-z", "--workers", 2, "--worker-timeout", 0.5)
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    everybody = list(running.processes())
    for _ in range(2):
        running.process.send_signal(signal.SIGTSTP)
        job.wait_until(lambda: all(state_of(pid) == "T" for pid in everybody))
        time.sleep(1)
        running.process.send_signal(signal.SIGCONT)
        job.wait_until(lambda: not any(state_of(pid) == "T" for pid in everybody))
    assert saved_by(running, directory) == undisturbed(), "other bytes"
    assert not [e for e in running.events if e["event"] == "lost"], running.events


def stop_and_go_on(terminal):
    """Ctrl-Z, and fg when all stand still. The terminal tells the launcher alone: its children are in
    process groups of their own."""
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
                                           steps=4000))
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
        running.process.send_signal(signal.SIGCONT)  # as shells do

    after(running, end, code=143)


def server_that_stands_still_for_a_while_is_waited_for():
    """As under a debugger: longer than any time-out of the transport."""
    jobs = [training(f"still-{fabric}", "--workers", 2, "--fabric", fabric)
            for fabric in ("shm", "tcp")]
    for running, _ in jobs:
        running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    servers = [running.pid_of("server", 0) for running, _ in jobs]
    for server in servers:
        os.kill(server, signal.SIGSTOP)
    time.sleep(15)
    for server in servers:
        os.kill(server, signal.SIGCONT)
    for running, directory in jobs:
        assert saved_by(running, directory) == undisturbed(), "other bytes"
        assert not [e for e in running.events if e["event"] == "lost"], running.events


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
        for who in "server 0", "worker 0":
            assert re.match(rf"step \d+ of {FOR_EVER}, it waits for ", said[who]), said
    finally:
        after(running, lambda: running.process.send_signal(signal.SIGINT), code=130)


def server_without_a_job_answers_on_stderr():
    server = job.Job("server", "--fabric", "shm")
    try:
        assert "listening" in server.process.stdout.readline()
        server.process.send_signal(signal.SIGUSR1)
        assert server.process.stderr.readline() == (
            "tern server 0: no job yet, it waits for a worker\n")
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
    """A pipe that is full keeps who writes to it from doing anything else."""
    directory = job.SCRATCH / "unread"
    ours, theirs = os.pipe()
    words = [job.TERN, "train", *map(str, job.small("--save", directory, steps=FOR_EVER)), "--json"]
    with subprocess.Popen(words, stdout=theirs, stderr=theirs) as running:
        while b'"progress"' not in os.read(ours, 65536):
            pass
        # Its own open file: what does not block here must block there.
        filler = os.open(f"/proc/self/fd/{theirs}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(filler, b"x")
        time.sleep(1)  # until it has something to say
        running.terminate()
        try:
            assert running.wait(60) == 143
        finally:
            running.kill()
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"]
    for fd in ours, theirs, filler:
        os.close(fd)


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
    worker_that_comes_back_too_late_is_told_and_ends_over_shm,
    worker_that_comes_back_too_late_is_told_and_ends_over_tcp,
    job_whose_last_worker_hangs_ends,
    worker_that_dies_before_the_others_have_joined_makes_room,
    workers_by_hand_go_on_alone,
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
    killed_launcher_leaves_nobody,
    stopped_worker_does_not_keep_the_others_from_ending,
    stopped_launcher_stops_the_job_which_goes_on_with_it,
    keys_at_a_terminal_stop_the_job_which_goes_on_with_fg,
    ctrl_c_after_fg_saves_and_leaves_nobody,
    stopped_job_can_be_ended,
    server_that_stands_still_for_a_while_is_waited_for,
    everybody_answers_the_question_for_the_status,
    server_without_a_job_answers_on_stderr,
    question_before_the_children_are_ready_ends_nobody,
    job_that_is_ended_while_its_workers_start_says_how_far_it_was,
    job_whose_output_nobody_reads_ends_when_it_is_asked,
])
