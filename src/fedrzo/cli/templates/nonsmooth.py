"""A nonsmooth problem: robust location, with a private constraint at each client.

Each client has measured points in the plane. We look for the x that minimises the mean absolute deviation from all of them,
a loss with kinks and no gradient there, while each client allows only an x in a box of its own, which it tells nobody.

Try it:   fedrzo check FILE.py        what is found before the first round, in words
          fedrzo solve FILE.py        the rounds below; add --out DIR to keep the result
"""

import jax.numpy as jnp
import numpy as np

import fedrzo as fz


def loss(x, batch):
    """Return one number: the MEAN over the batch, whose samples lie on the leading axis.

    Write it with jax.numpy. A simulator in plain Python or NumPy is wrapped instead: fz.Nonsmooth(fz.blackbox(simulator), ...).
    """
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


# One array (or pytree of arrays) per client. Sizes may differ; each sample here is a point, a row of two numbers.
offsets = np.array([[-0.2, 0.1], [0.0, 0.0], [0.2, -0.1]])
data = fz.ClientData([offsets + centre for centre in (0.0, 1.0, 2.0)])

# One set per client, or one for all, or none at all. Kinds may differ: Box, Ball, Simplex, Halfspace, Polyhedron, ...
constraint = [fz.sets.Box(-5.0, 5.0), fz.sets.Ball(0.0, 4.0), fz.sets.Box([-5.0, -5.0], [5.0, 0.5])]

# Where to start: any pytree of floats. float64 here; a float32 x0 makes everything float32.
problem = fz.Nonsmooth(loss, data, x0=np.zeros(2), constraint=constraint)


def stepsize(r):
    """Return the stepsize of round r: long steps get near, short ones settle. A plain number is fine, too."""
    return 0.3 / (10 + r)


# smoothing: how far from x the loss is asked. Shorten the steps if the loss does not fall.
method = fz.FedRZOnn(stepsize, smoothing=0.02, local_steps=5, batch_size="full")
rounds = 1000

# The answer is known, so that you can see whether your changes keep it: the median (1, 1) of all points, cut off at 0.5 by the
# last client's box. x = (1, 0.5), with a loss of 1.5444. These rounds end within 0.01 of that x, and within 0.001 of that loss.
