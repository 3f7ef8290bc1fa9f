"""How the rounds of a method travel as scalars: whether they can, what a round leaves on record, and how many are kept."""

import dataclasses
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from fedrzo.errors import InputError, warn
from fedrzo.federation.client import Client
from fedrzo.problems.base import Problem
from fedrzo.sets.base import Pytree
from fedrzo.sets.basic import Reals
from fedrzo.sets.family import stack_sets
from fedrzo.support.pytrees import nbytes

KEPT = 64  # rounds on record, at most


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarPlan(Pytree):
    """How the rounds of a method travel as scalars."""

    # The clients' sets, as far as the server knows them (private ones are left out); None where it knows none.
    sets: Any
    steps: int = dataclasses.field(metadata={"static": True})  # the local steps of a round whose slopes are told apart
    slopes: int = dataclasses.field(metadata={"static": True})  # of each of them
    participants: int = dataclasses.field(metadata={"static": True})  # clients per round
    # Rounds on record; 0 where records would be no smaller than x: clients are then sent x.
    kept: int = dataclasses.field(metadata={"static": True})

    def project(self, client: Any, x: jax.Array) -> jax.Array:
        """Project onto a client's set, as far as everybody knows it."""
        return x if self.sets is None else self.sets.project(client, x)

    def tell(self, client: Client) -> Any:
        """Say whether a client's slopes tell where its steps led: only if the server knows its set."""
        sets = client.level.sets
        if self.sets is None:  # a node may have a set, even a public one, of which the server was not told
            sets = dataclasses.replace(sets, public=None)
        return sets.known(client.index)


class RoundRecord(NamedTuple):
    """What all clients sent in one round, and what else it takes to replay it."""

    key: Any  # the words of the key that directions are drawn from
    ids: Any  # who took part
    weights: Any  # in the average; zero for those whose reply is missing
    code: Any  # one row per client: steps by slopes
    checksum: Any  # of the x that all this leads to

    @classmethod
    def empty(cls, plan: ScalarPlan, dtype: Any) -> Self:
        """Return a record of nothing, as large as any."""
        c = plan.participants
        code = np.zeros((c, plan.steps, plan.slopes), dtype)
        return cls(np.zeros(2, np.uint32), np.zeros(c, np.int32), np.zeros(c, dtype), code, np.zeros((), np.uint32))


def plan_for(communication: str, problem: Problem, participants: int, steps: Any, slopes: int) -> ScalarPlan | None:
    """Return how rounds travel as scalars, None if as vectors; refuse scalars where they cannot.

    A client has so many `slopes` to tell of each of its `steps`, which may be a function of the round.
    """
    if communication == "vectors":
        return None
    if callable(steps):
        if communication == "auto":
            return None
        raise InputError('local_steps: found a function; scalars need a whole number, the same in all rounds, or use "vectors"')
    known = np.broadcast_to(problem.sets.known(np.arange(problem.clients)), problem.clients)
    private = np.flatnonzero(~known)
    if len(private):
        who = ", ".join(map(str, private[:8])) + (", ..." if len(private) > 8 else "")
        if communication == "scalars":
            raise InputError(
                f'communication: found "scalars", but the sets of clients {who} are private, so that only they can take their '
                'steps; use "auto", or declare the sets public: fz.sets.Public(...)'
            )
        warn(f"communication: the sets of clients {who} are private; these clients send vectors")
    if communication == "auto" and (not known.any() or steps * slopes >= problem.dim):
        return None
    sets = problem.sets
    if len(private):  # without theirs: a plan goes wherever its method goes
        sets = stack_sets([sets.of(i) if known[i] else Reals() for i in range(problem.clients)])
    plan = ScalarPlan(None if sets.free else sets, int(steps), slopes, participants, 0)
    if len(private):
        return plan
    fewer = (problem.dim * problem.dtype.itemsize - 1) // nbytes(RoundRecord.empty(plan, problem.dtype))
    return dataclasses.replace(plan, kept=min(KEPT, fewer))
