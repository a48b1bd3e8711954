# SPDX-License-Identifier: Apache-2.0
"""Tensors in a GPU's memory, for operations on host memory: their values cross page-locked memory, behind what the caller's
current stream has to do. So does gloo's backend of torch.distributed."""
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
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def follow(self, tensor: torch.Tensor) -> None:
        """The next copy of this tensor waits for all that the current stream has to do."""
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
        self._started = threading.Event()

    def run(self) -> None:
        try:
            for event in self._events:
                event.synchronize()
            self._operations = self._start()
        except Exception as error:
            self._error = error
        self._events, self._start = (), tuple
        self._started.set()

    def done(self) -> bool:
        return self._started.is_set() and all(operation.done() for operation in self._operations)

    def wait(self, timeout: float | None) -> None:
        due = None if timeout is None else time.monotonic() + timeout
        if not self._started.wait(timeout):
            raise _errors.Timeout(f"the operation has not started in {timeout:.3g} s: it waits for the GPU")
        if self._error is not None:
            raise self._error
        for operation in self._operations:
            operation.wait(None if due is None else max(0.0, due - time.monotonic()))


class Starter:
    """Starts operations in the order in which they are called: at once, or on a thread, behind one that waits for a GPU."""

    def __init__(self) -> None:
        self._lock, self._waiting = threading.Lock(), 0
        self._queue: queue.SimpleQueue[Later | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, events: Sequence[Any], start: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Returns what start() returns, or an operation in its place."""
        with self._lock:
            if not events and not self._waiting:
                return start()
            later = Later(events, start)
            self._waiting += 1
            self._queue.put(later)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tern-starts", daemon=True)
                self._thread.start()
        return [later]

    def _run(self) -> None:
        while (later := self._queue.get()) is not None:
            later.run()
            with self._lock:
                self._waiting -= 1

    def wait(self, timeout: float) -> None:
        """Waits until all have started that were called, for so many seconds at most."""
        for later in self.start((), tuple):
            later.wait(timeout)

    def close(self) -> None:
        """Ends the thread behind what is called already."""
        self._queue.put(None)
