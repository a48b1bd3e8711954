# SPDX-License-Identifier: Apache-2.0
"""What a job is made of: how tensors begin (initial values), how the servers update them (optimizers), and how the
learning rate changes from step to step (schedules)."""
import dataclasses
import hashlib
import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import numpy

GIVEN = 4  # the kind of initial values that the workers have (enum tern_init)


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


def _integer(what: str, value: Any, least: int, bits: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: expected an integer, got {type(value).__name__}") from None
    if not least <= number < 1 << bits:
        raise ValueError(f"{what}: expected an integer from {least} to {(1 << bits) - 1}, got {number}")
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


# Ranges of the optimizers' fields, as in kernels/rules.h. The words are those of the library.
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "lr": ("more than 0", lambda x: x > 0),
    "momentum": ("0 or more, and below 1", lambda x: 0 <= x < 1),
    "beta1": ("0 or more, and below 1", lambda x: 0 <= x < 1),
    "beta2": ("0 or more, and below 1", lambda x: 0 <= x < 1),
    "epsilon": ("more than 0", lambda x: x > 0),
    "weight_decay": ("0 or more", lambda x: x >= 0),
    "initial_accumulator": ("0 or more", lambda x: x >= 0),
}


class Optimizer:
    """The base of the update rules. docs/training.md has their formulas."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for key, value in self.settings().items():
            what = f"{type(self).__name__}: {key}"
            expected, is_in_range = _RANGES[key]
            if not is_in_range(_number(what, value)):
                raise ValueError(f"{what}: expected {expected}, got {value}")

    def settings(self) -> dict[str, float]:
        """The fields by their names."""
        return dict(vars(self))

    def _for_c(self) -> tuple[str | float, ...]:
        """The name and the settings in the order of struct tern_rule_opts. There a negative number means 0, and 0 means
        the default of the rule, or that the rule does not have the setting."""
        settings = self.settings()
        return self.name, *(float(settings[key]) or -1.0 if key in settings else 0.0 for key in _RANGES)


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
class Nesterov(Optimizer):
    """Gradient descent with Nesterov's momentum: m = momentum m + g; w -= lr (g + momentum m)."""

    name = "nesterov"
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
class RMSProp(Optimizer):
    """RMSProp: the gradient is divided by the root of a moving average of its squares. `beta2` is what torch.optim.RMSprop
    calls alpha."""

    name = "rmsprop"
    lr: float = 0.01
    beta2: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
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


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam whose weight decay is not part of the gradient: besides Adam's step, w -= lr weight_decay w."""

    name = "adamw"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01


@dataclasses.dataclass(frozen=True)
class Mean(Optimizer):
    """The tensor becomes the mean of what the slots of a step push: for statistics, such as those of batch normalisation.

    Only for single tensors: Session.tensor(name, shape, optimizer=Mean()). A slot that does not push the tensor counts
    as 0, and the session's clip_norm must be 0.
    """

    name = "mean"


class Schedule:
    """The base of the learning-rate schedules: for each step the servers multiply the `lr` of all optimizers by a factor.
    docs/training.md has the formulas."""

    def __post_init__(self) -> None:
        self._for_c()

    def _for_c(self) -> tuple[str, int, int, float]:
        """Checks the fields, and returns those of struct tern_schedule_opts."""
        raise NotImplementedError

    def _steps(self, key: str, least: int = 0) -> int:
        return _integer(f"{type(self).__name__}: {key}", getattr(self, key), least, 40)

    def _part(self, key: str, expected: str = "0 to 1") -> float:
        what, value = f"{type(self).__name__}: {key}", getattr(self, key)
        number = _number(what, value)
        if not 0 <= number <= 1 or (number == 0 and expected != "0 to 1"):
            raise ValueError(f"{what}: expected {expected}, got {value}")
        return number


@dataclasses.dataclass(frozen=True)
class Warmup(Schedule):
    """The learning rate rises in the first `steps` steps, from lr / steps to lr, and stays there."""

    steps: int

    def _for_c(self) -> tuple[str, int, int, float]:
        return "constant", self._steps("steps"), 0, 0.0


@dataclasses.dataclass(frozen=True)
class Step(Schedule):
    """The learning rate is multiplied by `factor` after every `every` steps, counted from the start of the job. In the
    first `warmup` steps it rises to lr."""

    every: int
    factor: float
    warmup: int = 0

    def _for_c(self) -> tuple[str, int, int, float]:
        return "step", self._steps("warmup"), self._steps("every", 1), self._part("factor", "more than 0, at most 1")


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """The learning rate rises to lr in the first `warmup` steps, and then falls on a straight line to end * lr, which it
    has after step `steps` (0: the last step of the job)."""

    end: float = 0.0
    steps: int = 0
    warmup: int = 0

    def _for_c(self) -> tuple[str, int, int, float]:
        return "linear", self._steps("warmup"), self._steps("steps"), self._part("end")


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """The same as Linear, but the learning rate falls as half a period of a cosine."""

    end: float = 0.0
    steps: int = 0
    warmup: int = 0

    def _for_c(self) -> tuple[str, int, int, float]:
        return "cosine", self._steps("warmup"), self._steps("steps"), self._part("end")


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
