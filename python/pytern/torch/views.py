# SPDX-License-Identifier: Apache-2.0
"""Parameters in the memory into which the library receives them, so that nobody copies them.

The library receives versions in two buffers in turn, and a slot's version stays in its buffer until the worker sends
gradients of the next version. So a large parameter can be a view of the buffer from the beginning of a slot to the
beginning of the next one, and three things remain:

- Programs write to parameters where autograd does not see it (`p.data`, arrays). A view is a private mapping of the buffer:
  what is written there is seen by nobody else, and the next slot has the library's values again.
- Programs keep tensors that share a parameter's memory (`p.detach()`, state_dict(), arrays), and expect that these follow the
  parameter. A parameter leaves its memory only if nothing else refers to it; otherwise it stays, and the next values are
  copied there. If that memory is in a mapping, the copy makes it the parameter's own, and the buffer gets a new mapping.
- Memory must stay when the session ends, and in a forked child. Then the parameters get memory of their own, or the pages
  of the mapping become theirs (keep).
"""
import os
import weakref
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..session import Session, Slot, Tensor

# A smaller tensor is copied in less time than a view takes.
LEAST_BYTES = 64 << 10
# The alignment of PyTorch's own memory. Libraries may compute other bits with memory that is less aligned.
ALIGNMENT = 64


class Mapping:
    """A mapping of one of the buffers."""

    __slots__ = ("_map", "_floats", "_places", "_first", "_bytes", "step", "__weakref__")

    def __init__(self, mapped: Any, offsets: dict["Memory", int]) -> None:
        self._map = mapped
        self._floats: NDArray[numpy.float32] = numpy.frombuffer(mapped, numpy.float32)
        self._places = {memory: offset for memory, offset in offsets.items() if offset % ALIGNMENT == 0}
        self._first = min(offsets.values())
        self._bytes = max(offset + memory.bytes for memory, offset in offsets.items()) - self._first
        self.step = -1  # of the slot whose version the parameters here have

    def tensor(self, memory: "Memory") -> torch.Tensor | None:
        """The tensor of this parameter, as the only reference to a storage of its own; None: it is not aligned."""
        offset = self._places.get(memory)
        if offset is None:
            return None
        floats = self._floats[offset // 4:(offset + memory.bytes) // 4]
        return torch.from_numpy(floats.reshape(memory.parameter.shape))

    def renew(self) -> None:
        """Makes what was written here disappear."""
        self._map.renew(self._first, self._bytes)

    def keep(self, memory: "Memory") -> None:
        """Lets the parameter keep its values, whatever the library receives."""
        self._map.keep(self._places[memory], memory.bytes)


class Memory:
    """The memory of a contiguous parameter, which may change from slot to slot."""

    __slots__ = ("parameter", "tensor", "bytes", "pointer", "can_move", "_mapping", "_array", "_counter")

    def __init__(self, parameter: nn.Parameter, tensor: Tensor, can_move: bool) -> None:
        flat = parameter.detach()
        self.parameter = parameter
        self.tensor = tensor
        self.bytes = 4 * parameter.numel()
        self.pointer = parameter.data_ptr()
        self.can_move = can_move and self.bytes >= LEAST_BYTES and self.pointer % ALIGNMENT == 0
        self._mapping: Mapping | None = None  # that the parameter is in
        # Kept where the memory never changes. It would count as somebody who refers to the memory.
        self._array = None if self.can_move else flat.numpy()
        # Shares the parameter's version counter, and not its memory.
        self._counter = flat
        self._counter.data = torch.empty(0)

    def array(self) -> NDArray[numpy.float32]:
        """The memory, to write to. Call changed() afterwards."""
        return self.parameter.detach().numpy() if self._array is None else self._array

    def changed(self) -> None:
        """Tells autograd that the parameter has changed: a graph of an earlier slot then refuses to compute gradients with
        the new values."""
        self._counter.zero_()

    def show(self, mapping: Mapping) -> Mapping | None:
        """Lets the parameter have the values of the mapping. Returns the mapping in which the parameter stays because
        others refer to its memory there, or `mapping`, or None: it stays in memory of its own."""
        before = self._mapping
        if before is not mapping:
            tensor = mapping.tensor(self)
            if tensor is None or not self._move(tensor, mapping):
                self._mapping = None
                return before
        return mapping

    def own(self, values: torch.Tensor) -> None:
        """Lets the parameter have these values, in their memory if nobody else refers to its own memory."""
        if not self._move(values, None):
            self.array()[...] = values.numpy()
        self._mapping = None

    def read_final(self, native: Any) -> None:
        if self._mapping is None:
            native.param(self.tensor.id, self.array())
            return
        values = torch.empty(self.parameter.shape)
        native.param(self.tensor.id, values.numpy())
        self.own(values)

    def keep(self) -> None:
        if self._mapping is not None:
            self._mapping.keep(self)

    def leave(self) -> None:
        """Takes the parameter out of the mapping, with the values that it has."""
        if self._mapping is not None:
            self.own(self.parameter.detach().clone())

    def _move(self, tensor: torch.Tensor, mapping: Mapping | None) -> bool:
        p = self.parameter
        shape, stride, offset = p.shape, p.stride(), p.storage_offset()
        before = StorageWeakRef(_storage(p))
        # Noted first, since KeyboardInterrupt may come between any two lines.
        kept, self._mapping = self._mapping, mapping
        p.data = tensor
        storage = None if before.expired() else torch.UntypedStorage._new_with_weak_ptr(before.cdata)
        if storage is None:  # nobody else refers to it, or did a moment ago
            self.pointer = p.data_ptr()
            return True
        if not hasattr(torch.Tensor, "untyped_storage"):  # PyTorch before 2.0
            storage = torch.FloatStorage(wrap_storage=storage)
        p.data = torch.empty(0).set_(storage, offset, shape, stride)
        self._mapping = kept
        return False


class Views:
    """The mappings of a session's buffers, for the parameters of a module."""

    def __init__(self, session: Session, memories: list[Memory]) -> None:
        self._native = session._native
        self._memories = [memory for memory in memories if memory.can_move]
        self._maps: dict[int, Mapping] = {}
        self._current: Mapping | None = None
        _views.add(self)

    def enter(self, slot: Slot) -> set[Memory]:
        """Lets parameters have the slot's values. Returns those that have them now."""
        mapping = self._find(slot) if self._memories else None
        if mapping is None:
            return set()
        self._current = mapping
        mapping.step = slot.step
        there = set()
        for memory in self._memories:
            found = memory.show(mapping)
            if found is mapping:
                there.add(memory)
            elif found is not None:
                self._maps = {place: m for place, m in self._maps.items() if m is not found}
        return there

    def _find(self, slot: Slot) -> Mapping | None:
        place = self._native.place(slot._turn)
        mapping = self._maps.get(place)
        if mapping is None or (mapping is self._current and mapping.step != slot.step):
            made = self._native.map(slot._turn, tuple(memory.tensor.id for memory in self._memories))
            if made is None:  # reserved huge pages
                self._memories = []
                return None
            mapping = self._maps[place] = Mapping(made[0], dict(zip(self._memories, made[1])))
        else:
            mapping.renew()
        return mapping

    def keep(self) -> None:
        for memory in self._memories:
            memory.keep()

    def close(self) -> None:
        """Gives all parameters memory of their own."""
        for memory in self._memories:
            memory.leave()
        self._maps.clear()
        self._current = None


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


_views: "weakref.WeakSet[Views]" = weakref.WeakSet()


def _before_fork() -> None:
    """The child has the parameters' present values, whatever the parent receives later."""
    for views in list(_views):
        views.keep()


os.register_at_fork(before=_before_fork)
