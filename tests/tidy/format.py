# SPDX-License-Identifier: Apache-2.0
"""Tests that `./run format` would change nothing. Another version of clang-format lays out some lines in
another way, so the check is for Debian 12's, and is skipped with any other.

usage: format.py
"""
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

MAJOR = "14"


def sources():
    # Like ./run format, also those that git does not track yet.
    listed = subprocess.run(["git", "-C", TOP, "ls-files", "--cached", "--others", "--exclude-standard",
                             "*.c", "*.h", "*.cu", "plugins/*.cc", "plugins/*.hh", "tests/*.cc"],
                            capture_output=True, text=True)
    if listed.returncode:
        raise tap.Skip("the sources are not a git repository here")
    return [name for name in listed.stdout.split() if (TOP / name).is_file()]


def the_sources_are_formatted():
    if not shutil.which("clang-format"):
        raise tap.Skip("clang-format is not installed")
    version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
    if f"version {MAJOR}." not in version:
        raise tap.Skip(f"clang-format is not version {MAJOR}: {version.strip()}")
    done = subprocess.run(["clang-format", "--dry-run", *sources()], cwd=TOP, capture_output=True, text=True)
    places = [line for line in done.stderr.splitlines() if "warning: code should be clang-formatted" in line]
    assert not places, "please run ./run format:\n" + "\n".join(places)


tap.run([the_sources_are_formatted])
