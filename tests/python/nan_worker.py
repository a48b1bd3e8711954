# SPDX-License-Identifier: Apache-2.0
"""A worker for nan.py: least squares in NumPy or PyTorch, in which chosen slots have a loss that is no number.

usage: nan_worker.py KIND OUT STEPS STEP:SLOT...

KIND: numpy or torch. STEP is counted from 1, as in what Tern says; SLOT `all` names all slots of the step. The finisher
writes the result to OUT, and the records of its slots to OUT.records (numpy). Each slot takes some milliseconds, so
that a test can kill processes meanwhile.
"""
import json
import sys
import time

import numpy
import pytern as tern

RECORDS, WIDTH, SLOTS, LR = 300, 20, 4, 0.05
x = numpy.random.default_rng(5).standard_normal((RECORDS, WIDTH), numpy.float32)
y = x.sum(axis=1)
seen = []


def gradient(w, records):
    a, b = x[records], y[records]
    error = a @ w - b
    return 2 * a.T @ error / len(a), numpy.mean(error ** 2)


def work_numpy(session, has_no_loss):
    w = session.tensor("w", init=numpy.full(WIDTH, 0.5, numpy.float32))
    for slot in session.slots():
        time.sleep(0.004)
        with slot:
            seen.append((slot.step + 1, slot.number, slot.records.tolist()))
            g, loss = gradient(slot[w], slot.records)
            bad = has_no_loss(slot)
            slot.push(w, g * numpy.nan if bad else g)
            slot.loss(float("nan") if bad else loss)
    return lambda: w.value


def work_torch(session, has_no_loss):
    import pytern.torch
    import torch
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    server = pytern.torch.Server(module, session)
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for slot, (a, b) in server.slots(data):
        time.sleep(0.002)
        with slot:
            if has_no_loss(slot):
                a = a * float("inf")
            loss = torch.nn.functional.mse_loss(module(a)[:, 0], b)
            loss.backward()
            slot.loss(loss)
    return lambda: numpy.concatenate([value.numpy().reshape(-1) for value in server.state_dict().values()])


def main():
    kind, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    bad = set(sys.argv[4:])

    def has_no_loss(slot):
        return not bad.isdisjoint({f"{slot.step + 1}:{slot.number}", f"{slot.step + 1}:all"})

    with tern.Session(steps=steps, slots=SLOTS, seed=3, optimizer=tern.SGD(lr=LR), records=RECORDS, batch=16,
                      arithmetic="nan") as session:
        values = (work_numpy if kind == "numpy" else work_torch)(session, has_no_loss)
        with session.finishing() as is_finisher:
            if is_finisher:
                values().tofile(out)
                with open(f"{out}.records", "w", encoding="ascii") as file:
                    json.dump(seen, file)


if __name__ == "__main__":
    main()
