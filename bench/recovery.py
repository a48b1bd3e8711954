# SPDX-License-Identifier: Apache-2.0
"""What it costs that a job survives. The question `snapshots`: how much slower a job is while snapshots are taken, and
how much more memory its server has. The question `recovery`: how long a job takes to go on after kill -9. Neither
has peers: none does the same.
"""
import install
from measure import Contender, Question

KILLS = 4  # of each contender of `recovery` in a round
# key: (model of null_model.c, in words). A worker of the large one computes for about as long as its step moves bytes.
MODELS = {"small": ("flat:1000000,3000", "1 MB, 3 ms of computing"),
          "large": ("flat:100000000,50000", "100 MB, 50 ms of computing")}
SNAPSHOTS_ABOUT = (
    "A job of one server and two workers, which are started by hand, over tcp. `--snapshots-via`: it has two servers, "
    "each with half of the parameters; one of them has no folder, and sends its part of each snapshot to the other. A "
    "round has it four times: without snapshots, twice with them, and without them again (A B B A). The parameters "
    "have as many bytes as a row says, and SGD updates them. Gradients are not computed, but each takes as much "
    "processor time as a row says. A snapshot is taken every {small} steps of the small model, and every {large} of "
    "the large one. interval_s says how often that is: hundreds of times as often as by default, which is every 10 "
    "minutes. Snapshots are written and synced in the folder for temporary files (TMPDIR). A step lasts from the "
    "moment when the first worker has the parameters before it until the first worker has those after it; the first "
    "two steps of a job are left out. delay_steps says by how many median steps the longest step is longer than the "
    "median one. server_mib is the most resident memory that server 0 has had, and extra_copies by how much it is "
    "more with snapshots, in copies of its parameters. lost_ms says by how much longer all steps together take with "
    "snapshots, divided by the number of snapshots; it is below 0 if the steps were faster with them. snapshot_s and "
    "snapshot_mb say how long a snapshot took, and how many bytes it has.")
SNAPSHOTS_METRICS = [
    ("steps_per_s", "/s", "larger"), ("median_ms", "ms", "smaller"), ("longest_ms", "ms", "smaller"),
    ("delay_steps", "median steps", "smaller"), ("server_mib", "MiB", "smaller"), ("extra_copies", "copies", "smaller"),
    ("lost_ms", "ms", "smaller"), ("snapshot_s", "s", "smaller"), ("snapshot_mb", "MB", "smaller"),
    ("interval_s", "s", "larger")]
RECOVERY_ABOUT = (
    "A job of two servers and two workers (`only worker`: one) over tcp takes snapshots: every {small} steps of the "
    "small model, and every {large} of the large one. The models are those of the question `snapshots`. At an "
    "arbitrary moment after a snapshot one process is killed (SIGKILL), {kills} times in a round. By hand, each "
    "process is started by itself, and a server that was killed is started again at once, at another port. With `tern "
    "train`, each kill is of a new job, and the launcher starts the killed process again, or the follower of a killed "
    "server takes its place (`--replicas 2`), and no step is made again. A time lasts from the kill "
    "until a worker has the parameters after a new step: one that was not made before, and in which the killed process can "
    "have had no part. (A step that is being made at the kill may still be completed; the next one counts.) "
    "new_step_s is the median of these times in a round, and worst_s the longest one, so the greatest number in "
    "parentheses is the worst of all kills. `started again`: from the start of the worker that takes the place of the "
    "killed one until it begins its first gradient. detect_s: until a process says that another one is lost, or `tern "
    "train` that it starts it again, which is before the other processes know. reload_s: how long it takes to read "
    "the newest snapshot, which is in the page "
    "cache, and to compare its digests (`tern checkpoint verify`), as each server does when it starts. remade_s: how "
    "long the steps take that were made since that snapshot, and are made again. beyond_s is new_step_s without "
    "detect_s and reload_s, as the goals have it; remade_s is a part of it. Before each gradient a worker checks that "
    "its parameters are those after one and the same number of steps. "
    "No peer is measured, since none does the same: TensorFlow's coordinator goes on without a lost worker, but after "
    "the loss of a server the user's program has to restore a checkpoint; torchrun starts all processes of PyTorch "
    "again, and the user's program loads a checkpoint of its own.")
RECOVERY_METRICS = [("new_step_s", "s", "smaller"), ("worst_s", "s", "smaller"), ("detect_s", "s", "smaller"),
                    ("reload_s", "s", "smaller"), ("remade_s", "s", "smaller"), ("beyond_s", "s", "smaller")]


def contender(plan, key, title, script, *words):
    program = install.BUILD / "tern-null"
    command = [install.SYSTEM_PYTHON, str(install.TOP / "bench" / script), str(program), *map(str, words)]
    return Contender(key, title, command, wait="sleep", fabric="tcp", missing=plan.make.why_missing("gcc", program),
                     limit_s=400, ours=True, point=lambda line: line["point"])


def snapshots(plan):
    steps = {"small": plan.sizes((250, 1000), (100, 400)), "large": plan.sizes((12, 32), (4, 12))}

    def measured(key, size, title, *more):
        return contender(plan, key, title, "tern_snapshots.py", "--model", MODELS[size][0], "--every", steps[size][0],
                         "--steps", steps[size][1], *more)
    found = [measured(f"tern.{size}", size, title) for size, (_, title) in MODELS.items()]
    found.append(measured("tern.via", "large", "100 MB on two servers, --snapshots-via", "--via"))
    about = SNAPSHOTS_ABOUT.format(small=steps["small"][0], large=steps["large"][0])
    return Question("snapshots", "Snapshots while a job trains", about, found, SNAPSHOTS_METRICS, axis="snapshots")


# [(WHO of tern_recovery.py, in words, models)]
LOST = [("worker", "a worker of two, by hand", ("small",)), ("server", "a server of two, by hand", ("small", "large")),
        ("train-server", "a server of two, tern train", ("small", "large")),
        ("followed-server", "a server of two with a follower, tern train", ("small", "large")),
        ("last-worker", "the only worker, tern train", ("small",))]


def recovery(plan):
    every, kills = {"small": 100, "large": 8}, plan.sizes(KILLS, 1)
    found = [contender(plan, f"tern.{who}", title, "tern_recovery.py", who, "--model", MODELS[key][0], "--title",
                       MODELS[key][1], "--every", every[key], "--kills", kills)
             for who, title, models in LOST for key in models]
    about = RECOVERY_ABOUT.format(kills=kills, **every)
    return Question("recovery", "Going on after kill -9", about, found, RECOVERY_METRICS, axis="model")
