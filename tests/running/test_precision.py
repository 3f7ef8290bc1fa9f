"""What a run computes in: x0 says, whatever JAX's settings, the types of samples, and other runs before it or beside it."""

import itertools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

WIDE = np.linspace(-1.0, 1.0, 12).reshape(3, 4)  # a user's constant in float64
NARROW, BROAD = np.float32, np.float64


def loss(x, batch):
    return jnp.mean(jnp.abs(batch @ x - 1))


def with_wide_constants(x, batch):
    return jnp.mean(jnp.abs(batch @ x - 1)) + jnp.sum((WIDE @ x) ** 2)


def stated(of=loss, x=NARROW, samples=NARROW, test=None, **options):
    rows = np.random.default_rng(0).normal(size=(7, 4))
    batch = None if test is None else rows[:2].astype(test)
    data = fz.ClientData([rows[:4].astype(samples), rows[4:].astype(samples)])
    return fz.Nonsmooth(of, data, np.full(4, 0.5, x), test=batch, **options)


def ran(problem, **options):
    method = fz.FedRZOnn(stepsize=0.05, smoothing=0.1, local_steps=2, **options)
    return fz.run(method, problem, 2, engine="loop", progress=False)


PRIVATE = fz.FedRZOnn(0.05, 0.1, privacy=fz.Privacy(epsilon=10.0, delta=1e-3, clip=1.0))
SAMPLES, CONSTANTS = stated(samples=BROAD), stated(with_wide_constants)


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        (fz.FedRZOnn(0.05, 0.1), CONSTANTS),
        (fz.FedZO(0.05, 0.1, 1), CONSTANTS),
        (fz.DeComFL(0.05, 0.1, 1), SAMPLES),
        (PRIVATE, SAMPLES),
    ],
    ids=["FedRZOnn", "FedZO", "DeComFL", "private"],
)
def test_values_that_are_wider_than_x_do_not_widen_it(method, problem):
    with jax.enable_x64(True):
        result = fz.run(method, problem, 2, engine="loop", progress=False)
    assert result.x.dtype == NARROW
    assert np.isfinite(result.x).all()


def test_a_float32_point_is_certified_with_x64_on():
    problem = stated(constraint=[fz.sets.Box(-1, 1), fz.sets.Ball(0.0, 2.0)])
    with jax.enable_x64(True):
        assert fz.certify(problem, problem.x0, smoothing=0.1).directions > 0


def test_a_sweep_keeps_to_the_precision_of_x_with_x64_on():
    """Settings side by side are arrays, whose type must not widen x as that of a plain number does not."""
    with jax.enable_x64(True):
        found = fz.sweep(fz.FedRZOnn(0.01, 0.1, local_steps=2), stated(), 2, stepsize=[0.01, 0.02], progress=False)
        assert all(jax.tree.leaves(result.x)[0].dtype == NARROW for row in found.results for result in row)


@pytest.mark.slow("a search of twenty seconds")
def test_a_float32_problem_is_solved_with_x64_on():
    with jax.enable_x64(True):
        assert fz.solve(stated(), seconds=20, progress=False).loss_feasible < 1


def test_a_set_of_a_function_keeps_to_the_precision_of_x():
    """Its constants may be wider: then a loop of the projection had two types."""
    round_ = fz.sets.Sublevel(lambda x: jnp.sum((x - np.array([0.5])) ** 2) - np.float64(1))
    both = fz.sets.Intersection(fz.sets.Box(-np.inf, np.inf), round_)
    with jax.enable_x64(True):
        y = both.project(np.array([3.0], NARROW))
    assert y.dtype == NARROW
    np.testing.assert_allclose(y, [1.5], atol=1e-5)


@pytest.mark.slow("compiles a round for each combination of types")
def test_runs_of_other_precisions_do_not_touch_each_other():
    """One after the other, samples and test batches of any type; the answers are those of a run of its own."""
    kinds = list(itertools.product((NARROW, BROAD), (NARROW, BROAD), (None, NARROW, BROAD)))
    method = fz.FedRZOnn(stepsize=0.05, smoothing=0.1, local_steps=2)
    first = {}
    for kind in kinds + kinds[::-1]:
        x, samples, test = kind
        result = fz.run(method, stated(x=x, samples=samples, test=test), 3, progress=False)
        assert result.x.dtype == x
        assert np.array_equal(first.setdefault(kind, result.x), result.x)
    for (x, samples, _), found in first.items():
        if x == BROAD == samples:
            np.testing.assert_array_equal(found, first[BROAD, BROAD, None])


def test_threads_run_side_by_side():
    """Each thread has its own precision; what they compile they share."""
    expected = {kind: ran(stated(x=kind, samples=kind)).x for kind in (NARROW, BROAD)}
    found, failed = [], []

    def work(kind):
        try:
            for _ in range(3):
                found.append((kind, ran(stated(x=kind, samples=kind)).x))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in (NARROW, BROAD, NARROW, BROAD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failed
    assert len(found) == 12
    for kind, x in found:
        np.testing.assert_array_equal(x, expected[kind])
