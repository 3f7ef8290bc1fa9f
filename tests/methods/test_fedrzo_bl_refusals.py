"""FedRZO_bl: settings and problems that are refused, and lower levels that go wrong on the way."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from quadratics import Q, quadratic


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fz.FedRZObl(0.1, 0.1, lower="sgd"), "lower: found str; pass a single-level method such as fz.LocalSGD"),
        (lambda: fz.FedRZObl(0.1, 0.1, lower=fz.FedRZOnn(0.1, 0.1)), "lower_rounds: FedRZOnn has no plan of its own"),
        (lambda: fz.FedRZObl(-0.1, 0.1), "stepsize: found -0.1"),
        (lambda: fz.FedRZObl(0.1, 0), "smoothing: found 0"),
        (lambda: fz.FedRZObl(0.1, lambda r: 0.1), "smoothing: found a function"),
        (lambda: fz.FedRZObl(0.1, 0.1, lower=fz.FedRZObl(0.1, 0.1)), "lower: found FedRZObl; pass a single-level method"),
        (lambda: fz.LocalSGD(schedule="theorem2"), "schedule: found 'theorem2'; pass None or \"algorithm3\" or \"theorem\""),
        (lambda: fz.FedAC(variant="III"), "variant: found 'III'"),
        (lambda: fz.LFD(tolerance=0), "tolerance: found 0"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(build, message):
    with pytest.raises(fz.InputError, match=message):
        build()


def blackbox_problem():
    return quadratic(lower=fz.blackbox(lambda x, y, b: 0.0))


@pytest.mark.parametrize(
    ("method", "problem", "message"),
    [
        (fz.FedRZObl(0.1, 0.1), blackbox_problem, "lower: LocalSGD needs gradients, the lower loss is a black box"),
        (
            fz.FedRZObl(0.1, 0.1, lower=fz.FedRZOnn(0.1, 0.1), lower_rounds=2),
            blackbox_problem,
            "closing: it takes a gradient",
        ),
        (fz.FedRZOnn(0.1, 0.1), quadratic, "problem: found Bilevel; FedRZOnn solves Nonsmooth"),
        (
            fz.FedRZObl(0.1, 0.1),
            lambda: quadratic(lower_constraint=lambda x: fz.sets.Box(np.zeros(2), np.ones(2))),
            r"lower_constraint: Box has lo of shape \(2,\), but y has 3 entries",
        ),
        (
            fz.FedRZObl(0.1, 0.1),
            lambda: quadratic(lower_constraint=lambda x: fz.sets.Box(1.0, x.sum())),
            r"lower_constraint: Y\(x0\) is empty .* at x0 = \[0. 0. 0.\]; start elsewhere, or give a lower_domain",
        ),
        (fz.FedRZObl(0.1, 0.1), lambda: quadratic(lower=lambda x, y, b: y), r"lower: found shape"),
    ],
)
def test_bad_problems_are_refused_before_the_first_round(method, problem, message):
    with pytest.raises(fz.InputError, match=message):
        fz.run(method, problem(), 2, progress=False)


def test_an_empty_lower_set_on_the_way_names_x_and_suggests_a_domain():
    shrinking = quadratic(lower_constraint=lambda x: fz.sets.Box(0.0, 0.5 - 10 * jnp.sum(x**2)), loss=lambda x, y, b: -x.sum())
    for closing in (True, False):
        with pytest.raises(fz.DivergedError, match=r"lower_constraint: Y\(x\) is empty near x = .*lower_domain") as error:
            fz.run(fz.FedRZObl(0.05, 0.05, closing=closing), shrinking, 50, eval_every=10, progress=False)
        named = np.array([float(x) for x in re.search(r"near x = \[(.*?)\]", str(error.value))[1].split()])
        # Y(x) is empty once |x|^2 > 0.05; the x named is within one step and the smoothing of there.
        assert abs(np.linalg.norm(named) - np.sqrt(0.05)) < 0.2


@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("warm_start", [True, False])
def test_a_diverging_lower_level_stops_with_the_round_and_its_size(closing, warm_start, tmp_path):
    lower = fz.LocalSGD(stepsize=3.0, rounds=20, batch_size="full")
    method = fz.FedRZObl(0.01, 0.1, lower=lower, closing=closing, warm_start=warm_start)
    with pytest.raises(fz.DivergedError, match=r"stopped after round \d+: the lower level diverges: its largest entry is"):
        fz.run(method, quadratic(), 50, eval_every=5, checkpoint=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())  # it diverged in the first chunk: there is nothing good to keep


@pytest.mark.slow("a long run of FedRZO_bl")
def test_a_lower_level_whose_curvature_grows_away_from_x0_stays_solved():
    """mu and L are estimated at x0 = 1; at x = 7 the curvature is 49, which the closing steps have seen by then."""
    steep = fz.Bilevel(
        lambda x, y, b: -jnp.sum(x), lambda x, y, b: jnp.sum(0.5 * x**2 * y**2 - y), fz.ClientData([np.zeros((1, 1))] * 2),
        np.ones(1), np.ones(1),
    )  # fmt: skip
    result = fz.run(fz.FedRZObl(0.1, 0.05), steep, 60, eval_every=10, progress=False)
    assert result.x[0] == pytest.approx(7.0, rel=0.01)  # every step is 0.1 along the slope -1
    assert result.history["lower_error"].max() < 1e-3
    assert result.y[0] == pytest.approx(1 / result.x[0] ** 2, rel=1e-6)


def test_a_lower_level_that_is_not_strongly_convex_is_told_with_its_modulus():
    flat = quadratic(lower=lambda x, y, b: 0.5 * (y[0] - x[0]) ** 2)
    with pytest.warns(UserWarning, match=r"lower: not strongly convex on samples \(measured modulus 0, smoothness 1\)"):
        fz.run(fz.FedRZObl(0.01, 0.1), flat, 1, progress=False)


def test_y0_outside_its_set_is_projected_with_a_warning():
    with pytest.warns(UserWarning, match=r"y0: found a point .* outside Y\(x0\); it is projected first"):
        fz.run(
            fz.FedRZObl(0.01, 0.1),
            quadratic(y0=np.full(Q, 9.0), lower_constraint=fz.sets.Box(-1, 1)),
            1,
            progress=False,
        )
