# SPDX-License-Identifier: Apache-2.0
"""Figures from samples. A row is a dictionary, one JSON line of what was measured:

    name, peer          what was measured, and beside what in the same run
    ours_us, peer_us    samples of one operation, in pairs: two of each round
    bytes               moved by one operation; 0: the row is not about bandwidth
    goal                the ratio must be at least this; 0: there is no goal
    missing             why there are no samples of the peer: peer_us is empty
    note                one more observation, to be shown
    wrong               why the two did not do the same; then the comparison has failed
    ours_bytes, peer_bytes    device memory that each uses, where that was measured
    fingerprint         of Tern's kernels, where compare.py has made the row

The ratio is the peer's time over ours, round by round: above 1 ours is faster; beside a limit
it is the part of the limit's rate that was reached.
"""
from statistics import median


def rounds_of(samples):
    return [(a + b) / 2 for a, b in zip(samples[::2], samples[1::2])]


def ratios_of(row):
    return [p / o for p, o in zip(rounds_of(row["peer_us"]), rounds_of(row["ours_us"])) if o > 0]


def verdict_of(row):
    """The verdict on a row: "met", "missed", "wrong" or "missing"; "" if it has no goal or no
    samples of both."""
    if row.get("wrong"):
        return "wrong"
    if row.get("missing"):
        return "missing"
    if not row.get("goal") or not ratios_of(row):
        return ""
    return "met" if median(ratios_of(row)) >= row["goal"] else "missed"


def time_of(samples):
    if not samples:
        return "-"
    us = median(rounds_of(samples))
    return f"{us:.2f} us" if us < 100 else f"{us:,.0f} us"


def rate_of(row, samples):
    """The rate, as in " (4,300 GB/s)"; "" if the row is not about bandwidth."""
    if not samples or not row.get("bytes"):
        return ""
    return f" ({row['bytes'] / median(rounds_of(samples)) / 1000:,.0f} GB/s)"


def ratio_text(row):
    ratios = ratios_of(row)
    if not ratios:
        return "-"
    return f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def memory_text(row):
    mib = [f"{row[key] / 2**20:.0f}" if row.get(key) else "-" for key in ("ours_bytes", "peer_bytes")]
    return "" if mib == ["-", "-"] else " / ".join(mib) + " MiB"


def cells_of(row):
    goal = f"{row['goal']:g}" if row.get("goal") else ""
    verdict = verdict_of(row)
    if verdict in ("wrong", "missing"):
        verdict += ": " + row[verdict]
    if row.get("note"):
        verdict = ", ".join(filter(None, [verdict, row["note"]]))
    return [row["name"], time_of(row["ours_us"]) + rate_of(row, row["ours_us"]), row["peer"],
            time_of(row["peer_us"]) + rate_of(row, row["peer_us"]), ratio_text(row), goal, verdict,
            memory_text(row)]


HEAD = ["what", "ours", "beside", "its time", "its time / ours: median (min-max)", "goal", "",
        "memory: ours / its"]


def table(rows):
    """The lines of a Markdown table of the rows."""
    lines = [HEAD, ["---"] * len(HEAD)] + [cells_of(row) for row in rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]
