# SPDX-License-Identifier: Apache-2.0
"""Windows: memory of this process that peers put into and get from. transport.py has the classes that they need.

    window = context.window(array, write=True)                  remote = peer.open(descriptor)
    descriptor = window.describe()       -- descriptor -->      remote.put(values, note=b"first").wait()
    peer.wait_notified()  # b"first"
    window.close()
"""
import contextlib
import errno
import struct
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from . import _native
from ._errors import Error
from .rules import _integer, _number
from .session import WAIT_S
from .transport import Context, Peer, Request

READ, WRITE = 1, 2  # enum tern_window_access
NOTE_MAX = 4096  # TERN_NOTE_MAX


class _Access(Request):
    """A put, a get, or a notification."""
    # With these it ends while the peer is up (tern_put() in <tern/window.h>).
    _own = {-errno.ESTALE, -errno.EACCES, -errno.ERANGE, -errno.ECANCELED, -errno.ENOMEM}

    def _answer(self) -> Any:
        status, dtype, dims, size = self.result()
        if status < 0:
            raise self._failure(status, dims, size)
        return self._into

    def _cause(self, status: int, dims: tuple[int, ...], size: int) -> str:
        name = "the peer"
        with contextlib.suppress(Error):  # of a peer that is closed here
            name = self._peer.name
        if status == -errno.ESTALE:
            return f"{name} has closed the window, or has started again since it made the window"
        if status == -errno.EACCES:
            return (f"{name} has made no window with this descriptor" if not self._what.startswith("get") else
                    f"{name} has made no window with this descriptor, or the system does not let this process read its memory")
        return _native.status_text(status)

    def _post(self, call: Callable[[], None]) -> "_Access":
        self._context._collect()
        try:
            call()
        except Error as error:
            if self._peer.is_down:
                raise self._peer._down(f"{self._what}: ", error.status) from None
            raise Error(error.status, f"{self._what}: {error}") from None
        return self


class _Closing(Request):
    """The end of a window."""

    def __init__(self, context: Context, what: str) -> None:
        self._context = context
        self._what = what
        self._into = None
        self._futures = []

    def wait(self, timeout: float | None = None) -> None:
        while not self.done() and not self._context._closed:
            _native.Request.wait(self, WAIT_S)

    def _answer(self) -> None:
        pass


def _note(note: Any) -> bytes:
    data = memoryview(note).tobytes()
    if len(data) > NOTE_MAX:
        raise ValueError(f"note: expected at most {NOTE_MAX} bytes, got {len(data)}")
    return data


def _notify(peer: Peer, note: Any) -> Request:
    data = _note(note)
    request = _Access(peer, "notification")
    return request._post(lambda: peer._native.notify(request, data))


class Window:
    """Memory of this process that peers put into and get from. `with window:` closes it at the end of the block. It is
    also closed when nothing uses the object any more, and with its context."""

    def __init__(self, context: Context, tensor: Any, read: bool, write: bool) -> None:
        access = (READ if read else 0) | (WRITE if write else 0)
        if not access:
            raise ValueError("window: expected read=True, write=True, or both")
        self._context = context
        self._native = context._native.window(context.wrap(tensor, writable=write), access)
        self._closing: _Closing | None = None
        self._lock = threading.Lock()  # protects _closing

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def describe(self) -> bytes:
        """The 48 bytes by which a peer opens the window. Who has them may open it, so keep them as secret as its bytes."""
        if self._closing is not None or self._context._closed:
            raise Error(-errno.EBADF, "the window is closed")
        return self._native.describe()

    def _close(self, timeout: float | None) -> _Closing | None:
        seconds = 0.0 if timeout is None else max(_number("timeout", timeout), 1e-9)
        with self._lock:
            if self._closing is None and not self._context._closed:
                self._context._collect()
                closing = _Closing(self._context, "end of a window")
                self._native.close(closing, seconds)
                self._closing = closing
            return self._closing

    def close(self, timeout: float | None = None) -> None:
        """Closes the window, and waits until no peer can access its memory any more. Requests of peers end with ESTALE. A
        peer that has not answered after `timeout` seconds (None: the context's unreachable_timeout) has its connection cut."""
        closing = self._close(timeout)
        if closing is not None:
            closing.wait()

    async def close_async(self, timeout: float | None = None) -> None:
        closing = self._close(timeout)
        if closing is not None:
            await closing


class Remote:
    """A window of a peer. Its requests have no order among each other. `with remote:` closes it at the end of the block."""

    def __init__(self, peer: Peer, descriptor: Any) -> None:
        data = memoryview(descriptor).tobytes()
        self.peer = peer
        try:
            self._native = peer._native.open(data)
        except Error as error:
            if peer.is_down:
                raise peer._down("open of a window: ", error.status) from None
            raise
        self._size: int = struct.unpack_from("=Q", data, 32)[0]

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def size(self) -> int:
        """The size of the window in bytes."""
        return self._size

    def put(self, tensor: Any, offset: int = 0, note: Any = None) -> Request:
        """Starts to write a tensor into the window, `offset` bytes behind its begin. The request ends when the owner's
        program sees the bytes. `note`: up to 4,096 bytes, which notified() of the owner returns then; the request ends when
        they are queued there."""
        return self._start(False, f"put at {offset}", [(tensor, offset)], note, None)

    def get(self, into: Any, offset: int = 0) -> Request:
        """Starts to read bytes of the window into a tensor that can be written to. The request returns `into`."""
        return self._start(True, f"get at {offset}", [(into, offset)], None, into)

    def put_list(self, pieces: Iterable[tuple[Any, int]], note: Any = None) -> Request:
        """As put(), for pairs (tensor, offset), with one end."""
        pieces = list(pieces)
        return self._start(False, f"put of {len(pieces)} pieces", pieces, note, None)

    def get_list(self, pieces: Iterable[tuple[Any, int]]) -> Request:
        """As get(), for pairs (into, offset), with one end. The request returns the list of `into`."""
        pieces = list(pieces)
        return self._start(True, f"get of {len(pieces)} pieces", pieces, None, [into for into, _ in pieces])

    def _start(self, get: bool, what: str, pieces: list[tuple[Any, int]], note: Any, into: Any) -> Request:
        request = _Access(self.peer, what, into)
        wrap = self.peer._context._wrap
        ready = tuple((wrap(tensor, writable=get), _integer("offset", offset, 0, 64)) for tensor, offset in pieces)
        data = None if note is None else _note(note)
        return request._post(lambda: self._native.move(request, get, ready, data))

    def close(self) -> None:
        """Tells the owner that this end needs the window no longer. Requests that have not ended: EBUSY."""
        self.peer._context._collect()
        try:
            self._native.close()
        except Error as error:
            raise Error(error.status, f"close of a peer's window: {error}") from None
