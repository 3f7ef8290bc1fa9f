# %% [markdown]
# # Which silos to trust, and how much to regularise
#
# Eight hospitals train one logistic regression on breast-cancer data. In three of them a share of the labels is
# wrong; nobody knows which. Each hospital also keeps some carefully checked cases for validation.
#
# FedAvg has no answer to "how much weight should each silo get, and how strong should the l2 penalty be?": these are
# **hyper-parameters**, and what they are worth shows only after training. That is a bilevel problem:
#
# - lower level: the model `y(x)` minimises the silos' training losses, weighted by `x["weight"]`, plus the penalty;
# - upper level: `x` minimises the validation loss of `y(x)`.
#
# FedRZO_bl solves the lower level at two points, `x + v` and `x - v`, by ordinary federated gradient rounds, and
# steps along `v` by the difference of the two validation losses. Nothing is differentiated through the training.

# %%
import jax.numpy as jnp
import numpy as np
from common import BLUE, GREY, ORANGE, QUICK, finish, panels

import fedrzo as fz
from fedrzo import data

SILOS, WRONG = 8, (1, 4, 6)
cancer = data.load("breast-cancer")
rng = np.random.default_rng(1)
training, validation = [], []
for i, rows in enumerate(data.iid(len(cancer.y_train), SILOS, seed=0)):
    checked, used = rows[:20], rows[20:]
    labels = cancer.y_train[used].astype(float)
    if i in WRONG:
        labels = labels * np.where(rng.random(len(labels)) < 0.7, -1, 1)
    training.append((cancer.x_train[used].astype(float), labels))
    validation.append((cancer.x_train[checked].astype(float), cancer.y_train[checked].astype(float)))


# %%
def logistic(y, batch):
    """The mean logistic loss of a linear model with a constant."""
    u, label = batch
    return jnp.mean(jnp.logaddexp(0.0, -label * (u @ y["slope"] + y["constant"])))


def training_loss(x, y, batch):
    """What a silo adds to the lower level: its weighted loss and its share of the penalty."""
    samples, silo = batch
    penalty = 10.0 ** x["log_l2"] / 2 * (jnp.sum(y["slope"] ** 2) + y["constant"] ** 2)
    return x["weight"][silo] * logistic(y, samples) + penalty


def accuracy(x, y, test):
    """The share of test cases that are told right."""
    u, label = test
    return jnp.mean(jnp.sign(u @ y["slope"] + y["constant"]) == label)


def validation_loss(x, y, batch):
    """What a silo adds to the upper level; x acts through y alone."""
    del x
    return logistic(y, batch)


limits = fz.sets.Product({"weight": fz.sets.Box(0.0, 1.0), "log_l2": fz.sets.Box(-1.5, 0.5)})


def problem_from(weight, log_l2):
    """Return the problem with these hyper-parameters as its starting point."""
    return fz.Bilevel(
        validation_loss, training_loss, fz.ClientData(validation), {"weight": weight, "log_l2": log_l2},
        {"slope": np.zeros(30), "constant": np.array(0.0)}, constraint=limits,
        lower_data=fz.ClientData(training, fixed=[np.int32(i) for i in range(SILOS)]),
        lower_domain=limits,  # x + v may leave the limits; weights below zero would make training senseless
        test=(cancer.x_test.astype(float), cancer.y_test.astype(float)), metrics={"accuracy": accuracy},
    )  # fmt: skip


# %% [markdown]
# Start from equal weights, which is what FedAvg does. For comparison, an oracle that knows which silos are wrong and
# leaves them out, with the penalty that was found: a run of no rounds says what a starting point is worth.

# %%
method = fz.FedRZObl(
    stepsize=lambda r: 0.3 / (1 + r / 50), smoothing=0.15, batch_size="full", lower=fz.LocalSGD(batch_size="full")
)
start = problem_from(np.full(SILOS, 0.5), np.array(-0.5))
result = fz.run(method, start, rounds=100 if QUICK else 250, eval_every=10, progress=False)
history, tuned = result.history, result.x_feasible
known = problem_from(np.array([float(i not in WRONG) for i in range(SILOS)]), tuned["log_l2"])
oracle = fz.run(method, known, rounds=0, progress=False).history

# %%
figure, (left, right) = panels(2)
left.plot(history["round"], history["loss"], color=BLUE, label="validation, tuned")
left.plot(history["round"], history["test_loss"], color=BLUE, linestyle="--", label="test, tuned")
left.axhline(oracle["test_loss"][0], color=ORANGE, linestyle=":", label="test, wrong silos left out")
left.set(xlabel="communication rounds (upper level)", ylabel="logistic loss", ylim=(0, None))
left.legend(frameon=False)
for i, weight in enumerate(tuned["weight"]):
    colour = ORANGE if i in WRONG else BLUE
    right.plot([i, i], [0.5, weight], color=colour, linewidth=1)
    right.plot(i, weight, "o", color=colour, clip_on=False)
right.plot(range(SILOS), np.full(SILOS, 0.5), "o", color=GREY, markerfacecolor="white", label="start")
right.plot([], [], "o", color=BLUE, label="good labels")
right.plot([], [], "o", color=ORANGE, label="most labels wrong")
right.set(xlabel="silo", ylabel="weight in training", ylim=(0, 1.4), xticks=range(SILOS))
right.legend(frameon=False, loc="upper right", fontsize="small")
good = [i for i in range(SILOS) if i not in WRONG]
finish(figure, "trusted_silos", {
    "test loss, all silos alike": history["test_loss"][0], "test loss, tuned": history["test_loss"][-1],
    "test loss, wrong silos left out": oracle["test_loss"][0],
    "test accuracy, all silos alike": history["accuracy"][0], "test accuracy, tuned": history["accuracy"][-1],
    "largest weight of a wrong silo": tuned["weight"][list(WRONG)].max(),
    "mean weight of the other silos": tuned["weight"][good].mean(), "l2 penalty": 10.0 ** tuned["log_l2"],
})  # fmt: skip
