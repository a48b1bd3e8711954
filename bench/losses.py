# SPDX-License-Identifier: Apache-2.0
"""Where Tern loses: every figure in which a peer surely beats it, found in the results and not in a
list of goals, so a loss that nobody has made a goal of is seen, too.

Compared are contenders of one question that move their bytes over the same fabric and wait in the
same way. A peer surely beats Tern if the whole interval of the ratio lies on the losing side.
"""
from dataclasses import dataclass

import figures
import goals
from measure import mode

# Ends of the keys of Tern's contenders that are not compared: with .peek the tensor's address is
# handed over and nothing is copied, and no peer does the same work.
OTHER_WORK = (".peek",)
NO_LIBRARY = ("raw", "limit", "malloc")  # programs of bench/ that do only what one question needs


@dataclass
class Loss:
    question: str
    ours: str
    wait: str
    point: str
    metric: str
    # The peer with the largest ratio among the peers of one kind (libraries, or plain programs) that beat Tern.
    peer: str
    # How many times as much as the peer Tern takes or, where more is better, the peer moves: above 1.
    ratio: figures.Interval
    others: list  # peers of the same kind that surely beat Tern, too, by less
    to_library: bool
    is_goal: bool  # a row of the goals compares these two in this figure


def is_of_sizes(question):
    return question["axis"].startswith("bytes")


def is_telling(question, metric, point):
    """False if a figure says nothing: the p99 of a few large tensors is only the slowest of them,
    and the processor time per GB of small ones only says how many make a GB."""
    size = point.partition("x")[0]
    if not size.isdigit() or not is_of_sizes(question):
        return True
    least, most = {"p99_us": (0, 1 << 20), "p999_us": (0, 1 << 16),
                   "cpu_s_per_gb": (1 << 16, 1 << 62)}.get(metric, (0, 1 << 62))
    return least <= int(size) <= most


def is_compared(question, metric, wait, point):
    """False if a comparison says nothing or compares different things: processor time while polling
    (it is the elapsed time once more), what is_telling() refuses, and the points of the verbs question
    at which Tern sleeps, since perftest's sender polls at them."""
    if metric == "cpu_s_per_gb" and wait == "poll":
        return False
    return is_telling(question, metric, point) and not point.endswith(", sleep")


def smaller_is_better(better, point):
    """True if the smaller figure is the better one. The metric of the verbs question ("-") is a
    latency at some points and a bandwidth at others; the names of the points say which."""
    return point.startswith("latency") if better == "-" else better == "smaller"


def beaten_by(question, ours, metric, better, point):
    """{key of a peer: Interval of the ratio, all above 1} of the peers that surely beat `ours`, a
    contender of Tern, at a point."""
    entry, found = question["contenders"][ours], {}
    for key, other in question["contenders"].items():
        if other["ours"] or (other["fabric"], mode(other["wait"])) != (
                entry["fabric"], mode(entry["wait"])):
            continue
        pair = goals.neighbours(question, ours, key, point, metric)
        if not all(pair):
            continue
        ratio = figures.ratio(*(pair if smaller_is_better(better, point) else pair[::-1]))
        if ratio and ratio.low > 1:
            found[key] = ratio
    return found


def is_library(peer):
    return peer.split(".")[0] not in NO_LIBRARY


def has_goal(name, ours, metric, point, peer):
    return any((goal.question, goal.ours, goal.metric, goal.point) == (name, ours, metric, point) and
               goal.sense and not goal.peer_question and goal.is_against(peer)
               for goal in goals.GOALS)


def found_at(name, question, ours, metric, better, point):
    """The losses of one figure, at most two: the worst one to a library and the worst one to a plain
    program."""
    beaten = beaten_by(question, ours, metric, better, point)
    wait = mode(question["contenders"][ours]["wait"])
    for library in (True, False):
        peers = sorted((key for key in beaten if is_library(key) == library),
                       key=lambda key: -beaten[key].value)
        if peers:
            yield Loss(name, ours, wait, point, metric, peers[0], beaten[peers[0]], peers[1:],
                       library, has_goal(name, ours, metric, point, peers[0]))


def found_in(name, question):
    for ours, entry in question["contenders"].items():
        if not entry["ours"] or ours.endswith(OTHER_WORK):
            continue
        for metric, _, better in question["metrics"]:
            for point in entry["points"]:
                if is_compared(question, metric, mode(entry["wait"]), point):
                    yield from found_at(name, question, ours, metric, better, point)


def losses(results):
    return [loss for name, question in results["questions"].items()
            for loss in found_in(name, question)]
