# %% [markdown]
# # Fair training: the worst class matters
#
# Six silos train one small classifier, even against odd digits. Averaging the loss over all images, as FedAvg does,
# lets the model give up on hard digits: the mean does not show it.
#
# Fair training plays against an adversary who puts more weight on the digits that go wrong:
#
# `min over x   max over y on the simplex   sum over digits c of  y_c * loss_c(x)  -  lambda/2 |y|^2`
#
# The adversary's answer changes with x and has kinks. FedRZO_bl needs only loss values at `x + v` and `x - v`, each
# against the adversary's best answer there, which one federated round finds. The model's loss is the hinge loss,
# which has kinks itself.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from common import BLUE, GREY, QUICK, finish, panels

import fedrzo as fz
from fedrzo import data

digits = data.load("digits")
centre = digits.x_train.mean(0)
_, _, basis = np.linalg.svd(digits.x_train - centre, full_matrices=False)
LAMBDA = 0.5


def prepare(images, classes):
    """Return 16 principal components and a constant, the label (even or odd) and the digit itself."""
    u = (images - centre) @ basis[:16].T
    return np.hstack([u, np.ones((len(u), 1))]).astype(float), data.even_odd(classes).astype(float), classes


parts = data.dirichlet(digits.y_train, clients=6, alpha=1.0, seed=0)  # silos differ in the digits they see
silos = fz.ClientData([prepare(digits.x_train[rows], digits.y_train[rows]) for rows in parts])
test = prepare(digits.x_test, digits.y_test)
share = np.array([np.mean([np.mean(digits.y_train[rows] == c) for rows in parts]) for c in range(10)])  # the mean over silos


# %%
def hinge(x, batch):
    """The hinge loss of each image under a linear model."""
    u, label, _ = batch
    return jnp.maximum(0.0, 1.0 - label * (u @ x))


def fair(x, y, batch):
    """What a silo adds: each image counts by the adversary's weight of its digit."""
    weight = y[batch[2]] / jnp.asarray(share)[batch[2]]  # so that y_c multiplies the mean loss of digit c
    return jnp.mean(weight * hinge(x, batch)) - LAMBDA / 2 * jnp.sum(y**2)


def by_digit(x, batch):
    """The mean hinge loss of each digit."""
    members = jax.nn.one_hot(batch[2], 10)
    return hinge(x, batch) @ members / members.sum(0)


x0 = np.zeros(17)
average = fz.Nonsmooth(
    lambda x, batch: jnp.mean(hinge(x, batch)), silos, x0, test=test,
    metrics={"worst": lambda x, t: by_digit(x, t).max(), "mean": lambda x, t: by_digit(x, t).mean()},
)  # fmt: skip
minimax = fz.Minimax(
    fair, silos, x0, np.full(10, 0.1), lower_constraint=fz.sets.Simplex(1.0), modulus=LAMBDA, smoothness=LAMBDA, test=test,
    metrics={"worst": lambda x, y, t: by_digit(x, t).max(), "mean": lambda x, y, t: by_digit(x, t).mean()},
)  # fmt: skip

# %% [markdown]
# FedAvg, with gradients, takes the mean loss to its minimum: as good as averaging gets. Fair training then starts
# from zero as well. `LocalSGD(rounds=1)` is the adversary: the maximum over y of a quadratic on the simplex is one
# projected step away.

# %%
usual = fz.run(fz.FedAvg(0.1, 10, batch_size=32), average, rounds=100, eval_every=10, progress=False)
method = fz.FedRZObl(0.1, smoothing=0.05, batch_size="full", lower=fz.LocalSGD(rounds=1, batch_size="full"))
equal = fz.run(method, minimax, rounds=400 if QUICK else 1500, eval_every=50, progress=False)

# %%
figure, (left, right) = panels(2, widths=(1.4, 1))
place = np.arange(10)
for shift, result, colour, label in ((-0.2, usual, GREY, "average (FedAvg)"), (0.2, equal, BLUE, "fair (FedRZO)")):
    left.bar(place + shift, by_digit(result.x, test), 0.4, color=colour, label=label)
left.set(xlabel="digit", ylabel="hinge loss on test images", xticks=place)
left.legend(frameon=False)
right.plot(equal.history["round"], equal.history["worst"], color=BLUE, label="worst digit, fair")
right.plot(equal.history["round"], equal.history["mean"], color=BLUE, linestyle="--", label="mean, fair")
right.axhline(usual.history["worst"][-1], color=GREY, label="worst digit, average")
right.axhline(usual.history["mean"][-1], color=GREY, linestyle="--", label="mean, average")
right.set(xlabel="communication rounds (upper level)", ylabel="hinge loss on test images", ylim=(0, 1.05))
right.legend(frameon=False, fontsize="small")
finish(figure, "fair_digits", {
    "worst digit, average": usual.history["worst"][-1], "worst digit, fair": equal.history["worst"][-1],
    "mean, average": usual.history["mean"][-1], "mean, fair": equal.history["mean"][-1],
    "the adversary's weights": equal.y,
})  # fmt: skip
