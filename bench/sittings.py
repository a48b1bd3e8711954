# SPDX-License-Identifier: Apache-2.0
"""Pools the results of several sittings: the rounds of one follow those of another, as if all had been
measured in one run. A ratio that differs from boot to boot shows that in its interval only if the
rounds are of several boots."""
import json

import machine
from journal import Refused, differences


def load(path):
    file = path / "results.json" if path.is_dir() else path
    try:
        results = json.loads(file.read_text())
    except (OSError, ValueError) as why:
        raise Refused(f"{file} cannot be read: {why}") from None
    failed = [f"{name}: {title}" for name, q in results["questions"].items() for title in q["failed"]]
    if failed:
        raise Refused(f"{file} is not complete: {failed[0]} has failed")
    return results


def rounds_of(question):
    """The most values that any figure of a question has."""
    return max((len(values) for entry in question["contenders"].values()
                for metrics in entry["points"].values() for values in metrics.values()), default=0)


def joined(parts, rounds):
    """Joins trees of dictionaries that end in lists: in the result, each list has the values of all
    parts, one part after the other. For a part without the list, it has None for each of that part's
    rounds."""
    names = {name: None for part in parts for name in part or {}}
    inner = {name: [(part or {}).get(name) for part in parts] for name in names}
    return {name: joined(found, rounds) if any(isinstance(f, dict) for f in found) else
            [value for f, count in zip(found, rounds) for value in f or [None] * count]
            for name, found in inner.items()}


def one_contender(parts, rounds):
    first = next(part for part in parts if part)
    found = {**first, "points": joined([part and part["points"] for part in parts], rounds)}
    if "took_s" in first:
        found["took_s"] = round(sum((part or {}).get("took_s", 0) for part in parts), 1)
    if any(part and "beside" in part for part in parts):
        found["beside"] = joined([part and part.get("beside") for part in parts], rounds)
    return found


def one_question(parts):
    rounds = [rounds_of(part) for part in parts]
    keys = {key: None for part in parts for key in part["contenders"]}
    found = {**parts[-1], "seconds": round(sum(part["seconds"] for part in parts), 1)}
    found["contenders"] = {key: one_contender([part["contenders"].get(key) for part in parts], rounds)
                           for key in keys}
    found["notes"] = list(dict.fromkeys(note for part in parts for note in part["notes"]))
    found["missing"] = {title: why for title, why in parts[-1]["missing"].items()
                        if all(title in part["missing"] for part in parts)}
    found["machine"] = joined([part["machine"] for part in parts], rounds)
    return found


def kind(one):
    """What must be the same in all sittings that are pooled."""
    return {"machine": machine.fixed(one["machine"]), "commit": {"commit": one["machine"]["tern"]},
            "options": {"quick": one["quick"]}}


def pooled(many):
    """The results of `many`, of one machine, one commit and one kind of run."""
    first = many[0]
    for other in many[1:]:
        differ = differences(kind(first), kind(other))
        if differ:
            raise Refused(f"the sittings cannot be pooled: {differ}")
    names = {name: None for one in many for name in one["questions"]}
    last = max(many, key=lambda one: one["date"])
    loads = max(many, key=lambda one: machine.load_of(one["machine"]) or 0)["machine"]
    return {**last, "rounds": sum(one["rounds"] for one in many),
            "seconds": round(sum(one["seconds"] for one in many), 1),
            "parts": sum(one["parts"] for one in many), "machine": loads,
            "questions": {name: one_question([one["questions"][name] for one in many
                                              if name in one["questions"]]) for name in names}}
