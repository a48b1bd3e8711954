#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a library's own ping-pong tool, its two processes pinned as bench/pair.c pins, and prints half
a round trip as a line of JSON.

    own_tool.py ucx_perftest PROGRAM SIZE ROUNDS       the median
    own_tool.py fi_pingpong PROVIDER SIZE ROUNDS       the mean, since the tool prints no median
"""
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from measure import dies_with_us

LIMIT_S = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def listens(port):
    """True if a server listens at the port. Read from /proc, because the tools would take a trial
    connection for their client."""
    tables = (table for table in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if table.exists())
    return any(re.search(rf":{port:04X} [0-9A-F]+:0000 0A ", table.read_text()) for table in tables)


def start(command, core):
    cores = sorted(os.sched_getaffinity(0))
    dies = dies_with_us()

    def first():
        dies()
        os.sched_setaffinity(0, {cores[core]})
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            preexec_fn=first)


def both(server_words, client_words, port):
    """Runs the server, and the client when the server listens. Returns the client's stdout."""
    server = start(server_words, 1)
    for _ in range(LIMIT_S * 100):
        if listens(port):
            break
        if server.poll() is not None:
            sys.exit(f"{server_words[0]}: {server.communicate()[1].strip()}")
        time.sleep(0.01)
    client = start(client_words, 0)
    out, err = client.communicate(timeout=LIMIT_S)
    if client.returncode:
        sys.exit(f"{client_words[0]}: {(err or out).strip()}")
    _, err = server.communicate(timeout=LIMIT_S)
    if server.returncode:
        sys.exit(f"{server_words[0]}, the server: {err.strip()}")
    return out


def ucx_perftest(program, size, rounds):
    port = free_port()
    common = [program, "-p", str(port)]
    out = both(common, [*common, "127.0.0.1", "-t", "tag_lat", "-s", str(size), "-n", str(rounds),
                        "-w", str(rounds // 20), "-f", "-v"], port)
    head, values = (line.split(",") for line in out.strip().splitlines()[-2:])
    return float(values[head.index("50.0_percentile_lat")])


def fi_pingpong(provider, size, rounds):
    port = free_port()
    common = ["fi_pingpong", "-p", provider, "-e", "rdm", "-m", "tagged", "-S", str(size), "-I",
              str(rounds)]
    out = both([*common, "-B", str(port)], [*common, "-P", str(port), "127.0.0.1"], port)
    head, values = (line.split() for line in out.strip().splitlines()[-2:])
    return float(values[head.index("usec/xfer")])


def main():
    tool, what, size, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    half_us = {"ucx_perftest": ucx_perftest, "fi_pingpong": fi_pingpong}[tool](what, size, rounds)
    print(json.dumps({"size": size, "half_trip_us": half_us}))


if __name__ == "__main__":
    main()
