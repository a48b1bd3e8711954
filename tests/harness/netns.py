# SPDX-License-Identifier: Apache-2.0
"""Two hosts, as network namespaces with a wire between them."""
import os
import subprocess
from contextlib import contextmanager

import tap


def ip(*words):
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise tap.Skip(f"no network namespaces here: ip: {error.strerror}") from None
    if done.returncode:
        raise tap.Skip(f"no network namespaces here: ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def two_hosts():
    """For each host its address and the beginning of a command that runs there."""
    hosts = [(f"10.7.9.{i}", f"tern-{os.getpid()}-{i}") for i in (1, 2)]
    try:
        for _, name in hosts:
            ip("netns", "add", name)
        ip("-n", hosts[0][1], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", hosts[1][1])
        for address, name in hosts:
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [(address, ["ip", "netns", "exec", name]) for address, name in hosts]
    finally:
        for _, name in hosts:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
