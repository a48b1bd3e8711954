# SPDX-License-Identifier: Apache-2.0
"""Tests what ./run says if its arguments are wrong, or if the machine lacks something. Its PATH has a
shell, a few small programs and an apt-get that writes down its arguments, so nothing is installed.

usage: run_words.py
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402


class Bare:
    """A machine with next to no programs. `apt`: what its apt-get does after it wrote down
    its arguments."""

    def __init__(self, user="0", apt="exit 0"):
        self.directory = tempfile.TemporaryDirectory(prefix="tern-run-")
        self.top = Path(self.directory.name)
        for name in ("bash", "cat", "dirname"):
            (self.top / name).symlink_to(shutil.which(name))
        self.script("id", f"echo {user}")
        self.script("apt-get", f'echo "$*" >> {self.top}/asked\n{apt}')

    def script(self, name, text):
        path = self.top / name
        path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
        path.chmod(0o755)

    def run(self, *words, **environment):
        done = subprocess.run([shutil.which("bash"), str(TOP / "run"), *words], cwd=self.top,
                              env={"PATH": str(self.top), **environment}, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode, done.stdout, done.stderr.splitlines()

    def asked(self):
        path = self.top / "asked"
        return path.read_text() if path.exists() else ""


def what_is_misspelt_is_refused_in_a_line_and_installs_nothing():
    bare = Bare()
    for words in (["frob"], ["--frob"], ["setup", "x"], ["build", "x"], ["demo", "--steps"],
                  ["format", "x"], ["test", "qiuck"], ["test", "gcc", "x"], ["rdma", "x"]):
        code, out, err = bare.run(*words)
        assert (code, out, len(err)) == (2, "", 1) and words[-1] in err[0], (words, code, out, err)
    assert not bare.asked()


def a_folder_that_is_not_there_is_refused_and_is_looked_for_where_the_caller_is():
    bare = Bare()
    for name, words in (("TERN_DATA_DIR", ["test", "gcc"]), ("TERN_DATA_DIR", ["bench", "train"]),
                        ("TERN_PREFIX", ["help"])):
        code, _, err = bare.run(*words, **{name: "nowhere"})
        assert code == 2 and err == [f"run: {name}=nowhere: there is no such folder"], err
    (bare.top / "here").mkdir()
    assert bare.run("help", TERN_PREFIX="here")[0] == 0
    assert not bare.asked()


def a_bench_that_is_refused_installs_nothing():
    bare = Bare()
    bare.script("python3", f'echo "$*" >> {bare.top}/called; echo no >&2; exit 2')
    assert bare.run("bench", "nccl") == (2, "", ["no"]), bare.asked()
    assert (bare.top / "called").read_text() == "bench/bench.py --before-build nccl\n" and not bare.asked()


def who_is_not_root_is_told_the_command():
    bare = Bare(user="1000")
    code, out, err = bare.run("setup")
    assert code == 1 and "missing: meson" in out and len(err) == 1, (code, out, err)
    assert err[0].startswith("run: as root, please run: apt-get update && apt-get install ")
    named = err[0].partition("--no-install-recommends")[2].split()
    assert "meson" in named and "qemu-system-x86" in named and len(named) == len(set(named)), err
    assert not bare.asked()


def an_installation_that_fails_ends_with_a_line():
    bare = Bare(apt="echo 'E: no' >&2; exit 100")
    code, _, err = bare.run("demo")
    assert code == 1 and err[-1].startswith("run: apt-get could not install that"), (code, err)


def a_broken_list_of_packages_does_not_stop_the_installation():
    bare = Bare(apt='[ "$1" != update ]')
    code, _, err = bare.run("setup")
    assert code == 0 and "install -y" in bare.asked(), (code, err)


def only_what_the_words_need_is_installed():
    for words, clang, qemu in ((["test", "quick"], False, False), (["test", "asan"], True, False),
                               (["test", "plugins"], False, False),
                               (["test"], True, True), (["bench"], False, False),
                               (["setup", "rdma"], False, True), (["setup"], True, True)):
        bare = Bare()
        bare.run(*words)
        asked = bare.asked().split()
        most = words != ["setup", "rdma"]
        assert ("python3" in asked, "gcc" in asked) == (most, most), (words, asked)
        assert ("clang" in asked, "qemu-system-x86" in asked) == (clang, qemu), (words, asked)


tap.run([what_is_misspelt_is_refused_in_a_line_and_installs_nothing,
         a_folder_that_is_not_there_is_refused_and_is_looked_for_where_the_caller_is,
         a_bench_that_is_refused_installs_nothing,
         who_is_not_root_is_told_the_command,
         an_installation_that_fails_ends_with_a_line,
         a_broken_list_of_packages_does_not_stop_the_installation,
         only_what_the_words_need_is_installed])
