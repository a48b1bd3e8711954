#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `./run bench --release-grpc`: what it keeps, and what it says if no release build
of gRPC can be made. A script takes the place of make; nothing is downloaded.

usage: bench_grpc.py
"""
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from unittest import mock

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
sys.path.insert(0, str(TOP / "bench"))
import tap  # noqa: E402
import bench  # noqa: E402
import contenders  # noqa: E402
import grpc_release  # noqa: E402
import report  # noqa: E402

MAKES = """case $1 in -n) echo 'echo "[C]  Compiling a.c"'; exit;; esac
cd SOURCE && echo made >> ../makes && echo '[C]  Compiling a.c'
mkdir -p objs libs/opt && touch libs/opt/libgrpc.a
"""
FAILS = "[ $1 = -n ] || { echo '[C]  Compiling a.c'; echo 'a.c:1: error: no such thing'; exit 2; }"


class Place:
    """A build directory of its own. `make` is the text of the script that stands for make."""

    def __init__(self, directory, make=MAKES, download=""):
        self.home = Path(directory) / grpc_release.PACKAGE
        self.downloads = 0
        self.said = []
        script = Path(directory) / "make"
        self.stack = contextlib.ExitStack()
        for target, name, value in (
                (grpc_release.install, "BUILD", Path(directory)),
                (grpc_release.install, "packages", lambda wanted, say: {}),
                (grpc_release, "make_command", lambda: ["sh", str(script)]),
                (grpc_release.install, "in_venv", self.in_venv)):
            self.stack.enter_context(mock.patch.object(target, name, value))
        script.write_text(make.replace("SOURCE", str(grpc_release.source())))
        self.download = download

    def in_venv(self, *arguments):
        self.downloads += 1
        return self.download

    def unpacked(self):
        grpc_release.source().mkdir(parents=True)

    def get(self):
        grpc_release.get(self.said.append)

    def why(self):
        try:
            self.get()
        except grpc_release.Unavailable as why:
            return str(why)
        return ""


def in_place(**how):
    def of(case):
        def run():
            with tempfile.TemporaryDirectory() as directory:
                place = Place(directory, **how)
                with place.stack:
                    case(place)
        run.__name__ = case.__name__
        return run
    return of


@in_place()
def a_build_is_kept_without_what_only_making_it_needed(place):
    place.unpacked()
    place.get()
    assert grpc_release.built() and grpc_release.missing() == {}
    assert [path.name for path in grpc_release.source().iterdir()] == [
        Path(grpc_release.built()).name]
    assert any("1 files" in text for text in place.said), place.said


@in_place()
def a_kept_build_is_neither_downloaded_nor_made_again(place):
    place.unpacked()
    place.get()
    place.get()
    assert place.downloads == 0 and (place.home / "makes").read_text() == "made\n"


@in_place(download="ERROR: THESE PACKAGES DO NOT MATCH THE HASHES")
def a_download_that_fails_leaves_no_source_and_says_why(place):
    assert place.why() == "download: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"
    assert not grpc_release.source().exists() and not grpc_release.built()


@in_place(make=FAILS)
def a_build_that_fails_names_the_first_error_and_the_log(place):
    place.unpacked()
    why = place.why()
    assert "a.c:1: error: no such thing" in why and "grpc-release/make.log" in why, why
    assert grpc_release.PACKAGE in grpc_release.missing()
    assert "Compiling a.c" in (place.home / "make.log").read_text()


@in_place()
def packages_that_it_needs_are_named(place):
    with mock.patch.object(grpc_release.install, "packages", lambda *_: {"g++": "no such package"}):
        assert place.why() == "g++: no such package"


def ran(*arguments):
    """(exit code, output) of ./run bench with these arguments, which never comes to measuring."""
    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["bench.py", *arguments]), \
            contextlib.redirect_stderr(said):
        try:
            return bench.main(), said.getvalue()
        except SystemExit as end:
            return end.code, said.getvalue()


@in_place(download="no network")
def a_run_that_asks_for_it_and_cannot_have_it_ends_before_it_measures(place):
    code, said = ran("--quick", "--release-grpc")
    assert code == 2 and "bench: --release-grpc: download: no network\n" in said, (code, said)


def nothing_can_be_built_if_nothing_may_be_installed():
    code, said = ran("--release-grpc", "--no-install")
    assert code == 2 and "--release-grpc: not with --no-install" in said, (code, said)


@in_place()
def without_it_its_contenders_are_missing_and_the_others_are_not(place):
    maker = contenders.Maker("build/tern", grpc_release.missing())
    why = {peer.key: maker.peer(peer, "lat", [(64, 10)]).missing
           for peer in contenders.grpc_core_peers()}
    assert "built only with --release-grpc" in why["grpc.release-unary.poll"], why
    assert "release-grpc" not in why["grpc.core-unary.poll"], why


def the_reports_head_says_how_grpc_was_built():
    def head(*keys):
        return " ".join(report.grpc_build({"questions": {"q": {"contenders": dict.fromkeys(keys)}}}))
    assert head("tern.tcp.poll") == ""
    assert "A release build was not measured" in head("grpc.bytes-unary.sleep")
    said = head("grpc.bytes-unary.sleep", "grpc.release-unary.sleep")
    assert "with assertions" in said and "is measured beside it" in said, said


tap.run([
    a_build_is_kept_without_what_only_making_it_needed,
    a_kept_build_is_neither_downloaded_nor_made_again,
    a_download_that_fails_leaves_no_source_and_says_why,
    a_build_that_fails_names_the_first_error_and_the_log,
    packages_that_it_needs_are_named,
    a_run_that_asks_for_it_and_cannot_have_it_ends_before_it_measures,
    nothing_can_be_built_if_nothing_may_be_installed,
    without_it_its_contenders_are_missing_and_the_others_are_not,
    the_reports_head_says_how_grpc_was_built,
])
