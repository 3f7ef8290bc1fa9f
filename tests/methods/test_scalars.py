"""Scalars instead of vectors: the same iterates for fewer bytes, and what happens where scalars do not do."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
import quadratics
from conformance import Case, suite
from fedrzo import zoo
from fedrzo.engines.loop import LoopSession
from fedrzo.engines.messages.node import Memory
from fedrzo.engines.simulation import rounds as simulation
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots
from fedrzo.methods import by_scalars
from fedrzo.methods.by_scalars import ByScalars
from fedrzo.methods.scalar_plan import RoundRecord
from fedrzo.zoo import toys
from halved import halved

H, DIM, CLIENTS = 4, 40, 3
NN = fz.FedRZOnn(0.001, 0.1, H, 2)
ROW = 8 + CLIENTS * (4 + 8 + H * 8) + 4  # a record: key, ids, weights, slopes, checksum


def sending(method, how="scalars"):
    return dataclasses.replace(method, communication=how)


def quadratic(constraint=None, dim=DIM, clients=CLIENTS, dtype=np.float64, **options):
    plain = toys.quadratic(clients=clients, dim=dim)
    return fz.Nonsmooth(plain.loss_fn, plain.data, np.zeros(dim, dtype), constraint, **options)


def flat(result):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.x)])


def run(method, problem, rounds=10, **options):
    return fz.run(method, problem, rounds, eval_every=rounds, progress=False, **options)


def with_box(wrap):
    plain = toys.quadratic(clients=4, dim=DIM)
    return fz.Nonsmooth(wrap(plain.loss_fn), plain.data, np.zeros(DIM), fz.sets.Public(fz.sets.Box(-5.0, 5.0)))


test_conformance = suite(
    Case(
        method=fz.FedRZOnn(0.01, 0.1, 2, 2, communication="scalars"),
        problem=with_box,
        numpy_loss=lambda x, batch: 0.5 * np.mean(np.sum((x - batch) ** 2, axis=-1)),
        rounds=250,
        optimum=0.5 * float(np.mean(np.var(np.asarray(toys.quadratic(4, DIM).data.flat), axis=0)) * DIM),
        changes={"stepsize": 0.005, "smoothing": 1e6},  # rounding tells radii apart on a quadratic
    )
)


def cournot():
    plain = zoo.make("cournot", followers=3, scenarios=6)
    [own] = plain.sets.groups
    return fz.TwoStage(
        plain.loss_fn, plain.map_fn, plain.data, plain.layout.unravel(plain.x0), plain.lower_layout.unravel(plain.y0),
        fz.sets.Public(own), lower_constraint=plain.lower_set, modulus=plain.modulus, smoothness=plain.smoothness,
    )  # fmt: skip


CASES = {
    "nn": (NN, quadratic),
    "nn, several directions": (fz.FedRZOnn(0.001, 0.1, 2, 2, directions=3), quadratic),
    "nn, public sets": (NN, lambda: quadratic(fz.sets.Public(fz.sets.Box(-0.1, 0.1)))),
    "nn, a set each": (
        fz.FedRZOnn(0.01, 0.1, 2, 2),
        lambda: quadratic([fz.sets.Public(fz.sets.Box(-0.1, 1.0)), fz.sets.Reals(), fz.sets.Public(fz.sets.Ball(0.0, 1.0))]),
    ),
    "nn, by samples": (NN, lambda: quadratic(weights="samples")),
    "bl": (fz.FedRZObl(0.01, 0.1, 3, 4), lambda: zoo.make("direct")),
    # A fixed number of lower steps: how many it takes to a tolerance depends on rounding.
    "2s": (fz.FedRZO2s(0.05, 0.5, 2, 2, fz.vi.Projection(steps=300)), cournot),
}


OFTEN = ("nn",)
MARKED = [
    pytest.param(*case, id=name, marks=() if name in OFTEN else pytest.mark.slow("compiles a method twice"))
    for name, case in CASES.items()
]


@pytest.mark.parametrize(("method", "make"), MARKED)
@pytest.mark.slow("long runs")
def test_two_hundred_rounds_are_those_of_vectors(method, make):
    problem = make()
    vectors, scalars = run(method, problem, 200), run(sending(method), problem, 200)
    np.testing.assert_allclose(flat(scalars), flat(vectors), rtol=0, atol=1e-9)
    assert flat(vectors).std() > 0 or flat(vectors).size == 1
    for column in ("evaluations", "gradients", "lower_steps", "lower_rounds"):
        assert scalars.history.last[column] == vectors.history.last[column], column


@pytest.mark.parametrize(
    "name",
    [
        "nn",
        *(pytest.param(name, marks=pytest.mark.slow("compiles a method twice")) for name in ("nn, public sets", "bl", "2s")),
    ],
)
def test_the_plain_engine_agrees(name):
    method, make = CASES[name]
    problem = make()
    fast, plain = run(sending(method), problem), run(sending(method), problem, engine="loop")
    np.testing.assert_allclose(flat(plain), flat(fast), rtol=0, atol=1e-12)
    for column in ("upload_bytes", "download_bytes", "evaluations", "lower_steps"):
        assert plain.history.last[column] == fast.history.last[column], column


@pytest.mark.slow("compiles a method twice")
def test_two_hundred_rounds_of_the_plain_engine():
    vectors, scalars = run(NN, quadratic(), 200), run(sending(NN), quadratic(), 200, engine="loop")
    np.testing.assert_allclose(flat(scalars), flat(vectors), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("dim", "steps", "directions"),
    [
        (260, 20, 1),
        *(pytest.param(*case, marks=pytest.mark.slow("compiles a method twice")) for case in ((3140, 20, 1), (1000, 5, 3))),
    ],
)
def test_a_replayed_round_in_float32_is_the_clients_own_within_four_ulp(dim, steps, directions):
    problem = quadratic(fz.sets.Public(fz.sets.Box(-0.5, 0.5)), dim, dtype=np.float32)
    method = fz.FedRZOnn(1e-4, 0.01, steps, 2, directions, communication="scalars").for_cohort(problem, CLIENTS)
    x = jnp.asarray(np.random.default_rng(0).normal(size=dim), jnp.float32)
    roots = Roots.of(jax.random.key(1))
    key = jax.random.fold_in(roots.directions, 7)
    method = dataclasses.replace(method, plan=dataclasses.replace(method.plan, kept=0, participants=1))

    @jax.jit
    def own(method, problem, x, i):
        client = Client.of(problem, i, roots, round=jnp.int32(0))
        return method.client_steps(client, jax.random.fold_in(key, i), None, x).value

    for i in range(CLIENTS):
        sent = own(method, problem, x, jnp.int32(i))
        record = RoundRecord(jax.random.key_data(key), jnp.array([i]), jnp.ones(1, jnp.float32), sent.small[None], 0)
        rebuilt = jax.jit(lambda method, record: method.replay(x, record, 0))(method, record)
        ulp = np.spacing(np.abs(np.asarray(sent.large)))
        assert np.max(np.abs(np.asarray(rebuilt) - np.asarray(sent.large)) / ulp) <= 4


def test_upload_is_h_numbers_and_download_a_record():
    problem, rounds = quadratic(), 10
    last = run(sending(NN), problem, rounds).history.last
    assert last["upload_bytes"] == rounds * CLIENTS * H * 8
    assert last["download_bytes"] == (rounds - 1) * CLIENTS * ROW  # at the start everybody has x0
    assert ROW < DIM * 8


@pytest.mark.slow("compiles a method twice")
def test_eighty_bytes_for_twenty_steps_in_float32():
    problem = quadratic(dim=3140, clients=5, dtype=np.float32)
    last = run(fz.FedRZOnn(1e-4, 0.1, 20, 2, communication="scalars"), problem, 3).history.last
    assert last["upload_bytes"] == 3 * 5 * 80


def test_where_records_are_no_smaller_x_travels_down():
    problem = quadratic(dim=10)
    assert sending(NN).for_cohort(problem, CLIENTS).plan.kept == 0
    last = run(sending(NN), problem).history.last
    assert last["download_bytes"] == 10 * CLIENTS * 10 * 8


@pytest.mark.slow("compiles a method twice")
def test_fedrzo_bl_sends_one_number():
    method, make = CASES["bl"]
    problem = make()
    vectors, scalars = (run(way, problem, 4).history.last for way in (method, sending(method)))
    saved = vectors["upload_bytes"] - scalars["upload_bytes"]
    assert saved == 4 * problem.clients * (problem.dim - 1) * 8
    assert vectors["download_bytes"] == scalars["download_bytes"]  # x and a key: a record would be longer than x


@pytest.mark.slow("compiles a method twice")
@pytest.mark.parametrize(("constraint", "steps", "size"), [(None, 1, 1), (fz.sets.Public(fz.sets.Box(-0.1, 0.1)), 2, None)])
def test_clients_of_fedrzo_bl_rebuild_where_the_lower_level_is_solved(constraint, steps, size):
    problem, method = halved(CLIENTS, DIM, constraint), fz.FedRZObl(0.01, 0.1, 2, 4, lower_rounds=2)
    vectors, fast = (run(way, problem, 12, clients_per_round=size) for way in (method, sending(method)))
    np.testing.assert_allclose(flat(fast), flat(vectors), rtol=0, atol=1e-12)
    assert np.abs(flat(fast)).max() > 1e-3
    plain = run(sending(method), problem, 12, clients_per_round=size, engine="loop")
    np.testing.assert_allclose(flat(plain), flat(fast), rtol=0, atol=1e-12)
    assert plain.history.last["download_bytes"] == fast.history.last["download_bytes"]
    assert plain.history.last["upload_bytes"] == fast.history.last["upload_bytes"]
    saved = vectors.history.last["download_bytes"] - fast.history.last["download_bytes"]
    x, row = DIM * 8, 8 + (size or CLIENTS) * (4 + 8 + 8 * steps) + 4
    if size is None:
        assert saved == CLIENTS * (12 * x - 11 * row)
    else:  # who is not in a round's cohort is sent all since it last was
        assert saved == CLIENTS * 12 * x - sum(own_downloads(problem, 12, row))


def own_downloads(problem, rounds, row):
    """What each client is sent to catch up, in each round of cohorts of one."""
    with problem.precision():
        first = [0] * CLIENTS
        for r in range(rounds):
            yield from (min((r - first[i]) * row, DIM * 8) for i in range(CLIENTS))
            first[int(simulation.cohort(problem, jax.random.key(0), r, 1)[0][0])] = r


@pytest.mark.slow("compiles a method twice")
def test_fedrzo_bl_without_sets_sends_one_number_whatever_its_local_steps():
    problem = zoo.make("direct")
    method = fz.FedRZObl(0.01, 0.1, lambda r: 1 + r % 3, 4)
    vectors, scalars = (run(way, problem, 6) for way in (method, sending(method)))
    np.testing.assert_allclose(flat(scalars), flat(vectors), rtol=0, atol=1e-12)
    assert scalars.history.last["evaluations"] == vectors.history.last["evaluations"]
    saved = vectors.history.last["upload_bytes"] - scalars.history.last["upload_bytes"]
    assert saved == 6 * problem.clients * (problem.dim - 1) * 8
    # As many steps as x has entries, or more: one number is still fewer.
    many = fz.FedRZObl(0.01, 0.1, problem.dim + 1, communication="auto").prepare(problem)
    assert many.for_cohort(problem, problem.clients).plan.steps == 1


def test_clients_that_were_away_catch_up():
    """Cohorts of one: a client is sent the records of all rounds that it missed, or x where that is less."""
    problem = quadratic()
    vectors, scalars_ = (run(way, problem, 60, clients_per_round=1) for way in (NN, sending(NN)))
    np.testing.assert_allclose(flat(scalars_), flat(vectors), rtol=0, atol=1e-9)
    row = 8 + 4 + 8 + H * 8 + 4
    with problem.precision():
        seen, expected = [0] * CLIENTS, 0
        for r in range(60):
            i = int(simulation.cohort(problem, jax.random.key(0), r, 1)[0][0])
            expected += min((r - seen[i]) * row, DIM * 8)
            seen[i] = r
    assert scalars_.history.last["download_bytes"] == expected


@pytest.mark.slow("compiles a method twice")
def test_private_sets_are_refused_or_sent_as_vectors():
    box = fz.sets.Box(-0.1, 0.1)
    problem = quadratic([box, fz.sets.Reals(), fz.sets.Public(box)])
    with pytest.raises(fz.InputError, match="the sets of clients 0 are private"):
        run(sending(NN), problem)
    with pytest.warns(UserWarning, match="clients 0 are private; these clients send vectors") as seen:
        mixed = run(sending(NN, "auto"), problem)
    assert len([w for w in seen if "private" in str(w.message)]) == 1
    np.testing.assert_allclose(flat(mixed), flat(run(NN, problem)), rtol=0, atol=1e-12)
    assert mixed.history.last["upload_bytes"] == 10 * 8 * (DIM + 2 * H)
    assert mixed.history.last["download_bytes"] == 10 * 8 * DIM * CLIENTS  # what client 0 did, no record could tell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = run(sending(NN, "auto"), problem, engine="loop")
    np.testing.assert_allclose(flat(plain), flat(mixed), rtol=0, atol=1e-12)
    assert plain.history.last["upload_bytes"] == mixed.history.last["upload_bytes"]


def test_a_private_set_is_no_part_of_the_plan():
    """A method goes to all clients; what is private to one of them must not go along."""
    private, public = fz.sets.Box(-0.123, 0.456), fz.sets.Ball(0.0, 0.5)
    x = np.full(DIM, 9.0)
    for others in ([fz.sets.Public(public), fz.sets.Reals()], [fz.sets.Public(private), fz.sets.Reals()]):
        with pytest.warns(UserWarning, match="clients 0 are private"):
            plan = sending(NN, "auto").for_cohort(quadratic([private, *others]), CLIENTS).plan
        np.testing.assert_array_equal(plan.project(0, x), x)
        np.testing.assert_allclose(plan.project(1, x), others[0].set.project(x))
        np.testing.assert_array_equal(plan.project(2, x), x)
    with pytest.warns(UserWarning, match="clients 0, 1 are private"):
        plan = sending(NN, "auto").for_cohort(quadratic([private, public, fz.sets.Reals()]), CLIENTS).plan
    assert plan.sets is None


def test_auto_takes_what_is_less():
    assert not isinstance(sending(NN, "auto").for_cohort(quadratic(dim=3), CLIENTS), ByScalars)
    assert isinstance(sending(NN, "auto").for_cohort(quadratic(), CLIENTS), ByScalars)
    assert not isinstance(sending(fz.FedRZOnn(0.1, 0.1, lambda r: r + 1), "auto").for_cohort(quadratic(), CLIENTS), ByScalars)
    with pytest.warns(UserWarning, match="private"):
        assert not isinstance(sending(NN, "auto").for_cohort(quadratic(fz.sets.Box(-1, 1)), CLIENTS), ByScalars)


@pytest.mark.parametrize("where", [0, 1])
def test_a_checksum_brings_back_a_client_that_lost_track(where, monkeypatch):
    """A client whose copy is damaged in round 45 goes astray until round 50, when all are sent the average."""
    problem, advance = quadratic(), LoopSession.advance
    steps = []

    def watched(self, rounds):
        for _ in range(rounds):
            if self.round == 45:
                node = self.nodes[where]
                x, lost, _ = node.memory[""].newest.value
                node.memory[""] = Memory(by_scalars.Copy(x + 1e-3, lost))
                self.accepted[""].pop(where)
            before = np.asarray(self.state.x)
            advance(self, 1)
            steps.append(max(np.abs(node.memory[""].newest.value.x - before).max() for node in self.nodes))

    monkeypatch.setattr(LoopSession, "advance", watched)
    result = run(sending(NN), problem, 53, engine="loop")
    assert max(steps[:45]) == 0
    assert min(steps[45:51]) > 5e-4  # rounds 45 to 50; the checksum of round 50 tells
    assert max(steps[51:]) == 0
    extra = result.history.last["upload_bytes"] - 53 * CLIENTS * H * 8
    assert extra == (DIM - H) * 8  # its x, once


@pytest.mark.slow("compiles a method twice")
def test_a_checksum_brings_back_a_client_of_fedrzo_bl(monkeypatch):
    monkeypatch.setattr(by_scalars, "CHECK", 4)
    problem, advance = halved(CLIENTS, DIM), LoopSession.advance
    apart = []

    def watched(self, rounds):
        for _ in range(rounds):
            if self.round == 6:
                node = self.nodes[1]
                x, lost, _ = node.memory[""].newest.value
                node.memory[""] = Memory(by_scalars.Copy(x + 1e-3, lost))
                self.accepted[""].pop(1)
            before = np.asarray(self.state.x)
            advance(self, 1)
            apart.append(max(np.abs(node.memory[""].newest.value[0] - before).max() for node in self.nodes))

    monkeypatch.setattr(LoopSession, "advance", watched)
    # A batch size of its own: steps that other tests had compiled know another CHECK.
    result = run(sending(fz.FedRZObl(0.01, 0.1, 2, 3, lower_rounds=2)), problem, 11, engine="loop")
    assert max(apart[:6]) == 0
    assert min(apart[6:9]) > 5e-4  # rounds 6 to 8; the checksum of round 8 tells
    assert max(apart[9:]) == 0
    assert result.history.last["loss"] < result.history["loss"][0]


def test_bad_input():
    with pytest.raises(fz.InputError, match="communication: found 'numbers'"):
        fz.FedRZOnn(0.1, 0.1, communication="numbers")
    with pytest.raises(fz.InputError, match="local_steps: found a function; scalars need a whole number"):
        run(fz.FedRZOnn(0.1, 0.1, lambda r: r + 1, communication="scalars"), quadratic())
    with pytest.raises(fz.InputError, match="lower: found communication 'scalars'"):
        fz.FedRZObl(0.1, 0.1, lower=fz.FedRZOnn(0.1, 0.1, communication="scalars"), lower_rounds=2, closing=False)
    with pytest.raises(fz.InputError, match="constraint: found str"):
        quadratic(fz.sets.Public("box"))


@pytest.mark.parametrize("kind", [fz.FedRZOnn, fz.FedRZObl, fz.FedRZO2s])
def test_what_a_method_answers_for_itself_it_answers_when_it_is_wrapped(kind):
    """The wrapper is a method, too: an answer of `Method` must not stand in for the wrapped method's."""
    before = {"for_cohort", "prepare"}  # a method is prepared, and then wrapped
    own = {name for name in dir(fz.Method) if name[0] != "_" and getattr(kind, name) is not getattr(fz.Method, name)}
    assert own - before <= set(vars(by_scalars.ByScalars))
    assert "longest_step" in own


@pytest.mark.slow("compiles FedRZO_bl once more")
def test_a_lower_level_that_is_not_solved_is_warned_of_by_scalars_too():
    lower = fz.LocalSGD(1e-4, batch_size="full", rounds=1)
    method = fz.FedRZObl(0.01, 1e-3, 1, lower=lower, communication="scalars")
    with pytest.warns(UserWarning, match="lower_error: y is known to"):
        fz.run(method, quadratics.quadratic(), 12, progress=False)
