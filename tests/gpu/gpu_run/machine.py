# SPDX-License-Identifier: Apache-2.0
"""The machine and the build: where programs and tools are, and facts for the results."""
import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
BUILD = TOP / "build-gpu"


def tool(name):
    """The path of one of the toolkit's programs: nvcc, compute-sanitizer, ncu."""
    return shutil.which(name) or f"/usr/local/cuda/bin/{name}"


def library_path(built):
    """Returns LD_LIBRARY_PATH with the folder of the build, whose modules a program finds there wherever
    it was built, and those of cuBLAS, which is beside nvcc or in Python's packages."""
    places = [Path(tool("nvcc")).resolve().parents[1] / "lib64"]
    for site in [p for p in sys.path if p.endswith("-packages")]:
        places += sorted(Path(site).glob("nvidia/*/lib"))
    found = [str(p) for p in places if list(p.glob("libcublas.so.*"))]
    return ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), str(built), *found]))


def asked(command):
    """Returns what a small program prints; None if it fails, prints nothing, or takes ten seconds."""
    try:
        done = subprocess.run([str(word) for word in command], cwd=TOP, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else None


def driver_version():
    """Returns the version of the real driver, or None: only figures of a real GPU are kept."""
    out = asked(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return out.splitlines()[0].strip() if out else None


def commit():
    """TERN_COMMIT names the commit of a copy that has no git history."""
    return os.environ.get("TERN_COMMIT") or asked(["git", "describe", "--always", "--dirty", "--exclude=*"]) or "unknown"


def link():
    """The PCIe link of the first GPU, for the rates of copies."""
    names = ["pcie.link.gen.current", "pcie.link.width.current", "clocks.max.sm", "clocks.max.memory", "power.limit"]
    out = asked(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"])
    return dict(zip(names, map(str.strip, out.splitlines()[0].split(",")))) if out else {}


def processor():
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    m = re.search(r"^model name\s*: (.*)$", text, re.M)
    return m.group(1).strip() if m else platform.machine()


def facts():
    nvcc = re.search(r"release ([\d.]+)", asked([tool("nvcc"), "--version"]) or "")
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "driver": driver_version(),
            "nvcc": nvcc.group(1) if nvcc else None, "cores": os.cpu_count(), "processor": processor(),
            "kernel": platform.release(), "link": link()}
