# SPDX-License-Identifier: Apache-2.0
"""Receives from any of several peers in Python: Context.recv_any().

usage: any_source.py
"""
import asyncio
import errno
import threading
import time

import numpy
import pytern
from pytern.transport import AnyRequest, Buffer, Context, PeerDown

from jobs import tap

LIMIT_S = 60
FABRICS = ("tcp://127.0.0.1:0", "shm://any-%d")


class Hub:
    """A context that receives from several others, all of this process."""

    def __init__(self, fabric=FABRICS[0], count=3):
        self.context = Context(name="hub", timeout=LIMIT_S)
        self.others = [Context(name=f"other {i}", timeout=LIMIT_S) for i in range(count)]
        self.channels, self.senders = [], []
        with self.context.listen(fabric % time.monotonic_ns() if "%" in fabric else fabric) as listener:
            for other in self.others:
                peer = other.connect(listener.address)
                self.channels.append(listener.accept().channel(3))
                self.senders.append(peer.wait_up().channel(3))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for context in (self.context, *self.others):
            context.close()

    def lose(self, i):
        self.others[i].close()
        self.channels[i].peer.wait_down()


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except BaseException as error:
        assert type(error) is kind and sentence in str(error), f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def the_first_tensor_is_taken_and_the_others_stay():
    for fabric in FABRICS:
        with Hub(fabric) as hub:
            for count in (3, 100_000):
                request = hub.context.recv_any(hub.channels, "x")
                assert isinstance(request, AnyRequest) and not request.done()
                hub.senders[1].send("x", numpy.full(count, 1.0))
                got = request.wait()
                assert isinstance(got, Buffer) and numpy.asarray(got).tolist() == [1.0] * count
                assert request.source is hub.channels[1]
                sent = [hub.senders[i].send("x", numpy.full(count, float(i))) for i in (0, 2)]
                into = numpy.zeros(count)
                assert hub.channels[2].recv("x", into=into).wait() is into and (into == 2).all()
                last = hub.context.recv_any(hub.channels, "x", into=into)
                assert last.wait() is into and (into == 0).all() and last.source is hub.channels[0]
                for request in sent:
                    request.wait()


def what_has_arrived_is_taken_in_the_order_of_arrival():
    with Hub() as hub:
        for i in (2, 0, 1):
            hub.senders[i].send("x", b"1").wait()
            # Another message behind it has come when its receive has ended.
            hub.senders[i].send("then", b"1")
            hub.channels[i].recv("then").wait()
        requests = [hub.context.recv_any(hub.channels, "x") for _ in range(3)]
        for request, i in zip(requests, (2, 0, 1)):
            request.wait()
            assert request.source is hub.channels[i]


def it_can_be_awaited_and_cancelled():
    async def run(hub):
        requests = [hub.context.recv_any(hub.channels, "x") for _ in range(3)]
        for sender in hub.senders:
            sender.send("x", b"1")
        await asyncio.gather(*requests)
        assert {hub.channels.index(request.source) for request in requests} == {0, 1, 2}
        request = hub.context.recv_any(hub.channels, "y")
        try:
            await asyncio.wait_for(request, 0.05)
        except asyncio.TimeoutError:
            pass
        while not request.done():
            await asyncio.sleep(0.001)
        error = refused(pytern.Error, "receive of 'y', step 0, from any: ", request.wait)
        assert error.errno == errno.ECANCELED and request.source is None

    with Hub() as hub:
        asyncio.run(run(hub))


def threads_that_receive_from_any_take_each_tensor_once():
    with Hub(count=4) as hub:
        got, count = [], 100

        def take():
            for _ in range(count):
                got.append(int(numpy.asarray(hub.context.recv_any(hub.channels, "x").wait())[0]))

        threads = [threading.Thread(target=take) for _ in hub.senders]
        for thread in threads:
            thread.start()
        for k in range(count):
            for i, sender in enumerate(hub.senders):
                sender.send("x", numpy.array([i * count + k]))
        for thread in threads:
            thread.join()
        assert sorted(got) == list(range(4 * count))


def it_goes_on_without_peers_that_are_lost_and_names_them_when_none_is_left():
    with Hub() as hub:
        request = hub.context.recv_any(hub.channels, "x")
        hub.lose(1)
        assert not request.done()
        hub.senders[2].send("x", b"1")
        request.wait()
        assert request.source is hub.channels[2]
        request = hub.context.recv_any(hub.channels, "x")
        hub.lose(2)
        assert not request.done()
        hub.lose(0)
        # Peer 1 was down already when the receive was posted. The error names it, too.
        error = refused(PeerDown, "receive of 'x', step 0, from any: no peer is left: other 0 (", request.wait)
        assert all(f"other {i} (" in str(error) for i in range(3)), error
        assert "is down: Connection reset by peer" in str(error), error
        assert error.peer.startswith("other 2 (") and request.source is hub.channels[2]
        error = refused(PeerDown, "no peer is left: other 0 (", hub.context.recv_any, hub.channels, "x")
        assert all(f"other {i} (" in str(error) for i in range(3)), error


def it_ends_with_the_first_lost_peer_if_all_are_needed():
    with Hub() as hub:
        request = hub.context.recv_any(hub.channels, "x", needs_all=True)
        hub.senders[0].peer.close()
        hub.channels[0].peer.wait_down()
        assert not request.done()
        hub.lose(1)
        error = refused(PeerDown, "receive of 'x', step 0, from any: other 1 (", request.wait)
        assert error.errno == errno.ECONNRESET and request.source is hub.channels[1]
        refused(PeerDown, "from any: other 1 (", hub.context.recv_any, hub.channels, "x", needs_all=True)
        request = hub.context.recv_any([hub.channels[0], hub.channels[2]], "x", needs_all=True)
        hub.senders[2].send("x", b"1")
        request.wait()


def what_cannot_be_is_refused():
    with Hub() as hub, Context(timeout=LIMIT_S) as other:
        far = other.connect("tcp://127.0.0.1:1").channel()
        recv_any = hub.context.recv_any
        refused(ValueError, "channels: expected one or more of this context, got []", recv_any, [], "x")
        refused(ValueError, "channels: expected one or more of this context", recv_any, [*hub.channels, far], "x")
        refused(TypeError, "`peek` has no use for `into`", recv_any, hub.channels, "x", into=bytearray(1), peek=True)
        refused(ValueError, "key: expected", recv_any, hub.channels, "")
        refused(ValueError, "step", recv_any, hub.channels, "x", -1)
        request = recv_any(hub.channels, "x")
        refused(pytern.Timeout, "from any: not within 0.01 s, with any of other 0 (tcp ", request.wait, 0.01)
        refused(pytern.Error, "has not ended", lambda: request.source)
        small = recv_any(hub.channels, "y", into=bytearray(1))
        hub.senders[1].send("y", b"12")
        assert refused(pytern.Error, "the tensor of 2 bytes, shape (2,), does not fit", small.wait).errno == errno.EMSGSIZE
        hub.channels[0].peer.close(0.0)
        refused(pytern.Error, "closed", recv_any, hub.channels, "x")
    refused(pytern.Error, "cancelled", request.wait)


tap.run([the_first_tensor_is_taken_and_the_others_stay, what_has_arrived_is_taken_in_the_order_of_arrival,
         it_can_be_awaited_and_cancelled, threads_that_receive_from_any_take_each_tensor_once,
         it_goes_on_without_peers_that_are_lost_and_names_them_when_none_is_left,
         it_ends_with_the_first_lost_peer_if_all_are_needed, what_cannot_be_is_refused])
