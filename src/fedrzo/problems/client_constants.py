"""What each client knows of its lower levels: mu and L of its own maps, measured or given."""

from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from fedrzo import vi
from fedrzo.problems.scenarios import Measured, WithMap, hardest
from fedrzo.support.pytrees import replaced


class WithClientConstants(WithMap):
    """A problem whose clients solve their lower levels by constants of their own."""

    arrays = (*WithMap.arrays, "client_constants")

    def take_constants(self, measured: Measured | None) -> None:
        """Have every client use the constants that it measured, or those that the user gave."""
        self.measured_gradients = 0 if measured is None else measured.gradients
        found = (None, None) if measured is None else (measured.mu, measured.L)
        chosen = [np.asarray(own if given is None else given) for own, given in zip(found, self.given, strict=True)]
        self.client_constants = vi.Constants(*(np.broadcast_to(c.astype(float), self.clients) for c in chosen))

    @property
    def modulus(self) -> float:
        """The least modulus of any client's map: the user's, else measured."""
        return float(np.min(self.client_constants.mu))

    @property
    def smoothness(self) -> float:
        """The largest Lipschitz constant of any client's map: the user's, else measured."""
        return float(np.max(self.client_constants.L))

    def hardest(self) -> vi.Constants:
        """Return mu and L of the client whose lower levels are the hardest to solve."""
        i = hardest(*map(np.asarray, self.client_constants))
        return vi.Constants(float(self.client_constants.mu[i]), float(self.client_constants.L[i]))

    def as_stated(self) -> Self:
        """Return this problem without what was measured of it."""
        return replaced(self, client_constants=vi.Constants(None, None), measured_gradients=0)

    def constants_of(self, client: Any) -> vi.Constants:
        """Return mu and L of one client's map; those that hold for all clients where none is named."""
        mu, L = map(jnp.asarray, self.client_constants)
        return vi.Constants(jnp.min(mu), jnp.max(L)) if client is None else vi.Constants(mu[client], L[client])
