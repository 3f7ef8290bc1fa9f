"""Losses and hypergradients at a few points, through a lower level that is solved to many digits by federated Newton steps.

All clients know Y(x). A reply about a point z has what `fedrzo.vi.normal_map` needs: its projection y, the lower gradient and
Hessian there, and the projection's Jacobian. With f and g the mean upper and lower losses, a the length in the normal map and J
its Jacobian at the solution, the gradient of f(x, y(x)) is

    f_x + (dP/dx)'v + a g_xy s,  where  J's = -P'(z) f_y  and  v = f_y - s + a g_yy s

(the implicit function theorem on the normal map; where y has a kink in x, J is one of its generalised Jacobians).
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedrzo import vi
from fedrzo.errors import InputError
from fedrzo.federation.client import FULL, Client
from fedrzo.federation.protocol import Federation, Reply
from fedrzo.problems.monitor import mean_gradient
from fedrzo.vi import normal_map
from fedrzo.vi.normal_map import LARGEST, Zero

SOLVED = 1e-9  # relative residual of a lower solution: wrong digits would mislead the line search
ROUNDS = 120  # of one lower solve, at most


UNSOLVED = (
    f"the lower level at x0 is not solved to a relative residual of {SOLVED:g} in {ROUNDS} Newton steps; Y(x0) may be empty, or "
    "the lower loss may have kinks or no strong convexity: use fz.FedRZObl, or start elsewhere"
)


class Solved(NamedTuple):
    """Lower solutions at the rows of z, and what the hypergradient needs of them."""

    zero: Zero
    projection: jax.Array  # P'(z) at each row's solution
    fine: jax.Array  # evaluations of each row since it was solved
    share: jax.Array  # the least share of clients that answered


class ThroughLower:
    """The lower solve and the adjoint of a method that knows x at a few points; each part is a federated communication."""

    again: ClassVar[int] = 0  # evaluations of a row after it is solved: Newton's method leaves rounding alone after one or two

    def ask(self, view: Federation, step: Callable[..., Reply], *shared: Any) -> tuple[Any, Any]:
        """Run one communication; return the mean of the replies, and the share of clients that answered."""
        seen = view.gather(step, *shared)
        return seen.mean(), seen.share

    def solve_below(self, view: Any, start: jax.Array, rows: int) -> Solved:
        """Return the lower solutions at the points of a lower view, all from one start."""
        begun = jax.vmap(normal_map.begin)(jnp.tile(start, (rows, 1)))
        blank = jnp.zeros((rows, start.size, start.size), start.dtype)
        is_solved = jax.vmap(lambda zero: normal_map.solved(zero, SOLVED))

        def body(inner: Federation, carry: Solved) -> Solved:
            zero = carry.zero
            (y, gradient, hessian, projection), share = self.ask(inner, self.look_below, zero.trial)
            new = jax.vmap(normal_map.after)(zero, y, gradient, hessian, projection)
            done = carry.fine > self.again  # such a row stays as it is, so that it does not depend on the others
            new = jax.tree.map(lambda a, b: jnp.where(done.reshape(-1, *(1,) * (a.ndim - 1)), b, a), new, zero)
            best = jnp.where((new.residual < zero.residual)[:, None, None], projection, carry.projection)
            fine = jnp.where(is_solved(new), carry.fine + 1, 0)
            return Solved(new, best, fine, jnp.minimum(carry.share, share))

        first = Solved(begun, blank, jnp.zeros(rows, jnp.int32), jnp.ones((), start.dtype))
        return view.repeat(ROUNDS, body, first, lambda carry: jnp.all(carry.fine > self.again))

    def look_below(self, client: Client, key: jax.Array, memory: Any, z: jax.Array) -> Reply:
        """Return the projection of each row of z, the gradient and the Hessian of this client's lower loss there, and P'(z)."""
        level = client.level

        def projected(x: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
            if level.sets.free:
                return z, jnp.eye(z.size, dtype=z.dtype)
            return normal_map.with_jacobian(level.problem.lower_set_at(x).project, z)

        y, projection = jax.vmap(projected)(level.points, z)

        def slopes(y: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
            def one(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
                gradient = jax.grad(lambda y: level.loss(x, y, batch))
                hessian = jax.lax.map(lambda row: jax.jvp(gradient, (y,), (row,))[1], jnp.eye(y.size, dtype=y.dtype))
                return gradient(y), hessian

            return jax.vmap(one)(level.points, y)

        gradient, hessian = client.mean(slopes, y, client.sample(key, FULL))
        products = 1 + 2 * z.shape[1]  # a product with second derivatives counts as two gradients
        return Reply((y, gradient, hessian, projection), gradients=products * client.cost(FULL), steps=z.shape[0])

    def hypergradients(self, view: Any, solved: Solved, f_x: jax.Array, f_y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the gradients of f(x, y(x)) at the points of a view, and the least share of clients that answered."""
        zero = solved.zero

        def adjoint(zero: Zero, projection: jax.Array, f_y: jax.Array) -> tuple[jax.Array, jax.Array]:
            jacobian = normal_map.jacobian(zero.best_a, zero.best_slope, projection)
            s = jnp.linalg.solve(jacobian.T, -projection.T @ f_y)
            return s, f_y - s + zero.best_a * zero.best_slope @ s

        s, v = jax.vmap(adjoint)(zero, solved.projection, f_y)
        (moves, cross), share = self.ask(view, self.look_across, zero.best_z, s, v)
        return f_x + moves + zero.best_a[:, None] * cross, share

    def look_across(self, client: Client, key: jax.Array, memory: Any, z: jax.Array, s: jax.Array, v: jax.Array) -> Reply:
        """Return (dP/dx)'v, and this client's g_xy s, at each row of z."""
        level, problem = client.level, client.level.problem

        def projected(x: jax.Array, z: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            if problem.lower_set_fn is None:
                return problem.lower_set_at(x).project(z), jnp.zeros_like(x)
            y, pull = jax.vjp(lambda x: problem.lower_set_at(problem.into_domain(x)).project(z), x)
            return y, pull(v)[0]

        y, moves = jax.vmap(projected)(client.points, z, v)

        def across(y: jax.Array, batch: Any) -> jax.Array:
            def one(x: jax.Array, y: jax.Array, s: jax.Array) -> jax.Array:
                def along(x: jax.Array) -> jax.Array:
                    return jnp.vdot(jax.grad(lambda y: level.loss(problem.into_domain(x), y, batch))(y), s)

                return jax.grad(along)(x)

            return jax.vmap(one)(client.points, y, s)

        cross = client.mean(across, y, client.sample(key, FULL))
        return Reply((moves, cross), gradients=2 * client.cost(FULL))


def check_below(problem: Any, name: str) -> None:
    """Refuse a lower level whose Hessians cannot be had."""
    if problem.lower_blackbox:
        raise InputError(f"lower: {name} needs gradients, a black box has none; use fz.FedRZObl")
    if not problem.stated[-1].data.stored:
        raise InputError(f"lower_data: {name} needs all samples, which a Sampler has not; use fz.FedRZObl")
    if (q := problem.layouts["y0"].size) > LARGEST:
        raise InputError(f"y0: found {q} entries, and {name} factorises the lower Hessian of up to {LARGEST}; use fz.FedRZObl")
    level = problem.lower_level(problem.start)
    lower_set = problem.lower_set_at(level.points[0])
    with problem.precision():
        unknown = vi.lacks_jacobians(lambda y: mean_gradient(level, y), lower_set, problem.start_below)
    if unknown:
        raise InputError(f"lower: {name} needs second derivatives, and JAX has none of this function; use fz.FedRZObl")
