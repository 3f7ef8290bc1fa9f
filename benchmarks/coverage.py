"""How often a certificate's interval holds the truth, at 95 %, 99 % and 99.9 %, and at which end it fails.

    python benchmarks/coverage.py [--quick] [--json]

Two-point estimates of a linear loss with a gradient of length one, plus a constant, as private sets add it, so that their mean
has a chosen square: multiples of what as many directions as `fz.certify` takes can resolve. They are drawn with NumPy, the
interval is the library's.
Each line says how often the interval covers, how often it lies too high, and how often too low: then the upper end, which a
certificate is read for, is wrong. About five minutes on one core, half a minute with --quick.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedrzo.certificates.interval import BLOCKS, estimate_square, least_for

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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 repetitions of each case in place of 10,000")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    repetitions = 1000 if options.quick else 10_000
    rows = []
    for dim in DIMENSIONS:
        for multiple in MULTIPLES:
            found = measure(dim, multiple, repetitions)
            rows += found
            if not options.json:
                cells = (f"{r['covered']:.2%} ({r['too_high']:.2%}, {r['too_low']:.2%})" for r in found)
                print(f"n = {dim:<3} {multiple:>4g} x ", *cells, sep="  ", flush=True)
    if options.json:
        print(json.dumps({"repetitions": repetitions, "rows": rows}))


if __name__ == "__main__":
    main()
