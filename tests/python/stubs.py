# SPDX-License-Identifier: Apache-2.0
"""The type stub of the C part names the methods that it has, and the annotations of the package can be resolved.

usage: stubs.py
"""
import ast
import inspect
import typing
from pathlib import Path

import pytern
from pytern import _native, transport

from jobs import tap


def the_stub_has_the_methods_of_the_c_part():
    tree = ast.parse((Path(pytern.__file__).parent / "_native.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and hasattr(_native, node.name)]
    assert len(classes) == 12, [node.name for node in classes]
    for node in classes:
        of_stub = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
        of_c = {name for name in vars(getattr(_native, node.name)) if not name.startswith("__")}
        assert {name for name in of_stub if not name.startswith("__")} == of_c, of_stub ^ of_c


def every_public_function_has_complete_type_hints():
    count = 0
    for thing in [getattr(of, name) for of in (pytern, transport) for name in of.__all__ if name != "Buffer"]:
        functions = [thing] if inspect.isfunction(thing) else [
            member.fget if isinstance(member, property) else member for key, member in vars(thing).items()
            if (key == "__init__" or not key.startswith("__")) and (inspect.isfunction(member) or
                                                                    isinstance(member, property))]
        for function in functions:
            hints = typing.get_type_hints(function)
            missing = [p for p in inspect.signature(function).parameters if p != "self" and p not in hints]
            assert not missing and (function.__name__ == "__init__" or "return" in hints), (thing, function, missing)
            count += 1
    assert count > 30, count


tap.run([the_stub_has_the_methods_of_the_c_part, every_public_function_has_complete_type_hints])
