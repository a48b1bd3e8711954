# SPDX-License-Identifier: Apache-2.0
"""Both ends of a perftest program (ib_send_lat, ib_write_bw...) in the guest: the server on
rxe0, the client on rxe1, its figures as a dictionary."""
import subprocess
import time
from pathlib import Path

SERVER, CLIENT, ADDRESS = "rxe0", "rxe1", "10.7.0.1"
PORT = 18515  # of the TCP connection over which both ends exchange their parameters
LIMIT_S = 120

LATENCY = ["bytes", "iterations", "min_us", "max_us", "typical_us", "average_us", "deviation_us",
           "p99_us", "p999_us"]
BANDWIDTH = ["bytes", "iterations", "peak_mib_s", "average_mib_s", "mpps"]


class Failed(Exception):
    pass


def gid_index(device):
    """Returns the index of the GID that contains the device's IPv4 address; the other GIDs are link-local."""
    port = Path(f"/sys/class/infiniband/{device}/ports/1")
    for gid in sorted((port / "gids").iterdir(), key=lambda p: int(p.name)):
        if gid.read_text().startswith("0000:0000:0000:0000:0000:ffff:"):
            return gid.name
    raise Failed(f"{device} has no GID of an IPv4 address")


def listening(port):
    """Whether somebody listens at the TCP port: a line of state 0A in the kernel's tables."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                return True
    return False


def figures(program, text):
    """Returns the row below the heading that starts with "#bytes", as a dictionary."""
    names = LATENCY if program.endswith("_lat") else BANDWIDTH
    lines = text.splitlines()
    for heading, row in zip(lines, lines[1:]):
        fields = row.split()
        if heading.strip().startswith("#bytes") and len(fields) >= len(names):
            return dict(zip(names, map(float, fields)))
    raise Failed(f"{program} printed no figures:\n{text}")


def run(program, size, iterations, *more):
    """Runs the program once at one size, and returns its figures."""
    def command(device, *to):
        return [program, "-d", device, "-x", gid_index(device), "-s", str(size), "-n",
                str(iterations), "-p", str(PORT), "-F", *more, *to]

    with subprocess.Popen(command(SERVER), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as server:
        try:
            while not listening(PORT):
                if server.poll() is not None:
                    raise Failed(f"the server ended:\n{server.stdout.read()}")
                time.sleep(0.02)
            client = subprocess.run(command(CLIENT, ADDRESS), text=True, timeout=LIMIT_S,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if client.returncode:
                raise Failed(f"{program}: exit status {client.returncode}\n{client.stdout}")
            server.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{program}, {size} bytes: not done after {LIMIT_S} s") from None
        finally:
            server.kill()
    return figures(program, client.stdout)
