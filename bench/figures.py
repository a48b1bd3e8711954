# SPDX-License-Identifier: Apache-2.0
"""Medians, ratios and what has moved. Nothing here reads a file or a clock.

A figure is the list of its values, one per round. Round r of one contender ran beside round r
of every other, so a ratio is taken round by round: what slows the machine slows both sides of
it. A ratio's spread is its least and most over the rounds.
"""
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    median: float
    low: float
    high: float


def figure(values):
    return Figure(statistics.median(values), min(values), max(values))


def ratio(above, below):
    """`above` / `below` of each round, as a Figure; None if no round has both values."""
    pairs = [(a, b) for a, b in zip(above, below) if a is not None and b]
    return figure([a / b for a, b in pairs]) if pairs else None


def best(candidates, smaller_is_better):
    """The key of the best median among {key: values}; None if there is none."""
    found = {key: statistics.median(v) for key, v in candidates.items() if v}
    if not found:
        return None
    return (min if smaller_is_better else max)(found, key=found.get)


def meets(value, sense, limit):
    """`sense` is "<=" or ">="."""
    return value <= limit if sense == "<=" else value >= limit


def verdict(now, before, sense):
    """How a ratio compares with the committed one: "same", "better" or "worse".

    It moved if each median lies outside of the other's spread. So noise does not count as a
    change: a noisy run has a wide spread, and a single odd round hardly moves a median.
    """
    if before.low <= now.median <= before.high or now.low <= before.median <= now.high:
        return "same"
    smaller = now.median < before.median
    return "better" if smaller == (sense == "<=") else "worse"


def rounds_of(size, most, least=3, bytes_in_all=64 << 20):
    """How many messages of a size are measured in a round: those of about `bytes_in_all`, but at
    least `least` and at most `most`."""
    return max(least, min(most, bytes_in_all // max(size, 1)))


def size_text(size):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def number_text(value):
    """With about three significant digits."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 2
    while digits > 0 and abs(value) >= 10 ** (3 - digits):
        digits -= 1
    if abs(value) < 0.095:
        return f"{value:.2g}"
    return f"{value:.{digits}f}"
