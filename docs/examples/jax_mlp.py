# SPDX-License-Identifier: Apache-2.0
"""Trains a network of two dense layers in JAX, with dropout, with Tern's parameter servers.

    tern run --servers 1 --workers 2 -- python3 jax_mlp.py weights.npz

The worker that finishes the job writes the weights to the file. Their bytes are the same for any number of workers and
servers.
"""
import sys

import jax
import jax.numpy as jnp
import numpy
import pytern as tern
import pytern.jax

RECORDS, FEATURES, HIDDEN = 4000, 8, 64


def make_data():
    """Stands for the data: points inside and outside of a sphere. Every worker makes the same ones."""
    x = numpy.random.default_rng(7).standard_normal((RECORDS, FEATURES), numpy.float32)
    return x, ((x ** 2).sum(1) > FEATURES).astype(numpy.float32)


def make_params():
    """Every worker makes the same initial values, as the servers check."""
    hidden, out = jax.random.split(jax.random.PRNGKey(1))
    return {"hidden": {"w": 0.3 * jax.random.normal(hidden, (FEATURES, HIDDEN)), "b": jnp.zeros(HIDDEN)},
            "out": {"w": 0.1 * jax.random.normal(out, (HIDDEN, 1)), "b": jnp.zeros(1)}}


def logits(params, x, key=None):
    hidden = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    if key is not None:  # dropout
        hidden = jnp.where(jax.random.bernoulli(key, 0.9, hidden.shape), hidden / 0.9, 0)
    return (hidden @ params["out"]["w"] + params["out"]["b"])[:, 0]


def loss(params, x, y, key):
    of = logits(params, x, key)
    return jnp.mean(jnp.logaddexp(0, of) - y * of)


def train(path):
    x, y = make_data()
    params = make_params()
    step = jax.jit(jax.value_and_grad(loss))
    with tern.Session(steps=300, slots=4, seed=3, optimizer=tern.Adam(lr=5e-3), records=RECORDS, batch=32,
                      data=tern.digest(x, y), arithmetic="jax_mlp 1") as session:
        server = pytern.jax.Server(params, session)
        for slot in session.slots():
            with slot:
                mine = slot.records
                value, gradients = step(server.tree(slot), x[mine], y[mine], server.key(slot))
                server.push_tree(slot, gradients)
                slot.loss(value)
        with session.finishing() as is_finisher:
            if is_finisher:
                final = server.final()
                print(f"accuracy {numpy.mean((logits(final, x) > 0) == y):.3f}", flush=True)
                numpy.savez(path, **{f"{layer}.{name}": value for layer, of in final.items() for name, value in of.items()})


if __name__ == "__main__":
    train(sys.argv[1])
