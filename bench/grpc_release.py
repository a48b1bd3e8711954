# SPDX-License-Identifier: Apache-2.0
"""A release build of gRPC's core, as a peer beside Debian's, which is built without NDEBUG.

The source is PyPI's package grpcio, of one version and checksum: it has the whole core in C++,
its C headers, and gRPC's own Makefile, whose configuration `opt` is its release build (-O2,
NDEBUG). The package's wheel is of no use, since that hides all symbols but Python's. The library is
static: calls within it then need no indirection. To build it takes half an hour or more of two
cores, so it is built only if it is asked for, and stays in build-bench/.
"""
import os
import shutil
import subprocess
import sys
import time

import install

VERSION = "1.85.3"
SHA256 = "8e18f15d1b09b8771edbf59d634b26cbe4903bc2577cb667264934a6655eb8b4"
PACKAGE = "grpc-release"  # its name among what is missing
NEEDED = [("g++", "g++"), ("make", "make"),
          *(pair for pair in install.PYTHON_PACKAGES if pair[0] == "python3-venv")]
SAY_EVERY_S = 60


class Unavailable(Exception):
    """Why there is no release build, in a line."""


def home():
    return install.BUILD / PACKAGE


def source():
    """The folder of the source, which exists only if it was unpacked completely."""
    return home() / f"grpcio-{VERSION}"


def library():
    """The path of the library, which exists only if the build was completed."""
    return source() / f"libgrpc-{VERSION}.a"


def built():
    """The path of the library; "" if there is none."""
    return str(library()) if library().exists() else ""


def download(say):
    """Downloads and unpacks the source. pip compares the checksum before it runs anything of it."""
    say(f"  downloading: grpcio {VERSION} from PyPI")
    new = home() / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    wanted = new / "requirements.txt"
    wanted.write_text(f"grpcio=={VERSION} --hash=sha256:{SHA256}\n")
    why = install.in_venv("-m", "pip", "download", "-q", "--no-deps", "--no-binary", "grpcio",
                          "--require-hashes", "--dest", str(new), "-r", str(wanted))
    if why:
        raise Unavailable(f"download: {why}")
    shutil.unpack_archive(new / f"grpcio-{VERSION}.tar.gz", new)
    os.replace(new / f"grpcio-{VERSION}", source())
    shutil.rmtree(new)


def make_command():
    return ["make", "-C", str(source()), f"-j{len(os.sched_getaffinity(0))}", "static_c",
            "CONFIG=opt", "EMBED_ZLIB=true", "EXTRA_CPPFLAGS=-g0 -w"]


def files_left():
    """How many files the next build compiles."""
    done = subprocess.run([*make_command(), "-n"], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"make -n: {(done.stderr.splitlines() or ['failed'])[0]}")
    return done.stdout.count("Compiling ")


def follow(make, out, files, say):
    """Copies what make prints to the log `out`, and says once a minute how many files are compiled."""
    begin = said = time.monotonic()
    done = 0
    for line in make.stdout:
        out.write(line)
        done += "Compiling " in line
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            say(f"  gRPC: {done} of {files} files, {(said - begin) / 60:.0f} min")


def compile_all(say):
    """Compiles what is not compiled yet: a build that was stopped goes on."""
    log = home() / "make.log"
    files = files_left()
    say(f"  building gRPC {VERSION}: {files} files, half an hour or more on two cores; "
        f"the log is {log}")
    with log.open("w") as out, subprocess.Popen(
            make_command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as make:
        try:
            follow(make, out, files, say)
        except BaseException:  # a signal: without this, the end of Popen would wait for make
            make.terminate()
            raise
    if make.returncode:
        errors = [line for line in log.read_text().splitlines() if "rror" in line]
        raise Unavailable(f"make: {(errors or ['failed'])[0]}; see "
                          f"build-bench/{PACKAGE}/{log.name}")


def keep_library():
    """Keeps the library beside the source, and removes the folders that the build has made."""
    os.replace(source() / "libs/opt/libgrpc.a", library())
    for name in ("libs", "objs", "gens"):
        shutil.rmtree(source() / name, ignore_errors=True)


def get(say=lambda text: print(text, file=sys.stderr, flush=True)):
    """Builds the library if it is not there. Raises Unavailable if that fails."""
    if built():
        return
    absent = install.packages(NEEDED, say)
    if absent:
        raise Unavailable("; ".join(f"{name}: {why}" for name, why in absent.items()))
    try:
        if not source().exists():
            download(say)
        compile_all(say)
        keep_library()
    except (OSError, shutil.ReadError) as error:
        raise Unavailable(str(error)) from error


def missing():
    """{package: why it is missing}, as install.peers() says it of the other peers."""
    return {} if built() else {PACKAGE: "built only with --release-grpc, which takes half an hour "
                               "or more"}
