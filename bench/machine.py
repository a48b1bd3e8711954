# SPDX-License-Identifier: Apache-2.0
"""What a stranger must know to judge the figures: the machine, its settings, the versions, and what
else ran on it."""
import os
import platform
import resource
import subprocess
import time
from pathlib import Path

import builds

# {program that does not print its version with its figures: the package that has the version}
NOT_TOLD = {"perftest": "perftest", "protobuf": "libprotobuf-dev", "QEMU": "qemu-system-x86"}

TOP = Path(__file__).resolve().parents[1]
CPU = Path("/sys/devices/system/cpu")
# The load average of the last minute, of all cores together. An idle machine has less; whoever else
# computes adds 1.
LOAD_LIMIT = 0.3
LOAD_WAIT_S = 300  # a load of 6, which building can leave, is below the limit after three minutes


def output(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def first_line(command):
    return (output(command).splitlines() or [""])[0].strip()


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
        "threads per core": threads_per_core(),
        "L3 cache": setting(CPU / "cpu0/cache/index3/size"),
        "frequency governor": setting(CPU / "cpu0/cpufreq/scaling_governor"),
        "hypervisor": hypervisor(),
        "mitigations": mitigations(),
        "kernel": platform.release(),
        "system": os_name(),
        "compiler": first_line(["gcc", "--version"]),
        "default congestion control": setting("/proc/sys/net/ipv4/tcp_congestion_control"),
        "transparent huge pages": setting("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge pages for shared memory":
            setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        **{name: package_version(package) for name, package in NOT_TOLD.items()},
        **builds.describe(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "tern": commit or "unknown",
    }


def threads_per_core():
    """How many hardware threads share a core, from the kernel's list, such as "0-1" or "0,8"."""
    siblings = setting(CPU / "cpu0/topology/thread_siblings_list")
    if siblings == "unknown":
        return siblings
    count = 0
    for part in siblings.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def hypervisor():
    if "hypervisor" not in field_of("/proc/cpuinfo", "flags").split():
        return "none"
    for line in output(["lscpu"]).splitlines():
        if line.startswith("Hypervisor vendor:"):
            return line.split(":", 1)[1].strip()
    return "of unknown make"


def mitigations():
    """The mitigations of the processor's vulnerabilities, in the kernel's words. Vulnerabilities that
    the processor does not have are left out."""
    found = [(path.name, setting(path)) for path in sorted((CPU / "vulnerabilities").glob("*"))]
    return "; ".join(f"{name}: {text}" for name, text in found
                     if text not in ("Not affected", "unknown")) or "none"


# ---- what else runs ----

def load_of(described):
    """The load average of the minute before a run; None if the description has none."""
    words = described.get("load before", "").split()
    return float(words[0]) if words else None


def load_after_waiting(say, limit_s=LOAD_WAIT_S):
    """Waits until the load average of the last minute is at most LOAD_LIMIT, but no longer than
    `limit_s`, because building, which comes before a run, leaves a load of its own. Returns the load."""
    end = time.monotonic() + limit_s
    load = os.getloadavg()[0]
    if load > LOAD_LIMIT:
        say(f"bench: the load is {load:.2f}; waiting until it is {LOAD_LIMIT:g}, at most {limit_s} s")
    while load > LOAD_LIMIT and time.monotonic() < end:
        time.sleep(2)
        load = os.getloadavg()[0]
    return load


def counters():
    """Counters of the whole machine since it was started: all processor time, the part of it that was
    worked, and the part that the host gave to others (steal), in s; context switches. Also the
    processor time of this program and of what it has started, and the present time."""
    found = {"time_s": time.monotonic(), "own_s": sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))}
    for line in setting("/proc/stat").splitlines():
        words = line.split()
        if words[0] == "cpu":
            ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in words[1:9]]
            found |= {"all_s": sum(ticks), "work_s": sum(ticks[:3]), "steal_s": ticks[7]}
        elif words[0] == "ctxt":
            found["switches"] = int(words[1])
    return found


def disturbance(before, after):
    """What happened between two calls of counters(), as rates and percentages."""
    took = {name: after[name] - before[name] for name in before}
    all_s = max(took["all_s"], 0.01)
    return {"steal_percent": round(100 * took["steal_s"] / all_s, 2),
            "others_percent": round(max(100 * (took["work_s"] - took["own_s"]) / all_s, 0), 2),
            "context_switches_per_s": round(took["switches"] / max(took["time_s"], 1e-3))}


def fixed(described):
    """What of a description stays the same over a reboot. Memory is rounded to GiB, since its
    size differs by some pages from boot to boot."""
    kept = {name: value for name, value in described.items()
            if name not in ("load before", "tern")}
    kib = kept.get("memory", "").removesuffix(" kB")
    if kib.isdigit():
        kept["memory"] = f"{int(kib) / (1 << 20):.0f} GiB"
    return kept


def not_installed(described):
    """What of fixed() neither installing nor building can change: no program's version, and no build."""
    return {name: value for name, value in fixed(described).items()
            if name not in NOT_TOLD and name != "compiler" and not name.startswith("build of ")}


def os_name():
    for line in setting("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return "unknown"
