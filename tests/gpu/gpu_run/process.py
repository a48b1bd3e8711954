# SPDX-License-Identifier: Apache-2.0
"""Runs one program under a time limit that holds.

What the program prints goes to files, not to pipes: a pipe does not end while a grandchild holds
it open. After the limit the program's process group is killed; a process that does not die even
then (it waits inside a driver) is left behind after a few seconds.
"""
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

LATE = -1000      # the status of a program that was killed after its limit
NOT_THERE = 127   # the status of a program that could not be started
DYING_S = 5       # how long a killed program is waited for
READ_MAX = 8 << 20
PR_SET_PDEATHSIG = 1


@dataclass
class Ended:
    status: int
    out: str
    err: str
    seconds: float


def die_with_the_parent():
    """Returns a function that a program calls before it begins. The kernel then kills the program when the
    runner dies, so that the program does not keep the device. If the runner is dead already, the program ends."""
    runner = os.getpid()

    def ask():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != runner:
            os._exit(1)
    return ask


def read(path):
    with open(path, "rb") as file:
        return file.read(READ_MAX).decode(errors="replace")


def wait(process, limit_s):
    try:
        return process.wait(max(limit_s, 0))
    except subprocess.TimeoutExpired:
        return None


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    wait(process, DYING_S)


def run(command, limit_s, env, base, cwd=None):
    """Runs the command and returns how it ended. `base`: the path of the files for its output, to
    which .out and .err are added; they stay, also if the runner is killed meanwhile."""
    paths = [Path(f"{base}.{name}") for name in ("out", "err")]
    start = time.monotonic()
    with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
        try:
            process = subprocess.Popen([str(word) for word in command], cwd=cwd, env=env, stdout=out, stderr=err,
                                       stdin=subprocess.DEVNULL, start_new_session=True,
                                       preexec_fn=die_with_the_parent())
        except OSError as e:
            return Ended(NOT_THERE, "", str(e), 0.0)
    try:
        status = wait(process, limit_s)
    finally:  # also if the runner is asked to end
        if process.returncode is None:
            kill_group(process)
    return Ended(LATE if status is None else status, *map(read, paths), time.monotonic() - start)
