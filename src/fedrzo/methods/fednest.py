"""FedNest and LFedNest: alternating federated methods for bilevel and minimax problems.

D. A. Tarzanagh, M. Li, C. Thrampoulidis, S. Oymak: "FedNest: Federated Bilevel, Minimax, and Compositional Optimization",
ICML 2022. FedInn, FedIHGP and FedOut are the names of its listings.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.methods.base import at, batch, checked, method, static
from fedrzo.methods.hypergradient import HypergradientMethod, Oracles
from fedrzo.problems.bilevel import Bilevel
from fedrzo.problems.curvature import lower_level
from fedrzo.support.numbers import Schedule, constant, count, positive


class NestState(NamedTuple):
    """What the server keeps: the upper variable, and the last lower solution, where the next inner loop starts."""

    x: jax.Array
    y: jax.Array


@method
class Nested(HypergradientMethod):
    """What FedNest and LFedNest share: an inner loop for y at fixed x, a Neumann series, an outer step."""

    stepsize: Schedule = checked(positive)
    lower_stepsize: Schedule = checked(positive)
    local_steps: Schedule = checked(count, default=1)
    lower_local_steps: Schedule = checked(count, default=1)
    lower_rounds: Schedule = checked(count, default=1)
    neumann: Schedule = checked(count, default=5)
    batch_size: int | str = checked(batch, default=1, static=True)

    def prepare(self, problem: Bilevel) -> Any:
        """Note whether the indirect term vanishes, and set the series' step to 1/l where none was given."""
        known: Any = self  # both methods have these two fields, at places of their own
        minimax, step = problem.zero_sum, known.neumann_stepsize
        if step is None and not minimax:
            step = 1 / lower_level(problem).smoothness
        return dataclasses.replace(known, minimax=minimax, neumann_stepsize=step)

    def init(self, problem: Bilevel, key: jax.Array) -> NestState:
        """Start at x0 and y0."""
        return NestState(jnp.asarray(problem.x0, float), jnp.asarray(problem.y0, float))


@method
class FedNest(Nested):
    """Inner rounds of variance-reduced local steps on y, a federated Neumann series, corrected local steps on x.

    One round takes 2T + N + 3 communications: 2T for T calls of FedInn, N + 1 for FedIHGP (both with all clients, since a
    cohort's y and a cohort's Hessian are not the federation's), 2 for FedOut. In units of q = dim y and n = dim x floats, a
    client sends (2T + N + 1) q + 2n and receives (2T + N + 3) q + 2n. On a minimax problem the indirect term vanishes at y(x)
    and FedIHGP is left out.

    Each communication of FedIHGP averages the term, so that the next one is multiplied by the mean Hessian, as in the listing.
    The authors' code differs. There each client multiplies its own last term by its own Hessian, and the server averages all that
    clients have sent since p_0. With M_i = I - d2_yy g_i / l, term j of the series is then mean_i M_i^j p_0 / j in place of
    (mean_i M_i)^j p_0. For a long series and clients that are alike, a direction of curvature h gets (h/l) (1 - ln(h/l)) times
    the exact value: 0.33 times for h = l/10. This form is not offered, since it does not approximate the inverse.
    That code also takes whole epochs instead of samples drawn with replacement, and a cohort in all steps.

    Args:
        stepsize: alpha, of the outer steps; a number, or a function of the round.
        lower_stepsize: beta, of the inner steps.
        local_steps: tau of FedOut.
        lower_local_steps: tau of FedInn.
        lower_rounds: T, calls of FedInn per round.
        neumann: N; the truncated series has N + 1 terms, its relative error is (1 - mu/l)^(N+1).
        batch_size: samples per stochastic gradient or product, or `"full"`.
        anchor_batch_size: samples of what local steps are corrected by, q_i and h_i, and of grad_y f_i; all of them by
            default.
        neumann_stepsize: 1/l; by default from the problem's smoothness, estimated where not given.
        randomised: as in the listing, draw N' from {0..N-1} and return N times the N'-th term, whose expectation is the sum
            of terms 0 to N - 1; by default the sum of terms 0 to N.
        minimax: whether the indirect term vanishes; filled in from the problem.
    """

    anchor_batch_size: int | str = checked(batch, default="full", static=True)
    neumann_stepsize: float = checked(constant, default=None)
    randomised: bool = static(default=False)
    minimax: bool = static(default=False)

    def init_memory(self, problem: Bilevel) -> jax.Array:
        """A client keeps the y it heard last, so that it need not be sent twice."""
        return jnp.asarray(problem.x0 if problem.nested else problem.y0, float)

    def round(self, federation: Federation, state: NestState, r: Any) -> NestState:
        """One outer iteration."""
        lower_federation = federation.lower(state.x, self)  # x travels here, once
        y = lower_federation.repeat(at(self.lower_rounds, r), self.fed_inn, state.y)
        p = None if self.minimax else self.fed_ihgp(lower_federation, y, r)
        return NestState(self.fed_out(federation, y, p), y)

    def fed_inn(self, lower_federation: Federation, y: jax.Array) -> jax.Array:
        """FedInn: two communications."""
        q = lower_federation.average(self.inner_anchor, y)
        return lower_federation.average(self.inner_steps, q)

    def fed_ihgp(self, lower_federation: Federation, y: jax.Array, r: Any) -> jax.Array:
        """FedIHGP: approximate [avg d2_yy g_i]^-1 avg grad_y f_i, one communication per Hessian product."""
        terms = at(self.neumann, r)
        first = self.neumann_stepsize * lower_federation.average(self.upper_slope, y)
        if self.randomised:
            last = jax.random.randint(lower_federation.key(), (), 0, terms)  # N'
            return lower_federation.repeat(last, lambda inner, p: inner.average(self.next_term, p), terms * first)

        def add(inner: Federation, carry: tuple) -> tuple:
            term = inner.average(self.next_term, carry[0])
            return term, carry[1] + term

        return lower_federation.repeat(terms, add, (first, first))[1]

    def fed_out(self, federation: Federation, y: jax.Array, p: jax.Array | None) -> jax.Array:
        """FedOut: two communications."""
        h = federation.average(self.outer_anchor, y, p)
        return federation.average(self.outer_steps, h)

    def inner_anchor(self, client: Client, key: jax.Array, memory: jax.Array, y: jax.Array) -> Reply:
        """q_i = grad_y g_i(x, y)."""
        size = self.anchor_batch_size
        return Reply(client.gradient(y, client.sample(key, size)), memory=y, gradients=client.cost(size))

    def inner_steps(self, client: Client, key: jax.Array, memory: jax.Array, q: jax.Array) -> Reply:
        """y_i <- y_i - beta [G_i(x, y_i; z) - G_i(x, y; z) + q], the same z in both terms."""
        beta, steps = at(self.lower_stepsize, client.round), at(self.lower_local_steps, client.round)

        def local_step(t: Any, y: jax.Array) -> jax.Array:
            z = client.sample(jax.random.fold_in(key, t), self.batch_size)
            return y - beta * (client.gradient(y, z) - client.gradient(memory, z) + q)

        y = jax.lax.fori_loop(0, steps, local_step, memory)
        return Reply(y, gradients=2 * steps * client.cost(self.batch_size), steps=steps)

    def upper_slope(self, client: Client, key: jax.Array, memory: jax.Array, y: jax.Array) -> Reply:
        """FedIHGP, p_0: grad_y f_i(x, y)."""
        oracles, size = Oracles.of(client), self.anchor_batch_size
        _, slope = oracles.upper_gradients(client.points, y, oracles.upper.sample(key, size))
        return Reply(slope, memory=y, gradients=oracles.cost(1, 0, size))

    def next_term(self, client: Client, key: jax.Array, memory: jax.Array, p: jax.Array) -> Reply:
        """FedIHGP, p_s: p - (1/l) d2_yy g_i(x, y; z_s) p."""
        oracles, size = Oracles.of(client), self.batch_size
        product = oracles.products(client.points, memory, p, oracles.lower.sample(key, size)).curved
        return Reply(p - self.neumann_stepsize * product, gradients=oracles.cost(0, 2, size))

    def outer_anchor(self, client: Client, key: jax.Array, memory: jax.Array, y: jax.Array, p: Any) -> Reply:
        """h_i = grad_x f_i(x, y) - d2_xy g_i(x, y) p."""
        oracles, size = Oracles.of(client), self.anchor_batch_size
        upper, lower = oracles.draw(key, size)
        h, _ = oracles.upper_gradients(client.points, y, upper)
        if p is None:
            return Reply(h, memory=y, gradients=oracles.cost(1, 0, size))
        h = h - oracles.products(client.points, y, p, lower).cross
        return Reply(h, memory=y, gradients=oracles.cost(1, 2, size))

    def outer_steps(self, client: Client, key: jax.Array, memory: jax.Array, h: jax.Array) -> Reply:
        """x_i <- x_i - alpha [G_i(x_i, y; z) - G_i(x, y; z) + h]: the indirect part stays as it is at x."""
        oracles, y = Oracles.of(client), memory
        alpha, steps = at(self.stepsize, client.round), at(self.local_steps, client.round)

        def local_step(t: Any, x: jax.Array) -> jax.Array:
            z = client.sample(jax.random.fold_in(key, t), self.batch_size)
            (here, _), (there, _) = (oracles.upper_gradients(at_x, y, z) for at_x in (x, client.points))
            return x - alpha * (here - there + h)

        x = jax.lax.fori_loop(0, steps, local_step, client.points)
        return Reply(x, gradients=oracles.cost(2 * steps, 0, self.batch_size))


@method
class LFedNest(Nested):
    """FedNest made local: plain local steps on y, then local steps on x along each client's own hypergradient.

    One round takes T + 1 communications: a client sends T q + n floats and receives (T + 1) q + n. It is biased, at any step
    size, where clients' lower losses respond differently to x: each client differentiates its own response,
    -[d2_yy g_i]^-1 d2_yx g_i, which does not average to the federation's. Several inner local steps add their drift.

    Args:
        local_steps: tau of the outer steps; the hypergradient is computed anew at each.
        lower_local_steps: tau of the inner steps.
        neumann_stepsize: as in `FedNest`; a client's own series needs it below 2 over that client's smoothness, which the
            default, made from the mean lower loss, does not look at.

    The other arguments are those of `FedNest`.
    """

    neumann_stepsize: float = checked(constant, default=None)
    minimax: bool = static(default=False)

    def round(self, federation: Federation, state: NestState, r: Any) -> NestState:
        """One outer iteration."""
        lower_federation = federation.lower(state.x, self)
        y = lower_federation.repeat(at(self.lower_rounds, r), lambda inner, y: inner.average(self.inner_steps, y), state.y)
        return NestState(federation.average(self.outer_steps, y), y)

    def inner_steps(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """y_i <- y_i - beta G_i(x, y_i; z)."""
        beta, steps = at(self.lower_stepsize, client.round), at(self.lower_local_steps, client.round)

        def local_step(t: Any, y: jax.Array) -> jax.Array:
            return y - beta * client.gradient(y, client.sample(jax.random.fold_in(key, t), self.batch_size))

        y = jax.lax.fori_loop(0, steps, local_step, y)
        return Reply(y, gradients=steps * client.cost(self.batch_size), steps=steps)

    def outer_steps(self, client: Client, key: jax.Array, memory: None, y: jax.Array) -> Reply:
        """x_i <- x_i - alpha h_i(x_i, y), each client's own hypergradient."""
        oracles = Oracles.of(client)
        alpha, steps = at(self.stepsize, client.round), at(self.local_steps, client.round)

        def local_step(t: Any, x: jax.Array) -> jax.Array:
            return x - alpha * self.local_hypergradient(oracles, jax.random.fold_in(key, t), x, y)

        x = jax.lax.fori_loop(0, steps, local_step, client.points)
        products = 0 if self.minimax else at(self.neumann, client.round) + 1
        return Reply(x, gradients=steps * oracles.cost(1, 2 * products, self.batch_size))

    def local_hypergradient(self, oracles: Oracles, key: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        """h_i = grad_x f_i - d2_xy g_i p_i, with p_i from the client's own Neumann series."""
        f_x, f_y = oracles.upper_gradients(x, y, oracles.upper.sample(key, self.batch_size))
        if self.minimax:
            return f_x
        terms = at(self.neumann, oracles.upper.round)

        def products(s: Any, v: jax.Array) -> Any:
            return oracles.products(x, y, v, oracles.lower.sample(jax.random.fold_in(key, s), self.batch_size))

        def add(s: Any, carry: tuple) -> tuple:
            term = carry[0] - self.neumann_stepsize * products(s, carry[0]).curved
            return term, carry[1] + term

        first = self.neumann_stepsize * f_y
        _, p = jax.lax.fori_loop(0, terms, add, (first, first))
        return f_x - products(terms, p).cross
