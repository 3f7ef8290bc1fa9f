"""The federation's primitives, in both engines: lower views, repeats, memory, gathering, exact counters."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines import loop
from fedrzo.engines.messages import codec
from fedrzo.engines.simulation import engine as simulation
from fedrzo.engines.simulation.compiled import Tally, halves, total
from fedrzo.federation.protocol import Cost, step_name

CLIENTS = 4


class Lagged(NamedTuple):
    x: Any
    seen: Any


@fz.method
class Descend(fz.Method):
    """A lower-level method: gradient steps, counting them in each client's memory."""

    stepsize: float

    def init_memory(self, problem):
        return jnp.zeros((), jnp.int32)

    def client_step(self, client, key, memory, y):
        y = client.project(y - self.stepsize * client.gradient(y, client.sample(key, "full")))
        memory = memory + 1
        return fz.Reply((y, memory * client.id), memory, gradients=client.cost("full"), steps=1)

    def once(self, federation, carry):
        y, _ = carry
        return federation.average(self.client_step, y)


@fz.method
class Nested(fz.Method):
    """Exercises every primitive: a lower level at two points, r + 1 lower rounds, server keys, memory and gather."""

    lower: Any
    solves = (fz.Bilevel,)

    def init(self, problem, key):
        return Lagged(jnp.asarray(problem.x0), jnp.zeros(CLIENTS, jnp.int32))

    def init_memory(self, problem):
        return {"visits": jnp.zeros((), jnp.int32), "last": jnp.zeros(problem.dim)}

    def round(self, federation, state, r):
        v = 0.1 * jax.random.normal(federation.key(), state.x.shape)
        below = federation.lower(jnp.stack([state.x + v, state.x - v]), self.lower)
        y = jnp.zeros(2 * 3)
        y, _ = below.repeat(r + 1, self.lower.once, (y, jnp.zeros((), y.dtype)))
        found = federation.gather(self.client_step, y)
        x = jnp.tensordot(found.weights, found.values["x"], 1)
        return Lagged(x, state.seen.at[found.ids].set(found.values["visits"]))

    def client_step(self, client, key, memory, y):
        plus, minus = y.reshape(2, -1)
        batch = client.sample(key, 1)
        change = client.loss(client.points[0], plus, batch) - client.loss(client.points[1], minus, batch)
        x = client.points.mean(axis=0) - 0.01 * change + 0.001 * jax.random.normal(key, (client.dim,))
        visits = memory["visits"] + 1
        return fz.Reply({"x": x, "visits": visits}, {"visits": visits, "last": x}, evaluations=2)


def problem():
    rng = np.random.default_rng(0)
    data = fz.ClientData([rng.normal(size=(3 + i, 3)) for i in range(CLIENTS)])
    upper = lambda x, y, batch: jnp.mean((y - batch) ** 2) + jnp.sum(x**2)  # noqa: E731
    lower = lambda x, y, batch: 0.5 * jnp.mean(jnp.sum((y - batch - x.sum()) ** 2, axis=-1))  # noqa: E731
    box = lambda x: fz.sets.Box(-1.0, 1.0 + x.sum() ** 2)  # noqa: E731
    return fz.Bilevel(upper, lower, data, np.full(2, 0.3), np.zeros(3), lower_constraint=box)


def session(engine, size=None, key=0, method=None):
    return engine().start([method or Nested(Descend(0.2))], problem(), [jax.random.key(key)], size)


def finish(engine, rounds, size):
    with jax.enable_x64(True):
        run = session(engine, size)
        run.advance(rounds)
        return run, run.states()[0], run.costs()[0]


@pytest.mark.parametrize("size", [2, pytest.param(None, marks=pytest.mark.slow("compiles every primitive once more"))])
def test_both_engines_agree_on_every_primitive(size):
    _, fast, fast_cost = finish(simulation.Simulation, 5, size)
    _, plain, plain_cost = finish(loop.Loop, 5, size)
    np.testing.assert_allclose(fast.x, plain.x, rtol=1e-12)
    np.testing.assert_array_equal(fast.seen, plain.seen)
    assert fast_cost == plain_cost


@pytest.mark.parametrize("engine", [simulation.Simulation, loop.Loop])
def test_costs_are_what_the_messages_weigh(engine):
    rounds, n, q = 5, 2, 3
    _, _, cost = finish(engine, rounds, None)
    lower_rounds = sum(range(1, rounds + 1))
    samples = sum(3 + i for i in range(CLIENTS))
    assert cost == Cost(
        lower_rounds=lower_rounds,
        upload_bytes=CLIENTS * (lower_rounds * (2 * q * 8 + 4) + rounds * (n * 8 + 4)),
        download_bytes=CLIENTS * (rounds * 2 * n * 8 + lower_rounds * 2 * q * 8 + rounds * 2 * q * 8),
        evaluations=CLIENTS * rounds * 2,
        gradients=lower_rounds * 2 * samples,  # two points at once: two gradients a sample
        lower_steps=CLIENTS * lower_rounds,
    )


@pytest.mark.parametrize("engine", [simulation.Simulation, loop.Loop])
def test_absent_clients_keep_their_memory_and_lower_levels_start_afresh(engine):
    run, state, _ = finish(engine, 6, 2)
    assert state.seen.sum() == 6 * 2
    assert len(set(state.seen.tolist())) > 1  # clients were drawn, not taken in turn
    with jax.enable_x64(True):
        stored = run.store()
        again = session(engine, 2)
        again.restore(stored, 6)
        run.advance(2)
        again.advance(2)
        np.testing.assert_array_equal(run.states()[0].x, again.states()[0].x)


def test_a_checkpoint_of_one_engine_continues_in_the_other():
    run, _, _ = finish(simulation.Simulation, 3, 2)
    with jax.enable_x64(True):
        other = session(loop.Loop, 2)
        other.restore(run.store(), 3)
        run.advance(2)
        other.advance(2)
        np.testing.assert_allclose(run.states()[0].x, other.states()[0].x, rtol=1e-12)
        assert run.costs() == other.costs()


@pytest.mark.parametrize("engine", [simulation.Simulation, loop.Loop])
def test_closures_and_lambdas_are_refused(engine):
    secret = 3.0

    @fz.method
    class Leaky(fz.Method):
        stepsize: float = 1.0

        def round(self, federation, state, r):
            return fz.State(federation.average(lambda client, key, memory, x: fz.Reply(x * secret), state.x))

    with pytest.raises(fz.InputError, match="a client step must capture nothing"):
        fz.run(
            Leaky(),
            fz.Nonsmooth(lambda x, b: x.sum(), fz.ClientData([np.ones(1)]), np.zeros(1)),
            1,
            engine=engine(),
            progress=False,
        )


def test_a_step_must_be_the_methods_own():
    method = Descend(0.1)
    assert step_name(method.client_step) == "client_step"
    stranger = dataclasses.replace(method)
    assert codec.name_of(Nested(method), method) == "lower."
    assert codec.name_of(Nested(method), stranger) is None
    with pytest.raises(fz.InputError, match="which is not a method of a Method"):
        step_name(jnp.sum)


def test_counters_are_exact_beyond_32_bits():
    big = 2**31 - 1
    tally = Tally.zero()
    add = jax.jit(lambda t: t.plus(evaluations=total(jnp.full(7, big, jnp.int32), 7), upload_bytes=halves(10**13 + 7)))
    for _ in range(5):
        tally = add(tally)
    assert tally.cost() == Cost(evaluations=5 * 7 * big, upload_bytes=5 * (10**13 + 7))


def test_noise_depends_on_the_client_not_on_its_place_in_the_cohort():
    """Client 3's reply is the same whoever else takes part."""

    @fz.method
    class Listen(fz.Method):
        stepsize: float = 1.0

        def round(self, federation, state, r):
            found = federation.gather(self.client_step, state.x)
            return fz.State(jnp.zeros_like(state.x).at[found.ids].set(found.values))

        def client_step(self, client, key, memory, x):
            return fz.Reply(jax.random.normal(key) + client.sample(key, 1)[0])

    rng = np.random.default_rng(1)
    toy = fz.Nonsmooth(lambda x, b: x.sum() + b.sum(), fz.ClientData([rng.normal(size=9) for _ in range(6)]), np.zeros(6))
    everyone = fz.run(Listen(), toy, 1, progress=False).x
    some = fz.run(Listen(), toy, 1, clients_per_round=3, progress=False).x
    took_part = some != 0
    assert took_part.sum() == 3
    np.testing.assert_array_equal(some[took_part], everyone[took_part])


@fz.method
class Halving(fz.Method):
    """Halves x by communications until it is short."""

    stepsize: float = 1.0

    def round(self, federation, state, r):
        def body(inner, x):
            return inner.average(self.half, x)

        return fz.State(federation.repeat(50, body, state.x, lambda x: jnp.linalg.norm(x) <= 0.1 * self.stepsize))

    def half(self, client, key, memory, x):
        return fz.Reply(x / 2)


@pytest.mark.parametrize("engine", ["simulation", "loop"])
def test_a_repeat_ends_when_its_condition_holds(engine):
    problem = fz.Nonsmooth(lambda x, b: jnp.mean((b - x) ** 2), fz.ClientData([np.ones(3), np.zeros(2)]), np.ones(1))
    result = fz.run(Halving(), problem, 2, engine=engine, progress=False)
    np.testing.assert_allclose(result.x, 1 / 16)
    assert list(result.history["upload_bytes"]) == [0, 4 * 2 * 8, 4 * 2 * 8]  # the second round has nothing left to do
