"""The page of all benchmarks, made of stored results: `python benchmarks/page.py > docs/benchmarks.md`.

What a benchmark measures is in its docstring, its numbers are in benchmarks/results/NAME.json, and its own `table`, `verdict` and
`remarks` say them. `python benchmarks/NAME.py --out benchmarks/results` stores them anew.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from helpers.results import STORED

ORDER = (
    "losses", "levels", "peers", "zo", "bilevel", "twostage", "cournot", "projections", "growth", "mpec", "gradients",
    "hypergradients", "communication", "privacy", "theory", "intervals", "ray_load", "courtesy", "solve",
)  # fmt: skip
FIGURES = {
    "gradients": "gradients.svg", "mpec": "mpec.png", "privacy": "privacy.png", "ray_load": "ray_load.png", "solve": "solve.png",
}  # fmt: skip
HEAD = """<!-- Made by `python benchmarks/page.py > docs/benchmarks.md` from benchmarks/results/*.json. -->
# Benchmarks

Every table is made by a command from numbers that are stored in `benchmarks/results`, and each section says who wins, also where
that is not this library. The scripts need a checkout. `python benchmarks/NAME.py --out FOLDER` measures on your machine and
writes `FOLDER/NAME.json` in the same shape; `--quick` takes less time.

Ratios are of times that were measured in turn in one process. Absolute times are only as good as the machine was idle: "load" is
the mean number of programs that wanted a core in the last five minutes, the benchmark's own included. How to read the numbers,
other machines, and what was tried are in the [lab notes on speed](speed-appendix.md).
"""


def stored() -> list[str]:
    """Return the names of all stored results, in the order of the page."""
    names = {path.stem for path in STORED.glob("*.json")}
    return [*(name for name in ORDER if name in names), *sorted(names - set(ORDER))]


def page() -> str:
    """Return the page."""
    absent = [f"`benchmarks/{name}.py`" for name in ORDER if name not in stored()]
    note = [f"Not stored yet, with numbers in the lab notes alone: {', '.join(absent)}.\n"] if absent else []
    return "\n".join([HEAD, *note, *(section(name) for name in stored())])


def section(name: str) -> str:
    """Return a benchmark's section: what it measures, the command, the numbers, who wins, and where and when it was measured."""
    benchmark, found = importlib.import_module(name), json.loads((STORED / f"{name}.json").read_text())
    title, _, measured = (benchmark.__doc__ or "").partition("\n")
    figure = [f"![{titled(title)}](figures/{FIGURES[name]})", ""] if name in FIGURES else []
    remarks = [f"- {line}" for line in benchmark.remarks(found)]
    return "\n".join([
        f"## {titled(title)}", "", measured.strip(), "", "```sh", found["made"]["command"], "```", "", *figure,
        *markdown(benchmark.table(found)), "", f"**Who wins.** {benchmark.verdict(found)}", "", *remarks, "",
        f"*{where(found['made'])}*", "",
    ])  # fmt: skip


def titled(line: str) -> str:
    """Return the first line of a docstring as a title: without its command."""
    return line.partition(": `")[0].rstrip(".")


def markdown(rows: list[list[str]]) -> list[str]:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(map(celled, row)) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def celled(text: str) -> str:
    """Return a cell in Markdown, with ratios in one piece."""
    return " ".join(text.replace("|", "\\|").split()).replace(" x", "\u00a0x")


def where(made: dict[str, Any]) -> str:
    """Return when, where and with what it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    rough = " (busy: times are too long, and their ratios rough)" if made.get("load", 0) > 2 * made.get("cores", 1) else ""
    load = f", load {made['load']:g}{rough}" if "load" in made else ""
    return f"{made['date']}, {made['machine']}{load}; {versions}."


if __name__ == "__main__":
    sys.stdout.write(page())
