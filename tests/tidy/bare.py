# SPDX-License-Identifier: Apache-2.0
"""Tests the build without optional libraries: with all of them switched off, meson says so, the
libraries compile, and tests say what is not built in. With "gpu": a build with CUDA needs no cmocka for the tests
on a GPU.

usage: bare.py [gpu]
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

OPTIONS = ["bzip2", "cuda", "nixl", "openblas", "openssl", "python", "train", "uring", "verbs", "zlib"]
DIRECTORY = tempfile.TemporaryDirectory(prefix="tern-bare-")
BUILD = DIRECTORY.name


def run(*command):
    done = subprocess.run(command, env=dict(os.environ, CC="cc"), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def every_library_can_be_switched_off():
    told = run("meson", "setup", BUILD, str(TOP), "-Dwerror=true", "-Doptimization=0",
               *[f"-D{option}=disabled" for option in OPTIONS])
    off = [line for line in told.splitlines() if line.endswith("no: switched off")]
    assert len(off) == len(OPTIONS), told


def what_is_left_compiles_and_says_what_it_lacks():
    run("ninja", "-C", BUILD, "libternps.a", "libterncore.a")
    if not (Path(BUILD) / "tests" / "client").exists():
        raise tap.Skip("cmocka is not here")
    run("ninja", "-C", BUILD, "tests/test_dataset")
    told = run(f"{BUILD}/tests/test_dataset")
    assert "test_gzip_says_that_it_is_not_built_in" in told


def tests_on_a_gpu_need_no_cmocka():
    told = run("meson", "setup", f"{BUILD}/gpu", str(TOP), "-Dwerror=true", "-Doptimization=0",
               "-Dcmocka=disabled")
    if "CUDA : yes" not in " ".join(told.split()):
        raise tap.Skip("no CUDA toolkit")
    programs = [f"tests/gpu/test_gpu_{name}" for name in ("kernels", "engine", "updater")]
    programs += [f"tests/gpu/{name}" for name in ("gpu_wire", "gpu_sticky", "test_cuda_engine", "test_cuda_updater")]
    run("ninja", "-C", f"{BUILD}/gpu", *programs)
    for name in ("engine", "updater"):
        told = run(f"{BUILD}/gpu/tests/gpu/test_cuda_{name}")
        assert "\nok 1 - " in told and "not ok" not in told, told


tap.run([tests_on_a_gpu_need_no_cmocka] if sys.argv[1:] == ["gpu"] else
        [every_library_can_be_switched_off, what_is_left_compiles_and_says_what_it_lacks])
