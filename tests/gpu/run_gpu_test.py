# SPDX-License-Identifier: Apache-2.0
"""What run_gpu.py and the figures make of what programs print: no GPU is needed for that.

usage: run_gpu_test.py
"""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import run_gpu  # noqa: E402  (and with it the ways to the others)
import figures  # noqa: E402
import tap  # noqa: E402
import tap_count  # noqa: E402

ROW = {"name": "sum", "peer": "copy", "bytes": 4_000_000, "goal": 0.9, "ours_us": [1, 3, 2, 2, 4, 4],
       "peer_us": [2, 2, 1, 1, 4, 4]}
FACTS = {"Date": "today"}


def measured(text):
    count = tap_count.Count()
    rows = run_gpu.measure(run_gpu.Log(None), count, "it", ["sh", "-c", text], None)
    return rows, count


def a_ratio_is_the_median_of_the_rounds():
    assert figures.ratios_of(ROW) == [1, 0.5, 1]
    assert figures.ratio_text(ROW) == "1.000 (0.500-1.000)"
    assert figures.verdict_of(ROW) == "met"
    assert figures.verdict_of(dict(ROW, goal=1.1)) == "missed"
    assert figures.rate_of(ROW, ROW["ours_us"]) == " (2,000 GB/s)"


def a_missing_peer_is_named_and_skipped():
    row = dict(ROW, peer_us=[], missing="it is not installed")
    assert "missing: it is not installed" in figures.cells_of(row)
    rows, count = measured("""echo '{"name": "a", "peer": "b", "goal": 1, "ours_us": [],
        "peer_us": [], "missing": "no"}' | tr -d '\\n'; echo""")
    assert len(rows) == 1 and len(count.skipped) == 1 and not count.failed and not count.passed


def a_peer_that_trained_differently_is_a_failure():
    rows, count = measured("""echo '{"name": "a", "peer": "b", "ours_us": [1, 1], "peer_us": [9, 9], "wrong": "loss"}'""")
    assert count.failed == ["[gpu] a, beside b: loss"] and count.passed == 0


def a_benchmark_that_breaks_keeps_its_rows_and_fails():
    rows, count = measured("""echo '{"name": "a", "peer": "b", "ours_us": [1, 1], "peer_us": [9, 9]}'
        echo out of memory >&2; exit 1""")
    assert len(rows) == 1 and count.passed == 1
    assert count.failed == ["[gpu] it: status 1: out of memory"]


def what_takes_too_long_is_ended_with_what_it_started():
    status, out, _ = run_gpu.run(run_gpu.Log(None), ["sh", "-c", "echo started; sleep 1000"], 0.5)
    assert status == -1 and out == "started\n"


def a_checker_that_refuses_the_device_is_skipped_and_one_that_finds_something_fails():
    refused = "========= Error: Device not supported. See the list\n"
    assert run_gpu.verdict_of("memcheck", 1, refused) == \
        ("skip", "Error: Device not supported. See the list")
    clean = "1..3\n========= ERROR SUMMARY: 0 errors\n"
    assert run_gpu.verdict_of("memcheck", 0, clean)[0] == "pass"
    found = "========= ERROR SUMMARY: 2 errors\n"
    assert run_gpu.verdict_of("memcheck", run_gpu.FOUND, found) == ("fail", "ERROR SUMMARY: 2 errors")
    assert run_gpu.verdict_of("memcheck", 1, clean) == ("fail", "the program ended with status 1")


def only_what_stands_between_the_marks_is_written_anew():
    old = f"before\n{run_gpu.BEGIN}\nold\n{run_gpu.END}\nafter\n"
    new = run_gpu.page_of(old, FACTS, [("gpu_sums", "memcheck", "pass")], [ROW])
    assert new.startswith(f"before\n{run_gpu.BEGIN}\n") and new.endswith(f"{run_gpu.END}\nafter\n")
    assert "old" not in new and "Date: today" in new and "| gpu_sums | memcheck | pass |" in new
    assert "1.000 (0.500-1.000)" in new
    assert run_gpu.page_of(new, FACTS, [("gpu_sums", "memcheck", "pass")], [ROW]) == new
    assert run_gpu.BEGIN in run_gpu.PAGE.read_text() and run_gpu.END in run_gpu.PAGE.read_text()


def figures_of_no_gpu_are_never_written_into_the_page():
    class Arguments:
        smoke = False
        with_out = tempfile.TemporaryDirectory()
        out = Path(with_out.name)

    device = {"device": "Simulated", "multiprocessors": 1, "capability": "9.0", "bytes": 2**30,
              "driver_cuda": "13.0", "toolkit": "13.0"}
    before = run_gpu.PAGE.read_text()
    run_gpu.keep(run_gpu.Log(None), Arguments, tap_count.Count(), device, None, [], [ROW])
    assert run_gpu.PAGE.read_text() == before
    assert "Simulated" in (Arguments.out / "gpu.md").read_text()


tap.run([
    a_ratio_is_the_median_of_the_rounds,
    a_missing_peer_is_named_and_skipped,
    a_peer_that_trained_differently_is_a_failure,
    a_benchmark_that_breaks_keeps_its_rows_and_fails,
    what_takes_too_long_is_ended_with_what_it_started,
    a_checker_that_refuses_the_device_is_skipped_and_one_that_finds_something_fails,
    only_what_stands_between_the_marks_is_written_anew,
    figures_of_no_gpu_are_never_written_into_the_page,
])
