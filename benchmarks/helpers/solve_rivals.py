"""One solver on one problem of `benchmarks/solve.py`, in a process of its own: `python -m helpers.solve_rivals JOB`.

The job is JSON: solver, problem and seconds. The best points are kept with the seconds at which they were reached and printed at
the end, or when the time is over, as one line of JSON. Seconds count from the statement of the problem: imports are not counted,
compilation is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from helpers.solve_cases import FEASIBLE, Case, make

STARTS = 10  # of SLSQP and L-BFGS-B
RELAXATIONS = [10.0**-k for k in range(0, 10, 2)]  # bounds on the products of complementary pairs, one nonlinear program each


class TimeUp(BaseException):
    """The time of a rival is over."""


class Trace:
    """The best points of a rival, with the seconds at which they were reached."""

    def __init__(self, case: Case) -> None:
        self.case, self.began = case, time.perf_counter()
        self.rows: list[tuple[float, float, float]] = []  # seconds, loss, violation
        self.best: tuple[bool, float] = (True, np.inf)
        self.x: np.ndarray | None = None

    def add(self, x: Any, loss: float | None = None) -> None:
        """Keep a point if it is better; infeasible points count less than all feasible ones."""
        x = np.asarray(x, float).ravel()
        if loss is not None and not loss < self.best[1] and not self.best[0]:
            return
        now = time.perf_counter() - self.began
        loss, violation = self.case.truth(x)
        rank = (violation > FEASIBLE, loss if violation <= FEASIBLE else violation)
        if np.isfinite(loss) and (self.x is None or rank < self.best):
            self.best, self.x = rank, x.copy()
            self.rows.append((now, loss, violation))

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began


def by_fedrzo(case: Case, trace: Trace, seconds: float) -> dict[str, Any]:
    """Solve by `fz.solve` or `fz.minimize`; return its own history and what it says."""
    import jax

    import fedrzo as fz

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if case.minimize:
            found = fz.minimize(**case.state(), seconds=seconds)
            x, result = np.ravel(found.x), getattr(found, "result", None)
            more = {"says": str(found.message), "calls": int(found.nfev)}
        else:
            result = fz.solve(case.state(), seconds=seconds, progress=False)
            x = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.x_feasible)])
            more = {
                "says": str(result.stopped),
                "notes": list(map(str, result.notes)),
                "method": str(result.spec.get("method", ""))[:60],
            }
    history = [] if result is None else [[float(v) for v in result.history[name]] for name in ("seconds", "loss")]
    total = trace.seconds
    loss, violation = case.truth(x)
    trace.x, trace.best = x, (violation > FEASIBLE, loss)
    before = total - history[0][-1] if history else 0.0  # stating and checking the problem
    times = [before + value for value in history[0]] if history else [total]
    trace.rows = [
        *zip(times[:-1], history[1][:-1] if history else [], [0.0] * (len(times) - 1), strict=True),
        (total, loss, violation),
    ]
    return more | {"history": history, "before": before, "warnings": [str(each.message) for each in caught]}


def penalised(case: Case, trace: Trace) -> Callable[[np.ndarray], float]:
    """Return the loss with a penalty outside of the sets, which also keeps the best points."""

    def value(x: np.ndarray) -> float:
        inside = np.clip(x, case.region.lower, case.region.upper)
        try:
            loss, outside = float(case.loss(inside)), max(0.0, float(np.max(case.broken(inside))))
        except (ArithmeticError, ValueError):
            return 1e12
        if outside <= FEASIBLE:
            trace.add(inside, loss)
        return loss + 1e2 * outside + float(np.sum((x - inside) ** 2))

    return value


def by_slsqp(case: Case, trace: Trace, seconds: float) -> dict[str, Any]:
    """Solve by SLSQP with differences, first from x0 and then from drawn points."""
    from helpers.solve_references import slsqp

    rng, starts = np.random.default_rng(0), 0
    trace.add(case.region.project(case.x0))
    while trace.seconds < seconds and starts < STARTS:
        x = case.region.project(case.x0) if starts == 0 else case.region.draw(rng, case.x0)
        with contextlib.suppress(ArithmeticError, ValueError):
            trace.add(slsqp(case, x, callback=trace.add).x)
        starts += 1
    return {"says": f"{starts} starts"}


def by_lbfgsb(case: Case, trace: Trace, seconds: float) -> dict[str, Any]:
    """Solve by L-BFGS-B with differences, if the sets are a box; first from x0 and then from drawn points."""
    from scipy.optimize import minimize

    rng, starts = np.random.default_rng(0), 0
    bounds = list(zip(case.region.lower, case.region.upper, strict=True))
    while trace.seconds < seconds and starts < STARTS:
        x = case.region.project(case.x0) if starts == 0 else case.region.draw(rng, case.x0)
        with contextlib.suppress(ArithmeticError, ValueError):
            trace.add(minimize(case.loss, x, method="L-BFGS-B", bounds=bounds, callback=trace.add).x)
        starts += 1
    return {"says": f"{starts} starts"}


def by_cma(case: Case, trace: Trace, seconds: float) -> dict[str, Any]:
    """Solve by CMA-ES, with a penalty for the sets; started again with twice the population until the time is over."""
    import cma

    region = case.region
    width = np.where(np.isfinite(region.upper - region.lower), region.upper - region.lower, 1 + np.abs(case.x0))
    settings = {"verbose": -9, "seed": 1, "CMA_stds": np.maximum(width, 1e-9)}
    cma.fmin2(penalised(case, trace), region.project(case.x0), 0.2, settings | {"timeout": seconds}, restarts=9)
    return {"says": ""}


def by_ipopt(case: Case, trace: Trace, seconds: float) -> dict[str, Any]:
    """Solve by IPOPT; products of complementary pairs are at most t, and t falls from 1 to 1e-8 (Scholtes)."""
    import casadi as ca

    from helpers.mpec_models import Model

    model = Model()
    upper = case.model(model)
    z = ca.vertcat(*model.variables)
    products = ca.vertcat(*(ca.vec(one * other) for one, other in model.pairs))
    seen = ca.Function("seen", [z], [upper])
    settings = {
        "print_time": False, "ipopt.print_level": 0, "ipopt.sb": "yes", "ipopt.tol": 1e-8, "ipopt.mu_strategy": "adaptive",
        "ipopt.max_wall_time": seconds,
    }  # fmt: skip
    nlp = {"x": z, "f": model.objective, "g": ca.vertcat(*model.rows, products)}
    solver = ca.nlpsol("relaxed", "ipopt", nlp, settings)
    low, high = (np.concatenate([each[i] for each in model.bounds]) for i in (0, 1))
    known = [np.concatenate([each[i] for each in model.limits] or [np.zeros(0)]) for i in (0, 1)]
    pairs, at, says = products.shape[0], {"x0": np.concatenate(model.start)}, ""
    for t in RELAXATIONS if pairs else RELAXATIONS[:1]:
        limits = np.append(known[0], np.full(pairs, -np.inf)), np.append(known[1], np.full(pairs, t))
        found = solver(**at, lbx=low, ubx=high, lbg=limits[0], ubg=limits[1])
        at = {"x0": found["x"], "lam_x0": found["lam_x"], "lam_g0": found["lam_g"]}
        says = f"{solver.stats()['return_status']}, t = {t:g}"
        trace.add(case.region.project(np.ravel(seen(found["x"]).full())))
    return {"says": says}


SOLVERS: dict[str, Callable[[Case, Trace, float], dict[str, Any]]] = {
    "fedrzo": by_fedrzo, "ipopt": by_ipopt, "slsqp": by_slsqp, "lbfgsb": by_lbfgsb, "cma": by_cma,
}  # fmt: skip


PACKAGES = {  # imported before the clock starts
    "fedrzo": ("jax", "fedrzo.solving.solve", "fedrzo.solving.minimize"), "ipopt": ("casadi", "helpers.solve_models"),
    "slsqp": ("scipy.optimize",), "lbfgsb": ("scipy.optimize",), "cma": ("cma",),
}  # fmt: skip


def applies(solver: str, case: Case) -> bool:
    """Return whether a solver can be asked to solve a problem."""
    if solver == "ipopt":
        return case.model is not None
    if solver == "lbfgsb":
        return case.region.plain and case.coupling is None
    return True


def main() -> None:
    """Do the job of the command line."""
    job = json.loads(sys.argv[1])
    case, solver = make(job["problem"]), SOLVERS[job["solver"]]
    for module in PACKAGES[job["solver"]]:
        importlib.import_module(module)
    _ = case.start

    def stop(*_: Any) -> None:
        raise TimeUp

    if job["solver"] != "fedrzo":  # fz.solve keeps its own time
        signal.signal(signal.SIGALRM, stop)
        signal.alarm(max(1, int(job["seconds"])))
    trace, more = Trace(case), {}
    try:
        more = solver(case, trace, job["seconds"])
    except TimeUp:
        more = {"says": "stopped by the clock"}
    except Exception as error:  # a rival that fails is a result
        more = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    signal.alarm(0)
    total = trace.seconds
    x = None if trace.x is None else [float(v) for v in trace.x]
    print(json.dumps({"total": total, "rows": trace.rows, "x": x} | more), flush=True)


if __name__ == "__main__":
    main()
