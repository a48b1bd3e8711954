# SPDX-License-Identifier: Apache-2.0
"""Tests of ./run gpu that need no GPU and no build: what it makes of the output of programs, which
parts it runs, what it keeps, and the page.

usage: run_gpu_test.py
"""
import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import run_gpu  # noqa: E402  (it also adds the import paths of the others)
import figures  # noqa: E402
import tap  # noqa: E402
from gpu_run import judge, page, plan, process, results  # noqa: E402

SCRATCH = tempfile.TemporaryDirectory(prefix="tern-run-gpu-")
ROW = {"name": "sum", "peer": "copy", "bytes": 4_000_000, "goal": 0.9, "ours_us": [1, 3, 2, 2, 4, 4],
       "peer_us": [2, 2, 1, 1, 4, 4]}
DEVICE = {"device": "A GPU", "multiprocessors": 1, "capability": "9.0", "bytes": 2**30, "driver_cuda": "13.0",
          "toolkit": "13.0"}


def ended(text, limit_s=10):
    return process.run(["sh", "-c", text], limit_s, dict(os.environ), Path(SCRATCH.name) / "program")


# ---- figures and verdicts ----

def a_ratio_is_the_median_of_the_rounds():
    assert figures.ratios_of(ROW) == [1, 0.5, 1]
    assert figures.ratio_text(ROW) == "1.000 (0.500-1.000)"
    assert figures.verdict_of(ROW) == "met"
    assert figures.verdict_of(dict(ROW, goal=1.1)) == "missed"
    assert figures.rate_of(ROW, ROW["ours_us"]) == " (2,000 GB/s)"
    assert "met, 3 late" in figures.cells_of(dict(ROW, note="3 late"))


def a_missing_peer_is_named_and_skipped():
    row = dict(ROW, peer_us=[], missing="it is not installed")
    assert "missing: it is not installed" in figures.cells_of(row)
    found = judge.of_rows(process.Ended(0, json.dumps(row), "", 0))
    assert found.verdict == "pass" and found.skipped == [("sum, beside copy", "it is not installed")]
    assert found.passed == 0 and found.rows == [row]


def a_peer_that_trained_differently_is_a_failure():
    found = judge.of_rows(process.Ended(0, json.dumps(dict(ROW, wrong="loss")), "", 0))
    assert found.verdict == "fail" and found.failed == ["sum, beside copy: loss"]


def a_benchmark_that_breaks_keeps_its_rows_and_fails():
    found = judge.of_rows(process.Ended(1, json.dumps(ROW) + '\n{"name": "cut o', "out of memory\n", 0))
    assert found.rows == [ROW] and found.passed == 1
    assert found.failed == ["ended with status 1: out of memory"]


def a_program_passes_only_if_all_its_cases_do():
    def verdict(status, *lines):
        return judge.of_cases(process.Ended(status, "\n".join(lines), "", 0))

    found = verdict(0, "1..2", "ok 1 - a", "ok 2 - b # SKIP no disk", "hash of gradients of x: 12ab")
    assert (found.verdict, found.passed, found.skipped) == ("pass", 1, [("b", "no disk")])
    assert found.hashes == {"gradients of x": "12ab"}
    assert verdict(1, "1..2", "ok 1 - a", "not ok 2 - b").failed == ["b"]
    assert verdict(0, "1..2", "ok 1 - a").verdict == "fail"
    assert verdict(-11, "1..1", "ok 1 - a").failed == ["ended by signal 11"]
    assert verdict(77, "skip: no driver").skipped == [("all", "skip: no driver")]
    assert verdict(0, "ok: it works").passed == 1


def a_checker_that_refuses_the_device_is_skipped_and_one_that_finds_something_fails():
    def verdict(status, out):
        found = judge.of_checker(process.Ended(status, out, "", 0))
        return found.verdict, found.line

    refused = "========= Error: Device not supported. See the list\n"
    assert verdict(1, refused) == ("skip", "Error: Device not supported. See the list")
    clean = "1..3\n========= ERROR SUMMARY: 0 errors\n"
    assert verdict(0, clean) == ("pass", "ERROR SUMMARY: 0 errors")
    assert verdict(judge.FOUND, "========= ERROR SUMMARY: 2 errors\n") == ("fail", "ERROR SUMMARY: 2 errors")
    assert verdict(1, clean)[0] == "fail"


# ---- a program and its limit ----

def what_takes_too_long_is_ended_with_what_it_started():
    """The grandchild holds the output open; it is no reason to wait."""
    found = ended("echo started; sleep 1000 & sleep 1000", 0.3)
    assert found.status == process.LATE and found.out == "started\n"


def a_hang_is_a_failure_and_a_lack_of_time_is_none():
    late = process.Ended(process.LATE, "1..2\nok 1 - a\n" + json.dumps(ROW), "", 3)
    assert judge.of_killed(late, 3, 3).failed == ["did not end within 3 s"]
    cut = judge.of_killed(late, 3, 60)
    assert cut.verdict == "skip" and cut.line == "time: 3 s were left" and cut.rows == [ROW]
    failed = process.Ended(process.LATE, "1..2\nnot ok 1 - a\n", "", 3)
    assert judge.of_killed(failed, 3, 60).failed == ["a"]
    silent = process.Ended(process.LATE, "building the data\n", "", 40)
    assert judge.of_killed(silent, 40, 120).failed == ["did not end within 40 s"]
    for limit_s, own_limit_s in ((3, 120), (40, math.inf)):
        assert judge.of_killed(silent, limit_s, own_limit_s).verdict == "skip", limit_s
    slow = process.Ended(process.LATE, "1..2\nok 1 - a\n", "", 40)
    assert judge.of_killed(slow, 40, 120).verdict == "skip"


def a_program_that_is_not_there_is_told_apart_from_one_that_fails():
    found = process.run([Path(SCRATCH.name) / "nothing"], 10, {}, Path(SCRATCH.name) / "program")
    assert found.status == process.NOT_THERE and "nothing" in found.err


def ranks_of_nccl_are_skipped_with_a_reason():
    def without(**more):
        done = subprocess.run([sys.executable, Path(__file__).with_name("nccl_ranks.py")], capture_output=True, text=True,
                              timeout=50, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **more})
        return judge.of_cases(process.Ended(done.returncode, done.stdout, done.stderr, 0)).skipped

    assert without(TERN_NCCL_LIBRARY="/no/nccl")[0][1].startswith("skipped: no NCCL here (TERN_NCCL_LIBRARY=/no/nccl)")
    assert without(TERN_NCCL_LIBRARY=sys.executable) == [("all", "skipped: no GPU here")]


# ---- parts ----

def parts_are_chosen_by_name_and_run_in_their_order():
    def names(text):
        return [part.name for part in plan.chosen(text)]

    assert names(None) == list(plan.BY_NAME)
    assert names("jobs,kernels") == ["facts", "kernels", "jobs"]
    assert names("build") == ["build"]
    assert names("tests") == plan.GROUPS["tests"]
    assert sorted(sum(plan.GROUPS.values(), [])) == sorted([*plan.BY_NAME, "facts", "facts"])
    for wrong in ("kernel", "", "jobs,,kernels"):
        try:
            plan.chosen(wrong)
        except ValueError as e:
            assert "kernels" in str(e)
        else:
            raise AssertionError(wrong)


def a_scale_can_only_be_made_smaller():
    assert plan.smaller("large", None, None) == "large"
    assert plan.smaller("few", "large", None) == "few"
    assert plan.smaller("large", "some", "few") == "few"


# ---- results ----

def results_are_whole_at_any_time():
    directory = Path(SCRATCH.name) / "results"
    directory.mkdir()
    kept = results.Results(directory, {"driver": None}, scale="few")
    assert json.loads((directory / "gpu.json").read_text())["state"] == "running"
    kept.begin("kernels: a")
    assert json.loads((directory / "gpu.json").read_text())["at"] == "kernels: a"
    kept.add({"name": "a"})
    with contextlib.redirect_stdout(io.StringIO()):
        kept.log("a line")
    kept.end("ended")
    found = json.loads((directory / "gpu.json").read_text())
    assert found["programs"] == [{"name": "a"}] and found["at"] is None and found["state"] == "ended"
    assert (directory / "gpu.log").read_text() == "a line\n"
    assert sorted(p.name for p in directory.iterdir()) == ["gpu.json", "gpu.log"]


# ---- the page ----

def call(*programs, **more):
    facts = {"date": "today", "commit": "abc", "driver": "580", "cores": 2, "processor": "a CPU"}
    return {"version": results.VERSION, "state": "ended", "at": None, "scale": "large", "facts": facts,
            "device": DEVICE, "parts": {}, "programs": list(programs), **more}


def program(part, name, verdict="pass", rows=(), line=""):
    return {"part": part, "name": name, "verdict": verdict, "line": line, "passed": int(verdict == "pass"),
            "failed": [line] if verdict == "fail" else [], "skipped": [], "rows": list(rows)}


def only_what_stands_between_the_marks_is_written_anew():
    old = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    calls = [call(program("memcheck", "gpu_sums", line="0 errors | none"), program("rates", "gpu_rates", rows=[ROW]))]
    new = page.page_of(old, calls)
    assert new.startswith(f"before\n{page.BEGIN}\n") and new.endswith(f"{page.END}\nafter\n")
    assert "old" not in new and "Date: today" in new and "A GPU" in new
    assert "| memcheck | gpu_sums | pass | 0 errors \\| none |" in new and "1.000 (0.500-1.000)" in new
    assert page.page_of(new, calls) == new
    assert page.BEGIN in run_gpu.PAGE.read_text() and page.END in run_gpu.PAGE.read_text()


def results_of_several_calls_are_merged():
    first = call(program("kernels", "a", "fail", line="broken"), program("rates", "r", rows=[ROW]),
                 state="running", at="suites: b")
    again = call(program("kernels", "a"), program("rates", "r", "skip", line="time"),
                 parts={"ncu": {"skipped": "time"}})
    text = page.page_of(page.BEGIN + page.END, [first, again])
    assert "| kernels | a | pass |" in text and "broken" not in text
    assert "| rates | r | pass |" in text and "1.000 (0.500-1.000)" in text
    assert "| ncu | | skip | time |" in text
    assert "was cut short during suites: b." in text
    assert "Cases: 2 passed, 0 failed, 0 skipped." in text


def only_results_of_a_gpu_at_full_size_are_shown():
    target = Path(SCRATCH.name) / "gpu.md"
    target.write_text(page.BEGIN + page.END)
    no_driver = call()
    no_driver["facts"] = dict(no_driver["facts"], driver=None)
    for bad, why in ((no_driver, "no NVIDIA driver"), (call(scale="few"), "--smoke"), ({"version": 0}, "no results"),
                     ([], "no results")):
        path = Path(SCRATCH.name) / "bad.json"
        path.write_text(json.dumps(bad))
        try:
            page.write(target, [path])
        except page.Refused as e:
            assert why in str(e), e
        else:
            raise AssertionError(why)
    assert target.read_text() == page.BEGIN + page.END
    path.write_text(json.dumps(call(program("kernels", "a"))))
    page.write(target, [path])
    assert "| kernels | a | pass |" in target.read_text()


tap.run([
    a_ratio_is_the_median_of_the_rounds,
    a_missing_peer_is_named_and_skipped,
    a_peer_that_trained_differently_is_a_failure,
    a_benchmark_that_breaks_keeps_its_rows_and_fails,
    a_program_passes_only_if_all_its_cases_do,
    a_checker_that_refuses_the_device_is_skipped_and_one_that_finds_something_fails,
    what_takes_too_long_is_ended_with_what_it_started,
    a_hang_is_a_failure_and_a_lack_of_time_is_none,
    a_program_that_is_not_there_is_told_apart_from_one_that_fails,
    ranks_of_nccl_are_skipped_with_a_reason,
    parts_are_chosen_by_name_and_run_in_their_order,
    a_scale_can_only_be_made_smaller,
    results_are_whole_at_any_time,
    only_what_stands_between_the_marks_is_written_anew,
    results_of_several_calls_are_merged,
    only_results_of_a_gpu_at_full_size_are_shown,
])
