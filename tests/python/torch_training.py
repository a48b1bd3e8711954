# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers train PyTorch modules: equal bytes for any number of workers and servers, also if workers are lost,
and the results of PyTorch's own optimizers.

usage: torch_training.py TERN
"""
import with_torch  # noqa: F401  (must be the first: it may start this script again, with another Python)
import functools
import os
import random
import signal
import subprocess
import sys
import time

import numpy
import torch

from jobs import HERE, LIMIT_S, SCRATCH, Job, tap

WORKER = HERE / "torch_worker.py"


def result(name, *acts, servers=1, fabric="tcp", codes=None, **environment):
    """Trains torch_worker.py with a worker for each of `acts`. Returns the bytes of each parameter, and the workers."""
    out = SCRATCH / f"{name}.npz"
    out.unlink(missing_ok=True)
    with Job(len(acts), servers, fabric) as job:
        for i, act in enumerate(acts):
            job.worker(i, WORKER, out, *act, **environment)
        for i, process in job.workers.items():
            process.end(codes[i] if codes else 0)
        for server in job.servers:
            server.end()
        return values(out), job.workers


def values(path):
    with numpy.load(path) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


@functools.cache
def undisturbed():
    return result("undisturbed", ["plain"])[0]


def bytes_are_the_same_for_any_number_of_workers_and_servers():
    assert len(undisturbed()) == 25 and undisturbed()["out.weight"] == undisturbed()["embedding.weight"]
    for workers, servers, fabric in ((2, 1, "tcp"), (3, 2, "tcp"), (1, 2, "auto"), (3, 1, "auto")):
        got, _ = result("number", *[["plain"]] * workers, servers=servers, fabric=fabric)
        assert got == undisturbed(), (workers, servers, fabric)


def copied_parameters_give_the_same_bytes():
    for workers, servers, fabric in ((1, 1, "tcp"), (2, 1, "auto")):
        got, _ = result("copied", *[["plain"]] * workers, servers=servers, fabric=fabric, COPY=1)
        assert got == undisturbed(), (workers, servers, fabric)


def a_loaded_module_trains_on_from_its_values():
    """Fine-tuning: the first slot has the bytes of the file, and the result is the same for any number of processes."""
    start = SCRATCH / "start.npz"
    assert undisturbed()
    start.write_bytes((SCRATCH / "undisturbed.npz").read_bytes())
    watched, _ = result("tuned", ["watch"], LOAD=start, SLOTS=1)
    first = torch.load(SCRATCH / "tuned.npz.trace")[0][0]
    for name, before in undisturbed().items():
        assert first[name].numpy().tobytes() == before, name
    assert watched != undisturbed()
    assert watched["norm.num_batches_tracked"] != undisturbed()["norm.num_batches_tracked"]
    alone, _ = result("tuned", ["plain"], LOAD=start)
    for workers, servers, fabric in ((2, 1, "tcp"), (3, 2, "auto")):
        got, _ = result("tuned", *[["plain"]] * workers, servers=servers, fabric=fabric, LOAD=start)
        assert got == alone, (workers, servers, fabric)


def workers_with_other_seeds_are_refused_unless_the_first_one_counts():
    out = SCRATCH / "seeds.npz"
    with Job(2) as job:
        job.worker(0, WORKER, out, "plain")
        job.servers[0].wait_line(lambda line: '"joined"' in line)
        words = job.worker(1, WORKER, out, "plain", SEED=8).end(1).error().splitlines()[-1]
        assert ": tensor conv.weight: worker 1" in words and " gives it other initial values than the job" in words, words
        assert "(such as torch.manual_seed)" in words and words.endswith("or set init_from_first"), words
    with Job(2) as job:
        for i in range(2):
            job.worker(i, WORKER, out, "plain", SEED=7 + i, FROM_FIRST=1)
        job.end()
    assert values(out) == undisturbed()


def a_worker_that_is_lost_is_replaced():
    """programs.py loses workers in more ways."""
    for act, code, fabric in (("kill", -signal.SIGKILL, "tcp"), ("terminate", -signal.SIGTERM, "auto"), ("raise", 1, "tcp")):
        step = random.randrange(28)
        print(f"# {act} over {fabric} at step {step}")
        got, workers = result("lost", ["plain"], [act, step], fabric=fabric, codes=(0, code))
        assert got == undisturbed(), (act, fabric, step)
        if act == "raise":
            assert workers[1].error().endswith("ValueError: no luck"), workers[1].said()


def an_evaluation_leaves_no_trace():
    for acts in (["evaluate"], ["evaluate"]), (["evaluate"],):
        got, workers = result("evaluated", *acts, TERN_EVAL_EVERY=4)
        assert got == undisturbed(), acts
        told = [line.split()[1] for line in workers[0].lines if line and line.startswith("evaluated")]
        # The first slot of the job is computed twice.
        assert told == [str(step) for step in (0, *range(0, 30, 4))], told


def are_gone(processes):
    deadline = time.monotonic() + LIMIT_S
    while any(os.path.exists(f"/proc/{pid}") for pid in processes):
        assert time.monotonic() < deadline, f"of {processes} some still run"
        time.sleep(0.01)


def processes_that_read_ahead_change_no_bytes_and_end_with_their_worker():
    for acts, codes in (
            ([["plain"]], (0,)),
            ([["plain"]] * 3, (0, 0, 0)),
            ([["plain"], ["kill", random.randrange(28)]], (0, -signal.SIGKILL)),
            ([["plain"], ["interrupt", random.randrange(28)]], (0, -signal.SIGINT))):
        print(f"# {acts}")
        got, workers = result("ahead", *acts, codes=codes, LOADERS=2)
        assert got == undisturbed(), acts
        processes = [line.split()[1] for worker in workers.values() for line in worker.lines if line and "loader" in line]
        assert len(set(processes)) == 2 * len(acts), processes
        are_gone(processes)


def difference(one, other):
    """The largest difference of the parameters, relative to the largest parameter. Without the bias of the attention,
    whose part for the keys has the gradient 0: Adam makes whole steps of its rounding errors."""
    apart = most = 0.0
    for name in one:
        a, b = (numpy.frombuffer(of[name], numpy.float32) for of in (one, other))
        if name not in ("mask", "layer.self_attn.in_proj_bias"):
            apart, most = max(apart, float(abs(a - b).max())), max(most, float(abs(a).max()))
    return apart / most


def the_results_are_those_of_pytorchs_optimizers():
    """One slot in each step, so that a step has one batch. PyTorch adds up in another order: differences of 30 steps
    stay below 10^-4 of the largest parameter, where a parameter that missed one step differs by more than 10^-3."""
    for optimizer in ("sgd", "adam"):
        of_servers, _ = result("watched", ["watch"], OPTIMIZER=optimizer, SLOTS=1)
        subprocess.run([sys.executable, WORKER, SCRATCH / "local.npz", "local", SCRATCH / "watched.npz.trace"], check=True,
                       env={**os.environ, "OPTIMIZER": optimizer})
        apart = difference(of_servers, values(SCRATCH / "local.npz"))
        print(f"# {optimizer}: {apart:.2g}")
        assert apart < 1e-4, (optimizer, apart)


def accumulated_gradients_train_the_same_way():
    whole, _ = result("whole", ["watch"], OPTIMIZER="sgd", SLOTS=1, NORM="group")
    halves, _ = result("halves", ["accumulate"], OPTIMIZER="sgd", SLOTS=1, NORM="group")
    assert whole != halves and difference(whole, halves) < 1e-4, difference(whole, halves)


CASES = [
    bytes_are_the_same_for_any_number_of_workers_and_servers,
    copied_parameters_give_the_same_bytes,
    a_loaded_module_trains_on_from_its_values,
    workers_with_other_seeds_are_refused_unless_the_first_one_counts,
    a_worker_that_is_lost_is_replaced,
    an_evaluation_leaves_no_trace,
    processes_that_read_ahead_change_no_bytes_and_end_with_their_worker,
    the_results_are_those_of_pytorchs_optimizers,
    accumulated_gradients_train_the_same_way,
]
tap.run([case for case in CASES if len(sys.argv) < 3 or case.__name__ in sys.argv[2:]])
