#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own distributed runtime: parameters are variables on ps tasks, gradients and a
copy of the parameters variables on worker tasks; a round of a worker is one function that
subtracts its gradient at the ps and reads the parameters back. Both cross processes through
TensorFlow's gRPC rendezvous. Updates of several workers are applied one by one, which is how
its parameter servers work.
"""
import multiprocessing
import os
import socket
import sys
import threading

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import ps_common  # noqa: E402


def ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


def cluster_of(options):
    found = [f"127.0.0.1:{port}" for port in ports(options.servers + options.workers)]
    return {"ps": found[:options.servers], "worker": found[options.servers:]}


def be_task(cluster, job, index):
    import tensorflow as tf
    server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index,
                                  start=True)
    server.join()


def make_round(tf, options, worker, shards):
    """(function that makes one round of a worker, the worker's copies of the parameters, by server)."""
    place = f"/job:worker/task:{worker}/cpu:0"
    pulled, gradients = [], []
    for s in range(options.servers):
        first, end = ps_common.range_of(options, s)
        with tf.device(place):
            gradients.append(tf.Variable(
                tf.cast(tf.range(first, end) % 8, tf.float32) / 8))
            pulled.append(tf.Variable(tf.zeros([end - first])))

    @tf.function
    def one_round():
        for s in range(options.servers):
            with tf.device(place):
                step = gradients[s].read_value()
            with tf.device(f"/job:ps/task:{s}/cpu:0"):
                shards[s].assign_sub(ps_common.RATE / options.workers * step)
                now = shards[s].read_value()
            with tf.device(place):
                pulled[s].assign(now)
    return one_round, pulled


def coordinate(options, cluster):
    """Runs the rounds of all workers. Returns (seconds of the slowest worker, TensorFlow's version)."""
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(4)
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec(cluster))
    shards = []
    for s in range(options.servers):
        first, end = ps_common.range_of(options, s)
        with tf.device(f"/job:ps/task:{s}/cpu:0"):
            shards.append(tf.Variable(tf.zeros([end - first])))
    rounds = [make_round(tf, options, w, shards) for w in range(options.workers)]
    together = threading.Barrier(options.workers)
    seconds, failures = [0.0] * options.workers, []

    def work(w):
        one_round, pulled = rounds[w]

        def and_wait():
            together.wait()  # no worker begins a round before all have checked their parameters
            one_round()
            together.wait()

        def element(i):
            """Parameter i, as the worker has it. Of several workers, one's copy may lack the others'
            updates of the same round, so the server's is read."""
            return float(tf.gather((pulled if options.workers == 1 else shards)[0], i))
        try:
            seconds[w] = ps_common.measure(and_wait, element, options.rounds, together.wait)
        except (SystemExit, Exception) as why:  # SystemExit would end only this thread
            failures.append(str(why))
            together.abort()

    threads = [threading.Thread(target=work, args=(w,)) for w in range(options.workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        sys.exit(failures[0])
    return max(seconds), tf.__version__


def main():
    options = ps_common.parse(["ps"])
    cluster = cluster_of(options)
    spawn = multiprocessing.get_context("spawn")  # TensorFlow does not survive a fork
    tasks = [spawn.Process(target=be_task, args=(cluster, job, i), daemon=True)
             for job, addresses in cluster.items() for i in range(len(addresses))]
    for task in tasks:
        task.start()
    seconds, version = coordinate(options, cluster)
    ps_common.report(options, "TensorFlow", version, seconds)
    for task in tasks:
        task.kill()


if __name__ == "__main__":
    main()
