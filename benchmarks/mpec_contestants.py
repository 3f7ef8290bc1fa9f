"""One solver on one problem of `benchmarks/mpec.py`, in a process of its own: `python benchmarks/mpec_contestants.py JOB`.

The job is JSON: solver, problem, seed, seconds (for fz.solve; the others are stopped from outside) and gibibytes. A line of JSON
is printed whenever there is a better answer, so that a solver which is stopped is judged by what it had; the last one says that
it is done. Seconds count from the start of this file: imports, models and compilation are part of them.
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import math  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

from helpers import mpec_game  # noqa: E402

RELAXATIONS = [10.0**-k for k in range(0, 10, 2)]  # the bound on products of pairs, in one nonlinear program after the other


def say(x: Any, **more: Any) -> None:
    """Print an answer, and how long it took."""
    found = {"seconds": time.perf_counter() - BEGAN, "x": [float(v) for v in np.ravel(x)]}
    print(json.dumps(found | more), flush=True)


def game_of(job: dict[str, Any]) -> mpec_game.Game | None:
    """Return the game that a job names by its size; None for a published problem."""
    followers, by, scenarios = job["problem"].partition("x")
    return mpec_game.draw(int(followers), int(scenarios), job["seed"]) if by and followers.isdigit() else None


def by_fedrzo(job: dict[str, Any]) -> None:
    """Solve by `fz.solve`, which is told nothing but how long it may take."""
    import fedrzo as fz

    game = game_of(job)
    problem = fz.zoo.make(job["problem"]) if game is None else stated(game)
    result = fz.solve(problem, seconds=job["seconds"], progress=False)
    seconds = time.perf_counter() - BEGAN
    history = [[float(v) for v in result.history[name]] for name in ("seconds", "loss")]
    certificate, x = result.spec.get("certificate"), np.ravel(result.x_feasible)
    says = None if certificate is None else f"gradient at most {certificate['at_end']:.2g}"
    more = {"says": says, "history": history, "stages": result.spec["stages"], "before": seconds - history[0][-1]}
    if game is not None:
        y, exact = (
            problem.lower(result.x_feasible, game.scenarios[0]),
            mpec_game.equilibrium(game, float(x[0]), game.scenarios[:1]),
        )
        more["complementarity"] = float(np.max(np.abs(y - exact[1][0])))
    print(json.dumps({"seconds": seconds, "x": [float(v) for v in x], "done": True} | more), flush=True)


def stated(game: mpec_game.Game) -> Any:
    """Return a game as a user of the library would state it."""
    import jax.numpy as jnp

    import fedrzo as fz

    def loss(x: Any, y: Any, demand: Any) -> Any:
        a, b = demand
        return mpec_game.LEADER[0] * x[0] + mpec_game.LEADER[1] * x[0] ** 2 / 2 - x[0] * (a - b * (x[0] + jnp.sum(y)))

    def marginal(x: Any, y: Any, demand: Any) -> Any:
        a, b = demand
        return game.first + (game.rise + b) * y - a + b * (x[0] + jnp.sum(y))

    return fz.TwoStage(
        loss, marginal, fz.ClientData(mpec_game.shares(game.scenarios)), np.zeros(1), np.zeros(len(game.caps)),
        fz.sets.Box(0.0, mpec_game.HIGHEST), fz.sets.Box(0.0, game.caps), weights="samples",
    )  # fmt: skip


def model_of(job: dict[str, Any]) -> tuple[Any, Any]:
    """Return the CasADi model of a job, and its upper variables."""
    from helpers import mpec_models

    game = game_of(job)
    return mpec_models.published(job["problem"]) if game is None else mpec_models.cournot(game)


def by_ipopt(job: dict[str, Any]) -> None:
    """Solve by IPOPT, with Scholtes' relaxation: products of pairs are at most t, and t falls from 1 to 1e-8."""
    import casadi as ca

    model, upper = model_of(job)
    z = ca.vertcat(*model.variables)
    products = ca.vertcat(*(one * other for one, other in model.pairs))
    smaller = ca.fmin(ca.vertcat(*(one for one, _ in model.pairs)), ca.vertcat(*(other for _, other in model.pairs)))
    seen = ca.Function("seen", [z], [upper, ca.norm_inf(smaller)])
    nlp = {"x": z, "f": model.objective, "g": ca.vertcat(*model.rows, products)}
    # Of four settings that were tried on three of the problems, none was faster: adaptive barriers, from the last x. One solver
    # serves all relaxations, since CasADi takes as long to derive its derivatives as IPOPT does for several iterations.
    settings = {
        "print_time": False,
        "ipopt.print_level": 0,
        "ipopt.sb": "yes",
        "ipopt.tol": 1e-8,
        "ipopt.mu_strategy": "adaptive",
    }
    solver = ca.nlpsol("relaxed", "ipopt", nlp, settings)
    low, high = (np.concatenate([each[i] for each in model.bounds]) for i in (0, 1))
    known = [np.concatenate([each[i] for each in model.limits] or [np.zeros(0)]) for i in (0, 1)]
    pairs, at = products.shape[0], {"x0": np.concatenate(model.start)}
    for t in RELAXATIONS:
        limits = np.append(known[0], np.full(pairs, -math.inf)), np.append(known[1], np.full(pairs, t))
        found = solver(**at, lbx=low, ubx=high, lbg=limits[0], ubg=limits[1])
        at = {"x0": found["x"], "lam_x0": found["lam_x"], "lam_g0": found["lam_g"]}
        x, violation = seen(found["x"])
        status = solver.stats()["return_status"]
        last = t == RELAXATIONS[-1]
        say(x.full(), says=f"{status}, t = {t:g}", complementarity=float(violation), done=last)


def by_mpecss(job: dict[str, Any]) -> None:
    """Solve by mpecss, with its defaults. It reads problems from files; one is written for it."""
    import casadi as ca
    from mpecss.helpers.loaders.macmpec_loader import complementarity_residual, load_macmpec
    from mpecss.phase_2.mpecss import run_mpecss

    model, upper = model_of(job)
    z = ca.vertcat(*model.variables)
    ones, others = (ca.vertcat(*(pair[i] for pair in model.pairs)) for i in (0, 1))
    rows = {"f_fun": model.objective, "G_fun": ones, "H_fun": others, "g_fun": ca.vertcat(*model.rows)}
    told: dict[str, Any] = {name: ca.Function(name, [z], [row]).serialize() for name, row in rows.items()}
    for name, values in (("w", model.bounds), ("g", model.limits)):
        for i, side in enumerate(("lb", "ub")):
            ends = np.concatenate([each[i] for each in values])
            told[side + name] = list(np.clip(ends, -1e20, 1e20))
    none = [0.0] * ones.shape[0]
    told |= {"w0": list(np.concatenate(model.start)), "lbG": none, "lbH": none}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.nl.json"
        path.write_text(json.dumps(told))
        problem = load_macmpec(str(path))
    found = run_mpecss(problem, z0=np.concatenate(model.start))
    end = np.asarray(found["z_final"]).ravel()
    says = f"{found['status']}, {found['stationarity']}-stationary"
    say(
        ca.Function("seen", [z], [upper])(end),
        says=says,
        complementarity=float(complementarity_residual(end, problem)),
        done=True,
    )


SOLVERS = {"fedrzo": by_fedrzo, "ipopt": by_ipopt, "mpecss": by_mpecss}


def main() -> None:
    """Do the job of the command line; memory beyond what it may take is refused by the system."""
    job = json.loads(sys.argv[1])
    limit = int(job["gibibytes"] * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    SOLVERS[job["solver"]](job)


if __name__ == "__main__":
    main()
