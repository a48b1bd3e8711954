#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What snapshots cost: a job of a server and two workers without snapshots, two with, and one without again (A B B A).
Prints a line of JSON for each of both kinds.

usage: tern_snapshots.py TERN_NULL --model flat:BYTES,US --steps N --every N [--via]
"""
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import null_job
from null_job import NullJob, middle


class Peak:
    """A thread that looks at a process's largest memory until it ends: the kernel forgets it then."""

    def __init__(self, pid):
        self.pid, self.kib = pid, 0
        self.thread = threading.Thread(target=self._look)
        self.thread.start()

    def _look(self):
        while Path(f"/proc/{self.pid}/stat").exists() and (found := null_job.peak_kib(self.pid)):
            self.kib = found
            time.sleep(0.02)

    def end(self):
        self.thread.join()
        return self.kib


def servers_of(options):
    return 2 if options.via else 1


def run(options, directory, snapshots):
    """{what: value} of one job: the durations of its steps, the memory of server 0, and its snapshots."""
    job = NullJob(options.program, directory, options.model[0], servers_of(options), 2, options.steps, snapshots,
                  options.every, options.via)
    try:
        job.by_hand()
        peak = Peak(job.processes["server", 0].process.pid)
        server = job.processes["server", 0]
        job.until(job.has_ended, "the end of the job")
        server.reader.join()
        if any(p.process.returncode for p in job.all()):
            sys.exit(f"the job has failed: {job.last_words()}")
        saved = [e for e in server.events if e["event"] == "snapshot" and e["step"] < options.steps]
        # A snapshot that is due while the one before is still being written is left out, with a note.
        left_out = [e for e in server.events if e["event"] == "note" and e["text"].startswith("no snapshot of step")]
        return {"times": null_job.step_times(job.marks.all()), "kib": peak.end(), "saved": saved,
                "left_out": len(left_out)}
    finally:
        job.end()


def line_of(options, name, runs):
    times = [t for one in runs for t in one["times"]]
    median_s = middle(times)
    return {"point": name, "steps_per_s": len(times) / sum(times), "median_ms": 1e3 * median_s,
            "longest_ms": 1e3 * max(times), "delay_steps": max(times) / median_s - 1,
            "server_mib": middle([one["kib"] for one in runs]) / 1024}


def compare(options, without, saving):
    """The two lines. `without`, `saving`: the jobs of either kind, of equally many steps."""
    lines = [line_of(options, "without", without), line_of(options, "with", saving)]
    saved = [event for one in saving for event in one["saved"]]
    if not saved:
        sys.exit("no snapshot was complete before the last step: it takes more steps")
    took_s = [sum(t for one in runs for t in one["times"]) for runs in (without, saving)]
    grown_kib = 1024 * (lines[1]["server_mib"] - lines[0]["server_mib"])
    lines[1] |= {"interval_s": options.every / lines[1]["steps_per_s"],
                 "snapshot_s": middle([event["seconds"] for event in saved]),
                 "snapshot_mb": middle([event["bytes"] for event in saved]) / 1e6, "snapshots": len(saved),
                 "left_out": sum(one["left_out"] for one in saving),
                 "lost_ms": 1e3 * (took_s[1] - took_s[0]) / len(saved),
                 "extra_copies": grown_kib * 1024 * servers_of(options) / options.model[1]}
    return lines


def parse():
    parser = null_job.parser(__doc__)
    parser.add_argument("--steps", type=null_job.number, required=True, metavar="N", help="steps of each job")
    parser.add_argument("--via", action="store_true", help="two servers, of which one has --snapshots-via")
    return parser.parse_args()


def main():
    options, runs = parse(), {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="tern-snapshots-") as scratch:
        for number, saving in enumerate((False, True, True, False)):
            folder = Path(scratch) / f"{number}"
            runs[saving].append(run(options, folder, folder / "snapshots" if saving else None))
            shutil.rmtree(folder)
    for line in compare(options, runs[False], runs[True]):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
