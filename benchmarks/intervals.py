"""How often a certificate's interval holds the truth, and at which end it fails: `python benchmarks/intervals.py`.

Two-point estimates of a linear loss with a gradient of length one, plus a constant, as private sets add it, so that their mean
has a chosen square: multiples of what as many directions as `fz.certify` takes can resolve. They are drawn with NumPy, the
interval is the library's. Each row says how often the interval covers, how often it lies too high, and how often too low: then
the upper end, which a certificate is read for, is wrong. About five minutes on one core, half a minute with --quick.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedrzo.certificates.interval import BLOCKS, estimate_square, least_for
from fedrzo.compare.options import Options
from helpers.command import check_fixed, main
from helpers.results import save

PROBLEM = "intervals of certificates"
SEEDS = 1
CONFIDENCES = (0.95, 0.99, 0.999)
DIMENSIONS = (2, 5, 30)
MULTIPLES = (0.0, 0.3, 1.0, 3.0, 30.0)
GROUP = 250


def blocks(dim: int, square: float, repetitions: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Draw the blocks' mean estimates, again and again; the gradient's square is given, its way that of the loss's."""
    shift = np.zeros(dim)
    shift[0] = np.sqrt(square) - 1
    for _ in range(repetitions // GROUP):
        v = rng.standard_normal((GROUP, BLOCKS, least_for(dim), dim), dtype=np.float32)
        v /= np.linalg.norm(v, axis=-1, keepdims=True)
        yield from np.mean(dim * v[..., :1] * v, axis=2, dtype=float) + shift


def measure(dim: int, multiple: float, repetitions: int) -> list[dict[str, Any]]:
    """Return how often intervals cover, at each confidence."""
    square = multiple * 2 * np.sqrt(2 * dim) * dim / (BLOCKS * least_for(dim))  # two standard deviations at a stationary point
    high, low = np.zeros((2, len(CONFIDENCES)))
    for means in blocks(dim, square, repetitions, np.random.default_rng(dim)):
        for i, confidence in enumerate(CONFIDENCES):
            found = estimate_square(means, least_for(dim), confidence)
            high[i] += found.lower > square
            low[i] += found.upper < square
    return [
        {
            "dim": dim, "multiple": multiple, "confidence": confidence, "covered": 1 - (high[i] + low[i]) / repetitions,
            "too_high": high[i] / repetitions, "too_low": low[i] / repetitions,
        }
        for i, confidence in enumerate(CONFIDENCES)
    ]  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Measure every case; `--quick` repeats each 1,000 times in place of 10,000."""
    check_fixed(options, PROBLEM)
    found: dict[str, Any] = {"problem": PROBLEM, "repetitions": 1000 if options.quick else 10_000, "rows": []}
    for dim in DIMENSIONS:
        for multiple in MULTIPLES:
            options.say(f"n = {dim}, {multiple:g} x")
            found["rows"] += measure(dim, multiple, found["repetitions"])
    save(found, options.out, "intervals")
    return found


def table(found: dict[str, Any]) -> list[list[str]]:
    """Return rows to print."""
    shown = [["n", "squared norm", *(f"{confidence:.1%}: covered (too high, too low)" for confidence in CONFIDENCES)]]
    for i in range(0, len(found["rows"]), len(CONFIDENCES)):
        rows = found["rows"][i : i + len(CONFIDENCES)]
        cells = (f"{r['covered']:.2%} ({r['too_high']:.2%}, {r['too_low']:.2%})" for r in rows)
        shown.append([str(rows[0]["dim"]), f"{rows[0]['multiple']:g} x", *cells])
    return shown


def remarks(found: dict[str, Any]) -> list[str]:
    """Return what to know beside the table."""
    return [f"{found['repetitions']:,} repetitions; the squared norm is in multiples of what such a sample can resolve."]


def verdict(found: dict[str, Any]) -> str:
    """Say how far coverage is from what is promised."""
    said = []
    for confidence in CONFIDENCES:
        covered = [row["covered"] for row in found["rows"] if row["confidence"] == confidence]
        said.append(f"{confidence:.1%} intervals cover in {min(covered):.2%} to {max(covered):.2%}")
    return f"No contest. {', '.join(said)} of all cases."


if __name__ == "__main__":
    sys.exit(main(sys.modules[__name__]))
