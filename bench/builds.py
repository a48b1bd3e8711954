# SPDX-License-Identifier: Apache-2.0
"""How the peers' libraries were built: with the checks of a debug build, or as a release.

A library with its assertions costs more than the one that its maintainers would have users
measure, so the machine's description says which it is. That is read in the libraries themselves
(UCX's tool ucx_info tells it), since packages do not say it.
"""
import os
import subprocess

import install

# Program of bench/peers, the start of the library's file name, the name in the description.
LIBRARIES = [("grpc_pair", "libgrpc.so", "gRPC"), ("ucx", "libucp.so", "UCX"),
             ("mpi", "libmpi.so", "OpenMPI"), ("libfabric", "libfabric.so", "libfabric"),
             ("tensorpipe", "libtensorpipe.so", "TensorPipe"), ("zeromq", "libzmq.so", "ZeroMQ")]
# A name that only a build with assertions has, for libraries in which it is not ASSERTS. gRPC's
# assertions for debug builds end in a function that release builds have as well, but its tracer
# pending_tags is in debug builds only.
SIGNS = {"gRPC": b"pending_tags"}
ASSERTS = b"__assert_fail"


def output_of(command, **environment):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20,
                              env={**os.environ, **environment}).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def library_of(program, start):
    """The path of the library that a program is linked with; "" if there is none."""
    for line in output_of(["ldd", str(install.PEERS / program)]).splitlines():
        words = line.split()
        if words and words[0].startswith(start) and len(words) > 2:
            return words[2]
    return ""


def asserts_text(library, sign):
    with open(library, "rb") as file:
        return "with assertions" if sign in file.read() else "without assertions"


def ucx_text(told):
    """How UCX was built, from the output of `ucx_info -b`, in which an option that is off has the
    value 0, or no line."""
    on = {words[1] for words in map(str.split, told.splitlines())
          if len(words) == 3 and words[0] == "#define" and words[2] == "1"}
    return (f"{'with' if 'ENABLE_ASSERT' in on else 'without'} assertions, "
            f"{'with' if 'ENABLE_PARAMS_CHECK' in on else 'without'} checks of parameters")


def describe():
    """{"build of LIBRARY": how it was built} of the libraries that are there."""
    found = {}
    for program, start, name in LIBRARIES:
        library = library_of(program, start)
        if library and name != "UCX":
            found[f"build of {name}"] = asserts_text(library, SIGNS.get(name, ASSERTS))
    release = install.UCX_RELEASE
    for name, program, environment in (
            ("UCX", "ucx_info", {}),
            ("UCX from PyPI", str(release / "bin/ucx_info"),
             {"LD_LIBRARY_PATH": str(release / "lib")})):
        told = output_of([program, "-b"], **environment)
        if told:
            found[f"build of {name}"] = ucx_text(told)
    return found
