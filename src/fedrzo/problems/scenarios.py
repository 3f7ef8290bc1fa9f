"""Problems with a lower level for each scenario: the scenarios, the map of each, its constants, measured and checked."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets, vi
from fedrzo.errors import InputError, warn
from fedrzo.problems.black_box import is_blackbox
from fedrzo.problems.inputs import Data, PyTree, one_sample
from fedrzo.problems.lower_level import Hierarchical
from fedrzo.support.arguments import call_user
from fedrzo.support.compiling import on_data, once
from fedrzo.support.pytrees import index
from fedrzo.vi.base import SIGN
from fedrzo.vi.spectrum import DENSE, at_point, largest_eigenvalue

PROBES = 3  # points y of each scenario: y0 and two around it, all projected onto Y
WORK = 2e8  # multiplications, or so, that a measurement may take; they decide how many scenarios are measured
EACH = 1000  # multiplications that a scenario takes beside those that grow with y
FEWEST = 8  # scenarios of a client that are measured, where it has as many
AT_A_TIME = 128  # scenarios measured together; bounds the memory that their Jacobians take
EMPTY = 1e-4  # a projection onto Y that still breaks a constraint by more than this says that Y is empty
FAR = 1e6  # a projection that moves this far out, from twice as far, says that Y is unbounded
POWER = 40  # steps of power iteration that rank scenarios, where a Jacobian is too large to be formed


class Scenarios(NamedTuple):
    """All scenarios over which a two-stage problem is monitored."""

    fetch: Callable[[jax.Array], PyTree]  # returns the scenarios of some rows
    owner: jax.Array  # the client of each row
    weights: jax.Array  # of each row in the mean loss; they sum to one


class WithMap(Hierarchical):
    """A problem whose lower levels are variational inequalities, one for each scenario."""

    map_fn: Callable
    client_constants = vi.Constants(None, None)  # until they are measured

    def map(self, x: jax.Array, y: jax.Array, xi: PyTree) -> jax.Array:
        """Return the map at flat x and y, as a flat vector."""
        return self.lower_layout.ravel(self.map_fn(*self.trees(x, y), xi))

    @property
    def scenario_axis(self) -> Any:
        """Where a batch has its scenarios: a client's fixed values belong to all of them."""
        return 0 if self.data.fixed is None else (0, None)

    def alone(self, batch: PyTree) -> PyTree:
        """Return the one scenario of a batch of one."""
        samples, *fixed = (batch,) if self.data.fixed is None else batch
        scenario = jax.tree.map(lambda leaf: leaf[0], samples)
        return (scenario, *fixed) if fixed else scenario

    def scenarios(self) -> Scenarios:
        """Return all monitored scenarios, whose they are, and their weights."""
        data, clients = self.data, jnp.asarray(self.client_weights, float)
        if not data.stored:
            drawn = jax.vmap(data.everything_of)(jnp.arange(data.clients)) if data.drawn is None else data.drawn
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), drawn)
            owner = jnp.repeat(jnp.arange(data.clients), data.evaluation)
            return Scenarios(lambda rows: index(flat, rows), owner, (clients / data.evaluation)[owner])
        if data.identical:  # stored once: every sample counts for all clients
            owner = jnp.zeros(data.samples, jnp.int32)
            return Scenarios(data._rows, owner, jnp.full(data.samples, 1 / data.samples))
        sizes = jnp.asarray(data.sizes)
        owner = jnp.repeat(jnp.arange(data.clients), sizes, total_repeat_length=data.samples)

        def fetch(rows: jax.Array) -> PyTree:
            samples = data._rows(rows)
            return samples if data.fixed is None else (samples, index(data.fixed, owner[rows]))

        return Scenarios(fetch, owner, (clients / sizes)[owner])

    def check_map(self) -> None:
        """Refuse a map that cannot be differentiated, or that does not return one number for each entry of y."""
        x, y = self.trees(jnp.asarray(self.x0), jnp.asarray(self.y0))
        if is_blackbox(self.map_fn):
            raise InputError("map: found a black box; its derivatives are needed, so write it with jax.numpy")
        traced = functools.partial(jax.eval_shape, self.map_fn)
        found = call_user(traced, "map", "map(x, y, xi)", x, y, self.alone(one_sample(self.data)))
        shapes, wanted = (jax.tree.map(lambda leaf: jnp.shape(leaf), tree) for tree in (found, y))
        if shapes != wanted:
            raise InputError(f"map: found {shapes} for a y of {wanted}; it must return one number for each entry of y")

    def check_monotone(self, measured: vi.Constants, lower_set: sets.Set) -> None:
        """Warn of a map that is not strongly monotone; refuse it on an unbounded Y, where it may have no solution at all."""
        if measured.mu <= 0 and _is_unbounded(lower_set, self.lower_layout.size):
            raise InputError(
                f"map: not strongly monotone in y (measured modulus {measured.mu:.3g}), and Y is unbounded, so that there may be "
                f"no lower solution; {SIGN}, or bound Y by a lower_constraint"
            )
        if measured.mu <= 0:
            warn(
                f"map: not strongly monotone on samples (measured modulus {measured.mu:.3g}), so that lower solutions may not be "
                f"unique, and their error has no bound; {SIGN}"
            )
        elif self.modulus is not None and self.modulus > measured.mu * (1 + 1e-6):
            warn(
                f"modulus: found {self.modulus:.4g}, but measured {measured.mu:.4g} on samples; bounds on the lower level's "
                "error are too small"
            )


class Measured(NamedTuple):
    """What a measurement found."""

    mu: np.ndarray  # the least modulus over each client's scenarios
    L: np.ndarray  # the largest Lipschitz constant over each client's scenarios
    # the scenarios with the least mu and with the largest L, of all and of the client with the largest L / mu, by whose
    # constants steps are slowest; each with its client
    worst: list[tuple[PyTree, int]]
    violation: float  # by how much y0, projected onto Y(x, xi), still breaks it; the largest over the scenarios
    gradients: int  # what the measurement cost

    @property
    def overall(self) -> vi.Constants:
        """The least modulus and the largest Lipschitz constant of any client."""
        return vi.Constants(float(self.mu.min()), float(self.L.max()))

    def check_nonempty(self, x: jax.Array) -> None:
        """Refuse a Y that was found to be empty at x."""
        if self.violation > EMPTY:
            at_x = np.array2string(np.asarray(x), precision=4, threshold=8)
            raise InputError(
                f"lower_constraint: Y is empty (the nearest y breaks it by {self.violation:.3g}) at x = {at_x}; correct it, "
                "start elsewhere, or give a lower_domain"
            )


def measure(problem: WithMap, x: Any = None) -> Measured:
    """Measure mu and L of every client's map at x (else x0), over its own scenarios, at y0 and some points of Y around it.

    No client needs another one's scenarios. Of an affine map these are the constants themselves; of another one, mu can only be
    less elsewhere and L more. Where the Jacobian is too large to be formed, all clients get the constants of the worst scenarios.
    """
    problem = problem.as_stated()  # else new constants would compile anew
    d, clients = problem.y0.size, problem.clients
    noise = np.random.default_rng(0).normal(size=(PROBES, d))
    noise[0] = 0
    x = problem.into_domain(problem.start if x is None else jnp.asarray(x, float))
    points = problem.start_below + jnp.asarray(noise)
    dense = d <= DENSE
    limit = max(int(WORK / (clients * PROBES * (d**3 + EACH))), FEWEST) if dense else FEWEST
    rows, owner = _chosen(problem.data, limit)
    mu, L, violation = map(np.asarray, _measure_rows(problem, x, points, jnp.asarray(rows)))
    mu = np.where(np.isnan(mu), -np.inf, mu)  # where the map itself is not finite, nothing is known
    worst = [(_scenario(problem, jnp.asarray(rows[j])), int(owner[j])) for j in _worst_places(mu, L, owner)]
    gradients = 2 * PROBES * d * len(rows)  # a product with a derivative counts as two gradients, as everywhere
    if not dense:
        found = [_by_products(problem, x, points, xi) for xi, _ in worst]
        mu, L = (np.full(len(rows), c) for c in (min(c.mu for c in found), max(c.L for c in found)))
        gradients = 2 * 4 * (POWER + 1) * PROBES * len(rows)
    least, largest = _by_client(mu, L, owner, clients)
    if problem.data.identical:
        least[:], largest[:] = least[0], largest[0]
    return Measured(least, largest, worst, float(violation.max()), gradients)


def _by_client(mu: np.ndarray, L: np.ndarray, owner: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each client's least mu and largest L."""
    least, largest = np.full(clients, np.inf), np.zeros(clients)
    np.minimum.at(least, owner, mu)
    np.maximum.at(largest, owner, L)
    return least, largest


def _worst_places(mu: np.ndarray, L: np.ndarray, owner: np.ndarray) -> list[int]:
    """Return where mu is least and L largest, of all clients and of the one whose L / mu is largest."""
    own = np.flatnonzero(owner == hardest(*_by_client(mu, L, owner, int(owner.max()) + 1)))
    places = np.argmin(mu), np.argmax(L), own[np.argmin(mu[own])], own[np.argmax(L[own])]
    return list(dict.fromkeys(map(int, places)))


def hardest(mu: np.ndarray, L: np.ndarray) -> int:
    """Return the client with the largest condition number; one whose mu is not positive comes first."""
    return int(np.argmax(np.where(mu > 0, L / np.where(mu > 0, mu, 1), np.inf)))


def _chosen(data: Data, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the scenarios to measure, evenly spaced where a client has more than the limit, and whose they are."""
    offsets: np.ndarray
    sizes: np.ndarray
    if not data.stored:
        offsets, sizes = np.arange(data.clients) * data.evaluation, np.full(data.clients, data.evaluation)
    elif data.identical:
        offsets, sizes = np.asarray(data.offsets)[:1], np.asarray(data.sizes)[:1]
    else:
        offsets, sizes = np.asarray(data.offsets), np.asarray(data.sizes)
    places = [np.unique(np.linspace(0, size - 1, min(size, limit)).astype(int)) for size in sizes]
    rows = np.concatenate([offset + place for offset, place in zip(offsets, places, strict=True)])
    return rows, np.repeat(np.arange(len(places)), [len(place) for place in places])


@on_data
def _measure_rows(problem: WithMap, x: jax.Array, points: jax.Array, rows: jax.Array) -> tuple[jax.Array, ...]:
    """Return mu, L and how far Y is broken, for each scenario: exactly, or good enough to rank them where y is large."""
    fetch = problem.scenarios().fetch

    def one(row: jax.Array) -> tuple[jax.Array, ...]:
        xi = fetch(row)
        lower_set = problem.lower_set_at(x, xi)
        inside = jax.vmap(lower_set.project)(points)
        find = _ranking if points.shape[1] > DENSE else at_point
        found = jax.vmap(lambda y: find(lambda y: problem.map(x, y, xi), y))(inside)
        return jnp.min(found.mu), jnp.max(found.L), lower_set.violation(inside[0])

    return jax.lax.map(one, rows, batch_size=AT_A_TIME)


def _ranking(map: Callable, y: jax.Array) -> vi.Constants:
    """Estimate mu and L by power iteration, from inside the spectrum."""
    backward = jax.vjp(map, y)[1]

    def forward(v: jax.Array) -> jax.Array:
        return jax.jvp(map, (y,), (v,))[1]

    L = jnp.sqrt(largest_eigenvalue(lambda v: backward(forward(v))[0], y, POWER))
    rest = largest_eigenvalue(lambda v: L * v - (forward(v) + backward(v)[0]) / 2, y, POWER)
    return vi.Constants(L - rest, L)


def _by_products(problem: WithMap, x: jax.Array, points: jax.Array, xi: PyTree) -> vi.Constants:
    lower_set = problem.lower_set_at(x, xi)
    return vi.measure(_map, [lower_set.project(y) for y in points], problem, x, xi)


def _map(y: jax.Array, problem: WithMap, x: jax.Array, xi: PyTree) -> jax.Array:
    return problem.map(x, y, xi)


@once
def _scenario(problem: WithMap, row: jax.Array) -> PyTree:
    return problem.scenarios().fetch(row)


def _is_unbounded(lower_set: sets.Set, size: int) -> bool:
    """Tell whether projections of far points keep moving out, in some directions and their opposites."""
    noise = np.random.default_rng(0).normal(size=(8, size))
    rays = np.concatenate([noise, -noise]) / np.linalg.norm(noise, axis=1).max()
    near, far = (np.array([lower_set.project(jnp.asarray(scale * ray)) for ray in rays]) for scale in (FAR, 2 * FAR))
    return bool(np.max(np.linalg.norm(far - near, axis=1)) > 1e-3 * FAR)
