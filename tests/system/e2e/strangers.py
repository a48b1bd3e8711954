#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of who may come in: listening beyond this host, secrets and their files, and what strangers
get from a server that waits and from a job that trains.

usage: strangers.py PROGRAM
"""
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import job  # noqa: E402
import tap  # noqa: E402

OTHER = "refused: the peer has another secret"
NONE = "refused: the peer has a secret, and this process has none"


def secret_file(name, content=b"0123456789abcdef\n", mode=0o600):
    path = job.SCRATCH / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


def has_secrets():
    done = subprocess.run([job.TERN, "server", "--listen", "192.0.2.1:0", "--fabric", "tcp",
                           "--secret-file", str(secret_file("any"))],
                          capture_output=True, text=True)
    if "built without OpenSSL" in done.stderr:
        assert done.returncode == 2, done
        raise tap.Skip("this tern was built without OpenSSL")


# ---- the command line --------------------------------------------------------------------

def listening_beyond_this_host_without_a_secret_is_refused():
    for address in "0.0.0.0:0", "[::]:0", "192.0.2.1:7000":
        job.refused("server", "--listen", address, says=[f"--listen {address}", "--insecure"])
    server = job.Job("server", "--listen", "0.0.0.0:0", "--fabric", "tcp", "--insecure", "--json")
    try:
        server.wait_event(lambda e: e["event"] == "listening")
    finally:
        server.kill()


def a_secret_file_allows_it():
    has_secrets()
    job.refused("server", "--listen", "0.0.0.0:0", says=["--secret-file"])
    server = job.Job("server", "--listen", "0.0.0.0:0", "--fabric", "tcp", "--json",
                     "--secret-file", secret_file("wide"))
    try:
        server.wait_event(lambda e: e["event"] == "listening")
    finally:
        server.kill()


def secret_files_are_checked():
    has_secrets()

    def refused(path, *says):
        for command in ["server"], ["worker", *job.small(), "--join", "127.0.0.1:1"]:
            job.refused(*command, "--secret-file", path, says=[f"--secret-file {path}", *says])

    refused(job.SCRATCH / "missing", "No such file")
    refused(job.SCRATCH, "must be a file")
    refused("/dev/zero", "must be a file")
    refused(secret_file("group", mode=0o640), "0640", "must be 0600")
    refused(secret_file("others", mode=0o602), "0602", "must be 0600")
    refused(secret_file("empty", b""), "is empty")
    refused(secret_file("newline", b"\n"), "is empty")
    refused(secret_file("short", b"0123456789abcde\n"), "has 15 bytes, must have 16 or more")
    refused(secret_file("long", b"x" * 1025), "at most 1024 bytes")
    refused(secret_file("zero", b"a\0b"), "byte 0")
    job.refused("server", "--secret-file", secret_file("both"), "--insecure",
                says=["--insecure", "--secret-file"])
    os.environ["TERN_SECRET_FILE"] = str(secret_file("environment", mode=0o644))
    try:
        job.refused("server", says=["TERN_SECRET_FILE", "environment", "0644"])
    finally:
        del os.environ["TERN_SECRET_FILE"]


def launcher_needs_no_secret_of_the_environment():
    has_secrets()
    # This secret file is readable by others, so a process that opened it would refuse it.
    os.environ["TERN_SECRET_FILE"] = str(secret_file("not-asked-for", mode=0o644))
    try:
        for more in [], ["--insecure"]:
            job.finish("train", *job.small("--fabric", "tcp", *more, steps=5), "--json")
    finally:
        del os.environ["TERN_SECRET_FILE"]


def secrets_come_through_pipes_too():
    has_secrets()
    nobody_writes = job.SCRATCH / "secret-fifo"
    os.mkfifo(nobody_writes, 0o600)
    job.refused("server", "--secret-file", nobody_writes, says=[f"{nobody_writes}: is empty"])
    # A pipe whose writer writes later, like bash's <(COMMAND).
    ours, theirs = os.pipe()
    with subprocess.Popen([job.TERN, "server", "--listen", "127.0.0.1:0", "--json",
                           "--secret-file", f"/dev/fd/{ours}"], pass_fds=[ours],
                          stdout=subprocess.PIPE, text=True) as server:
        time.sleep(0.5)
        os.write(theirs, b"0123456789abcdef")
        os.close(theirs)
        assert '"listening"' in server.stdout.readline()
        server.terminate()
        server.communicate(timeout=20)
    os.close(ours)


# ---- jobs --------------------------------------------------------------------------------

def model(directory):
    return (directory / "model.safetensors").read_bytes()


def reference(workers, steps):
    directory = job.SCRATCH / f"reference-{workers}-{steps}"
    if not directory.exists():
        job.train(*job.small("--slots", 2, "--workers", workers, "--fabric", "shm", "--save",
                             directory, steps=steps))
    return model(directory)


def tell_secrets_apart(words):
    """Returns the words that may hold the secret that tern train makes: 64 hexadecimal digits."""
    return [w for w in words if re.search("[0-9a-f]{64}", w)]


def stranger_at(address, *more, says):
    stranger = job.finish("worker", *job.small("--slots", 2), "--join", address, *more, code=1)
    # If shared memory refuses, a line before the last one says that the next address is tried.
    last = stranger.error.splitlines()[-1]
    assert last.endswith("cannot be reached: " + says), stranger.error


def secret_of_tern_train_is_not_to_be_seen_and_keeps_strangers_out():
    has_secrets()
    directory = job.SCRATCH / "guarded"
    steps = 3000
    running = job.Job("train", *job.small("--slots", 2, "--workers", 2, "--save", directory,
                                          steps=steps), "--json")
    try:
        running.wait_event(lambda e: e["event"] == "progress")
        processes = running.processes()
        assert len(processes) == 4, processes
        for pid, words in processes.items():
            environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
            assert not tell_secrets_apart(words + environment), "the secret can be seen"
        address = next(words[words.index("--join") + 1] for words in processes.values()
                       if "--join" in words)
        stranger_at(address, says=NONE)
        stranger_at(address, "--secret-file", secret_file("guess"), says=OTHER)
        running.end()
    finally:
        running.kill()
    assert running.code == 0, running.error
    assert model(directory) == reference(2, steps), "other bytes"


class Recorder:
    """A relay to the server that records what is sent to it."""

    def __init__(self, address):
        host, port = address.rsplit("://", 1)[1].rsplit(":", 1)
        self.server = (host, int(port))
        self.said = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            here, _ = self.listener.accept()
            there = socket.create_connection(self.server)
            said = []
            self.said.append(said)
            threading.Thread(target=self.carry, args=(here, there, said), daemon=True).start()
            threading.Thread(target=self.carry, args=(there, here, None), daemon=True).start()

    @staticmethod
    def carry(source, sink, said):
        try:
            while data := source.recv(1 << 16):
                if said is not None:
                    said.append(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in source, sink:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def memory_kb(pid):
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text).group(1))


def say(address, data):
    """Sends data to the server, and returns whether the server ended the connection. Its answer is
    ignored."""
    with socket.create_connection(address, timeout=20) as stranger:
        try:
            stranger.sendall(data)
            while stranger.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
    return True


def replayed_handshakes_and_noise_get_nothing():
    has_secrets()
    secret = ["--secret-file", secret_file("replay")]
    directory = job.SCRATCH / "replayed"
    steps = 300
    server = job.Job("server", "--fabric", "tcp", "--json", *secret)
    workers = []
    silent = []
    try:
        address = server.wait_event(lambda e: e["event"] == "listening")["address"]
        recorder = Recorder(address)
        common = job.small("--slots", 2, "--workers", 2, "--fabric", "tcp", "--save", directory,
                           *secret, "--join", recorder.address, steps=steps)
        workers.append(job.Job("worker", *common, "--index", 0, "--json"))
        server.wait_event(lambda e: e["event"] == "note" and "joined, 1 of 2" in e["text"])
        before = memory_kb(server.process.pid)
        recorded = b"".join(recorder.said[0])
        assert len(recorded) > 300, recorded
        noise = random.Random(5)
        for i in range(20):
            assert say(recorder.server, recorded), "a replayed session was taken"
            assert say(recorder.server, noise.randbytes(100 + 60 * i)), "noise was taken"
        silent = [socket.create_connection(recorder.server) for _ in range(50)]
        stranger_at(address, "--workers", 2, "--index", 1, says=NONE)
        stranger_at(address, "--workers", 2, "--index", 1, "--secret-file",
                    secret_file("wrong", b"0123456789abcdeF"), says=OTHER)
        grown = memory_kb(server.process.pid) - before
        assert grown < 64 << 10, f"strangers cost {grown} kB"
        workers.append(job.Job("worker", *common, "--index", 1, "--json"))
        for running in [*workers, server]:
            running.end()
            assert running.code == 0, running.error
    finally:
        for connection in silent:
            connection.close()
        for running in [server, *workers]:
            running.kill()
    joined = [e for e in server.events if e["event"] == "note" and "joined" in e["text"]]
    assert len(joined) == 2, joined
    assert model(directory) == reference(2, steps), "other bytes"


def scans_of_the_port_are_named_and_do_not_fill_the_log():
    server = job.Job("server", "--fabric", "tcp", "--json")
    try:
        address = server.wait_event(lambda e: e["event"] == "listening")["address"]
        where = Recorder(address).server
        assert say(where, b"GET /metrics HTTP/1.1\r\nHost: there\r\n\r\n")
        assert say(where, bytes([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]) + bytes(100))
        assert say(where, b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")
        for _ in range(40):
            assert say(where, b"POST /scrape HTTP/1.1\r\nHost: there\r\n\r\n")
        server.process.terminate()
        server.end()
    finally:
        server.kill()
    told = [e["text"] for e in server.events if e["event"] == "log"]
    for name, line in zip(["HTTP", "TLS", "SSH", "HTTP"], told):
        assert f"looks like {name}, not like Tern" in line, told
    assert len(told) == 8, told


def what_a_scanned_server_logs(*options):
    """Returns the server's lines on stderr; its lines on stdout would be events."""
    server = job.Job("server", "--fabric", "tcp", "--index", 3, *options)
    try:
        address = server.process.stdout.readline().split()[-1]
        assert say(Recorder(address).server, b"GET /metrics HTTP/1.1\r\nHost: there\r\n\r\n")
        server.process.terminate()
        server.end()
    finally:
        server.kill()
    return server.error.splitlines()


def warnings_have_a_time_and_the_role():
    lines = what_a_scanned_server_logs()
    assert len(lines) == 1, lines
    assert re.match(r"tern server 3: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning: ", lines[0]), lines


def the_log_level_is_the_users():
    assert not what_a_scanned_server_logs("--log-level", "error")
    assert not what_a_scanned_server_logs("--log-level=none")
    os.environ["TERN_LOG"] = "error"
    try:
        assert not what_a_scanned_server_logs()
        assert len(what_a_scanned_server_logs("--log-level", "warn")) == 1
        os.environ["TERN_LOG"] = "loud"
        job.refused("server", says=["TERN_LOG=loud", "none, error, warn, info or debug"])
    finally:
        del os.environ["TERN_LOG"]
    job.refused("worker", "--log-level", "loud", says=["--log-level", "loud", "debug"])
    told = job.finish("train", *job.small("--json", "--log-level", "debug", steps=2)).events
    assert any(e["event"] == "log" and e["level"] == "debug" and e["time"] for e in told), told


def other_users_of_the_host_are_refused():
    has_secrets()
    if os.geteuid() != 0:
        raise tap.Skip("only root can be another user")
    nobody = 65534
    with tempfile.TemporaryDirectory(prefix="tern-other-") as name:
        os.chmod(name, 0o755)
        for path in job.SCRATCH / "small-images.gz", job.SCRATCH / "small-labels.gz":
            shutil.copy(path, name)
        if subprocess.run([job.TERN, "--version"], user=nobody, capture_output=True,
                          check=False).returncode:
            raise tap.Skip("another user cannot run this tern")
        running = job.Job("train", *job.small("--slots", 2, steps=3000), "--json")
        try:
            running.wait_event(lambda e: e["event"] == "progress")
            address = next(words[words.index("--join") + 1]
                           for words in running.processes().values() if "--join" in words)
            options = [str(o).replace(str(job.SCRATCH), name) for o in job.small("--slots", 2)]
            other = subprocess.run([job.TERN, "worker", *options, "--join", address], user=nobody,
                                   cwd="/", capture_output=True, text=True, timeout=60)
            assert other.returncode == 1 and NONE in other.stderr, other
            running.end()
        finally:
            running.kill()
        assert running.code == 0, running.error


job.use(sys.argv[1])
os.environ.pop("MALLOC_PERTURB_", None)  # with it malloc writes to memory that is never used
tap.run([
    listening_beyond_this_host_without_a_secret_is_refused,
    a_secret_file_allows_it,
    secret_files_are_checked,
    launcher_needs_no_secret_of_the_environment,
    secrets_come_through_pipes_too,
    secret_of_tern_train_is_not_to_be_seen_and_keeps_strangers_out,
    replayed_handshakes_and_noise_get_nothing,
    scans_of_the_port_are_named_and_do_not_fill_the_log,
    warnings_have_a_time_and_the_role,
    the_log_level_is_the_users,
    other_users_of_the_host_are_refused,
])
