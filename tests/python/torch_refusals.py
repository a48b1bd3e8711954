# SPDX-License-Identifier: Apache-2.0
"""What pytern.torch refuses, and how it says so. No server runs: native_model.py stands for them.

usage: torch_refusals.py
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import inspect
import typing
import warnings

import pytern as tern
import pytern.torch
import torch
from torch import nn

from jobs import tap
from native_model import session
from torch_loop import Server, before_first_slot, in_slot, loss_of, refused, small, train


def modules_that_cannot_be_trained_are_refused_by_name():
    s, _ = session()
    for sentence, module in (
            ("module 0: Embedding makes sparse gradients", nn.Sequential(nn.Embedding(3, 2, sparse=True))),
            ("parameter 0.weight is float64: servers have float32 parameters: convert the module with float()",
             small().double()),
            ("parameter 0.weight is bfloat16: servers have float32 parameters: autocast", small().bfloat16()),
            ("parameter weight is complex64", nn.Linear(2, 2, dtype=torch.complex64)),
            ("parameter weight is on meta", nn.Linear(2, 2, device="meta")),
            ("the module has no parameter that requires a gradient", nn.Tanh()),
            ("parameter weight has no shape yet", nn.LazyLinear(3))):
        refused(ValueError, sentence, Server, module, s)
    shared = small()
    shared[2].bias.data = shared[0].weight.data.reshape(-1)[3:5]
    refused(ValueError, "parameters 0.weight and 2.bias share memory", Server, shared, s)
    refused(TypeError, "Server: expected a torch.nn.Module, got int", Server, 3, s)
    refused(TypeError, "Server: expected a pytern.Session, got int", Server, small(), 3)
    refused(ValueError, "Server: accumulate: expected an integer of 1 or more, got 0", Server, small(), s, accumulate=0)
    refused(ValueError, "init: 1.*: the module has no such parameter", Server, small(), s, init={"1.*": tern.zeros()})
    assert not s._native.names and not s._followers


def parameters_and_buffers_that_change_in_a_slot_are_errors():
    def write(server, slot):
        with torch.no_grad():
            server.module[2].weight.mul_(0.5)
    in_slot("parameter 2.weight was changed in the slot", write)

    def move(server, slot):
        server.module[2].weight.data = torch.zeros(2, 4)
    in_slot("parameter 2.weight has other memory than when it was declared", move)
    norm = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4).eval())

    def statistics(server, slot):
        norm.train()
        loss_of(norm).backward()
    in_slot("buffer 1.num_batches_tracked of a BatchNorm1d was changed in the slot", statistics, norm)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))
    in_slot("buffer parametrizations.weight.0._u of a _SpectralNorm was changed in the slot",
            lambda server, slot: loss_of(spectral).backward(), spectral)


def changes_between_the_declaration_and_the_first_slot_are_errors():
    other = small().state_dict()
    before_first_slot("parameter 0.weight was changed between Server() and the first slot", lambda m: m.load_state_dict(other))
    before_first_slot("parameter 2.bias was declared and is not in the module any more",
                      lambda m: setattr(m[2], "bias", None))
    before_first_slot("buffer 1.", lambda m: m(torch.rand(5, 4)), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    before_first_slot("buffer 1.running_mean was changed between Server() and the first slot",
                      lambda m: m[1].running_mean.add_(1), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))


def batch_normalisation_and_clip_norm_are_refused():
    s = tern.Session("127.0.0.1:1", steps=9, workers=1, index=0, clip_norm=1.0)
    refused(ValueError, "buffer 1.running_mean: batch normalisation in training mode and Session(clip_norm=...) do not go "
            "together", Server, nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), s)
    s._native.close()


def sparse_gradients_are_refused():
    module = nn.Embedding(7, 4)

    def sparse(server, slot):
        torch.nn.functional.embedding(torch.arange(3), module.weight, sparse=True).sum().backward()
    in_slot("parameter weight: its gradient is sparse", sparse, module)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def other_optimizers_and_clipping_are_refused():
    from torch.nn.utils import clip_grad_norm_ as imported_before
    module = small()
    optimizers = [torch.optim.Adam(module.parameters()), Own(module.parameters(), lr=0.1)]
    stranger = nn.Linear(2, 2)
    elsewhere = torch.optim.SGD(stranger.parameters(), lr=0.1)

    def each(server, slot):
        class Late(torch.optim.SGD):
            def step(self, closure=None):
                raise KeyError("not refused")

        loss_of(module).backward()
        for optimizer in [*optimizers, Late(module.parameters(), lr=0.1), torch.optim.SGD(module.parameters(), lr=0.1)]:
            refused(tern.Error, f"{type(optimizer).__name__}.step(): the servers update the parameter 0.weight",
                    optimizer.step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            refused(tern.Error, "StepLR.step(): the servers have the learning rate of the parameter 0.weight",
                    torch.optim.lr_scheduler.StepLR, optimizers[0], 3)
        clip = torch.nn.utils.clip_grad_norm_
        refused(tern.Error, "clip_grad_norm_(): the gradient of the parameter 0.weight has been sent", clip,
                module.parameters(), 1.0)
        refused(tern.Error, "clip_grad_value_(): ", torch.nn.utils.clip_grad_value_, module.parameters(), 1.0)
        stranger(torch.ones(1, 2)).sum().backward()
        clip(stranger.parameters(), 1.0)
        elsewhere.step()
        slot.loss(0)
    train(module, each)
    assert imported_before.__name__ == "clip_grad_norm_"
    optimizers[0].step()  # after the last slot the module belongs to the program


def scaler_classes():
    """The gradient scalers of this PyTorch: that of torch.cuda.amp, and since 2.3 those of torch.amp and torch.cpu.amp."""
    found = [torch.cuda.amp.GradScaler]
    for path in (("amp",), ("cpu", "amp")):
        module = torch
        for name in path:
            module = getattr(module, name, None)
        if hasattr(module, "GradScaler"):
            found.append(module.GradScaler)
    assert len(found) == (3 if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 3) else 1), found
    return found


def gradient_scalers_are_refused():
    for base in scaler_classes():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of the older names
            # A scaler for GPUs is never enabled without a GPU.
            enabled = type("Scaler", (base,), {"is_enabled": lambda self: True})(enabled=False)
            disabled = base(enabled=False)
        in_slot("GradScaler.scale(): the scaled gradients would be sent, and the servers neither unscale them nor leave a step "
                "out: use autocast with dtype=torch.bfloat16",
                lambda server, slot: enabled.scale(loss_of(server.module)).backward())
        native, _ = train(small(), lambda server, slot: (disabled.scale(loss_of(server.module)).backward(), slot.loss(0)))
        assert all(len(pushed) == 4 for pushed, _ in native.history)
        in_slot("SGD.step(): the servers update the parameter 0.weight",
                lambda server, slot: disabled.step(torch.optim.SGD(server.module.parameters(), lr=1)))
    if len(scaler_classes()) > 1:
        in_slot("GradScaler.scale(): the scaled gradients would be sent",
                lambda server, slot: torch.amp.GradScaler("cpu").scale(loss_of(server.module)))


def an_exception_in_the_loop_fails_the_slot_and_drops_its_gradients():
    module = small()

    def each(server, slot):
        with server.no_sync():
            loss_of(module).backward()
        raise KeyError("mine")
    in_slot("'mine'", each, module, KeyError)
    assert all(p.grad is None for p in module.parameters())


def public_functions_have_complete_type_hints():
    for function in [tern.torch.init_of, *(member for key, member in vars(Server).items() if inspect.isfunction(member)
                                           and (key == "__init__" or not key.startswith("_")))]:
        hints = typing.get_type_hints(function)
        missing = [p for p in inspect.signature(function).parameters if p != "self" and p not in hints]
        assert not missing and (function.__name__ == "__init__" or "return" in hints), (function, missing)


tap.run([
    modules_that_cannot_be_trained_are_refused_by_name,
    parameters_and_buffers_that_change_in_a_slot_are_errors,
    changes_between_the_declaration_and_the_first_slot_are_errors,
    batch_normalisation_and_clip_norm_are_refused,
    sparse_gradients_are_refused,
    other_optimizers_and_clipping_are_refused,
    gradient_scalers_are_refused,
    an_exception_in_the_loop_fails_the_slot_and_drops_its_gradients,
    public_functions_have_complete_type_hints,
])
