#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of runs of ./run bench that are stopped and resumed: what they keep, what they measure again, and
what they refuse. Contenders are small scripts; nothing is measured.

usage: bench_runs.py
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
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
sys.path.insert(0, str(TOP / "bench"))
import tap  # noqa: E402
import bench  # noqa: E402
import measure  # noqa: E402
from journal import Journal, differences  # noqa: E402

METRICS = [("p50_us", "us", "smaller")]
HERE = {"processor": "P", "cores": 2, "kernel": "K", "memory": "24684100 kB",
        "load before": "0.1", "tern": "abc"}


class Place:
    """A directory with contenders that log each run, and fail when a test wants it."""

    def __init__(self, directory):
        self.top = Path(directory)
        self.log = self.top / "log"
        self.load = 0.1
        self.begun = []  # what a run does before it measures: installs, waits

    def contender(self, name, line='{"size": 64, "p50_us": 2.0}', **more):
        """A contender whose N-th run starts with the script $PLACE/NAME-N, if that file exists."""
        script = (f"echo {name} >> {self.log}; n=$(grep -cx {name} {self.log}); "
                  f"[ ! -e {self.top}/{name}-$n ] || . {self.top}/{name}-$n; echo '{line}'")
        return measure.Contender(name, name.upper(), ["sh", "-c", script], **more)

    def acts(self, name, number, script):
        (self.top / f"{name}-{number}").write_text(script)

    def begin(self, what):
        self.begun.append(what)

    def ran(self):
        return "".join(self.log.read_text().split())

    def bench(self, *arguments, machine=HERE):
        """Runs ./run bench with two questions of this test's own. Returns (exit code, output)."""
        contenders = [self.contender("a", ours=True), self.contender("b")]
        questions = {name: lambda plan, name=name: measure.Question(
            name, name, "About.", contenders, METRICS) for name in ("first", "second")}
        said = io.StringIO()
        before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
        program = self.top / "tern"
        if not program.exists():
            program.write_text("1")
        with contextlib.ExitStack() as stack:
            for target, name, value in (
                    (bench, "QUESTIONS", questions), (bench, "COMMITTED", self.top / "docs"),
                    (bench, "INCOMPLETE", self.top / "incomplete"),
                    (bench.install, "BUILD", self.top / "build"),
                    (bench.install, "peers", lambda *_: self.begin("installs") or {}),
                    (bench.install, "programs", lambda build, grpc: None),
                    (bench.machine, "describe", lambda: dict(machine)),
                    (bench.report, "update_readme", lambda path, results: True),
                    (bench.machine, "load_after_waiting", lambda say: self.begin("waits") or self.load),
                    (measure, "shuffled", lambda items, dice: list(items)),
                    (sys, "argv", ["bench.py", "--tern", str(program), *arguments])):
                stack.enter_context(mock.patch.object(target, name, value))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.redirect_stdout(said))
            try:
                code = bench.main()
            except SystemExit as end:
                code = end.code
        for number, handler in before.items():
            signal.signal(number, handler)
        return code, said.getvalue()

    def results(self, where="docs"):
        path = self.top / where / "results.json"
        return json.loads(path.read_text()) if path.exists() else None


def in_place(case):
    def run():
        with tempfile.TemporaryDirectory() as directory:
            case(Place(directory))
    run.__name__ = case.__name__
    return run


KILL_BENCH = f"kill -TERM {os.getpid()}; sleep 60"


@in_place
def a_run_that_is_not_stopped_writes_its_report_and_leaves_nothing(place):
    code, said = place.bench("--rounds", "2")
    assert code == 0 and place.ran() == "abbaabba", (code, said, place.ran())
    assert place.results()["parts"] == 1 and not list((place.top / "build").iterdir())


@in_place
def a_killed_run_says_what_is_missing_and_writes_no_report(place):
    place.acts("a", 5, KILL_BENCH)  # killed in the second of three rounds of the second question
    code, said = place.bench("--rounds", "3")
    assert code == 128 + signal.SIGTERM, code
    assert "Not measured: second from round 2" in said and "--resume" in said, said
    assert place.results() is None


@in_place
def a_resumed_run_measures_the_broken_round_again_and_the_rest(place):
    place.acts("a", 5, KILL_BENCH)
    code, said = place.bench("--rounds", "3")
    assert code == 143 and place.ran() == "abbaab" "ab" "ba", (code, place.ran())
    code, said = place.bench("--rounds", "3", "--resume")
    assert code == 0 and place.ran() == "abbaab" "ab" "ba" "ba" "ab", (said, place.ran())
    results = place.results()
    assert results["parts"] == 2
    for question in results["questions"].values():
        for entry in question["contenders"].values():
            assert entry["points"]["64"]["p50_us"] == [2.0] * 3, question
    assert "in 2 sittings" in (place.top / "docs/README.md").read_text()


@in_place
def a_resumed_run_has_the_figures_of_one_that_was_not_stopped(place):
    place.acts("a", 2, KILL_BENCH)
    place.bench("--rounds", "3")
    place.bench("--rounds", "3", "--resume")
    resumed = place.results()
    with tempfile.TemporaryDirectory() as directory:
        whole = Place(directory)
        whole.bench("--rounds", "3")
        for name, question in whole.results()["questions"].items():
            found = resumed["questions"][name]
            assert [entry.pop("commands") != [] and entry.pop("took_s") < 60
                    for q in (question, found) for entry in q["contenders"].values()] == [True] * 4
            same = {"seconds": 0, "machine": {}}
            assert {**question, **same} == {**found, **same}, (question, found)


@in_place
def a_run_is_resumed_with_the_same_machine_commit_and_options_only(place):
    place.acts("a", 2, KILL_BENCH)
    place.bench("--rounds", "3")
    for change, machine, words in (
            (("--rounds", "2"), HERE, "options: rounds was 3, is 2"),
            (("--rounds", "3", "--quick"), HERE, "options: quick was False, is True"),
            (("--rounds", "3", "first"), HERE, "options: questions was first second, is first"),
            (("--rounds", "3"), {**HERE, "kernel": "L"}, "machine: kernel was K, is L"),
            (("--rounds", "3"), {**HERE, "tern": "def"}, "commit was abc, is def")):
        code, said = place.bench(*change, "--resume", machine=machine)
        assert code == 2 and said.startswith("bench: ") and said.count("\n") == 1, said
        assert words in said, (words, said)
    assert place.bench("--rounds", "3", "--resume", machine={**HERE, "memory": "9"})[0] == 2
    (place.top / "tern").write_text("2")
    code, said = place.bench("--rounds", "3", "--resume")
    assert code == 2 and "commit: program was" in said, said
    (place.top / "tern").write_text("1")
    later = {**HERE, "memory": "24684120 kB", "load before": "9"}
    assert place.bench("--rounds", "3", "--resume", machine=later)[0] == 0


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (OSError, IndexError):
        return False


@in_place
def what_kills_a_run_at_once_ends_its_contender_too(place):
    pid = place.top / "pid"
    runner = subprocess.Popen([sys.executable, "-c", (
        f"import sys; sys.path.insert(0, {str(TOP / 'bench')!r}); import measure; "
        f"measure.run_group(['sh', '-c', 'echo $$ > {pid}.new; mv {pid}.new {pid}; "
        "exec sleep 60'], 60)")])
    while not pid.exists():  # without a limit of its own: the suite has one
        time.sleep(0.01)
    runner.kill()
    runner.wait()
    while is_alive(pid.read_text().strip()):
        time.sleep(0.01)


@in_place
def there_must_be_something_to_resume(place):
    code, said = place.bench("--resume")
    assert code == 2 and said == "bench: there is no unfinished run to go on with\n", said


@in_place
def a_peer_that_fails_once_is_run_once_more_and_that_is_told(place):
    place.acts("b", 2, "echo no >&2; exit 1")
    code, said = place.bench("--rounds", "2", "first")
    assert code == 0 and place.ran() == "ab" "bba", (code, said, place.ran())
    notes = place.results()["questions"]["first"]["notes"]
    assert notes == ["B failed in round 2 (exit status 1: no) and was run once more."], notes


@in_place
def tern_is_not_run_once_more(place):
    place.acts("a", 1, "echo no >&2; exit 1")
    code, said = place.bench("--rounds", "1", "first")
    assert code == 1 and "first: A: exit status 1: no" in said, said


@in_place
def a_run_with_a_failure_leaves_the_committed_report_and_can_be_completed(place):
    assert place.bench("--rounds", "3")[0] == 0
    committed = (place.top / "docs/results.json").read_text()
    place.log.write_text("")
    for number in (2, 3):
        place.acts("b", number, "exit 1")
    code, said = place.bench("--rounds", "3", "first")
    assert code == 1 and place.ran() == "ab" "bba" "a", place.ran()
    assert "not complete: first: B: exit status 1" in said, said
    assert (place.top / "docs/results.json").read_text() == committed
    assert "**Not complete**" in (place.top / "incomplete/README.md").read_text()
    place.log.write_text("")
    for number in (2, 3):
        (place.top / f"b-{number}").unlink()
    code, said = place.bench("--rounds", "3", "first", "--resume")
    assert code == 0 and place.ran() == "ba" "ab", (said, place.ran())


@in_place
def questions_are_put_among_results_of_the_same_machine_only(place):
    assert place.bench("--rounds", "2")[0] == 0
    code, said = place.bench("--rounds", "2", "second", machine={**HERE, "cores": 4})
    assert code == 2 and "machine: cores was 2, is 4" in said, said
    code, said = place.bench("--rounds", "3", "second")
    assert code == 2 and "rounds was 2, is 3" in said, said
    code, said = place.bench("--rounds", "2", "second", machine={**HERE, "tern": "def"})
    assert code == 0, said
    assert [q["tern"] for q in place.results()["questions"].values()] == ["abc", "def"]
    assert "of commit abc" in (place.top / "docs/README.md").read_text()


@in_place
def another_machine_is_refused_before_anything_is_installed_or_waited_for(place):
    assert place.bench("--rounds", "2")[0] == 0 and place.begun == ["installs", "waits"]
    place.begun.clear()
    late = ["installs", "waits"]  # what installing may change is compared after it
    for here, begun in (({"kernel": "L"}, []), ({"QEMU": "7"}, late), ({"compiler": "gcc 12"}, late),
                        ({"build of UCX": "a"}, late)):
        code, said = place.bench("--rounds", "2", "second", machine={**HERE, **here})
        assert code == 2 and "cannot be put among: machine: " in said and "name another --out" in said, said
        assert place.begun == begun, (here, place.begun)
        place.begun.clear()
    place.log.write_text("")
    for before, code in (([], 2), (["--out", str(place.top / "other")], 0), (["--check"], 0)):
        got = place.bench("--before-build", "--rounds", "2", "second", *before, machine={**HERE, "kernel": "L"})
        assert got[0] == code and not place.begun and not place.ran(), (before, got)
    assert place.bench("--before-build", "second", "--serve", "HOST:1")[0] == 0 and not place.begun
    code, said = place.bench("--rounds", "2", "second", "--out", str(place.top / "other"),
                             machine={**HERE, "kernel": "L"})
    assert code == 0 and place.results("other")["machine"]["kernel"] == "L", said


@in_place
def quick_runs_do_not_touch_the_committed_report(place):
    assert place.bench("--quick")[0] == 0
    assert place.results() is None and place.results("build/quick")["quick"] is True


@in_place
def a_machine_that_is_not_idle_is_refused_unless_that_is_asked_for(place):
    place.load = 1.72
    code, said = place.bench("--rounds", "2")
    assert code == 2 and said.count("\n") == 1, said
    for words in ("load average", "1.72", "0.3", "--loaded"):
        assert words in said, said
    busy = {**HERE, "load before": "1.72 1 1"}
    assert place.bench("--rounds", "2", "--loaded", machine=busy)[0] == 0
    assert "**The machine was not idle**: its load was 1.72" in (
        place.top / "docs/README.md").read_text()
    assert place.bench("--quick", machine=busy)[0] == 0


@in_place
def sittings_are_pooled_without_measuring(place):
    for number in range(2):
        assert place.bench("--rounds", "2", "--out", str(place.top / f"sitting{number}"))[0] == 0
    place.log.write_text("")
    folders = [str(place.top / f"sitting{number}") for number in range(2)]
    code, said = place.bench("--pool", *folders)
    results = place.results("build/pooled")
    assert code == 0 and place.ran() == "" and results["rounds"] == 4, said
    assert results["questions"]["first"]["contenders"]["a"]["points"]["64"]["p50_us"] == [2.0] * 4
    again = place.top / "again"
    assert place.bench("--pool", folders[0], "--out", str(again))[0] == 0
    assert (again / "README.md").read_text() == (
        place.top / "sitting0/README.md").read_text()
    code, said = place.bench("--pool", str(place.top / "nowhere"))
    assert code == 2 and said.count("\n") == 1 and "cannot be read" in said, said
    assert place.bench("--pool", folders[0], "--check")[0] == 2


@in_place
def single_questions_may_have_a_page_of_their_own(place):
    assert place.bench("--rounds", "2")[0] == 0
    report = place.results()
    code, said = place.bench("second", "--rounds", "3", "--page", "own")
    assert code == 0 and "docs/own.md" in said and place.results() == report, said
    assert list(place.results("build/own")["questions"]) == ["second"]
    text = (place.top / "docs/own.md").read_text()
    assert "`./run bench second --rounds 3 --page own`" in text and "## second" in text and "## first" not in text, text
    assert json.loads((place.top / "docs/own.json").read_text()) == place.results("build/own")
    assert max(len(line) for line in text.splitlines() if line[:1] not in "|#") <= 118, text
    before = text
    (place.top / "docs/own.md").unlink()
    assert place.bench("--pool", str(place.top / "build/own"), "--page", "own")[0] == 0
    assert (place.top / "docs/own.md").read_text() == before


@in_place
def a_page_that_cannot_be_is_refused_in_a_line(place):
    for words, why in ((["second", "--page", "README"], "--page README: a name of small letters"),
                       (["second", "--page", "results"], "--page results: a name of small letters"),
                       (["second", "--page", "../x"], "--page ../x: a name of small letters"),
                       (["--page", "own"], "--page: name the questions"),
                       (["full", "--page", "own"], "--page: name the questions"),
                       (["second", "--page", "own", "--quick"], "--page: not with"),
                       (["second", "--page", "own", "--check"], "--page: not with")):
        code, said = place.bench(*words)
        assert code == 2 and why in said.splitlines()[-1], (words, code, said)
    assert not (place.top / "docs").exists() and not place.begun


@in_place
def a_run_that_failed_writes_no_page(place):
    place.acts("a", 1, "exit 3")
    assert place.bench("second", "--rounds", "1", "--page", "own")[0] == 1
    assert not (place.top / "docs").exists() and place.results("incomplete")


@in_place
def two_runs_at_a_time_are_refused(place):
    kept = Journal(place.top / "build/unfinished.jsonl")
    code, said = place.bench()
    assert code == 2 and said == "bench: another run is measuring\n", said
    del kept


@in_place
def what_a_power_cut_left_of_a_line_is_cut_off(place):
    path = place.top / "journal"
    kept = Journal(path)
    kept.start({"machine": {"cores": 2}}, "now")
    kept.add({"question": "q", "round": 0, "failed": {}})
    kept.add({"question": "q", "round": 1, "failed": {}})
    kept.file.close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        again = Journal(path)
        lines = whole[:length].count(b"\n")
        assert len(again.rounds("q")) == max(lines - 1, 0), length
        assert path.read_bytes() == b"".join(whole.splitlines(True)[:lines])
        again.file.close()


@in_place
def rounds_after_one_that_failed_do_not_count(place):
    kept = Journal(place.top / "journal")
    kept.start({}, "now")
    for number, failed in enumerate(({}, {"b": "no"}, {})):
        kept.add({"question": "q", "round": number, "failed": failed})
    assert [e["round"] for e in kept.rounds("q")] == [0]
    kept.add({"question": "q", "round": 1, "failed": {}})
    kept.add({"question": "q", "round": 2, "failed": {}, "newer": True})
    assert [e["round"] for e in kept.rounds("q")] == [0, 1, 2] and kept.rounds("q")[2]["newer"]


@in_place
def results_from_other_questions_are_made_anew(place):
    calls = []

    def all_rounds(rounds):
        calls.append(rounds)
        return {"a": {"1": {"p50_us": [1.0]}}}
    kept = Journal(place.top / "journal")
    kept.start({}, "now")
    for derived, want in ((False, 1), (True, 2)):
        calls.clear()
        question = measure.Question(f"q{derived}", "Q", "", [measure.Contender("a", "A")], METRICS,
                                    all_rounds=all_rounds, derived=derived)
        for _ in range(2):
            record = measure.ask(question, 3, kept, say=lambda text: None).as_json()
            assert record["contenders"]["a"]["points"] == {"1": {"p50_us": [1.0]}}, record
        assert len(calls) == want, calls


@in_place
def what_a_question_cannot_have_here_is_named_and_no_failure(place):
    def all_rounds(_rounds):
        raise measure.Missing("no machine")
    kept = Journal(place.top / "journal")
    kept.start({}, "now")
    for _ in range(2):  # the second time, ask() finds the answer in the journal
        question = measure.Question("q", "Q", "", [measure.Contender("a", "A")], METRICS,
                                    all_rounds=all_rounds)
        record = measure.ask(question, 3, kept, say=lambda text: None).as_json()
        assert (record["missing"], record["failed"]) == ({"A": "no machine"}, {}), record
        assert not record["contenders"], record


def differences_are_told_in_words():
    assert differences({"m": {"a": 1}}, {"m": {"a": 1}}) == ""
    assert differences({"m": {"a": 1}, "m2": {"m2": 3}}, {"m": {"b": 2}, "m2": {"m2": 4}}) == (
        "m: a was 1, is -; m: b was -, is 2; m2 was 3, is 4")


tap.run([
    a_run_that_is_not_stopped_writes_its_report_and_leaves_nothing,
    a_killed_run_says_what_is_missing_and_writes_no_report,
    a_resumed_run_measures_the_broken_round_again_and_the_rest,
    a_resumed_run_has_the_figures_of_one_that_was_not_stopped,
    a_run_is_resumed_with_the_same_machine_commit_and_options_only,
    what_kills_a_run_at_once_ends_its_contender_too,
    there_must_be_something_to_resume,
    a_peer_that_fails_once_is_run_once_more_and_that_is_told,
    tern_is_not_run_once_more,
    a_run_with_a_failure_leaves_the_committed_report_and_can_be_completed,
    questions_are_put_among_results_of_the_same_machine_only,
    another_machine_is_refused_before_anything_is_installed_or_waited_for,
    quick_runs_do_not_touch_the_committed_report,
    a_machine_that_is_not_idle_is_refused_unless_that_is_asked_for,
    sittings_are_pooled_without_measuring,
    single_questions_may_have_a_page_of_their_own,
    a_page_that_cannot_be_is_refused_in_a_line,
    a_run_that_failed_writes_no_page,
    two_runs_at_a_time_are_refused,
    what_a_power_cut_left_of_a_line_is_cut_off,
    rounds_after_one_that_failed_do_not_count,
    results_from_other_questions_are_made_anew,
    what_a_question_cannot_have_here_is_named_and_no_failure,
    differences_are_told_in_words,
])
