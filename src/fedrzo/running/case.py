"""What is to be run, and the rules that may stop it early by looking at x itself."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from fedrzo.engines.base import Engine
from fedrzo.errors import InputError, warn
from fedrzo.methods.base import Method, functions, schedule_values
from fedrzo.problems import captures
from fedrzo.problems.base import Problem
from fedrzo.results.result import Tuning
from fedrzo.running.loggers import Row
from fedrzo.running.private import PrivacyPlan, hides, plan_privacy, without_losses
from fedrzo.support.arguments import check_row_function, kind
from fedrzo.support.pytrees import fingerprint

ROWS = 200  # of a history, at most, besides the first, where the user does not say how many rounds lie between two


def tuned(method: Method, tuning: Tuning | None) -> Method:
    """Return a method with the stepsize that was found for it, if one was."""
    return method if tuning is None else method.with_stepsize(tuning.stepsize)


@dataclasses.dataclass
class Case:
    """What is to be run, checked: nothing has started while one of these is made."""

    methods: list[Method]
    problem: Problem
    keys: list[jax.Array]
    rounds: int
    clients_per_round: int | None
    eval_every: int | None
    stop: Callable[[Row], bool] | StopRule | None = None
    tunings: list[Tuning | None] = dataclasses.field(default_factory=list)  # of each run; filled in before it starts
    starts: list[np.ndarray | None] = dataclasses.field(default_factory=list)  # where searches ended, if that is not x0; likewise
    estimating: list[int] = dataclasses.field(default_factory=list)  # gradients that constants took; likewise
    every: int = 1  # rounds between two rows; likewise
    plans: list[PrivacyPlan | None] = dataclasses.field(default_factory=list)  # of each run's privacy; likewise
    asked: int | None = None  # the rounds that were, where a privacy budget lasts for fewer
    stated: Problem | None = None  # with a `Loader`, where all its samples were loaded; an engine may leave them where they are

    def __post_init__(self) -> None:
        if not isinstance(self.problem, Problem):
            raise InputError(f"problem: found {type(self.problem).__name__}; pass fz.Nonsmooth(...) or another problem")
        for method in self.methods:
            if not isinstance(method, Method):
                raise InputError(f"method: found {kind(method)}; pass a method such as fz.FedRZOnn(...)")
            method.check(self.problem)
            captures.notice(functions(method))
        every = 1 if self.eval_every is None else self.eval_every
        for name, value, low in (("rounds", self.rounds, 0), ("eval_every", every, 1)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
                raise InputError(f"{name}: found {value!r}; pass a whole number of at least {low}")
        if self.stop is not None and not isinstance(self.stop, StopRule):
            check_row_function(self.stop, "stop")
        size, clients = self.clients_per_round, self.problem.clients
        for method in self.methods:
            if method.needs_everyone and size is not None and size != clients:
                raise InputError(
                    f"clients_per_round: found {size}; {type(method).__name__} needs all {clients} clients in every round"
                )
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= clients):
            raise InputError(f"clients_per_round: found {size!r}; pass a whole number from 1 to {clients}, the clients there are")

    def plan_privacy(self, engine: Engine, noises: list[list[float] | None] | None) -> None:
        """Find each run's noise, unless it is known; hide the records, and shorten the run where its budget does not last."""
        size, keys = self.clients_per_round, self.keys
        self.plans = plan_privacy(self.methods, self.problem, self.rounds, keys, size, engine, noises)
        if hides(self.methods):
            self.problem = self.problem.hiding()
            if self.stop is not None and not isinstance(self.stop, StopRule):
                self.stop = without_losses(self.stop)
        plan = self.plans[0]
        if len(self.methods) == 1 and plan is not None and (rounds := plan.rounds) < self.rounds:
            budget = plan.privacy.epsilon
            if rounds == 0:
                raise InputError(f"privacy: epsilon = {budget:g} does not allow a single round with this noise; use more of it")
            warn(f"privacy: epsilon = {budget:g} is spent after {rounds} of {self.rounds} rounds, where the run stops")
            self.asked, self.rounds, self.plans = self.rounds, rounds, [plan.until(rounds)]

    def choose_rows(self, stored: dict[str, Any] | None) -> None:
        """Say how many rounds lie between two rows where the user did not: as in the stored part of the run, if there is one."""
        apart = 1 << max(0, math.ceil(math.log2(max(1, self.rounds) / ROWS)))
        if isinstance(self.stop, StopRule):
            apart = math.gcd(apart, self.stop.every)  # it looks at rows only
        self.every = self.eval_every or (apart if stored is None else stored["eval_every"])

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What tells this case from another, for checkpoints. Rounds may grow, so they do not count."""
        problem = self.problem if self.stated is None else self.stated
        return {
            "method": [repr(method) for method in self.methods],
            "schedules": [schedule_values(method) for method in self.methods],
            "problem": repr(problem),
            "scale": repr(problem.layout.scale),
            "data, x0 and sets": fingerprint(problem.as_stated()),
            "values that its functions use": captures.fingerprint(problem.functions | functions(self.methods[0])),
            "key": [np.asarray(jax.random.key_data(key)).tolist() for key in self.keys],
            "clients_per_round": self.clients_per_round,
            "eval_every": int(self.every),
            # A certificate adds columns and is part of what is computed; what another stop does cannot be stored.
            "stop": repr(self.stop) if isinstance(self.stop, StopRule) else None,
        }

    def spec(self, i: int, engine: str, done: int = 0) -> dict[str, Any]:
        """Return one run's settings in plain values, after so many rounds."""
        plan = self.plans[i] if self.plans else None
        size = {} if self.clients_per_round is None else {"clients_per_round": self.clients_per_round}
        tuning = self.tunings[i] if self.tunings else None
        return {
            "method": repr(tuned(self.methods[i], tuning)),
            "problem": repr(self.problem),
            "rounds": int(self.rounds),
            "key": np.asarray(jax.random.key_data(self.keys[i])).tolist(),
            "engine": engine,
            "eval_every": int(self.every),
            **size,
            **({} if self.problem.layout.scale is None else {"scale": list(self.problem.layout.scale)}),
            **({} if tuning is None else {"tuning": tuning.to_dict()}),
            **({} if plan is None else {"privacy": plan.to_dict(done)}),
        }

    def ending(self, done: int, watch: Watch | None = None, told: bool = False, interrupted: bool = False) -> str:
        """Return in one line why a run is where it is, after so many rounds; `told` is whether the user's `stop` said so."""
        where = f"after round {done} of {self.asked or self.rounds}"
        if watch is not None and watch.done:
            return f"certified {where}: {watch.reason}"
        if told:
            return f"stop= returned True {where}"
        if done < self.rounds:
            return f"interrupted by Ctrl-C {where}" if interrupted else f"not finished, stored {where}"
        if self.asked is not None and (plan := self.plans[0]) is not None:
            return f"the privacy budget, epsilon = {plan.privacy.epsilon:g}, is spent {where}"
        return f"all rounds are done: {self.rounds}"


class Watch(Protocol):
    """A rule at work on one run. Its columns stand in the history beside those of the problem and the method."""

    @property
    def done(self) -> bool:
        """Whether the run is to end."""

    @property
    def reason(self) -> str:
        """Why, in a few words."""

    @property
    def spec(self) -> dict[str, Any]:
        """What the rule adds to the spec of a result, in plain values."""

    def columns(self, round: int, x: np.ndarray) -> Row:
        """Return the rule's columns of the row of a round."""

    def restore(self, row: Row) -> None:
        """Go on from a stored row."""


class StopRule(abc.ABC):
    """What `fz.run(..., stop=...)` takes beside a function of a row, such as `fz.certified(...)`.

    It has columns of its own and is part of what is computed, so that its `repr` tells one run from another.
    """

    every: int  # rounds between two looks

    @abc.abstractmethod
    def begin(self, case: Case, engine: Engine) -> Watch:
        """Return the rule at work on one run; refuse what cannot work before the run starts."""
