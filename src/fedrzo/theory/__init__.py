"""The paper's theorems as numbers: step sizes, local steps, rounds, error bounds and iteration counts.

`nonsmooth` is Proposition 1 (FedRZO_nn), `bilevel` Theorem 2 (FedRZO_bl), `twostage` Theorem 3 (FedRZO_2s). Each returns a
`Plan` for a budget of iterations or for a target on the expected squared gradient norm. `smoothing_for` and
`infeasibility_bound` are Proposition 2 (ii), `implicit_lipschitz` is Lemma 2, `dimension_exponents` is in Remark 4. Where
constants are unknown, `estimate` finds intervals for them on samples.
"""

from fedrzo.theory.equilibrium import TwoStagePlan, twostage
from fedrzo.theory.estimates import Estimates, EstimateWarning, Interval, estimate
from fedrzo.theory.implicit import (
    BilevelPlan,
    DimensionExponents,
    LowerCase,
    bilevel,
    dimension_exponents,
    implicit_lipschitz,
)
from fedrzo.theory.plan import Plan
from fedrzo.theory.problem import for_problem
from fedrzo.theory.single import consensus_bound, infeasibility_bound, nonsmooth, second_moment, smoothing_for

__all__ = [
    "BilevelPlan",
    "DimensionExponents",
    "EstimateWarning",
    "Estimates",
    "Interval",
    "LowerCase",
    "Plan",
    "TwoStagePlan",
    "bilevel",
    "consensus_bound",
    "dimension_exponents",
    "estimate",
    "for_problem",
    "implicit_lipschitz",
    "infeasibility_bound",
    "nonsmooth",
    "second_moment",
    "smoothing_for",
    "twostage",
]
