# SPDX-License-Identifier: Apache-2.0
"""A running `tern --json` whose events a thread reads, for programs that kill its processes and watch how the job goes
on: ./run chaos, and the questions `snapshots` and `recovery` of ./run bench."""
import json
import subprocess
import threading
import time

HANG_S = 90  # a job without any event for so long hangs; events `waiting` say only that it still waits


class Watched:
    """A process that prints a line of JSON for each event. `log` gets its lines, each after `name`. More arguments are
    those of subprocess.Popen. `events` and `heard_s` may be read by any thread; all else is for the thread that made
    it. Each event gets `heard_s`, too: when it was read, in seconds of time.monotonic()."""

    def __init__(self, command, log=None, name="", **more):
        self.events, self.heard_s = [], time.monotonic()
        self.log, self.name = log, name
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, **more)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            if self.log is not None:
                self.log.append(self.name + line.rstrip())
            try:
                event = json.loads(line)
            except ValueError:
                continue  # the beginning of a line: the process was killed
            event["heard_s"] = time.monotonic()
            if event["event"] != "waiting":
                self.heard_s = event["heard_s"]
            self.take(event)
            self.events.append(event)

    def take(self, event):
        """Called by the reading thread for each event, before it is in `events`. For subclasses."""

    def last(self, *names):
        """The last event that has one of these names; None: there is none."""
        return next((e for e in reversed(list(self.events)) if e["event"] in names), None)

    def step(self):
        """The newest step of the events `progress`. They come at most five times a second, so it may be 0.2 s old."""
        return max((e["step"] for e in list(self.events) if e["event"] == "progress"), default=0)

    def lives(self):
        return self.process.poll() is None

    def end(self):
        """Kills the process, if it still runs, and waits for its end."""
        if self.lives():
            self.process.kill()
        self.process.wait()
        self.reader.join()


def until_new_step(hurt_s, was, step, heard_s, is_over, meanwhile=lambda: None):
    """How many seconds after `hurt_s` (of time.monotonic()) step() is above `was`; None if is_over() before. heard_s():
    when the job was heard of last. AssertionError if it hangs. Calls meanwhile() again and again."""
    while step() <= was and not is_over():
        assert time.monotonic() - max(hurt_s, heard_s()) < HANG_S, "no event: it hangs"
        assert time.monotonic() - hurt_s < 4 * HANG_S, "no new step, though its processes speak"
        meanwhile()
        time.sleep(0.005)
    return time.monotonic() - hurt_s if step() > was else None
