# SPDX-License-Identifier: Apache-2.0
"""Programs under `tern run --snapshots` whose servers, or last program, are killed: only these processes are started
again, and all others stay. If a program does not go back with its job, all are started again. The results have the
bytes of a job that nothing has happened to.

usage: in_place.py TERN FACTORISE [CASE...]
"""
import re
import signal
import sys

import frameworks
from jobs import SCRATCH, Process, tap
from launched import TORCH, command, job, launched


def servers_come_again(kind, fabric, *indices):
    with launched(f"servers-{kind}", kind=kind, fabric=fabric) as run:
        for number, index in enumerate(indices):
            text = run.comes_again(("server", index))
            pause = " in 1 s" if index in indices[:number] else ""
            assert re.search(rf"server {index} \(pid \d+\) was killed by signal 9 \(Killed\): it is started "
                             rf"again{pause}, and the job goes back to (snapshot step-\S+|its first step) \(restart "
                             r"\d, at most 3 in 10 minutes\)", text), text
        run.end()
        if kind != "c":
            assert run.said("from "), "no program was told that the job has gone back"


def servers_of_c_programs_come_again():
    servers_come_again("c", "shm", 1)


def servers_of_numpy_programs_come_again():
    servers_come_again("numpy", "tcp", 1, 1, 0)


def servers_of_torch_programs_come_again():
    if not TORCH:
        raise tap.Skip(frameworks.why_not("torch"))
    servers_come_again("torch", "auto", 0)


def last_program_comes_again():
    with launched("last", fabric="shm", workers=1) as run:
        for _ in range(2):
            text = run.comes_again(("worker", 0))
            assert "goes on from memory, or from snapshot step-" in text, text
        run.end()


def server_and_programs_come_again_at_once():
    with launched("both") as run:
        run.comes_again(("server", 1), ("worker", 1))
        run.end()
    with launched("all") as run:  # nobody is left who could stay
        victims = [("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
        before = run.kill(*victims)
        run.comes(before, *victims)
        run.end()


def second_server_falls_while_the_job_goes_back():
    with launched("second") as run:
        before = run.kill(("server", 1))
        run.comes(before, ("server", 1))
        run.kill(("server", 0))
        assert [run.wait("restart")["who"] for _ in range(2)] == ["server 1", "server 0"], run.restarts()
        run.stays(before, ("server", 0), ("server", 1))
        run.end()
        assert len(run.restarts()) == 2, run.restarts()


def server_that_was_asked_to_end_comes_again():
    with launched("asked") as run:
        text = run.comes_again(("server", 0), how=signal.SIGTERM)
        assert "exited with status 75: it is started again" in text, text
        run.end()


def known_secret(name):
    """The file with a secret that the user gives the job."""
    secret = SCRATCH / f"{name}-secret"
    secret.write_text("a secret of the job that its user knows\n")
    secret.chmod(0o600)
    return secret


def join_of(run):
    return next(e["join"] for e in run.running.events if e["event"] == "start")


def removed_server_stays_away_when_all_others_come_again():
    """Only the launcher knows then which servers the job has."""
    secret = known_secret("removed")
    with launched("removed", "--secret-file", secret, servers=3) as run:
        job.finish("drain", "--join", join_of(run), "--server", 2, "--secret-file", secret)
        job.wait_until(lambda: ("server", 2) not in run.pids())
        before = run.kill(*run.pids())
        run.comes(before, *before)
        run.makes_new_steps()
        assert ("server", 2) not in run.pids(), run.pids()
        run.end()


def program_that_a_user_has_added_goes_on_alone():
    """The launcher's only program is killed, and comes again in a job that has not gone back."""
    secret = known_secret("added")
    with launched("added", "--secret-file", secret, workers=1) as run:
        join = join_of(run)
        added = Process(*command("numpy", run.out), TERN_JOIN=join, TERN_WORKERS=1, TERN_INDEX=1, TERN_SERVER_WAIT=60,
                        TERN_SECRET_FILE=secret, OMP_NUM_THREADS=1, OPENBLAS_NUM_THREADS=1, MKL_NUM_THREADS=1, BACK_SLOW=1)
        try:
            assert "2 of 4 slots are its" in run.wait("came")["text"]
            before = run.kill(("worker", 0))
            text = run.wait("lost")["text"]
            assert "the job goes on without it, and it is started again" in text, text
            run.wait("came")
            run.stays(before, ("worker", 0))
            run.end()
            added.end()
        finally:
            added.kill()
        assert not run.restarts() and not run.said("goes back"), run.restarts()


def program_in_async_mode_hears_nothing_of_going_back():
    program = """if True:
        import pytern
        with pytern.Session(steps=3, mode="async") as session:
            w = session.tensor("w", 2)
            for slot in session.slots():
                with slot:
                    slot.push(w, [1.0, 2.0])
                    slot.loss(0)
    """
    run = job.finish("run", "--json", "--snapshots", SCRATCH / "async.snapshots", "--", sys.executable, "-c", program)
    assert not any(e["event"] == "note" and "does not go back" in e["text"] for e in run.events), run.events


def programs_that_do_not_go_back_are_started_again():
    """Their sessions have server_wait=0, or the user's TERN_SERVER_WAIT is 0."""
    for name in "BACK_WAIT", "TERN_SERVER_WAIT":
        with launched(name, **{name: "0"}) as run:
            assert run.said("a program does not go back with its job") == (name == "BACK_WAIT")
            run.all_come_again(run.kill(("server", 1)), r"server 1 \(pid \d+\) was killed by signal 9")
            run.end()


def programs_that_end_instead_are_started_again():
    with launched("exit", BACK_EXIT="1") as run:
        run.all_come_again(run.kill(("server", 1)),
                           r"server 1 \(pid \d+\) was killed by signal 9 \(Killed\), and then worker \d exited with "
                           "code 3: all ")
        run.end()


def without_a_server_to_tell_the_programs_all_are_started_again():
    with launched("alone", fabric="shm", servers=1) as run:
        run.all_come_again(run.kill(("server", 0)), r"server 0 \(pid \d+\) was killed by signal 9 \(Killed\): all ")
        run.end()


def interrupted_job_takes_a_snapshot():
    for goes_back in False, True:
        with launched(f"interrupted-{goes_back}") as run:
            if goes_back:
                run.kill(("server", 1))
                run.wait("restart")
            run.running.process.send_signal(signal.SIGTERM)
            run.end(job.REQUEUE)


def too_many_restarts_end_the_job():
    with launched("too-many", "--restarts", 1, fabric="shm", workers=1) as run:
        run.comes_again(("worker", 0))
        run.kill(("worker", 0))
        run.end(1)
        assert re.search(r"worker 0 \(pid \d+\) was killed by signal 9", run.running.error.splitlines()[-1])


CASES = [servers_of_c_programs_come_again, servers_of_numpy_programs_come_again, servers_of_torch_programs_come_again,
         last_program_comes_again, server_and_programs_come_again_at_once, second_server_falls_while_the_job_goes_back,
         server_that_was_asked_to_end_comes_again, programs_that_do_not_go_back_are_started_again,
         programs_that_end_instead_are_started_again, without_a_server_to_tell_the_programs_all_are_started_again,
         interrupted_job_takes_a_snapshot, too_many_restarts_end_the_job, program_that_a_user_has_added_goes_on_alone,
         removed_server_stays_away_when_all_others_come_again, program_in_async_mode_hears_nothing_of_going_back]
tap.run([case for case in CASES if len(sys.argv) < 4 or case.__name__ in sys.argv[3:]])
