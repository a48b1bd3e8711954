#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does the run of nvcc's code on the CPU notice a mistake in it? Each barrier of the kernels is left out at run
time: an error must be reported, except for the barriers of NOT_MISSED. And a build whose products and sums are
fused into one rounding must fail the tests that compare bits.

usage: mutants.py [--all] KERNELS.ptx PROGRAM FUSED_PROGRAM

Without --all one barrier of each kernel is left out.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "harness")]
import tap  # noqa: E402
import translate  # noqa: E402

REPORTED = 99  # PTX_REPORTED in ptx.h
# The group of tests that runs a kernel; all others are run by layers.
GROUP = {"tern_cuda_squares": "sums", "tern_cuda_total": "sums"}
LIMIT_S = 60
# After the last step of a reduction thread 0 alone reads what thread 0 alone has written. These barriers end the
# loop's steps like all others, and nobody would miss them.
NOT_MISSED = {("tern_cuda_squares", 9), ("tern_cuda_total", 9), ("tern_cuda_bias_grad", 6),
              ("tern_cuda_xent_total", 9), ("tern_cuda_xent_total", 17)}


def run(program, group, **environment):
    environment["CMOCKA_MESSAGE_OUTPUT"] = "stdout"  # even if the environment asks cmocka for TAP
    return subprocess.run([program, group], env=dict(os.environ, **environment), timeout=LIMIT_S, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def without(program, kernel, barrier):
    return run(program, GROUP.get(kernel, "layers"), TERN_PTX_LEFT_OUT=f"{kernel}:{barrier}")


def is_not_missed(program, kernel, barrier):
    done = without(program, kernel, barrier)
    assert done.returncode == 0, f"exit status {done.returncode}: it is not one of NOT_MISSED"


def is_missed(program, kernel, barrier):
    done = without(program, kernel, barrier)
    told = [line for line in done.stdout.splitlines() if line.startswith(f"{kernel}: ")]
    assert done.returncode == REPORTED and told, f"exit status {done.returncode}, nothing reported"
    print(f"# {told[0]}")


def fusing_is_noticed(program):
    done = run(program, "elementwise")
    # A failed case leaves memory of the simulated driver open, which may end the process before it says FAILED.
    failed = [line for line in done.stdout.splitlines() if line.startswith(("[  ERROR   ]", "[  FAILED  ]"))]
    assert done.returncode not in (0, REPORTED) and failed, f"exit status {done.returncode}: all bits are as without"
    print(f"# {len(failed)} lines of failures")


def case(name, function, *arguments):
    def test():
        function(*arguments)

    test.__name__ = name
    return test


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("ptx", type=Path)
    parser.add_argument("program")
    parser.add_argument("fused")
    arguments = parser.parse_args()
    cases = [case("fused_arithmetic_is_noticed", fusing_is_noticed, arguments.fused)]
    for kernel in translate.kernels(arguments.ptx.read_text(encoding="utf-8")):
        barriers = range(1, kernel.barriers + 1)
        for n in barriers if arguments.all else barriers[:1]:
            expected = is_not_missed if (kernel.name, n) in NOT_MISSED else is_missed
            cases.append(case(f"barrier_{n}_of_{kernel.name}_{expected.__name__}", expected, arguments.program,
                              kernel.name, n))
    tap.run(cases)


if __name__ == "__main__":
    main()
