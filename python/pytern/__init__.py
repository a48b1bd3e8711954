# SPDX-License-Identifier: Apache-2.0
"""Training with Tern's parameter servers from Python: docs/train-your-own.md has a program."""
from . import _native
from ._errors import Error, Timeout
from .rules import (SGD, Adagrad, Adam, AdamW, Init, Mean, Momentum, Nesterov, Optimizer, RMSProp,
                    constant, digest, normal, uniform, zeros)
from .session import Session, Slot, Tensor

__version__: str = _native.version
__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Error", "Init", "Mean", "Momentum", "Nesterov",
           "Optimizer", "RMSProp", "Session", "Slot", "Tensor", "Timeout", "constant",
           "digest", "normal", "uniform", "zeros"]

for _name in __all__:  # tracebacks and help() name what programs write: pytern.Error
    globals()[_name].__module__ = __name__
