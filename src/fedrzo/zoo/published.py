"""All problems whose best known value is published, from every collection; and the paper's own small examples."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedrzo.problems.minimax import Minimax
from fedrzo.sets import Box
from fedrzo.zoo import bolib, coupled_constraints, macmpec, mpecs, outrata
from fedrzo.zoo.entry import INF, PAPER, Entry, Shared, Terms, by_name, entry, shares


def paper_minimax() -> Minimax:
    """The paper's: min over x in [-1, 1], max over y in [-1, 1] with x + y <= 0, of x^2 + y; -1/4 at (1/2, -1/2)."""
    # Linear in y, so there is no modulus to give: with these, steps of length one go from end to end of [-1, 1] in two.
    return _minimax("paper_minimax", lambda x, y: (x[0] ** 2, y[0]), modulus=1.0, smoothness=1.0)


def paper_minimax_reversed() -> Minimax:
    """The paper's example with max and min exchanged, as a minimisation of minus the value; -2 at (x, y) = (-1, 1)."""
    # The outer variable is y, in whose place x stands.
    return _minimax("paper_minimax_reversed", lambda y, x: (-(x[0] ** 2), -y[0]), modulus=2.0, smoothness=2.0)


def _minimax(name: str, terms: Terms, **constants: Any) -> Minimax:
    """Return a minimax problem on [-1, 1]^2 with outer + inner <= 0, which no inner value meets beyond outer = 1."""
    zero = np.zeros(1)
    return Minimax(
        Shared(terms), shares(terms, zero, zero), zero, zero, [Box(-1.0, INF), Box(-INF, 1.0)],
        lower_constraint=lambda outer: Box(-1.0, jnp.minimum(1.0, -outer)), lower_domain=Box(-1.0, 1.0), name=name, **constants,
    )  # fmt: skip


OWN = by_name(
    Entry("paper_minimax", paper_minimax, -0.25, PAPER, ([0.5], [-0.5])),
    Entry("paper_minimax_reversed", paper_minimax_reversed, -2.0, PAPER, ([1.0], [-1.0])),
    entry(
        # In the box [-a, a] the best x is max(-1, -a): 1/8 at (-1, -1/2) with a = (2, 1/2).
        PAPER, "paper_appendix_projection",
        "|x + 1 - y|^2 / 2 where y is the nearest point of x with y >= 0; flat wherever x >= 0", 0.125,
        ([-1.0, -0.5], [0.0, 0.0]),
        lambda x, y: (0.5 * (x[0] + 1 - y[0]) ** 2, 0.5 * (x[1] + 1 - y[1]) ** 2),
        lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
        [0.0, 0.0], [0.0, 0.0], constraint=[Box([-2.0, -0.5], INF), Box(-INF, [2.0, 0.5])],
        lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    ),
)  # fmt: skip

COLLECTED = macmpec.ENTRIES | bolib.ENTRIES | outrata.ENTRIES | coupled_constraints.ENTRIES | mpecs.ENTRIES
ENTRIES: dict[str, Entry] = COLLECTED | OWN
