"""A class of problems of one's own, in one file: all that the rest of the library asks of it, it answers itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

SHIFTS = np.array([[0.5, 0.0], [-0.5, 0.0]])
METHOD = fz.FedRZOnn(0.02, 0.05, 5, batch_size=2)


def distance(x, batch):
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


class Robust(fz.Nonsmooth):
    """Half the loss, and half its worst over given shifts of x, sample by sample."""

    arrays = (*fz.Nonsmooth.arrays, "shifts")

    def __init__(self, loss, data, x0, shifts, **options):
        super().__init__(loss, data, x0, **options)
        self.shifts = np.asarray(shifts)

    def value(self, x, batch):
        def one(sample):
            def loss(x):
                return self.loss_fn(self.layout.unravel(x), jax.tree.map(lambda leaf: leaf[None], sample))

            return (loss(x) + jnp.max(jax.vmap(loss)(x + jnp.asarray(self.shifts, x.dtype)))) / 2

        return jnp.mean(jax.vmap(one)(batch))


def robust(shifts=SHIFTS, **options):
    rng = np.random.default_rng(0)
    data = fz.ClientData([rng.normal(size=(size, 2)) + np.array([1.0, -1.0]) for size in (3, 5, 4)])
    return Robust(distance, data, np.zeros(2), shifts, **options)


def by_hand(problem, x):
    """The same mean in NumPy."""
    means = []
    for i, size in enumerate(problem.data.sizes):
        samples = problem.data.flat[problem.data.offsets[i] :][:size]
        plain, *moved = (np.abs(x + s - samples).sum(axis=1) for s in (np.zeros(2), *SHIFTS))
        means.append(np.mean((plain + np.maximum(*moved)) / 2))
    return np.mean(means)


def test_a_run_minimises_it():
    problem = robust()
    result = fz.run(METHOD, problem, 60)
    assert result.history["loss"][0] == pytest.approx(by_hand(problem, np.zeros(2)))
    assert result.history["loss"][-1] == pytest.approx(by_hand(problem, result.x))
    assert result.history["loss"][-1] < result.history["loss"][0] - 0.5


def test_its_arrays_are_arguments_of_what_is_compiled():
    plain = fz.run(METHOD, robust(np.zeros((2, 2))), 2)
    same = fz.run(METHOD, fz.Nonsmooth(distance, robust().data, np.zeros(2)), 2)
    np.testing.assert_allclose(plain.history["loss"], same.history["loss"])
    assert fz.run(METHOD, robust(), 2).history["loss"][0] > plain.history["loss"][0] + 0.1


def test_a_resumed_run_ends_where_the_whole_one_does(tmp_path):
    whole = fz.run(METHOD, robust(), 6)
    fz.run(METHOD, robust(), 3, checkpoint=tmp_path / "run")
    resumed = fz.run(METHOD, robust(), 6, checkpoint=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.x, whole.x)
    with pytest.raises(fz.FedrzoError, match="data, x0 and sets"):
        fz.run(METHOD, robust(2 * SHIFTS), 8, checkpoint=tmp_path / "run", resume=True)


@pytest.mark.slow("a search")
def test_a_stepsize_is_searched_for():
    result = fz.run(fz.FedRZOnn("auto", 0.05, 5, batch_size=2), robust(), 40)
    assert result.history["loss"][-1] < result.history["loss"][0] - 0.5


def test_it_is_checked():
    report = fz.check(robust(), METHOD, 10)
    assert report.ok
    assert report["lipschitz"].data["low"] <= np.sqrt(2) + 1e-9 <= report["lipschitz"].data["high"] + 1e-6


def test_a_point_of_it_is_certified():
    start, end = (fz.certify(robust(), x, 0.1) for x in (np.zeros(2), fz.run(METHOD, robust(), 100).x))
    assert end.norm < start.norm
    assert end.delta is not None
    assert end.lower is None


def test_theory_prescribes_steps():
    plan = fz.theory.for_problem(robust(), 0.1, budget=100, warn=False)
    assert type(plan) is fz.theory.Plan
    assert fz.FedRZOnn.from_theory(robust(), 100, constants={"lipschitz": 2.0}).stepsize > 0


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: fz.run(fz.FedRZObl(0.1, 0.1), robust(), 1), "problem: found Robust; FedRZObl solves Bilevel: "),
        (
            lambda: fz.certify(robust(), np.zeros(2), 0.1, lower=fz.LocalSGD()),
            "lower: found one, but the problem has no",
        ),
        (
            lambda: fz.theory.for_problem(robust(), 0.1, modulus=1.0),
            "modulus: nonsmooth problems have no such constant",
        ),
        (lambda: robust().lower_level(np.zeros(2)), "lower: found Robust, which has no lower level"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(call, line):
    with pytest.raises(fz.InputError, match=f"^{line}"):
        call()


def test_an_array_that_is_not_named_is_refused():
    class Careless(Robust):
        arrays = fz.Nonsmooth.arrays

    problem = robust()
    careless = Careless(distance, problem.data, np.zeros(2), SHIFTS)
    with pytest.raises(
        fz.InputError,
        match=r"^problem: Careless\.shifts is of type ndarray, which cannot be hashed; name it",
    ):
        fz.run(METHOD, careless, 1)


class Tilted(fz.Bilevel):
    """A bilevel problem whose upper loss is steeper by a linear term."""

    def value(self, x, y, batch):
        return super().value(x, y, batch) + 0.25 * jnp.sum(x)


@pytest.mark.slow("a run, its check and its certificate")
def test_a_class_with_a_lower_level_keeps_its_methods():
    data = fz.ClientData([np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])])
    problem = Tilted(
        lambda x, y, batch: jnp.mean((y - batch) ** 2), lambda x, y, batch: jnp.sum((y - x) ** 2), data, np.zeros(1), np.zeros(1)
    )  # fmt: skip
    result = fz.run(fz.FedRZObl(0.1, 0.05), problem, 60)
    assert result.x == pytest.approx(1.5 - 0.125, abs=0.05)
    assert fz.check(problem, fz.FedRZObl(0.1, 0.05), 5).ok
    assert fz.certify(problem, result.x, 0.1).lower.error < 1e-6
