"""The paper's Figure 5: fair classification by FedRZO_bl, a ReLU network against an adversary that weighs the classes."""

from fedrzo.methods import FedRZObl, LocalSGD
from fedrzo.paper.claims import UPPER, final, more_local_steps, smaller
from fedrzo.paper.record import Claim, Curves, Record, Setting
from fedrzo.paper.reproduction import Reproduction
from fedrzo.results.history import History
from fedrzo.zoo import fair

TITLE = "FedRZO_bl on fair classification (MNIST)"
MINUTES = (0.7, 5)  # quick: of processor time, with nothing cached; full: on two cores
DATA = ("mnist",)
STEPS = (1, 5, 10, 20)
STEPSIZE, SMOOTHING, BATCH, REGULARISATION = 1e-3, 0.01, 64, 0.1

Groups = dict[int, list[History]]


def run(reproduction: Reproduction) -> Record:
    """Run all H and seeds in one compiled sweep."""
    seeds, rounds = reproduction.seeds(2, 5), reproduction.choose(30, 150)
    reproduction.budget(f"one sweep of {len(STEPS) * len(seeds)} runs of {rounds} rounds", MINUTES)
    problem = fair.fair_mnist(regularisation=REGULARISATION, data=reproduction.data)
    # The lower level is quadratic with Hessian lambda: one full step solves it.
    method = FedRZObl(STEPSIZE, SMOOTHING, 1, BATCH, lower=LocalSGD(batch_size="full", rounds=1), closing=False)
    groups = reproduction.histories("all", method, problem, rounds, seeds, 10, local_steps=list(STEPS))
    labelled = {f"H = {H}": groups[H] for H in STEPS}
    figures = [
        Curves("the adversary's loss on training data", labelled, caption="The maximum over y of the mean loss."),
        Curves("test loss", labelled, "test_loss", caption="On test data, with the adversary's y of the training data."),
        Curves("the worst class", labelled, "worst_class", caption="The largest mean squared error of a class on test data."),
    ]  # fmt: skip
    return reproduction.record(TITLE, settings(reproduction, rounds), seeds, figures, claims=claims(groups))


def claims(groups: Groups) -> list[Claim]:
    """Judge the figure, and what it is about: fairness."""
    many, runs = STEPS[-1], groups[STEPS[-1]]
    found = [
        smaller(f"FedRZO_bl lowers the test loss of the minimax problem (H = {many})", "test loss at the end minus at the start",
                final(runs, "test_loss"), final(runs, "test_loss", 0)),
        smaller(f"It improves the worst class (H = {many})", "largest class error on test data, at the end minus at the start",
                final(runs, "worst_class"), final(runs, "worst_class", 0), own=True),
    ]  # fmt: skip
    return found + more_local_steps(groups, "test_loss", costs=("evaluations", UPPER))


def settings(reproduction: Reproduction, rounds: int) -> list[Setting]:
    """Return every choice; the paper prints none of them for this figure."""
    own = "not printed: "
    return [
        Setting("H", list(STEPS), f"{own}as in Figure 1"),
        Setting("clients, neurons, split", "5, 4, Dirichlet(0.5)", f"{own}as in Section 5.1"),
        Setting("objective", "sum over classes of y_c loss_c - lambda/2 |y|^2",
                "printed without y_c, which leaves y = 0; meant as in the source of the problem"),
        Setting("y", "free", "as printed; on the simplex in the source of the problem"),
        Setting("lambda", REGULARISATION, f"{own}class weights are then of order one"),
        Setting("gamma, eta, batch size", f"{STEPSIZE:g}, {SMOOTHING:g}, {BATCH}", f"{own}the longest steady step at H = 20"),
        Setting("losses", "means over local data", "the paper's sums tie gamma to the number of samples"),
        reproduction.rounds(rounds, f"{own}until the curves flatten"),
    ]  # fmt: skip
