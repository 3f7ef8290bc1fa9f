"""The theorems as numbers: hand-computed values, orders, corrected slips, and what is refused."""

import math

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import theory
from fedrzo.zoo.bilevel import logistic

LEVY = math.sqrt(2 * math.pi)
LOWER = {"lipschitz_y": 1.5, "cross_lipschitz": 3.0, "modulus": 2.0}
VI = {"lipschitz_y": 1.5, "modulus": 1.0, "smoothness": 4.0}


def nonsmooth(**more):
    return theory.nonsmooth(**({"clients": 4, "dim": 16, "smoothing": 0.5, "lipschitz": 2.0} | more))


def bilevel(**more):
    return theory.bilevel(**({"clients": 4, "dim": 16, "smoothing": 0.5, "lipschitz": 2.0} | LOWER | more))


def twostage(**more):
    return theory.twostage(**({"clients": 4, "dim": 16, "smoothing": 0.5, "lipschitz": 2.0} | VI | more))


def test_proposition_1_by_hand():
    plan = nonsmooth(budget=10_000, gap=3.0)
    gamma = math.sqrt(2 / 5.12e6)  # eta m = 2, K n^1.5 L0^3 = 10^4 64 8
    assert plan.prescribed == pytest.approx(gamma)
    assert plan.stepsize == plan.prescribed
    assert (plan.local_steps, plan.rounds) == (4, 2500)  # (10^4 / 64)^(1/4) = 3.54
    assert plan.limits == pytest.approx({"descent": 1 / 64, "consensus": 1 / 16})
    assert plan.limit == pytest.approx(1 / 64)
    assert plan.terms == pytest.approx({
        "gap": 24 / (gamma * 10_001),
        "variance": 64 * LEVY * gamma * 8 * 64 / 2,
        "drift": 72 * 16 * gamma**2 * 81 / 0.25 * 8 * LEVY * 64,
    })  # fmt: skip
    assert plan.bound == pytest.approx(sum(plan.terms.values()))


def test_proposition_1_with_sets_by_hand():
    plan = nonsmooth(budget=10_000, gap=3.0, dissimilarity=(2.0, 3.0), smoothing=0.1, local_steps=5)
    # The + 1 of the Moreau term, restored; eta/(2H) in place of 1/(4H), being smaller here.
    assert plan.limits["descent"] == pytest.approx(0.1 / (4 * 9))
    assert plan.limits["consensus"] == pytest.approx(0.1 / 10)
    assert plan.limits["dissimilarity"] == pytest.approx(0.1 / (12 * math.sqrt(3) * 3 * 9 * 5))
    assert plan.stepsize == min(plan.prescribed, plan.limit)
    drift = 72 * 25 * plan.stepsize**2 * 81 / 0.01
    assert plan.terms["variance"] == pytest.approx(64 * LEVY * plan.stepsize * 9 * 4 * 16 / 0.4)
    assert plan.terms["drift"] == pytest.approx(drift * 8 * LEVY * 37 * 64)
    assert plan.terms["dissimilarity"] == pytest.approx(drift * 4 / 0.01)


def test_a_limit_is_never_above_the_printed_one():
    for eta in (0.01, 0.3, 1.0, 7.0):
        for pair in ((0.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
            plan = nonsmooth(budget=10_000, smoothing=eta, dissimilarity=pair)
            printed = [eta / (4 * 2 * 4), 1 / (4 * plan.local_steps)]
            printed += [eta / (12 * math.sqrt(3) * pair[1] * 9 * plan.local_steps)] if pair[1] else []
            assert plan.limit <= min(printed) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("term", "change", "power"),
    [
        ("gap", {"budget": 16}, -0.5), ("variance", {"budget": 16}, -0.5), ("drift", {"budget": 16}, -0.5),
        ("gap", {"clients": 2}, -0.5), ("variance", {"clients": 2}, -0.5),
        ("gap", {"dim": 2}, 0.75), ("variance", {"dim": 2}, 0.75),
        ("gap", {"smoothing": 2}, -0.5), ("variance", {"smoothing": 2}, -0.5),
    ],
)  # fmt: skip
def test_the_orders_of_the_terms(term, change, power):
    base = {"clients": 4, "dim": 16, "smoothing": 0.5, "budget": 64 * 10**8}  # (K/m^3)^(1/4) = 100, and 200 for 16 K
    [(name, factor)] = change.items()
    before, after = (nonsmooth(**(base | {name: scale * base[name]}), gap=1.0) for scale in (1, factor))
    assert before.stepsize == before.prescribed
    assert after.stepsize == after.prescribed
    assert after.terms[term] / before.terms[term] == pytest.approx(factor**power, rel=1e-6)


@pytest.mark.parametrize("make", [nonsmooth, bilevel, twostage])
def test_a_target_is_met_and_not_one_iteration_earlier(make):
    plan = make(epsilon=0.05, gap=1.0)
    assert plan.bound <= 0.05
    assert make(budget=plan.iterations - 1, gap=1.0).bound > 0.05
    assert make(budget=plan.iterations, gap=1.0).terms == plan.terms


def test_the_orders_of_iterations_to_a_target():
    iterations = nonsmooth(epsilon=0.01, gap=1.0).iterations
    assert nonsmooth(epsilon=0.005, gap=1.0).iterations / iterations == pytest.approx(4, rel=0.01)
    assert nonsmooth(epsilon=0.01, gap=1.0, clients=8).iterations / iterations == pytest.approx(0.5, rel=0.01)
    plan = nonsmooth(epsilon=0.01, gap=1.0)
    assert plan.rounds == pytest.approx((4 * plan.iterations) ** 0.75, rel=0.01)


def test_theorem_2_by_hand():
    plan = bilevel(budget=10_000, gap=3.0, dissimilarity=(2.0, 3.0), inexactness=5.0, local_steps=4)
    gamma, n_eta = plan.stepsize, (16 / 0.5 * 1.5) ** 2
    theta2, theta3 = 5 * 81 / 2, 1.5**2 * 5 * n_eta
    worst = max(theta2, theta3)
    assert plan.limits == pytest.approx({
        "descent": 0.5 / (24 * 9), "consensus": 1 / 32, "delay": 1 / (16 * math.sqrt(0.1 * theta3)),
        "dissimilarity": 1 / (16 * 4 * 3 * math.sqrt(3 * worst)),
    })  # fmt: skip
    theta1 = 24 * LEVY * 9 * 64 / 0.5
    theta5 = 48 * 4 / 0.25 + 384 * LEVY * 37 * 64
    errors = 5 / 16 * (3 * 2500 ** (1 / 3) - 2)
    assert plan.terms == pytest.approx({
        "gap": 24 / (gamma * 10_000),
        "variance": 8 * gamma * theta1 / 4,
        "shared direction": 8 * gamma * theta1 * 3 / 4,
        "drift and delay": 8 * 16 * gamma**2 * worst * theta5,
        "lower level": 8 * (16 * gamma**2 * worst * 24 * n_eta + 5 * n_eta) * 4 * errors / 10_000,
    })  # fmt: skip
    exact = sum(5 / (16 * (r + 1) ** (2 / 3)) for r in range(2500))
    assert exact <= errors <= 1.1 * exact  # the sum of eps_r, bounded by an integral


def test_theta_1_is_divided_by_m_once_and_a_shared_direction_takes_that_back():
    one, eight = (bilevel(budget=10_000, clients=m, stepsize=1e-4, local_steps=1) for m in (1, 8))
    assert eight.terms["variance"] == pytest.approx(one.terms["variance"] / 8)
    assert one.terms["shared direction"] == 0
    both = eight.terms["variance"] + eight.terms["shared direction"]
    assert both == pytest.approx(one.terms["variance"])
    one, eight = (twostage(budget=10_000, clients=m, stepsize=1e-4, local_steps=1) for m in (1, 8))
    assert eight.terms["variance"] == pytest.approx(one.terms["variance"] / 8)


def test_the_lower_errors_are_not_multiplied_by_the_slope_of_y():
    # Where Theta_2 is the larger one, the slope L_xy/mu of y(x) has no say in what eps_r does; with Theta_3 it would.
    given = {"budget": 10_000, "stepsize": 1e-5, "local_steps": 2, "inexactness": 1.0, "lipschitz_y": 0.01}
    steep, flat = (bilevel(**given, cross_lipschitz=slope) for slope in (2.0, 0.02))
    assert steep.constants["Theta_2"] > steep.constants["Theta_3"]
    assert steep.constants["Theta_3"] == pytest.approx(1e4 * flat.constants["Theta_3"])
    assert steep.terms["lower level"] == flat.terms["lower level"] > 0


def test_remark_4_and_table_3():
    plan = bilevel(budget=10**6, clients=8)
    assert plan.lower["Local SGD"].rounds == 8
    assert plan.lower["FedAC"].rounds == 2
    steps = [max(math.ceil(16 * (r + 1) ** (2 / 3) / 8), 8) for r in range(plan.rounds)]
    assert plan.lower_steps == steps[-1]
    assert sum(steps) <= plan.total_lower_steps <= 1.1 * sum(steps)
    assert plan.lower["LFD"].rounds == math.ceil((8 * steps[-1]) ** (1 / 3))
    lfd = sum(math.ceil((8 * T) ** (1 / 3)) for T in steps)
    assert lfd <= plan.lower["LFD"].total_rounds <= 1.5 * lfd
    far, farther = (bilevel(budget=K, clients=8) for K in (10**14, 10**18))
    powers = {name: math.log10(farther.lower[name].total_rounds / far.lower[name].total_rounds) / 4 for name in far.lower}
    assert powers == pytest.approx({"Local SGD": 0.75, "FedAC": 0.75, "LFD": 11 / 12}, abs=0.01)


def test_theorem_3_by_hand():
    plan = twostage(budget=10_000, gap=3.0, dissimilarity=(2.0, 3.0), distance=7.0, local_steps=4)
    gamma, n_eta, theta2 = plan.stepsize, (16 / 0.5 * 1.5) ** 2, 5 * 81 / 2
    assert plan.prescribed == pytest.approx(math.sqrt(2 / 5.12e6))  # the proof's, not sqrt(m/K) = 0.02
    assert plan.limits == pytest.approx({
        "descent": 0.5 / (16 * 9), "consensus": min(1 / (math.sqrt(24) * 4), 0.5 / (math.sqrt(6) * 4)),
        "dissimilarity": 1 / (12 * math.sqrt(6) * 4 * 3 * math.sqrt(theta2)),
    })  # fmt: skip
    drift = 8 * 16 * gamma**2 * theta2
    assert plan.terms == pytest.approx({
        "gap": 24 / (gamma * 10_000),
        "variance": 8 * gamma * 16 * LEVY * 9 * 64 / 0.5 / 4,
        "drift": drift * 18 * (4 / 0.25 + 37 * 8 * LEVY * 64),
        "lower level": (drift * 9 * n_eta + 8 * 5 * n_eta) * 7 * (1 + math.log(10_000)) / 10_000,
    })  # fmt: skip
    assert plan.solver_stepsize == 1 / 16
    assert plan.tau == pytest.approx(-1 / math.log(1 - 1 / 16))
    taken = 2 * 4 * sum(math.ceil(plan.tau * math.log(k + 1)) for k in range(1, 10_001))
    assert taken <= plan.total_lower_steps <= 1.01 * taken


# L0 sqrt(n) far above 1, so that the + 1 of the Moreau term is lost in it, and eta L0 sqrt(n) far below.
SHARP = {"dim": 100, "smoothing": 1e-7, "lipschitz": 1e3}


def growth(make, given, changes):
    """Return the factor by which the iterations to a target grow when constants change."""
    before, after = (make(gap=1.0, epsilon=1.0, **each) for each in (given, given | changes))
    assert before.stepsize == before.prescribed
    assert after.stepsize == after.prescribed
    return after.iterations / before.iterations


@pytest.mark.parametrize(("name", "power"), [("lipschitz", 2), ("smoothing", -2), ("dim", 1)])
@pytest.mark.parametrize("make", [nonsmooth, twostage])
def test_iterations_without_sets_grow_as_the_square_of_the_drift(make, name, power):
    """L0^2 n / eta^2. The printed orders are L0^3 n^1.5 / eta in Proposition 1 (ii) and L0^-2 n / eta^2 in Theorem 3 (iii)."""
    assert growth(make, SHARP, {name: 2 * SHARP[name]}) == pytest.approx(2.0**power, rel=0.02)


def test_the_term_of_b1_is_part_of_the_iterations():
    """(B1^2 / (L0 sqrt(n) eta^3))^2. The printed order in Proposition 1 (ii) has no B1."""
    given = {"dim": 100, "smoothing": 1e-3, "lipschitz": 1.0, "dissimilarity": (100.0, 1.0)}
    assert growth(nonsmooth, given, {"dissimilarity": (200.0, 1.0)}) == pytest.approx(16, rel=0.02)


def test_the_last_term_of_theorem_3_depends_on_the_smoothing():
    """A large L_y, so that 8 Theta_3 sum(eps_k) / K decides: n^2 / (eta^2 epsilon); printed is n^2 / epsilon."""
    plans = [twostage(gap=1.0, epsilon=1.0, lipschitz_y=1e12, smoothing=eta) for eta in (0.5, 0.25)]
    few, many = (plan.iterations / (1 + math.log(plan.iterations)) for plan in plans)
    assert many / few == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize(("name", "power"), [("lipschitz", -2 / 3), ("smoothing", -2), ("dim", 1)])
def test_the_middle_term_of_theorem_3(name, power):
    """H^2 gamma^2 Theta_2 Theta_4 sum(eps_k) / K falls as K^-1.5, so its share of K is its power 2/3."""
    base = {"clients": 4, "dim": 100, "smoothing": 0.5, "lipschitz": 1e4, "budget": 64 * 10**8}  # H = 100

    def middle(**given):
        plan = twostage(**given)
        assert plan.stepsize == plan.prescribed
        K = plan.iterations
        return plan.terms["lower level"] - 8 * plan.constants["Theta_3"] * (1 + math.log(K)) / K

    assert (middle(**base | {name: 2 * base[name]}) / middle(**base)) ** (2 / 3) == pytest.approx(2**power, rel=1e-3)


def test_a_perfectly_conditioned_map_needs_no_tau():
    assert twostage(budget=100, modulus=4.0).tau == 0


def test_the_printed_lemma_on_moreau_gradients_misses_a_factor():
    # All clients share X = {0}, so B1 = 0 and B2 = 1, and the loss is flat: only the Moreau terms are left. With the mean
    # iterate at 0 the printed right-hand side is 8 e, the corrected one 2 e / eta^2.
    eta, xs = 0.1, np.array([[1.0], [-1.0]])
    left = np.mean(np.sum((xs / eta) ** 2, axis=1))
    apart = np.mean(np.sum((xs - xs.mean(axis=0)) ** 2, axis=1))
    assert left > 8 * apart
    assert left <= 2 * apart / eta**2


def test_the_second_moment_of_an_estimate():
    # f(x) = L0 |x| in one direction of R^n: the largest second moment a linear loss can have is n L0^2.
    rng = np.random.default_rng(0)
    for n in (1, 3, 30):
        v = rng.normal(size=(20_000, n))
        v /= np.linalg.norm(v, axis=1)[:, None]
        squared = (n * 2.0 * v[:, 0]) ** 2  # of n/(2 eta) (f(x + eta v) - f(x - eta v)) v, with L0 = 2
        assert squared.mean() == pytest.approx(4 * n, rel=0.1)
        assert squared.mean() < theory.second_moment(n, 2.0)


def test_proposition_2_by_hand():
    """f(x) = -L0 x over x <= 1: the smoothed problem is stationary at 1 + eta L0, as far outside as any loss can have it."""
    L0, factor = 3.0, 4 * (2 * math.pi) ** 0.25
    assert theory.infeasibility_bound(16, 0.1, L0) == pytest.approx(factor * 0.1 * L0 * 4)
    assert theory.infeasibility_bound(16, 0.1, L0) > 0.1 * L0
    eta = theory.smoothing_for(0.01, 16, L0)
    assert eta == pytest.approx(0.01 / (factor * L0 * 4))
    assert theory.infeasibility_bound(16, eta, L0) == pytest.approx(0.01)
    assert theory.smoothing_for(0.01, 16, 1e-3) == 0.01  # a flat loss: eta itself must be within delta
    with pytest.raises(fz.InputError, match="delta: found 0"):
        theory.smoothing_for(0, 16, L0)


def test_the_lipschitz_constant_of_the_implicit_function():
    """h = mu y^2 / 2 - c x y, so that y(x) = c x / mu; the loss a x + b y has just this slope in x."""
    a, b, c, mu = 2.0, 3.0, 5.0, 0.5
    value = lambda x: a * x + b * (c * x / mu)  # noqa: E731
    assert theory.implicit_lipschitz(a, b, c, mu) == pytest.approx(value(1.0) - value(0.0))
    assert theory.implicit_lipschitz(0, b, c, mu) == pytest.approx(30)
    with pytest.raises(fz.InputError, match="modulus: found 0"):
        theory.implicit_lipschitz(a, b, c, 0)
    with pytest.raises(fz.InputError, match="lipschitz_y: found -1"):
        theory.implicit_lipschitz(a, -1, c, mu)


def test_the_exponent_of_the_remark_on_theorem_2():
    assert theory.dimension_exponents() == pytest.approx((3, 9 / 4, 37 / 12))
    assert theory.dimension_exponents(0.5) == pytest.approx((4, 3, 4 * 11 / 12 + 1 / 6))
    assert theory.dimension_exponents(2.0).iterations == 3
    # n^a (r+1)^(2/3) / m lower steps; the errors that they leave are multiplied by n^(1 - a).
    one, two = (bilevel(budget=10_000, gap=3.0, inexactness=2.0, exponent=a) for a in (1.0, 2.0))
    assert two.lower_steps == math.ceil(16**2 * one.rounds ** (2 / 3) / 4)
    assert two.terms["lower level"] == pytest.approx(one.terms["lower level"] / 16)
    assert {**two.terms, "lower level": 0} == {**one.terms, "lower level": 0}
    assert two.total_lower_steps > one.total_lower_steps
    # Solved from the bound, iterations to a target grow as n^max(4 - 2a, 3).
    for a, C, order in ((0.1, 1e6, 3.8), (0.25, 1e6, 3.5), (1.0, 1.0, 3.0)):
        few, many = (bilevel(dim=n, gap=1.0, inexactness=C, epsilon=1.0, exponent=a).iterations for n in (10**4, 10**5))
        assert math.log10(many / few) == pytest.approx(order, abs=0.01)


def test_the_logistic_loss_is_lipschitz_in_the_model():
    """The appendix' lemma: log(1 + exp(-v u'y)) has a gradient no longer than |u|, and comes as close to it as one likes."""
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 30.0):
        u, v = rng.random((1, 20)), rng.choice([-1.0, 1.0], 1)
        y, z = scale * rng.normal(size=(2, 20))
        change = logistic(y, u, v) - logistic(z, u, v)
        assert abs(float(change)) <= np.linalg.norm(u) * np.linalg.norm(y - z) * (1 + 1e-6)
        assert np.linalg.norm(jax.grad(logistic)(y, u, v)) <= np.linalg.norm(u) * (1 + 1e-6)
    steep = jax.grad(logistic)(-v * scale * u[0], u, v)
    assert np.linalg.norm(steep) == pytest.approx(np.linalg.norm(u), rel=1e-6)


def test_the_consensus_bound_by_hand():
    found = theory.consensus_bound(16, 0.5, 2.0, 1e-3, 5, gradients=7.0, dissimilarity=(2.0, 3.0))
    fixed = 32 * LEVY * 64 * 37 + 16 / 0.25
    assert found == pytest.approx(3 * 25e-6 * fixed + 24 * 9 * 5 * 1e-6 * 7)


def test_a_plan_reads_well():
    text = repr(nonsmooth(budget=10_000, gap=3.0))
    assert "FedRZO_nn: m = 4, n = 16, eta = 0.5" in text
    assert "iterations   10,000" in text
    assert "(variance)" in text
    assert "NOT at most" in repr(nonsmooth(budget=100, stepsize=1.0))
    assert "Local SGD" in repr(bilevel(budget=100))
    assert "tau" in repr(twostage(budget=100))


def test_without_a_gap_there_is_no_bound():
    plan = nonsmooth(budget=100)
    assert math.isnan(plan.bound)
    assert plan.stepsize > 0


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (nonsmooth, {}, "budget, epsilon: found neither"),
        (nonsmooth, {"budget": 10, "epsilon": 0.1}, "budget, epsilon: found both"),
        (bilevel, {}, "budget, epsilon: found neither"),
        (twostage, {"budget": 10, "epsilon": 0.1}, "budget, epsilon: found both"),
        (nonsmooth, {"epsilon": 0.1}, "gap: found None"),
        (nonsmooth, {"epsilon": 0.1, "gap": 1.0, "stepsize": 0.1}, "epsilon: found a target beside"),
        (nonsmooth, {"epsilon": -0.1, "gap": 1.0}, "epsilon: found -0.1"),
        (nonsmooth, {"epsilon": 1e-60, "gap": 1.0}, "epsilon: 1e-60 takes more than"),
        (nonsmooth, {"budget": 0}, "budget: found 0"),
        (nonsmooth, {"budget": math.inf}, "budget: found inf"),
        (nonsmooth, {"budget": lambda r: 10}, "budget: found a function"),
        (nonsmooth, {"budget": 10, "smoothing": lambda r: 0.1}, "smoothing: found a function"),
        (nonsmooth, {"budget": 10, "gap": [1.0]}, "gap: found"),
        (nonsmooth, {"budget": 10, "clients": 1.5}, "clients: found 1.5"),
        (nonsmooth, {"budget": 10, "lipschitz": 0.0}, "lipschitz: found 0.0"),
        (nonsmooth, {"budget": 10, "dissimilarity": 1.0}, "dissimilarity: found 1.0"),
        (nonsmooth, {"budget": 10, "dissimilarity": (1.0, -1.0)}, "dissimilarity: found"),
        (nonsmooth, {"budget": 10, "gap": -1.0}, "gap: found -1.0"),
        (bilevel, {"budget": 10, "modulus": 0.0}, "modulus: found 0.0"),
        (twostage, {"budget": 10, "distance": -1.0}, "distance: found -1.0"),
    ],
)
def test_what_is_refused(make, given, message):
    with pytest.raises(fz.InputError, match=message):
        make(**given)
