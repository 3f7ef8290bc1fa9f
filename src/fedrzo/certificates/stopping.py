"""`certified`: stop a run as soon as its point is certified to be as nearly stationary as asked."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from fedrzo.certificates.certificate import Certificate
from fedrzo.certificates.examine import certify
from fedrzo.certificates.sampling import check_confidence, check_oracle, sampling_program
from fedrzo.errors import InputError
from fedrzo.federation.protocol import Cost
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.running.case import StopRule
from fedrzo.support.arguments import checked_signature
from fedrzo.support.columns import RULE_PREFIX
from fedrzo.support.numbers import constant, whole

STREAM = 4  # of the run's key that certificates are drawn from
COSTS = tuple(RULE_PREFIX + name for name in Cost._fields)


@dataclasses.dataclass(frozen=True)
class Certified(StopRule):
    """A stopping rule for `fz.run`; made by `certified`."""

    epsilon: float
    every: int
    confidence: float
    smoothing: float | None
    max_directions: int
    batch_size: int | str | None
    lower: Any
    oracle: str

    def __post_init__(self) -> None:
        constant(self.epsilon, "epsilon")
        whole(self.every, "every")
        whole(self.max_directions, "max_directions")
        check_confidence(self.confidence)
        if self.smoothing is not None:
            constant(self.smoothing, "smoothing")

    def begin(self, case: Any, engine: Any) -> "Watch":
        """Return the rule at work on one run; refuse what cannot work before the run starts."""
        case.problem.refuse_hidden("stop=fz.certified")
        if self.every % case.every:
            raise InputError(
                f"every: found {self.every} with eval_every={case.every}; a certificate needs a row: pass a multiple of it"
            )
        smoothing = self.smoothing if self.smoothing is not None else getattr(case.methods[0], "smoothing", None)
        if smoothing is None:
            raise InputError(f"smoothing: {type(case.methods[0]).__name__} has none; pass fz.certified(..., smoothing=...)")
        problem = case.problem
        check_oracle(problem, smoothing, self.oracle)
        with problem.precision():
            sampling_program(problem, smoothing, self.batch_size, self.lower, self.oracle)
        if problem.hierarchical and is_blackbox(problem.loss_fn):
            raise InputError(
                "stop: the upper loss is a black box, so nothing bounds what the lower level's error does to its gradient, and "
                "no point would be certified; call fz.certify, or write the loss with jax.numpy"
            )
        return Watch(self, problem, case.keys[0], engine, float(smoothing), getattr(case.methods[0], "moreau", None))


class Watch:
    """A stopping rule at work: what the last certificate said, and what all of them cost."""

    def __init__(
        self, rule: Certified, problem: Problem, key: jax.Array, engine: Any, smoothing: float, moreau: float | None
    ) -> None:
        self.rule, self.problem, self.engine, self.smoothing, self.moreau = rule, problem, engine, smoothing, moreau
        self.key = jax.random.fold_in(key, STREAM)
        self.last: dict[str, int | float] = dict.fromkeys(COSTS, 0) | {
            RULE_PREFIX + "norm": math.nan,
            RULE_PREFIX + "upper": math.nan,
        }

    @property
    def done(self) -> bool:
        """Whether the last certificate's upper bound is as small as asked."""
        return self.last[RULE_PREFIX + "upper"] <= self.rule.epsilon

    @property
    def reason(self) -> str:
        """What was certified."""
        upper, wanted = self.last[RULE_PREFIX + "upper"], self.rule.epsilon
        return f"|grad| <= {upper:.4g} at smoothing {self.smoothing:g}, asked for was {wanted:g}"

    @property
    def spec(self) -> dict[str, Any]:
        """The rule in plain values; `fedrzo.results.bounds` reads them."""
        told = {name: float(getattr(self.rule, name)) for name in ("epsilon", "confidence")}
        return {"certified": told | {"every": int(self.rule.every), "smoothing": self.smoothing}}

    def restore(self, row: dict[str, int | float]) -> None:
        """Go on from a stored row."""
        self.last = {name: row[name] for name in self.last}

    def columns(self, round: int, x: np.ndarray) -> dict[str, int | float]:
        """Return the rule's columns of the row of a round, after a new certificate where one is due."""
        if round > 0 and round % self.rule.every == 0:
            made = self._certify(round, x)
            for name, amount in zip(COSTS, made.cost, strict=True):
                self.last[name] += amount
            self.last |= {RULE_PREFIX + "norm": made.norm, RULE_PREFIX + "upper": made.upper}
        return dict(self.last)

    def _certify(self, round: int, x: np.ndarray) -> Certificate:
        rule, check = self.rule, round // self.rule.every
        # Many checks give many chances to be wrong: the j-th one gets a share 1/(j (j+1)) of the error, one in all.
        confidence = 1 - (1 - rule.confidence) / (check * (check + 1))
        return certify(
            self.problem, self.problem.layout.unravel(np.asarray(x)), self.smoothing, jax.random.fold_in(self.key, round),
            width=rule.epsilon**2, max_directions=rule.max_directions, confidence=confidence, batch_size=rule.batch_size,
            lower=rule.lower, engine=self.engine, threshold=rule.epsilon**2, oracle=rule.oracle,
            moreau=self.moreau,
        )  # fmt: skip


@checked_signature(seed="key")
def certified(
    epsilon: float,
    every: int = 10,
    *,
    confidence: float = 0.95,
    smoothing: float | None = None,
    max_directions: int = 16_384,
    batch_size: int | str | None = None,
    lower: Any = None,
    oracle: str = "values",
) -> Certified:
    """Return a rule for `fz.run(..., stop=...)`: stop when the gradient's norm is certified to be at most epsilon.

    Each check samples directions at the current x, apart from the run's own randomness, and the run ends when the upper
    confidence bound of the norm is at most epsilon. `confidence` is that of the whole run: the checks share the error, so the
    chance that any of them stops a run at a point whose norm is larger is at most 1 - confidence. A check ends early where a
    pilot shows the norm to be too large. Costs are in columns of their own, `certificate_evaluations` and so on, beside
    `certificate_norm` and `certificate_upper`.

    Args:
        epsilon: the norm asked for, of the gradient of the smoothed problem with the Moreau term.
        every: rounds between two checks; a multiple of the run's `eval_every`.
        confidence: that a run which was stopped was stopped rightly.
        smoothing: of the certificates; by default the method's.
        max_directions: per certificate.
        batch_size: as for `fz.certify`.
        lower: as for `fz.certify`.
        oracle: as for `fz.certify`.
    """
    return Certified(epsilon, every, confidence, smoothing, max_directions, batch_size, lower, oracle)
