# SPDX-License-Identifier: Apache-2.0
"""Installs the peers and builds them: Debian packages, PyPI's UCX and (in a virtual
environment) TensorFlow below build-bench/, the programs of this folder, and what the virtual
machine of the verbs question needs, perftest among it.

What cannot be had does not stop the others: it is a row "missing: why" in the report.

Tests use some of it, too: install.py [torch] [jax] [nixl] installs these alone.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
BUILD = TOP / "build-bench"
PEERS = BUILD / "peers"
VENV = BUILD / "venv"
TENSORFLOW_WHEEL = "tensorflow-cpu==2.21.0"
# For the processor alone PyPI has no build, so some 5 GB of it are NVIDIA's libraries, which are not used.
TORCH_WHEEL = "torch==2.15.0"
TORCH = BUILD / "torch"  # a virtual environment
JAX_WHEEL = "jax==0.10.2"
JAX = BUILD / "jax"  # a virtual environment
NIXL_WHEELS = {"nixl-cu12": "1.5.1", "nixl-cu13": "1.5.1", "nixl": "1.5.1"}
NIXL = BUILD / "nixl"  # a virtual environment, with Debian's PyTorch
MOONCAKE_WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
# A release build of UCX. Debian's has assertions, and checks the parameters of each call.
UCX_WHEEL = "libucx-cu12==1.22.0"
UCX_RELEASE = BUILD / "ucx/libucx"
UCX_PERFTEST = {"libucx-dev": "ucx_perftest", "libucx-cu12": str(UCX_RELEASE / "bin/ucx_perftest")}
SYSTEM_PYTHON = "/usr/bin/python3"  # it finds Debian's python3-torch

# Package, and a file or program that shows that it is there.
PACKAGES = [
    ("g++", "g++"), ("meson", "meson"), ("ninja-build", "ninja"), ("pkg-config", "pkg-config"),
    ("gnuplot-nox", "gnuplot"),
    ("libgrpc++-dev", "/usr/include/grpcpp/grpcpp.h"),
    ("libprotobuf-dev", "/usr/include/google/protobuf/message.h"),
    ("protobuf-compiler", "protoc"),
    ("libucx-dev", "/usr/include/ucp/api/ucp.h"), ("ucx-utils", "ucx_info"),
    ("openmpi-bin", "mpirun"), ("libopenmpi-dev", "/usr/share/doc/libopenmpi-dev"),
    ("libfabric-dev", "/usr/include/rdma/fabric.h"), ("libfabric-bin", "fi_pingpong"),
    ("libtensorpipe-dev", "/usr/include/tensorpipe/tensorpipe.h"),
    ("libzmq3-dev", "/usr/include/zmq.h"), ("python3-pip", "pip3"),
]
# Packages for the parameter servers in Python. They are most of the download; a quick run does not need them.
PYTHON_PACKAGES = [
    ("python3-torch", "/usr/lib/python3/dist-packages/torch/__init__.py"),
    ("python3-venv", "/usr/lib/python3.11/ensurepip/__init__.py"),
]


def is_there(sign):
    return Path(sign).exists() if sign.startswith("/") else bool(shutil.which(sign))


def absent(wanted):
    return [name for name, sign in wanted if not is_there(sign)]


def apt_install(packages, *options):
    command = ["apt-get", *options, "install", "-y", "--no-install-recommends", *packages]
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
    return (said or ["apt-get failed"])[0].removeprefix("E: ")


def packages(wanted, say):
    """Installs Debian packages. Returns {package: why it is missing} of those that are."""
    names = absent(wanted)
    if not names:
        return {}
    if not shutil.which("apt-get"):
        return {name: "this is not a Debian system" for name in names}
    if os.geteuid() != 0:
        say(f"  not root: to install the peers, run: apt-get install {' '.join(names)}")
        return {name: "not installed, and only root may install it" for name in names}
    say(f"  installing: {' '.join(names)}")
    subprocess.run(["apt-get", "update", "-q"], capture_output=True)
    if not apt_install(names):
        return {}
    # One package that fails makes the whole call fail, so install them one by one. No
    # retries: without a network, each package would wait for it again.
    reasons = {name: apt_install([name], "-o", "Acquire::Retries=0") for name in names}
    return {name: why for name, why in reasons.items() if why}


def run_steps(*steps):
    """Runs commands. Returns why one failed; "" if none did."""
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=900)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"{' '.join(step[:3])} failed"]
            return next((line for line in said if line.startswith("ERROR:")), said[-1])
    return ""


def in_venv(*arguments, venv=VENV):
    """Runs Python in the virtual environment, which it makes first."""
    return run_steps([SYSTEM_PYTHON, "-m", "venv", str(venv)],
                     [str(venv / "bin/python"), *arguments])


def has_tensorflow():
    """True if the file is there that pip writes last. To import TensorFlow would take as long as
    some questions do."""
    return any(VENV.glob("lib/python*/site-packages/tensorflow_cpu-*.dist-info/RECORD"))


def has_ucx_release():
    return (UCX_RELEASE / "lib/libucp.so.0").exists()


def tensorflow(say):
    """Installs TensorFlow if it is missing. Returns why that failed; "" if it is there."""
    if has_tensorflow():
        return ""
    say(f"  installing: {TENSORFLOW_WHEEL} from PyPI, into build-bench/venv")
    return in_venv("-m", "pip", "install", "-q", TENSORFLOW_WHEEL)


def has_torch():
    return any(TORCH.glob("lib/python*/site-packages/torch-*.dist-info/RECORD"))


def torch_python():
    """The Python that has the newest PyTorch: that of PyPI, or else Debian's."""
    return str(TORCH / "bin/python") if has_torch() else SYSTEM_PYTHON


def torch(say):
    """Installs PyPI's PyTorch if it is missing. Returns why that failed; "" if it is there."""
    if has_torch():
        return ""
    say(f"  installing: {TORCH_WHEEL} from PyPI, into build-bench/torch (5 GB)")
    return in_venv("-m", "pip", "install", "-q", TORCH_WHEEL, "numpy", venv=TORCH)


def jax(say):
    """Installs JAX if it is missing. Returns why that failed; "" if it is there."""
    if any(JAX.glob("lib/python*/site-packages/jax-*.dist-info/RECORD")):
        return ""
    say(f"  installing: {JAX_WHEEL} from PyPI, into build-bench/jax (0.6 GB)")
    return in_venv("-m", "pip", "install", "-q", JAX_WHEEL, venv=JAX)


def has_nixl():
    return any(NIXL.glob("lib/python*/site-packages/nixl_cu12-*.dist-info/RECORD"))


def has_mooncake():
    return any(NIXL.glob("lib/python*/site-packages/mooncake_transfer_engine_non_cuda-*.dist-info/RECORD"))


def nixl(say):
    """Installs NIXL if it is missing. Returns why that failed; "" if it is there. It imports PyTorch; PyPI's has a
    transport on NIXL, so NIXL is installed there, too, if it is there, with the wheel for the same CUDA."""
    wheels = [f"{name}=={version}" for name, version in NIXL_WHEELS.items()]
    if not has_nixl():
        say(f"  installing: {wheels[0]} from PyPI, into build-bench/nixl (70 MB)")
        why = run_steps([SYSTEM_PYTHON, "-m", "venv", "--system-site-packages", str(NIXL)],
                        [str(NIXL / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", wheels[0]])
        if why:
            return why
    if has_torch() and not any(TORCH.glob("lib/python*/site-packages/nixl-*.dist-info/RECORD")):
        return in_venv("-m", "pip", "install", "-q", "--no-deps", *wheels, venv=TORCH)
    return ""


def mooncake(say):
    """Installs Mooncake's transfer engine where NIXL is, if it is missing. Returns why that failed; "" if it is there."""
    if has_mooncake():
        return ""
    say(f"  installing: {MOONCAKE_WHEEL} from PyPI, into build-bench/nixl (46 MB)")
    return run_steps([str(NIXL / "bin/python"), "-m", "pip", "install", "-q", "--no-deps", MOONCAKE_WHEEL])


def ucx_release(say):
    """Installs the release build of UCX if it is missing. Returns why that failed; "" if it is
    there. It is for CUDA 12, and works without CUDA: what needs CUDA is in modules that UCX does
    not load then."""
    if has_ucx_release():
        return ""
    say(f"  installing: {UCX_WHEEL} from PyPI, below build-bench")
    return run_steps(["pip3", "install", "-q", "--no-deps", "--upgrade", "--target",
                      str(UCX_RELEASE.parent), UCX_WHEEL])


def build(tern_build, grpc_release, say, top=TOP):
    """Builds the programs of bench/ in the tree `top`. Returns why that failed; "" if it did not."""
    where = top / BUILD.name
    steps = [["ninja", "-C", str(where), "--quiet"]]
    setup = ["meson", "setup", str(where), str(top / "bench"), f"-Dtern_build={tern_build}",
             f"-Dgrpc_release={grpc_release}"]
    if (where / "build.ninja").exists():
        setup.append("--reconfigure")  # a package may have been installed since
    steps.insert(0, setup)
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True)
        except OSError as error:
            return str(error)
        if done.returncode:
            say(done.stdout[-2000:] + done.stderr[-2000:])
            return f"{' '.join(step[:2])} failed"
    return ""


# What only some questions need: name -> (True if it is there, function that installs it). Mooncake goes where NIXL is.
EXTRAS = {"torch": (has_torch, torch), "nixl-cu12": (has_nixl, nixl), "mooncake": (has_mooncake, mooncake)}


def peers(in_python, may_install, extras=(), say=lambda text: print(text, file=sys.stderr)):
    """Installs what the peers need, if `may_install`. Returns {package: why it is missing}.
    `in_python`: also for the peers in Python. `extras`: names of EXTRAS that are needed, too."""
    wanted = PACKAGES + (PYTHON_PACKAGES if in_python else [])
    if not may_install:
        names = absent(wanted)
        if in_python and not has_tensorflow():
            names.append("tensorflow-cpu")
        names += [name for name in extras if not EXTRAS[name][0]()]
        if not has_ucx_release():
            names.append("libucx-cu12")
        return {name: "not installed" for name in names}
    missing = packages(wanted, say)
    found = {"libucx-cu12": ucx_release(say), "tensorflow-cpu": tensorflow(say) if in_python else ""}
    found |= {name: EXTRAS[name][1](say) for name in extras}
    return {**missing, **{name: why for name, why in found.items() if why}}


def virtual_machine():
    """Prepares the virtual machine of the verbs question. A failure does not stop the
    run: the question finds out what is missing, and names it."""
    subprocess.run([str(TOP / "run"), "setup", "rdma"], stdout=sys.stderr)


def programs(tern_build, grpc_release="", say=lambda text: print(text, file=sys.stderr)):
    """Builds the programs of this tree. `grpc_release`: the library that bench/grpc_release.py made.
    Exits if the build fails, since nothing can be measured then."""
    why = build(tern_build, grpc_release, say)
    if why:
        sys.exit(f"bench: the peers could not be built: {why}")


if __name__ == "__main__":
    reasons = {name: {"torch": torch, "jax": jax, "nixl": nixl}[name](print) for name in sys.argv[1:]}
    for name, reason in reasons.items():
        if reason:
            print(f"  {name} cannot be installed, and its tests are skipped: {reason}")
