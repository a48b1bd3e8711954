#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tern and its peers between two hosts.

    ./run bench --serve HOST:PORT      on one host: runs the receivers that clients ask for
    ./run bench --connect HOST:PORT    on the other: measures, and prints the tables

    --secret-file FILE   secret that both hosts know (docs/operations.md); or --insecure
    --once               the server ends, with exit code 0, after one client
    --rounds N           rounds of the client (default: 3)
    --quick              fewer sizes
    --out DIRECTORY      where results.json goes (default: build-bench/hosts)
    --tern PROGRAM       the program (default: build/tern)
    --no-install         take the peers that are there: for a host without internet
    --release-grpc       also build a release build of gRPC, which takes half an hour or more and is
                         kept; without this, it is measured if both hosts have it

Both hosts need the same commit. Every contender that both have is measured over TCP, and over
RDMA if both have devices. The network that is measured is the one to which the address belongs. The
server starts only the programs of its own list, with arguments that it chooses itself; a peer's
receiver then gets its options (such as sizes) from the sender. The secret protects the server and
Tern's own connections; the peers' connections have no protection, so use a network that you trust.

Exit codes: 0; 1 a contender failed, or the programs cannot be built; 2 wrong arguments, no
connection between the hosts (or it was lost), or two that do not fit together; 128 and the
signal's number if one stopped it.
"""
import argparse
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import contenders as who
import figures
import grpc_release
import install
import machine
import report
from measure import (Contender, Failed, Question, Record, dies_with_us, end_group, numbers,
                     run_once)
from questions import BANDWIDTH, LATENCY, latency_points

LINE_MAX = 1 << 16  # bytes of one message between the two hosts
REPLY_S = 120  # how long the client waits for the server's answer
REQUEST_S = 900  # how long the server waits for the client's next request
SECRET_LEAST = 16  # bytes, as in tools/secret.c
SIZES, QUICK_SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20], [64, 64 << 10, 1 << 20]
INFLIGHT = 16  # tensors in flight where the bandwidth is measured
METRICS = {"lat": LATENCY, "bw": BANDWIDTH}


class Refused(Exception):
    """Wrong arguments, or hosts that do not fit together."""


class Silent(Refused):
    """The other host does not say what it should."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def from_there(text):
    """A text of the other host, for this one's terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:200])


def words_of(error):
    """An OSError in words, without its number."""
    return error.strerror or str(error)


# ---- messages between the two hosts: one JSON object a line ----

class Line:
    def __init__(self, connection):
        self.connection, self.kept = connection, b""

    def tell(self, **message):
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, within_s):
        """The next message. Refused if nothing comes for that time, if it is no message, or if it says
        that the other host refuses."""
        self.connection.settimeout(within_s)
        try:
            while b"\n" not in self.kept:
                if len(self.kept) >= LINE_MAX:
                    raise Refused("the other host sent a line that is too long")
                more = self.connection.recv(4096)
                if not more:
                    raise Refused("the other host has closed the connection")
                self.kept += more
        except TimeoutError:
            raise Silent(f"the other host has said nothing for {within_s} s") from None
        except OSError as error:
            raise Refused(f"the other host: {words_of(error)}") from None
        line, self.kept = self.kept.split(b"\n", 1)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Refused("the other host sent something that is not a message of ./run bench")
        if "refused" in message:
            raise Refused(f"refused by the other host: {from_there(message['refused'])}")
        return message

    def hear_text(self, name, within_s):
        text = self.hear(within_s).get(name)
        if not isinstance(text, str):
            raise Refused(f"the other host sent no {name}: is it ./run bench of the same commit?")
        return text


def proof(secret, side, first, second):
    return hmac.new(secret, f"{side} {first} {second}".encode(), hashlib.sha256).hexdigest()


def prove(line, secret, side):
    """Both ends prove that they know the secret, the client first."""
    ours = secrets.token_hex(16)
    if side == "server":
        line.tell(nonce=ours)
        theirs = line.hear_text("nonce", 10)
    else:
        theirs = line.hear_text("nonce", 10)
        line.tell(nonce=ours)
        line.tell(proof=proof(secret, "client", theirs, ours))
    first, second = (ours, theirs) if side == "server" else (theirs, ours)
    other = "client" if side == "server" else "server"
    right = hmac.compare_digest(line.hear_text("proof", 10).encode(),
                                proof(secret, other, first, second).encode())
    if not right:
        line.tell(refused="it has another secret")
        raise Refused("the other host has another secret")
    if side == "server":
        line.tell(proof=proof(secret, "server", first, second))


# ---- who can be measured between two hosts ----

def has_rdma():
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


def pairs():
    """Peers over TCP that have both tests, and whose two ends can be started one by one (those that
    mpirun starts cannot); and UCX over RDMA."""
    every = [peer for peer in who.tcp_peers() if not peer.launcher and set(METRICS) <= set(peer.tests)]
    for peer in every:
        peer.environment = {name: value for name, value in peer.environment.items()
                            if name != "UCX_NET_DEVICES"}  # names the loopback device
    return every + [who.Peer("ucx.rc.poll", "UCX, rc", "ucx", "libucx-dev", "verbs", "poll",
                             environment={"UCX_TLS": "rc"})]


def keys():
    """{key: (fabric, wait, peer or None for Tern)} of all that could be measured."""
    ours = {f"tern.{fabric}.{wait}": (fabric, wait, None)
            for fabric in ("tcp", "verbs") for wait in ("poll", "sleep")}
    return {**ours, **{peer.key: (peer.fabric, peer.wait, peer) for peer in pairs()}}


def missing(maker):
    """{key: why it cannot run on this host, or "" if it can}."""
    found = {}
    for key, (fabric, _, peer) in keys().items():
        why = "no RDMA device" if fabric == "verbs" and not has_rdma() else ""
        if peer and not why:
            why = maker.why_missing(peer.package, install.PEERS / peer.program)
        found[key] = why
    return found


def environment(peer):
    return {**os.environ, **(peer.environment if peer else {})}


# ---- the server ----

class Receiver:
    """The receiving program of one measurement."""

    def __init__(self, options, key, host):
        fabric, _, peer = keys()[key]
        if peer:
            command = [str(install.PEERS / peer.program), "--serve", f"{host}:0"]
        else:
            command = [str(options.tern), "bench", "--serve", f"{host}:0", "--fabric", fabric,
                       "--once", "--json", *secret_words(options)]
        self.process = subprocess.Popen(
            command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True, preexec_fn=dies_with_us(),
            errors="replace", env=environment(peer))

    def address(self):
        first = self.process.stdout.readline()
        try:
            event = json.loads(first)
            return event.get("address") or event["listening"]
        except (ValueError, KeyError, AttributeError):
            return None

    def end(self, within_s):
        """(exit status, last line on stderr) of the program, which is killed if it still runs after
        `within_s`."""
        try:
            _, err = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            end_group(self.process)
            _, err = self.process.communicate()
        end_group(self.process)
        said = [line.strip() for line in err.splitlines() if line.strip()]
        return self.process.returncode, said[-1] if said else ""


def run_receiver(options, line, key, host):
    """Runs one receiver, until the client says that its sender has ended."""
    receiver = Receiver(options, key, host)
    patience_s = 0
    try:
        address = receiver.address()
        if address:
            line.tell(at=address)
            line.hear(REQUEST_S)
            patience_s = 10
    finally:
        status, said = receiver.end(patience_s)
    line.tell(status=status, said=said)


def serve_client(options, line, maker, host):
    here = missing(maker)
    line.tell(missing=here, machine=machine.describe())
    while True:
        message = line.hear(REQUEST_S)
        if "done" in message:
            return
        key = str(message.get("run"))
        if here.get(key) != "":
            raise Refused(f"the client asked for {key[:40]!r}, which is not here")
        run_receiver(options, line, key, host)


def serve(options, maker):
    try:
        listener = socket.create_server(options.at)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else words_of(error)
        raise Refused(f"--serve {options.address}: {why}") from None
    with listener:
        address = "{}:{}".format(*listener.getsockname()[:2])
        print(f"listening at {address}: on the other host, ./run bench --connect {address}",
              flush=True)
        while True:
            connection, client = listener.accept()
            try:
                with connection:
                    line = Line(connection)
                    prove(line, options.secret, "server")
                    say(f"{client[0]}: measures")
                    serve_client(options, line, maker, connection.getsockname()[0])
                    say(f"{client[0]}: done")
                    if options.once:
                        return 0
            except (Refused, OSError) as why:
                say(f"{client[0]}: {why}")


# ---- the client ----

def sender(options, maker, test, key, points, inflight):
    """The Contender of the sending program; measure_once() adds the receiver's address."""
    fabric, wait, peer = keys()[key]
    if peer is None:
        found = maker.tern(test, fabric, wait, points, inflight)
        found.command += secret_words(options)
        return found
    return maker.peer(peer, test, points, inflight)


def measure_once(line, contender):
    """{point: {metric: value}} of one run of the sender here and its receiver on the server."""
    line.tell(run=contender.key)
    answer = line.hear(REPLY_S)
    if "at" not in answer:
        raise Failed(f"the other host: {from_there(answer.get('said') or 'it could not start')}")
    started = Contender(**{**vars(contender),
                           "command": [*contender.command, "--connect", answer["at"]]})
    try:
        found, why = run_once(started), None
    except Failed as failure:
        found, why = None, failure
    line.tell(end=True)
    other = line.hear(REPLY_S)
    if why:
        raise Failed(f"{why} (the other host: {from_there(other.get('said') or other.get('status'))})")
    return found


def ask(options, line, question, rounds):
    """The Record of a question's rounds. Every other round runs backwards."""
    record = Record(question, rounds)
    for number in range(rounds):
        for contender in question.contenders[::-1 if number % 2 else 1]:
            if contender.key not in record.found:
                continue  # an earlier run of this contender has failed
            try:
                lines = measure_once(line, contender)
                record.put(record.found[contender.key]["points"], number,
                           {point: numbers(found) for point, found in lines.items()})
                record.tell(contender.key, lines)
            except Failed as why:
                say(f"  FAILED: {contender.title}: {why}")
                record.failed[record.found.pop(contender.key)["title"]] = str(why)
        say(f"  {question.name}: round {number + 1} of {rounds}")
    return record


def bandwidth_points(sizes):
    return [(size, figures.rounds_of(size, most=2000, least=INFLIGHT, bytes_in_all=256 << 20))
            for size in sizes]


def questions(options, maker, both):
    sizes = QUICK_SIZES if options.quick else SIZES
    for fabric, name in (("tcp", "TCP"), ("verbs", "RDMA")):
        chosen = [key for key, (on, _, _) in keys().items() if on == fabric and key in both]
        if not chosen:
            continue
        for test, title, inflight, points_of in (
                ("lat", f"Round trip over {name}", 1,
                 lambda wait: latency_points(sizes, fabric, wait)),
                ("bw", f"Bandwidth over {name}", INFLIGHT, lambda _: bandwidth_points(sizes[-3:]))):
            found = [sender(options, maker, test, key, points_of(keys()[key][1]), inflight)
                     for key in chosen]
            yield Question(f"{test}-{fabric}", title, "Between two hosts.", found, METRICS[test])


def table(record):
    """Lines of a Markdown table: a row for each contender, a column for each size."""
    metric, unit, _ = record.question.metrics[0]
    points = sorted({point for entry in record.found.values() for point in entry["points"]}, key=int)
    yield f"{record.question.title}: {metric}, {unit}; geometric mean (least..most)"
    yield ""
    yield "| | waits by | " + " | ".join(figures.size_text(int(p)) for p in points) + " |"
    yield "|---|---|" + "---|" * len(points)
    for entry in record.found.values():
        cells = []
        for point in points:
            values = entry["points"].get(point, {}).get(metric)
            cells.append(report.spread_text(figures.figure(values)) if values else "-")
        yield f"| {entry['title']} | {entry['wait']} | " + " | ".join(cells) + " |"
    yield ""


def fit(ours, theirs, hello):
    """The keys that both hosts can measure. Refused if they have different commits."""
    if ours["tern"] != hello["machine"].get("tern"):
        raise Refused(f"this host has Tern {ours['tern']}, the other one "
                      f"{from_there(hello['machine'].get('tern'))}: both need the same commit")
    there = hello["missing"]
    causes = {}  # {(host, why): keys}
    for key, why in theirs.items():
        if why:
            causes.setdefault(("on this host", why), []).append(key)
        elif there.get(key) != "":
            why = from_there(there.get(key, "it does not know it"))
            causes.setdefault(("on the other host", why), []).append(key)
    for (host, why), lacking in causes.items():
        say(f"  missing {host} ({why}): {', '.join(lacking)}")
    return {key for key, why in theirs.items() if not why and there.get(key) == ""}


def connect(options, maker):
    try:
        connection = socket.create_connection(options.at, timeout=10)
    except OSError as error:
        raise Refused(f"{options.address}: {words_of(error)}") from None
    with connection:
        line = Line(connection)
        try:
            prove(line, options.secret, "client")
        except Silent as why:
            raise Refused(f"{why}: perhaps it serves another client, and takes one after the other") \
                from None
        hello, here = line.hear(REPLY_S), machine.describe()
        both = fit(here, missing(maker), hello)
        records = [ask(options, line, question, options.rounds)
                   for question in questions(options, maker, both)]
        line.tell(done=True)
    for record in records:
        print("\n".join(table(record)))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(
        {"date": time.strftime("%Y-%m-%d"), "rounds": options.rounds,
         "machines": [here, hello["machine"]],
         "questions": {r.question.name: r.as_json() for r in records}}, indent=1) + "\n")
    say(f"written: {options.out}/results.json")
    return 1 if any(record.failed for record in records) else 0


# ---- command line ----

def parse(words):
    p = argparse.ArgumentParser(prog="./run bench", usage="./run bench --serve|--connect HOST:PORT "
                                "[options]", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    side = p.add_mutually_exclusive_group(required=True)
    side.add_argument("--serve", metavar="HOST:PORT")
    side.add_argument("--connect", metavar="HOST:PORT")
    p.add_argument("--secret-file", type=Path)
    p.add_argument("--insecure", action="store_true")
    p.add_argument("--once", action="store_true")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--out", type=Path, default=install.BUILD / "hosts")
    p.add_argument("--tern", type=Path, default=install.TOP / "build/tern")
    p.add_argument("--no-install", action="store_true")
    p.add_argument("--release-grpc", action="store_true")
    # --serve and --connect would take the word of help for their address.
    options = p.parse_args(["--help"] if {"-h", "--help"} & set(words) else words)
    options.address = options.serve or options.connect
    host, colon, port = options.address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        p.error(f"\"{options.address}\": expected HOST:PORT")
    options.at = (host, int(port))
    if options.rounds < 1:
        p.error(f"--rounds {options.rounds}: at least 1")
    if options.release_grpc and options.no_install:
        p.error("--release-grpc: not with --no-install")
    return options


def is_this_host(host):
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError as error:
        raise Refused(f"{host}: {words_of(error)}") from None


def read_secret(options):
    """The secret's bytes; empty if there is none, which --insecure or a loopback server allows."""
    if not options.secret_file:
        if not options.insecure and not (options.serve and is_this_host(options.at[0])):
            raise Refused(f"{options.address} can be reached from other hosts: --secret-file FILE "
                          "names a secret that both know; --insecure goes without")
        return b""
    try:
        if options.secret_file.stat().st_mode & 0o077:
            raise Refused(f"{options.secret_file}: others can read it: chmod 600")
        secret = options.secret_file.read_bytes().strip()
    except OSError as error:
        raise Refused(f"--secret-file {options.secret_file}: {words_of(error)}") from None
    if len(secret) < SECRET_LEAST:
        raise Refused(f"{options.secret_file}: has {len(secret)} bytes, must have {SECRET_LEAST} or more")
    return secret


def secret_words(options):
    """The options that give `tern bench` the secret, or let it go without."""
    return ["--secret-file", str(options.secret_file)] if options.secret_file else ["--insecure"]


def main(words):
    def stop(number, _frame):
        sys.exit(128 + number)
    options = parse(words)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    options.tern = options.tern.resolve()
    try:
        options.secret = read_secret(options)
        if options.release_grpc:
            grpc_release.get(say)
        found = {**install.peers(False, not options.no_install), **grpc_release.missing()}
        say("bench: building the programs of the peers")
        install.programs(options.tern.parent, grpc_release.built())
        maker = who.Maker(options.tern, found)
        return (serve if options.serve else connect)(options, maker)
    except (Refused, OSError) as why:
        say(f"bench: {why}")
        return 2
    except grpc_release.Unavailable as why:
        say(f"bench: --release-grpc: {why}")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
