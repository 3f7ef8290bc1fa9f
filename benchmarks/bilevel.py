"""FedRZO_bl on hyper-parameter learning against what one would first write in JAX: `python benchmarks/bilevel.py`.

Twenty clients learn their l2 weights on scikit-learn's digits, in float64. The ruler is benchmarks/plain_bilevel.py. Two
questions:

* Same steps: both solve the lower level by as many rounds and local steps from y = 0, so that both compute the same numbers. The
  library sees the losses alone once, and once the problem also gives `lower_descent`.
* Same accuracy: both take one exact gradient step a round. The ruler starts each lower solve from y = 0 as the listing does, the
  library where the last one ended; it takes so many rounds that its y is no farther from the solution than the ruler's.

All take turns in one process, on one JAX device; ratios are of median times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plain_bilevel as plain
from fedrzo.compare.options import Options
from fedrzo.engines.simulation.engine import Simulation, SimulationSession
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.methods import FedRZObl, LocalSGD
from fedrzo.problems.bilevel import Bilevel
from fedrzo.support.pytrees import replaced
from fedrzo.zoo.bilevel import hyper_digits
from helpers.command import check_fixed, main
from helpers.results import save, standing
from helpers.timing import medians

PROBLEM = "hyper-parameter learning, 20 clients"
SEEDS = 1
CLIENTS = 20
LOWER_STEPS, QUICK_LOWER_STEPS = (5, 20), (5,)
EXACT_ROUNDS = {"plain_jax": 30, "fedrzo": 10}  # of one step each, for the same accuracy
REPETITIONS, QUICK_REPETITIONS = 15, 3
ROUNDS = 20  # at a time
LEARNT, LOOKED_AT = 40, 5  # rounds after which losses are compared, and over the last of which errors are
COMPARED, QUICK_COMPARED = 8, 2  # runs whose losses are compared


def run(options: Options) -> dict[str, Any]:
    """Measure milliseconds per upper round; the seed is that of the split and of the directions."""
    check_fixed(options, PROBLEM)
    options.check_seed()
    repetitions, compared = (QUICK_REPETITIONS, QUICK_COMPARED) if options.quick else (REPETITIONS, COMPARED)
    problems = {name: digits(CLIENTS, options.seed, products=name != "fedrzo") for name in OURS}
    problem = problems["fedrzo"]
    found: dict[str, Any] = {"problem": PROBLEM, "device": jax.devices()[0].device_kind, "same_steps": {}}
    with problem.precision():
        key, data = jax.random.key(options.seed), plain_data(problem)
        for steps in QUICK_LOWER_STEPS if options.quick else LOWER_STEPS:
            options.say(f"same steps: {steps} in each lower round")
            setting = plain.Setting(lower_steps=steps)
            found["same_steps"][str(steps)] = same_steps(problems, setting, data, key, repetitions, compared)
        options.say("same accuracy")
        found["same_accuracy"] = same_accuracy(problem, data, key, repetitions)
    save(found, options.out, "bilevel")
    return found


OURS = ("fedrzo", "fedrzo, products")


def digits(clients: int, seed: int = 0, products: bool = False) -> Bilevel:
    """Return the problem; with `products`, steps of the lower level are taken by `descend_by_products`."""
    problem = hyper_digits(clients, seed=seed)
    return replaced(problem, lower_descent=descend_by_products) if products else problem


def descend_by_products(x: jax.Array, y: jax.Array, batch: Any, stepsize: Any, steps: Any) -> jax.Array:
    """Take gradient steps of `training_loss` in the space of samples: what moves y is a combination of them.

    Each step needs the products of the samples with each other, which never change, instead of two products with all of them:
    faster where there are fewer samples than pixels.
    """
    (images, labels), client = batch
    rows = labels[:, None] * images
    length, keep = stepsize / len(labels), 1 - stepsize * x[client]
    gram = length * rows @ rows.T

    def step(t: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        margins, weights = carry
        pull = jax.nn.sigmoid(-margins)
        return keep * margins + gram @ pull, keep * weights + pull

    _, weights = jax.lax.fori_loop(0, steps, step, (rows @ y, jnp.zeros_like(labels)))
    return keep**steps * y + length * weights @ rows


def plain_data(problem: Bilevel) -> Any:
    """Return the problem's data in the ruler's form: float64, validation samples padded to equal numbers."""
    images, labels = (np.asarray(leaf, float) for leaf in problem.lower_data.flat)
    sizes = np.asarray(problem.data.sizes)
    held = [np.zeros((len(sizes), sizes.max(), *leaf.shape[1:])) for leaf in problem.data.flat]
    for padded, leaf in zip(held, problem.data.flat, strict=True):
        for row, samples in zip(padded, np.split(leaf, np.cumsum(sizes)[:-1]), strict=True):
            row[: len(samples)] = samples
    training = images.reshape(len(sizes), -1, images.shape[1]), labels.reshape(len(sizes), -1)
    return jax.device_put(plain.Data(*training, *held, sizes))


def same_steps(problems: dict, setting: Any, data: Any, key: jax.Array, repetitions: int, compared: int) -> dict[str, Any]:
    """Compare times, losses and lower solutions where all take the same steps."""
    lower = LocalSGD(setting.lower_stepsize, setting.lower_steps, setting.lower_rounds, "full")
    method = FedRZObl(setting.stepsize, setting.smoothing, setting.local_steps, lower=lower, warm_start=False, closing=False)
    x0 = jnp.asarray(problems["fedrzo"].x0)
    contestants = {"plain_jax": lambda: plain.run(x0, key, data, setting, ROUNDS)}
    contestants |= {name: rounds(start(method, problem, key)) for name, problem in problems.items()}
    times = {name: 1e3 * seconds / ROUNDS for name, seconds in medians(contestants, repetitions).items()}
    return {
        "milliseconds": times,
        "vs_plain_jax": times["plain_jax"] / times["fedrzo, products"],
        "vs_plain_jax_without_products": times["plain_jax"] / times["fedrzo"],
        "losses": losses(problems["fedrzo"], setting, data, method, jax.random.split(key, compared)),
        "difference": max(difference(setting, data, method, problem, key) for problem in problems.values()),
    }


def difference(setting: Any, data: Any, method: Any, problem: Bilevel, key: jax.Array) -> float:
    """Return how much the ruler's lower solutions differ from ours at the points of our first round, relative to the largest."""
    session = start(method, problem, key)
    points, y = last_round(session, method, key)
    wanted = np.stack([plain.fedavg(point, data, setting) for point in points])
    return float(np.max(np.abs(y - wanted)) / np.max(np.abs(wanted)))


def same_accuracy(problem: Bilevel, data: Any, key: jax.Array, repetitions: int) -> dict[str, Any]:
    """Compare times where both have lower solutions of the same accuracy."""
    step = 2 / (problem.modulus + problem.smoothness)
    setting = plain.Setting(lower_stepsize=step, lower_rounds=EXACT_ROUNDS["plain_jax"], lower_steps=1)
    lower = LocalSGD(step, 1, EXACT_ROUNDS["fedrzo"], "full")
    method = FedRZObl(setting.stepsize, setting.smoothing, setting.local_steps, lower=lower, closing=False)
    session, x0 = start(method, problem, key), jnp.asarray(problem.x0)
    _, (points, solutions) = plain.run(x0, key, data, setting, LEARNT)
    plain_error = max(error(problem, *seen) for seen in zip(points[-LOOKED_AT:], solutions[-LOOKED_AT:], strict=True))
    session.advance(LEARNT - LOOKED_AT)
    our_error = max(error(problem, *last_round(session, method, key)) for _ in range(LOOKED_AT))
    contestants = {"plain_jax": lambda: plain.run(x0, key, data, setting, ROUNDS), "fedrzo": rounds(session)}
    times = {name: 1e3 * seconds / ROUNDS for name, seconds in medians(contestants, repetitions).items()}
    return {
        "milliseconds": times,
        "lower_rounds": EXACT_ROUNDS,
        "lower_error": {"plain_jax": plain_error, "fedrzo": our_error},
        "vs_plain_jax": times["plain_jax"] / times["fedrzo"],
    }


def start(method: Any, problem: Bilevel, key: jax.Array) -> SimulationSession:
    """Start a run on one device: steps are so small that two would mostly wait for each other."""
    return Simulation(devices=jax.devices()[:1]).start([method], problem, [key], None)


def rounds(session: SimulationSession) -> Callable[[], Any]:
    """Return some rounds of the library's own."""

    def go() -> Any:
        session.advance(ROUNDS)
        return session.carry

    return go


def last_round(session: SimulationSession, method: Any, key: jax.Array) -> tuple[jax.Array, np.ndarray]:
    """Run one more round; return its x+v and x-v, and what it took for the lower solutions there."""
    first_call = path_key(Roots.of(key).directions, (session.round, 0))  # of a round: the server's draw of v
    points = method.points(jnp.array(session.carry.state.x, copy=True), jax.random.key_data(first_call))
    session.advance(1)
    return points, np.array(session.carry.state.y).reshape(2, -1)


def error(problem: Bilevel, points: Any, y: Any) -> float:
    """Return the largest relative distance of lower solutions to accurate ones."""
    exact = np.stack(problem.lower_solutions(np.asarray(points)))
    return float(np.max(np.linalg.norm(y - exact, axis=1) / np.linalg.norm(exact, axis=1)))


def losses(problem: Bilevel, setting: Any, data: Any, method: Any, keys: Any) -> dict[str, list[float]]:
    """Return the upper loss over all data at accurate lower solutions: at the start, and after some rounds for each key."""
    x0, value = jnp.asarray(problem.x0), jax.jit(lambda x: problem.evaluate(x)["loss"])
    ends: dict[str, list] = {"start": [x0], "plain_jax": [], "fedrzo": []}
    for key in keys:
        ends["plain_jax"].append(plain.run(x0, key, data, setting, LEARNT)[0])
        session = start(method, problem, key)
        session.advance(LEARNT)
        ends["fedrzo"].append(session.carry.state.x)
    return {name: [float(value(x)) for x in points] for name, points in ends.items()}


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    head = ["", "plain JAX, ms a round", "fedrzo", "ratio", "with products", "ratio"]
    rows = [head]
    for steps, part in found["same_steps"].items():
        times = part["milliseconds"]
        rows.append([
            f"same steps, {steps} a lower round", f"{times['plain_jax']:.2f}", f"{times['fedrzo']:.2f}",
            f"{part['vs_plain_jax_without_products']:.1f} x", f"{times['fedrzo, products']:.2f}", f"{part['vs_plain_jax']:.1f} x",
        ])  # fmt: skip
    part = found["same_accuracy"]
    times = part["milliseconds"]
    rows.append([
        "same accuracy", f"{times['plain_jax']:.2f}", f"{times['fedrzo']:.2f}", f"{part['vs_plain_jax']:.1f} x", "", "",
    ])  # fmt: skip
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    lines = [f"Medians of an upper round on one JAX device ({found['device']}), after compilation."]
    for steps, part in found["same_steps"].items():
        means = ", ".join(f"{name} {np.mean(v):.4f} (deviation {np.std(v):.4f})" for name, v in part["losses"].items())
        lines.append(
            f"Same steps, {steps}: lower solutions differ by {part['difference']:.1g}; losses after {LEARNT} rounds: {means}."
        )
    part = found["same_accuracy"]
    errors = part["lower_error"]
    lines.append(
        f"Same accuracy: relative errors of y at most {errors['plain_jax']:.2g} (plain JAX, {EXACT_ROUNDS['plain_jax']} steps "
        f"from y = 0) and {errors['fedrzo']:.2g} (fedrzo, {EXACT_ROUNDS['fedrzo']} from the last y)."
    )
    return lines


def verdict(found: dict[str, Any]) -> str:
    """Say who wins, without the problem's own products."""
    ratios = {f"same steps, {steps}": part["vs_plain_jax_without_products"] for steps, part in found["same_steps"].items()}
    return standing(ratios | {"same accuracy": found["same_accuracy"]["vs_plain_jax"]}, "plain JAX")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
