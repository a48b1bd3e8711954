# SPDX-License-Identifier: Apache-2.0
"""pytern.torch.init_of(): the distributions that PyTorch's modules draw their parameters from, and what it refuses.

usage: torch_initial.py
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import math

import pytern as tern
import torch
from pytern.torch import init_of
from torch import nn

from jobs import tap

torch.manual_seed(1)


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert type(error) is kind and str(error).startswith(sentence), f"{type(error).__name__}: {error}"
        return
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def bound(inputs):
    return tern.uniform(1 / math.sqrt(inputs))


def modules_of_pytorch_are_known():
    ones, zeros = tern.constant(1), tern.constant(0)
    xavier = tern.uniform(math.sqrt(6 / (16 + 48)))
    for module, expected in (
            (nn.Linear(30, 20), {"weight": bound(30), "bias": bound(30)}),
            (nn.Linear(30, 20, bias=False), {"weight": bound(30)}),
            (nn.Conv1d(4, 6, 5), {"weight": bound(20), "bias": bound(20)}),
            (nn.Conv2d(4, 6, (3, 5), groups=2), {"weight": bound(30), "bias": bound(30)}),
            (nn.ConvTranspose2d(4, 6, 3), {"weight": bound(54), "bias": bound(54)}),
            (nn.Bilinear(9, 5, 6), {"weight": bound(9), "bias": bound(9)}),
            (nn.Embedding(30, 8), {"weight": tern.normal(1)}),
            (nn.EmbeddingBag(30, 8), {"weight": tern.normal(1)}),
            (nn.LayerNorm(8), {"weight": ones, "bias": zeros}),
            (nn.GroupNorm(2, 8), {"weight": ones, "bias": zeros}),
            (nn.BatchNorm2d(8, track_running_stats=False), {"weight": ones, "bias": zeros}),
            (nn.PReLU(init=0.5), {"weight": tern.constant(0.5)}),
            (nn.GRUCell(5, 9), dict.fromkeys(["weight_ih", "weight_hh", "bias_ih", "bias_hh"], bound(9))),
            (nn.LSTM(5, 9, 2, bidirectional=True), None),
            (nn.MultiheadAttention(16, 2, add_bias_kv=True), {
                "in_proj_weight": xavier, "in_proj_bias": zeros, "out_proj.weight": bound(16), "out_proj.bias": zeros,
                "bias_k": None, "bias_v": None}),
            (nn.MultiheadAttention(16, 2, kdim=12, vdim=20), None),
            (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2), None),
            (nn.Transformer(16, 2, 1, 1, 32), None)):
        for _ in range(20):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            found = init_of(module)
            assert list(found) == [name for name, _ in module.named_parameters()]
            for name, init in (expected or {}).items():
                assert init is None or found[name] == init, (module, name, found[name])
    within = init_of(nn.Transformer(16, 2, 1, 1, 32))
    assert within["encoder.layers.0.linear1.weight"] == tern.uniform(math.sqrt(6 / 48))
    assert within["encoder.layers.0.linear1.bias"] == bound(16)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.randn(5, 4))
        self.scale = nn.Parameter(torch.full((4,), 3.0))
        self.layer = nn.Linear(4, 4)


def what_is_not_known_has_to_be_stated():
    refused(ValueError, "parameter place: how a Own initialises it is not known: state how it begins: "
            'init={"place": pytern.normal(0.02)}', init_of, Own())
    found = init_of(Own(), {"place": tern.normal(1)})
    assert found == {"place": tern.normal(1), "scale": tern.constant(3), "layer.weight": bound(4), "layer.bias": bound(4)}
    refused(ValueError, "parameter 0.weight: the row of `padding_idx` is 0", init_of,
            nn.Sequential(nn.Embedding(9, 4, padding_idx=0)))


class Scaled(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(value))


def a_single_value_is_constant_only_if_somebody_wrote_it():
    assert init_of(nn.Linear(9, 1))["bias"] == bound(9)
    module = nn.Linear(9, 1)
    nn.init.zeros_(module.bias)
    assert init_of(module)["bias"] == tern.constant(0)
    assert init_of(nn.PReLU())["weight"] == tern.constant(0.25)
    assert init_of(Scaled(0.07))["scale"].kind == tern.constant(1).kind
    refused(ValueError, "parameter scale: how a Scaled initialises it is not known", init_of, Scaled(2.6592601))


def values_that_were_given_are_refused():
    for spoil in (lambda w: nn.init.xavier_normal_(w), lambda w: nn.init.uniform_(w, -0.1, 0.1),
                  lambda w: nn.init.normal_(w, 0, 0.05), lambda w: w.add_(0.05), lambda w: w.mul_(0.5)):
        module = nn.Linear(60, 50)
        with torch.no_grad():
            spoil(module.weight)
        refused(ValueError, "parameter weight does not have the values that a new Linear has", init_of, module)
        assert init_of(module, {"weight": tern.normal(0.1)})["weight"] == tern.normal(0.1)
    embedding = nn.Embedding(50, 40)
    nn.init.normal_(embedding.weight, 0, 0.02)
    refused(ValueError, "parameter weight does not have the values that a new Embedding has", init_of, embedding)
    trained = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    x = torch.randn(64, 20)
    for _ in range(200):
        optimizer.zero_grad()
        ((trained(x)[:, 0] - x.sum(1)) ** 2).mean().backward()
        optimizer.step()
    refused(ValueError, "parameter 0.weight does not have", init_of, trained)


def a_tied_parameter_begins_as_the_module_that_drew_it():
    for first, second, expected in (("a", "b", tern.normal(1)), ("b", "a", bound(8))):
        module = nn.ModuleDict({"a": nn.Embedding(30, 8), "b": nn.Linear(8, 30, bias=False)})
        module[second].weight = module[first].weight
        assert init_of(module) == {"a.weight": expected}


def patterns_state_many():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    found = init_of(module, {"0.weight": tern.zeros(), "*.weight": tern.normal(0.02)})
    assert found == {"0.weight": tern.zeros(), "1.weight": tern.normal(0.02), "0.bias": bound(3), "1.bias": bound(4)}
    refused(ValueError, "init: 2.*: the module has no such parameter", init_of, module, {"2.*": tern.zeros()})
    refused(TypeError, "init: 0.bias: expected one such as pytern.uniform(0.1), got float", init_of, module,
            {"0.bias": 0.5})


tap.run([
    modules_of_pytorch_are_known,
    what_is_not_known_has_to_be_stated,
    a_single_value_is_constant_only_if_somebody_wrote_it,
    values_that_were_given_are_refused,
    a_tied_parameter_begins_as_the_module_that_drew_it,
    patterns_state_many,
])
