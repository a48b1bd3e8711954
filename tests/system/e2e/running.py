# SPDX-License-Identifier: Apache-2.0
"""Jobs that are at work, and what becomes of them."""
import functools

import job

FOR_EVER = 100_000_000


def started(*more):
    """Starts a job that would go on for ever, and waits until it makes steps."""
    running = job.Job("train", *job.small(*more, steps=FOR_EVER), "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    return running


def after(running, act, code, limit_s=20):
    """Calls act(), which must make the job end with `code`. Returns what it says on stderr."""
    try:
        act()
        running.end(limit_s)
    finally:
        running.kill()
    assert running.code == code, f"exit code {running.code}\n{running.error}"
    return running.error


def saved_by(running, directory):
    """Waits for the end of the job, and returns the bytes that it has saved. No half-written file
    may be beside them."""
    try:
        running.end()
    finally:
        running.kill()
    assert running.code == 0, f"exit code {running.code}\n{running.error}"
    files = list(directory.iterdir())
    assert [f.name for f in files] == ["model.safetensors"], files
    return files[0].read_bytes()


def training(name, *more, steps=job.enough(4000)):
    """Starts a job that saves. Returns the job and its directory."""
    directory = job.SCRATCH / name
    return job.Job("train", *job.small("--slots", 5, "--save", directory, *more, steps=steps),
                   "--json"), directory


@functools.cache
def undisturbed(*more):
    """Returns the bytes that the job of training() saves if nothing happens to it. They do not
    depend on its processes."""
    return saved_by(*training("undisturbed" + "".join(more), "--fabric", "shm", *more))


def by_hand(workers, directory, *more, fabric="shm", steps=job.enough(4000)):
    """Starts a server. Returns it and a function that starts worker i of its job."""
    server = job.Job("server", "--fabric", fabric, "--json", *more)
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    common = job.small("--slots", 4, "--workers", workers, "--join", address, "--fabric",
                       fabric, steps=steps)
    return server, lambda i, save=directory: job.Job("worker", *common, "--save", save, "--index",
                                                     i, "--json")


def at_work(*processes):
    for process in processes:
        process.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
