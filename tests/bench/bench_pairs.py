#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the engine of bench/pair.h, with the programs of Tern and of raw TCP. No figure is judged.

usage: bench_pairs.py TERN_PAIR RAW_TCP
"""
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
import tap  # noqa: E402

TERN_PAIR, RAW_TCP = (str(Path(word).resolve()) for word in sys.argv[1:3])
VARIANTS = [(TERN_PAIR, "tcp"), (TERN_PAIR, "shm"), (RAW_TCP, "plain")]
SIZES = [100, 1 << 20, 0x3001, 8, 64 << 10, 3]


def finish(program, variant, *words):
    return subprocess.run([program, "--variant", variant, "--pin", "no", *map(str, words)], text=True,
                          capture_output=True, timeout=60)


def measured(program, variant, *words):
    done = finish(program, variant, *words)
    assert done.returncode == 0, f"{program} {variant} {words}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def steps_have_tensors_of_different_sizes():
    """The receiver compares the contents of the first step's tensors."""
    for program, variant in VARIANTS:
        for wait in ("poll", "sleep"):
            point, = measured(program, variant, "--test", "step", "--wait", wait, "--size",
                              ",".join(map(str, SIZES)), "--rounds", 20, "--inflight", len(SIZES))
            assert (point["size"], point["inflight"], point["rounds"]) == (sum(SIZES), 6, 20), point
            # gb_per_s and msgs_per_s are of the same time, so their quotient is the mean size.
            bytes_a_message = point["gb_per_s"] * 1e9 / point["msgs_per_s"]
            assert abs(bytes_a_message - sum(SIZES) / 6) < 0.01 * bytes_a_message, point
            assert 0 < point["p50_us"] <= point["p99_us"] <= point["p999_us"], point


def one_size_after_the_other():
    for program, variant in VARIANTS:
        points = measured(program, variant, "--test", "bw", "--wait", "sleep", "--size", "64,1M,7",
                          "--rounds", "20,8,30", "--inflight", 4)
        assert [(p["size"], p["rounds"]) for p in points] == [(64, 20), (1 << 20, 8), (7, 30)], points


def in_both_directions_each_answer_is_a_tensor():
    """Each end compares the contents of the first tensors that it gets."""
    for program, variant in VARIANTS:
        for wait in ("poll", "sleep"):
            points = measured(program, variant, "--test", "both", "--wait", wait, "--size", "3000,4M,100K",
                              "--rounds", "40,20,7", "--inflight", 8)
            assert [(p["size"], p["rounds"]) for p in points] == [
                (3000, 40), (4 << 20, 20), (100 << 10, 7)], points
            for point in points:
                bytes_a_message = point["gb_per_s"] * 1e9 / point["msgs_per_s"]
                assert abs(bytes_a_message / point["size"] - 2) < 0.02, point
                assert 0 < point["p50_us"] <= point["p99_us"], point


def all_threads_are_counted_together():
    """Each thread sends contents that no other thread sends, and the receiving thread checks them."""
    for program, variant in VARIANTS:
        for test in ("rate", "bw"):
            start = time.monotonic()
            points = measured(program, variant, "--test", test, "--wait", "sleep", "--size", "64,64K",
                              "--rounds", "300,50", "--inflight", 16, "--threads", "1,3")
            took = time.monotonic() - start
            assert [(p["threads"], p["size"], p["rounds"]) for p in points] == [
                (count, size, rounds) for count in (1, 3)
                for size, rounds in ((64, 300), (64 << 10, 50))], points
            for point in points:
                bytes_per_s = point["msgs_per_s"] * point["size"]
                # gb_per_s has six decimals, and msgs_per_s has one.
                assert abs(point["gb_per_s"] * 1e9 - bytes_per_s) <= 600 + point["size"] / 10, point
                assert point["cpu_per_message_us"] > 0, point
            # The times that follow from the rates are together shorter than the whole run.
            assert sum(p["threads"] * p["rounds"] / p["msgs_per_s"] for p in points) < took, points


def numbers_of_threads_that_cannot_be_are_refused():
    common = ("--wait", "sleep", "--size", "64", "--rounds", "5")
    for words in (("--test", "rate", "--threads", "0"), ("--test", "rate", "--threads", "2,65"),
                  ("--test", "both", "--threads", "2"), ("--test", "lat", "--offer", "10", "--threads", "2"),
                  ("--test", "rate", "--connect", "127.0.0.1:1", "--threads", "2")):
        done = finish(TERN_PAIR, "tcp", *common, *words)
        assert done.returncode == 2 and "--threads" in done.stderr and not done.stdout, (words, done)


def a_step_needs_a_size_for_each_tensor_under_way():
    common = ("--test", "step", "--wait", "sleep", "--size", "1,2,3")
    for words in (("--rounds", 5, "--inflight", 2), ("--rounds", "5,5,5", "--inflight", 3)):
        done = finish(RAW_TCP, "plain", *common, *words)
        assert done.returncode == 2 and "--test step" in done.stderr, (words, done)


if __name__ == "__main__":
    tap.run([steps_have_tensors_of_different_sizes, one_size_after_the_other,
             in_both_directions_each_answer_is_a_tensor, all_threads_are_counted_together,
             numbers_of_threads_that_cannot_be_are_refused,
             a_step_needs_a_size_for_each_tensor_under_way])
