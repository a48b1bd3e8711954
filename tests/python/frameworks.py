# SPDX-License-Identifier: Apache-2.0
"""Finds a Python that has PyTorch or JAX: this one, Debian's, or that of a virtual environment which bench/install.py
makes. TERN_TEST_TORCH in the environment names one of these, whose PyTorch is taken then.
"""
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

DEBIAN = "/usr/bin/python3"
BENCH = Path(__file__).resolve().parents[2] / "build-bench"
TORCH = os.environ.get("TERN_TEST_TORCH")
WHERE = {"torch": "./run test plugins" if TORCH else "apt-get install python3-torch", "jax": "./run test"}


def has(python, name):
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return importlib.util.find_spec(name) is not None
    return os.access(python, os.X_OK) and subprocess.run(
        [python, "-c", f"import {name}, numpy, sys; sys.exit(sys.version_info < (3, 11))"],
        capture_output=True).returncode == 0


@functools.cache
def find(name):
    """The Python that has `name`; None: there is none."""
    asked = TORCH if name == "torch" else None
    own = str(BENCH / (asked or name) / "bin/python")
    candidates = [own] if asked else [sys.executable, DEBIAN, own]
    return next((python for python in candidates if has(python, name)), None)


def why_not(name):
    return f"no Python has {name}: {WHERE[name]} installs it"


def run_with(name):
    """Returns if this Python has `name`. If not, it runs the script again with one that has it, or skips it."""
    python = find(name)
    if python is None:
        print(f"skipped: {why_not(name)}")
        sys.exit(77)
    if os.path.abspath(python) != os.path.abspath(sys.executable):
        os.execv(python, [python, *sys.argv])
