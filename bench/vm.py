# SPDX-License-Identifier: Apache-2.0
"""The verbs fabric beside perftest: tests/system/rdma runs both in turn in a virtual machine with
Soft-RoCE, and leaves the values in a file."""
import json
import sys
from pathlib import Path

from measure import Contender, Failed, Missing, run_group

IN_VM = Path(__file__).resolve().parents[1] / "tests/system/rdma/in_vm.py"
LIMIT_S = 900
PEERS = ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_write_bw")


def contenders(tern):
    built = (tern.parent / "tern-verbs.so").exists()
    why = "" if built else "Tern is built without the verbs fabric"
    return [Contender("tern.verbs", "Tern, verbs", fabric="verbs", missing=why, ours=True),
            *(Contender(name, f"perftest, {name}", fabric="verbs", missing=why)
              for name in PEERS)]


def measure(tern, rounds, quick):
    """{key: {point: {"value": values}}}. Soft-RoCE now and then breaks a connection, which perftest
    does not survive. So there is one more try after a failure."""
    try:
        return boot_and_measure(tern, rounds, quick)
    except Failed as why:
        print(f"  once more: {why}", file=sys.stderr, flush=True)
        return boot_and_measure(tern, rounds, quick)


def boot_and_measure(tern, rounds, quick):
    file = tern.parent / "rdma/perf.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, str(IN_VM), str(tern.parent), "perf"]
    command += ["--quick"] if quick else ["--rounds", str(rounds)]
    _, out, _ = run_group(command, LIMIT_S)
    if not file.exists():
        said = [line.strip() for line in out.splitlines() if line.strip()]
        why = [line for line in said if line.startswith(("FAILED", "skipped", "perf:"))]
        last = (why or said or ["it said nothing"])[-1]
        raise (Missing if last.startswith("skipped") else Failed)(f"the virtual machine: {last}")
    perf = json.loads(file.read_text())
    if perf["failures"]:
        raise Failed(f"Tern in the virtual machine: {perf['failures'][0]}")
    return read(perf)


def read(perf):
    found = {}
    for question in perf["questions"]:
        for name, values in question.items():
            if isinstance(values, dict):
                key = "tern.verbs" if name == "tern" else name
                found.setdefault(key, {})[question["name"]] = {"value": values["values"]}
    return found
