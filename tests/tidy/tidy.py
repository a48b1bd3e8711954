#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules about the sources that a compiler does not check: who may include whom, what code
below the tools may call, that no file is dead, sizes, heads, what documents cite.

usage: tidy.py BUILD_DIRECTORY (for compile_commands.json)
"""
import json
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

BUILD = Path(sys.argv[1])
LINES_MAX = 900

# The folders from which the files of a folder may include, besides their own and include/tern. See README.md,
# "Layers".
MAY_INCLUDE = {
    "include": set(),
    "base": set(),
    "kernels": {"base"},
    "transport": {"base"},
    "rendezvous": {"base", "transport"},
    "group": {"base", "kernels", "transport", "rendezvous"},
    "ps": {"base", "kernels", "transport", "rendezvous"},
    "server": {"base", "kernels", "transport", "rendezvous", "ps"},
    "client": {"base", "kernels", "transport", "rendezvous", "ps"},
    "host": {"base", "transport", "rendezvous", "client"},
    "plugins": set(),
    "python": set(),
    "tools": {"base", "kernels", "transport", "rendezvous", "ps", "server", "client", "host"},
    "bench": {"base", "group", "kernels", "transport", "rendezvous", "ps", "server", "client", "host", "plugins"},
    "docs": set(),
    "tests": {"base", "group", "kernels", "transport", "rendezvous", "ps", "server", "client", "host", "plugins",
              "tools"},
}
GENERATED = {"tern-config.h"}

# Functions that only the tools, plugins/, python/, bench/, tests/ and docs/ may call: for the rest, the environment
# provides them (base/env.h).
NOT_BELOW_TOOLS = {
    "reads a clock": r"\b(clock_gettime|gettimeofday|time\(NULL)",
    "sleeps": r"\b(u|nano)?sleep\(|\bclock_nanosleep\(",
    "starts a thread": r"\b(pthread_create|thrd_create)\(",
    "prints": r"\b(printf|fprintf|vprintf|vfprintf|puts|putchar|perror)\(",
    "ends the process": r"\b(exit|_exit|abort)\(",
    "opens a file": r"\bfopen\(",
}
# The files that may do it: base/clock.c is the only one that reads a clock, and asks in sysfs which one the
# kernel goes by; base/env.c, which is the system's environment, prints log lines, and ends the process when
# an assertion fails.
EXCEPT = {("base/clock.c", "reads a clock"), ("base/clock.c", "opens a file"), ("base/env.c", "prints"),
          ("base/env.c", "ends the process"),
          # A thread that waits for a lock sleeps if the holder has lost the processor. The simulator has only
          # one thread, so there it never does.
          ("base/lock.h", "sleeps"),
          # retire.c has a thread for calls in which the kernel may block; module.c reads a file of sysfs.
          ("transport/verbs/retire.c", "starts a thread"),
          ("transport/verbs/module.c", "opens a file"),
          # The progress thread of a shared context is what host/ is for.
          ("host/shared.c", "starts a thread")}

MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
URL = re.compile(r"https?://([A-Za-z0-9.-]+)")
URLS_ALLOWED = {"www.apache.org",  # in the licence's own text
                "www.w3.org"}      # the names of SVG's name spaces
MACHINE_PATH = re.compile(r"(^|[\s\"'=(])/(work|home|root)/")


def listed():
    """Paths of the sources, relative to the top."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
        known = done.returncode == 0
    except FileNotFoundError:
        known = False
    if known:
        paths = [Path(p) for p in done.stdout.splitlines()]
    else:  # an unpacked archive, or another user's clone, which git does not read
        paths = [p.relative_to(TOP) for p in TOP.rglob("*")]
        paths = [p for p in paths if not p.parts[0].startswith("build") and
                 not {".git", "__pycache__"} & set(p.parts)]
    return [p for p in paths if (TOP / p).is_file()]


CORPUS = Path("tests/fuzz/corpus")  # bytes, not text
ALL = [p for p in listed() if CORPUS not in p.parents]
TEXT = {p: (TOP / p).read_text(errors="replace") for p in ALL}
# The C++ of bench/peers is built with the libraries that it is about, by bench/install.py.
CODE = [p for p in ALL if p.suffix in (".c", ".h", ".cu") or (p.suffix in (".cc", ".hh") and p.parts[0] != "bench")]
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    return re.sub(r'"(\\.|[^"\\\n])*"', '""', text)


def none(found):
    assert not found, "\n" + "\n".join(found)


def includes_go_down_only():
    found = []
    for p in CODE:
        folder = p.parts[0]
        if folder not in MAY_INCLUDE:
            found.append(f"{p}: {folder}/ is not a layer that tidy.py knows")
            continue
        for quote, name in INCLUDE.findall(TEXT[p]):
            target = name.split("/")[0]
            if quote == "<":
                if target == "tern" and not (TOP / "include" / name).is_file():
                    found.append(f"{p}: <{name}> is not an installed header")
                if folder == "kernels" and target == "tern" and name != "tern/types.h":
                    found.append(f"{p}: kernels know <tern/types.h> only, not <{name}>")
            elif name in GENERATED:
                continue
            elif "/" not in name:
                found.append(f'{p}: "{name}" needs its path from the top')
            elif target != folder and target not in MAY_INCLUDE[folder]:
                found.append(f'{p}: {folder}/ may not include "{name}"')
    none(found)


def code_below_the_tools_leaves_the_system_alone():
    found = []
    for p in CODE:
        if p.parts[0] in ("plugins", "python", "tools", "bench", "tests", "docs"):
            continue
        for number, line in enumerate(without_comments(TEXT[p]).splitlines(), 1):
            for what, pattern in NOT_BELOW_TOOLS.items():
                if re.search(pattern, line) and (str(p), what) not in EXCEPT:
                    found.append(f"{p}:{number}: {what}: {line.strip()}")
    none(found)


def every_source_is_compiled():
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    built = {(BUILD / c["file"]).resolve() for c in commands}
    none([str(p) for p in CODE if p.suffix in (".c", ".cc") and (TOP / p).resolve() not in built
          and not is_of_a_feature(p)])


def is_of_a_feature(p):
    """Whether the meson.build of its folder names the file: then it is left out because a feature is
    off. There the names of tests and fuzz targets lack "test_" or "fuzz_" and the suffix."""
    build = TOP / p.parent / "meson.build"
    names = {p.name, p.stem.removeprefix("test_").removeprefix("fuzz_")}
    return build.is_file() and any(f"'{name}'" in build.read_text() for name in names)


def every_header_is_included():
    names = set()
    for p in CODE:
        names.update(name for _, name in INCLUDE.findall(TEXT[p]))
    none([str(p) for p in CODE if p.suffix in (".h", ".hh") and str(p) not in names and
          str(p).removeprefix("include/") not in names])


def every_script_is_run():
    """Each script is named by a meson.build, by ./run or by another script."""
    found = []
    for p in ALL:
        if p.suffix not in (".py", ".sh"):
            continue
        users = [q for q in ALL if q != p and (q.name in ("meson.build", "run") or
                                               q.suffix in (".py", ".sh"))]
        name = re.compile(rf"\b{re.escape(p.stem)}\b")
        if not any(name.search(TEXT[q]) for q in users):
            found.append(str(p))
    none(found)


def files_are_not_too_long():
    none([f"{p}: {TEXT[p].count(chr(10))} lines, at most {LINES_MAX} are allowed" for p in CODE
          if TEXT[p].count("\n") > LINES_MAX])


def files_open_with_their_licence():
    none([str(p) for p in ALL if (p.suffix in (".c", ".h", ".cc", ".hh", ".py", ".sh") or
                                  p.name in ("meson.build", "meson_options.txt") or
                                  str(p) in ("run", ".ci/run", "tests/system/rdma/vm")) and
          "SPDX-License-Identifier: Apache-2.0" not in "\n".join(TEXT[p].splitlines()[:3])])


def no_marks_of_unfinished_work():
    none([f"{p}:{n}: {line.strip()}" for p in ALL
          for n, line in enumerate(TEXT[p].splitlines(), 1) if MARKS.search(line)])


def nothing_points_outside():
    """No addresses on the network and no paths of one developer's machine."""
    found = []
    for p in ALL:
        for number, line in enumerate(TEXT[p].splitlines(), 1):
            hosts = [h for h in URL.findall(line) if h not in URLS_ALLOWED]
            if hosts:
                found.append(f"{p}:{number}: {hosts[0]}")
            if MACHINE_PATH.search(line):
                found.append(f"{p}:{number}: {line.strip()}")
    none(found)


# ---- what documents and comments cite ----

SUFFIXES = "build|c|cc|cu|h|hh|json|map|md|patch|proto|py|sh|svg|txt"
PATH = re.compile(rf"(?<![\w./<*-])(?:\.\./)*\w[\w.-]*(?:/[\w.-]+)+\.(?:{SUFFIXES})\b(?![/\w*])")
LINK = re.compile(r"\[[^\]\n]*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.M)
COMMENTS = {  # by suffix; of other files, only ./run and .ci/run are looked at (comments())
    ".c": r"/\*.*?\*/|//[^\n]*", ".py": r'""".*?"""|#[^\n]*', ".build": r"#[^\n]*",
    ".sh": r"#[^\n]*", ".md": r".+"}
COMMENTS |= {suffix: COMMENTS[".c"] for suffix in (".h", ".cc", ".hh", ".cu", ".S", ".map")}
# Documents of the past: they may name files that do not exist any more.
HISTORY = {"CHANGELOG.md", "docs/log/performance.md"}


def comments(p):
    """Yields (line number, text) of each line of the comments of a file, or of the whole text of a
    document."""
    pattern = COMMENTS.get(p.suffix, r"#[^\n]*" if str(p) in ("run", ".ci/run") else None)
    for m in re.finditer(pattern, TEXT[p], re.S) if pattern else ():
        first = TEXT[p].count("\n", 0, m.start()) + 1
        yield from enumerate(m.group(0).splitlines(), first)


def is_there(cited, p):
    """Whether `cited` is a path from the top, from include/, or from the folder of the file `p`."""
    return any((TOP / start / cited).exists() for start in ("", "include", p.parent))


def what_documents_and_comments_cite_is_there():
    """Each path in a document or comment exists, except those with NAME, which stands for any name, and
    those in HISTORY. Headers of other projects are cited in <>, so PATH does not match them."""
    found = []
    for p in ALL:
        if str(p) in HISTORY:
            continue
        for number, line in comments(p):
            found += [f"{p}:{number}: there is no {cited}" for cited in PATH.findall(line)
                      if "NAME" not in cited and not is_there(cited, p)]
    none(found)


def anchors(text):
    """Yields the anchors that GitHub makes of the headings of a document."""
    seen = {}
    for heading in HEADING.findall(re.sub(r"^( {4}|```).*$", "", text, flags=re.M)):
        shown = LINK.sub(lambda link: link.group(0).split("]")[0], heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        yield f"{name}-{seen[name]}" if seen[name] else name


def links_of_documents_lead_somewhere():
    found = []
    for p in (p for p in ALL if p.suffix == ".md"):
        for target in LINK.findall(TEXT[p]):
            path, _, anchor = target.partition("#")
            there = (TOP / p.parent / path).resolve() if path else TOP / p
            if not there.exists():
                found.append(f"{p}: there is no {target}")
            elif anchor and (there.suffix != ".md" or anchor not in anchors(there.read_text())):
                found.append(f"{p}: {target}: there is no such heading")
    none(found)


def tests_that_documents_name_are_there():
    """docs/reliability.md names cases of tests as "FILE: `CASE`, `CASE`", files of tests/system/e2e without their
    folder, and scenarios of the simulator as "sim `NAME`"."""
    text, found = TEXT[Path("docs/reliability.md")], []
    for name, cases in re.findall(r"([\w/]+\.(?:c|py)): (`\w+`(?:, `\w+`)*)", text):
        p = Path(name if "/" in name else f"tests/system/e2e/{name}")
        found += [f"{p} has no case {case}" for case in re.findall(r"\w+", cases)
                  if not re.search(rf"\b{case}\b", TEXT.get(p, ""))]
    scenarios = TEXT[Path("tests/system/sim/sim_run.c")]
    found += [f"the simulator has no scenario {name}" for name in re.findall(r"sim `([\w-]+)`", text)
              if f'{{"{name}"' not in scenarios]
    none(found)


def no_trailing_blanks():
    none([f"{p}:{n}" for p in ALL if p.name != "LICENSE"
          for n, line in enumerate(TEXT[p].splitlines(), 1) if line != line.rstrip()])


tap.run([
    includes_go_down_only,
    code_below_the_tools_leaves_the_system_alone,
    every_source_is_compiled,
    every_header_is_included,
    every_script_is_run,
    files_are_not_too_long,
    files_open_with_their_licence,
    no_marks_of_unfinished_work,
    nothing_points_outside,
    what_documents_and_comments_cite_is_there,
    links_of_documents_lead_somewhere,
    tests_that_documents_name_are_there,
    no_trailing_blanks,
])
