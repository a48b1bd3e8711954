#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that in sync mode the result depends on the slots and on nothing else: the same bytes for any
number of workers and servers, over any fabric.

usage: same_bytes.py TERN
"""
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])


def saved(name, *more, **kw):
    """Runs a job, and returns the bytes of the one safetensors file that it saves."""
    directory = job.SCRATCH / name
    job.train(*job.small("--slots", 4, "--save", directory, *more, **kw))
    files = sorted(directory.iterdir())
    tensors = [f for f in files if f.suffix == ".safetensors"]
    assert len(tensors) == 1 and not [f for f in files if f.name.startswith(".")], files
    return tensors[0].read_bytes()


def parameters(data):
    """The tensors of a safetensors file, without its header, which names the job."""
    return data[8 + struct.unpack("<Q", data[:8])[0]:]


def same(name, *common, **kw):
    reference = saved(f"{name}-reference", *common, "--workers", 1, "--servers", 1, "--fabric",
                      "shm", **kw)
    for workers, servers, fabric in ((2, 1, "shm"), (4, 1, "tcp"), (1, 2, "tcp"), (2, 2, "auto"),
                                     (4, 2, "shm")):
        other = saved(f"{name}-{workers}-{servers}-{fabric}", *common, "--workers", workers,
                      "--servers", servers, "--fabric", fabric, **kw)
        assert other == reference, (f"{workers} workers, {servers} servers over {fabric} give "
                                    f"other bytes")
    return reference


def any_workers_servers_and_fabric_give_the_same_bytes():
    same("plain")


def the_reported_loss_is_the_same_too():
    """The loss is the mean over the last 100 of 130 steps."""
    losses = {job.train(*job.small("--slots", 6, "--workers", workers, steps=130))["loss"]
              for workers in (1, 2, 3, 6)}
    assert len(losses) == 1, losses


def so_they_do_with_clipping_by_global_norm():
    clipped = same("clip", "--clip-norm", "0.1", steps=20)
    assert clipped != saved("unclipped", steps=20), "clipping changed nothing"


def so_they_do_with_a_model_of_many_chunks():
    same("wide", model="mlp:300,200", steps=12)


def so_they_do_with_a_schedule_and_settings_of_the_optimizer():
    settled = ["--optimizer", "adamw", "--beta2", "0.95", "--weight-decay", "0.1"]
    scheduled = same("schedule", *settled, "--schedule", "cosine:15,0.1", "--warmup", 5, steps=20)
    assert parameters(scheduled) != parameters(saved("unscheduled", *settled, steps=20))
    assert parameters(scheduled) != parameters(saved(
        "unsettled", "--optimizer", "adamw", "--schedule", "cosine:15,0.1", "--warmup", 5, steps=20))


def schedules_count_the_steps_of_sync_and_async_jobs():
    """After step 2 the learning rate is 0, so a job of any length has the parameters of one of two steps. Without
    TOTAL, the schedule is as long as the job."""
    for mode in ["sync"], ["async", "--slots", 1]:
        common = ["--mode", *mode, "--optimizer", "sgd"]
        short = saved(f"{mode[0]}-2", *common, "--schedule", "linear", steps=2)
        assert parameters(short) == parameters(
            saved(f"{mode[0]}-9", *common, "--schedule", "linear:2,0", steps=9)), mode
        assert parameters(short) != parameters(saved(f"{mode[0]}-constant", *common, steps=2)), mode


def so_they_do_with_more_threads_at_the_servers():
    for clip in ([], ["--clip-norm", "0.1"]):
        common = ["--slots", 20, *clip]
        name = f"threads-{len(clip)}"
        reference = saved(f"{name}-1", *common, model="mlp:300,200", steps=6)
        for servers, threads, fabric in ((1, 4, "shm"), (2, 3, "tcp")):
            other = saved(f"{name}-{threads}", *common, "--workers", 2, "--servers", servers,
                          "--server-threads", threads, "--fabric", fabric, model="mlp:300,200",
                          steps=6)
            assert other == reference, f"{threads} threads give other bytes than one"


def threads_at_the_servers_make_all_steps_of_an_async_job():
    """The bytes of an async job are not compared: they depend on which gradient comes first."""
    done = job.train(*job.small("--mode", "async", "--workers", 2, "--servers", 2,
                                "--server-threads", 3, model="mlp:300,200", steps=40))
    assert done["steps"] == 40, done


def other_seeds_give_other_bytes():
    assert saved("seed-7") != saved("seed-8", "--seed", 8)


def portable_arithmetic_is_the_same_whatever_the_processor_has():
    assert saved("portable-1", "--arithmetic", "portable") == saved(
        "portable-2", "--arithmetic", "portable", "--workers", 2)
    # Portable arithmetic belongs to the job: a worker without it is refused.
    server = job.Job("server", "--arithmetic", "portable", "--json")
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    first = job.Job("worker", *job.small("--workers", 2, "--arithmetic", "portable"), "--join",
                    address, "--json")
    try:
        server.wait_event(lambda e: e["event"] == "note" and "joined" in e["text"])
        if job.info()["kernels"]["used"] != "portable":
            job.refused("worker", *job.small("--workers", 2, "--index", 1), "--join", address,
                        says=["arithmetic", "--arithmetic portable"], code=1)
    finally:
        first.kill()
        server.kill()


def file_is_safetensors():
    data = saved("format")
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    assert header.pop("__metadata__")["weight_layout"].startswith("[in, out]"), header
    end = 0
    for name, tensor in header.items():
        assert tensor["dtype"] == "F32", tensor
        count = 1
        for dim in tensor["shape"]:
            count *= dim
        first, last = tensor["data_offsets"]
        assert first == end and last - first == 4 * count, (name, tensor)
        end = last
    assert 8 + size + end == len(data), "bytes behind the last tensor"
    shapes = [t["shape"] for t in header.values()]
    assert shapes == [[36, 24], [24], [24, 16], [16], [16, 4], [4]], header


tap.run([
    any_workers_servers_and_fabric_give_the_same_bytes,
    the_reported_loss_is_the_same_too,
    so_they_do_with_clipping_by_global_norm,
    so_they_do_with_a_model_of_many_chunks,
    so_they_do_with_a_schedule_and_settings_of_the_optimizer,
    schedules_count_the_steps_of_sync_and_async_jobs,
    so_they_do_with_more_threads_at_the_servers,
    threads_at_the_servers_make_all_steps_of_an_async_job,
    other_seeds_give_other_bytes,
    portable_arithmetic_is_the_same_whatever_the_processor_has,
    file_is_safetensors,
])
