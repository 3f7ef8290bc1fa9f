"""Tools for the tests of certificates: closed-form problems, and many repetitions of the real programs at once."""

import copy

import jax
import numpy as np

import fedrzo as fz
from fedrzo.certificates.interval import adaptive, estimate_square
from fedrzo.certificates.sampling import Sampling
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.engines.simulation.spread import Spread
from fedrzo.zoo import toys

CONFIDENCE = 0.95
GROUP = 400


def at(problem, x):
    moved = copy.copy(problem)
    moved.x0 = np.asarray(x, float)
    return moved


def sample(problem, x, smoothing, sizes, seed, batch_size="full", numbers=None, oracle="values"):
    """Return the blocks' means of repetitions (of these numbers), each with its own number of directions per block."""
    numbers = np.arange(len(sizes)) if numbers is None else numbers
    with problem.precision():
        structure = jax.tree.structure(Sampling(smoothing, 1, batch_size, oracle=oracle))
        method = jax.tree.unflatten(structure, [np.full(len(sizes), smoothing), np.array(sizes)])
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(numbers)
        moved = at(problem, x)
        carry = simulation.start(method, moved, keys, many=True)
        keys, span = simulation.keys_of(keys, clients=problem.clients, many=True), simulation.Span(0, 1)
        carry, _ = simulation.rounds(method, moved, keys, carry, span, size=None, spread=Spread(), many=True)
        return np.asarray(carry.state.means) + pull(problem, x, smoothing)


def pull(problem, x, smoothing):
    """The mean of the clients' (x - P_i(x))/eta."""
    with problem.precision():
        nearest = [np.asarray(problem.sets.project(i, x)) for i in range(problem.clients)]
    return np.mean([(x - one) / smoothing for one in nearest], axis=0)


def fixed(problem, x, smoothing, size, repetitions, seed, batch_size="full", oracle="values"):
    """Return the estimates of many repetitions with a fixed number of directions."""
    means = sample(problem, x, smoothing, [size] * repetitions, seed, batch_size, oracle=oracle)
    return [estimate_square(one, size, CONFIDENCE) for one in means]


def adapted(problem, x, smoothing, width, repetitions, seed, most=65_536, confidence=CONFIDENCE, threshold=None):
    """Return the outcomes of many repetitions of the adaptive rule, driven together."""
    rules = [adaptive(width, most, confidence, threshold) for _ in range(repetitions)]
    wanted = {i: next(rule) for i, rule in enumerate(rules)}
    outcomes, stage = {}, 0
    while wanted:
        # Groups of one shape, alike in size: a compiled loop takes as long as the largest sample of its group.
        order = sorted(wanted, key=wanted.__getitem__)
        for group in (order[k : k + GROUP] for k in range(0, len(order), GROUP)):
            numbers = np.array(group + [0] * (GROUP - len(group)))
            sizes = [wanted[i] for i in group] + [1] * (GROUP - len(group))
            means = sample(problem, x, smoothing, sizes, 1000 * seed + stage, numbers=numbers)
            for i, one in zip(group, means, strict=False):
                try:
                    wanted[i] = rules[i].send(one)
                except StopIteration as end:
                    outcomes[i] = end.value
                    del wanted[i]
        stage += 1
    return [outcomes[i] for i in range(repetitions)]


def coverage(estimates, truth):
    return float(np.mean([one.lower <= truth <= one.upper for one in estimates]))


def boxed_quadratic(dim=10):
    """Half the mean squared distance to samples, over a box that all clients share."""
    plain = toys.quadratic(3, dim)
    return fz.Nonsmooth(toys.squared_distance, plain.data, np.zeros(dim), fz.sets.Box(-1.0, 0.2), name="boxed")


def gradient(problem, x, smoothing):
    """The gradient of the smoothed problem: smoothing a linear or quadratic loss adds a constant at most."""
    samples = np.asarray(problem.data.flat)
    loss = -np.ones(problem.dim) if problem.name == "boxes" else x - samples.mean(axis=0)
    return loss + pull(problem, x, smoothing)


def stationary(problem, smoothing):
    """Where that gradient is zero."""
    if problem.name == "boxes":
        return np.full(problem.dim, 1 + problem.clients * smoothing)
    centre = np.asarray(problem.data.flat).mean(axis=0)
    if problem.sets.free:
        return centre
    nearest = np.clip(centre, -1.0, 0.2)
    return (smoothing * centre + nearest) / (1 + smoothing)


def away(problem, shift, smoothing=0.1, opposite=False):
    """Return a point beside where the smoothed problem is stationary, and the squared norm of the gradient there.

    The way there is a fixed normal vector, or one along which the gradient is opposite to that of the loss of `boxes`.
    """
    way = np.ones(problem.dim) if opposite else np.random.default_rng(0).normal(size=problem.dim)
    x = stationary(problem, smoothing) + shift * way
    found = gradient(problem, x, smoothing)
    return x, float(found @ found)


CASES = {  # the problem, whether to go opposite to the loss's gradient, how far, and the widths asked for
    "two half-spaces": (lambda: toys.boxes(2), False, {0: 0.02, 0.05: 0.03, 0.3: 0.1}),
    "five half-spaces": (lambda: toys.boxes(5), False, {0: 0.1, 0.05: 0.1, 0.3: 0.3}),
    "five, opposite": (lambda: toys.boxes(5), True, {0.05: 0.1, 0.3: 0.5}),
    "thirty, opposite": (lambda: toys.boxes(30), True, {0.3: 2.0, 1: 4.0, 3: 10.0}),
    "quadratic, one box": (lambda: boxed_quadratic(10), False, {0: 0.03, 0.01: 0.05, 0.3: 2.0}),
}


def main(repetitions=6000, smoothing=0.1):
    """Print the table of docs/measured-certificates.md: coverage, and misses because the interval lies too high or too low."""
    for name, (make, opposite, widths) in CASES.items():
        for shift, width in widths.items():
            x, truth = away(make(), shift, smoothing, opposite)
            samples = {f"{64 * size:,} directions": fixed(make(), x, smoothing, size, repetitions, 1) for size in (16, 64)}
            outcomes = adapted(make(), x, smoothing, width, repetitions, 4)
            samples[f"width {width}"] = [outcome.estimate for outcome in outcomes]
            for kind, found in samples.items():
                high, low = np.mean([one.lower > truth for one in found]), np.mean([one.upper < truth for one in found])
                print(
                    f"{name} | {shift} | {truth:.2g} | {kind} | covered {1 - high - low:.2%} | too high {high:.2%} | "
                    f"too low {low:.2%} | median width {np.median([one.width for one in found]):.3g}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
