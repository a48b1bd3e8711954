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
    low: float  # the least of the rounds
    high: float  # the most


@dataclass(frozen=True)
class Interval:
    value: float
    low: float  # the ends of the 95 % interval of `value`
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


def student(freedom):
    """The number below which 97.5 % of Student's t distribution lie: Cornish and Fisher's series,
    which is off by less than 1 % from 3 degrees of freedom on."""
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    z = NORMAL
    return (z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2) +
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3))


@functools.lru_cache(maxsize=None)
def draws(count):
    """Which of `count` rounds each resample takes. The same in every run of the program."""
    dice = random.Random(1)
    return [dice.choices(range(count), k=count) for _ in range(RESAMPLES)]


@functools.lru_cache(maxsize=None)
def interval_of(values):
    """The Interval of the mean of a tuple of values. One round tells nothing of the others."""
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


def ratio(above, below):
    """The Interval of `above` / `below` of each round; None if no round has both values."""
    pairs = [(a, b) for a, b in zip(above, below) if a is not None and b]
    return interval([a / b for a, b in pairs]) if pairs else None


def meets(value, sense, limit):
    """`sense` is "<=" or ">="."""
    return value <= limit if sense == "<=" else value >= limit


def judge(found, sense, limit):
    """"met" or "missed" if the whole interval agrees, else "undecided"."""
    ends = {meets(end, sense, limit) for end in (found.low, found.high)}
    return "undecided" if len(ends) > 1 else "met" if ends.pop() else "missed"


def distance(high, low):
    return math.log(high / low) if low > 0 else math.inf


def moved(now, before, less_is_better, comparisons=1):
    """How a ratio compares with the committed one: "same", "better" or "worse".

    It moved if the intervals have no point in common, and the difference of the logarithms is more
    than both intervals explain together. `comparisons` is how many ratios are compared: without a
    change, none of them seems to have moved in 99 of 100 reports (Bonferroni), if the rounds are
    normally distributed; with 8 rounds it is 97, as a simulation shows. That holds as far as one
    sitting tells what another one would find.
    """
    upper, lower = (now, before) if now.value > before.value else (before, now)
    if upper.low <= lower.high:
        return "same"
    noise = math.hypot(distance(upper.value, upper.low), distance(lower.high, lower.value))
    wider = statistics.NormalDist().inv_cdf(1 - 0.005 / comparisons) / NORMAL
    if lower.value > 0 and math.log(upper.value / lower.value) <= wider * noise:
        return "same"
    return "better" if (upper is before) == less_is_better else "worse"


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
