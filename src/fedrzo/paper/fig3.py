"""The paper's Figure 3: FedRZO_nn on larger ReLU networks, on CIFAR-10."""

from fedrzo.methods import FedRZOnn
from fedrzo.paper.claims import at_cost, common_budget, more_local_steps, smaller
from fedrzo.paper.fig1 import ALPHA, BATCH, CLIENTS, OWN, PAPER, REGULARISATION, network_settings
from fedrzo.paper.record import Claim, Curves, Record, Setting
from fedrzo.paper.reproduction import Reproduction
from fedrzo.results.history import History
from fedrzo.zoo import relu

TITLE = "FedRZO_nn on ReLU networks of 4, 20 and 100 neurons (CIFAR-10)"
MINUTES = (1.9, 50)  # quick: of processor time, with nothing cached; full: on two cores
DATA = ("cifar10",)
NEURONS = (4, 20, 100)
SMOOTHINGS = (0.1, 0.01, 0.001)
LOCAL_STEPS = (1, 20)
STEPSIZE = 1e-6
PIXELS = 3072
ROUNDS, QUICK_ROUNDS = 100, 4

Groups = dict[tuple[int, float, int], list[History]]


def run(reproduction: Reproduction) -> Record:
    """Run one compiled sweep per network."""
    seeds, rounds = reproduction.seeds(2, 3), reproduction.choose(QUICK_ROUNDS, ROUNDS)
    runs = len(SMOOTHINGS) * len(LOCAL_STEPS) * len(seeds)
    reproduction.budget(f"{len(NEURONS)} sweeps of {runs} runs, n up to {100 * (PIXELS + 1):,}", MINUTES)
    groups: Groups = {}
    for neurons in NEURONS:
        problem = relu.relu_cifar10(CLIENTS, neurons, REGULARISATION, alpha=ALPHA, scale=float(BATCH), data=reproduction.data)
        method = FedRZOnn(STEPSIZE, SMOOTHINGS[0], LOCAL_STEPS[0], BATCH)
        found = reproduction.histories(
            f"{neurons} neurons", method, problem, rounds, seeds, max(2, rounds // 20), smoothing=list(SMOOTHINGS),
            local_steps=list(LOCAL_STEPS),
        )  # fmt: skip
        groups |= {(neurons, *setting): runs for setting, runs in found.items()}
    figures = [
        Curves(f"{neurons} neurons (n = {neurons * (PIXELS + 1):,}), eta = {eta:g}",
               {f"H = {H}": groups[neurons, eta, H] for H in LOCAL_STEPS}, caption="Training loss over all data.")
        for neurons in NEURONS for eta in SMOOTHINGS
    ]  # fmt: skip
    return reproduction.record(TITLE, settings(reproduction, rounds), seeds, figures, claims=claims(groups))


def claims(groups: Groups) -> list[Claim]:
    """Judge the caption's sentences."""
    found = []
    for neurons in NEURONS:
        for eta in SMOOTHINGS:
            steps = {H: groups[neurons, eta, H] for H in LOCAL_STEPS}
            found += more_local_steps(steps, where=f"{neurons} neurons, eta = {eta:g}")
    return [*found, *_across(groups)]


def _across(groups: Groups) -> list[Claim]:
    """Judge what is said across networks and across smoothings."""
    many, middle = LOCAL_STEPS[-1], SMOOTHINGS[1]
    rounds = common_budget([groups[neurons, middle, many] for neurons in NEURONS], "round")
    ends = [groups[neurons, middle, many] for neurons in (NEURONS[0], NEURONS[-1])]
    small, large = (at_cost(runs, "loss", "round", rounds) / runs[0]["loss"][0] for runs in ends)
    found = [
        smaller(f"{NEURONS[0]} neurons do better than {NEURONS[-1]}",
                f"loss after {rounds:.0f} rounds over that at the start, {NEURONS[0]} minus {NEURONS[-1]} neurons",
                small, large, "With one gamma for all networks. Initial losses differ, hence the ratio.")
    ]  # fmt: skip
    for neurons in NEURONS:
        runs = [groups[neurons, eta, many] for eta in (SMOOTHINGS[0], SMOOTHINGS[-1])]
        half = runs[0][0]["round"][-1] / 2
        found.append(
            smaller(f"A smaller eta takes longer to converge ({neurons} neurons)",
                    f"loss after {half:.0f} rounds, eta = {SMOOTHINGS[0]:g} minus eta = {SMOOTHINGS[-1]:g}, paired by seed",
                    at_cost(runs[0], "loss", "round", half), at_cost(runs[1], "loss", "round", half))
        )  # fmt: skip
    return found


def settings(reproduction: Reproduction, rounds: int) -> list[Setting]:
    """Return every choice."""
    shared = [setting for setting in network_settings(BATCH, images=50_000) if setting.name != "gamma"]
    return [
        Setting("neurons", list(NEURONS), PAPER),
        Setting("eta", list(SMOOTHINGS), PAPER),
        Setting("H", list(LOCAL_STEPS), f"{OWN}: the ends of Figure 1's range"),
        Setting("gamma", STEPSIZE, f"{OWN} for CIFAR-10: with 1e-5 networks of 20 neurons and more diverge"),
        reproduction.rounds(rounds, OWN),
        *shared,
    ]
