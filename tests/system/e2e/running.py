# SPDX-License-Identifier: Apache-2.0
"""Jobs that are at work, and what becomes of them."""
import functools

import job

FOR_EVER = 100_000_000


def started(*more):
    """A job that would go on for ever, and is at work."""
    running = job.Job("train", *job.small(*more, steps=FOR_EVER), "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    return running


def after(running, act, code, limit_s=20):
    """act() makes it end with `code`: what it says on stderr."""
    try:
        act()
        running.end(limit_s)
    finally:
        running.kill()
    assert running.code == code, f"exit code {running.code}\n{running.error}"
    return running.error


def saved_by(running, directory):
    """The bytes that the job saves; nothing half done is beside them."""
    try:
        running.end()
    finally:
        running.kill()
    assert running.code == 0, f"exit code {running.code}\n{running.error}"
    files = list(directory.iterdir())
    assert [f.name for f in files] == ["model.safetensors"], files
    return files[0].read_bytes()


def training(name, *more, steps=4000):
    """A job that saves: it, and where."""
    directory = job.SCRATCH / name
    return job.Job("train", *job.small("--slots", 5, "--save", directory, *more, steps=steps),
                   "--json"), directory


@functools.cache
def undisturbed(*more):
    """The bytes that training() saves if nothing happens to it, whatever its processes are."""
    return saved_by(*training("undisturbed" + "".join(more), "--fabric", "shm", *more))


def by_hand(workers, directory, *more, fabric="shm", steps=4000):
    """A server, and what starts worker i of its job."""
    server = job.Job("server", "--fabric", fabric, "--json", *more)
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    common = job.small("--slots", 4, "--workers", workers, "--join", address, "--fabric",
                       fabric, steps=steps)
    return server, lambda i, save=directory: job.Job("worker", *common, "--save", save, "--index",
                                                     i, "--json")


def at_work(*processes):
    for process in processes:
        process.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
