"""Communications whose mean is not needed yet: the same numbers and costs on every engine, and no memory changes on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.flower.engine import FlowerSession
from fedrzo.engines.messages.node import Node
from fedrzo.federation.protocol import private_key
from fedrzo.methods.base import State, static
from fedrzo.zoo import toys

PROBLEM = toys.quadratic(clients=3, dim=2)


@fz.method
class Later(fz.Method):
    """Takes a gradient step by the mean of two communications, of which one may wait."""

    remembers: bool = static(default=False)
    spoilt: int = static(default=-1)  # the round in which client 1's slope is no number
    solves = (fz.Nonsmooth,)

    def init_memory(self, problem):
        return jnp.zeros(())

    def init(self, problem, key):
        return State(jnp.asarray(problem.x0))

    def round(self, federation, state, r):
        waiting = federation.later(self.noise, state.x)
        slope = federation.average(self.slope, state.x)
        return State(state.x - 0.1 * slope + waiting() + 0 * waiting())

    def noise(self, client, key, memory, x):
        return fz.Reply(0.01 * jax.random.normal(key, x.shape, x.dtype), memory + 1 if self.remembers else None, evaluations=1)

    def slope(self, client, key, memory, x):
        bad = (client.id == 1) & (client.round == self.spoilt)
        return fz.Reply(jnp.where(bad, jnp.nan, 1.0) * client.gradient(x, client.sample(key, "full")), memory + 1, gradients=1)


def test_engines_agree_and_charge_once():
    simulated, by_messages = (fz.run(Later(), PROBLEM, 3, engine=engine, progress=False) for engine in ("simulation", "loop"))
    np.testing.assert_allclose(simulated.x, by_messages.x, rtol=1e-12)
    for name in fz.Cost._fields:
        assert list(simulated.history[name]) == list(by_messages.history[name])
    assert simulated.history.last["evaluations"] == 3 * 3


def test_a_step_that_may_wait_must_not_change_memory():
    with pytest.raises(fz.InputError, match=r"later: noise returned a Reply with a memory"):
        fz.run(Later(remembers=True), PROBLEM, 1, progress=False)


class Bundles:
    """Brings all letters to a client at once, to nodes in this process."""

    nodes: list[Node]

    def present(self, ids):
        return list(ids), []

    def exchange(self, letters, timeout):
        for client, node in enumerate(self.nodes):
            for letter in letters:
                letter.take(client, node.answer(letter.common, letter.own[client]))


def test_a_client_whose_second_reply_of_a_bundle_is_refused_goes_on_in_the_next_round():
    with PROBLEM.precision():
        method, post = Later(spoilt=1).prepare(PROBLEM), Bundles()
        session = FlowerSession(method, jax.device_put(PROBLEM), jax.random.key(0), None, None, post)
        roots = session.roots
        post.nodes = [Node(method, PROBLEM, i, i, roots.directions, private_key(roots, i)) for i in range(3)]
        session.advance(4)
    assert [(event.round, event.client, event.kind) for event in session.events] == [(1, 1, "not finite")]
    assert [float(node.memory[""].newest.value) for node in post.nodes] == [4, 3, 4]  # client 1 has forgotten that round
