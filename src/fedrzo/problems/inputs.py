"""Reading what a problem is made of: the loss, the data, the starting points, the sets and the constants."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.data.client_data import ClientData
from fedrzo.data.sampler import Sampler
from fedrzo.errors import InputError, warn
from fedrzo.problems.black_box import telling
from fedrzo.support.arguments import call_user, check_tree, describe, kind
from fedrzo.support.compiling import trial
from fedrzo.support.pytrees import Layout, as_float

PyTree = Any
Loss = Callable[..., jax.Array]
Data = ClientData | Sampler
SAMPLES = 6  # how many of a client are looked at before the first round


def check_loss(loss: Loss, argument: str, call: str, *arguments: Any) -> float:
    """Try a loss, traced as it will be in the run, and say what is wrong with what it does."""
    with telling():
        value = call_user(trial(loss), argument, call, *arguments, wrap=True)
        if not jax.tree_util.all_leaves([value]) or value is None:
            found = "None" if value is None else type(value).__name__
            raise InputError(f"{argument}: found {found}; it must return one number, the mean over its batch")
        if jnp.shape(value) != () or jnp.iscomplexobj(value) or value.dtype == bool:
            found = f"shape {jnp.shape(value)}" if jnp.shape(value) else f"one of type {value.dtype}"
            raise InputError(f"{argument}: found {found}; it must return one number, the mean over its batch")
        if not np.isfinite(float(value)):
            raise InputError(f"{argument}: found {float(value)} at x0; it must be finite there: check x0, the loss, or the data")
        if jnp.issubdtype(value.dtype, jnp.integer):
            warn(f"{argument}: found a whole number ({value.dtype}), which hides how it changes in between; return a float")
        return float(value)


def one_sample(data: Data) -> PyTree:
    """Return a batch of one sample of the first client, for trying functions on."""
    return jax.tree.map(jnp.asarray, some_samples(data, 0, 1))


def some_samples(data: Data, client: int, count: int) -> PyTree:
    """Return a batch of one client, taken evenly from all that it has; nothing is compiled where it is stored."""
    if not data.stored:
        return jax.tree.map(lambda leaf: leaf[:count], drawn(data, jax.random.key(0), np.int32(client)))
    rows = data.offsets[client] + np.linspace(0, data.sizes[client] - 1, count).astype(int)
    samples = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], data.flat)
    return samples if data.fixed is None else (samples, jax.tree.map(lambda leaf: np.asarray(leaf)[client], data.fixed))


@jax.jit
def drawn(sampler: Sampler, key: jax.Array, client: Any) -> PyTree:
    """Draw as many samples as are ever looked at together."""
    return sampler.sample(key, client, client, SAMPLES)


def flat_start(start: PyTree, argument: str) -> tuple[Layout, np.ndarray]:
    """Return how a starting point lies in one flat vector, and that vector."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(check_tree(start, argument))[0]:
        if path and isinstance(path[-1], jax.tree_util.SequenceKey) and isinstance(leaf, float | int):
            raise InputError(
                f"{argument}: found a list of numbers, which is read as that many separate numbers; pass np.array([...])"
            )
    layout = Layout.of(start, argument)
    if layout.size == 0:
        raise InputError(f"{argument}: found {describe(start)[3:]}, which has no entries; pass at least one number")
    return layout, layout.ravel(jax.tree.map(lambda leaf: as_float(leaf, argument), start))


def check_scale(scale: PyTree, layout: Layout) -> tuple[float, ...]:
    """Return units of x, from a pytree like x0 or one array for all of its entries."""
    try:
        leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(scale)]
    except (TypeError, ValueError):
        raise InputError(f"scale: found {describe(scale)[3:]}; pass positive numbers, one for each entry of x0") from None
    flat = np.concatenate([leaf.ravel() for leaf in leaves]) if leaves else np.zeros(0)
    if flat.size != layout.size:
        raise InputError(f"scale: found {flat.size} numbers, x0 has {layout.size}; pass one for each entry, in a tree like x0")
    if not np.all(np.isfinite(flat) & (flat > 0)):
        bad = float(flat[~(np.isfinite(flat) & (flat > 0))][0])
        raise InputError(f"scale: found {bad:g}; pass positive numbers, the size that a change of each entry has")
    return tuple(flat.tolist())


def check_data(data: Any, argument: str) -> Data:
    """Return clients' data, or say what was found in its place."""
    if not isinstance(data, ClientData | Sampler):
        raise InputError(
            f"{argument}: found {type(data).__name__}; wrap it: fz.ClientData([samples of client 0, ...]), or fz.Sampler"
        )
    return data


def set_family(constraint: Any, example: PyTree, clients: int) -> sets.SetFamily:
    """Read `constraint`: nothing, one set for all, or one per client."""
    if constraint is None:
        constraint = sets.Reals()
    shared = isinstance(constraint, sets.Set | sets.Public)
    if not shared and not isinstance(constraint, Sequence):
        raise InputError(f"constraint: found {kind(constraint)}; pass a set such as fz.sets.Box(-1, 1), or one per client")
    members = [constraint] if shared else list(constraint)
    if wrong := [i for i, member in enumerate(members) if not isinstance(member, sets.Set | sets.Public)]:
        found = f"constraint of client {wrong[0]}: found {kind(members[wrong[0]])}"
        raise InputError(f"{found}; pass a set such as fz.sets.Box(-1, 1), or one per client")
    if not shared and len(members) != clients:
        raise InputError(f"constraint: found {len(members)} sets for {clients} clients; pass one set, or one per client")
    public = [isinstance(member, sets.Public) for member in members]
    flat = []
    for i, member in enumerate(members):
        argument = "constraint" if shared else f"constraint of client {i}"
        flat.append(flat_set(member.set if isinstance(member, sets.Public) else member, example, argument))
    family = sets.stack_sets(flat)
    return dataclasses.replace(family, public=np.broadcast_to(public, clients)) if any(public) else family


def client_weights(weights: str, data: Data, argument: str = "data") -> np.ndarray:
    """Return each client's weight in means over some data."""
    if weights == "uniform":
        return np.full(data.clients, 1.0 / data.clients)
    if weights == "samples" and isinstance(data, ClientData):
        return np.asarray(data.sizes) / np.sum(data.sizes)
    if weights == "samples":
        raise InputError(f'weights: found "samples", but {argument} is a Sampler, which has no sample counts; use "uniform"')
    raise InputError(f'weights: found {weights!r}; pass "uniform" or "samples"')


def lower_constant(value: Any, argument: str) -> float | None:
    """Return a constant of the lower level, if one is given."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, float | int | np.number) or not 0 < value < np.inf:
        raise InputError(f"{argument}: found {value!r}; pass a positive number, or None to have it estimated")
    return float(value)


def flat_set(given: Any, example: PyTree, argument: str) -> sets.Set:
    """Return a set that acts on the flat vector of trees like an example."""
    if not isinstance(given, sets.Set):
        raise InputError(f"{argument}: found {type(given).__name__}; pass a set such as fz.sets.Box(-1, 1)")
    try:
        return sets.flatten_set(given, example, argument)
    except InputError as error:
        if argument != "lower_constraint":
            raise
        raise InputError(str(error).replace("but x has", "but y has").replace("part of x", "part of y")) from None
