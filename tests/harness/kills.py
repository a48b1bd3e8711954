# SPDX-License-Identifier: Apache-2.0
"""How many processes the tests of plug-ins kill, and the seed of the moments: TERN_PLUGIN_KILLS and TERN_PLUGIN_SEED in the
environment. tests/plugins/kills.h is the same for tests in C.
"""
import os
import random
import sys


def _number(name, otherwise, least):
    text = os.environ.get(name, str(otherwise))
    if not (text.isascii() and text.isdigit() and least <= int(text) <= 1_000_000):
        print(f"{name}={text}: expected a number from {least} to 1000000", file=sys.stderr)
        sys.exit(2)
    return int(text)


COUNT = _number("TERN_PLUGIN_KILLS", 20, 1)
SEED = _number("TERN_PLUGIN_SEED", 7, 0)
# Where starting a process takes seconds.
FEW = max(1, COUNT // 20)


def moments(count, longest_s):
    """For each process that is killed, how many seconds it works before that."""
    chosen = random.Random(SEED)
    return [longest_s * chosen.random() for _ in range(count)]


def tell(count):
    """Prints how many processes were killed. ./run test adds these numbers up."""
    print(f"# {count} processes killed, seed {SEED}", flush=True)
