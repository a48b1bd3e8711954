#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `./run bench --serve` and `--connect`: two hosts, which are network namespaces here, or both this
host (loopback), with Tern and raw TCP as the only contenders. The only figure that is judged is the delay of
a wire, which the round trips must show. With TERN_RDMA_ADDRESS, the address of an RDMA device, one test runs
both ends on one host, over that device.

usage: bench_hosts.py TERN RAW_TCP [netem|devices]

With netem or devices, only the one test runs that needs netem or an RDMA device.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
sys.path.insert(0, str(TOP / "bench"))
import tap  # noqa: E402
import hosts  # noqa: E402
from netns import dropped, two_hosts  # noqa: E402

TERN, RAW_TCP = (Path(word).resolve() for word in sys.argv[1:3])
LIMIT_S = 60 * int(os.environ.get("TERN_TEST_PATIENCE", 1))
SCRATCH = tempfile.TemporaryDirectory(prefix="tern-bench-hosts-")
# ./run bench without the installation, with raw TCP as the only peer.
PROGRAM = f"""
import os
import sys
sys.path.insert(0, {str(TOP / "bench")!r})
from pathlib import Path
import hosts, install
install.peers = lambda *_: {{}}
install.programs = lambda *_: None
install.PEERS = Path({str(RAW_TCP.parent)!r})
every = hosts.pairs
hosts.latency_points = lambda sizes, *_: [(size, 20) for size in sizes]
hosts.bandwidth_points = lambda sizes: [(size, 32) for size in sizes]
hosts.pairs = lambda: [peer for peer in every() if peer.program == "raw_tcp"]
if "TERN_TEST_RDMA" not in os.environ:  # a namespace has no device, but sees the host's
    hosts.has_rdma = lambda: False
sys.exit(hosts.main(sys.argv[1:]))
"""


def scratch(name):
    return Path(SCRATCH.name, name)


def secret_file(name):
    path = scratch(name)
    path.write_text(f"the secret of {name}, which is long\n")
    path.chmod(0o600)
    return path


def command(*words):
    return [sys.executable, "-c", PROGRAM, *map(str, words), "--tern", str(TERN)]


@contextmanager
def server(*words, at="127.0.0.1:0", prefix=()):
    """A server; `address` is where it listens."""
    serving = subprocess.Popen([*prefix, *command("--serve", at, *words)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        first = serving.stdout.readline()
        assert first.startswith("listening at "), first + serving.stderr.read()
        serving.address = first.removeprefix("listening at ").split(": ")[0]
        yield serving
    finally:
        serving.terminate()
        serving.communicate(timeout=LIMIT_S)


def client(address, *words, prefix=()):
    return subprocess.run([*prefix, *command("--connect", address, "--quick", *words)], text=True,
                          capture_output=True, timeout=LIMIT_S)


CONTENDERS = {f"{who}.tcp.{wait}" for who in ("tern", "raw") for wait in ("poll", "sleep")}


def measured(address, *words, prefix=()):
    """{question: {contender: its entry}} of a client that has measured everything once."""
    out = scratch(f"out-{time.monotonic_ns()}")
    done = client(address, "--rounds", 1, "--out", out, *words, prefix=prefix)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "results.json").read_text())
    questions = {name: question["contenders"] for name, question in found["questions"].items()}
    assert set(questions["lat-tcp"]) == set(questions["bw-tcp"]) == CONTENDERS, found
    for contenders in questions.values():
        for entry in contenders.values():
            assert len(entry["points"]) > 1, entry
            assert f"| {entry['title']} | {entry['wait']} |" in done.stdout, done.stdout
    return questions


def refused(done, *says):
    assert done.returncode == 2, done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(("bench: ", "./run bench: ")) and all(word in last for word in says), last


def two_hosts_measure_every_contender_that_both_have():
    secret = secret_file("both")
    with two_hosts() as ((address, here), (_, there)):
        with server("--secret-file", secret, "--once", at=f"{address}:0", prefix=here) as serving:
            measured(serving.address, "--secret-file", secret, prefix=there)
            assert serving.wait(LIMIT_S) == 0


def hosts_on_a_long_and_lossy_wire_measure_it():
    """A packet takes 2 ms there and back, and one of 500 is lost in each direction."""
    with two_hosts("delay 1ms loss 0.2% limit 10000") as ((address, here), (_, there)):
        with server("--insecure", at=f"{address}:0", prefix=here) as serving:
            found = measured(serving.address, "--insecure", prefix=there)
        assert dropped(there) > 0, "nothing was lost"
    for entry in found["lat-tcp"].values():
        assert all(p50 >= 2000 for p50 in entry["points"]["64"]["p50_us"]), entry


def hosts_with_devices_are_measured_over_rdma():
    address = os.environ.get("TERN_RDMA_ADDRESS")
    if not address:
        raise tap.Skip("no RDMA device")
    os.environ["TERN_TEST_RDMA"] = "1"
    try:
        with server("--insecure", at=f"{address}:0") as serving:
            found = measured(serving.address, "--insecure")
    finally:
        del os.environ["TERN_TEST_RDMA"]
    for name in ("lat-verbs", "bw-verbs"):
        assert set(found[name]) == {"tern.verbs.poll", "tern.verbs.sleep"}, found


def host_that_others_reach_needs_a_secret():
    done = subprocess.run(command("--serve", "0.0.0.0:0"), capture_output=True, text=True)
    refused(done, "0.0.0.0:0", "--secret-file", "--insecure")


def secret_that_others_read_is_refused():
    path = secret_file("open")
    path.chmod(0o644)
    refused(client("127.0.0.1:1", "--secret-file", path), "chmod 600")


def nobody_there_is_said_in_one_line():
    refused(client("127.0.0.1:1", "--insecure"), "127.0.0.1:1", "refused")


def what_is_wrong_is_said_without_numbers_of_errors():
    missing = scratch("nope")
    for done, *says in (
            (client("127.0.0.1:1", "--secret-file", missing), f"--secret-file {missing}: No such file"),
            (subprocess.run(command("--serve", "192.0.2.1:0", "--insecure"), capture_output=True, text=True),
             "--serve 192.0.2.1:0: Cannot assign requested address")):
        refused(done, *says)
        assert "Errno" not in done.stderr, done.stderr


def help_needs_no_address():
    for side in ("--serve", "--connect"):
        done = subprocess.run(command(side, "--help"), capture_output=True, text=True)
        assert done.returncode == 0 and "--release-grpc" in done.stdout, done


def second_client_hears_that_the_server_may_be_busy():
    with server("--insecure") as serving:
        host, port = serving.address.split(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as first:
            line = hosts.Line(first)
            hosts.prove(line, b"", "client")
            refused(client(serving.address, "--insecure"), "said nothing for 10 s", "another client")


def what_one_host_lacks_is_told_once_for_each_cause():
    ours = {"a": "", "b": "no x", "c": "no x", "d": ""}
    theirs = {"missing": {"a": "", "b": "", "c": "", "d": "no \x1b[2J"}, "machine": {"tern": "t"}}
    said = []
    with mock.patch.object(hosts, "say", said.append):
        assert hosts.fit({"tern": "t"}, ours, theirs) == {"a"}
    assert said == ["  missing on this host (no x): b, c", "  missing on the other host (no ?[2J): d"], said


def address_without_a_port_is_refused():
    done = client("somewhere", "--insecure")
    assert done.returncode == 2 and "expected HOST:PORT" in done.stderr, done.stderr


def client_with_another_secret_gets_nothing_and_the_next_is_served():
    right, wrong = secret_file("right"), secret_file("wrong")
    with server("--secret-file", right) as serving:
        refused(client(serving.address, "--secret-file", wrong), "another secret")
        measured(serving.address, "--secret-file", right)


def strangers_cost_the_server_nothing():
    """The server runs nothing for a client that sends something else than messages, or asks for a program
    that is not a contender here; after them it serves the next client."""
    with server("--insecure") as serving:
        host, port = serving.address.split(":")
        for text in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[" * 60000 + b"\n", b"x" * 200000,
                     b'{"nonce": 1}\n', b'{"nonce": "1"}\n{"proof": "\xc3\xa4"}\n'):
            with socket.create_connection((host, int(port)), timeout=LIMIT_S) as stranger:
                try:
                    stranger.sendall(text)
                except OSError:
                    pass  # it was cut off already
        for key in ("/bin/sh", None, {"a": 1}, "ucx.rc.poll"):
            with socket.create_connection((host, int(port)), timeout=LIMIT_S) as stranger:
                line = hosts.Line(stranger)
                hosts.prove(line, b"", "client")
                assert "missing" in line.hear(LIMIT_S)
                line.tell(run=key)
                try:
                    assert "at" not in line.hear(LIMIT_S)
                except hosts.Refused:
                    pass
        measured(serving.address, "--insecure")


NEEDS = {"netem": hosts_on_a_long_and_lossy_wire_measure_it, "devices": hosts_with_devices_are_measured_over_rdma}
tap.run([NEEDS[name] for name in sys.argv[3:]] or [
    two_hosts_measure_every_contender_that_both_have,
    *NEEDS.values(),
    host_that_others_reach_needs_a_secret,
    secret_that_others_read_is_refused,
    nobody_there_is_said_in_one_line,
    what_is_wrong_is_said_without_numbers_of_errors,
    help_needs_no_address,
    second_client_hears_that_the_server_may_be_busy,
    what_one_host_lacks_is_told_once_for_each_cause,
    address_without_a_port_is_refused,
    client_with_another_secret_gets_nothing_and_the_next_is_served,
    strangers_cost_the_server_nothing,
])
