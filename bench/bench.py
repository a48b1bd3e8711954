#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: Tern beside its peers, and the report.

    ./run bench                   everything but the scenarios; docs/benchmarks is written anew
    ./run bench full              with the scenarios, every way of each peer, and more sizes
    ./run bench --quick           fewer sizes, peers and rounds; no virtual machine; the report
                                  goes to build-bench/quick
    ./run bench QUESTION...       these only; the others' results stay, and must be of this machine, so
                                  on another one it needs --out DIR
    ./run bench --check           tells what is slower or faster than in the commit of the committed
                                  report, or in --base COMMIT: builds that, too, and measures both
                                  in turns. Writes no report; the figures go to build-bench/check
    ./run bench --release-grpc    builds a release build of gRPC, too, if it is not there
    ./run bench --resume          with the options of a run that was stopped: goes on with it
    ./run bench --serve HOST:PORT, --connect HOST:PORT
                                  between two hosts: ./run bench --serve --help
    ./run bench --pool A B...     measures nothing: pools the rounds of results of several
                                  sittings (folders of reports, or their results.json), of one
                                  machine and commit; the report goes to build-bench/pooled. If
                                  only A is given, A's report is written anew
    ./run bench QUESTION... --page NAME
                                  these only, and a page of their own: docs/benchmarks/NAME.md and
                                  NAME.json. The report goes to build-bench/NAME. With --pool: a page
                                  of results that are there

Each round is kept when it is over (journal.py), so whatever ends a run costs one round of one
question, or all rounds of one that measures them at once, as verbs does. A run that was stopped
writes no report. If a contender failed, the report goes to build-bench/incomplete, and --resume
measures again from the round of the failure on.

Nothing else may run meanwhile. While the load average of the last minute is above 0.3, the run
waits, at most 300 s, and then refuses; with --loaded, as with --quick, it measures all the same,
and the report says so.

Exit codes: 0; 1 a contender that is installed failed, the programs cannot be built, or (--check
--strict) a figure is worse; 2 wrong arguments, or the run is refused: the machine is not idle,
another run is measuring, there is nothing to resume, results do not belong together, there is no
base, or no release build of gRPC although it was asked for; 128 and the signal's number if one
stopped it.
"""
import argparse
import datetime
import json
import signal
import sys
import time
from pathlib import Path

import grpc_release
import hosts
import install
import machine
import measure
import page
import report
import sittings
from base import Base
from check import Check
from contenders import Maker
from journal import Journal, Refused, differences, identity
from questions import QUESTIONS, SCENARIOS, Plan

TOP = Path(__file__).resolve().parents[1]
COMMITTED = TOP / "docs/benchmarks"
INCOMPLETE = install.BUILD / "incomplete"
# With this option, which ./run bench gives before it builds Tern, only the arguments and --out are checked.
BEFORE_BUILD = "--before-build"
NOT_QUICK = ("verbs",)  # boots a virtual machine: with --quick only if it is asked for by name


class Stopped(BaseException):
    """A signal asked to stop. As this is raised, the contender that runs is killed."""

    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.number = number


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse():
    p = argparse.ArgumentParser(prog="./run bench", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("questions", nargs="*", metavar="QUESTION",
                   help=f"of: {', '.join(QUESTIONS)} (default: all but {', '.join(SCENARIOS)}); "
                   "full: all")
    p.add_argument("--quick", action="store_true", help="fewer sizes, peers and rounds")
    p.add_argument("--check", action="store_true",
                   help="tell what is slower or faster than in another commit")
    p.add_argument("--base", metavar="COMMIT",
                   help="with --check: that commit; default: the one of the committed report")
    p.add_argument("--no-peers", action="store_true",
                   help="with --check: only Tern's own programs; else also each peer whose program "
                   "differs, which is all of them after a change of bench/pair.c")
    p.add_argument("--strict", action="store_true",
                   help="with --check: exit code 1 if a figure is worse")
    p.add_argument("--resume", action="store_true",
                   help="go on with a run that was stopped, of the same commit, machine, options")
    p.add_argument("--pool", type=Path, nargs="+", metavar="RESULTS",
                   help="measure nothing; pool the rounds of several sittings into one report")
    p.add_argument("--page", metavar="NAME",
                   help="also write NAME.md and NAME.json in docs/benchmarks, a page of the questions "
                   "that are named, or of the results of --pool")
    p.add_argument("--rounds", type=int, help="default: 6, quick: 2; an even number, because each "
                   "second round runs the order of the first backwards")
    p.add_argument("--out", type=Path, help="where the report goes; default: docs/benchmarks, "
                   "or build-bench/quick or pooled. Single questions are refused, before anything is "
                   "installed, if it has results of another machine")
    p.add_argument("--loaded", action="store_true",
                   help="measure although something else runs; the report says so")
    p.add_argument("--tern", type=Path, default=TOP / "build/tern", help="the program")
    p.add_argument("--no-install", action="store_true", help="take the peers that are there")
    p.add_argument("--release-grpc", action="store_true",
                   help="also build a release build of gRPC, which takes half an hour or more "
                   "and is kept; without this, it is measured if it is there")
    p.add_argument(BEFORE_BUILD, action="store_true", help=argparse.SUPPRESS)
    options = p.parse_args()
    options.full = options.questions == ["full"]
    options.questions = [] if options.full else options.questions
    for name in options.questions:
        if name not in QUESTIONS:
            p.error(f"{name}: not one of {', '.join(QUESTIONS)}")
    if options.rounds is not None and options.rounds < 1:
        p.error(f"--rounds {options.rounds}: at least 1")
    if options.release_grpc and options.no_install:
        p.error("--release-grpc: not with --no-install")
    for name in ("strict", "base", "no_peers"):
        if getattr(options, name) and not options.check:
            p.error(f"--{name.replace('_', '-')}: only with --check")
    if options.check and options.out:
        p.error("--out: not with --check, which writes no report")
    if options.pool and (options.questions or options.check or options.resume):
        p.error("--pool: measures nothing, so it takes no questions, no --check and no --resume")
    if options.page is not None:
        check_page(p, options)
    options.rounds = options.rounds or (2 if options.quick else 6)
    options.named = bool(options.questions)
    options.questions = options.questions or [
        q for q in QUESTIONS if (options.full or q not in SCENARIOS) and
        not (options.quick and q in NOT_QUICK)]
    options.out = options.out or (install.BUILD / "pooled" if options.pool else
                                  install.BUILD / options.page if options.page else
                                  install.BUILD / "quick" if options.quick else COMMITTED)
    return options


def check_page(p, options):
    if not page.is_name(options.page):
        p.error(f"--page {options.page}: a name of small letters, digits and -, such as recovery, but not results")
    if options.check or options.quick:
        p.error("--page: not with --check, which writes no report, and not with --quick")
    if not options.questions and not options.pool:
        p.error("--page: name the questions that the page is of, or results with --pool")


def load(directory):
    path = directory / "results.json"
    return json.loads(path.read_text()) if path.is_file() else None


def add_to(options, now, compared=machine.fixed):
    """The results in --out, to which this run adds those of the questions that were named; None if
    no question was named, or there are none. Refused if they are of another machine or other
    options. `compared` returns that part of a machine's description that must be the same."""
    old = load(options.out) if options.named else None
    if old is None:
        return None
    differ = differences({"options": {"quick": old["quick"], "rounds": old["rounds"]},
                          "machine": compared(old["machine"])},
                         {"options": {"quick": options.quick, "rounds": options.rounds},
                          "machine": compared(now)})
    if differ:
        raise Refused(f"{options.out} has results that these cannot be put among: {differ}; "
                      "measure everything, or name another --out")
    for question in old["questions"].values():
        question.setdefault("tern", old["machine"]["tern"])
        question.setdefault("date", old["date"])
    return old


def plan_of(options, missing):
    return Plan(options.quick, Maker(options.tern.resolve(), missing), full=options.full)


def measure_all(options, missing, here, journal, old):
    plan = plan_of(options, missing)
    today = datetime.date.today().isoformat()
    results = {"date": today, "quick": options.quick, "full": options.full, "rounds": options.rounds, "seconds": 0,
               "parts": journal.parts(), "order": measure.ORDER, "machine": here,
               "missing": missing,
               "questions": old["questions"] if old else {}}
    plan.results = results["questions"]
    for name in options.questions:
        say(f"{name}:")
        record = measure.ask(QUESTIONS[name](plan), options.rounds, journal, say)
        results["questions"][name] = {**record.as_json(), "tern": here["tern"], "date": today}
    results["questions"] = {name: results["questions"][name] for name in QUESTIONS
                            if name in results["questions"]}
    results["seconds"] = round(sum(q["seconds"] for q in results["questions"].values()), 1)
    return results


def check_all(options, missing, here, journal, base):
    plan = plan_of(options, missing)
    found = Check(base, options.rounds, not options.no_peers, journal, say)
    for name in options.questions:
        say(f"{name}:")
        found.ask(QUESTIONS[name](plan))
    where = install.BUILD / "check"
    where.mkdir(exist_ok=True)
    (where / "results.json").write_text(as_text(
        {"base": base.commit, "rounds": options.rounds, "machine": here, "questions": found.records}))
    found.tell()
    return found


def not_measured(options, journal):
    """The questions that a stopped run has not measured, or not in all rounds, in words."""
    left = []
    for name in options.questions:
        done = len(journal.rounds(name))
        if not done:
            left.append(name)
        elif done < options.rounds and "points" not in journal.rounds(name)[0]:
            left.append(f"{name} from round {done + 1}")
    return ", ".join(left)


# ---- files ----

def as_text(results):
    """JSON with a line for each contender's point, so that a difference can be read."""
    def lines(value, depth):
        if isinstance(value, dict) and value and depth < 6:
            inner = ",\n".join(" " * (depth + 1) + json.dumps(k) + ": " + lines(v, depth + 1)
                               for k, v in value.items())
            return "{\n" + inner + "\n" + " " * depth + "}"
        return json.dumps(value)
    return lines(results, 0) + "\n"


def save(results, options, directory):
    directory.mkdir(parents=True, exist_ok=True)
    report.write(results, directory)
    (directory / "results.json").write_text(as_text(results))
    if directory.resolve() == COMMITTED and not options.quick:
        report.update_readme(TOP / "README.md", results)
    say(f"written: {directory}/README.md")
    if options.page and directory != INCOMPLETE:
        page.write(results, COMMITTED, options.page, as_text)
        say(f"written: {COMMITTED}/{options.page}.md")


def failures(results):
    return [f"{name}: {title}: {why}" for name, q in results["questions"].items()
            for title, why in q["failed"].items()]


def finish(failed, journal):
    """Exit code of a run that has come to its end."""
    for why in failed:
        say(f"bench: not complete: {why}")
    if failed:
        say("bench: what failed is measured again with --resume")
        return 1
    journal.remove()
    return 0


def finish_report(results, options, journal):
    failed = failures(results)
    save(results, options, INCOMPLETE if failed else options.out)
    if failed:
        say(f"bench: {options.out} is as it was")
    return finish(failed, journal)


def pool(options):
    save(sittings.pooled([sittings.load(path) for path in options.pool]), options, options.out)
    return 0


def refuse_load(options):
    """Refused if something else runs, because every figure would be of both. A quick run is only
    marked: it is for a first look, perhaps on a desktop."""
    if options.loaded or options.quick:
        return
    load = machine.load_after_waiting(say)
    if load > machine.LOAD_LIMIT:
        raise Refused(f"the load average of the last minute is {load:.2f}, at most "
                      f"{machine.LOAD_LIMIT:g} is allowed: end what runs, or measure all the same "
                      "with --loaded")


def build_grpc():
    try:
        grpc_release.get(say)
    except grpc_release.Unavailable as why:
        raise Refused(f"--release-grpc: {why}") from why


def base_of(options):
    """What --check compares with; None if it is not asked for."""
    if not options.check:
        return None
    committed = load(COMMITTED)
    if not options.base and not committed:
        raise Refused(f"{COMMITTED}/results.json is not there: name a commit with --base")
    return Base(options.base or committed["machine"]["tern"], options.tern.resolve().parent)


# Large packages, and the questions for which they are installed.
EXTRAS = {"torch": {"train", "allreduce"}, "nixl-cu12": {"transfers"}, "mooncake": {"transfers"},
          "nccl": {"nccl"}}


def prepare(options, base):
    """Installs and builds. Returns {package: why it is missing}."""
    if options.release_grpc:
        build_grpc()
    extras = [name for name, questions in EXTRAS.items() if questions & set(options.questions)]
    missing = {**install.peers(not options.quick or "torch" in extras, not options.no_install, extras),
               **grpc_release.missing()}
    if "verbs" in options.questions and not options.no_install and not base:
        install.virtual_machine()
    install.programs(options.tern.resolve().parent, grpc_release.built())
    if base:
        base.build(grpc_release.built(), say)
    return missing


def begin(options, journal, here, missing, base):
    """Makes the journal ready: with --resume it keeps what it has, else it begins anew."""
    asked = {"quick": options.quick, "rounds": options.rounds, "base": base.commit if base else "",
             "peers": not options.no_peers, "full": options.full, "out": str(options.out), "questions": " ".join(options.questions)}
    now = identity(TOP, options.tern.resolve(), here, asked, missing)
    if options.resume:
        journal.resume(now)
        return
    if journal.entries:
        say("an unfinished run is forgotten; --resume would have gone on with it")
    journal.start(now, datetime.datetime.now().isoformat(timespec="seconds"))


def run(options):
    if options.pool and not options.before_build:
        return pool(options)
    if not options.check:  # before anything is installed, built or waited for
        add_to(options, machine.describe(), machine.not_installed)
    if options.before_build:
        return 0
    base = base_of(options)
    journal = Journal(install.BUILD / "unfinished.jsonl")
    missing = prepare(options, base)
    refuse_load(options)
    here = machine.describe()
    old = None if base else add_to(options, here)
    begin(options, journal, here, missing, base)
    start = time.monotonic()
    try:
        found = (check_all(options, missing, here, journal, base) if base else
                 measure_all(options, missing, here, journal, old))
    except (KeyboardInterrupt, Stopped):
        say(f"bench: stopped; no report is written. Not measured: {not_measured(options, journal)}"
            "\nbench: to go on: the same command with --resume")
        raise
    say(f"measured in {time.monotonic() - start:.0f} s")
    if base:
        return finish(found.failed, journal) or int(options.strict and found.worse() > 0)
    return finish_report(found, options, journal)


def main():
    if any(word.split("=")[0] in ("--serve", "--connect") for word in sys.argv[1:]):
        return 0 if BEFORE_BUILD in sys.argv[1:] else hosts.main(sys.argv[1:])

    def stop(number, _frame):
        raise Stopped(number)
    options = parse()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        return run(options)
    except Refused as why:
        say(f"bench: {why}")
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Stopped as signalled:
        return 128 + signalled.number


if __name__ == "__main__":
    sys.exit(main())
