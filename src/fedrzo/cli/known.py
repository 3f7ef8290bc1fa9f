"""The names that `fedrzo list` shows. They lie in `known.json`, so that the command does not wait for JAX.

`python -m fedrzo.cli.known` writes the file anew; a test compares it with the library.
"""

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from fedrzo.running.built_in import built_in

FILE = "known.json"
CLASSES = {"Bilevel": "Bilevel and Minimax"}  # a Minimax problem is a Bilevel one


def known() -> dict[str, Any]:
    """Return a line for each method and problem, as stored, with the classes that a method solves; and each spec's title."""
    stored: dict[str, Any] = json.loads(resources.files("fedrzo.cli").joinpath(FILE).read_text(encoding="utf-8"))
    titles = {name: tomllib.loads(spec.read_text(encoding="utf-8"))["title"] for name, spec in built_in().items()}
    return {**stored, "specs": titles}


def collected() -> dict[str, Any]:
    """Return what the file should hold, from the library itself."""
    from fedrzo import methods, zoo
    from fedrzo.zoo.published import ENTRIES

    problems: dict[str, dict[str, str]] = {"small": {}, "published": {}}
    for name, line in zoo.describe().items():
        problems["published" if name in ENTRIES else "small"][name] = line
    solvers = {
        name: {"line": (cls.__doc__ or "").strip().splitlines()[0], "solves": [problem.__name__ for problem in cls.solves]}
        for name, cls in methods.METHODS.items()
    }
    return {"problems": problems, "methods": solvers}


def plain() -> dict[str, dict[str, str]]:
    """Return a line by name for problems, methods and specs."""
    found = known()
    problems = {name: line for group in found["problems"].values() for name, line in group.items()}
    lines = {name: method["line"] for name, method in found["methods"].items()}
    return {"problems": problems, "methods": lines, "specs": found["specs"]}


def shown() -> str:
    """Return the list as text: what to try first, then specs, methods by the problems that they solve, and problems."""
    found = known()
    problems, methods, specs = found["problems"], found["methods"], found["specs"]
    small, published = problems["small"], problems["published"]
    first = {
        "fedrzo run demo": "runs a spec",
        "fedrzo compare median": "compares all methods on a problem",
        "fedrzo new nonsmooth FILE.py": "writes a file to state your own problem in",
        "fedrzo solve FILE.py": "solves it, and finds a method if the file names none",
    }
    groups = {"to begin with": first, "specs: fedrzo run NAME": specs}
    for kind in dict.fromkeys(method["solves"][0] for method in methods.values()):
        own = {name: _line(method) for name, method in methods.items() if method["solves"][0] == kind}
        groups[f"methods for {CLASSES.get(kind, kind)} problems: fedrzo solve FILE.py --set method.name=NAME"] = own
    groups["problems: fedrzo compare NAME"] = small
    groups["problems from collections, with their best known values: fedrzo compare NAME"] = published
    width = max(len(name) for lines in groups.values() for name in lines)
    text = [f"{len(specs)} specs, {len(methods)} methods, {len(small)} problems and {len(published)} from collections"]
    for heading, lines in groups.items():
        text += ["", f"{heading}", *(f"  {name:{width}}  {line}" for name, line in lines.items())]
    return "\n".join(text)


def _line(method: dict[str, Any]) -> str:
    others = method["solves"][1:]
    return method["line"] + (f" Also for {' and '.join(others)} problems." if others else "")


if __name__ == "__main__":
    Path(__file__).with_name(FILE).write_text(json.dumps(collected(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
