"""Published problems are stated as published, and `fz.solve` reaches their values."""

import functools
from pathlib import Path

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.paper import published as experiment
from fedrzo.paper.published import solve
from fedrzo.paper.reproduction import Reproduction
from fedrzo.zoo import published
from lower_levels import Plain, quadratic, rows

ENTRIES = published.ENTRIES
CURVED = ("outrata31", "outrata31-vi", "Colson2002BIPA3", *(name for name in ENTRIES if name.startswith("gnash")))
SKEW = ("nash1", "flp2")  # maps without a potential; no loss is below their zero
LINEAR = ("paper_minimax",)  # in y, at the end of whose interval the maximum lies


@functools.cache
def stated(name):
    """Return an entry in NumPy, whose functions are compiled once for all tests."""
    return Plain(ENTRIES[name])


def digits(value):
    """Return one unit in the last decimal that a value is given to."""
    return 10.0 ** -len(np.format_float_positional(value).partition(".")[2])


def solution(entry, plain):
    x, y = entry.solution
    x = np.asarray(x, float)
    return x, plain.solve(x) if y is None else np.asarray(y, float)


@pytest.mark.parametrize("name", ENTRIES)
def test_solutions_have_their_published_value_and_their_y_is_the_only_answer(name):
    entry = ENTRIES[name]
    plain = stated(name)
    x, y = solution(entry, plain)
    value = entry.published if entry.verified is None else entry.verified
    assert plain.loss(x, y) == pytest.approx(value, abs=digits(value))
    for member in plain.problem.sets.members():
        A, b = rows(member, x.size)
        assert np.all(A @ x <= b + 1e-9)
    assert np.all(plain.coupling(x, y) <= 1e-9)
    bend = plain.bend(x, y)
    assert np.max(np.abs(plain.residual(x, y))) <= 1e-5 * max(1, np.max(np.abs(bend)), np.max(np.abs(y)))
    if name not in LINEAR:
        assert np.linalg.eigvalsh((bend + bend.T) / 2)[0] >= (plain.problem.modulus or 0) * (1 - 1e-2) > 0
    held = np.stack(np.split(np.asarray(plain.problem.data.flat), plain.problem.clients))
    np.testing.assert_allclose(held.mean(axis=0), 1.0)
    assert plain.problem.clients >= 2
    assert np.ptp(held, axis=0).min() > 0


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in (*CURVED, *SKEW, *LINEAR, "paper_minimax_reversed")])
def test_no_point_near_a_solution_is_better(name):
    """Of twelve points of X around it, each with its own lower level solved by the quadratic program of the tests."""
    entry = ENTRIES[name]
    plain = stated(name)
    x, y = solution(entry, plain)
    best, rng = plain.loss(x, y), np.random.default_rng(0)
    sides = [rows(member, x.size) for member in (*plain.problem.sets.members(), plain.problem.lower_domain or fz.sets.Reals())]
    A, b = np.vstack([A for A, _ in sides]), np.concatenate([b for _, b in sides])
    for radius in 1e-2 * max(1e-2, np.max(np.abs(x))) * rng.uniform(0.01, 1, 12):
        point = quadratic(np.eye(x.size), -x - radius * rng.normal(size=x.size), A, b)
        reply = plain.solve(point)
        if np.all(plain.coupling(point, reply) <= 0):
            assert plain.loss(point, reply) >= best - 1e-5 * abs(best) - 1e-9


SOLVED = ("jr2",)
# One of each kind: Y a ball and a half-plane, polygons that are fixed, move and turn, a corner of private sides, no potential.
SOLVED_SLOWLY = (
    "paper_minimax",
    "outrata31", "Outrata1990Ex1a", "MuuQuy2003Ex2", "Outrata1993Ex31", "ShimizuAiyoshi1981Ex2", "flp2", "qpec2", "bard1",
    "FalkLiu1995", "HatzEtal2013", "gauvin", "jr1-vi",
)  # fmt: skip


def reaches(name):
    found = solve(ENTRIES[name])
    assert found["gap"] <= experiment.GAP, found
    assert found["infeasibility"] <= experiment.INSIDE, found


@pytest.mark.parametrize("name", SOLVED)
def test_solve_reaches_the_published_value(name):
    reaches(name)


@pytest.mark.slow("solves of up to a minute each")
@pytest.mark.parametrize("name", SOLVED_SLOWLY)
def test_solve_reaches_the_published_value_of_harder_ones(name):
    reaches(name)


def _bl(stepsize, smoothing, lower_rounds=None):
    return fz.FedRZObl(stepsize, smoothing, batch_size="full", lower_rounds=lower_rounds, oracle="gradients")


# One of each kind: Y a box, fixed and moving, a polygon; a sum of zero; an equilibrium for each scenario.
BY_GRADIENTS = {
    "desilva": (_bl(0.03, 0.02), 400),
    "MuuQuy2003Ex1": (_bl(0.05, 0.05, 10), 100),
    "Yezza1996Ex41": (_bl(0.05, 0.05), 300),
    "paper_minimax": (_bl(0.02, 0.01), 300),
    "gauvin-vi": (fz.FedRZO2s(0.05, 0.05, 10, solver=fz.vi.Accelerated(), oracle="gradients"), 60),
}


@pytest.mark.slow("published values once more, by gradients")
@pytest.mark.filterwarnings("ignore:x0. found a point")
@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_gradients_reach_it(name):
    method, rounds = BY_GRADIENTS[name]
    entry = ENTRIES[name]
    result = fz.run(method, entry.make(), rounds, eval_every=rounds, progress=False)
    assert result.loss_feasible - entry.published <= 1e-2 * max(1, abs(entry.published))


def test_the_experiment_prints_every_problem(monkeypatch, capsys):
    monkeypatch.setattr(experiment, "entries", lambda quick: [ENTRIES["jr1"], ENTRIES["jr2"]])
    found = {"published": 0.5, "infeasibility": 0.0, "seconds": 3.2}
    ours = {"jr1": found | {"ours": 0.5, "gap": 0.0}, "jr2": found | {"ours": 1.5, "gap": 1.0}}
    monkeypatch.setattr(experiment, "solve", lambda entry, seed: {"name": entry.name} | ours[entry.name])
    record = experiment.run(Reproduction("published", seed=1))
    assert capsys.readouterr().err.splitlines()[1:] == ["published: jr1", "published: jr2"]
    assert [(claim.value, claim.holds) for claim in record.claims] == [(0.5, False)]
    heading, *rows = record.tables[0].rows
    assert rows == [["jr1", "0.5", "0.5", "0.0e+00", "0.0e+00", "3"], ["jr2", "0.5", "1.5", "1.0e+00", "0.0e+00", "3"]]
    assert len(heading) == len(rows[0])


def test_a_quick_experiment_has_the_quick_ones():
    names = [entry.name for entry in experiment.entries()]
    assert len(set(names)) == len(names) >= 62
    assert {entry.name for entry in experiment.entries(quick=True)} == set(experiment.QUICK) < set(names)


def test_the_page_on_published_problems_lists_them_all():
    page = (Path(__file__).parents[2] / "docs" / "measured-solve.md").read_text()
    listed = [line.split("`")[1] for line in page.partition("## Published problems")[2].splitlines() if line.startswith("| `")]
    assert listed == list(ENTRIES)
    assert f"The zoo has {len(ENTRIES)} problems" in page
