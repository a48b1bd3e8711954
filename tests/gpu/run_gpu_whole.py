# SPDX-License-Identifier: Apache-2.0
"""Whole calls of ./run gpu with the simulated driver: complete, with too little time, with a program
that hangs or fails, and killed in the middle. Each leaves complete results of all that has ended.

usage: run_gpu_whole.py BUILD_DIRECTORY [the simulated driver's libraries]
"""
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import run_gpu  # noqa: E402  (it also adds the import paths of the others)
import tap  # noqa: E402
from gpu_run import machine, page, plan  # noqa: E402

BUILD = Path(sys.argv[1]).resolve()
DRIVERS = ":".join(sorted({str(Path(p).resolve().parent) for p in sys.argv[2:]}))
SCRATCH = tempfile.TemporaryDirectory(prefix="tern-run-gpu-")
BREAKS = "break=tern_cuda_sum:1:700"
TESTED = "tests,speed,compare"


def folder(name):
    path = Path(SCRATCH.name) / name
    path.mkdir(parents=True)
    return path


def script(path, text):
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def tools():
    """A folder with programs in the place of the toolkit's, which run the program that is to be checked, and of
    nvidia-smi, which fails."""
    path = folder("tools")
    script(path / "compute-sanitizer", 'while [ "$1" != "${1#--}" ]; do shift 2; done\n'
           '"$@" && echo "========= ERROR SUMMARY: 0 errors"')
    script(path / "ncu", 'shift 2; exec "$@"')
    script(path / "nvidia-smi", "exit 1")
    return path


TOOLS = tools()


def command(out, *words, built=BUILD):
    return [sys.executable, str(HERE / "run_gpu.py"), "--built", str(built), "--out", str(out), "--smoke", *words]


def environment(machine="alike=1"):
    unwanted = ("TERN_GPU_SCALE", "MALLOC_PERTURB_")  # meson sets MALLOC_PERTURB_, which makes programs slow
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    return dict(env, PATH=f"{TOOLS}:{env['PATH']}", LD_LIBRARY_PATH=DRIVERS, FAKE_CUDA=machine)


def call(name, *words, built=BUILD, machine="alike=1"):
    """Exit status, the lines that were printed, and the results."""
    out = folder(name)
    done = subprocess.run(command(out, *words, built=built), env=environment(machine), text=True, capture_output=True)
    assert (out / "gpu.json").exists(), done.stdout + done.stderr
    found = json.loads((out / "gpu.json").read_text())
    assert (out / "gpu.log").read_text(), done.stderr
    return done.returncode, done.stdout.splitlines(), found


def built_with(name, program, text):
    """A copy of the build in which one program is a script."""
    path = folder(name)
    for part in ("tests", "bench"):
        (path / part / "gpu").mkdir(parents=True)
        for source in (BUILD / part / "gpu").iterdir():
            if source.is_file():
                (path / part / "gpu" / source.name).symlink_to(source)
    script(path / "tests" / "gpu" / program, text)
    return path


def verdicts(found):
    return {f"{p['part']}: {p['name']}": p["verdict"] for p in found["programs"]}


# ---- the plan ----

def the_plan_has_every_test_of_suite_gpu():
    tests = json.loads((BUILD / "meson-info" / "intro-tests.json").read_text())
    of_meson = {t["name"].split()[-1]: [Path(t["cmd"][0]).name, *t["cmd"][1:]] for t in tests
                if any(s.split(":")[-1] == "gpu" for s in t["suite"])}
    assert of_meson == {name: [program, *args] for name, program, args in plan.SUITE}


def a_build_makes_the_programs_that_the_parts_run():
    targets = json.loads((BUILD / "meson-info" / "intro-targets.json").read_text())
    wanted = {Path(t["filename"][0]) for t in targets if t["type"] == "executable" and run_gpu.is_wanted(t)}
    context = plan.Context(BUILD, folder("plan"))
    run = {Path(word) for part in plan.PARTS for program in part.programs(context) for word in program.command
           if Path(word).is_relative_to(BUILD)}
    assert run == wanted, run ^ wanted


# ---- calls ----

def complete_call_runs_every_part():
    status, lines, found = call("complete", "--parts", TESTED)
    failed = {name: verdict for name, verdict in verdicts(found).items() if verdict != "pass"}
    assert status == 0 and not failed, "\n".join(lines)
    assert found["state"] == "ended" and found["device"]["device"] == "Simulated GPU"
    asked = [part.name for part in plan.chosen(TESTED)]
    assert list(found["parts"]) == asked
    assert {p["part"] for p in found["programs"]} == set(asked) - {"build"}
    rows = [row for p in found["programs"] for row in p["rows"]]
    assert len(rows) > 40 and not [row for row in rows if row.get("wrong")], rows
    hashed = [p["hashes"] for p in found["programs"] if p["name"].startswith("gpu_engine") and p["part"] == "suites"]
    assert len(hashed) == 2 and hashed[0] and hashed[0] == hashed[1], hashed
    assert_can_be_shown(found)
    assert lines[-1].endswith(" skipped") and ", 0 failed, " in lines[-1], lines[-1]


def assert_can_be_shown(found):
    """Checks that the page can show these results, as if they were those of a GPU."""
    found = dict(found, scale="large", facts=dict(found["facts"], driver="580.0"))
    text = page.page_of(run_gpu.PAGE.read_text(), [found])
    for line in ("Simulated GPU (8 multiprocessors of capability 9.0", "| kernels | gpu_sums | pass |",
                 "| jobs | mlp: server cuda, shm, 1 workers, graphs | pass |", "| Adam, one tensor | ",
                 "| sum of 4, 1024 threads a block | ", "| f32 to f16, 32 bytes a thread | ",
                 "| products of mlp:16, batch 8, 4 MiB for cuBLAS | "):
        assert line in text, text


def error_on_purpose_is_told_and_another_process_goes_on():
    status, lines, found = call("sticky", "--parts", "sticky", machine=BREAKS)
    assert status == 0, "\n".join(lines)
    assert verdicts(found)["sticky: another process afterwards"] == "pass"


def call_that_has_little_time_skips_and_counts_the_rest():
    status, lines, found = call("capped", "--parts", "tests,speed", "--limit", "3")
    assert found["state"] == "ended" and found["parts"]["wire"]["skipped"] == "time", found["parts"]
    assert "pass" in verdicts(found).values()
    assert [line for line in lines if line.startswith("skipped:") and "time" in line], lines
    assert status == 0, "\n".join(lines)


def program_that_hangs_costs_itself_only():
    """The program is killed after its own limit, with what it started; the other programs run."""
    built = built_with("hanging", "test_gpu_kernels",
                       '[ "$1" != sums ] && exit 0\necho 1..1; sleep 1000 & sleep 1000')
    out = folder("hang")
    arguments = run_gpu.parse(["--built", str(built), "--out", str(out), "--parts", "kernels"])
    os.environ.update(environment())
    plan.KERNELS_LIMIT_S, before = 2, plan.KERNELS_LIMIT_S
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            assert run_gpu.Run(*arguments).run() == 1
    finally:
        plan.KERNELS_LIMIT_S = before
    found = json.loads((out / "gpu.json").read_text())
    assert verdicts(found)["kernels: gpu_sums"] == "fail" and verdicts(found)["kernels: gpu_layers"] == "pass"
    line = [p["line"] for p in found["programs"] if p["name"] == "gpu_sums"]
    assert line == ["did not end within 2 s"], line


def program_that_fails_runs_again_in_two_ways():
    status, _, found = call("failing", "--parts", "kernels", machine="break=tern_cuda_squares:1:700")
    assert status == 1
    failed = [p for p in found["programs"] if p["verdict"] == "fail"]
    assert [p["name"] for p in failed] == ["gpu_sums"]
    assert failed[0]["output"] and [r["how"] for r in failed[0]["reruns"]] == ["CUDA_LAUNCH_BLOCKING=1", "memcheck"]
    assert [r["verdict"] for r in failed[0]["reruns"]] == ["fail", "fail"]


def killed_call_leaves_what_had_ended_and_no_process():
    built = built_with("killed", "test_gpu_kernels",
                       '[ "$1" = layers ] && exec sleep 1000\necho 1..1; echo "ok 1 - $1"')
    for number, state in ((signal.SIGKILL, "running"), (signal.SIGTERM, "interrupted")):
        check_killed_call(built, number, state)


def check_killed_call(built, number, state):
    out = folder(f"kill-{state}")
    running = subprocess.Popen(command(out, "--parts", "kernels", built=built), env=environment(),
                               stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    found = {}
    while found.get("at") != "kernels: gpu_layers":
        assert time.monotonic() < end and running.poll() is None
        time.sleep(0.05)
        if (out / "gpu.json").exists():
            found = json.loads((out / "gpu.json").read_text())
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while not (pids := children.read_text().split()):  # "at" is written before the program starts
        assert time.monotonic() < end
        time.sleep(0.05)
    running.send_signal(number)
    running.wait()
    found = json.loads((out / "gpu.json").read_text())
    assert found["state"] == state and found["at"] == "kernels: gpu_layers"
    assert verdicts(found)["kernels: gpu_sums"] == "pass"
    assert "gpu_sums" in (out / "gpu.log").read_text()
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < end, "the program that hung is still there"
        time.sleep(0.05)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def build_that_fails_leaves_out_the_rest():
    script(TOOLS / "meson", "echo no compiler >&2; exit 1")
    out = folder("unbuilt")
    arguments = run_gpu.parse(["--parts", "build,kernels", "--out", str(out)])
    os.environ.update(environment())
    machine.BUILD, before = folder("empty"), machine.BUILD
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert run_gpu.Run(*arguments).run() == 1
    finally:
        machine.BUILD = before
        (TOOLS / "meson").unlink()
    found = json.loads((out / "gpu.json").read_text())
    assert found["parts"]["kernels"]["skipped"] == "nothing is built"
    assert verdicts(found) == {"build: meson": "fail"} and "no compiler" in said.getvalue()


def folder_without_programs_is_a_failure():
    status, lines, found = call("bare", "--parts", "kernels", built=folder("nothing"))
    assert status == 1 and "there are no programs" in found["parts"]["kernels"]["skipped"], lines


def call_without_a_device_says_so():
    status, lines, found = call("none", machine="devices=0")
    assert status == 2 and found["state"] == "no device", lines
    assert lines[-1].startswith("run gpu: no GPU to test on: "), lines


tap.run([
    the_plan_has_every_test_of_suite_gpu,
    a_build_makes_the_programs_that_the_parts_run,
    complete_call_runs_every_part,
    error_on_purpose_is_told_and_another_process_goes_on,
    call_that_has_little_time_skips_and_counts_the_rest,
    program_that_hangs_costs_itself_only,
    program_that_fails_runs_again_in_two_ways,
    killed_call_leaves_what_had_ended_and_no_process,
    build_that_fails_leaves_out_the_rest,
    folder_without_programs_is_a_failure,
    call_without_a_device_says_so,
])
