# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of `tern train` on the GPU: which there are, and their data.

The jobs of one group train the same model from the same data, and differ in what must not change
a byte of the result: where updates are computed, the fabric, the number of workers, CUDA graphs,
and whether parameters and gradients are in host memory or in the GPU's (--tensor-memory).
"""
import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path

RECORDS, FEATURES = 1200, 40
TEXT = "the quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True)
class Job:
    group: str
    options: list
    out: Path
    server: str
    fabric: str
    workers: int
    plain: bool  # without CUDA graphs
    memory: str = "host"

    LIMIT_S = 30

    @property
    def name(self):
        graphs = "plain launches" if self.plain else "graphs"
        memory = "" if self.memory == "host" else ", tensors in its memory"
        return f"{self.group}: server {self.server}, {self.fabric}, {self.workers} workers, {graphs}{memory}"

    @property
    def directory(self):
        graphs = "plain" if self.plain else "graphs"
        return self.out / "jobs" / f"{self.group}-{self.server}-{self.fabric}-{self.workers}-{graphs}-{self.memory}"

    @property
    def saved(self):
        return self.directory / "model.safetensors"

    @property
    def env(self):
        return {"TERN_CUDA_GRAPHS": "off" if self.plain else "on"}

    def command(self, tern):
        return [tern, "train", *self.options, "--device", "cuda", "--server-device", self.server,
                "--tensor-memory", self.memory, "--fabric", self.fabric, "--workers", str(self.workers), "--slots", "4", "--overwrite", "--save", self.directory,
                "--json"]


def write_records(path):
    """Writes records in the format svmlight. The label is the sign of an alternating sum of the values."""
    chance, lines = random.Random(3), []
    for _ in range(RECORDS):
        values = [chance.uniform(-1, 1) for _ in range(FEATURES)]
        label = "+1" if sum(values[::2]) > sum(values[1::2]) else "-1"
        lines.append(" ".join([label, *(f"{i}:{value:.4f}" for i, value in enumerate(values, 1))]))
    path.write_text("\n".join([*lines, ""]))


def models(out, few):
    """(group, options) of each model."""
    out = out / "jobs"
    out.mkdir(exist_ok=True)
    records, text = out / "records.svm", out / "text.txt"
    write_records(records)
    text.write_text(TEXT * 60)
    steps = 6 if few else 100
    common = ["--optimizer", "adam", "--seed", "7", "--steps", str(steps)]
    return [("mlp", ["--model", "mlp:24,16" if few else "mlp:256,128", "--data", records, "--split", "1000:200",
                     "--batch", "16" if few else "64", *common]),
            ("charlm", ["--model", "charlm:8,8,32" if few else "charlm:16,16,256", "--data", text, "--batch",
                        "16" if few else "64", *common])]


def listed(out, few):
    """For the first model all combinations with tensors in host memory, and some with tensors in the GPU's; for the
    second those that differ most. With `few` only four and three jobs."""
    (first, options), (second, other) = models(out, few)
    most = [("cuda", "shm", 1, False), ("cpu", "tcp", 4, True), ("cuda", "shm", 2, False, "device")]
    every = [(*rest, plain) for plain, *rest in product((False, True), ("cuda", "cpu"), ("shm", "tcp"), (1, 2, 4))]
    if few:
        every = [*most, ("cuda", "tcp", 2, False)]
    else:
        resident = [("cuda", "tcp", 2, False, "device"), ("cpu", "shm", 4, False, "device"),
                    ("cuda", "shm", 4, True, "device")]
        every = most + resident + [variant for variant in every if variant not in most]
    return ([Job(first, options, out, *variant) for variant in every[:len(most)]]
            + [Job(second, other, out, *variant) for variant in most]
            + [Job(first, options, out, *variant) for variant in every[len(most):]])
