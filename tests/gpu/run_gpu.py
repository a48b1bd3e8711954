#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does all that a GPU is needed for, in parts that fit into a short stay on a machine with one:
builds what there is to build, tests, checks, measures. The results are on disk after each
program, whatever ends run_gpu.py. The last line is "N passed, N failed, N skipped", unless there is no GPU.

The parts are in gpu_run/plan.py; how a program is run in gpu_run/process.py, what its output means
in gpu_run/judge.py, how results are kept in gpu_run/results.py, and how docs/gpu.md is made of them
in gpu_run/page.py.
"""
import argparse
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "bench" / "gpu"), str(Path(__file__).resolve().parent)]
import tap_count  # noqa: E402
from gpu_run import judge, machine, page, plan, process, rerun, results  # noqa: E402
from gpu_run.judge import NO_TIME  # noqa: E402

PAGE = TOP / "docs" / "gpu.md"
LIMIT_S = 540
BUILD_LIMIT_S = 600
LEAST_S = 1  # a program is not started for less
SMOKE_PATIENCE = 3  # --smoke may run beside other work: the limits of parts and programs are so many times as long
OUTPUT_KEPT = 6000  # characters of the output of a program that failed


class NoDevice(Exception):
    pass


class Run:
    """One call: its parts, its deadline, and what was found so far."""

    def __init__(self, arguments, parts):
        self.arguments, self.parts = arguments, parts
        self.end = time.monotonic() + arguments.limit
        self.patience = SMOKE_PATIENCE if arguments.smoke else 1
        self.out = arguments.out or machine.BUILD / "results"
        self.built = arguments.built or machine.BUILD
        (self.out / "programs").mkdir(parents=True, exist_ok=True)
        scale = plan.smaller("large", os.environ.get("TERN_GPU_SCALE"), "few" if arguments.smoke else None)
        self.context = plan.Context(self.built, self.out, scale)
        self.results = results.Results(self.out, machine.facts(), scale=scale, limit_s=arguments.limit)
        self.count = tap_count.Count(arguments.verbose)
        self.hashes = {}  # group: (program, its hashes)
        self.env = dict(os.environ, LD_LIBRARY_PATH=machine.library_path(self.built), **tap_count.ENVIRONMENT)

    @property
    def left_s(self):
        return self.end - time.monotonic()

    # ---- one program ----

    def execute(self, part, program, limit_s, more=""):
        scale = plan.smaller(program.scale, self.context.scale)
        base = self.out / "programs" / re.sub(r"[^\w.-]+", "-", f"{part}.{program.name}{more}")
        self.results.quietly(f"$ {' '.join(map(str, program.command))}")
        ended = process.run(program.command, limit_s, dict(self.env, TERN_GPU_SCALE=scale, **program.env), base,
                            self.out)
        self.results.quietly(ended.out[-OUTPUT_KEPT:], ended.err[-OUTPUT_KEPT:])
        return ended, self.verdict_of(program, ended, limit_s)

    def verdict_of(self, program, ended, limit_s):
        if ended.status == process.NOT_THERE:
            return judge.skip(f"not here: {ended.err}")
        if ended.status != process.LATE:
            return program.judge(ended)
        return judge.of_killed(ended, limit_s, math.inf if program.may_be_slow else self.own_s(program))

    def own_s(self, what):
        """Seconds that a program or part may take if the limits of the others leave it as much."""
        return self.patience * what.limit_s

    def record(self, part, program, verdict, ended=None):
        record = {"part": part, "name": program.name, "verdict": verdict.verdict, "line": verdict.line,
                  "seconds": round(ended.seconds, 2) if ended else 0, "status": ended.status if ended else None,
                  "passed": verdict.passed, "failed": verdict.failed, "skipped": verdict.skipped,
                  "rows": verdict.rows, "hashes": verdict.hashes,
                  "command": " ".join(map(str, program.command)), "env": program.env}
        if verdict.verdict == "fail" and ended:
            record["output"] = (ended.out + ended.err)[-OUTPUT_KEPT:]
        return record

    def keep(self, part, program, verdict, record):
        self.count.passed += verdict.passed
        self.count.failed += [f"[{part}] {program.name}: {case}" for case in verdict.failed]
        for case, reason in verdict.skipped:
            self.count.skip(part, program.name, case, reason, "gpu")
        self.results.log(f"{part}: {program.name:<34} {verdict.verdict:<5} {record['seconds']:6.1f} s  {verdict.line}")
        self.results.add(record)

    def compare_hashes(self, program, verdict):
        """Makes the verdict a failure if the program's hashes are not those of the first program of its group."""
        if not program.group or verdict.verdict != "pass":
            return
        first, wanted = self.hashes.setdefault(program.group, (program.name, verdict.hashes))
        differ = [name for name, value in verdict.hashes.items() if wanted.get(name) != value]
        if differ or not verdict.hashes:
            verdict.verdict = "fail"
            verdict.line = f"{differ[0]}: other bits than in {first}" if differ else "it printed no hashes"
            verdict.failed.append(verdict.line)

    def look_into(self, part, program, record):
        """Runs a program that failed again, in the ways of rerun.py."""
        record["reruns"] = []
        for how, again in rerun.ways(program):
            limit_s = min(self.own_s(again), self.left_s)
            if limit_s < LEAST_S:
                verdict, ended = judge.skip(NO_TIME), None
            else:
                self.results.begin(f"{part}: {program.name}, {how}")
                ended, verdict = self.execute(part, again, limit_s, f".{how}")
            record["reruns"].append({"how": how, **self.record(part, again, verdict, ended)})
            self.results.log(f"{part}: {program.name}, {how}: {verdict.verdict} {verdict.line}")
            self.results.begin(None)

    def run_program(self, part, program, part_end):
        limit_s = min(self.own_s(program), part_end - time.monotonic(), self.left_s)
        if limit_s < LEAST_S:
            verdict = judge.skip(NO_TIME)
            self.keep(part, program, verdict, self.record(part, program, verdict))
            return None
        self.results.begin(f"{part}: {program.name}")
        ended, verdict = self.execute(part, program, limit_s)
        self.compare_hashes(program, verdict)
        record = self.record(part, program, verdict, ended)
        self.keep(part, program, verdict, record)
        if verdict.verdict == "fail" and program.again and ended.status != process.LATE:
            self.look_into(part, program, record)
        return ended

    # ---- parts ----

    def find_facts(self, part_end):
        for name, value in self.results.all["facts"].items():
            self.results.log(f"{name}: {value}")
        self.find_device(part_end)

    def find_device(self, part_end):
        """Asks `gpu_rates --device` and `tern info` about the device, if they are built."""
        if self.results.all["device"] or not self.is_built():
            return
        device = plan.Program("device", self.context.bench("gpu_rates", "--device"), judge.of_tool, 10)
        ended = self.run_program("facts", device, part_end)
        if ended and ended.status == 2:
            raise NoDevice(ended.err.strip())
        if ended and ended.status == 0:
            self.results.all["device"] = json.loads(ended.out)
            self.results.log(*(f"{name}: {value}" for name, value in self.results.all["device"].items()))
        tern = plan.Program("tern info", [self.built / "tern", "info"], judge.of_tool, 10)
        if tern.command[0].exists():
            ended = self.run_program("facts", tern, part_end)
            self.results.log(*(ended.out.splitlines() if ended else []))

    def is_built(self):
        return self.context.bench("gpu_rates")[0].exists()

    def build(self, part_end):
        """meson, then ninja: what suite gpu, the measurements and whole jobs need."""
        if self.arguments.built:
            self.skip_part("build", f"the programs of {self.arguments.built.name} are used")
            return True
        if not (self.built / "build.ninja").exists():
            setup = ["meson", "setup", self.built, machine.TOP, "-Dcuda=enabled"]
            if not self.builds("meson", setup, part_end):
                return False
        if not self.builds("ninja", ["ninja", "-C", self.built, *self.targets()], part_end):
            return False
        if "facts" in self.results.all["parts"]:
            self.find_device(time.monotonic() + self.own_s(plan.BY_NAME["facts"]))
        return True

    def builds(self, name, command, part_end):
        ended = self.run_program("build", plan.Program(name, command, judge.of_tool, BUILD_LIMIT_S), part_end)
        if ended and ended.status == 0:
            return True
        if ended and ended.status > 0:
            self.results.log(*(ended.out + ended.err).strip().splitlines()[-30:])
        else:
            self.count.failed.append("[build] there was too little time; the next build goes on")
        return False

    def targets(self):
        """ninja's names of the programs that the parts run."""
        targets = json.loads((self.built / "meson-info" / "intro-targets.json").read_text())
        return sorted(str(Path(name).resolve().relative_to(self.built.resolve())) for target in targets
                      for name in target["filename"] if is_wanted(target))

    def skip_part(self, name, why):
        self.results.all["parts"][name]["skipped"] = why
        self.results.log(f"{name}: skipped: {why}")
        self.results.write()

    def run_part(self, part):
        """Returns False if nothing is built that the rest could run."""
        start = time.monotonic()
        self.results.all["parts"][part.name] = about = {"limit_s": part.limit_s}
        if self.left_s < LEAST_S:
            self.skip_part(part.name, NO_TIME)
            self.count.skip(part.name, part.name, "all", NO_TIME, "gpu")
            return True
        own_s = self.own_s(part) if len(self.parts) > 1 else math.inf
        part_end = start + min(own_s, self.left_s)
        goes_on = True
        if part.name == "facts":
            self.find_facts(part_end)
        elif part.name == "build":
            goes_on = self.build(part_end)
        elif self.is_built():
            self.run_programs(part, part_end)
        else:
            goes_on = False
            self.skip_part(part.name, f"there are no programs in {self.built}: the part build makes them")
            self.count.failed.append(f"[{part.name}] nothing is built")
        about["seconds"] = round(time.monotonic() - start, 1)
        self.results.write()
        return goes_on

    def run_programs(self, part, part_end):
        failed = len(self.count.failed)
        for program in part.programs(self.context):
            self.run_program(part.name, program, part_end)
        if part.name == "jobs" and len(self.count.failed) == failed:
            shutil.rmtree(self.out / "jobs")

    def run(self):
        try:
            built = True
            for part in self.parts:
                if built:
                    built = self.run_part(part)
                else:
                    self.results.all["parts"][part.name] = {"limit_s": part.limit_s}
                    self.skip_part(part.name, "nothing is built")
        except NoDevice as e:
            self.results.log(f"run gpu: no GPU to test on: {e}")
            self.results.end("no device")
            return 2
        except KeyboardInterrupt:
            self.results.end("interrupted", at=self.results.all["at"])
            self.count.failed.append("[gpu] it was interrupted")
            return self.count.report()
        self.results.log(f"results: {self.out / results.NAME}, {results.LOG}, and the output of each program")
        self.results.quietly(*self.count.skipped_lines(), *self.count.failed)
        self.results.end("ended")
        return self.count.report()


def is_wanted(target):
    """Whether this call needs the target: a program of suite gpu or of bench/gpu, tern, a file of the Python package, or
    the plug-in for NCCL."""
    where = Path(target["defined_in"]).parent.relative_to(TOP)
    if target["type"] != "executable":
        return where.parts[:2] == ("python", "pytern") or where == Path("plugins/nccl")
    on_device = where == Path("tests/gpu") and not target["name"].startswith("test_cuda")
    return on_device or where == Path("bench/gpu") or target["name"] == "tern"


def parse(words=None):
    parser = argparse.ArgumentParser(
        prog="run gpu", description="Does all that a GPU is needed for.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Parts, in the order in which they run, with their limits:\n"
               + "".join(f"  {part.name:<10} {part.limit_s:4.0f} s  {part.about}\n" for part in plan.PARTS)
               + "Names of several parts:\n"
               + "".join(f"  {name:<10} {', '.join(parts)}\n" for name, parts in plan.GROUPS.items()))
    parser.add_argument("--parts", metavar="NAME,...", help="only these parts; without it all")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=LIMIT_S,
                        help=f"end after so long; what does not fit is skipped ({LIMIT_S})")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where results go (build-gpu/results)")
    parser.add_argument("--built", metavar="DIR", type=Path, help="use the programs of DIR, and build nothing")
    parser.add_argument("--smoke", action="store_true", help="everything small and short, to try the command")
    parser.add_argument("--verbose", action="store_true", help="name every case that was skipped")
    parser.add_argument("--page", metavar="JSON", type=Path, nargs="+",
                        help="write the results section of docs/gpu.md from the results of these calls, and run nothing")
    arguments = parser.parse_args(words)
    if not arguments.limit > 0:
        parser.error(f"--limit {arguments.limit:g}: must be more than 0")
    for name in ("out", "built"):
        if getattr(arguments, name):
            setattr(arguments, name, getattr(arguments, name).resolve())
    if os.environ.get("TERN_GPU_SCALE", "large") not in plan.SCALES:
        parser.error(f"TERN_GPU_SCALE={os.environ['TERN_GPU_SCALE']}: not one of {', '.join(plan.SCALES)}")
    if arguments.built and not arguments.built.is_dir():
        parser.error(f"--built {arguments.built}: there is no such folder")
    try:
        return arguments, plan.chosen(arguments.parts)
    except ValueError as e:
        parser.error(str(e))


def main():
    arguments, parts = parse()
    if arguments.page:
        try:
            page.write(PAGE, arguments.page)
        except page.Refused as e:
            print(f"run gpu: {e}", file=sys.stderr)
            return 2
        print("docs/gpu.md has the results")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        call = Run(arguments, parts)
    except OSError as e:
        print(f"run gpu: {e}", file=sys.stderr)
        return 2
    return call.run()


if __name__ == "__main__":
    sys.exit(main())
