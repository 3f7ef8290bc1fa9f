"""A method of one's own that is written wrongly is told in one line what to change, whatever engine runs it."""

import re
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.methods import METHODS
from fedrzo.methods.guards import PARTS

TOY = fz.Nonsmooth(lambda x, batch: jnp.mean((batch - x) ** 2), fz.ClientData([np.ones((2, 3))]), np.zeros(3))


class Counted(NamedTuple):
    x: Any
    rounds: Any


class Nameless(NamedTuple):
    y: Any


@fz.method
class Average(fz.Method):
    """The mean of where its clients' gradient steps lead."""

    stepsize: float = 0.1

    def round(self, federation, state, r):
        return fz.State(federation.average(self.client_step, state.x))

    def client_step(self, client, key, memory, x):
        return fz.Reply(x - self.stepsize * client.gradient(x, client.sample(key, 1)))


def make(**parts):
    """Return the same method with some parts written otherwise."""
    return fz.method(type("Mine", (Average,), parts))()


def message(call, *arguments):
    with pytest.raises(fz.InputError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


KEEP = "; keep the structure, shapes and types of the state that it is given"
NO_X = ", without a field x; return a NamedTuple of arrays with one, such as fz.State(x)"
ROUNDS = {
    "nothing": (lambda x: None, f"None{NO_X}"),
    "x itself": (lambda x: x, f"an array of shape (3,){NO_X}"),
    "another field": (Nameless, f"Nameless{NO_X}"),
    "one number": (lambda x: Counted(jnp.mean(x), 0), f"shape () at .x where (3,) is expected{KEEP}"),
    "another type": (
        lambda x: Counted(x.astype(jnp.float32), 0),
        f"type float32 at .x where float64 is expected{KEEP}",
    ),
    "a count that is none": (
        lambda x: Counted(x, np.float64(1)),
        f"type float64 at .rounds where int32 is expected{KEEP}",
    ),
    "text": (lambda x: Counted(x, "one"), "a state that holds str; use numbers and arrays of numbers only"),
}


@pytest.mark.parametrize(("result", "said"), ROUNDS.values(), ids=ROUNDS)
def test_a_round_must_return_a_state_like_the_one_before(result, said):
    with TOY.precision():
        method, state = (
            make(round=lambda self, federation, state, r: result(state.x)),
            Counted(jnp.zeros(3), jnp.int32(0)),
        )
        assert message(method.round, None, state, 0) == f"round: Mine.round returned {said}"


def test_another_structure_is_named():
    with TOY.precision():
        method, state = (
            make(round=lambda self, federation, state, r: fz.State(state.x)),
            Counted(jnp.zeros(3), jnp.int32(0)),
        )
        said = message(method.round, None, state, 0)
    assert re.fullmatch(rf"round: Mine\.round returned the structure .*State.* where .*Counted.* is expected{KEEP}", said)


def test_a_python_number_in_a_state_may_take_another_type():
    method = make(
        init=lambda self, problem, key: Counted(jnp.asarray(problem.x0), 0),
        round=lambda self, federation, state, r: Counted(state.x, state.rounds + 0.5),
    )
    with TOY.precision():
        first = method.init(TOY, None)
        assert method.round(None, first, 0).rounds == 0.5
    fz.run(method, TOY, 2, progress=False)


OTHERS = {
    "init": (lambda self, problem, key: problem.x0, (TOY, None), f"an array of shape (3,){NO_X}"),
    "init elsewhere": (
        lambda self, problem, key: fz.State(np.zeros(5)),
        (TOY, None),
        "x of shape (5,), where problem.x0 has shape (3,); start from problem.x0",
    ),
    "init_memory": (
        lambda self, problem: {"seen": "never"},
        (TOY,),
        "a memory that holds str; use numbers and arrays of numbers only",
    ),
    "prepare": (lambda self, problem: None, (TOY,), "None; return the method: self, or dataclasses.replace(self, ...)"),
    "for_cohort": (
        lambda self, problem, size: fz.FedAvg(0.1),
        (TOY, 1),
        "FedAvg; return the method: self, or dataclasses.replace(self, ...)",
    ),
    "metrics": (
        lambda self, state: state.x,
        (fz.State(np.zeros(3)),),
        "an array of shape (3,); return a dictionary of numbers by name",
    ),
    "metrics of a vector": (
        lambda self, state: {"step": state.x},
        (fz.State(np.zeros(3)),),
        "'step' of shape (3,); return one number for each name",
    ),
    "metrics called loss": (
        lambda self, state: {"loss": state.x[0]},
        (fz.State(np.zeros(3)),),
        "'loss', a column that the history has already; return another name",
    ),
    "metrics called as a rule's": (
        lambda self, state: {"certificate_norm": state.x[0]},
        (fz.State(np.zeros(3)),),
        "'certificate_norm', a column that the history has already; return another name",
    ),
    "healthy": (
        lambda self, state: jnp.isfinite(state.x),
        (fz.State(np.zeros(3)),),
        "an array of shape (3,); return one truth value, such as jnp.all(...)",
    ),
    "healthy or not": (
        lambda self, state: None,
        (fz.State(np.zeros(3)),),
        "None; return one truth value, such as jnp.all(...)",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_other_parts_must_return(case):
    (function, arguments, said), name = OTHERS[case], case.split()[0]
    assert message(getattr(make(**{name: function}), name), *arguments) == f"{name}: Mine.{name} returned {said}"


@pytest.mark.parametrize("name", PARTS)
def test_parts_with_other_arguments(name):
    takes = PARTS[name][0]
    method = make(**{name: lambda self: self})
    said = message(getattr(method, name), *takes.split(", ")[1:])
    wanted = f"{name}: Mine.{name} is called with {takes}, but: too many positional arguments; make its arguments fit"
    assert said == wanted
    with pytest.raises(TypeError):  # which is what Python itself calls it
        getattr(method, name)(*takes.split(", ")[1:])


@pytest.mark.parametrize("engine", ["simulation", "loop"])
@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"init": lambda self, problem, key: None}, f"init: Mine.init returned None{NO_X}"),
        (
            {"round": lambda self, federation, state, r: state.x},
            f"round: Mine.round returned an array of shape (3,){NO_X}",
        ),
        ({"round": fz.Method.round}, "round: Mine does not define it; write round(self, federation, state, r)"),
    ],
    ids=["init", "round", "no round"],
)
def test_engines_pass_it_on(engine, parts, said):
    assert message(lambda: fz.run(make(**parts), TOY, 2, engine=engine, progress=False)).startswith(said)


@pytest.mark.parametrize("engine", ["simulation", "loop"])
def test_a_method_may_not_take_the_place_of_a_problems_metric(engine):
    given = {"test": np.ones((1, 3)), "metrics": {"spread": lambda x, test: jnp.ptp(x)}}
    problem = fz.Nonsmooth(TOY.loss_fn, TOY.data, np.zeros(3), **given)
    method = make(metrics=lambda self, state: {"spread": jnp.max(state.x)})
    assert message(lambda: fz.run(method, problem, 1, engine=engine, progress=False)) == (
        "metrics: Mine.metrics returned 'spread', which the problem monitors too; use another name in one of them"
    )


def test_a_number_that_is_traced_cannot_decide_in_python():
    method = make(round=lambda self, federation, state, r: state if self.stepsize > 0 else None)
    said = message(lambda: fz.run(method, TOY, 2, progress=False))
    assert said.startswith("round: Mine.round uses NumPy or Python control flow on traced values")
    assert said.endswith("such as a batch size, by fedrzo.methods.static(default=...)")


def test_what_a_class_declares():
    assert message(lambda: make(solves=fz.Bilevel)) == (
        "solves: Mine has the class Bilevel; write a tuple, such as solves = (fz.Bilevel,)"
    )

    class Plain(fz.Method):
        def round(self, federation, state, r):
            return state

    said = message(lambda: fz.run(Plain(), TOY, 1, progress=False))
    assert said == "method: the class Plain is not decorated; write @fz.method above it"


def test_a_class_of_problems_of_ones_own():
    class Fitted(fz.Nonsmooth):
        pass

    toy = Fitted(TOY.loss_fn, TOY.data, np.zeros(3))
    toy.notes = ["a list"]
    assert message(lambda: fz.run(Average(), toy, 1, progress=False)) == (
        "problem: Fitted.notes is of type list, which cannot be hashed; name it in `arrays` if it holds arrays, or keep a tuple"
    )
    del toy.notes
    assert fz.run(Average(), toy, 1, progress=False).history["round"][-1] == 1


def test_a_subclass_is_looked_at_once_for_each_class_that_defines_a_part():
    method = make(round=lambda self, federation, state, r: state)
    child = fz.method(type("Child", (type(method),), {}))()
    assert child.round.__func__ is type(method).round
    assert all(hasattr(cls.round, "__wrapped__") for cls in METHODS.values())
