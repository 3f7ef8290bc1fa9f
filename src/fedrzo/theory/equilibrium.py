"""Theorem 3: FedRZO_2s on a two-stage problem."""

import math
from dataclasses import dataclass

from fedrzo.support.arguments import checked_signature
from fedrzo.theory.plan import LEVY, Plan, check, check_dissimilarity, check_optional, prescribe, solve


@dataclass(frozen=True, repr=False)
class TwoStagePlan(Plan):
    """What Theorem 3 prescribes."""

    solver_stepsize: float = math.nan  # alpha = mu/L^2 of Algorithm 5
    tau: float = math.nan  # -1/ln(1 - 1/kappa^2); iteration k takes ceil(tau ln(k + 1)) projection steps
    total_lower_steps: int = 0  # at most so many projection steps, over all clients and both points

    def _more(self) -> list[str]:
        return [f"lower steps  at most {self.total_lower_steps:,}: alpha = {self.solver_stepsize:.4g}, tau = {self.tau:.4g}"]


@checked_signature()
def twostage(
    clients: int,
    dim: int,
    smoothing: float,
    lipschitz: float,
    *,
    lipschitz_y: float,
    modulus: float,
    smoothness: float,
    distance: float = 1.0,
    dissimilarity: tuple[float, float] = (0.0, 0.0),
    gap: float | None = None,
    budget: int | None = None,
    epsilon: float | None = None,
    stepsize: float | None = None,
    local_steps: int | None = None,
) -> TwoStagePlan:
    """Return what Theorem 3 prescribes for FedRZO_2s, and its error bound term by term.

    Corrected here:

    * The step size: the statement prints sqrt(m/K), the proof sqrt(eta m / (K n^1.5 L0^3)), which is used.
    * The double 1/m in Theta_1, as in `bilevel`. Here each client draws its own directions, and the one 1/m is right.
    * The condition gamma <= 1/(sqrt(24) H) of the lemma on consensus, which the theorem forgets; with sets it is
      gamma <= eta/(sqrt(6) H), for the factor that `nonsmooth` speaks of. The stricter of the two counts.
    * K_epsilon comes from the bound itself. Solved for K, the bound gives the orders (n^1.5 L0_imp^3/eta + n L0_imp^2/eta^2) /
      (m epsilon^2), n L0_imp^(-2/3) eta^-2 / (m epsilon^2)^(1/3) and n^2 eta^-2 / epsilon, up to L_y, B, B1 and B2. Printed
      are L0_imp^-2 in the first, n L0_imp^-2 eta^(2/3) in the second, and no eta in the third.

    Args:
        clients: m.
        dim: n, of the upper level.
        smoothing: eta.
        lipschitz: L0_imp, of f(x, y(x, xi), xi); the largest over clients of its root mean square over scenarios.
        lipschitz_y: L_0,y^f, of the upper loss in y; likewise.
        modulus: mu, the strong monotonicity of the map.
        smoothness: L, its Lipschitz constant.
        distance: B, a bound on ||y(x, xi) - y0||^2, the first error of a lower solve.
        dissimilarity: B1 and B2, as for `nonsmooth`.
        gap: f_eta(x0) - inf f_eta.
        budget: K.
        epsilon: or a target for E||grad f_eta||^2.
        stepsize: evaluate the bound at this gamma instead of the prescribed one.
        local_steps: and at this H.
    """
    m, n, eta, L0, Ly, mu, L = check(
        clients=clients, dim=dim, smoothing=smoothing, lipschitz=lipschitz, lipschitz_y=lipschitz_y, modulus=modulus,
        smoothness=smoothness,
    ).values()  # fmt: skip
    b1, b2 = check_dissimilarity(dissimilarity)
    gap, B = check_optional(gap, "gap"), check_optional(distance, "distance") or 0.0
    smooth = L0 * math.sqrt(n) + 1
    theta1 = 16 * LEVY * smooth * L0**2 * n / eta  # without the 1/m that is printed in it
    theta2 = 5 * smooth**2 / (8 * eta**2)
    theta3, theta4 = (factor * (n / eta * Ly) ** 2 for factor in (5, 9))
    theta5 = 18 * (b1**2 / eta**2 + (4 * b2**2 + 1) * 8 * LEVY * L0**2 * n)
    tau = 0.0 if mu >= L else -1 / math.log1p(-((mu / L) ** 2))

    def at(K: int, stepsize: float | None, local_steps: int | None) -> TwoStagePlan:
        prescribed, H = prescribe(m, n, eta, L0, K, local_steps)
        limits = {"descent": eta / (16 * smooth), "consensus": 1 / (math.sqrt(24) * H)}
        if b1 > 0 or b2 > 0:
            limits["consensus"] = min(limits["consensus"], eta / (math.sqrt(6) * H))
        if b2 > 0:
            limits["dissimilarity"] = 1 / (12 * math.sqrt(6) * H * b2 * math.sqrt(theta2))
        gamma = min(prescribed, *limits.values()) if stepsize is None else stepsize
        drift = 8 * (H * gamma) ** 2 * theta2
        terms = {
            "gap": math.nan if gap is None else 8 * gap / (gamma * K),
            "variance": 8 * gamma * theta1 / m, "drift": drift * theta5,
            "lower level": (drift * theta4 + 8 * theta3) * B * (1 + math.log(K)) / K,  # eps_k = B/(k+1)
        }  # fmt: skip
        thetas = {"Theta_1": theta1, "Theta_2": theta2, "Theta_3": theta3, "Theta_4": theta4, "Theta_5": theta5}
        constants = {"L0_imp": L0, "L0_y": Ly, "mu": mu, "L": L, "B": B, "B1": b1, "B2": b2, **thetas}
        steps = 2 * m * math.ceil(tau * math.lgamma(K + 2) + K)  # the sum of ln(k+1), and one a solve for rounding up
        return TwoStagePlan(
            "FedRZO_2s", m, n, eta, K, H, math.ceil(K / H), prescribed, limits, gamma, terms, epsilon, constants,
            mu / L**2, tau, steps,
        )  # fmt: skip

    return solve(at, budget, epsilon, gap, stepsize, local_steps)
