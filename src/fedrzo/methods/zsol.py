"""ZSOL: the zeroth-order method for stochastic MPECs that FedRZO_2s extends.

S. Cui, U. V. Shanbhag, F. Yousefian: "Complexity guarantees for an implicit smoothing-enabled method for stochastic MPECs",
Mathematical Programming 198 (2023), 1153-1225.
"""

import dataclasses
from typing import Any, NoReturn

from fedrzo.errors import InputError
from fedrzo.methods.base import method
from fedrzo.methods.fedrzo_2s import FedRZO2s


@method
class ZSOL(FedRZO2s):
    """FedRZO_2s with one local step a round: every step is averaged, which is centralised ZSOL on the clients' scenarios.

    With one client it is the centralised method itself. Two details are the federated paper's, so that comparisons show the
    effect of local steps alone: losses are compared at x+v and x-v (the original takes x+v and x), and X enters by its Moreau
    term (the original projects onto X).

    Args:
        stepsize: gamma; a number, or a function of the round.
        smoothing: eta.
        batch_size: scenarios per step and client, or `"full"`.
        solver: the lower-level solver.
    """

    local_steps: Any = dataclasses.field(default=1, init=False)

    @classmethod
    def from_theory(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: what the theory prescribes is a number of local steps, and here it is one."""
        raise InputError("from_theory: ZSOL takes one local step a round, the theory prescribes how many; use fz.FedRZO2s")
