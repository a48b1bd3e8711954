# SPDX-License-Identifier: Apache-2.0
"""What a job is made of: how tensors begin (initial values) and how the servers update them (optimizers)."""
import dataclasses
import hashlib
import math
from typing import Any, ClassVar

import numpy


@dataclasses.dataclass(frozen=True)
class Init:
    """Initial values of a tensor, made by zeros(), constant(), uniform() or normal().

    Every value is a function of the job's seed, the tensor's name and the value's place in the tensor.
    """

    kind: int  # enum tern_init
    a: float = 0.0
    b: float = 0.0


def _number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what}: expected a number, got {type(value).__name__}") from None
    if not math.isfinite(number):
        raise ValueError(f"{what}: expected a finite number, got {number}")
    return number


def zeros() -> Init:
    """All values are 0."""
    return Init(0)


def constant(value: float) -> Init:
    """All values are `value`."""
    return Init(1, _number("constant", value))


def uniform(a: float, b: float | None = None) -> Init:
    """Evenly distributed values: uniform(a) in [-a, a), uniform(a, b) in [a, b)."""
    low, high = (-_number("uniform", a), _number("uniform", a)) if b is None else (
        _number("uniform", a), _number("uniform", b))
    if low > high:
        raise ValueError(f"uniform: expected a range, got {low} to {high}")
    return Init(2, low, high)


def normal(std: float, mean: float = 0.0) -> Init:
    """Normally distributed values with standard deviation `std`."""
    if _number("normal", std) < 0:
        raise ValueError(f"normal: expected a standard deviation of 0 or more, got {std}")
    return Init(3, _number("normal", mean), _number("normal", std))


class Optimizer:
    """The base of the update rules. docs/training.md has their formulas."""

    name: ClassVar[str]
    # Fields that may be 0. To the C library a 0 in any other field means the rule's default.
    may_be_0: ClassVar[frozenset[str]] = frozenset({"weight_decay"})

    def __post_init__(self) -> None:
        for key, value in self.settings().items():
            number = _number(f"{type(self).__name__}: {key}", value)
            if number < 0 or (number == 0 and key not in self.may_be_0):
                least = "0 or more" if key in self.may_be_0 else "more than 0"
                raise ValueError(f"{type(self).__name__}: {key}: expected {least}, got {value}")

    def settings(self) -> dict[str, float]:
        """The fields by their names."""
        return dict(vars(self))


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w -= lr g."""

    name = "sgd"
    lr: float = 0.01
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum: m = momentum m + g; w -= lr m."""

    name = "momentum"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: a learning rate for each parameter, which falls with the sum of its squared gradients."""

    name = "adagrad"
    lr: float = 0.1
    epsilon: float = 1e-10
    initial_accumulator: float = 0.1
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, with bias correction."""

    name = "adam"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0


def digest(*data: Any) -> int:
    """A number that differs if the data differs, for Session(data=...).

    Takes arrays (also their dtypes and shapes count), bytes and strings. Never 0, which would mean "not compared".
    """
    state = hashlib.blake2b(digest_size=8)
    for part in data:
        if isinstance(part, str):
            part = part.encode()
        if isinstance(part, (bytes, bytearray, memoryview)):
            state.update(b"bytes %d\n" % len(part))
            state.update(part)
            continue
        array = numpy.asarray(part)
        if array.dtype.hasobject:
            raise TypeError(f"digest: expected arrays of numbers, bytes or strings, got {type(part).__name__}")
        state.update(f"{array.dtype.str} {array.shape}\n".encode())
        state.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)
    return int.from_bytes(state.digest(), "little") or 1
