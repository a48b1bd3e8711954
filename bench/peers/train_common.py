# SPDX-License-Identifier: Apache-2.0
"""All contenders of the question `train` have this in common: the arguments, the models' parameters and their initial
values, the data, which records each step has, the clock, the checks, and the line of JSON. It imports no framework.

A step is computed by all workers: each has `batch` records of its own, and the step's gradient is the mean of theirs.
SGD updates the parameters, and each operation is computed by one thread.

A training has three parts: `--learn` steps in which worker 0 looks at the loss and the accuracy, the warm-up, and
`--steps` steps that are timed, in which nobody looks at anything. A look makes worker 0 stand still, and what others do
meanwhile depends on the contender: TensorFlow's workers have nothing to do, others compute up to a step.
"""
import argparse
import contextlib
import dataclasses
import gzip
import json
import math
import os
import struct
import sys
import time
from pathlib import Path

import numpy

TOP = Path(__file__).resolve().parents[2]
WARMUP = 5  # steps between the last look and those that are timed; also the first steps of a model without `--learn`
# Steps after which the loss is compared with that of others; if `--learn` is shorter, after the last step. Later the
# difference grows: sums in another order change the small MLP's loss by 10^-5 of it after 40 steps, and by 10^-3 after
# 600.
COMPARED = 40
EVERY = 20  # steps between two looks at the accuracy
HELD = 2000  # images at the end of the set that are kept for the accuracy
LENGTH, WIDTH, HEADS, LAYERS = 64, 128, 4, 2  # of the transformer; LENGTH: characters of a record
TICKS = os.sysconf("SC_CLK_TCK")


# ---- models ----

@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    batch: int  # records of each worker in a step
    lr: float
    sizes: tuple = ()  # units of the layers of an MLP; (): the transformer


MODELS = {model.name: model for model in (
    Model("mlp", 128, 0.2, (784, 256, 128, 10)), Model("wide", 32, 0.2, (784, 4096, 4096, 10)),
    Model("transformer", 16, 0.1))}


def matrix(outputs, inputs):
    """A weight: its shape, and the bound of its uniform distribution, which is that of torch.nn.Linear."""
    return (outputs, inputs), ("uniform", 1 / math.sqrt(inputs))


def vector(count, value=0.0):
    return (count,), ("constant", value)


def layer(name):
    """The parameters of one torch.nn.TransformerEncoderLayer."""
    return {f"{name}.self_attn.in_proj_weight": matrix(3 * WIDTH, WIDTH),
            f"{name}.self_attn.in_proj_bias": vector(3 * WIDTH),
            f"{name}.self_attn.out_proj.weight": matrix(WIDTH, WIDTH),
            f"{name}.self_attn.out_proj.bias": vector(WIDTH),
            f"{name}.linear1.weight": matrix(4 * WIDTH, WIDTH), f"{name}.linear1.bias": vector(4 * WIDTH),
            f"{name}.linear2.weight": matrix(WIDTH, 4 * WIDTH), f"{name}.linear2.bias": vector(WIDTH),
            f"{name}.norm1.weight": vector(WIDTH, 1.0), f"{name}.norm1.bias": vector(WIDTH),
            f"{name}.norm2.weight": vector(WIDTH, 1.0), f"{name}.norm2.bias": vector(WIDTH)}


def parameters(model, data):
    """{name, as torch has it: (shape, how it begins)}. The transformer's embedding is its output layer, too."""
    found = {}
    for i, (inputs, outputs) in enumerate(zip(model.sizes, model.sizes[1:])):
        found[f"{2 * i}.weight"], found[f"{2 * i}.bias"] = matrix(outputs, inputs), vector(outputs)
    if not model.sizes:
        found["embedding.weight"] = (data.symbols, WIDTH), ("uniform", 0.1)
        found["place"] = (LENGTH, WIDTH), ("uniform", 0.02)
        for i in range(LAYERS):
            found.update(layer(f"layers.{i}"))
        found["out.bias"] = vector(data.symbols)
    return found


# ---- initial values ----

SEED, STREAM = 1, 0x706172616d


def mixed(x):
    """tern_mix64() of base/rng.h, for arrays of uint64."""
    x = x + numpy.uint64(0x9e3779b97f4a7c15)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
    return x ^ (x >> numpy.uint64(31))


def key_of(name):
    """tern_key() of the library."""
    found = 0xcbf29ce484222325
    for byte in name.encode():
        found = (found ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return found


def initial(name, shape, init):
    """The values with which Tern's servers begin, as ps/param.c makes them. Everybody begins with these, so that after
    the same steps everybody has the same loss."""
    kind, value = init
    if kind == "constant":
        return numpy.full(shape, value, numpy.float32)
    numbers = numpy.array([SEED], numpy.uint64)
    for part in (STREAM, key_of(name)):
        numbers = mixed(numbers) ^ numpy.uint64(part)
    numbers = mixed(mixed(numbers) ^ numpy.arange(math.prod(shape), dtype=numpy.uint64))
    bound = float(numpy.float32(value))
    unit = (numbers >> numpy.uint64(11)).astype(numpy.float64) * 2.0 ** -53
    return (-bound + 2 * bound * unit).astype(numpy.float32).reshape(shape)


# ---- data ----

@dataclasses.dataclass
class Data:
    name: str
    x: numpy.ndarray
    y: numpy.ndarray
    test_x: numpy.ndarray
    test_y: numpy.ndarray
    symbols: int = 0  # of a text


def read_idx(path):
    try:
        data = gzip.decompress(path.read_bytes())
    except OSError as error:
        sys.exit(f"{path}: {error.strerror or error}")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(shape)


def synthetic():
    """10,000 images that can be learned: each is one of three random patterns of its label, of which a part of the
    points is missing, and others are added."""
    dice = numpy.random.RandomState(4)
    patterns = dice.random_sample((10, 3, 784)) < 0.2
    y, which = dice.randint(0, 10, 10000), dice.randint(0, 3, 10000)
    kept, added = dice.random_sample((2, 10000, 784)) < numpy.array([0.5, 0.1]).reshape(2, 1, 1)
    return (patterns[y, which] & kept | added).astype(numpy.float32), y


def images(folder):
    if folder:
        x, y = (read_idx(Path(folder) / f"t10k-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
        x = x.reshape(len(x), -1).astype(numpy.float32) / 255
    else:
        x, y = synthetic()
    y = y.astype(numpy.int64)
    return Data("MNIST" if folder else "synthetic", x[:-HELD], y[:-HELD], x[-HELD:], y[-HELD:])


def text():
    """Windows of LENGTH characters of this repository's licence, and the same windows one character later."""
    symbols, codes = numpy.unique(numpy.frombuffer((TOP / "LICENSE").read_bytes(), numpy.uint8), return_inverse=True)
    windows = numpy.lib.stride_tricks.sliding_window_view(codes.astype(numpy.int64), LENGTH)
    x, y = windows[:-1], windows[1:]
    return Data("LICENSE", x, y, x[::len(x) // 64], y[::len(y) // 64], len(symbols))


def data_of(options):
    return images(options.data) if options.model.sizes else text()


def steps_of(options):
    """The number of steps of the whole training."""
    return options.learn + WARMUP + options.steps


def order(options, data):
    """The numbers of the records, as an array [step][worker][record]."""
    return numpy.random.RandomState(1).randint(
        0, len(data.x), (steps_of(options), options.workers, options.model.batch))


# ---- measuring ----

def parse(variants=("",), arguments=None):
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=MODELS, required=True)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--steps", type=int, required=True, help="steps that are timed, without looks")
    p.add_argument("--learn", type=int, default=0,
                   help=f"steps with looks at the accuracy, before the warm-up of {WARMUP} steps")
    p.add_argument("--data", default="", help="a folder with MNIST's test files; without it, images are made up")
    p.add_argument("--accuracy", type=float, default=0.0,
                   help="must be reached in the steps of --learn; 0: is not asked for")
    p.add_argument("--variant", choices=variants, default=variants[0])
    options = p.parse_args(arguments)
    options.model = MODELS[options.model]
    return options


def processor_seconds():
    """Processor time of all processes of this session: workers, servers, and what has started them."""
    ours, ticks = os.getsid(0), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == ours:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


class Run:
    """The measurements of one process of a contender, which calls before() at the beginning of each step, with the
    parameters of that step, and end() with the final ones. test(): (loss, accuracy) with the present parameters on
    the test data."""

    def __init__(self, options, data, test):
        self.options, self.data, self.test = options, data, test
        self.start = options.learn + WARMUP  # the first step that is timed
        self.step = -1  # the last one that before() was called with
        self.began = self.processor = 0.0
        self.accuracy, self.reached = math.nan, None  # of the last look; the steps until it was what is asked for
        self.first = self.compared = math.nan  # losses

    def looks_at(self, step):
        """True if before() tests the parameters that this step begins with."""
        learn = self.options.learn
        due = (step % EVERY == 0 or step == learn) and self.is_waiting()
        return step == 0 or (step <= learn and (due or step == COMPARED))

    def is_due(self, step):
        """True if before() looks at the parameters or the clock."""
        return step == self.start or self.looks_at(step)

    def is_waiting(self):
        """True as long as the accuracy is asked for and not there."""
        return bool(self.options.accuracy) and self.reached is None

    def before(self, step):
        """Ignores a step that has begun before: Tern's workers compute their first slot twice."""
        if step <= self.step:
            return
        self.step = step
        if self.looks_at(step):
            self.look(step)
        if step == self.start:
            self.began, self.processor = time.monotonic(), processor_seconds()

    def look(self, step):
        loss, self.accuracy = self.test()
        if step == 0:
            self.first = loss
        if step == COMPARED:
            self.compared = loss
        if self.is_waiting() and self.accuracy >= self.options.accuracy:
            self.reached = step

    def end(self, same_steps=True, **more):
        """same_steps: every step applied the mean of all workers' gradients."""
        options = self.options
        seconds = (time.monotonic() - self.began) / options.steps
        processor = (processor_seconds() - self.processor) / options.steps
        loss, _ = self.test()
        self.check(loss)
        line = {"model": options.model.name, "workers": options.workers, "wait": "sleep",
                "data": self.data.name, "same_steps": same_steps,
                "loss": loss if math.isnan(self.compared) else self.compared,
                "samples_per_s": options.workers * options.model.batch / seconds,
                "cpu_ms_per_step": processor * 1e3, **more}
        if options.accuracy:
            line["accuracy_s"] = self.reached * seconds
        print(json.dumps(line), flush=True)

    def check(self, loss):
        """Exits if it has not learned."""
        options = self.options
        if not loss < 0.99 * self.first:
            sys.exit(f"the loss on the test data is {loss:.4f} after {steps_of(options)} steps, and was "
                     f"{self.first:.4f} before them")
        if self.is_waiting():
            sys.exit(f"the accuracy is {self.accuracy:.4f} after {options.learn} steps, not {options.accuracy:g}")
