"""Problems: construction, precision, what is monitored, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fedrzo as fz
from fedrzo.zoo import toys

DATA = fz.ClientData([np.ones((3, 2)), np.zeros((2, 2))])


def nonsmooth(**changes):
    return fz.Nonsmooth(**{"loss": toys.squared_distance, "data": DATA, "x0": np.zeros(2), **changes})


def bilevel(**changes):
    upper = lambda x, y, batch: jnp.sum(x**2) + jnp.sum(y)  # noqa: E731
    lower = lambda x, y, batch: jnp.sum((y - x.sum()) ** 2)  # noqa: E731
    return fz.Bilevel(**{"loss": upper, "lower": lower, "data": DATA, "x0": np.zeros(2), "y0": np.zeros(3), **changes})


@pytest.mark.slow("several programs")
def test_precision_follows_x0():
    for dtype in (np.float32, np.float64):
        result = fz.run(fz.FedRZOnn(0.01, 0.1), nonsmooth(x0=np.zeros(2, dtype)), 2, progress=False)
        assert result.x.dtype == dtype


def test_hierarchical_problems_compute_in_float64():
    with bilevel(x0=np.zeros(2, np.float32)).precision():
        assert jnp.ones(1).dtype == jnp.float64


def test_monitored_values():
    sets = [fz.sets.Box(-1.0, 0.25), fz.sets.Ball(0.0, 10.0)]
    problem = nonsmooth(constraint=sets, test=np.full((1, 2), 2.0), metrics={"first": lambda x, test: x[0]})
    with problem.precision():
        row = {name: float(value) for name, value in problem.evaluate(jnp.array([1.0, 0.0])).items()}
    assert row == pytest.approx(
        {"loss": 0.5 * (0.5 + 0.5), "feasibility": 0.75, "test_loss": 0.5 * (1 + 4), "first": 1.0}, abs=1e-12
    )


def test_a_users_pair_is_used():
    slow = nonsmooth()
    fast = nonsmooth(pair=lambda x, v, batch: 2 * jnp.mean((x - batch) @ v))
    method = fz.FedRZOnn(0.05, 0.1, 3)
    a, b = (fz.run(method, problem, 5, progress=False).x for problem in (slow, fast))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    off = nonsmooth(pair=lambda x, v, batch: 1.5 * jnp.mean((x - batch) @ v))
    with pytest.raises(fz.InputError, match=r"pair: found .* where loss\(x\+v\) - loss\(x-v\) is .*; they must agree"):
        fz.run(method, off, 5, progress=False)


def test_many_private_sets_intersect():
    """Forty balls: the projection of a far point, against a solution by scipy."""
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 0.3, (40, 2))
    balls = [fz.sets.Ball(c, 1.5) for c in centers]
    problem = fz.Nonsmooth(toys.squared_distance, fz.ClientData([np.zeros((1, 2))] * 40), np.zeros(2), balls)
    far = np.array([3.0, 2.0])
    with problem.precision():
        found = np.asarray(problem.project(jnp.asarray(far)))
    inside = {"type": "ineq", "fun": lambda z: 1.5**2 - np.sum((z - centers) ** 2, axis=1)}
    reference = minimize(lambda z: np.sum((z - far) ** 2), np.zeros(2), constraints=[inside], method="SLSQP", tol=1e-12)
    np.testing.assert_allclose(found, reference.x, atol=1e-5)


def test_lower_level_is_one_problem_in_the_pair():
    with jax.enable_x64(True):
        level = bilevel(lower_constraint=lambda x: fz.sets.Box(0.0, x.sum())).lower_level(jnp.array([[1.0, 2.0], [0.5, 0.5]]))
        y = jnp.array([1.0, 1, 1, 2, 2, 2])
        assert level.dim == 6
        assert float(level.value(y, None)) == 3 * (1 - 3) ** 2 + 3 * (2 - 1) ** 2
        np.testing.assert_allclose(level.sets.project(0, 5 * jnp.ones(6)), [3, 3, 3, 1, 1, 1])
        inside = bilevel(lower_domain=fz.sets.Box(0.0, 1.0)).lower_level(jnp.array([[-3.0, 0.5]]))
        np.testing.assert_allclose(inside.points, [[0.0, 0.5]])


def test_minimax_is_bilevel_with_minus_the_loss():
    problem = fz.Minimax(lambda x, y, b: x.sum() - jnp.sum(y**2), DATA, np.ones(2), np.ones(2))
    with problem.precision():
        level = problem.lower_level(jnp.ones(2))
        assert float(level.value(jnp.full(2, 3.0), None)) == -(2 - 18)
    assert isinstance(problem, fz.Bilevel)
    assert len(jax.tree.leaves(problem)) > 3


def test_two_stage_flattens_its_map():
    problem = fz.TwoStage(
        lambda x, y, xi: x.sum(), lambda x, y, xi: {"a": y["a"] * xi, "b": y["b"] + x.sum()}, fz.ClientData([np.ones(3)]),
        np.ones(2), {"a": np.ones(2), "b": np.ones(1)}, lower_constraint=lambda x, xi: fz.sets.Box(0.0, xi),
    )  # fmt: skip
    with problem.precision():
        np.testing.assert_allclose(problem.map(jnp.ones(2), jnp.ones(3), 4.0), [4, 4, 3])
        np.testing.assert_allclose(problem.lower_set_at(jnp.ones(2), 2.0).project(jnp.full(3, 9.0)), [2, 2, 2])


def test_repr_tells_what_it_is():
    assert repr(nonsmooth(name="toy")) == "Nonsmooth(toy: n = 2, ClientData(2 clients, 2 to 3 samples each), float64)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": 3}, "loss: found int, which cannot be called"),
        ({"data": [np.zeros(3)]}, "data: found list; wrap it: fz.ClientData"),
        ({"x0": np.zeros(2, int)}, "x0: found dtype int64; pass floating-point numbers"),
        ({"x0": {}}, "x0: found no arrays"),
        ({"x0": np.array([0.0, np.inf])}, "x0: found a value that is not finite"),
        ({"x0": "start"}, "x0: found dtype <U5"),
        ({"constraint": 3.0}, "constraint: found float; pass a set"),
        ({"constraint": [fz.sets.Box(-1, 1)]}, "constraint: found 1 sets for 2 clients"),
        ({"constraint": [fz.sets.Box(-1, 1), "box"]}, "constraint of client 1: found str"),
        ({"constraint": fz.sets.Box(np.zeros(3), np.ones(3))}, r"constraint: Box has lo of shape \(3,\), but x has 2 entries"),
        ({"x0": {"a": np.zeros(2), 1: np.zeros(2)}}, "x0: found a dictionary whose keys cannot be sorted"),
        ({"weights": "sample"}, "weights: found 'sample'"),
        ({"weights": "samples", "data": fz.Sampler(lambda k, i: k, 2)}, "weights: found \"samples\", but data is a Sampler"),
    ],
)  # fmt: skip
def test_bad_problems_are_refused_by_name(changes, message):
    with pytest.raises(fz.InputError, match=message) as error:
        nonsmooth(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower": None}, "lower: found None, which cannot be called"),
        ({"y0": np.zeros(3, int)}, "y0: found dtype int64"),
        ({"modulus": 0.0}, "modulus: found 0.0"),
        ({"smoothness": -1}, "smoothness: found -1"),
        ({"lower_constraint": 3}, "lower_constraint: found int"),
        ({"lower_constraint": fz.sets.Box(np.zeros(2), np.ones(2))}, "lower_constraint: Box has lo"),
        ({"lower_domain": "all"}, "lower_domain: found str"),
        ({"lower_data": fz.ClientData([np.zeros((1, 2))])}, "lower_data: found 1 clients, data has 2"),
    ],
)
def test_bad_lower_levels_are_refused_by_name(changes, message):
    with pytest.raises(fz.InputError, match=message):
        bilevel(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pair": 3}, "pair: found int, which cannot be called; pass a function"),
        ({"metrics": [max], "test": np.ones((1, 2))}, "metrics: found list; pass a dictionary of functions by name"),
        (
            {"metrics": {"round": max}, "test": np.ones((1, 2))},
            "metrics: found 'round', a column that the history has already; pass another name",
        ),
        (
            {"metrics": {"lower_error": max}, "test": np.ones((1, 2))},
            "metrics: found 'lower_error', a column that the history has already; pass another name",
        ),
        (
            {"monitored": {"certificate_upper": max}},
            "monitored: found 'certificate_upper', a column that the history has already; pass another name",
        ),
        (
            {"metrics": {"accuracy": max}, "test": np.ones((1, 2)), "monitored": {"accuracy": max}},
            "monitored: found 'accuracy', a column that the history has already; pass another name",
        ),
        (
            {"monitored": {"loss": max}},
            "monitored: found 'loss', a column that the history has already; pass another name",
        ),
        ({"monitored": [max]}, "monitored: found list; pass a dictionary of functions by name"),
        ({"monitored": {"own": lambda x: x[0]}}, "monitored: own: calling own(x, batch) failed"),
        ({"monitored": {"own": lambda x, batch: x}}, "monitored: own: found shape (2,); it must return one number"),
        ({"loss": lambda x, batch: jnp.all(x > 0)}, "loss: found one of type bool; it must return one number"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_what_is_no_function_of_this_kind_is_told(changes, said):
    with pytest.raises(fz.InputError) as error:
        fz.run(fz.FedRZOnn(0.01, 0.1), nonsmooth(**changes), 2, progress=False)
    assert str(error.value).startswith(said)
