# SPDX-License-Identifier: Apache-2.0
"""A module whose parts are not used in all steps, against torch.optim: a parameter without a gradient stands still.

usage: torch_unused.py TERN, or as a worker: torch_unused.py worker OUT CASE
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import sys

import numpy
import pytern as tern
import pytern.torch
import torch
from torch import nn

from jobs import SCRATCH, Job, tap

STEPS, SLOTS, FREEZE = 11, 2, 6
CASES = {
    "adamw": (lambda: dict(optimizer=tern.AdamW(lr=0.05, weight_decay=0.1)),
              lambda p: (torch.optim.AdamW(p, lr=0.05, weight_decay=0.1), None)),
    "momentum": (lambda: dict(optimizer=tern.Momentum(lr=0.05, momentum=0.9, weight_decay=0.1)),
                 lambda p: (torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1), None)),
    "schedule": (lambda: dict(optimizer=tern.Adam(lr=0.05), schedule=tern.Step(3, 0.5)),
                 lambda p: ((adam := torch.optim.Adam(p, lr=0.05)), torch.optim.lr_scheduler.StepLR(adam, 3, 0.5))),
}


class Model(nn.Module):
    """`rare` is not used in all slots, `never` in none, and the last bias is frozen after some steps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.common, self.rare, self.never, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(3, 2), nn.Linear(4, 1)

    def forward(self, x, rare):
        y = torch.tanh(self.common(x))
        return self.out(y + self.rare(y) if rare else y)


def compute(model, step, slot):
    """Computes the gradient of a slot. `rare` is used in no slot of some steps, in one of others."""
    model.out.bias.requires_grad_(step < FREEZE)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + slot))
    loss = (model(x, step % 3 == 2 or (step % 3 == 1 and slot == 1)) ** 2).mean()
    loss.backward()
    return loss.item()


def work(out, case):
    model = Model()
    with tern.Session(steps=STEPS, slots=SLOTS, **CASES[case][0]()) as session:
        server = pytern.torch.Server(model, session)
        for slot in server.slots():
            with slot:
                slot.loss(compute(model, slot.step, slot.number))
        with session.finishing() as mine:
            if mine:
                numpy.savez(out, **server.state_dict())


def expected(case):
    """Trains the module with PyTorch alone: a gradient is the mean over the slots, and None if no slot has one."""
    model = Model()
    optimizer, scheduler = CASES[case][1](model.parameters())
    for step in range(STEPS):
        sums = {}
        for slot in range(SLOTS):
            model.zero_grad(set_to_none=True)
            compute(model, step, slot)
            for name, p in model.named_parameters():
                if p.grad is not None:
                    sums[name] = sums.get(name, 0) + p.grad / SLOTS
        for name, p in model.named_parameters():
            p.grad = sums.get(name)
        optimizer.step()
        if scheduler:
            scheduler.step()
    counts = {name: int(optimizer.state[p].get("step", -1)) for name, p in model.named_parameters() if p in optimizer.state}
    assert "never.weight" not in counts and counts.get("rare.weight", -1) in (-1, STEPS * 2 // 3), counts
    return model


def result(case, workers, servers, fabric):
    out = SCRATCH / "unused.npz"
    with Job(workers, servers, fabric) as job:
        for i in range(workers):
            job.worker(i, __file__, "worker", out, case)
        job.end()
    with numpy.load(out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def test_of(case):
    def test():
        wanted, first = expected(case), None
        for workers, servers, fabric in ((1, 2, "tcp"), (2, 1, "auto")):
            got = result(case, workers, servers, fabric)
            first = got if first is None else first
            for name, value in wanted.state_dict().items():
                assert got[name].tobytes() == first[name].tobytes(), (name, workers)
                numpy.testing.assert_allclose(got[name], value.numpy(), rtol=2e-5, atol=2e-6, err_msg=f"{case}, {name}")
        before = Model().state_dict()
        for name in ("never.weight", "never.bias"):
            assert first[name].tobytes() == before[name].numpy().tobytes(), name
    test.__name__ = f"{case}_lets_parameters_without_a_gradient_stand_still"
    return test


if sys.argv[1] == "worker":
    work(*sys.argv[2:])
else:
    tap.run([test_of(case) for case in CASES])
