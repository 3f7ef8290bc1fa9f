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
from fedrzo.methods.scaffnew import Scaffnew
from fedrzo.methods.scaffold import Scaffold
from fedrzo.methods.simfbo import SimFBO
from fedrzo.methods.zsol import ZSOL
from fedrzo.support.numbers import constant, count, positive, whole

METHODS: dict[str, type[Method]] = {
    cls.__name__: cls
    for cls in (
        FedRZOnn,
        FedRZObl,
        FedRZO2s,
        ZSOL,
        LocalSGD,
        FedAC,
        LFD,
        FedAvg,
        FedProx,
        FedMSPP,
        FedZO,
        Scaffold,
        Scaffnew,
        DeComFL,
        LocalSGDA,
        FedNest,
        LFedNest,
        SimFBO,
        FedBiOAcc,
        MemFBO,
    )
}

__all__ = [
    "LFD",
    "METHODS",
    "ZSOL",
    "DeComFL",
    "FedAC",
    "FedAvg",
    "FedBiOAcc",
    "FedMSPP",
    "FedNest",
    "FedProx",
    "FedRZO2s",
    "FedRZObl",
    "FedRZOnn",
    "FedZO",
    "LFedNest",
    "LocalSGD",
    "LocalSGDA",
    "MemFBO",
    "Method",
    "Scaffnew",
    "Scaffold",
    "SimFBO",
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
