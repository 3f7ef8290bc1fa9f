"""Concrete problems by name: toys with closed-form answers, the paper's own, and published ones."""

import inspect
from collections.abc import Callable
from typing import Any

from fedrzo.errors import InputError, nearest
from fedrzo.zoo import bilevel, cnn, cournot, fair, gnash, logistic, minimax, published, relu, synthetic, toys

PROBLEMS: dict[str, Callable[..., Any]] = {
    "quadratic": toys.quadratic,
    "median": toys.median,
    "boxes": toys.boxes,
    "direct": bilevel.direct,
    "coupled": bilevel.coupled,
    "cournot": cournot.cournot,
    "gnash-random": gnash.gnash_random,
    "relu-digits": relu.relu_digits,
    "relu-mnist": relu.relu_mnist,
    "relu-cifar10": relu.relu_cifar10,
    "cnn-mnist": cnn.cnn_mnist,
    "synthetic": synthetic.synthetic,
    "logistic": logistic.logistic,
    "hyper-digits": bilevel.hyper_digits,
    "hyper-mnist": bilevel.hyper_mnist,
    "fair-digits": fair.fair_digits,
    "fair-mnist": fair.fair_mnist,
    "ncsc": minimax.ncsc,
    "fednest-minimax": minimax.fednest_minimax,
    **{entry.name: entry.make for entry in published.ENTRIES.values()},
}

LISTED_BY = "fedrzo list"


def make(name: str, **options: Any) -> Any:
    """Build a problem by name.

    Args:
        name: one of `describe()`.
        options: the arguments of its maker, such as `clients=5`.
    """
    if name not in PROBLEMS:
        raise InputError(f"problem: found {name!r}{nearest(name, PROBLEMS, LISTED_BY)}")
    maker = PROBLEMS[name]
    known = inspect.signature(maker).parameters
    for option in options:
        if option not in known:
            raise InputError(f"problem: {name} has no option {option!r}{nearest(option, known)}")
    return maker(**options)


def describe() -> dict[str, str]:
    """Return one line on each problem."""
    return {name: (maker.__doc__ or "").strip().splitlines()[0] for name, maker in PROBLEMS.items()}
