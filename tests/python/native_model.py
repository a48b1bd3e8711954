# SPDX-License-Identifier: Apache-2.0
"""A session without servers, for tests of what pytern.torch does in a slot: class Native stands for the C part."""
import numpy
import pytern as tern


class Native:
    """One worker. The servers' part is gradient descent, at the end of each slot, or what `values` says: values(step,
    name, shape) -> array, where the step after the last one stands for the final values."""

    def __init__(self, slots, records=0, batch=4, lr=0.1, values=None):
        self.count, self.records_count, self.batch, self.lr = slots, records, batch, lr
        self.given = values
        self.names, self.values, self.inits, self.rules = [], [], [], []
        self.turn, self.holds = 0, False
        self.pushed = {}     # of this slot: name -> gradient
        self.history = []    # of each slot: (gradients, loss)
        self.failures = []
        self.job = None

    def tensor(self, name, shape, init, a, b, rule, values):
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
        self.pushed = {}
        if self.given:
            self.values = [self.given(self.turn - 1, name, value.shape).astype(numpy.float32)
                           for name, value in zip(self.names, self.values)]
        return (self.turn, self.turn - 1, 0, self.batch if self.records_count else 0, 1000 + self.turn, False, False,
                False)

    def ahead(self, count):
        return [(turn - 1, 0, 1000 + turn, self.records(turn)) for turn in range(self.turn + 1, self.count + 1)][:count]

    def records(self, turn):
        return ((numpy.arange(self.batch) + turn) % self.records_count).astype(numpy.uint64).tobytes()

    def read(self, turn, number, to):
        assert self.holds and turn == self.turn and to.flags.c_contiguous and to.flags.writeable
        to[...] = self.values[number]

    def push(self, turn, number, gradient):
        assert self.holds and turn == self.turn and self.names[number] not in self.pushed
        assert gradient.dtype == numpy.float32 and gradient.shape == self.values[number].shape
        assert gradient.flags.c_contiguous
        self.pushed[self.names[number]] = gradient.copy()
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
        to[...] = self.given(self.turn, self.names[number], to.shape) if self.given else self.values[number]

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


def session(slots=3, records=0, batch=4, arithmetic="", **options):
    """A pytern.Session, and its Native."""
    s = tern.Session("127.0.0.1:1", steps=9, workers=1, index=0, records=records, batch=batch, arithmetic=arithmetic)
    s._native.close()
    s._native = Native(slots, records, batch, **options)
    return s, s._native
