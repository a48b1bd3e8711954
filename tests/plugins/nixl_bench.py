# SPDX-License-Identifier: Apache-2.0
"""Runs bench/peers/transfers.py, which checks the bytes that it moves, with NIXL over Tern: nixl_bench.py PLUGIN."""
import json
import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "bench"))
import install  # noqa: E402

SIZES = (64, 65536)


def main():
    if not install.NIXL.has(install.NIXL.wheel):
        print("skipped: bench/install.py has not installed NIXL")
        sys.exit(77)
    command = [install.NIXL.python(), str(TOP / "bench/peers/transfers.py"), "--engine", "nixl:TERN",
               "--size", ",".join(map(str, SIZES)), "--rounds", ",".join("20" for _ in SIZES)]
    environment = {**os.environ, "NIXL_PLUGIN_DIR": str(Path(sys.argv[1]).resolve().parent), "NIXL_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    print(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.returncode
    assert [(line["op"], line["size"]) for line in lines] == [(op, size) for size in SIZES for op in ("write", "read")]
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
