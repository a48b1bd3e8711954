# SPDX-License-Identifier: Apache-2.0
"""Initial values of a module's parameters.

They are the values that the module has, or, where the program states how a parameter begins, values that the servers
make from the job's seed. For those who want that for a whole module, init_of() knows which distribution each of
PyTorch's modules draws its parameters from. The values that a parameter has must agree with that distribution. Otherwise
somebody has initialised it in another way, or loaded it from a file, and init_of() refuses it by name instead of losing
that.
"""
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import nn

from .._frameworks import Stated, hint
from ..rules import Init, constant, normal, uniform
from .devices import to_host

# Deviations that a sample may have from its distribution, in standard deviations of the statistic. One parameter in
# 10^11 is further away by chance.
TOLERANCE = 7.0

Draw = Callable[[nn.Module, str, torch.Tensor], Init | None]


def _fans(weight: torch.Tensor) -> tuple[int, int]:
    """Numbers of inputs and outputs of one unit, as torch.nn.init counts them."""
    field = math.prod(weight.shape[2:])
    return weight.shape[1] * field, weight.shape[0] * field


def _xavier(weight: torch.Tensor) -> Init:
    return uniform(math.sqrt(6 / sum(_fans(weight))))


def _kaiming(module: nn.Module, name: str, parameter: torch.Tensor) -> Init | None:
    """Linear and convolutions: the weight and the bias are uniform, with the bound 1/sqrt(inputs)."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return uniform(1 / math.sqrt(max(1, _fans(weight)[0]))) if name in ("weight", "bias") else None


def _bilinear(module: nn.Module, name: str, parameter: torch.Tensor) -> Init | None:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return uniform(1 / math.sqrt(weight.shape[1]))


def _embedding(module: nn.Module, name: str, parameter: torch.Tensor) -> Init | None:
    if getattr(module, "padding_idx", None) is not None:
        raise ValueError("the row of `padding_idx` is 0 and the others are not, which the servers cannot make")
    return normal(1)


def _recurrent(module: nn.Module, name: str, parameter: torch.Tensor) -> Init | None:
    hidden = module.hidden_size
    assert isinstance(hidden, int)
    return uniform(1 / math.sqrt(hidden))


def _attention(module: nn.Module, name: str, parameter: torch.Tensor) -> Init | None:
    if name in ("bias_k", "bias_v"):  # xavier_normal_
        return normal(math.sqrt(2 / sum(_fans(parameter))))
    return _xavier(parameter) if name.endswith("proj_weight") else None


# The first row whose class a module is an instance of counts. Parameters whose values are all equal (norms, some biases)
# need no row.
TABLE: list[tuple[tuple[type[nn.Module], ...], Draw]] = [
    ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _kaiming),
    ((nn.Bilinear,), _bilinear),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    ((nn.RNNBase, nn.RNNCellBase), _recurrent),
    ((nn.MultiheadAttention,), _attention),
]


def _draw(module: nn.Module, name: str, parameter: torch.Tensor, in_transformer: bool) -> Init | None:
    """How the module draws a parameter of its own; None: unknown."""
    if in_transformer and parameter.dim() > 1:  # nn.Transformer draws all matrices within it anew
        return _xavier(parameter)
    for classes, draw in TABLE:
        if isinstance(module, classes):
            return draw(module, name, parameter)
    return None


def _agrees(values: torch.Tensor, init: Init) -> bool:
    """True if the values may have been drawn from this uniform or normal distribution."""
    count = values.numel()
    of_values = values.detach().double()
    if init.kind == uniform(1).kind:
        if of_values.min() < init.a or of_values.max() > init.b:
            return False
        mean, std, kurtosis = (init.a + init.b) / 2, (init.b - init.a) / math.sqrt(12), 1.8
    else:
        mean, std, kurtosis = init.a, init.b, 3.0
    square = float(((of_values - mean) ** 2).mean()) / std ** 2
    return (abs(float(of_values.mean()) - mean) <= TOLERANCE * std / math.sqrt(count)
            and abs(square - 1) <= TOLERANCE * math.sqrt((kurtosis - 1) / count))


def _owners(module: nn.Module) -> Iterator[tuple[int, nn.Module, str, bool]]:
    """The id of each parameter, with each module that has it, its name there, and whether it is in an nn.Transformer."""
    inside: set[int] = set()
    for part in module.modules():
        if isinstance(part, nn.Transformer):
            inside.update(map(id, part.modules()))
        for name, parameter in part._parameters.items():
            if parameter is not None:
                yield id(parameter), part, name, id(part) in inside


def _of_values(name: str, parameter: torch.Tensor, owners: list[tuple[nn.Module, str, bool]]) -> Init:
    first = float(parameter.detach().reshape(-1)[0])
    # A single value was drawn at random, unless it has few digits, as somebody writes a number.
    if bool((parameter.detach() == first).all()) and (parameter.numel() > 1 or numpy.float32(f"{first:.3g}") == first):
        return constant(first)
    drawn = False
    for module, attribute, in_transformer in owners:
        try:
            init = _draw(module, attribute, parameter, in_transformer)
        except ValueError as error:
            raise ValueError(f"parameter {name}: {error}: {hint(name)}") from None
        drawn = drawn or init is not None
        if init is not None and _agrees(parameter, init):
            return init
    kind = type(owners[0][0]).__name__
    if drawn:
        raise ValueError(f"parameter {name} does not have the values that a new {kind} has (it was initialised in "
                         f"another way, or loaded): {hint(name)}")
    raise ValueError(f"parameter {name}: how a {kind} initialises it is not known: {hint(name)}")


UNUSED = "the module has no such parameter that requires a gradient (a tied parameter has the first of its names)"


def begin_of(module: nn.Module, init: Mapping[str, Init] | None) -> dict[str, Any]:
    """How the parameters of a module that require gradients begin, by their names: as `init` states, or else with the
    values that they have, as arrays. An array is the parameter's own memory, unless that has another layout."""
    stated = Stated(init)
    found = {name: stated.find(name) or to_host(parameter)
             for name, parameter in module.named_parameters() if parameter.requires_grad}
    stated.refuse_unused(UNUSED)
    return found


def init_of(module: nn.Module, init: Mapping[str, Init] | None = None) -> dict[str, Init]:
    """How the parameters of a module that require gradients begin if the servers make their values, by their names: the
    distributions that PyTorch's own modules use. Server(module, session, init=init_of(module)) begins with values from
    the job's seed, whatever those of the module are. `init` states it for parameters of other modules; its keys are names,
    or patterns such as "*.weight", of which the first that fits counts."""
    stated = Stated(init)
    owners: dict[int, list[tuple[nn.Module, str, bool]]] = {}
    for number, part, attribute, in_transformer in _owners(module):
        owners.setdefault(number, []).append((part, attribute, in_transformer))
    found = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        found[name] = stated.find(name) or _of_values(name, parameter, owners[id(parameter)])
    stated.refuse_unused(UNUSED)
    return found
