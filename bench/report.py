# SPDX-License-Identifier: Apache-2.0
"""results.json -> README.md and plots beside it, and the table in the repository's README."""
import subprocess

import figures
import goals
from figures import number_text, size_text

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


def is_of_sizes(question):
    return question["axis"].startswith("bytes")


def point_text(question, point):
    size, _, inflight = point.partition("x")
    if size.isdigit() and is_of_sizes(question):
        return size_text(int(size)) + (f" x {inflight}" if inflight.isdigit() else "")
    return point


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head),
                      *("| " + " | ".join(line) + " |" for line in lines), ""])


def spread_text(f, median=None):
    median = median or number_text(f.median)
    if f.low == f.high:
        return median
    return f"{median} ({number_text(f.low)}..{number_text(f.high)})"


# ---- goals ----

def goal_line(row, results):
    goal = row.goal
    if row.ratio is None:
        return [goal.what, goal.against, "-", "-", "-", limit_text(goal), f"**{row.why}**"]
    theirs = "-"
    if row.theirs is not None:
        entry = results["questions"].get(goal.question, {}).get("contenders", {}).get(row.peer)
        notes = [entry["title"]] if entry and len(goal.peers) > 1 else []
        notes += [f"not measured: {', '.join(row.without)}"] if row.without else []
        theirs = " ".join([number_text(row.theirs), goal.unit,
                           *([f"({'; '.join(notes)})"] if notes else [])]).strip()
    met = {True: "met", False: "**not met**", None: "shown"}[row.met]
    ratio = spread_text(row.ratio, ratio_text(row)) if row.theirs is not None else "-"
    return [goal.what, goal.against, f"{number_text(row.ours)} {goal.unit}".strip(), theirs, ratio,
            limit_text(goal), met]


def ratio_text(row):
    """The ratio. If it misses its limit, it has enough digits not to look like the limit."""
    short = number_text(row.ratio.median)
    return f"{row.ratio.median:.3f}" if row.met is False and \
        float(short.replace(",", "")) == row.goal.limit else short


def limit_text(goal):
    if not goal.sense:
        return "-"
    return f"{goal.sense} {goal.limit:,.0f}" if goal.limit >= 1000 else f"{goal.sense} {goal.limit:g}"


RATIOS = ("Where a row says `rate` or `times as fast`, or compares GB/s or MB/s, the ratio says "
          "how many times as fast Tern is: more is better. Elsewhere it is Tern's figure over the "
          "peer's: less is better.")
NOT_ASKED = ("Of the project's goals these are not measured here: OpenMPI's shared memory as a "
             "parameter server; the server's fused update beside STREAM's triad; a step of "
             "training beside the same without a server; how evenly chunks lie on servers; "
             "snapshots while training; how long it takes to go on after kill -9. The tests show "
             "that the last two work, not how fast.")


def goals_table(results):
    lines = [goal_line(row, results) for row in goals.rows(results)]
    return table(["what", "against", "Tern", "peer", "ratio (least..most)", "goal", ""], lines)


# ---- questions ----

def points_of(question):
    """The points of a question, in the order of their sizes if they are sizes."""
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


def is_telling(question, metric, point):
    """False if a figure says nothing: the p99 of a few large tensors is only the slowest of them,
    and the processor time per GB of small ones only says how many make a GB."""
    size = point.partition("x")[0]
    if not size.isdigit() or not is_of_sizes(question):
        return True
    return int(size) <= 1 << 20 if metric == "p99_us" else \
        int(size) >= 1 << 16 if metric == "cpu_s_per_gb" else True


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
    """A line for each figure that differs by more than ten times from round to round."""
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


def question_text(question, origin):
    parts = [f"## {question['title']}", "", question["about"], "", *filter(None, [origin])]
    for metric, unit, better in question["metrics"]:
        better = f"{better} is better" if better != "-" else \
            "latencies: smaller is better; MB/s: larger is"
        parts += [f"{metric.rsplit('_us', 1)[0] if unit == 'us' else metric}, {unit} ({better}):", "", question_table(question, metric)]
    if question.get("plot"):
        parts += [f"![{question['title']}]({question['plot']})", ""]
    parts += [f"Missing: {title}: {why}.\n" for title, why in question["missing"].items()]
    parts += [f"**Failed**: {title}: {why}.\n" for title, why in question["failed"].items()]
    parts += [f"{note}\n" for note in question["notes"]] + uneven(question)
    return "\n".join(parts)


def other_origin(results, question):
    """Where a question that was measured on another day is from."""
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
    """In how many sittings it was measured, if it was stopped and resumed."""
    return f" in {results['parts']} sittings" if results.get("parts", 1) > 1 else ""


def not_complete(results):
    failed = [f"{q['title']}: {title}" for q in results["questions"].values()
              for title in q["failed"]]
    return [f"**Not complete**: what failed has no figures here: {'; '.join(failed)}.", ""] \
        if failed else []


def text(results):
    mode = "quick run, for a first look only" if results["quick"] else "full run"
    facts = [[name, str(value)] for name, value in results["machine"].items()]
    facts += [[name, version] for name, version in sorted(versions(results).items())]
    parts = [
        "# Benchmarks", "",
        f"Written by `./run bench` on {results['date']}, {mode}: {results['rounds']} rounds, "
        f"{results['seconds'] / 60:.0f} minutes{sittings(results)}. Do not edit: run it again.",
        "", *not_complete(results),
        "Every figure is the median over the rounds, with the least and the most. All contenders "
        "of a question run in turn, forwards and backwards (A B B A), so a ratio is taken within "
        "a round and a slow minute is slow for all; what is shown is the median of the rounds' "
        "ratios, which is not quite the quotient of the medians beside it. A round has thousands "
        "of small tensors (40,000 through shared memory, 8,000 over TCP, 2,000 asleep), 256 MiB "
        "of large ones, at least 8, and with 16 under way at least 16. Except where it says "
        "otherwise, each end is pinned to a core with all its "
        "threads (ZeroMQ and TensorPipe have one of their own beside the user's), TCP has cubic "
        "everywhere, the warm-up is not counted, the first messages are checked byte for "
        "byte, and a copy from a library's buffer into the user's tensor counts. Compare ratios: "
        "absolute times from a shared machine say little. `poll`: both ends ask without pause; "
        "`sleep`: both wait in the kernel. Processor time is user and system of both processes "
        "with all their threads; what the kernel does in soft interrupts may be accounted "
        "elsewhere, for all alike.", "",
        "## Goals", "", RATIOS, "", goals_table(results), NOT_ASKED, "",
        *(question_text(q, other_origin(results, q)) for q in results["questions"].values()),
        "## The machine", "", table(["", ""], facts)]
    if results["missing"]:
        parts += ["## Not installed", "", table(["package", "why"], [
            [name, why] for name, why in results["missing"].items()])]
    return "\n".join(parts).rstrip() + "\n"


# ---- plots ----

def without_trailing_blanks(path):
    """Removes trailing blanks, which no file of the repository may have (tests/tidy/tidy.py)."""
    path.write_text("".join(line.rstrip() + "\n" for line in path.read_text().splitlines()))


def plot(name, question, directory):
    """Lines over sizes with gnuplot; "" if there is nothing to draw or nobody to draw it."""
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
        rows = "\n".join(f"{size} {f.median} {f.low} {f.high}" for size, f in values)
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

# Rows of the README's table: what is measured, and the rival. They include rows that miss their goal.
README_ROWS = (("tcp, 4 KiB, both asleep, round trip", "gRPC byte buffers, sleeping"),
               ("tcp, 64 MiB, 16 in flight, rate", "raw TCP, spinning"),
               ("tcp, 64 MiB, 16 in flight, rate", "gRPC byte buffers, its best"),
               ("shm, 64 B, round trip", "the best of UCX and OpenMPI"),
               ("tcp, 100 MB pushed and pulled, 1 server, 1 worker, times as fast",
                "gRPC byte buffers, its best"))


def readme_table(results):
    rows = goals.rows(results)
    by_goal = {(row.goal.what, row.goal.against): row for row in rows}
    lines = [goal_line(by_goal[key], results) for key in README_ROWS]
    judged = [row.met for row in rows if row.met is not None]
    machine = results["machine"]
    return (f"Measured {results['date']} on {machine['cores']} cores of {machine['processor']}, "
            f"kernel {machine['kernel']}, by `./run bench`. {sum(judged)} of {len(judged)} goals are met; "
            f"[docs/benchmarks](docs/benchmarks/README.md) has all of them, and how they were "
            f"measured. {RATIOS}\n\n" +
            table(["what", "against", "Tern", "peer", "ratio (least..most)", "goal", ""], lines))


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
