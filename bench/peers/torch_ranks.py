# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of torch.distributed on this host."""
import multiprocessing
import os
import socket
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(how, count, work, *arguments):
    """Calls work(*arguments, rank) in `count` processes. how: "fork" or "spawn". Exits if one of them fails."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo")
    ranks = [multiprocessing.get_context(how).Process(target=work, args=(*arguments, rank)) for rank in range(count)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
        if p.exitcode:
            sys.exit(f"a process ended with status {p.exitcode}")
