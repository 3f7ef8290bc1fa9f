"""Methods: one file per published method, named after it."""

from fedrzo.methods.base import Method, State, at, method, static
from fedrzo.methods.fedrzo_nn import FedRZOnn

METHODS: dict[str, type[Method]] = {cls.__name__: cls for cls in (FedRZOnn,)}

__all__ = ["METHODS", "FedRZOnn", "Method", "State", "at", "method", "static"]
