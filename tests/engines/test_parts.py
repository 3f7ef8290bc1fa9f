"""A problem's part for some clients: what their steps compute is what it is within the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.federation.client import Client
from fedrzo.federation.protocol import Roots, private_key

ROOTS = Roots.of(jax.random.key(3))
SETS = [fz.sets.Box(-1.0, 1.0), fz.sets.Ball(np.zeros(2), 0.5), fz.sets.Box(-2.0, 0.2), fz.sets.Reals()]


def rows(*sizes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(size, 2)) for size in sizes]


def loss(x, batch):
    samples = batch[0] if isinstance(batch, tuple) else batch
    return jnp.mean(jnp.abs(samples @ x - 1)) + (jnp.sum(batch[1]) if isinstance(batch, tuple) else 0)


DATA = {
    "unequal": lambda: fz.ClientData(rows(3, 200, 5, 4)),
    "equal": lambda: fz.ClientData(rows(3, 3, 3, 3)),
    "fixed": lambda: fz.ClientData(rows(3, 4, 3, 3), fixed=[np.full(2, float(i)) for i in range(4)]),
    "shared": lambda: fz.ClientData.shared(rows(6)[0], 4),
    "sampler": lambda: fz.Sampler(lambda key, i: jax.random.normal(key, (2,)) + i, 4),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("clients", [(1,), (3, 0), (0, 1, 2, 3)])
def test_a_client_computes_alike_in_a_part(name, clients):
    whole = fz.Nonsmooth(loss, DATA[name](), np.zeros(2), SETS)
    part = whole.part(clients)
    assert part.clients == len(clients)
    x, key = jnp.array([0.8, -1.7]), jax.random.key(1)
    for place, i in enumerate(clients):
        one = Client.of(whole, i, ROOTS)
        other = Client(part, place, i, private_key(ROOTS, i))
        for batch_size in (2, "full") if name != "sampler" else (2,):
            batches = one.sample(key, batch_size), other.sample(key, batch_size)
            assert one.loss(x, batches[0]) == other.loss(x, batches[1])
            assert one.cost(batch_size) == other.cost(batch_size)
        np.testing.assert_array_equal(one.project(x), other.project(x))


def test_a_part_holds_nothing_of_the_others():
    data = rows(3, 5, 4, 2)
    whole = fz.Nonsmooth(loss, fz.ClientData(data), np.zeros(2), SETS, test=np.ones((1, 2)), metrics={"m": loss})
    part = whole.part([1])
    np.testing.assert_array_equal(part.data.flat, data[1])
    assert [type(member).__name__ for member in part.sets.members()] == ["Ball"]
    assert part.test is None
    arrays = sum(np.size(leaf) for leaf in jax.tree.leaves(part))
    assert arrays == 10 + 2 + 2 + 3 + 2 + 1  # samples; offset and size; x0; the ball; its kind and place; a weight


def test_both_levels_of_a_bilevel_problem_are_taken_apart():
    data, below = fz.ClientData(rows(3, 5, 4)), fz.ClientData(rows(2, 3, 6))

    def both(x, y, batch):
        return loss(x, batch) + jnp.sum((y - x) ** 2)

    apart = fz.Bilevel(both, both, data, np.zeros(2), np.zeros(2), lower_data=below).part([2])
    assert (len(apart.data.flat), len(apart.lower_data.flat)) == (4, 6)
    together = fz.Bilevel(both, both, data, np.zeros(2), np.zeros(2)).part([2])
    assert together.lower_data is together.data
