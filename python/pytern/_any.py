# SPDX-License-Identifier: Apache-2.0
"""Receives from any of several peers: Context.recv_any(). transport.py has the classes that they need."""
import contextlib
import errno
from typing import Any, Sequence

from ._errors import Error
from .rules import _integer
from .transport import Channel, Context, PeerDown, Request, _key


class AnyRequest(Request):
    """A receive from any of several peers."""

    def __init__(self, channels: Sequence[Channel], what: str, into: Any = None) -> None:
        self._context, self._channels = channels[0].peer._context, channels
        self._given = channels  # recv_any() adds those whose peers were down when the request was posted
        self._what, self._into = what, into
        self._futures = []

    @property
    def source(self) -> Channel | None:
        """After the end: the channel whose tensor was received, or whose peer's end has ended the request; None: neither,
        since it was cancelled."""
        source = self.origin()
        return None if source < 0 else self._channels[source]

    def _with(self) -> str:
        return f"any of {', '.join(channel.peer.name for channel in self._channels)}"

    def _failure(self, status: int, dims: tuple[int, ...], size: int) -> Error:
        source = self.source
        if source is None:
            return Error(status, f"{self._what}: {self._cause(status, dims, size)}")
        self._peer = source.peer
        with contextlib.suppress(Error):  # of a peer that is closed here
            lost = [channel.peer for channel in self._given if channel.peer.is_down]
            if len(lost) > 1 and len(lost) == len(self._given):
                return _none_left(self._what, lost, source.peer)
        return super()._failure(status, dims, size)


def _none_left(what: str, lost: list[Any], first: Any) -> PeerDown:
    down = [peer._down("", peer._native.state()[3]) for peer in lost]
    cause = down[lost.index(first)]
    return PeerDown(cause.status, f"{what}: no peer is left: {'; '.join(map(str, down))}", cause.peer)


def _those_up(what: str, channels: Sequence[Channel], needs_all: bool) -> list[Channel]:
    """The channels whose peers are not down. PeerDown if there are none, or one has failed and all are needed."""
    lost = [channel.peer for channel in channels if channel.peer.is_down]
    for peer in lost:
        status = peer._native.state()[3]
        if needs_all and status not in (0, -errno.ESHUTDOWN):
            raise peer._down(f"{what}: ", status)
    if len(lost) == len(channels):
        raise _none_left(what, lost, lost[0])
    return [channel for channel in channels if channel.peer not in lost]


def recv_any(context: Context, channels: Sequence[Channel], key: str | int, step: int, into: Any, peek: bool,
             needs_all: bool) -> AnyRequest:
    if peek and into is not None:
        raise TypeError("recv_any: `peek` has no use for `into`")
    if not channels or any(channel.peer._context is not context for channel in channels):
        raise ValueError(f"channels: expected one or more of this context, got {channels!r}")
    number, name = _key(key)
    step = _integer("step", step, 0, 64)
    what = f"receive of {key!r}, step {step}, from any"
    memory = None if into is None else context._wrap(into, writable=True)
    context._collect()
    while True:
        up = _those_up(what, channels, needs_all)
        request = AnyRequest(up, what, into)
        request._given = channels
        try:
            context._native.recv_any(request, tuple(channel._native for channel in up), number, step, memory, name, peek,
                                     needs_all)
            return request
        except Error as error:
            if not any(channel.peer.is_down for channel in up):
                raise Error(error.status, f"{what}: {error}") from None
