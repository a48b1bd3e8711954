#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow trains a model with its ParameterServerStrategy: the parameters are variables of a server (ps), the
coordinator, a process more, hands out steps to the workers, and each worker applies its gradient when it has it
(asynchronously, which is the only way of this strategy). So that two workers take steps of the same size as elsewhere,
each applies half of the learning rate.
"""
import math
import multiprocessing
import os
import socket

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import train_common  # noqa: E402
from train_common import HEADS, LAYERS, LENGTH, WIDTH  # noqa: E402


def cluster_of(options):
    sockets = [socket.socket() for _ in range(1 + options.workers)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return {"ps": found[:1], "worker": found[1:]}


def be_task(cluster, job, index):
    import tensorflow as tf
    # An operation has one thread. Four operations may run at once: with one at a time, tasks wait for each other for ever.
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=4)
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc",
                         config=config, start=True).join()


# ---- the models, with the parameters of train_common ----

def mlp(tf, sizes, w, x):
    for i in range(len(sizes) - 1):
        x = tf.linalg.matmul(x, w[f"{2 * i}.weight"], transpose_b=True) + w[f"{2 * i}.bias"]
        x = tf.nn.relu(x) if i < len(sizes) - 2 else x
    return x


def normalised(tf, w, name, x):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, w[f"{name}.bias"], w[f"{name}.weight"], 1e-5)


def linear(tf, w, name, x):
    return tf.linalg.matmul(x, w[f"{name}weight"], transpose_b=True) + w[f"{name}bias"]


def attention(tf, w, name, x, mask):
    heads = tf.reshape(linear(tf, w, f"{name}.in_proj_", x), [-1, LENGTH, 3, HEADS, WIDTH // HEADS])
    queries, keys, values = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))
    scores = tf.linalg.matmul(queries, keys, transpose_b=True) / math.sqrt(WIDTH // HEADS) + mask
    mixed = tf.linalg.matmul(tf.nn.softmax(scores), values)
    mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, WIDTH])
    return tf.reshape(linear(tf, w, f"{name}.out_proj.", mixed), [-1, LENGTH, WIDTH])


def transformer(tf, w, x):
    mask = (1 - tf.linalg.band_part(tf.ones([LENGTH, LENGTH]), -1, 0)) * -1e9
    y = tf.gather(w["embedding.weight"], x) + w["place"]
    for i in range(LAYERS):
        name = f"layers.{i}"
        flat = tf.reshape(y, [-1, WIDTH])
        y = y + attention(tf, w, f"{name}.self_attn", flat, mask)
        y = normalised(tf, w, f"{name}.norm1", tf.reshape(y, [-1, WIDTH]))
        inner = tf.nn.relu(linear(tf, w, f"{name}.linear1.", y))
        y = normalised(tf, w, f"{name}.norm2", y + linear(tf, w, f"{name}.linear2.", inner))
        y = tf.reshape(y, [-1, LENGTH, WIDTH])
    y = tf.reshape(y, [-1, WIDTH])
    return tf.linalg.matmul(y, w["embedding.weight"], transpose_b=True) + w["out.bias"]


class Trainer:
    def __init__(self, tf, options, data, strategy):
        self.tf, self.options, self.data = tf, options, data
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self.variables = {
                name: tf.Variable(train_common.initial(name, shape, init), name=name.replace(".", "_"))
                for name, (shape, init) in train_common.parameters(options.model, data).items()}
        # Each worker has all data, and takes the records that the coordinator names.
        self.sets = iter(self.coordinator.create_per_worker_dataset(
            lambda: tf.data.Dataset.from_tensors((data.x, data.y)).repeat()))
        self.rate = options.model.lr / options.workers
        self.step = tf.function(self.one_step)

    def logits(self, values, x):
        sizes = self.options.model.sizes
        return mlp(self.tf, sizes, values, x) if sizes else transformer(self.tf, values, x)

    def loss(self, logits, y):
        tf = self.tf
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), logits))

    def one_step(self, sets, records):
        """A worker's step. Each parameter is read once, also where the model uses it twice."""
        tf = self.tf
        x, y = next(sets)
        values = {name: variable.read_value() for name, variable in self.variables.items()}
        with tf.GradientTape() as tape:
            tape.watch(list(values.values()))
            loss = self.loss(self.logits(values, tf.gather(x, records)), tf.gather(y, records))
        gradients = tape.gradient(loss, values)
        for name, variable in self.variables.items():
            variable.assign_sub(self.rate * tf.convert_to_tensor(gradients[name]))
        return loss

    def test(self):
        tf = self.tf
        values = {name: tf.constant(variable.numpy()) for name, variable in self.variables.items()}
        logits = self.logits(values, self.data.test_x)
        right = tf.argmax(logits, 1) == self.data.test_y.reshape(-1)
        return float(self.loss(logits, self.data.test_y)), float(tf.reduce_mean(tf.cast(right, tf.float32)))

    def train(self, run):
        order = train_common.order(self.options, self.data)
        for step, parts in enumerate(order):
            if run.is_due(step):  # never while steps are timed, because join() leaves the workers without work
                self.coordinator.join()
            run.before(step)
            for records in parts:
                self.coordinator.schedule(self.step, args=(self.sets, self.tf.constant(records)))
        self.coordinator.join()


def main():
    options = train_common.parse()
    data = train_common.data_of(options)
    cluster = cluster_of(options)
    spawn = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    tasks = [spawn.Process(target=be_task, args=(cluster, job, i), daemon=True)
             for job, addresses in cluster.items() for i in range(len(addresses))]
    for task in tasks:
        task.start()
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    trainer = Trainer(tf, options, data, tf.distribute.ParameterServerStrategy(resolver))
    run = train_common.Run(options, data, trainer.test)
    trainer.train(run)
    run.end(options.workers == 1, peer="TensorFlow", version=tf.__version__)
    for task in tasks:
        task.kill()


if __name__ == "__main__":
    main()
