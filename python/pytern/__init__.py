# SPDX-License-Identifier: Apache-2.0
"""Training with Tern's parameter servers from Python: `with Session(...) as s:`, and Session says the rest."""
from . import _native
from ._errors import Error, Timeout
from .rules import (SGD, Adagrad, Adam, Init, Momentum, Optimizer, constant, digest, normal, uniform, zeros)
from .session import Session, Slot, Tensor

__version__: str = _native.version
__all__ = ["SGD", "Adagrad", "Adam", "Error", "Init", "Momentum", "Optimizer", "Session", "Slot", "Tensor", "Timeout",
           "constant", "digest", "normal", "uniform", "zeros"]
