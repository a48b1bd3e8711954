# SPDX-License-Identifier: Apache-2.0
"""The blob of a job: programs find the one that belongs to the step with which they begin, whoever is killed, and the results
have the bytes of a job that nothing has happened to. The programs check what they find (keep_worker.py).

usage: keeps.py TERN [CASE...]
"""
import functools
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path

from jobs import HERE, SCRATCH, TOP, tap

sys.path.insert(0, str(TOP / "tests" / "system" / "e2e"))
import job  # noqa: E402

job.use(sys.argv[1])
STEPS, EVERY = 400, 7


def command(out):
    return [sys.executable, HERE / "keep_worker.py", out, STEPS]


@functools.cache
def undisturbed():
    out = SCRATCH / "undisturbed"
    Path(f"{out}.go").touch()
    job.finish("run", "--", *command(out))
    return out.read_bytes()


def state_after(steps):
    state = b""
    for step in range(steps):
        state = hashlib.sha256(state + step.to_bytes(4, "little")).digest()
    return state


def look(*words, code=0):
    """The lines of `tern checkpoint`."""
    return job.finish("checkpoint", *words, code=code).lines


class Launched:
    """A `tern run` with a snapshot every 20 steps, whose job is slow until it is let go."""

    def __init__(self, name, *more, workers=2, servers=2, snapshots=None):
        self.out = SCRATCH / name
        self.snapshots = snapshots or SCRATCH / f"{name}.snapshots"
        self.running = job.Job("run", "--json", "--fabric", "tcp", "--servers", servers, "--workers", workers, "--snapshots",
                               self.snapshots, "--snapshot-every", 20, *more, "--", *command(self.out))

    def wait(self, name):
        return self.running.wait_event(lambda event: event["event"] == name)

    def wait_kept(self, least):
        """Waits until a program says that it goes on from a blob of step `least` or a later one. Returns that step."""
        def is_kept(event):
            found = re.fullmatch(r"kept (\d+) of \d+", event.get("text", "")) if event["event"] == "output" else None
            return found and int(found[1]) >= least
        return int(self.running.wait_event(is_kept)["text"].split()[1])

    def kill(self, role, index):
        for pid, words in self.running.processes().items():
            is_server = words[1:2] == ["server"] and int(words[words.index("--index") + 1]) == index
            if is_server if role == "server" else job.index_of_program(pid) == index:
                os.kill(pid, signal.SIGKILL)

    def end(self):
        Path(f"{self.out}.go").touch()
        try:
            assert self.running.end() == 0, self.running.error + "".join(self.running.lines[-5:])
        finally:
            self.running.kill()
        assert self.out.read_bytes() == undisturbed(), "other bytes"


def resumed_job_has_the_blob_with_any_number_of_processes():
    first = Launched("killed", "--restarts", 0)
    first.wait("snapshot")
    first.wait("snapshot")
    first.kill("server", 1)
    first.running.end()
    first.running.kill()
    shown = json.loads(look("show", first.snapshots, "--json")[0])
    step = shown["step"] // EVERY * EVERY
    assert step and shown["blob"] == {"step": step, "bytes": 32}, shown["blob"]
    again = Launched("resumed", "--resume", first.snapshots, servers=3, workers=3, snapshots=first.snapshots)
    assert again.wait_kept(1) == step
    again.end()


def job_that_goes_back_in_place_has_the_blob_of_its_step():
    run = Launched("in-place")
    for index in 0, 1:
        run.wait("snapshot")
        run.kill("server", index)
        run.wait("restart")
        run.wait_kept(7)
    run.end()


def last_program_comes_again_and_finds_the_blob_in_memory():
    run = Launched("memory", workers=1)
    run.wait("snapshot")
    run.kill("worker", 0)
    run.wait("restart")
    run.wait_kept(14)
    run.end()


def program_that_comes_during_the_steps_has_the_newest_blob():
    run = Launched("late")
    run.wait("snapshot")
    run.kill("worker", 0)
    run.wait("came")
    run.wait_kept(14)
    run.end()


def job_in_async_mode_keeps_no_blob():
    program = """if True:
        import pytern
        with pytern.Session(steps=3, mode="async") as session:
            w = session.tensor("w", 2)
            assert session.kept() == (b"", 0)
            for slot in session.slots():
                with slot:
                    try:
                        slot.keep(b"x")
                        raise AssertionError("it was kept")
                    except ValueError as error:
                        assert "sync mode" in str(error), error
                    slot.push(w, [1.0, 2.0])
                    slot.loss(0)
    """
    job.finish("run", "--", sys.executable, "-W", "ignore", "-c", program)


def tools_show_export_and_compare_the_blob():
    run = Launched("tools")
    run.end()
    newest = json.loads(look("show", run.snapshots, "--json")[0])
    assert newest["step"] == STEPS and newest["blob"] == {"step": STEPS // EVERY * EVERY, "bytes": 32}, newest["blob"]
    assert "blob        32 bytes, of step 399" in look("show", run.snapshots)
    file = SCRATCH / "tools.blob"
    said = look("export", run.snapshots, "--blob", file)
    assert said[0].endswith("of step 399: 32 bytes") and file.read_bytes() == state_after(399), said
    job.refused("checkpoint", "export", run.snapshots, "--blob", file, says=["the file is there already"])
    params = SCRATCH / "tools.safetensors"
    params.unlink(missing_ok=True)
    for one in params, f"{params.parent}/./{params.name}":
        job.refused("checkpoint", "export", run.snapshots, "--to", params, "--blob", one, says=["the same file"])
    both = json.loads(look("export", run.snapshots, "--to", params, "--blob", file, "--overwrite", "--json")[0])
    assert (both["file"], both["step"], both["bytes"]) == (str(params), STEPS, params.stat().st_size), both
    assert (both["blob"], both["blob_step"], both["blob_bytes"]) == (str(file), 399, 32), both
    job.refused("checkpoint", "show", run.snapshots, "--blob", file, says=["only export has this option"])
    manifests = sorted(run.snapshots.glob("step-*.json"))
    assert "the blob: the bytes differ" in look("diff", manifests[0], manifests[-1], code=1)
    assert "the blob: the same" in look("diff", manifests[0], manifests[0])
    broken = json.loads(manifests[-1].read_text())
    broken["blob"]["data"] = "A" + broken["blob"]["data"][1:]
    manifests[-1].write_text(json.dumps(broken))
    assert "digest" in look("verify", manifests[-1], code=1)[0]


CASES = [resumed_job_has_the_blob_with_any_number_of_processes, job_that_goes_back_in_place_has_the_blob_of_its_step,
         last_program_comes_again_and_finds_the_blob_in_memory, program_that_comes_during_the_steps_has_the_newest_blob,
         job_in_async_mode_keeps_no_blob, tools_show_export_and_compare_the_blob]
tap.run([case for case in CASES if len(sys.argv) < 3 or case.__name__ in sys.argv[2:]])
