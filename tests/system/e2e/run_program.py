#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `tern run`: where a program finds its place in the job, what becomes of its output and of its exit
code, and that nothing that it has started survives the job. Where the program is `tern worker`, the job
saves the same bytes as `tern train` does.

usage: run_program.py TERN
"""
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from running import FOR_EVER, undisturbed  # noqa: E402

job.use(sys.argv[1])
PIECE = 8192  # a longer line is passed on in pieces of so many bytes
NOT_JOINED = "tern run: the job was not completed: no worker has joined its servers"


def finish(*args, code=None):
    """Runs `tern run`. Without a `code`, its program ends well and joins no server: then the job was not
    completed, and nothing else is wrong."""
    ended = job.finish("run", *args, code=1 if code is None else code)
    assert code is not None or cause(ended) == NOT_JOINED, ended.error
    return ended


def shell(script, *options, code=None):
    """Runs `tern run` with a shell script as the program."""
    return finish(*options, "--", "sh", "-c", script, code=code)


def python(script, *options, code=None):
    return finish(*options, "--", sys.executable, "-c", script, code=code)


def lines(ended, worker):
    """What worker has printed on stdout, in lines."""
    prefix = f"worker {worker}: "
    return [line[len(prefix):] for line in ended.lines if line.startswith(prefix)]


def cause(ended):
    """The last line on stderr."""
    return ended.error.splitlines()[-1]


def events(ended, name):
    return [e for e in ended.events if e["event"] == name]


# ---- the place of a worker ---------------------------------------------------------------

def each_worker_finds_its_place_in_the_environment():
    script = 'echo "$TERN_INDEX of $TERN_WORKERS"; echo "$TERN_JOIN"'
    ended = shell(script, "--servers", 2, "--workers", 3, "--fabric", "tcp")
    assert [lines(ended, i)[0] for i in range(3)] == ["0 of 3", "1 of 3", "2 of 3"], ended.lines
    joins = {lines(ended, i)[1] for i in range(3)}
    address = r"tcp://127\.0\.0\.1:\d+"
    assert len(joins) == 1 and re.fullmatch(f"{address},{address}", joins.pop()), ended.lines


def the_rest_of_the_environment_is_that_of_the_user():
    script = 'echo "$OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS $MINE"'
    with job.environment(MINE="kept", OMP_NUM_THREADS="3"):
        ended = shell(script, "--workers", 2)
    assert lines(ended, 0) == lines(ended, 1) == ["3 1 1 kept"], ended.lines


def each_worker_can_read_the_secret_again_and_again():
    script = ('cat "$TERN_SECRET_FILE"; echo; sh -c \'cat "$TERN_SECRET_FILE"\'; echo; '
              'stat -L -c %a "$TERN_SECRET_FILE"')
    ended = shell(script, "--workers", 2)
    secrets = {line for i in range(2) for line in lines(ended, i)[:2]}
    assert len(secrets) == 1 and len(secrets.pop()) == 64, ended.lines
    assert lines(ended, 0)[2] == "600", ended.lines
    assert lines(shell('echo "${TERN_SECRET_FILE-none}"', "--insecure"), 0) == ["none"]


def stdin_is_empty_and_signals_are_as_usual():
    script = ("import signal, sys\n"
              "print(repr(sys.stdin.read()), [int(s) for s in signal.Signals "
              "if signal.getsignal(s) == signal.SIG_IGN and s not in (signal.SIGPIPE, signal.SIGXFSZ)])\n")
    # A program that is started with nohup(1) ignores SIGHUP, and one that a shell starts in the background SIGQUIT.
    ignored = [int(s) for s in (signal.SIGHUP, signal.SIGQUIT) if signal.getsignal(s) == signal.SIG_IGN]
    assert lines(python(script), 0) == [f"'' {ignored}"]
    # Python itself ignores SIGPIPE: a shell's `yes` ends by it.
    assert lines(shell("yes | head -n 1; cat"), 0) == ["y"]


def orphans_of_a_worker_are_waited_for():
    script = ('for i in $(seq 100); do ( true & ); done; sleep 0.5; '
              'cat /proc/[0-9]*/stat 2>/dev/null | grep -c " Z $PPID "')
    assert int(lines(shell(script + " || true"), 0)[0]) < 10


# ---- training ----------------------------------------------------------------------------

def worker(directory, *more, steps=job.enough(4000)):
    """A script that runs `tern worker`, with the job of running.training()."""
    words = [job.TERN, "worker", *job.small("--slots", 5, "--save", directory, *more, steps=steps)]
    return (" ".join(map(str, words)) +
            ' --join "$TERN_JOIN" --index "$TERN_INDEX" --workers "$TERN_WORKERS"')


def saved(directory):
    files = list(directory.iterdir())
    assert [f.name for f in files] == ["model.safetensors"], files
    return files[0].read_bytes()


def a_program_with_another_number_of_workers_is_refused():
    directory = job.SCRATCH / "other"
    script = worker(directory).replace('"$TERN_WORKERS"', "3")
    error = shell(script, "--workers", 2, code=1).error
    assert "describes a job of 3, and this server was started for 2 (--workers)" in error, error


def workers_train_to_the_same_bytes_as_tern_train():
    reference = job.SCRATCH / "same"
    job.train(*job.small("--slots", 5, "--save", reference, "--workers", 2))
    for servers, workers, fabric in (1, 1, "shm"), (2, 3, "tcp"), (2, 2, "auto"):
        directory = job.SCRATCH / f"same-{servers}-{workers}"
        shell(worker(directory, "--servers", servers, steps=40), "--servers", servers, "--workers", workers,
              "--fabric", fabric, code=0)
        assert saved(directory) == saved(reference), "other bytes"


def at_work(script, *options):
    """Starts a job, and waits until its worker 0 makes steps."""
    running = job.Job("run", *options, "--json", "--", "sh", "-c", script)
    running.wait_event(lambda e: e["event"] == "output" and e["worker"] == 0 and "step 1/" in e["text"])
    return running


def ended(running, code, limit_s=20):
    try:
        running.end(limit_s)
    finally:
        running.kill()
    assert running.code == code, f"exit code {running.code}\n{running.error}\n{running.lines[-5:]}"
    return running


def killed_worker_costs_nothing():
    directory = job.SCRATCH / "killed"
    running = at_work("exec " + worker(directory), "--workers", 2)
    os.kill(running.pid_of("worker", 1), signal.SIGKILL)
    ended(running, 0)
    assert saved(directory) == undisturbed(), "other bytes"
    lost = events(running, "lost")
    assert [e["worker"] for e in lost] == [1], lost
    assert lost[0]["text"] == "worker 1 was killed by signal 9 (Killed): the job goes on without it", lost
    done = running.events[-1]
    assert (done["event"], done["workers"], done["succeeded"]) == ("done", 2, 1), done


def last_worker_that_is_killed_is_the_cause():
    running = at_work("exec " + worker(job.SCRATCH / "last", steps=FOR_EVER))
    os.kill(running.pid_of("worker", 0), signal.SIGKILL)
    assert cause(ended(running, 1)) == "tern run: worker 0 was killed by signal 9 (Killed)", running.error


def each_loss_is_told_once():
    """The loss of worker 0 was told when it was killed, so the cause is that of worker 1."""
    running = at_work("exec " + worker(job.SCRATCH / "both", steps=FOR_EVER), "--workers", 2)
    os.kill(running.pid_of("worker", 0), signal.SIGKILL)
    running.wait_event(lambda e: e["event"] == "lost")
    os.kill(running.pid_of("worker", 1), signal.SIGKILL)
    assert cause(ended(running, 1)) == "tern run: worker 1 was killed by signal 9 (Killed)", running.error
    told = [e["text"] for e in events(running, "lost") + events(running, "failed")]
    assert [sum(f"worker {i} was killed" in text for text in told) for i in range(2)] == [1, 1], told


def job_that_nobody_completes_fails():
    """All workers leave during the steps, with exit code 0."""
    running = at_work(worker(job.SCRATCH / "left", steps=FOR_EVER) + " || true", "--workers", 2)
    for i in range(2):
        os.kill(running.pid_of("worker", i), signal.SIGKILL)
    assert cause(ended(running, 1)).startswith(
        "tern run: the job was not completed: its workers have ended before its end"), running.error


def killed_server_is_the_cause():
    running = at_work("exec " + worker(job.SCRATCH / "server", "--servers", 2, steps=FOR_EVER),
                      "--servers", 2, "--workers", 2)
    os.kill(running.pid_of("server", 1), signal.SIGKILL)
    assert re.fullmatch(r"tern run: server 1 \(pid \d+\) was killed by signal 9 \(Killed\)",
                        cause(ended(running, 1))), running.error


def worker_that_ends_before_the_steps_is_not_waited_for():
    for exits in 3, 0:
        script = f'if [ $TERN_INDEX = 1 ]; then exit {exits}; fi; ' + worker(job.SCRATCH / "none")
        assert cause(shell(script, "--workers", 2, code=1)) == (
            f"tern run: the steps could not begin: worker 1 exited with code {exits}")


def interrupted_workers_save_once():
    directory = job.SCRATCH / "interrupted"
    running = at_work(worker(directory, "--servers", 2, steps=FOR_EVER), "--servers", 2, "--workers", 2)
    running.process.terminate()
    assert cause(ended(running, 143)) == "tern run: ended by SIGTERM: 2 of 2 workers were running"
    assert [f.name for f in directory.iterdir()] == ["interrupted.safetensors"], running.lines[-5:]
    failed = running.events[-1]
    assert (failed["event"], failed["code"]) == ("failed", 143), failed


def server_without_a_part_of_the_model_says_so():
    running = at_work("exec " + worker(job.SCRATCH / "parts", "--servers", 2, steps=FOR_EVER), "--servers", 2)
    said = "to begin the steps"  # server 0 may have begun them before server 1
    while "to begin the steps" in said:
        running.process.send_signal(signal.SIGUSR1)
        said = running.wait_event(lambda e: e["event"] == "status" and e.get("who") == "server 1")["text"]
    assert said.endswith("waits for the end of the job: the model is small, and no part of it is here"), said
    running.process.terminate()
    ended(running, 143)


# ---- output ------------------------------------------------------------------------------

def each_line_names_its_worker():
    both = shell('echo out; echo; echo err >&2; printf "without an end"', "--workers", 2)
    for i in range(2):
        assert lines(both, i) == ["out", "", "without an end"], both.lines
        assert f"worker {i}: err" in both.error.splitlines(), both.error
    assert len(both.lines) == 6 and not [line for line in both.lines if "err" in line], both.lines


def progress_bars_are_lines():
    bar = shell(r'printf "\r 10%%\r 20%%\r\n"; printf "dos\r\n"; printf "dos\r"; sleep 0.1; printf "\nend\n"')
    assert lines(bar, 0) == [" 10%", " 20%", "dos", "dos", "end"], bar.lines


def long_line_comes_in_pieces():
    script = ("import sys\n"
              f"sys.stdout.write('x' * {3 * PIECE} + '\\nshort\\n')\n"
              f"sys.stdout.write('a' + 'é' * {PIECE} + '\\n')\n"
              f"sys.stdout.write('y' * {PIECE} + '\\n' + 'z' * {PIECE + 1})\n")
    with job.environment(PYTHONIOENCODING="utf-8"):
        got = lines(python(script), 0)
    assert got[:4] == ["x" * PIECE] * 3 + ["short"], [len(line) for line in got]
    # A piece ends with a whole character: of the first one, a byte is left over.
    assert "".join(got[4:7]) == "a" + "é" * PIECE, [len(line) for line in got]
    assert len(got[4].encode()) == PIECE - 1, [len(line) for line in got]
    assert got[7:] == ["y" * PIECE, "z" * PIECE, "z"], [len(line) for line in got]


def lines_are_events_with_json():
    told = shell(r'echo "its TERN_INDEX is $TERN_INDEX"; printf "\377\000\n" >&2', "--workers", 2, "--json")
    output = events(told, "output")
    for i in range(2):
        mine = [e for e in output if e["worker"] == i]
        assert {e["stream"]: e["text"] for e in mine} == {
            "stdout": f"its TERN_INDEX is {i}", "stderr": "??"}, mine
        assert len({e["pid"] for e in mine}) == 1, mine
    assert told.events[-1]["event"] == "failed" and told.error == NOT_JOINED + "\n", told.error
    start = events(told, "start")[0]
    assert start["workers"] == 2 and start["program"] == "sh", start


def endless_output_does_not_keep_it_from_ending():
    running = job.Job("run", "--workers", 2, "--", "sh", "-c", "yes no end; true")
    try:
        for _ in range(1000):
            assert running.process.stdout.readline().endswith(": no end\n")
        running.process.terminate()
        running.end(20)
    finally:
        running.kill()
    assert running.code == 143, running.error


# ---- exit codes --------------------------------------------------------------------------

def worker_that_fails_without_joining_does_not_end_the_others():
    told = shell('[ $TERN_INDEX = 0 ] || exit 3; sleep 0.5; echo here', "--workers", 2, code=1)
    assert cause(told) == "tern run: worker 1 exited with code 3", told.error
    assert told.lines == ["worker 0: here"], told.lines


def job_fails_if_every_worker_does():
    """The cause is the worker that failed first."""
    told = shell('sleep 0.$((4 * TERN_INDEX)); exit $((TERN_INDEX + 3))', "--workers", 2, code=1)
    assert cause(told) == "tern run: worker 0 exited with code 3", told.error
    told = shell("kill -9 $$", code=1)
    assert cause(told) == "tern run: worker 0 was killed by signal 9 (Killed)", told.error


def exception_of_python_is_the_reason():
    script = ("try:\n raise KeyError('first')\nexcept KeyError:\n"
              " raise ValueError('the batch has\\nno records')\n")
    told = python(script, "--workers", 2, code=1)
    assert re.fullmatch(r"tern run: worker [01] exited with code 1: ValueError: the batch has", cause(told)), told.error


def program_that_does_not_exist_is_refused():
    empty = job.SCRATCH / "no-program"
    empty.write_text("")
    for program, says in (("no-such-program", "no program of this name in PATH"), ("", "''"),
                          ("/no/such", "No such file or directory"), (empty, "Permission denied"),
                          (job.SCRATCH, "Is a directory")):
        job.refused("run", "--workers", 2, "--", program, "argument", says=["tern run: ", says])


def what_only_a_server_finds_wrong_is_the_cause():
    told = shell("echo started", "--fabric", "tcp", "--listen", "192.0.2.1:0", code=1)
    assert "tern run: server 0: --listen 192.0.2.1:0: " in cause(told) and not told.lines, told.error
    job.refused("run", "--server-device", "cuda:255", "--", "echo", "started",
                says=["tern run: --server-device cuda:255"])


def program_that_cannot_be_executed_fails():
    script = job.SCRATCH / "no-interpreter"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    told = job.finish("run", "--", script, code=1)
    assert f"worker 0: {script}: cannot be executed" in told.error, told.error


def command_line_without_a_program_is_refused():
    for words in [], ["--workers", 2], ["--workers", 2, "--"], ["--workers", 2, "true"]:
        job.refused("run", *words, says=["no program", "-- python3 train.py"])
    job.refused("run", "--workers", 2, "--stepps", says=["--stepps: no such option"])
    job.refused("run", "--worker", 2, "--", "true", says=["--worker", "did you mean --workers"])
    job.refused("run", "--workers", 0, "--", "true", says=["--workers 0"])
    job.refused("run", "--listen", "0.0.0.0:0", "--fabric", "tcp", "--servers", 2, "--insecure", "--listen",
                "127.0.0.1:7000", "--", "true", says=["cannot share a port"])


def options_after_the_dashes_are_the_programs():
    got = subprocess.run([job.TERN, "run", "--", "echo", "--help", "--json", "--", "--workers"], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    assert got.stdout == "worker 0: --help --json -- --workers\n", got.stdout
    assert "-- PROGRAM" in "".join(job.finish("run", "--help").lines[:1])
    assert [line for line in job.finish("--help").lines if line.startswith("  run ")]


# ---- how a job ends ----------------------------------------------------------------------

COUNTS = ("import signal, sys, time\n"
          "seen = []\n"
          "for s in signal.SIGINT, signal.SIGTERM:\n"
          "    signal.signal(s, lambda number, frame: seen.append(number))\n"
          "print('ready', flush=True)\n"
          "while not seen:\n"
          "    time.sleep(0.01)\n"
          "time.sleep(0.3)\n"
          "print('seen', seen, flush=True)\n")


def started(program, *options):
    """Starts a job, and waits until each of its two workers says that it is ready."""
    running = job.Job("run", "--workers", 2, "--json", *options, "--", *program)
    for _ in range(2):
        running.wait_event(lambda e: e["event"] == "output" and e["text"] == "ready")
    return running


def workers_get_the_signal_once_and_have_time_to_end():
    for number, seen in (signal.SIGINT, 2), (signal.SIGTERM, 15), (signal.SIGHUP, 15):
        running = started([sys.executable, "-c", COUNTS])
        running.process.send_signal(number)
        ended(running, 128 + number)
        texts = [e["text"] for e in events(running, "output")]
        assert texts[2:] == [f"seen [{seen}]"] * 2, texts
        assert signal.Signals(number).name in cause(running), running.error


def ctrl_c_at_a_terminal_reaches_workers_once():
    terminal = job.Terminal("ctrl-c")
    try:
        terminal.type(f"{job.TERN} run --json -- {sys.executable} -c \"{COUNTS}\" >{terminal.log} 2>&1\n")
        job.wait_until(lambda: terminal.said('"ready"'))
        terminal.type("\x03")
        job.wait_until(lambda: terminal.said('"failed"'))
        job.wait_until(lambda: not terminal.processes())
    finally:
        terminal.close()
    log = terminal.log.read_text()
    assert "seen [2]" in log and '"code":130' in log, log


def second_interrupt_kills():
    running = started(["sh", "-c", "trap '' INT TERM; echo ready; while :; do sleep 1; done"])
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert running.process.poll() is None and len(running.processes()) > 2
    start = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    ended(running, 130)
    assert time.monotonic() - start < 5, "it was not ended before the grace period"


def status_disturbs_no_program():
    running = started(["sh", "-c", "echo ready; sleep 1; echo later"])
    running.process.send_signal(signal.SIGUSR1)
    ended(running, 1)
    said = [e["text"] for e in events(running, "status")]
    assert said[0] == "2 of 2 workers and 1 of 1 servers run" and len(said) == 2, said
    assert [e["text"] for e in events(running, "output")] == ["ready"] * 2 + ["later"] * 2, running.lines


GRANDCHILD = "sh -c 'trap \"\" HUP INT; echo ready; sleep 1000'; true"


def nothing_survives_a_killed_launcher():
    """The sleeping processes are children of shells, which are children of shells."""
    running = started(["sh", "-c", GRANDCHILD])
    job.wait_until(lambda: sum(words[0] == "sleep" for words in running.processes().values()) == 2)
    running.process.kill()
    job.wait_until(lambda: not running.processes())
    running.kill()


def nothing_survives_an_interrupted_job():
    running = started(["sh", "-c", GRANDCHILD])
    running.process.terminate()
    ended(running, 143)


def what_a_worker_leaves_behind_is_ended_with_the_job():
    """It can print until then, and gets SIGTERM."""
    script = ("(trap 'echo asked; exit' TERM; while :; do sleep 0.05; done) & "
              "if [ $TERN_INDEX = 1 ]; then sleep 0.5; fi; echo here")
    told = shell(script, "--workers", 2)
    for i in range(2):
        assert sorted(lines(told, i)) == ["asked", "here"], told.lines


tap.run([
    each_worker_finds_its_place_in_the_environment,
    the_rest_of_the_environment_is_that_of_the_user,
    each_worker_can_read_the_secret_again_and_again,
    orphans_of_a_worker_are_waited_for,
    stdin_is_empty_and_signals_are_as_usual,
    a_program_with_another_number_of_workers_is_refused,
    workers_train_to_the_same_bytes_as_tern_train,
    killed_worker_costs_nothing,
    last_worker_that_is_killed_is_the_cause,
    each_loss_is_told_once,
    job_that_nobody_completes_fails,
    killed_server_is_the_cause,
    worker_that_ends_before_the_steps_is_not_waited_for,
    interrupted_workers_save_once,
    server_without_a_part_of_the_model_says_so,
    each_line_names_its_worker,
    progress_bars_are_lines,
    long_line_comes_in_pieces,
    lines_are_events_with_json,
    endless_output_does_not_keep_it_from_ending,
    worker_that_fails_without_joining_does_not_end_the_others,
    job_fails_if_every_worker_does,
    exception_of_python_is_the_reason,
    program_that_does_not_exist_is_refused,
    what_only_a_server_finds_wrong_is_the_cause,
    program_that_cannot_be_executed_fails,
    command_line_without_a_program_is_refused,
    options_after_the_dashes_are_the_programs,
    workers_get_the_signal_once_and_have_time_to_end,
    ctrl_c_at_a_terminal_reaches_workers_once,
    second_interrupt_kills,
    status_disturbs_no_program,
    nothing_survives_a_killed_launcher,
    nothing_survives_an_interrupted_job,
    what_a_worker_leaves_behind_is_ended_with_the_job,
])
