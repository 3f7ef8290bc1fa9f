"""A run as Python sees it: chunks of compiled rounds, and what happens in between."""

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedrzo.engines.base import Look, Session
from fedrzo.errors import DivergedError, InputError
from fedrzo.problems.black_box import telling
from fedrzo.results.history import History
from fedrzo.running.case import Case, StopRule, Watch
from fedrzo.running.checkpoint import Checkpoint, interrupted
from fedrzo.running.health import Runaway, failure, not_convex, unsolved
from fedrzo.running.loggers import Row, Sink
from fedrzo.support.interrupt import Interrupt
from fedrzo.support.progress import Bar, at_once

LONG_RUN = 10.0  # seconds from which on a run ends with a hint how to shorten the next one, if there is one
CHECKPOINT_SECONDS = 1.0  # a checkpoint is stored at most this often, and at the end


@dataclasses.dataclass(eq=False)
class Job:
    """A run as Python sees it: a session of some engine, the histories so far, and the clock."""

    case: Case
    session: Session
    folder: Path | None  # of checkpoints
    log: tuple[Sink, ...]
    watch: Watch | None  # a stopping rule that looks at x itself and has columns of its own
    began: float
    begin: Callable[[], None] | None = None  # has the session start where a search for stepsizes ended, if there was one

    def __post_init__(self) -> None:
        self.histories = [History() for _ in self.case.methods]
        self.runaway = Runaway(self.session.problem.x0)
        self.before = 0.0  # seconds of earlier sittings
        self.stored = -math.inf
        self.round_seconds: list[float] = []  # of what was run at a time, for each of its rounds
        self.first_look = 0.0  # seconds
        self.at_once = 1  # rounds that are run at a time
        self.late: tuple[Callable[[], Look], float] | None = None  # the row that is still to come, and its time
        self.told = self.interrupted = False  # whether the user's `stop` said to end, or Ctrl-C did
        self.whole = False  # whether session and histories belong together, so that they can be stored

    @property
    def single(self) -> bool:
        """Whether this is one run, and no sweep."""
        return len(self.case.methods) == 1

    @property
    def seconds(self) -> float:
        """Seconds spent on this run, earlier sittings included."""
        return self.before + time.perf_counter() - self.began

    @property
    def compile_seconds(self) -> float:
        """How long the first look, which compiles the program of the rounds, and the first rounds took beyond later ones."""
        first, *later = self.round_seconds or [0.0]
        return self.first_look + (max(0.0, first - statistics.median(later)) if later else first)

    def resume(self, stored: Checkpoint, folder: Path) -> None:
        """Go on from the checkpoint of a folder."""
        stored.check(self.case.identity, self.session.store(), folder)
        stored.check_start(self.session.look().metrics, folder)
        if stored.round > self.case.rounds:
            raise InputError(f"rounds: found {self.case.rounds}, the checkpoint is at {stored.round}; pass at least that many")
        self.session.restore(stored.arrays, stored.round)
        self.session.recall(stored.notes)
        if self.session.data_at_hand and stored.round > 0:
            stored.check_end(self.session.look().metrics, folder)
        self.histories, self.whole = [History(columns) for columns in stored.histories], True
        if stored.round % self.case.every and stored.round < self.case.rounds:
            for history in self.histories:
                if history.last["round"] == stored.round:
                    history.drop_last()  # a shorter run's last row; a straight run has none there
        if self.watch is not None:
            self.watch.restore(self.histories[0].last)
        self.before, self.stored = stored.seconds, stored.seconds

    def go(self, progress: bool) -> None:
        """Run to the end, until `stop` says so, or until Ctrl-C: a KeyboardInterrupt that says how to go on."""
        with Bar(self.case.rounds, self.session.round, progress) as bar:
            try:
                with Interrupt(bar.tell) as interrupt, telling():  # which lets a second Ctrl-C end a black box's rounds
                    self._rounds(bar, interrupt)
                    self.interrupted = interrupt.asked
                    self.store()
            except KeyboardInterrupt:  # the second one, or one that was not left to us
                self.interrupted = True
                if self.whole:
                    self.store()
                raise self._interrupted() from None
        if self.interrupted:
            raise self._interrupted()
        if progress and self.session.hint and self.seconds > LONG_RUN:
            print(self.session.hint, file=sys.stderr)

    def _rounds(self, bar: Bar, interrupt: Interrupt) -> None:
        rounds, every, at = self.case.rounds, self.case.every, self.session.round
        if fresh := len(self.histories[0]) == 0:
            self._first_rows()
        elif self.histories[0].last["round"] != at and (at % every == 0 or at == rounds):
            # the run ended after this round was stored, but before its row was
            self._append_rows(self.session.look(), self.seconds)
        bar.show(self.session.round, self.histories[0].last)
        # A rule may have ended the stored part; a function is asked about new rows only.
        ended = (isinstance(self.case.stop, StopRule) or (fresh and self.begin is not None)) and self._is_stopped()
        while self.session.round < rounds and not ended and not interrupt.asked:
            self._some_rounds(interrupt)
            bar.show(self.session.round, self.histories[0].last)
            ended = self._is_stopped()
        self._append_late()
        if not self._has_row:
            self._append_rows(self.session.look(), self.seconds)  # interrupted on the way; a resumed run drops it

    def _first_rows(self) -> None:
        """Append the row of the start, and that of where a search for stepsizes ended, which the run starts from."""
        began = time.perf_counter()
        look = self.session.look()
        self.first_look = time.perf_counter() - began
        self._append_rows(look, self.seconds)
        if not math.isfinite(loss := self.histories[0].last.get("loss", 0.0)):  # one sample of one client was tried before
            raise InputError(
                f"loss: found {loss} at x0 over all clients' data; it must be finite there: check x0, the loss, or the data"
            )
        if self.begin is not None:
            self.begin()
            self._append_rows(self.session.look(), self.seconds)

    def _is_stopped(self) -> bool:
        stop = self.case.stop
        if isinstance(stop, StopRule):
            return self.watch is not None and self.watch.done
        self.told = stop is not None and self._has_row and bool(stop(self.histories[0].last))
        return self.told

    @property
    def _has_row(self) -> bool:
        return self.histories[0].last["round"] == self.session.round

    def _some_rounds(self, interrupt: Interrupt) -> None:
        """Run as many rounds as nobody minds waiting for: to the next row of the history, part of the way, or to several rows."""
        at, every, start = self.session.round, self.case.every, time.perf_counter()
        rounds, looks = min(every - at % every, self.case.rounds - at), []
        self.whole = False
        if self.session.stores_every_round:
            looks = self._stored_rounds(rounds, interrupt)
        elif self.at_once < rounds:
            self.session.advance(self.at_once)
        else:
            alone = rounds < every or self.case.stop is not None or bool(self.log)
            rows = 1 if alone else min(self.at_once // every, (self.case.rounds - at) // every, self.session.looks_at_once)
            looks = self.session.looks(rounds, rows)
        # A sweep goes on, since its other settings may be well.
        if self.single and (found := failure(self.session.method, self.session)) is not None:
            raise self._diverged(found)
        done, now = self.session.round - at, self.seconds
        took = time.perf_counter() - start
        pace = took / done
        self.round_seconds.append(pace)
        self.at_once = at_once(done, took)
        for look in looks:
            self._append_rows(look, now - pace * (self.session.round - look.round))
        self.whole = self.late is None
        due = self.seconds - self.stored >= CHECKPOINT_SECONDS or self.case.plans[0] is not None  # what was seen is charged for
        if self.session.stores_every_round or due:
            self.store()

    def _stored_rounds(self, rounds: int, interrupt: Interrupt) -> list[Look]:
        """Run rounds one by one, each with a checkpoint, since clients cannot go back further.

        Where nobody waits for a row, what it shows is asked for with the next round, and stored with it. A run that is resumed
        in between looks anew.
        """
        for _ in range(rounds):
            self.session.advance(1)
            self._append_late()
            if self.single and failure(self.session.method, self.session) is not None:
                break
            self.store()
            if interrupt.asked:
                break
        if self.case.stop is not None or self.case.plans[0] is not None:
            return [self.session.look()]
        self.late = self.session.look_later(), self.seconds
        return []

    def _append_late(self) -> None:
        """Append the row that is still to come, if there is one."""
        if self.late is not None:
            (look, seconds), self.late = self.late, None
            self._append_rows(look(), seconds)

    def _append_rows(self, look: Look, seconds: float) -> None:
        """Append a row to each history; stop a single run whose x goes away for good, or whose lower level stays unsolved."""
        for i, (history, cost) in enumerate(zip(self.histories, look.costs, strict=True)):
            cost = cost.plus(gradients=self.case.estimating[i])
            tuning = self.case.tunings[i]
            if tuning is not None and len(history) > 0:  # row 0 is the start, which nothing was spent on
                cost = cost.plus(**tuning.cost._asdict())
            row: Row = {"round": look.round, **cost._asdict(), "seconds": seconds}
            row |= look.columns
            row |= {name: float(values[i]) for name, values in look.metrics.items()}
            if (plan := self.case.plans[i]) is not None and "epsilon" not in row:  # where nodes do not say it themselves
                row["epsilon"] = plan.epsilon(look.round)
            if self.watch is not None:
                row |= self.watch.columns(look.round, self.session.states()[0].x)
            history.append(row)
        self.whole = look.round == self.session.round
        if self.log and self.whole and self.case.plans[0] is not None:
            self.store()  # before anybody sees what was paid for
        for sink in self.log:
            sink(self.histories[0].last)
        if not self.single or look.round == 0:
            return
        found = self.runaway.look(look.away)
        found = found or unsolved(self.case.methods[0], self.histories[0])
        if found is not None:
            cause = not_convex(self.session.method, self.session) or found
            raise self._diverged(f"stopped after round {look.round - 1}: {cause}")

    def _diverged(self, found: str) -> DivergedError:
        kept = "" if self.stored == -math.inf else f"; the checkpoint in {self.folder} is from before"
        return DivergedError(f"{found}{kept}")

    @property
    def stopped(self) -> str:
        """Why the run is where it is."""
        return self.case.ending(self.session.round, self.watch, self.told, self.interrupted)

    def store(self) -> None:
        """Write a checkpoint, if one is wanted."""
        if self.folder is None:
            return
        histories = [history.to_dict() for history in self.histories]
        found = [None if tuning is None else tuning.to_dict() for tuning in self.case.tunings]
        # A later sitting must not find other noise: all rounds so far were charged by this.
        noises = [None if plan is None else plan.noises.tolist() for plan in self.case.plans]
        Checkpoint(
            self.case.identity, self.session.round, self.seconds, histories, self.session.store(), found,
            self.session.notes() | ({"noises": noises} if any(noises) else {}), self.stopped,
        ).write(self.folder)  # fmt: skip
        self.stored = self.seconds

    def _interrupted(self) -> KeyboardInterrupt:
        where = f"stopped after round {self.session.round} of {self.case.rounds}"
        return interrupted(where, self.folder if self.stored > -math.inf else None, self.whole)
