# SPDX-License-Identifier: Apache-2.0
"""A tensor transport for Ray (Ray Direct Transport): docs/plugins.md has a program.

    import pytern.ray
    pytern.ray.register()  # before classes of actors name the transport

    @ray.remote
    class Producer:
        @ray.method(tensor_transport="tern")
        def make(self):
            return torch.ones(1000)

The process that makes an object has a window (pytern.transport) on each of its tensors until Ray frees the object. The
address of the process, a secret and the descriptors of the windows travel with Ray's own metadata of the object. A process
that needs the object connects and gets the tensors, while the program of the first one does what it likes.

Ray calls a transport on several threads of a process: where tasks run, on one that receives and frees, and on one that
aborts. All transports of a process share its Endpoint.
"""
import atexit
import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import socket
import stat
import sys
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import ray

from . import _native, _settings
from ._errors import Error, Timeout
from .session import WAIT_S
from .transport import Context, Peer, PeerDown, Window

try:
    from ray._private.ray_constants import RDT_FETCH_FAIL_TIMEOUT_SECONDS
    from ray.exceptions import RayDirectTransportError
    from ray.experimental.rdt import util
    from ray.experimental.rdt.tensor_transport_manager import (CommunicatorMetadata, FetchRequest, TensorTransportManager,
                                                               TensorTransportMetadata)
except ImportError as error:
    raise ImportError(f"pytern.ray was made for Ray 2.60, and Ray {ray.__version__} differs: {error}") from None

__all__ = ["TernTransport", "register"]
# Ray gives a transfer up after its own time limit, in a line without a name. This one comes before it.
LIMIT_S = 0.9 * RDT_FETCH_FAIL_TIMEOUT_SECONDS
END_S = 1.0  # longest wait for the end of requests that were cancelled, and of windows that are closed
UPKEEP_S = 1.0
ABORTED_MAX = 1024
ALIGNMENT = 64  # of memory that JAX uses without a copy


# ---- the tensors of a library ----

class _Torch:
    """Tensors of PyTorch."""

    @staticmethod
    def device(tensor: Any) -> str:
        return str(tensor.device.type)

    @staticmethod
    def meta(tensor: Any) -> tuple[Any, Any]:
        return tensor.shape, tensor.dtype

    @staticmethod
    def memory(tensor: Any) -> Any:
        """The bytes of the tensor."""
        import torch
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise ValueError("it is not contiguous: return tensor.contiguous()")
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("it is a lazy conjugate: return tensor.resolve_conj().resolve_neg()")
        return tensor.detach().reshape(-1).view(torch.uint8)

    @classmethod
    def room(cls, shape: Any, dtype: Any) -> tuple[Any, Any]:
        """A new tensor, and its bytes."""
        import torch
        tensor = torch.empty(shape, dtype=dtype)
        return tensor, cls.memory(tensor)

    @staticmethod
    def finish(tensor: Any) -> Any:
        return tensor


class _NumPy:
    """Arrays of NumPy."""

    @staticmethod
    def device(array: Any) -> str:
        return "cpu"

    @staticmethod
    def meta(array: Any) -> tuple[Any, Any]:
        return array.shape, array.dtype

    @staticmethod
    def memory(array: Any) -> Any:
        if not array.flags.c_contiguous:
            raise ValueError("it is not contiguous: return numpy.ascontiguousarray(array)")
        if array.dtype.hasobject:
            raise ValueError("it has Python objects, not numbers")
        return array.reshape(-1).view(numpy.uint8)

    @classmethod
    def room(cls, shape: Any, dtype: Any) -> tuple[Any, Any]:
        array = numpy.empty(shape, dtype)
        return array, cls.memory(array)

    @staticmethod
    def finish(array: Any) -> Any:
        return array


class _Jax:
    """Arrays of JAX, which are never written to: they are received into memory of NumPy."""

    @staticmethod
    def device(array: Any) -> str:
        devices = array.devices()
        if len(devices) != 1:
            raise ValueError(f"it is on {len(devices)} devices: only arrays of one device are sent")
        return str(next(iter(devices)).platform)

    @staticmethod
    def meta(array: Any) -> tuple[Any, Any]:
        return array.shape, array.dtype

    @staticmethod
    def memory(array: Any) -> Any:
        return _NumPy.memory(numpy.asarray(array))

    @staticmethod
    def room(shape: Any, dtype: Any) -> tuple[Any, Any]:
        size = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
        room = numpy.empty(size + ALIGNMENT, numpy.uint8)
        start = -room.ctypes.data % ALIGNMENT
        memory = room[start:start + size]
        return memory.view(dtype).reshape(shape), memory

    @staticmethod
    def finish(array: Any) -> Any:
        import jax
        return jax.device_put(array, jax.local_devices(backend="cpu")[0], may_alias=True)


_LIBRARIES: dict[str, Any] = {"torch": _Torch, "numpy": _NumPy, "jax": _Jax, "jaxlib": _Jax}


def _library(kind: type) -> str:
    for base in kind.__mro__:
        name = base.__module__.split(".")[0]
        if name in _LIBRARIES:
            return name
    raise TypeError(f"expected a tensor of PyTorch, or an array of NumPy or JAX, got {kind.__module__}.{kind.__name__}")


# ---- this process among the others ----

@dataclass(frozen=True)
class Source:
    """How to reach a process that has made objects."""
    address: str
    secret: str = field(repr=False)
    name: str


def _who() -> str:
    """What messages call this process."""
    context = ray.get_runtime_context()
    actor, place = context.get_actor_id(), f"pid {os.getpid()} on {socket.gethostname()}"
    if actor is None:
        return place
    name = context.get_actor_name()
    return f"actor {name} {actor} ({place})" if name else f"actor {actor} ({place})"


def _proof(secret: str) -> str:
    """What both ends of a connection must know: the secret of the metadata, and that of TERN_SECRET_FILE, if it is set."""
    path = os.environ.get("TERN_SECRET_FILE")
    if not path:
        return secret
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"TERN_SECRET_FILE={path}: expected a regular file, since every process of Ray reads it")
    return hmac.new(Path(path).read_bytes().rstrip(b"\r\n"), secret.encode(), hashlib.sha256).hexdigest()


class Link:
    """The connection to a process that has made objects. `cut`: why this end has closed it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.cut: str | None = None
        self.told = False


class Endpoint:
    """The context of this process, the processes that it gets from, and those that get from it."""

    def __init__(self) -> None:
        self.name = _who()
        secret = secrets.token_hex(16)
        self.context = Context(name=f"{socket.gethostname()}, pid {os.getpid()}", dead_timeout=_settings.dead_s())
        place = f"{_settings.fabrics()}://{_settings.own_address(ray.util.get_node_ip_address)}:0"
        self._listener = self.context.listen(place, secret=_proof(secret))
        self.source = Source(self._listener.address, secret, self.name)
        self._lock = threading.RLock()  # protects _links; a Fetch that is collected may take it again
        self._links: dict[Source, Link] = {}
        self._guests: list[Peer] = []
        threading.Thread(target=self._upkeep, name="tern-ray", daemon=True).start()
        atexit.register(self.context.close)

    def _upkeep(self) -> None:
        """Takes the peers that have connected, and lets those go that are gone. What a peer does with windows does not wait
        for this."""
        while not self.context._closed:
            time.sleep(UPKEEP_S)
            with contextlib.suppress(Error):  # the context is closed
                while (guest := self._listener._look()) is not None:
                    self._guests.append(guest)
                self._guests = [guest for guest in self._guests if not guest.is_down]
                with self._lock:
                    self._links = {source: link for source, link in self._links.items() if not link.peer.is_down}
                self.context._collect()

    def link(self, source: Source) -> Link:
        """The connection to a process. A new one may not be up yet."""
        with self._lock:
            link = self._links.get(source)
            if link is None or link.cut or link.peer.is_down:
                link = self._links[source] = Link(self.context.connect(source.address, secret=_proof(source.secret)))
            return link

    def cut(self, link: Link, why: str) -> None:
        """Closes a connection at once, so that nothing is written to the memory of its gets any more."""
        with self._lock:
            if link.cut:
                return
            link.cut = why
            self._links = {source: other for source, other in self._links.items() if other is not link}
        link.peer.close(0.0)

    def close_windows(self, windows: Sequence[Window]) -> None:
        """A window whose peer does not answer stays a while longer, with its memory, until that peer is cut off."""
        closings = [window._close(None) for window in windows]
        deadline = time.monotonic() + END_S
        for closing in closings:
            while closing is not None and not closing.done() and time.monotonic() < deadline:
                _native.Request.wait(closing, WAIT_S)


_endpoint: Endpoint | None = None
_endpoint_lock = threading.RLock()  # protects _endpoint


def endpoint() -> Endpoint:
    """The Endpoint of this process, made at its first use: an owner that only passes references on needs none."""
    global _endpoint
    with _endpoint_lock:
        if _endpoint is None:
            _endpoint = Endpoint()
        return _endpoint


# ---- what Ray passes on ----

@dataclass
class Metadata(TensorTransportMetadata):
    """An object's metadata. `windows`: the descriptor of each tensor's window; b"" for a tensor without bytes."""
    source: Source | None = None
    windows: list[bytes] = field(default_factory=list)
    library: str = ""


@dataclass
class Transfer(CommunicatorMetadata):
    """Tells the transfers of an object apart, so that aborting the first one leaves the second one alone."""
    number: str = ""


class Fetch(FetchRequest):
    """The gets of an object's tensors. Memory is not written to any more when it has ended, however it has ended."""

    def __init__(self, obj_id: str, metadata: Metadata, targets: Sequence[Any] | None) -> None:
        super().__init__(obj_id, [])
        self._source: Any = metadata.source
        self._library: Any = _LIBRARIES[metadata.library] if metadata.library else None
        self._windows = metadata.windows
        if targets:
            self._rooms = [(target, self._library.memory(target)) for target in targets]
        else:
            self._rooms = [self._library.room(shape, dtype) for shape, dtype in metadata.tensor_meta]
        self._due = time.monotonic() + LIMIT_S
        self._link: Link | None = None
        self._remotes: list[Any] = []
        self._gets: list[Any] = []
        self._aborted = self._over = False
        self._error: Exception | None = None

    def __del__(self) -> None:
        if hasattr(self, "_over"):
            self._end("it is not needed any more")

    def start(self) -> None:
        if not any(self._windows) or self._source is None:
            return
        here = endpoint()
        try:
            self._link = here.link(self._source)
            for window, (_, memory) in zip(self._windows, self._rooms):
                if window:
                    remote = self._link.peer.open(window)
                    self._remotes.append(remote)
                    self._gets.append(remote.get(memory))
        except Error as error:
            raise self._fail(self._cause(error)) from None

    def abort(self) -> None:
        """May be called on any thread. wait() ends then."""
        self._aborted = True
        for get in list(self._gets):
            get.cancel()

    def wait(self, timeout: float) -> list[Any]:
        """Returns the tensors. `timeout`: in seconds; below 0: only the limit of all transfers."""
        due = self._due if timeout < 0 else min(self._due, time.monotonic() + timeout)
        if self._error is not None:
            raise self._error
        if not self._over:
            for get in self._gets:
                self._wait_for(get, due)
            self._end("")
            if self._link is not None and not self._link.told and _settings.tells_connections():
                self._link.told = True
                print(f"tern: {endpoint().name} gets from {self._source.name}, by {self._link.peer.fabric}", file=sys.stderr)
            self.tensors = [self._library.finish(tensor) for tensor, _ in self._rooms]
        return self.tensors

    def _wait_for(self, get: Any, due: float) -> None:
        while True:
            if self._aborted:
                raise self._fail("Ray has aborted the transfer")
            left = due - time.monotonic()
            try:
                get.wait(max(0.0, min(WAIT_S, left)))
                return
            except Timeout:
                if left > 0:
                    continue
            except Error as error:
                if not self._aborted:
                    raise self._fail(self._cause(error)) from None
                continue
            silent = ", and that process does not answer" if self._is_silent() else ""
            if due >= self._due:
                raise self._fail(f"not within {LIMIT_S:.3g} s{silent}")
            why = self._fail(f"not within the time that ray.get() was given{silent}")
            raise TimeoutError(str(why))

    def _is_silent(self) -> bool:
        with contextlib.suppress(Error):  # the peer is closed
            return self._link is None or not self._link.peer.is_up or self._link.peer.is_suspect
        return True

    def _cause(self, error: Error) -> str:
        if error.errno == errno.ESTALE:
            return f"{error}: Ray has freed the object, or its process has started again"
        if self._link is not None and self._link.cut:
            return f"the connection was cut: {self._link.cut}"
        if isinstance(error, PeerDown) and error.errno in (errno.ECONNREFUSED, errno.EACCES):
            return (f"{error}: the process that made the object has ended or started again, or has another "
                    "TERN_SECRET_FILE")
        return str(error)

    def _fail(self, cause: str) -> Exception:
        self._end(cause)
        self._error = RayDirectTransportError(f"tern: object {self.obj_id} of {self._source.name}: {cause}")
        return self._error

    def _end(self, why: str) -> None:
        """Cancels what is under way, and returns when nothing is. A process that does not answer has its connection cut."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(Error):  # the context is closed
            running = [get for get in self._gets if not get.done()]
            for get in running:
                get.cancel()
            deadline = time.monotonic() + END_S
            for get in running:
                with contextlib.suppress(Error):  # the reason is known
                    get.wait(max(0.0, deadline - time.monotonic()))
            if self._link is not None and any(not get.done() for get in running):
                endpoint().cut(self._link, f"a transfer of object {self.obj_id} has not ended ({why})")
                for get in running:
                    with contextlib.suppress(Error):
                        get.wait(END_S)
            for remote in self._remotes:
                with contextlib.suppress(Error):  # its peer is gone
                    remote.close()
        self._gets, self._remotes = [], []


# ---- what Ray calls ----

class TernTransport(TensorTransportManager):
    """The transport, in each process once for each name of register()."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # protects what follows
        self._objects: dict[str, tuple[Metadata, list[Window]]] = {}
        self._fetches: "weakref.WeakValueDictionary[str, Fetch]" = weakref.WeakValueDictionary()
        self._aborted: "OrderedDict[str, None]" = OrderedDict()  # transfers that were aborted before they began

    def tensor_transport_backend(self) -> str:
        return "TERN"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Ray has registered the transport on the actor, which fails there if it lacks pytern."""
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        with self._lock:
            if obj_id not in self._objects:  # it is there if Ray repeats a task
                self._objects[obj_id] = self._describe(rdt_object)
            return self._objects[obj_id][0]

    def _describe(self, tensors: list[Any]) -> tuple[Metadata, list[Window]]:
        if not tensors:
            return Metadata([], None), []
        here, metadata, windows = endpoint(), Metadata([], "cpu"), []
        metadata.source = here.source
        for place, tensor in enumerate(tensors):
            try:
                metadata.library = _library(type(tensor))
                library = _LIBRARIES[metadata.library]
                device = library.device(tensor)
                if device != "cpu":
                    raise ValueError(f"it is on the device {device}, and this transport has host memory only: return "
                                     "it as a tensor of the CPU")
                memory = library.memory(tensor)
                window = here.context.window(memory) if len(memory) else None
            except (Error, TypeError, ValueError) as error:
                raise ValueError(f"tern: tensor {place} of {len(tensors)}: {error}") from None
            metadata.tensor_meta.append(library.meta(tensor))
            metadata.windows.append(window.describe() if window else b"")
            if window:
                windows.append(window)
        return metadata, windows

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: str | None = None) -> Transfer:
        return Transfer(uuid.uuid4().hex)

    def fetch_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                               target_buffers: list[Any] | None = None) -> Fetch:
        fetch = Fetch(obj_id, tensor_transport_metadata, target_buffers)
        number = communicator_metadata.number
        with self._lock:
            if self._aborted.pop(number, self) is None:
                raise fetch._fail("Ray has aborted the transfer")
            self._fetches[number] = fetch
        fetch.start()
        return fetch

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> list[Any]:
        return fetch_request.wait(timeout)

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                              target_buffers: list[Any] | None = None) -> list[Any]:
        return self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers).wait(-1)

    def send_multiple_tensors(self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("tern: receivers get; nothing is sent")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        with self._lock:
            _, windows = self._objects.pop(obj_id, (None, []))
        if windows:
            endpoint().close_windows(windows)

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        number = communicator_metadata.number
        with self._lock:
            fetch = self._fetches.get(number)
            if fetch is None:
                self._aborted[number] = None
                if len(self._aborted) > ABORTED_MAX:
                    self._aborted.popitem(last=False)
                return
        fetch.abort()


def register(name: str = "tern", data_type: type | None = None) -> None:
    """Makes the transport known to Ray in this process, and in the actors that it creates from now on. `data_type`: the
    type that is moved: torch.Tensor (None), numpy.ndarray, or jax.Array. An object has the tensors of one type only.
    Calling it again does nothing."""
    if data_type is None:
        import torch
        data_type = torch.Tensor
    if _library(data_type) == "jax":
        from jax._src.array import ArrayImpl
        data_type = ArrayImpl  # Ray knows objects by their very type, which is this one
    known = util.transport_manager_info.get(name.upper())
    if known is None:
        util.register_tensor_transport(name, ["cpu"], TernTransport, data_type)
    elif known.transport_manager_class is not TernTransport or known.data_type is not data_type:
        raise ValueError(f"register: name: Ray has another transport {name!r}: choose another name")
