# SPDX-License-Identifier: Apache-2.0
"""Windows and notifications from Python: Context.window(), Peer.open(), Peer.notify().

usage: windows.py
       windows.py ACT ADDRESS: what another process does (serve(), below)
"""
import asyncio
import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy
import pytern
from pytern import transport, _windows
from pytern.transport import Context, PeerDown

from jobs import HERE, Process, tap

LIMIT_S = 60
FABRICS = ("tcp://127.0.0.1:0", "shm://test-%d")


def address(fabric):
    return fabric % time.monotonic_ns() if "%" in fabric else fabric


# ---- the other process ----

def serve(act, address):
    """Has a window, of which it tells the other end, and does something."""
    context = Context(name="other", timeout=LIMIT_S)
    peer = context.connect(address)
    memory = numpy.zeros(16 << 20, "u1")
    if act == "put":  # into the window of the other end, until it is killed
        remote = peer.open(peer.channel().recv("window").wait())
        for number in range(1 << 30):
            remote.put(numpy.full(1 << 20, number % 251, "u1"), note=b"%d" % number).wait()
    window = context.window(memory, write=True)
    peer.channel().send("window", window.describe()).wait()
    if act == "open":  # a window of the other end, and then say nothing
        remote = peer.open(peer.channel().recv("theirs").wait())
        remote.get(bytearray(1)).wait()
        peer.channel().send("ready", b"1").wait()
        os.kill(os.getpid(), signal.SIGSTOP)
        # The window was closed while this process stood still.
        error = refused(pytern.Error, "get at 0: owner (tcp ", remote.get(bytearray(1)).wait)
        assert error.errno == errno.ESTALE
        peer.channel().send("refused", b"1").wait()
    peer.wait_down()


def other(listener, act):
    return subprocess.Popen([sys.executable, __file__, act, listener.address])


# ---- the tests ----

class Pair:
    """Two contexts of this process, of which the first has a window."""

    def __init__(self, fabric=FABRICS[0], memory=None, read=True, write=True, **options):
        self.one, self.two = (Context(name=name, timeout=LIMIT_S, **options) for name in ("one", "two"))
        with self.one.listen(address(fabric)) as listener:
            self.of_two = self.two.connect(listener.address)
            self.of_one = listener.accept()
        self.of_two.wait_up()
        self.memory = numpy.zeros(1 << 20, "u1") if memory is None else memory
        self.window = self.one.window(self.memory, read=read, write=write)
        self.remote = self.of_two.open(self.window.describe())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.two.close()
        self.one.close()


class Lent:
    """A tensor that has DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except BaseException as error:
        assert type(error) is kind and sentence in str(error), f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def bytes_are_put_and_got_where_they_belong():
    rng = numpy.random.default_rng(1)
    for fabric in FABRICS:
        with Pair(fabric, numpy.zeros(3 << 20, "u1")) as pair:
            assert len(pair.window.describe()) == 48 and pair.remote.size == 3 << 20
            expected = pair.memory.copy()
            for size, offset in ((0, 0), (0, 3 << 20), (1, 77), (64, 1 << 20), (5000, (3 << 20) - 5000), (2 << 20, 12345)):
                sent = rng.integers(0, 256, size, "u1")
                assert pair.remote.put(sent, offset).wait() is None
                expected[offset:offset + size] = sent
                assert (pair.memory == expected).all(), (fabric, size)
                into = numpy.zeros(size, "u1")
                assert pair.remote.get(into, offset).wait() is into and (into == sent).all()
            for dtype in ("f4", "i8", "?", "f2"):
                sent = (rng.random((30, 40)) * 100).astype(dtype)
                pair.remote.put(sent, 64).wait()
                assert (pair.memory[64:64 + sent.nbytes].view(dtype).reshape(30, 40) == sent).all()
            room = bytearray(8)
            pair.remote.put(b"12345678", 8).wait()
            assert pair.remote.get(room, 8).wait() is room and room == b"12345678"


def lists_of_ranges_have_one_end():
    for fabric in FABRICS:
        with Pair(fabric) as pair:
            rows = [(numpy.full(1000 + i, i, "u1"), 3000 * i) for i in range(100)]
            assert pair.remote.put_list(iter(rows), note=b"rows").wait() is None
            assert pair.of_one.wait_notified() == b"rows"
            back = [(numpy.zeros(1000 + i, "u1"), 3000 * i) for i in range(100)]
            got = pair.remote.get_list(back).wait()
            assert all(one is into and (one == i).all() for i, (one, (into, _)) in enumerate(zip(got, back)))
            assert pair.remote.get_list([]).wait() == []
            pair.remote.put_list([], note=b"nothing").wait()
            assert pair.of_one.wait_notified() == b"nothing"
            refused(pytern.Error, "put of 2 pieces: the window has 1048576 bytes, and 1048575 + 2 are more", pair.remote.put_list,
                    [(b"x", 0), (b"xy", (1 << 20) - 1)])
            assert pair.memory[0] == 0


def buffers_and_tensors_of_other_libraries_are_windows():
    with Pair(FABRICS[1]) as pair:
        buffer = pair.one.empty((100, 10), "int64")
        numpy.asarray(buffer)[...] = 5
        with pair.one.window(buffer, write=True) as window, pair.of_two.open(window.describe()) as remote:
            into = pair.two.empty((100, 10), "int64")
            assert remote.get(into).wait() is into and (numpy.asarray(into) == 5).all()
            numpy.asarray(into)[...] = 6
            remote.put(into).wait()
            assert (numpy.asarray(buffer) == 6).all()
        array = numpy.zeros(50, "f4")
        with pair.one.window(Lent(array), write=True) as window, pair.of_two.open(window.describe()) as remote:
            remote.put(Lent(numpy.arange(50, dtype="f4"))).wait()
            assert (array == numpy.arange(50)).all()
            into = numpy.zeros(50, "f4")
            remote.get(Lent(into)).wait()
            assert (into == array).all()
            refused(ValueError, "the tensor is not contiguous", remote.put, Lent(numpy.zeros((3, 4)).T))
            refused(ValueError, "the tensor is not contiguous", pair.one.window, Lent(numpy.zeros((3, 4)).T))


def ten_thousand_puts_are_notified_once_and_in_order():
    for fabric in FABRICS:
        with Pair(fabric) as pair:
            requests = []
            for number in range(5000):
                requests.append(pair.remote.put(number.to_bytes(8, "little"), number * 8))
                requests.append(pair.of_two.notify(number.to_bytes(8, "little")))
            for number in range(5000):
                assert int.from_bytes(pair.of_one.wait_notified(), "little") == number
                # The put that was posted before it has landed.
                assert int(pair.memory[number * 8:number * 8 + 8].view("u8")[0]) == number
            for request in requests:
                request.wait()
            refused(pytern.Timeout, "a notification of two (", pair.of_one.wait_notified, 0.01)
            assert pair.one._native.posted() == pair.two._native.posted() == 0


def what_cannot_be_is_refused():
    for fabric in FABRICS:
        with Pair(fabric) as pair, Pair(fabric) as foreign:
            remote, one = pair.remote, pair.one
            refused(ValueError, "window: expected read=True, write=True, or both", one.window, pair.memory, read=False)
            refused(pytern.Error, "the tensor has no bytes", one.window, b"")
            refused(ValueError, "not C-contiguous", one.window, numpy.zeros((4, 4)).T)
            refused(BufferError, "not writable", one.window, b"1234", write=True)
            refused(ValueError, "desc: expected the 48 bytes of describe(), got 3 bytes", pair.of_two.open, b"abc")
            refused(TypeError, "bytes-like object is required", pair.of_two.open, "abc")
            refused(ValueError, "offset: expected an integer from 0", remote.put, b"1", -1)
            refused(ValueError, "note: expected at most 4096 bytes, got 4097", remote.put, b"1", 0, bytes(4097))
            refused(ValueError, "note: expected at most 4096 bytes, got 4097", pair.of_two.notify, bytes(4097))
            refused(TypeError, "bytes-like object is required", pair.of_two.notify, "text")
            refused(ValueError, "not C-contiguous", remote.put, numpy.zeros((4, 4)).T)
            refused(BufferError, "not writable", remote.get, b"12345678")
            refused(ValueError, "memory is of another context", remote.put, one.empty(3))
            refused(ValueError, "memory is of another context", one.window, pair.two.empty(3))
            outside = refused(pytern.Error, "put at 1048575: the window has 1048576 bytes, and 1048575 + 2 are more", remote.put,
                              b"12", (1 << 20) - 1)
            assert outside.errno == errno.ERANGE
            refused(pytern.Error, "get at 18446744073709551615: the window has", remote.get, bytearray(1), (1 << 64) - 1)
            with one.window(pair.memory) as window, one.window(pair.memory, read=False, write=True) as written:
                only_read, only_written = (pair.of_two.open(w.describe()) for w in (window, written))
                assert refused(pytern.Error, "made with write=False", only_read.put, b"1").errno == errno.EACCES
                assert refused(pytern.Error, "made with read=False", only_written.get, bytearray(1)).errno == errno.EACCES
                only_read.get(bytearray(1)).wait()
                only_written.put(b"1").wait()
                forged = bytearray(window.describe())
                forged[16] ^= 1  # the capability
                error = refused(pytern.Error, "put at 0: one (", pair.of_two.open(window.describe()[:44] + b"\3\0\0\0").put(b"1").wait)
                assert error.errno == errno.EACCES
                error = refused(pytern.Error, " has made no window with this descriptor", pair.of_two.open(forged).get(bytearray(1)).wait)
                assert error.errno == errno.EACCES and "get at 0: one (" in str(error)
            error = refused(pytern.Error, " has closed the window, or has started again", pair.of_two.open(foreign.window.describe())
                            .put(b"1").wait)
            assert error.errno == errno.ESTALE and "put at 0: one (" in str(error)
            pair.window.close()
            error = refused(pytern.Error, " has closed the window", remote.put(b"1").wait)
            assert error.errno == errno.ESTALE
            refused(pytern.Error, "the window is closed", pair.window.describe)
            pair.window.close()  # a second time
            remote.close()
            refused(pytern.Error, "put at 0: this Remote is closed", remote.put, b"1")
            remote.close()
            request = pair.of_two.notify(b"x")
            refused(pytern.Error, "posted before", pair.of_two._native.notify, request, b"x")
            foreign.two.close()
            refused(pytern.Error, "closed", foreign.remote.put, b"1")
            foreign.one.close()
            foreign.window.close()
            refused(pytern.Error, "the window is closed", foreign.window.describe)
            refused(pytern.Error, "the context is closed", foreign.one.window, pair.memory)


def a_window_that_is_closed_during_puts_ends_them_with_estale():
    for fabric in FABRICS:
        for _ in range(100):  # until the end comes during the puts
            with Pair(fabric, numpy.zeros(8 << 20, "u1")) as pair:
                requests = [pair.remote.put(numpy.full(8 << 20, i, "u1")) for i in range(8)]
                pair.window.close()
                held = pair.memory.copy()
                requests.append(pair.remote.put(held))
                ends = []
                for request in requests:
                    try:
                        request.wait()
                        ends.append(0)
                    except pytern.Error as error:
                        ends.append(error.errno)
                assert set(ends) <= {0, errno.ESTALE} and ends[-1] == errno.ESTALE, ends
                assert (pair.memory == held).all()  # nothing is written any more
            if errno.ESTALE in ends[:-1]:
                break
        else:
            raise AssertionError("no put was under way when the window was closed")


def a_window_of_a_peer_is_not_closed_before_its_requests_have_ended():
    with Pair() as pair, pair.two.connect("tcp://127.0.0.1:9").open(pair.window.describe()) as remote:  # nobody listens
        put = remote.put(b"1")
        busy = refused(pytern.Error, "close of a peer's window: requests of it have not ended", remote.close)
        assert busy.errno == errno.EBUSY
        put.cancel()
        refused(pytern.Error, "put at 0: cancelled", put.wait)


def memory_stays_while_something_uses_it():
    for fabric in FABRICS:
        with Context(name="one", timeout=LIMIT_S) as one, Context(name="two", timeout=LIMIT_S) as two:
            listener = one.listen(address(fabric))
            peer = two.connect(listener.address)
            array = numpy.zeros(1 << 20, "u1")
            alive = weakref.ref(array)
            window = one.window(array, write=True)
            del array
            remote = peer.open(window.describe())
            requests = [remote.put(numpy.full(1 << 16, i, "u1"), i << 16) for i in range(16)]  # nobody else has their memory
            junk = [numpy.full(1 << 16, 99, "u1") for _ in range(64)]
            of_one = listener.accept()
            into = remote.get(numpy.zeros(1 << 20, "u1"))
            for request in requests:
                request.wait()
            del requests, request, junk
            remote.get(into.wait()).wait()
            assert (alive() == numpy.repeat(numpy.arange(16), 1 << 16)).all() and (into.wait() == alive()).all()
            gc.collect()
            assert alive() is not None
            window.close()
            assert alive() is None
            del of_one, into


def a_forgotten_window_is_closed_and_its_memory_freed():
    for fabric in FABRICS:
        with Pair(fabric) as pair:
            alive = weakref.ref(pair.memory)
            pair.remote.put(b"1").wait()
            pair.memory = None
            pair.window = None
            gc.collect()
            assert refused(pytern.Error, " has closed the window", pair.remote.put(b"1").wait).errno == errno.ESTALE
            end = time.monotonic() + LIMIT_S
            while alive() is not None and time.monotonic() < end:
                pair.one._collect()
                time.sleep(0.001)
            assert alive() is None and pair.one._native.posted() == 0
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        context = Context()
        window = context.window(bytearray(100))
        array = numpy.zeros(100)
        alive = weakref.ref(array)
        other_window = context.window(array)
        del array, window, other_window, context
        gc.collect()
        assert alive() is None
    assert len(os.listdir("/proc/self/task")) <= threads


def a_dead_owner_is_an_exception_with_its_name_and_the_cause():
    for fabric in FABRICS:
        with Context(name="mine", timeout=LIMIT_S) as context, context.listen(address(fabric)) as listener:
            process = other(listener, "own")
            peer = listener.accept()
            remote = peer.open(peer.channel().recv("window").wait())
            data = numpy.ones(16 << 20, "u1")
            remote.put(data).wait()
            requests = [remote.put(data, note=b"x") for _ in range(200)] + [peer.notify(b"last")]
            process.kill()
            process.wait()
            for request in requests[:-1]:
                try:
                    request.wait()
                except PeerDown as error:
                    assert str(error).startswith("put at 0: other (") and " is down: " in str(error), error
                    assert "orderly" not in str(error) and error.peer.startswith("other ("), error
            refused(PeerDown, "notification: other (", requests[-1].wait)
            refused(PeerDown, "put at 0: other (", remote.put, b"late")
            refused(PeerDown, "notification: other (", peer.notify, b"late")
            refused(PeerDown, "open of a window: other (", peer.open, bytes(48))
            refused(PeerDown, "other (", peer.wait_notified)
            remote.close()


def what_a_dead_peer_has_notified_is_there_before_its_end():
    for fabric in FABRICS:
        with Context(name="mine", timeout=LIMIT_S) as context, context.listen(address(fabric)) as listener:
            memory = numpy.zeros(1 << 20, "u1")
            window = context.window(memory, write=True)
            process = other(listener, "put")
            peer = listener.accept()
            peer.channel().send("window", window.describe()).wait()
            for number in range(5):
                assert peer.wait_notified() == b"%d" % number
            process.kill()
            process.wait()
            peer.wait_down()
            try:
                while True:
                    number += 1
                    assert peer.wait_notified() == b"%d" % number
            except PeerDown as error:
                assert error.peer.startswith("other (")
            window.close()


def a_peer_that_stands_still_does_not_hold_up_the_end_of_a_window():
    with Context(name="owner", timeout=LIMIT_S) as context, context.listen() as listener:
        process = other(listener, "open")
        peer = listener.accept()
        memory = numpy.zeros(1000, "u1")
        alive = weakref.ref(memory)
        window = context.window(memory)
        del memory
        peer.channel().recv("window").wait()
        peer.channel().send("theirs", window.describe()).wait()
        peer.channel().recv("ready").wait()
        assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT) is not None
        window._close(0.2)
        assert alive() is not None  # until the end, which nobody has asked for yet
        window.close()
        assert alive() is None
        process.send_signal(signal.SIGCONT)
        peer.channel().recv("refused").wait()
        peer.close()
        assert process.wait() == 0


def notifications_that_nobody_takes_end_the_connection():
    with Pair() as pair:
        note = bytes(4096)
        requests = []
        with contextlib.suppress(PeerDown):  # on a slow host the peer is down before all are posted
            for _ in range(17000):
                requests.append(pair.of_two.notify(note))
        pair.of_two.wait_down()
        ended = 0
        for request in requests:
            try:
                request.wait()
                ended += 1
            except PeerDown:
                break
        count = 0
        try:
            while True:
                assert len(pair.of_one.wait_notified()) == 4096
                count += 1
        except PeerDown as error:
            assert str(error).startswith("two (tcp ") and "has not taken its notifications, which fill 64 MiB" in str(error), error
        # No notification that the other end heard of as handled is lost.
        assert ended <= count == (64 << 20) // (4096 + 64), (ended, count)
        assert pair.of_one.is_down and pair.of_one.stats["messages_received"] == 0 and pair.of_one.fabric == ""
        refused(PeerDown, "has not taken its notifications", pair.of_one.channel().send, "x", b"1")
        refused(PeerDown, "has not taken its notifications", pair.of_one.open, bytes(48))
        pair.window.close()


def windows_can_be_awaited():
    async def run():
        pair = Pair()

        async def hear():
            return [await pair.of_one.notified() for _ in range(100)]
        heard = asyncio.ensure_future(hear())
        for i in range(100):
            assert await pair.remote.put(bytes([i]), i, note=bytes([i])) is None
        assert sorted(await heard) == [bytes([i]) for i in range(100)]
        into = bytearray(100)
        assert await pair.remote.get(into) is into and into == bytes(range(100))
        await asyncio.gather(*[_of(pair.remote.put(numpy.full(1 << 20, i, "u1"))) for i in range(10)])
        waits = asyncio.ensure_future(pair.of_one.notified())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        puts = [asyncio.ensure_future(_of(pair.remote.put(pair.memory))) for _ in range(5)]
        await asyncio.sleep(0)
        puts[4].cancel()
        await pair.window.close_async()
        ends = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), LIMIT_S)
        assert all(end is None or isinstance(end, asyncio.CancelledError) or end.errno == errno.ESTALE for end in ends), ends
        lost = asyncio.ensure_future(pair.of_one.notified())
        await asyncio.sleep(0)
        pair.two.close()
        try:
            await asyncio.wait_for(lost, LIMIT_S)
            raise AssertionError("it has ended")
        except PeerDown as error:
            assert error.peer.startswith("two (tcp "), error
        pair.one.close()
    asyncio.run(run())


async def _of(request):
    return await request


def many_threads_use_one_window():
    for fabric in FABRICS:
        with Pair(fabric) as pair:
            failed, heard = [], []

            def work(number):
                try:
                    with pair.of_two.open(pair.window.describe()) as remote:
                        for step in range(100):
                            here = numpy.full(1000, (number * 100 + step) % 251, "u1")
                            remote.put(here, number * 1000, note=b"%d" % number).wait()
                            back = remote.get(numpy.zeros(1000, "u1"), number * 1000).wait()
                            assert (back == here).all()
                except BaseException as error:
                    failed.append(error)

            def hear():
                try:
                    for _ in range(200):
                        heard.append(pair.of_one.wait_notified())
                except BaseException as error:
                    failed.append(error)
            threads = [threading.Thread(target=work, args=[i]) for i in range(8)] + [
                threading.Thread(target=hear) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failed, failed
            assert sorted(heard) == sorted(b"%d" % (i // 100) for i in range(800))


def all_may_be_closed_while_others_use_it():
    for round in range(16):
        pair = Pair(FABRICS[round & 1])

        def use():
            try:
                for _ in range(10000):
                    pair.remote.put(b"12345678", note=b"x")
                    pair.remote.get(bytearray(1 << 16))
            except pytern.Error:
                pass

        def hear():
            try:
                while True:
                    pair.of_one.wait_notified()
            except pytern.Error:
                pass
        threads = [threading.Thread(target=use), threading.Thread(target=hear), threading.Thread(target=pair.window.close),
                   threading.Thread(target=pair.window.close)]
        for thread in threads[round % 3 == 0:]:
            thread.start()
        ends = [pair.one.close, pair.of_two.close, pair.two.close, pair.of_one._native.free]
        for i in range(4):
            ends[(i + round) % 4]()
        for thread in threads[round % 3 == 0:]:
            thread.join()


def a_forked_child_has_no_windows():
    with Pair() as pair:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sentence = "a forked process cannot use its parent's context"
                refused(pytern.Error, sentence, pair.window.close)
                refused(pytern.Error, sentence, pair.remote.put, b"1")
                refused(pytern.Error, sentence, pair.of_one.wait_notified)
                refused(pytern.Error, sentence, pair.of_two.notify, b"1")
                pair.window = pair.remote = None
                gc.collect()
                pair.one.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        pair.remote.put(b"1", note=b"still").wait()
        assert pair.memory[0] == ord("1") and pair.of_one.wait_notified() == b"still"


def a_child_that_is_forked_during_a_put_does_not_wait_for_it():
    with Pair() as pair:
        stop = threading.Event()

        def put():
            while not stop.is_set():
                pair.remote.put(b"1").wait()
        threads = [threading.Thread(target=put) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(30):
                child = os.fork()
                if child == 0:
                    signal.alarm(10)
                    pair.remote.close()
                    os._exit(0)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class Closer:
    """Closes a Remote when the garbage collector finds it."""

    def __init__(self, remote):
        self.remote, self.me = remote, self

    def __del__(self):
        self.remote.close()


def a_remote_may_be_closed_by_the_garbage_collector_during_a_put():
    thresholds = gc.get_threshold()
    with Pair() as pair:
        memory = pair.two.wrap(b"12345678")
        kept = []
        for i in range(20):
            remote = pair.of_two.open(pair.window.describe())
            remote.put(b"1").wait()
            move, request, pieces = remote._native.move, _windows._Access(pair.of_two, "put"), ((memory, 0),)
            gc.collect()
            gc.disable()
            Closer(remote)
            # The interpreter has old tuples of four elements for the arguments, and none of three for move() itself.
            kept.append([(k, k, k) for k in range(2500)])
            del [(k, k, k, k) for k in range(50)][:]
            gc.set_threshold(i + 1)
            gc.enable()
            try:
                move(request, False, pieces, None)
            except pytern.Error as error:
                assert "this Remote is closed" in str(error), error
            finally:
                gc.set_threshold(*thresholds)


def the_example_of_the_page_runs():
    table = HERE.parents[1] / "docs" / "examples" / "table.py"
    one = Process(sys.executable, table, "serve")
    two = Process(sys.executable, table, "use", one.wait_line(lambda line: line.startswith("auto://")))
    assert one.wait_line(lambda line: "row 3" in line) == "shm: row 3 is now 3.0"
    assert one.wait_line(lambda line: "row 999" in line) == "shm: row 999 is now 999.0"
    for process in (one, two):
        process.end(0)


def nothing_crashes_in_any_order_of_the_end():
    """Objects go in every order, also at the interpreter's end, with a window open and requests under way."""
    program = """if True:
        import numpy, os, sys
        from pytern.transport import Context
        order = [int(i) for i in sys.argv[1]]
        context, other = Context(), Context()
        listener = context.listen("shm://order-%d" % os.getpid())
        peer = other.connect(listener.address)
        one = listener.accept(30)
        array = numpy.zeros(1 << 22, "u1")
        window = context.window(array, write=True)
        remote = peer.open(window.describe())
        remote.put(b"1").wait(30)
        puts = [remote.put(numpy.ones(1 << 22, "u1"), note=b"x") for _ in range(5)]
        gets = [remote.get(numpy.ones(1 << 22, "u1")) for _ in range(5)]
        things = {0: context, 1: other, 2: listener, 3: peer, 4: one, 5: array, 6: window, 7: remote, 8: puts, 9: gets}
        del context, other, listener, peer, one, array, window, remote, puts, gets
        for i in order:
            thing = things.pop(i)
            if i < 2 or i == 6:
                thing.close() if order[0] % 2 else None
            del thing
        print("done", flush=True)
    """
    rng = numpy.random.default_rng(2)
    for _ in range(5):
        order = "".join(str(i) for i in rng.permutation(10)[:rng.integers(1, 11)])
        done = subprocess.run([sys.executable, "-c", program, order], capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0 and done.stdout == "done\n" and not done.stderr, (order, done)


if len(sys.argv) > 2:
    serve(*sys.argv[1:])
else:
    tap.run([bytes_are_put_and_got_where_they_belong, lists_of_ranges_have_one_end,
             buffers_and_tensors_of_other_libraries_are_windows, ten_thousand_puts_are_notified_once_and_in_order,
             what_cannot_be_is_refused, a_window_that_is_closed_during_puts_ends_them_with_estale,
             a_window_of_a_peer_is_not_closed_before_its_requests_have_ended, memory_stays_while_something_uses_it,
             a_forgotten_window_is_closed_and_its_memory_freed,
             a_dead_owner_is_an_exception_with_its_name_and_the_cause,
             what_a_dead_peer_has_notified_is_there_before_its_end,
             a_peer_that_stands_still_does_not_hold_up_the_end_of_a_window,
             notifications_that_nobody_takes_end_the_connection, windows_can_be_awaited, many_threads_use_one_window,
             all_may_be_closed_while_others_use_it, a_forked_child_has_no_windows,
             a_child_that_is_forked_during_a_put_does_not_wait_for_it,
             a_remote_may_be_closed_by_the_garbage_collector_during_a_put, the_example_of_the_page_runs,
             nothing_crashes_in_any_order_of_the_end])
