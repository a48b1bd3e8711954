#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tern run` as one of several that a foreign launcher has started. The launcher is only its variables in the
environment here; launchers.py has real ones.

usage: ranks.py TERN
"""
import os
import re
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from netns import two_hosts  # noqa: E402
from running import FOR_EVER, undisturbed  # noqa: E402

job.use(sys.argv[1])
LIMIT_S = 60
FOREIGN = re.compile(r"SLURM_|OMPI_|PMIX?_|TORCHELASTIC_|MASTER_|(LOCAL_)?(RANK|WORLD_SIZE)$|TERN_JOB$")
for variable in [name for name in os.environ if FOREIGN.match(name)]:
    del os.environ[variable]  # this test may be run by such a launcher itself

LAUNCHERS = {
    "torchrun": {"RANK": "{rank}", "WORLD_SIZE": "{size}", "LOCAL_WORLD_SIZE": "{size}",
                 "TORCHELASTIC_RUN_ID": "{name}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "{size}",
                 "OMPI_COMM_WORLD_LOCAL_SIZE": "{size}", "PMIX_NAMESPACE": "{name}"},
    "PMI": {"PMI_RANK": "{rank}", "PMI_SIZE": "{size}", "MPI_LOCALNRANKS": "{size}"},
    "Slurm": {"SLURM_PROCID": "{rank}", "SLURM_NTASKS": "{size}", "SLURM_JOB_ID": "{name}", "SLURM_STEP_ID": "0",
              "SLURM_STEP_NUM_NODES": "1"},
    "the environment": {"RANK": "{rank}", "WORLD_SIZE": "{size}", "LOCAL_WORLD_SIZE": "{size}"},
}


def variables(launcher, rank, size):
    return {name: value.format(rank=rank, size=size, name=os.getpid())
            for name, value in LAUNCHERS[launcher].items()}


def folder(name):
    path = job.SCRATCH / name
    path.mkdir()
    return path


@contextmanager
def ranks(count, *options, program, launcher="the environment", first=0, prefixes=None):
    """Starts ranks `first` to `count` - 1, and kills in the end what is left of them. `prefixes`: for each rank the
    beginning of a command that runs it on a host of its own."""
    running = []
    try:
        for rank in range(first, count):
            with job.environment(**variables(launcher, rank, count)):
                running.append(job.Job("run", *options, "--json", "--", *program,
                                       prefix=prefixes[rank] if prefixes else ()))
        yield running
    finally:
        for one in running:
            one.kill()


def shell(script):
    return ["sh", "-c", script]


def worker(directory, *more, steps=job.enough(4000)):
    """A program that runs `tern worker`, with the job of running.training()."""
    words = [job.TERN, "worker", *job.small("--slots", 5, "--save", directory, *more, steps=steps)]
    return shell("exec " + " ".join(map(str, words)) +
                 ' --join "$TERN_JOIN" --index "$TERN_INDEX" --workers "$TERN_WORKERS"')


def end(one, code):
    one.end(LIMIT_S)
    assert one.code == code, f"exit code {one.code}, expected {code}\n{one.error}\n{one.lines[-5:]}"
    return one


def cause(one):
    """The last line on stderr."""
    return one.error.splitlines()[-1]


def output(one):
    return [e["text"] for e in one.events if e["event"] == "output"]


def at_work(one):
    one.wait_event(lambda e: e["event"] == "output" and re.search(r"step \d+/", e["text"]))


def saved(directory):
    files = list(directory.iterdir())
    assert [f.name for f in files] == ["model.safetensors"], files
    return files[0].read_bytes()


# ---- the place in the environment --------------------------------------------------------

def each_launcher_gives_rank_and_size():
    """The ranks meet in the directory that is made for this user."""
    for launcher in LAUNCHERS:
        with job.environment(TERN_JOB=f"ranks-{os.getpid()}"), ranks(
                3, program=shell('echo "$TERN_INDEX of $TERN_WORKERS"'), launcher=launcher) as running:
            for rank in 2, 1, 0:
                # Rank 0 has the servers, and nobody has joined them.
                assert output(end(running[rank], 0 if rank else 1)) == [f"{rank} of 3"], running[rank].lines
        start = next(e for e in running[0].events if e["event"] == "start")
        assert start["workers"] == 3 and f"started by {launcher} (" in start["text"], start


def place_of(*options, **environment):
    """What a process with these variables takes for its place, in words."""
    with job.environment(**environment):
        told = job.finish("run", *options, "--json", "--", "true", code=1)
    text = next(e["text"] for e in told.events if e["event"] == "start")
    return re.sub(r".*, (?=\d+ worker)", "", text)


def innermost_launcher_counts():
    """mpirun in an allocation starts its daemons by srun, one for each host; so does one who starts torchrun."""
    slurm = variables("Slurm", 0, 2)
    mpi = variables("Open MPI", 0, 1)
    assert place_of(**slurm, **mpi) == "1 worker"
    torch = variables("torchrun", 0, 1)
    assert place_of(**slurm, **variables("Open MPI", 0, 2), **torch) == "1 worker"


def shell_in_an_allocation_is_no_rank():
    inside = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    assert place_of("--workers", 2, **inside) == "2 workers"
    assert place_of("--workers", 2, **inside, SLURM_STEP_ID="4294967290") == "2 workers"  # salloc's shell


def the_only_rank_starts_whole_jobs():
    for launcher in LAUNCHERS:
        assert place_of("--workers", 2, "--rendezvous", job.SCRATCH, **variables(launcher, 0, 1)) == "2 workers"
    assert place_of("--workers", 2, "--alone", **variables("Slurm", 1, 3)) == "2 workers"


def refused(environment, *options, says):
    with job.environment(**environment):
        job.refused("run", *options, "--", "true", says=["tern run: ", *says])


def wrong_variables_are_refused_by_name():
    refused({"OMPI_COMM_WORLD_RANK": "1"}, says=["OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_SIZE is not"])
    refused({"WORLD_SIZE": "2"}, says=["WORLD_SIZE is set", "RANK is not", "--alone"])
    refused({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, says=["SLURM_PROCID is set", "SLURM_NTASKS is not"])
    refused(variables("PMI", 0, 2), says=["PMI", "TERN_JOB", "--rendezvous DIR"])
    refused(variables("the environment", 0, 2), says=["the environment", "TERN_JOB", "--rendezvous DIR"])
    # Two mpiruns in one script of sbatch have the same number of the job; in steps of srun, two numbers of the step.
    script = {**variables("PMI", 0, 2), "SLURM_JOB_ID": "7"}
    for step in {}, {"SLURM_STEP_ID": "4294967291"}:
        refused({**script, **step}, says=["PMI", "TERN_JOB", "--rendezvous DIR"])
    refused({**script, "SLURM_STEP_ID": "0"}, "--fabric", "shm", "--server-device", "none", says=["--server-device"])
    for wrong in "two", "-1", "1.5", " 1", "99999999999999999999":
        refused({"PMI_RANK": wrong, "PMI_SIZE": "2"}, says=[f"PMI_RANK={wrong} ", "must be a whole number"])
    for wrong in "0", "4097":
        refused({"RANK": "0", "WORLD_SIZE": wrong}, says=[f"WORLD_SIZE={wrong} ", "1 to 4096"])
    refused({"RANK": "2", "WORLD_SIZE": "2"}, says=["RANK=2 and WORLD_SIZE=2", "must be below"])
    refused({**variables("Slurm", 1, 2), "RANK": "0", "WORLD_SIZE": "2"},
            says=["RANK=0 and WORLD_SIZE=2", "contradict SLURM_PROCID=1 and SLURM_NTASKS=2"])


def wrong_options_are_refused():
    place = variables("Open MPI", 0, 2)
    apart = {**place, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    refused(place, "--workers", 3, says=["--workers 3", "OMPI_COMM_WORLD_SIZE=2", "--alone"])
    refused(place, "--replicas", 2, "--snapshots", job.SCRATCH, says=["--replicas 2: OMPI_COMM_WORLD_SIZE=2", "--alone"])
    refused(apart, says=["several hosts", "--rendezvous DIR", "--port"])
    refused(apart, "--rendezvous", job.SCRATCH, says=["several hosts", "--secret-file", "--insecure"])
    refused(apart, "--rendezvous", job.SCRATCH, "--fabric", "shm", "--insecure", says=["--fabric shm", "one host"])
    refused(apart, "--port", 7000, "--insecure", says=["--port", "MASTER_ADDR"])
    refused(place, "--port", 7000, says=["--port", "--secret-file", "--insecure"])
    refused(place, "--port", 65535, "--servers", 2, "--insecure", says=["--port 65535", "2 servers"])
    refused(place, "--port", 7000, "--rendezvous", job.SCRATCH, says=["--port and --rendezvous"])
    refused(place, "--port", 7000, "--listen", "127.0.0.1:0", says=["--port and --listen"])
    refused(place, "--port", 7000, "--fabric", "shm", "--insecure", says=["--port", "tcp or auto, not shm"])
    refused(place, "--rendezvous", job.SCRATCH / "none", says=["--rendezvous", "No such file"])
    file = job.SCRATCH / "file"
    file.write_text("")
    refused(place, "--rendezvous", file, says=["--rendezvous", "must be a directory"])
    for words in ["--port", 7000], ["--rendezvous", job.SCRATCH], ["--wait", 7]:
        refused({}, *words, says=[words[0], "OMPI_COMM_WORLD_RANK"])


# ---- jobs --------------------------------------------------------------------------------

def ranks_train_to_the_same_bytes_as_one_process():
    reference = job.SCRATCH / "same"
    job.train(*job.small("--slots", 5, "--save", reference, "--workers", 2))
    meeting = folder("meeting")
    for fabric in "auto", "tcp":
        directory = job.SCRATCH / f"same-{fabric}"
        with ranks(3, "--servers", 2, "--fabric", fabric, "--rendezvous", meeting,
                   program=worker(directory, "--servers", 2, steps=40)) as running:
            for one in running:
                assert end(one, 0).events[-1]["event"] == "done", one.lines[-5:]
        assert saved(directory) == saved(reference), "other bytes"
        assert not list(meeting.iterdir()), "files are left"


def ranks_meet_at_a_port():
    secret = job.SCRATCH / "secret"
    secret.write_text("a secret of more than 16 bytes\n")
    secret.chmod(0o600)
    directory = job.SCRATCH / "port"
    # Ports below those that the system gives to others.
    port = 20000 + os.getpid() % 10000
    options = ["--servers", 2, "--port", port, "--secret-file", secret]
    with ranks(2, *options, program=worker(directory, "--servers", 2, steps=40), first=1) as (late,):
        waits = late.wait_event(lambda e: e["event"] == "note")["text"]
        assert waits == f"rank 1 of 2 waits for the servers of rank 0 at 127.0.0.1:{port},127.0.0.1:{port + 1}", waits
        with job.environment(**variables("the environment", 0, 2)):
            zero = job.Job("run", *options, "--json", "--", *worker(directory, "--servers", 2, steps=40))
        end(zero, 0)
        end(late, 0)
    assert len(saved(directory)) > 0


def hosts_that_share_a_directory_train_together():
    secret = job.SCRATCH / "hosts-secret"
    secret.write_text("a secret of more than 16 bytes\n")
    secret.chmod(0o600)
    meeting, directory = folder("hosts"), job.SCRATCH / "hosts-saved"
    apart = {**LAUNCHERS["Open MPI"], "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    LAUNCHERS["several hosts"] = apart
    with two_hosts() as hosts:
        for more in [], ["--listen", "0.0.0.0:0"]:
            with ranks(2, "--servers", 2, "--fabric", "tcp", "--rendezvous", meeting, "--secret-file", secret, *more,
                       program=worker(directory, "--servers", 2, "--overwrite", steps=40), launcher="several hosts",
                       prefixes=[prefix for _, prefix in hosts]) as running:
                for one in running:
                    end(one, 0)
            joins = next(e["join"] for e in running[1].events if e["event"] == "start")
            assert re.fullmatch(r"(tcp://10\.7\.9\.1:\d+,?){2}", joins), joins
    assert len(saved(directory)) > 0


# ---- meeting -----------------------------------------------------------------------------

def file_of_an_earlier_run_is_never_taken():
    meeting, directory = folder("stale"), job.SCRATCH / "stale-saved"
    with ranks(2, "--rendezvous", meeting, program=shell("sleep 1000")) as (zero, one):
        one.wait_event(lambda e: e["event"] == "start")
        zero.process.kill()
        zero.process.wait()
        one.process.kill()
        one.process.wait()
    assert [f.name for f in meeting.glob("*.servers")], "the earlier run has left no file"
    program = worker(directory, steps=40)
    with ranks(2, "--rendezvous", meeting, program=program, first=1) as (late,):
        waits = late.wait_event(lambda e: e["event"] == "note")["text"]
        assert waits == f"rank 1 of 2 waits for rank 0 to say in {meeting} where its servers are", waits
        with job.environment(**variables("the environment", 0, 2)):
            zero = job.Job("run", "--rendezvous", meeting, "--json", "--", *program)
        end(zero, 0)
        end(late, 0)
    assert not list(meeting.iterdir()), list(meeting.iterdir())


def rank_gives_up_waiting():
    meeting = folder("waits")
    with ranks(2, "--rendezvous", meeting, "--wait", 1, program=["true"], first=1) as (one,):
        text = cause(end(one, 1))
        assert "rank 0 has not said within 1 s (--wait)" in text and str(meeting) in text, text
    assert not list(meeting.iterdir()), list(meeting.iterdir())


def file_that_others_can_write_is_refused():
    meeting = folder("open")
    (meeting / "tern-RANK.of-2.servers").write_text("{}")
    (meeting / "tern-RANK.of-2.servers").chmod(0o644)
    with ranks(2, "--rendezvous", meeting, program=["true"], first=1) as (one,):
        text = cause(end(one, 1))
        assert "must be a file of user" in text and "0600" in text, text


def secret_is_handed_on_to_this_user_only():
    meeting = folder("modes")
    with ranks(2, "--rendezvous", meeting, program=shell('stat -L -c %a "$TERN_SECRET_FILE"; sleep 1000')) as running:
        for one in running:
            one.wait_event(lambda e: e["event"] == "output" and e["text"] == "600")
        modes = {f.name: oct(f.stat().st_mode & 0o777) for f in meeting.iterdir()}
        assert modes == {"tern-RANK.of-2.servers": "0o600"}, modes


def secret_of_a_file_is_not_published():
    meeting, secret = folder("own-secret"), job.SCRATCH / "own-secret-file"
    secret.write_text("a secret of more than 16 bytes\n")
    secret.chmod(0o600)
    with ranks(2, "--rendezvous", meeting, "--secret-file", secret, program=shell(
            'cat "$TERN_SECRET_FILE"; echo; sleep 1000')) as running:
        for one in running:
            one.wait_event(lambda e: e["event"] == "output" and e["text"] == "a secret of more than 16 bytes")
        text = (meeting / "tern-RANK.of-2.servers").read_text()
        assert "tokens" in text and "secret" not in text, text


def files_of_others_stop_nobody():
    """Whoever can write to the directory can put FIFOs there, which block who opens them."""
    meeting, directory = folder("fifos"), job.SCRATCH / "fifos-saved"
    servers = meeting / "tern-RANK.of-2.servers"
    os.mkfifo(servers, 0o600)
    with ranks(2, "--rendezvous", meeting, program=["true"], first=1) as (one,):
        assert "must be a file of user" in cause(end(one, 1)), one.error
    servers.unlink()
    os.mkfifo(meeting / "tern-RANK.of-2-1-0.end", 0o600)
    with ranks(2, "--rendezvous", meeting, program=worker(directory, steps=40)) as running:
        for one in running:
            end(one, 0)
    assert not list(meeting.iterdir()), list(meeting.iterdir())


def two_ranks_0_notice_each_other():
    meeting = folder("twins")
    with job.environment(**variables("the environment", 0, 2)):
        twins = [job.Job("run", "--rendezvous", meeting, "--json", "--", "sleep", "1000")]
        twins[0].wait_event(lambda e: e["event"] == "start")
        twins.append(job.Job("run", "--rendezvous", meeting, "--json", "--", "sleep", "1000"))
    try:
        text = cause(end(twins[0], 1))
        assert "another process has replaced" in text and "two processes with RANK=0" in text, text
    finally:
        for twin in twins:
            twin.kill()


# ---- ends --------------------------------------------------------------------------------

def rank_whose_program_fails_ends_a_job_that_has_not_begun():
    meeting = folder("early")
    program = worker(job.SCRATCH / "early-saved")
    program[2] = "[ $TERN_INDEX = 0 ] || exit 3; " + program[2]
    with ranks(2, "--rendezvous", meeting, program=program) as (zero, one):
        assert cause(end(one, 1)) == "tern run: worker 1 exited with code 3", one.error
        assert cause(end(zero, 1)) == "tern run: the steps could not begin: worker 1 exited with code 3", zero.error
    assert not list(meeting.iterdir()), list(meeting.iterdir())


def rank_that_is_interrupted_ends_a_job_that_has_not_begun():
    program = worker(job.SCRATCH / "unready-saved")
    program[2] = "[ $TERN_INDEX = 0 ] || { echo here; exec sleep 1000; }; " + program[2]
    with ranks(2, "--rendezvous", folder("unready"), program=program) as (zero, one):
        one.wait_event(lambda e: e["event"] == "output" and e["text"] == "here")
        one.process.terminate()
        end(one, 143)
        assert cause(end(zero, 1)) == "tern run: the steps could not begin: rank 1 was ended by SIGTERM", zero.error


def lost_rank_costs_nothing():
    """Whether it is the one with the servers or another."""
    for lost in 1, 0:
        directory = job.SCRATCH / f"lost-{lost}"
        with ranks(2, "--rendezvous", folder(f"lost-{lost}-meeting"), program=worker(directory)) as running:
            at_work(running[0])
            os.kill(running[lost].pid_of("worker", lost), signal.SIGKILL)
            text = cause(end(running[lost], 1))
            assert text == f"tern run: worker {lost} was killed by signal 9 (Killed)", text
            end(running[1 - lost], 0)
        told = [e for e in running[0].events if e["event"] == "lost"]
        assert [e["worker"] for e in told] == [lost], running[0].lines
        assert saved(directory) == undisturbed(), "other bytes"


def killed_rank_0_ends_all():
    with ranks(3, "--rendezvous", folder("zero"), program=worker(job.SCRATCH / "zero-saved", steps=FOR_EVER)) as (
            zero, *others):
        at_work(zero)
        zero.process.kill()
        for i, one in enumerate(others, 1):
            assert re.match(rf"tern run: worker {i} exited with code 1", cause(end(one, 1))), one.error
    job.wait_until(lambda: not zero.processes())


def killed_rank_costs_nothing():
    directory = job.SCRATCH / "rank"
    with ranks(2, "--rendezvous", folder("rank-meeting"), program=worker(directory)) as (zero, one):
        at_work(zero)
        one.process.kill()
        end(zero, 0)
    assert saved(directory) == undisturbed(), "other bytes"
    job.wait_until(lambda: not one.processes())


def interrupted_ranks_save_once():
    for number in signal.SIGTERM, signal.SIGINT:
        directory = job.SCRATCH / f"interrupted-{number}"
        with ranks(2, "--rendezvous", folder(f"interrupted-{number}-meeting"),
                   program=worker(directory, steps=FOR_EVER)) as running:
            at_work(running[0])
            for one in running:
                one.process.send_signal(number)
            for one in running:
                name = signal.Signals(number).name
                assert cause(end(one, 128 + number)).startswith(f"tern run: ended by {name}: "), one.error
        assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], list(directory.iterdir())


def rank_0_leaves_its_servers_to_the_others_for_their_end():
    """The program of rank 0 is gone at once, and that of rank 1 has to save. In a session of its own, rank 0's worker
    does not get the signal itself: it might be chosen to save."""
    port = ["--port", 30000 + os.getpid() % 2000, "--insecure"]
    for name, options in ("left", ["--rendezvous", folder("left-meeting")]), ("left-port", port):
        directory = job.SCRATCH / name
        program = worker(directory, steps=FOR_EVER)
        words = program[2].removeprefix("exec ")
        program[2] = f'[ $TERN_INDEX = 0 ] || exec {words}\nsetsid {words} & trap "kill -9 $!; exit" TERM; wait'
        with ranks(2, *options, program=program) as running:
            at_work(running[0])
            at_work(running[0])  # a later step: at the first one, rank 1 need not have parameters yet
            for one in running:
                one.process.terminate()
            for one in running:
                end(one, 143)
        assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], list(directory.iterdir())


def directory_is_not_needed_any_more_when_all_have_joined():
    meeting, directory = folder("removed"), job.SCRATCH / "removed-saved"
    with ranks(2, "--rendezvous", meeting, program=worker(directory, steps=FOR_EVER)) as (zero, one):
        at_work(zero)
        shutil.rmtree(meeting)
        note = zero.wait_event(lambda e: e["event"] == "note")["text"]
        assert str(meeting) in note and "rank 0 cannot see which ranks have ended" in note, note
        for rank in zero, one:
            rank.process.terminate()
        for rank in zero, one:
            end(rank, 143)
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], list(directory.iterdir())


def rank_ends_with_its_launcher_but_not_with_a_shell():
    """Somebody who sets RANK by hand may start the rank from a shell of ssh, which does not stay."""
    meeting = folder("orphans")
    for launcher, wait, text in (("Open MPI", 60, "ended by SIGTERM"),
                                 ("the environment", 3, "rank 0 has not said within 3 s")):
        with ranks(2, "--rendezvous", meeting, "--wait", wait, program=["true"], first=1, launcher=launcher,
                   prefixes=[(), ("sh", "-c", '"$@" & wait', "sh")]) as (shell_of_rank,):
            shell_of_rank.wait_event(lambda e: e["event"] == "note")
            shell_of_rank.process.kill()
            assert text in cause(end(shell_of_rank, -signal.SIGKILL)), shell_of_rank.error
        assert not list(meeting.iterdir()), list(meeting.iterdir())


def rank_that_waits_can_be_interrupted():
    meeting = folder("asked")
    with ranks(2, "--rendezvous", meeting, program=["true"], first=1) as (one,):
        one.wait_event(lambda e: e["event"] == "note")
        one.process.terminate()
        assert "ended by SIGTERM" in cause(end(one, 143)), one.error
    assert not list(meeting.iterdir()), list(meeting.iterdir())


tap.run([
    each_launcher_gives_rank_and_size,
    innermost_launcher_counts,
    shell_in_an_allocation_is_no_rank,
    the_only_rank_starts_whole_jobs,
    wrong_variables_are_refused_by_name,
    wrong_options_are_refused,
    ranks_train_to_the_same_bytes_as_one_process,
    ranks_meet_at_a_port,
    hosts_that_share_a_directory_train_together,
    file_of_an_earlier_run_is_never_taken,
    rank_gives_up_waiting,
    file_that_others_can_write_is_refused,
    secret_is_handed_on_to_this_user_only,
    secret_of_a_file_is_not_published,
    files_of_others_stop_nobody,
    two_ranks_0_notice_each_other,
    rank_whose_program_fails_ends_a_job_that_has_not_begun,
    rank_that_is_interrupted_ends_a_job_that_has_not_begun,
    lost_rank_costs_nothing,
    killed_rank_0_ends_all,
    killed_rank_costs_nothing,
    interrupted_ranks_save_once,
    rank_0_leaves_its_servers_to_the_others_for_their_end,
    directory_is_not_needed_any_more_when_all_have_joined,
    rank_ends_with_its_launcher_but_not_with_a_shell,
    rank_that_waits_can_be_interrupted,
])
