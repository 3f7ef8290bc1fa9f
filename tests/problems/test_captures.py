"""A run sees today's values of what its functions use: globals, closures, defaults, attributes, other functions."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.methods.base import functions
from fedrzo.problems import captures

DATA = fz.ClientData([np.full((3, 2), 2.0), np.full((2, 2), 4.0)])
SCALE = 1.0
TABLE = np.ones(2)
SETTINGS = types.SimpleNamespace(scale=1.0)
LISTED = {"scales": [1.0, 2.0]}


def first_loss(loss, **options):
    """The loss at x0 as a run sees it, in a new problem."""
    problem = fz.Nonsmooth(loss, DATA, np.ones(2), **options)
    result = fz.run(fz.FedRZOnn(0.01, 0.1), problem, 0, engine="loop", progress=False)
    return result.history.last


@jax.jit
def compiled(x):
    return SCALE * x


def grow(i, x):
    return x + SETTINGS.scale


def twice(x):
    return 2 * x


def loss(x, batch):
    """It compiles some of what it uses by itself, which JAX would not trace again with the rest."""
    return jnp.mean((compiled(x) + jax.lax.fori_loop(0, 2, grow, 0.0) - batch) ** 2)


@pytest.mark.slow("several programs")
def test_a_run_sees_todays_values(monkeypatch):
    def expected():
        return np.mean([(SCALE + 2 * SETTINGS.scale - target) ** 2 for target in (2.0, 4.0)])

    for module, name, value in (
        (None, "SCALE", 1.0),
        (None, "SCALE", 3.0),
        (SETTINGS, "scale", 2.0),
        (SETTINGS, "scale", 2.0),
    ):
        monkeypatch.setitem(globals(), name, value) if module is None else monkeypatch.setattr(module, name, value)
        assert first_loss(loss)["loss"] == pytest.approx(expected(), rel=1e-15)


class Model:
    def __init__(self):
        self.weights = np.ones(2)

    def loss(self, x, batch):
        return jnp.mean((self.weights * x - batch) ** 2)

    def metric(self, x, test):
        return jnp.sum(self.weights * x)


def test_arrays_that_change_in_place_are_seen_too():
    model = Model()
    for _ in range(2):
        found = first_loss(model.loss, test=np.zeros((1, 2)), metrics={"sum": model.metric})
        assert found["loss"] == pytest.approx(np.mean([(model.weights - target) ** 2 for target in (2.0, 4.0)]))
        assert found["sum"] == model.weights.sum()
        model.weights[1] += 5


@dataclasses.dataclass(frozen=True)
class Equal:
    """Equal to any other of its kind: a new one shares the old one's programs."""

    power: int

    def __call__(self, x, batch):
        return jnp.mean(jnp.abs(SCALE * x - batch) ** self.power)


def uses_global(x, batch):
    return SCALE * jnp.mean(x - batch)


def uses_array(x, batch):
    return jnp.mean(TABLE * x - batch)


def uses_attribute(x, batch):
    return SETTINGS.scale * jnp.mean(x - batch)


def uses_list(x, batch):
    return LISTED["scales"][1] * jnp.mean(x - batch)


def uses_helper(x, batch):
    return (lambda z: jnp.mean(twice(z) - batch))(x)  # named inside of another function


def with_default(x, batch, table=TABLE):
    return jnp.mean(table * x - batch)


def closing_over(table):
    return lambda x, batch: jnp.mean(table * x - batch)


TRANSFORMED = jax.vmap(uses_global)
KINDS = {
    "global": (lambda: uses_global, "SCALE", 2.0),
    "array in place": (lambda: uses_array, "TABLE", None),
    "attribute": (lambda: uses_attribute, "SETTINGS", types.SimpleNamespace(scale=2.0)),
    "list": (lambda: uses_list, "LISTED", {"scales": [1.0, 2.5]}),
    "helper": (lambda: uses_helper, "twice", lambda x: 3 * x),
    "helper of a jitted function": (lambda: loss, "SCALE", 2.0),
    "default": (lambda: with_default, "TABLE", None),
    "equal object": (lambda: Equal(2), "SCALE", 2.0),
    "inside a transformation": (lambda: TRANSFORMED, "SCALE", 2.0),
}


@pytest.fixture
def cleared(monkeypatch):
    """How often everything was dropped."""
    found = []
    monkeypatch.setattr(jax, "clear_caches", lambda: found.append(1))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_noticed_once(kind, cleared, monkeypatch):
    make, name, value = KINDS[kind]
    captures.notice({"loss": make()})
    cleared.clear()  # another test may have changed what it uses
    captures.notice({"loss": make()})
    assert not cleared
    if value is None:
        TABLE[0] += 1
    else:
        monkeypatch.setitem(globals(), name, value)
    captures.notice({"loss": make()})
    assert cleared == [1]
    captures.notice({"loss": make()})
    assert cleared == [1]


def test_other_functions_of_a_problem_and_a_method_count_too(cleared):
    table = np.ones(2)
    use = closing_over(table)
    partial = functools.partial(lambda table, x, y, batch: jnp.mean(table * y - x), table)
    sampler = fz.Sampler(lambda key, client: table * jax.random.normal(key), clients=2)
    bilevel = fz.Bilevel(partial, lambda x, y, b: jnp.sum((y - table) ** 2), sampler, np.ones(2), np.ones(2))
    nonsmooth = fz.Nonsmooth(lambda x, b: jnp.mean(b), DATA, np.ones(2), monitored={"other": use})
    schedule = fz.FedRZOnn(lambda r: 0.1 * table[0], 0.1)
    groups = [bilevel.functions, nonsmooth.functions, functions(schedule)]
    assert set(bilevel.functions) == {"loss", "lower", "data", "lower_data"}
    for group in groups:
        captures.notice(group)
    cleared.clear()
    table[0] += 1
    for k, group in enumerate(groups, start=1):
        captures.notice(group)
        assert len(cleared) == k


def test_what_changes_nothing_is_not_noticed(cleared):
    """A black box is called anew each time; a generator is no value; equal values are equal, whoever holds them."""
    calls, noise = [], np.random.default_rng(0)

    def simulator(x, batch):
        calls.append(noise.normal())
        return 0.0

    box = fz.blackbox(simulator)
    for _ in range(2):
        captures.notice({"loss": box, "metric": lambda x, test: box(x, test)})
        box(jnp.ones(2), jnp.ones(2))
    assert not cleared
    one, same, other = (captures.fingerprint({"loss": closing_over(np.arange(3.0) + k)}) for k in (0, 0, 1))
    assert one == same != other
    assert captures.fingerprint({"loss": lambda x, b: jnp.mean(x - b)}) == ""  # so another version's code may go on


class Shy:
    def __getattr__(self, name):
        raise RuntimeError("do not look at me")


def test_more_than_can_be_looked_at_is_told():
    large = np.zeros(3_000_000)
    with pytest.warns(UserWarning, match=r"^loss: it uses more values beside its arguments than are looked at \(20 MB\)"):
        captures.notice({"loss": closing_over(large)})
    holds_itself = [Shy()]
    holds_itself.append(holds_itself)
    captures.notice({"loss": closing_over(holds_itself)})
