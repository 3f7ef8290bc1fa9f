"""What functions use beside their arguments, and whether it is still what it was when they were compiled.

A compiled program keeps the values that a function found in its closure, its globals, its defaults or its object when it was
traced, and so do loops and compiled functions inside of it. `notice` is called where a problem begins to compute: it remembers a
fingerprint of these values for every function it meets and, where one has changed, has everything compiled anew.
"""

import functools
import hashlib
import os
import sys
import sysconfig
import types
import weakref
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedrzo.errors import HERE, warn
from fedrzo.problems.black_box import Blackbox

BUDGET = 20_000_000  # bytes of values that are looked at whole: 20 ms at the speed of the hash
NODE = 1000  # bytes that any object counts as: a walk ends after 20,000 of them
DEEP = 100  # objects inside of objects
SAMPLE = 4096  # entries that are looked at of an array beyond the budget
NUMBERS = (bool, int, float, complex, str, bytes, type(None))
INSTALLED = ("site-packages", "dist-packages")
STANDARD = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))

SEEN: dict[int, tuple[Any, bytes]] = {}  # by identity: a weak reference to a function or an object, and its fingerprint


def notice(functions: Mapping[str, Any]) -> None:
    """Have everything compiled anew if what some functions use has changed since they were last looked at.

    Programs of other functions go with it: which of them hold an old value, JAX does not tell.
    """
    walk = Walk()
    for name, function in functions.items():
        walk.of(function)
        if walk.left < 0:
            warn(
                f"{name}: it uses more values beside its arguments than are looked at ({BUDGET // 10**6} MB); if some of them "
                "change between two runs, the second may use the old ones: pass large arrays as data, such as `fixed`"
            )
            break
    if any(id(owner) in SEEN and SEEN[id(owner)][1] != found for owner, found in walk.owners):
        jax.clear_caches()
    for owner, found in walk.owners:
        _remember(owner, found)


def fingerprint(functions: Mapping[str, Any]) -> str:
    """Return a hash of the values that functions use, the same in every process; their code does not count."""
    return Walk(code=False).all(*functions.values()).hex()


def _remember(owner: Any, found: bytes) -> None:
    key = id(owner)
    try:
        SEEN[key] = weakref.ref(owner, lambda _: SEEN.pop(key, None)), found
    except TypeError:  # some objects cannot be referred to weakly; such a one is kept, so that none takes its place
        SEEN[key] = owner, found


class Walk:
    """One way through all that some functions use; every object is looked at once."""

    def __init__(self, code: bool = True) -> None:
        self.code = code  # whether the code of functions counts; where not, what holds no value counts for nothing
        self.left = BUDGET  # below zero once it is spent
        self.depth = 0
        self.owners: list[tuple[Any, bytes]] = []  # functions and objects that a program may hold values of
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the object, whose identity would otherwise be used again

    def of(self, value: Any) -> bytes:
        """Return the fingerprint of a value."""
        if isinstance(value, NUMBERS):
            return _hash(type(value).__name__, repr(value))
        if id(value) not in self._known:
            self._known[id(value)] = value, b"itself"  # for values that hold themselves
            self.left -= NODE
            self.depth += 1
            try:
                found = self._look(value) if self.left > 0 and self.depth < DEEP else b"unseen"
            except Exception:  # objects may raise whatever they like when looked at, and no run should fail by that
                found = _hash(type(value).__name__)
            self.depth -= 1
            self._known[id(value)] = value, found
        return self._known[id(value)][1]

    def all(self, *values: Any) -> bytes:
        """Return the fingerprint of several values."""
        found = [part for part in map(self.of, values) if part or self.code]
        return _hash(*found) if found or self.code else b""

    def _look(self, value: Any) -> bytes:
        looks: tuple[tuple[Any, Callable[[], bytes]], ...] = (
            (Blackbox, lambda: b"black box"),  # it is called anew each time, and finds today's values by itself
            (types.FunctionType, lambda: self._owner(value, self._function(value))),
            (types.MethodType, lambda: self.all(value.__func__, value.__self__)),
            (functools.partial, lambda: self._owner(value, self.all(value.func, value.args, value.keywords))),
            (types.CodeType, lambda: self.all(value.co_code, value.co_names, value.co_consts) if self.code else b""),
            (types.ModuleType, lambda: b""),  # of which functions look at what they name
            (type, lambda: self._class(value)),
            (staticmethod | classmethod, lambda: self.of(value.__func__)),
            (property, lambda: self.all(value.fget)),
            (Mapping, lambda: _hash(type(value).__name__, *(self.all(*item) for item in list(value.items())))),
            (list | tuple | deque, lambda: self._sequence(value)),
            (set | frozenset, lambda: _hash("set", *sorted(map(self.of, value)))),
            (object, lambda: self._array(value) if hasattr(value, "__array__") else self._object(value)),
        )
        return next(look for kind, look in looks if isinstance(value, kind))()

    def _owner(self, value: Any, found: bytes) -> bytes:
        self.owners.append((value, found))
        return found

    def _function(self, function: types.FunctionType) -> bytes:
        """Look at a function's defaults, its closure and, where it is the user's own, at the globals that it names."""
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # not filled yet
                cells.append(None)
        held = [function.__code__, *(function.__defaults__ or ()), *cells]
        held += [found for found in (function.__kwdefaults__, vars(function)) if found]
        if origin(function.__code__.co_filename) == "user":
            named = sorted(names(function.__code__))
            held += [function.__globals__[name] for name in named if name in function.__globals__]
            held += [
                found
                for name in named
                if isinstance(module := function.__globals__.get(name), types.ModuleType)
                for found in _named_in(module, named, {id(module)})
            ]
        return self.all(*held)

    def _class(self, cls: type) -> bytes:
        """Look at a user's class: what its methods use, and its attributes."""
        if origin(file_of(cls)) != "user":
            return _hash(cls.__qualname__) if self.code else b""
        members = [member for name, member in vars(cls).items() if not name.startswith("__") or callable(member)]
        return self.all(*members, *cls.__bases__)

    def _sequence(self, value: Any) -> bytes:
        name = type(value).__name__
        if all(type(entry) in NUMBERS for entry in value):
            text = repr(list(value))
            self.left -= len(text)
            return _hash(name, text)
        return _hash(name, *map(self.of, value))

    def _array(self, value: Any) -> bytes:
        try:
            if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.asarray(value)
        except Exception:  # traced, or given away to compiled code: its values are nowhere
            return _hash(type(value).__name__)
        head = _hash(str(array.dtype), str(array.shape))
        if array.dtype.hasobject:
            return _hash(head, self.of(array.tolist()))
        self.left -= array.nbytes
        if self.left < 0:
            array = array.flat[np.linspace(0, array.size - 1, min(array.size, SAMPLE)).astype(int)]
        return _hash(head, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _object(self, value: Any) -> bytes:
        """Look at an object's class and attributes; one of Python's own is known by its type alone, but for plain records."""
        cls = type(value)
        if origin(file_of(cls)) == "standard" and not isinstance(value, types.SimpleNamespace | Namespace):
            return _hash(cls.__qualname__)
        slots = [name for base in cls.__mro__ for name in _slots(base) if hasattr(value, name)]
        held = dict(getattr(value, "__dict__", {})) | {name: getattr(value, name) for name in slots}
        held |= {"": value.__wrapped__} if hasattr(value, "__wrapped__") else {}  # such as what `jax.jit` returns
        return self._owner(value, self.all(cls, held))


def names(code: types.CodeType) -> set[str]:
    """Return all names that code looks up, the code inside of it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names(constant)
    return found


def _named_in(module: types.ModuleType, named: list[str], seen: set[int]) -> list[Any]:
    """Return what a user's module holds under names that a function looks up, as in `settings.scale`."""
    if origin(file_of(module)) != "user":
        return []
    found = [vars(module)[name] for name in named if name in vars(module)]
    for inner in [value for value in found if isinstance(value, types.ModuleType) and id(value) not in seen]:
        seen.add(id(inner))
        found += _named_in(inner, named, seen)
    return found


@functools.cache
def origin(file: str | None) -> str:
    """Tell whose code is in a file: the user's, that of a package (or this library), or Python's own."""
    if file is None:
        return "standard"
    if file.startswith(HERE) or any(folder in file for folder in INSTALLED):
        return "package"
    return "standard" if file.startswith((*STANDARD, "<frozen")) else "user"


def file_of(owner: Any) -> str | None:
    """Return the file of a module or a class; a notebook and a prompt have none, but a name."""
    module = owner if isinstance(owner, types.ModuleType) else sys.modules.get(owner.__module__)
    found = getattr(module, "__file__", None)
    unknown = module is None or module.__name__ == "__main__"
    return found or ("<prompt>" if unknown else None)


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _hash(*parts: Any) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)  # the fastest of those that come with Python
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"|")
    return digest.digest()
