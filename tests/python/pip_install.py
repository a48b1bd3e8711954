# SPDX-License-Identifier: Apache-2.0
"""`pip install` of the working tree in a fresh virtual environment: the package, the program `tern`, the library and the
headers are there and work together. pip fetches what the build needs, so without an index the cases are skipped.

usage: pip_install.py
"""
import json
import os
import subprocess
import sys

from jobs import SCRATCH, TOP, Process, tap

VENV = SCRATCH / "venv"
for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):  # meson makes them name the build folder
    os.environ.pop(name, None)
SKIPPED = []


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **more)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


def make_venv(*options):
    try:
        run(sys.executable, "-m", "venv", "--clear", *options, VENV)
    except AssertionError as error:
        if "ensurepip" not in str(error):
            raise
        SKIPPED.append("python3-venv is not installed")
        raise tap.Skip(SKIPPED[0]) from None


def need_installed():
    if SKIPPED:
        raise tap.Skip(SKIPPED[0])


def pip_installs_the_working_tree():
    make_venv()
    source = SCRATCH / "source"  # a copy of the files that git knows: build folders are large
    files = run("git", "-C", TOP, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for file in files:
        if (TOP / file).is_file():
            (source / file).parent.mkdir(parents=True, exist_ok=True)
            (source / file).write_bytes((TOP / file).read_bytes())
            (source / file).chmod((TOP / file).stat().st_mode)
    try:
        run(VENV / "bin" / "pip", "download", "--no-deps", "--dest", SCRATCH / "index", "meson-python")
    except AssertionError:
        SKIPPED.append("pip reaches no index of packages")
        raise tap.Skip(SKIPPED[0]) from None
    run(VENV / "bin" / "pip", "wheel", "--no-deps", "--wheel-dir", SCRATCH / "wheels", source)
    wheels = list((SCRATCH / "wheels").iterdir())
    assert len(wheels) == 1 and "-cp311-abi3-linux_" in wheels[0].name, wheels
    run(VENV / "bin" / "pip", "install", wheels[0])


def train_with_the_installed_package():
    """Trains the example with the installed program as the server. Returns where the package is."""
    server = Process(VENV / "bin" / "tern", "server", "--listen", "127.0.0.1:0", "--json")
    try:
        address = json.loads(server.wait_line(lambda line: '"listening"' in line))["address"]
        worker = Process(VENV / "bin" / "python3", TOP / "docs" / "examples" / "logistic.py",
                         TERN_JOIN=address, TERN_WORKERS=1, TERN_INDEX=0)
        try:
            assert any(line and line.startswith("accuracy") for line in worker.end().lines)
        finally:
            worker.kill()
        server.end()
    finally:
        server.kill()


def the_installed_package_trains_with_the_installed_server():
    need_installed()
    train_with_the_installed_package()
    assert "fabrics" in run(VENV / "bin" / "tern", "--version")


def nothing_of_cuda_and_verbs_is_needed():
    need_installed()
    package = next(VENV.glob("lib/python3*/site-packages/pytern"))
    for file in (package / "bin" / "tern", package / "libtern.so.0.1", next(package.glob("_native*.so"))):
        needed = [line for line in run("ldd", file).splitlines() if any(
            name in line for name in ("cuda", "ibverbs", "rdmacm", "not found"))]
        assert not needed, needed


def a_c_program_compiles_with_the_installed_library():
    need_installed()
    flags = run(VENV / "bin" / "python3", "-m", "pytern").split()
    run("cc", "-Wall", "-Werror", TOP / "docs" / "examples" / "factorise.c", *flags, "-lm", "-o", SCRATCH / "factorise")
    linked = run("ldd", SCRATCH / "factorise")
    assert f"{VENV}/lib" in linked, linked


def it_works_with_the_packages_of_the_system():
    need_installed()
    make_venv("--system-site-packages")
    run(VENV / "bin" / "pip", "install", "--no-deps", next((SCRATCH / "wheels").iterdir()))
    train_with_the_installed_package()


tap.run([
    pip_installs_the_working_tree,
    the_installed_package_trains_with_the_installed_server,
    nothing_of_cuda_and_verbs_is_needed,
    a_c_program_compiles_with_the_installed_library,
    it_works_with_the_packages_of_the_system,
])
