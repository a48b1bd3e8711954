# SPDX-License-Identifier: Apache-2.0
"""Large parameters lie in the memory in which pytern.torch receives them: that programs never see anything else than the
slot's values, whatever they keep and write. No server runs: native_model.py stands for them, and fills the buffer of the
next version with other values as soon as a gradient has been pushed.

usage: torch_views.py
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import contextlib
import copy
import gc
import os
import warnings

import numpy
import pytern as tern
import pytern.torch
import torch
from torch import nn

from jobs import tap
from native_model import SCRIBBLE, session

Server = pytern.torch.Server
X = torch.linspace(-1, 1, 3 * 128).reshape(3, 128)
LARGE = ["0.weight", "2.weight"]  # the names of the parameters of large() that views are made of


def large():
    return nn.Sequential(nn.Linear(128, 256), nn.Tanh(), nn.Linear(256, 128))


def of_step(step, name, shape):
    return numpy.full(shape, step + len(name))


def has_values_of(step, module):
    return all(torch.equal(p, torch.full_like(p, step + len(name))) for name, p in module.named_parameters())


def compute(module, x=X):
    loss = (module(x) ** 2).mean() * 1e-6
    loss.backward()
    return loss.item()


def train(module, each=None, slots=5, between=None, server_options=None, values=of_step, compute=compute, **options):
    """Trains for some slots. each(slot) is called in each one, behind a step, and between(slot) behind it. Returns the
    Native."""
    s, native = session(slots, values=values, **options)
    with s:
        Server(module, s, **(server_options or {}))
        for slot in s.slots():
            with slot:
                assert values is not of_step or has_values_of(slot.step, module), slot
                slot.loss(compute(module))
                assert values is not of_step or has_values_of(slot.step, module), slot
                if each:
                    each(slot)
            if between:
                between(slot)
    assert values is not of_step or has_values_of(native.step() + 1, module)
    return native


def copied(slot):
    return [name for name in LARGE if name in slot._session._native.copied]


# ---- values ----

def large_parameters_are_not_copied():
    def each(slot):
        assert copied(slot) == [], slot
        assert {"0.bias", "2.bias"} <= set(slot._session._native.copied)
    module = large()
    before = list(module.parameters())
    native = train(module, each, between=lambda slot: has_values_of(slot.step, module))
    assert all(one is other for one, other in zip(before, module.parameters()))
    assert native.maps == 2
    native.receive()
    assert has_values_of(5, module)


def gradients_are_those_of_copied_parameters():
    start = large()
    results = [train(copy.deepcopy(start), values=None, per_step=per_step, server_options={"copy": how})
               for per_step in (1, 2) for how in (False, True)]
    for native in results[1:2] + results[2:]:
        for one, other in zip(results[0].values, native.values):
            assert numpy.array_equal(one, other)


def the_module_has_the_values_of_the_last_slot_between_slots():
    module = large()

    def between(slot):
        assert has_values_of(slot.step, module)
        with torch.no_grad():
            assert torch.equal(module(X), copy.deepcopy(module)(X))
    train(module, between=between)


def copies_and_other_modes_leave_parameters_where_they_are():
    for options in ({"server_options": {"copy": True}}, {"mode": "async"}, {"mode": "ssp:2"}):
        module = large()
        pointers = [p.data_ptr() for p in module.parameters()]
        native = train(module, lambda slot: [p.data_ptr() for p in module.parameters()] == pointers or 1 / 0, **options)
        assert native.maps == 0 and [p.data_ptr() for p in module.parameters()] == pointers


# ---- who refers to a parameter ----

KINDS = {
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "a view": lambda p: p.detach()[1:].t(),
    "an array": lambda p: p.detach().numpy(),
    "DLPack": lambda p: numpy.from_dlpack(p.detach()),
    "a storage": lambda p: torch.empty(0).set_(p.detach().storage()).reshape(p.shape),
}


def whoever_refers_to_a_parameter_sees_its_values_in_every_slot():
    """References that were made before Server(), in a slot, between slots."""
    for kind, alias_of in KINDS.items():
        for when in range(3):
            module = large()
            kept = [alias_of(module[0].weight)] if when == 0 else []

            def check(step):
                for alias in kept:
                    assert bool((torch.as_tensor(alias) == step + len("0.weight")).all()), (kind, when, step, alias)

            def each(slot):
                if when == 1 and slot.step == 1:
                    kept.append(alias_of(module[0].weight))
                check(slot.step)
                since = (0, 2, 2)[when]
                assert copied(slot) == (["0.weight"] if slot.step >= since else []), (kind, when, slot, copied(slot))

            def between(slot):
                check(slot.step)
                if when == 2 and slot.step == 1:
                    kept.append(alias_of(module[0].weight))
            native = train(module, each, between=between)
            check(5)
            pointer = torch.as_tensor(kept[0]).data_ptr()
            assert abs(pointer - module[0].weight.data_ptr()) <= 512, (kind, when)
            native.receive()
            check(5)


def a_parameter_moves_again_when_nobody_refers_to_it():
    kept = []

    def each(slot):
        if slot.step % 4 == 1:
            kept.append(module.state_dict())
        if slot.step % 4 == 3:
            kept.clear()
        assert copied(slot) == (LARGE if slot.step % 4 in (2, 3) else []), (slot, copied(slot))
    module = large()
    native = train(module, each, slots=12)
    assert native.maps == 2 + 3  # a new one where the dictionary was of a mapping


def references_to_every_version_keep_their_memory():
    """Each is followed by the parameter from then on, so there is one memory of it."""
    module = large()
    kept = []
    train(module, lambda slot: kept.append(module.state_dict()["2.weight"]))
    assert len({alias.data_ptr() for alias in kept}) == 1 and all(bool((alias == 5 + 8).all()) for alias in kept)


def an_average_of_the_parameters_can_be_kept():
    module = large()
    average = copy.deepcopy(module)
    expected = {name: p.detach().clone() for name, p in module.named_parameters()}

    def between(slot):
        with torch.no_grad():
            for (name, p), mean in zip(module.named_parameters(), average.parameters()):
                mean.lerp_(p, 0.5)
                expected[name] = expected[name] * 0.5 + (slot.step + len(name)) * 0.5
    native = train(module, lambda slot: copied(slot) and 1 / 0, between=between)
    native.receive()
    assert all(torch.allclose(p, expected[name]) for name, p in average.named_parameters())


def a_graph_of_an_earlier_slot_is_refused_and_spoils_nothing():
    kept = []

    def each(slot):
        if not kept:
            kept.append((module(X.clone().requires_grad_()) ** 2).mean())
        elif slot.step == 1:
            try:
                kept[0].backward()
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)
            else:
                raise AssertionError("the graph has computed with other values")
    module = large()
    train(module, each)


class Odd(nn.Module):
    """Parameters that views cannot be made of, or only with care."""

    def __init__(self):
        super().__init__()
        flat = torch.zeros(2 * 128 * 128 + 16)
        self.first = nn.Parameter(flat[16:16 + 128 * 128].view(128, 128).data)
        self.second = nn.Parameter(flat[16 + 128 * 128:].view(128, 128).data)
        self.unaligned = nn.Parameter(torch.zeros(128 * 128 + 1)[1:].data)
        self.conv = nn.Conv2d(64, 64, 3).to(memory_format=torch.channels_last)
        self.embedding = nn.Embedding(200, 128)
        self.out = nn.Linear(128, 200, bias=False)
        self.out.weight = self.embedding.weight
        self.rnn = nn.LSTM(128, 128)
        self.frozen = nn.Parameter(torch.ones(128, 128), requires_grad=False)

    def forward(self, x):
        y = self.rnn(x[None])[0][0] @ self.frozen @ self.first @ self.second + self.unaligned[:128]
        return self.out(y + self.embedding(torch.arange(3))).mean() + self.conv(torch.ones(1, 64, 4, 4)).mean()


def odd_parameters_have_their_values_too():
    module = Odd()
    frozen = module.frozen.data_ptr()
    pointers = [p.data_ptr() for p in (module.first, module.second, module.unaligned, module.conv.weight)]
    names = [name for name, p in module.named_parameters() if p.requires_grad]

    def values(step, name, shape):
        return numpy.full(shape, (step + len(name)) * 1e-3)

    def each(slot):
        for name in names:
            p = module.get_parameter(name)
            assert torch.equal(p, torch.full_like(p, (slot.step + len(name)) * 1e-3)), name
        assert "embedding.weight" not in slot._session._native.copied and {"first", "second", "unaligned"} <= set(
            slot._session._native.copied)
        assert not any(name.startswith("rnn.weight") for name in slot._session._native.copied)
        assert module.out.weight is module.embedding.weight
    native = train(module, each, values=values)
    assert sorted(native.history[0][0]) == sorted(names)
    assert [p.data_ptr() for p in (module.first, module.second, module.unaligned, module.conv.weight)] == pointers
    assert module.frozen.data_ptr() == frozen


# ---- writes ----

def writes_that_autograd_does_not_see_end_with_the_slot():
    """In the next slot of the same version, too, and nobody else has them."""
    module = large()

    def spoil(slot):
        module[0].weight.data.fill_(-5)
        module[2].weight.detach().numpy()[3:] = -6
        native = slot._session._native
        assert not any((buffer.floats == value).any() for buffer in native.buffers for value in (-5, -6))
    for per_step in (1, 2, 3):
        train(module, spoil, slots=6, per_step=per_step)


def writes_between_slots_end_with_the_next_one():
    module = large()
    train(module, between=lambda slot: module.load_state_dict(large().state_dict()), per_step=2, slots=6)


def writes_that_autograd_sees_are_errors():
    module = large()

    def write(slot):
        with torch.no_grad():
            module[2].weight.mul_(2)
    try:
        train(module, write)
    except tern.Error as error:
        assert str(error).startswith("parameter 2.weight was changed in the slot")
    else:
        raise AssertionError("nothing was raised")


def other_memory_in_a_slot_is_an_error():
    module = large()

    def move(slot):
        module[2].weight.data = module[2].weight.data.clone()
    try:
        train(module, move)
    except tern.Error as error:
        assert str(error).startswith("parameter 2.weight has other memory than")
    else:
        raise AssertionError("nothing was raised")


# ---- the end, and other processes ----

def scribble(native):
    for buffer in native.buffers:
        buffer.floats[:] = SCRIBBLE


def parameters_have_memory_of_their_own_when_the_session_is_over():
    """After an exception, a loop that is left, and close(), in a slot and between slots. What refers to a parameter keeps
    its values, too."""
    for act in ("raise in the slot", "raise", "leave in the slot", "leave", "close in the slot", "close"):
        module = large()
        s, native = session(9, values=of_step)
        kept = []
        left = native.leave

        def leave(text):
            scribble(native)  # the others go on
            left(text)
        native.leave = leave
        with contextlib.suppress(KeyError), s:
            Server(module, s)
            for slot in s.slots():
                with contextlib.ExitStack() as stack:
                    stack.enter_context(slot)
                    slot.loss(compute(module))
                    if slot.step == 2:
                        kept.append(module[0].weight.detach().numpy())
                    if slot.step == 2 and act == "raise in the slot":
                        raise KeyError
                    if slot.step == 2 and act == "leave in the slot":
                        break
                    if slot.step == 2 and act == "close in the slot":
                        s.close()
                        slot._ended, native.holds = True, False
                        stack.pop_all()
                        break
                if slot.step == 2 and act == "raise":
                    raise KeyError
                if slot.step == 2 and act == "leave":
                    break
                if slot.step == 2 and act == "close":
                    s.close()
                    break
        scribble(native)
        step = 3 if act == "leave in the slot" and not slot._ended else 2
        assert has_values_of(step, module), act
        assert (kept[0] == 2 + len("0.weight")).all(), act
        torch.optim.SGD(module.parameters(), lr=0.1).step()


def a_module_that_nobody_closes_keeps_its_memory():
    module = large()
    s, native = session(9, values=of_step)
    Server(module, s)
    for slot in s.slots():
        with slot:
            slot.loss(compute(module))
        if slot.step == 2:
            break
    del s, slot
    gc.collect()
    assert has_values_of(2, module)


def a_forked_child_has_the_values_of_the_fork():
    module = large()
    children = []

    def fork(slot):
        told, tell = os.pipe()
        ready = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 3.12, about threads
            child = os.fork()
        if child == 0:
            try:
                os.close(tell)
                os.read(told, 1)  # until the parent has received other values
                ready = has_values_of(slot.step, module)
            finally:
                os._exit(0 if ready else 1)
        os.close(told)
        children.append((child, tell))
    native = train(module, lambda slot: slot.step == 1 and fork(slot), between=lambda slot: slot.step == 2 and fork(slot))
    scribble(native)
    assert len(children) == 2
    for _, go in children:  # all of them first, since the second child has the first one's pipe, too
        os.close(go)
    for child, _ in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


tap.run([
    large_parameters_are_not_copied,
    gradients_are_those_of_copied_parameters,
    the_module_has_the_values_of_the_last_slot_between_slots,
    copies_and_other_modes_leave_parameters_where_they_are,
    whoever_refers_to_a_parameter_sees_its_values_in_every_slot,
    a_parameter_moves_again_when_nobody_refers_to_it,
    references_to_every_version_keep_their_memory,
    an_average_of_the_parameters_can_be_kept,
    a_graph_of_an_earlier_slot_is_refused_and_spoils_nothing,
    odd_parameters_have_their_values_too,
    writes_that_autograd_does_not_see_end_with_the_slot,
    writes_between_slots_end_with_the_next_one,
    writes_that_autograd_sees_are_errors,
    other_memory_in_a_slot_is_an_error,
    parameters_have_memory_of_their_own_when_the_session_is_over,
    a_module_that_nobody_closes_keeps_its_memory,
    a_forked_child_has_the_values_of_the_fork,
])
