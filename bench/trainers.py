# SPDX-License-Identifier: Apache-2.0
"""The question `train`: a model in PyTorch that Tern trains, beside what users would take instead.

Every contender trains the same model from the same values with the same records in the same order
(peers/train_common.py). So those that apply the mean of all workers' gradients have the same loss after the same steps,
and one that has another loss does not do the work.
"""
import os
from dataclasses import dataclass, replace
from pathlib import Path

import contenders as who
import install
from measure import Contender, Question, json_lines

TITLES = {"mlp": "MLP 784-256-128-10", "wide": "MLP 784-4096-4096-10", "transformer": "transformer"}
# Two losses after the same steps differ by less than this part of them. Sums in another order make a difference of some
# 10^-5.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Length:
    """How long a model is trained. steps: those that are timed. learn: those before them in which worker 0 looks at the
    accuracy, and which must suffice for it. 0: there are none."""
    steps: int
    quick_steps: int
    learn: int = 0
    quick_learn: int = 0
    accuracy: float = 0.0
    quick_accuracy: float = 0.0


LENGTHS = {"mlp": Length(600, 120, 600, 120, 0.93, 0.8), "wide": Length(20, 8), "transformer": Length(40, 20)}
# An operation has one thread, in PyTorch's libraries by this variable.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **who.KEEP_MEMORY}


def data_folder():
    """The folder with MNIST's test files, or "" if none is named."""
    name = os.environ.get("TERN_DATA_DIR", "")
    return str(Path(name).resolve()) if name else ""


def arguments(plan, model, workers):
    length, data = LENGTHS[model], data_folder()
    return ["--model", model, "--workers", str(workers),
            "--steps", str(plan.sizes(length.steps, length.quick_steps)),
            "--learn", str(plan.sizes(length.learn, length.quick_learn)),
            "--accuracy", str(plan.sizes(length.accuracy, length.quick_accuracy)),
            *(["--data", data] if data else [])]


def point(line):
    return f"{TITLES[line['model']]}, {line['workers']}w"


def without_names(out):
    """The figures in the output of `tern run`, which puts the name of the worker before each line."""
    return json_lines("\n".join(line[line.find("{"):] for line in out.splitlines() if "{" in line))


def why_no_torch(missing):
    """Why there is no PyTorch: neither PyPI's nor Debian's; "" if there is one."""
    if install.has_torch() or "python3-torch" not in missing:
        return ""
    return "; ".join(f"{name}: {missing[name]}" for name in ("torch", "python3-torch") if name in missing)


def tern(plan, fabric, model, workers):
    package = plan.make.tern_program.parent / "python"
    missing = why_no_torch(plan.make.missing)
    if not missing and not (package / "pytern/_native.abi3.so").exists():
        missing = "pytern was not built, which needs python3-dev"
    return Contender(
        f"tern.{fabric}", f"Tern, {fabric}",
        [str(plan.make.tern_program), "run", "--servers", "1", "--workers", str(workers), "--fabric", fabric, "--",
         install.torch_python(), str(install.TOP / "bench/tern_train.py"), *arguments(plan, model, workers)],
        {**ENVIRONMENT, "PYTHONPATH": str(package)}, "sleep", fabric, missing, point, parse=without_names, ours=True)


def peer(plan, key, title, program, model, workers, fabric="tcp", variant=""):
    missing = plan.make.missing
    if program == "torch_train.py":
        python, why = install.torch_python(), why_no_torch(missing)
    else:
        python = str(install.VENV / "bin/python")
        why = f"tensorflow-cpu: {missing['tensorflow-cpu']}" if "tensorflow-cpu" in missing else ""
    return Contender(key, title,
                     [python, str(install.TOP / "bench/peers" / program), *arguments(plan, model, workers),
                      *(["--variant", variant] if variant else [])],
                     {**ENVIRONMENT, **who.cubic()}, "sleep", fabric, why, point)


def ddp_over_tern(plan, fabric, model):
    """DistributedDataParallel with Tern's backend. On one host, TERN_FABRICS=auto is shared memory."""
    with_gloo = peer(plan, f"tern.ddp.{fabric}", f"PyTorch DDP, Tern's backend, {fabric}", "torch_train.py", model, 2,
                     fabric, "ddp-tern")
    of_tern = tern(plan, fabric, model, 2)
    environment = {**of_tern.environment, "TERN_FABRICS": "auto" if fabric == "shm" else fabric}
    return replace(with_gloo, environment=environment, missing=of_tern.missing, ours=True)


def contenders(plan, model):
    """The contenders for one model: those with one worker, and those with two. PyTorch alone moves no bytes, so its
    fabric only says next to whom it runs."""
    found = [tern(plan, fabric, model, 1) for fabric in ("tcp", "shm")]
    found.append(peer(plan, "torch.alone", "PyTorch alone, one process", "torch_train.py", model, 1, variant="alone"))
    # A quick run has TensorFlow for one model only, since its processes take some 15 s to start.
    flow = not plan.quick or model == "mlp"
    by_flow = [peer(plan, "tensorflow", "TensorFlow, ParameterServerStrategy, asynchronous", "tensorflow_train.py",
                    model, workers) for workers in (1, 2) if flow]
    found += by_flow[:1]
    found += [tern(plan, fabric, model, 2) for fabric in ("tcp", "shm")]
    found += [ddp_over_tern(plan, fabric, model) for fabric in ("tcp", "shm")]
    found += [peer(plan, "torch.ddp", "PyTorch DDP, gloo", "torch_train.py", model, 2, variant="ddp"),
              peer(plan, "torch.ddp.shm", "PyTorch DDP, gloo, run next to Tern's shm", "torch_train.py", model, 2,
                   "shm", variant="ddp")]
    return found + by_flow[1:]


def disagreeing(runs):
    """{key: why} of the contenders whose loss is another one than that of those who made the same steps. runs: [(key,
    {point: line})] of a round. PyTorch's own loss counts, if it is there."""
    found, right = {}, {}
    for key, lines in sorted(runs, key=lambda run: not run[0].startswith("torch.")):
        for where, line in lines.items():
            if not line["same_steps"]:
                continue
            whom, loss = right.setdefault(where, (key, line["loss"]))
            if not abs(line["loss"] - loss) <= TOLERANCE * loss:
                found[key] = f"{where}: its loss is {line['loss']:.5f} after the same steps, that of {whom} {loss:.5f}"
    return found


def which_torch(missing):
    """A note for the report if PyTorch is not the one that it should be."""
    if install.has_torch() or why_no_torch(missing):
        return []
    return [f"PyTorch is Debian's, since {install.TORCH_WHEEL} of PyPI is missing: "
            f"{missing.get('torch', 'not installed')}."]


ABOUT = (
    "A program in PyTorch trains a model from the same values, with the same records in the same order, the same "
    "batch for each worker (128 records; 32 of the wide MLP; 16 of the transformer, which is a character model of "
    "64 characters, two layers of width 128 and 1.7 MB, without dropout), with SGD and float32. Tern: `tern run` "
    "with one server and pytern.torch, sync. DDP: DistributedDataParallel over gloo, whose workers sum among "
    "themselves without a server; also over Tern's backend instead of gloo. PyTorch alone: one process without "
    "communication, whose time is what a model costs. TensorFlow: a server, workers that do not wait for each other, and a coordinator, a process more. "
    "`2w`: two workers; PyTorch has the same version everywhere. One thread computes an operation, because there are "
    "as many workers as cores at most; nobody is pinned. With PyTorch, a process computes one operation at a time. "
    "TensorFlow's processes may compute four at a time (inter_op_parallelism_threads), because they wait for each "
    "other for ever with one. Tern computes with PyTorch's deterministic algorithms, as pytern.torch asks for; the "
    "others do not. Samples a second: those of all workers. Processor time of a step: that of all processes, servers, "
    "launchers and coordinators too. Both are of the last steps of the training, in which nobody looks at the loss or "
    "the accuracy; the steps before them are the warm-up. Time to accuracy: the number of steps until {accuracy:g} of "
    "2,000 test images are right, which worker 0 looks up every 20 steps in an earlier part of the training, times the "
    "time of a step in the last part. Whoever applies the mean of all gradients has the same loss on the test data "
    "after 40 steps (MLP 784-256-128-10) or the last one (the others), which is checked to {tolerance:g}, and "
    "everybody's must fall. {data}")
DATA = {True: "Images are MNIST's 10,000 test images, of which 8,000 are trained with.",
        False: "Images are made up, since TERN_DATA_DIR names no folder with MNIST's test images."}


def train(plan):
    accuracy = plan.sizes(LENGTHS["mlp"].accuracy, LENGTHS["mlp"].quick_accuracy)
    about = ABOUT.format(accuracy=accuracy, tolerance=TOLERANCE, data=DATA[bool(data_folder())])
    found = [contender for model in LENGTHS for contender in contenders(plan, model)]
    return Question("train", "Training a model in PyTorch", about, found,
                    [("samples_per_s", "/s", "larger"), ("cpu_ms_per_step", "ms", "smaller"),
                     ("accuracy_s", "s", "smaller")], axis="model, workers",
                    notes=which_torch(plan.make.missing), agree=disagreeing)
