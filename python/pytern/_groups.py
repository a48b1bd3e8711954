# SPDX-License-Identifier: Apache-2.0
"""Collective operations among several processes. transport.py has the classes that they need."""
import asyncio
import contextlib
import errno
import math
import time
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

from . import _native
from ._errors import Error, Timeout
from ._native import Buffer
from .rules import _integer, _number
from .session import WAIT_S
from .transport import Context, Peer

# enum kind in native_group.c
(_ALL_REDUCE, _REDUCE, _BROADCAST, _GATHER, _SCATTER, _ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL, _BARRIER,
 _ALL_TO_ALL_V) = range(10)
# enum tern_reduction
_REDUCTIONS = {"sum": 0, "avg": 1, "min": 2, "max": 3, "product": 4, "or": 5, "and": 6}
_DTYPES = {"uint8": 1, "int8": 2, "uint16": 3, "int16": 4, "uint32": 5, "int32": 6, "uint64": 7, "int64": 8, "float16": 9,
           "bfloat16": 10, "float32": 11, "float64": 12, "bool": 1}
# Truth values are 0 or 1, whatever is done with them: their minimum is AND, their maximum OR.
_OF_BOOL = {"sum": "or", "max": "or", "or": "or", "product": "and", "min": "and", "and": "and"}


def _reduction(op: str, dtype: str) -> int:
    if op not in _REDUCTIONS:
        raise ValueError(f"op: expected one of {', '.join(_REDUCTIONS)}, got {op!r}")
    if dtype == "bool" and op not in _OF_BOOL:
        raise ValueError(f"op: bool has no {op}: expected one of {', '.join(_OF_BOOL)}")
    if dtype != "bool" and op in ("or", "and"):
        raise ValueError(f"op: only bool has {op!r}, not {dtype}")
    return _REDUCTIONS[_OF_BOOL[op] if dtype == "bool" else op]


class Group:
    """Several processes, its ranks, that call the same operations in the same order. Each operation returns an Operation at
    once. After the first failure every operation raises an Error with the same line, which names the rank that is to blame.
    `with group:` closes it at the end of the block.

    Tensors are contiguous ones that have the buffer protocol or DLPack, or Buffers. They must not change before the
    operation has ended. `out` may be the tensor itself.
    """

    def __init__(self, context: Context, rank: int, size: int, peers: Sequence[Peer | None], number: int,
                 hosts: Sequence[int] | None, timeout: float) -> None:
        self._context = context
        self.rank, self.size = _integer("rank", rank, 0, 12), _integer("size", size, 1, 13)
        if self.rank >= self.size:
            raise ValueError(f"rank: expected less than size, {size}, got {rank}")
        given = tuple(None if i == rank else peer for i, peer in enumerate(peers))
        numbers = (0,) * size if hosts is None else tuple(_integer("hosts", host, 0, 32) for host in hosts)
        for name, values in ("peers", given), ("hosts", numbers):
            if len(values) != size:
                raise ValueError(f"{name}: expected one for each of {size} ranks, got {len(values)}")
        missing = [i for i, peer in enumerate(given) if peer is None and i != rank]
        if missing:
            raise ValueError(f"peers: expected a Peer for rank {missing[0]}, got None")
        self._native = context._native.group(
            self.rank, _integer("number", number, 0, 32), tuple(None if p is None else p._native for p in given), numbers,
            _number("timeout", timeout))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def failure(self) -> str:
        """The line that says why the group has failed; "" if it has not."""
        return self._native.status()[1]

    def close(self) -> None:
        """Leaves the group. Operations under way end with an Error, here and at the other ranks."""
        self._native.close()
        self._context._wake()

    # ---- operations ----

    def _start(self, what: str, kind: int, dtype: int, how: int, given: Buffer | None, out: Buffer | None, root: int = 0,
               timeout: float | None = None, answer: Any = None, parts: tuple[int, ...] | None = None) -> "Operation":
        operation = Operation(self._context, what, answer)
        self._context._collect()
        try:
            self._native.start(operation, kind, dtype, how, given, out, root,
                               0.0 if timeout is None else _number("timeout", timeout), parts)
        except Error as error:
            text = "the sizes of the tensors do not fit" if error.status == -errno.EINVAL else str(error)
            raise Error(error.status, f"{what}: {text}") from None
        return operation

    def _wrap(self, tensor: Any, writable: bool = False) -> Buffer:
        return self._context._wrap(tensor, writable)

    def _root(self, root: int) -> int:
        if _integer("root", root, 0, 32) >= self.size:
            raise ValueError(f"root: expected a rank below {self.size}, got {root}")
        return root

    def _reduce(self, what: str, kind: int, tensor: Any, out: Any, op: str, root: int, timeout: float | None) -> "Operation":
        given = self._wrap(tensor, out is tensor)
        to = given if out is tensor else None if out is None else self._wrap(out, True)
        if to is not None and to.dtype != given.dtype:
            raise ValueError(f"{what}: `out` has elements of {to.dtype}, and the tensor of {given.dtype}")
        return self._start(what, kind, _DTYPES[given.dtype], _reduction(op, given.dtype), given, to, root, timeout, out)

    def all_reduce(self, tensor: Any, out: Any = None, *, op: str = "sum", timeout: float | None = None) -> "Operation":
        """out = the reduction of all ranks' tensors; without `out` the tensor itself. `op`: sum, avg, min, max, product;
        for bool also or, and."""
        return self._reduce("all_reduce", _ALL_REDUCE, tensor, tensor if out is None else out, op, 0, timeout)

    def reduce(self, tensor: Any, root: int, out: Any = None, *, op: str = "sum", timeout: float | None = None) -> "Operation":
        """As all_reduce(), but only `root` gets the result and uses `out`."""
        to = None if self._root(root) != self.rank else tensor if out is None else out
        return self._reduce("reduce", _REDUCE, tensor, to, op, root, timeout)

    def broadcast(self, tensor: Any, root: int, *, timeout: float | None = None) -> "Operation":
        """tensor = the tensor of `root`."""
        at = self._wrap(tensor, self._root(root) != self.rank)
        return self._start("broadcast", _BROADCAST, 1, 0, at, None, root, timeout, tensor)

    def gather(self, tensor: Any, root: int, out: Any = None, *, timeout: float | None = None) -> "Operation":
        """Part r of `out`, which `root` gives, = the tensor of rank r."""
        to = None if self._root(root) != self.rank or out is None else self._wrap(out, True)
        return self._start("gather", _GATHER, 1, 0, self._wrap(tensor), to, root, timeout, out)

    def scatter(self, tensor: Any, root: int, out: Any, *, timeout: float | None = None) -> "Operation":
        """out = part r, for rank r, of the tensor that `root` gives; elsewhere it is None."""
        given = None if self._root(root) != self.rank or tensor is None else self._wrap(tensor)
        return self._start("scatter", _SCATTER, 1, 0, given, self._wrap(out, True), root, timeout, out)

    def all_gather(self, tensor: Any, out: Any, *, timeout: float | None = None) -> "Operation":
        """Part r of `out` = the tensor of rank r, at every rank."""
        return self._start("all_gather", _ALL_GATHER, 1, 0, self._wrap(tensor), self._wrap(out, True), 0, timeout, out)

    def reduce_scatter(self, tensor: Any, out: Any, *, op: str = "sum", timeout: float | None = None) -> "Operation":
        """out = the reduction of part r, for rank r, of all ranks' tensors."""
        return self._reduce("reduce_scatter", _REDUCE_SCATTER, tensor, out, op, 0, timeout)

    def all_to_all(self, tensor: Any, out: Any, *, parts: Sequence[int] | None = None,
                   out_parts: Sequence[int] | None = None, timeout: float | None = None) -> "Operation":
        """Part r of `out` = the part of rank r's tensor that has this rank's number. `parts`: for each rank the number of
        elements of its part of the tensor, and `out_parts` of `out`. All ranks give both, or none does: then all parts have
        the same size."""
        given, to = self._wrap(tensor), self._wrap(out, True)
        if parts is None and out_parts is None:
            return self._start("all_to_all", _ALL_TO_ALL, 1, 0, given, to, 0, timeout, out)
        counts: list[int] = []
        for name, values in ("parts", parts), ("out_parts", out_parts):
            if values is None or len(values) != self.size:
                raise ValueError(f"{name}: expected one for each of {self.size} ranks, got {values}")
            counts += [_integer(name, value, 0, 48) for value in values]
        return self._start("all_to_all", _ALL_TO_ALL_V, 1, 0, given, to, 0, timeout, out, tuple(counts))

    def barrier(self, *, timeout: float | None = None) -> "Operation":
        """Ends when every rank has called it."""
        return self._start("barrier", _BARRIER, 1, 0, None, None, 0, timeout)


class Operation(_native.Operation):
    """A collective operation of this rank. Wait for it with wait(), or with `await`."""

    def __new__(cls, context: Context, what: str, answer: Any = None) -> "Operation":
        return super().__new__(cls)

    def __init__(self, context: Context, what: str, answer: Any = None) -> None:
        self._context = context
        self._what = what
        self._out = answer
        self._futures: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<{self._what}>"

    def done(self) -> bool:
        """Whether it has ended."""
        self._context._collect()
        return super().wait(0.0)

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end, and returns `out`. If the operation has failed, an Error names the rank that is to blame. After
        Timeout, when `timeout` has passed, the operation goes on until its own time limit."""
        limit = self._context._timeout if timeout is None else _number("timeout", timeout)
        deadline = math.inf if limit is None else time.monotonic() + limit
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout(-errno.ETIMEDOUT, f"{self._what}: not within {limit} s")
            super().wait(min(WAIT_S, left))
        return self._answer()

    def __await__(self) -> Generator[Any, None, Any]:
        future = self._context._attach().create_future()
        self._futures.append(future)
        if not self.done():
            yield from future
        return self._answer()

    def _tell(self) -> None:
        """It has ended."""
        for future in self._futures:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_set, future)

    def _answer(self) -> Any:
        status, text = self.result()
        if status < 0:
            raise Error(status, f"{self._what}: {text}")
        return self._out


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
