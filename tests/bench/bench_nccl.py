#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the question `nccl` of ./run bench: its program with Tern's plug-in and, where bench/install.py has
installed NCCL, with NCCL's own sockets. The program compares the contents of the first messages. No figure is judged.

usage: bench_nccl.py NCCL_NET PLUG-IN TERN
"""
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "bench")]
import contenders  # noqa: E402
import install  # noqa: E402
import measure  # noqa: E402
import nccl  # noqa: E402
import questions  # noqa: E402
import tap  # noqa: E402

PROGRAM, PLUGIN, TERN = (Path(word).resolve() for word in sys.argv[1:4])
LO = {"NCCL_SOCKET_IFNAME": "lo", "TERN_NET_IFNAME": "=lo"}
INFLIGHT = 8
SIZES, ROUNDS = [8, 4 << 20, 0x3001, 129, 64 << 10, 3], [50, 16, 30, 30, 30, 30]


def finish(*words, **environment):
    return subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=100,
                          env={**os.environ, **LO, **environment})


def moves_messages_of_all_sizes(table, **environment):
    """Returns what was said beside the figures."""
    said = ""
    for test, inflight in (("lat", 1), ("bw", INFLIGHT), ("rate", INFLIGHT), ("both", 3)):
        done = finish(*table, "--test", test, "--wait", "poll", "--pin", "no", "--inflight", inflight, "--size",
                      ",".join(map(str, SIZES)), "--rounds", ",".join(map(str, ROUNDS)), **environment)
        assert done.returncode == 0, (test, done.stderr)
        lines = measure.json_lines(done.stdout)
        assert [(line["size"], line["rounds"]) for line in lines] == list(zip(SIZES, ROUNDS)), lines
        assert all(line["gb_per_s"] > 0 and ("p50_us" in line) == (test != "rate") for line in lines), lines
        said += done.stderr
    return said


def terns_plugin_moves_messages():
    for fabric, by in (("tcp", "tcp"), ("auto", "shm")):
        said = moves_messages_of_all_sizes([PLUGIN, "exported"], TERN_FABRICS=fabric, NCCL_DEBUG="INFO")
        ways = [line.split()[-1] for line in said.splitlines() if " sends to " in line or " receives from " in line]
        assert ways == 16 * [by], (fabric, said)


def sockets():
    """The library of NCCL and the addresses in it."""
    if not install.NCCL.has(install.NCCL.wheel):
        raise tap.Skip("bench/install.py has not installed NCCL")
    where, why = nccl.sockets_of(nccl.library())
    if why:
        raise tap.Skip(why)
    return [nccl.library(), where]


def nccls_sockets_move_messages():
    table = sockets()
    for _, _, environment in nccl.SOCKETS:
        moves_messages_of_all_sizes(table, **environment)


def the_addresses_are_those_of_a_table_of_the_right_size():
    lines = ["0000000016900010 00000000000000b0 d ncclNetSocket", "00000000001c9a60 0000000000000200 t cudaGetDevice",
             "00000000001c9a60 0000000000000200 t cudaGetDeviceCount", "                 U malloc"]
    assert nccl.places("\n".join(lines)) == "0000000016900010,00000000001c9a60"
    assert nccl.places("\n".join(lines).replace("b0 d", "a0 d")) == ""
    assert nccl.places(lines[0]) == "" and nccl.places("\n".join(lines[1:])) == ""


def the_question_has_all_points_of_its_goals():
    if len(os.sched_getaffinity(0)) < 2:
        raise tap.Skip("the two ends are pinned to a core each, and there is only one")
    found = {}
    with mock.patch.object(install, "PEERS", PROGRAM.parent):
        missing = {} if install.NCCL.has(install.NCCL.wheel) else {"nccl": "not installed"}
        question = questions.QUESTIONS["nccl"](questions.Plan(True, contenders.Maker(TERN, missing)))
    for contender in question.contenders:
        if contender.missing:
            print(f"# {contender.title}: {contender.missing}")
            assert not contender.ours, contender.missing
            continue
        for point, line in measure.run_once(contender).items():
            found.setdefault(contender.key, {})[point] = line
            print(f"# {contender.key}, {point}: {json.dumps(measure.numbers(line))}")
    for key, points in found.items():
        assert list(points) == ["8", "4194304", "4194304x8"], (key, points)
        for point, line in points.items():
            assert ("gb_per_s" in line, "p50_us" in line) == ((True, False) if "x" in point else (False, True)), line
    assert {"tern.tcp", "tern.shm"} <= set(found), found


def a_transport_that_is_not_installed_is_missing():
    plan = questions.Plan(True, contenders.Maker("/nowhere/tern", {"nccl": "not installed"}))
    with mock.patch.object(install, "PEERS", PROGRAM.parent):
        why = {c.key: c.missing for c in questions.QUESTIONS["nccl"](plan).contenders}
    assert why == {"tern.tcp": "the plug-in for NCCL was not built", "tern.shm": "the plug-in for NCCL was not built",
                   **{key: "not installed" for key, _, _ in nccl.SOCKETS}}, why


def wrong_arguments_are_refused_in_a_line():
    common = ["--test", "rate", "--wait", "poll", "--pin", "no", "--size", 8, "--rounds", 5, "--inflight"]
    for words, why in (([], "expected LIBRARY"), (["/nowhere/lib.so", "exported", *common, 1], "/nowhere/lib.so"),
                       ([PLUGIN, "here", *common, 1], "neither"), ([PLUGIN, "1,2x", *common, 1], "neither"),
                       ([PLUGIN, "exported", *common, 33], "at most 32 requests")):
        done = finish(*words)
        lines = done.stderr.splitlines()  # of one end, or of both
        assert done.returncode == 1 and not done.stdout and lines, done
        assert all(why in line for line in lines if "exited too early" not in line), done
    done = finish(PLUGIN, "exported", *common, 1, TERN_NET_IFNAME="=nothing")
    assert done.returncode == 1 and "Tern has found no network interface" in done.stderr, done


if __name__ == "__main__":
    tap.run([terns_plugin_moves_messages, nccls_sockets_move_messages,
             the_addresses_are_those_of_a_table_of_the_right_size, the_question_has_all_points_of_its_goals,
             a_transport_that_is_not_installed_is_missing, wrong_arguments_are_refused_in_a_line])
