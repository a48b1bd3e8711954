# SPDX-License-Identifier: Apache-2.0
"""A small module of PyTorch and the loop that trains it, for the tests. No server runs: native_model.py stands for them."""
import pytern as tern
import pytern.torch
import torch
from torch import nn

from native_model import session

X = torch.linspace(-1, 1, 24).reshape(8, 3)
Server = pytern.torch.Server


def refused(kind, sentence, call, *arguments, **options):
    """The call must raise an exception of exactly this class, whose text begins with this sentence."""
    try:
        call(*arguments, **options)
    except Exception as error:
        assert type(error) is kind and str(error).startswith(sentence), f"{type(error).__name__}: {error}"
        return str(error)
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def small(*more):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), *more, nn.Linear(4, 2))


def loss_of(module, x=X):
    return (module(x) ** 2).mean()


def train(module, each=None, slots=3, server_options=None, **options):
    """Trains for some slots, in each of which each(server, slot) is called, or a plain step is made. Returns the Native
    and the Server."""
    s, native = session(slots, **options)
    with s:
        server = Server(module, s, **(server_options or {}))
        for slot in s.slots():
            with slot:
                if each:
                    each(server, slot)
                else:
                    loss = loss_of(module)
                    loss.backward()
                    slot.loss(loss.item())
    return native, server


def in_slot(sentence, each, module=None, kind=tern.Error, **server_options):
    """What each(server, slot) does in a slot must be refused with this sentence, and the slot fails for that reason."""
    module = module or small()
    s, native = session()
    told = None
    try:
        with s:
            server = Server(module, s, **server_options)
            for slot in s.slots():
                with slot:
                    slot.loss(0)
                    each(server, slot)
    except Exception as error:
        told = error
    assert type(told) is kind and str(told).startswith(sentence), f"{type(told).__name__}: {told}"
    assert len(native.failures) == 1 and sentence.split("\n")[0] in native.failures[0], native.failures


def before_first_slot(sentence, change, module=None):
    module = module or small()
    s, native = session()

    def loop():
        with s:
            Server(module, s)
            with torch.no_grad():
                change(module)
            for slot in s.slots():
                with slot:
                    slot.loss(0)
    refused(tern.Error, sentence, loop)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.step()  # the session is closed, and the module belongs to the program
