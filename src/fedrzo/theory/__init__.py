"""The paper's theorems as numbers: step sizes, local steps, rounds, error bounds and iteration counts.

`nonsmooth` is Proposition 1 (FedRZO_nn), `bilevel` Theorem 2 (FedRZO_bl), `twostage` Theorem 3 (FedRZO_2s). Each returns a
`Plan` for a budget of iterations or for a target on the expected squared gradient norm. Where constants are unknown,
`estimate` finds intervals for them on samples.
"""

from fedrzo.estimates import Estimates, EstimateWarning, Interval, estimate
from fedrzo.theory.equilibrium import TwoStagePlan, twostage
from fedrzo.theory.implicit import BilevelPlan, LowerCase, bilevel
from fedrzo.theory.plan import Plan
from fedrzo.theory.problem import for_problem
from fedrzo.theory.single import consensus_bound, nonsmooth, second_moment

__all__ = [
    "BilevelPlan",
    "EstimateWarning",
    "Estimates",
    "Interval",
    "LowerCase",
    "Plan",
    "TwoStagePlan",
    "bilevel",
    "consensus_bound",
    "estimate",
    "for_problem",
    "nonsmooth",
    "second_moment",
    "twostage",
]
