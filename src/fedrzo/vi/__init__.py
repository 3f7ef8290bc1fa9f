"""Solvers of lower-level variational inequalities: find y in Y with G(y)'(z - y) >= 0 for all z in Y.

`Projection` is the paper's Algorithm 5, `Extragradient` needs O(kappa) steps a digit, `Accelerated` far fewer in most cases, and
`Newton` a handful, each with a Jacobian.
Each solve returns a `Solution` with a bound on its distance to y*.
"""

from fedrzo.vi.accelerated import Accelerated
from fedrzo.vi.adjoint import adjoint
from fedrzo.vi.base import Solution, Solver, needed_tau
from fedrzo.vi.by_newton import LARGEST, Newton, accurate, lacks_jacobians
from fedrzo.vi.fixed_step import Extragradient, Projection
from fedrzo.vi.spectrum import Constants, measure

__all__ = [
    "LARGEST", "Accelerated", "Constants", "Extragradient", "Newton", "Projection", "Solution", "Solver", "accurate", "adjoint",
    "lacks_jacobians", "measure", "needed_tau",
]  # fmt: skip
