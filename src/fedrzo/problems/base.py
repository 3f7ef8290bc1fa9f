"""What all problems share: the class `Problem`.

`Nonsmooth` is the paper's (FL_nn), `Bilevel` (FL_bl), `Minimax` (FL_mm) and `TwoStage` (FL_2s). A problem holds one loss, the
clients' data and their private sets; x (and y) may be any pytree, of which methods see one flat vector. A class of your own is
a subclass of the one whose methods can solve it, and answers differently what differs (see `questions.py`), most often `value`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.data.arrays import check_numbers
from fedrzo.errors import InputError
from fedrzo.problems.black_box import forgiving, telling
from fedrzo.problems.captures import notice
from fedrzo.problems.inputs import Data, Loss, PyTree, check_data, check_scale, client_weights, flat_set, flat_start, set_family
from fedrzo.problems.monitor import mean_loss
from fedrzo.problems.questions import Questions
from fedrzo.support.arguments import check_function, check_tree, kind
from fedrzo.support.columns import taken
from fedrzo.support.compiling import once
from fedrzo.support.programs import keep_once
from fedrzo.support.pytrees import in_parts, register, replaced

ROWS = 6  # points that are projected at a time
INSIDE = 1e-5  # distances below this count as inside a set: iterative projections are exact to 1e-6


def columns(functions: Any, argument: str, beside: tuple[tuple[str, Callable], ...] = ()) -> tuple[tuple[str, Callable], ...]:
    """Return functions with their names, each of which is to be a column of the history, or say why one cannot be."""
    if functions is not None and not isinstance(functions, Mapping):
        raise InputError(f"{argument}: found {kind(functions)}; pass a dictionary of functions by name")
    found = tuple((name, check_function(function, f"{argument}: {name}")) for name, function in (functions or {}).items())
    if names := sorted(name for name, _ in found if taken(name) or name in dict(beside)):
        raise InputError(f"{argument}: found {names[0]!r}, a column that the history has already; pass another name")
    return found


class Problem(Questions):
    """What all classes share: x, the clients' data and sets, their weights, what is monitored, and what others ask.

    Every subclass is a pytree: what `arrays` names is traced, all other attributes are static, so that they must be hashable.
    """

    arrays: ClassVar[tuple[str, ...]] = ("data", "x0", "sets", "client_weights", "test", "domain")
    copies = 1
    nested = False
    monitored: tuple[tuple[str, Callable], ...] = ()  # other losses to monitor
    follows_projection = False  # whether the loss at the projection of x is monitored too

    def __init_subclass__(cls) -> None:
        """Make each class a pytree; of one that was pickled whole, `arrays` is known only later."""
        register(cls, lambda: cls.arrays)

    def __init__(
        self,
        loss: Loss,
        data: Data,
        x0: PyTree,
        constraint: Any,
        weights: str,
        test: PyTree,
        metrics: Mapping[str, Callable] | None,
        name: str | None,
        domain: Any = None,
        scale: PyTree = None,
        lower_domain: Any = None,
    ) -> None:
        self.loss_fn = check_function(loss, "loss")
        self.data = check_data(data, "data")
        self.layout, self.x0 = flat_start(x0, "x0")
        self.domain = None if domain is None else flat_set(domain, x0, "domain")
        both = None if lower_domain is None else flat_set(lower_domain, x0, "lower_domain")
        if both is not None and self.domain is not None:  # what lies below is a function of x too
            both = flat_set(sets.Intersection(both, self.domain), np.zeros(self.layout.size), "lower_domain")
        self.lower_domain = both
        if scale is not None:
            self.layout = dataclasses.replace(self.layout, scale=check_scale(scale, self.layout))
            self.x0 = self.layout.ravel(x0)
        self.sets = self.family(constraint, data.clients)
        self.weights = weights
        self.client_weights = client_weights(weights, data)
        self.test = test if test is None else jax.tree.map(lambda leaf: check_numbers(leaf, "test"), check_tree(test, "test"))
        self.metrics = columns(metrics, "metrics")
        if self.metrics and test is None:
            raise InputError(f"metrics: found {len(self.metrics)}, but no test batch to compute them on; pass test=...")
        self.name = name or type(self).__name__

    def check_attributes(self) -> None:
        """Refuse attributes that compiled code can neither trace nor compare: arrays that a class of the user's did not name."""
        for name, value in vars(self).items():
            try:
                hash(None if name in self.arrays else value)
            except TypeError:
                raise InputError(
                    f"problem: {type(self).__name__}.{name} is of type {type(value).__name__}, which cannot be hashed; name it "
                    "in `arrays` if it holds arrays, or keep a tuple"
                ) from None

    def __repr__(self) -> str:
        kind = type(self).__name__
        name = "" if self.name == kind else f"{self.name}: "
        lower = "".join(f", {layout.size} below" for layout in list(self.layouts.values())[1:])
        kinds = ", ".join(sorted({type(group).__name__ for group in self.sets.groups}))
        own = "" if self.sets.free else f", sets: {kinds}"
        return f"{kind}({name}n = {self.dim}{lower}, {self.data!r}{own}, {self.layout.dtype})"

    @property
    def dim(self) -> int:
        """The paper's n: the length of x as one flat vector."""
        return self.layout.size

    @property
    def clients(self) -> int:
        """The paper's m: how many clients there are."""
        return self.data.clients

    @property
    def functions(self) -> dict[str, Callable]:
        """The functions that the problem was stated with, by the names of their arguments."""
        found = {name.removesuffix("_fn"): value for name, value in vars(self).items() if callable(value)}
        found |= {level.source: level.data.fn for level in self.stated if not level.data.stored}
        parts = jax.tree.leaves((self.sets.groups, self.domains), is_leaf=lambda part: isinstance(part, sets.Sublevel))
        found |= {f"constraint {i}": part.g for i, part in enumerate(parts) if isinstance(part, sets.Sublevel)}
        return found | dict(self.metrics) | dict(self.monitored)

    @contextlib.contextmanager
    def precision(self) -> Iterator[None]:
        """Enter the context in which this problem computes: float64 if x0 is, or if there is a lower level.

        There, programs are cached on disk, and an error of a black box is told in one line. Programs that were compiled with
        values which the problem's functions do not find any more, such as a global that has changed, are not used again.
        """
        keep_once()
        notice(self.functions)
        quiet = forgiving() if self.hidden else contextlib.nullcontext()
        with telling(), quiet, jax.enable_x64(bool(self.dtype == np.float64 or jax.config.read("jax_enable_x64"))):
            yield

    def pair(self, x: jax.Array, v: jax.Array, batch: PyTree) -> jax.Array:
        """Return value(x+v) - value(x-v), one after the other: XLA makes slow products of points that go together.

        Only a black box gets both in one call, which it can exploit if it is vectorised.
        """
        if not self.whole:
            return self.value(x + v, batch) - self.value(x - v, batch)
        plus, minus = jax.vmap(self.value, in_axes=(0, None))(jnp.stack([x + v, x - v]), batch)
        return plus - minus

    def moved_to(self, x0: np.ndarray) -> Self:
        """Return this problem with another starting point, a flat vector."""
        return replaced(self, x0=x0)

    def family(self, constraint: Any, clients: int) -> sets.SetFamily:
        """Read `constraint`, as the sets of so many clients; each is within the domain, and in the units of x."""
        family = set_family(constraint, self.layout.unravel(np.asarray(self.x0)), clients)
        for domain in self.domains:
            family = family.within(domain)
        return family if self.layout.scale is None else family.scaled(np.asarray(self.layout.scale))

    def scaled_by(self, scale: np.ndarray) -> Self:
        """Return this problem with a flat x in other units, one for each entry: directions and steps are longer in the larger.

        Sets, losses and lower levels are the same. What has the units of x or of a gradient, such as a smoothing or a
        certificate, is in these.
        """
        old = self.layout.scale
        sets = self.sets.scaled(np.asarray(scale) if old is None else np.asarray(scale) / np.asarray(old))
        layout = dataclasses.replace(self.layout, scale=tuple(float(unit) for unit in scale))
        x0 = (self.layout.plain(np.asarray(self.x0)) / np.asarray(scale)).astype(self.x0.dtype)
        return replaced(self, layout=layout, x0=x0, sets=sets)

    def with_data(self, data: Data, lower_data: Data) -> Self:
        """Return this problem with other data."""
        return replaced(self, data=data)

    def keeping_samples(self) -> Self:
        """Return this problem, with the samples that are monitored drawn once where they would be drawn for each look."""
        return replaced(self, data=self.data if self.data.stored else self.data.keeping())

    def part(self, clients: Sequence[int]) -> Self:
        """Return this problem with the data and the sets of some clients alone, for those who run their steps elsewhere."""
        weights = np.asarray(self.client_weights)[list(clients)]
        data, sets = self.data.part(clients), self.sets.part(clients)
        return replaced(self, data=data, sets=sets, client_weights=weights, test=None, metrics=())

    def project(self, x: jax.Array) -> jax.Array:
        """Project a flat x, or each row, onto what all clients' sets share; warn where a projection cannot be trusted."""
        if self.sets.free:
            return x
        if isinstance(x, jax.core.Tracer):
            return jax.vmap(lambda x: self.sets.nearest(x)[0])(jnp.atleast_2d(x)).reshape(x.shape)
        found = self.standing(np.atleast_2d(x))
        sets.warn_of_error("constraint", found.error, found.allowed)
        return jnp.asarray(found.nearest.reshape(np.shape(x)))

    def standing(self, points: np.ndarray) -> "Standing":
        """Return where each row stands to the clients' sets; some rows at a time, by one program for any number of rows."""
        if self.sets.free:
            none = np.zeros(len(points))
            return Standing(points, none, none, none, none)
        units = np.ones(self.dim) if self.layout.scale is None else np.asarray(self.layout.scale)
        parts = [_stand(self.sets, units, part) for part in in_parts(np.asarray(points), ROWS)]
        return Standing(*(np.concatenate(part)[: len(points)] for part in zip(*parts, strict=True)))

    def following_projection(self) -> Self:
        """Return this problem with one more column in its histories where there are sets: the loss at the projection of x."""
        return self if self.sets.free else replaced(self, follows_projection=True)

    def projected_loss(self, x: jax.Array, loss: jax.Array) -> jax.Array:
        """Return the loss at the projection of a flat x, given that at x itself; where that is not finite, it stays so."""
        # A set may well bring an x that diverged back to a point like any other.
        return jnp.where(jnp.isfinite(loss), self.evaluate(self.project(x))["loss"], loss)

    def lower_solutions(self, points: np.ndarray) -> list[PyTree]:
        """Return an accurate lower-level solution for each row, where the problem has one lower level for all scenarios."""
        return [None] * len(points)

    def worst_distance(self, x: jax.Array) -> jax.Array:
        """Return the largest distance from x to a client's set, without units."""
        return jnp.zeros((), x.dtype) if self.sets.free else self.sets.apart(x, self.layout.scale)[0]

    def hiding(self) -> Self:
        """Return this problem with records that nobody may look at: its losses are not monitored, nor constants estimated."""
        return replaced(self, hidden=True)

    def refuse_hidden(self, what: str) -> None:
        """Refuse to look at records that are to stay private."""
        if self.hidden:
            raise InputError(f"privacy: {what} looks at the records of a private run, which epsilon does not cover; leave it out")

    def judge(self, x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array | None]:
        """Return the loss over all data at a flat x and what it breaks, and the lower solution if all clients share one."""
        point = self.with_lower(x)
        return self.loss_at(*point) | self.violation(*point), (*point[1:], None)[0]

    def loss_at(self, *point: jax.Array) -> dict[str, jax.Array]:
        """Return the loss over all data, unless the records are to stay private."""
        return {} if self.hidden else {"loss": mean_loss(self.bare, *point)}

    def evaluate(self, x: jax.Array) -> dict[str, jax.Array]:
        """Return what is monitored at a flat x: the loss over all data, infeasibility, and the problem's own metrics."""
        point = self.with_lower(x)
        feasibility = {"feasibility": self.worst_distance(point[0])}
        return self.loss_at(*point) | feasibility | self.on_test(*point) | self.violation(*point)


class Standing(NamedTuple):
    """Where points stand to the clients' sets; a row, or an entry, for each point."""

    nearest: Any  # its projection onto what all sets have in common
    error: Any  # upper bound on the error of that, or of a client's own projection
    allowed: Any  # the error that is promised
    distance: Any  # the largest distance to a client's set, without units
    left: Any  # the largest amount by which the projection breaks a constraint

    def row(self, i: int) -> "Standing":
        """Return where the i-th point stands."""
        return Standing(*(part[i] for part in self))


@once
def _stand(family: sets.SetFamily, units: jax.Array, points: jax.Array) -> Standing:
    """Return where each point stands. A run cannot warn of clients' projections from within compiled code; here they are seen."""

    def one(x: jax.Array) -> Standing:
        y, error = family.nearest(x)
        allowed = sets.promise(x, y)
        if family.identical:  # the projection is each client's own
            distance = jnp.linalg.norm((x - y) * units.astype(x.dtype))
        else:
            distance, doubt = family.apart(x, units)
            error = jnp.maximum(error, doubt * allowed)
        return Standing(y, error, allowed, distance, family.worst_violation(y))

    return jax.vmap(one)(points)
