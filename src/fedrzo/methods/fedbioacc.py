"""FedBiOAcc: federated bilevel optimisation with momentum-based variance reduction.

J. Li, F. Huang, H. Huang: "Communication-Efficient Federated Bilevel Optimization with Global and Local Lower Level Problems",
NeurIPS 2023 (arXiv 2302.06701). Restated from memory, for the global lower level; the class says what could not be verified.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.errors import InputError
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import batch, checked, method
from fedrzo.methods.hypergradient import HypergradientMethod, Oracles, Point, into_ball, length, retreat
from fedrzo.problems.bilevel import Bilevel
from fedrzo.support.fields import set_fields
from fedrzo.support.numbers import constant, whole


class AccState(NamedTuple):
    """What the server keeps: x, y and v (u of the listing), and the averaged momenta of each."""

    x: jax.Array
    y: jax.Array
    v: jax.Array
    momentum: Point


@method
class FedBiOAcc(HypergradientMethod):
    """Local steps along STORM momenta of three intertwined problems: x, y, and v of (d2_yy g) v = grad_y f.

    A momentum is d_t = D(z_t; B) + (1 - c a_{t-1}^2) (d_{t-1} - D(z_{t-1}; B)), with one batch B at both points. Iterates and
    momenta are averaged every I steps: one communication of 2 (n + 2q) floats each way. All steps shrink with
    a_t = scale / (offset + t)^(1/3), t counting local steps since the start of the run.

    The listing followed is the paper's FedBiOAcc. Its abstract confirms the hypergradient by a quadratic problem of its own,
    momenta that reduce variance, and a linear speedup; the version where each client has its own lower level is not here. Not
    verified, for want of its text: that all variables move before any momentum does; which a the factor 1 - c a^2 has (here
    that of the step just taken); the first momenta (here each client's own, averaged after the first round only); where v is
    projected (here in every local step), and all constants. Tested: the solution is reached where clients differ, and the
    variance of the momenta is that of the recursion above, which falls like t^(-2/3).

    Args:
        stepsize: eta of x, times a_t; a number.
        lower_stepsize: gamma of y, times a_t.
        system_stepsize: tau of v, times a_t; that of y by default.
        local_steps: I, steps between averages; a number.
        batch_size: samples per derivative and level, or `"full"`; the three derivatives of g share a batch.
        first_batch_size: samples of the first directions, each client's own, in round 0; `batch_size` by default.
        momentum: c of x; c a_0^2 is at most 1, and 1 / a_t^2 would be no memory at all.
        lower_momentum: c of y; that of x by default.
        system_momentum: c of v; that of x by default.
        scale: delta of a_t.
        offset: t0 of a_t.
        radius: of the ball that v is kept in: at least a bound on |grad_y f| over the modulus of g.
    """

    stepsize: float = checked(constant)
    lower_stepsize: float = checked(constant)
    system_stepsize: float | None = checked(constant, default=None)
    local_steps: int = checked(whole, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)
    first_batch_size: int | str = checked(batch, default=None, static=True)
    momentum: float = checked(constant, default=1.0)
    lower_momentum: float | None = checked(constant, default=None)
    system_momentum: float | None = checked(constant, default=None)
    scale: float = checked(constant, default=1.0)
    offset: float = checked(constant, default=1.0)
    radius: float = checked(constant, default=1e3)

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, first_batch_size=self.first_batch_size or self.batch_size)
        for name in ("momentum", "lower_momentum", "system_momentum"):
            c = getattr(self, name)
            if c is not None and not isinstance(c, jax.core.Tracer) and c * self.rate(0) ** 2 > 1 + 1e-12:
                raise InputError(
                    f"{name}: c a_0^2 is {c * self.rate(0) ** 2:.3g}, above 1; use a smaller one, or a larger offset"
                )

    def init(self, problem: Bilevel, key: jax.Array) -> AccState:
        """Start at x0 and y0 with v = 0; the first momenta are the clients' own."""
        point = super().init(problem, key)
        return AccState(point.x, point.y, point.v, jax.tree.map(jnp.zeros_like, point))

    def rate(self, t: Any) -> Any:
        """Return a_t."""
        return self.scale / (self.offset + t) ** (1 / 3)

    def lengths(self, a: Any) -> Point:
        """Return the step lengths at rate a."""
        v = length(self, 0, "system_stepsize", "lower_stepsize")
        return Point(a * self.stepsize, a * self.lower_stepsize, a * v)

    def memories(self, a: Any) -> Point:
        """Return 1 - c a^2 for each variable: how much of the last error a momentum keeps."""
        y, v = (length(self, 0, name, "momentum") for name in ("lower_momentum", "system_momentum"))
        return Point(1 - self.momentum * a**2, 1 - y * a**2, 1 - v * a**2)

    def round(self, federation: Federation, state: AccState, r: Any) -> AccState:
        """Broadcast iterates and momenta, I local steps, average both."""
        point, momentum = federation.average(self.client_steps, Point(state.x, state.y, state.v), state.momentum)
        return AccState(point.x, point.y, point.v, momentum)

    def client_steps(self, client: Client, key: jax.Array, memory: None, point: Point, momentum: Point) -> Reply:
        """Steps t = r I .. r I + I - 1 of client i."""
        oracles, steps = Oracles.of(client), self.local_steps

        def first() -> Point:
            return oracles.directions(point, oracles.draw(key, self.first_batch_size))

        def local_step(k: Any, carry: tuple[Point, Point]) -> tuple[Point, Point]:
            old, momentum = carry
            a = self.rate(client.round * steps + k)
            new = retreat(old, self.lengths(a), momentum)
            new = new._replace(v=into_ball(new.v, self.radius))
            batches = oracles.draw(jax.random.fold_in(key, k), self.batch_size)  # the same at both points
            here, there = oracles.directions(new, batches), oracles.directions(old, batches)
            storm = jax.tree.map(lambda d, keep, m, o: d + keep * (m - o), here, self.memories(a), momentum, there)
            return new, storm

        begins = client.round == 0
        momentum = jax.lax.cond(begins, first, lambda: momentum)
        value = jax.lax.fori_loop(0, steps, local_step, (point, momentum))
        starting = jnp.where(begins, oracles.cost(1, 2, self.first_batch_size), 0)
        gradients = starting + steps * 2 * oracles.cost(1, 2, self.batch_size)
        return Reply(value, gradients=gradients, steps=steps)
