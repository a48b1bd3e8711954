# SPDX-License-Identifier: Apache-2.0
"""Training with JAX: docs/train-your-own.md has a program.

Parameters are a tree of float32 arrays, as everywhere in JAX. Each leaf is a tensor of the session, named by its path.
tree() gives a slot's parameters as arrays that keep their values: JAX may use a NumPy array's memory without a copy, so
they are never the library's own memory.
"""
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy

from ._frameworks import Stated, build_digest, hint
from .rules import Init
from .session import Session, Slot, Tensor

__all__ = ["Server"]

# Environment variables and options that change the code that XLA makes, and so the bits of results.
ENVIRONMENT = ("XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_ENABLE_X64", "JAX_DEFAULT_PRNG_IMPL", "OMP_NUM_THREADS")


def _name(path: Any) -> str:
    """The path of a leaf, such as layers.0.w."""
    parts = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
    return ".".join(map(str, parts)) or "parameter"


def _init(name: str, leaf: Any, stated: Stated) -> Any:
    """How a leaf begins: as the program states, or else with the values that it has."""
    init = stated.find(name)
    if init is None and isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(f"parameter {name} has no values: {hint(name)}")
    return numpy.asarray(leaf) if init is None else init


class Server:
    """The parameters `params`, a tree of arrays (or of jax.ShapeDtypeStruct), declared as tensors of `session`.

    Training begins with the values of the arrays, which must be the same on all workers (but see
    Session(init_from_first)). `init`: how leaves begin that the servers initialise instead, by their names or patterns,
    such as {"*.w": pytern.normal(0.1)}. `arithmetic`: in place of what describes this JAX and processor.
    """

    def __init__(self, params: Any, session: Session, *, init: Mapping[str, Init] | None = None,
                 arithmetic: str | None = None) -> None:
        if not isinstance(session, Session):
            raise TypeError(f"Server: expected a pytern.Session, got {type(session).__name__}")
        self._structure: Any
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(params)
        if not leaves:
            raise ValueError("Server: the tree has no parameters")
        stated = Stated(init)
        found = []
        for path, leaf in leaves:
            name = _name(path)
            if getattr(leaf, "dtype", None) != numpy.float32:
                raise ValueError(f"parameter {name}: expected an array of float32, got "
                                 f"{getattr(leaf, 'dtype', type(leaf).__name__)}")
            found.append((name, tuple(leaf.shape), _init(name, leaf, stated)))
        stated.refuse_unused("the tree has no such parameter")
        self._session = session
        self._arithmetic = arithmetic
        self._tensors: list[Tensor] = [session.tensor(*each) for each in found]
        session._followers.append(self)

    def tree(self, slot: Slot) -> Any:
        """The slot's parameters, as a tree of JAX arrays. They keep their values after the slot."""
        return self._unflatten(slot[w] for w in self._tensors)

    def push_tree(self, slot: Slot, gradients: Any) -> None:
        """Hands over the gradients, a tree of the same structure: the means over the slot's records. None in place of
        an array: the slot has no gradient of this leaf."""
        try:  # None is a leaf where the parameters have an array, and not where they have None, too
            leaves = self._structure.flatten_up_to(gradients)
        except ValueError:
            raise ValueError(f"push_tree: expected gradients in the tree {self._structure}, got "
                             f"{jax.tree_util.tree_structure(gradients)}") from None
        for w, gradient in zip(self._tensors, leaves):
            if gradient is not None:
                slot.push(w, numpy.asarray(gradient))

    def key(self, slot: Slot) -> Any:
        """A key for random numbers, such as those of dropout, made from the slot's seed."""
        return jax.random.fold_in(jax.random.PRNGKey(slot.seed & 0x7FFFFFFF), slot.seed >> 32)

    def final(self) -> Any:
        """After the last slot: the final parameters, as a tree of JAX arrays."""
        return self._unflatten(w.value for w in self._tensors)

    def _unflatten(self, values: Any) -> Any:
        return jax.tree_util.tree_unflatten(self._structure, [jax.numpy.asarray(value) for value in values])

    # ---- what the session calls ----

    early = True

    def start(self) -> str:
        if self._arithmetic is not None:
            return self._arithmetic
        devices = jax.devices()
        settings = [str(getattr(jax.config, name, "")) for name in (
            "jax_default_matmul_precision", "jax_enable_x64", "jax_default_prng_impl")]
        build = build_digest([version("jaxlib"), str([device.device_kind for device in devices]), *settings],
                             ENVIRONMENT)
        # XLA splits products between the processors that the process may use.
        return (f"jax {jax.__version__[:24]} {devices[0].platform} processors {len(os.sched_getaffinity(0))} build "
                f"{build}")

    def enter(self, slot: Slot) -> None:
        pass

    def leave(self, slot: Slot, failed: bool) -> None:
        pass

    def complete(self) -> None:
        pass

    def close(self) -> None:
        pass
