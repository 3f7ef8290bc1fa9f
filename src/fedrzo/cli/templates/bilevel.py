"""A bilevel problem: a fee x, and what users consume in answer to it.

Given the fee, consumption y(x) minimises the mean of the clients' lower losses over Y = {y >= 0}. The fee is to bring
consumption down to one, but a fee costs something too, the more the larger demand is. No client tells anybody its demand.

Try it:   fedrzo check FILE.py        what is found before the first round, in words
          fedrzo solve FILE.py        the rounds below; add --out DIR to keep the result
"""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz


def loss(x, y, batch):
    """Return the upper loss, a mean over the batch; y is the lower level's answer to x. It may have kinks."""
    return jnp.sum(jnp.abs(y - 1.0)) + jnp.mean(batch) / 30 * jnp.sum(x**2)


def lower(x, y, batch):
    """Return the lower loss, a mean over the batch: smooth and strongly convex in y, so that its answer is unique."""
    return jnp.mean(jnp.sum(0.5 * (y - (batch - x)) ** 2, axis=-1))


# One array (or pytree of arrays) per client, samples on the leading axis: demands for one good, so rows of one number.
data = fz.ClientData([np.array([[2.0], [3.0], [4.0]]), np.array([[1.0], [5.0]]), np.array([[3.0]])])

problem = fz.Bilevel(
    loss,
    lower,
    data,
    x0=np.zeros(1),
    y0=np.zeros(1),
    constraint=fz.sets.Box(0.0, 10.0),  # for x: a set for all clients, or a list of one for each
    lower_constraint=fz.sets.Box(0.0, np.inf),  # for y: a set, or a function of x that returns one
    modulus=1.0,  # strong convexity and smoothness of the lower loss in y; leave them out to have them estimated
    smoothness=1.0,
)


def stepsize(r):
    """Return the stepsize of round r: long steps get near, short ones settle. A plain number is fine, too."""
    return 0.4 / (40 + r)


# The lower level is solved by federated rounds of its own, at x+v and x-v together. With a kink at the answer, x ends about
# half of the smoothing away from it.
method = fz.FedRZObl(stepsize, smoothing=0.005, local_steps=5, batch_size="full")
rounds = 600

# The answer is known, so that you can see whether your changes keep it: mean demand is 3, so y(x) = max(3 - x, 0), and
# |y(x) - 1| + 0.1 x^2 is least at x = 2, where y = 1 and the loss is 0.4. These rounds end within 0.01 of that x, and within
# 0.002 of that loss.
