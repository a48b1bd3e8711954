#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people see of a job, on terminals of several widths.

usage: display.py TERN
"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tap  # noqa: E402
import job  # noqa: E402

job.use(sys.argv[1])


def shown(columns, **environment):
    """All that a job writes to a terminal of so many columns."""
    environment = {"NO_COLOR": "", "TERM": "xterm", **environment}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([job.TERN, "train", *map(str, job.small(steps=3000))], stdout=theirs,
                          stderr=theirs, env={**os.environ, **environment}) as process:
        os.close(theirs)
        text = b""
        try:
            while True:
                text += os.read(ours, 65536)
        except OSError:
            pass  # the other end is closed
    os.close(ours)
    assert process.returncode == 0, text
    return text.decode()


def progress_lines(columns):
    lines = re.findall(r"\r([^\r\n\x1b]*)\x1b\[K", shown(columns))
    assert lines and all(line.startswith("step ") for line in lines), lines
    assert all(len(line) < columns for line in lines), lines
    return lines


def wide_terminal_has_everything():
    line = progress_lines(132)[-1]
    assert re.fullmatch(r"step 3000/3000  loss [\d.]+  \d+ samples/s  [\d.]+ MB/s  0s left", line), line


def usual_terminal_has_one_line():
    assert "samples/s" in progress_lines(80)[-1]


def narrow_terminal_leaves_out_what_does_not_fit():
    line = progress_lines(40)[-1]
    assert re.fullmatch(r"step 3000/3000  loss [\d.]+  0s left", line), line


def tiny_terminal_has_what_fits():
    progress_lines(12)


def plain_text_is_written_where_it_was_asked_for():
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        text = shown(80, **environment).replace("\r\n", "\n")
        assert "step 3000/3000" in text, text
        assert not [c for c in text if c < " " and c != "\n"], repr(text)


def progress_and_results_are_apart():
    done = subprocess.run([job.TERN, "train", *map(str, job.small(steps=3000))], text=True,
                          capture_output=True)
    assert done.returncode == 0, done
    assert "step " not in done.stdout and "done: 3000 steps" in done.stdout, done.stdout
    assert all(line.startswith("step ") for line in done.stderr.splitlines()), done.stderr
    assert "step 3000/3000" in done.stderr, done.stderr


tap.run([
    wide_terminal_has_everything,
    usual_terminal_has_one_line,
    narrow_terminal_leaves_out_what_does_not_fit,
    tiny_terminal_has_what_fits,
    plain_text_is_written_where_it_was_asked_for,
    progress_and_results_are_apart,
])
