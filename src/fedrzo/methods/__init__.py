"""Methods: one file per published method, named after it."""

from fedrzo.methods.base import Method, State, at, method, static
from fedrzo.methods.fedac import FedAC
from fedrzo.methods.fedrzo_2s import FedRZO2s
from fedrzo.methods.fedrzo_bl import FedRZObl
from fedrzo.methods.fedrzo_nn import FedRZOnn
from fedrzo.methods.lfd import LFD
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.zsol import ZSOL

METHODS: dict[str, type[Method]] = {
    cls.__name__: cls for cls in (FedRZOnn, FedRZObl, FedRZO2s, ZSOL, LocalSGD, FedAC, LFD)
}

__all__ = [
    "LFD",
    "METHODS",
    "ZSOL",
    "FedAC",
    "FedRZO2s",
    "FedRZObl",
    "FedRZOnn",
    "LocalSGD",
    "Method",
    "State",
    "at",
    "method",
    "static",
]
