#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the benchmarks of a client and a server (bench/two.h): many connections (bench/ask.h), and a
small tensor beside large ones (bench/beside.h). No figure is judged.

usage: bench_two.py CONNECTIONS RAW_CONNECTIONS HEAD_OF_LINE
"""
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
import tap  # noqa: E402

OURS, RAW, BESIDE = (str(Path(word).resolve()) for word in sys.argv[1:4])
FIELDS = {"first_byte_us", "kib_per_connection", "idle_cpu_percent", "p50_us"}


def finish(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def each_number_of_connections_is_measured():
    for command in ([OURS, "tcp"], [OURS, "shm"], [RAW]):
        done = finish(*command, "1,3")
        assert done.returncode == 0, (command, done.stderr)
        one, three = map(json.loads, done.stdout.splitlines())
        assert (one["point"], three["point"]) == ("1", "3"), done.stdout
        assert FIELDS <= set(one) and set(three) == set(one) | {"connections_per_s"}, done.stdout
        assert three["connections_per_s"] > 0 and one["p50_us"] > 0, done.stdout


def large_tensors_move_beside_the_small_one_only_when_they_are_started():
    for fabric in ("tcp", "shm"):
        done = finish(BESIDE, fabric, "100")
        assert done.returncode == 0, done.stderr
        idle, beside = map(json.loads, done.stdout.splitlines())
        assert idle["point"] == "idle" and idle["beside_gb_per_s"] == 0, idle
        assert beside["beside_gb_per_s"] > 0, beside
        for line in (idle, beside):
            assert 0 < line["p50_us"] <= line.get("p99_us", line["p50_us"]), line


def wrong_arguments_are_refused():
    for command in ([OURS], [OURS, "1"], [OURS, "tcp", "many"], [RAW], [RAW, "1;2"], [BESIDE, "tcp"],
                    [BESIDE, "tcp", "none"]):
        done = finish(*command)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, (command, done)


if __name__ == "__main__":
    tap.run([each_number_of_connections_is_measured,
             large_tensors_move_beside_the_small_one_only_when_they_are_started, wrong_arguments_are_refused])
