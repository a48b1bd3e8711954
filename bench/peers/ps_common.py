# SPDX-License-Identifier: Apache-2.0
"""The Python peers' side of ps.h: arguments, the same rate, the check after every round (which expects
the same gradient), timing, and the line of JSON."""
import argparse
import json
import sys
import time

WARMUP = 2
RATE = 1.0 / 1024


def parse(variants):
    p = argparse.ArgumentParser()
    p.add_argument("--bytes", type=int, required=True)
    p.add_argument("--servers", type=int, default=1)
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--rounds", type=int, required=True)
    p.add_argument("--variant", choices=variants, required=True)
    return p.parse_args()


def range_of(options, server):
    """(first, end) of the elements that a server has."""
    count = options.bytes // 4
    each = count // options.servers
    return each * server, count if server == options.servers - 1 else each * (server + 1)


def check(params, rounds_done, updates=1):
    """Checks some parameters, and exits if one is wrong. params(i) returns element i as a float. `updates`: how many
    updates of RATE times the gradient a round applies."""
    for i in (0, 1, 5, 7, 1001, 8190):
        want = -RATE * rounds_done * updates * (i % 8) / 8
        if abs(params(i) - want) > 1e-6 * max(1.0, abs(want)):
            sys.exit(f"parameter {i} is {params(i)} after {rounds_done} rounds, not {want}")


def measure(one_round, params, rounds, meet, updates=1):
    """Runs all rounds of one worker. Returns the seconds of the measured ones, without the checks,
    which may take remote calls. meet() waits for the other workers, so that all start the measurement
    together."""
    seconds = 0.0
    for r in range(WARMUP + rounds):
        if r == WARMUP:
            meet()
        start = time.monotonic()
        one_round()
        if r >= WARMUP:
            seconds += time.monotonic() - start
        check(params, r + 1, updates)
    return seconds


def report(options, peer, version, seconds):
    print(json.dumps({"peer": peer, "variant": options.variant, "version": version,
                      "wait": "sleep", "bytes": options.bytes, "workers": options.workers,
                      "servers": options.servers, "rounds": options.rounds,
                      "ms_per_round": seconds * 1e3 / options.rounds}), flush=True)
