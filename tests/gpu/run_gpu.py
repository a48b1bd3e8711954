#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All that a GPU is needed for, in one command: builds what there is to build, runs the tests
of suite gpu, runs them again under the toolkit's checkers, measures, and writes the results
into docs/gpu.md. The last line is always "N passed, N failed, N skipped".

usage: run_gpu.py [--out DIRECTORY] [--smoke]

--out also leaves docs/gpu.md, the samples as JSON and a log there. --smoke makes the
measurements small and short, and writes nothing into docs/. Exit status: 0, 1 if anything
failed, 2 if there is no device.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "bench" / "gpu")]
import figures  # noqa: E402
import tap_count  # noqa: E402

BUILD = TOP / "build-gpu"
PAGE = TOP / "docs" / "gpu.md"
BEGIN = "<!-- ./run gpu writes from here -->"
END = "<!-- to here -->"
BENCHMARKS = ("gpu_rates", "gpu_staging", "gpu_step")
BUILD_LIMIT_S, SUITE_LIMIT_S, BENCH_LIMIT_S = 300, 150, 240
# The checkers take as long as there is left of this, and each program this long at most.
CHECKERS_LIMIT_S, CHECKER_LIMIT_S = 120, 45
# tool, options, scale of the cases, tests that it leaves out: elementwise has no barriers. cuBLAS'
# own kernels are not ours to check for races.
OURS = ["--kernel-regex", "kns=tern_cuda"]
CHECKERS = [
    ("memcheck", [], "some", set()),
    ("racecheck", OURS, "few", {"gpu_elementwise"}),
    ("synccheck", OURS, "few", {"gpu_elementwise"}),
    ("initcheck", [], "few", {"gpu_elementwise"}),
]
REFUSED = re.compile(r"device not supported|not supported on this (device|platform)|"
                     r"unable to (find|initialize)|no supported|LibraryNotLoaded", re.I)
NOT_THERE = 127
FOUND = 99  # the status that a checker is asked to end with if it found anything


class Log:
    """What is printed, also into a file."""

    def __init__(self, directory):
        self.file = open(directory / "gpu.log", "w") if directory else None

    def __call__(self, *lines):
        for line in lines:
            print(line, flush=True)
            self.quietly(line)

    def quietly(self, text):
        if self.file:
            self.file.write(text.rstrip("\n") + "\n")
            self.file.flush()


def run(log, command, limit_s, env=None):
    """Exit status, stdout, stderr; -1 if it took longer than it may. What it started ends with
    it."""
    log.quietly("$ " + " ".join(map(str, command)))
    try:
        p = subprocess.Popen(list(map(str, command)), cwd=TOP, env=env, text=True, errors="replace",
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
    except OSError as e:
        return NOT_THERE, "", str(e)
    late = []
    timer = threading.Timer(limit_s, lambda: (late.append(True), os.killpg(p.pid, signal.SIGKILL)))
    timer.start()
    out, err = p.communicate()
    timer.cancel()
    log.quietly(out)
    log.quietly(err)
    return -1 if late else p.returncode, out, err


# ---- building ----

def introspect(what):
    return json.loads(subprocess.run(["meson", "introspect", f"--{what}", str(BUILD)], check=True,
                                     capture_output=True, text=True).stdout)


def suite():
    return [t for t in introspect("tests") if any(s.split(":")[-1] == "gpu" for s in t["suite"])]


def targets_of(tests):
    """What these and the benchmarks need, as ninja names it; and tern, if it is built."""
    by_id = {t["id"]: t for t in introspect("targets")}
    wanted = {i for test in tests for i in test["depends"]}
    wanted |= {i for i, t in by_id.items() if t["name"] in BENCHMARKS + ("tern",)
               and t["type"] == "executable"}
    return [str(Path(f).resolve().relative_to(BUILD.resolve()))
            for i in wanted if i in by_id for f in by_id[i]["filename"]]


def build(log):
    """Why it did not work, or None."""
    if not (BUILD / "build.ninja").exists():
        status, out, err = run(log, ["meson", "setup", BUILD, "-Dcuda=enabled"], BUILD_LIMIT_S)
        if status:
            return (out + err).strip().splitlines()[-15:]
    for line in summary_lines():
        log(line)
    status, out, err = run(log, ["ninja", "-C", BUILD, *targets_of(suite())], BUILD_LIMIT_S)
    return (out + err).strip().splitlines()[-30:] if status else None


def summary_lines():
    text = (BUILD / "meson-logs" / "meson-log.txt").read_text(errors="replace")
    m = re.search(r"^ +Built in\n(.*?)\n\n", text, re.M | re.S)
    return ["built in:"] + ["  " + line.strip() for line in m.group(1).splitlines()] if m else []


# ---- the machine ----

def library_path():
    """cuBLAS may lie beside nvcc or in Python's packages: programs find it by this."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    places = [Path(nvcc).resolve().parents[1] / "lib64"]
    for site in [p for p in sys.path if p.endswith("-packages")]:
        places += sorted(Path(site).glob("nvidia/*/lib"))
    found = [str(p) for p in places if list(p.glob("libcublas.so.*"))]
    return ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), *found]))


def driver_version():
    """Of the real driver, which alone makes figures worth keeping; or None."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, timeout=30)
        return out.stdout.split("\n")[0].strip() or None if out.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def commit():
    """TERN_COMMIT says it of a copy without its history."""
    try:
        git = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=TOP,
                             capture_output=True, text=True)
        known = git.stdout.strip() if git.returncode == 0 else None
    except OSError:
        known = None
    return os.environ.get("TERN_COMMIT") or known or "unknown"


# ---- what is run ----

def run_suite(log, count, env):
    """The tests as they are. Rows of the table of what passed."""
    results = BUILD / "meson-logs" / "testlog.json"
    results.unlink(missing_ok=True)
    status, out, err = run(log, ["meson", "test", "-C", BUILD, "--no-rebuild", "--suite", "gpu"],
                           SUITE_LIMIT_S, env)
    tests = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    for test in tests:
        count.add_program("gpu", test)
        log(f"gpu: {test['name'].split()[-1]:<30} {test['result'].lower():<8} {test['duration']:.1f} s")
    if status == -1:
        count.failed.append(f"[gpu] the suite did not end within {SUITE_LIMIT_S} s")
    elif not tests:
        log(*(out + err).strip().splitlines()[-20:])
        count.failed.append("[gpu] no test ran")
    return [(t["name"].split()[-1], "", t["result"].lower()) for t in tests]


def is_program(test):
    return Path(test["cmd"][0]).resolve().is_relative_to(BUILD.resolve())


def verdict_of(tool, status, out):
    """pass, fail or skip, and a line for the latter two."""
    errors = re.findall(r"^=+ (?:ERROR SUMMARY|RACECHECK SUMMARY): .*$", out, re.M)
    line = (errors or [l for l in out.splitlines() if l.strip()] or ["it printed nothing"])[-1]
    line = line.strip("= ")
    if status == 0:
        return "pass", line
    refused = next((l for l in out.splitlines() if l.startswith("=") and REFUSED.search(l)), None)
    if refused:
        return "skip", refused.strip("= ")
    if status == tap_count.SKIPPED:
        return "skip", line
    return "fail", line if status == FOUND else f"the program ended with status {status}"


def check_program(log, count, tool, options, test, env, limit_s):
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [sanitizer, "--tool", tool, "--error-exitcode", FOUND, *options, *test["cmd"]]
    status, out, err = run(log, command, limit_s, dict(env, **test.get("env", {})))
    if status == -1:
        verdict, line = "skip", f"did not end within {limit_s:.0f} s"
    elif status == NOT_THERE and not out:
        verdict, line = "skip", f"compute-sanitizer is not here: {err.strip()}"
    else:
        verdict, line = verdict_of(tool, status, out + err)
    name = test["name"].split()[-1]
    if verdict == "pass":
        count.passed += 1
    elif verdict == "skip":
        count.skip(tool, name, "all", line, "gpu")
    else:
        count.failed.append(f"[gpu] {tool} of {name}: {line}")
        log(*(out + err).splitlines()[:40])
    log(f"gpu: {tool + ' of ' + name:<30} {verdict:<8} {line}")
    return name, tool, verdict if verdict != "skip" else f"skipped: {line}"


def run_checkers(log, count, env):
    """Few of the cases, since everything takes many times as long."""
    rows, end = [], time.monotonic() + CHECKERS_LIMIT_S
    for tool, options, scale, left_out in CHECKERS:
        for test in filter(is_program, suite()):
            name = test["name"].split()[-1]
            left_s = min(CHECKER_LIMIT_S, end - time.monotonic())
            if name in left_out:
                continue
            if left_s < 1:
                count.skip(tool, name, "all", "no time was left", "gpu")
                rows.append((name, tool, "skipped: no time was left"))
                continue
            rows.append(check_program(log, count, tool, options, test,
                                      dict(env, TERN_GPU_SCALE=scale), left_s))
    return rows


def measure(log, count, what, command, env):
    """Rows of figures.py; each is a case."""
    status, out, err = run(log, command, BENCH_LIMIT_S, env)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    for row in rows:
        verdict = figures.verdict_of(row)
        name = f"{row['name']}, beside {row['peer']}"
        if verdict == "wrong":
            count.failed.append(f"[gpu] {name}: {row['wrong']}")
        elif verdict == "missing":
            count.skip("figures", name, "all", row["missing"], "gpu")
        else:
            count.passed += 1
    if status:
        last = (err.strip().splitlines() or ["it printed nothing"])[-1]
        count.failed.append(f"[gpu] {what}: " + (f"not ended within {BENCH_LIMIT_S} s" if status == -1
                                                 else f"status {status}: {last}"))
    return rows


# ---- the page ----

def page_of(text, facts, tests, rows):
    """The page with the results anew."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        sys.exit(f"{PAGE}: the lines {BEGIN} and {END} are not there")
    lines = ["", "## Results", ""]
    lines += [f"{name}: {value}.  " for name, value in facts.items()]
    lines += ["", "| test | under | |", "|---|---|---|"]
    lines += [f"| {name} | {tool} | {verdict} |" for name, tool, verdict in tests]
    lines += ["", "Medians; the ratio is of each round, with the least and the largest.", ""]
    lines += figures.table(rows)
    return before + BEGIN + "\n".join(lines).rstrip() + "\n\n" + END + after


def facts_of(device, driver, count):
    return {
        "Date": datetime.date.today().isoformat(),
        "GPU": f"{device['device']} ({device['multiprocessors']} multiprocessors of capability "
               f"{device['capability']}, {device['bytes'] / 2**30:.0f} GiB)",
        "Driver": f"{driver} (CUDA {device['driver_cuda']})",
        "Toolkit": device["toolkit"],
        "Commit": commit(),
        "Cases": f"{count.passed} passed, {len(count.failed)} failed, {len(count.skipped)} skipped",
    }


def keep(log, arguments, count, device, driver, tests, rows):
    """Into docs/, unless the figures are not a GPU's; and into --out, whatever they are."""
    facts = facts_of(device, driver, count)
    page = page_of(PAGE.read_text(), facts, tests, rows)
    if arguments.smoke or not driver:
        log("docs/gpu.md stays as it is: " + ("these are no measurements" if arguments.smoke else
                                               "nvidia-smi knows no driver here"))
    else:
        PAGE.write_text(page)
        log("docs/gpu.md has the results")
    if arguments.out:
        (arguments.out / "gpu.md").write_text(page)
        everything = {"facts": facts, "device": device, "tests": tests, "rows": rows}
        (arguments.out / "gpu.json").write_text(json.dumps(everything, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(prog="run gpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    log, count, start = Log(arguments.out), tap_count.Count(), time.monotonic()

    problem = build(log)
    if problem:
        log(*problem)
        count.failed.append("[gpu] the build")
        return count.report()
    log(f"built in {time.monotonic() - start:.0f} s")
    env = dict(os.environ, LD_LIBRARY_PATH=library_path(), **tap_count.ENVIRONMENT)
    rates, staging, step = (BUILD / "bench/gpu" / name for name in BENCHMARKS)
    status, out, err = run(log, [rates, "--device"], 60, env)
    if status:
        log(f"run gpu: no GPU to test on: {err.strip()}" if status == 2 else f"run gpu: {err.strip()}")
        return status
    device, driver = json.loads(out), driver_version()
    for name, value in facts_of(device, driver, count).items():
        if name != "Cases":
            log(f"{name}: {value}")
    if device["cublas"]:
        log(f"without cuBLAS: {device['cublas']}")
    if (BUILD / "tern").exists():
        log(*run(log, [BUILD / "tern", "info"], 60, env)[1].splitlines())

    tests = run_suite(log, count, env)
    tests += run_checkers(log, count, env)
    smoke = ["--smoke"] if arguments.smoke else []
    rows = measure(log, count, "gpu_rates", [rates, *smoke], env)
    rows += measure(log, count, "gpu_staging", [staging, *smoke], env)
    rows += measure(log, count, "compare.py",
                    [sys.executable, TOP / "bench/gpu/compare.py", step, *smoke], env)
    log(*figures.table(rows))
    keep(log, arguments, count, device, driver, tests, rows)
    log(f"all of it in {time.monotonic() - start:.0f} s")
    for line in count.skipped_lines() + count.failed:
        log.quietly(line)
    return count.report()


if __name__ == "__main__":
    sys.exit(main())
