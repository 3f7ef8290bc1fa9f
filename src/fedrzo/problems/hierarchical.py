"""What problems with a lower level share: `Hierarchical`, the base of `Bilevel` and `TwoStage`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo import sets
from fedrzo.errors import InputError
from fedrzo.problems.base import Problem
from fedrzo.problems.inputs import PyTree, flat_set, flat_start, lower_constant
from fedrzo.problems.questions import Stated
from fedrzo.support.arguments import call_user
from fedrzo.support.pytrees import Layout


class Hierarchical(Problem):
    """What problems with a lower level share: y, its sets, and the constants of the lower level."""

    arrays = (*Problem.arrays, "y0", "lower_set", "lower_domain")

    def _set_lower(
        self,
        y0: PyTree,
        lower_constraint: Any,
        lower_domain: Any,
        modulus: float | None,
        smoothness: float | None,
    ) -> None:
        self.lower_layout, self.y0 = flat_start(y0, "y0")
        if isinstance(lower_constraint, type):
            raise InputError(
                f"lower_constraint: found the class {lower_constraint.__name__}; pass a set, such as fz.sets.Box(-1, 1)"
            )
        self.lower_set_fn = lower_constraint if callable(lower_constraint) else None
        self.lower_set = self.lower_domain = None
        if lower_constraint is not None and self.lower_set_fn is None:
            self.lower_set = flat_set(lower_constraint, y0, "lower_constraint")
        if lower_domain is not None:
            self.lower_domain = flat_set(lower_domain, self.layout.unravel(self.x0), "lower_domain")
        mu, L = self.given = lower_constant(modulus, "modulus"), lower_constant(smoothness, "smoothness")
        if mu is not None and L is not None and mu > L:
            raise InputError(
                f"modulus: found {modulus}, above smoothness {smoothness}; no function is more convex than it is smooth: check "
                "both, or leave them out to have them estimated"
            )

    @property
    def dtype(self) -> np.dtype:
        """Double precision, whatever x0 is: lower solutions need it."""
        return np.dtype(np.float64)

    @property
    def start(self) -> jax.Array:
        """The starting point in double precision."""
        return jnp.asarray(self.x0, float)

    @property
    def layouts(self) -> dict[str, Layout]:
        """How x and y lie in flat vectors."""
        return {"x0": self.layout, "y0": self.lower_layout}

    @property
    def stated(self) -> tuple[Stated, ...]:
        """The upper loss, looked at in x, at y0."""
        [upper] = super().stated
        return (upper._replace(trees=lambda x: self.trees(x, self.start_below)),)

    @property
    def start_below(self) -> jax.Array:
        """Where lower solves start, in the type they are computed in."""
        return jnp.asarray(self.y0, float)

    @property
    def lower_constrained(self) -> bool:  # type: ignore[override]
        """Whether there are constraints on y."""
        return self.lower_set is not None or self.lower_set_fn is not None

    @property
    def estimated(self) -> bool:
        """Whether a constant of the lower level is measured, since the user did not give both."""
        return None in self.given

    @property
    def modulus(self) -> float | None:
        """The mu that the user gave."""
        return self.given[0]

    @property
    def smoothness(self) -> float | None:
        """The L that the user gave."""
        return self.given[1]

    def lower_set_at(self, x: jax.Array, *scenario: Any) -> sets.Set:
        """Return Y(x), or Y(x, xi), as a set of flat vectors."""
        if self.lower_set_fn is None:
            return sets.Reals() if self.lower_set is None else self.lower_set
        call = "lower_constraint(x, xi)" if scenario else "lower_constraint(x)"
        found = call_user(self.lower_set_fn, "lower_constraint", call, self.layout.unravel(x), *scenario)
        return flat_set(found, self.lower_layout.unravel(np.zeros(self.lower_layout.size)), "lower_constraint")

    def into_domain(self, x: jax.Array) -> jax.Array:
        """Return the point at which the lower level is solved for x: its projection onto `lower_domain`, if one is given."""
        return x if self.lower_domain is None else self.lower_domain.project(x)
