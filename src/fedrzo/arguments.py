"""Reading what a user passes: arguments that fit a signature, functions that can be called, functions that can be traced."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from fedrzo.errors import FedrzoError, InputError, SignatureError, first_line, nearest

P = ParamSpec("P")
T = TypeVar("T")
UNTRACEABLE = (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)


def named(init: Callable[P, T]) -> Callable[P, T]:
    """Make an `__init__` say in one line which argument is misspelt, missing, given twice or one too many."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            owner = type(args[0]).__name__
            raise SignatureError(_misfit(owner, signature, kwargs, error)) from None
        return init(*args, **kwargs)

    return checked


def _misfit(owner: str, signature: inspect.Signature, given: dict[str, Any], error: TypeError) -> str:
    known = [name for name in signature.parameters if name != "self"]
    for name in given:
        if name not in known:
            return f"{name}: {owner} has no such argument{nearest(name, known)}"
    text = str(error)
    if "missing a required" in text:
        name = text.split("'")[1]
        wanted = ", ".join(n for n in known if signature.parameters[n].default is inspect.Parameter.empty)
        return f"{name}: {owner} needs it, and it was not passed; pass {wanted}"
    return f"{owner}: {text}; pass {', '.join(known)}"


def check_function(value: Any, argument: str) -> Callable:
    """Return a function, or say what was found in its place."""
    if not callable(value):
        raise InputError(f"{argument}: found {kind(value)}, which cannot be called; pass a function")
    return value


def kind(value: Any) -> str:
    """Return what something is, in words that a user knows."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an array of shape {value.shape}" if hasattr(value, "shape") else type(value).__name__


def call_user(function: Callable, argument: str, call: str, *arguments: Any, wrap: bool = False) -> Any:
    """Call a function that a user wrote, and say in one line what went wrong with it.

    Args:
        function: the function.
        argument: how it was passed.
        call: how it is called, such as `loss(x, batch)`.
        arguments: what it is called with.
        wrap: whether `fz.blackbox` is a way out for a function that cannot be traced.
    """
    try:
        return function(*arguments)
    except FedrzoError:
        raise
    except UNTRACEABLE as error:
        way_out = ", or wrap it: fz.blackbox" if wrap else ""
        raise InputError(
            f"{argument}: it uses NumPy or Python control flow on traced values, or turns one into a Python number "
            f"({type(error).__name__}); write it with jax.numpy{way_out}"
        ) from error
    except Exception as error:
        raise InputError(
            f"{argument}: calling {call} failed: {_reason(error)}; {_remedy(error, call, arguments)}"
        ) from error


def _reason(error: Exception) -> str:
    line = first_line(error)
    return line if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {line}"


def _remedy(error: Exception, call: str, arguments: tuple) -> str:
    """Say what the function is given, since most errors are about that; other errors are its own affair."""
    if not isinstance(error, TypeError | ValueError | IndexError | KeyError):
        return "correct it"
    names = call[call.index("(") + 1 : -1].split(", ")
    given = " and ".join(f"{name} {describe(value)}" for name, value in zip(names, arguments, strict=True))
    return f"it is given {given}{', samples first' * ('batch' in names)}: make them fit"


def describe(value: Any) -> str:
    """Return the shapes of a pytree in words: `of shape (3, 2)`, or `{'a': (3,), 'b': ()}`."""
    if jax.tree_util.all_leaves([value]):
        return f"of shape {np.shape(value)}"
    return f"of shapes {jax.tree.map(np.shape, value)}"
