# SPDX-License-Identifier: Apache-2.0
"""`./run bench --check`: what is slower or faster in this tree than in another commit, the base.

Both are measured in one run: each contender next to its twin of the base, so neither another
machine nor another hour is taken for a change. A peer runs only if its program differs, since one
that is the same cannot have moved. A figure has moved if two sittings say so: the first one is
short and wrong about one unchanged figure of ten, and only the contenders of those that seem to
have moved are measured again, in more rounds. The second is wrong about one of a thousand, and
must find the same direction. So of 100 unchanged figures one is said to have moved in one run of
200.
"""
import dataclasses
from dataclasses import dataclass

import figures
import measure
from base import KEY
from goals import GOALS

# Confidence of the intervals: those of the first sitting, and those of the second.
SUSPECTED, CONFIRMED = 0.9, 0.999
AGAIN_ROUNDS = 3  # the second sitting has so many times the rounds of the first
AGAIN = ", again"  # ends the name of a question's second sitting


@dataclass
class Move:
    """How a figure of a contender compares with the base's."""
    contender: dict  # its entry in results.json
    place: tuple  # the figure's: (the contender's key, the point, the metric)
    unit: str
    less_is_better: bool
    before: float
    now: float
    ratio: figures.Interval  # now / before

    @property
    def verdict(self):
        if self.ratio.low <= 1 <= self.ratio.high:
            return "same"
        return "better" if (self.ratio.value < 1) == self.less_is_better else "worse"

    @property
    def verdict_on_tern(self):
        """The verdict on Tern: a peer that has become slower is better for Tern's ratio."""
        opposite = {"same": "same", "better": "worse", "worse": "better"}
        return self.verdict if self.contender["ours"] else opposite[self.verdict]

    def text(self):
        who = self.contender["title"] + ("" if self.contender["ours"] else ", a peer")
        return (f"{who}, {self.contender['wait']}, {self.place[1]}, {self.place[2]}: "
                f"{figures.number_text(self.before)} -> {figures.number_text(self.now)} {self.unit}, "
                f"{self.ratio.value:.3f} [{self.ratio.low:.3f}, {self.ratio.high:.3f}] of the base's")


def compared(question):
    """The first of a question's metrics, and those that a goal is about."""
    asked = {goal.metric for goal in GOALS if goal.question == question.name}
    return [metric for number, metric in enumerate(question.metrics)
            if not number or metric[0] in asked]


def pairs(question, base, with_peers, say):
    """The question for both trees: every contender that may have moved, and after each its twin,
    the same contender of the base."""
    found = []
    for contender in question.contenders:
        if contender.missing or not contender.ours and (not with_peers or base.is_same(contender)):
            continue
        twin = base.twin(contender)
        if twin.missing:
            say(f"  not compared: {contender.title}: {twin.missing}")
            continue
        found += [dataclasses.replace(contender, leads=True), twin]
    return dataclasses.replace(question, contenders=found, metrics=compared(question))


def moves(question, record, confidence):
    """A Move for each figure that both trees have."""
    found = []
    for key, twin in record.found.items():
        leader = key.removesuffix(KEY)
        now = twin.get("beside", {}).get(leader, {})
        for point, before in twin["points"].items() if leader != key else ():
            for metric, unit, better in question.metrics:
                both = [point_metrics.get(metric, []) for point_metrics in (now.get(point, {}), before)]
                quotients = [q for q in figures.quotients(*both) if q > 0]
                if quotients:
                    found.append(Move(
                        record.found[leader], (leader, point, metric), unit, better == "smaller",
                        *(figures.figure(values).mean for values in both[::-1]),
                        figures.student_interval(quotients, confidence)))
    return found


def again(question, suspects):
    """The question for only those contenders of which a figure seems to have moved."""
    keys = {move.place[0] for move in suspects}
    return dataclasses.replace(question, name=question.name + AGAIN, contenders=[
        c for c in question.contenders if c.key.removesuffix(KEY) in keys])


class Check:
    def __init__(self, base, rounds, with_peers, journal, say):
        self.base, self.rounds, self.with_peers = base, rounds, with_peers
        self.journal, self.say = journal, say
        self.records, self.failed = {}, []
        self.moved = []  # (question, Move)
        self.compared, self.not_compared = 0, {}

    def sitting(self, question, rounds, confidence):
        record = measure.ask(question, rounds, self.journal, self.say)
        self.records[question.name] = record.as_json()
        self.failed += [f"{question.name}: {title}: {why}" for title, why in record.failed.items()]
        return moves(question, record, confidence)

    def ask(self, question):
        both = None if question.all_rounds else pairs(question, self.base, self.with_peers, self.say)
        if both is None or not both.contenders:
            self.not_compared[question.name] = ("no program of it differs" if both else
                                                "it measures all of its rounds at once")
            return
        first = self.sitting(both, self.rounds, SUSPECTED)
        self.compared += len(first)
        suspects = {move.place: move.verdict for move in first if move.verdict != "same"}
        if not suspects:
            return
        self.say(f"  {question.name}: {len(suspects)} of {len(first)} figures seem to have moved")
        second = self.sitting(again(both, [move for move in first if move.place in suspects]),
                              AGAIN_ROUNDS * self.rounds, CONFIRMED)
        self.moved += [(question.name, move) for move in second
                       if suspects.get(move.place) == move.verdict]

    def worse(self):
        return sum(move.verdict_on_tern == "worse" for _, move in self.moved)

    def tell(self):
        for name, move in self.moved:
            print(f"{move.verdict_on_tern}: {name}, {move.text()}")
        for name, why in self.not_compared.items():
            print(f"not compared: {name}: {why}")
        print(f"against {self.base.title()}: {self.worse()} worse, "
              f"{len(self.moved) - self.worse()} better, {self.compared - len(self.moved)} the same")
