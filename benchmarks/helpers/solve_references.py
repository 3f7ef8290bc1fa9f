"""Reference optima of `benchmarks/solve.py`, found without fedrzo: `python -m helpers.solve_references [NAME ...]`.

Convex problems are solved by cvxpy. The others by SLSQP (and Nelder-Mead up to 12 variables) with differences of the plain loss
from many drawn starts, with CMA-ES beside them where `cma` can be imported. The best feasible point is stored in
solve_references.json, with how it was found. Run it in benchmarks/.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np

from helpers.solve_cases import FEASIBLE, REFERENCES, Case, make, names

TOLERANCE = 1e-6  # of feasibility for a reference
SECONDS = 20.0  # for a problem that is not convex


def reference(case: Case) -> dict[str, Any]:
    """Return the best point that was found, its loss, and how."""
    if case.convex is not None:
        import cvxpy as cp

        z = cp.Variable(case.n)
        problem = cp.Problem(cp.Minimize(case.convex(cp, z)), case.region.constraints(z))
        problem.solve(solver="CLARABEL")
        x = np.array(z.value)
        return {"best": case.truth(x)[0], "x": x.tolist(), "how": "cvxpy, CLARABEL"}
    candidates = multistart(case)
    best, x, how = min(candidates, key=lambda item: item[0])
    near = np.mean([loss < best + 0.005 * max(abs(best), case.start - best) for loss, _, _ in candidates])
    return {"best": best, "x": list(map(float, x)), "how": f"{how}; {near:.0%} of {len(candidates)} ends within 0.5 %"}


def multistart(case: Case) -> list[tuple[float, np.ndarray, str]]:
    """Return the ends of local searches from many starts."""
    from scipy.optimize import minimize

    rng, ended = np.random.default_rng(0), time.perf_counter() + SECONDS
    starts = [case.region.project(case.x0)]
    found: list[tuple[float, np.ndarray, str]] = []

    def keep(x: np.ndarray, how: str) -> np.ndarray:
        x = case.region.project(x)
        loss, violation = case.truth(x)
        if violation <= (TOLERANCE if case.coupling is None else FEASIBLE / 10):
            found.append((loss, x, how))
        return x

    for k in range(case.starts):
        if time.perf_counter() > ended and found:
            break
        x = starts[0] if k == 0 else case.region.draw(rng, case.x0)
        try:
            keep(x, "a drawn start")
            x = keep(slsqp(case, x).x, f"SLSQP from {case.starts} starts")
            if not case.smooth and case.n <= 12:
                bounded = lambda z: case.loss(z) + 1e3 * max(0.0, float(np.max(case.broken(z))))  # noqa: E731
                settings = {"maxiter": 400 * case.n, "adaptive": True, "fatol": 1e-9}
                x = keep(minimize(bounded, x, method="Nelder-Mead", options=settings).x, "Nelder-Mead after SLSQP")
                keep(slsqp(case, x).x, "SLSQP after Nelder-Mead")
        except (ArithmeticError, ValueError) as error:
            print(f"{case.name}: {error}", file=sys.stderr)
    try:
        import cma
    except ImportError:
        return found
    first = min(found, key=lambda item: item[0])[1]
    spread = np.where(
        np.isfinite(case.region.upper - case.region.lower), case.region.upper - case.region.lower, 1 + np.abs(first)
    )
    ended = time.perf_counter() + SECONDS / 2
    for k in range(3):
        x0 = first if k == 0 else case.region.draw(rng, case.x0)
        settings = {
            "verbose": -9, "seed": k + 1, "timeout": max(1.0, ended - time.perf_counter()),
            "CMA_stds": np.maximum(spread, 1e-9), "tolfun": 1e-10,
        }  # fmt: skip

        def loss(z: np.ndarray) -> float:
            inside = np.clip(z, case.region.lower, case.region.upper)
            return case.loss(inside) + 1e2 * max(0.0, float(np.max(case.broken(z))))

        keep(cma.fmin2(loss, x0, 0.02 if k == 0 else 0.2, settings)[0], "CMA-ES")
    return found


def slsqp(case: Case, x: np.ndarray, **options: Any) -> Any:
    """Return the answer of SLSQP from x, with differences of the plain loss."""
    from scipy.optimize import minimize

    region, rules = case.region, []
    if region.rows is not None:
        rules.append({"type": "ineq", "fun": lambda z: region.rows[1] - region.rows[0] @ z, "jac": lambda z: -region.rows[0]})
    if region.equations is not None:
        E, d = region.equations
        rules.append({"type": "eq", "fun": lambda z: E @ z - d, "jac": lambda z: E})
    for part, centre, radius in region.balls:
        rules.append({"type": "ineq", "fun": lambda z, p=part, c=centre, r=radius: r**2 - np.sum((z[p] - c) ** 2)})
    if case.coupling is not None:
        rules.append({"type": "ineq", "fun": lambda z: -np.atleast_1d(case.coupling(z))})
    bounds = list(zip(region.lower, region.upper, strict=True))
    settings = {"maxiter": 300, "ftol": 1e-10} | options
    callback = settings.pop("callback", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return minimize(case.loss, x, method="SLSQP", bounds=bounds, constraints=rules, options=settings, callback=callback)


def main() -> None:
    """Find the references of all problems, or of those that are named, and store them."""
    for name in sys.argv[1:] or names():
        begun = time.perf_counter()
        case = make(name)
        answer = reference(case)
        stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
        known = stored.get(name, answer)
        if known["best"] < answer["best"] and abs(case.truth(np.array(known["x"]))[0] - known["best"]) < 1e-7:
            answer = known  # of an earlier search, of the same problem
        stored[name] = answer | {"start": case.start}
        REFERENCES.write_text(json.dumps({key: stored[key] for key in names() if key in stored}, indent=1) + "\n")
        print(f"{name}: start {case.start:.6g}, best {answer['best']:.6g}, {answer['how']}, {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
