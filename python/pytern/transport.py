# SPDX-License-Identifier: Apache-2.0
"""Tensors between processes, without training: docs/python-transport.md has programs.

    with Context() as context:                               with Context() as context:
        with context.listen("tcp://0.0.0.0:7000") as l:          peer = context.connect("tcp://host:7000")
            peer = l.accept()
        channel = peer.channel()                                 channel = peer.channel()
        channel.send("weights", array).wait()                    array = numpy.asarray(channel.recv("weights").wait())

A receiver says where the tensor of a key is to go, and a sender has the tensor, in either order. Nothing is copied on
the way in or out: what has the buffer protocol or DLPack is sent from where it is, and what is received offers both.

Threads may share all objects of this file. A context has a thread that makes progress, so a request goes on while
nobody waits for it.
"""
import asyncio
import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generator, TypeVar

import numpy

from . import _native
from ._errors import Error, Timeout
from ._native import Buffer
from .rules import _integer, _number
from .session import WAIT_S, _text

__all__ = ["AnyRequest", "Buffer", "Channel", "Context", "Group", "Listener", "Operation", "Peer", "PeerDown", "Remote",
           "Request", "Window"]
T = TypeVar("T")
# With these a request ends while its peer is up (tern_send() in <tern/channel.h>).
_OWN = {-errno.EMSGSIZE, -errno.EEXIST, -errno.ECANCELED, -errno.EACCES, -errno.EIO, -errno.ENOTRECOVERABLE, -errno.ENOBUFS,
        -errno.ENOMEM}
_CAUSES = {-errno.ESHUTDOWN: "it was closed in an orderly way",
           -errno.ENOBUFS: "the program has not taken its notifications, which fill 64 MiB"}
# enum tern_dtype, by NumPy's names. Its short ones are left out: its "i8" has 8 bytes, and Tern's has 8 bits.
_NUMBERS = {"uint8": 1, "int8": 2, "uint16": 3, "int16": 4, "uint32": 5, "int32": 6, "uint64": 7, "int64": 8, "float16": 9,
            "bfloat16": 10, "float32": 11, "float64": 12, "bool": 1}


class PeerDown(Error):
    """The peer has ended, cannot be reached, or has closed the connection. `peer` is its name, and the sentence has the
    cause. It does not come back: a process that connects again is another peer."""

    def __init__(self, status: int, text: str, peer: str) -> None:
        super().__init__(status, text)
        self.peer = peer


def _dtype(dtype: Any) -> tuple[int, bool]:
    """The number of a type, and whether its elements are bool."""
    name = dtype if isinstance(dtype, str) else numpy.dtype(dtype).name
    if name not in _NUMBERS:
        raise ValueError(f"dtype: expected one of {', '.join(_NUMBERS)}, got {dtype!r}")
    return _NUMBERS[name], name == "bool"


def _shape(shape: Any) -> tuple[int, ...]:
    dims = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if len(dims) > 8:
        raise ValueError(f"shape: expected at most 8 dimensions, got {len(dims)}")
    return tuple(_integer("shape", dim, 0, 62) for dim in dims)


class Context:
    """Connections to other processes, the memory that is received into, and a thread that makes progress.

    `name`: what peers call this process in their messages. `secret`, `secret_file`: what both ends must know; without
    them TERN_SECRET_FILE names the file, if it is set. `connect_timeout`: seconds within which connect() must succeed.
    `unreachable_timeout`: seconds after which a peer whose host does not answer is down. `dead_timeout`: the same for a
    peer whose program says nothing although its host answers; None: never, since a program may compute for long.
    `rails`: connections to each peer over which large tensors are spread. `slab_bytes`: the largest tensor that is
    received into a buffer of the context, and `pool_bytes`: all of these buffers together. `timeout`: the longest wait of
    a call in seconds; None: no limit.
    """

    def __init__(self, *, name: str | None = None, secret: str | None = None, secret_file: str | os.PathLike[str] | None = None,
                 connect_timeout: float = 5.0, unreachable_timeout: float = 10.0, dead_timeout: float | None = None,
                 rails: int = 1, slab_bytes: int = 64 << 20, pool_bytes: int = 4 << 30, timeout: float | None = None) -> None:
        self._closed = False
        self._name = None if name is None else _text("name", name)
        self._timeout = None if timeout is None else _number("timeout", timeout)
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: list[asyncio.Future[None]] = []  # of the loop
        slab = _integer("slab_bytes", slab_bytes, 4096, 40)
        self._native = _native.Context(
            None if secret is None else _text("secret", secret),
            None if secret_file is None else _text("secret_file", secret_file), _number("connect_timeout", connect_timeout),
            0.0 if dead_timeout is None else _number("dead_timeout", dead_timeout),
            _number("unreachable_timeout", unreachable_timeout), _integer("rails", rails, 1, 32))
        self._pool: _native.Pool | None = self._native.pool(slab, max(slab, _integer("pool_bytes", pool_bytes, 4096, 40)), -1)

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None:
            self.close()  # what closes forgotten windows would keep it

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections at once; requests that have not ended end with ECANCELED. What was received stays."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._loop is not None:
            fd = self._native.fileno()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._loop.remove_reader, fd)
        self._native.close()
        self._wake()
        self._pool = None
        # The library lets go of requests in its own thread.
        deadline = time.monotonic() + 1.0
        while self._collect() or (self._native.posted() and time.monotonic() < deadline):
            time.sleep(0.0005)

    def listen(self, address: str = "tcp://127.0.0.1:0", *, secret: str | None = None) -> "Listener":
        """Listens at "FABRIC://HOST:PORT", with FABRIC auto, tcp, verbs, or shm (then followed by any name). Port 0: the
        system picks one, which Listener.address has."""
        return Listener(self, self._native.listen(_text("address", address), self._name, secret, self._memory()))

    def connect(self, address: str, *, secret: str | None = None) -> "Peer":
        """Starts to connect, and does not wait: requests may be posted at once. See Peer.wait_up()."""
        return Peer(self, self._native.connect(_text("address", address), self._name, secret, self._memory()))

    def empty(self, shape: Any, dtype: Any = "float32") -> Buffer:
        """A buffer of the context's memory, with any contents. `dtype`: one of NumPy, or a name: "float32",
        "bfloat16", "int64", "bool" and the like. Peers on the same host read such buffers without a copy, and RDMA devices without registering them."""
        number, is_bool = _dtype(dtype)
        return self._memory().take(number, _shape(shape), is_bool)

    def wrap(self, tensor: Any, *, writable: bool = False) -> Buffer:
        """The memory of a tensor that has the buffer protocol or DLPack, as a buffer. Where many sends or receives use
        the same memory, this saves what each of them would do."""
        return self._wrap(tensor, writable, brief=False)

    def _wrap(self, tensor: Any, writable: bool = False, brief: bool = True) -> Buffer:
        """`brief`: for one operation, so that RDMA devices need not register a small tensor."""
        if isinstance(tensor, Buffer):
            if writable and tensor.readonly:
                raise ValueError("the buffer cannot be written to")
            return tensor
        return self._native.wrap(tensor, writable, brief, self._memory())

    def window(self, tensor: Any, *, read: bool = True, write: bool = False) -> "Window":
        """Lets peers get from the memory of a tensor (`read`), or put into it (`write`), while the program does something
        else. The memory stays until the window is closed."""
        return Window(self, tensor, read, write)

    def group(self, rank: int, size: int, peers: "Sequence[Peer | None]", number: int, *, hosts: Sequence[int] | None = None,
              timeout: float = 300.0) -> "Group":
        """Joins a group of processes. `peers`: for each rank the Peer to it; that of this rank is ignored. `number`: the
        same at all ranks, and not that of a channel, or of another group, of one of these peers. `hosts`: for each rank the
        number of its host, the same at all ranks; None: all are on one host. `timeout`: seconds within which an
        operation must end; the line of the error then names the rank that is furthest behind."""
        return Group(self, rank, size, peers, number, hosts, timeout)

    def recv_any(self, channels: "Sequence[Channel]", key: str | int, step: int = 0, *, into: Any = None, peek: bool = False,
                 needs_all: bool = False) -> "AnyRequest":
        """Starts to receive one tensor of (key, step) from any of the channels: the one that arrives first. The `source` of
        the request is its channel. Peers that go down are not waited for; with `needs_all` the request ends when the first
        of them fails."""
        return recv_any(self, channels, key, step, into, peek, needs_all)

    def _memory(self) -> _native.Pool:
        if self._pool is None:
            raise Error(-errno.EBADF, "the context is closed")
        return self._pool

    # ---- waiting ----

    def _collect(self) -> int:
        """Tells the requests that have ended."""
        ended = self._native.collect()
        for request in ended:
            request._tell()
        return len(ended)

    def _wait(self, look: Callable[[], T | None], timeout: float | None, what: Callable[[], str]) -> T:
        """Waits until look() has an answer."""
        limit = self._timeout if timeout is None else _number("timeout", timeout)
        deadline = math.inf if limit is None else time.monotonic() + limit
        seen = 0
        while True:
            answer = look()
            if answer is not None:
                return answer
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout(-errno.ETIMEDOUT, f"{what()}: not within {limit} s")
            seen = self._native.wait(seen, max(0.0, min(WAIT_S, left)))

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Lets the running event loop hear of changes."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return loop
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the context is awaited in another event loop: use one context for each loop")
        self._loop = loop
        self._changed = []
        loop.add_reader(self._native.fileno(), self._on_change)
        return loop

    def _on_change(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._native.fileno(), 8)
        self._collect()
        self._look_again()

    def _look_again(self) -> None:
        """Lets all that wait in the loop look for their answers."""
        changed, self._changed = self._changed, []
        for future in changed:
            _set(future)

    def _wake(self) -> None:
        """Something was closed, on any thread: who waits for it must hear of that."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._look_again)

    async def _until(self, look: Callable[[], T | None]) -> T:
        loop = self._attach()
        while True:
            answer = look()
            if answer is not None:
                return answer
            future = loop.create_future()
            self._changed.append(future)
            try:
                await future
            finally:
                if future in self._changed:
                    self._changed.remove(future)


class Listener:
    """Accepts peers. `with listener:` closes it at the end of the block; the peers stay."""

    def __init__(self, context: Context, native: _native.Listener) -> None:
        self._context = context
        self._native = native

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def address(self) -> str:
        """What others connect to, with the port that the system has picked."""
        return self._native.address()

    @property
    def addresses(self) -> list[str]:
        """All that others may be able to connect to. More than one, if the listener is at 0.0.0.0 or [::]: those of the
        interfaces that are up."""
        return self._native.addresses()

    def _look(self) -> "Peer | None":
        native = self._native.accept()
        return None if native is None else Peer(self._context, native)

    def accept(self, timeout: float | None = None) -> "Peer":
        """Waits for the next peer that has connected and proved that it knows the secret."""
        return self._context._wait(self._look, timeout, lambda: f"a peer at {self.address}")

    async def accept_async(self) -> "Peer":
        return await self._context._until(self._look)

    def close(self) -> None:
        """Stops listening. Peers that were not accepted are refused."""
        self._native.close()
        self._context._wake()


class Peer:
    """Another process. The connection ends when neither the program nor an unfinished request uses the object."""

    def __init__(self, context: Context, native: _native.Peer) -> None:
        self._context = context
        self._native = native

    def __repr__(self) -> str:
        try:
            return f"<peer {self.name}>"
        except Error:
            return "<peer, closed>"

    @property
    def name(self) -> str:
        """What it calls itself and its address: "worker 3 (tcp 10.0.0.7:41234)"."""
        return self._native.state()[4]

    @property
    def fabric(self) -> str:
        """What the peer is connected by: "tcp", "shm", "verbs"; "" before it is connected."""
        return self._native.state()[5]

    @property
    def address(self) -> str:
        return self._native.state()[6]

    @property
    def is_up(self) -> bool:
        return self._native.state()[0]

    @property
    def is_suspect(self) -> bool:
        """It is silent, or its connection was lost and is being restored."""
        return self._native.state()[1]

    @property
    def is_down(self) -> bool:
        """It is gone for good: requests raise PeerDown."""
        return self._native.state()[2]

    @property
    def stats(self) -> dict[str, int]:
        """Numbers of messages, bytes, and transfers by how the bytes moved: put, get, peek (read in place), eager (in the
        first message)."""
        return self._native.stats()

    def _down(self, what: str, status: int) -> PeerDown:
        status = status or -errno.ESHUTDOWN
        cause = _CAUSES.get(status) or _native.status_text(status)
        name = self.name
        return PeerDown(status, f"{what}{name} is down: {cause}", name)

    def _look_up(self) -> bool | None:
        up, _, down, status, *_ = self._native.state()
        if down:
            raise self._down("", status)
        return up or None

    def _look_down(self) -> bool | None:
        return self._native.state()[2] or None

    def wait_up(self, timeout: float | None = None) -> "Peer":
        """Waits until the peer is connected. PeerDown has the reason why it cannot be."""
        self._context._wait(self._look_up, timeout, lambda: f"a connection to {self.name}")
        return self

    async def up(self) -> "Peer":
        await self._context._until(self._look_up)
        return self

    def wait_down(self, timeout: float | None = None) -> None:
        """Waits until the peer is down."""
        self._context._wait(self._look_down, timeout, lambda: f"the end of {self.name}")

    async def down(self) -> None:
        await self._context._until(self._look_down)

    def channel(self, number: int = 0) -> "Channel":
        """A name space of keys. Both ends use the same number, below 2**32 - 1."""
        if number == 2**32 - 1:
            raise ValueError(f"number: {number} is that of a channel of Tern's own")
        return Channel(self, self._native.channel(_integer("number", number, 0, 32)), number)

    def open(self, descriptor: Any) -> "Remote":
        """Opens a window of the peer, whose `descriptor` is what Window.describe() has returned there. Does not wait: puts and
        gets may be posted at once, and fail if the peer refuses."""
        return Remote(self, descriptor)

    def notify(self, note: Any = b"") -> "Request":
        """Sends up to 4,096 bytes to notified() of the other end, behind all puts that were posted to this peer before. The
        request ends when the other end has queued them."""
        return _notify(self, note)

    def _look_notified(self) -> bytes | None:
        _, _, down, status, *_ = self._native.state()
        note = self._native.notified()
        if note is None and down:
            raise self._down("", status)
        return note

    def wait_notified(self, timeout: float | None = None) -> bytes:
        """Waits for the next notification of the peer, and returns its bytes. Each arrives once, those of notify() in their
        order. PeerDown follows the last one."""
        return self._context._wait(self._look_notified, timeout, lambda: f"a notification of {self.name}")

    async def notified(self) -> bytes:
        return await self._context._until(self._look_notified)

    def close(self, timeout: float = 5.0) -> None:
        """Closes the connection in an orderly way: lets sends end, and waits for the other end's goodbye for so long. In a
        coroutine use close_async()."""
        with contextlib.suppress(Timeout, Error):
            self._native.say_goodbye()
            self.wait_down(timeout)
        self._native.free()
        self._context._collect()
        self._context._wake()

    async def close_async(self, timeout: float = 5.0) -> None:
        with contextlib.suppress(asyncio.TimeoutError, Error):
            self._native.say_goodbye()
            await asyncio.wait_for(self.down(), timeout)
        self.close(0.0)


def _key(key: str | int) -> tuple[int, str | None]:
    """The number of a key, and its name."""
    if isinstance(key, str):
        if not 1 <= len(key.encode()) <= 255 or "\0" in key:
            raise ValueError(f"key: expected 1 to 255 bytes without NUL, or a number, got {key!r}")
        return _native.key(key), key
    return _integer("key", key, 0, 64), None


class Channel:
    """Sends tensors to a peer and receives tensors from it. The k-th send of a (key, step) is matched with the k-th receive
    of the same two."""

    def __init__(self, peer: Peer, native: _native.Channel, number: int) -> None:
        self.peer = peer
        self._native = native
        self.number = number

    def send(self, key: str | int, tensor: Any, step: int = 0, *, urgent: bool = False) -> "Request":
        """Starts to send a tensor: a contiguous one that has the buffer protocol or DLPack, or a Buffer. It must not be
        changed before the request has ended. `urgent`: before other large tensors to this peer."""
        number, name = _key(key)
        step = _integer("step", step, 0, 64)
        request = Request(self, f"send of {key!r}, step {step}")
        self._post(request, lambda: self._native.send(request, number, step, self.peer._context._wrap(tensor), name, urgent))
        return request

    def recv(self, key: str | int, step: int = 0, *, into: Any = None, peek: bool = False) -> "Request":
        """Starts to receive a tensor: into a tensor that can be written to, or into a buffer of the context. `peek`: if
        the peer is on this host, the buffer is the peer's own memory where that is possible, and cannot be written to;
        the peer's send ends when nobody has the buffer any more."""
        if peek and into is not None:
            raise TypeError("recv: `peek` has no use for `into`")
        number, name = _key(key)
        step = _integer("step", step, 0, 64)
        request = Request(self, f"receive of {key!r}, step {step}", into)
        memory = None if into is None else self.peer._context._wrap(into, writable=True)
        self._post(request, lambda: self._native.recv(request, number, step, memory, name, peek))
        return request

    def _post(self, request: "Request", call: Callable[[], None]) -> None:
        self.peer._context._collect()
        try:
            call()
        except Error as error:
            if self.peer.is_down:
                raise self.peer._down(f"{request._what}: ", error.status) from None
            raise Error(error.status, f"{request._what}: {error}") from None


class Request(_native.Request):
    """A send, a receive, or another thing that a peer takes part in. Wait for it with wait(), or with `await`."""

    _own = _OWN

    def __new__(cls, channel: Any, what: str, into: Any = None) -> "Request":
        return super().__new__(cls)

    def __init__(self, channel: Any, what: str, into: Any = None) -> None:
        self._peer: Peer = channel if isinstance(channel, Peer) else channel.peer
        self._context = self._peer._context
        self._what = what
        self._into = into
        self._futures: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<{self._what}>"

    def done(self) -> bool:
        """Whether it has ended."""
        self._context._collect()
        return super().wait(0.0)

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the end. Returns what was received: a Buffer, or `into`. If the request has failed, an Error says why;
        PeerDown, if the peer is gone. After Timeout the request goes on."""
        limit = self._context._timeout if timeout is None else _number("timeout", timeout)
        deadline = math.inf if limit is None else time.monotonic() + limit
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Timeout(-errno.ETIMEDOUT, f"{self._what}: not within {limit} s, with {self._with()}")
            super().wait(min(WAIT_S, left))
        return self._answer()

    def __await__(self) -> Generator[Any, None, Any]:
        future = self._context._attach().create_future()
        self._futures.append(future)
        if not self.done():
            try:
                yield from future
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._answer()

    def _tell(self) -> None:
        """It has ended."""
        for future in self._futures:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_set, future)

    def _answer(self) -> Any:
        status, dtype, dims, size = self.result()
        if status < 0:
            raise self._failure(status, dims, size)
        if not self._receives():
            return None
        return self.take() if self._into is None else self._into

    def _with(self) -> str:
        return self._peer.name

    def _is_down(self, status: int) -> bool:
        """Whether the request has ended since the peer is down."""
        _, _, down, cause, *_ = self._peer._native.state()
        return down and (status == (cause or -errno.ESHUTDOWN) or cause == -errno.ENOBUFS)

    def _failure(self, status: int, dims: tuple[int, ...], size: int) -> Error:
        with contextlib.suppress(Error):  # of a peer that is closed here
            if status not in self._own or self._is_down(status):
                return self._peer._down(f"{self._what}: ", status)
        return Error(status, f"{self._what}: {self._cause(status, dims, size)}")

    def _cause(self, status: int, dims: tuple[int, ...], size: int) -> str:
        if status == -errno.EMSGSIZE and self._receives():
            return f"the tensor of {size} bytes, shape {dims}, does not fit"
        return _native.status_text(status)

    def _receives(self) -> bool:
        return self._what.startswith("receive")


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


# These files need the classes above.
from ._any import AnyRequest, recv_any  # noqa: E402
from ._groups import Group, Operation  # noqa: E402
from ._windows import Remote, Window, _notify  # noqa: E402
