"""All published problems with a known value, bilevel, minimax and with equilibrium constraints, solved by the paper's methods."""

from __future__ import annotations

import sys
from typing import Any

from fedrzo.zoo import mpecs, published
from fedrzo.zoo.entry import Entry, solve

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


def run(quick: bool = False, seed: int = 0, progress: bool = True) -> dict[str, Any]:
    """Solve them one after another.

    Args:
        quick: leave out those that take longer than some seconds each.
        seed: of all runs.
        progress: say on standard error what is going on.

    Returns:
        `problems`, one entry each: `name`, `published`, `ours`, `infeasibility` and `gap`, as `fedrzo.zoo.entry.solve`
        defines them.
    """
    chosen, problems = entries(quick), []
    for i, entry in enumerate(chosen):
        if progress:
            print(f"{entry.name} ({i + 1} of {len(chosen)})", file=sys.stderr)
        problems.append(solve(entry, seed))
    return {"problems": problems}


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print: a heading, then one per problem."""
    rows = [["problem", "published", "ours", "gap", "infeasibility"]]
    for problem in found["problems"]:
        numbers = [f"{problem[name]:.6g}" for name in ("published", "ours")]
        rows.append([problem["name"], *numbers, f"{problem['gap']:.1e}", f"{problem['infeasibility']:.1e}"])
    return rows
