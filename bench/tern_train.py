#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tern in the question `train`: a worker's program in PyTorch, as a user writes it, which `tern run` starts once for
each worker. Worker 0 measures.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import pytern as tern  # noqa: E402
import pytern.torch  # noqa: E402
import torch  # noqa: E402
import torch_models  # noqa: E402
import train_common  # noqa: E402
from torch import nn  # noqa: E402


def begins(model, data):
    """How each parameter begins, in the words of the servers."""
    make = {"uniform": tern.uniform, "constant": tern.constant}
    return {name: make[kind](value) for name, (_, (kind, value)) in train_common.parameters(model, data).items()}


def main():
    options = train_common.parse()
    data = train_common.data_of(options)
    module = torch_models.make(options.model, data)
    batches = torch_models.Batches(options, data)
    run = None
    if os.environ["TERN_INDEX"] == "0":
        run = train_common.Run(options, data, torch_models.tests(module, data))
    with tern.Session(steps=train_common.steps_of(options), seed=train_common.SEED,
                      optimizer=tern.SGD(lr=options.model.lr), data=tern.digest(data.x, data.y),
                      arithmetic="bench train 1") as session:
        pytern.torch.Server(module, session, init=begins(options.model, data))
        for slot in session.slots():
            with slot:
                if run:
                    run.before(slot.step)
                x, y = batches.of(slot.step, slot.number)
                loss = nn.functional.cross_entropy(module(x), y)
                loss.backward()
                slot.loss(loss.item())
        if run:
            run.end(peer="Tern", version=torch.__version__)
        with session.finishing():
            pass


if __name__ == "__main__":
    main()
