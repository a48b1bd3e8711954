# SPDX-License-Identifier: Apache-2.0
"""Programs in C and Python that go back with their job: one of two servers is killed, and started again elsewhere, while the
programs stay. The results have the bytes of a job that nothing has happened to.

usage: back.py TERN FACTORISE [CASE...]
"""
import functools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import frameworks
import jobs
from jobs import HERE, LIMIT_S, SCRATCH, tap

FACTORISE = sys.argv[2]
TORCH = frameworks.find("torch")
STEPS = {"c": 12_000, "numpy": 3_000, "torch": 120, "ahead": 120}


class Job(jobs.Job):
    """Two servers that take snapshots, and two workers of one kind."""

    def __init__(self, kind, name, *, every=None, hold=None, wait=60, **environment):
        self.kind, self.hold, self.steps, self.environment = kind, hold, STEPS[kind], environment
        self.snapshots, self.out = SCRATCH / f"{name}-snapshots", SCRATCH / f"{name}.out"
        self.options = ["--snapshots", self.snapshots, "--snapshot-every", every or self.steps // 20, "--server-wait", wait,
                        "--worker-timeout", 5]
        super().__init__(2, 2, "tcp", *self.options)
        for index in range(2):
            self.program(index, wait)

    def program(self, index, wait):
        environment = {"TERN_JOIN": self.join, "TERN_WORKERS": 2, "TERN_INDEX": index, **self.environment}
        environment["TERN_SERVER_WAIT" if self.kind == "c" else "BACK_WAIT"] = wait
        command = [FACTORISE, self.out, self.steps]
        if self.kind != "c":
            python = sys.executable if self.kind == "numpy" else TORCH
            command = [python, "-X", "faulthandler", HERE / "back_worker.py", self.kind, self.out, self.steps]
            command += [] if self.hold is None or index > 0 else [self.hold]
        self.workers[index] = jobs.Process(*command, **environment, MALLOC_PERTURB_=165)

    def lose_server(self, how=signal.SIGKILL):
        """Ends server 1, and waits until a program says so."""
        self.servers[1].process.send_signal(how)
        self.servers[1].process.wait(LIMIT_S)
        end = time.monotonic() + LIMIT_S
        while not any(line and "newest snapshot" in line for w in self.workers.values() for line in w.errors + w.lines):
            assert time.monotonic() < end, self.workers[0].said()
            time.sleep(0.01)

    def replace_server(self):
        addresses = self.join.split(",")
        self.servers[1] = jobs.Process(
            sys.argv[1], "server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--index", 1, "--json", *self.options,
            "--join", addresses[0])
        line = self.servers[1].wait_line(lambda line: '"listening"' in line)
        assert json.loads(line)["address"] != addresses[1]

    def result(self):
        self.end()
        return self.out.read_bytes()

    def go(self):
        Path(f"{self.out}.go").touch()


def is_event(name):
    return lambda line: f'"{name}"' in line


@functools.cache
def undisturbed(kind):
    with Job(kind, f"{kind}-undisturbed") as job:
        return job.result()


def goes_back(kind):
    with Job(kind, f"{kind}-back") as job:
        job.servers[0].wait_line(is_event("snapshot"))
        job.lose_server()
        job.replace_server()
        assert job.result() == undisturbed(kind)
        if kind != "c":
            assert any(line and line.startswith("from ") for w in job.workers.values() for line in w.lines)


def c_program_goes_back():
    goes_back("c")


def numpy_program_goes_back():
    goes_back("numpy")


def needs_torch():
    if not TORCH:
        raise tap.Skip(frameworks.why_not("torch"))


def torch_program_goes_back():
    needs_torch()
    goes_back("torch")


def torch_program_that_reads_ahead_goes_back():
    needs_torch()
    goes_back("ahead")


def slot_is_held(kind):
    """A program holds a slot while a server is lost and comes again. The values of the slot stay."""
    with Job(kind, f"{kind}-held", hold=STEPS[kind] // 2) as job:
        job.workers[0].wait_line(lambda line: line == "holds")
        job.lose_server()
        job.replace_server()
        time.sleep(0.5)
        job.go()
        assert job.result() == undisturbed(kind)


def slot_is_held_while_a_server_dies():
    slot_is_held("numpy")


def module_is_in_a_slot_while_a_server_dies():
    needs_torch()
    slot_is_held("torch")


def program_is_added(kind, **environment):
    """A third program comes by the command of the others with the next number, and gets its share of the slots. Then a
    program that was there from the start is killed, so the others have its slots, too."""
    with Job(kind, f"{kind}-added", **environment) as job:
        job.servers[0].wait_line(is_event("begun"))
        job.program(2, 60)
        came = json.loads(job.servers[0].wait_line(is_event("came")))
        assert came["worker"] == 2 and "1 of 4 slots are its" in came["text"], came
        job.workers.pop(0).kill()
        job.servers[0].wait_line(is_event("lost"))
        job.go()
        assert job.result() == undisturbed(kind)


def c_program_is_added():
    program_is_added("c")


def torch_program_that_reads_ahead_is_added():
    needs_torch()
    program_is_added("ahead", BACK_SLOW=1)


def program_that_was_added_goes_back():
    """The job goes back with three programs, with which it did not begin, and none is left behind."""
    with Job("numpy", "added-back", BACK_SLOW=1) as job:
        job.servers[0].wait_line(is_event("begun"))
        job.program(2, 60)
        job.servers[0].wait_line(is_event("came"))
        job.lose_server()
        job.replace_server()
        job.servers[1].wait_line(is_event("begun"))
        job.go()
        assert job.result() == undisturbed("numpy")
        assert not any(line and is_event("lost")(line) for line in job.servers[0].lines)


def program_that_cannot_be_added_is_refused():
    """Its session would not go back with the job, or is not in sync mode."""
    for index, wait in (2, 0), (4096, 60):
        done = subprocess.run([FACTORISE], capture_output=True, text=True, timeout=LIMIT_S,
                              env={"TERN_JOIN": "127.0.0.1:9", "TERN_WORKERS": "2", "TERN_INDEX": str(index),
                                   "TERN_SERVER_WAIT": str(wait)})
        assert done.returncode == 1 and done.stderr.startswith(f"factorise: cannot start: index {index}"), done
        assert ("server_wait above 0" if index == 2 else "from 0 to 4095") in done.stderr, done


def without_a_snapshot_it_goes_back_to_the_given_values():
    with Job("numpy", "start", every=STEPS["numpy"], hold=100) as job:
        job.workers[0].wait_line(lambda line: line == "holds")
        job.lose_server()
        job.go()
        job.replace_server()
        assert job.workers[0].wait_line(lambda line: line.startswith("from ")) == "from 101 to 0"
        assert job.result() == undisturbed("numpy")


def server_that_was_asked_to_end_comes_again():
    with Job("numpy", "asked") as job:
        job.servers[0].wait_line(is_event("snapshot"))
        job.lose_server(signal.SIGTERM)
        job.replace_server()
        assert job.result() == undisturbed("numpy")


def finisher_finishes_without_its_servers():
    """The finisher has the results when a server is lost for good."""
    with Job("numpy", "finisher", hold=STEPS["numpy"]) as job:
        job.workers[0].wait_line(lambda line: line == "finishes")
        job.servers[1].process.kill()
        time.sleep(1)
        job.go()
        job.workers[0].end()
        assert job.out.read_bytes() == undisturbed("numpy")


def programs_that_wait_in_vain_end():
    with Job("c", "in-vain", wait=2) as job:
        job.servers[0].wait_line(is_event("snapshot"))
        job.lose_server()
        for worker in job.workers.values():
            worker.end(1)
            assert "the job has not gone on for 2 s: " in worker.error(), worker.error()


def wrong_waits_are_refused():
    for value in "ten", "-1", "86401":
        done = subprocess.run([FACTORISE], capture_output=True, text=True, timeout=LIMIT_S,
                              env={"TERN_JOIN": "127.0.0.1:9", "TERN_SERVER_WAIT": value})
        assert done.returncode == 1, done
        assert done.stderr == (f"factorise: cannot start: TERN_SERVER_WAIT={value}: expected a number from 0 to 86400\n"), done


CASES = [c_program_goes_back, numpy_program_goes_back, torch_program_goes_back, torch_program_that_reads_ahead_goes_back,
         c_program_is_added, torch_program_that_reads_ahead_is_added, program_that_was_added_goes_back,
         program_that_cannot_be_added_is_refused, slot_is_held_while_a_server_dies, module_is_in_a_slot_while_a_server_dies,
         without_a_snapshot_it_goes_back_to_the_given_values, server_that_was_asked_to_end_comes_again,
         finisher_finishes_without_its_servers, programs_that_wait_in_vain_end, wrong_waits_are_refused]
tap.run([case for case in CASES if len(sys.argv) < 4 or case.__name__ in sys.argv[3:]])
