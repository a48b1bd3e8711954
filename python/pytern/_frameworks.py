# SPDX-License-Identifier: Apache-2.0
"""What pytern.torch and pytern.jax share."""
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Mapping

from .rules import Init


class Stated:
    """The initial values that a program states for parameters by their names, or by patterns such as "*.weight"."""

    def __init__(self, init: Mapping[str, Init] | None) -> None:
        self._init = dict(init or {})
        self._used: set[str] = set()
        for key, value in self._init.items():
            if not isinstance(value, Init):
                raise TypeError(f"init: {key}: expected one such as pytern.uniform(0.1), got {type(value).__name__}")

    def find(self, name: str) -> Init | None:
        """What the first name or pattern that fits says."""
        fitting = [key for key in self._init if fnmatch.fnmatchcase(name, key)]
        self._used.update(fitting)
        return self._init[fitting[0]] if fitting else None

    def refuse_unused(self, why: str) -> None:
        for key in self._init:
            if key not in self._used:
                raise ValueError(f"init: {key}: {why}")


def hint(name: str) -> str:
    return f"state how it begins: init={{\"{name}\": pytern.normal(0.02)}}, for example"


def processor() -> str:
    """The model of the processor: libraries choose kernels by it, and block sizes by its caches."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if re.match(r"(vendor_id|cpu family|model|flags|cache size|Features|CPU )", line))


def build_digest(texts: Iterable[str], environment: Iterable[str]) -> str:
    """Eight hexadecimal digits that differ if the texts, variables of the environment or the processor differ."""
    state = hashlib.sha256()
    for text in (*texts, *(f"{name}={os.environ.get(name)}" for name in environment), processor()):
        state.update(text.encode() + b"\0")
    return state.hexdigest()[:8]
