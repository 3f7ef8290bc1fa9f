"""`Privacy`: what a run promises for each record of each client."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedrzo.errors import InputError
from fedrzo.sets.base import Pytree
from fedrzo.support.arguments import checked_signature
from fedrzo.support.fields import check_fields, checked
from fedrzo.support.numbers import constant

AUTO = "auto"
# What adaptive clipping begins with, in a slope's units: one that is too small costs a few steps, one that is too large a run.
FIRST_CLIP = 1e-3


def _delta(value: Any, argument: str) -> float:
    found = constant(value, argument)
    if not found < 1:
        raise InputError(f"{argument}: found {value!r}; pass a number between 0 and 1, well below 1 over a client's records")
    return found


def _clip(value: Any, argument: str) -> Any:
    if isinstance(value, str) and value != AUTO:
        raise InputError(f'{argument}: found {value!r}; pass a positive number, or "auto"')
    return value if isinstance(value, str) else constant(value, argument)


def _truth(value: Any, argument: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{argument}: found {value!r}; pass True or False")
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class Calibrated(Pytree):
    """What clients need for their releases, an entry for each client; filled in before a run starts."""

    noise: Any  # standard deviations, in units of the clip
    threshold: Any  # 32 random bits below this put a record into a sample
    expected: Any  # records in a sample, on average: what sums are divided by, however many there are
    # The words of a key that noise and samples are drawn from; None where the run's own key draws them, as in a simulation.
    secret: Any = None


def thresholds(rates: np.ndarray) -> np.ndarray:
    """Return below which of 2^32 numbers a record is in a sample, never with more than its probability."""
    return np.array([min(2**32 - 1, int(rate * 2**32)) for rate in np.asarray(rates, float)], np.uint32)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Privacy:
    """Differential privacy for every record of every client, against everybody else, the server included.

    A client's slopes are clipped record by record and summed over a Poisson sample; Gaussian noise is added before they leave
    the client. Neighbouring data sets differ by one record, added or removed. docs/privacy.md says what is not covered.

    Args:
        epsilon: the budget of a run. The noise is found for it, for the run's rounds, its local steps and each client's own
            sampling rate; where `noise` is given too, the run stops when the budget is spent.
        delta: the probability with which the promise may fail; well below 1 over the number of a client's records.
        clip: the most that a record's slope may be, |f(x+v) - f(x-v)| / (2 smoothing); with several directions, the length of
            its vector of slopes. `"auto"`: the median of the lengths, found privately on the way, out of the same budget.
        noise: the noise's standard deviation in units of `clip`, instead of finding it for `epsilon`.
        simulation: say that this is a simulation on data that are not at risk: losses are monitored, checks look at the data,
            and noise is drawn from the run's key. The promise then holds for nobody who sees those.
        public_lower_data: declare a bilevel problem's `lower_data` public: nothing is promised for them.
        calibrated: filled in by a run.
    """

    epsilon: float | None = checked(constant, default=None)
    delta: float = checked(_delta, default=1e-5)
    clip: float | str = checked(_clip, default=AUTO)
    noise: float | None = checked(constant, default=None)
    simulation: bool = checked(_truth, default=False)
    public_lower_data: bool = checked(_truth, default=False)
    calibrated: Calibrated | None = None

    def __post_init__(self) -> None:
        check_fields(self, "Privacy: ")
        if self.epsilon is None and self.noise is None:
            raise InputError("Privacy: found neither epsilon nor noise; pass epsilon=2.0, say, for which noise is found")

    def __repr__(self) -> str:
        fields = [field for field in dataclasses.fields(self) if field.name != "calibrated"]
        shown = [(field.name, getattr(self, field.name)) for field in fields if getattr(self, field.name) != field.default]
        return f"Privacy({', '.join(f'{name}={value!r}' for name, value in shown)})"

    def with_calibrated(self, calibrated: Calibrated) -> Self:
        """Return this with what clients need."""
        return dataclasses.replace(self, calibrated=calibrated)

    @property
    def adaptive(self) -> bool:
        """Whether the clip is found on the way."""
        return isinstance(self.clip, str)

    @property
    def first_clip(self) -> jax.Array:
        """The clip that clients begin with."""
        return jnp.asarray(FIRST_CLIP if self.adaptive else self.clip, float)


Privacy.__init__ = checked_signature()(Privacy.__init__)  # type: ignore[method-assign]


def _flatten(self: Privacy) -> tuple[tuple, tuple]:
    """Compiled code gets what clients need: neither another epsilon nor another clip compiles anything anew."""
    word, clip = (self.clip, None) if self.adaptive else (None, self.clip)
    return (self.calibrated, clip), (word, self.simulation, self.public_lower_data)


def _unflatten(aux: tuple, children: tuple) -> Privacy:
    self: Any = object.__new__(Privacy)  # no __post_init__: leaves may be placeholders
    (calibrated, clip), (word, simulation, public) = children, aux
    for field in dataclasses.fields(Privacy):
        object.__setattr__(self, field.name, field.default)
    given = {"clip": clip if word is None else word, "simulation": simulation, "public_lower_data": public}
    for name, value in {**given, "calibrated": calibrated}.items():
        object.__setattr__(self, name, value)
    return self


jax.tree_util.register_pytree_node(Privacy, _flatten, _unflatten)


def a_promise(value: Any, argument: str) -> Privacy:
    """Return a `Privacy`, or say what was found in its place."""
    if not isinstance(value, Privacy):
        raise InputError(f"{argument}: found {value!r}; pass fz.Privacy(epsilon=2.0, ...)")
    return value
