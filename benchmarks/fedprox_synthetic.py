"""FedAvg against FedProx on FedProx's synthetic(1,1): is the one unstable, the other stable?

Settings of the authors' script: step 0.01, 200 rounds, 10 of 30 clients a round, batches of 10, 20 epochs, mu = 1. Each seed
draws its own data and its own run. Clients with more than --cap samples (about four of thirty) are cut down to that, since
the largest one sets the time of a round, and one draw in ten has a client with 40,000.

With 90 % stragglers, FedAvg drops them, which leaves one client of ten a round; FedProx keeps what they did. Measured on
the training loss over rounds:

* rise: the sum of all increases from one round to the next; a curve that only falls has none.
* wobble: the standard deviation, over the last half of the rounds, of the change from one round to the next.
* loss, accuracy: the mean training loss and test accuracy over the last ten rounds.

Means over seeds with 95 % intervals (Student's t), and the same for the difference of the two methods on the same data.

    python benchmarks/fedprox_synthetic.py [--seeds 5] [--rounds 200] [--epochs 20] [--cap 500] [--json]
"""

import argparse
import json

import numpy as np
from scipy.stats import t as student

import fedrzo as fz
from fedrzo.zoo import make

STEP, BATCH, CLIENTS = 0.01, 10, 10
COLUMNS = ("rise", "wobble", "loss", "accuracy")


def measure(history):
    loss = np.asarray(history["loss"])
    return {
        "rise": float(np.maximum(np.diff(loss), 0).sum()),
        "wobble": float(np.diff(loss[len(loss) // 2 :]).std()),
        "loss": float(loss[-10:].mean()),
        "accuracy": float(np.mean(history["test_accuracy"][-10:])),
    }


def settings(epochs):
    """Return the method and the clients whose work is used in a round, by name."""
    work = {"epochs": epochs, "batch_size": BATCH}
    return {
        "FedAvg": (fz.FedAvg(STEP, **work), CLIENTS),
        "FedProx": (fz.FedProx(STEP, mu=1.0, **work), CLIENTS),
        "FedAvg, 90 % dropped": (fz.FedAvg(STEP, **work), CLIENTS // 10),
        "FedProx, 90 % stragglers": (fz.FedProx(STEP, mu=1.0, stragglers=0.9, **work), CLIENTS),
    }


def compare(seed, rounds, epochs, names=None, **data):
    """Run the methods on one draw of the data; the same clients take part in the same rounds."""
    task = make("synthetic", alpha=1.0, beta=1.0, seed=seed, **data)
    found = {}
    for name, (method, some) in settings(epochs).items():
        if names is None or name in names:
            history = fz.run(method, task, rounds, key=seed, clients_per_round=some, progress=False).history
            found[name] = measure(history)
    return found


def interval(values):
    """Return the mean and half the length of its 95 % interval."""
    values = np.asarray(values)
    return values.mean(), student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--cap", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        runs.append(compare(seed, options.rounds, options.epochs, max_samples=options.cap))
        if not options.json:
            for name, row in runs[-1].items():
                print(
                    f"seed {seed}  {name:24} {'  '.join(f'{column} {row[column]:.4f}' for column in COLUMNS)}",
                    flush=True,
                )
    if options.json:
        print(json.dumps({"runs": runs}))
        return
    pairs = {name: {column: [run[name][column] for run in runs] for column in COLUMNS} for name in runs[0]}
    for proximal, plain in (("FedProx", "FedAvg"), ("FedProx, 90 % stragglers", "FedAvg, 90 % dropped")):
        less = {column: np.subtract(pairs[proximal][column], pairs[plain][column]) for column in COLUMNS}
        pairs[f"{proximal} - {plain}"] = less
    for name, row in pairs.items():
        cells = ("{} {:.4f} +- {:.4f}".format(column, *interval(values)) for column, values in row.items())
        print(f"{name:48} {'  '.join(cells)}")


if __name__ == "__main__":
    main()
