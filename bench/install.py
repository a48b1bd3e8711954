# SPDX-License-Identifier: Apache-2.0
"""Installs the peers and builds them: Debian packages, PyPI's UCX and (in a virtual
environment) TensorFlow below build-bench/, the programs of this folder, and what the virtual
machine of the verbs question needs, perftest among it.

What cannot be had does not stop the others: it is a row "missing: why" in the report.

Tests use some of it, too: install.py [torch] [torch-2.11] [jax] [nixl] [nccl] [ray] [tensorboard] installs these alone.
"""
import dataclasses
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
# PyPI has no build of PyTorch for the processor alone, so some 5 GB of it are NVIDIA's libraries, which are not used.
TORCH_WHEEL = "torch==2.15.0"
# In this PyTorch a backend of torch.distributed is a whole process group, as in Debian's, but with the newer interface.
TORCH_2_11_WHEEL = "torch==2.11.0"
JAX_WHEEL = "jax==0.10.2"
# tests/plugins/nccl_real.py knows the memory layout of this version, and bench/nccl.py the version of its interface.
NCCL_WHEEL = "nvidia-nccl-cu12==2.28.9"
MOONCAKE_WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
NIXL_WHEELS = {"nixl-cu12": "1.5.1", "nixl-cu13": "1.5.1", "nixl": "1.5.1"}
# A release build of UCX. Debian's has assertions, and checks the parameters of each call.
UCX_WHEEL = "libucx-cu12==1.22.0"
UCX_RELEASE = BUILD / "ucx/libucx"
UCX_PERFTEST = {"libucx-dev": "ucx_perftest", "libucx-cu12": str(UCX_RELEASE / "bin/ucx_perftest")}
SYSTEM_PYTHON = "/usr/bin/python3"  # it finds Debian's python3-torch


@dataclasses.dataclass
class Environment:
    """A virtual environment below build-bench, with a wheel of PyPI."""
    folder: Path
    wheel: str
    size: str  # of what is installed
    more: tuple[str, ...] = ()  # further arguments of pip install

    def python(self):
        return str(self.folder / "bin/python")

    def site(self):
        """The folder of its packages; as long as there is none, one that does not exist."""
        return next(self.folder.glob("lib/python*/site-packages"), self.folder / "site-packages")

    def has(self, wheel):
        """True if the wheel is there in this version: pip writes RECORD last."""
        name = wheel.replace("-", "_").replace("==", "-")
        return (self.site() / f"{name}.dist-info/RECORD").exists()

    def install(self, say, *options):
        """Installs the wheel if it is missing. Returns why that failed; "" if it is there. `options`: of venv."""
        if self.has(self.wheel):
            return ""
        say(f"  installing: {self.wheel} from PyPI, into build-bench/{self.folder.name} ({self.size})")
        return run_steps([SYSTEM_PYTHON, "-m", "venv", *options, str(self.folder)],
                         [self.python(), "-m", "pip", "install", "-q", *self.more, self.wheel])


TORCH = Environment(BUILD / "torch", TORCH_WHEEL, "5 GB", ("numpy",))
TORCH_2_11 = Environment(BUILD / "torch-2.11", TORCH_2_11_WHEEL, "1.5 GB", ("--no-deps", "numpy", "typing_extensions", "sympy",
                         "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"))
JAX = Environment(BUILD / "jax", JAX_WHEEL, "0.6 GB")
NCCL = Environment(BUILD / "nccl", NCCL_WHEEL, "0.4 GB", ("--no-deps",))
RAY = Environment(BUILD / "ray", "ray==2.60.0", "0.3 GB")
TENSORBOARD = Environment(BUILD / "tensorboard", "tensorboard==2.21.0", "0.2 GB")
NIXL = Environment(BUILD / "nixl", f"nixl-cu12=={NIXL_WHEELS['nixl-cu12']}", "70 MB", ("--no-deps",))

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


def in_venv(*arguments):
    """Runs Python in the virtual environment of TensorFlow, which it makes first."""
    return run_steps([SYSTEM_PYTHON, "-m", "venv", str(VENV)], [str(VENV / "bin/python"), *arguments])


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
    return TORCH.has(TORCH_WHEEL)


def torch_python():
    """The Python that has the newest PyTorch: that of PyPI, or else Debian's."""
    return TORCH.python() if has_torch() else SYSTEM_PYTHON


def torch_2_11(say):
    """Installs it without NVIDIA's libraries, for which it uses those of the newer PyTorch, for the same CUDA. Returns why
    that failed; "" if it is there."""
    why = "" if has_torch() else f"{TORCH_WHEEL} is missing, whose libraries it uses"
    why = why or TORCH_2_11.install(say)
    libraries = TORCH_2_11.site() / "nvidia"
    if not why and not libraries.exists():
        libraries.symlink_to(TORCH.site() / "nvidia")
    return why


def nixl(say):
    """Installs NIXL if it is missing. Returns why that failed; "" if it is there. It imports PyTorch, and finds Debian's.
    PyPI's PyTorch has a transport on NIXL. If it is there, NIXL is installed beside it, too, with the wheel for the same
    CUDA."""
    why = NIXL.install(say, "--system-site-packages")
    wheels = [f"{name}=={version}" for name, version in NIXL_WHEELS.items()]
    if why or not has_torch() or all(TORCH.has(wheel) for wheel in wheels):
        return why
    return run_steps([TORCH.python(), "-m", "pip", "install", "-q", "--no-deps", *wheels])


def ray(say):
    """Installs Ray if it is missing, where it finds Debian's PyTorch. Returns why that failed; "" if it is there."""
    return RAY.install(say, "--system-site-packages")


# By name. Each takes a function that prints a line, and returns why it failed, or "".
FROM_PYPI = {"torch": TORCH.install, "torch-2.11": torch_2_11, "jax": JAX.install, "nixl": nixl, "nccl": NCCL.install,
             "ray": ray, "tensorboard": TENSORBOARD.install}
# Packages of ./run test plugins, in the order of their installation.
PLUGINS = ("torch", "torch-2.11", "jax", "nixl", "nccl", "ray")


def plugins(say):
    """Installs what ./run test plugins needs. Returns {package: why it is missing}."""
    reasons = packages(PYTHON_PACKAGES, say)
    reasons.update({name: FROM_PYPI[name](say) for name in PLUGINS})
    return {name: why for name, why in reasons.items() if why}


def mooncake(say):
    """Installs Mooncake's transfer engine where NIXL is, if it is missing. Returns why that failed; "" if it is there."""
    if NIXL.has(MOONCAKE_WHEEL):
        return ""
    say(f"  installing: {MOONCAKE_WHEEL} from PyPI, into build-bench/nixl (46 MB)")
    return run_steps([NIXL.python(), "-m", "pip", "install", "-q", "--no-deps", MOONCAKE_WHEEL])


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


# Packages for some questions of the bench: name -> (function that tells whether it is there, function that installs it).
EXTRAS = {"torch": (has_torch, TORCH.install), "nixl-cu12": (lambda: NIXL.has(NIXL.wheel), nixl),
          "mooncake": (lambda: NIXL.has(MOONCAKE_WHEEL), mooncake),
          "nccl": (lambda: NCCL.has(NCCL.wheel), NCCL.install)}


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
    reasons = {name: FROM_PYPI[name](print) for name in sys.argv[1:]}
    for name, reason in reasons.items():
        if reason:
            print(f"  {name} cannot be installed, and its tests are skipped: {reason}")
