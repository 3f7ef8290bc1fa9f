"""Theorem 2: FedRZO_bl on a bilevel or minimax problem; the implicit function that it minimises."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedrzo.support.arguments import checked_signature
from fedrzo.support.numbers import constant
from fedrzo.theory.plan import LEVY, Plan, check, check_dissimilarity, check_optional, prescribe, solve


@dataclass(frozen=True)
class LowerCase:
    """One of Remark 4's three lower-level methods."""

    rounds: int  # communications in the last upper round's call; both points x+v and x-v travel in them
    total_rounds: int  # communications of all calls of a run, without the upper level's own R; for LFD at most so many
    order: float  # Table 3's total in m and K, up to constants


@dataclass(frozen=True, repr=False)
class BilevelPlan(Plan):
    """What Theorem 2 prescribes."""

    lower_steps: int = 0  # of a client in the last upper round's call to the lower level
    total_lower_steps: int = 0  # at most so many in all calls together
    # What that means in communications with Local SGD, FedAC and LFD (Remark 4 and Table 3)
    lower: Mapping[str, LowerCase] = field(default_factory=dict)

    def _more(self) -> list[str]:
        cases = ", ".join(f"{name} {case.total_rounds:,}" for name, case in self.lower.items())
        return [f"lower steps  up to {self.lower_steps:,} a call; communications in all: {cases}"]


@checked_signature()
def bilevel(
    clients: int,
    dim: int,
    smoothing: float,
    lipschitz: float,
    *,
    lipschitz_y: float,
    cross_lipschitz: float,
    modulus: float,
    dissimilarity: tuple[float, float] = (0.0, 0.0),
    inexactness: float = 0.0,
    exponent: float = 1.0,
    gap: float | None = None,
    budget: int | None = None,
    epsilon: float | None = None,
    stepsize: float | None = None,
    local_steps: int | None = None,
) -> BilevelPlan:
    """Return what Theorem 2 prescribes for FedRZO_bl, and its error bound term by term.

    Corrected here:

    * The double 1/m: the printed Theta_1 contains 1/m and is divided by m again. It is divided once.
    * Even that one 1/m asks for independent directions, and Algorithm 2 draws one for all clients in a round: averaging does
      not reduce its variance. The term `shared direction` adds what is missing, so that the sum is a bound; it is 0 for m = 1.
    * Theta_3 on eps_r: it carries (L_xy/mu)^2, which the bound on the inexactness does not have. eps_r is multiplied by
      5 n^2/eta^2 L_y^2 alone.
    * The accuracy eps_r is needed at x - v and x + v, the points of the two-sided estimator; printed are x and x + v.
    * The factor 1/eta^2 that `nonsmooth` speaks of: with sets, gamma <= eta/(4H) is asked for too.

    Not corrected, since nothing is known to put in its place: for H > 1 the proof takes the estimate to be unbiased at every
    local step, although later local steps depend on the round's direction. For H > 1 the bound is not proved.

    Args:
        clients: m.
        dim: n, of the upper level.
        smoothing: eta.
        lipschitz: L0_imp, of the implicit loss f(x, y(x), xi); the largest over clients of its root mean square over samples.
        lipschitz_y: L_0,y^f, of the upper loss in y; likewise.
        cross_lipschitz: L_0,x^grad h, of grad_y h in x. Over the modulus it is the Lipschitz constant of y(x).
        modulus: mu, the strong convexity of the lower loss.
        dissimilarity: B1 and B2, as for `nonsmooth`.
        inexactness: C, where T lower steps give E||y - y(x)||^2 <= C/(m T); 0 for exact lower solutions.
        exponent: a of Remark 4: round r takes n^a (r+1)^(2/3) / m lower steps; see `dimension_exponents`.
        gap: f_eta(x0) - inf f_eta.
        budget: K.
        epsilon: or a target for E||grad f_eta||^2.
        stepsize: evaluate the bound at this gamma instead of the prescribed one.
        local_steps: and at this H.
    """
    m, n, eta, L0, Ly, Lxy, mu = check(
        clients=clients, dim=dim, smoothing=smoothing, lipschitz=lipschitz,
        lipschitz_y=lipschitz_y, cross_lipschitz=cross_lipschitz, modulus=modulus,
    ).values()  # fmt: skip
    b1, b2 = check_dissimilarity(dissimilarity)
    gap, C = check_optional(gap, "gap"), check_optional(inexactness, "inexactness") or 0.0
    width = n ** constant(exponent, "exponent")
    smooth = L0 * math.sqrt(n) + 1
    theta1 = 24 * LEVY * smooth * L0**2 * n / eta  # without the 1/m that is printed in it
    theta2 = 5 * smooth**2 / (8 * eta**2)
    inexact = 5 * (n / eta * Ly) ** 2  # what eps_r is multiplied by in place of Theta_3
    theta3 = (Lxy / mu) ** 2 * inexact
    theta4 = 24 * (n / eta * Ly) ** 2
    theta5 = 48 * b1**2 / eta**2 + 384 * LEVY * (4 * b2**2 + 1) * L0**2 * n
    worst = max(theta2, theta3)

    def at(K: int, stepsize: float | None, local_steps: int | None) -> BilevelPlan:
        prescribed, H = prescribe(m, n, eta, L0, K, local_steps)
        least = max(2.0, 1 / eta) if b1 > 0 or b2 > 0 else 2.0
        limits = {
            "descent": eta / (24 * smooth), "consensus": 1 / (4 * H * least), "delay": 1 / (4 * H * math.sqrt(0.1 * theta3)),
        }  # fmt: skip
        if b2 > 0:
            limits["dissimilarity"] = 1 / (16 * H * b2 * math.sqrt(3 * worst))
        gamma = min(prescribed, *limits.values()) if stepsize is None else stepsize
        R = math.ceil(K / H)
        drift = 8 * (H * gamma) ** 2 * worst
        errors = C / width * (3 * R ** (1 / 3) - 2)  # at least the sum of eps_r = C / (n^a (r+1)^(2/3)) over r < R
        terms = {
            "gap": math.nan if gap is None else 8 * gap / (gamma * K),
            "variance": 8 * gamma * theta1 / m, "shared direction": 8 * gamma * theta1 * (1 - 1 / m),
            "drift and delay": drift * theta5, "lower level": (drift * theta4 + 8 * inexact) * H * errors / K,
        }  # fmt: skip
        thetas = {"Theta_1": theta1, "Theta_2": theta2, "Theta_3": theta3, "Theta_4": theta4, "Theta_5": theta5}
        constants = {"L0_imp": L0, "L0_y": Ly, "L_xy": Lxy, "mu": mu, "B1": b1, "B2": b2, **thetas}
        return BilevelPlan(
            "FedRZO_bl", m, n, eta, K, H, R, prescribed, limits, gamma, terms, epsilon, constants,
            lower_steps(m, width, R), _total(m, width, R), lower_cases(m, width, R, K),
        )  # fmt: skip

    return solve(at, budget, epsilon, gap, stepsize, local_steps)


@checked_signature()
def implicit_lipschitz(lipschitz_x: float, lipschitz_y: float, cross_lipschitz: float, modulus: float) -> float:
    """Return L_y L_xy / mu + L_x, the Lipschitz constant of the implicit function f(x, y(x)): Lemma 2 (iii).

    Its proof is for a lower level without sets; it holds for a set that does not depend on x, too. With root mean squares over
    samples for L_x and L_y it also bounds L0_imp, that of f(x, y(x), xi), which is what `bilevel` takes.

    Args:
        lipschitz_x: L_0,x^f, of the upper loss in x.
        lipschitz_y: L_0,y^f, of the upper loss in y.
        cross_lipschitz: L_0,x^grad h, of grad_y h in x. Over the modulus it is the Lipschitz constant of y(x), Lemma 2 (i).
        modulus: mu, the strong convexity of the lower loss.
    """
    Lx = check_optional(lipschitz_x, "lipschitz_x") or 0.0
    Ly = check_optional(lipschitz_y, "lipschitz_y") or 0.0
    Lxy = check_optional(cross_lipschitz, "cross_lipschitz") or 0.0
    return Ly * Lxy / constant(modulus, "modulus") + Lx


class DimensionExponents(NamedTuple):
    """Powers of n: of K_epsilon, and of the communications in all with Local SGD or FedAC, and with LFD."""

    iterations: float
    communications: float
    communications_lfd: float


@checked_signature()
def dimension_exponents(exponent: float = 1.0) -> DimensionExponents:
    """Return how Remark 4 has complexities grow with n where a round takes n^a (r+1)^(2/3) / m lower steps.

    K_epsilon is of the order n^max(5 - 2a, 3), communications are of that to the power 3/4, with LFD 11/12 and n^(a/3) times
    as many. a = 1 is the least for which the first is n^3. The 5 comes from a product that the bound divides by m K, and the
    remark by sqrt(m K): solved from the bound itself (`bilevel(..., epsilon=...)`) the order is n^max(4 - 2a, 3) as epsilon
    vanishes, so that a = 1/2 would do.

    Args:
        exponent: a.
    """
    a = constant(exponent, "exponent")
    iterations = max(5 - 2 * a, 3.0)
    return DimensionExponents(iterations, 0.75 * iterations, 11 / 12 * iterations + a / 3)


def lower_steps(m: int, width: float, R: int) -> int:
    """Return T of the last of R rounds, n^a R^(2/3) / m; at least m, as the lower-level methods take it. `width` is n^a."""
    return max(math.ceil(width * R ** (2 / 3) / m - 1e-9), m)


def _total(m: int, width: float, R: int) -> int:
    """Return at most the sum of T over R rounds: n^a (r+1)^(2/3) / m by its integral; T = m or rounding up are added."""
    return math.ceil(width / m * 0.6 * ((R + 1) ** (5 / 3) - 1) + R * m)


def lower_cases(m: int, width: float, R: int, K: int) -> dict[str, LowerCase]:
    """Return Remark 4's three cases: m, m^(1/3) or (m T)^(1/3) communications in a call of T steps."""
    sgd, fedac = m, math.ceil(m ** (1 / 3) - 1e-9)
    last = math.ceil((m * lower_steps(m, width, R)) ** (1 / 3) - 1e-9)
    # At most the sum over rounds of (m T)^(1/3) = n^(a/3) (r+1)^(2/9), by its integral; T = m and rounding up are added.
    lfd = math.ceil(width ** (1 / 3) * 9 / 11 * ((R + 1) ** (11 / 9) - 1)) + R * (math.ceil(m ** (2 / 3) - 1e-9) + 1)
    return {
        "Local SGD": LowerCase(sgd, R * sgd, m ** (7 / 4) * K**0.75),
        "FedAC": LowerCase(fedac, R * fedac, m ** (13 / 12) * K**0.75),
        "LFD": LowerCase(last, lfd, (m * K) ** (11 / 12)),
    }
