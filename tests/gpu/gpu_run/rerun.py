# SPDX-License-Identifier: Apache-2.0
"""How a program that failed runs again: with launches that wait for the kernel, so that the error names
the right call; and under memcheck. Both results are kept beside the first one."""
from dataclasses import replace

from gpu_run import judge, plan

LIMIT_S = 45


def ways(program):
    """Yields pairs: how the program runs, and the changed program."""
    yield "CUDA_LAUNCH_BLOCKING=1", replace(program, limit_s=LIMIT_S, env={**program.env, "CUDA_LAUNCH_BLOCKING": "1"})
    yield "memcheck", replace(program, command=plan.under("memcheck", program.command), judge=judge.of_checker,
                              limit_s=LIMIT_S, scale="few", may_be_slow=True)
