#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch trains a model, in three ways. alone: one process without communication, which computes the batches of
`--workers` workers one after the other. ddp: a process for each worker with DistributedDataParallel, which sums the
gradients with gloo, layers at the end of the model first, while the others are being computed. ddp-tern: the same with
Tern's backend.
"""
import torch
import torch.distributed as dist
import torch_models
import torch_ranks
import train_common
from torch import nn


def train(options, module, run, batches, mine):
    """Trains `module`. mine: the workers whose batches this process computes."""
    optimizer = torch.optim.SGD(module.parameters(), lr=options.model.lr)
    for step in range(train_common.steps_of(options)):
        if run:
            run.before(step)
        optimizer.zero_grad(set_to_none=True)
        for worker in mine:
            x, y = batches.of(step, worker)
            loss = nn.functional.cross_entropy(module(x), y)
            (loss / len(mine) if len(mine) > 1 else loss).backward()
            loss.item()  # as a program does that shows its progress
        optimizer.step()


def alone(options, data):
    module = torch_models.make(options.model, data)
    run = train_common.Run(options, data, torch_models.tests(module, data))
    train(options, module, run, torch_models.Batches(options, data), range(options.workers))
    run.end(peer="PyTorch", version=torch.__version__)


def work(options, data, rank):
    backend = "gloo" if options.variant == "ddp" else "tern"
    if backend == "tern":
        import pytern.torch.distributed  # noqa: F401 registers the backend
    dist.init_process_group(backend, rank=rank, world_size=options.workers)
    module = torch_models.make(options.model, data)
    # Without the view, each gradient is copied into the bucket that is sent, and back.
    parallel = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    run = train_common.Run(options, data, torch_models.tests(module, data)) if rank == 0 else None
    train(options, parallel, run, torch_models.Batches(options, data), [rank])
    if run:
        run.end(peer="PyTorch", version=torch.__version__)
    dist.barrier()
    dist.destroy_process_group()


def main():
    options = train_common.parse(["alone", "ddp", "ddp-tern"])
    torch.set_num_threads(1)
    data = train_common.data_of(options)
    if options.variant == "alone":
        return alone(options, data)
    torch_ranks.run("fork", options.workers, work, options, data)


if __name__ == "__main__":
    main()
