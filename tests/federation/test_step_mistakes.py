"""Client steps and calls of the federation that are written wrongly: one line says what to change."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz


@fz.method
class Own(fz.Method):
    """A method whose client step is the wrong one of several."""

    result: Any

    def init_memory(self, problem):
        return jnp.int32(0)

    def round(self, federation, state, r):
        return fz.State(federation.average(self.step, state.x))

    def step(self, client, key, memory, x):
        return self.result(x)


def single():
    return fz.Nonsmooth(lambda x, batch: jnp.sum(x**2), fz.ClientData([np.ones(1)] * 2), np.zeros(3))


def refusal(method, toy, engine="simulation"):
    with pytest.raises(fz.InputError) as error:
        fz.run(method, toy, 1, engine=engine, progress=False)
    assert "\n" not in str(error.value)
    return str(error.value)


NO_REPLY = "; return fz.Reply(value), with what the server is to average"
REPLIES = {
    "nothing": (lambda x: None, f"None{NO_REPLY}"),
    "x itself": (lambda x: x, f"an array of shape (3,){NO_REPLY}"),
    "a pair": (lambda x: (x, 1), f"tuple{NO_REPLY}"),
    "text": (
        lambda x: fz.Reply({"x": x, "note": "done"}),
        "a Reply with a value that holds str; use numbers and arrays of numbers only",
    ),
    "another memory": (
        lambda x: fz.Reply(x, memory=x),
        "a Reply with a memory of shape (3,) where () is expected; keep it like what init_memory returns",
    ),
    "another type of memory": (
        lambda x: fz.Reply(x, memory=x[0]),
        "a Reply with a memory of type float64 where int32 is expected; keep it like what init_memory returns",
    ),
    "half an evaluation": (
        lambda x: fz.Reply(x, evaluations=0.5),
        "a Reply with evaluations of type float64 and shape (); count them in one whole number",
    ),
    "a count for each entry": (
        lambda x: fz.Reply(x, steps=x.astype(int)),
        "a Reply with steps of type int64 and shape (3,); count them in one whole number",
    ),
}


@pytest.mark.parametrize("engine", ["simulation", "loop"])
@pytest.mark.parametrize(("result", "said"), REPLIES.values(), ids=REPLIES)
def test_a_step_must_return_a_reply(result, said, engine):
    assert refusal(Own(result), single(), engine) == f"step: Own.step returned {said}"


@pytest.mark.parametrize("engine", ["simulation", "loop"])
def test_a_step_that_cannot_be_called_or_traced(engine):
    class Other(Own):
        def step(self, client, key, x):
            return fz.Reply(x)

    said = refusal(Other(None), single(), engine)
    assert said == (
        "step: Other.step is called with client, key, memory and 1 shared, but: too many positional arguments; "
        "make its arguments fit"
    )
    for result in (np.asarray, lambda x: fz.Reply(x if x[0] > 0 else -x), lambda x: range(x.sum().astype(int))):
        said = refusal(Own(result), single(), engine)
        assert said.startswith("step: Own.step uses NumPy or Python control flow on traced values")


def test_what_a_step_is_sent():
    class Other(Own):
        def round(self, federation, state, r):
            return fz.State(federation.average(self.step, "x"))

    assert refusal(Other(fz.Reply), single()) == "step: Other.step is sent str; use numbers and arrays of numbers only"


@pytest.mark.parametrize(
    ("n", "body", "said"),
    [
        (2.5, lambda federation, x: x, "found n of type float64; pass a whole number"),
        (2, lambda federation, x: x[:2], "its body returned shape (2,) where (3,) is expected; keep"),
        (2, lambda federation, x: None, "its body returned the structure PyTreeDef(None) where PyTreeDef(*) is"),
        (2, lambda x: x, "its body is called with federation, carry, but: too many positional arguments; make"),
    ],
)
def test_what_a_repeat_refuses(n, body, said):
    class Other(Own):
        def round(self, federation, state, r):
            return fz.State(federation.repeat(n, body, state.x))

    assert refusal(Other(None), single()).startswith(f"repeat: {said}")


def test_there_is_no_lower_level_where_there_is_none():
    class Other(Own):
        def round(self, federation, state, r):
            return fz.State(federation.lower(state.x, self).average(self.step, state.x))

    said = refusal(Other(None), single())
    assert said == "lower: found Nonsmooth, which has no lower level; declare solves = (fz.Bilevel,)"
