"""A short run from a cold start, in a process of its own: `python helpers/courtesy_setting.py NAME asked|unasked`."""

from __future__ import annotations

import contextlib
import json
import pkgutil
import sys
import time
import warnings
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

ROUNDS = 10
# What looks after the user's mistakes, and nothing that a run needs. Errors of bad input stay.
QUESTIONS = {
    "fedrzo.running.run.warn_of_mistakes": None,
    "fedrzo.running.run.warn_of_long_steps": None,
    "fedrzo.running.run.warn_of_idle_gpu": None,
    "fedrzo.problems.start._warn_of_rounding": None,
    "fedrzo.problems.base.notice": None,
    "fedrzo.problems.captures.notice": None,
    "fedrzo.problems.bilevel.check_sign": None,
    "fedrzo.methods.fedrzo.refuse_wrong_gradients": None,
    "fedrzo.methods.fedrzo_2s.try_solver": None,
    "fedrzo.sets.family.SetFamily.refuse_empty": None,
    "fedrzo.running.ending._doubts": [],
}
NEEDED = "fedrzo.problems.curvature._at_points"  # measures what the run itself needs, whoever asks first


def stated(name: str) -> tuple[Any, Any]:
    """Return a small problem that the library does not know, and its method."""
    rng = np.random.default_rng(0)
    sizes = (40, 50, 60)
    dtype = np.float32 if "float32" in name else np.float64
    data = fz.ClientData([rng.normal(size=(size, 4)).astype(dtype) for size in sizes])
    box, x0 = fz.sets.Box(-1, 1), np.zeros(4, dtype)

    def fit(x: Any, batch: Any) -> Any:
        return jnp.mean(jnp.abs(batch @ x - 1))

    def spread(x: Any, y: Any, batch: Any) -> Any:
        return jnp.mean((batch @ x - y.sum()) ** 2)

    def ridge(x: Any, y: Any, batch: Any) -> Any:
        return jnp.sum((y - x[:2]) ** 2) + jnp.mean(batch) ** 2 * jnp.sum(y**2)

    own = [fz.sets.Polyhedron(rng.normal(size=(3, 4)), np.ones(3)), fz.sets.Ball(0.0, 1.0), box]
    problems = {
        "box, float32": lambda: fz.Nonsmooth(fit, data, x0, box),
        "box": lambda: fz.Nonsmooth(fit, data, x0, box),
        "gradients": lambda: fz.Nonsmooth(fit, data, x0, box),
        "private sets": lambda: fz.Nonsmooth(fit, data, x0, own),
        "black box": lambda: fz.Nonsmooth(fz.blackbox(lambda x, b: float(np.mean(np.abs(b @ x - 1)))), data, x0, box),
        "bilevel": lambda: fz.Bilevel(spread, ridge, data, x0, np.zeros(2), box),
        "two-stage": lambda: fz.TwoStage(
            lambda x, y, xi: jnp.sum((y - xi[:2]) ** 2) + jnp.sum(x**2), lambda x, y, xi: 2 * y - x.sum() - xi[2:], data, x0,
            np.zeros(2), lower_constraint=fz.sets.Box(0, 1),
        ),
    }  # fmt: skip
    method = {"bilevel": fz.FedRZObl, "two-stage": fz.FedRZO2s}.get(name, fz.FedRZOnn)
    return problems[name](), method(0.05, 0.1, 2, oracle="gradients" if name == "gradients" else "values")


class Meter:
    """Processor seconds in all questions of a run; one that asks another counts once."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    def timed(self, question: Any) -> Any:
        """Return a question whose time counts."""

        def asked(*given: Any, **named: Any) -> Any:
            self.depth, began = self.depth + 1, time.process_time()
            try:
                return question(*given, **named)
            finally:
                self.depth -= 1
                self.seconds += (time.process_time() - began) * (self.depth == 0)

        return asked

    def untimed(self, function: Any) -> Any:
        """Return a function whose time does not count within a question."""

        def called(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*given, **named)
            finally:
                self.seconds -= (time.process_time() - began) * (self.depth > 0)

        return called


def measure(name: str, asked: bool) -> dict[str, Any]:
    """Run ten rounds; return processor seconds, those within questions, and the number of compiled programs."""
    programs: list[str] = []
    meter = Meter()

    def listen(event: str, seconds: float, **facts: Any) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append(str(facts.get("fun_name")))

    problem, method = stated(name)
    jax.jit(lambda: 0)()  # JAX has started
    jax.monitoring.register_event_duration_secs_listener(listen)
    with contextlib.ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        for question, answer in QUESTIONS.items():
            put = meter.timed(pkgutil.resolve_name(question)) if asked else lambda *given, answer=answer: answer
            stack.enter_context(patch(question, put))
        stack.enter_context(patch(NEEDED, meter.untimed(pkgutil.resolve_name(NEEDED))))
        began = time.process_time()
        result = fz.run(method, problem, ROUNDS, progress=False)
        seconds = time.process_time() - began
    return {"seconds": seconds, "questions": meter.seconds, "programs": len(programs), "loss": float(result.history["loss"][-1])}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2] == "asked")))
