"""What runs cost, counted anew from docs/costs.md and docs/baselines.md."""

import numpy as np

from . import trees
from .case import Case

EVALUATIONS = ("FedRZOnn", "FedRZObl", "FedRZO2s", "ZSOL")


def of_round(value: object, r: int) -> float:
    """Return a number, or the value of a function of the round described as a pair."""
    if isinstance(value, tuple):
        return value[1] / np.sqrt(r + 1.0) if value[0] == "decay" else value[1] + r
    return value


def expected(case: Case, rounds: int, lower_rounds: int) -> dict[str, float]:
    """Return the columns that the rules determine, as increments over row 0."""
    n, q = trees.length(case.x), trees.length(case.y)
    item = 4 if case.kind == "nonsmooth" and case.x_type == "float32" else 8
    options, m = case.options, case.clients
    part = case.clients_per_round or m
    steps = [int(of_round(options.get("local_steps", 1), r)) for r in range(rounds)]
    samples = per_step(case, options.get("batch_size", 1), part)
    found: dict[str, float] = {"round": rounds}
    name = case.method
    scalars = options.get("communication", "vectors") != "vectors"
    directions = options.get("directions", 1)

    if name in EVALUATIONS and samples is not None:
        if options.get("oracle", "values") == "values":
            found["evaluations"] = 2 * directions * samples * sum(steps)
        elif name != "FedRZObl":
            found["evaluations"], found["gradients"] = 0, samples * sum(steps)
    if name in ("FedRZOnn", "FedRZO2s", "ZSOL") and not scalars:
        found |= {"upload_bytes": rounds * part * n * item, "download_bytes": rounds * part * n * item}
    if name in ("FedRZOnn", "FedRZO2s", "ZSOL") and options.get("communication") == "scalars":
        found["upload_bytes"] = part * sum(steps) * directions * item
    steps_below = name == "FedRZObl" and case.lower in ("", "LocalSGD") and not options.get("closing", True)
    if steps_below and case.constants and not scalars and options.get("oracle", "values") == "values":
        bounded = case.lower_set not in ("", "reals")  # then a client says by how much y breaks a constraint
        found["upload_bytes"] = item * (rounds * part * (n + bounded) + m * lower_rounds * 2 * q)
    if name == "FedZO" and samples is not None:
        found["evaluations"] = (options.get("directions", 20) + 1) * samples * sum(steps)
    if name == "DeComFL" and samples is not None:
        found["evaluations"] = 2 * directions * samples * sum(steps)
        found["upload_bytes"] = part * sum(steps) * directions * item
    vectors = {
        "FedZO": 1,
        "FedAvg": 1,
        "FedProx": 1,
        "FedMSPP": 1,
        "LocalSGD": 1,
        "LFD": 1,
        "FedAC": 2,
        "Scaffold": 2,
        "Scaffnew": 1,
    }
    if name in vectors:
        found |= dict.fromkeys(("upload_bytes", "download_bytes"), rounds * part * vectors[name] * n * item)
    if name in ("FedAvg", "FedProx", "LocalSGD", "LFD", "FedAC") and samples is not None:
        found["gradients"] = samples * sum(steps)
    if name in ("SimFBO", "MemFBO", "FedBiOAcc", "LocalSGDA"):
        numbers = {"SimFBO": n + 2 * q, "MemFBO": n + 2 * q, "FedBiOAcc": 2 * (n + 2 * q), "LocalSGDA": n + q}[name]
        numbers *= 2 if name == "LocalSGDA" and "momentum" in options else 1
        found |= dict.fromkeys(("upload_bytes", "download_bytes"), rounds * part * numbers * item)
    return found


def per_step(case: Case, batch: int | str, part: int) -> int | None:
    """Return the samples of one batch of all clients; None where it depends on who takes part."""
    if batch != "full":
        return part * batch
    if case.data == "sampler":
        return None
    if part < case.clients and len(set(case.sizes)) > 1 and case.data != "shared":
        return None
    return part * case.sizes[0] if case.data == "shared" else sum(case.sizes) * part // case.clients
