#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of jobs with the model without arithmetic (bench/null_model.c), with which bench/ measures the
parameter server. In every step the model checks what the servers have computed.

usage: null_model.py TERN_NULL
"""
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "harness"), str(TESTS / "system" / "e2e")]
import job  # noqa: E402
import tap  # noqa: E402


def trains(model, workers, servers, *data, batch=1):
    if not data:
        data = [job.SCRATCH / "two.svm"]
        data[0].write_text("1 1:1\n-1 2:1\n")
    job.finish("train", "--model", model, "--data", *data, "--lr", 2 ** -10, "--steps", 20, "--batch", batch,
               "--workers", workers, "--servers", servers)


def one_tensor():
    trains("flat:1000000", 1, 1)


def many_tensors_two_workers_two_servers():
    trains("resnet50", 2, 2)


def records_of_any_width_are_left_alone():
    images, labels = job.write_idx("wide")
    trains("flat:1000", 1, 1, images, "--labels", labels, batch=128)


if __name__ == "__main__":
    job.use(sys.argv[1])
    tap.run([one_tensor, many_tensors_two_workers_two_servers,
             records_of_any_width_are_left_alone])
