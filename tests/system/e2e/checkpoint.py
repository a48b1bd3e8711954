#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tern checkpoint`, which looks at the snapshots of a job.

usage: checkpoint.py TERN
"""
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])

STEPS = 40
MODEL = "mlp:128,64"  # of several chunks, so that both servers have some


def trained(name, *more, **kw):
    """Runs a job with snapshots once, and returns the directory of the snapshots. Its result is in NAME-saved."""
    directory = job.SCRATCH / name
    if not directory.exists():
        # The last step of each job is saved for certain; one in between may be left out on a busy machine.
        end = kw.pop("steps", STEPS)
        for steps in [*range(10, end, 10), end]:
            job.train(*job.small("--slots", 4, "--workers", 2, "--servers", 2, "--fabric", "tcp", "--save",
                                 job.SCRATCH / f"{name}-saved", "--overwrite", "--snapshots", directory,
                                 "--snapshot-keep", 100, *(["--resume", directory] if steps > 10 else []), *more,
                                 **{"model": MODEL, "steps": steps, **kw}))
    return directory


def copied(name):
    """A copy of the snapshots that a case may damage."""
    return Path(shutil.copytree(trained("first"), job.SCRATCH / name))


def manifests(directory):
    """The manifests, the oldest first."""
    found = sorted(directory.glob("step-*.json"))
    assert len(found) >= 2, found
    return found


def part_of(manifest, number):
    return manifest.with_name(f"{manifest.stem}.{number}.safetensors")


def lines(*words, code=0):
    return job.finish("checkpoint", *words, code=code).lines


def said(*words, code=0):
    """The one JSON object that the command prints."""
    out = lines(*words, "--json", code=code)
    assert len(out) == 1, out
    return json.loads(out[0])


def refused(*words, says):
    job.refused("checkpoint", *words, says=says)


def list_shows_the_newest_first():
    directory = trained("first")
    names = [m.stem for m in reversed(manifests(directory))]
    out = lines("list", directory)
    assert [line.split()[0] for line in out] == names, out
    assert f"  step {STEPS}  2 parts  " in out[0] and "damaged" not in "".join(out), out
    listed = said("list", directory)
    assert [s["snapshot"] for s in listed["snapshots"]] == names, listed
    assert listed["parts_without_manifest"] == 0, listed
    newest = listed["snapshots"][0]
    size = sum(part_of(manifests(directory)[-1], i).stat().st_size for i in range(2))
    assert (newest["step"], newest["parts"], newest["bytes"]) == (STEPS, 2, size), newest
    assert "wrong" not in newest, newest


def list_of_a_directory_without_snapshots_says_so():
    directory = job.SCRATCH / "empty"
    directory.mkdir()
    assert lines("list", directory) == [f"no complete snapshot is in {directory}"]
    assert said("list", directory) == {"snapshots": [], "parts_without_manifest": 0}


def list_says_what_is_wrong_and_counts_parts_without_a_manifest():
    directory = copied("listed")
    first, *_, before, last = manifests(directory)
    part_of(last, 0).unlink()
    part = part_of(before, 1)
    part.write_bytes(part.read_bytes()[:-1])
    first.unlink()
    wrong = {s["snapshot"]: s.get("wrong") for s in said("list", directory)["snapshots"]}
    assert wrong[last.stem] == f"{part_of(last, 0).name}: No such file or directory", wrong
    assert part.name in wrong[before.stem] and "the manifest says" in wrong[before.stem], wrong
    out = lines("list", directory)
    assert out[-1].startswith("2 parts without a manifest"), out
    assert f"damaged: {part_of(last, 0).name}" in out[0], out
    before.write_bytes(before.read_bytes()[:-5])
    assert f"damaged: {before.name}: " in lines("list", directory)[1]


def show_prints_step_job_tensors_and_parts():
    directory = trained("first")
    out = "\n".join(lines("show", directory))
    for text in (manifests(directory)[-1].stem, f"step        {STEPS} of {STEPS}", "mode        sync", "slots       4",
                 "batch       16", "seed        7", "adam, lr 0.01, beta1 0.9, ", "workers     2", "servers     2",
                 "fc1.weight  f32[36, 128]", part_of(manifests(directory)[-1], 1).name):
        assert text in out, (text, out)
    older = said("show", manifests(directory)[0])
    assert older["snapshot"] == manifests(directory)[0].stem and older["step"] < STEPS, older
    job_of = older["job"]
    assert (job_of["mode"], job_of["slots"], job_of["workers"], job_of["servers"]) == ("sync", 4, 2, 2), job_of
    assert job_of["optimizer"]["name"] == "adam", job_of
    assert older["tensors"][0]["name"] == "fc1.weight" and older["tensors"][0]["shape"] == [36, 128], older
    assert [p["file"] for p in older["parts"]] == [part_of(manifests(directory)[0], i).name for i in range(2)], older
    assert all(p["chunks"] >= 1 for p in older["parts"]), older


def verify_finds_whole_snapshots_whole():
    directory = trained("first")
    out = lines("verify", directory)
    assert len(out) == len(manifests(directory)) and all(": whole, 2 parts" in line for line in out), out
    assert said("verify", directory)["whole"] is True
    assert len(lines("verify", manifests(directory)[0])) == 1


def flip(data):
    data[len(data) // 2] ^= 1
    return data


def verify_names_a_part_that_is_damaged():
    for number, (name, damage) in enumerate({
            "flipped": flip, "cut": lambda data: data[:-7], "longer": lambda data: data + b"x",
            "empty": lambda data: b"", "removed": None}.items()):
        directory = copied(f"damaged-{name}")
        manifest = manifests(directory)[number % 2 - 1]
        part = part_of(manifest, number % 2)
        if damage:
            part.write_bytes(damage(bytearray(part.read_bytes())))
        else:
            part.unlink()
        wrong = [line for line in lines("verify", directory, code=1) if ": whole, " not in line]
        assert len(wrong) == 1 and wrong[0].startswith(f"{part.name}: "), (name, wrong)
        assert len(lines("verify", manifest, code=1)) == 1
        checked = said("verify", directory, code=1)
        assert checked["whole"] is False, checked
        problems = {s["snapshot"]: s["problems"] for s in checked["snapshots"] if not s["whole"]}
        assert problems == {manifest.stem: wrong}, problems
        # The other actions refuse it, and take no older snapshot instead.
        refused("export", manifest, "--to", job.SCRATCH / "never", says=[part.name])
        assert not (job.SCRATCH / "never").exists()
        refused("diff", manifest, manifest, says=[part.name])


def verify_names_every_part_and_a_manifest_that_is_damaged():
    directory = copied("several")
    before, last = manifests(directory)[-2:]
    for number in range(2):
        part_of(last, number).unlink()
    before.write_bytes(before.read_bytes().replace(b'"seed":7', b'"seed":8'))
    wrong = [line for line in lines("verify", directory, code=1) if ": whole, " not in line]
    assert len(wrong) == 3, wrong
    assert [line.split(": ")[0] for line in wrong] == [part_of(last, 0).name, part_of(last, 1).name, before.name], wrong
    # A manifest under another name.
    shutil.copy(manifests(trained("first"))[0], last)
    assert "of another one" in lines("verify", last, code=1)[0]


def export_has_the_bytes_of_the_result():
    for name, more, kw in (("first", [], {}), ("sgd", ["--optimizer", "sgd"], {"model": "softmax", "steps": 25})):
        directory = trained(name, *more, **kw)
        to = job.SCRATCH / f"{name}.safetensors"
        out = lines("export", directory, "--to", to)
        assert len(out) == 1 and out[0].startswith(f"{to}: the parameters of {manifests(directory)[-1].stem}"), out
        assert to.read_bytes() == (job.SCRATCH / f"{name}-saved" / "model.safetensors").read_bytes(), name


def export_replaces_a_file_only_if_asked():
    directory, to = trained("first"), job.SCRATCH / "replaced.safetensors"
    to.write_bytes(b"mine")
    refused("export", directory, "--to", to, says=[str(to), "--overwrite"])
    assert to.read_bytes() == b"mine"
    older = said("export", manifests(directory)[0], "--to", to, "--overwrite")
    assert older["bytes"] == to.stat().st_size and older["step"] < STEPS, older
    result = (job.SCRATCH / "first-saved" / "model.safetensors").read_bytes()
    assert len(to.read_bytes()) == len(result) and to.read_bytes() != result


def export_is_the_same_whatever_servers_the_job_had():
    files = [job.SCRATCH / "servers-a", job.SCRATCH / "servers-b"]
    lines("export", trained("first"), "--to", files[0])
    lines("export", trained("servers", "--servers", 3, "--workers", 1), "--to", files[1])
    assert files[0].read_bytes() == files[1].read_bytes()


def diff_of_a_snapshot_with_itself_finds_nothing():
    directory = trained("first")
    out = lines("diff", directory, manifests(directory)[-1])
    assert out[2] == "the jobs: the same" and all(line.endswith(": the same") for line in out[2:]), out
    assert said("diff", directory, directory)["same"] is True


def diff_counts_elements_that_differ():
    directory = trained("first")
    older, newer = manifests(directory)[0], manifests(directory)[-1]
    out = lines("diff", older, newer, code=1)
    assert older.stem in out[0] and newer.stem in out[1] and out[2].startswith("the jobs differ"), out
    assert out[3] == f"  steps: B has {STEPS}, the job 10", out
    assert out[4].startswith("fc1.weight: ") and " of 4608 elements differ, by 0." in out[4], out
    found = said("diff", older, newer, code=1)
    assert found["same"] is False and len(found["job"]) == 1, found
    for tensor in found["tensors"]:
        assert 0 < tensor["differing"] <= tensor["elements"] and tensor["largest_difference"] > 0, tensor


def diff_names_properties_of_the_jobs():
    found = said("diff", trained("first"), trained("servers", "--servers", 3, "--workers", 1), code=1)
    assert found["job"] == ["workers: B has 1, the job 2", "number of servers: B has 3, the job 2"], found
    assert all(t["differing"] == 0 for t in found["tensors"]), found
    other = said("diff", trained("first"), trained("sgd", "--optimizer", "sgd", model="softmax", steps=25), code=1)
    words = [text.split(":")[0] for text in other["job"]]
    assert words[0] == "steps" and "optimizer" in words, other
    assert any(t.get("text") == "only A has it" for t in other["tensors"]), other
    out = "\n".join(lines("diff", trained("first"), trained("servers"), code=1))
    assert "workers: B has 1, the job 2" in out and "fc1.weight: the same" in out, out


def bad_arguments_are_refused_in_one_line():
    directory, gone = trained("first"), job.SCRATCH / "not-there"
    part = part_of(manifests(directory)[0], 0)
    for words, says in (
            ((), ["list, show, verify, export or diff"]),
            (("lits", directory), ["lits: the action must be list, show, verify, export or diff"]),
            (("list",), ["list: expected DIR"]),
            (("list", ""), ["an empty path"]),
            (("list", directory, directory), [f"{directory}: one word too many"]),
            (("list", manifests(directory)[0]), ["expected a directory"]),
            (("diff", directory), ["diff: expected A and B"]),
            (("show", directory, "--stepps", 3), ["--stepps"]),
            (("show", directory, "--to", gone), [f"--to {gone}: only export"]),
            (("verify", directory, "--overwrite"), ["--overwrite: only export"]),
            (("export", directory), ["--to FILE is missing"]),
            (("export", directory, "--to", gone / "x"), [f"--to {gone / 'x'}: No such file or directory"]),
            (("export", directory, "--to", directory), [f"--to {directory}: expected the path of a file"])):
        refused(*words, says=says)
    for action in "show", "verify", "export":
        more = ["--to", job.SCRATCH / "never"] if action == "export" else []
        refused(action, gone, *more, says=[f"{gone}: No such file or directory", "expected a directory"])
        refused(action, part, *more, says=[f"{part}: expected a directory of snapshots, or a manifest"])
        refused(action, job.SCRATCH, *more, says=[f"{job.SCRATCH}: no complete snapshot is there"])
    refused("diff", directory, gone, says=[f"{gone}: No such file or directory"])
    failed = job.finish("checkpoint", "show", gone, "--json", code=2)
    assert (failed.last["event"], failed.last["code"]) == ("failed", 2), failed.last


tap.run([
    list_shows_the_newest_first,
    list_of_a_directory_without_snapshots_says_so,
    list_says_what_is_wrong_and_counts_parts_without_a_manifest,
    show_prints_step_job_tensors_and_parts,
    verify_finds_whole_snapshots_whole,
    verify_names_a_part_that_is_damaged,
    verify_names_every_part_and_a_manifest_that_is_damaged,
    export_has_the_bytes_of_the_result,
    export_replaces_a_file_only_if_asked,
    export_is_the_same_whatever_servers_the_job_had,
    diff_of_a_snapshot_with_itself_finds_nothing,
    diff_counts_elements_that_differ,
    diff_names_properties_of_the_jobs,
    bad_arguments_are_refused_in_one_line,
])
