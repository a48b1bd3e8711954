# SPDX-License-Identifier: Apache-2.0
"""What pytern.torch does with a module in each slot. No server runs: native_model.py stands for them.

usage: torch_slots.py
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import contextlib
import copy
import random

import numpy
import pytern as tern
import pytern.torch
import torch
import torch.utils.checkpoint
from pytern.torch import devices
from pytern.torch.views import Memory
from torch import nn

from jobs import tap
from native_model import session
from torch_loop import Server, X, before_first_slot, in_slot, loss_of, refused, small, train


# ---- values ----

def every_parameter_has_the_slots_version_from_the_first_forward_to_the_end():
    def values(step, name, shape):
        return numpy.full(shape, step + len(name))
    module = nn.ModuleDict({"a": small(), "b": nn.LayerNorm(5), "c": nn.Conv2d(2, 3, 2).to(
        memory_format=torch.channels_last), "d": nn.PReLU()})
    module.register_parameter("scalar", nn.Parameter(torch.tensor(2.0)))

    def each(server, slot):
        for name, p in module.named_parameters():
            assert torch.equal(p, torch.full_like(p, slot.step + len(name))), (slot.step, name)
        slot.loss(0)
    _, server = train(module, each, values=values)
    for name, p in module.named_parameters():
        assert torch.equal(p, torch.full_like(p, 3 + len(name))), name


def parameters_keep_their_identity_and_memory():
    module = small()
    before = [(p, p.data_ptr(), p.detach()) for p in module.parameters()]
    train(module)
    for (p, pointer, alias), now in zip(before, module.parameters()):
        assert p is now and p.data_ptr() == pointer and torch.equal(alias, now)


def the_state_after_the_last_slot_is_the_final_one():
    module = small()
    native, server = train(module)
    for name, value in zip(native.names, native.values):
        assert numpy.array_equal(module.state_dict()[name].numpy(), value), name
        assert numpy.array_equal(server.state_dict()[name].numpy(), value), name
    again = small()
    again.load_state_dict(server.state_dict())
    assert torch.equal(again(X), module(X))
    s, _ = session()
    refused(tern.Error, "state_dict() has the final values after the last slot", Server(small(), s).state_dict)


def a_graph_of_an_earlier_slot_cannot_use_the_new_values():
    kept = []

    def each(server, slot):
        slot.loss(0)
        if slot.step == 0:
            kept.append(loss_of(server.module))
        else:
            kept[0].backward()
    s, native = session()
    with contextlib.suppress(RuntimeError), s:
        server = Server(small(), s)
        for slot in s.slots():
            with slot:
                each(server, slot)
    assert "modified by an inplace operation" in native.failures[0], native.failures


def the_module_can_be_evaluated_between_slots():
    module = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2))
    x = torch.linspace(-1, 1, 2 * 3 * 8).reshape(2, 3, 8)
    s, native = session()
    with s:
        Server(module, s)
        for slot in s.slots():
            with slot:
                module.train()
                loss = loss_of(module, x)
                loss.backward()
                slot.loss(loss.item())
            module.eval()
            fast = None
            with torch.no_grad():
                fast = module(x)  # where PyTorch has a faster path for such layers
            assert torch.allclose(fast, module(x), atol=1e-5)
    assert len(native.history) == 3 and all(len(pushed) == 14 for pushed, _ in native.history)


LEFT_IN_EVAL = ("module (the whole): Sequential computes gradients in eval() and was in train() before: call train() after an "
                "evaluation")


def a_module_that_an_evaluation_left_in_eval_is_named():
    module = small(nn.Dropout(0.5))

    def each(server, slot):
        loss_of(module).backward()
        if slot.step == 1:
            module.eval()
    in_slot(LEFT_IN_EVAL, each, module)


def an_evaluation_before_the_first_slot_must_end_in_train():
    module = small(nn.Dropout(0.5))

    def each(server, slot, train):
        if slot.step == 0:
            module.eval()
        if train:
            module.train()
        loss_of(module).backward()
    in_slot(LEFT_IN_EVAL, lambda server, slot: each(server, slot, False), module)
    train(module.train(), lambda server, slot: (each(server, slot, True), slot.loss(0)))


def a_part_may_stay_in_eval_and_not_change_its_mode():
    module = small(nn.Dropout(0.5))
    module[2].eval()

    def each(server, slot):
        if slot.step == 2:
            module[2].train()
        with server.no_sync():
            loss_of(module).backward()
    in_slot("module 2: Dropout computes gradients in train() and was in eval() before", each, module)


def a_module_may_begin_in_eval():
    module = small(nn.Dropout(0.5)).eval()

    def each(server, slot):
        module.train()
        loss_of(module).backward()
        module.eval()
        slot.loss(0)
    train(module, each)


# ---- devices ----

class Normed(nn.Module):
    """Parameters in both layouts, and running statistics."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(3)
        self.second = nn.Linear(300 * 3, 60)
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, x):
        return self.second(self.norm(self.first(x)).flatten(1)) * self.scale


def values_and_gradients_of_another_device_are_copied():
    """No device is at hand, so the CPU's tensors go the way of a GPU's: nothing of them is read or written in place."""
    def run():
        torch.manual_seed(3)
        module = Normed()

        def each(server, slot):
            loss = loss_of(module, torch.rand(2, 2, 21, 16))
            loss.backward()
            with server.evaluating(slot):
                module(torch.rand(2, 2, 21, 16))
            slot.loss(loss.item())
        native, server = train(module, each, values=lambda step, name, shape: numpy.full(shape, 0.1 + 0.1 * step))
        return native.history, server.state_dict()
    usual = run()
    before = devices.on_host, devices.to_host, Memory.array
    devices.on_host = lambda tensor: False
    devices.to_host = lambda tensor: numpy.array(tensor.detach())
    Memory.array = None
    try:
        copied = run()
    finally:
        devices.on_host, devices.to_host, Memory.array = before
    assert len(usual[0]) == len(copied[0]) == 3
    for (one, loss), (other, same_loss) in zip(usual[0], copied[0]):
        assert loss == same_loss and len(one) == 9 and list(one) == list(other)
        assert all(numpy.array_equal(one[name], other[name]) for name in one)
    assert all(torch.equal(value, copied[1][name]) for name, value in usual[1].items())


def the_precision_of_products_is_part_of_the_arithmetic():
    """PyTorch has had new names for it since 2.9, and refuses the old ones after these were used."""
    module = small()
    s, _ = session()
    server = Server(module, s)
    before = server.arithmetic()
    conv = getattr(getattr(torch.backends.mkldnn, "conv", None), "fp32_precision", None)
    if conv is None:
        torch.set_float32_matmul_precision("medium")
        assert server.arithmetic() != before
        torch.set_float32_matmul_precision("highest")
    else:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        assert server.arithmetic() != before
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert server.arithmetic() == before


def devices_that_cannot_be_trained_on_are_named():
    s, _ = session()
    refused(ValueError, "parameter 0.weight is on meta: parameters on the CPU or on a CUDA device can be trained",
            Server, small().to("meta"), s)
    module = small()
    module[2].to("meta")
    module[2].weight.requires_grad_(False)
    refused(ValueError, "parameter 2.bias is on meta: ", Server, module, s)


# ---- initial values ----

class Unknown(nn.Module):
    """Layouts and shapes of all kinds, and a parameter that nobody knows how to initialise."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.place = nn.Parameter(torch.randn(3, 4).t())
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.norm = nn.BatchNorm1d(4)


def training_begins_with_the_values_of_the_module():
    module = Unknown()
    module.norm(torch.randn(9, 4))
    before = copy.deepcopy(module.state_dict())

    def each(server, slot):
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name]), name
        slot.loss(0)
        for statistic in ("running_mean", "running_var"):
            assert not torch.equal(before[f"norm.{statistic}"], getattr(nn.BatchNorm1d(4), statistic))
    native, server = train(module, each, slots=1)
    assert native.names == ["place", "scale", "conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean",
                            "norm.running_var"]
    assert all(init == (4, 0.0, 0.0) for init in native.inits)
    assert server.state_dict()["norm.num_batches_tracked"] == 1 + 9  # and the steps of the session


def stated_values_are_made_by_the_servers():
    native, _ = train(small(), server_options={"init": {"*.weight": tern.normal(0.1), "0.*": tern.zeros()}})
    assert native.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert native.inits == [(3, 0.0, 0.1), (0, 0.0, 0.0), (3, 0.0, 0.1), (4, 0.0, 0.0)]
    module = small()
    native, _ = train(module, server_options={"init": tern.torch.init_of(module)})
    assert [init[0] for init in native.inits] == [2] * 4


def a_counter_that_differs_is_another_job():
    jobs = set()
    for passes in (0, 1, 1):
        norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        for _ in range(passes):
            norm(X)
        jobs.add(train(norm)[0].job[7])
    assert len(jobs) == 2, jobs


# ---- gradients ----

def gradients_are_those_of_autograd_and_are_taken_away():
    module = small()
    native, _ = train(module, slots=2)
    assert all(p.grad is None for p in module.parameters())
    for step in range(2):
        assert list(native.history[step][0]) != native.names  # from the last layer to the first
        assert sorted(native.history[step][0]) == sorted(native.names)
    # The gradient of the second slot, computed anew from the values that the second slot had.
    twin = small()
    for p, value, name in zip(twin.parameters(), native.values, native.names):
        with torch.no_grad():
            p.copy_(torch.from_numpy(value + numpy.float32(0.1) * native.history[1][0][name]))
    loss_of(twin).backward()
    for p, name in zip(twin.parameters(), native.names):
        assert numpy.allclose(p.grad.numpy(), native.history[1][0][name], rtol=1e-4, atol=1e-7), name


def gradients_in_another_layout_are_sent_in_row_major_order():
    x = torch.linspace(-1, 1, 2 * 3 * 5 * 5).reshape(2, 3, 5, 5)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(2)
        module = nn.Conv2d(3, 4, 2).to(memory_format=layout)
        results.append(train(module, lambda server, slot: (loss_of(module, x).backward(), slot.loss(0)))[0])
    for one, other in zip(results[0].values, results[1].values):
        assert numpy.allclose(one, other, rtol=1e-5, atol=1e-7)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return None


def a_gradient_of_none_is_no_gradient():
    module = small()

    def each(server, slot):
        (NoGradient.apply(module[0].weight).sum() + module[2].weight.sum()).backward()
        loss_of(module[0]).backward()
        slot.loss(0)
    native, _ = train(module, each)
    assert sorted(native.history[0][0]) == ["0.bias", "0.weight", "2.weight"]


def gradients_from_outside_the_slots_are_not_sent():
    plain, _ = train(copy.deepcopy(MODULE))
    module = copy.deepcopy(MODULE)
    s, native = session()
    with s:
        Server(module, s)
        for slot in s.slots():
            loss_of(module, X + 1).backward()
            with slot:
                loss_of(module).backward()
                slot.loss(0)
    assert same(plain, native)


def parameters_without_a_gradient_are_not_pushed():
    module = nn.ModuleDict({"used": small(), "unused": nn.Linear(2, 2)})

    def each(server, slot):
        loss_of(module["used"]).backward()
        slot.loss(0)
    native, _ = train(module, each)
    assert sorted(native.history[0][0]) == sorted(n for n in native.names if n.startswith("used"))


def zero_grad_anywhere_changes_nothing():
    plain, _ = train(copy.deepcopy(MODULE))

    def each(server, slot):
        server.module.zero_grad()
        loss = loss_of(server.module)
        loss.backward()
        server.module.zero_grad()
        slot.loss(loss.item())
    zeroing, _ = train(copy.deepcopy(MODULE), each)
    assert same(plain, zeroing)


def same(one, other):
    return one.names == other.names and all(map(numpy.array_equal, one.values, other.values))


MODULE = small()


def accumulation_sends_the_sum_once():
    plain, _ = train(copy.deepcopy(MODULE), lambda server, slot: (loss_of(server.module).backward(), slot.loss(0)))

    def halves(server, slot):
        for _ in range(2):
            assert not slot._session._native.pushed
            (loss_of(server.module) / 2).backward()
        slot.loss(0)

    def quiet(server, slot):
        with server.no_sync():
            (loss_of(server.module) / 2).backward()
        assert not slot._session._native.pushed
        (loss_of(server.module) / 2).backward()
        slot.loss(0)

    def only_quiet(server, slot):
        with server.no_sync():
            loss_of(server.module).backward()
        slot.loss(0)
    assert same(plain, train(copy.deepcopy(MODULE), halves, server_options={"accumulate": 2})[0])
    assert same(plain, train(copy.deepcopy(MODULE), quiet)[0])
    assert same(plain, train(copy.deepcopy(MODULE), only_quiet)[0])


def a_parameter_that_becomes_final_twice_is_an_error():
    def twice(server, slot):
        loss_of(server.module).backward()
        loss_of(server.module).backward()
    in_slot("parameter 2.bias: its gradient was sent after one backward pass and another pass adds to it", twice)

    def by_hand(server, slot):
        loss_of(server.module).backward()
        p = next(server.module.parameters())
        p.grad = torch.zeros_like(p)
    in_slot("parameter 0.weight: its gradient was sent, and `grad` was set again", by_hand)


def recomputation_computes_the_same():
    if tuple(map(int, torch.__version__.split(".")[:2])) < (1, 11):
        raise tap.Skip("this PyTorch has no checkpoints without reentrance")
    plain, _ = train(copy.deepcopy(MODULE))
    for reentrant in (False, True):
        def each(server, slot):
            x = X.clone().requires_grad_()
            loss = (torch.utils.checkpoint.checkpoint(server.module, x, use_reentrant=reentrant) ** 2).mean()
            loss.backward()
            slot.loss(loss.item())
        assert same(plain, train(copy.deepcopy(MODULE), each)[0]), reentrant


def running_statistics_are_those_of_every_slot_together():
    for momentum in (0.1, None):
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Linear(4, 1))
        twin = copy.deepcopy(module)

        def each(server, slot):
            if slot.step == 0:
                twin.load_state_dict(copy.deepcopy(module.state_dict()))
            for part in (module, twin):
                loss_of(part, X * (slot.step + 1)).backward()
            slot.loss(0)
            assert native_of(slot).names[-2:] == ["1.running_mean", "1.running_var"]
            module.eval()  # a program may measure in a slot
            module(X)
            module.train()
        native, server = train(module, each, lr=0)
        assert native.rules == [None] * 6 + ["mean"] * 2
        for key in ("running_mean", "running_var"):
            assert torch.allclose(getattr(module[1], key), getattr(twin[1], key), rtol=1e-6), (momentum, key)
            assert not torch.equal(getattr(module[1], key), getattr(nn.BatchNorm1d(4), key))
        assert server.state_dict()["1.num_batches_tracked"] == 9  # the steps of the session


def native_of(slot):
    return slot._session._native


def every_slot_begins_with_the_servers_statistics():
    def values(step, name, shape):
        return numpy.full(shape, step + 1)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def each(server, slot):
        for buffer in (module[1].running_mean, module[1].running_var):
            assert torch.equal(buffer, torch.full((4,), slot.step + 1.0))
        assert module[1].num_batches_tracked == slot.step
        module(X)
        loss_of(module).backward()
        slot.loss(0)
    native, _ = train(module, each, values=values)
    assert torch.equal(module[1].running_var, torch.full((4,), 4.0))
    assert all({"1.running_mean", "1.running_var"} < set(pushed) for pushed, _ in native.history)
    frozen = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval())
    native, _ = train(frozen, lambda server, slot: slot.loss(loss_of(frozen).item()))
    assert native.names == ["0.weight", "0.bias", "1.weight", "1.bias"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.embedding(x))


def evaluations_leave_random_numbers_and_statistics_as_they_were():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4).eval())
    generators = (lambda: torch.rand(3).tolist(), lambda: numpy.random.rand(3).tolist(), lambda: [random.random()] * 3)

    def draw():
        return [generator() for generator in generators]

    def each(server, slot):
        first = draw()
        module(X)
        state = {name: value.clone() for name, value in module.state_dict().items()}
        at = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
        with may_raise(slot.step == 1):
            with server.evaluating(slot):
                assert not any(part.training for part in module.modules()) and not torch.is_grad_enabled()
                module.train()
                module(X + 1)
                assert not torch.equal(module[1].running_mean, state["1.running_mean"])
                draw()
                if slot.step == 1:
                    raise KeyError("an evaluation that fails")
        assert [part.training for part in module] == [True, True, True, False] and torch.is_grad_enabled()
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        following = draw()
        torch.set_rng_state(at[0]), random.setstate(at[1]), numpy.random.set_state(at[2])
        assert following == draw() and following != first
        loss_of(module).backward()
        slot.loss(0)
    train(module, each)


@contextlib.contextmanager
def may_raise(expected):
    try:
        yield
    except KeyError:
        assert expected


def an_evaluation_does_not_hide_a_buffer_that_the_slot_has_changed():
    module = small()
    module.register_buffer("count", torch.zeros(1))

    def each(server, slot):
        module.count += 1
        with server.evaluating(slot):
            module.count += 1
        assert module.count == 1
    in_slot("buffer count of a Sequential was changed in the slot", each, module)


def an_evaluation_belongs_into_its_slot():
    server = Server(small(), session()[0])
    slot = tern.session.Slot(server._session, 1, 0, 0, 0, 7, False, True)
    try:
        with server.evaluating(slot):
            raise AssertionError("it is not in the slot")
    except tern.Error as error:
        assert error.text == "slot 0 of step 0: evaluate inside `with slot:`", error.text
    server.close()


def tied_parameters_are_one_tensor():
    module = Tied()
    x = torch.arange(5)

    def each(server, slot):
        loss_of(module, x).backward()
        slot.loss(0)
    native, server = train(module, each)
    assert native.names == ["embedding.weight"]
    assert module.out.weight is module.embedding.weight
    assert set(server.state_dict()) == {"embedding.weight", "out.weight"}
    segments = Tied()

    def in_segments(server, slot):
        ones = torch.ones(1, requires_grad=True)
        inner = torch.utils.checkpoint.checkpoint(lambda one: segments.embedding(x) * one, ones, use_reentrant=True)
        (torch.utils.checkpoint.checkpoint(segments.out, inner, use_reentrant=True) ** 2).mean().backward()
    in_slot("parameter embedding.weight: its gradient was sent", in_segments, segments)


def frozen_parameters_are_not_declared_and_are_part_of_the_job():
    def described(value):
        module = small()
        nn.init.constant_(module[0].weight, value).requires_grad_(False)
        native, _ = train(module, arithmetic="mine 1")
        assert native.names == ["0.bias", "2.weight", "2.bias"]
        assert torch.equal(module[0].weight, torch.full((4, 3), value))
        return native.job[7]
    assert described(1.0) == described(1.0) != described(2.0)
    assert described(1.0).startswith("mine 1; torch ") and len(described(1.0)) < 128, described(1.0)

    def thaw(server, slot):
        server.module[0].weight.requires_grad_(True)
    module = small()
    module[0].weight.requires_grad_(False)
    s, _ = session()

    def loop():
        with s:
            server = Server(module, s)
            for slot in s.slots():
                with slot:
                    thaw(server, slot)
                    slot.loss(0)
    refused(tern.Error, "parameter 0.weight requires a gradient and was not declared", loop)


def other_dropout_is_another_job():
    jobs = {train(small(nn.Dropout(p)))[0].job[7] for p in (0.1, 0.1, 0.2)}
    assert len(jobs) == 2, jobs


def an_evaluation_under_autocast_leaves_the_slots_gradients():
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    def each(server, slot):
        with server.evaluating(slot):
            module(torch.arange(5))
        module(torch.arange(5)).sum().backward()
        slot.loss(0)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        native, _ = train(module, each)
    assert all(len(pushed) == 5 for pushed, _ in native.history), [list(pushed) for pushed, _ in native.history]


def bfloat16_autocast_sends_float32_and_sees_new_values():
    def each(server, slot):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(X)
            assert y.dtype == torch.bfloat16
        loss = (y.float() ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        slot.loss(loss.item())
    losses = []
    module = copy.deepcopy(MODULE)
    native, _ = train(module, each, lr=1.0)
    assert all(len(pushed) == 4 for pushed, _ in native.history)
    module = copy.deepcopy(MODULE)
    inside, losses = losses, []
    # A context around all slots keeps copies of the parameters in bfloat16, which must not be those of the first slot.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(module, each, lr=1.0)
    assert len(set(losses)) == 3 and losses == inside, (losses, inside)


# ---- random numbers ----

def random_numbers_depend_on_the_slot_only():
    def draws(noise):
        drawn = []

        def each(server, slot):
            drawn.append((torch.rand(3).tolist(), random.random(), numpy.random.rand()))
            noise()
            slot.loss(0)
        train(small(), each)
        return drawn
    first = draws(lambda: None)
    assert first == draws(lambda: (torch.rand(5), random.random(), numpy.random.rand(4)))
    assert len({repr(drawn) for drawn in first}) == 3
    s, _ = session(records=16)
    with s:
        server = Server(small(), s)
        for slot, batch in server.slots([torch.rand(1) for _ in range(16)], collate_fn=lambda items: torch.rand(3)):
            with slot:
                assert not torch.equal(batch, torch.rand(3))
                slot.loss(0)


def threads_and_determinism_are_set():
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(2)
    train(small())
    assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
    assert " threads 2 " in train(small(), server_options={"threads": 2})[0].job[7]
    torch.set_num_threads(1)
    assert train(small(), server_options={"arithmetic": "as I say"})[0].job[7] == "as I say"


def settings_that_change_after_the_declaration_are_errors():
    with temporarily(lambda: torch.set_num_threads(1)):
        before_first_slot("PyTorch computes with 2 threads now", lambda module: torch.set_num_threads(2))
    with temporarily(lambda: torch.use_deterministic_algorithms(True)):
        before_first_slot("PyTorch may use algorithms that are not deterministic now",
                          lambda module: torch.use_deterministic_algorithms(False))


@contextlib.contextmanager
def temporarily(restore):
    try:
        yield
    finally:
        restore()


# ---- data ----

def slots_come_with_the_batch_of_their_records():
    data = [(torch.full((3,), float(i)), i) for i in range(10)]
    s, native = session(records=10)
    with s:
        server = Server(small(), s)
        for slot, (x, y) in server.slots(data):
            with slot:
                assert y.tolist() == slot.records.tolist() and torch.equal(x[:, 0], y.float())
                slot.loss(loss_of(server.module, x).item())
    assert len(native.history) == 3


tap.run([
    every_parameter_has_the_slots_version_from_the_first_forward_to_the_end,
    parameters_keep_their_identity_and_memory,
    the_state_after_the_last_slot_is_the_final_one,
    a_graph_of_an_earlier_slot_cannot_use_the_new_values,
    the_module_can_be_evaluated_between_slots,
    a_module_that_an_evaluation_left_in_eval_is_named,
    an_evaluation_before_the_first_slot_must_end_in_train,
    a_part_may_stay_in_eval_and_not_change_its_mode,
    a_module_may_begin_in_eval,
    values_and_gradients_of_another_device_are_copied,
    the_precision_of_products_is_part_of_the_arithmetic,
    devices_that_cannot_be_trained_on_are_named,
    training_begins_with_the_values_of_the_module,
    stated_values_are_made_by_the_servers,
    a_counter_that_differs_is_another_job,
    gradients_are_those_of_autograd_and_are_taken_away,
    gradients_in_another_layout_are_sent_in_row_major_order,
    a_gradient_of_none_is_no_gradient,
    gradients_from_outside_the_slots_are_not_sent,
    parameters_without_a_gradient_are_not_pushed,
    zero_grad_anywhere_changes_nothing,
    accumulation_sends_the_sum_once,
    a_parameter_that_becomes_final_twice_is_an_error,
    recomputation_computes_the_same,
    running_statistics_are_those_of_every_slot_together,
    every_slot_begins_with_the_servers_statistics,
    evaluations_leave_random_numbers_and_statistics_as_they_were,
    an_evaluation_does_not_hide_a_buffer_that_the_slot_has_changed,
    an_evaluation_belongs_into_its_slot,
    tied_parameters_are_one_tensor,
    frozen_parameters_are_not_declared_and_are_part_of_the_job,
    other_dropout_is_another_job,
    an_evaluation_under_autocast_leaves_the_slots_gradients,
    bfloat16_autocast_sends_float32_and_sees_new_values,
    random_numbers_depend_on_the_slot_only,
    threads_and_determinism_are_set,
    settings_that_change_after_the_declaration_are_errors,
    slots_come_with_the_batch_of_their_records,
])
