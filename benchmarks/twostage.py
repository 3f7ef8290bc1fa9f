"""FedRZO_2s with 1,000 followers against what one would first write in JAX: `python benchmarks/twostage.py`.

A Stackelberg leader and Cournot followers of different costs and capacities, in float64. The ruler is
benchmarks/plain_twostage.py. Two questions:

* Same steps: both solve each lower level by as many projected steps of one length from y = 0, so that both compute the same.
* Same accuracy: the ruler takes more such steps, the library `fz.vi.Accelerated`, to a tolerance at which its y is no farther
  from the equilibrium than the ruler's.

All take turns in one process; ratios are of median times. On a CPU the library has a JAX device for each core and shares the
clients among them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plain_twostage as plain
from fedrzo import vi
from fedrzo.compare.options import Options
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.methods import FedRZO2s
from fedrzo.problems.two_stage import TwoStage, solve_once
from fedrzo.zoo.cournot import DEMAND, cournot
from helpers.command import check_fixed, main
from helpers.results import save, standing
from helpers.timing import medians, use_cores

PROBLEM = "Cournot followers, 1,000 of them"
SEEDS = 1
FOLLOWERS, QUICK_FOLLOWERS = 1000, 50
CLIENTS = (5, 20)
ACCURATE_STEPS, QUICK_ACCURATE_STEPS = 3900, 100
TOLERANCE = 1e-3
REPETITIONS, QUICK_REPETITIONS = 7, 3
LEARNT = 10  # rounds after which losses are compared
DEMANDS = np.linspace(*DEMAND, 5)  # at which lower solutions are looked at
MONITORED = 16  # demands of each client in a loss
REFERENCE = vi.Accelerated(1e-12)


def run(options: Options) -> dict[str, Any]:
    """Measure milliseconds per local step of all clients; the seed draws the followers, and the directions."""
    check_fixed(options, PROBLEM)
    options.check_seed()
    followers = QUICK_FOLLOWERS if options.quick else FOLLOWERS
    repetitions = QUICK_REPETITIONS if options.quick else REPETITIONS
    devices = use_cores()
    found: dict[str, Any] = {
        "problem": PROBLEM,
        "followers": followers,
        "device": f"{len(devices)} x {devices[0].device_kind}",
    }
    for clients in CLIENTS:
        options.say(f"{clients} clients")
        problem = cournot(followers, clients=clients, seed=options.seed, evaluation=MONITORED)
        accurate = QUICK_ACCURATE_STEPS if options.quick else ACCURATE_STEPS
        with problem.precision():
            found[str(clients)] = measure(problem, jax.random.key(options.seed), accurate, repetitions)
    save(found, options.out, "twostage")
    return found


def measure(problem: TwoStage, key: jax.Array, accurate: int, repetitions: int) -> dict[str, Any]:
    """Ask both questions for so many clients."""
    length = 1 / problem.smoothness
    setting = plain.Setting(problem.clients, lower_stepsize=length)
    same = vi.Projection(stepsize=length, steps=setting.lower_steps)
    return {
        "same_steps": compare(problem, key, setting, same, repetitions),
        "same_accuracy": compare(problem, key, setting._replace(lower_steps=accurate), vi.Accelerated(TOLERANCE), repetitions),
    }


def compare(problem: TwoStage, key: jax.Array, setting: Any, solver: vi.Solver, repetitions: int) -> dict[str, Any]:
    """Compare times, losses and lower solutions of the ruler with those of the library with some solver."""
    market: Any = problem.map_fn
    followers = jax.device_put(plain.Followers(market.costs, market.caps))
    x0 = jnp.asarray(problem.x0, float)
    go = ours(setting, problem, key, solver)
    contestants = {"plain_jax": lambda: plain.run(x0, key, followers, setting, 1), "fedrzo": lambda: go(1)}
    ends = {"start": x0, "plain_jax": plain.run(x0, key, followers, setting, LEARNT), "fedrzo": go(LEARNT).state.x}
    times = {name: 1e3 * s / setting.local_steps for name, s in medians(contestants, repetitions).items()}
    at = np.asarray(ends["plain_jax"])
    found = {
        "plain_jax": [plain.project_steps(jnp.asarray(at), a, followers, setting) for a in DEMANDS],
        "fedrzo": [solve_once(problem, at, jnp.asarray(a), solver).y for a in DEMANDS],
    }
    exact = [solve_once(problem, at, jnp.asarray(a), REFERENCE).y for a in DEMANDS]
    return {
        "milliseconds": times,
        "vs_plain_jax": times["plain_jax"] / times["fedrzo"],
        "lower_error": {name: farthest(ys, exact) for name, ys in found.items()},
        "difference": farthest(found["fedrzo"], found["plain_jax"]),
        "losses": {name: float(jax.jit(problem.evaluate)(x)["loss"]) for name, x in ends.items()},
    }


def ours(setting: Any, problem: TwoStage, key: jax.Array, solver: vi.Solver) -> Callable[[int], Any]:
    """Return the library's rounds, on the default engine."""
    method = FedRZO2s(setting.stepsize, setting.smoothing, setting.local_steps, solver=solver)
    session = Simulation().start([method], problem, [key], None)

    def go(rounds: int) -> Any:
        session.advance(rounds)
        return jax.tree.map(jnp.array, session.carry)  # copies: the next rounds take over the buffers

    return go


def farthest(ys: list, others: list) -> float:
    """Return the largest relative distance."""
    return float(max(np.linalg.norm(y - z) / np.linalg.norm(z) for y, z in zip(ys, others, strict=True)))


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    rows = [["", "plain JAX, ms a local step", "fedrzo", "ratio", "error of y, plain JAX", "fedrzo"]]
    for clients in map(str, CLIENTS):
        for name, part in found[clients].items():
            times, errors = part["milliseconds"], part["lower_error"]
            rows.append([
                f"{name.replace('_', ' ')}, {clients} clients", f"{times['plain_jax']:.2f}", f"{times['fedrzo']:.2f}",
                f"{part['vs_plain_jax']:.1f} x", f"{errors['plain_jax']:.1e}", f"{errors['fedrzo']:.1e}",
            ])  # fmt: skip
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    lines = [f"Medians on {found['device']}, after compilation; {found['followers']} followers; errors relative to |y|."]
    for clients in map(str, CLIENTS):
        for name, part in found[clients].items():
            losses = ", ".join(f"{who} {value:.6f}" for who, value in part["losses"].items())
            apart = f"lower solutions differ by {part['difference']:.1g}; " if name == "same_steps" else ""
            lines.append(f"{name.replace('_', ' ')}, {clients} clients: {apart}losses after {LEARNT} rounds: {losses}.")
    return lines


def verdict(found: dict[str, Any]) -> str:
    """Say who wins."""
    ratios = {
        f"{asked.replace('_', ' ')}, {clients} clients": part["vs_plain_jax"]
        for clients in map(str, CLIENTS)
        for asked, part in found[clients].items()
    }
    return standing(ratios, "plain JAX")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
