"""`minimize`: one function, no federation, with the habits of `scipy.optimize.minimize`."""

import contextlib
import functools
import math
import numbers
import time
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
from fedrzo.results.result import Result
from fedrzo.solving.solve import TIME_UP, NoTimeError, SpentError, solve
from fedrzo.solving.tracing import only_computes
from fedrzo.support.arguments import check_function, checked_signature
from fedrzo.support.numbers import constant, whole

NOTHING = np.zeros((1, 1))  # the one sample of the one client there is
REMEMBERED = 1000  # values of a function that is called from Python


@checked_signature(seed="key")
def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple = (),
    bounds: Any = None,
    seconds: float = 30.0,
    key: int = 0,
    progress: bool | None = None,
    calls: int | None = None,
) -> OptimizeResult:
    """Minimise one function, smooth or not, convex or not, with or without a gradient, within a time limit.

    It is `fz.solve` for those who have no federation. JAX traces and compiles a function whose code shows no side effect, and
    uses its gradients if they agree with its values. Any other function is called from Python, with NumPy arrays alone.

    Args:
        fun: `fun(x, *args) -> number`. It is never asked outside the bounds.
        x0: where to start, a vector, or an array of any shape.
        args: what else the function gets.
        bounds: a pair (low, high) for each entry of x, None for no bound; or `scipy.optimize.Bounds`.
        seconds: the time limit; it includes compilation, some seconds. It ends sooner if no gain is left.
        key: a seed. Equal seeds give equal runs as far as they go.
        progress: as for `fz.run`.
        calls: the largest number of calls of `fun`, which is then called from Python even if JAX could trace it.

    Returns:
        A `scipy.optimize.OptimizeResult` with `x` (within the bounds), `fun` (its value there), `nfev` and `njev` (values and
        gradients that were asked for), `success` (whether it ended before the limits), `message`, and `result`, the result of
        `fz.solve`, or None if a limit was reached before its first stage. If `fun` was called from Python, `x` is the best of
        all points that it was called at; of a noisy function, the point which `fz.solve` returned.
    """
    check_function(fun, "fun")
    if not isinstance(args, tuple):
        raise InputError(f"args: found {type(args).__name__}; pass a tuple, such as args=(2.0,)")
    seconds, calls = constant(seconds, "seconds"), None if calls is None else whole(calls, "calls")
    low, high = _edges(bounds, start := _start(x0))
    if ((start < low) | (start > high)).any():
        warn("x0: found a point outside the bounds; it is moved to the nearest point within")
    start = np.clip(start, low, high)
    traced = calls is None and only_computes(functools.partial(fun, *args)) and _is_traced(fun, start, args)
    asked = Asked(fun, args, math.inf if calls is None else calls, time.perf_counter() + seconds, start)

    def loss(x: Any, batch: Any) -> Any:
        return fun(x, *args) if traced else asked(x)

    data, domain = ClientData([NOTHING]), None if bounds is None else sets.Box(low, high)
    problem = Nonsmooth(loss if traced else blackbox(loss), data, start, domain=domain, name=_name(fun))
    found, stopped = None, ""
    try:
        if not traced:
            asked.look_for_noise(start)
        found = solve(problem, seconds, key, progress=progress)
    except SpentError as spent:
        found, stopped = spent.result, str(spent)
    except NoTimeError:
        stopped = TIME_UP
    except (InputError, BlackboxError) as error:  # in the words of this call
        said = str(error).replace(", the mean over its batch", "").replace("x0, the loss, or the data", "x0, or the function")
        said = said.replace("blackbox: loss ", f"fun: {_name(fun)} ")
        raise type(error)(f"fun{said.removeprefix('loss')}" if said.startswith("loss:") else said) from error.__cause__
    value: float | None
    if not traced and not (asked.noisy and found is not None):
        x, value = asked.best
    elif found is None:
        x, value = start, _value(problem)
    else:
        x, value = np.clip(np.asarray(found.x_feasible), low, high), found.loss_feasible
    last = {"evaluations": 0, "gradients": 0, "round": 0} if found is None else found.history.last
    message = [f"{stopped}, before the first stage"] if found is None else [found.spec["stopped"], *_notes(found)]
    return OptimizeResult(
        x=x, fun=value, nfev=int(last["evaluations"]) if traced else asked.calls, njev=int(last["gradients"]),
        nit=int(last["round"]), success=not (stopped or message[0].startswith(TIME_UP)), message="; ".join(message), result=found,
    )  # fmt: skip


class Asked:
    """A function that is called from Python, within limits, and the best point that it was called at."""

    def __init__(self, fun: Callable, args: tuple, limit: float, deadline: float, start: np.ndarray) -> None:
        self.fun, self.args = fun, args
        self.limit, self.deadline = limit, deadline
        self.calls = 0
        self.best = start, math.nan
        self.noisy = False  # whether it has two values at one point
        self.known: dict[bytes, Any] = {}  # values at the last points, unless it is noisy

    def __call__(self, x: np.ndarray) -> Any:
        """Return the value at a point. The function is called once for a point that recurs soon."""
        point = x.tobytes()
        if self.noisy or point not in self.known:
            self.known[point] = self.call(x)
        if len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]
        return self.known[point]

    def call(self, x: np.ndarray) -> Any:
        """Call the function, or raise `SpentError` if a limit is reached; the first call is always made."""
        if self.calls >= self.limit:
            raise SpentError(f"the limit of {self.calls} calls was reached")
        if self.calls and time.perf_counter() >= self.deadline:
            raise SpentError(TIME_UP)
        self.calls += 1
        value = self.fun(x, *self.args)
        with contextlib.suppress(TypeError, ValueError):  # of what is no number, the run says more
            number = np.asarray(value, float).item()
            if math.isfinite(number) and not self.best[1] <= number:
                self.best = np.array(x, float), number
        return value

    def look_for_noise(self, start: np.ndarray) -> None:
        """Warn of a function with two values at one point. A run says what else is wrong with it."""
        try:
            with jax.enable_x64(True):
                first, second = (float(self.call(start)) for _ in range(2))
        except SpentError:
            raise
        except Exception:
            return
        self.noisy = first != second and not (math.isnan(first) and math.isnan(second))
        if self.noisy:
            warn(
                f"fun: found {first:.6g} and {second:.6g} at x0; points are compared by one value each, so that luck decides: "
                "make a generator with a fixed seed in each call, or return the mean of many draws"
            )


def _start(x0: Any) -> np.ndarray:
    try:
        start = np.asarray(x0, float)
    except (TypeError, ValueError):
        raise InputError(f"x0: found {type(x0).__name__}; pass an array of numbers") from None
    if not np.isfinite(start).all():
        raise InputError("x0: found a number that is not finite; start where the function is defined")
    return start


def _edges(bounds: Any, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read bounds as scipy does: return the lowest and the highest x."""
    if bounds is None:
        low, high = np.array(-np.inf), np.array(np.inf)
    elif isinstance(bounds, Bounds):
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
    return low, high


def _edge(value: Any, side: int) -> float:
    if value is None:
        return np.inf if side else -np.inf
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or np.isnan(float(value)):
        raise InputError(f"bounds: found {value!r}; pass numbers, or None for no bound")
    return float(value)


def _is_traced(fun: Callable, start: np.ndarray, args: tuple) -> bool:
    """Return whether JAX traces a function that only computes, to the same program each time.

    A function which draws numbers is called from Python. If tracing fails, the first call from Python says what is wrong.
    """
    try:
        return not differs_when_traced(lambda x: fun(x, *args), jax.ShapeDtypeStruct(start.shape, jnp.result_type(float)))
    except Exception:
        return False


def _value(problem: Nonsmooth) -> float:
    """Return the value at the start."""
    with problem.precision():
        return float(problem.evaluate(problem.start)["loss"])


def _notes(found: Result) -> list[str]:
    """Return the notes of a search that had a stage, but those on points outside of the bounds, where nothing is asked."""
    if found.spec["stages"] == 0:
        return []
    return [note for note in found.notes if note != found.problem.remark and not note.startswith("feasibility")]


def _name(fun: Callable) -> str:
    return getattr(fun, "__name__", type(fun).__name__)
