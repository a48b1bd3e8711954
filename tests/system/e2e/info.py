#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tern info`, `tern help` and `tern --version`.

usage: info.py TERN [libcuda.so.1 of the simulated driver]
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
job.use_drivers(sys.argv[2:])


def info_says_what_works_here():
    info = job.info()
    assert info["version"] and info["kernels"]["fingerprint"], info
    fabrics = {f["name"]: f["available"] for f in info["fabrics"]}
    fabrics.pop("verbs", None)  # there are RDMA devices, or not, or it was built without
    assert fabrics == {"tcp": True, "shm": True}, info
    text = "\n".join(job.finish("info").lines)
    machine = info["machine"]
    assert "zlib" in info["built_in"] and machine["memory_bytes"] > 0, info
    for limit in ("cgroup_memory_bytes", "cgroup_cpus"):
        assert machine[limit] is None or machine[limit] > 0, machine
    assert all(n["cpus"] is not None for n in machine["numa_nodes"]), machine
    for word in (info["version"], "tcp", "shm", info["kernels"]["used"], "memlock", "zlib",
                 "cgroup_memory_bytes", "cgroup_cpus", "numa_nodes"):
        assert word in text, f"{word} is not in:\n{text}"


def check_moves_tensors_over_what_works_here():
    done = job.finish("info", "--check", "--json")
    checks = {c["fabric"]: c for c in done.events[0]["checks"]}
    assert done.events[0]["ok"] is True and list(checks) == ["shm", "tcp", "verbs"], done.lines
    for name in ("shm", "tcp"):
        assert checks[name]["ok"] is True and checks[name]["ms"] > 0, checks
    lines = job.finish("info", "--check").lines
    for name in ("shm", "tcp"):
        assert any(line.startswith(f"{name} ok 64 B and 1 MiB both ways, ") for line in lines)
    why = job.fabric_missing("verbs")
    if why:
        assert any(line.startswith("verbs skipped: ") and why in line for line in lines), lines


def info_on_rdma_says_why_there_is_none():
    rdma, why = job.info()["rdma"], job.fabric_missing("verbs")
    if not why:
        assert rdma["devices"], rdma
        raise tap.Skip("there are RDMA devices here")
    assert why in rdma["why"], rdma
    assert sum(why in line for line in job.finish("info").lines) == 1


def info_on_cuda_says_what_there_is_or_why_not():
    info = job.info()
    text = "\n".join(job.finish("info").lines)
    why = info["cuda"].get("why")
    assert "cuda" in text and info["built_in"]["cuda"] in (True, False), text
    if not info["built_in"]["cuda"]:
        assert why == "this tern was built without CUDA", info["cuda"]
    if why:
        assert f"  not here               {why}" in text, text
        return
    for device in info["cuda"]["devices"]:
        assert device["name"] in text and device["pci"] in text, text


def info_on_cuda_describes_gpus():
    with job.simulated_gpus("devices=2,major=7,minor=5,numa=3"):
        cuda = job.info()["cuda"]
        text = "\n".join(job.finish("info").lines)
    assert [d["name"] for d in cuda["devices"]] == ["Simulated GPU 0", "Simulated GPU 1"], cuda
    assert cuda["devices"][1]["numa_node"] == 4, cuda
    assert "no kernels: its capability is 7.5; 8.0 or later is needed" in text, text


def info_on_cuda_names_what_is_wrong_with_the_driver():
    for machine, why in (
            ("version=11040", "the driver is for CUDA 11.4; 12.0 is needed"),
            ("devices=0", "the driver has no CUDA device for this process"),
            ("missing=cuMemAlloc", "libcuda.so.1 has no cuMemAlloc of version 3.2")):
        with job.simulated_gpus(machine):
            assert job.info()["cuda"] == {"why": why}, machine


def help_names_every_command_and_option():
    text = "\n".join(job.finish("help").lines)
    for command in ("train", "run", "server", "worker", "evaluator", "checkpoint", "bench", "info", "status", "top",
                    "drain", "abort"):
        assert command in text
        own = "\n".join(job.finish("help", command).lines)
        assert own == "\n".join(job.finish(command, "--help").lines)
        assert "--json" in own, own
    done = job.finish(code=2)
    assert not done.lines and done.error.startswith("tern "), done.error
    job.refused("trian", says=["did you mean train?"])


def version_says_what_it_was_built_from():
    lines = job.finish("--version").lines
    assert lines[0] == f"tern {job.info()['version']}", lines
    said = dict(line.split(None, 1) for line in lines[1:])
    assert list(said) == ["commit", "compiler", "fabrics", "wire"], lines
    assert said["compiler"].split()[0] in ("gcc", "clang"), lines
    assert said["fabrics"].startswith("shm, tcp") and said["wire"].startswith("session "), lines
    for word in "-V", "-v", "version":
        assert job.finish(word).lines == lines, word


tap.run([
    info_says_what_works_here,
    check_moves_tensors_over_what_works_here,
    info_on_rdma_says_why_there_is_none,
    info_on_cuda_says_what_there_is_or_why_not,
    info_on_cuda_describes_gpus,
    info_on_cuda_names_what_is_wrong_with_the_driver,
    help_names_every_command_and_option,
    version_says_what_it_was_built_from,
])
