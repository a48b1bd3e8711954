# SPDX-License-Identifier: Apache-2.0
"""Tensors in a GPU's memory, for operations on host memory: their values cross page-locked memory, behind what the caller's
current stream has to do. So does gloo's backend of torch.distributed."""
import errno
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _errors


class Lane:
    """A stream of a device, on which values are copied from the device and to it."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def memory(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Page-locked, as a tensor in row-major order."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def follow(self, tensor: torch.Tensor) -> None:
        """The next copy of this tensor waits for all that the current stream has to do."""
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError("tern: an operation cannot be part of a CUDA graph, since its values cross host memory: call it "
                                   "outside of the capture")
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        tensor.record_stream(self._stream)  # else its memory could have another use before it is copied

    def get(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Lets `host` have the tensor's values as soon as mark() is reached."""
        with torch.cuda.stream(self._stream):
            host.copy_(tensor.detach(), non_blocking=True)

    def put(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Lets the tensor have the values of `host` as soon as mark() is reached."""
        with torch.cuda.stream(self._stream):
            tensor.detach().copy_(host, non_blocking=True)

    def mark(self) -> Any:
        """An event behind all copies so far."""
        return self._stream.record_event()

    def wait_for(self, event: Any) -> None:
        """The current stream waits for the event."""
        torch.cuda.current_stream(self._device).wait_event(event)


class Later:
    """An operation that starts when these events are reached."""

    def __init__(self, events: Sequence[Any], start: Callable[[], Sequence[Any]]) -> None:
        self._events, self._start = events, start
        self._operations: Sequence[Any] = ()
        self._error: Exception | None = None
        self._lock = threading.Lock()  # protects the fields above
        self._started = threading.Event()

    def run(self) -> None:
        try:
            for event in self._events:
                event.synchronize()
        except Exception as error:
            self.fail(error)
        with self._lock:
            if self._started.is_set():
                return
            try:
                self._operations = self._start()
            except Exception as error:
                self._error = error
            self._release()

    def fail(self, error: Exception) -> None:
        """Ends it with this error, unless it has started."""
        with self._lock:
            if not self._started.is_set():
                self._error = error
                self._release()

    def _release(self) -> None:
        self._events, self._start = (), tuple
        self._started.set()

    def done(self) -> bool:
        return self._started.is_set() and all(operation.done() for operation in self._operations)

    def wait(self, timeout: float | None) -> None:
        due = None if timeout is None else time.monotonic() + timeout
        if not self._started.wait(timeout):
            raise _errors.Timeout(-errno.ETIMEDOUT, f"the operation has not started in {timeout:.3g} s: it waits for the GPU")
        if self._error is not None:
            raise self._error
        for operation in self._operations:
            operation.wait(None if due is None else max(0.0, due - time.monotonic()))


def _closed() -> _errors.Error:
    return _errors.Error(-errno.ECANCELED, "the group was closed before the operation started")


class Starter:
    """Starts operations in the order in which they are called: at once, or on a thread, behind one that waits for a GPU."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # protects the fields below; a signal's handler may close the group
        self._waiting: set[Later] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._queue: queue.SimpleQueue[Later | None] = queue.SimpleQueue()

    def start(self, events: Sequence[Any], start: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Returns what start() returns, or an operation in its place."""
        with self._lock:
            if self._closed:
                raise _closed()
            if not events and not self._waiting:
                return start()
            later = Later(events, start)
            self._waiting.add(later)
            self._queue.put(later)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tern-starts", daemon=True)
                self._thread.start()
        return [later]

    def _run(self) -> None:
        while (later := self._queue.get()) is not None:
            later.run()
            with self._lock:
                self._waiting.discard(later)

    def wait(self, timeout: float) -> None:
        """Waits until all have started that were called, for so many seconds at most."""
        for later in self.start((), tuple):
            later.wait(timeout)

    def close(self) -> None:
        """Ends the thread, and with an error all operations that have not started, however long the GPU computes."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
        self._queue.put(None)
        for later in waiting:
            later.fail(_closed())
