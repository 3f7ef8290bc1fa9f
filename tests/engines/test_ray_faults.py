"""Actors that are killed, clients that raise, lie or sleep: the round goes on with the rest, and says so."""

import jax
import numpy as np
import pytest
from raycases import (
    BAD,
    Mishaps,
    assert_same_run,
    cluster,  # noqa: F401
    expected_x,
    offset_problem,
    ray_engine,
    trapped_scaffold,
)

import fedrzo as fz
from fedrzo.engines.messages.receive import Rules

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.slow("starts processes anew, several times")
def test_no_mishap_of_one_client_reaches_the_average_and_it_comes_back():
    """One run through all of them. The client's process is killed, too, with SIGKILL, in the middle of its step."""
    plan = ("honest", "nan", "infinite", "shorter", "nested", "rougher", "larger", "raising", "killed", "honest")
    engine = ray_engine(actors=3, max_reply_ratio=100.0)
    result = fz.run(Mishaps(plan=plan), offset_problem(), len(plan), engine=engine, progress=False)
    kinds = ["not finite", "not finite", "shape", "shape", "dtype", "too large", "raised", "killed"]
    assert [(event.round, event.client, event.kind) for event in result.events] == [
        (r, BAD, kind) for r, kind in enumerate(kinds, start=1)
    ]
    details = [event.detail for event in result.events]
    assert details[0] == "found nan in 1 of 4 numbers"
    assert details[1] == "found -inf in 1 of 4 numbers"
    assert details[2] == "found the shape (3,), wanted (4,)"
    assert details[4] == "found the type float32, wanted float64"
    assert details[6] == "RuntimeError: the simulator"
    np.testing.assert_allclose(result.x, expected_x(plan), rtol=1e-12)
    assert list(result.history["failures"]) == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8]


@pytest.mark.slow("sleeps")
def test_a_straggler_is_left_out_and_its_late_reply_is_not_averaged(tmp_path):
    plan = ("honest", "slow", "honest", "honest", "honest")
    problem = offset_problem()
    with problem.precision():
        method = Mishaps(plan=plan, folder=str(tmp_path))
        session = ray_engine(actors=3).start([method], problem, [jax.random.key(0)], None)
        try:
            session.advance(1)
            # Compile the step that sleeps, awake: the timeout is for stragglers, not for compilers.
            (tmp_path / "wake").touch()
            session.advance(1)
            (tmp_path / "wake").unlink()
            session.rules, session.round = Rules(timeout=2.0), 1
            session.advance(1)
            assert [(event.round, event.client, event.kind) for event in session.events] == [(1, BAD, "timeout")]
            session.advance(1)  # still asleep
            (tmp_path / "wake").touch()
            session.rules = Rules()
            session.advance(1)  # the late reply comes, then this round's own
            x = session.states()[0].x
        finally:
            (tmp_path / "wake").touch()
            session.close()
    kinds = [(event.round, event.client, event.kind) for event in session.events]
    assert kinds == [(1, BAD, "timeout"), (2, BAD, "timeout"), (3, BAD, "late")]
    np.testing.assert_allclose(x, expected_x(["honest", "honest", "slow", "slow", "honest"]), rtol=1e-12)


def test_too_few_clients_stop_the_run_and_nothing_is_lost(tmp_path):
    plan = ("honest", "honest", "raising", "honest")
    options = {"engine": ray_engine(actors=3, min_clients=3), "checkpoint": tmp_path, "progress": False}
    line = (
        r"round 2: 2 of 3 clients answered, min_clients is 3: client 1: raised \(RuntimeError: the simulator\); bring clients "
        r"back, then go on with resume=True"
    )
    with pytest.raises(fz.engines.FederationError, match=line):
        fz.run(Mishaps(plan=plan), offset_problem(), 4, **options)
    options["engine"] = ray_engine(actors=3)
    result = fz.run(Mishaps(plan=plan), offset_problem(), 4, resume=True, **options)
    np.testing.assert_allclose(result.x, expected_x(plan), rtol=1e-12)


@pytest.mark.slow("starts processes anew, several times")
def test_a_restarted_actor_goes_on_exactly(tmp_path):
    """Scaffold's clients remember: an actor killed in mid-round is replaced, and the run is the one without a death."""
    method, problem, trap = trapped_scaffold(tmp_path)
    options = {"rounds": 8, "key": 1, "clients_per_round": 2, "progress": False}
    engine = ray_engine(actors=2, on_failure="restart")
    ours = fz.run(method, problem, engine=engine, log=[trap.after(3)], **options)
    assert [(event.round, event.kind) for event in ours.events] == [(3, "killed")] * len(ours.events)
    assert ours.events[0].detail.startswith("its actor died and was restarted: The actor died unexpectedly")
    assert not trap.path.exists()
    assert_same_run(ours, fz.run(method, problem, **options))


@pytest.mark.slow("starts processes anew, several times")
def test_a_dropped_client_comes_back_with_what_it_remembers(tmp_path):
    """The reference drops the same clients in the same round, without a death: their replies are lost on the way."""
    method, problem, trap = trapped_scaffold(tmp_path)
    options = {"rounds": 7, "key": 1, "progress": False}
    ours = fz.run(method, problem, engine=ray_engine(actors=3), log=[trap.after(3)], **options)
    assert [(event.round, event.client, event.kind) for event in ours.events] == [(3, 1, "killed")]
    np.testing.assert_allclose(ours.x, trap.reference(method, problem, 7, {3: [0, 2]}), rtol=1e-9)


@pytest.mark.slow("starts processes anew, several times")
def test_raise_stops_with_one_line_and_the_checkpoint_stays(tmp_path):
    method, problem, trap = trapped_scaffold(tmp_path)
    options = {"rounds": 6, "key": 1, "progress": False, "checkpoint": tmp_path / "stored"}
    with pytest.raises(fz.engines.FederationError, match=r"^round 3: the actor of client 1 died: The actor died") as error:
        fz.run(method, problem, engine=ray_engine(actors=3, on_failure="raise"), log=[trap.after(3)], **options)
    assert "\n" not in str(error.value)
    resumed = fz.run(method, problem, engine=ray_engine(actors=2), resume=True, **options)
    del options["checkpoint"]
    assert_same_run(resumed, fz.run(method, problem, **options))


@pytest.mark.slow("starts processes anew, several times")
def test_an_actor_that_dies_whenever_it_is_asked_stops_the_run():
    line = r"^round 0: the actor of client 1 died 4 times over one message: The actor died"
    with pytest.raises(fz.engines.FederationError, match=line):
        fz.run(
            Mishaps(plan=("killed",)),
            offset_problem(),
            1,
            engine=ray_engine(actors=3, on_failure="restart"),
            progress=False,
        )
