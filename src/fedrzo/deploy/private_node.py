"""What a node does for its records where the method promises privacy: it answers nothing that is not noisy and charged for."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedrzo.deploy.ledger import BudgetSpentError, Ledger, question
from fedrzo.engines.messages.codec import Message, decode, encode_error
from fedrzo.engines.messages.node import Node
from fedrzo.engines.messages.wire import unpack
from fedrzo.errors import InputError
from fedrzo.methods.base import at
from fedrzo.privacy.privacy import Privacy
from fedrzo.problems.base import Problem
from fedrzo.running.private import PrivacyPlan, fresh_secret

CHARGED = "client_steps"  # the one step that looks at private records, by its noisy slopes
MOST = 10_000_000  # rounds, and clients, that a node plans for
REBUILDS = ("", "client_points")  # how points of a lower level may be made: neither looks at records
LOWER = ("lower_gradient", "lower_project")  # steps of the lower level, and all of its own method; its data are public


class PrivateNode:
    """Stands between the server's messages and a node.

    Args:
        run: what the server says of the run.
        settings: the node's own; `privacy-epsilon` is the budget of its records, over all experiments.
        method: as the node's app states it.
        outline: the problem as the server knows it.
        records: how many the node has.
        client: its number.
        folder: where it keeps what it remembers.
    """

    def __init__(
        self, run: Mapping[str, Any], settings: Mapping[str, Any], method: Any, outline: Problem, records: int, client: int,
        folder: Path,
    ) -> None:  # fmt: skip
        privacy: Privacy = method.privacy
        if privacy.simulation:
            raise InputError("privacy: found simulation=True on a node, whose records are real; leave it out")
        budget = _setting(settings, "privacy-epsilon", privacy.epsilon)
        if budget is None:
            raise InputError("privacy: found noise= without a budget; pass epsilon= too, or the node's setting privacy-epsilon")
        if privacy.epsilon is not None and privacy.epsilon > budget:
            raise InputError(f"privacy: the run asks for epsilon = {privacy.epsilon:g}, this node allows {budget:g}")
        delta = min(float(_setting(settings, "privacy-delta", privacy.delta)), privacy.delta)  # type: ignore[arg-type]
        for name in ("rounds", "clients"):
            if type(run[name]) is not int or not 0 <= run[name] <= MOST:
                raise InputError(f"{name}: the server says {run[name]!r}; a node plans its noise for at most {MOST:,}")
        key, size = jax.random.key(run["seed"]), run["participants"]
        sizes = [records] * run["clients"]
        method = dataclasses.replace(method, privacy=dataclasses.replace(privacy, delta=delta))
        plan = PrivacyPlan.of(method, outline, run["rounds"], key, size, sizes, only=client)
        self.run, self.method, self.calibrated = dict(run), method, plan.calibrated()
        self.release = plan.releases[0]
        self.ledger = Ledger(folder, client, budget, delta)

    def answer(self, node: Node, common: bytes, own: bytes) -> bytes:
        """Answer a step; the same question gets the same answer."""
        with self.ledger.held():
            asked = question(self.run, common, own)
            if (found := self.ledger.stored(asked)) is not None:
                reply, state = found
                node.load(state)
                return reply
            path: tuple = ()
            try:
                message = decode(common, own, node.types)
                path = message.path
                charged = self._looks_at_records(message)
                if charged:
                    _check_message(message, node.problem, getattr(self.method, "takes_x", "") == CHARGED)
                    steps = int(at(self.method.local_steps, np.int32(path[0])))  # as the node itself will count them
                    self.ledger.charge(self.run["experiment"], self.release, steps)
                    fresh = dataclasses.replace(self.calibrated, secret=fresh_secret())
                    node.method = node.method.with_calibrated(fresh)  # type: ignore[attr-defined]
            except Exception as error:
                return encode_error(path, error)
            reply = node.answer(common, own)
            if (failed := unpack(reply, node.types)[0].get("error")) is not None:  # which may quote a record
                print(f"fedrzo: a step failed: {failed}", file=sys.stderr, flush=True)
                return encode_error(path, RuntimeError("a step failed; the log of the node says why"))
            if charged:  # what costs nothing is answered anew
                self.ledger.store(asked, reply, node.dump())
            return reply

    def _looks_at_records(self, message: Message) -> bool:
        """Tell whether a message is to be charged for; refuse steps that a run of this method does not ask for."""
        keep, below = message.keep, message.step.removeprefix("inner.")  # where rounds travel as scalars, the method is inside
        rebuilt = keep is None or (keep.step in REBUILDS and keep.owner.removeprefix("inner.") == "lower.")
        public = message.view == "lower" and (below.startswith("lower.") or below in LOWER)
        if not rebuilt or not (public or (message.view == "" and message.step == CHARGED)):
            raise BudgetSpentError(f"step: {message.step!r} of the view {message.view!r} is not protected, and not answered")
        return not public

    @property
    def spent(self) -> float:
        """The epsilon of all releases so far."""
        with self.ledger.held():
            return self.ledger.spent


def _check_message(message: Message, problem: Problem, takes_x: bool) -> None:
    """Refuse a place in the run, or arrays, that no honest server sends: what they would lead to nobody has thought of."""
    if not all(type(place) is int and 0 <= place < 2**31 for place in (*message.path, message.iteration)):
        raise InputError(f"path: found {message.path} and iteration {message.iteration!r}; whole numbers of at least 0 are due")
    for leaf in jax.tree.leaves(message.arrays):
        kind = np.asarray(leaf).dtype
        if np.issubdtype(kind, np.floating) and kind != problem.dtype:
            raise InputError(f"arrays: found numbers of type {kind}; this problem computes in {problem.dtype}")
    x = message.arrays[0] if message.arrays else None
    if takes_x and isinstance(x, np.ndarray) and x.shape != (problem.dim,):
        raise InputError(f"arrays: found shape {x.shape}; x has {problem.dim} entries")


def refuse_open(settings: Mapping[str, Any]) -> None:
    """Refuse a method that promises nothing, on a node whose owner wants privacy."""
    if "privacy-epsilon" in settings:
        raise InputError("privacy: this node has a budget (privacy-epsilon), but the method has no privacy=; it takes no part")


def _setting(settings: Mapping[str, Any], name: str, otherwise: float | None) -> float | None:
    found = settings.get(name, otherwise)
    if found is not None and (isinstance(found, bool | str) or not 0 < found < float("inf")):
        raise InputError(f"{name}: found {found!r} in this node's settings; pass a positive number")
    return None if found is None else float(found)
