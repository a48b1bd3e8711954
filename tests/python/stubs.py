# SPDX-License-Identifier: Apache-2.0
"""The type stub of the C part names the methods that it has, and the annotations of the package can be resolved.

usage: stubs.py
"""
import ast
import inspect
import typing
from pathlib import Path

import pytern
from pytern import _native

from jobs import tap


def the_stub_has_the_methods_of_the_c_part():
    tree = ast.parse((Path(pytern.__file__).parent / "_native.pyi").read_text())
    session = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Session")
    of_stub = {node.name for node in session.body if isinstance(node, ast.FunctionDef)} - {"__new__"}
    of_c = {name for name in vars(_native.Session) if not name.startswith("__")}
    assert of_stub == of_c, of_stub ^ of_c


def every_public_function_has_complete_type_hints():
    count = 0
    for name in pytern.__all__:
        thing = getattr(pytern, name)
        functions = [thing] if inspect.isfunction(thing) else [
            member.fget if isinstance(member, property) else member for key, member in vars(thing).items()
            if (key == "__init__" or not key.startswith("__")) and (inspect.isfunction(member) or
                                                                    isinstance(member, property))]
        for function in functions:
            hints = typing.get_type_hints(function)
            missing = [p for p in inspect.signature(function).parameters if p != "self" and p not in hints]
            assert not missing and (function.__name__ == "__init__" or "return" in hints), (name, function, missing)
            count += 1
    assert count > 30, count


tap.run([the_stub_has_the_methods_of_the_c_part, every_public_function_has_complete_type_hints])
