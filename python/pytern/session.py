# SPDX-License-Identifier: Apache-2.0
"""A worker of a training job: Session, its Tensors, and the Slots that it computes.

The C part (native.c) never waits for longer than WAIT_S, so Python handles signals in between: KeyboardInterrupt comes
out of every call that blocks. Notes of the library are delivered there as well, in the thread that calls.
"""
import contextlib
import errno
import hashlib
import math
import multiprocessing.process
import operator
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy
from numpy.typing import NDArray

from . import _native
from ._errors import Cancelled, Error, Timeout
from .rules import GIVEN, SGD, Init, Mean, Optimizer, Schedule, Warmup, _integer, _number, zeros

WAIT_S = 0.1  # longest wait without a look at signals
LEAVE_S = 10.0  # longest wait of a worker that leaves the job because of an exception
MODE, STEPS, CLIP_NORM, ARITHMETIC, RECORDS, BATCH = 2, 4, 6, 7, 8, 9  # their places in Session._job
ARITHMETIC_BYTES = 127  # most of them
SERVER_WAIT_MAX = 86_400  # TERN_SERVER_WAIT_MAX
KEEP_MAX = 65_536  # TERN_KEEP_MAX
Floats = NDArray[numpy.float32]
T = TypeVar("T")


def _references(cell: list[Floats]) -> int:
    return sys.getrefcount(cell[0])


# The result of _references() for an array that nothing but its cell refers to; it depends on the version of Python.
_UNSHARED = _references([numpy.empty(1, numpy.float32)])


def _last_line(error: BaseException) -> str:
    """The last line that a traceback of this exception would have: "ValueError: the reason"."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return text.splitlines()[-1].replace("\0", " ")[:400] if text else type(error).__name__


def _text(what: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{what}: expected a string, got {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise ValueError(f"{what}: expected a string without NUL characters, got {text!r}")
    return text


def _mode(text: Any) -> tuple[int, int]:
    """The number of a mode (enum tern_train_mode), and its staleness."""
    kind, colon, staleness = str(text).partition(":")
    if kind == "ssp" and re.fullmatch("[0-9]+", staleness, re.ASCII) and int(staleness) <= 1 << 40:
        return 2, int(staleness)
    if kind not in ("sync", "async") or colon:
        raise ValueError(f"mode: expected 'sync', 'async', or 'ssp:K' with K from 0 to 2^40, got {text!r}")
    return int(kind == "async"), 0


def _is_bf16(what: str, name: Any) -> bool:
    """Whether the name of a type on the wire is bf16."""
    if name not in ("f32", "bf16"):
        raise ValueError(f"{what}: expected 'f32' or 'bf16', got {name!r}")
    return bool(name == "bf16")


def _server_wait(seconds: Any) -> int:
    """The number of seconds for C, where 0 stands for the environment, and a negative number for none."""
    if hasattr(seconds, "__index__") and not 0 <= operator.index(seconds) <= SERVER_WAIT_MAX:
        raise ValueError(f"server_wait: expected an integer from 0 to {SERVER_WAIT_MAX}, got {seconds}")
    return _integer("server_wait", seconds, 0, 32) or -1


def _print(text: str) -> None:
    print(f"tern: {text}", file=sys.stderr, flush=True)


def _given(name: str, init: Any) -> Floats:
    """Makes an array of float32, in row-major order, of a tensor's initial values. An array that is one is not copied."""
    array = numpy.asarray(init)
    if isinstance(init, (int, float)) or not numpy.can_cast(array.dtype, numpy.float32, "same_kind"):
        what = f"dtype {array.dtype}" if array.ndim else type(init).__name__
        raise TypeError(f"tensor {name}: init: expected one such as uniform(0.1), or an array of real numbers, got {what}")
    return numpy.ascontiguousarray(array, numpy.float32).reshape(array.shape)


class Tensor:
    """A parameter of the model, made by Session.tensor(). It is the key for its values: slot[w]."""

    __slots__ = ("_session", "id", "name", "shape", "_warned")

    def __init__(self, session: "Session", number: int, name: str, shape: tuple[int, ...]) -> None:
        self._session = session
        self.id = number
        self.name = name
        self.shape = shape
        self._warned = False

    @property
    def value(self) -> Floats:
        """A copy of the final values, after the last slot."""
        values = numpy.empty(self.shape, numpy.float32)
        self._session._native.param(self.id, values)
        return values

    def __repr__(self) -> str:
        return f"<tensor {self.name} {self.shape}>"

    def _convert(self, gradient: Any) -> Floats:
        """Makes a float32 array of the tensor's shape, in row-major order."""
        array = numpy.asarray(gradient)
        if not numpy.can_cast(array.dtype, numpy.float32, "same_kind"):
            raise TypeError(f"tensor {self.name}: expected a gradient of real numbers, got dtype {array.dtype}")
        if array.shape != self.shape:
            raise ValueError(f"tensor {self.name}: expected a gradient of shape {self.shape}, got {array.shape}")
        if not self._warned:
            self._warned = True
            what = (f"is {array.dtype} and is converted to float32" if array.dtype != numpy.float32
                    else "is not contiguous and is copied")
            warnings.warn(f"tensor {self.name}: its gradient {what} in each push", stacklevel=3)
        return numpy.ascontiguousarray(array, numpy.float32).reshape(self.shape)


class Follower(Protocol):
    """What a part of the package for a framework, such as pytern.torch, does along with the session."""

    early: bool  # enter() needs no parameters, so a slot may begin while they arrive

    def start(self) -> str:
        """Before the session joins the job. Returns what to add to `arithmetic`."""
        ...

    def enter(self, slot: "Slot") -> None:
        """At the beginning of the slot's block. An exception leaves the loop over the slots."""
        ...

    def leave(self, slot: "Slot", failed: bool) -> None:
        """At the end of the slot's block, where `failed` says whether an exception is on its way. An exception ends the
        slot as one of the block does."""
        ...

    def complete(self) -> None:
        """After the last slot: the final values are there."""
        ...

    def close(self) -> None:
        """The session is closed, or about to leave the job. May be called more than once."""
        ...


class Slot:
    """A share of a step's work. `with slot:` ends it: leaving the block normally hands it in, an exception makes this
    worker leave the job. After that, the slot can no longer be used.

    `step`: the step, counted from 0. `number`: which slot of the step. `seed`: for the random numbers that the gradient
    depends on. In sync mode the same step and number have the same records and seed, whichever worker computes them.
    `repeated`: this worker has computed the slot once before, and the gradients of the two times are compared: see
    `verify_first` of Session. `evaluate`: this worker is to evaluate the slot's parameters, for example on a test set, and
    to say the result with Session.metric(): see `eval_every` of Session. The gradient must not depend on that.
    `rolled_back_from`: 0, or in the first slot after the job has gone back (see `server_wait` of Session) a step: this worker
    was given slots of all steps below it, and those from `step` on are made again.

    A slot may come while its parameters still arrive, so that the program can load its records meanwhile. Whoever reads
    the values of a tensor waits for that tensor, and a push and the end of the block wait for all of them. If they will
    not come, reading raises Cancelled, which `with slot:` catches.
    """

    __slots__ = ("_session", "_native", "_turn", "_loss", "_weight", "_records", "_values", "_entered", "_ended", "_early", "_cancelled",
                 "step", "number", "batch", "seed", "repeated", "evaluate", "rolled_back_from")

    def __init__(self, session: "Session", turn: int, step: int, number: int, batch: int, seed: int,
                 repeated: bool, evaluate: bool, early: bool = False, rolled_back_from: int = 0) -> None:
        self._session = session
        self._native = session._native
        self._turn = turn
        self._loss: float | None = None
        self._weight = 1.0
        self._records: NDArray[numpy.uint64] | None = None
        self._values: dict[int, Floats] = {}
        self._entered = self._ended = False
        self._early = early  # perhaps not all parameters are here
        self._cancelled = False
        self.step = step
        self.number = number
        self.batch = batch
        self.seed = seed
        self.repeated = repeated
        self.evaluate = evaluate
        self.rolled_back_from = rolled_back_from

    def __repr__(self) -> str:
        return f"<slot {self.number} of step {self.step}{', ended' if self._ended else ''}>"

    @property
    def records(self) -> NDArray[numpy.uint64]:
        """The numbers of the slot's records. Empty if the job has none."""
        self._session._looked = True
        if self._records is None or self._ended:
            self._records = numpy.frombuffer(self._native.records(self._turn), numpy.uint64)
        return self._records

    @property
    def revoked(self) -> bool:
        """True if nobody needs this slot's result any more: the job is over, goes back, or goes on without this worker. What
        is pushed has no effect then."""
        return self._native.revoked(self._turn)

    @property
    def cancelled(self) -> bool:
        """True after the block if it was left early, with Cancelled: what the program has computed in it does not count,
        and the same step and number may come again."""
        return self._cancelled

    def __getitem__(self, w: Tensor) -> Floats:
        """The values of a tensor, as a read-only array. It keeps its values after the slot."""
        self._check(w)
        self._await(w)
        values = self._values.get(w.id)
        if values is None or self._ended:
            values = self._values[w.id] = self._session._copy(self._turn, w)
        return values

    def view(self, w: Tensor) -> Floats:
        """The values of a tensor in the library's own memory, without a copy. After the end of the slot the array has
        other values, from some later version or a mixture of several."""
        self._check(w)
        self._await(w)
        return numpy.asarray(self._native.view(self._turn, w.id))

    def push(self, w: Tensor, gradient: Any) -> None:
        """Hands over the gradient of a tensor: the mean over the slot's records. Takes anything with the buffer
        protocol or __array__. When it returns, the array can be changed again. Any thread may push. A tensor that no
        slot of the step pushes is skipped: it keeps its values, and so does the state of its optimizer."""
        self._check(w)
        if not self._entered:
            raise Error(-errno.EINVAL, f"slot {self.number} of step {self.step}: tensor {w.name} can be pushed inside "
                        "`with slot:` only")
        self._await_all()
        if not self._native.push(self._turn, w.id, gradient):
            self._native.push(self._turn, w.id, w._convert(gradient))

    def keep(self, data: Any) -> bool:
        """Gives the job a blob: at most 65,536 bytes that the program needs to go on after this step, such as its position
        in a stream. Snapshots have it, and Session.kept() returns it in a job that goes on from one. Takes bytes, or
        anything with the buffer protocol, which is copied. It must be called in the slot's block, and the last call counts.

        Only the blob of slot 0 counts, which exactly one worker of each step has: returns True if this one does. With any
        other slot the call has no effect, so a program can call it in each slot. In which steps it does so must depend on
        the step alone. The blob of step s belongs to version s + 1 of the parameters, those after the step; a snapshot of
        version v has the newest blob of a version up to v, so give one in every step, or in each step before a snapshot, if
        it must be that of v. If the bytes follow from the step and the seed, or from an earlier blob and the step, then they
        are the same however often the job goes back and whichever worker has slot 0. Jobs in sync mode only.

        Raises ValueError if there are more bytes (declare a tensor for them), or the job is not in sync mode."""
        if not self._entered or self._ended:
            raise Error(-errno.EINVAL, f"slot {self.number} of step {self.step}: a blob can be given inside `with slot:` "
                        "only")
        if self._session._job[MODE][0] != 0:
            raise ValueError("keep: only a job in sync mode keeps a blob")
        try:
            data = memoryview(data)
        except TypeError:
            raise TypeError(f"keep: expected bytes, got {type(data).__name__}") from None
        if data.nbytes > KEEP_MAX:
            raise ValueError(f"keep: expected at most {KEEP_MAX} bytes, got {data.nbytes}: declare a tensor for more")
        self._await_all()
        return self._native.keep(self._turn, data if data.c_contiguous else data.tobytes())

    def loss(self, value: Any, weight: Any = 1.0) -> None:
        """The mean loss over the slot's records, which progress lines show. It must be called in the slot's block. A
        loss that is NaN or infinite ends the job, or if its servers have `--on-nan skip`, leaves the slot out of the step.

        `weight`: of this loss in the mean over slots, such as the number of words in the slot's records; 0 or more. It has
        no effect on gradients."""
        if self._ended:
            raise Error(-errno.EINVAL, f"slot {self.number} of step {self.step} has ended: its loss is known")
        try:
            loss = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError):
            raise TypeError(f"loss: expected a number, got {type(value).__name__}") from None
        if not 0 <= _number("weight", weight) <= 1e30:
            raise ValueError(f"weight: expected a number from 0 to 1e30, got {weight}")
        self._loss, self._weight = loss, float(weight)

    def _check(self, w: Tensor) -> None:
        if not isinstance(w, Tensor):
            raise TypeError(f"expected a tensor that Session.tensor() has returned, got {type(w).__name__}")
        if w._session is not self._session:
            raise ValueError(f"tensor {w.name} belongs to another session")

    def _await(self, w: Tensor) -> None:
        """Waits until the values of the tensor are here. They may never come, which only `with slot:` can handle."""
        if not self._entered:
            raise Error(-errno.EINVAL, f"slot {self.number} of step {self.step}: the values of tensor {w.name} can be "
                        "read inside `with slot:` only")
        if self._early and not self._session._wait(lambda seconds: self._native.arrived(self._turn, w.id, seconds)):
            raise Cancelled(-errno.ECANCELED, f"slot {self.number} of step {self.step} was revoked before its "
                            "parameters were here: nobody needs its result")

    def _await_all(self) -> None:
        """Waits until all values are here, or will not come."""
        if self._early:
            self._early = not self._session._wait(lambda seconds: self._native.arrived(self._turn, -1, seconds))

    def __enter__(self) -> "Slot":
        if self._ended:
            raise Error(-errno.EINVAL, f"slot {self.number} of step {self.step} has ended: it can be entered once")
        self._entered = True
        for follower in self._session._followers:
            follower.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool:
        if self._session._is_elsewhere():
            return False
        cancelled = isinstance(error, Cancelled) and self.revoked
        try:
            if error is None:
                self._await_all()
            for follower in self._session._followers:
                follower.leave(self, error is not None)
        except BaseException as late:
            self._fail(late)
            raise
        if error is not None and not cancelled:
            self._fail(error)
            return False
        if self.batch and not self._session._looked and not self.revoked:
            unread = Error(-errno.EINVAL, f"slot {self.number} of step {self.step}: the program did not look at "
                           f"slot.records, although the session has records={self._session._job[RECORDS]}: the gradient "
                           "must be that of these records. Use slot.records (with PyTorch: server.slots(dataset)), not a "
                           "DataLoader or an order of your own; or leave out `records`, and choose the data by slot.step "
                           "and slot.number")
            self._fail(unread)
            raise unread
        self._ended = True
        self._cancelled = cancelled
        self._values.clear()
        if self._loss is None and not self.revoked:
            self._native.fail(self._turn, "slot.loss() was not called")
            raise Error(-errno.EINVAL, f"slot {self.number} of step {self.step} ended without a loss: call "
                        "slot.loss(value) before the end of its block")
        else:
            self._native.end(self._turn, self._loss or 0.0, self._weight)
        return cancelled

    def _fail(self, error: BaseException) -> None:
        self._ended = True
        self._values.clear()
        with contextlib.suppress(Error):  # of a session that is closed or broken: the first error tells more
            self._native.fail(self._turn, _last_line(error))


class Session:
    """One worker of a training job. Use it as `with Session(...) as s:`.

    `push`, `pull`: type that gradients and values have on the wire, "f32" or "bf16", of tensors that state none. Arrays
    are float32 in any case, and so is what the servers keep.

    `server_wait`: seconds that the session waits for a server that is lost during the steps, if the servers take snapshots
    and all workers wait; 0: it ends then. Without it the environment variable TERN_SERVER_WAIT has the number, or it is 0.
    When the server is here again, the job goes on from its newest snapshot: on_rollback(from_step, to_step) is called, and
    slots() gives slots from `to_step` on. What a program keeps from step to step must follow it back.

    `workers`, `index`: the number of workers with which the job begins, and which of them this one is, from 0; without
    both they come from TERN_WORKERS and TERN_INDEX. `index` may also be the next one that the job does not have, if the
    session has a `server_wait`, in sync mode: this worker is then added to the job while it runs, with `workers` and
    `slots` as the others have them. So a job may have more than `workers`. A slot's records, seed and parameters do not
    depend on their number; a gradient must not either.

    Declare the tensors, then loop over slots(): that starts the session. At the end of the block the worker waits for
    the end of the job; after an exception it leaves the job, and the others go on.
    """

    def __init__(self, join: str | None = None, *, steps: int, optimizer: Optimizer = SGD(),
                 schedule: Schedule | None = None, mode: str = "sync", slots: int = 0,
                 seed: int = 1, clip_norm: float = 0.0, arithmetic: str = "", records: int = 0, batch: int = 128, data: int = 0,
                 init_from_first: bool = False, verify_first: int | None = None, eval_every: int | None = None,
                 push: str = "f32", pull: str = "f32",
                 workers: int | None = None, index: int | None = None,
                 secret_file: "str | os.PathLike[str] | None" = None,
                 note: Callable[[str], object] | None = None, timeout: float | None = None,
                 server_wait: int | None = None, on_rollback: Callable[[int, int], object] | None = None) -> None:
        if getattr(multiprocessing.process.current_process(), "_inheriting", False):
            raise RuntimeError(
                "a process that multiprocessing has spawned imports the main script again, and the script opens a "
                'session at its top level: put what opens the session under `if __name__ == "__main__":`')
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: expected one such as Adam(lr=1e-3), got {type(optimizer).__name__}")
        if isinstance(optimizer, Mean):
            raise ValueError("optimizer: Mean() is for single tensors: give it to Session.tensor()")
        if schedule is not None and not isinstance(schedule, Schedule):
            raise TypeError(f"schedule: expected one such as Cosine(warmup=100), got {type(schedule).__name__}")
        if note is not None and not callable(note):
            raise TypeError(f"note: expected a function of one string, got {type(note).__name__}")
        if on_rollback is not None and not callable(on_rollback):
            raise TypeError(f"on_rollback: expected a function of two steps, got {type(on_rollback).__name__}")
        wait = 0 if server_wait is None else _server_wait(server_wait)
        if (workers is None) != (index is None):
            raise ValueError("workers, index: expected both or neither")
        if _number("clip_norm", clip_norm) < 0:
            raise ValueError(f"clip_norm: expected 0 (none) or more, got {clip_norm}")
        if timeout is not None and _number("timeout", timeout) < 0:
            raise ValueError(f"timeout: expected a number of seconds, got {timeout}")
        self._job: tuple[Any, ...] = (
            0 if workers is None else _integer("workers", workers, 1, 32), _integer("index", index or 0, 0, 32),
            _mode(mode), _integer("slots", slots, 0, 32), _integer("steps", steps, 1, 64),
            _integer("seed", seed, 0, 64), float(clip_norm), _text("arithmetic", arithmetic),
            _integer("records", records, 0, 64), _integer("batch", batch, 1, 32), _integer("data", data, 0, 64),
            # In C 0 stands for the environment or the default, and a negative number for none.
            0 if verify_first is None else _integer("verify_first", verify_first, 0, 32) or -1,
            optimizer._for_c(), (schedule or Warmup(0))._for_c(), bool(init_from_first),
            0 if eval_every is None else _integer("eval_every", eval_every, 0, 32) or -1)
        self._wire = _is_bf16("push", push), _is_bf16("pull", pull)
        self._note = note or _print
        self._on_rollback = on_rollback
        self._timeout = timeout
        self._pid = os.getpid()
        self._started = False
        self._complete = False  # all steps are done
        self._looked = False  # the program has read the records of a slot
        self._is_finisher: bool | None = None  # None: not asked
        self._finished = False
        self._slot: Slot | None = None  # the one that slots() returned last
        # By tensor: a list with the array that slot[w] returned last, which _copy() uses again if nobody refers to it.
        self._cells: dict[int, list[Floats]] = {}
        self._followers: list[Follower] = []
        with _arguments():
            self._native = _native.Session(None if join is None else _text("join", join),
                                           None if secret_file is None else _text("secret_file", secret_file), wait)

    # ---- before the start ----

    def tensor(self, name: str, shape: int | tuple[int, ...] | None = None, init: Any = None,
               optimizer: Optimizer | None = None, push: str | None = None, pull: str | None = None) -> Tensor:
        """Declares a tensor of float32, before the first call of slots(). Without `init` its values begin with 0.

        `init`: initial values that the servers make, such as uniform(0.1), or an array with the values, which every worker
        must give alike (but see Session(init_from_first)). The first call of slots() reads the array: do not change it
        before. `shape` may be left out then. `optimizer`: how the servers update this tensor, if not by the session's
        optimizer. `push`, `pull`: as those of Session, for this tensor."""
        name = _text("the name of a tensor", name)
        wire = (self._wire[0] if push is None else _is_bf16(f"tensor {name}: push", push),
                self._wire[1] if pull is None else _is_bf16(f"tensor {name}: pull", pull))
        values = None if init is None or isinstance(init, Init) else _given(name, init)
        if shape is None and values is None:
            raise TypeError(f"tensor {name}: shape: expected integers, as `init` is not an array")
        shape = values.shape if shape is None and values is not None else shape
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise TypeError(f"tensor {name}: optimizer: expected one such as Adam(lr=1e-3), got "
                            f"{type(optimizer).__name__}")
        try:
            dims = tuple(operator.index(dim) for dim in ((shape,) if hasattr(shape, "__index__") else shape))
        except TypeError:
            raise TypeError(f"tensor {name}: shape: expected integers, got {shape!r}") from None
        if any(dim < 1 for dim in dims) or math.prod(dims) >= 1 << 60 or len(dims) > 8:
            raise ValueError(f"tensor {name}: shape: expected at most 8 dimensions of 1 or more, got {dims}")
        if values is not None and values.shape != dims:
            raise ValueError(f"tensor {name}: init: expected an array of shape {dims}, got {values.shape}")
        kind = Init(GIVEN) if values is not None else init or zeros()
        rule = None if optimizer is None else optimizer._for_c()
        with _arguments():
            number = self._native.tensor(name, dims, kind.kind, kind.a, kind.b, rule, values, *wire)
        return Tensor(self, number, name, dims)

    # ---- the slots ----

    def slots(self) -> Iterator[Slot]:
        """The slots of this worker, until all steps are done. The first call joins the job."""
        self._start()
        return self._slots()

    def _start(self) -> None:
        if self._started:
            return
        job: list[Any] = [*self._job, all(follower.early for follower in self._followers)]
        job[ARITHMETIC] = _joined([job[ARITHMETIC], *(f.start() for f in self._followers)])
        with _arguments():
            self._native.start(*job)
        self._started = True

    def _slots(self) -> Iterator[Slot]:
        while not self._complete:
            before = self._slot
            if before is not None and not before._ended:
                raise Error(-errno.EBUSY, f"slot {before.number} of step {before.step} was not ended: compute each "
                            "slot inside `with slot:`")
            found = self._wait(self._native.next)
            if not isinstance(found, tuple):
                self._complete = True
                for follower in self._followers:
                    follower.complete()
                return
            self._slot = Slot(self, *found)
            if self._slot.rolled_back_from and self._on_rollback is not None:
                self._on_rollback(self._slot.rolled_back_from, self._slot.step)
            yield self._slot

    def _copy(self, turn: int, w: Tensor) -> Floats:
        """Copies the values of a tensor. The memory of an earlier copy is used again only if nobody refers to it: an
        array that the program still has, or a view of it, keeps its values."""
        cell = self._cells.setdefault(w.id, [])
        again = bool(cell) and _references(cell) == _UNSHARED
        memory = cell[0] if again else numpy.empty(w.shape, numpy.float32)
        cell[:] = [memory]
        self._native.read(turn, w.id, memory)
        values = memory.view()
        values.flags.writeable = False
        return values

    # ---- the job's blob ----

    def kept(self) -> tuple[bytes, int]:
        """The blob with which this worker has begun (see Slot.keep()), and the version of the parameters that it belongs to,
        which is 1 more than the step of its slot; (b"", 0): there is none. Joins the job, as slots() does: declare the
        tensors before. Waits until it is known with which step this worker begins.

        It is the blob of the snapshot, or of what the servers have in memory, that the job goes on from. A worker that comes
        when the job has begun gets the newest one of its first step or an earlier one. After the job has gone back (see
        `server_wait`), the blob is that of the step to which it has: ask in on_rollback or in the slot with
        `rolled_back_from`. Blobs that are given meanwhile do not change it."""
        self._start()
        return self._wait(self._native.kept)

    # ---- what is shown ----

    def metric(self, name: str, value: Any) -> None:
        """Names a number that `tern run` shows beside the loss, such as an accuracy. The last value of a name counts,
        whichever worker has set it. NaN and infinite values are told as such.

        It can be called from the first call of slots() to the end of the session's block, also by the finisher. In a slot
        that is computed for the second time (Slot.repeated) it has no effect, since the first time counts. `name` has 1 to
        63 printable ASCII characters without blanks; a job shows at most 32 different names."""
        if not re.fullmatch(r"[!-~]{1,63}", _text("metric", name)):
            raise ValueError("metric: expected a name of 1 to 63 printable ASCII characters without blanks, got "
                             f"{name[:80]!r}")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"metric {name}: expected a number, got {type(value).__name__}") from None
        self._native.metric(name, number)

    # ---- the end ----

    def finisher(self) -> bool:
        """After the last slot: True for exactly one live worker, which saves the results. If it is lost before it leaves
        the session's block, another worker takes its place. Waits until it is known."""
        if not self._complete:
            raise Error(-errno.EINVAL, "finisher() has an answer after the last slot: the loop over slots() has not "
                        "come to its end")
        if self._is_finisher is None:
            self._is_finisher = self._wait(self._native.finisher)
        return self._is_finisher

    @contextlib.contextmanager
    def finishing(self) -> Iterator[bool]:
        """`with s.finishing() as mine:`, where `mine` is what finisher() returns. The end of the block ends the job. If
        it raises, another worker becomes the finisher."""
        mine = self.finisher()
        try:
            yield mine
        except BaseException as error:
            self._finish(_last_line(error))
            raise
        self._finish(None)

    def _finish(self, text: str | None) -> None:
        if self._is_finisher and not self._finished:
            self._finished = True
            self._native.finished(text)

    def goes_on(self) -> None:
        """This worker is alive. A finisher that takes long calls this every few seconds, and so does a worker that evaluates
        for long in a slot with `evaluate`, since the servers take a silent worker for one that hangs (tern server
        --worker-timeout). In other slots it has no effect."""
        self._native.goes_on()

    def describe(self) -> str:
        """Returns one line that says which step the session is at and what it waits for."""
        return self._native.describe()

    def close(self) -> None:
        """Leaves the job, if it is not over for this worker, and frees the session. `with` does this, too."""
        self._abandon("the session was closed")
        self._close()

    def _release(self) -> None:
        for follower in self._followers:
            follower.close()

    def _close(self) -> None:
        self._release()
        self._native.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if error is not None:
                self._abandon(_last_line(error))
            elif not self._is_elsewhere():
                self._end()
        except BaseException as late:
            self._abandon(_last_line(late))
            raise
        finally:
            self._close()

    def _end(self) -> None:
        """Waits for the end of the job, or leaves it if the program does not want the rest of its slots."""
        if not self._started:
            return
        if not self._complete:
            self._abandon("the program has left its loop")
            return
        if self._is_finisher is None:
            self.finisher()
        self._finish(None)
        self._wait(self._native.ended)

    def _abandon(self, reason: str) -> None:
        """Leaves the job in order. Errors have nobody to go to: an exception is on its way, or close() was called."""
        if self._is_elsewhere() or not self._started:
            return
        # Other workers go on without this one, and the library may receive what they make.
        self._release()
        with contextlib.suppress(Error):
            if self._slot is not None and not self._slot._ended:
                self._slot._ended = True
                self._native.fail(self._slot._turn, reason)
            self._finish(reason)
            self._native.leave(reason)
            self._wait(self._native.ended, LEAVE_S)

    # ---- waiting ----

    def _is_elsewhere(self) -> bool:
        """True in a forked child, which must not use the session."""
        return os.getpid() != self._pid

    def _wait(self, call: Callable[[float], T | None], limit_s: float | None = None) -> T:
        """Calls call(seconds) until it returns an answer."""
        limit_s = self._timeout if limit_s is None else limit_s
        deadline = math.inf if limit_s is None else time.monotonic() + limit_s
        while True:
            left = deadline - time.monotonic()
            try:
                answer = call(max(0.0, min(WAIT_S, left)))
            finally:
                self._deliver()
            if answer is not None:
                return answer
            if left <= 0:
                raise Timeout(-errno.ETIMEDOUT, f"no answer within {limit_s} s: {self._native.describe()}")

    def _deliver(self) -> None:
        """Passes the library's notes on. A note that cannot be delivered is no reason to end the training."""
        for text in self._native.notes():
            try:
                self._note(text)
            except Exception:
                with contextlib.suppress(Exception):
                    traceback.print_exc()


def _joined(parts: list[str]) -> str:
    """Joins the names of what the bits depend on. The C part takes 127 bytes, so what followers add to them, several
    Servers for example, is replaced by its digest if it is too long."""
    own, *added = parts
    text = "; ".join(filter(None, parts))
    if len(text.encode()) <= ARITHMETIC_BYTES or len(added) < 2:
        return text
    return "; ".join(filter(None, [own, f"servers {hashlib.sha256('; '.join(added).encode()).hexdigest()[:32]}"]))


@contextlib.contextmanager
def _arguments() -> Iterator[None]:
    """Makes a ValueError of the library's complaint about an argument."""
    try:
        yield
    except Error as error:
        if error.errno == errno.EINVAL:
            raise ValueError(error.text) from None
        raise
