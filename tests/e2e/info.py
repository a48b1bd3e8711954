#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`tern info`, `tern help` and what the program says of itself.

usage: info.py TERN
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])


def info_says_what_works_here():
    info = job.info()
    assert info["version"] and info["kernels"]["fingerprint"], info
    fabrics = {f["name"]: f["available"] for f in info["fabrics"]}
    assert fabrics.pop("verbs") in (True, False)  # whether there are RDMA devices
    assert fabrics == {"tcp": True, "shm": True}, info
    text = "\n".join(job.finish("info").lines)
    for word in (info["version"], "tcp", "shm", info["kernels"]["used"], "memlock"):
        assert word in text, f"{word} is not in:\n{text}"


def help_names_every_command_and_option():
    text = "\n".join(job.finish("help").lines)
    for command in ("train", "server", "worker", "bench", "info"):
        assert command in text
        own = "\n".join(job.finish("help", command).lines)
        assert own == "\n".join(job.finish(command, "--help").lines)
        assert "--json" in own, own
    assert job.finish("--version").lines[0].startswith("tern "), "version"
    job.refused("trian", says=["did you mean train?"])


tap.run([
    info_says_what_works_here,
    help_names_every_command_and_option,
])
