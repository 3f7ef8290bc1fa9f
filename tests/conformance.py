"""The suite that every method must pass. A method's test file needs one line: `test_conformance = conformance.suite(Case(...))`.

What it checks is what users rely on: engines agree, runs repeat and resume exactly, costs are exact, nothing retraces when a
number changes, and the method descends. Most of a check's time is compilation, so checks share two programs: one for
a cohort, and one that counts what is computed for all clients.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.loop import Loop, LoopSession
from fedrzo.engines.messages.codec import Message
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.engines.simulation.engine import Simulation
from fedrzo.federation.catch_up import Missed, as_sent
from fedrzo.support.pytrees import nbytes, replaced


@dataclasses.dataclass(frozen=True)
class Case:
    """A method and a toy that it can solve.

    Attributes:
        method: with settings that descend on the toy.
        problem: makes the toy, given a loss wrapper (identity, or a counting black box).
        rounds: enough for descent.
        descent: the loss must fall below this fraction of where it started, above the optimum.
        optimum: the least loss of the toy.
        numpy_loss: the toy's loss in NumPy, to count its calls as a black box; None for methods that take gradients.
        changes: numbers to change without retracing.
    """

    method: Any
    problem: Callable[[Callable], Any]
    rounds: int = 30
    descent: float = 0.5
    optimum: float = 0.0
    numpy_loss: Callable | None = None
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def some(self) -> int | None:
        """A cohort: two clients, or everyone for a method that needs everyone."""
        return None if self.method.needs_everyone else 2

    @functools.cached_property
    def plain(self) -> Any:
        """The toy as it is; one for all checks, so that they share what is compiled for it."""
        return self.problem(lambda loss: loss)


def suite(case: Case, checks: list[Callable] | None = None) -> Any:
    """Return one parametrised test that puts a case through every check, or through some.

    With `jax_enable_x64` on, float64 toys run the same programs: there, engines are compared, and a float32 run is compared with
    itself.
    """
    settings = [pytest.param(check, False, id=check.__name__) for check in checks or CHECKS]
    again = pytest.mark.slow("once more, with jax_enable_x64 on")
    settings += [pytest.param(check, True, id=f"{check.__name__}-x64", marks=again) for check in WITH_X64]

    @pytest.mark.parametrize(("check", "x64"), settings)
    def test(check: Callable, x64: bool, tmp_path: Any) -> None:
        with warnings.catch_warnings(), jax.enable_x64(x64):
            warnings.simplefilter("error")
            check(case, tmp_path)

    return test


def run(case: Case, rounds: int = 6, **options: Any) -> fz.Result:
    options = {"method": case.method, "clients_per_round": case.some, **options}
    return fz.run(options.pop("method"), case.plain, rounds, progress=False, **options)


def history_without_time(result: fz.Result) -> dict[str, list]:
    return {name: values for name, values in result.history.to_dict().items() if name != "seconds"}


def state_and_memory_are_arrays_of_stable_structure(case: Case, tmp_path: Any) -> None:
    problem = case.plain
    with problem.precision():
        method = case.method.prepare(problem).for_cohort(problem, case.some or problem.clients)
        session = Simulation().start([method], problem, [jax.random.key(0)], case.some)
        before = jax.tree.map(lambda a: (a.shape, a.dtype), (session.carry.state, session.carry.memory))
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(session.carry))
        assert hasattr(session.carry.state, "x")
        session.looks(1, 2)  # by the program that a run uses
        assert before == jax.tree.map(lambda a: (a.shape, a.dtype), (session.carry.state, session.carry.memory))


def a_cohort_runs_alike_on_both_engines_or_is_refused(case: Case, tmp_path: Any) -> None:
    if case.method.needs_everyone:
        with pytest.raises(fz.InputError, match="clients_per_round: found 2"):
            run(case, clients_per_round=2)
    fast, plain = run(case), run(case, engine="loop")
    for name, values in history_without_time(plain).items():
        if name in fz.Cost._fields or name == "round":
            assert values == list(fast.history[name]), name
        else:
            np.testing.assert_allclose(fast.history[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(*(np.asarray(jax.tree.leaves(r.x)[0]) for r in (fast, plain)), rtol=1e-9, atol=1e-12)


def same_key_same_result_other_key_other_result(case: Case, tmp_path: Any) -> None:
    first, again, other = run(case, key=3), run(case, key=3), run(case, key=4)
    assert history_without_time(first) == history_without_time(again)
    assert first.history["loss"][-1] != other.history["loss"][-1]


def a_short_run_is_a_prefix_of_a_long_one(case: Case, tmp_path: Any) -> None:
    short, long = run(case, rounds=3), run(case, rounds=7)
    for name, values in history_without_time(short).items():
        assert values == list(long.history[name][:4]), name


def resume_equals_no_stop(case: Case, tmp_path: Any) -> None:
    straight = run(case, rounds=7)
    run(case, rounds=3, checkpoint=tmp_path)
    resumed = run(case, rounds=7, checkpoint=tmp_path, resume=True)
    assert history_without_time(straight) == history_without_time(resumed)
    for a, b in zip(jax.tree.leaves(straight.x), jax.tree.leaves(resumed.x), strict=True):
        assert a.tobytes() == b.tobytes()


def counted_bytes_are_the_bytes_that_crossed(case: Case, tmp_path: Any) -> None:
    """Weigh every message of the loop engine independently of its own counters."""
    weighed = {"up": 0, "down": 0}
    deliver, addressed = LoopSession.deliver, LoopSession.addressed

    def weigh_down(self: LoopSession, message: Message, ids: Any) -> Message:
        message = addressed(self, message, ids)
        arrays = (() if message.keep is None else message.keep.travels) + message.arrays
        sent = [value.of(int(i)).sent() if isinstance(value, Missed) else value for i in ids for value in arrays]
        weighed["down"] += sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(sent))
        return message

    def weigh_up(self: LoopSession, message: Message, ids: Any) -> Any:
        answers = deliver(self, message, ids)
        sent = [as_sent(reply.value) for _, reply in answers]
        weighed["up"] += sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(sent))
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopSession, "addressed", weigh_down)
        patch.setattr(LoopSession, "deliver", weigh_up)
        last = run(case, engine="loop").history.last
    assert (last["upload_bytes"], last["download_bytes"]) == (weighed["up"], weighed["down"])
    assert weighed["up"] > 0
    assert nbytes(np.zeros(3, np.float32)) == 12


def _counted(case: Case) -> tuple[Any, list[int]]:
    """Return the toy, and a list that grows by a batch's size whenever its loss is computed in a black box, or differentiated.

    A product with second derivatives is the derivative of a gradient, hence counts as two.
    """
    seen: list[int] = []

    def blackbox(*arguments: Any) -> float:
        seen.append(len(jax.tree.leaves(arguments[-1])[0]))
        return case.numpy_loss(*arguments)

    def traced(loss: Callable) -> Callable:
        @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
        def watched(value: Any, size: int) -> Any:
            return value

        @watched.defjvp
        def differentiated(size: int, primals: tuple, tangents: tuple) -> tuple:
            jax.debug.callback(lambda _: seen.append(size), primals[0])
            return watched(primals[0], size), tangents[0]  # watched again: it may be differentiated once more

        return lambda *arguments: watched(loss(*arguments), len(jax.tree.leaves(arguments[-1])[0]))

    return case.problem(traced if case.numpy_loss is None else lambda loss: fz.blackbox(blackbox)), seen


def everyone_descends_alike_on_both_engines_and_counts_what_is_computed(case: Case, tmp_path: Any) -> None:
    problem, seen = _counted(case)
    with problem.precision():
        method = case.method.prepare(problem).for_cohort(problem, problem.clients)
        fast, plain = (engine.start([method], problem, [jax.random.key(0)], None) for engine in (Simulation(), Loop()))
        (first,) = fast.evaluate()["loss"]
        for session in (fast, plain):
            seen.clear()  # estimating constants and monitoring are not charged
            session.advance(3)
            jax.block_until_ready(session.states()[0].x)
            jax.effects_barrier()
            cost = session.costs()[0]
            assert (cost.gradients if case.numpy_loss is None else cost.evaluations) == sum(seen) > 0
        assert fast.costs() == plain.costs()
        np.testing.assert_allclose(fast.states()[0].x, plain.states()[0].x, rtol=1e-9, atol=1e-12)
        fast.advance(case.rounds - 3)
        (last,) = fast.evaluate()["loss"]
        assert last - case.optimum < case.descent * (first - case.optimum)


def a_float32_run_does_not_depend_on_x64(case: Case, tmp_path: Any) -> None:
    """JAX's setting is the user's own affair: x0 says what a run computes in. Hierarchical problems compute in float64 anyway."""
    plain = case.plain
    if plain.hierarchical:
        return
    narrow = lambda leaf: leaf.astype(np.float32) if np.issubdtype(leaf.dtype, np.floating) else leaf  # noqa: E731
    data = replaced(plain.data, **jax.tree.map(narrow, {"flat": plain.data.flat, "fixed": plain.data.fixed}))
    layout = dataclasses.replace(plain.layout, dtype=np.dtype(np.float32))
    problem = replaced(plain, data=data, layout=layout, x0=narrow(np.asarray(plain.x0)))
    found = []
    for x64, engine in ((False, "loop"), (True, "simulation")):
        with jax.enable_x64(x64):
            found.append(fz.run(case.method, problem, 2, engine=engine, clients_per_round=case.some, progress=False))
        assert jax.tree.leaves(found[-1].x)[0].dtype == np.float32
    np.testing.assert_allclose(*(result.history["loss"] for result in found), rtol=1e-4)


def no_retrace_on_new_numbers(case: Case, tmp_path: Any) -> None:
    unchanged = run(case).history["loss"][-1]
    before = simulation.TRACES[0]
    for name, value in case.changes.items():
        changed = run(case, method=dataclasses.replace(case.method, **{name: value}))
        assert changed.history["loss"][-1] != unchanged, name
    run(case, rounds=11, key=9)
    assert simulation.TRACES[0] == before
    assert case.changes


CHECKS = [
    state_and_memory_are_arrays_of_stable_structure,
    a_cohort_runs_alike_on_both_engines_or_is_refused,
    same_key_same_result_other_key_other_result,
    a_short_run_is_a_prefix_of_a_long_one,
    resume_equals_no_stop,
    counted_bytes_are_the_bytes_that_crossed,
    everyone_descends_alike_on_both_engines_and_counts_what_is_computed,
    no_retrace_on_new_numbers,
]
WITH_X64 = [
    a_cohort_runs_alike_on_both_engines_or_is_refused,
    a_float32_run_does_not_depend_on_x64,
]
# For another setting of a method that has passed all: what may differ with it.
OF_VARIANTS = [
    a_cohort_runs_alike_on_both_engines_or_is_refused,
    counted_bytes_are_the_bytes_that_crossed,
    everyone_descends_alike_on_both_engines_and_counts_what_is_computed,
]
