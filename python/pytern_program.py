# SPDX-License-Identifier: Apache-2.0
"""The command `tern` of an installed package: becomes the program in the package's folder. It is not inside the package,
whose import would load NumPy first."""
import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "pytern" / "bin" / "tern"
    os.execv(program, [sys.argv[0], *sys.argv[1:]])
