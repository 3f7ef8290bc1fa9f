"""An actor's clients at work side by side say what each would say alone; no Ray is needed to see it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.messages.codec import COUNTS, Message, decode_reply, encode, encode_own
from fedrzo.engines.messages.receive import Intake, Rules
from fedrzo.engines.messages.wire import named_tuples
from fedrzo.engines.ray import share as module
from fedrzo.engines.ray.share import Asked, Share
from fedrzo.engines.ray.sums import take_sum
from fedrzo.federation.protocol import Roots, private_key

CLIENTS = (1, 3, 4, 6, 7)  # of eight
ROOTS = Roots.of(jax.random.key(0))


@fz.method
class Steps(fz.Method):
    """Steps of many kinds, each of which client 4 may spoil."""

    def init_memory(self, problem):
        return {"before": jnp.zeros(3)}

    def usual(self, client, key, memory, x):
        new = x + memory["before"] + jnp.mean(client.sample(key, 2), axis=0)
        return fz.Reply((new, jnp.int32(client.id)), {"before": new}, evaluations=2, gradients=client.id)

    def not_finite(self, client, key, memory, x):
        reply = self.usual(client, key, memory, x)
        return reply._replace(value=(jnp.where(client.id == 4, jnp.nan, reply.value[0]), reply.value[1]))

    def not_batched(self, client, key, memory, x):
        value = jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x + client.id)
        return fz.Reply((value, jnp.int32(client.id)))

    def raising(self, client, key, memory, x):
        raise ArithmeticError("no solution")


@fz.method
class Forgetful(Steps):
    def init_memory(self, problem):
        return None

    def usual(self, client, key, memory, x):
        return super().usual(client, key, {"before": 0.0}, x)._replace(memory=None)


def loss(x, batch):
    return jnp.mean(batch @ x)


def problem():
    rng = np.random.default_rng(0)
    return fz.Nonsmooth(loss, fz.ClientData([rng.normal(size=(4 + i, 3)) for i in range(8)]), np.zeros(3), weights="samples")


def share_of(method, clients=CLIENTS):
    private = jax.vmap(lambda i: private_key(ROOTS, i))(jnp.array(clients))
    return Share(method, jax.device_put(problem().part(clients)), clients, ROOTS.directions, private, named_tuples(method))


def told(share, step, apart=False, r=0, clients=None, accepted=None):
    """Send a message; return the sum as the driver takes it, all replies that are not in it, and what was noted."""
    message = Message(step, "", (r, 0), 0, (np.arange(3.0),))
    names = CLIENTS if clients is None else clients
    total, replies = share.answer(encode(message), Asked(clients, apart, [(accepted, accepted)] * len(names)))
    expected = (jax.ShapeDtypeStruct((3,), np.float64), jax.ShapeDtypeStruct((), np.int32))
    intake = Intake(message, names, expected, share.types, Rules())
    found = None if total is None else take_sum(intake, tuple(i for i in names if i not in replies), total)
    for client, reply in replies.items():
        intake.receive(client, reply)
    return found, intake


def one_by_one(method, step, r=0, clients=CLIENTS):
    """The replies of nodes that work by themselves, as values and counts."""
    message = Message(step, "", (r, 0), 0, (np.arange(3.0),))
    share = share_of(method)
    answers = [share.node(i).answer(encode(message), encode_own(message, i, None)) for i in clients]
    return [decode_reply(answer, share.types).reply for answer in answers]


def assert_sum(found, replies, clients):
    weights = np.asarray(problem().client_weights)[list(clients)]
    for place in range(2):
        alone = np.tensordot(weights, np.stack([np.asarray(reply.value[place], float) for reply in replies]), 1)
        np.testing.assert_allclose(found.values[place], alone, rtol=1e-12)
    assert found.clients == clients
    assert found.counts == {name: sum(getattr(reply, name) for reply in replies) for name in COUNTS}
    assert found.upload_bytes == len(clients) * (3 * 8 + 4)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("method", [Steps(), Forgetful()])
def test_a_sum_is_that_of_the_replies_one_by_one(method):
    found, intake = told(share_of(method), "usual")
    assert_sum(found, one_by_one(method, "usual"), CLIENTS)
    assert intake.events == []
    assert sorted(intake.taken) == list(CLIENTS)


def test_some_of_the_clients_and_batches_that_fit_into_memory(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", {"cpu": 1200})  # two clients at a time
    share, some = share_of(Forgetful()), (1, 6, 7)
    assert share._chunk(4) == 2
    assert_sum(told(share, "usual", clients=some)[0], one_by_one(Forgetful(), "usual", clients=some), some)
    assert_sum(told(share, "usual")[0], one_by_one(Forgetful(), "usual"), CLIENTS)


def test_replies_that_are_wanted_one_by_one_are_computed_together():
    share = share_of(Steps())
    found, intake = told(share, "usual", apart=True)
    assert found is None
    for reply, alone in zip(intake.taken.values(), one_by_one(Steps(), "usual"), strict=True):
        np.testing.assert_allclose(reply.value[0], alone.value[0], rtol=1e-12)
        assert reply[2:] == alone[2:]
    assert share.alone == set()


def test_a_reply_that_is_not_finite_is_left_out_and_its_client_named():
    share = share_of(Steps())
    found, intake = told(share, "not_finite")
    rest = tuple(i for i in CLIENTS if i != 4)
    assert_sum(found, one_by_one(Steps(), "usual", clients=rest), rest)
    assert [(event.client, event.kind, event.detail) for event in intake.events] == [
        (4, "not finite", "found nan in 3 of 3 numbers")
    ]
    assert sorted(intake.taken) == list(rest)


def test_what_a_reply_was_not_taken_for_is_not_remembered():
    share = share_of(Steps())
    first, _ = told(share, "usual", r=0)
    lost, _ = told(share, "usual", r=1, accepted=(0, 0))
    again, _ = told(share, "usual", r=1, accepted=(0, 0))
    np.testing.assert_array_equal(lost.values[0], again.values[0])
    later, _ = told(share, "usual", r=2, accepted=(1, 0))
    alone = share_of(Steps())
    for r, accepted, found in ((0, None, first), (1, (0, 0), again), (2, (1, 0), later)):
        message = Message("usual", "", (r, 0), 0, (np.arange(3.0),))
        answers = [alone.node(i).answer(encode(message), encode_own(message, i, accepted)) for i in CLIENTS]
        assert_sum(found, [decode_reply(answer, alone.types).reply for answer in answers], CLIENTS)


def test_a_step_that_cannot_be_batched_is_run_client_by_client():
    share = share_of(Forgetful())
    found, intake = told(share, "not_batched")
    assert found is None
    assert sorted(intake.taken) == list(CLIENTS)
    np.testing.assert_array_equal(intake.taken[3].value[0], np.arange(3.0) + 4)
    assert share.alone == {("not_batched", "")}


def test_an_error_is_told_by_each_client():
    _, intake = told(share_of(Forgetful()), "raising")
    assert [(event.client, event.kind) for event in intake.events] == [(i, "raised") for i in CLIENTS]
    assert "no solution" in intake.events[0].detail
