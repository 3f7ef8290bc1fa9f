"""Properties of the splits, and the statistics of the Dirichlet one."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedrzo.data import by_sizes, dirichlet, iid
from fedrzo.data.splits import Split
from fedrzo.errors import InputError

SEEDS = st.integers(0, 2**32)
LABELS = st.lists(st.integers(-3, 3), min_size=1, max_size=80)
ALPHAS = st.floats(1e-8, 1e8)


def check(parts: Split, samples: int) -> None:
    """Together the parts are 0, ..., samples - 1, each index once and each part sorted."""
    for part in parts:
        assert part.dtype == np.intp
        assert (np.diff(part) > 0).all()
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))


def same(a: Split, b: Split) -> bool:
    return len(a) == len(b) and all(map(np.array_equal, a, b))


@given(n=st.integers(1, 200), clients=st.integers(1, 50), seed=SEEDS)
def test_iid(n: int, clients: int, seed: int) -> None:
    assume(clients <= n)
    parts = iid(n, clients, seed)
    check(parts, n)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1
    assert same(parts, iid(np.zeros(n), clients, seed))


@given(labels=LABELS, clients=st.integers(1, 40), alpha=ALPHAS, seed=SEEDS, min_size=st.integers(0, 5))
def test_dirichlet(labels: list[int], clients: int, alpha: float, seed: int, min_size: int) -> None:
    assume(max(1, min_size) * clients <= len(labels))
    parts = dirichlet(labels, clients, alpha, seed, min_size)
    check(parts, len(labels))
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= min_size
    assert same(parts, dirichlet(np.array(labels), clients, alpha, seed, min_size))


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=20), rest=st.integers(0, 20), seed=SEEDS)
def test_by_sizes(sizes: list[int], rest: int, seed: int) -> None:
    n = sum(sizes) + rest
    parts = by_sizes(n, sizes, seed)
    assert [len(part) for part in parts] == sizes
    given_out = np.concatenate(parts)
    assert len(np.unique(given_out)) == sum(sizes)
    assert given_out.max() < n
    if rest == 0:
        check(parts, n)
    assert same(parts, by_sizes(n, sizes, seed))


def test_seeds_matter() -> None:
    labels = np.arange(100) % 4
    assert not same(iid(100, 5, 0), iid(100, 5, 1))
    assert not same(dirichlet(labels, 5, 1.0, 0), dirichlet(labels, 5, 1.0, 1))
    assert not same(by_sizes(100, [50, 50], 0), by_sizes(100, [50, 50], 1))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0, 500.0])
def test_dirichlet_concentration(alpha: float) -> None:
    """A class's shares p over m clients have E[sum p_i^2] = (alpha + 1) / (m alpha + 1).

    400 independent classes; the band is five standard errors of their mean (a correct split leaves it with
    probability 6e-7) plus what rounding to whole samples can do: each share moves by less than 1 / per_class.
    """
    classes, per_class, m = 400, 400, 10
    labels = np.repeat(np.arange(classes), per_class)
    parts = dirichlet(labels, m, alpha, seed=1, min_size=0)
    shares = np.array([np.bincount(labels[part], minlength=classes) for part in parts]) / per_class
    statistic = (shares**2).sum(axis=0)
    band = 5 * statistic.std(ddof=1) / np.sqrt(classes) + 2 / per_class + m / per_class**2
    assert abs(statistic.mean() - (alpha + 1) / (m * alpha + 1)) < band


def test_dirichlet_treats_clients_alike() -> None:
    """Each client's mean share is 1 / m, within five standard errors over 400 classes, plus rounding."""
    classes, per_class, m = 400, 100, 8
    labels = np.repeat(np.arange(classes), per_class)
    parts = dirichlet(labels, m, 0.5, seed=2, min_size=0)
    shares = np.array([np.bincount(labels[part], minlength=classes) for part in parts]) / per_class
    band = 5 * shares.std(axis=1, ddof=1) / np.sqrt(classes) + 1 / per_class
    assert (np.abs(shares.mean(axis=1) - 1 / m) < band).all()


def test_dirichlet_picks_samples_within_a_class_at_random() -> None:
    """The mean index of client 0's half of one class is the overall mean, within five standard errors."""
    n = 10_000
    part = dirichlet(np.zeros(n), 2, 1e6, seed=3)[0]
    assert abs(part.mean() - n / 2) < 5 * n / np.sqrt(12 * len(part))


@settings(max_examples=20)
@given(seed=SEEDS)
def test_many_clients_and_a_tiny_alpha_still_get_their_minimum(seed: int) -> None:
    labels = np.arange(1000) % 2
    parts = dirichlet(labels, 250, 1e-4, seed, min_size=4)
    assert {len(part) for part in parts} == {4}
    check(parts, 1000)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(10, 0, 0), "clients=0: there must be at least 1"),
        (lambda: iid(10, 11, 0), "clients=11: more than the 10 samples"),
        (lambda: iid(10, 2.5, 0), "clients=2.5: must be an integer"),
        (lambda: iid(-1, 1, 0), "n_or_labels=-1: must not be negative"),
        (lambda: iid(2.5, 1, 0), "n_or_labels=2.5: must be an integer"),
        (lambda: iid(10, 2, -1), "seed=-1: must not be negative"),
        (lambda: iid([], 1, 0), "clients=1: more than the 0 samples"),
        (lambda: dirichlet([0, 1], -1, 1.0, 0), "clients=-1: must not be negative"),
        (lambda: dirichlet([0, 1], 3, 1.0, 0), "clients=3: more than the 2 samples"),
        (lambda: dirichlet([0, 1], 2, 0.0, 0), "alpha=0.0: the concentration must be positive"),
        (lambda: dirichlet([0, 1], 2, -1, 0), "alpha=-1: the concentration must be positive"),
        (lambda: dirichlet([0, 1], 2, float("nan"), 0), "alpha=nan: the concentration must be positive"),
        (lambda: dirichlet([0, 1], 2, float("inf"), 0), "alpha=inf: the concentration must be positive"),
        (lambda: dirichlet([0, 1, 2], 2, 1.0, 0, min_size=2), "min_size=2: 2 clients need more than the 3"),
        (lambda: dirichlet([[0, 1]], 1, 1.0, 0), r"labels: found an array of shape \(1, 2\)"),
        (lambda: by_sizes(10, [], 0), "sizes: found no client"),
        (lambda: by_sizes(10, [3, 0], 0), "sizes: found 0"),
        (lambda: by_sizes(10, [6, 5], 0), "sizes: they add up to 11, more than the 10"),
    ],
)
def test_mistakes(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
