"""Whether JAX may trace a function of the user's, decided from its code: a call with tracers would reach the user's log."""

import builtins
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedrzo.problems.captures import file_of, names, origin

JAX = ("jax", "jaxlib")
COMPUTING = (*JAX, "numpy", "math", "functools", "itertools", "operator")  # packages whose functions have no side effects
PURE = (
    abs, all, any, bool, complex, divmod, enumerate, filter, float, int, len, list, map, max, min, pow, range, reversed, round,
    slice, sorted, sum, tuple, zip,
)  # fmt: skip
NUMBERS = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic)
CHANGING = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"}  # instructions whose effect outlives the call
CATCHING = {"PUSH_EXC_INFO"}  # `except`, `finally` and `with`: they may hide from JAX that a function cannot be traced
ENTRIES = {"STORE_SUBSCR", "DELETE_SUBSCR"}  # which change a list or an array, perhaps one from outside of the function
CELLS = {"STORE_DEREF", "DELETE_DEREF"}


def only_computes(function: Callable) -> bool:
    """Return whether no side effect can be seen in a function's code, and in that of all functions which it refers to.

    It may refer to JAX and to packages that import it, to NumPy, to numbers and arrays, and to functions and objects of the
    user's. What `jax.jit` returned has no side effect, since tracing is what it is for.
    """
    try:
        Walk().visit(function)
    except Exception:  # a side effect, or an object that raises an error when it is looked at
        return False
    return True


class SideEffectError(Exception):
    """A function may do more than compute a value."""


class Walk:
    """A walk through all that a function refers to."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}  # by identity, which is not used again as long as the object is held

    def visit(self, value: Any) -> None:
        """Raise `SideEffectError` unless a value is one to compute with, or a function that only computes."""
        if id(value) in self.seen or isinstance(value, NUMBERS) or _package(type(value).__module__) in JAX:
            return
        self.seen[id(value)] = value
        for part in self._parts(value):
            self.visit(part)

    def _parts(self, value: Any) -> Iterator[Any]:
        """Return what a value consists of, or refers to, none if it is known to compute."""
        if isinstance(value, types.FunctionType):
            home = value.__globals__.get("__name__")  # of what `jax.grad` returned, JAX; its `__module__` is the user's
            yield from () if _computes(home) else self._references(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__self__, value.__func__)
        elif isinstance(value, functools.partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, tuple):
            yield from value
        elif isinstance(value, types.BuiltinFunctionType | type):
            error = isinstance(value, type) and issubclass(value, Exception)
            if not (error or value in PURE or _computes(value.__module__)):
                raise SideEffectError
        elif not _computes(type(value).__module__):
            yield from self._attributes(value)

    def _references(self, function: types.FunctionType) -> Iterator[Any]:
        """Return what a function finds in its closure, its defaults and its globals."""
        code, cells = function.__code__, function.__closure__ or ()
        instructions = list(_instructions(code))
        done = {each.opname for each in instructions}
        outer = any(each.opname in CELLS and each.argval in code.co_freevars for each in instructions)
        imports = {each.argval for each in instructions if each.opname == "IMPORT_NAME"}
        if outer or done & (CHANGING | CATCHING) or not all(map(_computes, imports)):
            raise SideEffectError
        named = {each.argval for each in instructions if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        found = [function.__globals__.get(name, getattr(builtins, name, None)) for name in named]
        found += [cell.cell_contents for cell in cells if cell != types.CellType()]  # an empty one is equal to this
        found += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if done & ENTRIES and any(isinstance(value, np.ndarray) for value in found):
            raise SideEffectError
        for value in found:
            yield from self._members(value, names(code)) if isinstance(value, types.ModuleType) else (value,)

    def _members(self, module: types.ModuleType, named: set[str]) -> Iterator[Any]:
        """Return the members of a module that a function's code names, none if the module is known to compute."""
        if _computes(module.__name__) or id(module) in self.seen:
            return
        self.seen[id(module)] = module
        members = [vars(module)[name] for name in named if name in vars(module)]
        if not members:  # it loads them when they are asked for
            raise SideEffectError
        for value in members:
            yield from self._members(value, named) if isinstance(value, types.ModuleType) else (value,)

    def _attributes(self, value: Any) -> Iterator[Any]:
        """Return the attributes and methods of an object of a user's class."""
        own = [cls for cls in type(value).__mro__ if origin(file_of(cls)) == "user"]
        if not own:  # such as a list, a file or a logger
            raise SideEffectError
        yield from getattr(value, "__dict__", {}).values()
        for cls in own:
            yield from (method for name, method in vars(cls).items() if name == "__call__" or not name.startswith("__"))


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Return the instructions of code, and of the code inside of it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


@functools.cache
def _computes(module: str | None) -> bool:
    """Return whether the functions of a module have no side effects: it is NumPy's, say, or an installed one that imports JAX."""
    if _package(module) in COMPUTING:
        return True
    loaded = sys.modules.get(module or "")
    if loaded is None or origin(file_of(loaded)) != "package" or _package(module) == _package(__name__):
        return False  # a run of this library's shows progress, and warns
    imported = [each for each in vars(loaded).values() if isinstance(each, types.ModuleType)]
    return any(_package(each.__name__) in JAX for each in imported)
