# SPDX-License-Identifier: Apache-2.0
"""The question `allreduce`: torch.distributed.all_reduce of two processes, over Tern's backend and over gloo."""
import contenders as who
import install
from figures import rounds_of
from measure import Contender, Question
from trainers import ENVIRONMENT, which_torch, why_no_torch

K, M = 1 << 10, 1 << 20
# Values of TERN_FABRICS. On one host, auto is shared memory.
FABRICS = {"tcp": "tcp", "shm": "auto"}
METRICS = [("p50_us", "us", "smaller"), ("p99_us", "us", "smaller"), ("cpu_s_per_gb", "s/GB", "smaller")]
ABOUT = ("Two processes of PyTorch on one host add a tensor of N bytes of float32 in place, one call after the other; "
         "a figure is how long the call takes at rank 0. Both compute with one thread, nobody is pinned, and everybody "
         "sleeps while it waits. gloo goes over the loopback device, the only way that it has between processes; over "
         "tcp, Tern does the same.")


def package(plan):
    return plan.make.tern_program.parent / "python"


def why_no_backend(plan):
    """Why Tern's backend cannot run; "" if it can."""
    missing = why_no_torch(plan.make.missing)
    if not missing and not (package(plan) / "pytern/_native.abi3.so").exists():
        missing = "pytern was not built, which needs python3-dev"
    return missing


def allreduce(plan):
    points = [(size, rounds_of(size, plan.sizes(2000, 300), least=10, bytes_in_all=plan.sizes(2048, 256) * M))
              for size in (4 * K, M, 64 * M)]
    words = ["--size", ",".join(str(size) for size, _ in points), "--rounds", ",".join(str(n) for _, n in points)]
    program = [install.torch_python(), str(install.TOP / "bench/peers/torch_allreduce.py")]
    found = [Contender(f"tern.{fabric}", f"Tern's backend of PyTorch, {fabric}",
                       [*program, "--backend", "tern", *words],
                       {**ENVIRONMENT, "PYTHONPATH": str(package(plan)), "TERN_FABRICS": FABRICS[fabric]}, "sleep",
                       fabric, why_no_backend(plan), ours=True) for fabric in ("tcp", "shm")]
    found += [Contender(key, title, [*program, "--backend", "gloo", *words], {**ENVIRONMENT, **who.cubic()}, "sleep",
                        fabric, why_no_torch(plan.make.missing))
              for key, title, fabric in (("torch.gloo", "PyTorch, gloo", "tcp"),
                                         ("torch.gloo.shm", "PyTorch, gloo, run next to Tern's shm", "shm"))]
    return Question("allreduce", "All-reduce in PyTorch", ABOUT, found, METRICS, notes=which_torch(plan.make.missing))
