# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package. The C part imports this file, so it imports nothing of the package."""
import os


class Error(Exception):
    """What the library says in a sentence.

    `status` is the library's negative errno, such as -errno.ECONNREFUSED; `errno` is the same number without the sign.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.errno = -status
        self.text = text

    def __str__(self) -> str:
        return self.text or os.strerror(self.errno)


class Timeout(Error, TimeoutError):
    """A call has waited for its `timeout`. What it waits for goes on, and the session or context can still be used."""

    errno: int


class Cancelled(Error):
    """The parameters of this slot will not come, and nobody needs its result. `with slot:` ends it, and the loop over
    the slots goes on."""
