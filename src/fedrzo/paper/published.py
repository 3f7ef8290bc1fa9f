"""All published problems with a known value, bilevel, minimax and with equilibrium constraints, solved by the paper's methods."""

import functools
from typing import Any

import numpy as np

from fedrzo.paper.claims import exact
from fedrzo.paper.record import Record, Setting, Table
from fedrzo.paper.reproduction import Reproduction
from fedrzo.running.run import run as run_method
from fedrzo.zoo import mpecs, published
from fedrzo.zoo.mpecs import Entry

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


def run(reproduction: Reproduction) -> Record:
    """Solve them one after another; `data` holds `problems`, with what `solve` returns."""
    chosen = entries(reproduction.quick)
    reproduction.budget(f"{len(chosen)} problems", MINUTES)
    problems = [reproduction.once(entry.name, functools.partial(solve, entry, reproduction.seed)) for entry in chosen]
    worst = max(problems, key=lambda problem: problem["gap"])
    claim = exact(
        "Every published value is reached", f"largest relative gap to the best known value ({worst['name']}); at most 1 %",
        worst["gap"], worst["gap"] <= 1e-2, own=True,
    )  # fmt: skip
    settings = [Setting("method, step sizes, rounds", "one choice per problem", "see fedrzo.zoo.published and fedrzo.zoo.mpecs")]
    tables = [Table("published problems with a known answer", table(problems))]
    return reproduction.record(TITLE, settings, [reproduction.seed], tables=tables, claims=[claim], data={"problems": problems})


def table(problems: list[dict[str, Any]]) -> list[list[str]]:
    """Return rows to print: a heading, then one per problem."""
    rows = [["problem", "published", "ours", "gap", "infeasibility"]]
    for problem in problems:
        numbers = [f"{problem[name]:.6g}" for name in ("published", "ours")]
        rows.append([problem["name"], *numbers, f"{problem['gap']:.1e}", f"{problem['infeasibility']:.1e}"])
    return rows


def solve(entry: Entry, seed: int = 0) -> dict[str, Any]:
    """Run an entry's method and judge what it found.

    `ours` is the loss at the projection of the last x, with an accurate lower-level solution; `infeasibility` the distance to
    that projection; `gap` is (ours - published) relative to the larger of |published| and what there was to gain from the start.
    """
    problem = entry.make()
    result = run_method(entry.method, problem, entry.rounds, key=seed, eval_every=entry.rounds, progress=False)
    x, feasible = (np.asarray(problem.layout.ravel(point)) for point in (result.x, result.x_feasible))
    first = entry.scale * float(result.history["loss"][0])
    distance = float(np.linalg.norm(x - feasible))
    assert result.loss_feasible is not None  # a simulation has all data
    ours = entry.scale * result.loss_feasible
    return {
        "name": entry.name,
        "published": entry.published,
        "ours": ours,
        "infeasibility": distance,
        "gap": (ours - entry.published) / max(abs(entry.published), first - entry.published),
    }
