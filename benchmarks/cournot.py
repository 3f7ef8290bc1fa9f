"""The paper's game with 1,000 followers against a plain NumPy loop: `python benchmarks/cournot.py`.

The NumPy loop does the same client-steps (5 clients x 100 rounds x 20 local steps, each two projection solves); a sample of them
is timed and scaled up, since all of them would take minutes. Certified solves are timed for more followers.
"""

import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.zoo import cournot
from helpers.command import check_fixed, main
from helpers.results import save, standing

PROBLEM = "Cournot's game, the paper's"
SEEDS = 1
SIZES = [1000, 4000, 16000, 64000]  # followers of certified solves
FOLLOWERS, B, ROUNDS, STEPS, CLIENTS = 1000, 0.5, 100, 20, 5
ALPHA, TAU = 1e-8, 80


def ours():
    problem = cournot.cournot(FOLLOWERS, B, "paper", evaluation=8)
    method = fz.FedRZO2s(1e-3, 0.1, STEPS, solver=cournot.solver(FOLLOWERS, "paper"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "solver: tau is")  # as the paper printed it
        result = fz.run(method, problem, ROUNDS, eval_every=ROUNDS, progress=False)
    return result.history["seconds"][-1]


def numpy_step(x, k, rng, c):
    """One client-step of Algorithm 4 with Algorithm 5, as one would first write it."""
    a, v = rng.uniform(7.5, 12.5), 0.1 * rng.choice([-1.0, 1.0])
    values = []
    for point in (x + v, x - v):
        y = np.zeros(FOLLOWERS)
        for _ in range(int(np.ceil(TAU * np.log(k + 1)))):
            y = np.clip(y - ALPHA * ((c + B) * y - a + B * (point + y.sum())), 0.0, 3.0)
        values.append(0.05 * point**2 - point * (a - B * (point + y.sum())))
    return x - 1e-3 * (values[0] - values[1]) * v / (2 * 0.1**2)


def plain_numpy(sample=20):
    rng, c = np.random.default_rng(0), np.full(FOLLOWERS, 0.1)
    ks = np.linspace(1, ROUNDS * STEPS, sample).astype(int)  # later iterations take more lower steps
    start = time.perf_counter()
    for k in ks:
        numpy_step(1.0, k, rng, c)
    return (time.perf_counter() - start) / sample * CLIENTS * ROUNDS * STEPS


def certified_seconds(followers, repetitions=5):
    problem = cournot.cournot(followers, B, seed=0)
    with problem.precision():
        solve = jax.jit(jax.vmap(lambda a: problem.solve(jnp.ones(1), a, fz.vi.Accelerated()).y))
        demands = jnp.linspace(8.0, 12.0, 16)
        jax.block_until_ready(solve(demands))
        times = []
        for _ in range(repetitions):
            start = time.perf_counter()
            jax.block_until_ready(solve(demands))
            times.append(time.perf_counter() - start)
    return float(np.median(times))


def run(options):
    """Measure the whole run, the sample of the loop, and certified solves."""
    check_fixed(options, PROBLEM)
    seconds, numpy_seconds = ours(), plain_numpy(5 if options.quick else 20)
    solves = [certified_seconds(n) for n in SIZES]
    found = {
        "problem": PROBLEM, "seconds": seconds, "numpy_seconds": numpy_seconds, "vs_numpy": numpy_seconds / seconds,
        "followers": SIZES, "certified_seconds": solves, "slope": float(np.polyfit(np.log(SIZES), np.log(solves), 1)[0]),
    }  # fmt: skip
    save(found, options.out, "cournot")
    return found


def table(found):
    """Return rows to print."""
    rows = [["", "fedrzo", "plain NumPy"]]
    rows.append(["the whole run, compilation included", f"{found['seconds']:.1f} s", f"{found['numpy_seconds']:.0f} s"])
    for n, solve in zip(found["followers"], found["certified_seconds"], strict=True):
        rows.append([f"certified, 16 scenarios, {n:,} followers", f"{1e3 * solve:.2f} ms", ""])
    return rows


def remarks(found):
    """Return what to know beside the table."""
    return [f"{FOLLOWERS:,} followers, {ROUNDS} rounds, {STEPS} local steps. Log-log slope in followers: {found['slope']:.2f}."]


def verdict(found):
    """Say who wins."""
    return standing({"the whole run": found["vs_numpy"]}, "plain NumPy")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
