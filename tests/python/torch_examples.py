# SPDX-License-Identifier: Apache-2.0
"""The examples for PyTorch learn, and give the same bytes for any number of workers and servers over tcp and shm, and
after the loss of a worker.

usage: torch_examples.py TERN
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from jobs import LIMIT_S, SCRATCH, TOP, Job, make_images, tap

EXAMPLES = TOP / "docs" / "examples"
JOBS = [(workers, servers, fabric) for fabric in ("tcp", "auto") for servers in (1, 2) for workers in (1, 2, 3)]


def make_text():
    text = SCRATCH / "text"
    text.write_text("the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 40)
    return text


def run_example(name, workers, servers, fabric, *arguments):
    """Returns the bytes of the final parameters, and the number that the finisher prints."""
    out = SCRATCH / "model.pt"
    with Job(workers, servers, fabric) as job:
        for i in range(workers):
            job.worker(i, EXAMPLES / name, *arguments, out)
        job.end()
        said = [line for w in job.workers.values() for line in w.lines if line and line.split()[0] in ("accuracy", "loss")]
    assert len(said) == 1, said
    return {key: value.numpy().tobytes() for key, value in torch.load(out).items()}, float(said[0].split()[1])


def same_bytes(name, learned, *arguments):
    first = None
    for workers, servers, fabric in JOBS:
        got, number = run_example(name, workers, servers, fabric, *arguments)
        assert learned(number), (name, number)
        first = first or got
        assert got == first, (name, workers, servers, fabric)


def the_convolutional_network_learns_with_equal_bytes():
    same_bytes("torch_mnist.py", lambda accuracy: accuracy > 0.8, "--steps", 25, *make_images())


def the_transformer_learns_with_equal_bytes():
    same_bytes("torch_text.py", lambda loss: loss < 2.9, "--steps", 25, make_text())


def lost(name, sign, fabric, *arguments):
    """Trains with two workers, one of which gets a signal at a random time after the start. Returns the bytes."""
    out = SCRATCH / "model.pt"
    out.unlink(missing_ok=True)
    with Job(2, 1, fabric) as job:
        for i in range(2):
            job.worker(i, EXAMPLES / name, *arguments, out)
        job.servers[0].wait_line(lambda line: '"begun"' in line)
        delay = random.uniform(0, 1)
        time.sleep(delay)
        process = job.workers.pop(1)
        process.process.send_signal(sign)
        code = process.process.wait(LIMIT_S)
        print(f"# {name} over {fabric}: {sign.name} after {delay:.2f} s, exit code {code}")
        assert code in (-sign, 0), process.said()  # 0: it had come to its end
        job.end()
        process.kill()
    return {key: value.numpy().tobytes() for key, value in torch.load(out).items()}


def a_worker_that_is_lost_changes_no_byte():
    """SIGINT comes out of the loop as an exception."""
    for name, arguments in (("torch_mnist.py", ["--steps", 25, *make_images()]), ("torch_text.py", ["--steps", 25,
                                                                                                    make_text()])):
        first, _ = run_example(name, 1, 1, "tcp", *arguments)
        for fabric in ("tcp", "auto"):
            for sign in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
                assert lost(name, sign, fabric, *arguments) == first, (name, sign, fabric)


def mnist_is_learned():
    folder = os.environ.get("TERN_DATA_DIR")
    paths = [Path(folder or ".") / f"t10k-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    if not all(path.exists() for path in paths):
        raise tap.Skip("TERN_DATA_DIR names no folder with the MNIST test files")
    _, accuracy = run_example("torch_mnist.py", 2, 1, "auto", *paths)
    print(f"# accuracy {accuracy}")
    assert accuracy >= 0.97, accuracy


CASES = [
    the_convolutional_network_learns_with_equal_bytes,
    the_transformer_learns_with_equal_bytes,
    a_worker_that_is_lost_changes_no_byte,
    mnist_is_learned,
]
tap.run([case for case in CASES if len(sys.argv) < 3 or case.__name__ in sys.argv[2:]])
