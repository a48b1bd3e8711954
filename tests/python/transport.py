# SPDX-License-Identifier: Apache-2.0
"""Tensors between processes from Python: pytern.transport.

usage: transport.py
       transport.py ACT ADDRESS: what another process does (serve(), below)
"""
import asyncio
import errno
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import pytern
from pytern import transport
from pytern.transport import Buffer, Context, PeerDown

from jobs import HERE, Process, close_while_used, tap

LIMIT_S = 60
FABRICS = ("tcp://127.0.0.1:0", "shm://test-%d")
DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?")


# ---- the other process ----

def serve(act, address):
    """Connects, says hello, and does something."""
    context = Context(name="other", timeout=LIMIT_S)
    channel = context.connect(address).channel()
    channel.send("hello", numpy.array([os.getpid()])).wait()
    if act == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif act == "send":
        channel.send("big", numpy.ones(3 << 20, "f4"), step=7).wait()
        channel.peer.close()
    elif act == "leave":
        channel.peer.close()
    else:
        time.sleep(LIMIT_S)


# ---- the tests ----

class Pair:
    """Two contexts of this process that are connected."""

    def __init__(self, fabric=FABRICS[0], **options):
        self.one, self.two = (Context(name=name, timeout=LIMIT_S, **options) for name in ("one", "two"))
        with self.one.listen(fabric % time.monotonic_ns() if "%" in fabric else fabric) as listener:
            of_two = self.two.connect(listener.address)
            of_one = listener.accept()
        of_two.wait_up()
        self.peers = of_one, of_two
        self.sender, self.receiver = of_one.channel(3), of_two.channel(3)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.two.close()
        self.one.close()


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except BaseException as error:
        assert type(error) is kind and sentence in str(error), f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def move(pair, value, key="x", step=0, **options):
    got = pair.receiver.recv(key, step, **options)
    pair.sender.send(key, value, step).wait()
    return got.wait()


def arrays_of_all_types_arrive_with_their_shapes():
    rng = numpy.random.default_rng(1)
    for fabric in FABRICS:
        with Pair(fabric) as pair:
            for step, name in enumerate(DTYPES):
                for shape in ((), (0, 3), (5,), (2, 3, 4), (300, 400), (1,) * 8):
                    sent = (rng.random(shape) * 100).astype(name)
                    got = move(pair, sent, "array" + str(shape), step)
                    assert isinstance(got, Buffer) and got.shape == shape and not got.readonly
                    back = numpy.asarray(got)
                    assert back.dtype == (sent.dtype if name != "?" else "u1") and back.shape == shape and (back == sent).all(), (name, shape)
                    # Elements of bool travel as bytes.
                    assert got.dtype == (numpy.dtype(name).name if name != "?" else "uint8")


def what_is_received_into_an_array_is_there():
    for fabric in FABRICS:
        with Pair(fabric) as pair:
            for count in (1, 1000, 1 << 20):
                into = numpy.zeros(count, "f4")
                assert move(pair, numpy.arange(count, dtype="f4"), into=into) is into
                assert (into == numpy.arange(count)).all()
            room = bytearray(8)
            assert move(pair, b"12345678", into=room) is room and room == b"12345678"
            buffer = pair.two.empty((2, 2), numpy.int64)
            assert move(pair, numpy.array([[1, 2], [3, 4]]), into=buffer) is buffer
            assert numpy.asarray(buffer).tolist() == [[1, 2], [3, 4]]


def one_that_is_too_large_is_refused_at_both_ends():
    with Pair() as pair:
        got = pair.receiver.recv("big", into=numpy.zeros(10, "f4"))
        sent = pair.sender.send("big", numpy.zeros((1000, 1000)))
        error = refused(pytern.Error, "receive of 'big', step 0: the tensor of 8000000 bytes, shape (1000, 1000), does not fit",
                        got.wait)
        assert error.errno == errno.EMSGSIZE
        assert refused(pytern.Error, "send of 'big', step 0: ", sent.wait).errno == errno.EMSGSIZE
        assert move(pair, b"goes on").shape == (7,)


def buffers_are_read_in_place_on_one_host():
    with Pair(FABRICS[1]) as pair:
        buffer = pair.one.empty((1000, 1000), "float64")
        numpy.asarray(buffer)[...] = numpy.arange(1000)
        got = pair.receiver.recv("peek", peek=True)
        sent = pair.sender.send("peek", buffer)
        here = numpy.asarray(got.wait())
        assert not here.flags.writeable and (here[500] == numpy.arange(1000)).all()
        assert pair.peers[1].stats["peek"] == 1 and not sent.done()
        del got
        gc.collect()
        assert not sent.done()  # the array is still there
        del here
        gc.collect()
        sent.wait()


def torch_and_other_libraries_exchange_tensors_by_dlpack():
    try:
        import torch
    except ImportError:
        print("# torch is not here: DLPack is tested with NumPy alone")
        torch = None
    with Pair() as pair:
        back = numpy.from_dlpack(move(pair, numpy.arange(6).reshape(2, 3)))
        assert back.tolist() == [[0, 1, 2], [3, 4, 5]]
        if torch is None:
            return
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
            sent = torch.arange(4000).reshape(40, 100).to(dtype)
            got = torch.from_dlpack(move(pair, sent))
            assert got.dtype == dtype and torch.equal(got, sent)
            got += 1  # it can be written to
            into = torch.zeros(40, 100, dtype=dtype)
            move(pair, sent, into=into)
            assert torch.equal(into, sent)
        refused(ValueError, "the tensor is not contiguous", pair.sender.send, "t", torch.zeros(3, 4).t())
        assert move(pair, pair.one.empty((3,), "bfloat16")).dtype == "bfloat16"


def memory_comes_back():
    for fabric in FABRICS:
        with Pair(fabric, slab_bytes=8 << 20, pool_bytes=8 << 20) as pair:
            for step in range(300):
                move(pair, numpy.full(1 << 19, step, "f4"), step=step, peek=bool(step & 1))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for step in range(300, 3000):
                move(pair, numpy.full(1000, step, "f4"), step=step)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (8 << 10)
            assert pair.one._native.posted() == pair.two._native.posted() == 0


def the_context_stays_for_what_was_received():
    with Pair() as pair:
        array = numpy.asarray(move(pair, numpy.arange(1 << 20)))
    del pair
    gc.collect()
    assert (array == numpy.arange(1 << 20)).all()


def many_threads_use_one_context():
    with Pair(FABRICS[1]) as pair:
        failed = []

        def work(number):
            try:
                for step in range(100):
                    got = move(pair, numpy.full(100 + number, step), f"thread {number}", step)
                    assert (numpy.asarray(got) == step).all() and got.shape == (100 + number,)
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work, args=[i]) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed


def requests_can_be_awaited():
    async def run():
        context, other = Context(name="waits"), Context(name="other")
        listener = context.listen()
        peer = other.connect(listener.address)
        of_context = await listener.accept_async()
        await peer.up()
        got = [of_context.channel().recv("k", step) for step in range(50)]
        for step in range(50):
            await peer.channel().send("k", numpy.array([step]), step)
        for step, one in enumerate(await asyncio.gather(*got)):
            assert numpy.asarray(one)[0] == step
        never = of_context.channel().recv("never")
        try:
            await asyncio.wait_for(never, 0.05)
            raise AssertionError("it has ended")
        except asyncio.TimeoutError:
            pass
        assert refused(pytern.Error, "receive of 'never', step 0: cancelled", never.wait, 10).errno == errno.ECANCELED
        lost = asyncio.ensure_future(_of(of_context.channel().recv("lost")))
        await asyncio.sleep(0)
        other.close()
        await of_context.down()
        try:
            await lost
            raise AssertionError("it has ended")
        except PeerDown as error:
            assert error.peer.startswith("other (tcp "), error
        context.close()
    asyncio.run(run())

    context = Context(connect_timeout=0.2)

    async def use():
        await asyncio.wait_for(context.connect("tcp://127.0.0.1:9").down(), LIMIT_S)
    asyncio.run(use())
    asyncio.run(use())  # the first loop is closed


async def _of(request):
    return await request


def what_is_awaited_hears_of_every_end():
    async def run():
        context, other = Context(), Context()
        listener = context.listen()
        peer = other.connect(listener.address)
        of_context = await listener.accept_async()
        got = of_context.channel().recv("twice")
        both = asyncio.gather(_of(got), _of(got))
        await asyncio.sleep(0)
        peer.channel().send("twice", b"1")
        assert [one.shape for one in await asyncio.wait_for(both, LIMIT_S)] == [(1,), (1,)]
        for ended in (listener.accept_async(), of_context.down()):
            task = asyncio.ensure_future(ended)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not context._changed
        waiting = asyncio.ensure_future(listener.accept_async())
        await asyncio.sleep(0)
        listener.close()
        assert "closed" in str((await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), LIMIT_S))[0])
        waiting = asyncio.ensure_future(of_context.down())
        await asyncio.sleep(0)
        await peer.close_async()
        await asyncio.wait_for(waiting, LIMIT_S)
        waiting = asyncio.ensure_future(context.listen().accept_async())
        await asyncio.sleep(0)
        context.close()
        assert "closed" in str((await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), LIMIT_S))[0])
        other.close()
    asyncio.run(run())


def a_wait_ends_in_time_while_other_requests_end():
    with Pair() as pair:
        stop = threading.Event()

        def work():
            step = 0
            while not stop.is_set():
                move(pair, b"1", "busy", step)
                step += 1
        thread = threading.Thread(target=work)
        thread.start()
        begin = time.monotonic()
        refused(pytern.Timeout, "not within 0.3 s", pair.receiver.recv("never").wait, 0.3)
        took = time.monotonic() - begin
        stop.set()
        thread.join()
        assert took < LIMIT_S / 2, took


def what_was_read_in_place_is_neither_sent_nor_received_into():
    with Pair(FABRICS[1]) as pair:
        buffer = pair.one.empty((1000, 1000))
        got = pair.receiver.recv("peek", peek=True)
        sent = pair.sender.send("peek", buffer)
        here = got.wait()
        refused(ValueError, "cannot be written to", pair.receiver.recv, "x", into=here)
        refused(ValueError, "read in place: copy it to send it", pair.receiver.send, "x", here)
        refused(ValueError, "cannot be written to", pair.receiver.recv, "x", into=pair.two.wrap(b"12345678"))
        del got, here
        sent.wait()


def contexts_may_be_closed_while_others_drop_their_objects():
    for _ in range(30):
        pair = Pair()
        things = [[pair.two.connect(pair.one.listen().address) for _ in range(10)], [pair.one.listen() for _ in range(10)]]
        threads = [threading.Thread(target=list.clear, args=[some]) for some in things]
        threads.append(threading.Thread(target=pair.two.close))
        for thread in threads:
            thread.start()
        pair.one.close()
        for thread in threads:
            thread.join()


def a_listener_may_be_closed_while_others_use_it():
    with Context() as context:
        for _ in range(300):
            listener = context.listen()
            close_while_used(listener, lambda: listener.address, lambda: listener._native.accept())


def a_listener_at_all_addresses_lists_them():
    with Context(timeout=LIMIT_S) as one, Context(timeout=LIMIT_S) as two:
        with one.listen("tcp://0.0.0.0:0") as listener:
            found = listener.addresses
            assert found and all(address.rsplit(":", 1)[1] == listener.address.rsplit(":", 1)[1] for address in found)
            for address in found:
                assert "0.0.0.0" not in address, address
                two.connect(address).wait_up()
                listener.accept()
        with one.listen() as listener:
            assert listener.addresses == [listener.address]
        refused(pytern.Error, "the listener is closed", lambda: listener.addresses)


def a_dead_peer_is_an_exception_with_its_name_and_the_cause():
    for fabric in FABRICS:
        with Context(timeout=LIMIT_S) as context, \
                context.listen(fabric % time.monotonic_ns() if "%" in fabric else fabric) as listener:
            process = subprocess.Popen([sys.executable, __file__, "wait", listener.address])
            channel = listener.accept().channel()
            assert numpy.asarray(channel.recv("hello").wait())[0] == process.pid
            got = channel.recv("more")
            process.kill()
            process.wait()
            error = refused(PeerDown, "receive of 'more', step 0: other (", got.wait)
            assert " is down: " in str(error) and "orderly" not in str(error), error
            refused(PeerDown, "send of 3, step 4: other (", channel.send, 3, b"late", 4)
            assert channel.peer.is_down and not channel.peer.is_up
            process = subprocess.Popen([sys.executable, __file__, "leave", listener.address])
            channel = listener.accept().channel()
            got = channel.recv("more")
            channel.recv("hello").wait()
            refused(PeerDown, "it was closed in an orderly way", got.wait)
            assert process.wait() == 0


def a_peer_that_stands_still_is_given_up_after_dead_timeout():
    with Context(timeout=LIMIT_S, dead_timeout=0.5) as context, context.listen() as listener:
        process = subprocess.Popen([sys.executable, __file__, "hang", listener.address])
        channel = listener.accept().channel()
        channel.recv("hello").wait()
        refused(PeerDown, "is down: ", channel.recv("more").wait)
        process.kill()
        process.wait()


def tensors_of_another_process_arrive_whole():
    with Context(timeout=LIMIT_S) as context, context.listen() as listener:
        process = subprocess.Popen([sys.executable, __file__, "send", listener.address])
        channel = listener.accept().channel()
        channel.recv("hello").wait()
        array = numpy.asarray(channel.recv("big", 7).wait())
        assert array.shape == (3 << 20,) and (array == 1).all()
        channel.peer.wait_down()
        assert process.wait() == 0


def nobody_connects_without_the_secret():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "secret"
        file.write_text("a secret of some length")
        file.chmod(0o600)
        with Context(secret_file=file) as one, one.listen() as listener:
            with Context() as two:
                refused(PeerDown, "refused: another secret, or no permission", two.connect(listener.address).wait_up, LIMIT_S)
            with Context(secret="a secret of some length") as two:
                assert two.connect(listener.address).wait_up(LIMIT_S).fabric == "tcp"


def what_cannot_be_is_refused():
    with Pair() as pair:
        channel = pair.sender
        refused(TypeError, "no tensor has elements of the format", channel.send, "x", numpy.zeros(3, complex))
        refused(TypeError, "bytes-like object is required", channel.send, "x", 3.5)
        refused(ValueError, "not C-contiguous", channel.send, "x", numpy.zeros((4, 4)).T)
        refused(BufferError, "not writable", channel.recv, "x", into=b"12345678")
        refused(TypeError, "`peek` has no use for `into`", channel.recv, "x", into=bytearray(3), peek=True)
        refused(ValueError, "key: expected 1 to 255 bytes", channel.send, "", b"1")
        refused(ValueError, "key: expected an integer from 0", channel.send, -1, b"1")
        refused(TypeError, "key: expected an integer, got NoneType", channel.send, None, b"1")
        refused(ValueError, "step: expected an integer from 0", channel.send, "x", b"1", -1)
        refused(ValueError, "dtype: expected one of uint8, ", pair.one.empty, 3, "i8")
        refused(ValueError, "shape: expected at most 8 dimensions", pair.one.empty, (1,) * 9)
        refused(pytern.Error, "no tensor has this shape", pair.one.empty, (1 << 61, 8))
        refused(pytern.Error, "larger than a slab", pair.one.empty, 1 << 30)
        refused(ValueError, "memory is of another context", channel.send, "x", pair.two.empty(3))
        refused(pytern.Error, "cannot listen at carrier://pigeon: ", pair.one.listen, "carrier://pigeon")
        refused(pytern.Error, "cannot connect to tcp://x: ", pair.one.connect, "tcp://x")
        refused(pytern.Timeout, "receive of 'x', step 0: not within 0.01 s, with two (tcp ", channel.recv("x").wait, 0.01)
        refused(pytern.Timeout, "a peer at tcp://", pair.one.listen().accept, 0.01)
        request = transport.Request(channel, "receive of nothing")
        refused(pytern.Error, "the request was not posted", request.result)
        refused(pytern.Error, "the request was not posted", request.cancel)
        posted = channel.recv("y")
        refused(pytern.Error, "posted before", channel._native.recv, posted, 1, 1, None, None, False)
        refused(pytern.Error, "has not ended", posted.take)
        posted.cancel()
        refused(pytern.Error, "cancelled", posted.wait)
        posted.cancel()
    refused(pytern.Error, "closed", channel.send, "x", b"1")
    refused(pytern.Error, "the context is closed", pair.one.empty, 3)
    refused(pytern.Error, "the context is closed", pair.one.listen)


def an_interrupt_ends_a_wait():
    with Pair() as pair:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        refused(KeyboardInterrupt, "", pair.receiver.recv("never").wait)


def a_forked_child_has_no_connections():
    with Pair() as pair:
        got = pair.receiver.recv("x")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                refused(pytern.Error, "a forked process cannot use its parent's context", pair.sender.send, "x", b"1")
                refused(pytern.Error, "a forked process cannot use its parent's context", pair.one.listen)
                with Context(timeout=LIMIT_S) as own, own.listen() as listener:
                    own.connect(listener.address).wait_up()
                code = 0
            finally:
                pair.one.close()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        pair.sender.send("x", b"1").wait()
        assert bytes(memoryview(got.wait())) == b"1"


def the_example_of_the_page_runs():
    swap = HERE.parents[1] / "docs" / "examples" / "swap.py"
    one = Process(sys.executable, swap, "listen")
    other = Process(sys.executable, swap, "connect", one.wait_line(lambda line: line.startswith("auto://")))
    for process in (one, other):
        assert process.wait_line(lambda line: "mean" in line) == "shm: the mean is 2.500"
        process.end(0)


def nothing_crashes_in_any_order_of_the_end():
    """Objects go in every order, also at the interpreter's end."""
    program = """if True:
        import itertools, numpy, sys
        from pytern.transport import Context
        order = [int(i) for i in sys.argv[1]]
        context, other = Context(), Context()
        listener = context.listen("shm://order-%d" % __import__("os").getpid())
        peer = other.connect(listener.address)
        one = listener.accept(30)
        buffer = context.empty((300, 300))
        got = peer.channel().recv("a", peek=True)
        sent = one.channel().send("a", buffer)
        array = numpy.asarray(got.wait(30))
        pending = one.channel().recv("never")
        things = {0: context, 1: other, 2: listener, 3: peer, 4: one, 5: buffer, 6: got, 7: array, 8: pending, 9: sent}
        del context, other, listener, peer, one, buffer, got, array, pending, sent
        for i in order:
            thing = things.pop(i)
            if i < 2:
                thing.close() if order[0] % 2 else None
            del thing
        print("done", flush=True)
    """
    rng = numpy.random.default_rng(2)
    for _ in range(8):
        order = "".join(str(i) for i in rng.permutation(10)[:rng.integers(1, 11)])
        done = subprocess.run([sys.executable, "-c", program, order], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0 and done.stdout == "done\n" and not done.stderr, (order, done)


class Slow(numpy.ndarray):
    """Lets other threads run when it is dropped."""

    def __del__(self):
        Slow.dropped.set()
        time.sleep(0.5)


def an_end_is_seen_by_all_threads_at_once():
    with Pair(FABRICS[0]) as pair:
        Slow.dropped = threading.Event()
        received = [pair.receiver.recv(key) for key in ("first", "second")]
        first = pair.sender.send("first", numpy.zeros(1 << 18).view(Slow))
        second = pair.sender.send("second", numpy.zeros(1 << 18))
        for request in received:
            request.wait()
        time.sleep(0.2)  # both sends have ended, and nobody has looked
        thread = threading.Thread(target=first.done)
        thread.start()
        assert Slow.dropped.wait(LIMIT_S)
        assert second.done()  # the other thread has taken both ends, and drops what the first one has sent
        thread.join()


if len(sys.argv) > 2:
    serve(*sys.argv[1:])
else:
    tap.run([arrays_of_all_types_arrive_with_their_shapes, what_is_received_into_an_array_is_there,
             one_that_is_too_large_is_refused_at_both_ends, buffers_are_read_in_place_on_one_host,
             torch_and_other_libraries_exchange_tensors_by_dlpack, memory_comes_back,
             the_context_stays_for_what_was_received, many_threads_use_one_context, requests_can_be_awaited,
             what_is_awaited_hears_of_every_end, a_wait_ends_in_time_while_other_requests_end,
             what_was_read_in_place_is_neither_sent_nor_received_into, contexts_may_be_closed_while_others_drop_their_objects,
             a_listener_may_be_closed_while_others_use_it, a_listener_at_all_addresses_lists_them,
             a_dead_peer_is_an_exception_with_its_name_and_the_cause, a_peer_that_stands_still_is_given_up_after_dead_timeout, tensors_of_another_process_arrive_whole,
             nobody_connects_without_the_secret, what_cannot_be_is_refused, an_interrupt_ends_a_wait,
             a_forked_child_has_no_connections, an_end_is_seen_by_all_threads_at_once, the_example_of_the_page_runs, nothing_crashes_in_any_order_of_the_end])
