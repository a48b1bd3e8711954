#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of what bench/ computes from figures: order of rounds, ratios, verdicts, goals, the report.
Contenders are small scripts with made-up figures; nothing is measured.

usage: bench_scripts.py
"""
import contextlib
import dataclasses
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
sys.path.insert(0, str(TOP / "bench"))
import tap  # noqa: E402
import bench  # noqa: E402
import contenders  # noqa: E402
import figures  # noqa: E402
import goals  # noqa: E402
import install  # noqa: E402
import journal  # noqa: E402
import measure  # noqa: E402
import questions  # noqa: E402
import report  # noqa: E402
import scaling  # noqa: E402
import vm  # noqa: E402
from figures import Figure  # noqa: E402

LATENCY = [("p50_us", "us", "smaller")]


def printing(key, text, **more):
    return measure.Contender(key, key.title(), [sys.executable, "-c", f"print({text!r})"], **more)


def ask(contenders_, rounds):
    return ask_question(measure.Question("q", "Q", "About.", contenders_, LATENCY), rounds)


def ask_question(question, rounds):
    with tempfile.TemporaryDirectory() as directory:
        kept = journal.Journal(Path(directory) / "unfinished")
        return measure.ask(question, rounds, kept, say=lambda text: None)


def rounds_go_forwards_and_backwards():
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        found = [measure.Contender(name, name, [
            "sh", "-c", f"echo {name} >> {log}; echo '{{\"size\": 1, \"p50_us\": 2.0}}'"])
            for name in "abc"]
        ask(found, 4)
        assert log.read_text().split() == list("abccbaabccba"), log.read_text()


def each_round_adds_one_value_of_each_metric():
    line = json.dumps({"size": 64, "p50_us": 1.5, "pinned": True, "version": "1.2"})
    record = ask([printing("a", line)], 3).as_json()
    entry = record["contenders"]["a"]
    assert entry["points"] == {"64": {"p50_us": [1.5] * 3}}, entry
    assert entry["version"] == "1.2" and entry["pinned"] is True


def a_contender_that_fails_is_named_and_has_no_figures():
    broken = measure.Contender("b", "Broken", ["sh", "-c", "echo 'no such device' >&2; exit 3"])
    record = ask([printing("a", '{"size": 1, "p50_us": 2}'), broken], 2).as_json()
    assert list(record["contenders"]) == ["a"]
    assert record["failed"] == {"Broken": "exit status 3: no such device"}, record["failed"]


def is_alive(state):
    try:
        return state.read_text().split()[2] != "Z"
    except (OSError, IndexError):
        return False


def a_contender_that_hangs_is_ended_with_all_its_processes():
    with tempfile.TemporaryDirectory() as directory:
        pid = Path(directory) / "pid"
        slow = measure.Contender("s", "Slow", ["sh", "-c", f"sleep 60 & echo $! > {pid}; wait"],
                                 limit_s=1)
        record = ask([slow], 2).as_json()
        assert record["failed"] == {"Slow": "not done after 1 s"}
        state = Path(f"/proc/{pid.read_text().strip()}/stat")
        while is_alive(state):  # the kernel may need a while; the suite has a time limit
            time.sleep(0.01)


def a_contender_that_prints_nothing_has_failed():
    assert "no figures" in ask([printing("a", "hello")], 1).failed["A"]


def what_is_missing_is_told_and_not_run():
    record = ask([contenders.absent("x", "X", "no package of it")], 1).as_json()
    assert record["missing"] == {"X": "no package of it"} and not record["contenders"]


def ratios_are_taken_within_a_round():
    """The machine became twice as slow in between: the ratio does not see it."""
    assert figures.ratio([1, 2, 4], [2, 4, 8]) == Figure(0.5, 0.5, 0.5)
    assert figures.ratio([3, 2, 1], [1, 1, 1]) == Figure(2, 1, 3)
    assert figures.ratio([1], [0]) is None


def best_is_the_best_median():
    assert figures.best({"a": [1, 9, 9], "b": [5, 5, 5], "c": None}, True) == "b"
    assert figures.best({"a": [1, 9, 9], "b": [5, 5, 5]}, False) == "a"
    assert figures.best({"a": None}, True) is None


def a_ratio_has_moved_when_neither_median_is_in_the_others_spread():
    before = Figure(1.0, 0.95, 1.05)
    assert figures.verdict(Figure(1.04, 1.03, 1.06), before, "<=") == "same"
    assert figures.verdict(Figure(1.5, 0.9, 2.0), before, "<=") == "same"  # too noisy to accuse
    assert figures.verdict(Figure(1.2, 1.1, 1.3), before, "<=") == "worse"
    assert figures.verdict(Figure(1.2, 1.1, 1.3), before, ">=") == "better"
    assert figures.verdict(Figure(0.8, 0.7, 0.9), before, "<=") == "better"
    assert figures.verdict(Figure(0.8, 0.7, 0.9), before, ">=") == "worse"


def results_of(**p50):
    """Results with the given round trips at 64 B, over three rounds."""
    points = {key.replace("_", "."): {
        "title": key, "wait": "poll", "fabric": "tcp", "ours": key.startswith("tern"),
        "points": {"64": {"p50_us": values, "p99_us": [v * 2 for v in values],
                          "registrations": [0] * 3}}} for key, values in p50.items()}
    return {"date": "2026-01-01", "quick": False, "rounds": 3, "seconds": 1, "missing": {},
            "machine": {"cores": 2, "processor": "P", "kernel": "K"},
            "questions": {"roundtrip-tcp": {
                "title": "T", "about": "A", "axis": "bytes", "notes": [], "metrics": LATENCY,
                "missing": {"NCCL": "no GPU"}, "failed": {}, "contenders": points}}}


def row_of(results, what, against):
    return next(r for r in goals.rows(results)
                if r.goal.what == what and r.goal.against == against)


POLLING = ("tcp, 64 B, both polling, round trip", "raw TCP, spinning")


def a_goal_is_met_or_not():
    met = row_of(results_of(tern_tcp_poll=[11, 22, 11], raw_tcp_poll=[10, 20, 10]), *POLLING)
    assert met.met is True and abs(met.ratio.median - 1.1) < 1e-9, met
    missed = row_of(results_of(tern_tcp_poll=[12, 12, 12], raw_tcp_poll=[10, 10, 10]), *POLLING)
    assert missed.met is False and missed.ours == 12 and missed.theirs == 10


def a_goal_without_figures_says_so():
    row = row_of(results_of(raw_tcp_poll=[1, 1, 1]), *POLLING)
    assert row.met is None and row.why == "not measured"
    row = row_of(results_of(tern_tcp_poll=[1, 1, 1]), *POLLING)
    assert row.met is None and row.why == "the peer is missing"
    assert "**the peer is missing**" in report.goals_table(results_of(tern_tcp_poll=[1, 1, 1]))


def registrations_are_the_most_of_any_run():
    results = results_of(tern_tcp_poll=[1, 1, 1])
    assert goals.registrations(results).met is True
    entry = results["questions"]["roundtrip-tcp"]["contenders"]["tern.tcp.poll"]
    entry["points"]["64"]["registrations"] = [0, 2, 0]
    assert goals.registrations(results).met is False


def long_tails_are_held_against_the_raw_peer():
    row = next(r for r in goals.tails(results_of(tern_tcp_poll=[10] * 3, raw_tcp_poll=[1] * 3)))
    assert row.met is True and row.ours == 20 and row.theirs == 30, row


def every_goal_names_a_question_and_contenders_that_exist():
    """A row whose key nobody has would say "not measured" for ever."""
    made = {}
    for quick in (False, True):
        plan = questions.Plan(quick, contenders.Maker("build/tern", {}))
        for name, make in questions.QUESTIONS.items():
            made.setdefault(name, set()).update(c.key for c in make(plan).contenders)
    for goal in goals.GOALS:
        assert goal.question in made, goal
        for key in (goal.ours, *goal.peers):
            assert key in made[goal.question], f"{goal.what}: {key}"


def runs_of_a_question_are_unique():
    """A contender may have several runs, with other points: never the same one twice."""
    for quick in (False, True):
        plan = questions.Plan(quick, contenders.Maker("build/tern", {}))
        for name, make in questions.QUESTIONS.items():
            runs = [(c.key, str(c.command)) for c in make(plan).contenders]
            assert len(runs) == len(set(runs)), f"{name}: {runs}"


def peers_that_could_not_be_installed_or_built_are_missing():
    maker = contenders.Maker("build/tern", {"libzmq3-dev": "no such package"})
    peer = next(p for p in contenders.tcp_peers() if p.program == "zeromq")
    assert maker.peer(peer, "lat", [(64, 10)]).missing == "libzmq3-dev: no such package"
    unbuilt = dataclasses.replace(peer, program="no-such-program", package="gcc")
    assert "was not built" in maker.peer(unbuilt, "lat", [(64, 10)]).missing


def a_quick_run_neither_asks_nor_installs_peers_in_python():
    pythons = {peer.python for peer in contenders.ps_peers() if peer.python}
    for quick in (False, True):
        asked = questions.parameter_server(questions.Plan(quick, contenders.Maker("tern", {})))
        assert quick != any(c.command and c.command[0] in pythons for c in asked.contenders)
        with mock.patch.object(install, "is_there", lambda sign: False), \
                mock.patch.object(install, "has_tensorflow", lambda: False):
            missing = install.peers(in_python=not quick, may_install=False)
        assert "libgrpc++-dev" in missing
        assert quick != ("python3-torch" in missing) and quick != ("tensorflow-cpu" in missing)


def results_are_json_with_a_line_for_each_point():
    results = results_of(tern_tcp_poll=[1, 2, 3], raw_tcp_poll=[1, 1, 1])
    text = bench.as_text(results)
    assert json.loads(text) == json.loads(json.dumps(results))
    assert sum('"64":' in line and "p50_us" in line for line in text.splitlines()) == 2, text


def other_runs_of_a_contender_that_failed_are_dropped_too():
    broken = measure.Contender("a", "A", ["sh", "-c", "echo no >&2; exit 1"])
    other = printing("a", '{"size": 2, "p50_us": 2}')
    for order in ([broken, other], [other, broken]):
        record = ask(order, 3).as_json()
        assert not record["contenders"] and list(record["failed"]) == ["A"], record


def a_question_may_measure_all_its_rounds_itself():
    values = {"v": {"64 KiB": {"value": [1.0, 2.0]}}}
    question = measure.Question("q", "Q", "", [measure.Contender("v", "V")], LATENCY,
                                all_rounds=lambda rounds: values)
    record = ask_question(question, 2).as_json()
    assert record["contenders"]["v"]["points"] == values["v"], record


def perftests_values_are_read():
    perf = {"failures": [], "questions": [{"name": "latency, 8 B", "unit": "us",
            "tern": {"median": 2, "min": 1, "max": 3, "values": [1, 2, 3]},
            "ib_send_lat": {"median": 5, "min": 5, "max": 5, "values": [5, 5, 5]}}]}
    assert vm.read(perf) == {"tern.verbs": {"latency, 8 B": {"value": [1, 2, 3]}},
                             "ib_send_lat": {"latency, 8 B": {"value": [5, 5, 5]}}}


def a_virtual_machine_leaves_its_values_in_a_file_or_says_why_not():
    with tempfile.TemporaryDirectory() as directory:
        tern, script = Path(directory) / "tern", Path(directory) / "in_vm.py"
        (tern.parent / "rdma").mkdir()
        perf = {"failures": [], "questions": [{"name": "q", "tern": {"values": [1.0]}}]}
        script.write_text(
            "import pathlib, sys\nassert sys.argv[2:] == ['perf', '--rounds', '3']\n"
            f"pathlib.Path(sys.argv[1], 'rdma/perf.json').write_text({json.dumps(perf)!r})")
        with mock.patch.object(vm, "IN_VM", script), contextlib.redirect_stderr(io.StringIO()):
            assert vm.measure(tern, 3, False) == {"tern.verbs": {"q": {"value": [1.0]}}}
            for said, kind in (("skipped: no qemu", measure.Missing),
                               ("FAILED: no figures", measure.Failed)):
                script.write_text(f"print({said!r}); print('and so on')")
                try:
                    vm.measure(tern, 3, False)
                    assert False, "must fail"
                except kind as why:
                    assert str(why) == f"the virtual machine: {said}", why


def a_model_of_one_core_takes_the_sum_of_all_work():
    """Both ends move each byte twice, the server updates it once: the only core does all of it."""
    costs = scaling.Costs(byte_ns=1, message_ns=0, update_ns=0.5, wire_byte_ns=0, cores=1)
    took_ns, bottleneck = scaling.step(1000, 1, 1, costs)
    assert abs(took_ns - 4500) < 1e-6 and bottleneck == "cores", took_ns
    assert abs(scaling.step(1000, 3, 1, costs)[0] - 3 * 4500) < 1e-6


def a_model_scales_until_its_server_is_busy():
    costs = scaling.Costs(byte_ns=0.1, message_ns=100, update_ns=0.05, compute_ns=50e6)
    one = scaling.step(50_000_000, 1, 4, costs)[0]
    few, many = (scaling.step(50_000_000, n, 4, costs) for n in (4, 256))
    assert one <= few[0] < 1.2 * one and few[1] != "cores", (one, few)
    assert many[0] > 5 * one and many[1] == "server", many
    more = scaling.step(50_000_000, 256, 64, costs)
    assert more[0] < many[0] / 5, "more servers must help"
    least = 256 * 50e6 * (2 * 0.1 + 0.05) / 64  # what each server has to do
    assert more[0] >= least, "and nobody works faster than it can"


def said_by(function, *arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        value = function(*arguments)
    return value, out.getvalue()


def a_check_says_what_moved_and_counts_what_is_worse():
    raw = [10, 10.1, 9.9]
    before = results_of(tern_tcp_poll=[11, 11.1, 10.9], raw_tcp_poll=raw)
    same = results_of(tern_tcp_poll=[11.05, 11.1, 10.9], raw_tcp_poll=raw)
    slower = results_of(tern_tcp_poll=[15, 15.1, 14.9], raw_tcp_poll=raw)
    worse, said = said_by(bench.compare, same, before)
    assert worse == 0 and "ratios: 0 worse than their spread allows, 0 better" in said, said
    worse, said = said_by(bench.compare, slower, before)
    assert worse > 0, said
    for words in ("worse: tcp, 64 B, both polling, round trip, against raw TCP, spinning: 1.10 ",
                  "became 1.50 (", "Tern: 11.0 -> 15.0 us, 36 % more; the peer: 10.0 -> 10.0 us, "
                  "the same.", "Its goal, <= 1.15, is missed now."):
        assert words in said, (words, said)
    worse, said = said_by(bench.compare, before, slower)
    assert worse == 0 and "better: tcp, 64 B, both polling" in said and "is met now." in said, said


def a_check_compares_with_the_same_peers():
    """The best peer of the committed results is not measured now: that does not make Tern better."""
    ours, slow, fast = [20] * 3, [30, 30.1, 29.9], [10, 10.1, 9.9]
    before = results_of(tern_tcp_sleep=ours, **{"grpc_bytes-unary_sleep": slow,
                                                "grpc_bytes-stream_malloc_sleep": fast})
    now = results_of(tern_tcp_sleep=ours, **{"grpc_bytes-unary_sleep": slow})
    worse, said = said_by(bench.compare, now, before)
    assert worse == 0 and "better:" not in said, said


def a_check_tells_of_another_machine():
    before = results_of(tern_tcp_poll=[1] * 3, raw_tcp_poll=[1] * 3)
    now = results_of(tern_tcp_poll=[1] * 3, raw_tcp_poll=[1] * 3)
    now["machine"]["cores"] = 4
    assert "machine: cores was 2, is 4" in said_by(bench.compare, now, before)[1]


def a_best_peer_tells_who_was_not_measured():
    results = results_of(tern_tcp_sleep=[1] * 3, **{"grpc_bytes-unary_sleep": [2] * 3})
    line = next(line for line in report.goals_table(results).splitlines()
                if "both asleep" in line and "gRPC byte buffers" in line)
    assert "not measured: " in line and "grpc.bytes-unary.malloc.sleep" in line, line


def a_check_compares_counts_and_no_times():
    before, now = results_of(tern_tcp_poll=[1] * 3), results_of(tern_tcp_poll=[1] * 3)
    for results, ns, count in ((before, 40, 0), (now, 400, 1)):
        results["questions"]["pool"] = {"contenders": {"tern.pool": {"ours": True, "points": {
            "64": {"alloc_ns": [ns] * 3, "registrations": [count] * 3}}}}}
    worse, said = said_by(bench.compare, now, before)
    assert worse == 1 and "worse: memory registrations" in said and "pool" not in said, said


def a_check_ignores_what_was_not_measured_now():
    before = results_of(tern_tcp_poll=[11] * 3, raw_tcp_poll=[10] * 3)
    assert said_by(bench.compare, results_of(raw_tcp_poll=[10] * 3), before)[0] == 0


def the_report_has_figures_and_what_is_missing():
    text = report.text(results_of(tern_tcp_poll=[11, 12, 13], raw_tcp_poll=[10, 10, 10]))
    assert "12.0 (11.0..13.0)" in text and "Missing: NCCL: no GPU." in text
    assert "| **tern_tcp_poll** | poll |" in text


def the_readme_changes_between_its_marks_only():
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "README.md"
        path.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
        assert report.update_readme(path, results_of(tern_tcp_poll=[1] * 3))
        text = path.read_text()
        assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
        path.write_text("no marks\n")
        assert not report.update_readme(path, results_of()) and path.read_text() == "no marks\n"


def the_readme_shows_five_rows_each_of_which_is_a_goal():
    """A row whose goal was renamed would vanish, and a row that was not measured is shown as such."""
    lines = report.readme_table(results_of(tern_tcp_poll=[1] * 3)).splitlines()
    shown = [line for line in lines if line.startswith("| ")][1:]
    assert len(shown) == 5 and all("not measured" in line for line in shown), shown
    known = {(goal.what, goal.against) for goal in goals.GOALS}
    assert set(report.README_ROWS) <= known, set(report.README_ROWS) - known


def numbers_have_three_digits():
    assert [figures.number_text(v) for v in (0, 0.0123, 0.5, 1.234, 12.34, 123.4, 1234.5)] == [
        "0", "0.012", "0.50", "1.23", "12.3", "123", "1,234"]
    assert figures.size_text(4096) == "4 KiB" and figures.size_text(100) == "100 B"
    assert figures.rounds_of(64, 2000) == 2000 and figures.rounds_of(256 << 20, 2000) == 3


tap.run([
    rounds_go_forwards_and_backwards,
    each_round_adds_one_value_of_each_metric,
    a_contender_that_fails_is_named_and_has_no_figures,
    a_contender_that_hangs_is_ended_with_all_its_processes,
    a_contender_that_prints_nothing_has_failed,
    what_is_missing_is_told_and_not_run,
    peers_that_could_not_be_installed_or_built_are_missing,
    a_quick_run_neither_asks_nor_installs_peers_in_python,
    results_are_json_with_a_line_for_each_point,
    other_runs_of_a_contender_that_failed_are_dropped_too,
    a_question_may_measure_all_its_rounds_itself,
    ratios_are_taken_within_a_round,
    best_is_the_best_median,
    a_ratio_has_moved_when_neither_median_is_in_the_others_spread,
    a_goal_is_met_or_not,
    a_goal_without_figures_says_so,
    registrations_are_the_most_of_any_run,
    long_tails_are_held_against_the_raw_peer,
    every_goal_names_a_question_and_contenders_that_exist,
    runs_of_a_question_are_unique,
    perftests_values_are_read,
    a_virtual_machine_leaves_its_values_in_a_file_or_says_why_not,
    a_model_of_one_core_takes_the_sum_of_all_work,
    a_model_scales_until_its_server_is_busy,
    a_check_says_what_moved_and_counts_what_is_worse,
    a_check_compares_with_the_same_peers,
    a_check_tells_of_another_machine,
    a_best_peer_tells_who_was_not_measured,
    a_check_compares_counts_and_no_times,
    a_check_ignores_what_was_not_measured_now,
    the_report_has_figures_and_what_is_missing,
    the_readme_changes_between_its_marks_only,
    the_readme_shows_five_rows_each_of_which_is_a_goal,
    numbers_have_three_digits,
])
