"""LFD, local federated descent: decreasing steps for clients that differ.

F. Haddadpour, M. Mahdavi: "On the Convergence of Local Descent Methods in Federated Learning", 2019 (arXiv 1910.14425).
Restated from memory; the class says what could not be verified.
"""

from typing import Any, ClassVar

from fedrzo.methods.base import at, method
from fedrzo.methods.local_sgd import LocalSGD


@method
class LFD(LocalSGD):
    """Local gradient steps of decreasing length, averaged once a round; clients' data may differ.

    The listing followed is the paper's local descent with periodic averaging by a server: of full gradients, or of sampled ones.
    Its summary confirms these two, and rates under the Polyak-Lojasiewicz condition where clients differ. Not verified, for want
    of its text: the steps 4/(mu (t + a)), which are taken from the same group's LUPA-SGD, and their a; how clients are drawn
    (here uniformly, and the mean is weighted). Its version for a network without a server is not here. Tested: an error without
    noise like 1/T where clients differ, and with noise like 1/(m T).

    Args:
        stepsize: a number or a function of the round; by default 4/(mu (t + a)) at local step t, with a = 8 kappa + H.
        schedule: None, or `"theorem"`: T of Theorem 2 in m^(1/3) T^(1/3) rounds (the paper's Remark 4, case 3).

    The other arguments are those of `LocalSGD`.
    """

    schedules: ClassVar[tuple[str, ...]] = ("theorem",)

    def scheduled_rounds(self, total: Any) -> Any:
        """Return (m T)^(1/3)."""
        return (self.known.clients * total) ** (1 / 3)

    def steps_to(self, tolerance: Any) -> Any:
        """Return how many steps bring a first error down by a factor."""
        # The product of 1 - 4 / (t + a) over t < T is about (a / (T + a))^4, with a = 8 kappa.
        return 8 * self.known.kappa * (tolerance**-0.25 - 1)

    def step_length(self, r: Any, t: Any, steps: Any) -> Any:
        """Return the length of step t since the start of the solve (or run)."""
        if self.stepsize is not None:
            return at(self.stepsize, r)
        return 4 / (self.known.modulus * (t + 8 * self.known.kappa + steps))
