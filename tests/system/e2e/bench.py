#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what scripts read from the output of `tern bench`. No figure is judged here.

usage: bench.py TERN
"""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
PAIR = {"bench": str, "fabric": str, "wait": str, "size": int, "inflight": int, "rounds": int,
        "gb_per_s": float, "msgs_per_s": float, "cpu_s_per_gb": float, "registrations": int}
TRIPS = {"p50_us": float, "p99_us": float, "p999_us": float}
OPS = {"bench": str, "op": str, "fabric": str, "wait": str, "size": int, "inflight": int, "rounds": int, "gb_per_s": float,
       "of_send": float, **TRIPS}


def measure(*args, fields):
    done = job.finish("bench", *args, "--json")
    for event in done.events:
        for name, kind in fields.items():
            assert isinstance(event.get(name), kind), f"{args}: {name} in {event}"
            assert event[name] or name in ("registrations", "cpu_s_per_gb"), event
        assert event.get("registrations", 0) == 0, f"{args}: memory was registered: {event}"
        if "p50_us" in event:
            assert 0 < event["p50_us"] <= event["p99_us"] <= event["p999_us"], event
    return done.events


def latency_over(fabric, wait):
    events = measure("lat", "--fabric", fabric, "--size", "1,64,4097,1M", "--rounds", 30,
                     "--wait", wait, fields={**PAIR, **TRIPS})
    assert [e["size"] for e in events] == [1, 64, 4097, 1 << 20]
    assert all(e["fabric"] == fabric and e["wait"] == wait and e["inflight"] == 1
               for e in events), events


def latency_is_measured_over_tcp():
    latency_over("tcp", "poll")
    latency_over("tcp", "sleep")


def latency_is_measured_over_shm():
    latency_over("shm", "poll")
    latency_over("shm", "sleep")


def bandwidth_is_measured_on_both():
    for fabric in ("tcp", "shm"):
        events = measure("bw", "--fabric", fabric, "--size", "67108864,100000", "--rounds", 20,
                         "--inflight", 4, fields={**PAIR, **TRIPS})
        assert len(events) == 2 and events[0]["inflight"] == 4, events


def tensors_land_wherever_the_receiver_says():
    for fabric in ("tcp", "shm"):
        for where in ("room", "alloc", "peek"):
            events = measure("bw", "--fabric", fabric, "--size", "64,100000,8M", "--rounds", 20,
                             "--inflight", 4, "--receive", where, fields={**PAIR, **TRIPS})
            assert all(e["receive"] == where for e in events), events


def tensors_may_be_written_anew_each_time():
    for fabric in ("tcp", "shm"):
        measure("lat", "--fabric", fabric, "--size", "64,1M", "--rounds", 10, "--rewrite",
                fields={**PAIR, **TRIPS})


def tensors_are_offered_at_a_set_rate():
    """With --offer, a round trip counts from the time at which its tensor was due. If tensors are offered
    more slowly than they are answered, none is sent before it is due. If they are offered much faster, each
    waits for all before it. Only one tensor is under way at a time, so round trips that counted from the
    sending would add up to at most the whole time; half of them take at least the median. Since they count
    from when they were due, they add up to thousands of times as much."""
    for fabric, wait in (("tcp", "sleep"), ("shm", "poll")):
        common = ("lat", "--fabric", fabric, "--wait", wait, "--size", 64)
        fields = {**PAIR, **TRIPS, "offered_per_s": int}
        slow, = measure(*common, "--rounds", 100, "--offer", 500, fields=fields)
        assert slow["offered_per_s"] == 500 and slow["msgs_per_s"] < 520, slow
        fast, = measure(*common, "--rounds", 10_000, "--offer", 100_000_000, fields=fields)
        whole_us = fast["rounds"] / fast["msgs_per_s"] * 1e6
        assert fast["p50_us"] * fast["rounds"] / 2 > whole_us, fast


def rounds_may_be_told_for_each_size():
    events = measure("lat", "--fabric", "shm", "--size", "64,1M", "--rounds", "20,5",
                     fields=PAIR)
    assert [e["rounds"] for e in events] == [20, 5], events


def ends_are_pinned_when_that_is_asked():
    if len(os.sched_getaffinity(0)) < 2:
        raise tap.Skip("this process has one core")
    for pin, wait, pinned in (("yes", "sleep", True), ("no", "poll", False),
                              ("auto", "poll", True), ("auto", "sleep", False)):
        done = job.finish("bench", "lat", "--fabric", "shm", "--size", 8, "--rounds", 10, "--pin",
                          pin, "--wait", wait, "--json")
        assert done.events[0]["pinned"] is pinned, (pin, wait, done.events)


def rate_is_measured_on_both():
    for fabric in ("tcp", "shm"):
        measure("rate", "--fabric", fabric, "--rounds", 2000, "--wait", "sleep", fields=PAIR)


def same_host_means_shm_for_auto():
    events = measure("lat", "--size", 64, "--rounds", 20, fields=PAIR)
    assert events[0]["fabric"] == "shm", events


def pool_is_measured():
    events = measure("pool", "--size", "64,4K", "--rounds", 10000,
                     fields={"bench": str, "size": int, "alloc_ns": float,
                             "registrations": int})
    assert len(events) == 2, events


def collectives_are_measured():
    for test in "allreduce", "alltoall":
        for fabric in "tcp", "shm":
            for wait in "poll", "sleep":
                events = measure(test, "--fabric", fabric, "--size", "8,4096,3M", "--rounds", 20, "--wait", wait,
                                 "--inflight", 3, fields={**PAIR, **TRIPS})
                assert [e["size"] for e in events] == [8, 4096, 3 << 20], events
                assert all(e["bench"] == test and e["fabric"] == fabric and e["wait"] == wait for e in events), events


def puts_and_gets_are_measured_beside_sends():
    for fabric in "tcp", "shm":
        for wait, inflight in (("poll", 1), ("sleep", 3)):
            events = measure("window", "--fabric", fabric, "--size", "1,4096,3M", "--rounds", 50, "--wait", wait,
                             "--inflight", inflight, fields=OPS)
            assert [(e["size"], e["op"]) for e in events] == [
                (size, op) for size in (1, 4096, 3 << 20) for op in ("put", "put+note", "get", "send")], events
            assert all(e["fabric"] == fabric and e["wait"] == wait for e in events), events
            assert all(e["of_send"] == 1 for e in events if e["op"] == "send"), events
    done = job.finish("bench", "window", "--fabric", "shm", "--size", "8,64", "--rounds", 100)
    heading, *rows = done.lines
    assert "of send" in heading and len(rows) == 8 and all(len(row.split()) == 8 for row in rows), done.lines


def plain_output_is_a_heading_and_a_row_per_size():
    for test, columns in (("lat", ["bytes", "p50 us", "GB/s", "regs"]), ("pool", ["bytes", "regs"]),
                          ("rate", ["bytes", "msgs/s"])):
        done = job.finish("bench", test, "--size", "8,64KiB", "--rounds", 1000)
        heading, *rows = done.lines
        assert all(c in heading for c in columns), heading
        assert len(rows) == 2 and "65536" in rows[1], rows
        # The columns are aligned, and the lines fit into a terminal.
        assert len(heading) == len(rows[0]) == len(rows[1]) < 80, done.lines


def ends_on_one_core_sleep():
    core = str(min(os.sched_getaffinity(0)))
    words = [job.TERN, "bench", "lat", "--fabric", "shm", "--size", "64", "--rounds", "100", "--json"]

    def on_one_core(*more):
        done = subprocess.run(["taskset", "-c", core, *words, *more], capture_output=True, text=True)
        assert done.returncode == 0, done
        return json.loads(done.stdout)["wait"], done.stderr

    if not shutil.which("taskset"):
        raise tap.Skip("taskset is not here")
    assert on_one_core() == ("sleep", "")
    wait, said = on_one_core("--wait", "poll")
    assert wait == "poll" and "both ends poll on one core" in said, said


def wrong_options_are_refused():
    job.refused("bench", says=["lat, bw, rate, window, allreduce, alltoall, pool"])
    job.refused("bench", "latency", says=["latency", "lat, bw, rate, window, allreduce, alltoall, pool"])
    job.refused("bench", "lat", "--fabric", "roce", says=["roce", "auto, verbs, tcp, shm"])
    job.refused("bench", "lat", "--size", "big", says=["--size big"])
    job.refused("bench", "lat", "--round", "9", says=["--rounds"])
    job.refused("bench", "rate", "--offer", "9", says=["--offer belongs to lat"])
    job.refused("bench", "lat", "--offer", "0", says=["--offer 0"])
    job.refused("bench", "lat", "--size", "8,64", "--rounds", "1,2,3",
                says=["--rounds has 3 values", "--size has 2"])
    job.refused("bench", "allreduce", "--size", "12", says=["--size 12", "multiple of 8"])
    job.refused("bench", "window", "--receive", "peek", says=["window excludes --receive"])
    job.refused("bench", "window", "--rewrite", says=["window excludes --rewrite"])
    job.refused("bench", "alltoall", "--all", says=["alltoall excludes --all"])
    job.refused("bench", "allreduce", "--receive", "peek", says=["allreduce excludes --receive"])
    job.refused("bench", "lat", "--receive", "there", says=["there", "room, alloc, peek"])


tap.run([
    collectives_are_measured,
    puts_and_gets_are_measured_beside_sends,
    latency_is_measured_over_tcp,
    latency_is_measured_over_shm,
    bandwidth_is_measured_on_both,
    tensors_land_wherever_the_receiver_says,
    tensors_may_be_written_anew_each_time,
    tensors_are_offered_at_a_set_rate,
    rounds_may_be_told_for_each_size,
    ends_are_pinned_when_that_is_asked,
    rate_is_measured_on_both,
    same_host_means_shm_for_auto,
    pool_is_measured,
    plain_output_is_a_heading_and_a_row_per_size,
    ends_on_one_core_sleep,
    wrong_options_are_refused,
])
