# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers have initial values: the same bytes for any number of workers and servers, and what becomes of a
worker that has other ones.

usage: given.py TERN [the simulated driver's libraries]
"""
import functools
import os
import sys
from pathlib import Path

from jobs import SCRATCH, Job, tap

# A worker whose values follow from a seed. Prints what the finisher has.
PROGRAM = """
import hashlib
import sys
import numpy
import pytern

seed, path = int(sys.argv[1]), sys.argv[2]
rng = numpy.random.default_rng(seed)
large, small = rng.standard_normal((300, 70), numpy.float32), rng.standard_normal(5)
# Worker 0's values, if those of the workers differ.
first = numpy.random.default_rng(1).standard_normal((300, 70), numpy.float32)
with pytern.Session(steps=6, slots=4, seed=3, **eval(sys.argv[3], vars(pytern))) as s:
    a = s.tensor("a", 1000, pytern.normal(0.1))
    b = s.tensor("b", init=large)
    c = s.tensor("c", (7, 30), pytern.uniform(1))
    d = s.tensor("d", 5, small)
    for slot in s.slots():
        if slot.step == 0 and s._job[2] == 0:
            assert numpy.array_equal(slot[b], first), "the first version has other values"
            assert numpy.isfinite(slot[a]).all() and 0 < abs(slot[c]).max() < 1
        with slot:
            for w in (a, b, c, d):
                slot.push(w, slot[w] * (1 + slot.number))
            slot.loss(1)
    with s.finishing() as mine:
        if mine:
            numpy.savez(path, **{w.name: w.value for w in (a, b, c, d)})
"""


def run(name, seeds, servers=1, fabric="tcp", options="{}", of_servers=()):
    """Trains with a worker for each seed. Returns the bytes of the result."""
    out = SCRATCH / f"{name}.npz"
    out.unlink(missing_ok=True)
    with Job(len(seeds), servers, fabric, *of_servers) as job:
        for i, seed in enumerate(seeds):
            job.worker(i, "-c", PROGRAM, seed, out, options)
        job.end()
    return out.read_bytes()


@functools.cache
def alone():
    return run("alone", [1])


def bytes_are_the_same_for_any_number_of_workers_and_servers():
    for workers, servers, fabric in ((2, 1, "tcp"), (3, 2, "auto"), (1, 2, "auto")):
        assert run("more", [1] * workers, servers, fabric) == alone(), (workers, servers, fabric)


def a_worker_with_other_values_is_refused_by_the_tensors_name():
    out = SCRATCH / "refused.npz"
    with Job(2) as job:
        job.worker(0, "-c", PROGRAM, 1, out, "{}")
        job.servers[0].wait_line(lambda line: '"joined"' in line)
        refused = job.worker(1, "-c", PROGRAM, 2, out, "{}").end(1)
        words = refused.error().splitlines()[-1]
        assert "server 0 refused this worker: tensor b: worker 1" in words, refused.said()
        assert " gives it other initial values than the job (digest " in words, refused.said()
        assert "make them with the same seed (such as torch.manual_seed) or file (--init-from) on all workers, or set init_from_first" in words
        job.worker(1, "-c", PROGRAM, 1, out, "{}")  # takes its place
        job.end()
    assert out.read_bytes() == alone()


def values_of_the_first_worker_count_where_they_may_differ():
    for servers, fabric in ((1, "tcp"), (2, "auto")):
        assert run("first", [1, 5, 6], servers, fabric, "dict(init_from_first=True)") == alone(), (servers, fabric)


def async_jobs_begin_with_given_values():
    """Without gradients the parameters stay what they were given as."""
    with Job(2, 2) as job:
        for i in range(2):
            job.worker(i, "-c", """
import numpy
import pytern
values = numpy.random.default_rng(4).standard_normal(20000, numpy.float32)
with pytern.Session(steps=5, mode="async", slots=0) as s:
    w = s.tensor("w", init=values)
    for slot in s.slots():
        with slot:
            assert numpy.array_equal(slot[w], values)
            slot.loss(0)
    with s.finishing():
        assert numpy.array_equal(w.value, values)
""")
        job.end()


def servers_on_a_simulated_gpu_take_the_values_into_its_memory():
    drivers = [Path(path).resolve() for path in sys.argv[2:]]
    if not drivers:
        raise tap.Skip("this tern was built without CUDA")
    expected = alone()
    os.environ["LD_LIBRARY_PATH"] = ":".join(sorted({str(path.parent) for path in drivers}))
    assert run("gpu", [1, 1], 2, "tcp",
               of_servers=("--server-device", "cuda:0", "--tensor-memory", "device")) == expected


CASES = [
    bytes_are_the_same_for_any_number_of_workers_and_servers,
    a_worker_with_other_values_is_refused_by_the_tensors_name,
    values_of_the_first_worker_count_where_they_may_differ,
    async_jobs_begin_with_given_values,
    servers_on_a_simulated_gpu_take_the_values_into_its_memory,
]
tap.run(CASES)
