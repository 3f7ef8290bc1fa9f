"""Engines: the same method as one compiled program, client by client, or spread over machines."""

from typing import Any

from fedrzo.engines.flower import Flower
from fedrzo.engines.loop import Loop
from fedrzo.engines.messages.receive import Event, FederationError
from fedrzo.engines.ray.engine import Ray
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.errors import InputError, nearest

ENGINES = {engine.name: engine for engine in (Simulation, Loop, Ray, Flower)}


def get(engine: Any) -> Any:
    """Return an engine by its name, or as given."""
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise InputError(f"engine: found {engine!r}{nearest(engine, ENGINES)}")
    return ENGINES[engine]()


__all__ = ["ENGINES", "Event", "FederationError", "Flower", "Loop", "Ray", "Simulation", "get"]
