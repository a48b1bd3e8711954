#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole jobs on GPUs, which are simulated: the kernels are loops on the CPU.

usage: cuda.py TERN [the simulated driver's libraries]
"""
import contextlib
import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
job.use_drivers(sys.argv[2:])
BROKEN = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
UNSUPPORTED = 801


def text():
    path = job.SCRATCH / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return path


def charlm(*more, steps=60):
    return ["--model", "charlm:8,8,48", "--data", text(), "--optimizer", "adam", "--lr", "0.02",
            "--batch", 64, "--steps", steps, *more]


def trained(*args, machine=""):
    """Runs a job, which must end well, on the simulated `machine`, and returns its events."""
    with job.simulated_gpus(machine):
        done = job.finish("train", *args, "--json")
    assert done.events[-1]["event"] == "done", done.events[-1]
    return done.events


def told(events, name):
    return [e for e in events if e["event"] == name]


def saved(name, *more, machine="", **kw):
    """Runs a small job; returns the bytes that it saves, and its events."""
    directory = job.SCRATCH / name
    events = trained(*job.small("--slots", 4, "--save", directory, *more, steps=12, **kw),
                     machine=machine)
    return (directory / "model.safetensors").read_bytes(), events


# ---- training ------------------------------------------------------------------------------

def character_model_learns_and_writes():
    events = trained(*charlm("--device", "cuda", "--workers", 2, "--generate", 60),
                     machine="devices=2,alike=1")
    losses = [e["loss"] for e in told(events, "progress")]
    assert losses[-1] < losses[0] / 3, losses
    written = told(events, "generated")[0]["text"]
    assert "brown fox jumps" in written, written
    devices = {e["index"]: e for e in told(events, "device")}
    assert [devices[i]["device"] for i in range(2)] == ["cuda:0", "cuda:1"], devices
    assert devices[1]["text"] == "Simulated GPU (cuda:1), CUDA graphs, cuBLAS 13.0.2", devices
    assert events[-1]["device"] == "cuda:0" and events[-1]["device_bytes"] > 1000, events[-1]
    assert not [e for e in told(events, "note") if "CUDA" in e["text"]], events


def records_are_learnt_with_everything_on_gpus():
    events = trained(*job.small("--device", "cuda:0", "--server-device", "cuda", steps=120))
    assert events[-1]["test_accuracy"] >= 0.9, events[-1]
    assert {e["role"] for e in told(events, "device")} == {"worker", "server"}, events


def async_mode_and_clipping_learn_too():
    for more in (["--mode", "async", "--workers", 2], ["--clip-norm", "1", "--servers", 2]):
        events = trained(*job.small("--device", "cuda", "--server-device", "cuda", *more,
                                    steps=120))
        assert events[-1]["test_accuracy"] >= 0.9, events[-1]


# ---- the same bytes ------------------------------------------------------------------------

def result_depends_on_the_slots_and_on_nothing_else():
    one, _ = saved("one", "--device", "cuda", machine="alike=1")
    for name, more, machine in (
            ("again", [], ""),
            ("shm", ["--workers", 2, "--fabric", "shm"], ""),
            ("tcp", ["--workers", 4, "--fabric", "tcp"], "devices=3,alike=1"),
            ("plain", ["--workers", 2], f"fail=stream_begin_capture:1:{UNSUPPORTED},fail2=stream_begin_capture:2:{UNSUPPORTED}"),
            ("late", ["--workers", 2], "late=1"),
            ("pageable", ["--workers", 2], "host=5000"),
            ("servers", ["--servers", 2, "--server-device", "cuda"], "devices=2")):
        other, events = saved(name, "--device", "cuda", *more, machine=machine)
        assert other == one, name
        notes = [e for e in told(events, "note") if "CUDA graphs" in e["text"]]
        assert len(notes) == (2 if name in ("plain", "pageable") else 0), notes


def graphs_can_be_switched_off_and_change_no_byte():
    def on_gpu(name, *graphs):
        with job.environment(**dict(graphs)):
            parameters, events = saved(name, "--device", "cuda")
        return parameters, told(events, "device")[0]["text"]

    wanted, text = on_gpu("graphs")
    assert "CUDA graphs" in text, text
    parameters, text = on_gpu("no-graphs", ("TERN_CUDA_GRAPHS", "off"))
    assert "plain launches" in text and "CUDA graphs" not in text, text
    assert parameters == wanted
    with job.environment(TERN_CUDA_GRAPHS="0"):
        refused("--device", "cuda", says=["TERN_CUDA_GRAPHS=0: must be on or off"])


def servers_on_gpus_give_the_cpus_bytes():
    for i, more in enumerate((["--servers", 2, "--fabric", "tcp"],
                              ["--optimizer", "momentum", "--slots", 11, "--workers", 3],
                              ["--optimizer", "rmsprop", "--momentum", 0.5, "--schedule", "cosine", "--warmup", 2])):
        wanted, _ = saved(f"cpu-{i}", *more)
        got, _ = saved(f"cuda-{i}", "--server-device", "cuda", *more)
        assert got == wanted, more


def snapshots_are_evaluated_on_a_gpu():
    snapshots = job.SCRATCH / "snapshots"
    done = trained(*job.small("--device", "cuda", "--snapshots", snapshots, steps=20))[-1]
    with job.simulated_gpus():
        event = job.finish("evaluator", "--snapshots", snapshots, *job.small_data(), "--once", "--device", "cuda",
                           "--json").events[0]
    assert (event["test_loss"], event["test_accuracy"]) == (done["test_loss"], done["test_accuracy"]), (event, done)


# ---- parameters and gradients in memory of GPUs --------------------------------------------

ON_DEVICE = ("--tensor-memory", "device")


def tensors_in_gpu_memory_change_no_byte():
    """Over shm the GPUs of two processes copy tensors directly (CUDA IPC); over tcp tensors are staged."""
    both = ("--device", "cuda", "--server-device", "cuda")
    wanted, _ = saved("host-memory", *both)
    for i, more in enumerate((
            ["--fabric", "shm", "--workers", 2],
            ["--fabric", "tcp", "--workers", 4, "--servers", 2],
            ["--fabric", "shm", "--workers", 1, "--servers", 2])):
        got, _ = saved(f"device-memory-{i}", *both, *ON_DEVICE, *more, machine="alike=1")
        assert got == wanted, more


def initial_values_of_a_file_reach_gpu_memory():
    """The worker has them in host memory, since the CPU cannot fill the version buffers of a GPU."""
    saved("first")
    both = ("--device", "cuda", "--server-device", "cuda", "--init-from", job.SCRATCH / "first" / "model.safetensors")
    wanted, _ = saved("from-host-memory", *both)
    for i, more in enumerate((["--fabric", "shm", "--workers", 2], ["--fabric", "tcp", "--servers", 2])):
        got, _ = saved(f"from-device-memory-{i}", *both, *ON_DEVICE, *more, machine="alike=1")
        assert got == wanted, more


def servers_that_keep_tensors_in_gpu_memory_give_the_cpus_bytes():
    """The workers have no GPU. One job has more slots than a server holds at a time, and one clips by norm."""
    for i, more in enumerate((["--fabric", "shm", "--workers", 2],
                              ["--fabric", "tcp", "--slots", 70, "--workers", 3, "--optimizer",
                               "momentum"],
                              ["--clip-norm", "0.5", "--servers", 1, "--optimizer", "sgd"])):
        wanted, _ = saved(f"cpu-tensors-{i}", "--server-device", "cuda", *more)
        got, _ = saved(f"gpu-tensors-{i}", "--server-device", "cuda", *ON_DEVICE, *more)
        assert got == wanted, more


def job_goes_on_from_what_its_servers_had_in_gpu_memory(memory=ON_DEVICE):
    """By hand. The only worker is killed and started again; no server reads a snapshot."""
    steps, name = job.enough(3000), f"gpu-back-{len(memory)}"
    wanted, directory = job.SCRATCH / f"{name}-wanted", job.SCRATCH / name
    work = functools.partial(job.small, "--slots", 4, "--fabric", "tcp", steps=steps)
    job.train(*work("--save", wanted))
    with job.simulated_gpus("devices=2,alike=1"):
        servers = [job.Job("server", "--fabric", "tcp", "--listen", "127.0.0.1:0", "--index", i, "--server-device", "cuda",
                           *memory, "--snapshots", job.SCRATCH / f"{name}-snapshots", "--snapshot-every", steps // 20, "--json")
                   for i in range(2)]
    join = ",".join(s.wait_event(lambda e: e["event"] == "listening")["address"] for s in servers)
    args = ["worker", *work("--save", directory, "--servers", 2, "--workers", 1), "--join", join, "--index", 0, "--json"]
    lost = job.Job(*args)
    servers[0].wait_event(lambda e: e["event"] == "snapshot")
    lost.kill()
    worker = job.Job(*args)
    for server in servers:
        server.wait_event(lambda e: "which all servers have in memory" in e.get("text", ""))
    for process in (worker, *servers):
        assert process.end() == 0, process.error
    for server in servers:
        assert not [e for e in server.events if "goes on from snapshot" in e.get("text", "")], server.events
    assert (directory / "model.safetensors").read_bytes() == (wanted / "model.safetensors").read_bytes()


def job_goes_on_from_what_gpus_have_copied_from_its_servers():
    job_goes_on_from_what_its_servers_had_in_gpu_memory(memory=[])


def workers_that_keep_tensors_in_gpu_memory_give_the_same_bytes():
    """The servers have no GPU."""
    wanted, _ = saved("host-tensors", "--device", "cuda")
    for fabric in ("shm", "tcp"):
        got, _ = saved(f"worker-{fabric}", "--device", "cuda", *ON_DEVICE, "--fabric", fabric,
                       "--workers", 2, machine="alike=1")
        assert got == wanted, fabric


def async_mode_learns_with_tensors_in_gpu_memory():
    events = trained(*job.small("--device", "cuda", "--server-device", "cuda", "--mode", "async",
                                "--workers", 2, *ON_DEVICE, steps=120))
    assert events[-1]["test_accuracy"] >= 0.9, events[-1]


def worker_with_tensors_in_gpu_memory_may_break():
    wanted, _ = saved("unbroken-memory", "--device", "cuda", "--workers", 2)
    save = job.SCRATCH / "broken-memory"
    args = job.small("--slots", 4, "--save", save, *ON_DEVICE, steps=12)
    with two_workers_of_which_the_first_breaks(*args) as (server, other):
        assert other.end() == 0, other.error
        assert server.end() == 0, server.error
    assert (save / "model.safetensors").read_bytes() == wanted


def interrupted_job_saves_what_is_in_gpu_memory():
    """The job is interrupted in the middle of a step, while an engine computes."""
    save = job.SCRATCH / "interrupted"
    args = job.small("--device", "cuda", "--server-device", "cuda", "--workers", 2, "--save", save,
                     *ON_DEVICE, steps=100_000_000)
    with job.simulated_gpus("alike=1"):
        train = job.Job("train", *args, "--json")
        try:
            train.wait_event(lambda e: e["event"] == "progress" and e["step"] >= 20)
            train.process.terminate()
            assert train.end() == 143, train.error
        finally:
            train.kill()
    step = [e for e in train.events if e["event"] == "saved"][-1]
    assert (save / "interrupted.safetensors").stat().st_size > 1000, step


def tensors_in_gpu_memory_need_a_gpu():
    says = ["--tensor-memory device: needs --device cuda or --server-device cuda"]
    for role in (["train"], ["worker", "--join", "127.0.0.1:1"]):
        job.refused(*role, *charlm(*ON_DEVICE), says=says)
    job.refused("server", *ON_DEVICE, says=says)
    refused("--device", "cuda", *ON_DEVICE, machine="mem=300000", code=1,
            says=["worker 0", "memory"])


# ---- without CUDA --------------------------------------------------------------------------

def program_without_cuda_says_so():
    if job.DRIVERS:
        raise tap.Skip("this tern was built with CUDA")
    for option in ("--device", "--server-device"):
        job.refused("train", *charlm(option, "cuda"),
                    says=[f"{option} cuda: this program was built without CUDA: must be cpu"])
    job.finish("train", *charlm("--device", "cpu", "--server-device", "cpu", steps=5))


# ---- what goes wrong -----------------------------------------------------------------------

def refused(*args, says, machine="", code=2):
    with job.simulated_gpus(machine):
        job.refused("train", *charlm(*args), says=says, code=code)


def what_is_not_there_is_refused_in_a_line():
    for option in ("--device", "--server-device"):
        refused(option, "gpu", says=[f"{option} gpu: must be cpu, cuda or cuda:N"])
        refused(option, "cuda:4", says=[f"{option} cuda:4: ", "the driver has 1 device,"])
        refused(option, "cuda", machine="devices=0", says=["has no CUDA device"])
        refused(option, "cuda", machine="major=7,minor=5", says=["capability 7.5; 8.0 or later"])
        refused(option, "cuda", machine="version=12000", says=["driver is for CUDA 12.0"])
        refused(option, "cuda", machine="stub=1", says=["stub", f"{option} cpu"])
        refused(option, "cuda", machine="mem=30000", code=1,
                says=["out of device memory", "needs", "29.3 KiB are free"])


def device_that_breaks_ends_the_job_in_a_line():
    for kernel, args, who in (
            ("tern_cuda_xent:20", ["--device", "cuda"], "worker "),
            ("tern_cuda_xent:20", ["--device", "cuda", "--fabric", "tcp"], "worker "),
            ("tern_cuda_adam_slots:20", ["--server-device", "cuda"], "server 0")):
        refused("--workers", 2, *args, machine=f"break={kernel}:{BROKEN}", code=1,
                says=[who, "cuda:0: ", "CUDA_ERROR_ILLEGAL_ADDRESS"])


def device_that_breaks_with_tensors_in_it_ends_the_job_too():
    """The last line names the process and the device's error. Before it there may be a line about tensors that
    cannot be staged any more."""
    for kernel, args, who in (("tern_cuda_adam_slots:20", ["--server-device", "cuda"], "server 0"),
                              ("tern_cuda_xent:20", ["--device", "cuda"], "worker ")):
        with job.simulated_gpus(f"break={kernel}:{BROKEN}"):
            train = job.Job("train", *charlm("--workers", 2, *ON_DEVICE, *args))
            assert train.end() == 1, train.error
        last = train.error.splitlines()[-1]
        assert all(text in last for text in (who, "cuda:0: ", "CUDA_ERROR_ILLEGAL_ADDRESS")), train.error


@contextlib.contextmanager
def two_workers_of_which_the_first_breaks(*args):
    """Yields the server and worker 1, after worker 0 has ended because its device broke."""
    server = job.Job("server", "--listen", "127.0.0.1:0", "--json")
    workers = []
    try:
        address = server.wait_event(lambda e: e["event"] == "listening")["address"]
        for i, machine in enumerate((f"break=tern_cuda_xent:7:{BROKEN}", "")):
            with job.simulated_gpus(machine):
                workers.append(job.Job("worker", "--join", address, "--index", i, *args,
                                       "--workers", 2, "--device", "cuda"))
        assert workers[0].end() == 1
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in workers[0].error, workers[0].error
        yield server, workers[1]
    finally:
        for running in (server, *workers):
            running.kill()


def device_of_one_worker_may_break():
    """The other worker takes its slots, and the job saves the same bytes."""
    wanted, _ = saved("unbroken", "--device", "cuda", "--workers", 2)
    save = job.SCRATCH / "broken"
    args = job.small("--slots", 4, "--save", save, steps=12)
    with two_workers_of_which_the_first_breaks(*args) as (server, other):
        assert other.end() == 0, other.error
        assert server.end() == 0, server.error
    assert (save / "model.safetensors").read_bytes() == wanted


def worker_whose_device_breaks_leaves_the_directory_to_the_others():
    save = job.SCRATCH / "left"
    args = job.small("--slots", 4, "--save", save, steps=100_000_000)
    with two_workers_of_which_the_first_breaks(*args) as (_, other):
        assert save.is_dir(), "worker 0 took it away with it"
        other.process.terminate()
        assert other.end() == 143, other.error


def device_that_refuses_a_call_ends_the_job_in_a_line():
    for call in ("graph_launch:9", "memcpy_dtoh_async:3", "event_query:7"):
        refused("--device", "cuda", machine=f"fail={call}:999", code=1,
                says=["worker 0", "cuda:0: ", "CUDA_ERROR_UNKNOWN"])


def worker_on_another_device_is_refused():
    server = job.Job("server", "--listen", "127.0.0.1:0", "--json")
    workers = []
    try:
        address = server.wait_event(lambda e: e["event"] == "listening")["address"]
        for i, device in enumerate(("cuda", "cpu")):
            with job.simulated_gpus():
                workers.append(job.Job("worker", "--join", address, "--index", i,
                                       *charlm("--workers", 2, "--device", device)))
            job.wait_until(lambda: "joined" in str(server.wait_event(
                lambda e: e["event"] == "note")) if i == 0 else True)
        assert workers[1].end() != 0
        assert "arithmetic" in workers[1].error, workers[1].error
        assert "Simulated GPU" in workers[1].error, workers[1].error
    finally:
        for running in (server, *workers):
            running.kill()


tap.run([
    program_without_cuda_says_so,
    character_model_learns_and_writes,
    records_are_learnt_with_everything_on_gpus,
    async_mode_and_clipping_learn_too,
    result_depends_on_the_slots_and_on_nothing_else,
    graphs_can_be_switched_off_and_change_no_byte,
    servers_on_gpus_give_the_cpus_bytes,
    snapshots_are_evaluated_on_a_gpu,
    tensors_in_gpu_memory_change_no_byte,
    initial_values_of_a_file_reach_gpu_memory,
    servers_that_keep_tensors_in_gpu_memory_give_the_cpus_bytes,
    job_goes_on_from_what_its_servers_had_in_gpu_memory,
    job_goes_on_from_what_gpus_have_copied_from_its_servers,
    workers_that_keep_tensors_in_gpu_memory_give_the_same_bytes,
    async_mode_learns_with_tensors_in_gpu_memory,
    worker_with_tensors_in_gpu_memory_may_break,
    interrupted_job_saves_what_is_in_gpu_memory,
    tensors_in_gpu_memory_need_a_gpu,
    what_is_not_there_is_refused_in_a_line,
    device_that_breaks_ends_the_job_in_a_line,
    device_that_breaks_with_tensors_in_it_ends_the_job_too,
    device_of_one_worker_may_break,
    worker_whose_device_breaks_leaves_the_directory_to_the_others,
    device_that_refuses_a_call_ends_the_job_in_a_line,
    worker_on_another_device_is_refused,
])
