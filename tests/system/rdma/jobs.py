#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole jobs over RDMA devices: the same bytes as over any other fabric, also without a worker
that was killed, and an end in good order whatever else is killed, cut off or taken away.

usage: jobs.py TERN
"""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "harness"), str(TESTS / "system" / "e2e")]
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])
FOR_EVER = 100_000_000
# The connecting end is bound to the other device (from=), so connections cross the wire.
OVER_VERBS = ["--fabric", "verbs", "--listen", "10.7.0.1:0", "--verbs", "from=10.7.0.2"]
ROUTES = """\
neighbour replace 10.7.0.2 lladdr {vb} dev va nud permanent
neighbour replace 10.7.0.1 lladdr {va} dev vb nud permanent
route replace 10.7.0.2 dev va src 10.7.0.1 table 101
route replace 10.7.0.1 dev vb src 10.7.0.2 table 102
"""


def system(*command, text=None):
    subprocess.run(command, check=True, input=text, text=True)


def link(up):
    """Switches the wire's first end on or off. The kernel forgets its routes when it goes off."""
    system("ip", "link", "set", "va", "up" if up else "down")
    if up:
        address = {d: Path(f"/sys/class/net/{d}/address").read_text().strip()
                   for d in ("va", "vb")}
        system("ip", "-batch", "-", text=ROUTES.format(**address))


def saved(name, *options, steps=30):
    directory = job.SCRATCH / name
    job.train(*job.small("--slots", 4, "--save", directory, *options, steps=steps))
    return next(directory.glob("*.safetensors")).read_bytes()


def training_gives_the_same_bytes_as_over_tcp_and_shm():
    common = ["--workers", 2]
    reference = saved("shm", *common, "--fabric", "shm")
    assert saved("tcp", *common, "--fabric", "tcp") == reference, "tcp gives other bytes"
    for options in ("", ",srq=off,inline=0,guard=on"):
        over = OVER_VERBS[:-1] + [OVER_VERBS[-1] + options]
        other = saved("verbs" + options, *common, *over)
        assert other == reference, f"verbs with {over[-1]} gives other bytes"


def started(*options):
    running = job.Job("train", *job.small(*OVER_VERBS, *options, steps=FOR_EVER), "--json")
    running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
    return running


def end_of(running, act, limit_s=60):
    """Calls act(), which must make the job fail. Returns what the job says, and after how many
    seconds."""
    start = time.monotonic()
    try:
        act()
        running.end(limit_s)
    finally:
        running.kill()
    assert running.code == 1, f"exit code {running.code}\n{running.error}"
    return running.error, time.monotonic() - start


def a_killed_worker_costs_nothing():
    common = ["--slots", 4, "--servers", 2, "--workers", 2]
    reference = saved("unkilled", *common, "--fabric", "shm", steps=100)
    directory = job.SCRATCH / "killed"
    running = job.Job("train", *job.small(*common, "--save", directory, *OVER_VERBS,
                                          steps=100), "--json")
    try:
        running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        pid = running.pid_of("worker", 1)
        os.kill(pid, signal.SIGKILL)
        running.end()
    finally:
        running.kill()
    assert running.code == 0, running.error
    assert next(directory.glob("*.safetensors")).read_bytes() == reference, "other bytes"
    told = [e["text"] for e in running.events if e["event"] == "lost"]
    # The peers may see a process end before its parent does: the kernel closes its connections
    # first, and then needs time to unpin its memory.
    assert len(told) == 1 and told[0].startswith(f"worker 1 (pid {pid})"), told


def a_killed_server_is_named():
    running = started("--servers", 2, "--workers", 2)
    pid = running.pid_of("server", 0)
    error, _ = end_of(running, lambda: os.kill(pid, signal.SIGKILL))
    last = error.splitlines()[-1]
    assert (last == f"tern train: server 0 (pid {pid}) was killed by signal 9 (Killed)"
            or "server 0" in last and "is gone: Connection reset by peer" in last), error


def cut_for(seconds):
    """Lets nothing pass the wire for so long."""
    for end in ("va", "vb"):
        system("tc", "qdisc", "replace", "dev", end, "root", "netem", "loss", "100%")
    time.sleep(seconds)
    for end in ("va", "vb"):
        system("tc", "qdisc", "del", "dev", end, "root")


def a_path_that_comes_back_costs_nothing():
    common = ["--slots", 4, "--workers", 2]
    reference = saved("unhurt", *common, "--fabric", "shm", steps=600)
    directory = job.SCRATCH / "hurt"
    running = job.Job("train", *job.small(*common, "--save", directory, *OVER_VERBS,
                                          steps=600), "--json")
    try:
        running.wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        cut_for(0.2)  # the devices send lost packets again
        cut_for(3)    # the devices give up, and Tern connects again
        assert running.process.poll() is None, "it had ended before the cut"
        running.end()
    finally:
        running.kill()
    assert running.code == 0, running.error
    assert next(directory.glob("*.safetensors")).read_bytes() == reference, "other bytes"


def a_link_that_goes_down_ends_the_job():
    """Real devices come back with their link. Soft-RoCE's connection manager does not (its
    first failed send leaves queue pair 1 in error), until the device is made anew."""
    running = started("--workers", 2)
    try:
        error, seconds = end_of(running, lambda: link(False))
    finally:
        system("rdma", "link", "delete", "rxe0")
        link(True)
        system("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "va")
    assert error, "it says nothing"
    print(f"# the job ended after {seconds:.1f} s: {error.splitlines()[-1]}")


def a_device_that_is_removed_ends_the_job():
    running = started("--workers", 2)
    try:
        error, seconds = end_of(running, lambda: system("rdma", "link", "delete", "rxe0"))
    finally:
        system("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "va")
    assert error, "it says nothing"
    print(f"# the job ended after {seconds:.1f} s: {error.splitlines()[-1]}")
    # The device that was added as a replacement works.
    job.train(*job.small(*OVER_VERBS, steps=5))


def has_device(name):
    return name in subprocess.run(["rdma", "link", "show"], check=True, stdout=subprocess.PIPE, text=True).stdout


def notes_of(running):
    return [e["text"] for e in running.events if e["event"] == "log"]


def a_job_goes_on_over_tcp_when_its_device_is_removed():
    common = ["--slots", 4, "--workers", 2]
    reference = saved("before", *common, "--fabric", "shm", steps=400)
    directory = job.SCRATCH / "after"
    server = job.Job("server", "--listen", "10.7.0.2:0", "--fabric", "auto",
                     "--insecure", "--json")
    workers = []
    try:
        place = server.wait_event(lambda e: e["event"] == "listening")["address"]
        place = place.removeprefix("auto://")
        # auto itself would take shm on this one host.
        join = ["--join", f"verbs://{place}+tcp://{place}", "--verbs", "from=10.7.0.1"]
        workers = [job.Job("worker", *job.small(*common, *join, "--index", i, "--save",
                                                directory, steps=400), "--json")
                   for i in range(2)]
        workers[0].wait_event(lambda e: e["event"] == "progress" and e["step"] > 0)
        # No step is made until the device is gone. The command ends with the last process that uses it.
        os.kill(server.process.pid, signal.SIGSTOP)
        removal = subprocess.Popen(["rdma", "link", "delete", "rxe0"])
        job.wait_until(lambda: not has_device("rxe0"))
        os.kill(server.process.pid, signal.SIGCONT)
        for running in workers:
            running.end()
            assert running.code == 0, running.error
            told = notes_of(running)
            assert any("continues over tcp: the verbs connection was lost" in t for t in told), (told, notes_of(server))
        assert removal.wait() == 0
    finally:
        for running in [server, *workers]:
            running.kill()
        system("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "va")
    assert next(directory.glob("*.safetensors")).read_bytes() == reference, "other bytes"


def transfers_end_when_their_device_goes():
    transfers = job.Job("bench", "bw", *OVER_VERBS, "--size", 1 << 20, "--rounds", 1_000_000)
    time.sleep(3)
    assert transfers.process.poll() is None, transfers.process.communicate()
    try:
        error, seconds = end_of(
            transfers, lambda: system("rdma", "link", "delete", "rxe1"))
    finally:
        system("rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "vb")
    assert error, "it says nothing"
    print(f"# the job ended after {seconds:.1f} s: {error.splitlines()[-1]}")


tap.run([
    training_gives_the_same_bytes_as_over_tcp_and_shm,
    a_killed_worker_costs_nothing,
    a_killed_server_is_named,
    a_path_that_comes_back_costs_nothing,
    a_link_that_goes_down_ends_the_job,
    a_device_that_is_removed_ends_the_job,
    a_job_goes_on_over_tcp_when_its_device_is_removed,
    transfers_end_when_their_device_goes,
])
