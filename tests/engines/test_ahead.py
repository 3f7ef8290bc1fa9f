"""What clients draw in several rounds at once, as on a GPU: the same numbers, and drawn for all rounds together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.client import Client, Together, take_steps
from fedrzo.engines import ahead
from fedrzo.engines.ahead import Pace, Replaying
from fedrzo.methods.base import State, method


@method
class Wander(fz.Method):
    """Clients walk along what they draw, all steps at once."""

    local_steps: Any = 3

    def round(self, federation: Any, state: Any, r: Any) -> Any:
        """Two calls, so that what is recorded must be told apart."""
        x = federation.average(self.walk, state.x)
        return State(federation.gather(self.walk, x).mean())

    def walk(self, client: Client, key: jax.Array, memory: None, x: jax.Array) -> fz.Reply:
        """Add up noise and samples, in a way in which their order matters."""
        del memory

        def prepare(number: Any, rows: jax.Array, noise: jax.Array) -> Any:
            del number
            return rows, noise

        def take(number: Any, prepared: Any, x: jax.Array) -> jax.Array:
            rows, noise = prepared
            samples = client.level.data.batch(rows, client.index, client.id)
            moves = noise + 0.1 * samples[..., 0].mean(axis=-1)
            return jax.lax.fori_loop(0, number, lambda k, x: 0.9 * x + moves[k], x)

        steps = take_steps(
            client, key, self.local_steps, 1, None, x, also=jax.random.normal, together=Together(prepare, take)
        )
        return fz.Reply(steps)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds at a time, two of them launched at once: what is compiled is smaller, and the same."""
    monkeypatch.setattr(ahead, "ROUNDS", 4)
    monkeypatch.setattr(ahead, "UNROLL", 2)


def problem() -> fz.Nonsmooth:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(6, 2)) for _ in range(4)]
    return fz.Nonsmooth(lambda x, batch: jnp.mean((x - batch) ** 2), fz.ClientData(data), np.zeros(2))


def end(methods: list, rounds: int, clients: int | None, short: bool) -> Any:
    engine = fz.engines.Simulation(devices=jax.devices()[:1])
    session = engine.start(methods, problem(), list(jax.random.split(jax.random.key(1), len(methods))), clients)
    session.pace = Pace(4, short, ahead=short)  # as on a GPU
    session.advance(rounds)
    return session.carry


@pytest.mark.parametrize(
    ("rounds", "clients"),
    [pytest.param(3, None, id="a few"), pytest.param(11, 3, id="several blocks", marks=pytest.mark.slow)],
)
def test_rounds_drawn_ahead_are_the_same(rounds: int, clients: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(ahead, "Replaying", lambda calls: made.append(calls) or Replaying(calls))
    plain, drawn = (end([Wander()], rounds, clients, short) for short in (False, True))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(drawn), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(plain.state.x).max() > 0.01
    assert made
    assert all([len(call) for call in calls] == [1, 1] for calls in made)


@pytest.mark.slow
def test_a_sweep_is_drawn_ahead_too() -> None:
    plain, drawn = (end([Wander(3), Wander(1)], 5, None, short) for short in (False, True))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(drawn), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(plain.state.x[0] - plain.state.x[1]).max() > 0.01


@pytest.mark.slow
def test_nothing_to_draw_ahead_is_no_obstacle() -> None:
    """Other methods' rounds are run several at a time, too."""
    plain, blocks = (end([fz.FedAvg(0.1, 2)], 5, None, short) for short in (False, True))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(blocks), strict=True):
        np.testing.assert_array_equal(a, b)
