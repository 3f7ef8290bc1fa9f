"""Published bilevel problems whose upper constraints involve y: `coupling` is to be at most zero at (x, y(x))."""

import functools

import jax
import jax.numpy as jnp

from fedrzo.sets import Box, Set
from fedrzo.zoo.entry import AT_THE_ANSWER, BOLIB, INF, MACMPEC, NO_START, by_name, entry

BROKEN_THERE = "the collection's start breaks the upper constraint"
_entry = functools.partial(entry, BOLIB)


def _behind(x: jax.Array, y: jax.Array) -> tuple:
    """The lower level of AiyoshiShimizu1984Ex2 and SinhaMaloDeb2014TP8: y follows x at a distance of 20."""
    return (y[0] - x[0] + 20) ** 2, (y[1] - x[1] + 20) ** 2


def _far_behind(x: jax.Array) -> Set:
    return Box(-10.0, jnp.minimum(20.0, x / 2 - 5))


def _budget(x: jax.Array, y: jax.Array) -> jax.Array:
    return x[0] + x[1] + y[0] - 2 * y[1] - 40


ENTRIES = by_name(
    _entry(
        # BOLIB lists 5, a local minimum; MacMPEC has the problem as bilevel1, with its least value.
        "AiyoshiShimizu1984Ex2", "Aiyoshi and Shimizu 1984: a linear leader over a budget that both share", 5.0,
        ([0.0, 0.0], [-10.0, -10.0]),
        lambda x, y: (2 * x[0], 2 * x[1], -3 * y[0], -3 * y[1] - 60), _behind,
        [10.0, 10.0], [-10.0, -10.0], constraint=[Box(0.0, INF), Box(-INF, 50.0)], lower_constraint=_far_behind,
        lower_domain=Box(-10.0, INF), modulus=2.0, smoothness=2.0, coupling=_budget, verified=0.0,
    ),
    _entry(
        "SinhaMaloDeb2014TP8", "Sinha, Malo and Deb 2014: AiyoshiShimizu1984Ex2 with the leader's loss squared", 0.0,
        ([0.0, 0.0], [-10.0, -10.0]),
        lambda x, y: ((2 * x[0] + 2 * x[1] - 3 * y[0] - 3 * y[1] - 60) ** 2,), _behind,
        [1.0, 1.0], [-10.0, -10.0], constraint=[Box(0.0, INF), Box(-INF, 50.0)], lower_constraint=_far_behind,
        lower_domain=Box(-10.0, INF), modulus=2.0, smoothness=2.0, coupling=_budget,
    ),
    _entry(
        "Colson2002BIPA3", "Colson 2002: fourth powers above, an exponential below", 2.0, ([4.0], [0.0]),
        lambda x, y: ((x[0] - 5) ** 4, (2 * y[0] + 1) ** 4),
        lambda x, y: (jnp.exp(y[0] - x[0]), (x[0] + y[0]) ** 2, 2 * x[0] + 6 * y[0]),
        [1.0], [0.0], start=AT_THE_ANSWER, constraint=Box(0.0, INF), lower_constraint=lambda x: Box(0.0, x + 2),
        lower_domain=Box(0.0, INF), modulus=2.0, smoothness=10.0, coupling=lambda x, y: x[0] + y[0] - 4,
    ),
    _entry(
        # MacMPEC has it as ex9.2.2, with the same value.
        "ShimizuAiyoshi1981Ex1", "Shimizu and Aiyoshi 1981: gauvin with y at most x", 100.0, ([10.0], [10.0]),
        lambda x, y: (x[0] ** 2, (y[0] - 10) ** 2), lambda x, y: (4 * y[0] ** 2, 4 * (x[0] - 30) * y[0]),
        [12.0], [1.0], start=BROKEN_THERE, constraint=[Box(0.0, INF), Box(-INF, 15.0)],
        lower_constraint=lambda x: Box(0.0, jnp.minimum(20.0, 20 - x)), lower_domain=Box(-INF, 20.0),
        modulus=8.0, smoothness=8.0, coupling=lambda x, y: y[0] - x[0],
    ),
    _entry(
        "GumusFloudas2001Ex4", "Gumus and Floudas 2001: a follower who is always at 5, and what that leaves of X", 9.0,
        ([3.0], [5.0]),
        lambda x, y: ((x[0] - 3) ** 2, (y[0] - 2) ** 2), lambda x, y: (y[0] ** 2, -10 * y[0]),
        [3.5], [1.0], start=BROKEN_THERE, constraint=[Box(0.0, INF), Box(-INF, 8.0)], lower_constraint=Box(0.0, 10.0),
        modulus=2.0, smoothness=2.0,
        coupling=lambda x, y: jnp.stack([y[0] - 2 * x[0] - 1, x[0] - 2 * y[0] + 2, x[0] + 2 * y[0] - 14]),
    ),
    entry(
        MACMPEC, "df1", "y = max(0, x^2 - 1), and a disc that (x, y) must not leave", 0.0, ([1.0], [0.0]),
        lambda x, y: ((x[0] - 1 - y[0]) ** 2,), lambda x, y: (0.5 * y[0] ** 2, (1 - x[0] ** 2) * y[0]),
        [0.0], [0.0], start=NO_START, constraint=[Box(-1.0, INF), Box(-INF, 2**0.5)], lower_constraint=Box(0.0, INF),
        modulus=1.0, smoothness=1.0, coupling=lambda x, y: (x[0] - 1) ** 2 + (y[0] - 1) ** 2 - 3,
    ),
)  # fmt: skip
