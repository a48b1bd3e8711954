# SPDX-License-Identifier: Apache-2.0
"""Evaluation in the middle of the training, which leaves no trace."""
import contextlib
import random
from collections.abc import Iterator

import numpy
import torch
from torch import nn


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """The module is in eval() in the block, and no gradients are computed. At its end the module's buffers, its modes, and
    the generators of torch, numpy and random are as they were before."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    gpus = {tensor.device for tensor in (*module.parameters(), *module.buffers()) if tensor.device.type == "cuda"}
    of_gpus = [(gpu, torch.cuda.get_rng_state(gpu)) for gpu in gpus]
    of_torch, of_random, of_numpy = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
        with torch.no_grad():
            for buffer, before in buffers:
                # PyTorch 1.13 does not count the changes of running statistics, so the values are compared.
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
        # Autocast keeps the casts of parameters that were made here, without a graph, for the forward pass of the slot.
        torch.clear_autocast_cache()
        torch.set_rng_state(of_torch)
        for gpu, state in of_gpus:
            torch.cuda.set_rng_state(state, gpu)
        random.setstate(of_random)
        numpy.random.set_state(of_numpy)
