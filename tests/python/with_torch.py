# SPDX-License-Identifier: Apache-2.0
"""For the tests with PyTorch, which import this first: without PyTorch, they run again with Debian's Python if that has
it, and are skipped otherwise."""
import importlib.util
import os
import subprocess
import sys

DEBIAN = "/usr/bin/python3"

if importlib.util.find_spec("torch") is None:
    if os.path.realpath(sys.executable) != os.path.realpath(DEBIAN) and subprocess.run(
            [DEBIAN, "-c", "import torch, numpy, sys; sys.exit(sys.version_info < (3, 11))"],
            capture_output=True).returncode == 0:
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    print("skipped: python3-torch is not installed")
    sys.exit(77)
