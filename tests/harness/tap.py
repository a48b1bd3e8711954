# SPDX-License-Identifier: Apache-2.0
"""Test cases of the scripts: functions, run in order, reported as TAP."""
import sys
import time
import traceback


class Skip(Exception):
    """Raised by a case that cannot run here; its text says why."""


def run(cases):
    """Runs each function, named as behaviour; ends the process: 0 if none failed."""
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
