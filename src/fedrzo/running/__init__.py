"""From a method and a problem to a result: chunks of rounds, checkpoints, progress, stop rules, the search for a stepsize."""

from fedrzo.running import loggers

__all__ = ["loggers"]
