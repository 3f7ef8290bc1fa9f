"""The worked method of docs/own-method.md passes the suite that all methods pass, and runs on ray as it is."""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from conformance import Case, suite
from fedrzo.federation import directions
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots, path_key
from fedrzo.zoo import toys

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "own-method.md"
sys.path.insert(0, str(ROOT / "examples"))  # ray's actors look the module up there too
from own_method import ResidualFeedback, main  # noqa: E402

LEAST = 0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, 6).data.flat), axis=0)) * 6)


def toy(wrap):
    plain = toys.quadratic(clients=4, dim=6)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(6), fz.sets.Box(-5.0, 5.0))


test_conformance = pytest.mark.slow("a whole suite once more")(
    suite(
        Case(
            method=ResidualFeedback(stepsize=0.002, smoothing=0.3, local_steps=10, batch_size=4),
            problem=toy,
            numpy_loss=lambda x, batch: 0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1)),
            rounds=100,
            optimum=LEAST,
            changes={"stepsize": 0.003, "local_steps": 3, "smoothing": 0.2},
        )
    )
)


def test_two_rounds_computed_by_hand():
    """Two clients in plain NumPy from the same keys: the last value of round 0 is what round 1 begins with."""
    n, eta, gamma, H = 3, 0.2, 0.03, 2
    problem = toys.quadratic(clients=2, dim=n)
    ours = fz.run(ResidualFeedback(gamma, eta, H, batch_size=2), problem, 2, key=5, progress=False).x
    roots, x, last = Roots.of(jax.random.key(5)), np.zeros(n), [None, None]
    with problem.precision():
        for r in range(2):
            ends = []
            for i in range(2):
                key, y = path_key(roots.directions, (r, 0, i)), x.copy()
                for k in range(H):
                    step = jax.random.fold_in(key, k)
                    samples = np.asarray(Client.of(problem, i, roots).sample(step, 2))
                    v = np.asarray(directions.sphere(jax.random.fold_in(step, 0), n, eta, jnp.float64))
                    value = 0.5 * np.mean(np.sum((y + v - samples) ** 2, axis=1))
                    if last[i] is not None:
                        y = y - gamma * n / eta**2 * (value - last[i]) * v
                    last[i] = value
                ends.append(y)
            x = np.mean(ends, axis=0)
    np.testing.assert_allclose(ours, x, rtol=1e-12)


@pytest.mark.slow("starts Ray, or runs the whole example")
def test_the_example_prints_what_its_page_says(capsys):
    printed = re.search(r"prints\n\n```\n(.*?)```", PAGE.read_text(), re.S)[1]
    main("loop")
    assert capsys.readouterr().out == printed.replace("ray and", "loop and")


@pytest.mark.slow("starts Ray, or runs the whole example")
def test_the_same_on_ray():
    """Starting Ray and its actors takes most of a minute here."""
    problem, method = toys.median(clients=3), ResidualFeedback(0.002, 0.1, local_steps=5)
    here, there = (fz.run(method, problem, 5, engine=engine, progress=False) for engine in ("simulation", "ray"))
    np.testing.assert_allclose(there.x, here.x, rtol=1e-9, atol=1e-12)
    for name in ("upload_bytes", "download_bytes", "evaluations"):
        assert list(there.history[name]) == list(here.history[name]), name
