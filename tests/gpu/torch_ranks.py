# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torch.distributed over Tern with tensors on a GPU: the operations of tests/python/torch_distributed.py, in which
order they and the GPU's work come, and with --rates how long an all-reduce takes, beside gloo's. PYTHONPATH names the folder
of the package pytern.

usage: torch_ranks.py [--rates]
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "harness"), str(HERE.parent / "python")]
SKIPPED = 77
SIZES = {1 << 10: "4 KiB", 1 << 18: "1 MiB", 1 << 24: "64 MiB"}  # by number of floats
ROUNDS, ROUNDS_BEFORE = 12, 2
SOME_MS = 100_000_000  # of the GPU's clock: some 50


def why_not():
    """Asks another process: after a look at the GPU this one could not fork any more."""
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True,
                          text=True)
    if done.returncode:
        return f"{sys.executable} has no PyTorch: pip install torch"
    return "" if done.stdout.strip() == "True" else "PyTorch has found no CUDA device"


def on_gpu(act):
    """The same, with tensors on a GPU wherever it does not say where."""
    import torch

    def acts(rank, size):
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.set_default_device("cuda")
        return act(rank, size)
    return acts


def cases():
    import torch
    import torch.distributed as dist
    import torch_distributed as on_cpu

    def what_gloo_has_too_gives_what_gloo_gives():
        for size, fabrics in ((2, "auto"), (3, "tcp")):
            expected = on_cpu.run(on_gpu(on_cpu.of_gloo), size, backend="gloo")
            assert on_cpu.run(on_gpu(on_cpu.of_gloo), size, fabrics=fabrics) == expected, fabrics

    def what_gloo_does_not_have_is_right():
        on_cpu.run(on_gpu(on_cpu.beyond_gloo), 3)

    def ddp_gives_the_bytes_that_gloo_gives():
        expected = on_cpu.run(on_gpu(on_cpu.trained), 2, backend="gloo")
        assert expected[0] == expected[1]
        for fabrics in ("auto", "tcp"):
            assert on_cpu.run(on_gpu(on_cpu.trained), 2, fabrics=fabrics) == expected, fabrics

    def behind_the_stream(rank, size):
        """The operation has what the stream has written before, and the stream what the operation gives, without a wait for
        the GPU, except that CUDA waits in the first rounds, in which kernels are loaded and memory is page-locked. Memory
        that the caller lets go is not used anew too early."""
        stream = torch.cuda.Stream()
        for number in range(ROUNDS_BEFORE + 20):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SOME_MS)
                tensor = torch.full((1 << 20,), rank + 1.0)
                whole = torch.empty(size << 20)
                works = [dist.all_gather_into_tensor(whole, tensor * 2, async_op=True),
                         dist.all_reduce(tensor, async_op=True)]
                assert number < ROUNDS_BEFORE or not stream.query(), f"round {number}: the call has waited for the GPU"
                other = torch.full((1 << 20,), -1.0)
                for work in works:
                    work.wait()
                found = tensor + 1, whole * 3, other
            stream.synchronize()
            assert (found[0] == size * (size + 1) / 2 + 1).all(), number
            assert all((part == 6 * (r + 1)).all() for r, part in enumerate(found[1].chunk(size))), number
        return True

    def an_operation_is_behind_the_current_stream():
        for fabrics in ("auto", "tcp"):
            on_cpu.run(on_gpu(behind_the_stream), 2, fabrics=fabrics)

    def mixed(rank, size):
        """Tensors of the CPU after those of a GPU, which wait for it."""
        for _ in range(20):
            torch.cuda._sleep(SOME_MS)
            there, here = torch.ones(1000), torch.ones(1000, device="cpu")
            works = [dist.all_reduce(tensor, async_op=True) for tensor in (there, here)]
            for work in works:
                work.wait()
            assert (here == size).all() and (there == size).all()
        return True

    def operations_keep_their_order():
        on_cpu.run(on_gpu(mixed), 2)

    def a_rank_that_dies_is_named():
        for fabrics in ("auto", "tcp"):
            with on_cpu.started(fabrics, act=on_gpu(on_cpu.until_it_fails)) as ranks:
                time.sleep(0.5)
                ranks.running[1].kill()
                for _ in range(2):
                    rank, answer = ranks.next()
                    assert isinstance(answer, dict) and "rank 1 (" in answer["error"], (rank, answer)
    return [what_gloo_has_too_gives_what_gloo_gives, what_gloo_does_not_have_is_right, ddp_gives_the_bytes_that_gloo_gives,
            an_operation_is_behind_the_current_stream, operations_keep_their_order, a_rank_that_dies_is_named]


def rates(fabric, asked, how):
    """Returns rows: an all-reduce of a GPU's tensor over this fabric, and beside it the same by gloo, in turns. `asked`: what
    TERN_FABRICS names, so that it is over this fabric."""
    import torch
    import torch.distributed as dist
    import torch_distributed as on_cpu

    def measure(rank, size):
        groups = {"tern": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

        def call_us(backend, tensor, calls):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor, group=groups[backend])
            torch.cuda.synchronize()
            return (time.perf_counter() - start) / calls * 1e6

        found = {}
        for count in SIZES:
            tensor, took = torch.zeros(count), {"tern": [], "gloo": []}
            for number in range(ROUNDS_BEFORE + ROUNDS):
                for backend in ("tern", "gloo", "gloo", "tern"):
                    us = call_us(backend, tensor, 5 if count >= 1 << 22 else 50)
                    if number >= ROUNDS_BEFORE:
                        took[backend].append(us)
            found[count] = took
        return found

    for count, took in on_cpu.run(on_gpu(measure), 2, fabrics=asked)[0].items():
        yield {"name": f"all-reduce of {SIZES[count]} of a GPU, 2 ranks, by torch.distributed over Tern ({fabric})",
               "peer": "gloo", "ours_us": took["tern"], "peer_us": took["gloo"], "bytes": 4 * count, "note": how}


def main():
    why = why_not()
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    import tap

    if sys.argv[1:] != ["--rates"]:
        tap.run(cases())
    import mps

    with tempfile.TemporaryDirectory(prefix="tern-mps-") as folder, mps.running(folder) as (places, how):
        os.environ.update(places)
        for fabric, asked in (("shm", "auto"), ("tcp", "tcp")):
            for row in rates(fabric, asked, how):
                print(json.dumps(row), flush=True)


main()
