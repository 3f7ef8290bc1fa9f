"""Trees of arrays in plain NumPy: from their descriptions, to flat vectors, and back."""

import math
from typing import Any

import numpy as np

FLOATS = ("float16", "float32", "float64")


def leaves(tree: Any) -> list[Any]:
    """Return the leaves in JAX's order: dictionaries by sorted keys."""
    if isinstance(tree, dict):
        return [leaf for name in sorted(tree) for leaf in leaves(tree[name])]
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def fill(tree: Any, values: list[Any]) -> Any:
    """Return the tree with its leaves replaced by the values, in the order of `leaves`."""
    values = list(values)

    def visit(part: Any) -> Any:
        if isinstance(part, dict):
            filled = {name: visit(part[name]) for name in sorted(part)}
            return {name: filled[name] for name in part}
        if isinstance(part, list | tuple):
            return type(part)([visit(each) for each in part])
        return values.pop(0)

    return visit(tree)


def shape(leaf: str) -> tuple[int, ...]:
    text = leaf.split(" ")[-1]
    return tuple(int(size) for size in text.split("x")) if text and text[0].isdigit() else ()


def kind(leaf: str) -> str:
    return leaf.split(" ")[0]


def length(tree: Any) -> int:
    """Return the number of entries of all leaves."""
    return sum(math.prod(shape(leaf)) for leaf in leaves(tree))


def unflatten(tree: Any, flat: Any, dtype: str | None = None) -> Any:
    """Return the described tree with the entries of a flat array, NumPy's or JAX's."""
    parts, start = [], 0
    for leaf in leaves(tree):
        size = math.prod(shape(leaf))
        part = flat[start : start + size].reshape(shape(leaf))
        parts.append(part if dtype is None else np.asarray(part, dtype))
        start += size
    return fill(tree, parts)


def flat(values: Any) -> np.ndarray:
    """Return a tree of arrays as one flat vector."""
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves(values)])


def draw(tree: Any, rng: np.random.Generator, count: int | None = None, shift: float = 0.0) -> Any:
    """Draw arrays as described, with a leading axis of `count` samples."""
    lead = () if count is None else (count,)
    found = []
    for leaf in leaves(tree):
        size = lead + shape(leaf)
        if kind(leaf) in FLOATS:
            found.append(np.asarray(rng.normal(size=size) + shift, kind(leaf)))
        elif kind(leaf) == "bool":
            found.append(np.asarray(rng.integers(0, 2, size), bool))
        else:
            found.append(np.asarray(rng.integers(0, 4, size), kind(leaf)))
    return fill(tree, found)


def rows(samples: Any) -> np.ndarray:
    """Return a batch as a matrix with one row per sample."""
    return np.concatenate([np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in leaves(samples)], axis=1)
