"""Problems whose lower loss is minus the upper one: the class `Minimax`, the paper's (FL_mm)."""

from collections.abc import Callable, Mapping
from typing import Any

from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.inputs import Data, Loss, PyTree
from fedrzo.problems.lower_level import Negative
from fedrzo.problems.questions import Stated
from fedrzo.support.arguments import check_function, checked_signature


class Minimax(Bilevel):
    """Minimise over x the maximum over y in Y(x) of the mean loss: the bilevel problem whose lower loss is minus the upper.

    Args:
        loss: `loss(x, y, batch) -> scalar`, strongly concave and smooth in y.
        data: the clients' data.
        x0: the starting point.
        y0: where the lower level starts.
        constraint: a set for x, or one per client.
        lower_constraint: a set for y, or a function of x that returns one.
        lower_domain: a set of x on which the lower level is well behaved, as for `Bilevel`.
        modulus: mu, the strong concavity of the loss in y; estimated where not given.
        smoothness: L, the Lipschitz constant of its gradient in y; likewise.
        weights: `"uniform"` or `"samples"`.
        test: optional batch; `test_loss` is then monitored.
        metrics: optional, `{name: metric(x, y, test)}`.
        domain: a set outside of which the loss is not defined, as for `Bilevel`.
        scale: units of x, one positive number for each entry.
        name: how the problem is called in tables.
    """

    zero_sum = True
    convexity = ("loss", "concave")

    @checked_signature()
    def __init__(
        self,
        loss: Loss,
        data: Data,
        x0: PyTree,
        y0: PyTree,
        constraint: Any = None,
        lower_constraint: Any = None,
        lower_domain: Any = None,
        modulus: float | None = None,
        smoothness: float | None = None,
        *,
        weights: str = "uniform",
        test: PyTree = None,
        metrics: Mapping[str, Callable] | None = None,
        domain: Any = None,
        scale: PyTree = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            loss, Negative(check_function(loss, "loss")), data, x0, y0, constraint, None, lower_constraint, lower_domain,
            modulus, smoothness, weights=weights, test=test, metrics=metrics, domain=domain, scale=scale, name=name,
        )  # fmt: skip

    @property
    def stated(self) -> tuple[Stated, ...]:
        """The one loss of both levels."""
        return super().stated[:1]
