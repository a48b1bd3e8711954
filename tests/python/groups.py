# SPDX-License-Identifier: Apache-2.0
"""Collective operations from Python: transport.Group.

usage: groups.py
       groups.py RANK ADDRESS: rank 1 of two in another process (serve(), below)
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
from pathlib import Path

import numpy
import pytern
from pytern.transport import Context, PeerDown

from jobs import Process, close_while_used, tap

LIMIT_S = 60
FABRICS = ("tcp://127.0.0.1:0", "shm://groups-%d")
DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
NUMBER = 7


# ---- the other process ----

def serve(address):
    """Joins the group as rank 1, does one operation, and another one until it is killed or stopped."""
    context = Context(name="other", timeout=LIMIT_S)
    peer = context.connect(address)
    group = context.group(1, 2, [peer, None], NUMBER)
    group.all_reduce(numpy.ones(1000, "f4")).wait()
    print("ready", flush=True)
    time.sleep(LIMIT_S)


# ---- the tests ----

class Ranks:
    """Groups of several contexts of this process. `with Ranks(3) as groups:` has them by rank."""

    def __init__(self, size, fabric=FABRICS[0], **options):
        self.contexts = [Context(name=f"context {r}", timeout=LIMIT_S) for r in range(size)]
        peers = [[None] * size for _ in range(size)]
        for i in range(size):
            for j in range(i):
                with self.contexts[j].listen(fabric % time.monotonic_ns() if "%" in fabric else fabric) as listener:
                    peers[i][j] = self.contexts[i].connect(listener.address)
                    peers[j][i] = listener.accept()
        self.peers = peers
        self.groups = [self.contexts[r].group(r, size, peers[r], NUMBER, **options) for r in range(size)]

    def __enter__(self):
        return self.groups

    def __exit__(self, *error):
        for group in self.groups:
            group.close()
        for context in self.contexts:
            context.close()


def all_of(operations):
    """Starts all of them, and then waits for each."""
    return [operation.wait() for operation in list(operations)]


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except BaseException as error:
        assert type(error) is kind and sentence in str(error), f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def values(size, name, count=1000):
    return [(numpy.arange(count) % 5 + r + 1).astype(name) for r in range(size)]


def all_types_are_reduced():
    for size, fabric in ((2, FABRICS[0]), (3, FABRICS[1])):
        with Ranks(size, fabric) as groups:
            for name in DTYPES:
                for op, of_numpy in (("sum", numpy.add), ("product", numpy.multiply), ("min", numpy.minimum), ("max", numpy.maximum)):
                    given = values(size, name)
                    expected = of_numpy.reduce(given, dtype=name)
                    tensors = [v.copy() for v in given]
                    assert [id(t) for t in all_of(g.all_reduce(t, op=op) for g, t in zip(groups, tensors))] == [id(t) for t in tensors]
                    assert all((t == expected).all() for t in tensors), (name, op)
                    out = numpy.zeros_like(given[0])
                    all_of(g.reduce(t, 1, out, op=op) for g, t in zip(groups, given))
                    assert (out == expected).all(), (name, op)
            truth = [numpy.array([False, True, r == 1]) for r in range(size)]
            for op, expected in (("sum", [0, 1, 1]), ("max", [0, 1, 1]), ("product", [0, 1, 0]), ("min", [0, 1, 0])):
                tensors = [t.copy() for t in truth]
                all_of(g.all_reduce(t, op=op) for g, t in zip(groups, tensors))
                assert all(t.tolist() == [bool(e) for e in expected] for t in tensors), op
            mean = [numpy.array([1.0 + r, 3.0]) for r in range(size)]
            all_of(g.all_reduce(t, op="avg") for g, t in zip(groups, mean))
            assert all(t.tolist() == [(size + 1) / 2, 3.0] for t in mean)


def tensors_are_moved():
    for size, fabric in ((1, FABRICS[0]), (2, FABRICS[1]), (3, FABRICS[0])):
        with Ranks(size, fabric) as groups:
            for count in (0, 1, 5000):
                given = [numpy.arange(count, dtype="i4") + 1000 * r for r in range(size)]
                joined = numpy.concatenate(given)
                outs = [numpy.zeros_like(joined) for _ in range(size)]
                all_of(g.all_gather(t, o) for g, t, o in zip(groups, given, outs))
                assert all((o == joined).all() for o in outs)
                out = numpy.zeros_like(joined)
                all_of(g.gather(t, size - 1, out) for g, t in zip(groups, given))
                assert (out == joined).all()
                parts = [numpy.zeros_like(given[0]) for _ in range(size)]
                all_of(g.scatter(joined, 0, p) for g, p in zip(groups, parts))
                assert all((p == t).all() for p, t in zip(parts, given))
                all_of(g.broadcast(p, size - 1) for g, p in zip(groups, parts))
                assert all((p == given[-1]).all() for p in parts)
                all_of(g.reduce_scatter(joined, p) for g, p in zip(groups, parts))
                assert all((p == size * t).all() for p, t in zip(parts, given))
                whole = [joined + 7 * r for r in range(size)]
                all_of(g.all_to_all(t, o) for g, t, o in zip(groups, whole, outs))
                for r, out in enumerate(outs):
                    assert (out == numpy.concatenate([given[r] + 7 * s for s in range(size)])).all()
            all_of(g.barrier() for g in groups)


def parts_of_an_all_to_all_may_differ_in_size():
    """Rank r gives rank s a part of 100 * r + s elements; the rows of that table are `parts`, its columns `out_parts`."""
    for size, fabric in ((1, FABRICS[0]), (3, FABRICS[1]), (3, FABRICS[0])):
        with Ranks(size, fabric) as groups:
            rows = [[100 * r + s for s in range(size)] for r in range(size)]
            columns = [list(column) for column in zip(*rows)]
            for name in "i8", "u1":
                given = [numpy.concatenate([numpy.arange(n) + 7 * r + 3 * s for s, n in enumerate(row)]).astype(name)
                         for r, row in enumerate(rows)]
                outs = [numpy.zeros(sum(column), name) for column in columns]
                answers = all_of(g.all_to_all(t, o, parts=row, out_parts=column)
                                 for g, t, o, row, column in zip(groups, given, outs, rows, columns))
                assert all(a is o for a, o in zip(answers, outs))
                for s, out in enumerate(outs):
                    expected = numpy.concatenate([numpy.arange(rows[r][s]) + 7 * r + 3 * s for r in range(size)]).astype(name)
                    assert (out == expected).all(), (size, name, s)
            all_of(g.barrier() for g in groups)


def operations_are_awaited():
    async def main(context, groups):
        tensor = numpy.array([3.0])
        other = groups[1].all_reduce(numpy.array([4.0]))
        assert (await groups[0].all_reduce(tensor)) is tensor and tensor[0] == 7.0
        other.wait()
        operation = groups[0].barrier()
        assert not operation.done()
        groups[1].barrier()
        assert await operation is None and operation.done()
    with Ranks(2) as groups:
        asyncio.run(main(groups[0]._context, groups))


def mistakes_are_refused():
    with Ranks(2) as groups:
        group, one = groups[0], numpy.ones(3, "f4")
        refused(ValueError, "op: expected one of sum, avg, min", group.all_reduce, one, op="plus")
        refused(ValueError, "op: bool has no avg", group.all_reduce, one > 0, op="avg")
        refused(ValueError, "op: only bool has 'or', not float32", group.all_reduce, one, op="or")
        refused(ValueError, "root: expected a rank below 2, got 2", group.broadcast, one, 2)
        refused(ValueError, "`out` has elements of int32, and the tensor of float32", group.all_reduce, one, numpy.ones(3, "i4"))
        refused(pytern.Error, "all_gather: the sizes of the tensors do not fit", group.all_gather, one, numpy.ones(3, "f4"))
        refused(pytern.Error, "gather: the sizes of the tensors do not fit", group.gather, one, 0)
        refused(ValueError, "parts: expected one for each of 2 ranks, got [3]", group.all_to_all, one, numpy.ones(3), parts=[3])
        refused(ValueError, "out_parts: expected one for each of 2 ranks, got None", group.all_to_all, one, numpy.ones(3), parts=[1, 2])
        for parts in ([1, 1], [2, 2], [1 << 47, 3]):
            refused(pytern.Error, "all_to_all: the sizes of the tensors do not fit", group.all_to_all, one, numpy.ones(3, "f4"),
                    parts=parts, out_parts=[1, 2])
        refused(ValueError, "another context", group.all_reduce, groups[1]._context.wrap(one, writable=True))
        frozen = numpy.ones(3)
        frozen.flags.writeable = False
        refused(ValueError, "", group.all_reduce, frozen)
        context = group._context
        refused(ValueError, "peers: expected one for each of 3 ranks, got 2", context.group, 0, 3, [None, None], 9)
        refused(ValueError, "peers: expected a Peer for rank 1, got None", context.group, 0, 2, [None, None], 9)
        refused(ValueError, "rank: expected less than size, 2, got 2", context.group, 2, 2, [None, None], 9)
        all_of(g.barrier() for g in groups)


def peers_stay_until_their_group_is_closed():
    ranks = Ranks(2)
    group, peer = ranks.groups[0], ranks.peers[0][1]
    refused(pytern.Error, "the peer belongs to a group: close that first", peer._native.free)
    refused(pytern.Error, "a peer has or had a group or channel of this number", ranks.contexts[0].group, 0, 2, [None, peer], NUMBER)
    again = [ranks.contexts[r].group(r, 2, ranks.peers[r], NUMBER + 1) for r in range(2)]
    for g in ranks.groups:
        g.close()
    refused(pytern.Error, "the group is closed", group.barrier)
    del ranks.peers[0][:], ranks.peers[1][:], peer
    gc.collect()
    all_of(g.barrier() for g in again)
    for context in ranks.contexts:
        context.close()
    refused(pytern.Error, "the context is closed", again[0].barrier)


def operations_that_differ_are_named():
    with Ranks(2) as groups:
        operations = [groups[0].barrier(), groups[1].all_reduce(numpy.ones(4, "f4"))]
        for operation in operations:
            error = refused(pytern.Error, "operation 0 differs: rank ", operation.wait)
            assert error.status == -errno.EBADMSG and "allreduce of 16 bytes, f32, sum" in str(error)
        assert "operation 0 differs" in groups[0].failure
        refused(pytern.Error, "barrier: operation 0 differs: rank ", groups[0].barrier)
    with Ranks(2) as groups:
        one = numpy.ones(3, "f4")
        groups[0].all_to_all(one, numpy.ones(3, "f4"), parts=[1, 2], out_parts=[1, 2])
        operation = groups[1].all_to_all(one, numpy.ones(4, "f4"), parts=[2, 1], out_parts=[3, 1])
        error = refused(pytern.Error, "operation 0 differs: the parts that rank ", operation.wait)
        assert error.status == -errno.EBADMSG, error


def an_operation_under_way_ends_with_its_context():
    ranks = Ranks(2)
    operation = ranks.groups[0].all_reduce(numpy.ones(4, "f4"))
    ranks.contexts[0].close()
    refused(pytern.Error, "all_reduce: ", operation.wait)
    # The other rank may know already, or learn of it in its call.
    refused(pytern.Error, "rank 0", lambda: ranks.groups[1].barrier().wait())
    ranks.contexts[1].close()


def a_rank_that_has_left_blames_nobody():
    """Rank 0 leaves, and drops its connection to rank 1. Rank 2 must not hear that rank 1 has failed."""
    for fabric in FABRICS:
        ranks = Ranks(3, fabric)
        all_of(g.barrier() for g in ranks.groups)
        ranks.groups[0].close()
        ranks.peers[0][1]._native.free()
        # This message comes behind the notes of the group.
        ranks.peers[0][2].channel().send("note", b"1")
        ranks.peers[2][0].channel().recv("note").wait()
        assert ranks.groups[2].failure == "", ranks.groups[2].failure
        for context in ranks.contexts:
            context.close()


def a_rank_that_is_gone_is_named():
    for how in (signal.SIGKILL, signal.SIGSTOP):
        for fabric in FABRICS:
            context = Context(name="tests", timeout=LIMIT_S)
            with context.listen(fabric % time.monotonic_ns() if "%" in fabric else fabric) as listener:
                other = Process(sys.executable, __file__, "1", listener.address)
                peer = listener.accept()
            try:
                group = context.group(0, 2, [None, peer], NUMBER)
                group.all_reduce(numpy.ones(1000, "f4")).wait()
                other.wait_line(lambda line: line == "ready")
                operation = group.barrier(timeout=0.5 if how == signal.SIGSTOP else LIMIT_S)
                os.kill(other.process.pid, how)
                error = refused(pytern.Error, "barrier: ", operation.wait)
                assert "rank 1 (other" in str(error), error
                refused(pytern.Error, "rank 1 (other", group.barrier)
            finally:
                other.kill()
                context.close()


def a_rank_that_floods_with_notifications_fails_the_group():
    """The peer is cut off and freed, under the group that uses it."""
    ranks = Ranks(2)
    all_of(g.barrier() for g in ranks.groups)
    under_way = ranks.groups[0].all_reduce(numpy.ones(1 << 20, "f4"))
    with contextlib.suppress(PeerDown):
        for _ in range(30_000):
            ranks.peers[1][0].notify(b"x" * 4096)
    refused(pytern.Error, "rank 1 (context 1", under_way.wait)
    refused(pytern.Error, "rank 1 (context 1", ranks.groups[0].barrier)
    for group in ranks.groups:
        group.close()
    for context in ranks.contexts:
        context.close()


def a_group_is_made_while_a_peer_floods_with_notifications():
    for _ in range(2):
        with Context(name="a", timeout=LIMIT_S) as a, Context(name="b", timeout=LIMIT_S) as b, a.listen() as listener:
            of_b = b.connect(listener.address)
            of_a = listener.accept()

            def notify():
                with contextlib.suppress(PeerDown):
                    for _ in range(17_000):
                        of_b.notify(b"x" * 4096)
            flood = threading.Thread(target=notify)
            flood.start()
            number = 0
            with contextlib.suppress(pytern.Error):
                while not of_a.is_down:
                    a.group(0, 2, [None, of_a], number).close()
                    number += 1
            flood.join()
            of_a.wait_down()
            assert number > 0
            refused(pytern.Error, "a peer is down: the program has not taken its notifications, which fill 64 MiB", a.group, 0, 2,
                    [None, of_a], 1 << 20)


def a_group_may_be_closed_while_others_use_it():
    with Context() as context:
        for number in range(300):
            group = context.group(0, 1, [None], number)
            close_while_used(group, lambda: group.failure, group.barrier)


def the_example_adds():
    program = Path(__file__).resolve().parents[2] / "docs" / "examples" / "sum.py"
    first = Process(sys.executable, program, "listen")
    try:
        address = first.wait_line(lambda line: line.startswith("auto://"))
        second = subprocess.run([sys.executable, program, "connect", address], capture_output=True, text=True,
                                timeout=LIMIT_S)
        assert second.returncode == 0 and second.stdout == "rank 1 over shm: [ 0. 11. 22. 33. 44. 55.]\n", second
        first.wait_line(lambda line: line == "rank 0 over shm: [ 0. 11. 22. 33. 44. 55.]")
    finally:
        first.kill()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        serve(sys.argv[2])
    else:
        sys.exit(tap.run([all_types_are_reduced, tensors_are_moved, parts_of_an_all_to_all_may_differ_in_size, operations_are_awaited, mistakes_are_refused,
                          peers_stay_until_their_group_is_closed, operations_that_differ_are_named,
                          an_operation_under_way_ends_with_its_context, a_rank_that_has_left_blames_nobody,
                          a_rank_that_is_gone_is_named, a_rank_that_floods_with_notifications_fails_the_group,
                          a_group_is_made_while_a_peer_floods_with_notifications, a_group_may_be_closed_while_others_use_it, the_example_adds]))
