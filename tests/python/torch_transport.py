# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torch.distributed._transport over Tern: pytern.torch.onesided.

usage: torch_transport.py
"""
import asyncio
import contextlib
import io
import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import with_torch  # noqa: F401  (first: it may start this script again, with another Python)
import torch
from jobs import tap

try:
    from torch.distributed import _transport
except ImportError:
    print(f"skipped: PyTorch {torch.__version__} has no torch.distributed._transport: it needs 2.15, which `./run test long` installs")
    sys.exit(77)

from pytern.torch import onesided  # noqa: E402

LIMIT_S = 60
FABRICS = ("auto", "tcp")
fork = multiprocessing.get_context("fork")


# ---- another process ----

def serve(pipe, fabrics):
    """Has two tensors that its peer may read and write. Answers each question with their contents."""
    os.environ["TERN_FABRICS"] = fabrics
    torch.set_num_threads(1)
    transport = _transport.new_transport("tern", "cpu")
    tensors = [torch.arange(1000, dtype=torch.float32), torch.full((4, 6), 7, dtype=torch.int64)]
    memories = [transport.register_memory(tensor) for tensor in tensors]
    pipe.send((transport.bind(), [memory.to_remote_buffer().serialize() for memory in memories]))
    while (question := pipe.recv()) != "end":
        if question == "unregister":
            transport.unregister_memory(memories[1])
        pipe.send([tensor.tolist() for tensor in tensors])
    transport.close()


class Other:
    """The other process. `buffers`: its two tensors; `transport`: an endpoint of this one, that is connected to it."""

    def __init__(self, fabrics):
        os.environ["TERN_FABRICS"] = fabrics
        self.pipe, end = fork.Pipe()
        self.process = fork.Process(target=serve, args=(end, fabrics), daemon=True)
        self.process.start()
        url, descriptors = self.pipe.recv()
        self.buffers = [onesided.RemoteBuffer.deserialize(descriptor) for descriptor in descriptors]
        self.transport = _transport.new_transport("tern", "cpu", timeout=LIMIT_S)
        self.transport.connect(url)
        assert self.transport.connected()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(Exception):
            self.transport.close(timeout=1)
        self.process.kill()
        self.process.join()

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        tasks, deadline = Path(f"/proc/{self.process.pid}/task"), time.monotonic() + LIMIT_S
        while any(") T" not in (task / "stat").read_text() for task in tasks.iterdir()):
            assert time.monotonic() < deadline, "the other process does not stop"
            time.sleep(0.001)

    def ask(self, question="look"):
        self.pipe.send(question)
        assert self.pipe.poll(LIMIT_S), "the other process says nothing"
        return self.pipe.recv()


# ---- the tests ----

def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except BaseException as error:
        assert isinstance(error, kind) and sentence in str(error), f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def tensors_are_written_and_read():
    for fabrics in FABRICS:
        with Other(fabrics) as other:
            transport, (floats, numbers) = other.transport, other.buffers
            mine = torch.arange(1000, dtype=torch.float32) * 2
            memory, whole = transport.register_memory(mine), torch.zeros(4, 6, dtype=torch.int64)
            assert transport.write(memory.to_view(), floats) == 0
            assert transport.read(transport.register_memory(whole).to_mutable_view(), numbers) == 0
            assert whole.tolist() == [[7] * 6] * 4
            assert other.ask()[0] == mine.tolist()
            # A range of this end's memory goes to the begin of the other's.
            work = transport.write(memory.to_view(400, 40), floats, async_op=True)
            work.wait()
            assert work.is_completed() and work.is_success() and work.exception() is None
            assert other.ask()[0] == mine.tolist()[100:110] + mine.tolist()[10:]
            transport.read(memory.to_mutable_view(3996, 4), floats)
            assert mine[-1] == 200.0 and mine[-2] == 1996.0
            assert transport.write(memory.to_view(4000, 0), floats) == 0
            assert transport.write(memory.to_view(0, 0), floats, async_op=True).get_future().wait() == []


def many_transfers_are_under_way():
    for fabrics in FABRICS:
        with Other(fabrics) as other:
            transport = other.transport
            tensors = [torch.zeros(1000) for _ in range(50)]
            works = [transport.read(transport.register_memory(tensor).to_mutable_view(), other.buffers[0], async_op=True)
                     for tensor in tensors]
            futures = [work.get_future() for work in works]
            assert all(future.wait() == [] for future in futures)
            assert all(tensor.tolist() == list(range(1000)) for tensor in tensors)
            large = [torch.full((1 << 20,), float(i)) for i in range(8)]
            with _transport.new_transport("tern", timeout=LIMIT_S) as end:
                targets = [torch.zeros(1 << 20) for _ in large]
                memories = [end.register_memory(target) for target in targets]
                with _transport.new_transport("tern", timeout=LIMIT_S) as begin:
                    begin.connect(end.bind())
                    works = [begin.write(begin.register_memory(tensor).to_view(), memory.to_remote_buffer(), async_op=True)
                             for tensor, memory in zip(large, memories)]
                    for work in reversed(works):
                        work.wait()
                assert all(torch.equal(a, b) for a, b in zip(large, targets))


def transfers_are_awaited():
    async def main(other):
        transport, tensor = other.transport, torch.zeros(1000)
        view = transport.register_memory(tensor).to_mutable_view()
        await transport.read_async(view, other.buffers[0], timeout=LIMIT_S)
        assert tensor.tolist() == list(range(1000))
        tensor += 1
        await transport.write_async(view, other.buffers[0])
        works = [transport.write(view, other.buffers[0], async_op=True) for _ in range(3)]
        await _transport.wait_all(works, timeout=LIMIT_S)
        assert other.ask()[0] == list(range(1, 1001))
        await transport.close_async()
        refused(RuntimeError, "the transport is closed", transport.write, view, other.buffers[0])

    for fabrics in FABRICS:
        with Other(fabrics) as other:
            asyncio.run(main(other))


def a_timeout_ends_the_wait_and_not_the_transfer():
    for fabrics in FABRICS:
        with Other(fabrics) as other:
            memory = other.transport.register_memory(torch.full((1000,), 5.0))
            other.stop()
            work = other.transport.write(memory.to_view(), other.buffers[0], async_op=True, timeout=0.1)
            refused(TimeoutError, "put at 0> has not ended in 0.1 s, and goes on", work.wait)
            refused(TimeoutError, "has not ended in 0.1 s", other.transport.write, memory.to_view(), other.buffers[0], timeout=0.1)
            refused(TimeoutError, "has not ended in 0 s", other.transport.write, memory.to_view(), other.buffers[0], timeout=0)
            refused(RuntimeError, "has transfers that have not ended", other.transport.unregister_memory, memory)
            assert not work.is_completed()
            os.kill(other.process.pid, signal.SIGCONT)
            other.transport.write(memory.to_view(), other.buffers[0])
            work.wait(onesided.timedelta(seconds=LIMIT_S))
            assert other.ask()[0] == [5.0] * 1000
            other.transport.unregister_memory(memory)


def a_process_with_many_descriptors_has_futures():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        raise tap.Skip(f"this process may open {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Other("tcp") as other:
            memory = other.transport.register_memory(torch.full((1000,), 4.0))
            for _ in range(5):  # the thread that answers the first one sleeps before the second one
                other.stop()
                future = other.transport.write(memory.to_view(), other.buffers[0], async_op=True).get_future()
                os.kill(other.process.pid, signal.SIGCONT)
                deadline = time.monotonic() + LIMIT_S
                while not future.done():
                    assert time.monotonic() < deadline, "nobody answers the future"
                    time.sleep(0.001)
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def windows_that_a_peer_has_closed_are_forgotten():
    with _transport.new_transport("tern", "cpu") as owner, _transport.new_transport("tern", "cpu") as other:
        other.connect(owner.bind())
        memory = other.register_memory(torch.full((10,), 3.0))
        first, kept = torch.zeros(10), None
        for _ in range(onesided.REMOTES_MAX + 10):
            tensor = torch.zeros(10)
            window = owner.register_memory(tensor)
            other.write(memory.to_view(), window.to_remote_buffer())
            assert tensor[9] == 3
            owner.unregister_memory(window)
            kept = kept or owner.register_memory(first).to_remote_buffer()
            other.write(memory.to_view(), kept)
        assert len(other._remotes) == onesided.REMOTES_MAX and first[9] == 3


def an_end_waits_for_the_transfers():
    for fabrics in FABRICS:
        with Other(fabrics) as other:
            memory = other.transport.register_memory(torch.full((1000,), 6.0))
            other.stop()
            work = other.transport.write(memory.to_view(), other.buffers[0], async_op=True)
            refused(TimeoutError, "and goes on", other.transport.close, timeout=0.1)
            refused(RuntimeError, "the transport is closed", other.transport.write, memory.to_view(), other.buffers[0])
            os.kill(other.process.pid, signal.SIGCONT)
            other.transport.close()
            assert work.is_success() and other.ask()[0] == [6.0] * 1000


def a_peer_that_is_killed_is_named():
    for fabrics in FABRICS:
        with Other(fabrics) as other:
            memory = other.transport.register_memory(torch.zeros(1000))
            other.stop()
            works = [other.transport.write(memory.to_view(), other.buffers[0], async_op=True) for _ in range(2)]
            future = works[1].get_future()
            os.kill(other.process.pid, signal.SIGKILL)
            told = f"pid {other.process.pid} "
            refused(Exception, told, works[0].wait)
            refused(Exception, told, future.wait)
            assert works[0].is_completed() and not works[0].is_success() and told in str(works[0].exception())
            refused(Exception, told, other.transport.write, memory.to_view(), other.buffers[0])
            assert not other.transport.connected()


def memory_that_is_gone_is_refused():
    for fabrics in FABRICS:
        with Other(fabrics) as other:
            tensor = torch.zeros(24, dtype=torch.int64)
            view = other.transport.register_memory(tensor).to_mutable_view()
            other.transport.read(view, other.buffers[1])
            other.ask("unregister")
            for _ in range(2):
                refused(Exception, "has closed the window", other.transport.read, view, other.buffers[1])
            changed = onesided.RemoteBuffer(other.buffers[0].endpoint, other.buffers[0].window[:16] + bytes(16) +
                                            other.buffers[0].window[32:])
            refused(Exception, "has made no window with this descriptor", other.transport.write, view, changed)
            other.transport.write(view, other.buffers[0])


def what_is_not_supported_is_refused_in_a_line():
    with Other("auto") as other, _transport.new_transport("tern") as alone:
        transport, tensor = other.transport, torch.zeros(10)
        memory = transport.register_memory(tensor)
        assert transport.register_memory(tensor)._registration is memory._registration
        for kind, sentence, call in (
                (RuntimeError, "failed to create transport 'tern'", lambda: _transport.new_transport("tern", "cuda")),
                (ValueError, "device meta", lambda: onesided.TernTransport("meta")),
                (ValueError, "a tensor on meta: this transport moves tensors of the CPU",
                 lambda: alone.register_memory(torch.empty(3, device="meta"))),
                (ValueError, "shape (5,), strides (2,): expected a contiguous one", lambda: alone.register_memory(tensor[::2])),
                (ValueError, "shape (0,)", lambda: alone.register_memory(torch.empty(0))),
                (TypeError, "expected a torch.Tensor, got list", lambda: alone.register_memory([1])),
                (ValueError, "a view of 4 bytes at 40: the memory has 40", lambda: memory.to_view(40, 4)),
                (ValueError, "a view of 44 bytes at -4", lambda: memory.to_view(-4)),
                (TypeError, "expected what to_mutable_view()", lambda: transport.read(memory.to_view(), other.buffers[0])),
                (TypeError, "got Tensor", lambda: transport.write(tensor, other.buffers[0])),
                (TypeError, "expected a RemoteBuffer of Tern's transport", lambda: transport.write(memory.to_view(), tensor)),
                (TypeError, "was not registered by this transport", lambda: alone.write(memory.to_view(), other.buffers[0])),
                (TypeError, "was not registered by this transport", lambda: alone.unregister_memory(memory)),
                (RuntimeError, "the transport is not connected",
                 lambda: alone.write(alone.register_memory(tensor).to_view(), other.buffers[0])),
                (ValueError, "is not of the endpoint that this one is connected to",
                 lambda: transport.write(memory.to_view(), memory.to_remote_buffer())),
                (ValueError, "a view of 4004 bytes, and remote memory of 4000",
                 lambda: transport.write(transport.register_memory(torch.zeros(1001)).to_view(), other.buffers[0])),
                (RuntimeError, "already connected", lambda: transport.connect(alone.bind())),
                (ValueError, "expected what bind() of a transport of this version", lambda: alone.connect(b"tcp://10.0.0.7:7000")),
                (ValueError, "timeout: expected seconds from 0", lambda: alone.bind(timeout=-1)),
                (TypeError, "expected bytes, got str", lambda: onesided.RemoteBuffer.deserialize("x")),
                (ValueError, "has 72 bytes and begins with b'TERN': got 3 bytes", lambda: onesided.RemoteBuffer.deserialize(b"abc")),
                (ValueError, "of version 2", lambda: onesided.RemoteBuffer.deserialize(b"TERN\2" + bytes(67))),
                (NotImplementedError, "no CUDA stream orders", lambda: transport.write_stream(memory.to_view(), other.buffers[0]))):
            refused(kind, sentence, call)
        transport.unregister_memory(memory)
        transport.unregister_memory(memory)
        refused(RuntimeError, "the memory was unregistered", memory.to_view)
        url = alone.bind()
        with _transport.new_transport("tern") as stranger:
            parts = url.split(b" ")
            refused(Exception, "another secret", stranger.connect, b" ".join([parts[0], parts[1], b"0" * 32, parts[3]]))


def ranks_find_each_other_through_a_store():
    store = torch.distributed.HashStore()
    ends = {}

    def make(rank):
        ends[rank] = _transport.new_transport_rank("tern", "cpu", store=store, rank=rank, peer_rank=1 - rank)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    given, got = torch.arange(8.0), torch.zeros(8)
    ends[0].write(ends[0].register_memory(given).to_view(), ends[1].register_memory(got).to_remote_buffer())
    assert torch.equal(given, got)
    for end in ends.values():
        end.close()
        end.close()


def the_log_tells_the_fabric():
    os.environ["TERN_LOG"] = "info"
    try:
        for fabrics, fabric in (("auto", "shm"), ("tcp", "tcp")):
            with contextlib.redirect_stderr(io.StringIO()) as said, Other(fabrics) as other:
                told = f"tern: this endpoint reads from and writes to .*, pid {other.process.pid} .* by {fabric}\n"
                assert re.fullmatch(told, said.getvalue()), said.getvalue()
    finally:
        del os.environ["TERN_LOG"]


if __name__ == "__main__":
    tap.run([tensors_are_written_and_read, many_transfers_are_under_way, transfers_are_awaited,
             a_timeout_ends_the_wait_and_not_the_transfer, a_process_with_many_descriptors_has_futures,
             windows_that_a_peer_has_closed_are_forgotten, an_end_waits_for_the_transfers, a_peer_that_is_killed_is_named, memory_that_is_gone_is_refused, what_is_not_supported_is_refused_in_a_line,
             ranks_find_each_other_through_a_store, the_log_tells_the_fabric])
