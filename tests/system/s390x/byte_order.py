#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests Tern on a big-endian machine: it is built for s390x and runs in qemu's emulation of a process.
Its unit tests must pass there, two such ends must move a tensor, and each end must refuse one of the
other byte order with a message that says why.

usage: byte_order.py NATIVE_BUILD_DIRECTORY FOLDER
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

NATIVE = Path(sys.argv[1]).resolve()
BUILD = Path(sys.argv[2]).resolve() / "build"
SYSTEM = Path("/usr/s390x-linux-gnu")
QEMU = ["qemu-s390x", "-L", str(SYSTEM)]
COMPILER = "s390x-linux-gnu-gcc"
WORDS = "the peer's machine has the other byte order"
PING = Path("docs") / "examples" / "ping"
# Tests for which the replacement of cmocka (tests/harness/asserts.h) is enough, and that the emulator can
# run: the emulator offers no process_vm_readv between its processes, and a stack of 8 MiB only.
UNIT_TESTS = ["clock", "context", "copy", "crc32c", "credit", "dataset", "endian", "escape", "interface",
              "kernels", "key", "log", "map", "match", "mem", "plan", "shm", "shm_hostile", "shm_ring",
              "sum", "types", "window", "wire"]
LIMIT_S = 300


def need():
    for name in (COMPILER, QEMU[0]):
        if not shutil.which(name):
            raise tap.Skip(f"{name} is not installed")
    if not (SYSTEM / "include" / "stdio.h").exists():
        raise tap.Skip("libc6-dev-s390x-cross is not installed")


def out(*command):
    paths = ("C_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH")
    env = {k: v for k, v in os.environ.items() if k not in (*paths, "CC")}
    done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, env=env,
                          stderr=subprocess.STDOUT, timeout=LIMIT_S, errors="replace")
    assert done.returncode == 0, f"{command[0]}: {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


def it_builds_without_a_warning():
    need()
    if not (BUILD / "build.ninja").exists():
        out("meson", "setup", BUILD, TOP, "--cross-file", HERE / "s390x.ini", "-Dwerror=true",
            "-Dcuda=disabled")
    out("ninja", "-C", BUILD)


def run_unit_test(name):
    need()
    program = BUILD / f"test_{name}"
    out(COMPILER, "-std=gnu17", "-O1", "-g", "-D_GNU_SOURCE", "-DTERN_HAVE_CMOCKA=0",
        '-DTERN_PROJECT_VERSION="' + version() + '"', f"-I{TOP}", f"-I{TOP / 'include'}", f"-I{BUILD}",
        next((TOP / "tests").glob(f"**/test_{name}.c")), BUILD / "libternps.a",
        *(BUILD / "kernels").glob("*.a"), BUILD / "libterncore.a", "-lm", "-ldl", "-pthread", "-o",
        program)
    out(*QEMU, program)


def version():
    lines = (TOP / "include" / "tern" / "version.h").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if line.startswith("#define TERN_VERSION "))


def unit_test(name):
    def case():
        run_unit_test(name)
    case.__name__ = f"unit_test_{name}"
    return case


class Receiver:
    def __init__(self, ping, listen):
        self.process = subprocess.Popen([*ping, "receive", listen], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.address = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def end(self):
        said, logged = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, (self.process.returncode, logged)
        assert said == "received f32 [3, 4]: 0 ... 11\n", said
        return logged


def send(ping, address):
    return subprocess.run([*ping, "send", address], text=True, capture_output=True, timeout=LIMIT_S)


def ping_of(build, wrapper=()):
    return [*wrapper, str(build / PING)]


def ends():
    need()
    return ping_of(BUILD, QEMU), ping_of(NATIVE)


def big_endian_ends_move_a_tensor(listen):
    big, _ = ends()
    with Receiver(big, listen) as receiver:
        done = send(big, receiver.address)
        assert done.returncode == 0, done
        receiver.end()


def big_endian_ends_move_a_tensor_over_tcp():
    big_endian_ends_move_a_tensor("tcp://127.0.0.1:0")


def big_endian_ends_move_a_tensor_over_shm():
    big_endian_ends_move_a_tensor(f"shm://tern-s390x-{os.getpid()}")


def check_refused(receives, sends, listen):
    """The sender fails and prints WORDS. The receiver logs WORDS, and still serves its own kind."""
    with Receiver(receives, listen) as receiver:
        done = send(sends, receiver.address)
        assert done.returncode == 1 and WORDS in done.stderr, done
        done = send(receives, receiver.address)
        assert done.returncode == 0, done
        assert WORDS in receiver.end()


def ends_of_different_byte_orders_refuse_each_other_over_tcp():
    big, little = ends()
    check_refused(big, little, "tcp://127.0.0.1:0")
    check_refused(little, big, "tcp://127.0.0.1:0")


def ends_of_different_byte_orders_refuse_each_other_over_shm():
    big, little = ends()
    check_refused(big, little, f"shm://tern-big-{os.getpid()}")
    check_refused(little, big, f"shm://tern-little-{os.getpid()}")


tap.run([
    it_builds_without_a_warning,
    *map(unit_test, UNIT_TESTS),
    big_endian_ends_move_a_tensor_over_tcp,
    big_endian_ends_move_a_tensor_over_shm,
    ends_of_different_byte_orders_refuse_each_other_over_tcp,
    ends_of_different_byte_orders_refuse_each_other_over_shm,
])
