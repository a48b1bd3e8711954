# SPDX-License-Identifier: Apache-2.0
"""results.json -> README.md and plots beside it, and the table in the repository's README."""
import subprocess

import figures
import goals
import losses
import machine
from figures import number_text, size_text
from losses import is_of_sizes, is_telling

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def point_text(question, point):
    size, _, inflight = point.partition("x")
    if size.isdigit() and is_of_sizes(question):
        return size_text(int(size)) + (f" x {inflight}" if inflight.isdigit() else "")
    return point


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head),
                      *("| " + " | ".join(line) + " |" for line in lines), ""])


def spread_text(f):
    """A figure as text: its mean, with the least and the largest value of the rounds."""
    if f.low == f.high:
        return number_text(f.mean)
    return f"{number_text(f.mean)} ({number_text(f.low)}..{number_text(f.high)})"


def interval_text(found, value=None):
    value = value or number_text(found.value)
    if found.low == found.high:
        return value
    return f"{value} [{number_text(found.low)}, {number_text(found.high)}]"


# ---- goals ----

def entry_of(row, results):
    """The entry of a row's peer in results.json."""
    question = row.goal.peer_question or row.goal.question
    return results["questions"][question]["contenders"][row.peer]


def build_text(entry, results):
    """The version of a peer's library and how it was built; "" if that is not known, or if it is only the
    kernel's version."""
    library = entry["title"].split(",")[0]
    told = [entry.get("version", "-"), results["machine"].get(f"build of {library}", "-")]
    return ", ".join(text for text in told if text not in ("-", results["machine"]["kernel"]))


def goal_line(row, results, full=False):
    """The cells of a row; with `full` the peer's version and build are in it."""
    goal = row.goal
    if row.ratio is None:
        return [goal.what, goal.against, "-", "-", "-", limit_text(goal), f"**{row.why}**"]
    ours, theirs = f"{number_text(row.ours)} {goal.unit}".strip(), "-"
    if row.theirs is not None:
        entry = entry_of(row, results)
        build = build_text(entry, results) if full else ""
        notes = [f"{entry['title']}: {build}" if build else entry["title"]] \
            if build or is_of_several(goal) else []
        notes += [f"not measured: {', '.join(row.without)}"] if row.without else []
        theirs = " ".join([number_text(row.theirs), goal.unit,
                           *([f"({'; '.join(notes)})"] if notes else [])]).strip()
    verdict = {"missed": "**missed**", "": "shown"}.get(row.verdict, row.verdict)
    return [goal.what, goal.against, ours, theirs, interval_text(row.ratio, value_text(row)),
            limit_text(goal), verdict]


def is_of_several(goal):
    return len(goal.peers) > 1 or any("*" in pattern for pattern in goal.peers)


def value_text(row):
    """The ratio, or the figure if there is no peer, as text. One that misses the goal by so little that
    it would look like the limit gets three decimals."""
    short = number_text(row.ratio.value)
    if row.goal.sense and float(short.replace(",", "")) == row.goal.limit and \
            not figures.meets(row.ratio.value, row.goal.sense, row.goal.limit):
        return f"{row.ratio.value:.3f}"
    return short


def limit_text(goal):
    if not goal.sense:
        return "-"
    return f"{goal.sense} {goal.limit:,.0f}" if goal.limit >= 1000 else f"{goal.sense} {goal.limit:g}"


HEAD = ["what", "against", "Tern", "peer", "ratio [95 % interval]", "goal", ""]
RATIOS = ("Where a row says `rate` or `times as fast`, or compares GB/s or MB/s, the ratio says "
          "how many times as fast Tern is: more is better. Elsewhere it is Tern's figure over the "
          "peer's: less is better. In a row against a library's own tool, the library in the "
          "programs of this report stands in the place of Tern.")
VERDICTS = ("A goal is `met` or `missed` if the whole interval of its ratio is on that side of the "
            "limit, and `undecided` if the limit lies inside. Where a row names several peers, the "
            "one counts against which Tern's ratio is worst. Without a peer, the interval is that "
            "of the figure itself.")
NOT_ASKED = ("Of the project's goals these are not measured here: OpenMPI's shared memory as a "
             "parameter server; the server's fused update beside STREAM's triad; a step of "
             "a built-in model beside the same without a server; how evenly chunks lie on servers. "
             "What snapshots cost while a job trains, and how long it takes to go on after kill -9, is "
             "measured by questions with [a page of their own](recovery.md).")


def goals_table(results):
    return table(HEAD, [goal_line(row, results) for row in goals.rows(results)])


def counts_table(results):
    counts = goals.counted(goals.rows(results))
    names = list(next(iter(counts.values())))
    lines = [[name, *(str(number) for number in found.values())]
             for name, found in counts.items() if any(found.values())]
    lines.append(["all", *(str(sum(found[name] for found in counts.values())) for name in names)])
    return table(["goals against", *names], lines)


# ---- where Tern loses ----

LOSES = "Where Tern loses"
ABOUT_LOSSES = ("Every figure in which a peer that waits in the same way surely beats Tern: the "
                "whole interval of the ratio is above 1, which chance does in one of forty figures "
                "that are equal. The ratio says how many times as much "
                "Tern takes or, where more is better, how many times as much the peer moves. "
                "These tables are made from all figures below and not from the goals; the last "
                "column says whether a goal compares the two.")


def loss_line(loss, results):
    question = results["questions"][loss.question]
    titles = {key: entry["title"] for key, entry in question["contenders"].items()}
    unit = {name: unit for name, unit, _ in question["metrics"]}[loss.metric]
    others = f" (also: {'; '.join(titles[key] for key in loss.others)})" if loss.others else ""
    waits = {"poll": ", polling", "sleep": ", asleep"}.get(loss.wait, "")
    return [question["title"], titles[loss.ours] + waits, point_text(question, loss.point),
            metric_text(loss.metric, unit), titles[loss.peer] + others, interval_text(loss.ratio),
            "yes" if loss.is_goal else "no"]


def losses_text(results):
    parts, found = [], losses.losses(results)
    for library, to in ((True, "other libraries"), (False, "plain C and the limits of memory")):
        lines = [loss_line(loss, results) for loss in found if loss.to_library == library]
        parts += [f"To {to}:" if lines else f"To {to}: in no figure.", ""]
        if lines:
            parts.append(table(["question", "contender", "at", "figure", "worst peer",
                                "ratio [95 % interval]", "a goal"], lines))
    return "\n".join(parts)


# ---- questions ----

def points_of(question):
    """The points of a question: those that are sizes first, by size; the others as they came."""
    seen = {}
    for entry in question["contenders"].values():
        for point in entry["points"]:
            seen.setdefault(point, len(seen))

    def order(point):
        size, _, inflight = point.partition("x")
        if not size.isdigit():
            return (1 << 62, 0, seen[point])
        return (int(size), int(inflight) if inflight.isdigit() else 0, 0)
    return sorted(seen, key=order)


def question_table(question, metric):
    points = [p for p in points_of(question) if is_telling(question, metric, p) and
              any(metric in e["points"].get(p, {}) for e in question["contenders"].values())]
    lines = []
    for entry in question["contenders"].values():
        if not any(metric in m for m in entry["points"].values()):
            continue
        cells = []
        for point in points:
            found = entry["points"].get(point, {}).get(metric)
            cells.append(spread_text(figures.figure(found)) if found else "")
        title = f"**{entry['title']}**" if entry["ours"] else entry["title"]
        lines.append([title, entry["wait"], *cells])
    return table(["", "waits by", *(point_text(question, p) for p in points)], lines)


def uneven(question):
    """A line for each figure of the first metric whose largest round is more than ten times its
    smallest one."""
    metric, unit, _ = question["metrics"][0]
    lines = []
    for entry in question["contenders"].values():
        for point, metrics in entry["points"].items():
            f = figures.figure(metrics[metric]) if metrics.get(metric) else None
            if f and f.high > 10 * f.low > 0:
                lines.append(f"Too uneven to compare: {entry['title']} ({entry['wait']}), "
                             f"{point_text(question, point)}: {number_text(f.low)} to "
                             f"{number_text(f.high)} {unit} from round to round.\n")
    return lines


def metric_text(metric, unit):
    return {"us": metric.removesuffix("_us")}.get(unit, metric)


def question_text(question, origin):
    parts = [f"## {question['title']}", "", question["about"], "", *filter(None, [origin])]
    for metric, unit, better in question["metrics"]:
        better = f"{better} is better" if better != "-" else \
            "latencies: smaller is better; MB/s: larger is"
        parts += [f"{metric_text(metric, unit)}, {unit} ({better}):", "",
                  question_table(question, metric)]
    if question.get("plot"):
        parts += [f"![{question['title']}]({question['plot']})", ""]
    parts += [f"Missing: {title}: {why}.\n" for title, why in question["missing"].items()]
    parts += [f"**Failed**: {title}: {why}.\n" for title, why in question["failed"].items()]
    parts += [f"{note}\n" for note in question["notes"]] + uneven(question)
    return "\n".join(parts)


def other_origin(results, question):
    """A line that says when and of which commit a question was measured; "" if in this very run."""
    here = [results["date"], results["machine"].get("tern")]
    origin = [question.get("date", here[0]), question.get("tern", here[1])]
    if origin == here:
        return ""
    return f"Measured on {origin[0]}, of commit {origin[1]}.\n"


def versions(results):
    """{peer: version}. A version that is only the kernel's is left out: the machine's table has
    it."""
    found = {}
    for q in results["questions"].values():
        for entry in q["contenders"].values():
            if entry.get("version", "-") not in ("-", results["machine"]["kernel"]):
                found[entry["title"].split(",")[0]] = entry["version"]
    return found


def sittings(results):
    """The words " in N sittings", if the run was stopped and resumed, or pooled; else ""."""
    return f" in {results['parts']} sittings" if results.get("parts", 1) > 1 else ""


def not_complete(results):
    failed = [f"{q['title']}: {title}" for q in results["questions"].values()
              for title in q["failed"]]
    return [f"**Not complete**: what failed has no figures here: {'; '.join(failed)}.", ""] \
        if failed else []


METHOD = ("A round has thousands of small tensors (40,000 through shared memory, 4,000 over TCP, "
          "1,000 asleep), 256 MiB of large ones, at least 8, and with 16 under way at least 16. "
          "Except where it says otherwise, each end is pinned to a core with all its threads (ZeroMQ "
          "and TensorPipe have one of their own beside the user's), TCP has cubic everywhere, the "
          "warm-up is not counted, the first messages are checked byte for byte, and a copy from a "
          "library's buffer into the user's tensor counts. Compare ratios: absolute times from a "
          "shared machine say little. `poll`: both ends ask without pause; `sleep`: both wait in the "
          "kernel. Processor time is user and system of both processes with all their threads; what "
          "the kernel does in soft interrupts may be accounted elsewhere, for all alike.")
def how(results):
    """The paragraphs that say how to read the figures."""
    return ["Every figure is the geometric mean over the rounds, with the least and the most. A "
            "ratio is the geometric mean of the rounds' ratios, which is the quotient of the two "
            f"figures beside it. {figures.INTERVALS}", "", f"{results['order']} {METHOD}", ""]


def not_idle(results):
    load = machine.load_of(results["machine"])
    if load is None or load <= machine.LOAD_LIMIT:
        return []
    return [f"**The machine was not idle**: its load was {load:.2f} before the run, and at most "
            f"{machine.LOAD_LIMIT:g} is asked for.", ""]


DISTURBANCES = (("steal_percent", "the host's others (steal), %"),
                ("others_percent", "this machine's others, %"),
                ("context_switches_per_s", "context switches, /s"))


def disturbances(results):
    """A table of what happened on the machine while each question was measured."""
    lines = [[q["title"], *(spread_text(figures.figure(q["machine"][name]))
                            for name, _ in DISTURBANCES)]
             for q in results["questions"].values() if q["machine"]]
    if not lines:
        return []
    return ["Of each round: the processor time that others than the contenders took, in percent of "
            "all processors, and the context switches of the whole machine a second.", "",
            table(["question", *(title for _, title in DISTURBANCES)], lines)]


def grpc_build(results):
    """Lines about how gRPC was built: a debug build is no fair rival, so the report's head says it."""
    keys = {key for q in results["questions"].values() for key in q["contenders"]}
    if not any(key.startswith("grpc.") for key in keys):
        return []
    release = any(key.startswith("grpc.release-") for key in keys)
    return ["Debian's gRPC is built with assertions (without NDEBUG). " + (
        "A release build of gRPC's core (-O2, NDEBUG) is measured beside it where two ends exchange "
        "tensors; the parameter server, the many connections and the small tensor beside large ones "
        "have Debian's only." if release else
        "**A release build was not measured beside it**: `./run bench --release-grpc` does that."),
            ""]


def mode_text(results):
    if results["quick"]:
        return "quick run, for a first look only"
    return "full run" if results.get("full", True) else (
        "without the ways of a peer that were not faster than another of its ways, which "
        "`./run bench full` adds")


def text(results):
    facts = [[name, str(value)] for name, value in results["machine"].items()]
    facts += [[name, version] for name, version in sorted(versions(results).items())]
    parts = [
        "# Benchmarks", "",
        f"Written by `./run bench` on {results['date']}, {mode_text(results)}: {results['rounds']} rounds, "
        f"{results['seconds'] / 60:.0f} minutes{sittings(results)}. Do not edit: run it again.",
        "", *not_complete(results), *not_idle(results), *how(results),
        *grpc_build(results),
        "## Goals", "", f"{VERDICTS} {RATIOS}", "", counts_table(results), goals_table(results),
        NOT_ASKED, "", f"## {LOSES}", "", ABOUT_LOSSES, "", losses_text(results),
        *(question_text(q, other_origin(results, q)) for q in results["questions"].values()),
        "## The machine", "", table(["", ""], facts), *disturbances(results)]
    if results["missing"]:
        parts += ["## Not installed", "", table(["package", "why"], [
            [name, why] for name, why in results["missing"].items()])]
    return "\n".join(parts).rstrip() + "\n"


# ---- plots ----

def without_trailing_blanks(path):
    """Removes trailing blanks, which no file of the repository may have (tests/tidy/tidy.py)."""
    path.write_text("".join(line.rstrip() + "\n" for line in path.read_text().splitlines()))


def plot(name, question, directory):
    """Draws a question's first metric over sizes. Returns the plot's file name; "" if there is nothing
    to draw, or no gnuplot."""
    metric, unit, _ = question["metrics"][0]
    series = []
    for entry in question["contenders"].values():
        found = {}
        for point, metrics in entry["points"].items():
            size, _, inflight = point.partition("x")
            if size.isdigit() and metric in metrics and inflight in ("", "16"):
                found[int(size)] = figures.figure(metrics[metric])
        if len(found) > 1:
            series.append((entry, sorted(found.items())))
    if not series:
        return ""
    blocks, draws = [], []
    waits = {"poll": ", polling", "sleep": ", asleep"}
    for i, (entry, values) in enumerate(series):
        title = entry["title"] + waits.get(entry["wait"], "")
        rows = "\n".join(f"{size} {f.mean} {f.low} {f.high}" for size, f in values)
        blocks.append(f"$d{i} << EOD\n{rows}\nEOD")
        draws.append(f'$d{i} using 1:2 with linespoints lw {3 if entry["ours"] else 1} '
                     f'lc {i + 1} dt {2 if entry["wait"] == "sleep" else 1} pt {i % 13 + 1} ps 0.5 '
                     f'title "{title}" noenhanced')
    sizes = ", ".join(f'"{size_text(1 << b)}" {1 << b}' for b in range(2, 30, 4))
    axis = f"set xtics ({sizes})" if is_of_sizes(question) else ""
    what = metric.removesuffix("_" + unit).replace("_", " ")
    script = "\n".join([
        f'set terminal svg size 1000,760 font "sans,12"\nset output "{directory / name}.svg"',
        "set logscale xy\nset grid\nset key below left Left reverse maxcols 3",
        "set style data linespoints", axis,
        f'set xlabel "{question["axis"]}"\nset ylabel "{what}, {unit}" noenhanced', *blocks,
        "plot " + ", \\\n ".join(draws)])
    try:
        done = subprocess.run(["gnuplot"], input=script, text=True, capture_output=True)
    except OSError:
        return ""
    if done.returncode:
        raise SystemExit(f"bench: gnuplot: {done.stderr.strip()}")
    without_trailing_blanks(directory / f"{name}.svg")
    return f"{name}.svg"


# ---- files ----

# Rows of the README's table: what is measured, and the rival. Some missed their goal when they were chosen.
README_ROWS = (("tcp, 4 KiB, both asleep, round trip", "gRPC byte buffers, sleeping"),
               ("tcp, 64 MiB, 16 in flight, both polling, rate", "raw TCP, spinning"),
               ("tcp, 64 MiB, 16 in flight, both asleep, rate", "gRPC byte buffers, sleeping"),
               ("shm, 64 B, both polling, round trip", "UCX and OpenMPI"),
               ("tcp, 100 MB pushed and pulled, 1 server, 1 worker, times as fast",
                "gRPC byte buffers"))


def readme_table(results):
    rows = goals.rows(results)
    by_goal = {(row.goal.what, row.goal.against): row for row in rows}
    lines = [goal_line(by_goal[key], results, full=True) for key in README_ROWS]
    counts = goals.counted(rows).values()
    met, missed, undecided = (sum(found[name] for found in counts)
                              for name in ("met", "missed", "undecided"))
    machine_ = results["machine"]
    page = "docs/benchmarks/README.md"
    return (f"Measured {results['date']} on {machine_['cores']} cores of {machine_['processor']}, "
            f"kernel {machine_['kernel']}, at commit {machine_['tern']}, by `./run bench`: {met} goals "
            f"are met, {missed} missed, {undecided} undecided. [docs/benchmarks]({page}) has all of them, by opponent, how they "
            f"were measured, and [where Tern loses]({page}#{LOSES.lower().replace(' ', '-')}). "
            f"{RATIOS}\n\n" + table(HEAD, lines))


def update_readme(path, results):
    old = path.read_text()
    if BEGIN not in old or END not in old:
        return False
    head, rest = old.split(BEGIN, 1)
    path.write_text(head + BEGIN + "\n" + readme_table(results) + END + rest.split(END, 1)[1])
    return True


def write(results, directory):
    directory.mkdir(parents=True, exist_ok=True)
    for name, question in results["questions"].items():
        question["plot"] = plot(name, question, directory)
    (directory / "README.md").write_text(text(results))
