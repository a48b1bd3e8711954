#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does everything that includes cuda.h, but not cuBLAS's header, compile with the headers of CUDA 12.0, the oldest
that the build accepts? PyPI has them. Nothing is linked or run: the driver's functions are found at run time
(base/cuda.h).

usage: oldest_headers.py BUILD_DIRECTORY
"""
import json
import shlex
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "harness")]
import tap  # noqa: E402

BUILD = Path(sys.argv[1])
PACKAGE = "nvidia-cuda-runtime-cu12==12.0.146"
DOWNLOAD_LIMIT_S = 120

ONLY_12_0 = "tern_only_12_0.h"


def headers(directory):
    """The folder with cuda.h of 12.0."""
    try:
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", directory, PACKAGE],
                              capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise tap.Skip(f"{PACKAGE} was not downloaded within {DOWNLOAD_LIMIT_S} s") from None
    wheels = list(Path(directory).glob("*.whl"))
    if not wheels:
        raise tap.Skip(f"{PACKAGE} cannot be had: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(directory)
    return next(Path(directory).rglob("cuda.h")).parent


def includers():
    """Objects of the build whose source includes cuda.h, by what the compiler noted; but none that includes
    cuBLAS's header, which fits the CUDA headers of its own version only."""
    told = subprocess.run(["ninja", "-C", BUILD, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    for block in told.split("\n\n"):
        if "/cuda.h" in block and "/cublas_api.h" not in block:
            yield block.strip().split(": #deps", 1)[0].rsplit("\n", 1)[-1]


def syntax_only(command, include):
    """The compiler's command, without what it writes, and with `include` before all other system headers: those of
    the build's CUDA may be in a folder that the command names, or in the compiler's own. The compiler may be two words,
    such as `ccache gcc`."""
    words = shlex.split(command)
    kept = [word for before, word in zip(["", *words], words)
            if word not in ("-c", "-MD", "-MQ", "-MF", "-o") and before not in ("-MQ", "-MF", "-o")]
    first = next(i for i, word in enumerate(kept) if word.startswith("-"))
    return [*kept[:first], "-isystem", str(include), *kept[first:], "-fsyntax-only", "-fdiagnostics-color=never",
            "-include", str(include / ONLY_12_0)]


def all_compiles_with_cuda_12_0():
    commands = {c["output"]: c for c in json.loads((BUILD / "compile_commands.json").read_text())}
    # A source file that is compiled for several programs is compiled once here.
    chosen = {commands[o]["file"]: commands[o] for o in includers() if o in commands}
    assert chosen, "no object includes cuda.h"
    with tempfile.TemporaryDirectory(prefix="tern-cuda-") as directory:
        include = headers(directory)
        (include / ONLY_12_0).write_text("#include <cuda.h>\n#if CUDA_VERSION != 12000\n"
                                         '#error "these are not the headers of CUDA 12.0"\n#endif\n')

        def compiles(one):
            words = syntax_only(one["command"], include)
            return subprocess.run(words, cwd=one["directory"], capture_output=True, text=True, check=False)

        with ThreadPoolExecutor(2) as pool:
            for one, done in zip(chosen.values(), pool.map(compiles, chosen.values())):
                assert done.returncode == 0, f"{one['file']}:\n{done.stderr[-2000:]}"
    print(f"# {len(chosen)} files")


if __name__ == "__main__":
    tap.run([all_compiles_with_cuda_12_0])
