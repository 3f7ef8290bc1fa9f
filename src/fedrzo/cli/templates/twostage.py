"""A two-stage problem: a leader who decides before demand is known, and followers who come to an equilibrium after.

A leader brings x to the market. Then demand xi is seen, and the follower's quantity y(x, xi) >= 0 is the solution of a
variational inequality: its marginal loss is zero, or positive where y = 0. The price is xi - x - y.

Try it:   fedrzo check FILE.py        what is found before the first round, in words
          fedrzo solve FILE.py        the rounds below; add --out DIR to keep the result
"""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz


def loss(x, y, xi):
    """Return the leader's loss in ONE scenario: minus its revenue, plus a cost of 0.5 for each unit."""
    return -jnp.sum(x * (xi - x - y)) + 0.5 * jnp.sum(jnp.abs(x))


def map(x, y, xi):
    """Return the map G of the variational inequality, an array like y: strongly monotone in y. Write it with jax.numpy."""
    return 2 * y + x - xi


# One array (or pytree of arrays) per client: its scenarios, on the leading axis. fz.Sampler draws them when needed instead.
data = fz.ClientData([np.array([[9.0], [10.0], [11.0]]), np.array([[8.0], [12.0]])])

problem = fz.TwoStage(
    loss,
    map,
    data,
    x0=np.ones(1),
    y0=np.ones(1),
    constraint=fz.sets.Box(0.0, 10.0),  # for x: a set for all clients, or a list of one for each
    lower_constraint=fz.sets.Box(0.0, np.inf),  # for y: a set, or a function of (x, xi) that returns one
    modulus=2.0,  # strong monotonicity and Lipschitz constant of the map in y; leave them out to have them measured
    smoothness=2.0,
)

method = fz.FedRZO2s(stepsize=0.02, smoothing=0.1, local_steps=5, batch_size="full")
rounds = 100

# The answer is known, so that you can see whether your changes keep it: y(x, xi) = (xi - x) / 2 while that is positive, mean
# demand is 10, and x (10 - x) / 2 - x / 2 is greatest at x = 4.5, where the loss is -10.125. These rounds end within 0.001 of
# that x.
