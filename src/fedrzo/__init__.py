"""Federated optimisation of nonsmooth, nonconvex and hierarchical problems from loss values alone."""

from fedrzo import engines, sets, theory, vi
from fedrzo.blackbox import blackbox
from fedrzo.certify import Certificate, certified, certify
from fedrzo.clientdata import ClientData, Sampler
from fedrzo.errors import CheckpointError, DivergedError, FedrzoError, InputError
from fedrzo.federation import Cost, Federation, Gathered, Reply
from fedrzo.hierarchical import Bilevel, Minimax
from fedrzo.methods import (
    LFD,
    ZSOL,
    DeComFL,
    FedAC,
    FedAvg,
    FedBiOAcc,
    FedMSPP,
    FedNest,
    FedProx,
    FedRZO2s,
    FedRZObl,
    FedRZOnn,
    FedZO,
    LFedNest,
    LocalSGD,
    LocalSGDA,
    MemFBO,
    Method,
    Scaffnew,
    Scaffold,
    SimFBO,
    State,
    method,
)
from fedrzo.problems import Nonsmooth
from fedrzo.results import History, Result, Sweep
from fedrzo.run import run, sweep
from fedrzo.twostage import TwoStage

__version__ = "0.1.0"

__all__ = [
    "LFD",
    "ZSOL",
    "Bilevel",
    "Certificate",
    "CheckpointError",
    "ClientData",
    "Cost",
    "DeComFL",
    "DivergedError",
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
    "Federation",
    "FedrzoError",
    "Gathered",
    "History",
    "InputError",
    "LFedNest",
    "LocalSGD",
    "LocalSGDA",
    "MemFBO",
    "Method",
    "Minimax",
    "Nonsmooth",
    "Reply",
    "Result",
    "Sampler",
    "Scaffnew",
    "Scaffold",
    "SimFBO",
    "State",
    "Sweep",
    "TwoStage",
    "blackbox",
    "certified",
    "certify",
    "engines",
    "method",
    "run",
    "sets",
    "sweep",
    "theory",
    "vi",
]
