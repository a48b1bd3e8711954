# SPDX-License-Identifier: Apache-2.0
"""recv() without a source of PyTorch's torch.distributed over Tern.

usage: torch_any_source.py
"""
import os
import re
import signal
import time

import with_torch  # noqa: F401  (first: it may start this script again, with another Python)
import torch
import torch.distributed as dist
from jobs import tap
from torch_distributed import LIMIT_S, Ranks, run

COUNT = 50


def from_any(rank, size):
    """Rank 0 takes what the others send: small and large tensors, with two tags, and a column that is not contiguous."""
    if rank == 0:
        for tag, shape in ((0, (5,)), (1, (300, 500))):
            counts = [0] * size
            for _ in range(COUNT * (size - 1)):
                got = torch.empty(*shape, 2)[..., 1] if tag else torch.empty(shape)
                source = dist.recv(got, tag=tag)
                # In the order in which that rank has sent them.
                assert (got == 1000 * source + counts[source]).all(), (source, counts, got)
                counts[source] += 1
            assert counts == [0] + [COUNT] * (size - 1), counts
        work = dist.irecv(late := torch.empty(1), tag=3)
        dist.send(torch.ones(1), 2, tag=4)
        work.wait()
        assert work._source_rank() == 2 and late.item() == 7
    else:
        for tag, shape in ((0, (5,)), (1, (300, 500))):
            for number in range(COUNT):
                dist.send(torch.full(shape, float(1000 * rank + number)), 0, tag=tag)
        if rank == 2:
            dist.recv(torch.empty(1), 0, tag=4)
            dist.send(torch.full((1,), 7.0), 0, tag=3)
    group = dist.new_group([1, 2])
    if rank == 1:
        assert dist.recv(got := torch.empty(1), group=group) == 2 and got.item() == 5
    elif rank == 2:
        dist.send(torch.full((1,), 5.0), 1, group=group)
    dist.barrier()
    return True


def each_tensor_is_taken_once_and_its_rank_is_told():
    for fabrics in ("auto", "tcp"):
        run(from_any, 4, fabrics=fabrics)


def waits_for_any(rank, size):
    if rank == 1:
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    errors = []
    for _ in range(2):
        try:
            dist.recv(torch.empty(3))
        except RuntimeError as error:
            errors.append(str(error))
    return {"errors": errors}


def a_rank_that_dies_is_named():
    for fabrics in ("auto", "tcp"):
        with Ranks(waits_for_any, 3, fabrics=fabrics) as ranks:
            rank, answer = ranks.next()
            assert isinstance(answer, dict) and len(answer["errors"]) == 2, answer
            for error in answer["errors"]:
                assert re.search(f"rank 1: .*pid {ranks.running[1].pid} .*is down", error), error


def waits_in_vain(rank, size):
    if rank == 1:
        time.sleep(LIMIT_S)
    try:
        dist.recv(torch.empty(3))
    except RuntimeError as error:
        return {"error": str(error)}


def it_ends_after_the_time_limit():
    with Ranks(waits_in_vain, 2, limit_s=2) as ranks:
        rank, answer = ranks.next()
        assert isinstance(answer, dict) and "recv from any rank has not ended in 2 s" in answer["error"], answer


def alone(rank, size):
    try:
        dist.recv(torch.empty(3))
    except RuntimeError as error:
        return {"error": str(error)}


def one_rank_has_nobody_to_receive_from():
    answer, = run(alone, 1)
    assert "recv from any rank: there is no other rank" in answer["error"], answer


if __name__ == "__main__":
    tap.run([each_tensor_is_taken_once_and_its_rank_is_told, a_rank_that_dies_is_named, it_ends_after_the_time_limit,
             one_rank_has_nobody_to_receive_from])
