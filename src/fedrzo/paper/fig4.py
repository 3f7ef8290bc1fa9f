"""The paper's Figure 4: hyper-parameter learning by FedRZO_bl, and what its local steps do where x matters directly."""

import warnings

import numpy as np

from fedrzo.methods import FedAC, FedRZObl, LocalSGD
from fedrzo.paper.claims import UPPER, at_cost, between, final, more_local_steps, smaller
from fedrzo.paper.record import Claim, Curves, Record, Setting
from fedrzo.paper.reproduction import Reproduction
from fedrzo.results.history import History
from fedrzo.zoo import bilevel

TITLE = "FedRZO_bl learning regularisation weights (MNIST), and on a loss that depends on x directly"
MINUTES = (1.1, 3)  # quick: of processor time, with nothing cached; full: on two cores
DATA = ("mnist",)
STEPS = (1, 5, 10, 20)
STEPSIZE, SMOOTHING, BATCH = 0.02, 0.05, 64
LOWER_ROUNDS = 100
CONTROL_ROUND = 10
DIRECT_STEPSIZES = (0.003, 0.01, 0.03, 0.1, 0.3)
DIRECT_SMOOTHING, DIRECT_ROUNDS = 0.1, 100

Groups = dict[int, list[History]]


def run(reproduction: Reproduction) -> Record:
    """Run the figure, its control with one long step in place of many, and the problem where x matters directly."""
    seeds, rounds = reproduction.seeds(3, 5), reproduction.choose(20, 100)
    reproduction.budget(f"{len(STEPS) * len(seeds)} runs of {rounds} rounds and three smaller sweeps", MINUTES)
    problem = bilevel.hyper_mnist(data=reproduction.data)
    groups = reproduction.histories("learning", method(STEPSIZE, BATCH), problem, rounds, seeds, 5, local_steps=list(STEPS))
    many = STEPS[-1]  # the control: one step of the length, and with the samples, of many
    with warnings.catch_warnings():  # a long step is what the control is
        warnings.filterwarnings("ignore", "stepsize: found .* times the smoothing")
        [long_step] = reproduction.histories(
            "one long step", method(STEPSIZE * many, BATCH * many), problem, rounds, seeds, 5
        ).values()
    chosen, direct = where_x_matters(reproduction, seeds)
    figures = [
        Curves("hyper-parameter learning", {f"H = {H}": groups[H] for H in STEPS}, "test_loss",
               caption="Logistic loss on test data, the model being retrained for each x."),
        Curves("many steps or one long one", {f"H = {many}": groups[many], "H = 1, gamma x 20, batch x 20": long_step},
               "test_loss", caption="The loss sees x through y alone: are H delayed steps more than one longer step?"),
        Curves("a loss that depends on x directly", {f"H = {H}, gamma = {chosen[H]:g}": direct[H] for H in STEPS},
               caption="The zoo's problem `direct`, each H with its best step size of a grid."),
    ]  # fmt: skip
    claims = [*learning_claims(groups), degenerate(groups[many], long_step)]
    claims += more_local_steps(direct, where="a loss that depends on x directly, best gamma for each H", own=True,
                               costs=("evaluations", UPPER))  # fmt: skip
    return reproduction.record(TITLE, settings(reproduction, rounds, chosen), seeds, figures, claims=claims)


def method(stepsize: float, batch: int) -> FedRZObl:
    """Return the method: an accelerated lower level, started from the last solution."""
    return FedRZObl(stepsize, SMOOTHING, 1, batch, lower=FedAC(batch_size="full", rounds=LOWER_ROUNDS))


def where_x_matters(reproduction: Reproduction, seeds: list[int]) -> tuple[dict[int, float], Groups]:
    """Give each H its best step size, found with another seed, then run all seeds."""
    problem = bilevel.direct()
    solver = FedRZObl(DIRECT_STEPSIZES[0], DIRECT_SMOOTHING, 1, lower=LocalSGD(batch_size="full"))
    trial = reproduction.sweep(
        "direct step sizes", solver, problem, DIRECT_ROUNDS, [1000, 1001], DIRECT_ROUNDS,
        stepsize=list(DIRECT_STEPSIZES), local_steps=list(STEPS),
    )  # fmt: skip
    ends = {(s["stepsize"], s["local_steps"]): trial.values(i, "loss")[:, -1].mean() for i, s in enumerate(trial.settings)}
    chosen, groups = {}, {}
    for H in STEPS:
        finite = {gamma: end for (gamma, steps), end in ends.items() if steps == H and np.isfinite(end)}
        chosen[H] = min(finite, key=lambda gamma: finite[gamma])
        solver = FedRZObl(chosen[H], DIRECT_SMOOTHING, H, lower=LocalSGD(batch_size="full"))
        [groups[H]] = reproduction.histories(f"direct H {H}", solver, problem, DIRECT_ROUNDS, seeds, 2).values()
    return chosen, groups


def learning_claims(groups: Groups) -> list[Claim]:
    """Judge the figure."""
    found = [
        smaller(f"FedRZO_bl lowers the test loss (H = {H})", "test loss at the end minus at the start",
                final(groups[H], "test_loss"), final(groups[H], "test_loss", 0))
        for H in STEPS
    ]  # fmt: skip
    return found + more_local_steps(groups, "test_loss", costs=("evaluations", UPPER))


def degenerate(many: list[History], one: list[History]) -> Claim:
    """Judge that local steps are no more than a longer step where the loss sees x through y alone."""
    first, last = (at_cost(many, "test_loss", "round", r) for r in (0, CONTROL_ROUND))
    apart = (last - at_cost(one, "test_loss", "round", CONTROL_ROUND)) / (first - last)
    return between("Here local steps are one longer step: the delay is not tested by this experiment",
                   f"difference of the two test losses after {CONTROL_ROUND} rounds, while they still fall, over what was "
                   "gained; within 10 %", apart, (-0.1, 0.1),
                   "f depends on x through y alone, and y is frozen within a round. Samples differ.", own=True)  # fmt: skip


def settings(reproduction: Reproduction, rounds: int, chosen: dict[int, float]) -> list[Setting]:
    """Return every choice; the paper prints none of them for this figure."""
    own = "not printed: "
    return [
        Setting("H", list(STEPS), f"{own}several, as in its other experiments"),
        Setting("clients, weights at the start, floor", "5, 0.3, 0.01", f"{own}see fedrzo.zoo.bilevel"),
        Setting("training samples per client", 20, f"{own}few, so that regularisation matters"),
        Setting("validation", "a quarter of each client's samples", f"{own}the upper level's data"),
        Setting("gamma", STEPSIZE, f"{own}the longest at which H = 20 is steady"),
        Setting("eta", SMOOTHING, f"{own}below the weights at the start; x+v and x-v are projected onto the floor"),
        Setting("batch size", BATCH, own + "both points see the same samples, so noise is small"),
        Setting("lower level", f"FedAC, full gradients, {LOWER_ROUNDS} rounds, warm start",
                f"{own}its condition number is about 1,000; Local SGD as in Algorithm 3 needs ten times the rounds"),
        reproduction.rounds(rounds, f"{own}until the curves are flat"),
        Setting("gamma where x matters directly", ", ".join(f"{gamma:g} (H = {H})" for H, gamma in chosen.items()),
                f"the best of {DIRECT_STEPSIZES}, found with other seeds"),
    ]  # fmt: skip
