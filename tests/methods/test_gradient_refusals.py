"""What oracle="gradients" cannot serve is refused in one line, before anything starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.problems.slopes import compare

RNG = np.random.default_rng(0)
DATA = fz.ClientData([{"A": RNG.normal(size=(7, 6)), "y": RNG.normal(size=7)} for _ in range(3)])


def quantile(x, batch):
    off = batch["y"] - batch["A"] @ x
    return jnp.mean(jnp.maximum(0.8 * off, -0.2 * off)) + 0.1 * jnp.sum(jnp.abs(x))


def rounded(x, batch):
    """Return a loss with a gradient that was replaced: that of the same loss without rounding."""
    found = batch["A"] @ x
    return jnp.mean((found + jax.lax.stop_gradient(jnp.round(found) - found) - batch["y"]) ** 2)


@jax.custom_vjp
def halved(z):
    """Return the sum of squares, with half of its gradient."""
    return jnp.sum(z**2)


halved.defvjp(lambda z: (halved(z), z), lambda z, g: (g * z,))

LOSSES = {
    "halved": (lambda x, b: halved(b["A"] @ x - b["y"]), "loss: its gradients are not"),
    "not finite": (lambda x, b: jnp.sum(jnp.where(x > 0.1, jnp.sqrt(x - 0.1), 0)) + jnp.sum(x), "by its gradients nan"),
    "a loop": (
        lambda x, b: jax.lax.while_loop(lambda s: s < 3, lambda s: s + 1.0 + x[0] ** 2, x[0]),
        "oracle: .* loss fails with",
    ),
    "black box": (fz.blackbox(lambda x, batch: np.float64(0.0)), 'oracle: found "gradients", but loss is a black box'),
    "jumps": (lambda x, b: jnp.mean(jnp.floor(20 * b["A"] @ x)), "loss: its gradients are not .* by its gradients 0 "),
    "jumps a little": (lambda x, b: quantile(x, b) + 0.01 * jnp.mean(jnp.floor(20 * b["A"] @ x)), "loss: its gradients are not"),
    "stopped": (lambda x, b: quantile(jax.lax.stop_gradient(x), b) + 0.1 * jnp.sum(x), "loss: its gradients are not"),
    "replaced": (rounded, "loss: its gradients are not"),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_loss_whose_gradients_are_not_those_of_its_values_is_refused(what):
    loss, wanted = LOSSES[what]
    with pytest.raises(fz.InputError, match=wanted):
        fz.run(fz.FedRZOnn(0.1, 0.1, oracle="gradients"), fz.Nonsmooth(loss, DATA, np.full(6, 0.1)), 1, progress=False)


def test_auto_stays_with_vectors():
    problem = fz.Nonsmooth(quantile, DATA, np.full(6, 0.1))
    results = [
        fz.run(fz.FedRZOnn(0.1, 0.1, communication=c, oracle="gradients"), problem, 2, progress=False)
        for c in ("auto", "vectors")
    ]
    assert results[0].x.tobytes() == results[1].x.tobytes()


@pytest.mark.slow("many losses")
def test_a_right_gradient_is_not_refused_at_any_scale_nor_at_a_kink():
    """Ten tests at 5 standard deviations: one of them fails by chance once in 300,000 times."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        data = fz.ClientData([{"A": rng.normal(size=(7, 6)), "y": rng.normal(size=7)}])
        problem = fz.Nonsmooth(quantile, data, rng.normal(size=6).astype(np.float32) * (seed % 2))
        assert not compare(problem, 0, 10.0 ** (seed % 5 - 3)).disagree


def upper(x, y, batch):
    return jnp.mean(jnp.sum((y - batch["y"][:, None]) ** 2, -1)) + jnp.sum(x**2)


def lower(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((y - x) ** 2, -1)) + 0 * jnp.sum(batch["y"])


def below(loss=upper, lower=lower):
    return fz.Bilevel(loss, lower, DATA, np.zeros(6), np.zeros(6), modulus=1.0, smoothness=1.0)


BLACK_BOX = fz.blackbox(lambda x, y, batch: np.float64(0.0))
LEVELS = {
    "lower black box": (
        below(lower=BLACK_BOX),
        {"lower": fz.FedRZOnn(0.1, 0.1), "lower_rounds": 5, "closing": False},
        "oracle: ",
    ),
    "stopped in y": (below(lambda x, y, b: upper(x, jax.lax.stop_gradient(y), b)), {}, "loss: its gradients are not"),
    "lower stopped": (below(lower=lambda x, y, b: lower(jax.lax.stop_gradient(x), y, b)), {}, "lower: its gradients are not"),
    "lower bends at a point": (
        below(lower=lambda x, y, b: lower(x, y, b) + jnp.sum(jnp.abs(y - 0.01))),
        {},
        "lower's slope in y: its",
    ),
    "closing": (below(), {"closing": False}, "closing: found False"),
}


@pytest.mark.parametrize("what", LEVELS)
def test_so_is_a_lower_level_that_has_none(what):
    problem, fields, wanted = LEVELS[what]
    with pytest.raises(fz.InputError, match=wanted):
        fz.run(fz.FedRZObl(0.1, 0.1, oracle="gradients", **fields), problem, 1, progress=False)
