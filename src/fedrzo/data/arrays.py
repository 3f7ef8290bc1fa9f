"""Checks of the arrays that a user passes as clients' data."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.support.arguments import check_tree

PyTree = Any


def check_clients(clients: Any) -> list[PyTree]:
    """Return the samples of each client as trees of arrays that are alike, or say what is wrong with them."""
    if not isinstance(clients, Sequence) or isinstance(clients, str):
        raise InputError(f"data: found {type(clients).__name__}; pass a list with one entry per client")
    if len(clients) == 0:
        raise InputError("data: found no clients; pass a list with at least one client's samples")
    for client in clients:
        check_tree(client, "data")
    structure: Any = jax.tree.structure(clients[0])
    _check_columns(clients)
    checked = []
    for i, client in enumerate(clients):
        if jax.tree.structure(client) != structure:
            raise InputError(
                f"data: client {i} has structure {jax.tree.structure(client)}, client 0 has {structure}; "
                "give every client the same pytree"
            )
        client = jax.tree.map(lambda leaf: check_numbers(leaf, "data"), client)
        lengths = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(client)}
        if None in lengths:
            raise InputError(
                f"data: client {i} has single numbers where arrays of samples are expected; pass np.array(...): a list is read "
                "as several arrays, one for each of its entries"
            )
        if len(lengths) != 1:
            raise InputError(
                f"data: client {i} has leading axes {sorted(n or 0 for n in lengths)}; samples lie on the leading axis of every "
                "array, so all must be equally long (use fixed= for values that are not samples)"
            )
        if lengths == {0}:
            raise InputError(f"data: client {i} is empty; drop it or give it at least one sample")
        checked.append(client)
    return checked


def _check_columns(clients: Sequence[PyTree]) -> None:
    """Refuse tables whose columns have other names, or another order: only their numbers are kept."""
    tables = [[leaf for leaf in jax.tree.leaves(client) if hasattr(leaf, "columns")] for client in clients]
    for i, own in enumerate(tables):
        for first, other in zip(tables[0], own, strict=False):
            if list(first.columns) != list(other.columns):
                raise InputError(
                    f"data: client {i} has a table with the columns {list(other.columns)}, client 0 has {list(first.columns)}; "
                    "give all the same columns in the same order"
                )


def check_numbers(value: Any, argument: str) -> np.ndarray:
    """Return an array of numbers, or say what was found in its place."""
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        raise InputError(f"{argument}: found a sparse {type(value).__name__}; pass a dense array: its .toarray()")
    array = np.asarray(value)
    if array.dtype != bool and not jnp.issubdtype(array.dtype, jnp.number):
        raise InputError(
            f"{argument}: found {type(value).__name__} of dtype {array.dtype}; pass numbers, such as codes for categories"
        )
    return array


def concatenate(columns: list[np.ndarray], j: int) -> np.ndarray:
    """Join the j-th arrays of all clients, which must be alike and finite."""
    shapes = {column.shape[1:] for column in columns}
    if len(shapes) != 1:
        raise InputError(f"data: array {j} has samples of shapes {sorted(shapes)}; all clients' samples must be alike")
    column = np.concatenate(columns)
    if np.issubdtype(column.dtype, np.floating) and not np.isfinite(column).all():
        starts = np.cumsum([len(c) for c in columns])
        row = int(np.argwhere(~np.isfinite(column))[0][0])
        client = int(np.searchsorted(starts, row, side="right"))
        raise InputError(f"data: client {client} has a value that is not finite in array {j}; clean its samples first")
    column.flags.writeable = False  # so that a device may keep it from one run to the next
    return column


def stack_fixed(fixed: Sequence[PyTree], clients: int) -> PyTree:
    """Stack the fixed values of all clients, which must be alike and finite."""
    if len(fixed) != clients:
        raise InputError(f"fixed: found {len(fixed)} entries for {clients} clients; give one per client")
    fixed = [jax.tree.map(lambda leaf: check_numbers(leaf, "fixed"), check_tree(entry, "fixed")) for entry in fixed]
    structure: Any = jax.tree.structure(fixed[0])
    for i, entry in enumerate(fixed):
        if jax.tree.structure(entry) != structure:
            raise InputError(f"fixed: entry {i} has structure {jax.tree.structure(entry)}, entry 0 has {structure}")
    try:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *fixed)
    except ValueError as error:
        raise InputError(f"fixed: entries differ in shape ({error}); all clients' values must be alike") from None
    for leaf in jax.tree.leaves(stacked):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            client = int(np.argwhere(~np.isfinite(leaf))[0][0])
            raise InputError(f"fixed: client {client} has a value that is not finite; clean it first")
    return stacked
