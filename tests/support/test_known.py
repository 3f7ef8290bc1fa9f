"""What was found out about an object is found out once, and forgotten with it."""

import gc
import weakref

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.support.known import known
from fedrzo.zoo import toys


class Thing:
    pass


def test_a_question_is_answered_once_for_each_object():
    asked = []

    def find():
        asked.append(1)
        return len(asked)

    one, other = Thing(), Thing()
    assert [known(one, "a", find), known(one, "a", find), known(one, "b", find), known(other, "a", find)] == [1, 1, 2, 3]


def test_failures_are_not_kept_and_objects_not_kept_alive():
    def fail():
        raise ValueError("not yet")

    thing = Thing()
    watched = weakref.ref(thing)
    with pytest.raises(ValueError, match="not yet"):
        known(thing, "a", fail)
    assert known(thing, "a", lambda: 5) == 5
    del thing
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("sampled", [False, True])
def test_runs_do_not_keep_their_problem_alive(sampled):
    data = fz.Sampler(lambda key, i: jax.random.normal(key, (2,)), 2, 8) if sampled else fz.ClientData([np.ones((3, 2))])
    problem = fz.Nonsmooth(toys.squared_distance, data, np.ones(2), fz.sets.Ball(0.0, 2.0))
    fz.run(fz.FedRZOnn(0.01, 0.1, 1), problem, 1, progress=False)
    watched = weakref.ref(problem)
    del problem, data
    gc.collect()
    assert watched() is None
