# SPDX-License-Identifier: Apache-2.0
"""What the servers make of gradients: tensors with update rules of their own, under each schedule of the learning rate,
are compared with the formulas of docs/training.md in float64.

usage: updates.py TERN, or as a worker: updates.py worker OUT SESSION RULE...
"""
import math
import sys

import numpy
import pytern as tern

from jobs import SCRATCH, Job, first_to_end, tap

STEPS, SLOTS, WIDTH = 12, 3, 5
# The first tensor has the rule of the session. Settings of 0 are settings: the rule's default does not replace them.
SESSION_RULE = "SGD(lr=0.05, weight_decay=0.1)"
RULES = ["None", "SGD(lr=0.2)", "Momentum(lr=0.05, weight_decay=0.1)", "Momentum(momentum=0)", "Nesterov(lr=0.05)",
         "Adagrad()", "Adagrad(initial_accumulator=0)", "RMSProp()", "RMSProp(momentum=0.5, beta2=0)", "Adam(lr=0.1)",
         "Adam(lr=0.1, beta1=0)", "AdamW(lr=0.1)", "AdamW(lr=0.1, weight_decay=0)", "Mean()"]
# A schedule, and the factor of the learning rate at step t + 1.
SCHEDULES = {
    "None": lambda t: 1,
    "Warmup(5)": lambda t: min(1, (t + 1) / 5),
    "Step(3, 0.5)": lambda t: 0.5 ** (t // 3),
    "Step(every=3, factor=0.5, warmup=2)": lambda t: 0.5 if t == 0 else 0.5 ** (t // 3),
    "Linear()": lambda t: 1 - t / STEPS,
    "Linear(end=0.2, steps=8, warmup=2)": lambda t: 0.5 if t == 0 else 1 - 0.8 * min(1, max(0, t - 2) / 6),
    "Cosine()": lambda t: (1 + math.cos(math.pi * t / STEPS)) / 2,
    "Cosine(end=0.1, steps=8)": lambda t: 0.1 + 0.9 * (1 + math.cos(math.pi * min(1, t / 8))) / 2,
}


def gradient(values, step, slot):
    return values * (1 + slot) + numpy.sin(numpy.arange(WIDTH) + step).astype(numpy.float32)


def without_settings(name):
    """An optimizer for which the library takes the defaults."""
    return type("Default", (tern.Optimizer,), {"name": name})()


def work(out, session, *rules):
    """A worker. It saves the first and the last values of all tensors."""
    names = {**vars(tern), "default": without_settings}
    first = None
    with tern.Session(steps=STEPS, **eval(session, names)) as s:
        tensors = [s.tensor(f"t{i:02}", WIDTH, tern.uniform(1), eval(rule, names)) for i, rule in enumerate(rules)]
        for slot in s.slots():
            with slot:
                first = [slot[w].copy() for w in tensors] if first is None else first
                for w in tensors:
                    slot.push(w, gradient(slot[w], slot.step, slot.number))
                slot.loss(0)
        with s.finishing() as mine:
            if mine:
                numpy.save(out, [first, [w.value for w in tensors]])


class Reference:
    """One tensor and its rule, in float64."""

    def __init__(self, rule, values):
        self.name, self.set, self.w = rule.name, rule.settings(), values.astype(float)
        self.m = numpy.zeros(WIDTH)
        self.v = numpy.full(WIDTH, self.set.get("initial_accumulator", 0.0))

    def take(self, g, t, factor):
        """Makes step t + 1 with the mean gradient g."""
        if self.name == "mean":
            self.w = g
            return
        lr, decay = self.set["lr"] * factor, self.set["weight_decay"]
        if self.name == "adamw":
            self.w = self.w - lr * decay * self.w + lr * self.direction(g, t)
        else:
            self.w = self.w + lr * self.direction(g + decay * self.w, t)

    def direction(self, g, t):
        momentum, beta1, beta2, epsilon = (self.set.get(key) for key in ("momentum", "beta1", "beta2", "epsilon"))
        if self.name == "sgd":
            return -g
        if self.name in ("momentum", "nesterov"):
            self.m = momentum * self.m + g
            return -self.m if self.name == "momentum" else -(g + momentum * self.m)
        if self.name == "adagrad":
            self.v = self.v + g * g
            return -g / (numpy.sqrt(self.v) + epsilon)
        self.v = beta2 * self.v + (1 - beta2) * g * g
        if self.name == "rmsprop":
            self.m = momentum * self.m + g / (numpy.sqrt(self.v) + epsilon)
            return -self.m
        self.m = beta1 * self.m + (1 - beta1) * g
        unbiased = numpy.sqrt(self.v / (1 - beta2 ** (t + 1)))
        return -self.m / (1 - beta1 ** (t + 1)) / (unbiased + epsilon)


def compare(schedule, factor, mode="sync"):
    """Trains with the schedule, and compares the result with the formulas."""
    out = SCRATCH / "updates.npy"
    slots = SLOTS if mode == "sync" else 1
    with Job(1) as job:
        job.worker(0, __file__, "worker", out, f"dict(optimizer={SESSION_RULE}, schedule={schedule}, mode={mode!r}, "
                   f"slots={slots})", *RULES)
        job.end()
    first, last = numpy.load(out)
    for text, before, after in zip(RULES, first, last):
        reference = Reference(eval(SESSION_RULE if text == "None" else text, vars(tern)), before)
        for t in range(STEPS):
            mean = numpy.mean([gradient(reference.w, t, slot) for slot in range(slots)], axis=0)
            reference.take(mean, t, factor(t))
        numpy.testing.assert_allclose(after, reference.w, rtol=1e-4, atol=1e-5, err_msg=f"{text}, {schedule}, {mode}")
        assert text == "Mean()" or not numpy.allclose(after, before, atol=1e-3), f"{text}: the values did not change"


def test_of(schedule, factor):
    def test():
        compare(schedule, factor)
    test.__name__ = f"rules_have_their_formulas_with_schedule_{schedule.replace(' ', '')}"
    return test


def rules_and_a_schedule_have_their_formulas_in_async_mode():
    for schedule in ("Linear(end=0.2, steps=8, warmup=2)", "Step(3, 0.5)"):
        compare(schedule, SCHEDULES[schedule], "async")


def train_two(options, rules):
    """Starts a job with two workers. Worker i has the session options[i] and tensors with rules[i]."""
    job = Job(2)
    for i in range(2):
        job.worker(i, __file__, "worker", SCRATCH / "two.npy", options[i], *rules[i])
    return job


def a_rule_without_settings_is_the_one_that_the_class_describes():
    """The servers refuse a worker whose settings differ from those of the first worker."""
    classes = tern.Optimizer.__subclasses__()
    tried = {rule.partition("(")[0] for rule in RULES}
    missing = {cls.__name__ for cls in classes} - tried
    assert not missing, f"RULES does not have {missing}"
    with train_two(["dict(slots=2)"] * 2, [[f"{cls.__name__}()" for cls in classes],
                                           [f"default({cls.name!r})" for cls in classes]]) as job:
        job.end()


def workers_with_other_rules_or_schedules_are_refused():
    """The servers take the job of the worker that comes first, and refuse the second one."""
    for options, rules, said in (
            (["dict()"] * 2, [["Adam()"], ["Adam(beta1=0)"]], "beta1: "),
            (["dict()"] * 2, [["Adam()"], ["None"]], "number of rules: "),
            ([f"dict(schedule=Step({n}, 0.5))" for n in (5, 6)], [["None"]] * 2, "schedule of the learning rate")):
        with train_two(options, rules) as job:
            refused = first_to_end(job.workers.values()).end(1)
            told = [line for line in refused.errors if line and line.startswith("pytern.Error: ")]
            assert len(told) == 1 and "server 0 refused this worker: " in told[0] and said in told[0], refused.said()
            print(f"# {told[0]}")


if sys.argv[1] == "worker":
    work(*sys.argv[2:])
else:
    tap.run([*(test_of(*pair) for pair in SCHEDULES.items()),
             rules_and_a_schedule_have_their_formulas_in_async_mode,
             a_rule_without_settings_is_the_one_that_the_class_describes,
             workers_with_other_rules_or_schedules_are_refused])
