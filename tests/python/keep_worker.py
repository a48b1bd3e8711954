# SPDX-License-Identifier: Apache-2.0
"""A worker for keeps.py: a least-squares model whose gradients depend on a state of the program, which it keeps as the
job's blob.

usage: keep_worker.py OUT STEPS

The state is a digest of the state before it and the step. Every EVERY steps each worker gives it to the job. A program
that begins, or goes back with its job, takes the state from the blob and makes the steps since then; it prints "kept STEP
of STEP": the blob's step and that of its slot. The finisher writes the result and the state to OUT. Each slot sleeps until
OUT.go is there.
"""
import hashlib
import os
import sys
import time

import numpy
import pytern as tern

EVERY, WIDTH = 7, 12
OUT, STEPS = sys.argv[1], int(sys.argv[2])
states = {}  # the state after so many steps; an early slot may be cancelled, and one of the step before it come then


def state_after(step):
    while step not in states:
        newest = max(states)
        states[newest + 1] = hashlib.sha256(states[newest] + newest.to_bytes(4, "little")).digest()
    return states[step]


def begin(session, slot):
    """Goes on from the blob. It belongs to the newest step up to that of the slot in which one was given."""
    state, at = session.kept()
    print(f"kept {at} of {slot.step}", flush=True)
    assert at == slot.step // EVERY * EVERY, (at, slot.step)
    assert len(state) == (32 if at else 0) and states.get(at, state) == state, state
    states.clear()
    states[at] = state


def check_refusals(slot):
    for wrong, kind, says in ((b"x" * 65_537, ValueError, "at most 65536 bytes, got 65537"), ("text", TypeError, "got str")):
        try:
            slot.keep(wrong)
            raise AssertionError(f"{kind} was not raised")
        except kind as error:
            assert says in str(error), error


def work(session):
    w = session.tensor("w", init=numpy.full(WIDTH, 0.5, numpy.float32))
    begun = False
    for slot in session.slots():
        if not begun or slot.rolled_back_from:
            begin(session, slot)
            try:
                slot.keep(b"")
                raise AssertionError("a blob was taken outside the block")
            except tern.Error as error:
                assert "inside `with slot:` only" in str(error), error
        with slot:
            if not begun:
                check_refusals(slot)
            begun = True
            x = numpy.frombuffer(state_after(slot.step) or bytes(32), numpy.uint8)[:WIDTH].astype(numpy.float32) / 256 + slot.number
            slot.push(w, (slot[w] @ x - 1) * x)
            if (slot.step + 1) % EVERY == 0:
                counts = slot.keep(state_after(slot.step + 1))
                assert counts == (slot.number == 0 and not slot.revoked) or slot.revoked, (counts, slot)
            slot.loss(0.0)
            if not os.path.exists(f"{OUT}.go"):
                time.sleep(0.003)
    return w


with tern.Session(steps=STEPS, slots=4, seed=3, optimizer=tern.Adam(lr=0.01), arithmetic="keep") as session:
    w = work(session)
    with session.finishing() as is_finisher:
        if is_finisher:
            with open(OUT, "wb") as file:
                file.write(w.value.tobytes() + state_after(STEPS))
