#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that tern answers a user's mistake by one line that says what would be right, and leaves no process.

usage: bad_input.py TERN
"""
import gzip
import json
import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])


def refused(*more, says, code=2, **kw):
    job.refused("train", *job.small(*more, **kw), says=says, code=code)


def made(name, content):
    path = job.SCRATCH / name
    path.write_bytes(content)
    return path


def options_are_checked():
    refused("--stepps", 3, says=["--stepps", "--steps"])
    refused("--verbose", says=["--verbose", "--log-level"])
    refused("--steps", "many", says=["--steps many", "a whole number, 1 to"])
    refused("--steps", 0, says=["--steps 0", "1 to"])
    refused("--seed", 10**20, says=[f"--seed {10**20}: must be 0 to 18446744073709551615"])
    refused("--lr", "nan", says=["--lr nan: must be a number, 1e-12 to 1e+06"])
    refused("--lr", "0x1", says=["--lr 0x1: must be a number"])
    refused("--optimizer", "adem", says=["adem", "adam"])
    refused("--optimizer", "mean", says=["--optimizer mean: must be one of sgd, "])
    refused("--fabric", "roce", says=["roce", "auto, verbs, tcp, shm"])
    for mode in ("ssp", "ssp:", "ssp:-1", "ssp:2x", "ssp:18446744073709551615", "fast"):
        refused("--mode", mode, says=[f"--mode {mode}", "must be sync, async, or ssp:K"])
    refused("--generate", 10, says=["--generate", "charlm"])
    refused("--test", "x", says=["--test", "--split"])
    refused("--on-nan", "ignore", says=["--on-nan ignore", "stop, skip"])
    for mode in "async", "ssp:2":
        refused("--on-nan", "skip", "--mode", mode, says=["--on-nan skip needs --mode sync"])
    job.refused("train", "--model", "softmax", says=["--data"])
    job.refused("train", "--data", "x", says=["--model"])


def list_of_servers_is_checked():
    """The value of --view, which only launchers give."""
    good = {"servers": ["tcp://127.0.0.1:9"], "view": 5, "numbers": [0], "added": [False], "workers": 1}
    for wrong in "x", "{}", "{\n", json.dumps(good | {"view": 0}), json.dumps(good | {"numbers": [1]}), "[" * 5000:
        job.refused("server", "--view", wrong, says=["--view"])
    job.refused("server", "--view", "{}", says=["--view {}: expected the list that a server says with its event begun"])
    job.refused("server", "--view", json.dumps(good), "--index", 1, says=["the list does not have server 1"])
    job.refused("server", "--view", json.dumps(good), says=["--view: needs --snapshots"])


def settings_of_optimizers_are_checked():
    def refused(optimizer, *more, says):
        job.refused("train", "--model", "softmax", "--data", "x", "--optimizer", optimizer, *more, says=[says])

    refused("sgd", "--beta1", 0.9, says="--beta1 0.9: sgd has no beta1 (adam and adamw have it)")
    refused("adam", "--initial-accumulator", 1,
            says="--initial-accumulator 1: adam has no initial accumulator (adagrad has it)")
    refused("adagrad", "--momentum", 0, says="(momentum, nesterov and rmsprop have it)")
    refused("nesterov", "--momentum", 1, says="--momentum 1: must be 0 or more, and below 1")
    refused("adam", "--beta2", -0.1, says="--beta2 -0.1: must be 0 or more, and below 1")
    refused("adam", "--beta2", 0.99999999999, says="and below 1")  # as a float it is 1
    refused("adamw", "--epsilon", 0, says="--epsilon 0: must be more than 0")
    refused("sgd", "--weight-decay", -1, says="--weight-decay -1: must be 0 or more")
    for value in "nan", "inf", "0x1", "1e39", "1 ", "":
        refused("sgd", "--weight-decay", value, says="--weight-decay")


def schedules_are_checked():
    for schedule, says in (
            ("slow", "must be constant, step:EVERY,FACTOR, linear:TOTAL,END or cosine:TOTAL,END"),
            ("constant:1", "must be constant"), ("step", "must be step:EVERY,FACTOR"),
            ("step:10", "must be step:EVERY,FACTOR"), ("step:0,0.5", "EVERY must be 1 to 1099511627776"),
            ("step:10,0", "FACTOR must be more than 0, at most 1"), ("linear:0", "TOTAL must be 1 to"),
            ("cosine:1099511627777,0", "TOTAL must be 1 to"), ("cosine:10,1.5", "END must be 0 to 1"),
            ("cosine:10,nan", "must be cosine:TOTAL,END"), ("cosine:10,0,0", "must be cosine:TOTAL,END"),
            ("linear:", "must be linear:TOTAL,END"), ("linear:-1", "must be linear:TOTAL,END")):
        refused("--schedule", schedule, says=[f"--schedule {schedule}: {says}"])
    refused("--warmup", -1, says=["--warmup -1: must be a whole number"])


def empty_words_are_told():
    for option in "--steps", "--lr", "--split", "--mode", "--fabric", "--device", "--save":
        refused(option, "", says=[f"{option}: its value is empty"])
    refused("", says=["'': not an option"])
    job.refused("", says=["'': no such command"])
    job.refused("bench", "lat", "--size", "", says=["--size: its value is empty"])
    os.environ["TERN_KERNELS"] = ""  # an empty variable counts as one that is not set
    try:
        job.train(*job.small(steps=3))
    finally:
        del os.environ["TERN_KERNELS"]


def verbs_options_are_checked():
    if not job.info()["built_in"]["verbs"]:
        refused("--verbs", "retry=7", says=["--verbs", "built without rdma-core"])
        raise tap.Skip("built without rdma-core")
    refused("--verbs", "retry=9", says=["--verbs retry=9", "0 to 7"])
    refused("--verbs", "retry=7,guard=maybe", says=["--verbs guard=maybe", "on or off"])
    refused("--verbs", "from=somewhere", says=["--verbs from=somewhere", "address"])
    refused("--verbs", "fast=1", says=["--verbs fast=1", "device, from, gid"])
    refused("--verbs", "guard", says=["--verbs guard", "NAME=VALUE"])
    for command in (["server"], ["bench", "lat"], ["info"],
                    ["worker", *job.small("--join", "127.0.0.1:1")]):
        job.refused(*command, "--verbs", "gid=256", says=["--verbs gid=256", "0 to 255"])


def verbs_where_it_does_not_work_is_told():
    why = job.fabric_missing("verbs")
    if not why:
        raise tap.Skip("there are RDMA devices here")
    for command in (["train", *job.small()], ["server"], ["bench", "lat"], ["bench", "rate"],
                    ["worker", *job.small("--join", "127.0.0.1:1")]):
        job.refused(*command, "--fabric", "verbs", says=["--fabric verbs", why])


def arithmetic_is_checked():
    refused("--arithmetic", "sse", says=["--arithmetic sse", "portable"])
    if job.info()["built_in"]["cuda"]:
        refused("--arithmetic", "portable", "--device", "cuda", says=["--arithmetic portable",
                                                                       "cuda was asked for"])
    os.environ["TERN_KERNELS"] = "foo"
    try:
        for command in (["train", *job.small()], ["server"], ["info"],
                        ["worker", *job.small("--join", "127.0.0.1:1")]):
            job.refused(*command, says=["TERN_KERNELS=foo: must be one of avx512, avx2, portable"])
        # The option takes precedence over the environment variable.
        job.train(*job.small("--arithmetic", "portable", steps=3))
        os.environ["TERN_KERNELS"] = "portable"
        assert job.info()["kernels"]["used"] == "portable"
    finally:
        del os.environ["TERN_KERNELS"]


def port_alone_is_listened_at():
    for listen in ":0", "0":
        server = job.Job("server", "--fabric", "tcp", "--listen", listen, "--insecure", "--json")
        try:
            address = server.wait_event(lambda e: e["event"] == "listening")["address"]
            port = int(address.rsplit(":", 1)[1])
            socket.create_connection(("127.0.0.1", port)).close()
        finally:
            server.kill()
        # Listening beyond this host needs a secret or --insecure.
        job.refused("server", "--listen", listen, says=[f"--listen {listen}:", "--secret-file"])
        job.train(*job.small("--listen", listen, "--servers", 2, "--fabric", "tcp", steps=3))


def help_of_help_is_the_help():
    assert job.finish("help", "help").lines == job.finish("help").lines


def listen_is_checked():
    refused("--listen", "127.0.0.1", says=["--listen 127.0.0.1", "HOST:PORT"])
    refused("--listen", "127.0.0.1:7000", "--servers", 2, says=["--listen", "2 servers"])
    # An address that is reserved for documentation, so no host has it.
    refused("--listen", "192.0.2.1:0", says=["--listen 192.0.2.1:0"], code=1)
    job.refused("bench", "lat", "--fabric", "tcp", "--listen", "192.0.2.1:0",
                says=["192.0.2.1:0"], code=1)
    for command in (["bench", "lat"], ["server"], ["train", *job.small()]):
        job.refused(*command, "--fabric", "shm", "--listen", "127.0.0.1:0",
                    says=["--listen 127.0.0.1:0", "shm has no addresses"])
    refused("--listen", "::1", says=["--listen ::1", "[ADDRESS]:PORT"])


def port_of_root_is_told():
    """A user who may not listen at port 1 is told so."""
    if os.geteuid() != 0:
        raise tap.Skip("not root")
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) < 2:
        raise tap.Skip("every port is anybody's here")
    try:
        done = subprocess.run([job.TERN, "server", "--fabric", "tcp", "--listen", "127.0.0.1:1"],
                              capture_output=True, text=True, user=65534, timeout=60)
    except PermissionError as e:
        raise tap.Skip("another user may not run this program") from e
    assert done.returncode == 1 and done.stderr.splitlines() == [
        "tern server: --listen 127.0.0.1:1: Permission denied"], done


def model_specs_are_checked():
    for spec in ("mlp", "mlp:", "mlp:0", "mlp:12,", "mlp:x", "charlm:1,2", "cnn:3", "softmax:3"):
        refused(model=spec, says=[spec])
    refused(model="mlp:" + ",".join("9" * 200), says=["--model mlp:9,9", "at most"])
    # The model is larger than a worker can hold, which is known before anything is allocated.
    refused(model="mlp:99999,99999,99999", says=["no room for the model"])


def missing_files_are_named():
    for option in ("--data", "--labels", "--save"):
        refused(option, "/nonexistent/file", says=[option, "/nonexistent/file",
                                                   "No such file"])


def split_beyond_the_data_is_refused():
    refused("--split", "9000:2000", says=["--split 9000:2000", "1200"])


def cut(path, keep):
    raw = gzip.decompress(path.read_bytes())
    return made(f"cut-{path.name}", gzip.compress(raw[:keep]))


def corrupt_images_are_refused():
    images, _ = job.write_idx("corrupt")
    refused("--data", cut(images, 1000), says=["cut-corrupt-images.gz", "1000"])
    refused("--data", made("half.gz", images.read_bytes()[:2000]), says=["half.gz"])
    refused("--data", made("noise", b"\x00\x00\x0d\x03 not what it says"), says=["noise"])
    refused("--data", made("empty", b""), says=["empty"])


def labels_are_checked():
    images, labels = job.write_idx("labels")
    fewer = struct.pack(">II", 0x801, 1000) + bytes(1000)
    refused("--labels", made("fewer", fewer), says=["1000", "1200"])
    refused("--labels", images, says=["labels-images.gz"])
    # logreg can tell two classes apart, and no more.
    refused("--data", images, "--labels", labels, model="logreg",
            says=["--model logreg: it needs two classes, but the data have 4"])
    refused("--labels", labels, model="charlm:4,4,8", says=[f"--labels {labels}: charlm"])


def svmlight_errors_name_the_line():
    good = b"+1 1:0.5 3:1\n-1 2:1\n" * 20
    for name, bad, says in (("label", b"7 1:1\n", ["line 41", "7"]),
                            ("index", b"+1 x:1\n", ["line 41"]),
                            ("value", b"+1 1:y\n", ["line 41"])):
        job.refused("train", "--model", "logreg", "--data", made(f"svm-{name}", good + bad),
                    "--steps", 3, says=[f"svm-{name}", *says])


def text_that_is_too_short_is_refused():
    job.refused("train", "--model", "charlm:8,4,8", "--data", made("short.txt", b"abc"),
                "--steps", 3, says=["short.txt"])


def save_over_a_file_is_refused():
    refused("--save", made("file", b""), says=["--save", "not a directory"])


def save_into_earlier_results_is_refused():
    directory = job.SCRATCH / "earlier"
    directory.mkdir()
    earlier = directory / "model.safetensors"
    earlier.write_bytes(b"better")
    refused("--save", directory, says=["--save", "model.safetensors", "--overwrite"])
    job.refused("worker", *job.small("--join", "127.0.0.1:1", "--save", directory),
                says=["--overwrite"])
    # A job that fails does not replace the earlier results, even with --overwrite.
    refused("--save", directory, "--overwrite", "--split", "9000:2000", says=["9000"])
    assert earlier.read_bytes() == b"better"
    job.train(*job.small("--save", directory, "--overwrite", steps=5))
    assert earlier.read_bytes() != b"better"


def save_beside_an_interrupted_job_is_refused():
    directory = job.SCRATCH / "interrupted"
    directory.mkdir()
    (directory / "interrupted.safetensors").write_bytes(b"hours")
    refused("--save", directory, says=["--save", "interrupted.safetensors", "--overwrite"])
    job.train(*job.small("--save", directory, "--overwrite", steps=5))


def on_a_tmpfs(options, *more, says):
    mount = job.SCRATCH / "mount"
    mount.mkdir(exist_ok=True)
    words = " ".join(shlex.quote(str(w)) for w in (job.TERN, "train", *job.small(
        "--save", mount / "m", *more)))
    script = f"mount -t tmpfs -o {options} none {mount} || exit 99; {words}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True)
    if done.returncode in (1, 99) and "tern" not in done.stderr:
        raise tap.Skip("a tmpfs cannot be mounted here")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done
    for text in ["--save", *says]:
        assert text in done.stderr, done.stderr


def full_file_system_is_told_before_the_work():
    on_a_tmpfs("size=8k", says=["No space left"])


def full_inodes_are_told_before_the_work():
    on_a_tmpfs("nr_inodes=2", says=["No space left"])


def too_little_memory_is_told():
    """With little address space a job works, or says that there is too little. It must not hang: OpenBLAS,
    if left to itself, waits for its buffers for ever."""
    script = ('ulimit -v $0 && exec "$@"')
    for limit_kib in range(400_000, 1_000_000, 75_000):
        done = subprocess.run(
            ["sh", "-c", script, str(limit_kib), job.TERN, "train",
             *map(str, job.small("--batch", 256, model="mlp:512,512", steps=3))],
            capture_output=True, text=True, timeout=60)
        if "Sanitizer" in done.stderr:
            raise tap.Skip("a sanitizer needs address space of its own")
        assert done.returncode in (0, 1), (limit_kib, done)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("step ")]
        assert (done.returncode == 0) == (not errors), (limit_kib, done)
        assert "no step for" not in done.stdout + done.stderr, (limit_kib, done)
    assert done.returncode == 0, done


def meminfo(total_mib, left_mib):
    return (f"MemTotal: {total_mib << 10} kB\nMemFree: 1024 kB\n"
            f"MemAvailable: {left_mib << 10} kB\n").encode()


def with_meminfo(path, *words):
    """Returns `words` as a command that sees this file as /proc/meminfo, or exits with 99."""
    script = f'mount --bind {path} /proc/meminfo || exit 99; exec "$@"'
    words = ["sh", "-c", script, "sh", *map(str, words)]
    if subprocess.run(["unshare", "-rm", *words[:3], "sh", "true"], capture_output=True,
                      check=False).returncode:
        raise tap.Skip("/proc/meminfo cannot be another file here")
    return ["unshare", "-rm", *words]


def job_that_the_memory_does_not_hold_is_ended_at_its_start():
    """The launcher ends the job before the kernel kills a process, perhaps one of another program.
    Too little memory is left if it is less than a 64th of all, and less than 256 MiB."""
    for total, left, ended in (16384, 20, True), (1024, 20, False), (65536, 512, False):
        path = made("meminfo", meminfo(total, left))
        done = subprocess.run(with_meminfo(path, job.TERN, "train", *job.small("--workers", 2)),
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == ended, (total, left, done)
        if ended:
            assert done.stderr.splitlines()[-1].startswith(
                "tern train: this host's memory does not hold the job: "
                f"{left} of {total} MiB are left"), done


def memory_that_becomes_scarce_after_the_first_step_ends_no_job():
    path = made("meminfo", meminfo(16384, 8192))
    running = job.Job("train", *job.small(steps=10000), "--json", prefix=with_meminfo(path))
    try:
        running.wait_event(lambda e: e["event"] == "progress")
        path.write_bytes(meminfo(16384, 20))
        assert running.end() == 0 and running.last["event"] == "done", (running.lines, running.error)
    finally:
        running.kill()


def limited(limit, *words):
    """What `tern train` of a small job does under a limit of the shell."""
    done = subprocess.run(["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", job.TERN, "train",
                           *map(str, job.small(*words, steps=5))],
                          capture_output=True, text=True, timeout=60)
    if "Sanitizer" in done.stderr:
        raise tap.Skip("a sanitizer needs more than that")
    return done


def too_little_stack_is_told():
    done = limited("-s 64")
    assert done.returncode == 2 and done.stderr.splitlines() == [
        "tern: the stack may have 64 KiB (ulimit -s): at least 1024 are needed"], done
    done = limited("-S -s 64")  # the hard limit allows more
    assert done.returncode == 0, done


def too_small_files_are_told():
    done = limited("-f 64")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done
    assert "64 KiB (ulimit -f)" in done.stderr or "32 KiB (ulimit -f)" in done.stderr, done


def too_few_descriptors_are_told_once():
    for fabric in "shm", "tcp":
        for limit in range(14, 18):
            words = ["sh", "-c", f'ulimit -n {limit} && exec timeout -k 1 1 "$@"', "sh", job.TERN,
                     "train", *map(str, job.small("--fabric", fabric, steps=5))]
            done = subprocess.run(words, capture_output=True, text=True)
            if "Sanitizer" in done.stderr:
                raise tap.Skip("a sanitizer needs descriptors of its own")
            assert len(done.stderr.splitlines()) <= 3, (fabric, limit, done)


def as_many_processes_as_a_job_may_have_are_allowed():
    refused("--servers", 257, says=["--servers 257: must be 1 to 256"])
    refused("--workers", 4097, says=["--workers 4097: must be 1 to 4096"])
    refused("--slots", 4097, says=["--slots 4097: must be 1 to 4096"])
    assert job.train(*job.small("--servers", 65, steps=5))["steps"] == 5


def json_has_an_end_whatever_is_wrong():
    for command in (["train"], ["run"], ["server"], ["worker"], ["evaluator"], ["bench", "lat"], ["info"],
                    ["checkpoint", "list", "."], ["status"], ["top"], ["drain"], ["abort"]):
        refused = job.Job(*command, "--json", "--stepps", 3)
        assert refused.end() == 2 and "--stepps" in refused.error, refused.error
        assert [(e["event"], e["code"]) for e in refused.events] == [("failed", 2)], refused.events
        assert "--stepps" in refused.events[0]["text"], refused.events
    server, _ = listening_server()
    try:
        server.process.terminate()
        assert server.end(20) == 0, server.error
        assert (server.last["event"], server.last["code"]) == ("end", 0), server.last
        assert server.last["pid"] == server.process.pid and server.last["host"], server.last
    finally:
        server.kill()


def output_that_cannot_be_written_is_an_error():
    snapshots = job.SCRATCH / "evaluated"
    job.train(*job.small("--snapshots", snapshots, steps=3))
    for words in (["info"], ["help"], ["checkpoint", "list", str(job.SCRATCH)], ["run", "--", "echo", "text"],
                  ["evaluator", "--snapshots", str(snapshots), "--once", *map(str, job.small_data())],
                  ["train", *map(str, job.small("--json", steps=3))]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([job.TERN, *words], stdout=full, stderr=subprocess.PIPE,
                                  text=True)
        assert done.returncode == 1 and "stdout" in done.stderr.splitlines()[-1], (words, done)


def closed_pipe_does_not_lose_the_model():
    directory = job.SCRATCH / "closed-pipe"
    ours, theirs = os.pipe()
    os.close(ours)
    words = map(str, job.small("--save", directory, steps=300))
    done = subprocess.run([job.TERN, "train", *words], stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert done.returncode == 1, done
    assert (directory / "model.safetensors").exists()


def closed_streams_do_not_lose_the_model():
    directory = job.SCRATCH / "closed-streams"
    words = " ".join(shlex.quote(str(w)) for w in (
        job.TERN, "train", *job.small("--save", directory, steps=300)))
    done = subprocess.run(["sh", "-c", f"exec {words} <&- >&- 2>&-"])
    assert done.returncode == 0, done
    assert (directory / "model.safetensors").exists()


# ---- roles on their own ------------------------------------------------------------------

def listening_server():
    server = job.Job("server", "--listen", "127.0.0.1:0", "--fabric", "tcp", "--json")
    return server, server.wait_event(lambda e: e["event"] == "listening")["address"]


def control_characters_of_options_do_not_reach_the_terminal():
    evil = "no\x1b[31mw\x07\ntern train: all is well"
    shown = r"no\x1b[31mw\x07\x0atern train"
    for option in "--model", "--data", "--save", "--mode", "--lr":
        job.refused("train", *job.small(), option, evil + ("/x" if option == "--save" else ""),
                    says=[shown])
    job.refused("train", "--" + evil, says=[shown])
    job.refused(evil, says=[shown])


def data_without_an_end_is_refused():
    fifo = job.SCRATCH / "fifo"
    os.mkfifo(fifo)
    for path in "/dev/zero", fifo:
        for option in "--data", "--labels":
            refused(option, path, says=[f"{option} {path}: must be a file"])
        job.refused("train", "--model", "logreg", "--data", made("records", b"1 1:1\n"), "--test",
                    path, says=[f"--test {path}: must be a file"])


def servers_to_join_are_counted():
    def refused(join, *more, says):
        job.refused("worker", *job.small("--join", join, *more), says=[f"--join {join}: {says}"])

    refused("a:1,b:2", says="has 2 addresses, --servers says 1")
    refused("a:1", "--servers", 2, says="has 1 address, --servers says 2")
    refused("a:1,b:2,auto://a:1", "--servers", 3, says="has auto://a:1 twice")
    refused("a:1,,b:2", "--servers", 3, says="address 2 is empty")
    refused("a" * 150 + ":1", says="address 1 is longer than 127 characters")


def addresses_to_join_are_checked():
    def refused(join, says):
        job.refused("worker", *job.small("--join", join), "--wait", 1,
                    says=[f"--join {join}: ", says])

    for join in "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "tcp://127.0.0.1:1:", "verbs+tcp://a":
        refused(join, "")
    refused("127.0.0.1:0", "must be HOST:PORT, the port 1 to 65535")
    refused("::1:7000", "[ADDRESS]:PORT")
    refused("rdma://127.0.0.1:80", "must begin with a name that --fabric knows")
    refused("tcp://127.0.0.1:1+tcp://127.0.0.1:x", "tcp://127.0.0.1:x: must be HOST:PORT")
    refused("127.0.0.1:1+tcp://127.0.0.1:2", "must be FABRIC://HOST:PORT")
    refused("shm://", "must have a name")
    why = job.fabric_missing("verbs")
    if why:
        refused("verbs://127.0.0.1:1", why)


def port_in_use_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        job.refused("server", "--fabric", "tcp", "--listen", f"127.0.0.1:{port}",
                    says=[f"127.0.0.1:{port}", "in use"], code=1)


def unreachable_server_is_told_after_some_tries():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    job.refused("worker", *job.small(), "--fabric", "tcp", "--join", address, "--wait", 1,
                says=[address, "refused"], code=1)


def unknown_host_is_told_at_once():
    address = "no-such-host.invalid:7000"
    try:
        socket.getaddrinfo("no-such-host.invalid", 7000)
    except socket.gaierror as e:
        if e.errno == socket.EAI_AGAIN:
            raise tap.Skip("names cannot be looked up here") from e
    # A worker waits for its server for up to five minutes, but not for an unknown name.
    job.refused("worker", *job.small(), "--join", address, says=[address, "no host has this name"],
                code=1)
    job.refused("server", "--listen", address, "--insecure", says=[address,
                "no host has this name"], code=1)


def worker_waits_for_its_server():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    worker = job.Job("worker", *job.small(steps=5), "--fabric", "tcp", "--join", address, "--json")
    server = None
    try:
        time.sleep(0.5)  # time for some attempts to connect
        server = job.Job("server", "--fabric", "tcp", "--listen", address, "--json")
        assert worker.end(60) == 0, worker.error
        assert server.end(20) == 0, server.error
    finally:
        worker.kill()
        if server:
            server.kill()


def stranger_is_not_taken_for_a_server():
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        def talk():
            conn, _ = stranger.accept()
            with conn:
                conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
                conn.recv(65536)

        threading.Thread(target=talk, daemon=True).start()
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        worker = job.finish("worker", *job.small(), "--fabric", "tcp", "--join", address,
                            "--wait", 5, code=1)
        # The line before the last one says what the stranger sent.
        assert f"{address}: cannot be reached" in worker.error.splitlines()[-1], worker.error


def second_worker_is_refused(*more, says, **kw):
    server, address = listening_server()
    first = job.Job("worker", *job.small("--workers", 2), "--join", address, "--json")
    try:
        server.wait_event(lambda e: e["event"] == "note" and "joined" in e["text"])
        job.refused("worker", *job.small("--workers", 2, "--index", 1, *more, **kw), "--join",
                    address, says=["server 0 refused", *says], code=1)
        first.process.terminate()
        assert first.end(20) == 143, first.lines
        server.wait_event(lambda e: e["event"] == "note" and "the job is forgotten" in e["text"])
        server.process.terminate()
        assert server.end(20) == 0, server.lines
    finally:
        first.kill()
        server.kill()


def worker_of_another_model_is_refused():
    second_worker_is_refused(model="mlp:8", says=["tensor fc1.weight",
                                                "has the shape f32[36,8], the job f32[36,24]"])
    second_worker_is_refused(lr="0.3", says=["learning rate", "has 0.3, the job 0.01"])


def worker_of_other_data_is_refused():
    second_worker_is_refused("--split", "999:200", says=["records to train on", "has 999", "1000"])
    images, labels = job.write_idx("other", seed=2)
    second_worker_is_refused("--data", images, "--labels", labels,
                             says=["data: ", "not the same ones"])


def interrupted_server_tells_its_worker():
    server, address = listening_server()
    worker = job.Job("worker", *job.small("--workers", 2), "--join", address, "--json")
    try:
        server.wait_event(lambda e: e["event"] == "note" and "joined" in e["text"])
        server.process.terminate()
        assert server.end(20) == 143, server.lines
        assert worker.end(20) == 1, worker.lines
        assert "it was asked to end" in worker.events[-1]["text"], worker.events[-1]
    finally:
        worker.kill()
        server.kill()


def noise_at_a_server_does_not_disturb_a_job():
    server, address = listening_server()
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    try:
        for noise in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(200), b"\xff" * 5000):
            with socket.create_connection((host, int(port))) as conn:
                conn.sendall(noise)
        worker = job.finish("worker", *job.small("--workers", 1), "--join", address, "--json")
        assert worker.events[-1]["event"] == "done", worker.events[-1]
        assert server.end(20) == 0, server.error
    finally:
        server.kill()


tap.run([
    options_are_checked,
    list_of_servers_is_checked,
    settings_of_optimizers_are_checked,
    schedules_are_checked,
    empty_words_are_told,
    verbs_options_are_checked,
    verbs_where_it_does_not_work_is_told,
    arithmetic_is_checked,
    port_alone_is_listened_at,
    help_of_help_is_the_help,
    listen_is_checked,
    port_of_root_is_told,
    model_specs_are_checked,
    missing_files_are_named,
    split_beyond_the_data_is_refused,
    corrupt_images_are_refused,
    labels_are_checked,
    svmlight_errors_name_the_line,
    text_that_is_too_short_is_refused,
    save_over_a_file_is_refused,
    save_into_earlier_results_is_refused,
    save_beside_an_interrupted_job_is_refused,
    full_file_system_is_told_before_the_work,
    full_inodes_are_told_before_the_work,
    too_little_memory_is_told,
    job_that_the_memory_does_not_hold_is_ended_at_its_start,
    memory_that_becomes_scarce_after_the_first_step_ends_no_job,
    too_little_stack_is_told,
    too_small_files_are_told,
    too_few_descriptors_are_told_once,
    as_many_processes_as_a_job_may_have_are_allowed,
    json_has_an_end_whatever_is_wrong,
    output_that_cannot_be_written_is_an_error,
    closed_pipe_does_not_lose_the_model,
    closed_streams_do_not_lose_the_model,
    control_characters_of_options_do_not_reach_the_terminal,
    data_without_an_end_is_refused,
    servers_to_join_are_counted,
    addresses_to_join_are_checked,
    port_in_use_is_told,
    unreachable_server_is_told_after_some_tries,
    unknown_host_is_told_at_once,
    worker_waits_for_its_server,
    stranger_is_not_taken_for_a_server,
    worker_of_another_model_is_refused,
    worker_of_other_data_is_refused,
    interrupted_server_tells_its_worker,
    noise_at_a_server_does_not_disturb_a_job,
])
