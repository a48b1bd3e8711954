# SPDX-License-Identifier: Apache-2.0
"""A backend for torch.distributed: docs/plugins.md.

    import torch.distributed
    import pytern.torch.distributed
    torch.distributed.init_process_group("tern")

Each process group has a context of its own (pytern.transport), with a thread that makes progress, and a connection to each
other rank. The ranks find each other through the group's store, where each one leaves its address, and the lowest one a
secret that all of them must know.

Ranks has the operations. PyTorch 2.15 takes them as a Backend, which it puts beside other backends into a process group of
its own. In older versions a class of Python can only be a whole process group.
"""
import atexit
import contextlib
import errno
import os
import queue
import secrets
import socket
import struct
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch.futures import Future

from .. import _errors, _settings
from ..transport import AnyRequest, Channel, Context, Listener, Peer, PeerDown, Request
from . import addresses
from .lanes import Lane, Starter

# Numbers of what the connections carry: the group's own messages, and send() and recv().
GROUP, MESSAGES = 1, 2
GOODBYE_S = 5.0  # longest wait, at the end, for ranks that have not left
ANSWER_S = 0.02  # longest wait of a future's answer for a work that has ended without a word of the context
WORKS_MAX = 256  # kept without a look whether they have ended
ERROR = getattr(dist, "DistBackendError", RuntimeError)
_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "product"}
_OTHERS = ("BAND", "BOR", "BXOR", "PREMUL_SUM")
_NUMBERS = {getattr(torch, name, None) for name in (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64")}
# Truth values are bytes of 0 or 1: a sum is OR.
_OF_BOOL = {"sum": "max", "max": "max", "product": "min", "min": "min"}


# ---- what a call returns ----

class Results(list[Any]):
    """The tensors of a work, as its future gives them. `rank`: the one that has sent them, if any might have."""

    def __init__(self, tensors: Any, rank: int | None) -> None:
        super().__init__(tensors)
        self.rank = rank


def _results(work: Any) -> Results | None:
    """The results of a work of this backend that has ended well; else None."""
    future = work.get_future()
    value = future.value() if future.done() else None
    return value if isinstance(value, Results) else None


def _is_completed(work: Any) -> bool:
    try:
        return _results(work) is not None
    except RuntimeError as error:  # the work has failed
        return "tern: " in str(error)


def _let_works_answer() -> None:
    """A work of a backend in Python comes back from PyTorch 2.15 in a wrapper that asks it nothing but its future: it is
    never completed, and result() and the source of a receive are errors. So these methods, of all works, ask the future
    where their own answer is such a one. The values of other backends' futures have another class."""
    completed, result, source = dist.Work.is_completed, dist.Work.result, dist.Work._source_rank

    def is_completed(work: Any) -> bool:
        return completed(work) or _is_completed(work)

    def any_result(work: Any) -> Any:
        try:
            return result(work)
        except RuntimeError:
            found = _results(work)
            if found is None:
                raise
            return list(found)

    def source_rank(work: Any) -> int:
        try:
            return source(work)
        except RuntimeError:
            found = _results(work)
            if found is None or found.rank is None:
                raise
            return found.rank

    dist.Work.is_completed, dist.Work.result, dist.Work._source_rank = is_completed, any_result, source_rank


class Work(getattr(dist, "_Work", None) or dist.Work):
    """An operation under way. `operations`: what it waits for; `then`: called once, when these have ended well; `lanes`:
    those on which it copies."""

    def __init__(self, group: "Ranks", operations: Sequence[Any], then: Callable[[], None], result: Any,
                 lanes: Iterable[Lane] = ()) -> None:
        super().__init__()
        self._group, self._operations, self._then, self._tensors = group, operations, then, result
        self._lanes, self._copied = lanes, []
        self._lock = threading.Lock()
        self._over, self._error = False, None
        self._answered = False  # the future
        self.in_order = True  # its future is answered behind those of earlier works
        self._from: Sequence[AnyMessage] = ()
        self._promise: Future[Any] | None = None  # of get_future(), as `_future`
        self._future: Future[Any] | None = None
        group._keep(self)

    def _end(self, timeout: float | None) -> None:
        """Waits for the end. What is to be copied to a GPU then, the current stream waits for."""
        due = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise ERROR(f"the operation has not ended in {timeout:.3g} s")
        try:
            if not self._over:
                self._end_locked(due)
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error
        for lane, copied in self._copied:
            lane.wait_for(copied)

    def _end_locked(self, due: float | None) -> None:
        try:
            for operation in self._operations:
                operation.wait(None if due is None else max(0.0, due - time.monotonic()))
            self._then()
            self._copied = [(lane, lane.mark()) for lane in self._lanes]
        except _errors.Timeout as error:
            if due is not None:
                raise ERROR(str(error)) from None
            self._error = ERROR(str(error))
        except Exception as error:
            self._error = ERROR(f"[rank {self._group.rank()}] tern: {error}")
        self._over = True
        self._operations, self._then = (), _nothing  # which have the memory that was copied
        self._group._drop(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        self._end(seconds if seconds > 0 else None)
        return True

    def _may_end(self) -> bool:
        """Whether _end() would not wait for other ranks."""
        return self._over or all(operation.done() for operation in self._operations)

    def is_completed(self) -> bool:
        if not self._may_end():
            return False
        if self._lanes:
            with contextlib.suppress(Exception):  # wait() raises it
                self._end(None)
        return all(copied.query() for _, copied in self._copied)

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def result(self) -> Any:
        return self._tensors

    def _source_rank(self) -> int:
        return self._from[0].rank() if self._from else super()._source_rank()

    def get_future(self) -> "Future[Any]":
        if self._future is None:
            self._promise = Future()
            # DistributedDataParallel reads the future in C++, which understands the error of a then(), but not that of
            # set_exception().
            self._future = self._promise.then(self._value)
            at_once = not self.in_order and not self._lanes and self._may_end()
            if self._over or at_once or not self._group._answers_later(self):
                self._answer()
        return self._future

    def _value(self, promise: "Future[Any]") -> Any:
        self._end(None)
        for _, copied in self._copied:
            copied.synchronize()  # whoever asks the future, on whatever stream
        return Results(self._tensors or (), self._from[0].rank() if self._from else None)

    def _answer(self) -> None:
        """Tells the future, after the end."""
        with contextlib.suppress(Exception):  # the future has it
            self._end(None)
        with self._lock:
            answered, self._answered = self._answered, True
        if not answered:
            self._promise.set_result(None)


class Message:
    """A send or a receive. As an operation of the group it fails after the group's time limit, and names the rank."""

    def __init__(self, what: str, request: Request, limit_s: float) -> None:
        self._what, self._request, self._limit = what, request, limit_s
        self._due = time.monotonic() + limit_s

    def done(self) -> bool:
        """Whether wait() ends at once."""
        return self._request.done() or time.monotonic() >= self._due

    def wait(self, timeout: float | None) -> None:
        left = max(0.0, self._due - time.monotonic())
        try:
            self._request.wait(left if timeout is None else min(left, timeout))
        except _errors.Timeout:
            if time.monotonic() < self._due:
                raise
            self._request.cancel()
            raise _errors.Error(-errno.ETIMEDOUT, f"{self._what} has not ended in {self._limit:.3g} s") from None
        except _errors.Error as error:
            raise _errors.Error(error.status, f"{self._what}: {error}") from None


class AnyMessage(Message):
    """A receive from any rank. `ranks`: those of its channels."""

    def __init__(self, request: AnyRequest, ranks: dict[Channel, int], limit_s: float) -> None:
        super().__init__("recv from any rank", request, limit_s)
        self._any, self._ranks = request, ranks

    def rank(self) -> int:
        """After the end: the rank that has sent."""
        return -1 if self._any.source is None else self._ranks[self._any.source]

    def wait(self, timeout: float | None) -> None:
        try:
            super().wait(timeout)
        except _errors.Error as error:
            if not self._any.done() or self.rank() < 0:
                raise
            raise _errors.Error(error.status, f"rank {self.rank()}: {error}") from None


def _nothing() -> None:
    pass


def _count(tensor: torch.Tensor) -> int:
    """How many elements the transport moves."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _take(later: "queue.SimpleQueue[Work | None]", works: list[Work], waits: bool) -> bool:
    """Adds what is in the queue to `works`. False: nothing more will come."""
    with contextlib.suppress(queue.Empty):
        while True:
            work = later.get(waits)
            if work is None:
                return False
            works.append(work)
            waits = False
    return True


def _answer_ended(works: list[Work]) -> list[Work]:
    """Answers the futures of works that have ended: those of collective operations in the order of their calls, since what
    their callbacks call should come in the same order at all ranks, and those of messages in any. Returns the rest."""
    rest: list[Work] = []
    for work in works:
        if work._may_end() and not (work.in_order and any(other.in_order for other in rest)):
            work._answer()
        else:
            rest.append(work)
    return rest


def _answer_futures(later: "queue.SimpleQueue[Work | None]", context: Any) -> None:
    """Answers the futures of works as soon as they have ended."""
    works: list[Work] = []
    goes_on, seen = True, 0
    while goes_on or works:
        goes_on = goes_on and _take(later, works, not works)
        works = _answer_ended(works)
        if works:
            try:
                seen = context.wait(seen, ANSWER_S)
            except _errors.Error:  # the context is closed, which ends all
                time.sleep(0.001)


# ---- the group ----

_open: "weakref.WeakSet[Ranks]" = weakref.WeakSet()
_kept: "set[Backend]" = set()


@atexit.register
def _shut_all() -> None:
    """PyTorch 1.13 never calls shutdown()."""
    for group in list(_open):
        if group._pid == os.getpid():
            group.shutdown()


class Ranks:
    """The ranks of a process group, and their operations, by the names that torch calls them by."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._timeout = rank, size, timeout.total_seconds()
        self._works: set[Work] = set()
        self._later: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._later_lock = threading.RLock()  # nothing is put behind None; a signal's handler may close the group
        self._thread: threading.Thread | None = None
        self._sequence = 0
        self._coalesced: list[Work] | None = None  # since start_coalescing()
        self._starter = Starter()
        self._lanes: dict[torch.device, Lane] = {}
        self._pid, self._closed = os.getpid(), False
        secret = self._secret(store)
        self._context = Context(name=f"{socket.gethostname()}, pid {os.getpid()}", secret=secret, dead_timeout=_settings.dead_s(),
                                connect_timeout=self._timeout)
        try:
            self._peers, hosts = self._meet(store)
            self._group = self._context.group(rank, size, self._peers, GROUP, hosts=hosts, timeout=self._timeout)
            self._messages = [None if peer is None else peer.channel(MESSAGES) for peer in self._peers]
        except BaseException as error:
            self._context.close()
            if not isinstance(error, _errors.Error):
                raise
            raise ERROR(f"[rank {rank}] tern: the ranks do not meet: {error}") from None
        _open.add(self)
        for end in self._starter.close, lambda later=self._later: later.put(None):
            weakref.finalize(self, end).atexit = False  # threads of a group that nobody has shut down

    def _secret(self, store: Any) -> str:
        if self._rank == 0:
            store.set("tern/secret", secrets.token_hex(16))
        return self._told(store, "secret", 0)

    def _told(self, store: Any, key: str, rank: int) -> str:
        try:
            return store.get(f"tern/{key}").decode()
        except RuntimeError as error:
            raise ERROR(f"[rank {self._rank}] tern: rank {rank} has not come within {self._timeout:.3g} s, or the store is "
                        f"gone: {error}") from None

    def _accept(self, listener: Listener, peers: list[Peer | None]) -> Peer:
        def look() -> Peer | None:
            for peer in peers:
                if peer is not None and peer.is_down:
                    peer.wait_up()  # which raises
            return listener._look()

        def missing() -> str:
            return f"ranks {[r for r in range(self._rank + 1, self._size) if peers[r] is None]}"

        return self._context._wait(look, self._timeout, missing)

    def _meet(self, store: Any) -> tuple[list[Peer | None], list[int]]:
        """Rank i dials all ranks below it. Returns the peers, and the numbers of the hosts."""
        peers: list[Peer | None] = [None] * self._size
        with self._context.listen(f"{_settings.fabrics()}://{addresses.own_address()}:0") as listener:
            store.set(f"tern/{self._rank}", f"{listener.address}\n{addresses.host()}")
            told = [self._told(store, str(r), r).split("\n") for r in range(self._size)]
            for r in range(self._rank):
                peers[r] = self._context.connect(told[r][0])
                peers[r].channel(MESSAGES).send("rank", struct.pack("<I", self._rank)).wait(self._timeout)
            for _ in range(self._rank + 1, self._size):
                peer = self._accept(listener, peers)
                number, = struct.unpack("<I", bytes(peer.channel(MESSAGES).recv("rank").wait(self._timeout)))
                peers[number] = peer
        hosts = [host for _, host in told]
        if _settings.tells_connections():
            for r, peer in enumerate(peers):
                if peer is not None:
                    print(f"tern: rank {self._rank} reaches rank {r}, {peer.name}, by {peer.fabric}", file=sys.stderr)
        return peers, [hosts.index(host) for host in hosts]

    # Works live as long as they are under way: torch keeps only their C++ halves. Those that nobody waits for are ended
    # here.
    def _keep(self, work: Work) -> None:
        if len(self._works) >= WORKS_MAX:
            for other in list(self._works):
                if other.is_completed():
                    with contextlib.suppress(Exception):  # the next operation raises the same
                        other._end(None)
        self._works.add(work)

    def _drop(self, work: Work) -> None:
        self._works.discard(work)

    def _answers_later(self, work: Work) -> bool:
        """Lets a thread answer the future of a work. False: the caller is to do it, since the group is closed, or the caller
        is a callback on that thread, which may wait for the future."""
        with self._later_lock:
            if self._closed or threading.current_thread() is self._thread:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=_answer_futures, args=(self._later, self._context._native),
                                                name="tern-futures", daemon=True)
                self._thread.start()
            self._later.put(work)
            return True

    # ---- what torch asks ----

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return "tern"

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    getSequenceNumberForGroup = _get_sequence_number_for_group

    def start_coalescing(self) -> None:
        self._coalesced = []

    def end_coalescing(self) -> Work:
        """An operation that ends with all since start_coalescing(). Each of them has started when it was called."""
        works, self._coalesced = self._coalesced or [], None

        def end() -> None:
            for work in works:
                work._end(None)

        return Work(self, [operation for work in works for operation in work._operations], end, [],
                    {lane for work in works for lane in work._lanes})

    def abort(self) -> None:
        """Ends at once what is under way, here and at the other ranks."""
        with self._later_lock:
            if self._closed:
                return
            self._closed = True
            self._later.put(None)
        _open.discard(self)
        _kept.discard(self)
        self._starter.close()
        self._group.close()
        self._context.close()

    def shutdown(self) -> None:
        """Leaves the group, when the other ranks leave it, too: one that is behind may not have taken yet what this rank has
        sent it, and would lose that with the connection. Waits for GOODBYE_S at most, and
        as long again for operations that wait for a GPU."""
        if self._closed:
            return
        if not self._group.failure:
            with contextlib.suppress(_errors.Error):
                self._starter.wait(GOODBYE_S)
            self._group.close()
            self._part(time.monotonic() + GOODBYE_S)
        self.abort()

    def _part(self, deadline: float) -> None:
        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        requests = []
        for channel in self._messages:
            with contextlib.suppress(_errors.Error):  # of a rank that has left
                if channel is not None:
                    requests += [channel.send("goodbye", b"1"), channel.recv("goodbye")]
        for request in requests:
            with contextlib.suppress(_errors.Error):
                request.wait(left())
        peers = [peer for peer in self._peers if peer is not None]
        for peer in peers:
            with contextlib.suppress(_errors.Error):
                peer._native.say_goodbye()
        for peer in peers:
            with contextlib.suppress(_errors.Error):
                peer.wait_down(left())

    # ---- helpers ----

    def _lane(self, tensor: torch.Tensor) -> Lane | None:
        """None for a tensor of the CPU."""
        if tensor.device.type == "cpu":
            return None
        if tensor.device.type != "cuda":
            raise ERROR(f"tern: a tensor on {tensor.device}: this backend takes tensors of the CPU and of CUDA devices")
        lane = self._lanes.get(tensor.device)
        # If two threads make a device's first lane at once, both must use one of the two: a lane's marks are behind its own
        # copies only.
        return lane or self._lanes.setdefault(tensor.device, Lane(tensor.device))

    def _whole(self, tensor: torch.Tensor, filled: bool = True) -> torch.Tensor:
        """The tensor, if it is a contiguous one of the CPU; else such a one with the same values, or, if it is not to be
        filled, for other values."""
        lane = self._lane(tensor)
        if lane is None:
            return tensor if tensor.is_contiguous() else tensor.contiguous()
        lane.follow(tensor)
        whole = lane.memory(tensor.shape, tensor.dtype)
        if filled:
            lane.get(tensor, whole)
        return whole

    def _put(self, tensor: torch.Tensor, whole: torch.Tensor) -> None:
        """Lets the tensor have the values of what _whole() has returned for it."""
        lane = self._lane(tensor)
        if lane is None and whole is tensor:
            return
        # The caller's modes of autograd are not those of the thread that answers futures.
        with torch.inference_mode(tensor.is_inference()):
            if lane is not None:
                lane.put(tensor, whole)
            else:
                tensor.detach().copy_(whole)

    def _given(self, tensor: torch.Tensor) -> Any:
        return self._memory(self._whole(tensor))

    def _memory(self, tensor: torch.Tensor) -> Any:
        """A view of a contiguous tensor that the transport takes: one-byte types that it lacks become uint8."""
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.dtype in _NUMBERS:
            return tensor
        if tensor.element_size() != 1:
            raise ERROR(f"tern: a tensor of {tensor.dtype}: this backend has no such type")
        return tensor.view(torch.uint8)

    def _op(self, what: str, options: Any, tensor: torch.Tensor) -> str:
        name = next((name for name in (*_REDUCTIONS, *_OTHERS)
                     if options.reduceOp == getattr(dist.ReduceOp, name, None)), "this operator")
        op = _REDUCTIONS.get(name)
        if op and tensor.dtype == torch.bool:
            op = _OF_BOOL.get(op)
        elif tensor.is_complex():
            op = op if op in ("sum", "avg") else None
        elif tensor.dtype != torch.bool and tensor.dtype not in _NUMBERS:
            raise ERROR(f"tern: {what}: {name} of {tensor.dtype} is not there: convert the tensor, for example to torch.bfloat16")
        if op is None:
            raise ERROR(f"tern: {what}: {name} of {tensor.dtype} is not there")
        return op

    def _limit(self, options: Any) -> float | None:
        seconds = options.timeout.total_seconds() if options is not None else 0
        return seconds if seconds > 0 else None

    def _start(self, operations: Callable[[], Sequence[Any]], result: Any, then: Callable[[], None] = _nothing,
               tensors: Sequence[torch.Tensor] = ()) -> Work:
        """`tensors`: all whose values are copied from a GPU, or to it."""
        self._sequence += 1
        lanes = {lane for lane in map(self._lane, tensors) if lane is not None}
        try:
            work = Work(self, self._starter.start([lane.mark() for lane in lanes], operations), then, result, lanes)
        except _errors.Error as error:
            raise ERROR(f"[rank {self._rank}] tern: {error}") from None
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _in_place(self, tensors: Sequence[torch.Tensor], start: Callable[[Any], Any],
                  given: Sequence[torch.Tensor] = (), filled: bool = True) -> Work:
        """An operation on each tensor in place. Those that are not contiguous, or not of the CPU, are copied: there, if they
        are filled, and back."""
        whole = [self._whole(tensor, filled) for tensor in tensors]
        places = [self._memory(tensor) for tensor in whole]

        def copy_back() -> None:
            for tensor, copy in zip(tensors, whole):
                self._put(tensor, copy)

        return self._start(lambda: [start(place) for place in places], list(tensors), copy_back, [*tensors, *given])

    def _parts(self, outs: Sequence[torch.Tensor], start: Callable[[Any], Any], result: Any,
               given: Sequence[torch.Tensor] = ()) -> Work:
        """An operation that fills `outs`, which are parts of one tensor."""
        lane, count = None, sum(out.numel() for out in outs)
        for out in outs:
            own = self._lane(out)
            if own is not None:
                lane = own
                own.follow(out)
        whole = lane.memory(count, outs[0].dtype) if lane else torch.empty(count, dtype=outs[0].dtype, device="cpu")

        def spread() -> None:
            for out, part in zip(outs, whole.split([out.numel() for out in outs])):
                self._put(out, part.view(out.shape))

        place = self._memory(whole)
        return self._start(lambda: [start(place)], result, spread, [*outs, *given])

    def _split(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """How many elements the parts have that take so many rows each; without `splits` all take the same."""
        rows = tensor.shape[0] if tensor.dim() else 1
        parts = list(splits) or [rows // self._size] * self._size
        if len(parts) != self._size or sum(parts) != rows:
            raise ERROR(f"tern: all_to_all_single: expected {self._size} parts of {rows} rows together, got {parts}")
        return [part * _count(tensor) // max(rows, 1) for part in parts]

    def _same(self, what: str, tensors: Sequence[torch.Tensor], count: int) -> None:
        if len(tensors) != count or any(t.numel() != tensors[0].numel() for t in tensors):
            raise ERROR(f"tern: {what}: expected {count} tensors of one size, got sizes {[t.numel() for t in tensors]}")

    def _joined(self, tensors: Sequence[torch.Tensor]) -> Any:
        return self._given(torch.cat([tensor.reshape(-1) for tensor in tensors]))

    # ---- operations ----

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.AllreduceOptions()
        ops, limit = iter([self._op("all_reduce", opts, tensor) for tensor in tensors]), self._limit(opts)
        return self._in_place(tensors, lambda t: self._group.all_reduce(t, op=next(ops), timeout=limit))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.BroadcastOptions()
        limit = self._limit(opts)
        return self._in_place(tensors, lambda t: self._group.broadcast(t, opts.rootRank, timeout=limit))

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.ReduceOptions()
        op, limit = self._op("reduce", opts, tensors[0]), self._limit(opts)
        return self._in_place(tensors, lambda t: self._group.reduce(t, opts.rootRank, op=op, timeout=limit))

    def allgather(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        self._same("all_gather", [tensors[0], *outs[0]], self._size + 1)
        given, limit = self._given(tensors[0]), self._limit(opts)
        return self._parts(outs[0], lambda whole: self._group.all_gather(given, whole, timeout=limit), outs, tensors)

    def _allgather_base(self, out: Any, tensor: Any, opts: Any = None) -> Work:
        given, limit = self._given(tensor), self._limit(opts)
        return self._in_place([out], lambda whole: self._group.all_gather(given, whole, timeout=limit), [tensor], filled=False)

    all_gather_single = _allgather_base

    def all_gather_single_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        given, limit = iter([self._given(tensor) for tensor in tensors]), self._limit(opts)
        return self._in_place(outs, lambda whole: self._group.all_gather(next(given), whole, timeout=limit), tensors,
                              filled=False)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        root, given, limit = opts.rootRank, self._given(tensors[0]), self._limit(opts)
        if self._rank != root:
            return self._start(lambda: [self._group.gather(given, root, timeout=limit)], [], tensors=tensors)
        self._same("gather", [tensors[0], *outs[0]], self._size + 1)
        return self._parts(outs[0], lambda whole: self._group.gather(given, root, whole, timeout=limit), outs, tensors)

    def scatter(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        root, limit, given, parts = opts.rootRank, self._limit(opts), None, []
        if self._rank == root:
            parts = tensors[0]
            self._same("scatter", [outs[0], *parts], self._size + 1)
            given = self._joined(parts)
        return self._in_place(outs, lambda out: self._group.scatter(given, root, out, timeout=limit), parts, filled=False)

    def reduce_scatter(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        self._same("reduce_scatter", [outs[0], *tensors[0]], self._size + 1)
        return self._reduce_scatter_base(outs[0], torch.cat([t.reshape(-1) for t in tensors[0]]), opts)

    def _reduce_scatter_base(self, out: Any, tensor: Any, opts: Any = None) -> Work:
        opts = opts or dist.ReduceScatterOptions()
        op, limit = self._op("reduce_scatter", opts, tensor), self._limit(opts)
        given = self._given(tensor)
        return self._in_place([out], lambda to: self._group.reduce_scatter(given, to, op=op, timeout=limit), [tensor],
                              filled=False)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_single_coalesced(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        opts = opts or dist.ReduceScatterOptions()
        given = iter([(self._given(tensor), self._op("reduce_scatter", opts, tensor)) for tensor in tensors])
        limit = self._limit(opts)

        def start(to: Any) -> Any:
            tensor, op = next(given)
            return self._group.reduce_scatter(tensor, to, op=op, timeout=limit)

        return self._in_place(outs, start, tensors, filled=False)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall_base(self, out: Any, tensor: Any, out_splits: Any, in_splits: Any, opts: Any = None) -> Work:
        given, limit, parts = self._given(tensor), self._limit(opts), {}
        if out_splits or in_splits:
            parts = {"parts": self._split(tensor, in_splits), "out_parts": self._split(out, out_splits)}
        return self._in_place([out], lambda to: self._group.all_to_all(given, to, timeout=limit, **parts), [tensor],
                              filled=False)

    all_to_all_single = alltoall_base

    def alltoall(self, outs: Any, tensors: Any, opts: Any = None) -> Work:
        given, limit = self._joined(tensors), self._limit(opts)
        parts = {"parts": [_count(t) for t in tensors], "out_parts": [_count(t) for t in outs]}
        return self._parts(outs, lambda whole: self._group.all_to_all(given, whole, timeout=limit, **parts), outs, tensors)

    def barrier(self, opts: Any = None) -> Work:
        return self._start(lambda: [self._group.barrier(timeout=self._limit(opts))], [])

    def _message(self, what: str, rank: int, start: Callable[[Any], Request]) -> Message:
        name = f"{what} rank {rank} ({self._peers[rank].name})"
        try:
            return Message(name, start(self._messages[rank]), self._timeout)
        except _errors.Error as error:
            raise _errors.Error(error.status, f"{name}: {error}") from None

    def send(self, tensors: Any, to: int, tag: int) -> Work:
        given = self._given(tensors[0])
        work = self._start(lambda: [self._message("send to", to, lambda channel: channel.send(f"tag {tag}", given))], tensors,
                           tensors=tensors)
        work.in_order = False
        return work

    def recv(self, tensors: Any, source: int, tag: int) -> Work:
        work = self._in_place(tensors, lambda into: self._message(
            "recv from", source, lambda channel: channel.recv(f"tag {tag}", into=into)), filled=False)
        work.in_order = False
        return work

    def _any_message(self, tag: int, into: Any) -> AnyMessage:
        ranks = {channel: rank for rank, channel in enumerate(self._messages) if channel is not None}
        if not ranks:
            raise ERROR("tern: recv from any rank: there is no other rank")
        try:
            request = self._context.recv_any(list(ranks), f"tag {tag}", into=into, needs_all=True)
        except PeerDown as error:
            lost = next(rank for channel, rank in ranks.items() if channel.peer.name == error.peer)
            raise _errors.Error(error.status, f"recv from any rank: rank {lost}: {error}") from None
        return AnyMessage(request, ranks, self._timeout)

    def recv_anysource(self, tensors: Any, tag: int) -> Work:
        """A rank that fails ends it, since what it waits for may be what that rank would have sent."""
        messages: list[AnyMessage] = []

        def start(into: Any) -> AnyMessage:
            messages.append(self._any_message(tag, into))
            return messages[0]

        work = self._in_place(tensors, start, filled=False)
        work._from, work.in_order = messages, False
        return work


# ---- the classes that torch knows ----

class ProcessGroup(Ranks, dist.ProcessGroup):
    """A process group with this backend only."""

    name = Ranks.getBackendName

    # The base class keeps the group's name in a backend in C++, which is not there.
    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_name(self) -> str:
        return self._group_name

    def _set_group_desc(self, text: str) -> None:
        self._group_desc = text

    @property
    def group_desc(self) -> str:
        return self._group_desc

    # torch asks it only whether it coalesces.
    def _get_backend(self, device: Any) -> "ProcessGroup":
        return self


_BASE: Any = getattr(torch._C._distributed_c10d, "Backend", object)


class Backend(Ranks, _BASE):  # type: ignore[misc]
    """A backend of a process group that may have others for other devices."""

    # The properties of the base class ask the class of Python, and would ask each other for ever.
    supports_coalescing = supports_reconfigure = supports_shrinking = supports_splitting = supports_window = False
    _supports_time_estimate = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _kept.add(self)  # TORCH_DISTRIBUTED_DEBUG=DETAIL puts it into a wrapper, which keeps only the half of C++

    @property
    def options(self) -> Any:
        return _BASE.Options(self.getBackendName(), timedelta(seconds=self._timeout))


def _has_constructor(base: Any) -> bool:
    try:
        base(0, 1)
    except TypeError:
        return False
    return True


IS_BACKEND = _has_constructor(_BASE)


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Ranks:
    return (Backend if IS_BACKEND else ProcessGroup)(store, rank, size, timeout)


def register_backend() -> None:
    """Makes "tern" known to torch.distributed. Importing this module does it."""
    if "tern" in getattr(dist.Backend, "backend_list", ()) or hasattr(dist.Backend, "TERN"):
        return
    if IS_BACKEND:
        _let_works_answer()
    try:
        dist.Backend.register_backend("tern", _make, devices=["cpu", "cuda"])
    except TypeError:  # PyTorch 1.13
        dist.Backend.register_backend("tern", _make)


register_backend()
