"""Scaffnew against gradient descent: how communications grow with the condition number, on a9a and w8a.

l2-regularised logistic regression, clients sorted by label, full gradients. Counted are the communications until |x - x*|^2, the
quantity that the theory bounds, has fallen to a given share of that at the start. Gradient descent communicates after every
step of 1/L; Scaffnew steps by 1/L_max, L_max being the worst client's, and communicates with probability sqrt(lambda/L_max).
Expected: the former like kappa, the latter like sqrt(kappa). Beside them, what local gradient descent has reached after as many
communications as Scaffnew needed, with as many local steps as Scaffnew has on average.

Both methods take of the order of kappa full gradients, so by default a random part of the samples is used; --samples 0 takes all.
Few samples bound the curvature of rare features from below: there, a lambda far below 1/N no longer slows anything down, so that
both slopes flatten beyond kappa of a few thousand.

    python benchmarks/scaffnew_kappa.py --data FOLDER [--samples 2000] [--clients 20] [--seeds 3] [--kappas 30 300 3000] [--json]
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import fedrzo as fz
from fedrzo.zoo import logistic, make

KAPPAS = (30.0, 300.0, 3000.0)
TARGET = 1e-6  # of |x - x*|^2 at the start
LONGEST = 20  # times kappa rounds of gradient descent, or sqrt(kappa) of Scaffnew times 10, are given up on


def distance(x, test):
    """The squared distance to the answer, which lies where a test set has its samples."""
    return jnp.sum((x - jax.tree.leaves(test)[0][0]) ** 2)


def watched(problem, batch):
    """Return a problem whose history has a column `distance`; the answer is the first sample of the batch."""
    return fz.Nonsmooth(
        problem.loss_fn, problem.data, problem.x0, weights=problem.weights, test=batch, metrics={"distance": distance}
    )


def curve(method, problem, most, every, key=0, target=TARGET):
    """Return communications, and the squared distance relative to the start, until the target is met."""
    start = float(distance(problem.x0, problem.test))
    history = fz.run(
        method,
        problem,
        most,
        key=key,
        eval_every=every,
        progress=False,
        stop=lambda row: row["distance"] <= target * start,
    ).history
    return np.asarray(history["round"]), np.asarray(history["distance"]) / start


def crossing(rounds, gaps, target=TARGET):
    """Return the communications at which the gap met the target, between two rows of the history on a logarithmic scale."""
    below = np.flatnonzero(gaps <= target)
    if len(below) == 0:
        raise ValueError(f"the target {target} was not met in {rounds[-1]} rounds: the gap is {gaps[-1]:.3g}")
    j = below[0]
    share = np.log(gaps[j - 1] / target) / np.log(gaps[j - 1] / max(gaps[j], 1e-300))
    return float(rounds[j - 1] + share * (rounds[j] - rounds[j - 1]))


def linearity(rounds, gaps):
    """Return R^2 of a line through log gap against communications, from a tenth of the start on."""
    kept = gaps < 0.1
    return float(stats.linregress(rounds[kept], np.log(gaps[kept])).rvalue ** 2)


def growth(kappas, communications):
    """Return the slope of log communications against log kappa, its standard error and half its 95 % interval."""
    fit = stats.linregress(np.log(kappas), np.log(communications))
    return {"slope": fit.slope, "error": fit.stderr, "interval": stats.t.ppf(0.975, len(kappas) - 2) * fit.stderr}


def both(problem, kappa, modulus, smoothness, worst, seeds, target=TARGET):
    """Return the communications of gradient descent and of Scaffnew (one per seed), and how straight their curves are."""
    most, every = int(LONGEST * kappa), max(1, int(kappa / 20))
    plain = curve(fz.LocalSGD(1 / smoothness, 1, batch_size="full"), problem, most, every, target=target)
    method = fz.Scaffnew(1 / worst, np.sqrt(modulus / worst))
    most, every = int(10 * LONGEST * np.sqrt(kappa)), max(1, int(np.sqrt(kappa) / 10))
    ours = [curve(method, problem, most, every, key=seed, target=target) for seed in range(seeds)]
    return {
        "gd": crossing(*plain, target), "gd_r2": linearity(*plain), "scaffnew": [crossing(*c, target) for c in ours],
        "scaffnew_r2": min(linearity(*c) for c in ours),
    }  # fmt: skip


def measure(name, folder, samples, clients, seeds, kappas):
    rows = []
    for kappa in kappas:
        began = time.perf_counter()
        plain = make("logistic", dataset=name, clients=clients, samples=samples or None, kappa=kappa, data=folder)
        modulus, smoothness, worst = logistic.curvature(plain)
        problem = watched(plain, ((logistic.answer(plain)[None], np.ones(1)), np.float64(modulus)))
        row = {"kappa": kappa, **both(problem, kappa, modulus, smoothness, worst, seeds)}
        steps = round(np.sqrt(worst / modulus))
        rounds = int(np.ceil(np.mean(row["scaffnew"])))
        local = curve(fz.LocalSGD(1 / worst, steps, batch_size="full"), problem, rounds, rounds)
        rows.append(row | {"local_gd": local[1][-1], "local_steps": steps, "seconds": time.perf_counter() - began})
    ours = [count for row in rows for count in row["scaffnew"]]
    return {
        "dataset": name, "rows": rows, "gd": growth(kappas, [row["gd"] for row in rows]),
        "scaffnew": growth(np.repeat(kappas, seeds), ours),
    }  # fmt: skip


def show(found):
    print(f"{found['dataset']}: communications until |x - x*|^2 is {TARGET:g} of the start")
    print(f"{'kappa':>8} {'GD':>8} {'R^2':>7} {'Scaffnew':>22} {'R^2':>7} {'local GD, same rounds':>22} {'seconds':>8}")
    for row in found["rows"]:
        counts = " ".join(f"{count:.0f}" for count in row["scaffnew"])
        print(f"{row['kappa']:8.0f} {row['gd']:8.0f} {row['gd_r2']:7.4f} {counts:>22} {row['scaffnew_r2']:7.4f} "
              f"{row['local_gd']:14.2e}, H={row['local_steps']:<4d} {row['seconds']:8.1f}")  # fmt: skip
    for name in ("gd", "scaffnew"):
        fit = found[name]
        print(f"slope of {name}: {fit['slope']:.3f}, standard error {fit['error']:.3f}, 95 % +- {fit['interval']:.3f}")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kappas", type=float, nargs="+", default=KAPPAS)
    parser.add_argument("--datasets", nargs="+", default=["a9a", "w8a"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for name in options.datasets:
        found.append(measure(name, options.data, options.samples, options.clients, options.seeds, options.kappas))
        if not options.json:
            show(found[-1])
    if options.json:
        print(json.dumps({"datasets": found}))


if __name__ == "__main__":
    main()
