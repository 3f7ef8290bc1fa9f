"""The paper's Figure 6: progress of FedRZO_2s on two of the table's games, as printed and with the followers in equilibrium."""

import warnings

from fedrzo.methods import FedRZO2s
from fedrzo.paper import table4
from fedrzo.paper.claims import more_local_steps
from fedrzo.paper.record import Curves, Record, Setting
from fedrzo.paper.reproduction import Reproduction
from fedrzo.problems.base import Problem
from fedrzo.results.history import History
from fedrzo.zoo import cournot

TITLE = "FedRZO_2s on the Stackelberg-Nash-Cournot games: progress for several H"
MINUTES = (0.5, 8)  # quick: of processor time, with nothing cached; full: on two cores
GAMES = ((100, 1.0, 0.5), (1000, 0.1, 1.0))  # followers, eta and b: left and right panel
STEPS = table4.LOCAL_STEPS
MONITORED = 16  # demands, evenly spread
EQUILIBRIUM_STEPSIZE = 0.1


def run(reproduction: Reproduction) -> Record:
    """Run both games in both settings, one compiled sweep each."""
    seeds, rounds = reproduction.seeds(2, 5), reproduction.choose(50, table4.ROUNDS)
    games = reproduction.choose(GAMES[:1], GAMES)
    reproduction.budget(f"{2 * len(games)} sweeps of {len(STEPS) * len(seeds)} runs of {rounds} rounds", MINUTES)
    figures, claims = [], []
    for followers, eta, b in games:
        for setting in ("paper", "certified"):
            groups = progress(reproduction, followers, eta, b, setting, rounds, seeds)
            name = f"{followers:,} followers, eta = {eta:g}, b = {b:g}: {WORDS[setting]}"
            labelled = {f"H = {H}": groups[H] for H in STEPS}
            figures.append(Curves(name, labelled, log=False, caption=CAPTIONS[setting]))
            claims += more_local_steps(groups, where=name, own=setting == "certified")
    named = "; ".join(f"{n:,} followers, eta = {eta:g}, b = {b:g}" for n, eta, b in games)
    demands = f"{MONITORED} values, evenly spread over the law of a"
    too_short = "ours: 1e-3 is too short to arrive in 2,000 steps"
    settings = [
        Setting("games", named, "printed in the paper"),
        Setting("H", list(STEPS), "printed in the paper"),
        reproduction.rounds(rounds, "printed in the paper: 100"),
        Setting("seeds", len(seeds), "not printed"),
        Setting("demands", demands, "ours: drawn from and monitored alike"),
        Setting("gamma, followers in equilibrium", EQUILIBRIUM_STEPSIZE, too_short),
        *(setting for setting in table4.SETTINGS if not setting.name.startswith("solved")),
    ]
    return reproduction.record(TITLE, settings, seeds, figures, claims=claims)


WORDS = {"paper": "as printed", "certified": "followers in equilibrium"}
CAPTIONS = {
    "paper": "The leader's mean loss with the printed lower-level steps, which leave the followers near zero.",
    "certified": "The leader's mean loss with the followers in equilibrium, and a step size that arrives.",
}


def progress(
    reproduction: Reproduction, followers: int, eta: float, b: float, setting: str, rounds: int, seeds: list[int]
) -> dict[int, list[History]]:
    """Run one game for all H and seeds."""
    problem: Problem = cournot.cournot(followers, b, setting, scenarios=MONITORED, iterations=rounds * STEPS[-1])
    stepsize = table4.STEPSIZE if setting == "paper" else EQUILIBRIUM_STEPSIZE
    method = FedRZO2s(stepsize, eta, STEPS[0], solver=cournot.solver(followers, setting))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "solver: tau is")  # so it was printed
        label = f"{followers} followers {setting}"
        return reproduction.histories(label, method, problem, rounds, seeds, 5, local_steps=list(STEPS))
