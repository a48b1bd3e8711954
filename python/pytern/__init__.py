# SPDX-License-Identifier: Apache-2.0
"""Training with Tern's parameter servers from Python: docs/train-your-own.md has a program."""
from . import _native
from ._errors import Cancelled, Error, Timeout
from .rules import (SGD, Adagrad, Adam, AdamW, Cosine, Init, Linear, Mean, Momentum, Nesterov, Optimizer, RMSProp,
                    Schedule, Step, Warmup, constant, digest, normal, uniform, zeros)
from .session import Session, Slot, Tensor

__version__: str = _native.version
__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Cancelled", "Cosine", "Error", "Init", "Linear", "Mean", "Momentum", "Nesterov",
           "Optimizer", "RMSProp", "Schedule", "Session", "Slot", "Step", "Tensor", "Timeout", "Warmup", "constant",
           "digest", "normal", "uniform", "zeros"]

for _name in __all__:  # tracebacks and help() name what programs write: pytern.Error
    globals()[_name].__module__ = __name__
