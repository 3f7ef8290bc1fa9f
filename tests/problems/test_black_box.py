"""Black boxes get whole batches, however many samples a client has; and what a run warns of, or refuses, before it begins."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.federation.client import FULL, Client
from fedrzo.problems.monitor import mean_loss
from fedrzo.zoo import bilevel, synthetic

RNG = np.random.default_rng(0)
CLOUDS = [RNG.normal(size=(size, 2)) for size in (5, 3, 9, 5)]
FIXED = [0.1, 0.2, 0.3, 0.4]
POINTS = RNG.normal(size=(2, 2))


def typical(x, batch):
    """The median over all samples of a client: no mean of samples' losses."""
    samples, weight = batch
    return np.median(np.abs(samples - x).sum(axis=1)) + weight * np.sum(x**2)


def typical_of_all(x, batch):
    samples, weight = batch
    return np.median(np.abs(samples - x[:, None]).sum(axis=2), axis=1) + weight * np.sum(x**2, axis=1)


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_client_of_any_size_is_one_call(vectorized):
    shapes = []

    def seen(x, batch):
        shapes.append(batch[0].shape)
        return (typical_of_all if vectorized else typical)(x, batch)

    loss = fz.blackbox(seen, vectorized=vectorized)
    problem = fz.Nonsmooth(loss, fz.ClientData(CLOUDS, fixed=FIXED), np.zeros(2))
    expected = np.array([[typical(x, client) for x in POINTS] for client in zip(CLOUDS, FIXED, strict=True)])
    sizes = [len(cloud) for cloud in CLOUDS]

    @jax.jit
    def steps(points):
        return jax.vmap(lambda i: jax.vmap(lambda x: Client.of(problem, i).loss(x, FULL))(points))(jnp.arange(4))

    with problem.precision():
        np.testing.assert_allclose(steps(POINTS), expected, rtol=1e-15)
        if vectorized:  # one call for each size
            assert sorted(shapes) == [(2, 3, 2), (2, 9, 2), (4, 5, 2)]
        else:
            assert sorted(shapes) == sorted((size, 2) for size in sizes for _ in POINTS)
        assert loss.calls == len(shapes)
        shapes.clear()
        np.testing.assert_allclose(jax.jit(lambda x: mean_loss(problem, x))(POINTS[0]), expected[:, 0].mean(), rtol=1e-15)
    assert sorted(shapes) == ([(1, 3, 2), (1, 9, 2), (2, 5, 2)] if vectorized else sorted((size, 2) for size in sizes))


def test_the_page_says_how_often_a_black_box_is_called(capsys):
    """Two rounds of three steps, both signs, three clients; three rows of the history; ten calls before the first round."""
    page = (Path(__file__).parents[2] / "docs" / "black-boxes.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    names = {}
    exec(compile(code, "black-boxes.md", "exec"), names)
    assert capsys.readouterr().out == printed
    assert names["loss"].calls == 2 * 3 * 2 * 3 + 3 * 3 + 10
    result, start = names["result"], [np.median(np.abs(cloud - 1).sum(axis=1)) for cloud in names["clients"]]
    assert result.history["loss"][0] == pytest.approx(np.mean(start), rel=1e-14)


def test_a_black_box_has_no_gradient_wherever_it_is_used():
    """It was zero: numbers pass to the host in words, which JAX takes for constants."""
    loss = fz.blackbox(lambda x, batch: np.mean(np.abs(x - batch)))
    with pytest.raises(fz.BlackboxError, match=r"^blackbox: <lambda> has no gradient, and one was asked for; use a"):
        jax.grad(lambda x: jnp.sum(x**2) + loss(x, np.ones((3, 2))))(jnp.ones(2))
    problem = fz.Minimax(
        fz.blackbox(lambda x, y, b: 0.0), fz.ClientData(CLOUDS), np.ones(2), np.ones(2), modulus=1.0, smoothness=1.0
    )
    with pytest.raises(fz.InputError, match=r"^lower: LocalSGD needs gradients"):
        fz.run(fz.FedRZObl(0.1, 0.1), problem, 1, progress=False)


def start(loss, data=None, x0=None, batch_size=1):
    """Begin a run, and end it before the first round."""
    problem = fz.Nonsmooth(loss, fz.ClientData(CLOUDS) if data is None else data, np.zeros(2) if x0 is None else x0)
    return fz.run(fz.FedRZOnn(0.01, 0.1, batch_size=batch_size), problem, 0, engine="loop", progress=False)


def total(x, batch):
    return jnp.sum(jnp.abs(x - batch))


def residuals(x, batch):
    return jnp.mean(jnp.abs(batch[0] @ x - batch[1]))


def score(x, batch):
    """One minus a score that is zero unless x is large."""
    return 1.0 - float(np.mean(x) > 9) * float(np.median(batch))


EVEN = fz.ClientData([np.arange(9.0).reshape(-1, 1) * np.ones(2)] * 2)
COLUMN = [(cloud, cloud @ np.array([[2.0], [-1.0]])) for cloud in CLOUDS]  # targets of shape (n, 1)
CONSTANT = fz.Sampler(lambda key, client: jnp.full(2, np.random.default_rng(0).normal()), clients=2)


@pytest.mark.parametrize(
    ("loss", "options", "words"),
    [
        (total, {}, "loss: over a batch it is the sum of its samples' losses; return their mean"),
        (residuals, {"data": fz.ClientData(COLUMN)}, r"loss: over 5 samples it is .*\(n, 1\) and \(n,\) broadcast to \(n, n\)"),
        (lambda x, b: jnp.sum(x > 0) + jnp.int32(3), {}, "loss: found a whole number .*; return a float"),
        (lambda x, b: jnp.mean(jnp.abs(x - b)), {"data": CONSTANT}, "Sampler: samples do not change with the key"),
        (fz.blackbox(lambda x, b: np.sum(np.abs(x - b))), {"batch_size": "full"}, "loss: over a batch it is the sum of"),
        (fz.blackbox(lambda x, b: np.median(np.abs(x - b).sum(axis=1))), {}, "loss: over 5 samples it is "),
        (fz.blackbox(lambda x, b: np.median(np.abs(x - b))), {"data": EVEN}, "loss: over 5 samples it is "),
        (fz.blackbox(score), {}, "loss: it is the same for each of the few samples that were tried, which cannot tell"),
    ],
    ids=["sum", "column", "whole number", "sampler", "sum in a black box", "median", "median of even samples", "score"],
)  # fmt: skip
def test_a_run_warns_of_what_a_check_would_find(loss, options, words):
    with pytest.warns(UserWarning, match=f"^{words}"):
        result = start(loss, **options)
    if "whole number" in words:  # it was 0, since weights were cut to whole numbers too
        assert result.history["loss"][0] == pytest.approx(3)


def test_a_run_does_not_warn_of_what_is_well():
    """Warnings are errors in tests. A black box may be noisy, nearly a mean and, where its batches are whole, a median."""
    noise = np.random.default_rng(0)
    start(lambda x, b: jnp.mean(jnp.abs(x - b)) + jnp.sum(x**2))
    start(fz.blackbox(lambda x, b: np.mean(np.abs(x - b)) + 1e-3 * noise.normal()))
    start(fz.blackbox(lambda x, b: np.abs(x - b).sum() / (100 + b / 10).sum()))
    start(fz.blackbox(lambda x, b: np.median(np.abs(x - b).sum(axis=1))), batch_size="full")
    start(fz.blackbox(lambda x, b: np.mean(np.abs(x - b))), data=EVEN)
    start(fz.blackbox(score), batch_size="full")
    start(fz.blackbox(score, mean=True))
    start(fz.blackbox(score), data=fz.ClientData([np.ones((1, 2)), np.zeros((1, 2))]))  # any batch is copies of one sample


def test_labels_that_a_loss_of_the_zoo_does_not_know_are_refused():
    """A label of -1 was the last class, and a 0 among signs a sample that says nothing."""
    samples = [(cloud.astype(np.float32), np.arange(len(cloud)) % 3) for cloud in CLOUDS[:2]]
    samples[1][1][2] = -1
    x0 = {"W": np.zeros((2, 3)), "b": np.zeros(3)}
    with pytest.raises(fz.InputError, match=r"^data: client 1 has the label -1; the loss knows 0, 1, 2: number classes"):
        start(synthetic.cross_entropy, fz.ClientData(samples), x0)
    signs = fz.ClientData([(cloud, np.ones(len(cloud))) for cloud in CLOUDS])
    halves = fz.ClientData([(cloud, np.arange(len(cloud)) % 2) for cloud in CLOUDS], fixed=[np.int32(i) for i in range(4)])
    problem = fz.Bilevel(
        bilevel.validation_loss, bilevel.training_loss, signs, np.ones(4), np.zeros(2), lower_data=halves, modulus=1.0,
        smoothness=9.0,
    )  # fmt: skip
    with pytest.raises(fz.InputError, match=r"^lower_data: client 0 has the label 0; the loss knows -1, 1"):
        fz.run(fz.FedRZObl(0.1, 0.1), problem, 0, progress=False)
