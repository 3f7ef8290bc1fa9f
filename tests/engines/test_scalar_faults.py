"""Scalars that are wrong on arrival: refused with a line that says why, while the round is completed by the rest."""

import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import zoo
from fedrzo.engines.messages.codec import decode
from fedrzo.engines.messages.node import Node
from fedrzo.engines.messages.receive import FederationError
from fedrzo.engines.messages.session import MessageSession
from fedrzo.engines.messages.wire import pack, unpack
from fedrzo.engines.simulation.rounds import cohort
from fedrzo.federation.catch_up import Either
from fedrzo.federation.directions import VERSION
from fedrzo.federation.protocol import private_key
from fedrzo.methods import by_scalars
from fedrzo.zoo import toys
from halved import halved

H, DIM, CLIENTS, BAD = 4, 40, 3, 1
NN = fz.FedRZOnn(0.001, 0.1, H, 2, communication="scalars")
BL = fz.FedRZObl(0.01, 0.1, 3, 4, communication="scalars")


@pytest.fixture(autouse=True)
def precision():
    """Work in float64, as runs on these problems do."""
    with quadratic().precision():
        yield


def quadratic():
    plain = toys.quadratic(clients=CLIENTS, dim=DIM)
    return fz.Nonsmooth(plain.loss_fn, plain.data, np.zeros(DIM))


class Session(MessageSession):
    """Nodes in this process, whose bytes pass through the hands of `spoil(client, common, answer)`."""

    def __init__(self, method, problem, size=None):
        method = method.prepare(problem).for_cohort(problem, size or problem.clients)
        super().__init__(method, problem, jax.random.key(0), size)
        place = jax.device_put(problem)
        self.nodes = [
            Node(method, place, i, i, self.roots.directions, private_key(self.roots, i)) for i in range(problem.clients)
        ]
        self.spoil_message = self.spoil_answer = lambda client, step, payload: payload
        self.ends = {}  # where each client's own steps led

    def exchange(self, message, ids, intake):
        common, own = self.payloads(message, ids)
        for i in ids:
            sent = self.spoil_message(i, message.step, common)
            if message.step == "client_steps" and sent == common:
                asked = decode(common, own[i], self.types)
                value = self.nodes[i].handle(asked).value
                self.ends[i] = (value if isinstance(value, Either) else value[0]).large
            intake.receive(i, self.spoil_answer(i, message.step, self.nodes[i].answer(sent, own[i])))


def another_version(payload, types, version):
    header, tree = unpack(payload, types)
    return pack({**header, "directions": version}, tree)


def changed(payload, types, change):
    """Return an answer with its part that is small or large replaced by `change` of it."""
    header, value = unpack(payload, types)
    return pack(header, change(value) if isinstance(value, Either) else (change(value[0]), *value[1:]))


def numbers(change):
    return lambda sent: sent._replace(small=change(sent.small))


def one_of(value):
    def put(small):
        small = small.copy()
        small.flat[-1] = value
        return small

    return numbers(put)


FAULTS = {
    "a scalar is missing": (
        numbers(lambda s: s[:-1]), "shape", f"found the shape ({H - 1}, 1), wanted ({H}, 1)",
    ),
    "a scalar comes twice": (
        numbers(lambda s: np.concatenate([s, s[-1:]])), "shape", f"found the shape ({H + 1}, 1), wanted ({H}, 1)",
    ),
    "nan": (one_of(np.nan), "not finite", f"found nan in 1 of {H} numbers"),
    "infinity": (one_of(-np.inf), "not finite", f"found -inf in 1 of {H} numbers"),
    "of another type": (
        numbers(lambda s: s.astype(np.float32)), "dtype", "found the type float32, wanted float64",
    ),
    "both kinds": (
        lambda sent: sent._replace(large=np.zeros(DIM)), "shape",
        "found none or both of two kinds of replies, of which a client sends one",
    ),
    "none of both": (
        lambda sent: Either(None, None, None), "shape",
        "found none or both of two kinds of replies, of which a client sends one",
    ),
    "a vector that is too short": (
        lambda sent: Either(None, np.zeros(DIM - 1), None), "shape", f"found the shape ({DIM - 1},), wanted ({DIM},)",
    ),
    "a vector in place of scalars": (
        lambda sent: Either(np.zeros(DIM), None, None), "shape", f"found the shape ({DIM},), wanted ({H}, 1)",
    ),
}  # fmt: skip


def check_refused(session, kind, detail):
    """Run a round: one event, and the average of those who are left, by where their own steps led."""
    session.advance(1)
    [event] = session.events
    assert event == (0, BAD, kind, detail)
    rest = np.mean([session.ends[i] for i in range(session.problem.clients) if i != BAD], axis=0)
    np.testing.assert_allclose(session.state.x, rest, rtol=0, atol=1e-12)
    assert np.abs(rest - session.ends.get(BAD, 0)).max() > 1e-9  # its part would have been missed


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_reply_is_refused_and_the_round_completed_by_the_rest(name):
    change, kind, detail = FAULTS[name]
    session = Session(NN, quadratic())
    session.spoil_answer = lambda i, step, answer: changed(answer, session.types, change) if i == BAD else answer
    check_refused(session, kind, detail)


def test_a_client_with_another_generator_is_refused_by_name():
    session = Session(NN, quadratic())
    session.spoil_answer = lambda i, step, p: another_version(p, session.types, VERSION + 1) if i == BAD else p
    line = f"directions: the client draws version {VERSION + 1}, the server {VERSION}; install the same fedrzo on both"
    check_refused(session, "malformed", line)


def test_a_client_says_so_when_the_server_has_another_generator():
    session = Session(NN, quadratic())
    session.spoil_message = lambda i, step, p: another_version(p, session.types, VERSION + 1) if i == BAD else p
    line = f"directions: the server draws version {VERSION + 1}, this client {VERSION}; install the same fedrzo on both"
    check_refused(session, "raised", f"WireError: {line}")
    assert BAD not in session.ends  # it did not even begin


def test_a_version_that_is_not_told_is_another():
    session = Session(NN, quadratic())
    session.spoil_answer = lambda i, step, p: another_version(p, session.types, None) if i == BAD else p
    line = f"directions: the client draws version None, the server {VERSION}; install the same fedrzo on both"
    check_refused(session, "malformed", line)


def test_if_all_have_another_generator_the_run_stops():
    session = Session(NN, quadratic())
    session.spoil_answer = lambda i, step, payload: another_version(payload, session.types, 1)
    with pytest.raises(FederationError, match=r"^round 0: 0 of 3 clients answered.*directions: the client draws version 1"):
        session.advance(1)


def test_who_was_refused_catches_up_with_the_rest():
    """A refused round changes what a client remembers back; next time it is sent both records, and is exact again."""
    session = Session(NN, quadratic())
    session.advance(2)
    session.spoil_answer = lambda i, step, p: changed(p, session.types, one_of(np.nan)) if i == BAD else p
    session.advance(1)
    session.spoil_answer = lambda i, step, payload: payload
    before = session.cost.download_bytes
    session.advance(1)
    row = (session.cost.download_bytes - before) // (CLIENTS + 1)  # one record each, and one more for who was refused
    assert (session.cost.download_bytes - before) == (CLIENTS + 1) * row
    began = np.asarray(session.state.x)
    session.advance(1)
    for node in session.nodes:
        np.testing.assert_array_equal(node.memory[""].newest.value.x, began)
    assert [event[:3] for event in session.events] == [(2, BAD, "not finite")]


@pytest.mark.parametrize(
    ("change", "kind", "detail"),
    [
        (one_of(np.inf), "not finite", "found inf in 1 of 1 numbers"),
        (numbers(lambda s: np.repeat(s, 2, axis=0)), "shape", "found the shape (2, 1), wanted (1, 1)"),
    ],
)
def test_the_single_number_of_fedrzo_bl_is_looked_at_too(change, kind, detail):
    session = Session(BL, zoo.make("direct"))
    session.spoil_answer = lambda i, step, p: changed(p, session.types, change) if i == BAD and step == "client_steps" else p
    check_refused(session, kind, detail)


@pytest.mark.slow("a long run of messages")
def test_a_client_that_is_seldom_asked_compares_checksums_too(monkeypatch):
    """Cohorts of one: a client that was away when checksums were due compares them when it is back."""
    every = 10
    monkeypatch.setattr(by_scalars, "CHECK", every)
    session = Session(NN, quadratic(), 1)
    asked = [int(cohort(session.problem, session.key, r, 1)[0][0]) for r in range(40)]
    # Asked in the rounds a and b, with the round in which checksums are due in between, but not so late as to be sent x.
    a, b = next(
        (a, b)
        for a in range(40)
        for b in [next((q for q in range(a + 1, 40) if asked[q] == asked[a]), a)]
        if a // every < b // every and b % every and b - a < session.method.plan.kept
    )
    session.advance(a + 1)
    node = session.nodes[asked[a]]
    [*_, newest] = node.memory[""].versions
    node.memory[""].versions[-1] = newest._replace(value=newest.value._replace(x=newest.value.x + 1e-3))
    session.advance(b - a - 1)
    for extra in (DIM - H, 0):  # its x, once; then all is well
        sent = session.cost.upload_bytes
        session.advance(1)
        assert session.cost.upload_bytes - sent == (H + extra) * 8
    assert session.events == []


def test_a_set_that_the_server_was_not_told_of_makes_its_client_send_x():
    """Public or not: the server plans without sets, so that it could not replay the client's steps."""
    problem = quadratic()
    session = Session(NN, problem)
    own = fz.Nonsmooth(problem.loss_fn, problem.data, np.zeros(DIM), fz.sets.Public(fz.sets.Ball(0.0, 0.001)))
    node = session.nodes[BAD]
    session.nodes[BAD] = Node(session.method, jax.device_put(own), BAD, BAD, node.root, node.private)
    session.advance(1)
    assert session.cost.upload_bytes == (CLIENTS - 1) * H * 8 + DIM * 8
    ends = [session.ends[i] for i in range(CLIENTS)]
    np.testing.assert_allclose(session.state.x, np.mean(ends, axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("lost", ["answers", "messages"])
@pytest.mark.slow("FedRZO_bl by messages")
def test_a_client_of_fedrzo_bl_that_was_unheard_catches_up(lost):
    """Whether or not it rebuilt x in the rounds of which the server heard nothing, it goes on from where the server says."""
    problem = halved(CLIENTS, DIM)
    session, calm = Session(BL, problem), Session(BL, problem)
    assert session.method.plan.kept > 3
    session.advance(2)

    def nothing(i, step, payload):
        return b"" if i == BAD else payload

    if lost == "answers":
        session.spoil_answer = nothing
    else:
        session.spoil_message = nothing
    session.advance(2)
    session.spoil_answer = session.spoil_message = calm.spoil_answer
    sent = session.cost.download_bytes
    before = np.asarray(session.state.x)
    session.advance(1)
    calm.advance(3)
    late = session.cost.download_bytes - sent
    sent = calm.cost.download_bytes
    calm.advance(1)
    row = 8 + CLIENTS * (4 + 8 + 8) + 4
    assert late - (calm.cost.download_bytes - sent) == 2 * row  # three records for it, one for each of the others
    for node in session.nodes:
        np.testing.assert_array_equal(node.memory[""].newest.value[0], before)
