# SPDX-License-Identifier: Apache-2.0
"""Batches of the slots' records, read ahead by other processes.

A DataLoader asks its sampler for records far ahead, in an order that is fixed then. Here the session says which slots
come next (tern_session_ahead()), and only these are read ahead, at most `prefetch` of them. When a worker of
the job is lost, slots of it may come in between: a slot that nobody reads is read at once, by the calling process, and
what was read for slots that do not come any more is dropped. A wrong guess costs time and never another batch, since a
batch is a function of the slot alone:

- one process reads all records of a batch, in their order, with one intra-op thread;
- the generators of torch, numpy and random begin anew for each batch, from the slot's seed.

So the batches are the same for any number of processes, and a slot that is computed twice is read twice: data that
differs is found out as gradients that differ.

A process and the caller talk over a socket pair. A request must fit into the socket's buffer, because the caller sends
it without waiting while the process may wait for the caller to take a large batch: so the records are in shared memory.
"""
import contextlib
import ctypes
import errno
import math
import os
import pickle
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence, Sized
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import torch
import torch.multiprocessing
import torch.utils.data
from torch.utils.data import DataLoader, IterableDataset, Sampler

from .._errors import Error
from ..session import BATCH, RECORDS, Session, Slot, _last_line

ORPHAN_S = 5.0  # how often a process looks whether its caller lives
DEATH_S = 0.5  # how long a process whose connection failed may take to end
CLOSE_S = 2.0  # how long a process that reads a record may go on after close()
WAIT_S = 0.1  # longest wait without a look at signals
PREFETCH_MAX = 256  # what the C part tells at once
STREAM = 0x9E3779B97F4A7C15  # random augmentation must not draw the numbers that dropout will draw

Key = tuple[int, int]  # the step and the number of a slot
Collate = Callable[[list[Any]], Any]


def seed_generators(seed: int) -> None:
    # torch.manual_seed() also looks for GPUs, which takes 30 us.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32])


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Doing:
    """The slot and record that a process is at, for the caller to see if it dies: three numbers of shared memory."""

    def __init__(self, numbers: Any, place: int) -> None:
        self._numbers = numbers
        self._first = 3 * place

    def say(self, key: Key, record: int | None) -> None:
        """The batch of this slot is made, and this record is read for it; None: all are."""
        self._numbers[self._first:self._first + 3] = [*key, 0 if record is None else record + 1]

    def read(self) -> tuple[Key, int | None]:
        step, number, record = self._numbers[self._first:self._first + 3]
        return (step, number), record - 1 if record else None


class Reader:
    """Makes batches of a dataset."""

    def __init__(self, dataset: Any, collate: Collate, doing: Doing) -> None:
        self.dataset = dataset
        self.collate = collate
        self.doing = doing

    def read(self, key: Key, seed: int, records: Sequence[int]) -> Any:
        threads = torch.get_num_threads()
        if threads != 1:
            torch.set_num_threads(1)
        try:
            seed_generators(seed ^ STREAM)
            items = []
            for record in records:
                self.doing.say(key, record)
                items.append(self.dataset[record])
            self.doing.say(key, None)
            return self.collate(items)
        finally:
            if threads != 1:
                torch.set_num_threads(threads)

    def part(self) -> str:
        """Says which part of the work has raised an exception."""
        record = self.doing.read()[1]
        return "the batch cannot be made of its records" if record is None else f"record {record} cannot be read"


# ---- in the other process ----

def _answer(reader: Reader, key: Key, seed: int, records: Sequence[int]) -> Any:
    """The message with the batch, or with the reason why there is none."""
    try:
        return ForkingPickler.dumps((key, True, reader.read(key, seed, records)))
    except Exception as error:  # of the dataset, of collate_fn, or because the batch cannot be pickled
        told = "".join(traceback.format_exception(error))
        return ForkingPickler.dumps((key, False, (f"{reader.part()}: {_last_line(error)}", told)))


def _serve(reader: Reader, conn: Connection, callers: list[Connection], requests: Any, batch: int,
           deterministic: bool) -> None:
    """Runs in a process until the caller closes its end or dies. `callers`: ends of the caller that were inherited."""
    caller = os.getppid()
    for other in callers:
        other.close()  # else this process would keep the others from noticing the caller's death
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller as well, who closes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(deterministic)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            # Another child of the caller may hold the other end open after the caller's death.
            while not conn.poll(ORPHAN_S):
                if os.getppid() != caller:
                    return
            place, key, seed = conn.recv()
            conn.send_bytes(_answer(reader, key, seed, requests[place * batch:(place + 1) * batch]))


# ---- in the calling process ----

def _can_be_sent(value: Any) -> bool:
    try:
        ForkingPickler.dumps(value)
    except (AttributeError, TypeError, ValueError, ImportError, pickle.PicklingError):
        return False
    return True


class _Process:
    """A process that reads ahead. `pending`: the slots that it was asked for, in order, with the place of their records."""

    def __init__(self, process: Any, conn: Connection, doing: Doing) -> None:
        self.process = process
        self.conn = conn
        self.pending: dict[Key, int] = {}
        self._doing = doing

    def join(self, deadline: float) -> None:
        """Waits for its end. join() of multiprocessing alone also waits for processes that it has forked."""
        while self.process.exitcode is None and time.monotonic() < deadline:
            self.process.join(0.01)

    def lost(self) -> Error:
        """The process has died."""
        self.join(time.monotonic() + CLOSE_S)
        code = self.process.exitcode
        how = "has closed its connection" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        key, record = self._doing.read()
        when = f"after it had read all records of slot {key[1]} of step {key[0]}"
        if record is not None:
            when = f"while it read record {record}, for slot {key[1]} of step {key[0]}"
        return Error(-errno.EIO, f"loader process {self.process.pid} {how} {when}")


class _Ready:
    """A batch that was read, or why it could not be."""

    def __init__(self, key: Key, good: bool, content: Any) -> None:
        self._key = key
        self._good = good
        self._content = content

    def take(self) -> Any:
        if self._good:
            return self._content
        text, trace = self._content
        raise _unreadable(self._key, text) from RemoteTraceback(trace)


def _unreadable(key: Key, text: str) -> Error:
    return Error(-errno.EIO, f"slot {key[1]} of step {key[0]}: {text}")


class Processes:
    """Processes that read ahead. `wanted` are the slots whose batches are kept."""

    def __init__(self, dataset: Any, collate: Collate, workers: int, prefetch: int, batch: int) -> None:
        context = torch.multiprocessing.get_context()
        self._batch = batch
        self._requests = context.RawArray(ctypes.c_ulonglong, prefetch * batch)
        self._free = list(range(prefetch))  # places in `_requests`
        self._ready: dict[Key, _Ready] = {}
        self._wanted: set[Key] = set()
        self._processes: list[_Process] = []
        self._pid = os.getpid()
        try:
            doing = context.RawArray(ctypes.c_ulonglong, 3 * workers)
            for place in range(workers):
                self._start(context, Reader(dataset, collate, Doing(doing, place)))
        except BaseException:
            self.close()
            raise

    def _start(self, context: Any, reader: Reader) -> None:
        mine, theirs = context.Pipe()
        inherited = [*(p.conn for p in self._processes), mine] if context.get_start_method() == "fork" else []
        process = context.Process(target=_serve, daemon=True, name=f"pytern-loader-{len(self._processes)}", args=(
            reader, theirs, inherited, self._requests, self._batch, torch.are_deterministic_algorithms_enabled()))
        try:
            process.start()
        except (AttributeError, TypeError, ValueError, ImportError, pickle.PicklingError) as error:
            mine.close()
            what = "the dataset" if _can_be_sent(reader.collate) else "collate_fn"
            raise TypeError(f"slots: {what} cannot be sent to another process: {_last_line(error)}") from error
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        self._processes.append(_Process(process, mine, reader.doing))

    def keep(self, keys: set[Key]) -> None:
        """From now on these slots are wanted: drops the batches of others."""
        self._wanted = keys
        for key in self._ready.keys() - keys:
            del self._ready[key]

    def ask(self, slots: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Asks for the batches of these slots, as far as there is room."""
        for step, number, seed, records in slots:
            if not self._free:
                return
            if not self.has((step, number)):
                self._ask((step, number), seed, records)

    def _ask(self, key: Key, seed: int, records: bytes) -> None:
        process = min(self._processes, key=lambda p: len(p.pending))
        place = self._free.pop()
        self._requests[place * self._batch:(place + 1) * self._batch] = numpy.frombuffer(records, numpy.uint64).tolist()
        process.pending[key] = place
        with self._noticing_death(process):
            process.conn.send((place, key, seed))

    def has(self, key: Key) -> bool:
        return key in self._ready or any(key in p.pending for p in self._processes)

    def collect(self, seconds: float = 0.0) -> None:
        """Takes the batches that are there; without any, waits for so long."""
        ready = wait([p.conn for p in self._processes], seconds)
        for p in self._processes:
            if p.conn in ready:
                self._take(p)
            # The end of a process that died may still be open, in a process that it has forked.
            elif seconds and p.process.exitcode is not None:
                raise p.lost()

    def _take(self, process: _Process) -> None:
        with self._noticing_death(process):
            message = process.conn.recv_bytes()
        try:
            key, good, content = ForkingPickler.loads(message)
        except (EOFError, OSError, RuntimeError) as error:
            # The tensors of the batch are in shared memory, which may be gone with the process.
            process.join(time.monotonic() + DEATH_S)
            if process.process.exitcode is not None:
                raise process.lost() from None
            raise Error(-errno.EIO, f"slots: a batch of loader process {process.process.pid} cannot be read: "
                        f"{_last_line(error)}") from error
        self._free.append(process.pending.pop(key))
        if key in self._wanted:
            self._ready[key] = _Ready(key, good, content)

    @contextlib.contextmanager
    def _noticing_death(self, process: _Process) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            raise process.lost() from None

    def take(self, key: Key) -> Any:
        """Waits for the batch of a slot that was asked for."""
        while key not in self._ready:
            self.collect(WAIT_S)
        return self._ready.pop(key).take()

    def close(self) -> None:
        """Ends the processes. A forked child of the caller does nothing."""
        if os.getpid() != self._pid:
            return
        processes, self._processes = self._processes, []
        self._ready.clear()
        for p in processes:
            p.conn.close()
        deadline = time.monotonic() + CLOSE_S
        for p in processes:
            p.join(deadline)
            if p.process.exitcode is None:
                p.process.kill()
                p.join(math.inf)
            p.process.close()


class Batches:
    """The slots of a session, each with the batch of its records."""

    def __init__(self, session: Session, dataset: Any, collate_fn: Collate | None, workers: int,
                 prefetch: int | None) -> None:
        _refuse_datasets(dataset, session)
        _check_count("workers", workers, 0)
        if prefetch is not None:
            _check_count("prefetch", prefetch, max(1, workers))
        if prefetch is not None and not workers:
            raise ValueError("slots: prefetch: without `workers` nothing is read ahead: give workers=1 or more")
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"slots: collate_fn: expected a function of a list, got {type(collate_fn).__name__}")
        self._session = session
        self._workers = workers
        self._prefetch = prefetch or min(2 * workers, PREFETCH_MAX)
        self._dataset = dataset
        self._collate = collate_fn or torch.utils.data.default_collate
        self._processes: Processes | None = None

    def pairs(self, slots: Iterator[Slot]) -> Iterator[Any]:
        reader = Reader(self._dataset, self._collate, Doing([0, 0, 0], 0))
        try:
            if self._workers:
                self._processes = Processes(self._dataset, self._collate, self._workers, self._prefetch,
                                            self._session._job[BATCH])
                self._read_ahead()
            for slot in slots:
                yield slot, self._batch_of(slot, reader)
        finally:
            self.close()

    def _read_ahead(self, *now: Key) -> None:
        """Asks for the slots that come next. Besides them, those of `now` are wanted."""
        if self._processes is not None:
            ahead = self._session._native.ahead(self._prefetch)
            self._processes.keep({*now, *((step, number) for step, number, _, _ in ahead)})
            self._processes.ask(ahead)

    def _batch_of(self, slot: Slot, reader: Reader) -> Any:
        key = (slot.step, slot.number)
        records = slot.records.tolist()
        if self._processes is not None:
            self._processes.collect()
            if self._processes.has(key):
                self._read_ahead(key)
                batch = self._processes.take(key)
                self._read_ahead()
                return batch
            self._read_ahead()
        try:
            return reader.read(key, slot.seed, records)
        except Exception as error:
            raise _unreadable(key, f"{reader.part()}: {_last_line(error)}") from error

    def close(self) -> None:
        if self._processes is not None:
            self._processes.close()
            self._processes = None


def _check_count(what: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= PREFETCH_MAX:
        raise ValueError(f"slots: {what}: expected an integer from {least} to {PREFETCH_MAX}, got {value!r}")


def _refuse_datasets(dataset: Any, session: Session) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, (DataLoader, Sampler)):
        raise TypeError(f"slots: expected a dataset, got {kind}: the servers say which records each slot has, and a sampler "
                        "would choose others, far ahead of the slots, and wrong ones after the loss of a worker: give the "
                        "dataset itself, with collate_fn, workers and prefetch")
    if isinstance(dataset, IterableDataset):
        raise TypeError(f"slots: expected a dataset whose records have numbers, got {kind}, which chooses their order "
                        "itself: the servers say which records each slot has: give one with __getitem__ and __len__")
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"slots: expected a dataset with a length and items, got {kind}")
    if len(dataset) != session._job[RECORDS]:
        raise ValueError(f"slots: the dataset has {len(dataset)} records, and the session was made with "
                         f"records={session._job[RECORDS]}")
