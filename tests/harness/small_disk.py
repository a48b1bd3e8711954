# SPDX-License-Identifier: Apache-2.0
"""A small file system that a test fills up and frees again while programs write to it."""
import errno
import os
import subprocess
from pathlib import Path

import tap

BLOCK = bytes(1 << 16)


class SmallDisk:
    """A tmpfs of so many bytes at the directory `at`, in a mount namespace of its own, so that no privilege is needed.
    Only programs that are started with `prefix` see it at `at`; the test sees it as `seen`. Raises tap.Skip where the
    machine does not allow it."""

    def __init__(self, at, size):
        self.at = at
        at.mkdir()
        mount = f"mount -t tmpfs -o size={size} none {at} && echo mounted && exec sleep infinity"
        self.holder = subprocess.Popen(["unshare", "--map-root-user", "--mount", "sh", "-c", mount], text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.holder.stdout.readline() != "mounted\n":
            said = self.holder.stderr.read().strip()
            self.end()
            raise tap.Skip(f"no file system can be mounted here: {said}")
        self.prefix = ["nsenter", f"--target={self.holder.pid}", "--user", "--mount", "--preserve-credentials"]
        self.seen = Path(f"/proc/{self.holder.pid}/root{at}")

    def fill(self):
        """Leaves no room at all."""
        filler = os.open(self.seen / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in len(BLOCK), 1:
                self._write_until_full(filler, BLOCK[:size])
        finally:
            os.close(filler)

    @staticmethod
    def _write_until_full(file, block):
        try:
            while True:
                os.write(file, block)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def free(self):
        (self.seen / "filler").unlink()

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        self.holder.stderr.close()
