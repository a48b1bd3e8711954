# SPDX-License-Identifier: Apache-2.0
"""pytern.jax: what it declares, hands out, sends and refuses, and the same bytes for any number of workers and servers.

usage: jax_training.py TERN
"""
import with_jax  # noqa: F401  (must be the first: it may start this script again, with another Python)
import sys

import jax
import jax.numpy as jnp
import numpy
import pytern as tern
import pytern.jax

from jobs import SCRATCH, TOP, Job, tap
from native_model import session

EXAMPLE = TOP / "docs" / "examples" / "jax_mlp.py"
PARAMS = {"layers": [{"w": jnp.zeros((3, 4)), "b": jnp.ones(4)}, {"w": jnp.zeros((4, 2))}], "scale": jnp.asarray(2.0)}
INIT = {"layers.*.w": tern.normal(0.1)}


def refused(kind, sentence, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        assert type(error) is kind and str(error).startswith(sentence), f"{type(error).__name__}: {error}"
        return
    raise AssertionError(f"nothing was raised, expected {kind.__name__}: {sentence}")


def loss(params, x):
    y = jnp.tanh(x @ params["layers"][0]["w"] + params["layers"][0]["b"]) @ params["layers"][1]["w"]
    return jnp.mean((y * params["scale"]) ** 2)


def trees_have_the_slots_version_and_keep_it():
    s, native = session(slots=5, arithmetic="mine", values=lambda step, name, shape: numpy.full(shape, step + len(name)))
    kept = []
    with s:
        server = pytern.jax.Server(PARAMS, s, init=INIT)
        for slot in s.slots():
            with slot:
                kept.append(server.tree(slot))
                slot.loss(0)
    assert native.names == ["layers.0.b", "layers.0.w", "layers.1.w", "scale"]
    assert native.inits == [(4, 0.0, 0.0), (3, 0.0, 0.1), (3, 0.0, 0.1), (4, 0.0, 0.0)]
    assert native.job[7].startswith("mine; jax ") and len(native.job[7]) < 128
    for step, tree in enumerate(kept):
        assert jax.tree_util.tree_structure(tree) == jax.tree_util.tree_structure(PARAMS)
        for name, leaf in zip(native.names, jax.tree_util.tree_leaves(tree)):
            assert (leaf == step + len(name)).all(), (step, name)


def training_begins_with_the_values_of_the_tree():
    params = {"b": jnp.arange(5.0), "w": jax.random.normal(jax.random.PRNGKey(3), (4, 5)).T, "a": jnp.asarray(2.5)}
    s, native = session(slots=1)
    with s:
        server = pytern.jax.Server({**params, "c": jax.ShapeDtypeStruct((3,), jnp.float32)}, s, init={"c": tern.zeros()})
        for slot in s.slots():
            with slot:
                tree = server.tree(slot)
                slot.loss(0)
    assert native.inits == [(4, 0.0, 0.0), (4, 0.0, 0.0), (0, 0.0, 0.0), (4, 0.0, 0.0)]
    for name, leaf in params.items():
        assert numpy.array_equal(tree[name], leaf), name


def gradients_of_a_tree_are_pushed_by_their_names():
    s, native = session(slots=2)
    x = jnp.linspace(-1, 1, 15).reshape(5, 3)
    with s:
        server = pytern.jax.Server(PARAMS, s, init=INIT)
        for slot in s.slots():
            with slot:
                params = server.tree(slot)
                value, gradients = jax.value_and_grad(loss)(params, x)
                server.push_tree(slot, gradients)
                slot.loss(value)
                for name, leaf in zip(native.names, jax.tree_util.tree_leaves(gradients)):
                    assert numpy.array_equal(native.pushed[name], leaf)
                other = type(slot)(s, 1, 0, 0, 0, slot.seed + (1 << 40), False, False)
                assert not numpy.array_equal(server.key(slot), server.key(other))
    for value, leaf in zip(native.values, jax.tree_util.tree_leaves(server.final())):
        assert numpy.array_equal(value, leaf)


def a_leaf_without_a_gradient_is_not_pushed():
    s, native = session(slots=1)
    with s:
        server = pytern.jax.Server({"b": jnp.zeros(2), "w": [jnp.ones(3), jnp.ones(4)]}, s)
        for slot in s.slots():
            with slot:
                server.push_tree(slot, {"b": None, "w": [jnp.zeros(3), None]})
                slot.loss(0)
                assert list(native.pushed) == ["w.0"]
                refused(ValueError, "push_tree: expected gradients in the tree ", server.push_tree, slot,
                        {"b": None, "w": None})


def a_tree_may_have_none_where_it_has_no_parameter():
    s, native = session(slots=1)
    with s:
        server = pytern.jax.Server({"b": None, "w": jnp.ones(3)}, s)
        for slot in s.slots():
            with slot:
                assert server.tree(slot)["b"] is None
                server.push_tree(slot, jax.grad(lambda p: jnp.sum(p["w"] ** 2))(server.tree(slot)))
                assert list(native.pushed) == ["w"]
                slot.loss(0)


def what_cannot_be_trained_is_refused_by_name():
    s, native = session(slots=1)
    refused(ValueError, "parameter w: expected an array of float32, got int32", pytern.jax.Server,
            {"w": jnp.zeros(3, jnp.int32)}, s)
    refused(ValueError, "parameter w: expected an array of float32, got float", pytern.jax.Server, {"w": 1.0}, s)
    refused(ValueError, "parameter w has no values: state how it begins", pytern.jax.Server,
            {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}, s)
    refused(ValueError, "init: v: the tree has no such parameter", pytern.jax.Server, {"w": jnp.zeros(3)}, s,
            init={"v": tern.zeros()})
    refused(ValueError, "Server: the tree has no parameters", pytern.jax.Server, {}, s)
    refused(TypeError, "Server: expected a pytern.Session, got int", pytern.jax.Server, PARAMS, 3)
    assert not native.names
    with s:
        server = pytern.jax.Server(PARAMS, s, init=INIT)
        for slot in s.slots():
            with slot:
                refused(ValueError, "push_tree: expected gradients in the tree ", server.push_tree, slot, {"w": 1})
                slot.loss(0)


def run_example(workers, servers, fabric):
    out = SCRATCH / "weights.npz"
    with Job(workers, servers, fabric) as job:
        for i in range(workers):
            job.worker(i, EXAMPLE, out)
        job.end()
        said = [line for w in job.workers.values() for line in w.lines if line and line.startswith("accuracy")]
    assert len(said) == 1 and float(said[0].split()[1]) > 0.9, said
    with numpy.load(out) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


def the_example_learns_and_its_bytes_are_the_same():
    first = run_example(1, 1, "tcp")
    for workers, servers, fabric in ((2, 1, "auto"), (3, 2, "tcp")):
        assert run_example(workers, servers, fabric) == first, (workers, servers, fabric)


tap.run([
    trees_have_the_slots_version_and_keep_it,
    training_begins_with_the_values_of_the_tree,
    gradients_of_a_tree_are_pushed_by_their_names,
    a_leaf_without_a_gradient_is_not_pushed,
    a_tree_may_have_none_where_it_has_no_parameter,
    what_cannot_be_trained_is_refused_by_name,
    the_example_learns_and_its_bytes_are_the_same,
])
