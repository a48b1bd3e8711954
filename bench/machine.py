# SPDX-License-Identifier: Apache-2.0
"""What a stranger must know to judge the figures: the machine, its settings, the versions."""
import os
import platform
import subprocess
from pathlib import Path

# Programs that do not print their version with their figures, and their packages, which have it.
NOT_TOLD = {"perftest": "perftest", "protobuf": "libprotobuf-dev", "QEMU": "qemu-system-x86"}

TOP = Path(__file__).resolve().parents[1]


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()


def setting(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def field_of(path, name):
    for line in setting(path).splitlines():
        if line.startswith(name):
            return line.split(":", 1)[1].strip()
    return "unknown"


def package_version(name):
    return first_line(["dpkg-query", "-W", "-f", "${Version}", name]) or "unknown"


def describe():
    commit = first_line(["git", "-C", str(TOP), "describe", "--always", "--dirty", "--tags"])
    return {
        "processor": field_of("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": field_of("/proc/meminfo", "MemTotal"),
        "virtual": "hypervisor" in field_of("/proc/cpuinfo", "flags").split(),
        "kernel": platform.release(),
        "system": os_name(),
        "compiler": first_line(["gcc", "--version"]),
        "default congestion control": setting("/proc/sys/net/ipv4/tcp_congestion_control"),
        "transparent huge pages": setting("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge pages for shared memory":
            setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        **{name: package_version(package) for name, package in NOT_TOLD.items()},
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "tern": commit or "unknown",
    }


def fixed(described):
    """What of a description stays the same over a reboot. Memory is rounded to GiB, since its
    size differs by some pages from boot to boot."""
    kept = {name: value for name, value in described.items()
            if name not in ("load before", "tern")}
    kib = kept.get("memory", "").removesuffix(" kB")
    if kib.isdigit():
        kept["memory"] = f"{int(kib) / (1 << 20):.0f} GiB"
    return kept


def os_name():
    for line in setting("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return "unknown"
