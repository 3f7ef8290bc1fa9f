"""A minimax problem: the best x against the worst y.

For each x, y in Y = [-1, 1] is chosen to make the loss as large as it can be; x is to make that worst loss small.

Try it:   fedrzo check FILE.py        what is found before the first round, in words
          fedrzo solve FILE.py        the rounds below; add --out DIR to keep the result
"""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz


def loss(x, y, batch):
    """Return one number, a mean over the batch: strongly concave in y; in x it may be nonsmooth and nonconvex."""
    return jnp.mean(jnp.sum((x - batch) * y - 0.5 * y**2, axis=-1)) + 0.5 * jnp.sum(jnp.abs(x))


# One array (or pytree of arrays) per client, samples on the leading axis: rows of one number.
data = fz.ClientData([np.array([[1.0], [2.0], [3.0]]), np.array([[0.0], [4.0]]), np.array([[2.0]])])

problem = fz.Minimax(
    loss,
    data,
    x0=np.zeros(1),
    y0=np.zeros(1),
    lower_constraint=fz.sets.Box(-1.0, 1.0),  # for y: a set, or a function of x that returns one
    modulus=1.0,  # strong concavity and smoothness in y; leave them out to have them estimated
    smoothness=1.0,
)

# The worst y is found by federated rounds of their own, at x+v and x-v together.
method = fz.FedRZObl(stepsize=0.05, smoothing=0.05, local_steps=5, batch_size="full")
rounds = 60

# The answer is known, so that you can see whether your changes keep it. The worst loss is a Huber function of x - 2, plus
# |x| / 2: least at x = 1.5, where y = -0.5 and the loss is 0.875. These rounds end there, to five digits.
