#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks nvcc's code without running it: that every float operation rounds once and as IEEE says,
that wide moves are not split, and that the code assembles for each generation of GPUs within its registers.

usage: checks.py NVCC KERNELS.cu WIDTHS.cu INCLUDE_DIRECTORY
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "harness")]
import tap  # noqa: E402

NVCC, SOURCE, WIDTHS, INCLUDE = sys.argv[1:5]
# For each generation of GPUs: the architecture for which its PTX is made.
GENERATIONS = {"sm_80": "compute_80", "sm_90": "compute_90", "sm_100": "compute_90", "sm_120": "compute_90"}
# With at most 64 registers a multiprocessor of each generation runs 1,024 threads; updates move memory, so they
# need more threads at once: 42 registers allow 1,536.
REGISTERS_MOST, REGISTERS_UPDATE = 64, 42
# The rows of TERN_OPTIMIZERS: {name: number of state vectors}.
UPDATES = {name: int(has_m) + int(has_v) for name, has_m, has_v in re.findall(
    r"Y\(X, [A-Z]+, ([a-z]+), ([01]), ([01]),", (Path(INCLUDE) / "kernels/rules.h").read_text(encoding="utf-8"))
    if name != "mean"}
# Least number of 16-byte loads in each kernel whose time is that of moving memory. An update reads the parameters,
# the gradient, and the rule's state.
WIDE_LOADS = {"sum": 1, "f32_to_f16": 1, "f32_to_bf16": 1, "squares": 1, "gather": 1,
              **{name: 2 + states for name, states in UPDATES.items()}}
# Kernels whose source says fmaf; everywhere else nothing is fused.
FUSED = ("matmul", "xent")


def ptx_of(generation, source=SOURCE, *options):
    """{kernel without tern_cuda_: its instructions}, and the file's text."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernels.ptx"
        subprocess.run([NVCC, "-ptx", "-std=c++17", "-O3", "--fmad=false", f"-arch={generation}", "-I", INCLUDE,
                        *options, "-o", path, source], check=True)
        text = path.read_text(encoding="utf-8")
    bodies = re.findall(r"\.entry tern_cuda_(\w+)\(.*?\n\{\n(.*?)\n\}\n", text, re.S)
    return {name: re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)", body, re.M) for name, body in bodies}, text


PTX = {generation: ptx_of(generation) for generation in sorted(set(GENERATIONS.values()))}


def each_instruction():
    for generation, (kernels, _) in PTX.items():
        assert len(kernels) >= 32, f"{generation}: {len(kernels)} kernels"
        for kernel, instructions in kernels.items():
            for one in instructions:
                yield f"{generation} {kernel}: {one}", kernel, one.split(".")


def every_float_operation_rounds_to_nearest():
    for where, _, (base, *rest) in each_instruction():
        if base in ("add", "sub", "mul", "fma", "div", "sqrt") and rest[-1] in ("f32", "f64"):
            assert rest[:-1] == ["rn"], where


def nothing_is_approximated_or_flushed_to_zero():
    for where, _, parts in each_instruction():
        # A division of float64 begins with such a reciprocal, and corrects it.
        if parts != ["rcp", "approx", "ftz", "f64"]:
            assert not {"approx", "ftz", "full"} & set(parts), where


def nothing_is_fused_but_what_says_so():
    fused = {kernel for _, kernel, parts in each_instruction() if parts[0] == "fma" and parts[-1] == "f32"}
    assert fused <= set(FUSED), f"fma.f32 in {', '.join(sorted(fused - set(FUSED)))}"
    assert "matmul" in fused, "the product's fmaf is gone"


def memory_moves_in_16_bytes():
    for generation, (kernels, _) in PTX.items():
        for kernel, least in WIDE_LOADS.items():
            wide = sum(bool(re.fullmatch(r"ld\.global.*\.v4\.[fu]32", one)) for one in kernels[kernel])
            assert wide >= least, f"{generation} {kernel}: {wide} loads of 16 bytes, not {least}"


def other_widths_load_as_many_bytes_as_they_say():
    """With 1, 2 or 8 elements per thread, a kernel of kernels/cuda/blocks/widths.h must load 4, 8 or 16
    bytes at a time."""
    for elements, size, vector in ((1, 4, ""), (2, 8, ".v2"), (8, 16, ".v4")):
        kernels, _ = ptx_of("compute_90", WIDTHS, f"-DTERN_QUAD_ELEMENTS={elements}")
        wanted = re.compile(rf"ld\.global.*(?<!\.v[24]){re.escape(vector)}\.[fu]32")
        for kernel, inputs in (("sum", 8), ("adam", 4), ("f32_to_f16", 1)):
            loads = sum(bool(wanted.fullmatch(one)) for one in kernels[f"{kernel}_{elements}"])
            least = inputs * elements * 4 // size
            assert loads >= least, f"{kernel}_{elements}: {loads} loads of {size} bytes, not {least}"


def assembles(machine):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernels.ptx"
        path.write_text(PTX[GENERATIONS[machine]][1], encoding="utf-8")
        told = subprocess.run([Path(NVCC).with_name("ptxas"), "-v", f"-arch={machine}", "-o", "/dev/null", path],
                              check=True, capture_output=True, text=True).stderr
    found = re.findall(r"Compiling entry function 'tern_cuda_(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill "
                       r"stores, (\d+) bytes spill loads.*?Used (\d+) registers", told, re.S)
    assert len(found) == len(PTX[GENERATIONS[machine]][0]), told
    for kernel, *numbers in found:
        stack, stores, loads, registers = map(int, numbers)
        most = REGISTERS_UPDATE if kernel in UPDATES else REGISTERS_MOST
        assert registers <= most, f"{kernel}: {registers} registers on {machine}, not at most {most}"
        assert stack == stores == loads == 0, f"{kernel}: memory of its own on {machine}"
    print(f"# at most {max(int(n[-1]) for n in found)} registers")


def named(machine):
    def case():
        assembles(machine)

    case.__name__ = f"assembles_for_{machine}"
    return case


if __name__ == "__main__":
    tap.run([every_float_operation_rounds_to_nearest, nothing_is_approximated_or_flushed_to_zero,
             nothing_is_fused_but_what_says_so, memory_moves_in_16_bytes,
             other_widths_load_as_many_bytes_as_they_say, *map(named, GENERATIONS)])
