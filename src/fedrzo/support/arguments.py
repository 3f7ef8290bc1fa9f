"""Reading what a user passes: arguments that fit a signature, functions that can be called and traced, what those return."""

import functools
import inspect
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import FedrzoError, InputError, SignatureError, first_line, nearest

P = ParamSpec("P")
T = TypeVar("T")
UNTRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
FOREIGN = ("torch", "tensorflow")  # array libraries whose functions fail on what JAX passes to a traced function
NUMBERS = (bool, int, float, complex)
UNTRACED = "uses NumPy or Python control flow on traced values, or turns one into a Python number"


def checked_signature(**instead: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function, an `__init__` or a class method say in one line which argument is misspelt, missing or one too many.

    By `seed="key"`, an argument that others call `seed` is called `key` here.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        bound = next(iter(signature.parameters), "") in ("self", "cls")
        if bound:
            signature = signature.replace(parameters=[*signature.parameters.values()][1:])

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            owner = function.__name__
            if bound:  # as a user wrote it: a class, or one of its class methods
                owner = f"{args[0].__name__}.{owner}" if isinstance(args[0], type) else type(args[0]).__name__
            for name in instead.keys() & kwargs.keys():
                raise SignatureError(f"{name}: {owner} has no such argument; did you mean {instead[name]!r}?")
            check_fit(owner, signature, args[bound:], kwargs)
            return function(*args, **kwargs)

        return checked

    return decorate


def check_fit(owner: str, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that do not fit a signature, without `self` or the class."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SignatureError(_misfit(owner, signature, kwargs, error)) from None


def _misfit(owner: str, signature: inspect.Signature, given: dict[str, Any], error: TypeError) -> str:
    parameters = signature.parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    for name in given:
        if name not in known and not takes_all:
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


def check_row_function(value: Any, argument: str) -> Callable:
    """Return a function that can be called with a row of the history, or say why it cannot."""
    function = check_function(value, argument)
    try:
        inspect.signature(function).bind({})
    except ValueError:  # some functions that are written in C have no signature to look at
        return function
    except TypeError as error:
        raise SignatureError(f"{argument}: it is called with a row, but: {error}; pass a function of one row") from None
    return function


def kind(value: Any) -> str:
    """Return what something is, in words that a user knows."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    return f"an array of shape {value.shape}" if hasattr(value, "shape") else type(value).__name__


def call_user(function: Callable, argument: str, call: str, *arguments: Any, wrap: bool = False) -> Any:
    """Call a function that a user wrote as this `argument`, and say in one line what went wrong with it.

    A `call` is written like `loss(x, batch)`; `wrap` says that `fz.blackbox` is a way out where it cannot be traced.
    """
    try:
        return function(*arguments)
    except FedrzoError:
        raise
    except Exception as error:
        if (isinstance(error, UNTRACEABLE) or "Tracer" in str(error)) and (library := _foreign(error)):
            remedy = "wrap it: fz.blackbox(...), or write it" if wrap else "write it"
            raise InputError(
                f"{argument}: it uses {library}, which JAX cannot trace ({type(error).__name__}); {remedy} with jax.numpy"
            ) from error
        # What other libraries do not find in an array that is being traced is an attribute.
        if isinstance(error, UNTRACEABLE) or (isinstance(error, AttributeError) and "Tracer" in str(error)):
            way_out = ", or wrap it: fz.blackbox" if wrap else ""
            raise InputError(f"{argument}: it {UNTRACED} ({type(error).__name__}); write it with jax.numpy{way_out}") from error
        name = "" if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: "
        reason, remedy = f"{name}{first_line(error)}", _remedy(error, call, arguments)
        raise InputError(f"{argument}: calling {call} failed: {reason}; {remedy}") from error


def _foreign(error: Exception) -> str | None:
    """Return the array library that a function which an error passed through refers to, if it is none that JAX can trace."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code, seen = frame.f_code, {**frame.f_globals, **frame.f_locals}
        for value in (seen[name] for name in (*code.co_names, *code.co_varnames, *code.co_freevars) if name in seen):
            module = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
            if (package := str(module).partition(".")[0]) in FOREIGN:
                return package
    return None


def call_part(part: Callable, name: str, takes: str, *arguments: Any) -> Any:
    """Call a part of a user's own method, which takes arguments in these words. Errors of its own are raised as they are."""
    try:
        inspect.signature(part).bind(*arguments)
    except TypeError as error:
        raise SignatureError(f"{name} is called with {takes}, but: {error}; make its arguments fit") from None
    try:
        return part(*arguments)
    except UNTRACEABLE as error:
        raise InputError(
            f"{name} {UNTRACED} ({type(error).__name__}); write it with jax.numpy, and declare fields that it needs as "
            "Python values, such as a batch size, by fedrzo.methods.static(default=...)"
        ) from error


def check_arrays(tree: Any, what: str) -> None:
    """Refuse a pytree that holds something other than numbers and arrays of them."""
    for leaf in jax.tree.leaves(tree):
        dtype = leaf.dtype if isinstance(leaf, jax.Array | np.ndarray | np.generic) else np.dtype(object)
        numeric = any(jax.dtypes.issubdtype(dtype, family) for family in (np.number, np.bool_, jax.dtypes.extended))
        if not isinstance(leaf, NUMBERS) and not numeric:
            raise InputError(f"{what} {kind(leaf)}; use numbers and arrays of numbers only")


def check_tree(tree: Any, argument: str) -> Any:
    """Return a pytree, or say why JAX cannot read it."""
    try:
        jax.tree.structure(tree)
    except (TypeError, ValueError) as error:
        if "dictionary keys" not in str(error):
            raise
        raise InputError(
            f"{argument}: found a dictionary whose keys cannot be sorted; use keys of one type, such as text"
        ) from None
    return tree


def mismatch(found: Any, wanted: Any) -> str | None:
    """Say where a pytree of arrays is unlike another in structure, shape or type; None where it is not."""
    shape: Any = jax.tree.structure(found)
    expected: Any = jax.tree.structure(wanted)
    if shape != expected:
        return f"the structure {shape} where {expected} is expected"
    for (path, new), old in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True):
        at = f" at {jax.tree_util.keystr(path)}" if path else ""
        if np.shape(new) != np.shape(old):
            return f"shape {np.shape(new)}{at} where {np.shape(old)} is expected"
        # A Python number takes the type of what it meets: such a one may change.
        if _type(new) != _type(old) and not getattr(old, "weak_type", isinstance(old, NUMBERS)):
            return f"type {_type(new)}{at} where {_type(old)} is expected"
    return None


def _type(leaf: Any) -> Any:
    return leaf.dtype if isinstance(leaf, jax.Array) else jnp.result_type(leaf)


def _remedy(error: Exception, call: str, arguments: tuple) -> str:
    """Say what the function is given, since most errors are about that; other errors are its own affair."""
    if not isinstance(error, TypeError | ValueError | IndexError | KeyError):
        return "correct it"
    names = call[call.index("(") + 1 : -1].split(", ")
    given = " and ".join(f"{name} {describe(value)}" for name, value in zip(names, arguments, strict=False))
    return f"it is given {given}{', samples first' * ('batch' in names)}: make them fit"


def describe(value: Any) -> str:
    """Return the shapes of a pytree in words: `of shape (3, 2)`, or `{'a': (3,), 'b': ()}`."""
    if jax.tree_util.all_leaves([value]):
        return f"of shape {np.shape(value)}"
    return f"of shapes {jax.tree.map(np.shape, value)}"
