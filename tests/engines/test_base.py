"""The contract of engines: those that are registered keep it, and one of a user's own needs nothing else."""

import inspect
import typing

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.base import Engine, Session
from fedrzo.engines.loop import LoopSession
from fedrzo.zoo import toys

METHOD = fz.FedRZOnn(0.02, 0.1, 2)


def session_of(engine):
    return typing.get_type_hints(engine.start)["return"]


def parts(cls):
    """What a contract asks for: its public functions, with the names of their arguments."""
    functions = {name: part for name, part in vars(cls).items() if inspect.isfunction(part) and name[0] != "_"}
    return {name: list(inspect.signature(part).parameters) for name, part in functions.items()}


@pytest.mark.parametrize("engine", fz.engines.ENGINES.values(), ids=fz.engines.ENGINES)
def test_a_registered_engine_and_its_session_keep_the_contract(engine):
    session = session_of(engine)
    for found, contract in ((engine, Engine), (session, Session)):
        assert issubclass(found, contract)
        assert not inspect.isabstract(found)
        for name, arguments in parts(contract).items():
            assert list(inspect.signature(getattr(found, name)).parameters) == arguments, name
    assert fz.engines.ENGINES[engine.name] is engine
    assert session.data_at_hand == engine.data_at_hand


class Counting(fz.engines.Loop):
    """An engine of a user's own: client by client, counting what is asked of its clients."""

    name = "counting"

    def __init__(self):
        self.calls = 0

    def start(self, methods, problem, keys, clients_per_round):
        return CountingSession(self, self.only(methods), problem, keys[0], clients_per_round)


class CountingSession(LoopSession):
    def __init__(self, engine, *run):
        super().__init__(*run)
        self.engine = engine

    def exchange(self, message, ids, intake):
        self.engine.calls += len(ids)
        super().exchange(message, ids, intake)


def test_an_engine_of_ones_own_runs_and_resumes(tmp_path):
    problem, engine = toys.quadratic(clients=3, dim=4), Counting()
    options = {"engine": engine, "progress": False, "checkpoint": tmp_path}
    fz.run(METHOD, problem, 2, **options)
    found = fz.run(METHOD, problem, 4, resume=True, **options)
    straight = fz.run(METHOD, problem, 4, engine="loop", progress=False)
    assert engine.calls == 4 * 3
    assert found.spec["engine"] == "counting"
    np.testing.assert_array_equal(found.x, straight.x)


@pytest.mark.parametrize("engine", [fz.engines.Loop, object(), None, 3])
def test_what_is_no_engine_is_refused(engine):
    with pytest.raises(fz.InputError, match=r'engine: found .*; pass a name such as "loop", or fz.engines.Ray'):
        fz.run(METHOD, toys.quadratic(clients=3, dim=4), 1, engine=engine)


def test_an_engine_of_one_run_refuses_several():
    problem = toys.quadratic(clients=3, dim=4)
    with pytest.raises(fz.InputError, match="the counting engine runs one seed and one setting at a time"):
        Counting().start([METHOD] * 2, problem, [], None)
