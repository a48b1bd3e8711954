# SPDX-License-Identifier: Apache-2.0
"""Means, ratios, their intervals, and what has moved. Nothing here reads a file or a clock.

A figure is the list of its values, one for each round, with None for a round that has none. A
ratio is taken round by round, between runs that were neighbours, so what slows the machine
slows both sides of it. Its value is the geometric mean of the rounds' ratios, which is the same
as the quotient of both sides' geometric means. Verdicts use nothing but the interval of that
mean, so the number that is shown is the number that is judged.
"""
import functools
import math
import random
import statistics
from dataclasses import dataclass

RESAMPLES = 2000
NORMAL = 1.959964  # 97.5 % of a normal distribution lie below it
INTERVALS = ("The interval is where the geometric mean of all possible rounds lies with 95 % "
             f"confidence: {RESAMPLES} times as many rounds as there are were drawn from them "
             "(bootstrap, with a fixed seed), and the middle 95 % of the draws' means were widened "
             "for the small number of rounds as Student's t distribution is wider than the normal "
             "one.")


@dataclass(frozen=True)
class Figure:
    mean: float
    low: float  # the least value of all rounds
    high: float  # the largest one


@dataclass(frozen=True)
class Interval:
    value: float
    low: float  # the ends of the interval of `value`: of 95 %, but see student_interval()
    high: float


def present(values):
    return [v for v in values if v is not None]


def mean(values):
    """The geometric mean; the arithmetic one if a value is not above 0, such as no processor time."""
    if min(values) > 0:
        return math.exp(math.fsum(map(math.log, values)) / len(values))
    return math.fsum(values) / len(values)


def figure(values):
    found = present(values)
    return Figure(mean(found), min(found), max(found))


def student(freedom, below=0.975):
    """The number below which the part `below` of Student's t distribution lies: exact for 1 and 2
    degrees of freedom, else Cornish and Fisher's series, which up to 99.5 % is off by less than 4 %
    with 3 degrees of freedom, and less with more."""
    if freedom == 1:
        return math.tan(math.pi * (below - 0.5))
    if freedom == 2:
        return (2 * below - 1) / math.sqrt(2 * below * (1 - below))
    z = statistics.NormalDist().inv_cdf(below)
    return (z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2) +
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3))


@functools.lru_cache(maxsize=None)
def draws(count):
    """The numbers of the rounds, of `count`, that each resample takes. The same in every run."""
    dice = random.Random(1)
    return [dice.choices(range(count), k=count) for _ in range(RESAMPLES)]


@functools.lru_cache(maxsize=None)
def interval_of(values):
    """The Interval of the mean of a tuple of values. That of a single value has no limits."""
    count = len(values)
    if count == 1:
        return Interval(values[0], 0.0, math.inf)
    scaled = [math.log(v) for v in values] if min(values) > 0 else list(values)
    middle = math.fsum(scaled) / count
    means = sorted(sum([scaled[i] for i in draw]) / count for draw in draws(count))
    wider = math.sqrt(count / (count - 1)) * student(count - 1) / NORMAL
    ends = [middle + (means[int(q * (RESAMPLES - 1))] - middle) * wider for q in (0.025, 0.975)]
    return Interval(mean(values), *(map(math.exp, ends) if min(values) > 0 else ends))


def interval(values):
    return interval_of(tuple(present(values)))


def quotients(above, below):
    """`above` / `below` of each round that has both values."""
    return [a / b for a, b in zip(above, below) if a is not None and b]


def ratio(above, below):
    """The Interval of `above` / `below` of each round; None if no round has both values."""
    found = quotients(above, below)
    return interval(found) if found else None


def student_interval(values, confidence):
    """The Interval of the mean of values above 0 whose logarithms are normally distributed."""
    count = len(values)
    if count == 1:
        return Interval(values[0], 0.0, math.inf)
    logs = [math.log(v) for v in values]
    half = student(count - 1, (1 + confidence) / 2) * statistics.stdev(logs) / math.sqrt(count)
    middle = mean(values)
    return Interval(middle, middle * math.exp(-half), middle * math.exp(half))


def meets(value, sense, limit):
    """True if value <= limit, or value >= limit: `sense` is "<=" or ">="."""
    return value <= limit if sense == "<=" else value >= limit


def judge(found, sense, limit):
    """"met" or "missed" if the whole interval agrees, else "undecided"."""
    ends = {meets(end, sense, limit) for end in (found.low, found.high)}
    return "undecided" if len(ends) > 1 else "met" if ends.pop() else "missed"


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
    """The number with about three significant digits; "?" if it is infinite."""
    if math.isinf(value):
        return "?"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    value = float(f"{value:.3g}")
    digits = 2
    while digits > 0 and abs(value) >= 10 ** (3 - digits):
        digits -= 1
    if abs(value) < 0.095:
        return f"{value:.2g}"
    return f"{value:.{digits}f}"
