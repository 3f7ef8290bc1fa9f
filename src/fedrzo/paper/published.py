"""All published problems with a known value, bilevel, minimax and with equilibrium constraints, by `fz.solve` alone."""

import functools
import time
from typing import Any

from fedrzo.paper.claims import exact
from fedrzo.paper.record import Record, Setting, Table
from fedrzo.paper.reproduction import Reproduction
from fedrzo.solving.solve import solve as solve_problem
from fedrzo.zoo import published
from fedrzo.zoo.entry import Entry

TITLE = "Published problems with a known answer"
MINUTES = (1.7, 40)  # quick: of processor time, with nothing cached; full: on two cores; each problem may take its minute
SECONDS = 60.0  # for each problem, compilation included
GAP, INSIDE, SHARE = 0.01, 1e-3, 0.95  # what counts as reached, and of how many
QUICK = (
    "stackelberg1", "bard1", "gauvin", "jr1", "jr2", "desilva", "HatzEtal2013", "FalkLiu1995", "MacalHurter1997",
    "paper_minimax", "gauvin-vi",
)  # fmt: skip


def entries(quick: bool = False) -> list[Entry]:
    """Return the problems of all collections, all or some that are solved in seconds."""
    return [entry for entry in published.ENTRIES.values() if not quick or entry.name in QUICK]


def run(reproduction: Reproduction) -> Record:
    """Solve them one after another; `data` holds `problems`, with what `solve` returns."""
    chosen = entries(reproduction.quick)
    reproduction.budget(f"{len(chosen)} problems", MINUTES)
    problems = [reproduction.once(entry.name, functools.partial(solve, entry, reproduction.seed)) for entry in chosen]
    reached = sum(problem["gap"] <= GAP and problem["infeasibility"] <= INSIDE for problem in problems) / len(problems)
    claim = exact(
        "Published values are reached without a choice",
        f"share of the problems that end within {GAP} max(1, |f*|) above f*, feasible to {INSIDE:g}; at least {SHARE:.0%}",
        reached, reached >= SHARE, own=True,
    )  # fmt: skip
    settings = [Setting("seconds", SECONDS, "for each problem; fz.solve finds the method, its step sizes and its rounds")]
    tables = [Table("published problems with a known answer", table(problems))]
    return reproduction.record(TITLE, settings, [reproduction.seed], tables=tables, claims=[claim], data={"problems": problems})


def table(problems: list[dict[str, Any]]) -> list[list[str]]:
    """Return rows to print: a heading, then one per problem."""
    rows = [["problem", "published", "ours", "gap", "infeasibility", "seconds"]]
    for problem in problems:
        numbers = [f"{problem[name]:.6g}" for name in ("published", "ours")]
        small = [f"{problem[name]:.1e}" for name in ("gap", "infeasibility")]
        rows.append([problem["name"], *numbers, *small, f"{problem['seconds']:.0f}"])
    return rows


def solve(entry: Entry, seed: int = 0, seconds: float = SECONDS) -> dict[str, Any]:
    """Solve one of them and judge what was found.

    `ours` is the loss at the projection of the best x, with an accurate lower-level solution; `infeasibility` by how much that
    point breaks the sets, or upper constraints that involve y; `gap` is (ours - published) / max(1, |published|), and not an
    error where it is negative.
    """
    problem, began = entry.make(), time.perf_counter()
    result = solve_problem(problem, seconds, seed, progress=False)
    took = time.perf_counter() - began
    with problem.precision():
        broken = float(problem.sets.worst_violation(problem.layout.ravel(result.x_feasible)))
    coupling = float(result.history["violation"][-1]) if "violation" in result.history else 0.0
    assert result.loss_feasible is not None  # a simulation has all data
    return {
        "name": entry.name,
        "published": entry.published,
        "ours": result.loss_feasible,
        "infeasibility": max(broken, coupling),
        "gap": (result.loss_feasible - entry.published) / max(1.0, abs(entry.published)),
        "seconds": took,
    }
