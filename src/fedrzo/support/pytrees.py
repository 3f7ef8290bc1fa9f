"""Small tools for pytrees: what is traced, what is static, and one flat vector for any tree."""

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError

T = TypeVar("T", bound=type)
Instance = TypeVar("Instance")


def traced(*names: str) -> Callable[[T], T]:
    """Register a class as a pytree whose attributes `names` hold arrays and whose other attributes are static."""
    return lambda cls: register(cls, lambda: names)


def register(cls: T, names: Callable[[], tuple[str, ...]]) -> T:
    """Do the same where the names are known only when the first object is looked into."""

    def flatten(self: Any) -> tuple[tuple, tuple]:
        arrays = names()
        static = tuple((key, value) for key, value in vars(self).items() if key not in arrays)
        return tuple(getattr(self, name) for name in arrays), static

    def unflatten(static: tuple, children: tuple) -> Any:
        self: Any = object.__new__(cls)  # no __init__: leaves may be placeholders, not arrays
        for name, value in (*static, *zip(names(), children, strict=True)):
            object.__setattr__(self, name, value)
        return self

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a pytree of float arrays lies in one flat vector. Hashable, so equal layouts share compiled code."""

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtype: np.dtype
    scale: tuple[float, ...] | None = None  # the flat vector's units, one for each entry; None where all are one

    @classmethod
    def of(cls, tree: Any, argument: str) -> Self:
        """Read the layout of `tree`; `argument` is its name in error messages."""
        leaves, treedef = jax.tree.flatten(tree)
        if not leaves:
            raise InputError(f"{argument}: found no arrays; pass an array or a pytree of arrays")
        arrays = [as_float(leaf, argument) for leaf in leaves]
        dtype = np.result_type(*arrays)
        return cls(treedef, tuple(a.shape for a in arrays), np.dtype(dtype))

    @property
    def size(self) -> int:
        """The length of the flat vector."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def ravel(self, tree: Any) -> Any:
        """Flatten a tree of this layout (NumPy in, NumPy out; JAX in, JAX out)."""
        leaves = self.treedef.flatten_up_to(tree)
        if all(isinstance(leaf, np.ndarray | np.generic | float | int) for leaf in leaves):
            flat: Any = np.concatenate([np.asarray(leaf, self.dtype).ravel() for leaf in leaves])
        else:
            flat = jnp.concatenate([jnp.ravel(leaf) for leaf in leaves])
        return flat if self.scale is None else flat / np.asarray(self.scale, self.dtype)

    def plain(self, flat: Any) -> Any:
        """Return a flat vector, or rows of them, without units."""
        return flat if self.scale is None else flat * np.asarray(self.scale, flat.dtype)

    def unravel(self, flat: Any) -> Any:
        """Cut a flat vector back into the tree."""
        return self.unravel_plain(self.plain(flat))

    def unravel_plain(self, flat: Any) -> Any:
        """Cut a flat vector without units into the tree."""
        leaves, start = [], 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape))
            leaves.append(flat[start:stop].reshape(shape))
            start = stop
        return jax.tree.unflatten(self.treedef, leaves)


def as_float(leaf: Any, argument: str) -> np.ndarray:
    """Return a leaf as a float NumPy array, or say what is wrong with it."""
    try:
        array = np.asarray(leaf)
    except Exception as error:
        raise InputError(f"{argument}: found {type(leaf).__name__}, which is not an array ({error})") from None
    if array.dtype == object:
        raise InputError(f"{argument}: found {type(leaf).__name__}, which is not an array of numbers")
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"{argument}: found dtype {array.dtype}; pass floating-point numbers, such as 0.0")
    if array.dtype == np.float16:
        raise InputError(f"{argument}: found dtype float16; pass float32 or float64")
    if not np.all(np.isfinite(array)):
        raise InputError(f"{argument}: found a value that is not finite; pass finite numbers")
    return array


def replaced(instance: Instance, **attributes: Any) -> Instance:
    """Return a copy of an object with other attributes."""
    other = copy.copy(instance)
    vars(other).update(attributes)
    return other


def size_of(tree: Any) -> int:
    """Count the bytes of all arrays of a tree as they are stored, abstract ones included."""
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def nbytes(tree: Any) -> int:
    """Count the bytes of all numbers of a tree as JAX has them, without a copy on its device."""
    return size_of([jax.typeof(leaf) for leaf in jax.tree.leaves(tree)])


def fingerprint(tree: Any) -> str:
    """Return a hash of all arrays of a tree, with their shapes and types."""
    digest = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(tree)):
        digest.update(f"{leaf.shape}{leaf.dtype}".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


def on_host(tree: Any) -> Any:
    """Copy a tree of arrays to NumPy."""
    return jax.tree.map(np.asarray, tree)


def real(tree: Any) -> Any:
    """Return a tree of arrays with whole numbers as floats: weights would be cut to their type, most of them to zero."""
    return jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf.astype(float), tree)


def index(tree: Any, i: Any) -> Any:
    """Take entry (or entries) `i` of the leading axis of every leaf."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[i], tree)


def in_parts(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Return rows in parts of one size, so that compiled code need not know how many there are; the last one is repeated."""
    padded = np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % size, axis=0)])
    return np.split(padded, len(padded) // size)


def describe(tree: Any, leaves: list[np.ndarray]) -> Any:
    """Describe a tree of containers in plain values, collecting its arrays; `rebuild` is the inverse."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {"dict": {str(key): describe(value, leaves) for key, value in tree.items()}}
    if isinstance(tree, list | tuple):
        kind = "list" if isinstance(tree, list) else "tuple"
        name = {"name": type(tree).__name__} if hasattr(tree, "_fields") else {}
        return {kind: [describe(value, leaves) for value in tree], **name}
    if not isinstance(tree, np.ndarray) and not jax.tree_util.all_leaves([tree]):
        return describe(jax.tree.leaves(tree), leaves)  # a user's own container comes back as a list
    leaves.append(np.asarray(tree))
    return len(leaves) - 1


def rebuild(shape: Any, leaves: list[np.ndarray], types: dict[str, type] | None = None) -> Any:
    """Return the tree that `describe` described; a named tuple that is not among `types` comes back as a plain one."""
    if shape is None:
        return None
    if isinstance(shape, int):
        return leaves[shape]
    if "dict" in shape:
        return {key: rebuild(value, leaves, types) for key, value in shape["dict"].items()}
    values = [rebuild(value, leaves, types) for value in shape["list" if "list" in shape else "tuple"]]
    named: Any = (types or {}).get(shape.get("name", ""))
    if named is not None:
        return named(*values)
    return values if "list" in shape else tuple(values)


def write_trees(path: Path, trees: dict[str, Any]) -> None:
    """Write pytrees into an npz file, by their names."""
    arrays: dict[str, Any] = {}
    for name, tree in trees.items():
        leaves: list[np.ndarray] = []
        shape = describe(tree, leaves)
        arrays[f"{name}.tree"] = np.array(json.dumps(shape))
        arrays |= {f"{name}.{i}": leaf for i, leaf in enumerate(leaves)}
    np.savez(path, **arrays)


def read_trees(path: Path) -> dict[str, Any]:
    """Read what `write_trees` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        names = [entry.removesuffix(".tree") for entry in stored.files if entry.endswith(".tree")]
        trees = {}
        for name in names:
            count = sum(entry.startswith(f"{name}.") for entry in stored.files) - 1
            leaves = [stored[f"{name}.{i}"] for i in range(count)]
            trees[name] = rebuild(json.loads(str(stored[f"{name}.tree"])), leaves)
        return trees
