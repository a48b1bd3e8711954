# SPDX-License-Identifier: Apache-2.0
"""The parts of ./run gpu, in the order in which they run, and the programs of each.

Tests and memcheck come before speed, the other checkers and the comparison with PyTorch after it, and
what may leave the device unusable comes last. Each part has a limit of its own, so that one that is slow
leaves time for the others.
"""
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_run import jobs, judge, machine

SCALES = ["few", "some", "large"]
PROGRAM_LIMIT_S = 60
KERNELS_LIMIT_S = 10
NCU_LIMIT_S = 60


@dataclass(frozen=True)
class Program:
    name: str
    command: list
    judge: Callable = judge.of_cases
    limit_s: float = PROGRAM_LIMIT_S
    scale: str = "large"
    env: dict = field(default_factory=dict)
    may_be_slow: bool = False  # reaching its limit is a lack of time, and no failure
    again: bool = False  # after a failure it runs again, as rerun.py says
    group: str = ""  # all programs of a group must have the same hashes


@dataclass(frozen=True)
class Part:
    name: str
    limit_s: float
    about: str
    programs: Callable = lambda context: []


@dataclass(frozen=True)
class Context:
    built: Path
    out: Path
    scale: str = "large"  # the largest TERN_GPU_SCALE of any program

    def test(self, name, *args):
        return [self.built / "tests" / "gpu" / name, *args]

    def bench(self, name, *args):
        return [self.built / "bench" / "gpu" / name, *args]


KERNEL_GROUPS = ["elementwise", "sums", "layers"]
# Programs of suite gpu: name, program, arguments.
SUITE = [*[(f"gpu_{group}", "test_gpu_kernels", [group]) for group in KERNEL_GROUPS],
         ("gpu_engine", "test_gpu_engine", []), ("gpu_updater", "test_gpu_updater", []),
         ("gpu_wire", "gpu_wire", []), ("gpu_wire_processes", "gpu_wire", ["--processes"])]
HASHED = {"gpu_engine", "gpu_updater"}


def kernels(context, **env):
    """Every kernel once, without cuBLAS, so that Tern's own matrix products are tested and nothing else is loaded."""
    return [Program(f"gpu_{group}", context.test("test_gpu_kernels", group), limit_s=KERNELS_LIMIT_S, scale="few",
                    env={"TERN_GPU_BLAS": "none", **env}, again=True)
            for group in KERNEL_GROUPS]


def suites(context):
    """Programs that print hashes run twice, since two processes must compute the same bits."""
    programs = []
    for name, program, args in SUITE:
        hashed = name in HASHED
        programs.append(Program(name, context.test(program, *args), again=True, group=name if hashed else ""))
        if hashed:
            programs.append(Program(f"{name}, another process", context.test(program, *args), group=name))
    return programs


def jit(context):
    """The programs of kernels(), with PTX that the driver compiles; they run without cuBLAS, which would need
    PTX, too."""
    return kernels(context, CUDA_FORCE_PTX_JIT="1")


# Only our own kernels are checked for races, not those of cuBLAS. Elementwise kernels have no barriers.
OURS = ["--kernel-regex", "kns=tern_cuda"]
CHECKERS = {
    # The tests make calls that the driver refuses, on purpose.
    "memcheck": (["--report-api-errors", "no"], set()),
    "racecheck": (OURS, {"gpu_elementwise"}),
    "synccheck": (OURS, {"gpu_elementwise"}),
    "initcheck": ([], {"gpu_elementwise"}),
}
CHECKER_LIMIT_S = 45


def under(tool, command):
    return [machine.tool("compute-sanitizer"), "--tool", tool, "--error-exitcode", str(judge.FOUND),
            "--print-limit", "20", "--target-processes", "all", *CHECKERS[tool][0], *command]


def checker(tool):
    def programs(context):
        return [Program(name, under(tool, context.test(program, *args)), judge.of_checker, CHECKER_LIMIT_S, "few",
                    may_be_slow=True)
                for name, program, args in SUITE
                if name not in CHECKERS[tool][1] and name != "gpu_wire_processes"]
    return programs


def whole_jobs(context):
    return [Program(job.name, job.command(context.built / "tern"), judge.of_job(job.saved, job.plain), job.LIMIT_S,
                    env=job.env, again=True, group=job.group)
            for job in jobs.listed(context.out, context.scale == "few")]


def python(script, *args):
    return [sys.executable, machine.TOP / "tests" / "gpu" / script, *args]


def of_torch(context):
    env = {"PYTHONPATH": str(context.built / "python")}
    return [Program("torch_jobs.py", python("torch_jobs.py", context.built / "tern"), limit_s=120, env=env),
            Program("torch_ranks.py", python("torch_ranks.py"), limit_s=120, env=env),
            Program("torch_ranks.py --rates", python("torch_ranks.py", "--rates"), judge.of_rows, 90, env=env)]


def of_nccl(context):
    env = {"TERN_NCCL_PLUGIN": str(context.built / "plugins" / "nccl" / "libnccl-net-tern.so")}
    return [Program("nccl_ranks.py", python("nccl_ranks.py"), limit_s=60, env=env),
            Program("nccl_ranks.py --rates", python("nccl_ranks.py", "--rates"), judge.of_rows, 90, env=env)]


def bench(self, name, *args):
        return [self.built / "bench" / "gpu" / name, *args]


KERNEL_GROUPS = ["elementwise", "sums", "layers"]
# Programs of suite gpu: name, program, arguments.
SUITE = [*[(f"gpu_{group}", "test_gpu_kernels", [group]) for group in KERNEL_GROUPS],
         ("gpu_engine", "test_gpu_engine", []), ("gpu_updater", "test_gpu_updater", []),
         ("gpu_wire", "gpu_wire", []), ("gpu_wire_processes", "gpu_wire", ["--processes"])]
HASHED = {"gpu_engine", "gpu_updater"}


def kernels(context, **env):
    """Every kernel once, without cuBLAS, so that Tern's own matrix products are tested and nothing else is loaded."""
    return [Program(f"gpu_{group}", context.test("test_gpu_kernels", group), limit_s=KERNELS_LIMIT_S, scale="few",
                    env={"TERN_GPU_BLAS": "none", **env}, again=True)
            for group in KERNEL_GROUPS]


def suites(context):
    """Programs that print hashes run twice, since two processes must compute the same bits."""
    programs = []
    for name, program, args in SUITE:
        hashed = name in HASHED
        programs.append(Program(name, context.test(program, *args), again=True, group=name if hashed else ""))
        if hashed:
            programs.append(Program(f"{name}, another process", context.test(program, *args), group=name))
    return programs


def jit(context):
    """The programs of kernels(), with PTX that the driver compiles; they run without cuBLAS, which would need
    PTX, too."""
    return kernels(context, CUDA_FORCE_PTX_JIT="1")


# Only our own kernels are checked for races, not those of cuBLAS. Elementwise kernels have no barriers.
OURS = ["--kernel-regex", "kns=tern_cuda"]
CHECKERS = {
    # The tests make calls that the driver refuses, on purpose.
    "memcheck": (["--report-api-errors", "no"], set()),
    "racecheck": (OURS, {"gpu_elementwise"}),
    "synccheck": (OURS, {"gpu_elementwise"}),
    "initcheck": ([], {"gpu_elementwise"}),
}
CHECKER_LIMIT_S = 45


def under(tool, command):
    return [machine.tool("compute-sanitizer"), "--tool", tool, "--error-exitcode", str(judge.FOUND),
            "--print-limit", "20", "--target-processes", "all", *CHECKERS[tool][0], *command]


def checker(tool):
    def programs(context):
        return [Program(name, under(tool, context.test(program, *args)), judge.of_checker, CHECKER_LIMIT_S, "few",
                    may_be_slow=True)
                for name, program, args in SUITE
                if name not in CHECKERS[tool][1] and name != "gpu_wire_processes"]
    return programs


def whole_jobs(context):
    return [Program(job.name, job.command(context.built / "tern"), judge.of_job(job.saved, job.plain), job.LIMIT_S,
                    env=job.env, again=True, group=job.group)
            for job in jobs.listed(context.out, context.scale == "few")]


def torch_jobs(context):
    script = machine.TOP / "tests" / "gpu" / "torch_jobs.py"
    return [Program("torch_jobs.py", [sys.executable, script, context.built / "tern"], limit_s=120,
                    env={"PYTHONPATH": str(context.built / "python")})]


def nccl_ranks(context):
    script = machine.TOP / "tests" / "gpu" / "nccl_ranks.py"
    return [Program("nccl_ranks.py", [sys.executable, script], limit_s=150,
                    env={"TERN_NCCL_PLUGIN": str(context.built / "plugins" / "nccl" / "libnccl-net-tern.so")})]


def bench(*names):
    def programs(context):
        return [Program(name, context.bench(name), judge.of_rows, 120) for name in names]
    return programs


def ncu(context):
    """Profiles the first launch of each kernel, at the sizes of the measurements; the output is kept as text in
    programs/. Without cuBLAS the matrix products are Tern's own kernel."""
    first = [machine.tool("ncu"), "--kernel-id", "::regex:^tern_cuda_:1"]
    return [Program(f"ncu of {name}", [*first, *context.bench(name)], judge.of_tool, NCU_LIMIT_S, "some",
                    {"TERN_GPU_BLAS": "none"}, may_be_slow=True) for name in ("gpu_rates", "gpu_graphs")]


def sticky(context):
    """The context that gpu_sticky corrupts ends with its process, so the next process can use the device."""
    return [Program("gpu_sticky", context.test("gpu_sticky")),
            Program("another process afterwards", context.bench("gpu_rates", "--device"), judge.of_tool, 10)]


def compare(context):
    script = machine.TOP / "bench" / "gpu" / "compare.py"
    return [Program("compare.py", [sys.executable, script, *context.bench("gpu_step")], judge.of_rows, 240)]


PARTS = [
    Part("facts", 20, "the device, the driver, the toolkit, tern info"),
    Part("build", 150, "builds into build-gpu/"),
    Part("kernels", 20, "every kernel once", kernels),
    Part("suites", 120, "suite gpu: kernels, engine, updater, tensors on the wire", suites),
    Part("jit", 30, "the kernels compiled from PTX by the driver", jit),
    Part("jobs", 90, "whole jobs, whose saved files are to be equal", whole_jobs),
    Part("memcheck", 60, "compute-sanitizer: memory errors", checker("memcheck")),
    Part("rates", 90, "kernels beside copies on the device, PCIe, launches", bench("gpu_rates")),
    Part("sweeps", 40, "threads per block, bytes per thread, and cuBLAS's workspace, beside other sizes",
         bench("gpu_threads", "gpu_workspace")),
    Part("staging", 60, "pieces through page-locked slots beside one copy", bench("gpu_staging")),
    Part("engine", 60, "gradients with CUDA graphs beside plain launches", bench("gpu_graphs")),
    Part("updater", 60, "a server's updates by the size of the chunk", bench("gpu_updates")),
    Part("wire", 60, "GPU memory between two processes, by CUDA IPC and staged", bench("gpu_moves")),
    Part("ncu", 120, "Nsight Compute: one launch of each kernel", ncu),
    Part("racecheck", 90, "compute-sanitizer: races in shared memory", checker("racecheck")),
    Part("synccheck", 60, "compute-sanitizer: barriers", checker("synccheck")),
    Part("initcheck", 60, "compute-sanitizer: reads of uninitialised memory", checker("initcheck")),
    Part("compare", 240, "training steps beside PyTorch's", compare),
    Part("torch", 240, "PyTorch: jobs that train a module, and torch.distributed, beside gloo", of_torch),
    Part("nccl", 150, "an all-reduce of NCCL over Tern, beside NCCL's sockets", of_nccl),
    Part("sticky", 30, "an error on purpose that spoils the device for one process", sticky),
]
BY_NAME = {part.name: part for part in PARTS}
# Parts that fit into one call on a machine that is lent for ten minutes.
GROUPS = {
    "tests": ["facts", "build", "kernels", "suites", "jit", "jobs", "memcheck"],
    "speed": ["facts", "rates", "sweeps", "staging", "engine", "updater", "wire", "ncu"],
    "checkers": ["facts", "racecheck", "synccheck", "initcheck", "compare", "torch", "nccl", "sticky"],
}


def chosen(text):
    """The parts that a list of names asks for, in the order in which they run."""
    names = set()
    for name in text.split(",") if text is not None else list(BY_NAME):
        if name not in BY_NAME and name not in GROUPS:
            raise ValueError(f"--parts {name}: not one of {', '.join([*BY_NAME, *GROUPS])}")
        names |= set(GROUPS.get(name, [name]))
    if names != {"build"}:  # a build needs no device
        names.add("facts")
    return [part for part in PARTS if part.name in names]


def smaller(*scales):
    return min(filter(None, scales), key=SCALES.index)
