#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests measurements between two hosts, `tern bench --serve` and `--connect`: both ends on this host, and in two
network namespaces. No figure is judged here.

usage: hosts.py TERN FORGED_ORDERS
"""
import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from netns import two_hosts  # noqa: E402

job.use(sys.argv[1])
LIMIT_S = 60


@contextmanager
def server(*args):
    """A server, with its address in `address`."""
    serving = job.Job("bench", "--serve", "127.0.0.1:0", "--json", *args)
    try:
        serving.address = serving.wait_event(lambda e: e["event"] == "listening")["address"]
        yield serving
    finally:
        serving.kill()
    job.wait_until(lambda: not serving.processes())


def measure(address, test, *args):
    return job.finish("bench", test, "--connect", address, "--json", *args).events


def every_test_measures_over_each_fabric():
    for fabric, found in (("tcp", "tcp"), ("auto", "shm")):
        with server("--fabric", fabric) as serving:
            for wait in ("poll", "sleep"):
                for test, more in (("lat", ["--size", "1,4097"]), ("bw", ["--size", "1M", "--receive", "alloc"]),
                                   ("rate", ["--size", "64"]), ("allreduce", ["--size", "4K,1M"]),
                                   ("alltoall", ["--size", "8,1M"])):
                    events = measure(serving.address, test, "--wait", wait, "--rounds", 50, *more)
                    assert all(e["fabric"] == found and e["wait"] == wait and e["cpu_s_per_gb"] >= 0
                               and e["registrations"] == 0 for e in events), events
                    assert len(events) == len(more[1].split(",")), events
                events = measure(serving.address, "window", "--wait", wait, "--rounds", 50, "--size", "8,1M", "--inflight", 2)
                assert all(e["fabric"] == found and e["wait"] == wait and e["p50_us"] > 0 for e in events), events
                assert [e["op"] for e in events] == ["put", "put+note", "get", "send"] * 2, events


def one_table_has_all_sizes():
    with server("--fabric", "tcp") as serving:
        client = job.Job("bench", "bw", "--connect", serving.address, "--all", "--rounds", 2, "--inflight", 1, "--json")
        # The client is killed before the last size, whose 1 GiB at both ends is more memory than a test may
        # take.
        client.wait_event(lambda e: e["size"] == 1 << 24)
        client.kill()
        assert [e["size"] for e in client.events] == [1 << i for i in range(25)], client.events
        measure(serving.address, "lat", "--size", "8", "--rounds", 10)


def once_means_one_client():
    with server("--fabric", "tcp", "--once") as serving:
        measure(serving.address, "lat", "--size", "8,64,512", "--rounds", 10)
        assert serving.end() == 0, serving.error
        served = [e for e in serving.events if e["event"] == "served"]
        assert [e["size"] for e in served] == [8, 64, 512] and not any(e["status"] for e in served), served


def client_without_the_secret_gets_nothing_and_the_next_one_is_served():
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, name) for name in ("right", "wrong")]
        for file in files:
            file.write_text(f"{file.name} secret of the test\n")
            file.chmod(0o600)
        with server("--fabric", "tcp", "--secret-file", files[0]) as serving:
            job.refused("bench", "lat", "--connect", serving.address, "--size", "8", "--secret-file", files[1],
                        says=[f"lat {serving.address} 8", "secret"], code=1)
            job.refused("bench", "lat", "--connect", serving.address, "--size", "8", says=["secret"], code=1)
            measure(serving.address, "lat", "--size", "8", "--rounds", 10, "--secret-file", files[0])


def client_that_dies_ends_its_own_measurement_only():
    with server("--fabric", "tcp") as serving:
        client = job.Job("bench", "rate", "--connect", serving.address, "--size", "64", "--rounds", "1000000000",
                         "--wait", "sleep", "--json")
        # No output tells that the measurement has begun; the client's second process makes it likely.
        job.wait_until(lambda: len(client.processes()) == 2)
        client.kill()
        measure(serving.address, "lat", "--size", "8", "--rounds", 10)
        job.wait_until(lambda: not client.processes())


def forged_orders_are_refused_and_the_next_client_is_served():
    with server("--fabric", "tcp") as serving:
        done = subprocess.run([sys.argv[2], serving.address], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False)
        assert done.returncode == 0, done.stderr
        measure(serving.address, "lat", "--size", "8", "--rounds", 10)
    answers = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(answers) == 17, answers
    says = {"short": "another version", "version": "another version", "long": "reset by peer",
            "memory": "more than a quarter"}
    for name, text in answers.items():
        assert says.get(name, "the client's order is invalid") in text, (name, text)


def nobody_there_is_said():
    job.refused("bench", "lat", "--connect", "tcp://127.0.0.1:1", "--size", "8", says=["tcp://127.0.0.1:1"], code=1)


def wrong_options_are_refused():
    job.refused("bench", "--size", "8", says=["lat, bw, rate, window, allreduce, alltoall, pool"])
    job.refused("bench", "lat", "--serve", "127.0.0.1:0", says=["--serve excludes lat"])
    job.refused("bench", "--serve", "127.0.0.1:0", "--size", "8", says=["--serve takes no --size"])
    job.refused("bench", "--serve", "127.0.0.1:0", "--connect", "tcp://127.0.0.1:1", says=["--serve excludes --connect"])
    job.refused("bench", "--serve", "0.0.0.0:0", "--fabric", "tcp", says=["--secret-file", "--insecure"])
    job.refused("bench", "--serve", "127.0.0.1:0", "--fabric", "shm", says=["shm"])
    job.refused("bench", "lat", "--once", says=["--once belongs to --serve"])
    job.refused("bench", "pool", "--connect", "tcp://127.0.0.1:1", says=["pool"])
    job.refused("bench", "lat", "--connect", "127.0.0.1:7000", says=["--connect", "127.0.0.1:7000", "FABRIC://HOST:PORT"])
    job.refused("bench", "lat", "--all", "--size", "8", says=["--all excludes --size"])


def two_hosts_measure():
    with tempfile.TemporaryDirectory() as directory, two_hosts() as ((at, here), (_, there)):
        secret = Path(directory, "secret")
        secret.write_text("known at both hosts\n")
        secret.chmod(0o600)
        tern = [str(job.TERN), "bench"]
        serving = subprocess.Popen([*here, *tern, "--serve", f"{at}:7000", "--once", "--secret-file", secret],
                                   text=True, stdout=subprocess.PIPE)
        try:
            address = serving.stdout.readline().strip()
            assert address.endswith(f"{at}:7000"), address
            done = subprocess.run([*there, *tern, "lat", "--connect", address, "--size", "8,64K",
                                   "--rounds", "20", "--secret-file", secret, "--json"],
                                  capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert done.returncode == 0, done
            events = [json.loads(line) for line in done.stdout.splitlines()]
            assert [(e["fabric"], e["size"]) for e in events] == [("tcp", 8), ("tcp", 65536)], events
            rest, _ = serving.communicate(timeout=LIMIT_S)
            assert serving.returncode == 0, serving.returncode
            assert [line.split(": ")[1] for line in rest.splitlines()] == [
                "20 tensors of 8 bytes", "20 tensors of 65536 bytes"], rest
        finally:
            serving.kill()
            serving.wait()


tap.run([
    every_test_measures_over_each_fabric,
    one_table_has_all_sizes,
    once_means_one_client,
    client_without_the_secret_gets_nothing_and_the_next_one_is_served,
    client_that_dies_ends_its_own_measurement_only,
    forged_orders_are_refused_and_the_next_client_is_served,
    nobody_there_is_said,
    wrong_options_are_refused,
    two_hosts_measure,
])
