#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: Tern beside its peers, and the report.

    ./run bench                   everything; docs/benchmarks is written anew
    ./run bench --quick           fewer sizes, peers and rounds; no virtual machine
    ./run bench QUESTION...       these only; the others' results stay
    ./run bench --check           compares ratios with the committed ones, writes nothing there

Exit codes: 0; 1 a contender that is installed failed, or (--check) a ratio is worse than its
spread allows; 2 wrong arguments.
"""
import argparse
import datetime
import json
import sys
import time
from pathlib import Path

import figures
import goals
import install
import machine
import measure
import report
from contenders import Maker
from questions import QUESTIONS, Plan

TOP = Path(__file__).resolve().parents[1]
COMMITTED = TOP / "docs/benchmarks"
NOT_QUICK = ("verbs",)  # it boots a machine: only if it is asked for by name


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse():
    p = argparse.ArgumentParser(prog="./run bench", description="Tern beside its peers")
    p.add_argument("questions", nargs="*", metavar="QUESTION",
                   help=f"of: {', '.join(QUESTIONS)} (default: all)")
    p.add_argument("--quick", action="store_true", help="fewer sizes, peers and rounds")
    p.add_argument("--check", action="store_true", help="compare ratios with the committed ones")
    p.add_argument("--rounds", type=int, help="default: 7, quick: 2")
    p.add_argument("--out", type=Path, help="where the report goes; default: docs/benchmarks, "
                   "with --check build-bench/check")
    p.add_argument("--tern", type=Path, default=TOP / "build/tern", help="the program")
    p.add_argument("--no-install", action="store_true", help="take the peers that are there")
    options = p.parse_args()
    for name in options.questions:
        if name not in QUESTIONS:
            p.error(f"{name}: not one of {', '.join(QUESTIONS)}")
    if options.rounds is not None and options.rounds < 1:
        p.error(f"--rounds {options.rounds}: at least 1")
    options.rounds = options.rounds or (2 if options.quick else 7)
    options.out = options.out or (install.BUILD / "check" if options.check else COMMITTED)
    return options


def load(directory):
    path = directory / "results.json"
    return json.loads(path.read_text()) if path.is_file() else None


def measure_all(options, missing):
    plan = Plan(options.quick, Maker(options.tern.resolve(), missing))
    old = load(options.out) if options.questions else None
    results = {"date": datetime.date.today().isoformat(), "quick": options.quick,
               "rounds": options.rounds, "seconds": 0, "machine": machine.describe(),
               "missing": missing, "questions": old["questions"] if old else {}}
    plan.results = results["questions"]
    start = time.monotonic()
    for name in options.questions or [q for q in QUESTIONS if not (
            options.quick and q in NOT_QUICK)]:
        say(f"{name}:")
        record = measure.ask(QUESTIONS[name](plan), options.rounds, say)
        results["questions"][name] = record.as_json()
    results["questions"] = {name: results["questions"][name] for name in QUESTIONS
                            if name in results["questions"]}
    results["seconds"] = round(sum(q["seconds"] for q in results["questions"].values()), 1)
    say(f"measured in {time.monotonic() - start:.0f} s")
    return results


def compare(now, before):
    """Prints what moved; how many ratios are worse."""
    old = {row.goal.key: row for row in goals.rows(before)}
    worse = 0
    for row in goals.rows(now):
        past = old.get(row.goal.key)
        if row.ratio is None or past is None or past.ratio is None:
            continue
        if row.theirs is None and row.goal.question != "all":
            continue  # a time or a rate of this machine, not a ratio
        verdict = figures.verdict(row.ratio, past.ratio,
                                  row.goal.sense or ("<=" if row.goal.smaller else ">="))
        worse += verdict == "worse"
        if verdict != "same":
            print(f"{verdict}: {row.goal.what} against {row.goal.against}: "
                  f"{report.spread_text(past.ratio)} -> {report.spread_text(row.ratio)}")
    print(f"{worse} ratios are worse than their spread allows")
    return worse


def as_text(results):
    """JSON with a line for each contender's point, so that a difference can be read."""
    def lines(value, depth):
        if isinstance(value, dict) and value and depth < 6:
            inner = ",\n".join(" " * (depth + 1) + json.dumps(k) + ": " + lines(v, depth + 1)
                               for k, v in value.items())
            return "{\n" + inner + "\n" + " " * depth + "}"
        return json.dumps(value)
    return lines(results, 0) + "\n"


def save(results, options):
    options.out.mkdir(parents=True, exist_ok=True)
    report.write(results, options.out)
    (options.out / "results.json").write_text(as_text(results))
    if options.out == COMMITTED and not options.quick:
        report.update_readme(TOP / "README.md", results)
    say(f"written: {options.out}/README.md")


def main():
    options = parse()
    missing = {} if options.no_install else install.peers(
        not options.quick or "ps" in options.questions)
    install.programs(options.tern.resolve().parent)
    before = load(COMMITTED) if options.check else None
    if options.check and before is None:
        sys.exit("bench: docs/benchmarks/results.json is not there: nothing to compare with")
    results = measure_all(options, missing)
    save(results, options)
    failed = sum(len(q["failed"]) for q in results["questions"].values())
    worse = compare(results, before) if options.check else 0
    return 1 if failed or worse else 0


if __name__ == "__main__":
    sys.exit(main())
