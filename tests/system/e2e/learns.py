#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that real models on real data come out as good as a plain program makes them.

usage: learns.py TERN
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])


def mnist(model, *more):
    data = job.data_dir()
    return job.train("--model", model, "--data", data / "t10k-images-idx3-ubyte.gz",
                     "--labels", data / "t10k-labels-idx1-ubyte.gz", "--split", "8000:2000",
                     "--batch", 128, "--steps", 2000, "--optimizer", "adam", "--lr", "1e-3",
                     *more)


def has_fields(done, *more):
    for name in ("steps", "loss", "test_accuracy", "steps_per_s", "samples_per_s", *more):
        assert isinstance(done.get(name), (int, float)), f"{name} in {done}"


def reaches(done, accuracy):
    assert done["test_accuracy"] >= accuracy, done


def mlp_over_shm():
    done = mnist("mlp:256,128", "--servers", 1, "--workers", 2, "--fabric", "shm")
    has_fields(done)
    reaches(done, 0.955)


def mlp_over_tcp():
    reaches(mnist("mlp:256,128", "--servers", 1, "--workers", 2, "--fabric", "tcp"), 0.955)


def softmax_on_two_servers():
    reaches(mnist("softmax", "--servers", 2, "--workers", 2), 0.925)


def logreg_on_svmlight_text():
    data = job.data_dir()
    done = job.train("--model", "logreg", "--data", data / "adult.trn.bz2",
                     "--test", data / "adult.tst.bz2", "--optimizer", "adagrad", "--lr", 0.1,
                     "--batch", 128, "--steps", 3000)
    has_fields(done, "test_auc")
    reaches(done, 0.845)
    assert done["test_auc"] >= 0.898, done


def async_mode_learns_too():
    done = job.train(*job.small("--mode", "async", "--workers", 2, steps=300))
    reaches(done, 0.9)
    # A gradient is some versions old, unless its worker is alone for a while; the job makes 300 versions.
    assert 0 < done["staleness_mean"] <= done["staleness_max"] < 300, done
    assert done["gradients_refused"] == 0, done


def made_up_data_is_learnt():
    done = job.train(*job.small("--workers", 2, steps=200))
    has_fields(done)
    assert done["steps"] == 200, done
    assert done["gradients_refused"] == 0 and "staleness_mean" not in done, done
    reaches(done, 0.9)


def momentum_and_clipping_learn():
    reaches(job.train(*job.small("--optimizer", "momentum", "--clip-norm", "0.5", "--lr",
                                 "0.05", steps=200)), 0.9)


def character_model_writes():
    text = job.SCRATCH / "text"
    text.mkdir()
    for name in ("one.txt", "two.txt"):
        (text / name).write_text("the quick brown fox jumps over the lazy dog. " * 60)
    (text / "again.txt").symlink_to("one.txt")
    done = job.finish("train", "--model", "charlm:8,8,48", "--data", text, "--optimizer", "adam",
                      "--lr", "0.01", "--batch", 64, "--steps", 300, "--workers", 2,
                      "--generate", 60, "--json")
    losses = [e["loss"] for e in done.events if e["event"] == "progress"]
    assert done.events[-1]["event"] == "done" and done.events[-1]["loss"] < losses[0] / 3, losses
    written = [e["text"] for e in done.events if e["event"] == "generated"]
    assert len(written) == 1 and len(written[0]) >= 60, written
    assert "brown fox jumps" in written[0], written


tap.run([
    made_up_data_is_learnt,
    async_mode_learns_too,
    momentum_and_clipping_learn,
    character_model_writes,
    mlp_over_shm,
    mlp_over_tcp,
    softmax_on_two_servers,
    logreg_on_svmlight_text,
])
