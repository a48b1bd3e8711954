# SPDX-License-Identifier: Apache-2.0
"""What a run has measured so far, in a file that survives whatever ends the run.

A line of JSON for each round of a question (one line for all rounds, if the question measures them
at once), written and synced when the round is over, and one for each --resume; the first line says
what was measured where: the identity. The unit is a round, because ratios are taken within one:
half of it from before a break and half from after would be no round. For the same reason, a round
in which a contender failed is measured again, and those after it.
"""
import fcntl
import hashlib
import json
import os
import subprocess

import machine


class Refused(Exception):
    """One line: why this journal cannot be used."""


def identity(top, program, here, options, missing):
    """What must be the same before a break and after it, for both parts to be one run, as {what:
    {name: value}}. It has a hash of the changes of tracked files outside docs/ that are not
    committed, and one of the program with its .so files, because --tern may name any."""
    try:
        changes = subprocess.run(["git", "-C", str(top), "diff", "HEAD", "--", ".", ":!docs"],
                                 capture_output=True).stdout
    except OSError:  # without git only the program's hash shows changes
        changes = b""
    files = [program, *sorted(program.parent.glob("*.so"))]
    content = hashlib.sha256(b"".join(f.read_bytes() for f in files if f.is_file()))
    return {"commit": {"commit": here["tern"],
                       "changes": hashlib.sha256(changes).hexdigest()[:12],
                       "program": content.hexdigest()[:12]},
            "machine": machine.fixed(here),
            "options": options,
            "peers": {"missing": ", ".join(sorted(missing)) or "none"}}


def differences(then, now):
    """What differs between two identities, in words; "" if they are the same."""
    found = []
    for what in {**then, **now}:
        before, after = then.get(what, {}), now.get(what, {})
        found += [f"{'' if name == what else f'{what}: '}{name} was {before.get(name, '-')}, "
                  f"is {after.get(name, '-')}"
                  for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(found)


class Journal:
    """The journal of one run. A second run at the same time is refused: it would also disturb the
    measurements of the first."""

    def __init__(self, path):
        self.path, self.head, self.entries = path, None, []
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a+b")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused("another run is measuring") from None
        self.read()

    def read(self):
        """Reads all entries. The first line that is incomplete, as the last one may be after a power
        cut, is removed, with what follows."""
        self.file.seek(0)
        whole = 0
        for line in self.file:
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if self.head is None:
                self.head = entry
            else:
                self.entries.append(entry)
        self.file.truncate(whole)

    def start(self, now, started):
        """Empties the journal, and begins one of a run with the identity `now`."""
        self.file.truncate(0)
        self.head, self.entries = None, []
        self.head = self.write({"identity": now, "started": started})

    def resume(self, now):
        if self.head is None:
            self.remove()
            raise Refused("there is no unfinished run to go on with")
        differ = differences(self.head["identity"], json.loads(json.dumps(now)))
        if differ:
            raise Refused(f"the unfinished run is another one: {differ}")
        self.add({"resumed": True})

    def write(self, entry):
        self.file.write(json.dumps(entry).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        return entry

    def add(self, entry):
        self.entries.append(self.write(entry))

    def parts(self):
        """In how many sittings the run was measured: one, and one more for each --resume."""
        return 1 + sum("resumed" in entry for entry in self.entries)

    def rounds(self, question):
        """The rounds of a question that may be used: all before the first one that is missing or
        in which a contender failed."""
        last = {e["round"]: e for e in self.entries if e.get("question") == question}
        found = []
        while len(found) in last and not last[len(found)]["failed"]:
            found.append(last[len(found)])
        return found

    def remove(self):
        self.path.unlink(missing_ok=True)
        self.file.close()
