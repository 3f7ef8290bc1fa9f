"""The promise in words: one paragraph for whoever answers for the data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def statement(facts: Mapping[str, Any]) -> str:
    """Say what a run promised and what it did not, from the plain values that its result keeps."""
    spent, delta, clip = min(facts["epsilon"], 1e9), facts["delta"], facts["clip"]
    bound = "a bound that was found privately on the way" if isinstance(clip, str) else f"{clip:g}"
    shown = math.ceil(1e4 * spent) / 1e4  # never less than it is
    promise = (
        f"Each record of each client is protected by ({shown:g}, {delta:g})-differential privacy against everybody but its own "
        "client, the server and the other clients included: whether any one record was there or not makes nothing that left the "
        f"client more likely by a factor of more than {math.exp(min(shown, 700)):.4g}, but for a probability of {delta:g}."
    )
    nothing = "NO RECORD IS PROTECTED: there was so little noise that no epsilon can be promised."
    parts = [
        promise if math.isfinite(facts["epsilon"]) else nothing,
        f"Within {facts['rounds']} rounds a client made at most {facts['releases']} releases. Each is the sum of its records' "
        f"slopes, each clipped to {bound}, over a random sample that has each record with probability {_range(facts['rates'])}, "
        f"plus Gaussian noise of {_range(facts['noises'])} times that bound. They were composed by privacy-loss distributions "
        "(dp-accounting), for data sets that differ by one record, added or removed.",
        f"Not covered: how many records clients have ({_range(facts['records'])}) and what they weigh; their sets, and "
        "projections onto them; values that go with all batches of a client; a test batch; how long clients take to answer; "
        "whatever else is computed from the same records; and records that belong together, such as several of one person. The "
        "noise is made of floating-point numbers, and rounded to a grid that does not depend on the records; what rounding "
        "in the sums themselves may tell, no proof accounts for.",
    ]
    if facts["public_lower_data"]:
        parts.append("The lower level's data were declared public.")
    if facts["simulation"]:
        parts.append(
            "THIS WAS A SIMULATION: losses of the records were shown, and the noise came from a known seed, so that nothing of "
            "this is promised to anybody who saw them."
        )
    return " ".join(parts)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{high:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
