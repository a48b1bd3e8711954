# SPDX-License-Identifier: Apache-2.0
"""A worker of slow.py, which takes a given time for each slot.

usage: slow_worker.py OUT STEPS SLOTS SECONDS
"""
import sys
import time

import numpy
import pytern

OUT, STEPS, SLOTS, SECONDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
count = 0
with pytern.Session(steps=STEPS, slots=SLOTS, optimizer=pytern.Adam(lr=0.01), verify_first=0) as session:
    w = session.tensor("w", 10_000, init=pytern.normal(0.1))
    for slot in session.slots():
        with slot:
            time.sleep(SECONDS)
            slot.push(w, slot[w] * 0.1 + numpy.float32(0.01 * slot.number))
            slot.loss(1)
            count += 1
    with session.finishing() as is_finisher:
        if is_finisher:
            w.value.tofile(OUT)
print(f"computed {count}", flush=True)
