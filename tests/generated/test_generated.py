"""Random valid problems against plain NumPy: a small sample here, more of them in the slow tests, others by `make fuzz`."""

import dataclasses

import jax
import pytest

from .case import Case, simpler
from .invariants import failures
from .regressions import CHEAP, OPEN, REGRESSIONS
from .strategies import sample


@pytest.fixture
def under():
    """Return a function that runs a case under its own setting of jax_enable_x64."""
    before = jax.config.jax_enable_x64

    def run(case):
        jax.config.update("jax_enable_x64", case.x64)
        return failures(case)

    yield run
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("case", CHEAP, ids=lambda case: f"{case.kind}-{case.seed}")
def test_a_small_sample(case, under):
    assert under(case) == []


@pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: f"{case.kind}-{case.seed}")
def test_what_once_failed(case, under):
    assert under(case) == []


@pytest.mark.xfail(reason="not mended yet; move its line to REGRESSIONS when it is", strict=True)
@pytest.mark.parametrize(("case", "words"), OPEN, ids=[f"{case.kind}-{case.seed}" for case, _ in OPEN])
def test_open_failures(case, words, under):
    found = under(case)
    assert not any(words in line for line in found), found[0]


@pytest.mark.slow("compiles some thirty programs")
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_larger_sample(seed, under):
    for case in sample(seed, 3):
        found = under(dataclasses.replace(case, x64=seed % 2 == 1))
        assert any(words in line for _, words in OPEN for line in found) or found == [], case


def test_descriptions_read_back_and_seeds_repeat():
    cases = sample(5, 3)
    assert sample(5, 3) == cases
    for case in cases:
        assert eval(repr(case), {"Case": Case}) == case
        assert all(candidate != case for candidate in simpler(case))


def test_invariants_see_a_wrong_loss(monkeypatch):
    from . import formulas

    honest = formulas.separable
    monkeypatch.setattr(formulas, "separable", lambda loss, e, xp: honest(loss, e, xp) * (1.001 if xp is formulas.np else 1))
    case = Case(options={"stepsize": 0.05, "smoothing": 0.1}, engine="loop")
    assert any("the loss at x is" in line for line in failures(case))
