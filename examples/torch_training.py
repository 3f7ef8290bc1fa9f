# %% [markdown]
# # Tuning the training of a PyTorch model, from its validation loss alone
#
# Four silos train PyTorch networks on their own handwritten digits. They want to agree on a learning rate and a
# weight decay. What a choice is worth is known only after training: the loss is "train, then look at the validation
# set". No gradient leads from there back to the learning rate, and the data stay in the silos.
#
# `fz.blackbox` takes such a function as it is. PyTorch runs inside each client's loss; FedRZO sees one number per
# call.
#
# Needs PyTorch: `pip install 'fedrzo[torch]'`.

# %%
import numpy as np
from common import BLUE, GREY, ORANGE, QUICK, finish, legend_above, needed, panels

import fedrzo as fz
from fedrzo import data

torch = needed("torch", "torch")
torch.set_num_threads(1)  # small matrices: threads would cost more than they bring
digits = data.load("digits")
parts = data.dirichlet(digits.y_train, clients=4, alpha=2.0, seed=0)
STEPS = 25


def prepare(rows):
    """Return 60 training images and the validation images of one silo, as tensors."""
    images, labels = torch.tensor(digits.x_train[rows]), torch.tensor(digits.y_train[rows], dtype=torch.long)
    return (images[:60], labels[:60]), (images[60:], labels[60:])


silos = [prepare(np.random.default_rng(0).permutation(rows)) for rows in parts]


def train(x, seed, silo):
    """Train one network in one silo with learning rate 10^x[0] and weight decay 10^x[1]; return its validation loss."""
    training, validation = silos[int(silo)]
    torch.manual_seed(int(seed))  # the same first weights for x + v and x - v
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    rate, decay = (float(10.0**value) for value in x)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay, momentum=0.9, fused=True)
    for _ in range(STEPS):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(training[0]), training[1]).backward()
        optimiser.step()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(validation[0]), validation[1])
    return min(float(loss.nan_to_num(5.0)), 5.0)  # training may diverge


# %%
asked = []  # every point that a silo was asked about


def validation_loss(x, batch):
    """Return a silo's mean validation loss over some first weights."""
    seeds, silo = batch
    asked.append(x)
    return np.mean([train(x, seed, silo) for seed in seeds])


problem = fz.Nonsmooth(
    fz.blackbox(validation_loss), fz.ClientData([np.arange(3)] * 4, fixed=[np.int32(i) for i in range(4)]),
    x0=np.array([-2.0, -3.0]), constraint=fz.sets.Box([-3.0, -4.0], [0.0, -0.5]),
)  # fmt: skip
method = fz.FedRZOnn(stepsize=lambda r: 0.6 / (1 + r / 10), smoothing=0.3)
result = fz.run(method, problem, rounds=12 if QUICK else 24, eval_every=6, progress=False)
found = result.x_feasible

# %% [markdown]
# For comparison, a map of the loss: the mean over the silos on a grid, from one seed each. With two unknowns one can
# afford it; with five it would take 9^5 points.

# %%
size = 4 if QUICK else 9
rates, decays = np.linspace(-3, 0, size), np.linspace(-4, -0.5, size)
table = np.array([[np.mean([train((a, b), 0, i) for i in range(4)]) for a in rates] for b in decays])
before, after = ([np.mean([train(x, seed, i) for seed in range(3)]) for i in range(4)] for x in (problem.x0, found))

# %%
figure, (left, right) = panels(2, widths=(1.3, 1))
shades = left.contourf(rates, decays, table, levels=12, cmap="Greys")
figure.colorbar(shades, ax=left).set_label("mean validation loss")
left.scatter(*np.array(asked).T, color=BLUE, s=6, label="points asked for")
left.plot(*problem.x0, "s", color=ORANGE, label="start")
left.plot(*found, "*", color=ORANGE, markersize=14, label="FedRZO")
left.set(xlabel="log10 of the learning rate", ylabel="log10 of the weight decay", xlim=(-3, 0.3), ylim=(-4, -0.5))
legend_above(left, 3)
place = np.arange(4)
right.bar(place - 0.2, before, 0.4, color=GREY, label="start")
right.bar(place + 0.2, after, 0.4, color=BLUE, label="FedRZO")
right.set(xlabel="silo", ylabel="validation loss", xticks=place)
legend_above(right, 2)
finish(figure, "torch_training", {
    "loss at the start": result.history["loss"][0], "loss found": result.history["loss"][-1], "best of the map": table.min(),
    "learning rate found": 10.0 ** found[0], "weight decay found": 10.0 ** found[1],
    "training runs of FedRZO": result.history["evaluations"][-1], "training runs of the map": 4 * table.size,
})  # fmt: skip
