"""Published bilevel and minimax problems with their best known values, and the paper's own small examples.

The problems of the collections are in `macmpec` and `bolib`. Published values are best known, not proved: a smaller one found
here is no error.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedrzo.methods import FedRZObl
from fedrzo.problems.bilevel import Bilevel, Minimax
from fedrzo.sets import Box
from fedrzo.zoo import bolib, macmpec
from fedrzo.zoo.entry import Entry, Shared, Terms, bilevel, shares

INF = np.inf


def paper_minimax() -> Minimax:
    """The paper's: min over x in [-1, 1], max over y in [-1, 1] with x + y <= 0, of x^2 + y; -1/4 at (1/2, -1/2)."""
    # Linear in y, so there is no modulus to give: with these, steps of length one go from end to end of [-1, 1] in two.
    return _minimax("paper_minimax", lambda x, y: (x[0] ** 2, y[0]), modulus=1.0, smoothness=1.0)


def paper_minimax_reversed() -> Minimax:
    """The paper's example with max and min exchanged, as a minimisation of minus the value; -2 at (x, y) = (-1, 1).

    The outer variable is y, in whose place x stands.
    """
    return _minimax("paper_minimax_reversed", lambda y, x: (-(x[0] ** 2), -y[0]), modulus=2.0, smoothness=2.0)


def _minimax(name: str, terms: Terms, **constants: Any) -> Minimax:
    """Return a minimax problem on [-1, 1]^2 with outer + inner <= 0, which no inner value meets beyond outer = 1."""
    zero = np.zeros(1)
    return Minimax(
        Shared(terms), shares(terms, zero, zero, 2), zero, zero, [Box(-1.0, INF), Box(-INF, 1.0)],
        lower_constraint=lambda outer: Box(-1.0, jnp.minimum(1.0, -outer)), lower_domain=Box(-1.0, 1.0),
        name=name, **constants,
    )  # fmt: skip


def paper_projection() -> Bilevel:
    """The paper's appendix: |x + 1 - y|^2 / 2 where y is the nearest point of x with y >= 0; flat wherever x >= 0.

    In the box [-a, a] the best x is max(-1, -a): 1/8 at (-1, -1/2) with a = (2, 1/2).
    """
    a = np.array([2.0, 0.5])
    return bilevel(
        "paper_appendix_projection",
        lambda x, y: (0.5 * (x[0] + 1 - y[0]) ** 2, 0.5 * (x[1] + 1 - y[1]) ** 2),
        lambda x, y: ((y[0] - x[0]) ** 2, (y[1] - x[1]) ** 2),
        [0.0, 0.0], [0.0, 0.0], constraint=[Box(-a, INF), Box(-INF, a)],
        lower_constraint=Box(0.0, INF), modulus=2.0, smoothness=2.0,
    )  # fmt: skip


def _solver(stepsize: float, smoothing: float, local_steps: int = 1, lower_rounds: int | None = None) -> FedRZObl:
    """Return FedRZO_bl with all of a client's terms in every loss value, so that directions are the only noise."""
    return FedRZObl(stepsize, smoothing, local_steps, batch_size="full", lower_rounds=lower_rounds)


OFF_THE_ANSWER = "the collection's start, x = 1, is the solution"
OTHER_VALLEY = "from the collection's x = 4 every descent ends in the local minimum at x = 5, where f = 25"
INSIDE_X = "the collection's start, projected onto X"

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("outrata31", macmpec.outrata31, 3.2077, _solver(0.2, 0.1), 100),
        Entry("stackelberg1", macmpec.stackelberg1, -3266.67, _solver(0.2, 0.2, local_steps=2), 60),
        Entry("bard1", macmpec.bard1, 17.0, _solver(0.02, 0.02), 300, 10.0, OTHER_VALLEY),
        Entry("gauvin", macmpec.gauvin, 20.0, _solver(0.05, 0.1, local_steps=2), 60),
        Entry("jr1", macmpec.jr1, 0.5, _solver(0.1, 0.05), 60, start="none published"),
        Entry("jr2", macmpec.jr2, 0.5, _solver(0.1, 0.05), 100, start="none published"),
        Entry("desilva", macmpec.desilva, -1.0, _solver(0.03, 0.02), 400),
        Entry("qpec1", macmpec.qpec1, 80.0, _solver(0.02, 0.05), 400),
        Entry("portfl-i-1", macmpec.portfl, 1.502e-5, _solver(4e-5, 1e-4, lower_rounds=40), 8000),
        Entry("ClarkWesterberg1990a", bolib.clark_westerberg, 5.0, _solver(0.05, 0.05), 200, start=OFF_THE_ANSWER),
        Entry("ShimizuAiyoshi1981Ex2", bolib.shimizu_aiyoshi, 225.0, _solver(0.1, 0.1), 2000, 100.0, INSIDE_X),
        Entry("MuuQuy2003Ex1", bolib.muu_quy, -2.0769, _solver(0.05, 0.05, lower_rounds=10), 100),
        Entry("Yezza1996Ex41", bolib.yezza, 0.5, _solver(0.05, 0.05), 300, start=INSIDE_X),
        Entry("Outrata1990Ex1a", bolib.outrata1990, -8.92, _solver(0.1, 0.05, lower_rounds=20), 300),
        Entry("paper_minimax", paper_minimax, -0.25, _solver(0.02, 0.01), 300),
        Entry("paper_minimax_reversed", paper_minimax_reversed, -2.0, _solver(0.02, 0.01), 300),
        Entry("paper_appendix_projection", paper_projection, 0.125, _solver(0.01, 0.05), 1000),
    )
}
