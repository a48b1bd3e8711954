# SPDX-License-Identifier: Apache-2.0
"""The base: another commit of this repository, built beside this tree, and its contenders, against
which `--check` measures this tree.

The base lives in build-bench/base and is built by its own `./run build` and its own
bench/meson.build. Both trees use the same installed libraries, release builds of gRPC and UCX, and
data.
"""
import dataclasses
import filecmp
import shutil
import subprocess
from pathlib import Path

import install
from journal import Refused

KEY = "@base"  # ends the key of a contender of the base


def output(command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def commit_of(name, top):
    """The full hash of the commit `name`, a word of git; "-dirty" at its end, which `git describe`
    may have added, is ignored."""
    found = output(["git", "-C", str(top), "rev-parse", "--verify", "--quiet",
                    f"{name.removesuffix('-dirty')}^{{commit}}"])
    if not found:
        raise Refused(f"--base {name}: no commit of this repository has that name")
    return found


class Base:
    def __init__(self, name, tern_build, top=install.TOP):
        self.commit, self.top = commit_of(name, top), top
        self.tree = install.BUILD / "base"
        # Pairs (folder of this tree, the same folder of the base), the longer paths first.
        self.places = ((Path(tern_build), self.tree / "build"),
                       (install.BUILD, self.tree / "build-bench"), (top, self.tree))
        self.shared = (install.VENV, install.TORCH.folder, install.NCCL.folder, install.UCX_RELEASE,
                       install.BUILD / "two.svm")

    def title(self):
        return output(["git", "-C", str(self.top), "log", "-1", "--format=%h, %s", self.commit])

    def check_out(self):
        """Checks the commit out into self.tree. If it is there already, what was built stays."""
        if output(["git", "-C", str(self.tree), "rev-parse", "HEAD"]) == self.commit and (
                self.tree / ".git").exists():
            return
        shutil.rmtree(self.tree, ignore_errors=True)
        why = install.run_steps(
            ["git", "clone", "-q", "--shared", "--no-checkout", str(self.top), str(self.tree)],
            ["git", "-C", str(self.tree), "checkout", "-q", self.commit])
        if why:
            raise Refused(f"--base {self.commit[:12]}: {why}")

    def build(self, grpc_release, say):
        self.check_out()
        say(f"  building {self.title()} in {self.tree}")
        why = install.run_steps([str(self.tree / "run"), "build"]) or install.build(
            self.tree / "build", grpc_release, say, self.tree)
        if why:
            raise Refused(f"--base {self.commit[:12]}: it cannot be built: {why}")

    def path(self, word):
        """The path in the base that a word of a command stands for; None if it names no file of
        this tree, or one that both trees share."""
        path = Path(word)
        if not path.is_absolute() or any(path.is_relative_to(place) for place in self.shared):
            return None
        for here, there in self.places:
            if path.is_relative_to(here):
                return there / path.relative_to(here)
        return None

    def files(self, contender):
        """[(here, in the base)] of the files that a contender runs."""
        words = [*contender.command, *contender.environment.values()]
        return [(Path(word), self.path(word)) for word in words if self.path(word)]

    def is_same(self, contender):
        """True if every file that a contender runs has the same bytes in the base."""
        return all(there.exists() and filecmp.cmp(here, there, shallow=False)
                   for here, there in self.files(contender))

    def twin(self, contender):
        """The twin: a contender that runs the base's files instead of this tree's."""
        lacking = [there.name for _, there in self.files(contender) if not there.exists()]
        return dataclasses.replace(
            contender, key=contender.key + KEY, title=f"{contender.title}, base",
            command=[str(self.path(word) or word) for word in contender.command],
            environment={name: str(self.path(value) or value)
                         for name, value in contender.environment.items()},
            ours=False, leads=False,
            missing=f"the base has no {', '.join(lacking)}" if lacking else "")
