"""Made-up records for the tests of figures and of the report."""

import math

import numpy as np

from fedrzo.paper.record import Claim, Curves, Record, Setting, Table
from fedrzo.results.figure import Surface
from fedrzo.results.history import History

STEPS = 11
HOSTILE = "<script>alert(1)</script> & </script>"


def history(seed=0, sign=1.0, gradients=0, rows=STEPS, local_steps=1):
    steps = np.arange(rows)
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, rows)
    columns = {
        "round": steps, "upload_bytes": 1_000_000 * steps, "download_bytes": 2_000_000 * steps,
        "evaluations": 100 * local_steps * steps, "gradients": gradients * steps, "seconds": 0.1 * steps,
        "loss": sign * noise * 0.75**steps,
    }  # fmt: skip
    return History({name: values.tolist() for name, values in columns.items()})


def diverged(seed=0, end=math.nan):
    """A run that explodes in round 5 and has no finite loss after that."""
    columns = history(seed).to_dict()
    columns["loss"][5:] = [1e9] + [end] * (STEPS - 6)
    return History(columns)


def curves(**changes):
    groups = {
        "H = 1": [history(seed) for seed in range(4)],
        "H = 20": [history(seed + 9, local_steps=20) for seed in range(4)],
        "eta = 1": [history(20), diverged(21), diverged(22, math.inf)],
        HOSTILE: [history(30)],
    }
    return Curves(**{"title": "Loss of a toy", "groups": groups, "caption": "Mean of four seeds.", **changes})


def surface(**changes):
    x, y = np.linspace(-1, 1, 9), np.linspace(0, 2, 7)
    z = np.abs(x)[None, :] + (y[:, None] - 1) ** 2 + 0.25
    z[0, 0] = np.nan
    return Surface(
        **{"title": "A valley", "x": x.tolist(), "y": y.tolist(), "z": z.tolist(), "labels": ("u", "v", "f"), **changes}
    )


def record(**changes):
    claims = [
        Claim("More steps are better per round.", "difference of losses", 0.123456, 0.1, 0.15, True, "Not per work."),
        Claim("More steps are better per evaluation.", "difference of losses", -0.2, -0.3, -0.1, False),
        Claim("It gets below zero.", "smallest loss", math.nan, None, None, None, "too few rounds"),
        Claim("It beats a coin.", "loss minus that of a coin", -1.0, -2.0, -0.5, True, own=True),
    ]
    rows = [["H", "paper", "ours"], ["1", "0.5", "0.51"], ["20", "0.2", HOSTILE]]
    negative = {"a": [history(sign=-1.0)], "b": [history(40, sign=-1.0), history(41, sign=-1.0)]}
    defaults = {
        "name": "fig1", "title": "A toy with <b>tags</b>", "command": "fedrzo reproduce fig1 --quick",
        "settings": [Setting("eta", [0.1, 0.01], "the paper"), Setting("batch", 4, "not printed")],
        "figures": [curves(), curves(title="Negative", groups=negative, caption="")],
        "tables": [Table("Losses", rows, "Beside the paper's.")], "claims": claims, "seeds": [0, 1, 2, 3],
        "seconds": 75.0, "quick": True, "environment": {"python": "3.13.0", "device": "1 x cpu"},
    }  # fmt: skip
    return Record(**{**defaults, **changes})


def write_sample(folder):
    """Write two records as `fedrzo reproduce --out folder` would."""
    other = {"figures": [surface()], "claims": [], "tables": [], "quick": False, "title": "An implicit function"}
    for one in (record(), record(name="fig7", **other)):
        (folder / one.name).mkdir(parents=True)
        one.save(folder / one.name)
    return folder
