"""Engines: the same method as one compiled program, client by client, or spread over machines."""

from typing import Any

from fedrzo.engines.base import Engine, Event
from fedrzo.engines.flower.engine import Flower
from fedrzo.engines.loop import Loop
from fedrzo.engines.messages.receive import FederationError
from fedrzo.engines.ray.engine import Ray
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.errors import InputError, nearest
from fedrzo.support.arguments import kind

ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Simulation, Loop, Ray, Flower)}


def get(engine: Any) -> Engine:
    """Return an engine by its name, or as given."""
    if isinstance(engine, str):
        if engine not in ENGINES:
            raise InputError(f"engine: found {engine!r}{nearest(engine, ENGINES)}")
        return ENGINES[engine]()
    if not isinstance(engine, Engine):
        raise InputError(f'engine: found {kind(engine)}; pass a name such as "loop", or fz.engines.Ray(...)')
    return engine


__all__ = ["ENGINES", "Event", "FederationError", "Flower", "Loop", "Ray", "Simulation", "get"]
