"""A client at work: what it remembers follows what the server took, and survives its process."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedrzo as fz
from fedrzo.engines.messages.codec import Keep, Message, decode_reply, encode, encode_own
from fedrzo.engines.messages.node import Memory, Node
from fedrzo.engines.messages.wire import WireError
from fedrzo.federation.protocol import Roots, private_key


@fz.method
class Counting(fz.Method):
    """Clients add up what they are sent, and tell the sum."""

    lower: Any = None
    solves = (fz.Nonsmooth, fz.Bilevel)

    def init_memory(self, problem):
        return {"sum": jnp.zeros(())}

    def client_steps(self, client, key, memory, x):
        total = memory["sum"] + x
        return fz.Reply(total, {"sum": total}, evaluations=1)

    def forgetful(self, client, key, memory, x):
        return fz.Reply(memory["sum"])

    def failing(self, client, key, memory, x):
        raise ArithmeticError("no solution\nfound")


def loss(x, *y_and_batch):
    return jnp.sum(x**2)


def problem():
    return fz.Nonsmooth(loss, fz.ClientData([np.zeros((2, 1))] * 2), np.zeros(2))


def node(method=None, about=None):
    roots = Roots.of(jax.random.key(0))
    return Node(method or Counting(), about or problem(), 1, 1, roots.directions, private_key(roots, 1))


def ask(client, r, x, accepted, step="client_steps", call=0, view="", keep=None):
    """Send a message by its bytes; return the value, or raise what the client says."""
    message = Message(step, view, (r, call), 0, (np.float32(x),), keep)
    answer = decode_reply(client.answer(encode(message), encode_own(message, 1, accepted)), client.types)
    if answer.error is not None:
        raise RuntimeError(answer.error)
    assert answer.path == (r, call)
    return float(answer.reply.value)


def test_a_reply_that_was_taken_is_gone_on_from():
    client = node()
    assert ask(client, 0, 1, None) == 1
    assert ask(client, 1, 2, (0, 0)) == 3
    assert ask(client, 2, 4, (1, 0)) == 7


def test_a_reply_that_was_lost_is_forgotten():
    client = node()
    ask(client, 0, 1, None)
    assert ask(client, 1, 2, (0, 0)) == 3  # lost on the way
    assert ask(client, 2, 4, (0, 0)) == 5
    assert ask(client, 3, 8, (2, 0)) == 13


def test_the_very_first_reply_may_be_lost_too():
    client = node()
    ask(client, 0, 1, None)
    assert ask(client, 1, 2, None) == 2


def test_a_message_that_comes_twice_is_answered_alike():
    client = node()
    ask(client, 0, 1, None)
    assert ask(client, 1, 2, (0, 0)) == ask(client, 1, 2, (0, 0)) == 3
    assert ask(client, 2, 0, (1, 0)) == 3


def test_a_server_started_again_at_the_beginning_of_a_round_finds_its_clients_there():
    """Three calls into round 1 the server is killed; its checkpoint ends with round 0, from where all is repeated."""
    client = node()
    ask(client, 0, 1, None)
    for call in range(3):
        ask(client, 1, 10, (1, call - 1) if call else (0, 0), call=call)
    repeated = [ask(client, 1, 10, (1, call - 1) if call else (0, 0), call=call) for call in range(3)]
    assert repeated == [11, 21, 31]


def test_a_run_that_starts_anew_finds_clients_as_they_began():
    client = node()
    ask(client, 0, 1, None)
    ask(client, 1, 2, (0, 0))
    ask(client, 2, 2, (1, 0))
    assert ask(client, 0, 1, None) == 1


def test_a_version_that_is_gone_is_an_error_that_says_so():
    client = node()
    for r in range(4):
        ask(client, r, 1, (r - 1, 0) if r else None)
    with pytest.raises(RuntimeError, match=r"WireError: memory: the server goes on from \(0, 0\), this client remembers"):
        ask(client, 4, 1, (0, 0))
    assert ask(client, 4, 1, (3, 0)) == 5


def test_a_step_that_leaves_memory_alone_keeps_it():
    client = node()
    ask(client, 0, 5, None)
    assert ask(client, 1, 0, (0, 0), step="forgetful") == 5
    assert ask(client, 2, 1, (1, 0)) == 6


def test_an_error_is_a_reply_and_changes_nothing():
    client = node()
    ask(client, 0, 5, None)
    before = client.dump()
    with pytest.raises(RuntimeError, match=r"^ArithmeticError: no solution$"):
        ask(client, 1, 0, (0, 0), step="failing")
    with pytest.raises(RuntimeError, match="step: found '_keep'"):
        ask(client, 1, 0, (0, 0), step="_keep")
    assert ask(client, 1, 1, (0, 0)) == 6
    fresh = node()
    fresh.load(before)
    assert ask(fresh, 1, 1, (0, 0)) == 6


@given(st.lists(st.tuples(st.integers(-9, 9), st.booleans(), st.booleans()), min_size=1, max_size=8))
@settings(deadline=None, max_examples=40)
def test_no_loss_and_no_restart_changes_what_is_remembered(story):
    """Each round: a number, whether the reply arrives, and whether the process dies afterwards and another goes on."""
    client, accepted, total = node(METHOD, PROBLEM), None, 0
    for r, (x, arrives, dies) in enumerate(story):
        assert ask(client, r, x, accepted) == total + x
        if arrives:
            accepted, total = (r, 0), total + x
        if dies:
            stored, client = client.dump(), node(METHOD, PROBLEM)
            client.load(stored)
    assert client.memory[""].at(accepted, len(story))["sum"] == total


METHOD, PROBLEM = Counting(), problem()


def bilevel():
    data = fz.ClientData([np.zeros((2, 1))] * 2)
    return fz.Bilevel(loss, lambda x, y, batch: jnp.sum((y - x) ** 2), data, np.zeros(2), np.zeros(2))


def test_points_are_kept_with_a_memory_of_their_own_across_a_restart():
    about = bilevel()
    with about.precision():
        method = Counting(lower=Counting())
        client = node(method, about)
        with pytest.raises(RuntimeError, match="points: this client was not sent where its lower level is looked at"):
            ask(client, 0, 1, None, step="lower.client_steps", view="lower")
        first, second = (Keep("lower.", (0, i, 0), np.full((1, 2), float(i))) for i in range(2))
        assert ask(client, 0, 1, None, "lower.client_steps", 1, "lower", first) == 1
        # The same points again (another client did not have them yet) leave what was remembered since.
        assert ask(client, 0, 1, (0, 1), "lower.client_steps", 2, "lower", first) == 2
        stored, client = client.dump(), node(method, about)
        client.load(stored)
        assert client.kept == (0, 0, 0)
        np.testing.assert_array_equal(client.points, first.points)
        assert ask(client, 0, 1, (0, 2), "lower.client_steps", 3, "lower") == 3
        assert ask(client, 0, 5, None, "lower.client_steps", 4, "lower", second) == 5  # elsewhere, it begins anew
        assert ask(client, 0, 7, None) == 7  # the upper view's memory is another


def test_scaffolds_clients_go_on_exactly_in_new_processes():
    """Every client is dumped and loaded into a new node after every round; the run is the loop engine's own."""
    rng = np.random.default_rng(0)
    data = fz.ClientData([rng.normal(size=(4, 2)) + i for i in range(3)])
    about = fz.Nonsmooth(lambda x, batch: jnp.mean((batch @ x - 1) ** 2), data, np.zeros(2))
    method = fz.Scaffold(0.05, 3, batch_size=2)
    with about.precision():
        straight, moved = (fz.engines.Loop().start([method], about, [jax.random.key(2)], 2) for _ in range(2))
        for _ in range(6):
            straight.advance(1)
            moved.advance(1)
            for i, old in enumerate(moved.nodes):
                new = Node(method, moved.problem, i, i, old.root, old.private)
                new.load(old.dump())
                moved.nodes[i] = new
        assert straight.states()[0].x.tobytes() == moved.states()[0].x.tobytes()
        assert any(np.any(node.memory[""].newest.value) for node in moved.nodes)


def test_what_holds_nothing_is_always_there():
    memory = Memory(None)
    assert memory.at((7, 7), 9) is None


def test_a_damaged_store_is_refused():
    client = node()
    with pytest.raises(WireError):
        client.load(client.dump()[:-3])
