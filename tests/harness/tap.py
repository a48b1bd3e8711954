# SPDX-License-Identifier: Apache-2.0
"""Test cases of the scripts: functions, run in order, reported as TAP."""
import sys
import time
import traceback


class Skip(Exception):
    """Raised by a case that cannot run here; its text says why."""


def run(cases):
    """Runs each function of the list as a case, whose name is the function's. Ends the process, with exit status 0
    if no case failed, else 1."""
    failed = 0
    print(f"1..{len(cases)}", flush=True)
    for number, case in enumerate(cases, 1):
        start = time.monotonic()
        try:
            case()
            verdict, rest = "ok", ""
        except Skip as skip:
            verdict, rest = "ok", f" # SKIP {skip}"
        except Exception:  # a failed assertion, or anything else that went wrong
            failed += 1
            verdict, rest = "not ok", ""
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
        print(f"# {time.monotonic() - start:.1f} s")
        print(f"{verdict} {number} - {case.__name__}{rest}", flush=True)
    sys.exit(1 if failed else 0)
