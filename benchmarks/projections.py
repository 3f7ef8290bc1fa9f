"""What a hint saves: projected steps onto polyhedra, each started from the rows that were active at the last, or from nothing.

    python benchmarks/projections.py [--json]

Loops of 200 projected gradient steps on quadratics whose clients differ, as in a lower level, alone and twenty at a time; both
ways in one process. About a minute.
"""

import argparse
import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedrzo as fz
from helpers.timing import medians

SIZES = [(8, 5), (16, 10), (20, 30), (50, 20), (50, 100), (200, 10), (200, 50)]
STEPS = 200


def steps(constraint: fz.sets.Set, hessian: jax.Array, hinted: bool) -> Callable[[jax.Array], jax.Array]:
    """Return compiled projected gradient steps from the origin towards many targets."""

    def one(target: jax.Array) -> jax.Array:
        def step(_: int, y: jax.Array) -> jax.Array:
            return constraint.project(y - 1.8 * hessian @ (y - target), near=y if hinted else None)

        return lax.fori_loop(0, STEPS, step, jnp.zeros_like(target))

    return jax.jit(jax.vmap(one))


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    as_json = parser.parse_args().json
    rng, rows = np.random.default_rng(0), []
    for p, n in SIZES:
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
            if not as_json:
                print("{rows:4d} rows, n = {n:3d}, {at once:2d} at once: {cold:7.0f} us a step, with a hint {hinted:7.0f} us, "
                      "{ratio:.1f} x; {apart:.0e} apart".format(**rows[-1]))  # fmt: skip
    if as_json:
        print(json.dumps({"device": jax.devices()[0].device_kind, "rows": rows}))


if __name__ == "__main__":
    main()
