"""`minimize`: one function, no federation, with the habits of `scipy.optimize.minimize`."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import Bounds, OptimizeResult

from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.errors import BlackboxError, InputError, warn
from fedrzo.problems.black_box import blackbox
from fedrzo.problems.mistakes import differs_when_traced
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.solving.solve import TIME_UP, solve
from fedrzo.support.arguments import check_function, checked_signature

NOTHING = np.zeros((1, 1))  # the one sample of the one client there is


@checked_signature(seed="key")
def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple = (),
    bounds: Any = None,
    seconds: float = 30.0,
    key: int = 0,
    progress: bool | None = None,
) -> OptimizeResult:
    """Minimise one function, smooth or not, convex or not, with or without a gradient, within a time limit.

    It is `fz.solve` for those who have no federation. Where JAX can trace the function it is compiled, and its gradients are used
    where they are right; else it is called from Python, as it is.

    Args:
        fun: `fun(x, *args) -> number`.
        x0: where to start, a vector, or an array of any shape.
        args: what else the function gets.
        bounds: a pair (low, high) for each entry of x, None for no bound; or `scipy.optimize.Bounds`.
        seconds: the time limit; it includes compilation, some seconds. It ends sooner where nothing more is to be gained.
        key: a seed. Equal seeds give equal runs as far as they go.
        progress: as for `fz.run`.

    Returns:
        A `scipy.optimize.OptimizeResult` with `x` (within the bounds), `fun` (its value there), `nfev` and `njev` (values and
        gradients that were asked for), `success` (whether it ended before the time limit), `message`, and
        `result`, what `fz.solve` returned.
    """
    check_function(fun, "fun")
    if not isinstance(args, tuple):
        raise InputError(f"args: found {type(args).__name__}; pass a tuple, such as args=(2.0,)")
    start = _start(x0)
    constraint = None if bounds is None else _box(bounds, start)
    traced = _is_traced(fun, start, args)

    def loss(x: Any, batch: Any) -> Any:
        return fun(x, *args)

    if not traced:
        _warn_of_noise(fun, start, args)
    problem = Nonsmooth(loss if traced else blackbox(loss), ClientData([NOTHING]), start, constraint, name=_name(fun))
    try:
        found = solve(problem, seconds, key, progress=progress)
    except (InputError, BlackboxError) as error:  # in the words of this call
        said = str(error).replace(", the mean over its batch", "").replace("x0, the loss, or the data", "x0, or the function")
        said = said.replace("blackbox: loss raised", f"fun: {_name(fun)} raised")
        raise type(error)(f"fun{said.removeprefix('loss')}" if said.startswith("loss:") else said) from error.__cause__
    last, x = found.history.last, np.asarray(found.x_feasible)
    stopped = found.spec["stopped"]
    return OptimizeResult(
        x=x, fun=found.loss_feasible, nfev=int(last["evaluations"]), njev=int(last["gradients"]), nit=int(last["round"]),
        success=not stopped.startswith(TIME_UP), message="; ".join([stopped, *found.notes]), result=found,
    )  # fmt: skip


def _start(x0: Any) -> np.ndarray:
    try:
        start = np.asarray(x0, float)
    except (TypeError, ValueError):
        raise InputError(f"x0: found {type(x0).__name__}; pass an array of numbers") from None
    if not np.isfinite(start).all():
        raise InputError("x0: found a number that is not finite; start where the function is defined")
    return start


def _box(bounds: Any, start: np.ndarray) -> sets.Box:
    """Read bounds as scipy does."""
    if isinstance(bounds, Bounds):
        low, high = bounds.lb, bounds.ub
    else:
        try:
            pairs = [(low, high) for low, high in bounds]
        except (TypeError, ValueError):
            raise InputError("bounds: pass a pair (low, high) for each entry of x0, such as [(0, 1), (0, None)]") from None
        if len(pairs) != start.size:
            raise InputError(f"bounds: found {len(pairs)} pairs for an x0 of {start.size} entries; pass one for each")
        low, high = (np.array([_edge(pair[side], side) for pair in pairs]).reshape(start.shape) for side in (0, 1))
    low, high = (np.broadcast_to(np.asarray(edge, float), start.shape) for edge in (low, high))
    if (low > high).any():
        raise InputError(f"bounds: found a low above its high, at entry {int(np.argmax((low > high).ravel()))}; swap them")
    return sets.Box(low, high)


def _edge(value: Any, side: int) -> float:
    if value is None:
        return np.inf if side else -np.inf
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or np.isnan(float(value)):
        raise InputError(f"bounds: found {value!r}; pass numbers, or None for no bound")
    return float(value)


def _is_traced(fun: Callable, start: np.ndarray, args: tuple) -> bool:
    """Tell whether JAX can trace a function, to the same program each time: one that draws numbers itself is called from Python.

    What is wrong with one that cannot be traced, its first call from Python will say.
    """
    try:
        return not differs_when_traced(lambda x: fun(x, *args), jax.ShapeDtypeStruct(start.shape, jnp.result_type(float)))
    except Exception:
        return False


def _warn_of_noise(fun: Callable, start: np.ndarray, args: tuple) -> None:
    """Warn of a function with two values at one point; what else is wrong with it is said when it is called in a run."""
    try:
        first, second = (float(fun(start, *args)) for _ in range(2))
    except Exception:
        return
    if first != second and not (math.isnan(first) and math.isnan(second)):
        warn(
            f"fun: found {first:.6g} and {second:.6g} at x0; points are compared by one value each, so that luck decides: make a "
            "generator with a fixed seed in each call, or return the mean of many draws"
        )


def _name(fun: Callable) -> str:
    return getattr(fun, "__name__", type(fun).__name__)
