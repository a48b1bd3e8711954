# SPDX-License-Identifier: Apache-2.0
"""A PyTorch module whose parameters are kept by Tern's servers.

Four rules make the bytes of the parameters the same for any number of workers:

- The parameters have one version during the whole slot: from its beginning, when all of it has arrived, to the beginning
  of the next slot or the final values. A large parameter lies in the memory in which it was received (views.py), others
  are copied. A parameter stays what it was to everybody who refers to it.
- A gradient is sent when autograd has finished it, whatever the order, and is taken out of `grad`. What autograd adds
  after that would be missing in what was sent, and is an error.
- The running statistics of normalisations are tensors of the session, too. Every slot begins with the same ones, and the
  servers make the mean of what the slots of a step push.
- All that a gradient depends on is a function of the slot, or is named in the job's `arithmetic`. Random numbers begin
  anew in each slot, from its seed.
"""
import contextlib
import errno
import hashlib
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn

from .._errors import Error
from .._frameworks import build_digest
from ..rules import Init, Mean
from ..session import CLIP_NORM, MODE, STEPS, Session, Slot, Tensor
from . import devices, refusals
from .data import Batches, seed_generators
from .evaluating import untouched
from .initial import begin_of
from .views import Memory, Views

# What chooses between kernels with other bits.
ENVIRONMENT = ("ATEN_CPU_CAPABILITY", "DNNL_DEFAULT_FPMATH_MODE", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
               "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE")


class _Parameter:
    """A parameter of the module, and the tensor of the session with its values."""

    __slots__ = ("name", "parameter", "tensor", "memory", "_pointer", "version", "passes", "keep")

    def __init__(self, name: str, parameter: nn.Parameter, tensor: Tensor, can_move: bool) -> None:
        self.name = name
        self.parameter = parameter
        self.tensor = tensor
        # A parameter on a GPU, or in another layout, such as channels_last, is assigned to.
        in_place = parameter.is_contiguous() and devices.on_host(parameter)
        self.memory = Memory(parameter, tensor, can_move) if in_place else None
        self._pointer = parameter.data_ptr()
        self.version = parameter._version
        self.passes = 0  # backward passes of this slot that have added to the gradient
        self.keep: Any = None  # what the hook belongs to

    def read(self, slot: Slot, there: set[Memory], staging: devices.Staging) -> None:
        """Lets the parameter have the slot's version. there: where it is already."""
        if self.memory is None:
            staging.fill(self.parameter, lambda array: slot._native.read(slot._turn, self.tensor.id, array))
        else:
            if self.memory not in there:
                slot._native.read(slot._turn, self.tensor.id, self.memory.array())
            self.memory.changed()
        self.parameter.grad = None
        self.version = self.parameter._version
        self.passes = 0

    def end(self, staging: devices.Staging) -> None:
        """Lets the parameter have the final values, in memory of its own."""
        if self.memory is None:
            staging.fill(self.parameter, lambda array: self.tensor._session._native.param(self.tensor.id, array))
        else:
            self.memory.read_final(self.tensor._session._native)
            self.memory.changed()

    def has_moved(self) -> bool:
        return self.parameter.data_ptr() != (self.memory.pointer if self.memory else self._pointer)


class _Statistic:
    """A running mean or variance of a module in training mode."""

    __slots__ = ("name", "buffer", "tensor", "memory", "version")

    def __init__(self, name: str, buffer: torch.Tensor, session: Session) -> None:
        if buffer.dtype != torch.float32 or buffer.device.type not in devices.KINDS or not buffer.is_contiguous():
            raise ValueError(f"buffer {name}: expected a contiguous tensor of float32 on the CPU or on a CUDA device")
        self.name = name
        self.buffer = buffer
        self.memory = devices.to_host(buffer)
        self.version = buffer._version
        self.tensor = session.tensor(name, init=self.memory, optimizer=Mean(), push="f32", pull="f32")

    def read(self, slot: Slot) -> None:
        slot._native.read(slot._turn, self.tensor.id, self.memory)
        self._assign()

    def end(self) -> None:
        self.tensor._session._native.param(self.tensor.id, self.memory)
        self._assign()

    def push(self, slot: Slot) -> None:
        slot.push(self.tensor, devices.to_host(self.buffer))

    def _assign(self) -> None:
        if not devices.on_host(self.buffer):
            self.buffer.copy_(torch.from_numpy(self.memory))


class Server:
    """The parameters of `module`, declared as tensors of `session`: Server(module, session), before the loop over the
    slots. In each slot the module has the slot's parameters, and what `backward()` computes is sent.

    Training begins with the values that the module has, which must be the same on all workers: make it after
    torch.manual_seed(), load it, or let those of the first worker count, with Session(init_from_first=True).

    `init`: how parameters begin that the servers initialise instead, by their names; init_of(module) for all.
    `accumulate`: the number of backward passes of a slot. `threads`: PyTorch's intra-op threads, which change the bits.
    `arithmetic`: in place of what describes this PyTorch, processor and module. `copy`: copies the parameters in each slot,
    so that they never change their memory.
    """

    def __init__(self, module: nn.Module, session: Session, *, init: Mapping[str, Init] | None = None,
                 accumulate: int = 1, threads: int = 1, deterministic: bool = True,
                 arithmetic: str | None = None, copy: bool = False) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"Server: expected a torch.nn.Module, got {type(module).__name__}")
        if not isinstance(session, Session):
            raise TypeError(f"Server: expected a pytern.Session, got {type(session).__name__}")
        for what, value in (("accumulate", accumulate), ("threads", threads)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Server: {what}: expected an integer of 1 or more, got {value!r}")
        _refuse_modules(module)
        self._device = devices.device_of(module)
        _refuse_parameters(module)
        begins = begin_of(module, init)
        self.module = module
        self._session = session
        self._accumulate = accumulate
        self._threads = threads
        self._deterministic = deterministic
        self._arithmetic = arithmetic
        self._slot: Slot | None = None
        self._quiet = 0  # depth of no_sync()
        self._complete = False
        self._batches: Batches | None = None  # of the last call of slots()
        # In other modes a version may be received before the next slot begins.
        can_move = session._job[MODE] == (0, 0) and not copy
        self._parameters = [
            _Parameter(name, parameter, session.tensor(name, tuple(parameter.shape), begins[name]), can_move)
            for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._staging = devices.Staging([p.parameter for p in self._parameters if p.memory is None], self._device)
        self._views = Views(session, [p.memory for p in self._parameters if p.memory])
        self.names = {id(p.parameter): p.name for p in self._parameters}
        self._statistics = [_Statistic(f"{prefix}.{key}" if prefix else key, buffer, session)
                            for prefix, part in _with_statistics(module) for key in ("running_mean", "running_var")
                            for buffer in (part._buffers[key],) if buffer is not None]
        if self._statistics and session._job[CLIP_NORM] > 0:
            raise ValueError(f"buffer {self._statistics[0].name}: batch normalisation in training mode and "
                             "Session(clip_norm=...) do not go together: train without clip_norm, or put the normalisation "
                             "into eval()")
        # Numbers of batches, which count in a cumulative mean (momentum=None), and what they begin with.
        self._counts = [(count, int(count)) for _, part in _with_statistics(module)
                        for count in (part._buffers.get("num_batches_tracked"),) if count is not None]
        self._ours = {id(buffer) for buffer in (*(s.buffer for s in self._statistics), *(c for c, _ in self._counts))}
        # Where the module's other state is: (name, the module that has it, its name there).
        self._buffers = [(f"{prefix}.{key}" if prefix else key, part, key) for prefix, part in module.named_modules()
                         for key in part._buffers]
        self._before: list[tuple[torch.Tensor | None, int]] = []
        # (name, module, whether it trains) of all modules, and whether a slot has computed with them.
        self._modes = [(name, part, part.training) for name, part in module.named_modules()]
        self._modes_hold = False
        self._modes_checked = False  # in this slot
        self._removers = [self._hook(p) for p in self._parameters]
        torch.set_num_threads(threads)
        if deterministic:
            devices.be_deterministic(self._device)
        refusals.watch()
        refusals.servers.add(self)
        session._followers.append(self)

    @property
    def in_slot(self) -> bool:
        return self._slot is not None

    # ---- gradients ----

    def _hook(self, p: _Parameter) -> Callable[[], None]:
        """Calls _final() when autograd has added to the parameter's gradient. Returns what undoes that."""
        me = weakref.ref(self)

        def final(*ignored: Any) -> None:
            server = me()
            if server is not None:
                server._final(p)

        register = getattr(p.parameter, "register_post_accumulate_grad_hook", None)
        if register is not None:
            handle = register(final)
        else:
            # PyTorch before 2.1: the hook of the node that accumulates. The parameter has only a weak reference to it.
            with torch.enable_grad():
                p.keep = p.parameter.expand_as(p.parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            handle = p.keep.register_hook(final)
        return cast(Callable[[], None], handle.remove)

    def _final(self, p: _Parameter) -> None:
        slot = self._slot
        if slot is None or p.parameter.grad is None:
            return
        self._check_modes()
        if self._quiet:
            return
        p.passes += 1
        if p.passes == self._accumulate:
            self._push(slot, p)
        elif p.passes > self._accumulate:
            expected = "one backward pass" if self._accumulate == 1 else f"{self._accumulate} backward passes"
            raise Error(-errno.EALREADY, f"parameter {p.name}: its gradient was sent after {expected} and another pass "
                        "adds to it: use Server(accumulate=N), or `with server.no_sync():` for all passes of a slot but "
                        "the last one, or torch.utils.checkpoint with use_reentrant=False")

    def _check_modes(self) -> None:
        """At the first gradient of a slot: refuses a module that does not train as it did before, as after an evaluation
        that has left it in eval(). Until the first slot has computed, modules may still be put into train()."""
        if self._modes_checked:
            return
        self._modes_checked = True
        for name, part, training in self._modes:
            if part.training != training and (training or self._modes_hold):
                was, now = ("train()", "eval()") if training else ("eval()", "train()")
                raise Error(-errno.EINVAL, f"module {name or '(the whole)'}: {type(part).__name__} computes gradients in {now} "
                            f"and was in {was} before: call train() after an evaluation, or evaluate in "
                            "`with server.evaluating(slot):`. Modes cannot change in the middle of a job")
        self._modes = [(name, part, part.training) for name, part, _ in self._modes]
        self._modes_hold = True

    def _push(self, slot: Slot, p: _Parameter) -> None:
        gradient = p.parameter.grad
        assert gradient is not None
        p.parameter.grad = None
        if gradient.layout != torch.strided:
            raise Error(-errno.EINVAL, f"parameter {p.name}: its gradient is sparse, which cannot be sent: make its "
                        "module with sparse=False")
        if devices.on_host(gradient):
            slot.push(p.tensor, devices.to_host(gradient))
        else:
            self._staging.take(gradient, lambda array: slot.push(p.tensor, array))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this block add to `grad` and send nothing. A pass after it sends the sums; the end of the
        slot sends what is left."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    @contextlib.contextmanager
    def evaluating(self, slot: Slot) -> Iterator[None]:
        """`if slot.evaluate:`, and in it `with server.evaluating(slot):` to evaluate the slot's parameters. In the block the
        module is in eval() and no gradients are computed; after it, random numbers and statistics are as they were before,
        so the slot's gradient does not depend on the evaluation. Say the result with session.metric()."""
        if self._slot is not slot:
            raise Error(-errno.EINVAL, f"slot {slot.number} of step {slot.step}: evaluate inside `with slot:`")
        # Buffers that the slot has not changed so far. Restoring one counts as a change, too.
        clean = [buffer is not None and buffer._version == version for buffer, version in self._before]
        try:
            with untouched(self.module):
                yield
        finally:
            self._before = [(buffer, buffer._version if was_clean and buffer is not None else version)
                            for (buffer, version), was_clean in zip(self._before, clean)]

    # ---- slots ----

    def slots(self, dataset: Any = None, *, collate_fn: Callable[[list[Any]], Any] | None = None, workers: int = 0,
              prefetch: int | None = None) -> Iterator[Any]:
        """The session's slots. With a dataset, pairs of a slot and the batch of its records: collate_fn() of
        dataset[record] for each record (torch.utils.data.default_collate without it).

        `workers`: processes that read ahead; 0: the calling one reads each batch when its slot comes. `prefetch`: at most
        so many batches are read ahead; 2 for each process if it is not given. The batches are the same for any of them.
        Random numbers that the dataset and collate_fn draw from torch, numpy.random and random begin anew in each
        slot."""
        if dataset is None:
            if collate_fn is not None or workers or prefetch is not None:
                raise TypeError("slots: collate_fn, workers and prefetch need a dataset")
            return self._session.slots()
        if self._batches is not None:
            self._batches.close()
        self._batches = Batches(self._session, dataset, collate_fn, workers, prefetch)
        return self._batches.pairs(self._session.slots())

    def state_dict(self) -> dict[str, Any]:
        """After the last slot: a copy of the module's state, with the final values. It is what module.state_dict() has
        then, too."""
        if not self._complete:
            raise Error(-errno.EINVAL, "state_dict() has the final values after the last slot: the loop over the slots "
                        "has not come to its end")
        return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value
                for name, value in self.module.state_dict().items()}

    # ---- what the session calls ----

    early = False  # the module computes with what enter() has read

    def start(self) -> str:
        self._refuse_late_values()
        return self.arithmetic() if self._arithmetic is None else self._arithmetic

    def enter(self, slot: Slot) -> None:
        self._refuse_settings()
        self._refuse_moves()
        self._refuse_new_parameters()
        torch.clear_autocast_cache()  # it has bfloat16 copies of the parameters
        there = self._views.enter(slot)
        for p in self._parameters:
            p.read(slot, there, self._staging)
        for statistic in self._statistics:
            statistic.read(slot)
        for count, first in self._counts:
            count.fill_(first + slot.step)
        self._before = [(buffer, -1 if buffer is None else buffer._version)
                        for _, part, key in self._buffers for buffer in (part._buffers.get(key),)]
        seed_generators(slot.seed)
        devices.seed(self._device, slot.seed)
        self._modes_checked = False
        self._slot = slot

    def leave(self, slot: Slot, failed: bool) -> None:
        self._slot = None
        if failed:
            for p in self._parameters:
                p.parameter.grad = None
            return
        self._refuse_moves()
        for p in self._parameters:
            if p.parameter._version != p.version:
                raise Error(-errno.EINVAL, f"parameter {p.name} was changed in the slot: only the servers change "
                            "parameters, with the session's optimizer")
        for (name, part, key), (buffer, version) in zip(self._buffers, self._before):
            now = part._buffers.get(key)
            if now is not buffer or (now is not None and now._version != version and id(now) not in self._ours):
                raise Error(-errno.EINVAL, f"buffer {name} of a {type(part).__name__} was changed in the slot: the next "
                            "slot's gradient would depend on which worker computes it: compute it from the batch alone, "
                            "or put the module into eval()")
        for p in self._parameters:
            if p.parameter.grad is not None:
                if p.passes >= self._accumulate:
                    raise Error(-errno.EALREADY, f"parameter {p.name}: its gradient was sent, and `grad` was set again")
                self._push(slot, p)
        for statistic in self._statistics:
            statistic.push(slot)

    def complete(self) -> None:
        for p in self._parameters:
            p.end(self._staging)
        for statistic in self._statistics:
            statistic.end()
        for count, first in self._counts:
            count.fill_(first + self._session._job[STEPS])
        self._complete = True
        self.close()

    def close(self) -> None:
        """Gives the module back to the program, which may use an optimizer of its own then."""
        for remove in self._removers:
            remove()
        if self._batches is not None:
            self._batches.close()
        self._views.close()
        refusals.servers.discard(self)

    def _refuse_settings(self) -> None:
        if torch.get_num_threads() != self._threads:
            raise Error(-errno.EINVAL, f"PyTorch computes with {torch.get_num_threads()} threads now, which can change the "
                        f"bits, and the job was described with {self._threads}: use Server(threads=N)")
        if self._deterministic and not torch.are_deterministic_algorithms_enabled():
            raise Error(-errno.EINVAL, "PyTorch may use algorithms that are not deterministic now: use "
                        "Server(deterministic=False), if the job needs them")

    def _refuse_moves(self) -> None:
        for p in self._parameters:
            if p.has_moved():
                raise Error(-errno.EINVAL, f"parameter {p.name} has other memory than when it was declared: call to(), "
                            "load_state_dict(assign=True) and the like before Server()")

    def _refuse_new_parameters(self) -> None:
        there = set()
        for name, parameter in self.module.named_parameters():
            there.add(id(parameter))
            if parameter.requires_grad and id(parameter) not in self.names:
                raise Error(-errno.EINVAL, f"parameter {name} requires a gradient and was not declared: it was frozen or "
                            "not there when Server() was called")
        for number, name in self.names.items():
            if number not in there:
                raise Error(-errno.EINVAL, f"parameter {name} was declared and is not in the module any more: tie "
                            "parameters before Server()")

    def _refuse_late_values(self) -> None:
        for p in self._parameters:
            if p.parameter._version != p.version:
                raise Error(-errno.EINVAL, f"parameter {p.name} was changed between Server() and the first slot: give the "
                            "module its initial values before Server()")
        # PyTorch 1.13 does not count changes of running statistics, but each of them counts a batch.
        changed = [id(s.buffer) for s in self._statistics if s.buffer._version != s.version]
        changed += [id(count) for count, first in self._counts if int(count) != first]
        for name, part, key in self._buffers:
            if id(part._buffers.get(key)) in changed:
                raise Error(-errno.EINVAL, f"buffer {name} was changed between Server() and the first slot: compute with the "
                            "module before Server(), or in eval()")

    # ---- arithmetic ----

    def arithmetic(self) -> str:
        """Names what the bits of a gradient depend on: PyTorch, the processor, threads, and the module with what the
        servers do not know of it (frozen parameters and buffers)."""
        build = build_digest([torch.__config__.show(), str(torch.backends.mkldnn.enabled),
                              str(torch.are_deterministic_algorithms_enabled()), *devices.settings(self._device)],
                             ENVIRONMENT)
        model = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", repr(self.module)).encode())
        model.update(str([first for _, first in self._counts]).encode())
        for name, value in [*((n, p) for n, p in self.module.named_parameters() if id(p) not in self.names),
                            *((n, b) for n, b in self.module.named_buffers() if id(b) not in self._ours)]:
            model.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
            model.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return (f"torch {torch.__version__[:24]} {_vector_width()} {devices.label(self._device)} threads {self._threads} "
                f"build {build} model {model.hexdigest()[:8]}")


def _vector_width() -> str:
    """Which of its vector instructions PyTorch uses."""
    of_cpu = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", None)
    if of_cpu is not None:
        return str(of_cpu())
    found = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    return found.group(1) if found else "?"


def _with_statistics(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The normalisations that change their statistics in training."""
    return [(name, part) for name, part in module.named_modules()
            if part.training and isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None]


def _refuse_modules(module: nn.Module) -> None:
    parallel = tuple(cls for cls in (getattr(nn.parallel, "DistributedDataParallel", None), nn.DataParallel) if cls)
    for name, part in module.named_modules():
        what = f"module {name or '(the whole)'}: {type(part).__name__}"
        if isinstance(part, parallel):
            raise ValueError(f"{what} sends gradients itself: give Server() the module inside")
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and part.sparse:
            raise ValueError(f"{what} makes sparse gradients, which cannot be sent: make it with sparse=False")


def _refuse_parameters(module: nn.Module) -> None:
    spans: list[tuple[int, int, str]] = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name} has no shape yet: compute a batch with the module before Server()")
        if parameter.dtype != torch.float32:
            hint = "autocast computes in bfloat16 with float32 parameters" if parameter.dtype in (
                torch.bfloat16, torch.float16) else "convert the module with float()"
            raise ValueError(f"parameter {name} is {str(parameter.dtype)[6:]}: servers have float32 parameters: {hint}")
        if parameter.layout != torch.strided or parameter.numel() == 0:
            raise ValueError(f"parameter {name}: expected a dense tensor of 1 element or more")
        spans.append((parameter.data_ptr(), parameter.data_ptr() + 4 * parameter.numel(), name))
    if not spans:
        raise ValueError("the module has no parameter that requires a gradient")
    spans.sort()
    for (_, end, name), (start, _, other) in zip(spans, spans[1:]):
        if start < end:
            raise ValueError(f"parameters {name} and {other} share memory and are not the same Parameter: tie them by "
                             "assigning the Parameter itself")
