# SPDX-License-Identifier: Apache-2.0
"""Training PyTorch modules with Tern's parameter servers: docs/train-your-own.md has a program."""
from .initial import init_of
from .server import Server

__all__ = ["Server", "init_of"]

for _name in __all__:  # tracebacks and help() name what programs write: pytern.torch.Server
    globals()[_name].__module__ = __name__
