#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `./run bench --check` (bench/check.py, bench/base.py): which contender is measured beside which,
which figures count as moved, and whole runs against a second commit of a small repository. Contenders are
scripts with made-up figures; nothing is measured.

usage: bench_check.py
"""
import contextlib
import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
sys.path.insert(0, str(TOP / "bench"))
import tap  # noqa: E402
import base as base_tree  # noqa: E402
import bench  # noqa: E402
import check  # noqa: E402
import figures  # noqa: E402
import measure  # noqa: E402
from journal import Refused  # noqa: E402

METRICS = [("p50_us", "us", "smaller"), ("told_only", "us", "smaller")]
# The first commit of the small repository: its `run build` makes build/tern, and the peer is a script in its
# bench/.
FILES = {"run": "#!/bin/sh\ncd \"$(dirname $0)\" && mkdir -p build && cp tern.sh build/tern\n",
         "tern.sh": "#!/bin/sh\necho '{\"size\": 64, \"p50_us\": 10, \"told_only\": 1}'\n",
         "bench/peer.sh": "#!/bin/sh\necho '{\"size\": 64, \"p50_us\": 40, \"told_only\": 1}'\n"}
HERE = {"processor": "P", "cores": 2, "load before": "0.1", "tern": "abc"}


class Repository:
    """A repository with one commit, and what ./run bench says of its working tree."""

    def __init__(self, directory):
        self.top = Path(directory).resolve()
        for name, text in FILES.items():
            self.put(name, text)
        self.git("init", "-q", "-b", "main")
        self.git("add", ".")
        self.commit("top: begin")
        self.questions = {"first": self.question}

    def git(self, *words):
        subprocess.run(["git", "-C", str(self.top), *words], check=True)

    def commit(self, subject, *options):
        self.git("-c", "user.name=N", "-c", "user.email=E", "commit", "-q", "-m", subject, *options)

    def put(self, name, text):
        path = self.top / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def change(self, name, old, new):
        text = (self.top / name).read_text()
        assert old in text
        self.put(name, text.replace(old, new))

    def question(self, _plan):
        return measure.Question("first", "First", "About.", [
            measure.Contender("tern.tcp.poll", "Tern", [str(self.top / "build/tern")], ours=True,
                              wait="poll"),
            measure.Contender("raw", "Raw", [str(self.top / "bench/peer.sh")], wait="poll")], METRICS)

    def base(self, name="HEAD"):
        with mock.patch.object(base_tree.install, "BUILD", self.top / "build-bench"):
            return base_tree.Base(name, self.top / "build", self.top)

    def bench(self, *arguments):
        """Exit code and output of ./run bench."""
        subprocess.run([str(self.top / "run"), "build"], cwd=self.top, check=True)
        said = io.StringIO()
        real = base_tree.Base
        with contextlib.ExitStack() as stack:
            for target, name, value in (
                    (bench, "QUESTIONS", self.questions), (bench, "TOP", self.top),
                    (bench, "COMMITTED", self.top / "docs"), (bench, "Base",
                     lambda name, build: real(name, build, self.top)),
                    (bench.install, "BUILD", self.top / "build-bench"),
                    (bench.install, "peers", lambda *_: {}),
                    (bench.install, "build", lambda *told: ""),
                    (bench.machine, "describe", lambda: dict(HERE)),
                    (bench.machine, "load_after_waiting", lambda say: 0),
                    (sys, "argv", ["bench.py", "--tern", str(self.top / "build/tern"),
                                   "--rounds", "4", *arguments])):
                stack.enter_context(mock.patch.object(target, name, value))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.redirect_stdout(said))
            try:
                code = bench.main()
            except SystemExit as end:
                code = end.code
        return code, said.getvalue()


def in_repository(case):
    def run():
        with tempfile.TemporaryDirectory() as directory:
            case(Repository(directory))
    run.__name__ = case.__name__
    return run


# ---- whole runs ----

@in_repository
def a_tree_without_a_change_is_the_same(repository):
    code, said = repository.bench("--check", "--base", "HEAD", "--strict")
    assert code == 0 and said.count("top: begin") == 2, said
    assert "top: begin: 0 worse, 0 better, 1 the same" in said and "Raw" not in said, said
    assert not (repository.top / "docs").exists()
    kept = json.loads((repository.top / "build-bench/check/results.json").read_text())
    assert list(kept["questions"]["first"]["contenders"]) == ["tern.tcp.poll", "tern.tcp.poll@base"]


@in_repository
def a_slower_tern_is_worse_and_fails_only_if_that_is_asked_for(repository):
    repository.change("tern.sh", ": 10", ": 15")
    for strict, want in (([], 0), (["--strict"], 1)):
        code, said = repository.bench("--check", "--base", "HEAD", *strict)
        assert code == want and "top: begin: 1 worse, 0 better, 0 the same" in said, said
        for words in ("first: 1 of 1 figures seem to have moved", "first, again: round 12 of 12",
                      "worse: first, Tern, poll, 64, p50_us: 10.0 -> 15.0 us, 1.500 ["):
            assert words in said, (words, said)


@in_repository
def a_slower_peer_makes_tern_better(repository):
    repository.change("bench/peer.sh", ": 40", ": 50")
    code, said = repository.bench("--check", "--base", "HEAD", "--strict")
    assert code == 0 and "top: begin: 0 worse, 1 better, 1 the same" in said, said
    assert "better: first, Raw, a peer, poll, 64, p50_us: 40.0 -> 50.0 us, 1.250 [" in said, said
    code, said = repository.bench("--check", "--base", "HEAD", "--no-peers")
    assert code == 0 and "top: begin: 0 worse, 0 better, 1 the same" in said, said
    repository.change("bench/peer.sh", ": 50", ": 30")
    code, said = repository.bench("--check", "--base", "HEAD", "--strict")
    assert code == 1 and "worse: first, Raw, a peer" in said, said


@in_repository
def what_only_the_first_sitting_sees_has_not_moved(repository):
    """The tree's tern is slow in its first four runs, which are the first sitting, as if the machine
    had been slow then. In the second sitting it is as fast as the base."""
    repository.put("tern.sh", "#!/bin/sh\necho >> $0.log; n=$(wc -l < $0.log); p50=10\n"
                   "case $0 in *base*) ;; *) [ $n -gt 4 ] || p50=15 ;; esac\n"
                   "echo \"{\\\"size\\\": 64, \\\"p50_us\\\": $p50}\"\n")
    repository.commit("top: log", "-a")
    code, said = repository.bench("--check", "--base", "HEAD")
    assert code == 0 and "1 of 1 figures seem to have moved" in said, said
    assert "top: log: 0 worse, 0 better, 1 the same" in said, said


@in_repository
def the_base_is_the_commit_of_the_committed_report_if_none_is_named(repository):
    repository.put("docs/results.json", json.dumps({"machine": {"tern": "HEAD-dirty"}}))
    code, said = repository.bench("--check")
    assert code == 0 and "top: begin: 0 worse" in said, said
    (repository.top / "docs/results.json").unlink()
    code, said = repository.bench("--check")
    assert code == 2 and said.count("\n") == 1 and "name a commit with --base" in said, said


@in_repository
def what_cannot_be_a_base_is_refused_in_a_line(repository):
    for arguments, words in ((("--check", "--base", "nowhere"), "--base nowhere: no commit"),
                             (("--check", "--base", "-x"), "expected one argument"),
                             (("--base", "HEAD"), "--base: only with --check"),
                             (("--no-peers",), "--no-peers: only with --check"),
                             (("--check", "--out", "x"), "--out: not with --check")):
        code, said = repository.bench(*arguments)
        assert code == 2 and words in said.splitlines()[-1], said
    repository.put("run", "#!/bin/sh\necho no gcc >&2; exit 1\n")
    repository.commit("top: break", "-a")
    repository.put("run", FILES["run"])
    code, said = repository.bench("--check", "--base", "HEAD")
    assert code == 2 and "it cannot be built: no gcc" in said.splitlines()[-1], said


@in_repository
def a_stopped_check_goes_on_with_the_same_base(repository):
    repository.put("tern.sh", f"#!/bin/sh\n[ ! -e {repository.top}/stop ] || {{ kill -TERM "
                   f"{os.getpid()}; sleep 60; }}\necho '{{\"size\": 64, \"p50_us\": 10}}'\n")
    repository.put("stop", "")
    code, said = repository.bench("--check", "--base", "HEAD")
    assert code == 143 and "Not measured: first" in said, said
    (repository.top / "stop").unlink()
    repository.commit("top: next", "--allow-empty")
    code, said = repository.bench("--check", "--base", "HEAD", "--resume")
    assert code == 2 and "options: base was" in said, said
    code, said = repository.bench("--check", "--base", "HEAD~1", "--resume")
    assert code == 0 and "1 the same" in said, said


@in_repository
def what_is_measured_at_once_or_does_not_differ_is_named(repository):
    repository.questions = {
        "whole": lambda plan: measure.Question("whole", "W", "", [], METRICS,
                                               all_rounds=lambda rounds: {}),
        "raw": lambda plan: measure.Question("raw", "R", "", repository.question(plan).contenders[1:],
                                             METRICS)}
    code, said = repository.bench("--check", "--base", "HEAD")
    assert code == 0 and "not compared: whole: it measures all of its rounds at once" in said, said
    assert "not compared: raw: no program of it differs" in said, said


@in_repository
def a_failure_is_told_and_is_no_verdict(repository):
    repository.put("tern.sh", "#!/bin/sh\necho broken >&2; exit 1\n")
    code, said = repository.bench("--check", "--base", "HEAD")
    assert code == 1 and "not complete: first: Tern: exit status 1: broken" in said, said
    assert "0 worse, 0 better, 0 the same" in said, said


# ---- parts ----

@in_repository
def a_twin_runs_the_files_of_the_base_and_shares_what_is_installed(repository):
    base, top = repository.base(), repository.top
    for word, want in ((top / "build/tern", "build-bench/base/build/tern"),
                       (top / "build-bench/peers/raw", "build-bench/base/build-bench/peers/raw"),
                       (top / "bench/own_tool.py", "build-bench/base/bench/own_tool.py"),
                       (top / "build-bench/two.svm", None), ("/usr/bin/python3", None),
                       ("--size", None), ("64", None)):
        with mock.patch.object(base, "shared", (top / "build-bench/two.svm",)):
            assert base.path(str(word)) == (want and top / want), word
    peer = measure.Contender("k", "T", ["sh", str(top / "bench/peer.sh")],
                             {"LD_PRELOAD": str(top / "none.so"), "A": "b"})
    assert base.twin(peer).missing == "the base has no peer.sh, none.so"
    base.check_out()
    twin = base.twin(peer)
    assert (twin.key, twin.ours, twin.missing) == ("k@base", False, "the base has no none.so")
    assert twin.command == ["sh", str(base.tree / "bench/peer.sh")]
    assert twin.environment == {"LD_PRELOAD": str(base.tree / "none.so"), "A": "b"}


@in_repository
def a_base_is_built_once_for_each_commit(repository):
    base = repository.base()
    base.check_out()
    (base.tree / "built").write_text("")
    repository.base().check_out()
    assert (base.tree / "built").exists()
    repository.commit("top: next", "--allow-empty")
    repository.base().check_out()
    assert not (base.tree / "built").exists()
    try:
        repository.base("--all")
        assert False, "must be refused"
    except Refused:
        pass


def a_contender_runs_next_to_its_twin_in_turns():
    tern = [measure.Contender(key, key, ["true"], wait="poll", fabric="tcp", ours=True)
            for key in ("a", "b")]
    base = mock.Mock()
    base.twin = lambda c: measure.Contender(c.key + "@base", "", ["true"], wait=c.wait, fabric=c.fabric)
    both = check.pairs(measure.Question("q", "Q", "", tern, METRICS), base, True, None)
    groups = [[c.key for c in group] for number in range(2)
              for group in measure.order(both.contenders, "q", number)]
    assert sorted(groups) == [["a", "a@base"], ["a@base", "a"], ["b", "b@base"], ["b@base", "b"]]
    assert both.metrics == METRICS[:1]


def move_of(values, less_is_better=True, ours=True, confidence=check.SUSPECTED):
    return check.Move({"ours": ours, "title": "T", "wait": "poll"}, ("k", "64", "p50_us"), "us",
                      less_is_better, 1, 1, figures.student_interval(values, confidence))


def verdicts_are_about_tern():
    for value, less, ours, want in ((1.2, True, True, "worse"), (0.8, True, True, "better"),
                                    (1.2, False, True, "better"), (1.2, True, False, "better"),
                                    (0.8, True, False, "worse")):
        assert move_of([value, value * 1.001] * 4, less, ours).verdict_on_tern == want, (value, less)
    assert move_of([0.9, 1.1] * 4).verdict == move_of([2.0]).verdict == "same"


def of_noise(dice, noise, factor=1.0, rounds=8, confidence=check.SUSPECTED):
    return move_of([factor * math.exp(dice.gauss(0, noise)) for _ in range(rounds)],
                   confidence=confidence).verdict


def both_sittings(dice, noise, factor=1.0):
    first = of_noise(dice, noise, factor)
    return first if first == "same" or first == of_noise(
        dice, noise, factor, 8 * check.AGAIN_ROUNDS, check.CONFIRMED) else "same"


def noise_moves_nothing_in_five_runs_of_two_hundred_figures():
    dice = random.Random(4)
    for noise in (0.01, 0.05, 0.3):
        assert {both_sittings(dice, noise) for _ in range(5 * 200)} == {"same"}, noise


def sittings_err_as_often_as_they_say():
    dice = random.Random(5)
    wrong = sum(of_noise(dice, 0.05) != "same" for _ in range(5000))
    assert 430 <= wrong <= 570, wrong
    wrong = sum(of_noise(dice, 0.05, rounds=24, confidence=check.CONFIRMED) != "same"
                for _ in range(5000))
    assert wrong <= 12, wrong


def a_change_of_a_tenth_is_seen_through_noise_of_a_twentieth():
    dice = random.Random(6)
    for factor, want in ((1.1, "worse"), (1 / 1.1, "better")):
        found = [both_sittings(dice, 0.05, factor) for _ in range(200)]
        assert found.count(want) >= 195, (factor, found.count(want))


def students_distribution_is_that_of_the_tables():
    for freedom, below, want in ((1, 0.975, 12.706), (2, 0.975, 4.303), (3, 0.975, 3.182),
                                 (7, 0.975, 2.365), (1, 0.995, 63.657), (2, 0.995, 9.925),
                                 (3, 0.995, 5.841), (7, 0.995, 3.499), (15, 0.995, 2.947)):
        found = figures.student(freedom, below)
        assert abs(found / want - 1) < 0.04, (freedom, below, found)


tap.run([
    a_tree_without_a_change_is_the_same,
    a_slower_tern_is_worse_and_fails_only_if_that_is_asked_for,
    a_slower_peer_makes_tern_better,
    what_only_the_first_sitting_sees_has_not_moved,
    the_base_is_the_commit_of_the_committed_report_if_none_is_named,
    what_cannot_be_a_base_is_refused_in_a_line,
    a_stopped_check_goes_on_with_the_same_base,
    what_is_measured_at_once_or_does_not_differ_is_named,
    a_failure_is_told_and_is_no_verdict,
    a_twin_runs_the_files_of_the_base_and_shares_what_is_installed,
    a_base_is_built_once_for_each_commit,
    a_contender_runs_next_to_its_twin_in_turns,
    verdicts_are_about_tern,
    noise_moves_nothing_in_five_runs_of_two_hundred_figures,
    sittings_err_as_often_as_they_say,
    a_change_of_a_tenth_is_seen_through_noise_of_a_twentieth,
    students_distribution_is_that_of_the_tables,
])
