# SPDX-License-Identifier: Apache-2.0
"""Two hosts, as network namespaces with a wire between them."""
import json
import os
import shutil
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


def disturb(name, netem):
    """Makes the kernel treat packets that the namespace `name` sends as `netem` says ("delay 1ms")."""
    if not shutil.which("tc"):
        raise tap.Skip("no netem here: there is no tc")
    done = subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "wire", "root", "netem",
                           *netem.split()], capture_output=True, text=True, check=False)
    if "qdisc kind is unknown" in done.stderr:
        raise tap.Skip("no netem here: the kernel lacks it")
    assert done.returncode == 0, done.stderr


def dropped(prefix):
    """How many packets netem has dropped that a host sent; `prefix` is the beginning of a command on the host."""
    shown = subprocess.run([*prefix, "tc", "-s", "-j", "qdisc", "show", "dev", "wire"], check=True,
                           capture_output=True, text=True).stdout
    return sum(queue["drops"] for queue in json.loads(shown) if queue["kind"] == "netem")


@contextmanager
def two_hosts(netem=""):
    """Creates two hosts, and deletes them in the end. Yields for each its address and the beginning of a command
    that runs there. `netem`: what happens to the packets that each host sends, as "delay 1ms"."""
    hosts = [(f"10.7.9.{i}", f"tern-{os.getpid()}-{i}") for i in (1, 2)]
    try:
        for _, name in hosts:
            ip("netns", "add", name)
        ip("-n", hosts[0][1], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", hosts[1][1])
        for address, name in hosts:
            ip("-n", name, "address", "add", f"{address}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
            if netem:
                disturb(name, netem)
        yield [(address, ["ip", "netns", "exec", name]) for address, name in hosts]
    finally:
        for _, name in hosts:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
