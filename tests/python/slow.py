# SPDX-License-Identifier: Apache-2.0
"""A worker that is much slower than the others: its slots move to others, and the bytes of the result are the same.

usage: slow.py TERN [CASE...]
"""
import functools

import jobs
from jobs import HERE, SCRATCH, tap

STEPS, USUAL_S, SLOW_S = 60, 0.01, 0.2


def train(name, fabric, slots, slow):
    """A job of two servers and three workers. Returns the result, how many slots each worker has computed, and the lines of
    server 0."""
    out = SCRATCH / name
    with jobs.Job(3, 2, fabric) as job:
        for i in range(3):
            job.worker(i, HERE / "slow_worker.py", out, STEPS, slots, SLOW_S if i == slow else USUAL_S)
        job.end()
        counts = [int(w.wait_line(lambda line: line.startswith("computed ")).split()[1]) for w in job.workers.values()]
        return out.read_bytes(), counts, [line for line in job.servers[0].lines if line]


@functools.cache
def undisturbed(slots):
    return train(f"undisturbed-{slots}", "auto", slots, None)[0]


def slots_move(fabric, slots):
    result, counts, lines = train(f"slow-{slots}", fabric, slots, 1)
    assert result == undisturbed(slots)
    assert any("moves from worker 1" in line and "which is slow" in line for line in lines), lines
    assert counts[1] < STEPS * slots / 3 / 2, counts


def spare_takes_the_slot_of_a_slow_worker_over_shm():
    slots_move("auto", 2)


def spare_takes_the_slot_of_a_slow_worker_over_tcp():
    slots_move("tcp", 2)


def others_take_the_slots_of_a_slow_worker():
    slots_move("tcp", 6)


if __name__ == "__main__":
    tap.run([spare_takes_the_slot_of_a_slow_worker_over_shm, spare_takes_the_slot_of_a_slow_worker_over_tcp,
             others_take_the_slots_of_a_slow_worker])
