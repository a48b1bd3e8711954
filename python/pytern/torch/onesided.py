# SPDX-License-Identifier: Apache-2.0
"""A transport for torch.distributed._transport of PyTorch 2.15, on Tern's windows: docs/plugins.md.

    transport = torch.distributed._transport.new_transport("tern", "cpu")

An endpoint has a context of its own (pytern.transport). Each endpoint listens, if it was bound, and dials one peer, to
which its reads and writes go. Memory whose descriptor was asked for is a window; a descriptor has that of the window and
the number of its endpoint. A thread accepts peers and answers futures.
"""
import asyncio
import contextlib
import errno
import operator
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

import torch
from torch.distributed import Work
from torch.distributed._transport import Transport, available_transports, register_transport
from torch.futures import Future

from .. import _settings
from .._errors import Error, Timeout
from ..transport import Context, Listener, Peer, Remote, Request, Window
from . import addresses

TIMEOUT_S = 30.0
REMOTES_MAX = 1024  # windows of the peer that stay open at this end, of which the peer may have closed many
URL = "tern-transport/1"
MAGIC, VERSION = b"TERN", 1
_BUFFER = struct.Struct("<4sI16s48s")  # MAGIC, VERSION, the endpoint's number, the window's descriptor
# The owner refuses the window, and will go on to do so.
_STALE = (-errno.ESTALE, -errno.EACCES)


def _seconds(timeout: float | None, otherwise: float) -> float:
    if timeout is None:
        return otherwise
    if not 0 <= timeout <= 1e9:
        raise ValueError(f"timeout: expected seconds from 0 to 1e9, got {timeout}")
    return float(timeout)


# ---- memory ----

@dataclass(frozen=True)
class RemoteBuffer:
    """Memory of an endpoint, for its peer. Who has it can read and write the memory."""

    endpoint: bytes
    window: bytes

    def serialize(self) -> bytes:
        return _BUFFER.pack(MAGIC, VERSION, self.endpoint, self.window)

    @classmethod
    def deserialize(cls, data: bytes) -> "RemoteBuffer":
        if type(data) is not bytes:
            raise TypeError(f"a descriptor of memory: expected bytes, got {type(data).__name__}")
        if len(data) != _BUFFER.size or not data.startswith(MAGIC):
            raise ValueError(f"a descriptor of memory of Tern's transport has {_BUFFER.size} bytes and begins with {MAGIC!r}: got "
                             f"{len(data)} bytes, {data[:4]!r}")
        _, version, endpoint, window = _BUFFER.unpack(data)
        if version != VERSION:
            raise ValueError(f"a descriptor of memory of version {version}: the other end has another version of Tern, this one "
                             f"reads version {VERSION}")
        return cls(endpoint, window)

    @property
    def length(self) -> int:
        return int(struct.unpack_from("=Q", self.window, 32)[0])


class Registration:
    """A tensor that was registered. It stays until it is unregistered, or its transport is closed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.data = tensor.detach().reshape(-1).view(torch.uint8)
        self.address, self.length = tensor.data_ptr(), self.data.numel()
        self.window: Window | None = None  # since the first to_remote_buffer()
        self.active = True

    def check(self) -> None:
        if not self.active:
            raise RuntimeError("tern: the memory was unregistered")
        if self.tensor.data_ptr() != self.address or self.tensor.numel() * self.tensor.element_size() != self.length:
            raise RuntimeError("tern: the registered tensor was resized, or has other memory now")


class MemoryView:
    """A range of bytes of registered memory."""

    def __init__(self, memory: "Memory", offset: int, length: int) -> None:
        self._memory, self._offset, self._length = memory, offset, length

    def size(self) -> int:
        return self._length

    def _data(self) -> torch.Tensor:
        return self._memory._registration.data[self._offset:self._offset + self._length]


class MutableMemoryView(MemoryView):
    """A range that may be read into."""

    writable: Literal[True] = True


class Memory:
    """A tensor that was registered with a transport."""

    def __init__(self, transport: "TernTransport", registration: Registration) -> None:
        self._transport, self._registration = transport, registration

    def _range(self, offset: int | None, length: int | None) -> tuple[int, int]:
        self._registration.check()
        whole = self._registration.length
        first = 0 if offset is None else operator.index(offset)
        count = whole - first if length is None else operator.index(length)
        if first < 0 or count < 0 or first + count > whole:
            raise ValueError(f"tern: a view of {count} bytes at {first}: the memory has {whole}")
        return first, count

    def to_view(self, offset: int | None = None, length: int | None = None) -> MemoryView:
        return MemoryView(self, *self._range(offset, length))

    def to_mutable_view(self, offset: int | None = None, length: int | None = None) -> MutableMemoryView:
        return MutableMemoryView(self, *self._range(offset, length))

    def to_remote_buffer(self, *, timeout: float | None = None) -> RemoteBuffer:
        _seconds(timeout, TIMEOUT_S)
        return self._transport._describe(self._registration)


# ---- what read and write return ----

class Transfer(Work):
    """A read or a write. `request` is None if there is nothing to move."""

    def __init__(self, transport: "TernTransport", registration: Registration, request: Request | None,
                 remote: RemoteBuffer, timeout: float) -> None:
        super().__init__()
        self._transport, self._registration, self._request, self._remote = transport, registration, request, remote
        self._timeout = timeout
        self._lock = threading.Lock()  # protects the fields below
        self._over = request is None
        self._error: Exception | None = None
        self._future: Future[Any] | None = None
        if request is not None:
            transport._pending.add(self)

    def _end(self) -> None:
        """The request has ended."""
        with self._lock:
            if self._over:
                return
            try:
                cast(Request, self._request).wait(0)
            except Error as error:
                self._error = error
            self._over = True
            future = self._future
        self._transport._pending.discard(self)
        if isinstance(self._error, Error) and self._error.status in _STALE:
            self._transport._forget(self._remote.window)
        if future is not None:
            self._answer(future)

    def _answer(self, future: "Future[Any]") -> None:
        if self._error is None:
            future.set_result([])
        else:
            future.set_exception(self._error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._wait(_seconds(timeout.total_seconds(), 0) or self._timeout)
        return True

    def _wait(self, seconds: float) -> None:
        if not self._over:
            try:
                cast(Request, self._request).wait(seconds)
            except Timeout:
                raise TimeoutError(f"tern: {self._request} has not ended in {seconds:.3g} s, and goes on") from None
            except Error:
                pass  # _end() has it
            self._end()
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        if not self._over and cast(Request, self._request).done():
            self._end()
        return self._over

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return []

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> "Future[Any]":
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = Future()
            over = self._over
        if over:
            self._answer(future)
        else:
            self._transport._look_after()
            self.is_completed()  # it may have ended before the thread knew of it
        return future


# ---- the endpoint ----

class TernTransport(Transport):
    """An endpoint for reads and writes of CPU tensors. `timeout`: seconds that calls wait for without a timeout of their
    own. A peer whose host does not answer for 10 s, or whose process says nothing for TERN_DEAD_TIMEOUT, is gone."""

    def __init__(self, device: torch.device | str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        super().__init__(device)
        if self.device is not None and self.device.type != "cpu":
            raise ValueError(f"tern: device {self.device}: this transport moves tensors of the CPU")
        self._default_timeout: float = _seconds(timeout, TIMEOUT_S)
        self._id, self._secret = secrets.token_bytes(16), secrets.token_hex(16)
        self._context = Context(name=f"{socket.gethostname()}, pid {os.getpid()}", secret=self._secret,
                                dead_timeout=_settings.dead_s(), connect_timeout=max(self._default_timeout, 0.1))
        self._lock = threading.RLock()  # protects the fields below
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._wake = -1  # an eventfd that ends the thread
        self._peer: Peer | None = None
        self._peer_id = b""
        self._accepted: list[Peer] = []
        self._registrations: dict[tuple[int, int], Registration] = {}
        self._remotes: dict[bytes, Remote] = {}
        self._pending: set[Transfer] = set()
        self._closing = self._closed = False

    @staticmethod
    def supported() -> bool:
        return True

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("tern: the transport is closed")

    def bind(self, *, timeout: float | None = None) -> bytes:
        _seconds(timeout, self._default_timeout)
        with self._lock:
            self._check_open()
            if self._listener is None:
                self._listener = self._context.listen(f"{_settings.fabrics()}://{addresses.own_address()}:0")
                self._look_after()
            return f"{URL} {self._listener.address} {self._secret} {self._id.hex()}".encode()

    def connect(self, peer_url: bytes, *, timeout: float | None = None) -> int:
        seconds = _seconds(timeout, self._default_timeout)
        try:
            name, address, secret, number = bytes(peer_url).decode().split(" ")
            peer_id = bytes.fromhex(number)
            if name != URL or len(peer_id) != 16:
                raise ValueError
        except ValueError:
            raise ValueError(f"tern: expected what bind() of a transport of this version has returned ({URL} ...), got "
                             f"{bytes(peer_url)[:40]!r}") from None
        with self._lock:
            self._check_open()
            if self._peer is not None:
                raise RuntimeError("tern: the transport is already connected")
            peer = self._context.connect(address, secret=secret)
            try:
                peer.wait_up(seconds)
            except Error as error:
                peer.close(0.0)
                if isinstance(error, Timeout):
                    raise TimeoutError(f"tern: {error}") from None
                raise
            self._peer, self._peer_id = peer, peer_id
        if os.environ.get("TERN_LOG") in ("info", "debug"):
            print(f"tern: this endpoint reads from and writes to {peer.name} by {peer.fabric}", file=sys.stderr)
        return 0

    def connected(self) -> bool:
        return not self._closing and self._peer is not None and self._peer.is_up

    # ---- the thread ----

    def _look_after(self) -> None:
        """Lets the thread accept peers and answer futures."""
        with self._lock:
            if self._thread is None:
                self._wake = os.eventfd(0)
                self._thread = threading.Thread(target=self._run, name="tern-transport", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        changed = self._context._native.fileno()
        waits = select.poll()  # select() cannot take descriptors from 1024 on
        for fd in changed, self._wake:
            waits.register(fd, select.POLLIN)
        with contextlib.suppress(Error):  # the listener is closed
            while not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.read(changed, 8)
                if self._listener is not None:
                    while (peer := self._listener._look()) is not None:
                        self._accepted = [other for other in self._accepted if not other.is_down] + [peer]
                for transfer in list(self._pending):
                    transfer.is_completed()
                waits.poll()

    # ---- memory ----

    def register_memory(self, tensor: torch.Tensor, *, timeout: float | None = None) -> Memory:
        _seconds(timeout, self._default_timeout)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tern: expected a torch.Tensor, got {type(tensor).__name__}")
        self._check_device(tensor.device)
        if tensor.device.type != "cpu":
            raise ValueError(f"tern: a tensor on {tensor.device}: this transport moves tensors of the CPU")
        if not tensor.is_contiguous() or tensor.numel() == 0:
            raise ValueError(f"tern: a tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}: expected a contiguous one "
                             "that is not empty")
        with self._lock:
            self._check_open()
            key = tensor.data_ptr(), tensor.numel() * tensor.element_size()
            if key not in self._registrations:
                self._registrations[key] = Registration(tensor)
            return Memory(self, self._registrations[key])

    def _describe(self, registration: Registration) -> RemoteBuffer:
        with self._lock:
            self._check_open()
            registration.check()
            if registration.window is None:
                registration.window = self._context.window(registration.data, read=True, write=True)
            return RemoteBuffer(self._id, registration.window.describe())

    def unregister_memory(self, memory: Any, *, timeout: float | None = None) -> None:
        limit = None if timeout is None else _seconds(timeout, 0)
        if not isinstance(memory, Memory) or memory._transport is not self:
            raise TypeError("tern: the memory was not registered by this transport")
        registration = memory._registration
        with self._lock:
            self._check_open()
            if not registration.active:
                return
            if any(transfer._registration is registration and not transfer.is_completed() for transfer in list(self._pending)):
                raise RuntimeError("tern: the memory has transfers that have not ended: wait for them")
            registration.active = False
            del self._registrations[registration.address, registration.length]
        if registration.window is not None:
            registration.window.close(limit)

    # ---- transfers ----

    def _check_transfer(self, local_buffer: Any, remote_buffer: Any, *, mutable: bool) -> None:
        if not isinstance(local_buffer, MutableMemoryView if mutable else MemoryView):
            raise TypeError(f"tern: expected what {'to_mutable_view' if mutable else 'to_view'}() of registered memory has "
                            f"returned, got {type(local_buffer).__name__}")
        if local_buffer._memory._transport is not self:
            raise TypeError("tern: the local memory was not registered by this transport")
        if not isinstance(remote_buffer, RemoteBuffer):
            raise TypeError(f"tern: expected a RemoteBuffer of Tern's transport, got {type(remote_buffer).__name__}")
        if self._peer is None:
            raise RuntimeError("tern: the transport is not connected")
        if remote_buffer.endpoint != self._peer_id:
            raise ValueError("tern: the remote memory is not of the endpoint that this one is connected to")
        if local_buffer.size() > remote_buffer.length:
            raise ValueError(f"tern: a view of {local_buffer.size()} bytes, and remote memory of {remote_buffer.length}")
        local_buffer._memory._registration.check()

    def _remote(self, buffer: RemoteBuffer) -> Remote:
        if buffer.window not in self._remotes:
            if len(self._remotes) >= REMOTES_MAX:
                self._forget(next(iter(self._remotes)))
            self._remotes[buffer.window] = cast(Peer, self._peer).open(buffer.window)
        return self._remotes[buffer.window]

    def _forget(self, window: bytes) -> None:
        with self._lock:
            remote = self._remotes.pop(window, None)
        if remote is not None:
            with contextlib.suppress(Error):  # other requests of it are under way: its end closes it
                remote.close()

    def _start(self, local: Any, buffer: Any, read: bool, async_op: bool, timeout: float | None) -> Any:
        seconds = _seconds(timeout, self._default_timeout)
        with self._lock:
            self._check_open()
            self._check_transfer(local, buffer, mutable=read)
            request = None
            if local.size():
                remote = self._remote(buffer)
                request = (remote.get if read else remote.put)(local._data())
            transfer = Transfer(self, local._memory._registration, request, buffer, seconds)
        if async_op:
            return transfer
        transfer._wait(seconds)
        return 0

    def write(self, local_buffer: Any, remote_buffer: Any, *, async_op: bool = False, timeout: float | None = None) -> Any:
        return self._start(local_buffer, remote_buffer, False, async_op, timeout)

    def read(self, local_buffer: Any, remote_buffer: Any, *, async_op: bool = False, timeout: float | None = None) -> Any:
        return self._start(local_buffer, remote_buffer, True, async_op, timeout)

    def write_stream(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError("tern: this transport moves tensors of the CPU, which no CUDA stream orders")

    read_stream = write_stream

    # ---- the end ----

    def close(self, *, timeout: float | None = None) -> None:
        seconds = _seconds(timeout, self._default_timeout)
        deadline = time.monotonic() + seconds
        self._closing = True
        failure: Error | None = None
        for transfer in list(self._pending):
            try:
                transfer._wait(max(deadline - time.monotonic(), 0.0))
            except Error as error:
                failure = failure or error
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._release(deadline)
        if failure is not None:
            raise failure

    def _release(self, deadline: float) -> None:
        for registration in self._registrations.values():
            registration.active = False
            if registration.window is not None:
                registration.window.close(max(deadline - time.monotonic(), 0.001))
        self._registrations.clear()
        self._remotes.clear()
        if self._peer is not None:
            self._peer.close(0.0)
        self._accepted.clear()
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            if self._thread is not threading.current_thread():
                self._thread.join()
                os.close(self._wake)
        self._context.close()

    async def close_async(self, *, timeout: float | None = None) -> None:
        await asyncio.to_thread(self.close, timeout=timeout)


if "tern" not in available_transports():  # of the package's entry point
    register_transport("tern", TernTransport)
