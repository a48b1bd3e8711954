# SPDX-License-Identifier: Apache-2.0
"""A worker for the tests: a small least-squares model, and something that it does at a certain step.

usage: worker.py OUT ACT [STEP]

Prints "step N" for each slot, and writes the result to OUT as the finisher.
"""
import math
import os
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytern as tern

STEPS, RECORDS, WIDTH = 60, 500, 300
OUT, ACT = sys.argv[1:3]
STEP = int(sys.argv[3]) if len(sys.argv) > 3 else -1
x = numpy.random.default_rng(5).standard_normal((RECORDS, WIDTH), numpy.float32)


def say(*words):
    print(*words, flush=True)


def complain(call, *arguments):
    """Prints the exception that a call raises."""
    try:
        call(*arguments)
        say("nothing was raised")
    except Exception as error:
        say(f"{type(error).__name__}: {error}")


def forked(session, slot, w):
    """What a forked child may do: nothing, and it hears why."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork with threads
    child = os.fork()
    if child == 0:
        for call in (lambda: slot.view(w), lambda: slot.revoked, lambda: w.value, session.describe, session.goes_on,
                     lambda: slot.push(w, numpy.zeros(w.shape, numpy.float32)), lambda: session.tensor("late", 1)):
            complain(call)
        sys.exit(0)  # leaves the blocks, and Python calls all destructors
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def mistakes(session, slot, w, b):
    complain(slot.push, w, numpy.zeros((3, 4), numpy.float32))
    complain(slot.push, w, numpy.zeros(w.shape[::-1], numpy.float32))
    complain(slot.push, w, numpy.zeros(w.shape, complex))
    complain(slot.push, "w", numpy.zeros(w.shape))
    complain(slot.push, w, None)
    complain(slot.loss, "much")
    complain(session.finisher)
    complain(session.tensor, "late", 3)
    complain(next, session.slots())
    complain(slot[w].__setitem__, 0, 1)
    complain(slot.view(w).__setitem__, 0, 1)
    mapping, (offset,) = slot._native.map(slot._turn, (w.id,))
    complain(mapping.renew, -1, 1)
    complain(mapping.keep, offset, 1 << 40)
    complain(slot._native.map, slot._turn, (w.id, 9))
    complain(slot._native.map, slot._turn - 1, (w.id,))
    complain(slot._native.place, slot._turn - 1)
    slot.push(b, numpy.zeros(b.shape, numpy.float32))
    complain(slot.push, b, numpy.zeros(b.shape, numpy.float32))


def mapped(slot, w):
    """A mapping of the slot's parameters, and the array of the tensor w in it."""
    mapping, (offset,) = slot._native.map(slot._turn, (w.id,))
    assert offset % 4 == 0
    return mapping, offset, numpy.frombuffer(mapping, numpy.float32)[offset // 4:][:math.prod(w.shape)].reshape(w.shape)


class Hammer:
    """Threads that call everything at the wrong time. They end when the session has been closed for a while."""

    def __init__(self, session, w, b):
        self.slot, self.kept, self.count = None, [], 0
        self.calls = [
            lambda: self.kept.append(self.slot.view(w)), lambda: self.kept.append(self.slot[b]),
            lambda: self.kept.append(mapped(self.slot, w)[2]), lambda: self.slot.records, lambda: self.slot.revoked, session.describe, lambda: w.value, session.goes_on,
            lambda: self.slot.push(b, numpy.zeros(3)), lambda: self.slot.push(w, numpy.zeros(w.shape, numpy.float32)),
            session.finisher, session._deliver, lambda: self.kept.clear(), lambda: self.slot.push(w, None)]
        self.threads = [threading.Thread(target=self.run, args=[numpy.random.default_rng(seed)]) for seed in range(3)]
        for thread in self.threads:
            thread.start()

    def run(self, rng):
        closed = 0
        while closed < 100:
            try:
                self.calls[rng.integers(len(self.calls))]()
            except tern.Error as error:
                closed += "closed" in str(error)
            except (AttributeError, TypeError, ValueError):  # no slot yet; a wrong shape
                pass
            self.count += 1
        assert all(numpy.isfinite(array).all() for array in self.kept)


class Values:
    """Arrays of parameters must keep their values after the slot, and views must be readable for ever."""

    def __init__(self):
        self.kept = []
        self.view = None
        self.address = None  # of the last copy, if nobody kept it

    def keep(self, slot, w, b):
        address = slot[w].__array_interface__["data"][0]
        assert self.address in (None, address), "the memory of a copy that nobody kept was not used again"
        self.address = None if slot.step % 7 == 0 else address
        if slot.step % 7 == 0:
            self.kept.append((slot[w], slot[w].copy()))
            self.kept.append((slot[b][1:], slot[b][1:].copy()))
        mapping, offset, array = mapped(slot, w)
        assert numpy.array_equal(slot.view(w), slot[w]) and numpy.array_equal(array, slot[w])
        array[:] = 7  # nobody else sees this
        assert numpy.array_equal(slot.view(w), slot[w])
        mapping.renew(offset, array.nbytes)
        assert numpy.array_equal(array, slot[w])
        if slot.step % 7 == 1:
            mapping.keep(offset, array.nbytes)
            self.kept.append((array, slot[w].copy()))
        assert slot[w] is slot[w]
        self.view = slot.view(w)

    def check(self):
        assert len(self.kept) > 8
        for array, before in self.kept:
            assert numpy.array_equal(array, before)


def push(slot, w, b, of_w, of_b, pool):
    if ACT == "hammer":
        try:
            slot.push(w, of_w)
        except tern.Error as error:  # a thread was faster
            assert "pushed before" in str(error), error
    elif ACT == "float64":
        slot.push(w, of_w.astype(">f4" if slot.step % 2 else numpy.float64))
        slot.push(b, numpy.repeat(of_b, 2)[::2])
    elif ACT == "threads":
        for result in [pool.submit(slot.push, w, of_w), pool.submit(slot.push, b, of_b)]:
            result.result()
    else:
        slot.push(w, of_w)
        slot.push(b, memoryview(of_b))


def act(session, slot, w, b):
    """Called in the slots from STEP on."""
    if ACT == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ACT == "raise":
        raise ValueError("no luck\ntoday")
    elif ACT == "interrupt":
        say("computing")
        while True:
            time.sleep(0.01)
    elif ACT == "fork" and (slot.step, slot.number) == (STEP, 1):
        forked(session, slot, w)
    elif ACT == "mistakes":
        mistakes(session, slot, w, b)
        raise SystemExit(0)
    elif ACT == "nan":
        slot.loss(float("nan"))
    elif ACT == "stand":
        say("standing")
        while not slot.revoked:
            time.sleep(0.01)
        slot.push(w, numpy.zeros(w.shape, numpy.float32))
        say("revoked")
        raise SystemExit(0)
    elif ACT == "close":
        closer = threading.Thread(target=session.close)
        closer.start()
        closer.join()
        complain(slot.push, w, numpy.zeros(w.shape, numpy.float32))
        raise SystemExit(0)


def compute(session, slot, w, b, values, pool):
    rows = x[slot.records]
    error = rows @ slot[w].reshape(-1) + slot[b][0] - rows[:, 0]
    of_w = (2 * rows.T @ error / len(rows)).reshape(w.shape)
    of_b = numpy.full(3, 2 * error.mean(), numpy.float32)
    values.keep(slot, w, b)
    slot.loss(numpy.mean(error ** 2))
    if 0 <= STEP <= slot.step:
        act(session, slot, w, b)
    push(slot, w, b, of_w, of_b, pool)
    of_w[:] = numpy.nan  # push() has taken the bytes
    if ACT == "silent":
        slot._loss = None


def finish(session, w, b, values):
    values.check()
    with session.finishing() as mine:
        say("finisher" if mine else "not the finisher")
        if mine and ACT == "finish slowly":
            time.sleep(1000)
        if mine and ACT == "finish badly":
            raise OSError("the disk is full")
        if mine:
            numpy.save(OUT, numpy.concatenate([w.value.reshape(-1), b.value]))


def main():
    values, pool = Values(), ThreadPoolExecutor(2)
    with tern.Session(steps=STEPS, slots=6, seed=9, optimizer=tern.Momentum(lr=0.001), records=RECORDS, batch=20,
                      clip_norm=100, data=tern.digest(x), arithmetic="test",
                      # Threads of the hammer push at random times.
                      verify_first=0 if ACT == "hammer" else None,
                      note=lambda text: say("note", text)) as session:
        w = session.tensor("w", (WIDTH // 10, 10), tern.uniform(0.1))
        b = session.tensor("b", 3, tern.constant(0.5))
        hammer = Hammer(session, w, b) if ACT == "hammer" else None
        for slot in session.slots():
            say("step", slot.step)
            if hammer:
                hammer.slot = slot
            with slot:
                compute(session, slot, w, b, values, pool)
        complain(lambda: slot[w])
        complain(slot.loss, 0)
        complain(slot.__enter__)
        if ACT != "ask nothing":
            finish(session, w, b, values)
    complain(lambda: w.value)
    assert values.view.sum() == values.view.sum()
    if hammer:
        for thread in hammer.threads:
            thread.join()
        say("hammered", hammer.count)


if __name__ == "__main__":
    main()
