# SPDX-License-Identifier: Apache-2.0
"""What it costs that a job survives. The question `snapshots`: how much slower a job is while snapshots are taken, and
how much more memory its server has. The question `recovery`: how long a job takes to go on after kill -9. Both have no
peers: none of those in this folder takes snapshots of a parameter server while it trains, or goes on by itself.
"""
import install
from measure import Contender, Question

KILLS = 5  # of each contender of `recovery` in a round
# key: (model of null_model.c, in words). A worker of the large one computes for about as long as its step moves bytes.
MODELS = {"small": ("flat:1000000,3000", "1 MB, 3 ms of computing"),
          "large": ("flat:100000000,50000", "100 MB, 50 ms of computing")}
SNAPSHOTS_ABOUT = (
    "The same job four times: without snapshots, twice with, and without again (A B B A): a server and two workers, "
    "which are started by hand, over tcp. The model has that many bytes of parameters, which SGD updates; its "
    "gradients are not computed, but each takes processor time as if they were. A snapshot is taken every {small} "
    "steps of the small model, and every {large} of the large one: interval_s says how often that is, hundreds of "
    "times as often as the default, 10 minutes. Snapshots are files below the folder for temporary files (TMPDIR), "
    "and each file is synced. A step is the time between the first worker that has the parameters before it and the "
    "first that has those after it; the first two are left out. delay_steps: by how many median steps the longest "
    "step is longer than the median one. server_mib: the most resident memory that the server has had; extra_copies: "
    "how much more it is with snapshots, in copies of the server's parameters. lost_ms: by how much longer all steps "
    "together take with snapshots, for each snapshot; it is below 0 if the steps were faster. snapshot_s and "
    "snapshot_mb: how long a snapshot took, and its bytes.")
SNAPSHOTS_METRICS = [
    ("steps_per_s", "/s", "larger"), ("median_ms", "ms", "smaller"), ("longest_ms", "ms", "smaller"),
    ("delay_steps", "median steps", "smaller"), ("server_mib", "MiB", "smaller"), ("extra_copies", "copies", "smaller"),
    ("lost_ms", "ms", "smaller"), ("snapshot_s", "s", "smaller"), ("snapshot_mb", "MB", "smaller"),
    ("interval_s", "s", "larger")]
RECOVERY_ABOUT = (
    "Processes of a job of two servers and two workers over tcp are killed (SIGKILL) at an arbitrary moment after a "
    "snapshot, {kills} in a round. Models as above; a snapshot is taken every {small} steps of the small one, and "
    "every {large} of the large one. By hand, each process is started by itself, and a server that was killed is "
    "started again at once at another port. With `tern train`, each kill is of a new job, and the launcher starts all "
    "processes again. new_step_s: the median of the times from the kill until a worker has the parameters after a "
    "step in which the killed process can have had no part, and which was not made before: a step that is being made "
    "at the kill may still be completed, the next one counts. worst_s: the longest of these times in a round; the "
    "greatest number in parentheses is the worst of all rounds. `started again`: from the start of a worker that was "
    "killed until it begins its first gradient. detect_s: until the first process says that another one is lost "
    "(`tern train`: that it starts again). reload_s: how long it takes to read the newest snapshot from the page "
    "cache and compare its digests (`tern checkpoint verify`), as servers do when they start. remade_s: how long the "
    "steps take that were made since that snapshot and are made again. beyond_s: new_step_s without detect_s and "
    "reload_s, as the goals have it; remade_s is a part of it. In each gradient, parameters are checked to be those "
    "after the same number of steps.")
RECOVERY_METRICS = [("new_step_s", "s", "smaller"), ("worst_s", "s", "smaller"), ("detect_s", "s", "smaller"),
                    ("reload_s", "s", "smaller"), ("remade_s", "s", "smaller"), ("beyond_s", "s", "smaller")]


def contender(plan, key, title, script, *words):
    program = install.BUILD / "tern-null"
    command = [install.SYSTEM_PYTHON, str(install.TOP / "bench" / script), str(program), *map(str, words)]
    return Contender(key, title, command, wait="sleep", fabric="tcp", missing=plan.make.why_missing("gcc", program),
                     limit_s=400, ours=True, point=lambda line: line["point"])


def snapshots(plan):
    steps = {"small": plan.sizes((250, 1000), (100, 400)), "large": plan.sizes((12, 32), (4, 12))}
    found = [contender(plan, f"tern.{key}", title, "tern_snapshots.py", "--model", model, "--every", steps[key][0],
                       "--steps", steps[key][1]) for key, (model, title) in MODELS.items()]
    about = SNAPSHOTS_ABOUT.format(small=steps["small"][0], large=steps["large"][0])
    return Question("snapshots", "Snapshots while a job trains", about, found, SNAPSHOTS_METRICS, axis="snapshots")


# [(WHO of tern_recovery.py, in words, models)]
LOST = [("worker", "a worker of two, by hand", ("small",)), ("server", "a server of two, by hand", ("small", "large")),
        ("train-server", "a server of two, tern train", ("small", "large")),
        ("last-worker", "the only worker, tern train", ("small",))]


def recovery(plan):
    every, kills = {"small": 100, "large": 8}, plan.sizes(KILLS, 1)
    found = [contender(plan, f"tern.{who}", title, "tern_recovery.py", who, "--model", MODELS[key][0], "--title",
                       MODELS[key][1], "--every", every[key], "--kills", kills)
             for who, title, models in LOST for key in models]
    about = RECOVERY_ABOUT.format(kills=kills, **every)
    return Question("recovery", "Going on after kill -9", about, found, RECOVERY_METRICS, axis="model")
