#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `tern top`: what it shows on a terminal and elsewhere, and how it ends.

usage: top.py TERN
"""
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "harness"))
import tap  # noqa: E402
import job  # noqa: E402
from running import FOR_EVER, at_work, by_hand  # noqa: E402

job.use(sys.argv[1])
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
COLUMNS, ROWS = 70, 16


@contextlib.contextmanager
def working(*more):
    """A job that makes steps: its server, with `address`, and its workers."""
    server, worker = by_hand(2, job.SCRATCH / "unused", *more, fabric="tcp", steps=FOR_EVER)
    server.address = server.events[-1]["address"]
    workers = [worker(0), worker(1)]
    try:
        at_work(*workers)
        yield server, workers
    finally:
        for process in [server, *workers]:
            process.kill()


class Screen:
    """`tern top` on a terminal of its own, in which keys can be typed."""

    def __init__(self, *args):
        self.pid, self.keys = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.environ["TERM"] = "xterm"
            os.execv(job.TERN, ["tern", "top", *map(str, args)])
        self.text = ""

    def read(self, limit_s):
        """Reads what has been written. False: the program has ended."""
        if not select.select([self.keys], [], [], limit_s)[0]:
            return True
        try:
            self.text += os.read(self.keys, 65536).decode()
        except OSError:
            return False
        return True

    def until(self, pattern):
        end = time.monotonic() + job.LIMIT_S
        while not re.search(pattern, self.text):
            assert self.read(0.1) and time.monotonic() < end, f"{pattern}: {self.text}"

    def forget(self):
        self.text = ""

    def type(self, keys):
        os.write(self.keys, keys.encode())

    def end(self):
        """Waits for the end. Returns the exit code."""
        while self.read(job.LIMIT_S):
            pass
        os.close(self.keys)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def makes_lines(process, wanted, count):
    """Reads plain lines until so many of them match."""
    lines = []
    while sum(bool(re.search(wanted, line)) for line in lines) < count:
        lines.append(process.process.stdout.readline())
        assert lines[-1], (lines, process.process.stderr.read())
    return lines


def rates_are_differences():
    with working() as (server, _):
        top = job.Job("top", "--join", server.address, "--every", 0.3, "--json")
        answers = [top.wait_event(lambda a: a["state"] == "steps" and a["step"] > 0)]
        while len({a["step"] for a in answers}) < 3:
            answers.append(top.wait_event(lambda a: a["state"] == "steps"))
            assert answers[-2]["step"] <= answers[-1]["step"], answers
        for a, b in zip(answers, answers[1:]):
            rate = (b["step"] - a["step"]) / (b["uptime_s"] - a["uptime_s"])
            assert abs(b["steps_per_s"] - rate) <= 0.01 * rate, (a, b)
            assert abs(b["samples_per_s"] - rate * 4 * 16) <= 0.64 * rate, (a, b)
        top.process.send_signal(signal.SIGTERM)
        assert top.end() == 143, top.error


def blocks_of_lines_are_written_elsewhere():
    with working() as (server, _):
        top = job.Job("top", "--join", server.address, "--every", 0.1)
        lines = makes_lines(top, "^state +makes steps", 3)
        assert not any("\x1b" in line for line in lines) and "\n" in lines, lines
        top.process.send_signal(signal.SIGINT)
        assert top.end() == 130 and not top.error, top.error


def it_ends_when_its_reader_is_gone():
    with working() as (server, _):
        for more in [], ["--json"]:
            top = job.Job("top", "--join", server.address, "--every", 0.1, *more)
            assert top.process.stdout.readline()
            top.process.stdout.close()
            assert top.process.wait(job.LIMIT_S) == 1
            assert "stdout: not all of the output could be written" in top.process.stderr.read()


def picture_fits_the_terminal_and_q_ends_it():
    with working() as (server, _):
        screen = Screen("--join", server.address, "--every", 0.2)
        screen.until("makes steps")
        screen.forget()
        screen.until(r"\x1b\[H[^\x1b]*tern top: tcp(.|\n)*\x1b\[J")
        picture = re.search(r"\x1b\[H((?:.|\n)*?)\x1b\[J", screen.text)[1]
        lines = re.sub(r"\x1b\[K", "", picture).split("\r\n")
        assert len(lines) <= ROWS and all(len(line) < COLUMNS for line in lines), lines
        assert any(re.match(r"1 +joined +2 ", line) for line in lines), lines
        screen.type("xq")
        assert screen.end() == 0 and screen.text.endswith(LEAVE), repr(screen.text[-200:])


def ctrl_c_and_signals_restore_the_terminal():
    with working() as (server, _):
        for act, code in ((lambda s: s.type("\x03"), 130), (lambda s: os.kill(s.pid, signal.SIGTERM), 143),
                          (lambda s: os.kill(s.pid, signal.SIGHUP), 129)):
            screen = Screen("--join", server.address)
            screen.until("makes steps")
            assert not termios.tcgetattr(screen.keys)[3] & (termios.ICANON | termios.ECHO)
            act(screen)
            screen.until(re.escape(LEAVE))
            assert screen.end() == code, screen.text
            assert screen.text.count(ENTER) == screen.text.count(LEAVE) == 1, repr(screen.text)


def ctrl_z_leaves_the_screen_for_a_while():
    with working() as (server, _):
        screen = Screen("--join", server.address)
        screen.until("makes steps")
        screen.forget()
        screen.type("\x1a")
        screen.until(re.escape(LEAVE) + r"(.|\n)*" + re.escape(ENTER) + r"(.|\n)*makes steps")
        screen.type("q")
        assert screen.end() == 0


def picture_is_drawn_again_before_the_next_question():
    """After Ctrl-Z and when the terminal has got another size. Ctrl-\\ does nothing."""
    with working() as (server, _):
        screen = Screen("--join", server.address, "--every", 3600)
        screen.until("makes steps")
        screen.forget()
        screen.type("\x1a\x1c")
        screen.until(re.escape(LEAVE) + r"(.|\n)*" + re.escape(ENTER) + r"(.|\n)*makes steps")
        screen.forget()
        fcntl.ioctl(screen.keys, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, 40, 0, 0))
        screen.until(r"\x1b\[Htern top: [^\n]*\.\.\.\x1b\[K(.|\n)*makes steps(.|\n)*\x1b\[J")
        picture = re.sub(r"\x1b\[[JK]", "", screen.text.rsplit("\x1b[H", 1)[1])
        assert all(len(line) < 40 for line in picture.split("\r\n")), picture
        screen.type("q")
        assert screen.end() == 0


def job_that_ends_leaves_its_last_picture():
    with working() as (server, workers):
        screen = Screen("--join", server.address, "--every", 0.2, "--wait", 0.5)
        plain = job.Job("top", "--join", server.address, "--every", 0.1, "--wait", 0.5)
        screen.until("makes steps")
        makes_lines(plain, "^state", 1)
        server.process.kill()
        for process in [server, *workers]:
            process.end()
        assert plain.end() == 1 and plain.error.startswith("tern top: no answer: "), plain.error
        screen.until("tern top: no answer: ")
        screen.forget()
        screen.until("makes steps")
        screen.type("q")
        assert screen.end() == 0


def nobody_answers():
    screen = Screen("--join", "tcp://127.0.0.1:9", "--wait", 0.3)
    assert screen.end() == 1
    assert re.search(re.escape(LEAVE) + "tern top: no answer: tcp://127.0.0.1:9: Connection refused", screen.text)
    job.refused("top", "--join", "tcp://127.0.0.1:9", "--wait", 0.3, code=1, says=["tern top: no answer: "])
    for words, says in ([], "--join is missing"), (["--join", "127.0.0.1:9", "--every", 0], "--every 0"):
        job.refused("top", *words, says=[says])


tap.run([rates_are_differences, blocks_of_lines_are_written_elsewhere, picture_fits_the_terminal_and_q_ends_it,
         it_ends_when_its_reader_is_gone, ctrl_c_and_signals_restore_the_terminal,
         ctrl_z_leaves_the_screen_for_a_while, picture_is_drawn_again_before_the_next_question,
         job_that_ends_leaves_its_last_picture, nobody_answers])
