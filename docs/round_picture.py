"""Draw how one round of FedRZO_bl walks through the folders: run one, note each call from one folder to another, write an SVG.

`python docs/round_picture.py > docs/figures/round.svg`; a test compares the stored picture with what the code does.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.engines.loop import Loop

SOURCE = Path(inspect.getfile(fz)).parent
LANES = ["engines", "methods", "federation", "problems", "data", "sets"]  # `support` serves all, so it is left out
SERVANTS = ["guards.py"]  # stands between an engine and a method to check what a user's method returns
LEFT, WIDTH, TOP, STEP = 20, 165, 44, 21
STYLE = """text { font: 12px sans-serif; fill: #333 } .lane { font-weight: bold; font-size: 14px }
.call { font-family: monospace } line { stroke: #bbb } path { stroke: #2a6fbb; fill: none } polygon { fill: #2a6fbb }"""


class Call(NamedTuple):
    """A call from one folder to another."""

    caller: str
    callee: str
    name: str


@functools.cache
def folder(code: CodeType) -> str | None:
    """Return which of the lanes a piece of code lives in."""
    path = Path(code.co_filename)
    if not path.is_relative_to(SOURCE) or path.name in SERVANTS:
        return None
    lane = path.relative_to(SOURCE).parts[0]
    return lane if lane in LANES else None


def callers(frame: FrameType) -> Iterator[str]:
    """Yield the lanes that a frame was called from, the nearest first."""
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if lane := folder(frame.f_code):
            yield lane


def calls_of_a_round() -> list[Call]:
    """Run one round of FedRZO_bl in the plain engine; return each call between folders where it first happens."""
    data = fz.ClientData([np.zeros((2, 1))] * 3, fixed=np.arange(3.0))
    problem = fz.Bilevel(
        lambda x, y, batch: jnp.sum((y - 1) ** 2) + 0.1 * jnp.sum(x**2),
        lambda x, y, batch: jnp.sum((y - x - batch[1]) ** 2),
        data, np.zeros(2), np.zeros(2), fz.sets.Box(-1.0, 1.0), lower_constraint=fz.sets.Box(-2.0, 2.0),
        modulus=2.0, smoothness=2.0,
    )  # fmt: skip
    found: dict[tuple[str, str], Call] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith(("_", "<")) or (lane := folder(code)) is None:
            return
        caller, name = next(callers(frame), lane), code.co_qualname.split(".<locals>.")[-1]
        if caller != lane:
            found.setdefault((lane, name), Call(caller, lane, name))

    with problem.precision():
        method = fz.FedRZObl(0.05, 0.1, 2, lower_rounds=3).prepare(problem)
        session = Loop().start([method], problem, [jax.random.key(0)], None)
        sys.setprofile(watch)
        session.advance(1)
        sys.setprofile(None)
    return list(found.values())


def drawn(calls: list[Call]) -> str:
    """Return the picture: a column for each folder, an arrow for each call, from top to bottom."""
    middle = {lane: LEFT + WIDTH * i + WIDTH // 2 for i, lane in enumerate(LANES)}
    width, height = 2 * LEFT + WIDTH * len(LANES), TOP + STEP * (len(calls) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        f"<style>{STYLE}</style>",
    ]
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for lane, x in middle.items():
        parts.append(f'<text class="lane" x="{x}" y="24" text-anchor="middle">{lane}</text>')
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{height - 8}"/>')
    for row, call in enumerate(calls):
        start, end, y = middle[call.caller], middle[call.callee], TOP + STEP * row + STEP // 2
        side = 1 if end > start else -1
        parts.append(f'<path d="M{start} {y}H{end - 6 * side}"/>')
        parts.append(f'<polygon points="{end},{y} {end - 7 * side},{y - 3} {end - 7 * side},{y + 3}"/>')
        anchor = "start" if end < middle[LANES[-1]] - WIDTH // 2 else "end"
        beside = end + 6 if anchor == "start" else end - 10
        lift = 4 if anchor == "start" and side > 0 else -4
        parts.append(f'<text class="call" x="{beside}" y="{y + lift}" text-anchor="{anchor}">{call.name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(drawn(calls_of_a_round()))
