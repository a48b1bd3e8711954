#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of --init-from: a job begins with the parameters of a safetensors file, whoever wrote it.

usage: init_from.py TERN
"""
import functools
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
FORMATS = {"F16": "e", "F32": "f", "F64": "d", "I32": "i"}


@functools.cache
def base():
    """The file that a job has saved, and the last event of that job."""
    directory = job.SCRATCH / "base"
    done = job.train(*job.small("--slots", 4, "--save", directory))
    return directory / "model.safetensors", done


def tensors():
    """{name: (shape, values)} of the file of base()."""
    data = base()[0].read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__")
    return {name: (t["shape"], struct.unpack(f"<{(t['data_offsets'][1] - t['data_offsets'][0]) // 4}f",
                                             data[end:][slice(*t["data_offsets"])]))
            for name, t in header.items()}


def written(name, content, dtype="F32"):
    """Writes a file as the package safetensors does: without metadata, the tensors in the order of their names."""
    header, data = {}, b""
    for tensor, (shape, values) in sorted(content.items()):
        part = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = job.SCRATCH / f"{name}.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def as_f16(values):
    return tuple(struct.unpack(f"<{len(values)}e", struct.pack(f"<{len(values)}e", *values)))


def halves():
    """The tensors of base(), rounded to f16."""
    return {name: (shape, as_f16(values)) for name, (shape, values) in tensors().items()}


def saved(name, path, *more, **kw):
    """Runs a job that begins with the file. Returns the tensors that it saves, without the header."""
    directory = job.SCRATCH / name
    job.train(*job.small("--slots", 4, "--init-from", path, "--save", directory, *more, **{"steps": 12, **kw}))
    data = (directory / "model.safetensors").read_bytes()
    return data[8 + struct.unpack("<Q", data[:8])[0]:]


def refused(path, *more, says, command="train", **kw):
    job.refused(command, *job.small("--init-from", path, *more, **kw), says=[f"--init-from {path}: ", says])


def a_job_begins_with_the_parameters_of_the_file():
    path, done = base()
    for mode in ["sync"], ["async"], ["ssp:1"]:
        events = job.finish("train", *job.small("--init-from", path, "--eval-every", 1000, "--mode", *mode, "--workers",
                                                2), "--json").events
        first = [e for e in events if e["event"] == "evaluated"][0]
        assert (first["step"], first["test_loss"]) == (0, done["test_loss"]), (mode, first, done)
        assert events[-1]["steps"] == 40, events[-1]


def any_workers_servers_and_fabric_give_the_same_bytes():
    path, _ = base()
    for more in [], ["--arithmetic", "portable"]:
        name = f"same-{len(more)}"
        reference = saved(name, path, *more)
        assert reference != base()[0].read_bytes()[-len(reference):]
        for workers, servers, fabric in ((2, 1, "shm"), (1, 2, "tcp"), (4, 2, "auto")):
            other = saved(f"{name}-{workers}-{servers}", path, *more, "--workers", workers, "--servers", servers,
                          "--fabric", fabric)
            assert other == reference, f"{workers} workers, {servers} servers over {fabric} give other bytes"


def a_file_of_anybody_gives_the_bytes_of_the_own_one():
    assert saved("own", base()[0]) == saved("others", written("others", tensors()))


def types_that_lose_nothing_give_the_same_bytes():
    reference = saved("rounded", written("F32", halves()))
    for dtype in "F16", "F64":
        assert saved(dtype, written(dtype, halves(), dtype)) == reference, dtype


def files_that_do_not_fit_are_refused():
    fitting = tensors()
    shape, values = fitting["fc1.weight"]
    refused(written("transposed", fitting | {"fc1.weight": (shape[::-1], values)}),
            says=f"tensor fc1.weight: the file has f32[{shape[1]},{shape[0]}], the model f32[{shape[0]},{shape[1]}]: "
                 "transpose it (Tern has [in, out], torch.nn.Linear [out, in])")
    refused(base()[0], says="the file has f32[24,16], the model f32[24,17]", model="mlp:24,17")
    refused(base()[0], says="the file has tensors that the model lacks: fc3.weight, fc3.bias", model="mlp:24")
    refused(base()[0], says="the file lacks tensors of the model: fc4.weight, fc4.bias", model="mlp:24,16,4")
    refused(written("renamed", {f"net.{name}": tensor for name, tensor in fitting.items()}),
            says="the file has tensors that the model lacks: net.fc1.bias, net.fc1.weight, ")
    refused(written("integers", {name: (shape, [0] * len(values)) for name, (shape, values) in fitting.items()}, "I32"),
            says="has the dtype i32: expected f32, f16, bf16 or f64")
    refused(written("precise", {name: (shape, [v + 1e-12 for v in values])
                                for name, (shape, values) in fitting.items()}, "F64"),
            says="is no float32")


def values_that_are_no_numbers_are_refused():
    fitting = tensors()
    for value in "nan", "inf":
        wrong = fitting | {"fc2.bias": ([16], [0.0] * 5 + [float(value)] + [0.0] * 10)}
        refused(written(value, wrong), says=f"tensor fc2.bias: initial value 5 is {value}: expected finite numbers")


def files_that_are_no_safetensors_are_refused():
    whole = base()[0].read_bytes()
    for name, data, says in (("empty", b"", "0 bytes: too short for a safetensors file"),
                             ("cut", whole[:-5], "its data_offsets are outside of the file's data (is the file whole?)"),
                             ("long", whole + b"\0", "bytes of data, but its tensors are"),
                             ("header", whole[:20], "is it a safetensors file, and whole?"),
                             ("garbage", whole[:8] + b"x" + whole[9:], "the header is not JSON")):
        path = job.SCRATCH / name
        path.write_bytes(data)
        refused(path, says=says)
    refused(job.SCRATCH / "nowhere", says="No such file or directory")
    refused(job.SCRATCH, says="is a directory, must be a file")
    refused(job.SCRATCH / "cut", "--index", 0, "--join", "tcp://127.0.0.1:1", says="(is the file whole?)",
            command="worker")


def workers_with_different_files_are_not_of_one_job():
    other = written("other", tensors() | {"fc2.bias": ([16], [0.5] * 16)})
    server = job.Job("server", "--json")
    address = server.wait_event(lambda e: e["event"] == "listening")["address"]
    options = job.small("--workers", 2, steps=12)
    first = job.Job("worker", *options, "--init-from", base()[0], "--join", address, "--json")
    try:
        server.wait_event(lambda e: e["event"] == "note" and "joined" in e["text"])
        for more, says in ((["--init-from", other], ["tensor fc2.bias", "gives it other initial values than the job",
                                                     "file (--init-from) on all workers"]),
                           ([], ["tensor fc1.weight", "the job with given values (--init-from, or a program's)"])):
            job.refused("worker", *options, "--index", 1, "--join", address, *more, says=says, code=1)
        second = job.finish("worker", *options, "--index", 1, "--join", address, "--init-from",
                            written("same", tensors()), "--json")
        assert second.last["code"] == 0, second.last
        assert first.end() == 0 and server.end() == 0, (first.error, server.error)
    finally:
        first.kill()
        server.kill()


def a_snapshot_counts_and_not_the_file():
    """A batch system that queues a job anew gives it the same command line, with --resume."""
    snapshots, results = job.SCRATCH / "snapshots", job.SCRATCH / "resumed"
    options = ["--slots", 4, "--init-from", base()[0]]
    whole = saved("whole", base()[0], steps=30)
    job.train(*job.small(*options, "--snapshots", snapshots, steps=20))
    goes_on = job.finish("train", *job.small(*options, "--save", results, "--snapshots", snapshots, "--resume",
                                             snapshots, "--workers", 2, steps=30), "--json")
    assert (results / "model.safetensors").read_bytes().endswith(whole)
    notes = [e["text"] for e in goes_on.events if e["event"] == "note" and "--init-from" in e["text"]]
    assert notes == ["worker 0: the job goes on from the snapshot of step 20: the parameters of --init-from "
                     f"{base()[0]} count only for a job that begins"], notes
    # The file may be gone by then.
    without = job.SCRATCH / "resumed-without"
    job.train(*job.small("--slots", 4, "--save", without, "--resume", snapshots, steps=30))
    assert (without / "model.safetensors").read_bytes().endswith(whole)


def an_interrupted_job_with_another_file_is_another_job():
    directory = job.SCRATCH / "interrupted"
    options = job.small("--save", directory, "--init-from", base()[0], steps=10**8)
    for _ in range(2):  # the same command line is not refused
        running = job.Job("train", *options, "--json")
        try:
            running.wait_event(lambda e: e["event"] == "progress")
            running.process.terminate()
            assert running.end() == 143, running.error
        finally:
            running.kill()
        assert (directory / "interrupted.safetensors").exists()
    for more in [], ["--init-from", written("copy", tensors())]:
        job.refused("train", *job.small("--save", directory, *more, steps=10**8),
                    says=["an earlier job has saved its interrupted.safetensors there"])


def tern_run_says_why_it_lacks_the_option():
    for words in ["--init-from", "x"], ["--init-from=x"]:
        job.refused("run", *words, "--", "true", says=["--init-from: only tern train and tern worker", "init=ARRAY"])


tap.run([
    a_job_begins_with_the_parameters_of_the_file,
    any_workers_servers_and_fabric_give_the_same_bytes,
    a_file_of_anybody_gives_the_bytes_of_the_own_one,
    types_that_lose_nothing_give_the_same_bytes,
    files_that_do_not_fit_are_refused,
    values_that_are_no_numbers_are_refused,
    files_that_are_no_safetensors_are_refused,
    workers_with_different_files_are_not_of_one_job,
    a_snapshot_counts_and_not_the_file,
    an_interrupted_job_with_another_file_is_another_job,
    tern_run_says_why_it_lacks_the_option,
])
