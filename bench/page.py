# SPDX-License-Identifier: Apache-2.0
"""A page with the results of a few questions, such as docs/benchmarks/recovery.md, and its figures as JSON. It is for
questions that are asked by themselves, whose results may be of another machine than those of the report."""
import re
import textwrap

import figures
import goals
import machine
import report

WIDTH = 118
TABLES = ("Geometric means of {rounds} rounds, in parentheses the least and the greatest, in brackets the 95 % "
          "interval. A goal is `met` or `missed` if the whole interval is on that side of the limit, and `undecided` if "
          "the limit lies inside. Without a peer, the interval is that of the figure itself.")


def is_name(text):
    """True if a page may have this name: not that of the report, which is README.md and results.json."""
    return bool(re.fullmatch(r"[a-z][a-z0-9-]*", text)) and text != "results"


def wrapped(text):
    """The text with lines of at most WIDTH characters, except for tables and headings, which stay as they are."""
    return "\n".join(line if line.startswith(("|", "#")) else
                     textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
                     for line in text.splitlines())


def origin(results, name):
    """The paragraph that says what was measured when, where and how."""
    here, names = results["machine"], list(results["questions"])
    load = machine.load_of(here)
    return (f"Written by `./run bench {' '.join(names)} --rounds {results['rounds']} --page {name}` on "
            f"{results['date']}: {here['cores']} cores of {here['processor']}, kernel {here['kernel']}, at commit "
            f"{here['tern']}, the load before it was {'unknown' if load is None else f'{load:.2f}'}, "
            f"{results['seconds']:.0f} s. Do not edit: run it again. "
            f"{name}.json has the figures of each round, and the command of each contender.")


def text(results, name):
    asked = results["questions"]
    lines = [report.goal_line(row, results) for row in goals.rows(results) if row.goal.question in asked]
    titles = "; ".join(question["title"] for question in asked.values())
    parts = [f"# {titles}", "", origin(results, name), "", *report.not_complete(results), *report.not_idle(results),
             TABLES.format(rounds=results["rounds"]), "", report.table(report.HEAD, lines),
             *(report.question_text(question, report.other_origin(results, question)) for question in asked.values()),
             "## How the figures were computed", "", figures.INTERVALS, "", *report.disturbances(results)]
    return wrapped("\n".join(parts)).rstrip() + "\n"


def write(results, directory, name, as_text):
    """Writes NAME.md and NAME.json. `as_text` makes JSON of results."""
    (directory / f"{name}.md").write_text(text(results, name))
    (directory / f"{name}.json").write_text(as_text(results))
