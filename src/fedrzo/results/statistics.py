"""Means over seeds and how far they can be trusted."""

import math

import numpy as np
from scipy import special


def confidence_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, low and high of the 95 % confidence interval of the mean over the leading axis (Student's t)."""
    mean, n = values.mean(axis=0), len(values)
    if n == 1:
        return mean, mean, mean
    half = special.stdtrit(n - 1, 0.975) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def mean_and_half(values: np.ndarray, digits: int = 6) -> str:
    """Return a mean and the half width of its 95 % interval, where there are several values."""
    if not np.all(np.isfinite(values)):
        return "diverged"
    mean, _, high = (float(edge) for edge in confidence_band(values))
    return f"{mean:.{digits}g}" + (f" ± {high - mean:.2g}" if len(values) > 1 else "")
