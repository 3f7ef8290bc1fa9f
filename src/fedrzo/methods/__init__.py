"""Methods: one file per published method, named after it."""

from fedrzo.methods.base import Method, State, at, batch, checked, method, static
from fedrzo.methods.decomfl import DeComFL
from fedrzo.methods.fedac import FedAC
from fedrzo.methods.fedavg import FedAvg
from fedrzo.methods.fedbioacc import FedBiOAcc
from fedrzo.methods.fedmspp import FedMSPP
from fedrzo.methods.fednest import FedNest, LFedNest
from fedrzo.methods.fedprox import FedProx
from fedrzo.methods.fedrzo_2s import FedRZO2s
from fedrzo.methods.fedrzo_bl import FedRZObl
from fedrzo.methods.fedrzo_nn import FedRZOnn
from fedrzo.methods.fedzo import FedZO
from fedrzo.methods.lfd import LFD
from fedrzo.methods.local_sgd import LocalSGD
from fedrzo.methods.local_sgda import LocalSGDA
from fedrzo.methods.memfbo import MemFBO
from fedrzo.methods.quasi_newton import QuasiNewton
from fedrzo.methods.scaffnew import Scaffnew
from fedrzo.methods.scaffold import Scaffold
from fedrzo.methods.simfbo import SimFBO
from fedrzo.methods.zsol import ZSOL
from fedrzo.support.numbers import constant, count, positive, whole

# Each class that is imported above is a method by its name: in specs, on the command line and in comparisons.
METHODS: dict[str, type[Method]] = {
    name: found
    for name, found in list(globals().items())
    if isinstance(found, type) and issubclass(found, Method) and found is not Method
}

__all__ = [
    *METHODS,
    "METHODS",
    "Method",
    "State",
    "at",
    "batch",
    "checked",
    "constant",
    "count",
    "method",
    "positive",
    "static",
    "whole",
]
