"""A method of your own in one file: residual feedback, which asks for one loss value a step where FedRZO_nn asks for two.

Y. Zhang, Y. Zhou, K. Ji, M. M. Zavlanos: "A New One-Point Residual-Feedback Oracle for Black-Box Learning and Control",
Automatica 136 (2022). The oracle is theirs, for one machine; local steps, averaging, clients that remember their last
value and the Moreau term for private sets are put together here, and no theorem of theirs is claimed for that.

    python examples/own_method.py        # or: python examples/own_method.py ray
"""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz
from fedrzo.federation import directions
from fedrzo.methods import at, batch, checked, constant, count, positive
from fedrzo.zoo import toys


class Last(NamedTuple):
    """What a client remembers: its last loss value, and whether it has one yet."""

    value: jax.Array
    known: jax.Array


@fz.method
class ResidualFeedback(fz.Method):
    """Local steps along n/eta^2 (f(x+v) - the value of the step before) v: one loss value each.

    The old value has nothing to do with the new v, so subtracting it leaves the mean of the estimate as it is: the gradient of
    the smoothed loss. It takes away most of what the size of f adds to the variance.

    Args:
        stepsize: a number, or a function of the round.
        smoothing: eta, the radius of the sphere that v is drawn from, and the parameter of the Moreau term.
        local_steps: steps of a client in a round; a number, or a function of the round.
        batch_size: samples per loss value, or `"full"`.
    """

    stepsize: Any = checked(positive)
    smoothing: Any = checked(constant)
    local_steps: Any = checked(count, default=1)
    batch_size: int | str = checked(batch, default=1, static=True)

    def init_memory(self, problem: Any) -> Last:
        """Before its first step a client has no value to compare with."""
        return Last(jnp.zeros((), jnp.asarray(problem.x0).dtype), jnp.bool_(False))

    def round(self, federation: fz.Federation, state: fz.State, r: Any) -> fz.State:
        """Broadcast x, let the clients step, take the mean of where they got to."""
        del r  # clients read it off their own clock
        return fz.State(federation.average(self.client_steps, state.x))

    def client_steps(self, client: Any, key: jax.Array, memory: Last, x: jax.Array) -> fz.Reply:
        """What one client does in one round; `Reply.memory` stays with it, the rest is sent or counted."""
        steps = at(self.local_steps, client.own_round)

        def step(k: Any, carry: tuple[jax.Array, Last]) -> tuple[jax.Array, Last]:
            return self.local_step(client, jax.random.fold_in(key, k), *carry)

        x, last = jax.lax.fori_loop(0, steps, step, (x, memory))
        return fz.Reply(x, memory=last, evaluations=steps * client.cost(self.batch_size))

    def local_step(self, client: Any, key: jax.Array, x: jax.Array, last: Last) -> tuple[jax.Array, Last]:
        """Ask for one loss value, and move by how it differs from the last one. The very first step only asks."""
        eta = self.smoothing
        v = directions.sphere(jax.random.fold_in(key, 0), x.size, eta, x.dtype)
        value = client.loss(x + v, client.sample(key, self.batch_size))
        g = jnp.where(last.known, x.size / eta**2 * (value - last.value), 0) * v
        x = x - at(self.stepsize, client.own_round) * (g + (x - client.project(x)) / eta)
        return x, Last(value, jnp.bool_(True))


def main(engine: str = "simulation") -> None:
    """Compare both at equal loss evaluations, on a problem whose least loss is known; then run ours once more elsewhere."""
    problem = toys.median()
    with problem.precision():
        least = float(problem.evaluate(jnp.asarray(toys.answer(problem)))["loss"])
    for size in ("full", 1):
        two_points = fz.FedRZOnn(0.004, 0.1, local_steps=10, batch_size=size)
        ours = ResidualFeedback(0.002, 0.1, local_steps=20, batch_size=size)
        for method in (two_points, ours):
            seeds = fz.sweep(method, problem, rounds=150, seeds=5, eval_every=150, progress=False).results[0]
            gap = np.mean([run.history.last["loss"] for run in seeds]) - least
            name, cost = type(method).__name__, seeds[0].history.last["evaluations"]
            print(f"{name:16}  batch {size:>4}   above the least loss {gap:.4f}   evaluations {cost:,}")
    here, there = (fz.run(ours, problem, 20, engine=e, progress=False) for e in ("simulation", engine))
    print(f"{engine} and simulation differ by less than 1e-9:", bool(np.all(np.abs(here.x - there.x) < 1e-9)))


if __name__ == "__main__":
    main(*sys.argv[1:])
