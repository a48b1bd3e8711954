#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the machine is what the other cases expect: two devices, a wire between them, and on
the wire the disturbance that the suite has chosen. Without this, a fabric whose packets never left
their device would pass.

usage: wire.py plain|loss|delay
"""
import json
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import perftest  # noqa: E402

WIRE = sys.argv[1]
DEVICES = {"rxe0": ("va", "10.7.0.1"), "rxe1": ("vb", "10.7.0.2")}
PINGS = 50
PATIENCE_S = 60


def output(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=PATIENCE_S)
    assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def sent_packets(link):
    return int(Path(f"/sys/class/net/{link}/statistics/tx_packets").read_text())


def sent_again():
    """Packets that a device sent again, or got again."""
    names = ("completer_retry_err", "duplicate_request", "rcvd_seq_err")
    return sum(int(Path(f"/sys/class/infiniband/{d}/ports/1/hw_counters/{n}").read_text())
               for d in DEVICES for n in names)


def ended_by_itself(said):
    """True if all that the client of rping complains of is its own end: it closes its event channel
    while another thread of it may still wait there, and then exits with status 1. It prints a line
    about each ping that fails."""
    return set(said.splitlines()) == {"client DISCONNECT EVENT...",
                                      "rdma_get_cm_event: Bad file descriptor"}


def rping(to):
    """Sends, RDMA reads and RDMA writes through librdmacm, with the bytes compared."""
    command = ["rping", "-a", to, "-C", str(PINGS), "-V"]
    server = subprocess.Popen([*command, "-s"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
    try:
        end = time.monotonic() + PATIENCE_S
        while True:  # the server does not say when it listens
            client = subprocess.run([*command, "-c"], text=True, timeout=PATIENCE_S,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if "RDMA_CM_EVENT_REJECTED" not in client.stdout or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert client.returncode == 0 or ended_by_itself(client.stdout), client.stdout
        assert server.wait(timeout=PATIENCE_S) == 0, server.stdout.read()
    finally:
        server.kill()
        server.communicate()


def there_are_two_active_devices():
    listed = output("ibv_devinfo")
    assert sorted(re.findall(r"hca_id:\s*(\S+)", listed)) == sorted(DEVICES), listed
    assert listed.count("PORT_ACTIVE") == 2, listed


def rping_works_both_ways():
    for _, address in DEVICES.values():
        rping(address)


def packets_cross_the_wire():
    """The packets of a connection cross the wire also if the client did not choose its source
    address."""
    before = {link: sent_packets(link) for link, _ in DEVICES.values()}
    rping("10.7.0.2")
    for link, packets in before.items():
        assert sent_packets(link) - packets > PINGS, f"{link}: {packets}, {sent_packets(link)}"


def the_wire_is_as_asked():
    for link, _ in DEVICES.values():
        queues = json.loads(output("tc", "-j", "qdisc", "show", "dev", link))
        disturbed = [" ".join(q["options"]) for q in queues if q["kind"] == "netem"]
        assert len(disturbed) == (WIRE != "plain"), queues
        assert all(WIRE in options for options in disturbed), queues


def lost_packets_are_sent_again():
    """With -u 10 the queue pairs send a lost packet again after 4 us * 2^10. A queue pair of librdmacm
    would wait for half a second."""
    before = sent_again()
    perftest.run("ib_send_lat", 64, 1000, "-u", "10")
    assert sent_again() > before


tap.run({
    "plain": [the_wire_is_as_asked, there_are_two_active_devices, rping_works_both_ways,
              packets_cross_the_wire],
    "loss": [the_wire_is_as_asked, lost_packets_are_sent_again],
    "delay": [the_wire_is_as_asked, packets_cross_the_wire],
}[WIRE])
