#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what a newcomer does: install, compile the example with pkg-config alone, run both ends.

usage: install.py BUILD_DIRECTORY
"""
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

BUILD = Path(sys.argv[1])
EXAMPLES = TOP / "docs" / "examples"
scratch = tempfile.TemporaryDirectory(prefix="tern-install-")
ROOT = Path(scratch.name)


def out(*command, **kw):
    done = subprocess.run([str(c) for c in command], text=True, capture_output=True, timeout=120,
                          **kw)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def installed(name):
    """The first installed file or folder of that name; there must be one."""
    found = sorted(ROOT.rglob(name))
    assert found, f"{name} was not installed"
    return found[0]


def install_puts_headers_library_program_and_documents_in_place():
    out("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", ROOT)
    for name in ("tern.h", "libtern.so", "tern.pc", "tern"):
        installed(name)
    docs = installed("LICENSE").parent
    for name in ("README.md", "CHANGELOG.md", "docs/tuning.md", "docs/examples/ping.c"):
        assert (docs / name).is_file(), f"{name} was not installed"


def example_compiles_with_what_pkg_config_says():
    pc = installed("tern.pc").parent
    # The files lie under a staging root: that is all that differs from a real install.
    env = dict(os.environ, PKG_CONFIG_PATH=str(pc), PKG_CONFIG_SYSROOT_DIR=str(ROOT),
               PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1", PKG_CONFIG_ALLOW_SYSTEM_LIBS="1")
    flags = shlex.split(out("pkg-config", "--cflags", "--libs", "tern", env=env))
    for name in ("ping", "gather"):
        out(*shlex.split(os.environ.get("CC", "cc")), "-Wall", "-Wextra", "-Werror",
            EXAMPLES / f"{name}.c", *flags, "-pthread", "-o", ROOT / name)


def transfer(listen):
    env = dict(os.environ, LD_LIBRARY_PATH=str(installed("libtern.so").parent))
    with subprocess.Popen([str(ROOT / "ping"), "receive", listen], env=env, text=True,
                          stdout=subprocess.PIPE) as receiver:
        try:
            address = receiver.stdout.readline().strip()
            assert address, "the receiver printed no address"
            out(ROOT / "ping", "send", address, env=env)
            said = receiver.communicate(timeout=30)[0]
        finally:
            receiver.kill()
    assert receiver.returncode == 0, receiver.returncode
    assert said == "received f32 [3, 4]: 0 ... 11\n", said


def example_moves_a_tensor_over_tcp():
    transfer("tcp://127.0.0.1:0")


def example_moves_a_tensor_over_shm():
    transfer(f"shm://tern-ping-{os.getpid()}")


def gather(*args):
    env = dict(os.environ, LD_LIBRARY_PATH=str(installed("libtern.so").parent))
    return subprocess.run([str(ROOT / "gather"), *args], env=env, text=True, capture_output=True,
                          timeout=100)


def example_with_threads_gathers_from_all():
    for address in "tcp://127.0.0.1:0", f"shm://tern-gather-{os.getpid()}":
        for senders in (4, 64):  # 64 of them take more than the pool has
            done = gather(address, str(senders), "100")
            assert done.returncode == 0, done
            assert done.stdout == f"100 vectors from each of {senders}: {senders * 409600}\n", done


def example_with_threads_says_what_failed():
    done = gather("tcp://192.0.2.1:7", "1", "1")
    assert done.returncode == 1 and done.stderr.startswith("gather: tcp://192.0.2.1:7: "), done
    assert gather("tcp://127.0.0.1:0", "0", "1").returncode == 2


tap.run([
    install_puts_headers_library_program_and_documents_in_place,
    example_compiles_with_what_pkg_config_says,
    example_moves_a_tensor_over_tcp,
    example_moves_a_tensor_over_shm,
    example_with_threads_gathers_from_all,
    example_with_threads_says_what_failed,
])
