"""The paper's Figure 1: FedRZO_nn on a ReLU network, local steps against smoothing, on MNIST."""

import math

from fedrzo.methods import FedRZOnn
from fedrzo.paper.claims import at_cost, between, final, more_local_steps, smaller
from fedrzo.paper.record import Claim, Curves, Record, Setting
from fedrzo.paper.reproduction import Reproduction
from fedrzo.results.figure import FEW
from fedrzo.results.history import History
from fedrzo.zoo import relu

TITLE = "FedRZO_nn on a ReLU network: local steps H and smoothing eta (MNIST)"
MINUTES = (1.3, 4)  # quick: of processor time, with nothing cached; full: on two cores
DATA = ("mnist",)
SMOOTHINGS = (0.1, 0.01, 0.001)
LOCAL_STEPS = (1, 5, 10, 20)
STEPSIZE, REGULARISATION, CLIENTS, NEURONS, ALPHA = 1e-5, 0.01, 5, 4, 0.5
BATCH = 200
ROUNDS, QUICK_ROUNDS = 200, 60
EARLY = 20  # rounds that count as early
PAPER, OWN = "printed in the paper", "not printed"

Groups = dict[tuple[float, int], list[History]]


def network_settings(batch: int, images: int = 60_000, split: str = f"Dirichlet({ALPHA})") -> list[Setting]:
    """Return the choices that all experiments of Section 5.1 share."""
    return [
        Setting("clients m", CLIENTS, PAPER),
        Setting("gamma", STEPSIZE, PAPER),
        Setting("lambda", REGULARISATION, PAPER),
        Setting("split", split, PAPER),
        Setting("labels", "even against odd", f"{OWN}: how ten classes become two; this split is balanced"),
        Setting("batch size", batch, f"{OWN}: large enough that directions, not samples, are the noise"),
        Setting("loss of a batch", f"its sum, {batch} times its mean",
                f"{OWN}: the paper writes sums over local data. On MNIST with gamma = 1e-5 a sum over all samples of a "
                "client diverges in the first rounds and a mean moves by 0.2 % in 100 rounds; a sum over the batch learns"),
        Setting("initial point", "normal, 1/sqrt(fan-in), the same for all runs",
                f"{OWN}: at zero the ReLU network has no gradient"),
        Setting("local data", f"all {images:,} training images", f"{OWN}; the natural reading"),
    ]  # fmt: skip


def run(reproduction: Reproduction) -> Record:
    """Run all twelve curves, all seeds, in one compiled sweep."""
    rounds, seeds = reproduction.choose(QUICK_ROUNDS, ROUNDS), reproduction.seeds(2, 5)
    count = len(SMOOTHINGS) * len(LOCAL_STEPS) * len(seeds)
    reproduction.budget(f"one sweep of {count} runs of {rounds} rounds", MINUTES)
    problem = relu.relu_mnist(CLIENTS, NEURONS, REGULARISATION, alpha=ALPHA, scale=float(BATCH), data=reproduction.data)
    method = FedRZOnn(STEPSIZE, SMOOTHINGS[0], LOCAL_STEPS[0], batch_size=BATCH)
    groups = reproduction.histories(
        "all", method, problem, rounds, seeds, 5, smoothing=list(SMOOTHINGS), local_steps=list(LOCAL_STEPS)
    )
    shown = "the bands are 95 % intervals over" if len(seeds) >= FEW else "thin lines are the runs of"
    figures = [
        Curves(f"eta = {eta:g}", {f"H = {H}": groups[eta, H] for H in LOCAL_STEPS},
               caption=f"Training loss over all data at eta = {eta:g}; {shown} {len(seeds)} seeds.")
        for eta in SMOOTHINGS
    ]  # fmt: skip
    settings = [
        Setting("neurons N1", NEURONS, PAPER),
        Setting("eta", list(SMOOTHINGS), PAPER),
        Setting("H", list(LOCAL_STEPS), PAPER),
        reproduction.rounds(rounds, f"{OWN}: the axis of the figure cannot be read"),
        *network_settings(BATCH),
    ]
    return reproduction.record(TITLE, settings, seeds, figures, claims=claims(groups))


def claims(groups: Groups) -> list[Claim]:
    """Judge what the paper concludes from the figure."""
    many = LOCAL_STEPS[-1]
    found = []
    for eta in SMOOTHINGS:
        found += more_local_steps({H: groups[eta, H] for H in LOCAL_STEPS}, where=f"eta = {eta:g}")
    low, high = SMOOTHINGS[-1], SMOOTHINGS[0]
    ends = {eta: final(groups[eta, many], "loss") for eta in SMOOTHINGS}
    spread = max(ends.values(), key=lambda e: e.mean()) - min(ends.values(), key=lambda e: e.mean())
    start = groups[high, many][0]["loss"][0]
    found.append(
        between("The method is robust in eta",
                f"spread of the loss over eta at the last round (H = {many}), over the loss gained since the start; at most 5 %",
                spread / (start - ends[high]), (-math.inf, 0.05))
    )  # fmt: skip
    early = {eta: at_cost(groups[eta, many], "loss", "round", EARLY) for eta in SMOOTHINGS}
    found.append(
        smaller("A larger eta is slightly faster in early rounds",
                f"loss after {EARLY} rounds (H = {many}), eta = {high:g} minus eta = {low:g}, paired by seed",
                early[high], early[low])
    )  # fmt: skip
    return found
