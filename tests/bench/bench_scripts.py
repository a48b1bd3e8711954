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
import math
import random
import re
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
sys.path.insert(0, str(TOP / "bench"))
import tap  # noqa: E402
import bench  # noqa: E402
import builds  # noqa: E402
import contenders  # noqa: E402
import figures  # noqa: E402
import goals  # noqa: E402
import install  # noqa: E402
import journal  # noqa: E402
import losses  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import questions  # noqa: E402
import report  # noqa: E402
import scaling  # noqa: E402
import sittings  # noqa: E402
import own_tool  # noqa: E402
import sweep  # noqa: E402
import trainers  # noqa: E402
import vm  # noqa: E402
from figures import Figure, Interval  # noqa: E402

LATENCY = [("p50_us", "us", "smaller")]
METRICS = [*LATENCY, ("p99_us", "us", "smaller")]


def printing(key, text, **more):
    return measure.Contender(key, key.title(), [sys.executable, "-c", f"print({text!r})"], **more)


def ask(contenders_, rounds):
    return ask_question(measure.Question("q", "Q", "About.", contenders_, LATENCY), rounds)


def ask_question(question, rounds):
    with tempfile.TemporaryDirectory() as directory:
        kept = journal.Journal(Path(directory) / "unfinished")
        return measure.ask(question, rounds, kept, say=lambda text: None)


def named(name, **more):
    return measure.Contender(name, name, **more)


def tern(wait, fabric="tcp", key=""):
    return named(key or f"tern.{fabric}.{wait}", wait=wait, fabric=fabric, ours=True)


def keys_of(groups):
    return [[contender.key for contender in group] for group in groups]


def terns_neighbours_wait_as_it_does():
    peers = [named(f"{wait}{n}", wait=wait, fabric="tcp") for wait in ("poll", "sleep")
             for n in range(5)]
    alone = named("alone", wait="poll", fabric="shm")
    ours = [tern("poll"), tern("poll", key="tern.tcp.peek"), tern("sleep")]
    for number in range(8):
        groups = keys_of(measure.order([*ours, *peers, alone], "q", number))
        ran = [key for group in groups for key in group]
        assert sorted(key for key in ran if not key.startswith("tern")) == sorted(
            p.key for p in [*peers, alone]), ran
        assert ran.count("tern.tcp.poll") == ran.count("tern.tcp.sleep") == 3
        assert ["alone"] in groups and ["tern.tcp.peek"] in groups
        for group in groups:
            for left, right in zip(group, group[1:]):
                mine, peer = sorted((left, right), key=lambda key: not key.startswith("tern"))
                assert mine.endswith(peer[:-1]), group


def peers_belong_to_the_block_of_ours_before_them():
    """A question of several cases names its contenders case by case."""
    found = [tern("sleep", key="case 1"), named("a", wait="sleep", fabric="tcp"),
             tern("sleep", key="case 2"), named("b", wait="sleep", fabric="tcp")]
    assert [(ours.key, keys_of([peers])[0]) for ours, peers in measure.neighbourhoods(found)] == [
        ("case 1", ["a"]), ("case 2", ["b"])]


def orders_come_in_pairs_that_mirror_each_other_and_differ_from_pair_to_pair():
    found = [tern("poll"), *(named(n, wait="poll", fabric="tcp") for n in "abcdef")]
    rounds = [keys_of(measure.order(found, "q", number)) for number in range(8)]
    flat = [[key for group in groups for key in group] for groups in rounds]
    for number in range(0, 8, 2):
        assert flat[number] == flat[number + 1][::-1]
    assert len({str(order) for order in flat}) > 4, flat
    assert flat[0] == [key for group in keys_of(measure.order(found, "q", 0)) for key in group]


def counting(key, directory, **more):
    """A contender whose N-th run says that it took N us."""
    log = Path(directory) / key
    script = (f"echo >> {log}; n=$(wc -l < {log}); "
              "echo \"{\\\"size\\\": 1, \\\"p50_us\\\": $n.0}\"")
    return measure.Contender(key, key, ["sh", "-c", script], wait="poll", **more)


def a_peers_ratio_is_taken_with_the_run_of_tern_next_to_it():
    with tempfile.TemporaryDirectory() as directory:
        found = [counting("tern", directory, ours=True),
                 *(counting(key, directory) for key in "abc")]
        record = ask(found, 2).as_json()
    beside = {key: record["contenders"][key]["beside"]["tern"]["1"]["p50_us"] for key in "abc"}
    groups = [keys_of(measure.order(found, "q", number)) for number in range(2)]
    for number, run in ((0, 1), (1, 3)):  # Tern's first run of the round
        for group in groups[number]:
            for key in set(group) - {"tern"}:
                assert beside[key][number] == run, (beside, groups)
            run += 1
    ours = record["contenders"]["tern"]["points"]["1"]["p50_us"]
    assert ours == [1.4142, 3.4641], ours  # geometric means of 1 and 2, of 3 and 4


def a_round_without_a_value_keeps_its_place():
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        script = (f"echo >> {log}; echo '{{\"size\": 1, \"p50_us\": 2}}'; "
                  f"[ $(wc -l < {log}) -ne 2 ] || echo '{{\"size\": 2, \"p50_us\": 3}}'")
        record = ask([measure.Contender("a", "A", ["sh", "-c", script])], 3).as_json()
    points = record["contenders"]["a"]["points"]
    assert points == {"1": {"p50_us": [2.0] * 3}, "2": {"p50_us": [None, 3.0, None]}}, points
    assert figures.ratio([4, 6, 8], points["2"]["p50_us"]).value == 2


def each_round_tells_what_else_the_machine_did():
    record = ask([printing("a", '{"size": 1, "p50_us": 2}')], 2).as_json()
    assert set(record["machine"]) == {name for name, _ in report.DISTURBANCES}
    assert all(len(values) == 2 and None not in values for values in record["machine"].values())
    before = {"time_s": 5, "own_s": 1, "all_s": 10, "work_s": 4, "steal_s": 1, "switches": 1000}
    after = {"time_s": 7, "own_s": 2, "all_s": 14, "work_s": 6, "steal_s": 1.2, "switches": 3000}
    assert machine.disturbance(before, after) == {
        "steal_percent": 5.0, "others_percent": 25.0, "context_switches_per_s": 1000}


def results_have_commands_and_environments():
    found = measure.Contender("a", "A", [f"{TOP}/build/a b", "-x"], {"SET": "1"})
    assert found.shown() == "SET=1 'build/a b' -x", found.shown()
    record = measure.Record(measure.Question("q", "Q", "", [found], LATENCY), 1)
    assert record.found["a"]["commands"] == [found.shown()]
    with mock.patch.dict(measure.os.environ, {"TERN_DATA_DIR": "/data sets"}):
        assert measure.Contender("a", "A", ["x", "--data", "/data sets"]).shown() == "x --data $TERN_DATA_DIR"


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
    """If the machine becomes slower from round to round, for both sides alike, the ratio does not
    change."""
    half = figures.ratio([1, 2, 4], [2, 4, 8])
    assert all(abs(end - 0.5) < 1e-12 for end in (half.value, half.low, half.high)), half
    found = figures.ratio([3, 2, 1], [1, 1, 1])
    assert found.low < found.value < found.high and abs(found.value - 6 ** (1 / 3)) < 1e-12, found
    assert figures.ratio([1], [0]) is None


def a_ratio_is_the_quotient_of_the_figures_beside_it():
    above, below = [3, 9, 4, 7], [2, 5, 8, 1]
    quotient = figures.figure(above).mean / figures.figure(below).mean
    assert abs(figures.ratio(above, below).value - quotient) < 1e-12
    assert figures.figure([1, 4]) == Figure(2, 1, 4) and figures.figure([0, 4]).mean == 2


def an_interval_has_the_true_mean_in_it_as_often_as_it_says():
    dice = random.Random(3)
    for rounds in (4, 8, 16):
        hits = 0
        for _ in range(250):
            found = figures.interval([math.exp(dice.gauss(0, 0.1)) for _ in range(rounds)])
            hits += found.low <= 1 <= found.high
        assert 0.92 <= hits / 250 <= 0.98, (rounds, hits)


def an_interval_is_the_same_in_every_run():
    values = [1.0, 1.1, 0.9, 1.2]
    first = figures.interval(values)
    figures.draws.cache_clear()
    figures.interval_of.cache_clear()
    assert figures.interval(values) == first
    assert figures.interval([5.0]) == Interval(5.0, 0.0, math.inf)  # one round tells nothing


def a_verdict_needs_the_whole_interval():
    for found, sense, want in ((Interval(0.9, 0.8, 0.99), "<=", "met"),
                               (Interval(0.9, 0.8, 1.01), "<=", "undecided"),
                               (Interval(1.1, 0.99, 1.2), "<=", "undecided"),
                               (Interval(1.1, 1.01, 1.2), "<=", "missed"),
                               (Interval(1.1, 1.01, 1.2), ">=", "met"),
                               (Interval(0.9, 0.8, 0.99), ">=", "missed"),
                               (Interval(1.0, 1.0, 1.0), "<=", "met")):
        assert figures.judge(found, sense, 1.0) == want, (found, sense)


def results_of(**p50):
    """Results with the given round trips at 64 B, over three rounds."""
    points = {key.replace("_", "."): {
        "title": key, "wait": "sleep" if key.endswith("sleep") else "poll", "fabric": "tcp",
        "ours": key.startswith("tern"),
        "points": {"64": {"p50_us": values, "p99_us": [v * 2 for v in values],
                          "registrations": [0] * 3}}} for key, values in p50.items()}
    return {"date": "2026-01-01", "quick": False, "rounds": 3, "seconds": 1, "missing": {},
            "parts": 1, "order": "In turn.",
            "machine": {"cores": 2, "processor": "P", "kernel": "K", "tern": "abc",
                        "load before": "0.10 0.20 0.30"},
            "questions": {"roundtrip-tcp": {
                "title": "T", "about": "A", "axis": "bytes", "notes": [], "metrics": METRICS,
                "seconds": 1.0, "machine": {name: [1.0] * 3 for name, _ in report.DISTURBANCES},
                "missing": {"NCCL": "no GPU"}, "failed": {}, "contenders": points}}}


def row_of(results, what, against):
    return next(r for r in goals.rows(results)
                if r.goal.what == what and r.goal.against == against)


POLLING = ("tcp, 64 B, both polling, round trip", "raw TCP, spinning")


def a_goal_is_met_missed_or_undecided():
    met = row_of(results_of(tern_tcp_poll=[11, 22, 11], raw_tcp_poll=[10, 20, 10]), *POLLING)
    assert met.verdict == "met" and abs(met.ratio.value - 1.1) < 1e-9, met
    missed = row_of(results_of(tern_tcp_poll=[12, 12, 12], raw_tcp_poll=[10, 10, 10]), *POLLING)
    assert missed.verdict == "missed" and abs(missed.ours - 12) < 1e-9 and missed.theirs > 9.99
    noisy_ = row_of(results_of(tern_tcp_poll=[9, 12, 11], raw_tcp_poll=[10, 10, 10]), *POLLING)
    assert noisy_.verdict == "undecided", noisy_


SLEEPING = ("tcp, 64 B, both asleep, round trip", "gRPC byte buffers, sleeping")


def the_peer_with_the_worst_ratio_counts():
    """Peers are compared by the geometric mean of the ratios of the rounds, which is also shown. Their
    medians would choose the other peer."""
    results = results_of(tern_tcp_sleep=[10] * 3, **{"grpc_bytes-unary_sleep": [10, 11, 40],
                                                     "grpc_bytes-stream_sleep": [12, 12, 12]})
    row = row_of(results, *SLEEPING)
    assert row.peer == "grpc.bytes-stream.sleep" and abs(row.theirs - 12) < 1e-9, row
    assert abs(row.ratio.value - 10 / 12) < 1e-9 and row.verdict == "missed", row


def a_row_uses_the_runs_of_tern_next_to_the_peer():
    results = results_of(tern_tcp_poll=[99] * 3, raw_tcp_poll=[10] * 3)
    results["questions"]["roundtrip-tcp"]["contenders"]["raw.tcp.poll"]["beside"] = {
        "tern.tcp.poll": {"64": {"p50_us": [11] * 3}}}
    row = row_of(results, *POLLING)
    assert abs(row.ours - 11) < 1e-9 and row.verdict == "met", row


def goals_compare_like_with_like():
    """In each row with a goal both sides wait in the same way. A row whose sides wait in different ways
    says so, and has no goal."""
    plan = questions.Plan(False, contenders.Maker("build/tern", {}))
    asked = {name: {c.key: c for c in make(plan).contenders}
             for name, make in questions.QUESTIONS.items()}
    for goal in goals.GOALS:
        if goal.question == "verbs":  # Soft-RoCE says little about cards, so its rows have no goal
            assert not goal.sense, goal
            continue
        ours = asked[goal.question][goal.ours]
        peers = [c for key, c in asked[goal.peer_question or goal.question].items()
                 if goal.is_against(key) and c.command]
        same = all(measure.mode(c.wait) == measure.mode(ours.wait) for c in peers)
        assert same != ("not the same mode" in goal.what), goal
        assert same or not goal.sense, goal


def verdicts_are_counted_by_opponent():
    results = results_of(tern_tcp_poll=[11] * 3, raw_tcp_poll=[10] * 3, tern_tcp_sleep=[10] * 3,
                         **{"grpc_bytes-unary_sleep": [10] * 3})
    counts = goals.counted(goals.rows(results))
    assert counts["gRPC"]["missed"] == 1 and counts["raw C and limits"]["met"] == 2, counts
    opponents = {goal.opponent for goal in goals.GOALS}
    assert opponents == set(goals.OPPONENTS), opponents
    for key, want in (("ucx.posix.poll", "shm libraries"), ("ucx*.tcp.poll", "other tcp peers"),
                      ("raw.shm", "raw C and limits"), ("ib_write_bw", "perftest")):
        assert goals.Goal("", "", "", "", "", "", [key]).opponent == want, key
    assert "| gRPC | 0 | 1 | 0 |" in report.counts_table(results)


def losses_are_found_without_a_goal():
    ours, raw = [20, 21, 20], [10, 10, 10]
    results = results_of(tern_tcp_poll=ours, raw_tcp_poll=raw, ucx_tcp_poll=[15, 16, 15],
                         mpi_tcp_poll=[19, 30, 18], raw_tcp_sleep=[1] * 3)
    found = losses.losses(results)
    assert {(x.peer, x.metric) for x in found} == {
        (key, metric) for key in ("ucx.tcp.poll", "raw.tcp.poll")
        for metric in ("p50_us", "p99_us")}, found  # not OpenMPI, whose runs differ too much, nor who sleeps
    assert all(x.is_goal == (x.peer == "raw.tcp.poll") for x in found), found
    text = report.losses_text(results)
    assert "| T | tern_tcp_poll, polling | 64 B | p50 | ucx_tcp_poll | 1.33 [" in text, text
    assert "in no figure" not in text
    none = report.losses_text(results_of(tern_tcp_poll=[1] * 3, raw_tcp_poll=[2] * 3))
    assert none.count("in no figure") == 2, none


def a_loss_where_more_is_better_is_how_much_more_the_peer_has():
    results = results_of(tern_tcp_poll=[5, 5, 5], raw_tcp_poll=[10, 10, 10])
    results["questions"]["roundtrip-tcp"]["metrics"] = [("p50_us", "GB/s", "larger")]
    (loss,) = losses.losses(results)
    assert abs(loss.ratio.value - 2) < 1e-9, loss


def a_goal_without_figures_says_so():
    row = row_of(results_of(raw_tcp_poll=[1, 1, 1]), *POLLING)
    assert not row.verdict and row.why == "not measured"
    row = row_of(results_of(tern_tcp_poll=[1, 1, 1]), *POLLING)
    assert not row.verdict and row.why == "the peer is missing"
    assert "**the peer is missing**" in report.goals_table(results_of(tern_tcp_poll=[1, 1, 1]))


def registrations_are_the_most_of_any_run():
    results = results_of(tern_tcp_poll=[1, 1, 1])
    assert goals.registrations(results).verdict == "met"
    entry = results["questions"]["roundtrip-tcp"]["contenders"]["tern.tcp.poll"]
    entry["points"]["64"]["registrations"] = [0, 2, 0]
    assert goals.registrations(results).verdict == "missed"


def long_tails_are_held_against_the_p50_and_against_the_peers_p99():
    results = results_of(tern_tcp_poll=[10] * 3, raw_tcp_poll=[1] * 3)
    over = row_of(results, "tcp, 64 B, both polling, p99 over p50", "the number")
    assert over.verdict == "met" and abs(over.ours - 2) < 1e-9 and over.theirs is None, over
    row = row_of(results, "tcp, 64 B, both polling, p99", "the p99 of raw TCP, spinning")
    assert row.verdict == "missed" and abs(row.ours - 20) < 1e-9 and abs(row.theirs - 2) < 1e-9


def every_goal_names_a_question_and_contenders_that_exist():
    """A row whose key nobody has would say "not measured" for ever. Each goal's metric must
    also be one of its question's: of Tern's runs beside a peer no others are kept."""
    made, metrics = {}, {}
    for quick in (False, True):
        plan = questions.Plan(quick, contenders.Maker("build/tern", {}))
        for name, make in questions.QUESTIONS.items():
            question = make(plan)
            made.setdefault(name, set()).update(c.key for c in question.contenders)
            metrics[name] = {metric for metric, _, _ in question.metrics}
    for goal in goals.GOALS:
        assert goal.question in made and goal.metric in metrics[goal.question], goal
        assert goal.ours in made[goal.question], f"{goal.what}: {goal.ours}"
        for pattern in goal.peers:
            known = made[goal.peer_question or goal.question]
            assert any(fnmatchcase(key, pattern) for key in known), f"{goal.what}: {pattern}"


def only_a_full_run_asks_rare_ways():
    for name, make in questions.QUESTIONS.items():
        usual, full = ({c.key for c in make(questions.Plan(False, contenders.Maker("tern", {}),
                                                           full=full)).contenders}
                       for full in (False, True))
        assert usual <= full, (name, usual - full)
        if name in ("roundtrip-tcp", "ps"):
            assert full - usual, name


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


def the_model_without_arithmetic_is_linked_with_all_archives_of_the_program():
    built = re.findall(r"static_library\('(tern\w+)'", "".join(
        (TOP / path).read_text() for path in ("meson.build", "kernels/meson.build", "tools/meson.build")))
    linked = (TOP / "bench/meson.build").read_text()
    assert len(built) >= 3 and [name for name in built if f"lib{name}" not in linked] == [], built


def ucx_tells_how_it_was_built():
    told = "#define ENABLE_ASSERT             1\n#define ENABLE_PARAMS_CHECK       0\n"
    assert builds.ucx_text(told) == "with assertions, without checks of parameters"
    assert builds.ucx_text("") == "without assertions, without checks of parameters"


def libraries_have_the_same_malloc_unless_a_row_shows_what_it_brings():
    peers = [*contenders.tcp_peers(), *contenders.shm_peers(), *contenders.ps_peers()]
    without = {peer.key for peer in peers if peer.package != "gcc" and
               contenders.KEEP_MEMORY.items() - peer.environment.items()}
    assert without == {"grpc.bytes-unary.sleep", "grpc.proto-unary.sleep", "grpc.bytes",
                       "grpc.proto"}, without


def a_sweep_changes_one_thing_of_peers_that_exist():
    for make in sweep.SWEEPS.values():
        asked = make()
        for column in asked.columns:
            base = sweep.contender(asked.settings[0], column)
            assert base.command and "--size" in base.command, column
            for setting in asked.settings[1:]:
                changed = sweep.contender(setting, column)
                assert changed.environment != base.environment, setting
                assert changed.command == base.command, setting


def a_sweep_says_how_many_times_as_long_a_setting_takes():
    asked = sweep.Sweep("About.", [sweep.Column("p", 64, 1), sweep.Column("q", 64, 1, "bw", 16)],
                        [sweep.Setting("base"), sweep.Setting("fast", {"A": "1"})])
    values = iter([1.0, 2.0, 20.0, 10.0, 4.0, 1.0, 10.0, 10.0])
    with mock.patch.object(sweep, "value_of", lambda setting, column: next(values)), \
            contextlib.redirect_stderr(io.StringIO()):
        found = sweep.measured(asked, 2)
    lines = sweep.table(asked, found).splitlines()
    assert lines[2] == "| base | 2.83 | 10.0 |", lines
    assert [word.split(" [")[0] for word in lines[3].split(" | ")[1:]] == ["0.35", "0.71"], lines
    assert sweep.cell([1.0, None], [1.0, 1.0], asked.columns[0]) == "fails"


def training_is_installed_for_only_if_it_is_asked():
    with mock.patch.dict(install.EXTRAS, {"torch": (lambda: False, None)}):
        assert [("torch" in install.peers(True, False, asked)) for asked in ((), ("torch",))] == [False, True]


def a_wheel_is_installed_unless_it_is_there_in_its_version():
    with tempfile.TemporaryDirectory() as directory:
        wanted = install.Environment(Path(directory), "some-wheel==2.0", "1 MB", ("--no-deps",))

        def answers():
            said, steps = [], []
            with mock.patch.object(install, "run_steps", lambda *asked: steps.extend(asked) or "ERROR: no such wheel"):
                return wanted.install(said.append), said, [" ".join(step[-3:]) for step in steps]

        for version, there in (("1.0", False), ("2.0", True)):
            record = Path(directory) / f"lib/python3.11/site-packages/some_wheel-{version}.dist-info/RECORD"
            record.parent.mkdir(parents=True)
            record.touch()
            why, said, steps = answers()
            assert bool(why) == bool(said) == bool(steps) == (not there), (version, why, said, steps)
            assert there or (why, steps[-1]) == ("ERROR: no such wheel", "-q --no-deps some-wheel==2.0"), (why, steps)


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


def trained(key, loss, point="M, 2w", same_steps=True):
    return key, {point: {"loss": loss, "same_steps": same_steps}}


def who_has_another_loss_after_the_same_steps_has_failed():
    apart = [trained("tern.shm", 2.0), trained("tern.shm", 1.0, "M, 1w"), trained("tensorflow", 3.0, same_steps=False)]
    for key, loss in (("tern.tcp", 2.01), ("tern.tcp", math.nan)):
        found = trainers.disagreeing([*apart, trained(key, loss), trained("torch.ddp", 2.0001)])
        assert list(found) == [key] and "that of torch.ddp 2.0001" in found[key], found
    assert trainers.disagreeing([*apart, trained("tern.tcp", 2.001), trained("torch.ddp", 2.0001)]) == {}


def a_question_may_compare_what_its_contenders_print():
    """Who cannot be right has no figures, and the others have theirs."""
    lines = ('{"size": 1, "p50_us": 2, "loss": %d}' % loss for loss in (5, 5, 7))
    found = [printing(key, line) for key, line in zip("abc", lines)]
    question = measure.Question("q", "Q", "", found, LATENCY, agree=lambda runs: {
        key: "no" for key, points in runs if points["1"]["loss"] != 5})
    record = ask_question(question, 2).as_json()
    assert set(record["contenders"]) == {"a", "b"} and record["failed"] == {"C": "no"}, record


def what_lacks_for_training_is_told():
    for missing, want in (({}, ""), ({"torch": "no room"}, ""),
                          ({"torch": "no room", "python3-torch": "no"}, "torch: no room; python3-torch: no")):
        with mock.patch.object(install, "has_torch", lambda: False):
            asked = trainers.train(questions.Plan(False, contenders.Maker("/nowhere/tern", {
                **missing, "tensorflow-cpu": "not installed"})))
        by_key = {c.key: c for c in asked.contenders}
        assert by_key["torch.ddp"].missing == want and by_key["torch.ddp"].command[0] == install.SYSTEM_PYTHON
        assert by_key["tern.tcp"].missing == (want or "pytern was not built, which needs python3-dev")
        assert by_key["tensorflow"].missing == "tensorflow-cpu: not installed"
        assert bool(asked.notes) == (not want), asked.notes


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
    """The only core moves each byte of the parameters twice at either end, as gradient and as parameters,
    and updates it once: 2 * 2 * 1 ns + 0.5 ns for each of 1,000 bytes."""
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
    least = 256 * 50e6 * (2 * 0.1 + 0.05) / 64  # ns of work at each server
    assert more[0] >= least, "and nobody works faster than it can"


def a_model_has_the_range_of_its_costs():
    def of(metric, values):
        return {"points": {"67108864x16": {metric: values}, "64": {metric: values},
                           "100 MB, 1w 1s": {metric: values}}}
    results = {"bandwidth-tcp": {"contenders": {"tern.tcp.sleep": of("cpu_s_per_gb", [0.4, 0.6])}},
               "rate": {"contenders": {"tern.tcp.sleep": of("cpu_s_per_gb", [9, None, 10])}},
               "ps": {"contenders": {"raw.inplace": of("ms_per_round", [25, 30]),
                                     "tern.tcp": of("ms_per_round", [60, 70])}}}
    found = {which: scaling.series(results, which, 2, 1)[1] for which in scaling.SPREAD}
    for key, point in (("modelled", "4"), ("measured", "1"), ("cluster.8", "1")):
        low, mean, high = (found[which][key][point] for which in ("low", "mean", "high"))
        assert low < mean < high, (key, low, mean, high)
    assert scaling.costs_of({})[1] == "needs the results of bandwidth-tcp"


def a_row_of_several_peers_tells_who_was_not_measured():
    results = results_of(tern_tcp_poll=[1] * 3, ucx_tcp_poll=[2] * 3)
    for entry in results["questions"]["roundtrip-tcp"]["contenders"].values():
        entry["points"][str(64 << 20)] = entry["points"]["64"]
    line = next(line for line in report.goals_table(results).splitlines()
                if "64 MiB, 1 in flight, both polling" in line and "UCX, OpenMPI" in line)
    assert "(ucx_tcp_poll; not measured: mpi*.tcp.poll, libfabric*.tcp.poll)" in line, line


def the_report_has_figures_and_what_is_missing():
    results = results_of(tern_tcp_poll=[11, 12, 13], raw_tcp_poll=[10, 10, 10])
    text = report.text(results)
    assert "12.0 (11.0..13.0)" in text and "Missing: NCCL: no GPU." in text
    assert "| **tern_tcp_poll** | poll |" in text and "not idle" not in text
    assert "bootstrap" in text.split("## Goals")[0]
    results["machine"]["load before"] = "1.72 1.52 1.64"
    assert "**The machine was not idle**: its load was 1.72" in report.text(results)


def a_p999_is_shown_of_sizes_with_enough_messages():
    question = {"axis": "bytes of a tensor"}
    assert losses.is_telling(question, "p999_us", str(1 << 16))
    assert not losses.is_telling(question, "p999_us", str(1 << 20))
    assert losses.is_telling(question, "p99_us", str(1 << 20))
    asked = questions.roundtrip_tcp(questions.Plan(True, contenders.Maker("build/tern", {})))
    assert ("p999_us", "us", "smaller") in asked.metrics


def sittings_are_pooled_round_by_round():
    first, second = (results_of(tern_tcp_poll=values, raw_tcp_poll=[10, 10, 10])
                     for values in ([11, 12, 13], [14, 15, 16]))
    contenders_ = second["questions"]["roundtrip-tcp"]["contenders"]
    contenders_["raw.tcp.poll"]["beside"] = {"tern.tcp.poll": {"64": {"p50_us": [1, 2, 3]}}}
    contenders_["ucx.tcp.poll"] = contenders_["raw.tcp.poll"]
    found = sittings.pooled([first, second])
    made = found["questions"]["roundtrip-tcp"]["contenders"]
    assert made["tern.tcp.poll"]["points"]["64"]["p50_us"] == [11, 12, 13, 14, 15, 16]
    assert made["raw.tcp.poll"]["beside"]["tern.tcp.poll"]["64"]["p50_us"] == [None] * 3 + [1, 2, 3]
    assert made["ucx.tcp.poll"]["points"]["64"]["p50_us"] == [None] * 3 + [10] * 3
    assert (found["rounds"], found["parts"]) == (6, 2)
    assert "in 2 sittings" in report.text(found)
    assert sittings.pooled([first]) == {**first, "seconds": 1}


def sittings_of_other_machines_or_commits_are_not_pooled():
    for name, value in (("cores", 4), ("tern", "def")):
        other = results_of(tern_tcp_poll=[1] * 3)
        other["machine"][name] = value
        try:
            sittings.pooled([results_of(tern_tcp_poll=[1] * 3), other])
            assert False, "must be refused"
        except journal.Refused as why:
            assert f"is {value}" in str(why), why


# A tool like ucx_perftest: its server takes the first connection to be that of its client.
PING_PONG = """
import socket, sys
at = "127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])
if at[0] in sys.argv:
    socket.create_connection(at).close()
    print("iterations,50.0_percentile_lat,avg_lat\\n40,0.250,9")
else:
    socket.create_server(at).accept()
"""


def a_librarys_own_tool_is_asked_for_its_median():
    with tempfile.TemporaryDirectory() as directory:
        tool = Path(directory) / "tool"
        tool.write_text(f"#!{sys.executable}\n{PING_PONG}")
        tool.chmod(0o755)
        assert own_tool.ucx_perftest(str(tool), 8, 40) == 0.25
        tool.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no such device')\n")
        try:
            own_tool.ucx_perftest(str(tool), 8, 40)
        except SystemExit as why:
            assert "no such device" in str(why), why
        else:
            raise AssertionError("a tool that fails gives no figure")


def a_library_stands_beside_its_own_tool():
    line = '{"size": 8, "version": "1", "p50_us": 3.0, "msgs_per_s": 250000.0}'
    for tool, want in (("ucx_perftest", 1.5), ("fi_pingpong", 2.0)):
        assert contenders.half_trips(tool)(line)[0]["half_trip_us"] == want, tool
    asked = questions.calibration(questions.Plan(False, contenders.Maker("tern", {})))
    pairs = measure.neighbourhoods(asked.contenders)
    assert len(pairs) >= 5 and all(
        pair.key.removeprefix("pair.") == tool.key.removeprefix("tool.") and
        pair.environment == tool.environment for pair, (tool,) in pairs), pairs
    leading = printing("pair.a", '{"size": 8, "p50_us": 3}', leads=True)
    record = ask([leading, printing("tool.a", '{"size": 8, "p50_us": 2}')], 2)
    tool = record.found["tool.a"]
    assert tool["beside"] == {"pair.a": {"8": {"p50_us": [3.0, 3.0]}}}, tool
    assert not record.found["pair.a"]["ours"], "a library is not Tern"


def a_machine_that_is_not_idle_is_waited_for_only_so_long():
    said = []
    for loads, want in (([0.2], 0.2), ([0.9, 0.5, 0.3], 0.3), ([2.0] * 9, 2.0)):
        left = iter(loads)
        with mock.patch.object(machine.os, "getloadavg", lambda: (next(left), 0, 0)), \
                mock.patch.object(machine.time, "sleep", lambda seconds: None), \
                mock.patch.object(machine.time, "monotonic", iter(range(99)).__next__):
            assert machine.load_after_waiting(said.append, limit_s=5) == want, loads
    assert len(said) == 2 and "waiting until it is 0.3" in said[0], said


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


def a_row_of_the_readme_names_version_and_build_of_the_peer():
    key, title = "grpc.bytes-stream.malloc.sleep", "gRPC, byte buffers, stream"
    results = results_of(tern_tcp_sleep=[1] * 3, **{key.replace(".", "_"): [2] * 3})
    entry = results["questions"]["roundtrip-tcp"]["contenders"][key]
    entry.update(title=title, version="1.51.1")
    for contender in results["questions"]["roundtrip-tcp"]["contenders"].values():
        contender["points"]["4096"] = contender["points"]["64"]
    results["machine"]["build of gRPC"] = "with assertions"
    row = next(line for line in report.readme_table(results).splitlines() if title in line)
    assert f"({title}: 1.51.1, with assertions)" in row, row
    entry["version"] = results["machine"]["kernel"]
    assert report.build_text(entry, results) == "with assertions"
    assert report.build_text({"title": "raw TCP", "version": "K"}, results) == ""


def numbers_have_three_digits():
    assert [figures.number_text(v) for v in (0, 0.0123, 0.5, 1.234, 12.34, 123.4, 1234.5)] == [
        "0", "0.012", "0.50", "1.23", "12.3", "123", "1,234"]
    assert figures.size_text(4096) == "4 KiB" and figures.size_text(100) == "100 B"
    assert figures.rounds_of(64, 2000) == 2000 and figures.rounds_of(256 << 20, 2000) == 3


tap.run([
    terns_neighbours_wait_as_it_does,
    peers_belong_to_the_block_of_ours_before_them,
    orders_come_in_pairs_that_mirror_each_other_and_differ_from_pair_to_pair,
    a_peers_ratio_is_taken_with_the_run_of_tern_next_to_it,
    a_round_without_a_value_keeps_its_place,
    each_round_tells_what_else_the_machine_did,
    results_have_commands_and_environments,
    each_round_adds_one_value_of_each_metric,
    a_contender_that_fails_is_named_and_has_no_figures,
    a_contender_that_hangs_is_ended_with_all_its_processes,
    a_contender_that_prints_nothing_has_failed,
    what_is_missing_is_told_and_not_run,
    ratios_are_taken_within_a_round,
    a_ratio_is_the_quotient_of_the_figures_beside_it,
    an_interval_has_the_true_mean_in_it_as_often_as_it_says,
    an_interval_is_the_same_in_every_run,
    a_verdict_needs_the_whole_interval,
    a_goal_is_met_missed_or_undecided,
    the_peer_with_the_worst_ratio_counts,
    a_row_uses_the_runs_of_tern_next_to_the_peer,
    goals_compare_like_with_like,
    verdicts_are_counted_by_opponent,
    losses_are_found_without_a_goal,
    a_loss_where_more_is_better_is_how_much_more_the_peer_has,
    a_goal_without_figures_says_so,
    registrations_are_the_most_of_any_run,
    long_tails_are_held_against_the_p50_and_against_the_peers_p99,
    every_goal_names_a_question_and_contenders_that_exist,
    only_a_full_run_asks_rare_ways,
    runs_of_a_question_are_unique,
    peers_that_could_not_be_installed_or_built_are_missing,
    the_model_without_arithmetic_is_linked_with_all_archives_of_the_program,
    ucx_tells_how_it_was_built,
    libraries_have_the_same_malloc_unless_a_row_shows_what_it_brings,
    a_sweep_changes_one_thing_of_peers_that_exist,
    a_sweep_says_how_many_times_as_long_a_setting_takes,
    training_is_installed_for_only_if_it_is_asked,
    a_wheel_is_installed_unless_it_is_there_in_its_version,
    a_quick_run_neither_asks_nor_installs_peers_in_python,
    results_are_json_with_a_line_for_each_point,
    other_runs_of_a_contender_that_failed_are_dropped_too,
    a_question_may_measure_all_its_rounds_itself,
    who_has_another_loss_after_the_same_steps_has_failed,
    a_question_may_compare_what_its_contenders_print,
    what_lacks_for_training_is_told,
    perftests_values_are_read,
    a_virtual_machine_leaves_its_values_in_a_file_or_says_why_not,
    a_model_of_one_core_takes_the_sum_of_all_work,
    a_model_scales_until_its_server_is_busy,
    a_model_has_the_range_of_its_costs,
    a_row_of_several_peers_tells_who_was_not_measured,
    the_report_has_figures_and_what_is_missing,
    a_p999_is_shown_of_sizes_with_enough_messages,
    sittings_are_pooled_round_by_round,
    sittings_of_other_machines_or_commits_are_not_pooled,
    a_librarys_own_tool_is_asked_for_its_median,
    a_library_stands_beside_its_own_tool,
    a_machine_that_is_not_idle_is_waited_for_only_so_long,
    the_readme_changes_between_its_marks_only,
    the_readme_shows_five_rows_each_of_which_is_a_goal,
    a_row_of_the_readme_names_version_and_build_of_the_peer,
    numbers_have_three_digits,
])
