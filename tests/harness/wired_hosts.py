# SPDX-License-Identifier: Apache-2.0
"""Two hosts, as network namespaces, with a wire between them that can be cut and can lose packets. A process of this
file carries the packets between two TAP devices, so it needs no netem of the kernel, and it counts what it drops."""
import fcntl
import os
import random
import select
import struct
import subprocess
import sys
from contextlib import contextmanager

import tap
from netns import ip

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000  # of <linux/if_tun.h>
FRAME_MAX = 65536


class Wire:
    """The wire, for the test. `hosts` has for each host its address and the beginning of a command that runs there."""

    def __init__(self, hosts, carrier):
        self.hosts, self.carrier = hosts, carrier

    def lose(self, share):
        """From now on the wire drops this share of the packets: 0 none, 1 all. Returns how many it has dropped."""
        self.carrier.stdin.write(f"{share}\n")
        self.carrier.stdin.flush()
        return int(self.carrier.stdout.readline())


def _open_device(name):
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise tap.Skip(f"no TAP devices here: /dev/net/tun: {error.strerror}") from None
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    except OSError as error:
        os.close(device)
        raise tap.Skip(f"no TAP devices here: {name}: {error.strerror}") from None
    return device


@contextmanager
def two_wired_hosts(seed):
    """Creates two hosts and the wire between them, and deletes them in the end. Yields the Wire. The seed decides which
    packets are lost. Raises tap.Skip where the machine does not allow it."""
    names = [f"tern-wire-{os.getpid()}-{i}" for i in (1, 2)]
    hosts, devices, carrier = [], [], None
    try:
        for i, name in enumerate(names, 1):
            ip("netns", "add", name)
            device = f"tern{os.getpid()}.{i}"[-15:]
            devices.append(_open_device(device))
            ip("link", "set", device, "netns", name)
            ip("-n", name, "link", "set", device, "name", "wire")
            ip("-n", name, "address", "add", f"10.7.10.{i}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
            hosts.append((f"10.7.10.{i}", ["ip", "netns", "exec", name]))
        carrier = subprocess.Popen([sys.executable, __file__, str(seed), *map(str, devices)], text=True,
                                   pass_fds=devices, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        yield Wire(hosts, carrier)
    finally:
        if carrier:
            carrier.stdin.close()
            carrier.wait()
            carrier.stdout.close()
        for device in devices:
            os.close(device)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def carry(seed, devices):
    """Carries packets until stdin ends. Each line of stdin is the share that is lost from then on; the answer is how
    many were dropped before."""
    rng, share, dropped = random.Random(seed), 0.0, 0
    other = {devices[0]: devices[1], devices[1]: devices[0]}
    while True:
        for ready in select.select([sys.stdin, *devices], [], [])[0]:
            if ready is sys.stdin:
                line = sys.stdin.readline()
                if not line:
                    return
                share = float(line)
                print(dropped, flush=True)
                continue
            try:
                frame = os.read(ready, FRAME_MAX)
                if rng.random() < share:
                    dropped += 1
                else:
                    os.write(other[ready], frame)
            except OSError:
                continue  # the queue of the other host is full, or a device goes down: the packet is lost


if __name__ == "__main__":
    carry(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
