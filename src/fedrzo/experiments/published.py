"""All published problems with a known value, bilevel, minimax and with equilibrium constraints, solved by the paper's methods."""

from __future__ import annotations

import functools
from typing import Any

from fedrzo.experiments.claims import exact
from fedrzo.experiments.lab import Lab
from fedrzo.experiments.record import Record, Setting, Table
from fedrzo.zoo import mpecs, published
from fedrzo.zoo.entry import Entry, solve

TITLE = "Published problems with a known answer"
MINUTES = (2, 6)  # quick and full, on two cores
# Projections onto polygons take long to compile, and these take thousands of rounds.
LONG = (
    "outrata31",
    "outrata31-vi",
    "portfl-i-1",
    "ShimizuAiyoshi1981Ex2",
    "MuuQuy2003Ex1",
    "Outrata1990Ex1a",
    "qpec-100-1",
)


def entries(quick: bool = False) -> list[Entry]:
    """Return the problems of both collections, all or the quick ones."""
    found = [*published.ENTRIES.values(), *mpecs.ENTRIES.values()]
    return [entry for entry in found if not (quick and entry.name in LONG)]


def run(lab: Lab) -> Record:
    """Solve them one after another; `data` holds `problems`, with the entries of `fedrzo.zoo.entry.solve`."""
    chosen = entries(lab.quick)
    lab.budget(f"{len(chosen)} problems", MINUTES)
    problems = [lab.once(entry.name, functools.partial(solve, entry, lab.seed)) for entry in chosen]
    worst = max(problems, key=lambda problem: problem["gap"])
    claim = exact(
        "Every published value is reached", f"largest relative gap to the best known value ({worst['name']}); at most 1 %",
        worst["gap"], worst["gap"] <= 1e-2, own=True,
    )  # fmt: skip
    settings = [
        Setting("method, step sizes, rounds", "one choice per problem", "see fedrzo.zoo.published and fedrzo.zoo.mpecs")
    ]
    tables = [Table("published problems with a known answer", table(problems))]
    return lab.record(TITLE, settings, [lab.seed], tables=tables, claims=[claim], data={"problems": problems})


def table(problems: list[dict[str, Any]]) -> list[list[str]]:
    """Return rows to print: a heading, then one per problem."""
    rows = [["problem", "published", "ours", "gap", "infeasibility"]]
    for problem in problems:
        numbers = [f"{problem[name]:.6g}" for name in ("published", "ours")]
        rows.append([problem["name"], *numbers, f"{problem['gap']:.1e}", f"{problem['infeasibility']:.1e}"])
    return rows
