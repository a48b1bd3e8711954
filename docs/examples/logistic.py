# SPDX-License-Identifier: Apache-2.0
"""Trains a logistic regression in NumPy with Tern's parameter servers.

    tern run --servers 1 --workers 2 -- python3 logistic.py [FILE [STEPS]]

The worker that finishes the job writes the weights to the file. The bytes of the weights are the same for any number of
workers and servers.
"""
import sys

import numpy
import pytern as tern

RECORDS, FEATURES = 5000, 20


def make_data():
    """Stands for the data: points on both sides of a plane. Every worker makes the same ones."""
    rng = numpy.random.default_rng(7)
    x = rng.standard_normal((RECORDS, FEATURES), numpy.float32)
    y = (x @ rng.standard_normal(FEATURES) > 0.5).astype(numpy.float32)
    return x, y


def gradient(x, y, weights, bias):
    """The mean over the records of the gradients, and of the loss."""
    logits = x @ weights + bias
    error = (1 / (1 + numpy.exp(-logits)) - y) / len(y)
    loss = numpy.mean(numpy.logaddexp(0, logits) - y * logits)
    return x.T @ error, error.sum(keepdims=True), loss


def train(path, steps):
    x, y = make_data()
    with tern.Session(
            steps=steps, slots=4, seed=3, optimizer=tern.Adam(lr=0.01),
            records=RECORDS, batch=64, data=tern.digest(x, y),
            # All that the bits of a gradient depend on, besides parameters and records.
            arithmetic=f"logistic 1, numpy {numpy.__version__}") as session:
        weights = session.tensor("weights", FEATURES, init=tern.normal(0.1))
        bias = session.tensor("bias", 1)
        for slot in session.slots():
            with slot:
                mine = slot.records
                of_weights, of_bias, loss = gradient(x[mine], y[mine], slot[weights], slot[bias])
                slot.push(weights, of_weights)
                slot.push(bias, of_bias)
                slot.loss(loss)
        with session.finishing() as is_finisher:
            if is_finisher:
                right = numpy.mean((x @ weights.value + bias.value > 0) == y)
                print(f"accuracy {right:.3f}", flush=True)
                if path:
                    numpy.savez(path, weights=weights.value, bias=bias.value)


if __name__ == "__main__":
    train(sys.argv[1] if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 300)
