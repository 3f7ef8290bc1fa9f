"""What a hint saves in projections onto polyhedra: `python benchmarks/projections.py`.

Projected steps, each started from the rows that were active at the last one, or from nothing.
Loops of 200 projected gradient steps on quadratics whose clients differ, as in a lower level, alone and twenty at a time; both
ways in one process. About a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedrzo as fz
from fedrzo.compare.options import Options
from helpers.command import check_fixed, main
from helpers.results import save
from helpers.timing import medians

PROBLEM = "steps onto polyhedra"
SEEDS = 1
SIZES = [(8, 5), (16, 10), (20, 30), (50, 20), (50, 100), (200, 10), (200, 50)]
QUICK_SIZES = 3
STEPS = 200


def steps(constraint: fz.sets.Set, hessian: jax.Array, hinted: bool) -> Callable[[jax.Array], jax.Array]:
    """Return compiled projected gradient steps from the origin towards many targets."""

    def one(target: jax.Array) -> jax.Array:
        def step(_: int, y: jax.Array) -> jax.Array:
            return constraint.project(y - 1.8 * hessian @ (y - target), near=y if hinted else None)

        return lax.fori_loop(0, STEPS, step, jnp.zeros_like(target))

    return jax.jit(jax.vmap(one))


def run(options: Options) -> dict[str, Any]:
    """Measure every size; `--quick` takes the smaller ones."""
    check_fixed(options, PROBLEM)
    rng, rows = np.random.default_rng(options.seed), []
    for p, n in SIZES[:QUICK_SIZES] if options.quick else SIZES:
        options.say(f"{p} rows, n = {n}")
        constraint = fz.sets.Polyhedron(rng.normal(size=(p, n)), np.abs(rng.normal(size=p)) * n**0.5 / 2)
        basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
        hessian = jnp.asarray(basis * np.geomspace(0.1, 1, n) @ basis.T, jnp.float32)
        for many in (1, 20):
            targets = jnp.asarray(1.5 * rng.normal(size=(many, n)), jnp.float32)
            ways = {"cold": steps(constraint, hessian, False), "hinted": steps(constraint, hessian, True)}
            found = medians({name: lambda go=go, targets=targets: go(targets) for name, go in ways.items()}, 3)
            apart = float(jnp.max(jnp.abs(ways["cold"](targets) - ways["hinted"](targets))))
            micro = {name: 1e6 * seconds / STEPS for name, seconds in found.items()}
            rows.append({"rows": p, "n": n, "at once": many, **micro, "ratio": found["cold"] / found["hinted"], "apart": apart})
    result = {"problem": PROBLEM, "device": jax.devices()[0].device_kind, "rows": rows}
    save(result, options.out, "projections")
    return result


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    shown = [["rows", "n", "at once", "microseconds a step", "with a hint", "ratio", "apart"]]
    for row in found["rows"]:
        counts = [str(row[name]) for name in ("rows", "n", "at once")]
        shown.append([*counts, f"{row['cold']:.0f}", f"{row['hinted']:.0f}", f"{row['ratio']:.1f} x", f"{row['apart']:.0e}"])
    return shown


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [f"Medians of {STEPS} steps on {found['device']}, in float32. Up to 16 rows, no hint is needed."]


def verdict(found: dict[str, Any]) -> str:
    """Say where a hint pays."""
    ratios = [row["ratio"] for row in found["rows"] if row["rows"] > 16]
    return f"Beyond 16 rows a hint makes steps {min(ratios, default=1):.2g} to {max(ratios, default=1):.2g} times as fast."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
