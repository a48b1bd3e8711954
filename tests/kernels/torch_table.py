#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes torch_table.h: what torch.optim, in float64, makes of a few parameters in a few steps, and the learning
rates of its schedules.

usage: torch_table.py > torch_table.h (with PyTorch; no test and no build needs it. Debian's python3-torch 1.13.1, which
made the committed table, calls itself 1.13.0a0.)

Settings are rounded to float32 first, as Tern stores them, so that only the arithmetic differs. Parameters and
gradients are multiples of 1/64, which float32 represents; test_torch.c computes the same ones.
"""
import inspect
import struct

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, StepLR

STEPS, ELEMENTS, RATES = 6, 4, 8
# Tern's name of a setting, torch's.
NAMES = {"lr": "lr", "momentum": "momentum", "beta2": "alpha", "epsilon": "eps", "weight_decay": "weight_decay",
         "initial_accumulator": "initial_accumulator_value"}
FIELDS = ["lr", "momentum", "beta1", "beta2", "epsilon", "weight_decay", "initial_accumulator"]


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def parameters():
    return [(j * 37 % 64 - 32) / 16 for j in range(ELEMENTS)]


def gradients(step):
    """The last element has no gradient: only a weight decay moves it."""
    return [((step * step * 7 + j * 29) % 64 - 32) / 64 if j < ELEMENTS - 1 else 0 for j in range(ELEMENTS)]


def run(optimizer, settings, more):
    arguments = {NAMES[name]: f32(value) for name, value in settings.items() if name in NAMES and
                 (name != "beta2" or "beta1" not in settings)}
    if "beta1" in settings:
        arguments["betas"] = (f32(settings["beta1"]), f32(settings["beta2"]))
    w = torch.tensor(parameters(), dtype=torch.float64, requires_grad=True)
    made = optimizer([w], **arguments, **more)
    for step in range(1, STEPS + 1):
        w.grad = torch.tensor(gradients(step), dtype=torch.float64)
        made.step()
        yield w.detach().tolist()


def defaults(optimizer):
    """The defaults of the constructor, by Tern's names."""
    found = {name: p.default for name, p in inspect.signature(optimizer).parameters.items()}
    settings = {name: found[torch_name] for name, torch_name in NAMES.items() if torch_name in found}
    if "betas" in found:
        settings["beta1"], settings["beta2"] = found["betas"]
    return settings


def cases():
    """Yields Tern's rule, torch's class, settings, arguments of the class that Tern has no setting for, and whether
    the settings are torch's defaults."""
    for decay in (0, 0.125):
        common = {"lr": 0.125, "weight_decay": decay}
        yield "sgd", SGD, common, {}, False
        yield "momentum", SGD, {**common, "momentum": 0.9}, {}, False
        yield "nesterov", SGD, {**common, "momentum": 0.9}, {"nesterov": True}, False
        yield "adagrad", Adagrad, {**common, "epsilon": 1e-10, "initial_accumulator": 0.1}, {}, False
        for momentum in (0, 0.75):
            yield "rmsprop", RMSprop, {**common, "momentum": momentum, "beta2": 0.9, "epsilon": 1e-3}, {}, False
        for name, optimizer in (("adam", Adam), ("adamw", AdamW)):
            yield name, optimizer, {**common, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}, {}, False
    for name, optimizer in (("rmsprop", RMSprop), ("adam", Adam), ("adamw", AdamW)):
        yield name, optimizer, defaults(optimizer), {}, True


# Tern's kind of schedule, its warm-up, its steps, its factor.
SCHEDULES = [("STEP", 0, 3, 0.5), ("STEP", 4, 3, 0.1), ("LINEAR", 0, 10, 0), ("LINEAR", 3, 10, 0.25),
             ("COSINE", 0, 10, 0), ("COSINE", 3, 10, 0.25), ("COSINE", 2, 1001, 0.01)]


def learning_rates(kind, warmup, steps, factor):
    """The learning rates of the first steps after the warm-up, of a whole learning rate of 1."""
    made = SGD([torch.zeros(1, dtype=torch.float64, requires_grad=True)], lr=1.0)
    if kind == "STEP":  # counts from the start
        schedule = StepLR(made, steps, factor)
    elif kind == "LINEAR":
        schedule = LinearLR(made, 1, factor, steps - warmup)
    else:
        schedule = CosineAnnealingLR(made, steps - warmup, factor)
    skipped = warmup if kind == "STEP" else 0
    for t in range(skipped + RATES):
        if t >= skipped:
            yield made.param_groups[0]["lr"]
        made.step()
        schedule.step()


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Made by torch_table.py with torch {torch.__version__}. */")
    print("/* clang-format off */")
    print(f"#define TORCH_STEPS {STEPS}u")
    print(f"#define TORCH_ELEMENTS {ELEMENTS}u")
    print("static const struct {\n\tconst char *rule;\n\tbool defaults; /* the settings are the defaults of torch */")
    print(f"\tfloat {', '.join(FIELDS)};\n\tdouble w[TORCH_STEPS][TORCH_ELEMENTS]; /* after each step */")
    print("} torch_cases[] = {")
    for name, optimizer, settings, more, are_defaults in cases():
        values = ", ".join(f"{float(settings.get(field, 0))!r}f" for field in FIELDS)
        rows = ",\n\t\t\t".join("{" + ", ".join(map(repr, w)) + "}" for w in run(optimizer, settings, more))
        print(f"\t{{\"{name}\", {str(are_defaults).lower()}, {values},\n\t\t{{{rows}}}}},")
    print(f"}};\n\n#define TORCH_RATES {RATES}u")
    print("static const struct {\n\tstruct tern_schedule schedule;")
    print("\tdouble lr[TORCH_RATES]; /* of the steps after the warm-up, of a whole learning rate of 1 */")
    print("} torch_schedules[] = {")
    for kind, warmup, steps, factor in SCHEDULES:
        rates = ", ".join(map(repr, learning_rates(kind, warmup, steps, factor)))
        print(f"\t{{{{TERN_SCHEDULE_{kind}, {warmup}, {steps}, {factor}}},\n\t\t{{{rates}}}}},")
    print("};\n/* clang-format on */")


if __name__ == "__main__":
    main()
