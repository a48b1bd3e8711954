# SPDX-License-Identifier: Apache-2.0
"""Calls of PyTorch that would silently do nothing, or do harm, while servers update the parameters.

A gradient is sent as soon as it is final, and is not in `grad` any more. So an optimizer or clip_grad_norm_() would find
nothing to do and say nothing. watch() wraps these functions, once in a process. A wrapped function raises if it is
called with a parameter that belongs to a server, and is the original otherwise.
"""
import errno
import functools
import importlib
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .._errors import Error

if TYPE_CHECKING:
    from .server import Server

servers: "weakref.WeakSet[Server]" = weakref.WeakSet()  # whose sessions are not over
_watched = False


def name_of(parameters: Iterable[Any]) -> str | None:
    """The name of the first of these parameters that belongs to a server."""
    for parameter in parameters:
        for server in servers:
            name = server.names.get(id(parameter))
            if name is not None:
                return name
    return None


def _parameters_of(optimizer: Any) -> Iterable[Any]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _optimizer(optimizer: Any, *rest: Any, **more: Any) -> None:
    name = name_of(_parameters_of(optimizer))
    if name is not None:
        raise Error(-errno.EINVAL, f"{type(optimizer).__name__}.step(): the servers update the parameter {name}: remove "
                    "the call, and give the session the optimizer: Session(optimizer=...)")


def _scheduler(scheduler: Any, *rest: Any, **more: Any) -> None:
    name = name_of(_parameters_of(scheduler.optimizer))
    if name is not None:
        raise Error(-errno.EINVAL, f"{type(scheduler).__name__}.step(): the servers have the learning rate of the "
                    f"parameter {name}: a schedule here has no effect")


def _scaler(scaler: Any, *rest: Any, **more: Any) -> None:
    if scaler.is_enabled() and any(server.in_slot for server in servers):
        raise Error(-errno.EINVAL, "GradScaler.scale(): the scaled gradients would be sent, and the servers neither unscale "
                    "them nor leave a step out: use autocast with dtype=torch.bfloat16, which needs no scaling, and no "
                    "GradScaler, or one with enabled=False")


def _guarded(function: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def guarded(*arguments: Any, **more: Any) -> Any:
        if servers:
            check(*arguments, **more)
        return function(*arguments, **more)
    return guarded


def _guard_method(cls: type, name: str, check: Callable[..., None]) -> None:
    if name in vars(cls):
        setattr(cls, name, _guarded(vars(cls)[name], check))


def _subclasses(cls: type) -> list[type]:
    return [cls, *(sub for child in list[type](cls.__subclasses__()) for sub in _subclasses(child))]


def _guard_optimizers() -> None:
    register = getattr(importlib.import_module("torch.optim.optimizer"), "register_optimizer_step_pre_hook", None)
    if register is not None:
        register(_optimizer)
        return
    # PyTorch 1.13 has no such hook. Every optimizer calls _hook_for_profile() when it is made.
    original = torch.optim.Optimizer._hook_for_profile  # type: ignore[attr-defined]
    done = set(_subclasses(torch.optim.Optimizer))

    @functools.wraps(original)
    def made(self: Any) -> None:
        for cls in type(self).__mro__:
            if cls not in done and issubclass(cls, torch.optim.Optimizer):
                done.add(cls)
                _guard_method(cls, "step", _optimizer)
        original(self)

    torch.optim.Optimizer._hook_for_profile = made  # type: ignore[attr-defined]
    for cls in done:
        _guard_method(cls, "step", _optimizer)


def _guard_clip(name: str) -> None:
    """Replaces a function of torch.nn.utils.clip_grad in all modules that have imported it."""
    original = getattr(torch.nn.utils.clip_grad, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def guarded(parameters: Any, *rest: Any, **more: Any) -> Any:
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)
        mine = name_of([parameters] if isinstance(parameters, torch.Tensor) else parameters)
        if mine is not None:
            raise Error(-errno.EINVAL, f"{name}(): the gradient of the parameter {mine} has been sent: give the session "
                        "the limit of the norm over all slots: Session(clip_norm=...)")
        return original(parameters, *rest, **more)

    for other in list(sys.modules.values()):
        for key, value in list(getattr(other, "__dict__", {}).items()):
            if value is original:
                setattr(other, key, guarded)


def watch() -> None:
    global _watched
    if _watched:
        return
    _guard_optimizers()
    # The names of the base classes differ between versions of PyTorch.
    bases = (getattr(torch.optim.lr_scheduler, name, None) for name in ("LRScheduler", "_LRScheduler",
                                                                        "ReduceLROnPlateau"))
    for cls in {cls for base in bases if base is not None for cls in _subclasses(base)}:
        _guard_method(cls, "step", _scheduler)
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
        _guard_clip(name)
    scalers = {torch.cuda.amp.GradScaler, getattr(getattr(torch, "amp", None), "GradScaler", torch.cuda.amp.GradScaler)}
    for cls in scalers:
        _guard_method(cls, "scale", _scaler)
    _watched = True
