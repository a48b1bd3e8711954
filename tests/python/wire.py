# SPDX-License-Identifier: Apache-2.0
"""Jobs whose tensors travel as bf16: they have the bytes of a job of float32 whose program rounds gradients and values
itself, for any number of workers and servers, and send half as much.

usage: wire.py TERN
"""
import functools
import re
import socket
import threading

from jobs import SCRATCH, Job, tap

# Options of the session, then of its tensors: a, b, c and d travel in different ways. With BY_HAND all of them travel as
# float32, and the program rounds what it pushes and what it reads, with numpy's arithmetic.
PROGRAM = """
import sys
import numpy
import pytern

path, options, by_hand = sys.argv[1], eval(sys.argv[2], vars(pytern)), sys.argv[3] == "BY_HAND"
WIRE = {"a": ("bf16", "bf16"), "b": ("f32", "f32"), "c": ("bf16", "f32"), "d": ("f32", "bf16")}
SHAPES = {"a": 40000, "b": (70, 30), "c": 9000, "d": (3, 1000)}

def nearest(x):
    exponent = numpy.frexp(x.astype(numpy.float64))[1]
    step = numpy.ldexp(1.0, numpy.maximum(exponent, -125) - 8)
    return (numpy.rint(x / step) * step).astype(numpy.float32)

rng = numpy.random.default_rng(1)
with pytern.Session(**{"steps": 6, "slots": 4, "seed": 3, **options}) as s:
    tensors = {}
    for name, (push, pull) in WIRE.items():
        init = rng.standard_normal(SHAPES[name], numpy.float32) if name in "ac" else pytern.normal(0.3)
        wire = {} if by_hand else dict(push=push, pull=pull)
        tensors[name] = s.tensor(name, SHAPES[name], init, **wire)
    for slot in s.slots():
        with slot:
            for name, w in tensors.items():
                values = slot[w]
                if by_hand and WIRE[name][1] == "bf16":
                    values = nearest(values)
                noise = numpy.random.default_rng(slot.seed).standard_normal(w.shape, numpy.float32)
                gradient = values * numpy.float32(0.1 * (1 + slot.number)) + noise
                slot.push(w, nearest(gradient) if by_hand and WIRE[name][0] == "bf16" else gradient)
            slot.loss(1)
    with s.finishing() as mine:
        if mine:
            numpy.savez(path, **{name: w.value for name, w in tensors.items()})
"""


def run(name, workers=1, servers=1, fabric="tcp", options="{}", by_hand=False):
    """Trains, and returns the bytes of the result."""
    out = SCRATCH / f"{name}.npz"
    out.unlink(missing_ok=True)
    with Job(workers, servers, fabric) as job:
        for i in range(workers):
            job.worker(i, "-c", PROGRAM, out, options, "BY_HAND" if by_hand else "")
        job.end()
    return out.read_bytes()


@functools.cache
def by_hand(options="{}"):
    return run("by_hand", options=options, by_hand=True)


def bytes_are_those_of_a_program_that_rounds_itself():
    for workers, servers, fabric in ((1, 1, "tcp"), (2, 1, "auto"), (3, 2, "tcp"), (1, 2, "auto")):
        assert run("bf16", workers, servers, fabric) == by_hand(), (workers, servers, fabric)


def gradients_are_clipped_after_they_are_rounded():
    options = "dict(clip_norm=2.5, optimizer=Adam(lr=0.01))"
    assert by_hand(options) != by_hand("dict(optimizer=Adam(lr=0.01))")
    for workers, servers in ((1, 2), (3, 1)):
        assert run("clipped", workers, servers, "auto", options) == by_hand(options), (workers, servers)


def more_slots_than_workers_are_added_up_alike():
    """With 17 slots the last gradient is a partial sum by itself."""
    options = "dict(slots=17, steps=3)"
    for workers, servers in ((1, 1), (2, 2)):
        assert run("slots", workers, servers, "auto", options) == by_hand(options), (workers, servers)


def async_jobs_round_alike():
    """The bytes of an async job with one worker are known."""
    for mode in ("async", "ssp:1"):
        options = f"dict(mode={mode!r}, slots=0)"
        assert run("async", 1, 2, "tcp", options) == by_hand(options), mode
    run("async", 3, 2, "auto", "dict(mode='async', slots=0, steps=12)")


def a_worker_that_pushes_another_type_is_refused():
    out = SCRATCH / "refused.npz"
    with Job(2) as job:
        job.worker(0, "-c", PROGRAM, out, "{}", "")
        job.servers[0].wait_line(lambda line: '"joined"' in line)
        refused = job.worker(1, "-c", PROGRAM, out, "{}", "BY_HAND").end(1)
        words = refused.error().splitlines()[-1]
        assert "server 0 refused this worker: tensor a: worker 1" in words, refused.said()
        assert " pushes it as f32, the job as bf16" in words, refused.said()
        job.worker(1, "-c", PROGRAM, out, "{}", "")  # takes its place
        job.end()
    assert out.read_bytes() == by_hand()


def a_gradient_that_differs_below_the_rounding_is_found_out():
    with Job(1) as job:
        worker = job.worker(0, "-c", """
import itertools
import numpy
import pytern
calls = itertools.count()
with pytern.Session(steps=3, push="bf16") as s:
    w = s.tensor("w", 100)
    for slot in s.slots():
        with slot:
            slot.push(w, numpy.full(100, 1 + 1e-6 * next(calls), numpy.float32))
            slot.loss(1)
""").end(1)
        assert re.search("computed slot 0 of step 0 twice, and 1 of 1 gradients differ, first that of tensor w",
                         worker.error()), worker.said()


class Meter:
    """Passes connections on to a server, and counts the bytes of each direction."""

    def __init__(self, address):
        host, _, port = address.rpartition("://")[2].rpartition(":")
        self.to = host, int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.counts = {"to": 0, "from": 0}
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(self.to)
            for ends in (("to", near, far), ("from", far, near)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, direction, source, sink):
        try:
            while data := source.recv(1 << 16):
                with self.lock:
                    self.counts[direction] += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one end is gone
            pass


ELEMENTS, STEPS = 200_000, 10


def bytes_on_the_wire(push, pull):
    """Returns how many bytes go to the server and come from it in a job of one worker."""
    with Job(1) as job:
        meter = Meter(job.join)
        job.join = meter.address
        job.worker(0, "-c", """
import sys
import numpy
import pytern
elements, steps, push, pull = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
with pytern.Session(steps=steps, push=push, pull=pull) as s:
    w = s.tensor("w", elements, pytern.normal(1))
    for slot in s.slots():
        with slot:
            slot.push(w, slot[w])
            slot.loss(1)
""", ELEMENTS, STEPS, push, pull)
        job.end()
    return meter.counts["to"], meter.counts["from"]


def half_the_bytes_are_sent():
    """All gradients, and all versions but the last. What goes along with them takes little."""
    for push in ("f32", "bf16"):
        for pull in ("f32", "bf16"):
            to, back = bytes_on_the_wire(push, pull)
            least = ELEMENTS * STEPS * (2 if push == "bf16" else 4)
            assert least <= to < 1.05 * least, (push, pull, to, least)
            least = ELEMENTS * (STEPS * (2 if pull == "bf16" else 4) + 4)
            assert least <= back < 1.05 * least, (push, pull, back, least)


CASES = [
    bytes_are_those_of_a_program_that_rounds_itself,
    gradients_are_clipped_after_they_are_rounded,
    more_slots_than_workers_are_added_up_alike,
    async_jobs_round_alike,
    a_worker_that_pushes_another_type_is_refused,
    a_gradient_that_differs_below_the_rounding_is_found_out,
    half_the_bytes_are_sent,
]
tap.run(CASES)
