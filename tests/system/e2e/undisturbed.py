# SPDX-License-Identifier: Apache-2.0
"""A job in sync mode, and the bytes that it saves if nothing happens to it. Imported after job.use()."""
import functools

import job

MODEL = "mlp:200,30"  # several chunks


def options(steps, *more):
    return job.small("--slots", 5, *more, model=MODEL, steps=steps)


def saved(directory):
    return (directory / "model.safetensors").read_bytes()


@functools.cache
def expected(steps):
    directory = job.SCRATCH / f"expected-{steps}"
    job.train(*options(steps, "--fabric", "shm", "--save", directory))
    return saved(directory)


def end_well(processes, directory, steps):
    """All processes of the job end well, and have saved the right bytes."""
    for process in processes:
        try:
            process.end()
        finally:
            process.kill()
        assert process.code == 0, f"{process.args}: exit code {process.code}\n{process.error}"
    assert saved(directory) == expected(steps), "other bytes"


def makes_steps(event):
    return event["event"] == "progress" and event["step"] > 0
