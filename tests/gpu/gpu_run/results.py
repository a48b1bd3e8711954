# SPDX-License-Identifier: Apache-2.0
"""Results that survive the end of the runner, however it ends.

The results (gpu.json) and the log (gpu.log) are replaced as whole files before and after each
program: written under another name, synced, renamed. So there are always two complete files, and
whoever ends the runner loses at most the program that was running; "at" names it.
"""
import json
import os

VERSION = 1
NAME, LOG = "gpu.json", "gpu.log"


def replace(path, text):
    """Writes a file so that it has either its old contents or all of the new ones."""
    new = path.with_name(path.name + ".new")
    with open(new, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Results:
    """`all` is what gpu.json has: facts about the machine, the parts that were run, and the
    programs with their verdicts, in the order of their ends."""

    def __init__(self, directory, facts, **about):
        self.directory = directory
        self.lines = []
        self.all = {"version": VERSION, "state": "running", "at": None, **about, "facts": facts, "device": None,
                    "parts": {}, "programs": []}
        self.write()

    def log(self, *lines):
        """Prints lines, and keeps them for the log."""
        for line in lines:
            print(line, flush=True)
            self.lines.append(line)

    def quietly(self, *texts):
        """Keeps texts for the log, and does not print them."""
        self.lines += [text.rstrip("\n") for text in texts if text.strip()]

    def begin(self, name):
        self.all["at"] = name
        self.write()

    def add(self, record):
        self.all["programs"].append(record)
        self.all["at"] = None
        self.write()

    def end(self, state, at=None):
        self.all["state"], self.all["at"] = state, at
        self.write()

    def write(self):
        """A full disk is no reason to end: the older files are still whole, and the rest is printed."""
        try:
            replace(self.directory / NAME, json.dumps(self.all, indent=1) + "\n")
            replace(self.directory / LOG, "\n".join([*self.lines, ""]))
        except OSError as e:
            print(f"run gpu: results cannot be written: {e}", flush=True)
