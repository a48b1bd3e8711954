# SPDX-License-Identifier: Apache-2.0
"""The results section of docs/gpu.md, from the results of one or several calls."""
import json

import figures
from gpu_run import results

BEGIN = "<!-- ./run gpu writes from here -->"
END = "<!-- to here -->"


class Refused(Exception):
    """The results cannot be shown; the text says why."""


def loaded(path):
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise Refused(f"{path}: {e}") from e
    if not isinstance(found, dict) or found.get("version") != results.VERSION:
        raise Refused(f"{path}: these are no results of ./run gpu, or of another version of it")
    return found


def require_measured(path, call):
    """Raises Refused unless a real GPU gave these results at full size: readers are shown no others."""
    if not call["facts"].get("driver"):
        raise Refused(f"{path}: no NVIDIA driver was there, so these are no results of a GPU")
    if call["scale"] != "large":
        raise Refused(f"{path}: these are results of --smoke, or of TERN_GPU_SCALE={call['scale']}")


def merged(calls):
    """The programs of all calls: of a program that ran in several calls, the last result counts that is not
    a skip."""
    programs = {}
    for call in calls:
        for program in call["programs"]:
            key = (program["part"], program["name"])
            if key not in programs or program["verdict"] != "skip":
                programs[key] = program
    return list(programs.values())


def device_line(call):
    device, facts = call["device"], call["facts"]
    lines = {"Date": facts["date"], "Commit": facts["commit"]}
    if device:
        lines["GPU"] = (f"{device['device']} ({device['multiprocessors']} multiprocessors of capability "
                        f"{device['capability']}, {device['bytes'] / 2**30:.0f} GiB)")
        lines["Driver"] = f"{facts['driver']} (CUDA {device['driver_cuda']})"
        lines["Toolkit"] = device["toolkit"]
    lines["Host"] = f"{facts['cores']} cores of {facts['processor']}"
    return "; ".join(f"{name}: {value}" for name, value in lines.items()) + "."


def counts(programs):
    return (f"Cases: {sum(p['passed'] for p in programs)} passed, {sum(len(p['failed']) for p in programs)} "
            f"failed, {sum(len(p['skipped']) for p in programs)} skipped.")


def cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def lines_of(calls):
    programs = merged(calls)
    lines = ["", "## Results", ""]
    lines += list(dict.fromkeys("- " + device_line(call) for call in calls))
    lines += ["", counts(programs), ""]
    for call in calls:
        if call["state"] != "ended":
            lines += [f"The call of {call['facts']['date']} was cut short"
                      + (f" during {call['at']}." if call["at"] else "."), ""]
    lines += ["| part | program | | |", "|---|---|---|---|"]
    lines += [f"| {p['part']} | {cell(p['name'])} | {p['verdict']} | {cell(p['line'])} |" for p in programs]
    skipped = {name: part for call in calls for name, part in call["parts"].items() if part.get("skipped")}
    ran = {p["part"] for p in programs}
    lines += [f"| {name} | | skip | {cell(part['skipped'])} |" for name, part in skipped.items() if name not in ran]
    rows = [row for p in programs for row in p["rows"]]
    if rows:
        lines += ["", "Medians; the ratio is of each round, with the least and the largest.", ""]
        lines += figures.table(rows)
    return lines


def page_of(text, calls):
    """The page with new results between its two marks."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise Refused(f"docs/gpu.md: the lines {BEGIN} and {END} are not there")
    return before + BEGIN + "\n".join(lines_of(calls)).rstrip() + "\n\n" + END + after


def write(page, paths):
    calls = [loaded(path) for path in paths]
    for path, call in zip(paths, calls):
        require_measured(path, call)
    results.replace(page, page_of(page.read_text(), calls))
