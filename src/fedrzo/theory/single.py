"""Propositions 1 and 2: FedRZO_nn on a nonsmooth, nonconvex problem, and what its stationary points are worth."""

import math
from typing import Any

from fedrzo.support.arguments import checked_signature
from fedrzo.theory.plan import LEVY, Plan, check, check_dissimilarity, check_optional, prescribe, solve


@checked_signature()
def nonsmooth(
    clients: int,
    dim: int,
    smoothing: float,
    lipschitz: float,
    *,
    dissimilarity: tuple[float, float] = (0.0, 0.0),
    gap: float | None = None,
    budget: int | None = None,
    epsilon: float | None = None,
    stepsize: float | None = None,
    local_steps: int | None = None,
) -> Plan:
    """Return what Proposition 1 prescribes for FedRZO_nn, and its error bound term by term.

    K_epsilon is solved from the bound of part (i). The order in part (ii) lacks two of its terms. One is L0 sqrt(n)/eta, the
    largest without sets if eta L0 sqrt(n) is below 1. The other is B1^2/(L0 sqrt(n) eta^3), which the proof assumes to be at
    most 1 and the statement does not mention.

    Without sets, the bound is the printed one. With sets (a dissimilarity other than (0, 0)) three things are corrected,
    all of them found on reading the proofs:

    * f_eta with its Moreau terms is (L0 sqrt(n) + 1)/eta-smooth, as the proof says; its descent inequality then drops the
      + 1. It is restored, in the limit `descent` and in the term `variance`.
    * The lemma on the mean of the Moreau gradients loses a factor 1/eta^2 (and gains one of 4 that nonexpansiveness of
      x - P(x) makes needless): 8 e_k should be 2 e_k / eta^2. The condition gamma <= 1/(4H) that follows from it becomes
      gamma <= eta/(2H); the stricter of the two counts.
    * The estimator is that of Algorithm 1, n/(2 eta^2) times the two-sided difference; the definition that opens the proofs
      prints n/eta^2, which would double every step.

    Args:
        clients: m.
        dim: n.
        smoothing: eta.
        lipschitz: L0, the largest over clients of sqrt(E L0(xi)^2).
        dissimilarity: B1 and B2 of Assumption 1 (iii): mean_i dist(x, X_i)^2 <= B1^2 + B2^2 ||x - mean_i P_i(x)||^2 for all x.
            (0, 0) if there are no sets, (0, 1) if all clients have the same.
        gap: f_eta(x0) - inf f_eta, or a bound on it.
        budget: K, local iterations of each client.
        epsilon: or a target for E||grad f_eta||^2, in place of a budget.
        stepsize: evaluate the bound at this gamma instead of the prescribed one.
        local_steps: and at this H.
    """
    m, n, eta, L0 = check(clients=clients, dim=dim, smoothing=smoothing, lipschitz=lipschitz).values()
    b1, b2 = check_dissimilarity(dissimilarity)
    gap = check_optional(gap, "gap")
    rough, constrained = L0 * math.sqrt(n), b1 > 0 or b2 > 0

    def at(K: int, stepsize: float | None, local_steps: int | None) -> Plan:
        prescribed, H = prescribe(m, n, eta, L0, K, local_steps)
        limits = {"descent": eta / (4 * (rough + constrained)), "consensus": 1 / (4 * H)}
        if constrained:
            limits["consensus"] = min(1 / (4 * H), eta / (2 * H))
        if b2 > 0:
            limits["dissimilarity"] = eta / (12 * math.sqrt(3) * b2 * (rough + 1) * H)
        gamma = min(prescribed, *limits.values()) if stepsize is None else stepsize
        drift = 72 * (H * gamma * (rough + 1) / eta) ** 2
        terms = {
            "gap": math.nan if gap is None else 8 * gap / (gamma * (K + 1)),
            "variance": 64 * LEVY * gamma * (rough + constrained) * L0**2 * n / (eta * m),
            "drift": drift * 8 * LEVY * (4 * b2**2 + 1) * L0**2 * n,
        }
        if b1 > 0:
            terms["dissimilarity"] = drift * b1**2 / eta**2
        constants = {"L0": L0, "B1": b1, "B2": b2}
        return Plan(
            "FedRZO_nn", m, n, eta, K, H, math.ceil(K / H), prescribed, limits, gamma, terms, epsilon, constants
        )  # fmt: skip

    return solve(at, budget, epsilon, gap, stepsize, local_steps)


@checked_signature()
def second_moment(dim: int, lipschitz: float) -> float:
    """Return 16 sqrt(2 pi) L0^2 n, the bound on the second moment of one two-point estimate that all three theorems use."""
    return 16 * LEVY * lipschitz**2 * dim


@checked_signature()
def smoothing_for(delta: float, dim: int, lipschitz: float) -> float:
    """Return the largest eta for which Proposition 2 (ii) vouches, delta / max(1, 4 (2 pi)^(1/4) L0 sqrt(n)).

    It is for sets that are the same for all clients. A point where the gradient of f_eta with its Moreau term vanishes is then
    delta-stationary: subgradients of f and normals of X, taken at points within delta, can be combined to zero. The proof
    asks for 2 eta <= delta, the statement and part (i), which it uses there, for eta <= delta.

    Args:
        delta: how far away subgradients and normals may be taken.
        dim: n.
        lipschitz: L0.
    """
    delta, n, L0 = check(delta=delta, dim=dim, lipschitz=lipschitz).values()
    return delta / max(1.0, infeasibility_bound(n, 1.0, L0))


@checked_signature()
def infeasibility_bound(dim: int, smoothing: float, lipschitz: float) -> float:
    """Return 4 (2 pi)^(1/4) eta L0 sqrt(n), the bound of Proposition 2 (ii) on how far such a point lies outside of X.

    The distance is eta ||grad f_eta(x)||, and the root of `second_moment` bounds that norm. So does L0 itself, since f_eta is
    L0-Lipschitz too (Lemma 1 (ii)): eta L0 is a bound as well, 6.3 sqrt(n) times smaller, and linear losses reach it.

    Args:
        dim: n.
        smoothing: eta.
        lipschitz: L0.
    """
    n, eta, L0 = check(dim=dim, smoothing=smoothing, lipschitz=lipschitz).values()
    return eta * math.sqrt(second_moment(n, L0))


@checked_signature()
def consensus_bound(
    dim: int,
    smoothing: float,
    lipschitz: float,
    stepsize: float,
    local_steps: int,
    gradients: Any = 0.0,
    dissimilarity: tuple[float, float] = (0.0, 0.0),
) -> Any:
    """Return the bound of Lemma 9 (average consensus violation) within a round of H steps, on E mean_i ||x_i,k - mean x_k||^2.

    It holds for gamma <= 1/(4H), with sets for gamma <= eta/(2H); see `nonsmooth`.

    Args:
        dim: n.
        smoothing: eta.
        lipschitz: L0.
        stepsize: gamma.
        local_steps: H.
        gradients: the sum of E||grad f_eta||^2 over the round's earlier iterates; it matters only with sets.
        dissimilarity: B1 and B2.
    """
    b1, b2 = check_dissimilarity(dissimilarity)
    fixed = 32 * LEVY * lipschitz**2 * dim * (1 + 4 * b2**2) + 4 * b1**2 / smoothing**2
    return 3 * (local_steps * stepsize) ** 2 * fixed + 24 * b2**2 * local_steps * stepsize**2 * gradients
