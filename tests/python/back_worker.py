# SPDX-License-Identifier: Apache-2.0
"""A worker for back.py: a small least-squares model, in NumPy or PyTorch, that goes back with its job.

usage: back_worker.py KIND OUT STEPS [STEP]

KIND: numpy, torch, or ahead (PyTorch, with a process that reads ahead). Writes the result to OUT as the finisher. Holds
the slot of STEP until the file OUT.go is there. Prints "holds", "finishes", its notes, and "from STEP to STEP" when the
job has gone back. BACK_WAIT in the environment is the session's server_wait. With BACK_EXIT, the program exits when it
would wait for a server. With BACK_SLOW, it sleeps in each slot until the file OUT.go is there, so the job is not over
before a test has hurt it.
"""
import os
import sys
import time

import numpy
import pytern as tern

RECORDS, WIDTH = 300, 20
KIND, OUT, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
HOLD = int(sys.argv[4]) if len(sys.argv) > 4 else -1
x = numpy.random.default_rng(5).standard_normal((RECORDS, WIDTH), numpy.float32)
y = x.sum(axis=1)
steps = []  # those of the slots that were handed in, without the ones that are made again


def say(*words):
    print(*words, flush=True)


def note(text):
    say(text)
    if "BACK_EXIT" in os.environ and "this worker waits" in text:
        os._exit(3)


def on_rollback(reached, to):
    say(f"from {reached} to {to}")
    assert steps[-1] < reached, (steps[-1], reached)
    steps[:] = [step for step in steps if step < to]


def hold(slot, value):
    """In the first slot of STEP: waits while the test ends a server. The values of the slot stay what they are."""
    global HOLD
    if slot.step != HOLD:
        return
    HOLD = -1
    before = value().copy()
    say("holds")
    while not os.path.exists(f"{OUT}.go"):
        time.sleep(0.01)
    assert slot.revoked and (value() == before).all()


def check(slot):
    """Follows the steps. The first slot after the job has gone back says so. A slot of a lost worker, such as one that has
    noticed the loss of a server before the others, may be of the step before. A slow worker may have no slot for some
    steps."""
    last = steps[-1] if steps else slot.step - 1  # a program that was started again begins later
    assert slot.step >= last - 1 or slot.rolled_back_from > slot.step, (last, slot.step)
    if slot.step >= last or slot.rolled_back_from:
        steps.append(slot.step)
    if "BACK_SLOW" in os.environ and not os.path.exists(f"{OUT}.go"):
        time.sleep(0.01)


def work_numpy(session):
    w = session.tensor("w", init=numpy.full(WIDTH, 0.5, numpy.float32))
    for slot in session.slots():
        check(slot)
        with slot:
            hold(slot, lambda: slot.view(w))
            a, b = x[slot.records], y[slot.records]
            error = a @ slot[w] - b
            slot.push(w, 2 * a.T @ error / len(a))
            slot.loss(numpy.mean(error ** 2))
            session.metric("error", numpy.mean(error ** 2))
    return lambda: w.value


def work_torch(session):
    import pytern.torch
    import torch
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 1200), torch.nn.BatchNorm1d(1200), torch.nn.Linear(1200, 1))
    server = pytern.torch.Server(module, session)
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for slot, (a, b) in server.slots(data, workers=int(KIND == "ahead")):
        check(slot)
        with slot:
            hold(slot, lambda: module[0].weight.detach().numpy())
            loss = torch.nn.functional.mse_loss(module(a)[:, 0], b)
            loss.backward()
            slot.loss(loss)
    return lambda: numpy.concatenate([value.numpy().reshape(-1) for value in server.state_dict().values()])


if __name__ == "__main__":
    wait = os.environ.get("BACK_WAIT")
    with tern.Session(steps=STEPS, slots=4, seed=3, optimizer=tern.Adam(lr=0.01), records=RECORDS, batch=16,
                      arithmetic="back", server_wait=None if wait is None else int(wait), on_rollback=on_rollback,
                      note=note) as session:
        values = (work_numpy if KIND == "numpy" else work_torch)(session)
        with session.finishing() as is_finisher:
            if is_finisher:
                say("finishes")
                while HOLD == STEPS and not os.path.exists(f"{OUT}.go"):
                    time.sleep(0.01)
                values().tofile(OUT)
    # All steps were made in the end, each of them last at its place.
    assert steps == sorted(steps), "steps are out of order"
