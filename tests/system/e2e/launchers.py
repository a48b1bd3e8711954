#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tern run` under launchers that people have: Open MPI's mpirun, torchrun, and srun of a Slurm cluster of two
hosts (namespaces of this machine; needs root). ranks.py has what needs no launcher.

usage: launchers.py TERN
"""
import contextlib
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "harness"
sys.path.insert(0, str(HARNESS))
import tap  # noqa: E402
import job  # noqa: E402
from running import FOR_EVER  # noqa: E402

job.use(sys.argv[1])
LIMIT_S = 120
SECRET = job.SCRATCH / "secret"
SECRET.write_text("a secret of more than 16 bytes\n")
SECRET.chmod(0o600)


def need(program, package):
    if not shutil.which(program):
        raise tap.Skip(f"there is no {program}: the package {package} is not installed")


class Launched:
    """A launcher that runs, with all that it has started. Its output is one text."""

    def __init__(self, *command, **environment):
        self.mark = uuid.uuid4().hex
        self.log = job.SCRATCH / f"log-{self.mark}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, **environment, job.MARK: self.mark})

    def said(self):
        return self.log.read_text()

    def wait_text(self, pattern):
        end = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.said()):
            assert self.process.poll() is None and time.monotonic() < end, f"no {pattern!r}: {self.said()}"
            time.sleep(0.05)

    def end(self, is_code):
        """Waits for the end, which must leave no process."""
        try:
            code = self.process.wait(LIMIT_S)
            job.wait_until(lambda: not job.marked(self.mark))
        finally:
            self.kill()
        assert is_code(code), f"exit code {code}\n{self.said()}"
        return self.said()

    def kill(self):
        for pid in job.marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def well(code):
    return code == 0


def badly(code):
    return code != 0


def run(*options, program):
    return [job.TERN, "run", *options, "--", "sh", "-c", program]


def worker(directory, *more, steps=40):
    words = [job.TERN, "worker", *job.small("--slots", 5, "--save", directory, *more, steps=steps)]
    return ("exec " + " ".join(map(str, words)) +
            ' --join "$TERN_JOIN" --index "$TERN_INDEX" --workers "$TERN_WORKERS"')


@functools.cache
def reference():
    job.train(*job.small("--slots", 5, "--save", job.SCRATCH / "reference", steps=40))
    return (job.SCRATCH / "reference" / "model.safetensors").read_bytes()


def check_saved(directory):
    assert [f.name for f in directory.iterdir()] == ["model.safetensors"], list(directory.iterdir())
    assert (directory / "model.safetensors").read_bytes() == reference(), "other bytes"


# ---- Open MPI ----------------------------------------------------------------------------

def mpirun(count, *words, more=()):
    need("mpirun", "openmpi-bin")
    return Launched("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", count, *more, *words)


def mpirun_trains():
    directory = job.SCRATCH / "mpi"
    text = mpirun(3, *run("--servers", 2, program=worker(directory, "--servers", 2))).end(well)
    assert "3 workers started by Open MPI (OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=3)" in text, text
    check_saved(directory)


def mpirun_of_one_process_starts_all_workers():
    directory = job.SCRATCH / "mpi-one"
    text = mpirun(1, *run("--workers", 2, program=worker(directory))).end(well)
    assert "2 workers\n" in text, text
    check_saved(directory)


def mpirun_fails_with_a_rank():
    program = "[ $TERN_INDEX = 0 ] || exit 3; " + worker(job.SCRATCH / "mpi-fails")
    text = mpirun(2, *run(program=program)).end(badly)
    assert "worker 1 exited with code 3" in text, text


def mpirun_that_is_asked_to_end_saves():
    """Open MPI kills after one second, unless it is told otherwise."""
    directory = job.SCRATCH / "mpi-asked"
    running = mpirun(2, *run(program=worker(directory, steps=FOR_EVER)),
                     more=["--mca", "odls_base_sigkill_timeout", 8])
    running.wait_text(r"step \d+/")
    running.process.terminate()
    running.end(badly)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], running.said()


def killed_mpirun_leaves_nothing():
    running = mpirun(2, *run(program=worker(job.SCRATCH / "mpi-killed", steps=FOR_EVER)))
    running.wait_text(r"step \d+/")
    running.process.kill()
    running.end(badly)


# ---- torchrun ----------------------------------------------------------------------------

def torchrun(count, *words):
    need("torchrun", "python3-torch")
    # -r and -t: torchrun 1.13 fails without them under Python 3.11.
    return Launched("torchrun", "--standalone", "--no_python", "-r", 1, "-t", 1, "--log_dir", job.SCRATCH / "torch-log",
                    "--nproc_per_node", count, *words)


def torchrun_trains():
    directory = job.SCRATCH / "torch"
    text = torchrun(2, *run("--servers", 2, program=worker(directory, "--servers", 2))).end(well)
    assert "2 workers started by torchrun (RANK=0, WORLD_SIZE=2)" in text, text
    check_saved(directory)


def torchrun_fails_with_a_rank():
    program = "[ $TERN_INDEX = 0 ] || exit 3; " + worker(job.SCRATCH / "torch-fails")
    text = torchrun(2, *run(program=program)).end(badly)
    assert "worker 1 exited with code 3" in text, text


# ---- Slurm -------------------------------------------------------------------------------

class Cluster:
    """A Slurm cluster of two hosts, which is started by the first case that needs it."""

    def __init__(self):
        self.process, self.why_not = None, None
        self.dir = job.SCRATCH / "slurm"

    def start(self):
        for program, package in (("slurmctld", "slurmctld"), ("slurmd", "slurmd"), ("srun", "slurm-client")):
            need(program, package)
        if os.geteuid() != 0:
            raise tap.Skip("a Slurm cluster in namespaces needs root")
        if self.why_not:
            raise tap.Skip(self.why_not)
        if self.process:
            return
        probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True,
                               check=False)
        if probe.returncode:
            self.why_not = f"no namespaces here: {probe.stderr.strip()}"
            raise tap.Skip(self.why_not)
        self.process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", HARNESS / "slurm.sh", self.dir], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout.readline() == "ready\n", self.logs()

    def logs(self):
        return "\n".join(f.read_text() for f in self.dir.glob("*.out")) + self.process.stderr.read()

    def launched(self, *words, **environment):
        self.start()
        return Launched("nsenter", "--target", self.process.pid, "--net", "--uts", "--mount", *words,
                        SLURM_CONF=str(self.dir / "slurm.conf"), **environment)

    def end(self):
        if self.process:
            with contextlib.suppress(BrokenPipeError):
                self.process.communicate("")


cluster = Cluster()


def meeting(name):
    path = job.SCRATCH / name
    path.mkdir()
    return ["--rendezvous", path, "--secret-file", SECRET]


def srun_trains_on_two_hosts():
    directory = job.SCRATCH / "slurm-two"
    text = cluster.launched("srun", "-N2", "-n3", *run("--servers", 2, *meeting("slurm-meeting"),
                                                      program=worker(directory, "--servers", 2))).end(well)
    assert "3 workers started by Slurm (SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=3)" in text, text
    assert "auto://10.9.0.11:" in text and "(tcp 10.9.0.12:" in text, text
    check_saved(directory)
    assert not list((job.SCRATCH / "slurm-meeting").iterdir()), "files are left"


def srun_trains_at_a_port():
    directory = job.SCRATCH / "slurm-port"
    cluster.launched("srun", "-N2", "-n2", *run("--servers", 2, "--port", 7300, "--secret-file", SECRET,
                                                program=worker(directory, "--servers", 2)),
                     MASTER_ADDR="10.9.0.11").end(well)
    check_saved(directory)


def srun_on_one_host_needs_no_option():
    directory = job.SCRATCH / "slurm-one"
    cluster.launched("srun", "-N1", "-n2", *run(program=worker(directory))).end(well)
    check_saved(directory)


def srun_refuses_two_hosts_without_a_meeting():
    text = cluster.launched("srun", "-N2", "-n2", *run(program="true")).end(badly)
    assert "the ranks of Slurm may be on several hosts: give --rendezvous DIR" in text, text


def salloc_and_sbatch_start_one_job():
    """What runs there is no rank, although SLURM_NTASKS is 4."""
    for name, words in ("alloc", ["salloc", "-N2", "-n4"]), ("batch", ["sbatch", "--wait", "-N2", "-n4", "-o",
                                                                      job.SCRATCH / "batch.log", "--wrap"]):
        directory = job.SCRATCH / f"slurm-{name}"
        command = [str(word) for word in run("--workers", 2, program=worker(directory))]
        if name == "batch":
            command = [shlex.join(command)]
        cluster.launched(*words, *command).end(well)
        check_saved(directory)


def srun_fails_with_a_rank():
    program = "[ $TERN_INDEX = 0 ] || exit 3; " + worker(job.SCRATCH / "slurm-fails")
    text = cluster.launched("srun", "-N2", "-n2", *run(*meeting("slurm-fails-meeting"), program=program)).end(badly)
    assert "tern run: worker 1 exited with code 3" in text, text
    assert "tern run: the steps could not begin: worker 1 exited with code 3" in text, text


def cancelled_job_saves_once():
    directory = job.SCRATCH / "slurm-cancelled"
    running = cluster.launched("srun", "-N2", "-n2", *run(*meeting("slurm-cancelled-meeting"),
                                                          program=worker(directory, steps=FOR_EVER)))
    running.wait_text(r"step \d+/")
    cluster.launched("scancel", "--user=root").end(well)
    running.end(badly)
    job.wait_until(lambda: list(directory.iterdir()))
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], running.said()


def killed_rank_0_ends_the_others():
    running = cluster.launched("srun", "-N2", "-n2", *run(*meeting("slurm-killed-meeting"), program=worker(
        job.SCRATCH / "slurm-killed", steps=FOR_EVER)))
    running.wait_text(r"step \d+/")
    zero = [pid for pid in job.marked(running.mark) if Path(f"/proc/{pid}/comm").read_text() == "tern\n"
            and b"SLURM_PROCID=0" in Path(f"/proc/{pid}/environ").read_bytes()]
    assert len(zero) == 1, job.marked(running.mark)
    os.kill(zero[0], signal.SIGKILL)
    text = running.end(badly)
    assert re.search(r"tern run: worker 1 exited with code 1", text), text


try:
    tap.run([
        mpirun_trains,
        mpirun_of_one_process_starts_all_workers,
        mpirun_fails_with_a_rank,
        mpirun_that_is_asked_to_end_saves,
        killed_mpirun_leaves_nothing,
        torchrun_trains,
        torchrun_fails_with_a_rank,
        srun_trains_on_two_hosts,
        srun_trains_at_a_port,
        srun_on_one_host_needs_no_option,
        srun_refuses_two_hosts_without_a_meeting,
        salloc_and_sbatch_start_one_job,
        srun_fails_with_a_rank,
        cancelled_job_saves_once,
        killed_rank_0_ends_the_others,
    ])
finally:
    cluster.end()
