"""The same FedAvg job on fedrzo, FedJAX, pfl and Flower's simulation: `python benchmarks/peers.py`.

Each contestant is a script in benchmarks/contestants that runs in a process of its own, the peers' in virtual environments made
here, with the versions below. In a repetition they run one after the other, and ratios are taken within it, so that a machine
that is busy for a while does not favour anybody. Threads are left to each one's default.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedrzo.compare.options import Options
from helpers.command import check_fixed, main
from helpers.environments import Environment, PeerError, call
from helpers.results import save, standing

PROBLEM = "FedAvg for least squares, 100 clients x 50 samples, d = 20, batch 10, 5 local steps"
SEEDS = 1
REPETITIONS = 3  # each with other draws
CLIENTS, SAMPLES, DIMENSION = 100, 50, 20
STEPSIZE, BATCH, LOCAL_STEPS = 0.05, 10, 5
ROUNDS = 30  # after these, what is left of the loss is the noise of sampling
SPREADS = 3  # standard deviations of our own losses that a peer's loss may lie above our mean
SCRIPTS = Path(__file__).parent / "contestants"


@dataclasses.dataclass(frozen=True)
class Peer:
    """A contestant.

    Attributes:
        name: its key in the results.
        script: its file in benchmarks/contestants.
        how: it does the job.
        requirements: what pip installs for it; nothing for fedrzo itself, which runs where it is.
    """

    name: str
    script: str
    how: str
    requirements: tuple[str, ...] = ()


OURS = Peer("fedrzo", "on_fedrzo.py", "FedAvg, default engine")
PEERS = (
    # Later JAX lacks names that FedJAX uses.
    Peer("fedjax", "on_fedjax.py", "fed_avg, jit backend", ("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3")),
    Peer("pfl", "on_pfl_torch.py", "FederatedAveraging, PyTorch", ("pfl==0.6.0", "torch==2.13.0")),
    Peer("pfl_numpy", "on_pfl_numpy.py", "FederatedAveraging around our NumPy steps", ("pfl==0.6.0",)),
    Peer("flower", "on_flower.py", "FedAvg, Ray, NumPy steps", ("flwr[simulation]==1.41.0",)),
)


def run(options: Options, peers: tuple[Peer, ...] = PEERS) -> dict[str, Any]:
    """Measure rounds per second after compilation, and compare the losses reached.

    Args:
        options: the seed is that of the data and of the first repetition; the peers' environments go below the folder, where a
            later call finds them.
        peers: whom to compare with.
    """
    options.check_seed()
    check_fixed(options, PROBLEM)
    seeds = range(options.seed, options.seed + (1 if options.quick else REPETITIONS))
    with tempfile.TemporaryDirectory(prefix="fedrzo-peers-") as elsewhere:
        found = compare(peers, seeds, options.out or Path(elsewhere), options)
    save(found, options.out, "peers")
    return found


def compare(peers: tuple[Peer, ...], seeds: range, folder: Path, options: Options) -> dict[str, Any]:
    """Install the peers, run all contestants in turn; those that cannot be installed or fail are reported, the others go on."""
    runs: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in (OURS, *peers)}
    missing: dict[str, str] = {}
    homes = {peer.name: Environment(folder / "environments" / peer.name, peer.requirements) for peer in peers}
    for name, home in homes.items():
        if not home.ready:
            wanted = ", ".join(home.requirements)
            options.say(f"peers: pip downloads {wanted} and what they need into {home.folder}")
            try:
                home.install()
            except PeerError as error:
                missing[name] = str(error)
    for seed in seeds:
        write_job(folder / "job.npz", seeds[0], seed)
        for peer in (OURS, *peers):
            if peer.name in missing:
                continue
            options.say(f"peers: {peer.name}, repetition {seed - seeds[0] + 1} of {len(seeds)}")
            try:
                runs[peer.name].append(contest(peer, folder / "job.npz", homes.get(peer.name)))
            except PeerError as error:
                if peer is OURS:
                    raise
                missing[peer.name] = str(error)
    return summary({name: each for name, each in runs.items() if name not in missing}, missing, seeds[0])


class Data(NamedTuple):
    """What all contestants get.

    Attributes:
        features: of shape (clients, samples, dimension).
        targets: of shape (clients, samples).
    """

    features: np.ndarray
    targets: np.ndarray

    def loss(self, x: np.ndarray) -> float:
        """Return the mean over all samples of half the squared error."""
        return float(np.mean((self.features.astype(np.float64) @ x - self.targets) ** 2) / 2)

    def optimum(self) -> float:
        """Return the least loss."""
        rows = self.features.reshape(-1, self.features.shape[-1]).astype(np.float64)
        return self.loss(np.linalg.lstsq(rows, self.targets.ravel().astype(np.float64), rcond=None)[0])


def draw_data(seed: int) -> Data:
    """Draw a linear model with unit noise: the loss is strongly convex, with curvature near one in every direction."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(CLIENTS, SAMPLES, DIMENSION))
    targets = features @ rng.normal(size=DIMENSION) + rng.normal(size=(CLIENTS, SAMPLES))
    return Data(features.astype(np.float32), targets.astype(np.float32))


def write_job(path: Path, data_seed: int, seed: int) -> None:
    """Write the job of one repetition where the scripts read it."""
    settings = {"stepsize": STEPSIZE, "batch_size": BATCH, "local_steps": LOCAL_STEPS, "rounds": ROUNDS, "seed": seed}
    np.savez(path, **draw_data(data_seed)._asdict(), **settings)


def contest(peer: Peer, job: Path, environment: Environment | None = None) -> dict[str, Any]:
    """Run a contestant's script, in its environment if it has one, and return what it printed last."""
    python = sys.executable if environment is None else environment.python
    lines = call([python, str(SCRIPTS / peer.script), str(job.absolute())], alone=environment is not None).splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        raise PeerError(f"{peer.script} printed no result, but {' '.join(lines[-1:])!r}") from None


def summary(runs: dict[str, list[dict[str, Any]]], missing: dict[str, str], seed: int) -> dict[str, Any]:
    """Return medians over repetitions, and ratios in rounds per second, ours to theirs.

    A loss agrees that is at most our own mean plus so many standard deviations over our seeds. It may well be lower: our samples
    are drawn with replacement, and shuffled ones leave less noise.
    """
    data, ours = draw_data(seed), runs[OURS.name]
    losses = [loss for each in ours for loss in each["losses"]]
    mean, deviation = statistics.mean(losses), statistics.stdev(losses)
    highest = mean + SPREADS * deviation
    scale = {"start": data.loss(np.zeros(DIMENSION)), "optimum": data.optimum(), "ours": mean, "deviation": deviation}
    found: dict[str, Any] = {f"vs_{name}": _ratio(theirs, ours) for name, theirs in runs.items() if theirs is not ours}
    return found | {
        "problem": PROBLEM,
        "device": ours[0]["device"],
        "cores": os.cpu_count(),
        "rounds": ROUNDS,
        "repetitions": len(ours),
        "loss": scale | {"highest": highest},
        "contestants": {name: _medians(each, highest) for name, each in runs.items()},
        "missing": missing,
    }


def _ratio(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> float:
    pairs = zip(theirs, ours, strict=True)
    return statistics.median(a["seconds_per_round"] / b["seconds_per_round"] for a, b in pairs)


def _medians(runs: list[dict[str, Any]], highest: float) -> dict[str, Any]:
    setup, seconds = (statistics.median(r[key] for r in runs) for key in ("setup_seconds", "seconds_per_round"))
    loss = max(r["loss"] for r in runs)
    speed = {"setup_seconds": setup, "seconds_per_round": seconds, "rounds_per_second": 1 / seconds}
    return speed | {"loss": loss, "agrees": loss <= highest, "versions": runs[0]["versions"], "runs": runs}


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    how = {peer.name: peer.how for peer in (OURS, *PEERS)}
    rows = [["", "how", "rounds/s", "ratio", "set-up", "loss - optimum"]]
    for name, each in found["contestants"].items():
        ratio = f"{found[f'vs_{name}']:.0f} x" if f"vs_{name}" in found else ""
        excess = f"{each['loss'] - found['loss']['optimum']:.1e}" + ("" if each["agrees"] else ", too high")
        speed = f"{each['rounds_per_second']:.1f}"
        rows.append([name, how.get(name, ""), speed, ratio, f"{each['setup_seconds']:.1f} s", excess])
    return rows


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    loss = found["loss"]
    above = {name: loss[name] - loss["optimum"] for name in ("start", "ours")}
    versions = {name: each["versions"].items() for name, each in found["contestants"].items()}
    return [
        f"{found['repetitions']} repetitions on {found['cores']} cores ({found['device']}), medians. Set-up is imports, start, "
        "compilation and the first round, and not in the rounds per second; the loss is the highest of the repetitions.",
        f"We start {above['start']:.1f} above the optimum and after {found['rounds']} rounds are {above['ours']:.1e} above it, "
        f"with a deviation of {loss['deviation']:.1e} over seeds.",
        *(f"{name}: {', '.join(' '.join(pair) for pair in pairs)}" for name, pairs in versions.items()),
        *(f"{name} is missing: {why}" for name, why in found["missing"].items()),
    ]


def verdict(found: dict[str, Any]) -> str:
    """Say who wins."""
    return standing({name: found[f"vs_{name}"] for name in found["contestants"] if f"vs_{name}" in found}, "its peers")


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
