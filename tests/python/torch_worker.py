# SPDX-License-Identifier: Apache-2.0
"""A worker for the tests: a small module with all that may go wrong, and something that it does at a certain step.

usage: torch_worker.py OUT ACT [STEP]

Prints "step N" for each slot. As the finisher it writes the final parameters to OUT. The module is made with the seed
SEED of the environment, or has the state in the file LOAD. LOADERS is the number of processes that read the batches; their
numbers are printed as "loader PID". With COPY, parameters are copied in each slot; otherwise all that can be are views,
however small. ACT alone is "local": the same loop with a PyTorch optimizer and no servers, which begins with the
parameters in the file STEP and writes the results to OUT.
"""
import multiprocessing
import os
import random
import signal
import sys
import time

import numpy
import pytern as tern
import pytern.torch
import torch
from torch import nn

pytern.torch.views.LEAST_BYTES = 0
STEPS, RECORDS, WIDTH, SYMBOLS, LENGTH = 30, 400, 16, 11, 6
OUT, ACT = sys.argv[1:3]
REST = sys.argv[3:]


class Model(nn.Module):
    """An embedding tied to the output layer, attention with dropout, a convolution, batch normalisation, a frozen and an unused parameter."""

    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=dropout, batch_first=True)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(WIDTH) if os.environ.get("NORM") != "group" else nn.GroupNorm(2, WIDTH)
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.unused = nn.Linear(3, 3)
        self.out = nn.Linear(WIDTH, SYMBOLS)
        self.out.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, x):
        y = self.layer(self.embedding(x) * self.frozen, src_mask=self.mask)
        return self.out(self.norm(self.conv(y.transpose(1, 2))).transpose(1, 2))


class Data:
    """Pieces of a text, of which some symbols are left out at random."""

    def __init__(self):
        rng = numpy.random.default_rng(3)
        self.text = torch.from_numpy(rng.integers(0, SYMBOLS, RECORDS + LENGTH) // 2 * 2 % SYMBOLS)

    def __len__(self):
        return RECORDS

    def __getitem__(self, i):
        return self.text[i:i + LENGTH] * (torch.rand(LENGTH) > 0.1), self.text[i + 1:i + LENGTH + 1]


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def act(slot):
    if ACT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ACT == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if ACT == "raise":
        raise ValueError("no luck")
    if ACT == "interrupt":  # as Ctrl-C does, which reaches all processes of the terminal
        os.killpg(os.getpgrp(), signal.SIGINT)
        time.sleep(60)


def optimizer_of(name):
    return {"adam": tern.Adam(lr=2e-3), "sgd": tern.SGD(lr=0.05)}[name]


def backward(server, model, x, y):
    """One pass, or two over the halves of the batch."""
    if ACT != "accumulate":
        loss = loss_of(model, x, y)
        loss.backward()
        return loss.item()
    losses = [loss_of(model, x[half], y[half]) / 2 for half in (slice(0, 6), slice(6, 12))]
    for loss in losses:
        loss.backward()
    return sum(loss.item() for loss in losses)


def evaluate(server, session, slot, model, dataset):
    """Evaluates and uses whatever the gradient depends on, too: random numbers, and statistics in train()."""
    with server.evaluating(slot):
        x, y = map(torch.stack, zip(*(dataset[record] for record in range(40))))
        assert not any(part.training for part in model.modules()) and not torch.is_grad_enabled()
        session.metric("loss", loss_of(model, x, y))
        model.train()
        loss_of(model, x, y)
        print("evaluated", slot.step, float(torch.rand(1)) + random.random() + numpy.random.random(), flush=True)
    assert all(part.training for part in model.modules()) and torch.is_grad_enabled()


def with_servers(model, dataset, optimizer, slots):
    torch.rand(random.randrange(100))  # the state of the generators must not matter
    with tern.Session(steps=STEPS, slots=slots, seed=9, optimizer=optimizer, records=RECORDS, batch=12,
                      data=tern.digest("data 1"), note=lambda text: print("note", text, flush=True),
                      init_from_first="FROM_FIRST" in os.environ) as session:
        # Most begin with the values of the module; one parameter is left to the servers, unless the module was loaded.
        server = pytern.torch.Server(model, session, copy="COPY" in os.environ, accumulate=2 if ACT == "accumulate" else 1,
                                     init=None if "LOAD" in os.environ else {"embedding.weight": tern.normal(0.3)})
        loaders = int(os.environ.get("LOADERS", "0"))
        for slot, (x, y) in server.slots(dataset, workers=loaders):
            if slot.step == 0:
                assert len(multiprocessing.active_children()) == loaders
                for child in multiprocessing.active_children():
                    print("loader", child.pid, flush=True)
            print("step", slot.step, flush=True)
            with slot:
                if ACT == "watch" and not slot.repeated:
                    trace(model, slot, x, y)
                if ACT == "evaluate" and slot.evaluate:
                    evaluate(server, session, slot, model, dataset)
                loss = backward(server, model, x, y)
                if REST and ACT in ("kill", "terminate", "raise", "interrupt") and slot.step >= int(REST[0]):
                    act(slot)
                slot.loss(loss)
        with session.finishing() as mine:
            if mine:
                save(OUT, server.state_dict())
                if ACT == "watch":
                    torch.save(TRACE, OUT + ".trace")


TRACE = []  # of each slot: its parameters at the beginning, and its batch


def trace(model, slot, x, y):
    TRACE.append(({k: v.clone() for k, v in model.state_dict().items()}, x, y))


def save(path, state):
    numpy.savez(path, **{name: value.numpy() for name, value in state.items()})


def local(model, optimizer):
    """The slots that a job with one worker has traced, in one process."""
    steps = torch.load(REST[0])
    model.load_state_dict(steps[0][0])
    for _, x, y in steps:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    save(OUT, model.state_dict())


def main():
    name = os.environ.get("OPTIMIZER", "adam")
    torch.manual_seed(int(os.environ.get("SEED", "7")))
    model = Model(0.0 if ACT in ("watch", "local", "accumulate") else 0.2)
    if "LOAD" in os.environ:
        with numpy.load(os.environ["LOAD"]) as arrays:
            model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays.files})
    if ACT == "local":
        cls, lr = {"adam": (torch.optim.Adam, 2e-3), "sgd": (torch.optim.SGD, 0.05)}[name]
        local(model, cls([p for p in model.parameters() if p.requires_grad], lr=lr))
    else:
        with_servers(model, Data(), optimizer_of(name), int(os.environ.get("SLOTS", "4")))


if __name__ == "__main__":
    main()
