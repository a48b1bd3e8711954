#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two processes of PyTorch sum a tensor by torch.distributed.all_reduce, over gloo or over Tern. Prints a line of JSON
for each size: how long a call takes at rank 0.
"""
import argparse
import json
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch_ranks

RANKS = 2
WARM = 20  # at most: a tenth of the rounds, and at least 2


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "tern"), required=True)
    parser.add_argument("--size", required=True, help="bytes of the tensors, with commas between them")
    parser.add_argument("--rounds", required=True, help="measured calls of each size, with commas between them")
    return parser.parse_args()


def busy_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def percentile(sorted_times, part):
    return sorted_times[min(len(sorted_times) - 1, int(part * len(sorted_times)))]


def measure(rank, size, rounds):
    """Sums tensors of ones. Returns (times of the calls in us, processor time in s of all ranks and measured calls)."""
    tensor, times = torch.empty(size // 4), []
    warm = max(2, min(WARM, rounds // 10))
    for i in range(warm + rounds):
        if i == warm:
            dist.barrier()
            began = busy_s()
        tensor.fill_(1.0)
        start = time.perf_counter()
        dist.all_reduce(tensor)
        if i >= warm:
            times.append((time.perf_counter() - start) * 1e6)
        if not bool((tensor == RANKS).all()):
            sys.exit(f"rank {rank}: a sum is wrong")
    used = torch.tensor([busy_s() - began], dtype=torch.float64)
    dist.all_reduce(used)
    return sorted(times), used.item()


def work(options, rank):
    torch.set_num_threads(1)
    if options.backend == "tern":
        import pytern.torch.distributed  # noqa: F401 registers the backend
    dist.init_process_group(options.backend, rank=rank, world_size=RANKS)
    for size, rounds in zip(options.size.split(","), options.rounds.split(",")):
        times, used_s = measure(rank, int(size), int(rounds))
        if rank == 0:
            print(json.dumps({
                "peer": f"PyTorch, {options.backend}", "version": torch.__version__, "size": int(size),
                "p50_us": percentile(times, 0.5), "p99_us": percentile(times, 0.99),
                "cpu_s_per_gb": used_s * 1e9 / (int(size) * int(rounds))}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    torch_ranks.run("spawn", RANKS, work, parse())


if __name__ == "__main__":
    main()
