"""What a client missed: records, or what they lead to, whichever is less."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedrzo.federation.catch_up import Missed, common_bytes, for_client, own_bytes

KEPT = 4


def missed(first, stop, kept=KEPT, fresh=100):
    """Records that say 1, 10, 100 ... to add in rounds 0, 1, 2 ...; `fresh` is their sum, in so many copies."""
    rows = np.zeros((kept, 1))
    for r in range(stop):
        rows[r % kept] = 10.0**r
    return Missed({"row": rows}, reached(stop, fresh), first, stop)


def over_the_wire(part):
    return Missed.unpacked(*part.packed())


def replay(x, record, r):
    del r
    return x + record["row"]


def reached(rounds, fresh=100):
    return np.full(fresh, sum((10.0**r for r in range(rounds)), start=0.0))


@pytest.mark.parametrize(
    ("first", "stop", "renewed", "size"),
    [
        (0, 0, False, 0),  # the first round
        (3, 3, False, 0),  # nothing missed
        (2, 3, False, 8),
        (3, 7, False, 32),  # as many as are kept, around the end of the ring
        (2, 7, True, 800),  # one more: its record is overwritten
        (0, 9, True, 800),
    ],
)
def test_a_client_gets_what_it_missed_and_arrives_where_all_are(first, stop, renewed, size):
    with jax.enable_x64(True):
        part = missed(np.array([9, first]), stop).of(1)
        assert (bool(part.renewed), int(part.bytes)) == (renewed, size)
        sent = part.sent()
        assert sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(sent)) == size
        if not renewed:
            np.testing.assert_array_equal(sent["row"].ravel(), [10.0**r for r in range(first, stop)])
        for view in (part, over_the_wire(part)):
            found = jax.jit(lambda view: view.catch_up(jnp.asarray(reached(first)), replay))(view)
            np.testing.assert_array_equal(found, reached(stop))


def test_what_is_smaller_is_sent():
    """Three records of 8 bytes against 4, 3 or 2 numbers; at equal size, the numbers themselves."""
    with jax.enable_x64(True):
        for fresh, renewed in ((4, False), (3, True), (2, True)):
            part = missed(np.array([1]), 4, fresh=fresh).of(0)
            assert bool(part.renewed) is renewed
            assert int(part.bytes) == min(24, 8 * fresh)


def test_what_was_not_sent_does_not_arrive():
    records = over_the_wire(missed(np.array([5]), 7).of(0))
    np.testing.assert_array_equal(records.rows["row"].ravel(), [0, 1e5, 1e6, 0])  # rounds 5 and 6, in rows 1 and 2
    assert not records.fresh.any()
    renewed = over_the_wire(missed(np.array([1]), 7).of(0))
    assert not renewed.rows["row"].any()
    np.testing.assert_array_equal(renewed.fresh, reached(7))
    nothing = over_the_wire(missed(np.array([7]), 7).of(0))
    assert not nothing.rows["row"].any()
    assert not nothing.fresh.any()


def test_replay_is_told_the_round():
    def note(x, record, r):
        del record
        return x.at[r].set(r)

    with jax.enable_x64(True):
        part = missed(np.array([3]), 6).of(0)
        found = jax.jit(lambda part: part.catch_up(jnp.zeros(100), note))(part)
    np.testing.assert_array_equal(np.flatnonzero(found), [3, 4, 5])
    np.testing.assert_array_equal(found[3:6], [3, 4, 5])


def test_clients_side_by_side_get_their_own_parts():
    with jax.enable_x64(True):
        firsts = np.array([0, 4, 6, 7, 3])
        shared = (np.zeros(5, np.float32), missed(jnp.asarray(firsts), 7))
        ids = jnp.array([4, 1, 0, 3])
        found = jax.vmap(lambda i, old: for_client(shared, i)[1].catch_up(old, replay))(
            ids, jnp.stack([reached(firsts[i]) for i in ids])
        )
        np.testing.assert_array_equal(found, np.stack([reached(7)] * 4))
        assert common_bytes(shared) == 20
        np.testing.assert_array_equal(own_bytes(shared, ids), [32, 24, 800, 0])
        assert own_bytes(shared[:1], ids) == 0
