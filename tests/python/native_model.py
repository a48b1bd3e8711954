# SPDX-License-Identifier: Apache-2.0
"""A session without servers, for tests of what pytern.torch does in a slot: class Native stands for the C part."""
import mmap
import os

import numpy
import pytern as tern


SCRIBBLE = 1e9  # what a buffer has while something is received there


class Map(mmap.mmap):
    """A private mapping, as that of native_map.c."""

    def renew(self, first, count):
        start = first & -mmap.PAGESIZE
        self.madvise(mmap.MADV_DONTNEED, start, first + count - start)

    def keep(self, first, count):
        self[first:first + count] = self[first:first + count]


class Buffer:
    """Memory in which a version is received."""

    def __init__(self, count):
        self.file = os.memfd_create("buffer")
        os.ftruncate(self.file, 4 * count + mmap.PAGESIZE)
        self.floats = numpy.frombuffer(mmap.mmap(self.file, 0), numpy.float32)


class Native:
    """One worker. The servers' part is gradient descent, at the end of each slot, or what `values` says: values(step,
    name, shape) -> array, where the step after the last one stands for the final values. per_step: its slots of each
    step."""

    def __init__(self, slots, records=0, batch=4, lr=0.1, values=None, per_step=1):
        self.count, self.records_count, self.batch, self.lr = slots, records, batch, lr
        self.given = values
        self.per_step = per_step
        self.names, self.values, self.inits, self.rules = [], [], [], []
        self.turn, self.holds = 0, False
        self.buffers, self.offsets = [], []
        self.maps = 0        # made so far
        self.copied = []     # of this slot: names of the tensors that were copied
        self.pushed = {}     # of this slot: name -> gradient
        self.history = []    # of each slot: (gradients, loss)
        self.failures = []
        self.job = None

    def tensor(self, name, shape, init, a, b, rule, values, push_bf16, pull_bf16):
        rng = numpy.random.default_rng(len(self.names))
        self.names.append(name)
        self.inits.append((init, a, b))
        self.rules.append(rule and rule[0])
        self.values.append(numpy.array(values) if init == 4 else numpy.full(shape, a, numpy.float32) if init < 2 else
                           rng.uniform(-0.3, 0.3, shape).astype(numpy.float32))
        return len(self.names) - 1

    def start(self, *job):
        self.job = job

    def next(self, seconds):
        if self.turn == self.count:
            return False
        self.turn += 1
        self.holds = True
        self.pushed, self.copied = {}, []
        if self.given:
            self.values = [self.given(self.step(), name, value.shape).astype(numpy.float32)
                           for name, value in zip(self.names, self.values)]
        return (self.turn, self.step(), 0, self.batch if self.records_count else 0, 1000 + self.turn, False, False, False)

    def ahead(self, count):
        return [(turn - 1, 0, 1000 + turn, self.records(turn)) for turn in range(self.turn + 1, self.count + 1)][:count]

    def step(self):
        return (self.turn - 1) // self.per_step

    def records(self, turn):
        return ((numpy.arange(self.batch) + turn) % self.records_count).astype(numpy.uint64).tobytes()

    def read(self, turn, number, to):
        assert self.holds and turn == self.turn and to.flags.c_contiguous and to.flags.writeable
        self.copied.append(self.names[number])
        to[...] = self.values[number]

    def place(self, turn):
        """Receives the version, in one of two buffers."""
        assert self.holds and turn == self.turn
        sizes = [-(-value.size // 16) * 16 for value in self.values]  # all are aligned to 64 bytes
        if not self.buffers:
            self.offsets = [int(offset) for offset in numpy.cumsum([0, *sizes])[:-1]]
            self.buffers = [Buffer(sum(sizes)) for _ in range(2)]
        parity = self.step() % 2
        for offset, value in zip(self.offsets, self.values):
            self.buffers[parity].floats[offset:offset + value.size] = value.reshape(-1)
        return parity

    def map(self, turn, ids):
        self.maps += 1
        return (Map(self.buffers[self.step() % 2].file, 0, mmap.MAP_PRIVATE),
                tuple(4 * self.offsets[number] for number in ids))

    def receive(self):
        """Fills the buffer of the next version, as the library does when gradients have been sent."""
        if self.buffers:
            self.buffers[(self.step() + 1) % 2].floats[:] = SCRIBBLE

    def push(self, turn, number, gradient):
        assert self.holds and turn == self.turn and self.names[number] not in self.pushed
        assert gradient.dtype == numpy.float32 and gradient.shape == self.values[number].shape
        assert gradient.flags.c_contiguous
        self.pushed[self.names[number]] = gradient.copy()
        self.receive()
        return True

    def end(self, turn, loss, weight):
        self.history.append((self.pushed, loss))
        for number, name in enumerate(self.names):
            if self.rules[number] == "mean":
                self.values[number] = self.pushed[name]
            elif name in self.pushed:
                self.values[number] = self.values[number] - numpy.float32(self.lr) * self.pushed[name]
        self.holds = False

    def fail(self, turn, text):
        self.failures.append(text)
        self.holds = False

    def param(self, number, to):
        to[...] = self.given(self.step() + 1, self.names[number], to.shape) if self.given else self.values[number]

    def revoked(self, turn):
        return False

    def finisher(self, seconds):
        return True

    def ended(self, seconds):
        return True

    def finished(self, text):
        pass

    def leave(self, text):
        pass

    def notes(self):
        return []

    def close(self):
        pass


def session(slots=3, records=0, batch=4, arithmetic="", mode="sync", **options):
    """A pytern.Session, and its Native."""
    s = tern.Session("127.0.0.1:1", steps=9, workers=1, index=0, records=records, batch=batch, arithmetic=arithmetic,
                     mode=mode)
    s._native.close()
    s._native = Native(slots, records, batch, **options)
    return s, s._native
