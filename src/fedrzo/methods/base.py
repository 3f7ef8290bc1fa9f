"""What every method is: a frozen dataclass of hyper-parameters whose `round` reads like its listing."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, check_batch_size
from fedrzo.federation.protocol import Federation
from fedrzo.methods.guards import guard
from fedrzo.problems.base import Problem
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.lower_level import LowerLevel
from fedrzo.problems.nonsmooth import Nonsmooth
from fedrzo.support.arguments import checked_signature
from fedrzo.support.fields import check_fields, checked, set_fields, static
from fedrzo.support.numbers import Schedule, count, positive

AUTO = "auto"  # a stepsize that is searched for before the run; see `fedrzo.running.tuning`


class State(NamedTuple):
    """The smallest state a method can have: the server's x. Methods that keep more define their own, with a field x."""

    x: Any


class Method:
    """A server program over a federation.

    Numbers among the fields are traced: changing one never recompiles. Functions, strings and fields marked static (such
    as a batch size, which is a shape) are part of the compiled program.
    """

    solves: ClassVar[tuple[type[Problem], ...]] = (Nonsmooth,)
    needs_gradients: ClassVar[bool] = False
    handles_constraints: ClassVar[bool] = True
    needs_everyone: ClassVar[bool] = False  # whether every client must take part in every round
    serves_below: ClassVar[bool] = True  # whether it can solve a lower level
    knows_lower_error: ClassVar[bool] = False  # whether the history's `lower_error` is that of its own lower solutions

    def __init_subclass__(cls) -> None:
        """Make each method a pytree; here, since a class that was pickled whole is made anew without its decorators."""
        guard(cls)
        jax.tree_util.register_pytree_node(cls, _flatten, functools.partial(_unflatten, cls))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def bare(self) -> "Method":
        """This method without the wrapper, if any, that its rounds travel in."""
        return self

    def init(self, problem: Problem, key: jax.Array) -> Any:
        """Return the first state: a NamedTuple of arrays with a field x."""
        return State(jnp.asarray(problem.x0))

    def init_memory(self, problem: Problem | LowerLevel) -> Any:
        """Return what each client remembers at the start (a pytree of arrays), or None if clients keep nothing."""

    def prepare(self, problem: Problem) -> Any:
        """Return this method with everything filled in that it takes from the problem, such as estimated constants."""
        return self

    def for_cohort(self, problem: Problem, size: int) -> Any:
        """Return this method, prepared, for rounds in which so many clients take part."""
        return self

    def with_stepsize(self, stepsize: float) -> Any:
        """Return this method with another stepsize."""
        return dataclasses.replace(self, stepsize=stepsize)  # type: ignore[type-var]

    def metrics(self, state: Any) -> dict[str, Any]:
        """Return what the method itself monitors, beside what the problem does."""
        return {}

    def healthy(self, state: Any) -> Any:
        """Tell, in compiled code, whether a state may be gone on from."""
        return jnp.all(jnp.isfinite(state.x))

    def diagnose(self, state: Any, before: np.ndarray) -> str | None:
        """Say what went wrong in a state that is not healthy, if the method knows; `before` is the last good x."""

    def doubt(self, problem: Problem, x: np.ndarray, rounds: int) -> str | None:
        """Say why x, reached after so many rounds, may be wrong, if the method can tell from the problem itself."""

    def longest_step(self, constrained: bool) -> float:
        """Return the stepsize beyond which x cannot settle, with or without sets; infinite where there is none."""
        return math.inf

    def round(self, federation: Federation, state: Any, r: Any) -> Any:
        """Return the state after round r."""
        raise InputError(f"round: {type(self).__name__} does not define it; write round(self, federation, state, r)")

    def check(self, problem: Problem) -> None:
        """Refuse a problem that this method cannot solve, before anything starts."""
        if not dataclasses.is_dataclass(type(self)):
            raise InputError(f"method: the class {type(self).__name__} is not decorated; write @fz.method above it")
        name, usual = type(self).__name__, problem.usual
        if not isinstance(problem, self.solves):
            wanted = " or ".join(kind.__name__ for kind in self.solves)
            raise InputError(f"problem: found {type(problem).__name__}; {name} solves {wanted}: use a method such as fz.{usual}")
        problem.check_attributes()
        if not self.handles_constraints and not problem.sets.free:
            raise InputError(f"constraint: {name} handles no constraints; use fz.{usual}, or drop them")
        if self.needs_gradients and is_blackbox(problem.loss_fn):
            raise InputError(f"loss: {name} needs gradients, a black box has none; use fz.{usual}")
        check_batch_size(getattr(self, "batch_size", 1), problem.data)


def at(schedule: Schedule, r: Any) -> Any:
    """Return a schedule's value at round r: the number itself, or the function's value."""
    return schedule(r) if callable(schedule) else schedule


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, checked, static))
def method(cls: type) -> type:
    """Make a class a frozen dataclass; its numbers are the leaves of a pytree."""
    cls = dataclasses.dataclass(frozen=True, repr=False)(cls)
    cls.__init__ = checked_signature()(cls.__init__)  # type: ignore[misc]
    cls.__repr__ = _repr  # type: ignore[assignment]
    return cls


def _flatten(self: Any) -> tuple[tuple, tuple]:
    children, names, fixed = [], [], []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        if field.metadata.get("static") or value is None or isinstance(value, str | bool) or _is_function(value):
            fixed.append((field.name, value))
        else:
            names.append(field.name)
            children.append(value)
    return tuple(children), (tuple(names), tuple(fixed))


def _unflatten(cls: type, aux: tuple, children: tuple) -> Any:
    self: Any = object.__new__(cls)  # no __post_init__: leaves may be tracers or placeholders
    set_fields(self, **dict(aux[1]), **dict(zip(aux[0], children, strict=True)))
    return self


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, Method)


def _repr(self: Any) -> str:
    shown = []
    for field in dataclasses.fields(self):
        value = getattr(self, field.name)
        is_default = type(value) is type(field.default) and not isinstance(value, jax.Array) and value == field.default
        if not is_default:
            text = getattr(value, "__name__", repr(value)) if _is_function(value) else repr(value)
            shown.append(f"{field.name}={text}")
    return f"{type(self).__name__}({', '.join(shown)})"


def schedule_values(method: Any) -> list[Any]:
    """Return what a method's functions of the round give at some rounds, so that two methods can be told apart."""
    found: list[Any] = []
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Method):
            found.append(schedule_values(value))
        elif _is_function(value):
            found.append([float(value(np.int32(r))) for r in (0, 1, 10, 100)])
    return found


def batch(value: Any, argument: str) -> Any:
    """Return a batch size: a whole number of at least one, or "full"."""
    if isinstance(value, str) and value != FULL:
        raise InputError(f'{argument}: found {value!r}; pass a whole number of at least 1, or "full"')
    return value if value == FULL else count(value, argument)


def stepsize_or_auto(value: Any, argument: str) -> Any:
    """Return a positive number, a function of the round, or "auto"."""
    if isinstance(value, str) and value != AUTO:
        raise InputError(f'{argument}: found {value!r}; pass a positive number, or "auto"')
    return value if isinstance(value, str) else positive(value, argument)


def one_of(*known: Any) -> Callable[[Any, str], Any]:
    """Return a check that a value is one of a few."""

    def check(value: Any, argument: str) -> Any:
        if not any(type(value) is type(name) and value == name for name in known):
            *others, last = (f'"{name}"' if isinstance(name, str) else str(name) for name in known)
            raise InputError(f"{argument}: found {value!r}; pass {', '.join(others)} or {last}")
        return value

    return check


def within(fits: Callable[[Any], bool], wanted: str) -> Callable[[Any, str], Any]:
    """Return a check that a number, the same in all rounds, fits; a traced value is left alone."""

    def check(value: Any, argument: str) -> Any:
        if isinstance(value, jax.core.Tracer):
            return value
        no_number = isinstance(value, bool | str) or value is None or callable(value) or np.ndim(value) != 0
        if no_number or not fits(value):
            raise InputError(f"{argument}: found {value!r}; pass {wanted}")
        return float(value)

    return check


def parts(method: Method) -> Iterator[Method]:
    """Yield a method and all methods among its fields, such as the one that solves its lower level."""
    yield method
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        if isinstance(part := getattr(method, field.name), Method):
            yield from parts(part)


def functions(method: Method) -> dict[str, Any]:
    """Return what a method computes by, beside its numbers: its functions of the round, and its class, which may be a user's."""
    found: dict[str, Any] = {}
    for part in parts(method):
        found[type(part).__name__] = type(part)
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            if _is_function(value := getattr(part, field.name)):
                found[f"{type(part).__name__}.{field.name}"] = value
    return found
