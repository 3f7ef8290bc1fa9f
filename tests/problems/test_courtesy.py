"""Questions that look after a user's mistakes must not be able to break a valid run."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.problems import courtesy, mistakes
from fedrzo.problems.courtesy import ask

METHOD = fz.FedRZOnn(stepsize=0.05, smoothing=0.1, local_steps=2)


@pytest.fixture
def quiet(monkeypatch):
    """Drop a failing question, as users see it; tests raise it."""
    monkeypatch.setattr(courtesy, "LOUD", [False])


def problem(loss=lambda x, batch: jnp.mean(jnp.abs(batch @ x - 1))):
    return fz.Nonsmooth(loss, fz.ClientData([np.eye(3), np.ones((2, 3))]), np.zeros(3))


def fail():
    raise TypeError("a fault of the question itself")


def test_a_question_that_fails_by_itself_is_dropped(quiet):
    assert ask(fail) is None
    assert ask(lambda: 3) == 3


def test_in_tests_a_question_that_fails_by_itself_fails_loudly():
    with pytest.raises(TypeError, match="a fault of the question itself"):
        ask(fail)


@pytest.mark.parametrize(
    "error", [fz.InputError("x: found y; do z"), fz.BlackboxError("blackbox: f raised"), KeyboardInterrupt()]
)
def test_errors_that_are_answers_are_raised(quiet, error):
    def answer():
        raise error

    with pytest.raises(type(error)):
        ask(answer)


@pytest.mark.parametrize("name", ["redrawn", "ignores_x", "mistake"])
def test_a_run_goes_on_as_if_a_failing_question_had_not_been_asked(quiet, monkeypatch, name):
    expected = fz.run(METHOD, problem(), 2, progress=False)

    def broken(*arguments):
        raise TypeError("add got incompatible shapes for broadcasting: (3,), (2,).")

    monkeypatch.setattr(mistakes, name, broken)
    found = fz.run(METHOD, problem(), 2, progress=False)
    np.testing.assert_array_equal(found.x, expected.x)


def test_an_error_of_a_black_box_in_a_question_is_told_in_one_line(quiet):
    def simulate(x, batch):
        if len(batch) > 1:
            raise RuntimeError("it takes one sample")
        return float(np.abs(batch @ x).mean())

    with pytest.raises(fz.BlackboxError, match="simulate raised RuntimeError: it takes one sample"):
        fz.run(METHOD, problem(fz.blackbox(simulate)), 2, progress=False)


def refusing(*sizes):
    """Return a loss that fails for batches of some sizes, as one with a fixed shape does."""

    def loss(x, batch):
        if len(batch) in sizes:
            raise TypeError(f"{len(batch)} samples do not fit")
        return jnp.mean(jnp.abs(batch @ x - 1))

    return loss


def test_a_loss_that_fails_on_batches_of_the_run_is_refused_in_one_line():
    words = (
        r"loss: calling loss\(x, batch\) failed: 4 samples do not fit; it is given x of shape \(3,\) and batch of shape \(4, 3\)"
    )
    with pytest.raises(fz.InputError, match=words):
        fz.run(fz.FedRZOnn(0.05, 0.1, batch_size=4), problem(refusing(4)), 2, progress=False)
    whole = fz.Nonsmooth(refusing(5), fz.ClientData([np.ones((5, 3))] * 2), np.zeros(3))
    with pytest.raises(fz.InputError, match="5 samples do not fit"):  # it is monitored on whole clients
        fz.run(METHOD, whole, 2, progress=False)


def test_a_loss_may_fail_on_batches_that_only_a_question_has(quiet):
    assert np.isfinite(fz.run(METHOD, problem(refusing(2, 6)), 2, progress=False).x).all()


def test_a_loss_that_float64_breaks_runs_by_gradients_in_float32(quiet):
    """The question about gradients is asked in float64, which a loss of a float32 run need not know."""

    def loss(x, batch):
        return jnp.mean(jnp.abs(jax.lax.dot(batch, x.astype(batch.dtype)) - jax.lax.convert_element_type(1, jnp.float32))) + (
            jax.lax.mul(jnp.float32(0), x[0])
        )

    data = fz.ClientData([np.eye(3, dtype=np.float32), np.ones((2, 3), np.float32)])
    stated = fz.Nonsmooth(loss, data, np.zeros(3, np.float32))
    method = fz.FedRZOnn(stepsize=0.05, smoothing=0.1, oracle="gradients")
    with warnings.catch_warnings(action="error"):
        assert np.isfinite(fz.run(method, stated, 2, progress=False).x).all()


def scenarios(kind):
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(size, 3)) for size in (5, 1)]
    if kind == "vector":
        return vectors, lambda xi: (xi[:2], xi[2])
    if kind == "matrix":
        return [np.stack([each, each], axis=2) for each in vectors], lambda xi: (xi[:2, 0], xi[2, 1])
    return [{"a": each[:, :2], "b": {"c": each[:, 2]}} for each in vectors], lambda xi: (xi["a"], xi["b"]["c"])


@pytest.mark.parametrize("kind", ["vector", "matrix", "dict"])
def test_a_scenario_may_be_anything(kind):
    """The loss and the map take one scenario; a question that gave them a batch would fail on most shapes."""
    data, read = scenarios(kind)

    def loss(x, y, xi):
        a, b = read(xi)
        return jnp.vdot(y - a, y - a) + b * jnp.sum(x**2) + a @ y

    def equilibrium(x, y, xi):
        a, _ = read(xi)
        return 2 * y - x.sum() - a

    stated = fz.TwoStage(loss, equilibrium, fz.ClientData(data), np.ones(2), np.zeros(2), lower_constraint=fz.sets.Box(0, 3))
    result = fz.run(fz.FedRZO2s(stepsize=0.05, smoothing=0.1), stated, 2, progress=False)
    y = [np.clip((np.ones(2).sum() + each[:, :2]) / 2, 0, 3) for each in (d for d in scenarios("vector")[0])]
    means = [
        np.mean(((own - each[:, :2]) ** 2).sum(1) + each[:, 2] * 2 + (each[:, :2] * own).sum(1))
        for own, each in zip(y, scenarios("vector")[0], strict=True)
    ]
    assert result.history["loss"][0] == pytest.approx(np.mean(means), rel=1e-9)
