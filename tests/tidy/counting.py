# SPDX-License-Identifier: Apache-2.0
"""Tests how ./run test counts what test programs print, and what it says at its end.

usage: counting.py
"""
import contextlib
import io
import sys
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "tests")]
import run_all  # noqa: E402
import tap  # noqa: E402
import tap_count  # noqa: E402


def program(name, *lines, result="OK", **more):
    return {"name": f"tern:unit+slow / {name}", "result": result, "returncode": 0,
            "stdout": "\n".join(lines), "stderr": "", **more}


def report_of(count):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = count.report()
    return status, out.getvalue().splitlines()


def skips_of_one_reason_in_one_suite_share_a_line():
    count = tap_count.Count()
    for name in ("a", "b"):
        for where in ("gcc", "asan"):
            count.add_program(where, program(name, "1..3", "skip: no disk", "ok 1 # SKIP x",
                                             "ok 2 - y", "ok 3 - z # SKIP no network"))
    status, lines = report_of(count)
    assert status == 0
    assert "skipped:    4 of unit (asan, gcc): no disk" in lines, lines
    assert "skipped:    4 of unit (asan, gcc): no network" in lines, lines
    assert not any("a: x" in line for line in lines)
    assert lines[-1] == "4 passed, 0 failed, 8 skipped"


def verbose_names_each_skipped_case():
    count = tap_count.Count(verbose=True)
    count.add_program("gcc", program("a", "1..1", "ok 1 - x # SKIP no disk"))
    assert any(line.endswith("a: x") for line in report_of(count)[1])


def the_slowest_programs_are_told_and_no_more_than_ten():
    count = tap_count.Count()
    for i in range(12):
        count.add_program("gcc", program(f"p{i}", "1..1", "ok 1 - x", duration=float(i)))
    slowest = [line for line in report_of(count)[1] if line.startswith("slowest:")]
    assert len(slowest) == 10 and "11.0 s [gcc] p11" in slowest[0], slowest


def the_processes_that_tests_have_killed_are_added_up():
    count = tap_count.Count()
    for name, number in (("a", 20), ("b", 200)):
        count.add_program("gcc", program(name, "1..1", f"# {number} processes killed, seed 7", "ok 1 - x"))
    line, = [line for line in report_of(count)[1] if line.startswith("killed:")]
    assert line.startswith("killed: 220 processes") and line.endswith("20 by [gcc] a, 200 by [gcc] b"), line


def a_framework_that_cannot_be_installed_is_skipped():
    count = tap_count.Count()
    failing = {name: lambda say: "ERROR: no such wheel" for name in run_all.install.FROM_PYPI}
    with mock.patch.object(run_all.install, "packages", lambda wanted, say: {"python3-torch": "not root"}), \
            mock.patch.object(run_all.install, "FROM_PYPI", failing):
        run_all.run_plugins(count, mock.Mock(has=lambda name: False))
    status, lines = report_of(count)
    assert "skipped:    1 of plugins (plugins): nccl cannot be installed: ERROR: no such wheel" in lines, lines
    assert "skipped:    1 of plugins (plugins): python3-torch cannot be installed: not root" in lines, lines
    assert status == 0 and lines[-1] == f"0 passed, 0 failed, {1 + len(run_all.install.PLUGINS)} skipped", lines


def a_case_that_was_announced_and_not_reported_has_failed():
    count = tap_count.Count()
    count.add_program("gcc", program("a", "1..2", "ok 1 - x"))
    status, lines = report_of(count)
    assert status == 1 and lines[-1] == "1 passed, 1 failed, 0 skipped", lines


def what_a_failed_case_printed_is_shown_however_much_came_after_it():
    after = [line for i in range(2, 100) for line in (f"ok {i} - y", "# talk")]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        tap_count.Count().add_program("gcc", program(
            "a", "1..99", "# before", "not ok 1 - x", "# a.c:7: 1 != 2", *after, result="FAIL"))
    assert "# before\nnot ok 1 - x\n# a.c:7: 1 != 2\n" in out.getvalue(), out.getvalue()


def what_a_failed_program_printed_last_stands_at_the_end():
    count = tap_count.Count()
    with contextlib.redirect_stdout(io.StringIO()):
        count.add_program("gcc", program("a", *(f"ok: {i}" for i in range(99)), "failed: why", result="FAIL"))
    lines = report_of(count)[1]
    assert lines[-3:] == ["[gcc] a: failed: why", "FAILED: [gcc] a: fail, exit status 0",
                          "0 passed, 1 failed, 0 skipped"], lines


tap.run([skips_of_one_reason_in_one_suite_share_a_line,
         verbose_names_each_skipped_case,
         the_slowest_programs_are_told_and_no_more_than_ten,
         the_processes_that_tests_have_killed_are_added_up,
         a_framework_that_cannot_be_installed_is_skipped,
         a_case_that_was_announced_and_not_reported_has_failed,
         what_a_failed_case_printed_is_shown_however_much_came_after_it,
         what_a_failed_program_printed_last_stands_at_the_end])
