"""Messages as bytes: what goes in comes out, and damaged bytes are refused by the wire's own error alone."""

import contextlib
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedrzo as fz
from fedrzo.engines.messages.codec import (
    Keep,
    Message,
    decode,
    decode_reply,
    encode,
    encode_error,
    encode_own,
    encode_reply,
    find_step,
    name_of,
)
from fedrzo.engines.messages.wire import WireError, named_tuples, pack, unpack
from fedrzo.federation.catch_up import Missed
from fedrzo.federation.directions import VERSION


class Pair(NamedTuple):
    one: Any
    other: Any


TYPES = {"Pair": Pair}
KINDS = st.sampled_from([np.float32, np.float64, np.int8, np.int32, np.int64, np.uint32, np.bool_, np.dtype(">f8")])
ARRAYS = KINDS.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)))
TREES = st.recursive(
    ARRAYS | st.none(),
    lambda trees: (
        st.lists(trees, max_size=3)
        | st.lists(trees, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), trees, max_size=3)
        | st.builds(Pair, trees, trees)
    ),
    max_leaves=6,
)


def assert_equal(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (a.shape, a.dtype.newbyteorder("=")) == (b.shape, b.dtype.newbyteorder("="))
        assert a.astype(a.dtype.newbyteorder("<")).tobytes() == b.astype(b.dtype.newbyteorder("<")).tobytes()


@given(TREES, st.dictionaries(st.sampled_from("abc"), st.integers() | st.text() | st.none()))
@settings(deadline=None)
def test_any_tree_of_arrays_comes_back(tree, header):
    back, found = unpack(pack(header, tree), TYPES)
    assert back == header
    assert_equal(found, tree)


PATHS = st.lists(st.integers(0, 2**31), min_size=1, max_size=5).map(tuple)


@given(st.lists(TREES, max_size=3).map(tuple), PATHS, st.none() | PATHS, st.none() | ARRAYS, st.integers(0, 99))
@settings(deadline=None)
def test_any_message_comes_back(arrays, path, accepted, points, iteration):
    keep = None if points is None else Keep("lower.", path, points)
    message = Message("lower.steps", "lower", path, iteration, arrays, keep)
    found = decode(encode(message), encode_own(message, 1, accepted), TYPES)
    assert found._replace(arrays=(), keep=None) == message._replace(arrays=(), keep=None, accepted=accepted)
    assert_equal(found.arrays, arrays)
    assert (found.keep is None) == (keep is None)
    if keep is not None:
        assert found.keep[:2] == keep[:2]
        assert_equal(found.keep.points, points)


@pytest.mark.parametrize("first", [3, 5, 0])
def test_each_client_is_sent_what_it_missed(first):
    """Records of the rounds since `first`, or x itself where more rounds than are on record were missed."""
    rows = np.arange(8.0).reshape(4, 2)
    missed = Missed(rows, np.arange(100.0), np.array([9, first]), np.int32(6))
    message = Message("steps", "", (6, 0), 0, (np.ones(2), missed))
    found = decode(encode(message), encode_own(message, 1, None), {}).arrays[1]
    renewed = 6 - first > 4
    assert bool(found.renewed) == renewed
    start = jnp.full(100, -1.0)
    replayed = found.catch_up(start, lambda x, record, r: x.at[r].set(record[0]))
    expected = np.arange(100.0) if renewed else np.where(np.isin(np.arange(100), range(first, 6)), 0, -1.0)
    if not renewed:
        expected[first:6] = rows[np.arange(first, 6) % 4, 0]
    np.testing.assert_array_equal(replayed, expected)


@given(TREES, PATHS, st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_any_reply_comes_back(value, path, count):
    answer = decode_reply(encode_reply(path, fz.Reply(value, evaluations=np.uint32(count), steps=3)), TYPES)
    assert (answer.path, answer.error) == (path, None)
    assert (answer.reply.evaluations, answer.reply.gradients, answer.reply.steps) == (count, 0, 3)
    assert_equal(answer.reply.value, value)


def test_an_error_travels_as_its_first_line():
    answer = decode_reply(encode_error((4, 1), KeyError("no licence\nat line 7")), {})
    assert answer == ((4, 1), None, "KeyError: 'no licence\\nat line 7'")
    answer = decode_reply(encode_error((), ValueError("first\nsecond" + "x" * 9999)), {})
    assert answer == ((), None, "ValueError: first")


def payloads():
    return [
        encode_reply((3, 0), fz.Reply({"x": np.arange(6.0), "n": (np.int32(3), None)}, evaluations=7)),
        encode_error((3, 0), RuntimeError("gone")),
    ]


@given(st.sampled_from(payloads()), st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_replies_are_refused_or_read_and_nothing_else(payload, data):
    """Bytes flipped, cut off, repeated or put in between."""
    at = data.draw(st.integers(0, len(payload)))
    piece = data.draw(st.binary(max_size=8))
    damaged = data.draw(
        st.sampled_from([payload[:at], payload[:at] + piece + payload[at:], payload[:at] + piece + payload[at + len(piece) :]])
    )
    for read in (decode_reply, unpack):
        with contextlib.suppress(WireError):
            read(damaged, TYPES)


def forged(header: Any, rest: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + rest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["<f8", "O", "V0", "S3"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["tree", "arrays", "path", "list", "tuple", "dict", "name", "error"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, JSON, st.binary(max_size=32))
@example(0, [["<f8", [0, 10**30]]], [0], b"")
@example(0, [["<f8", [10**30, 10**30]]], [0], b"")
@example(0, [[None, [1]]], [0], b"12345678")
@example(0, [["O", [1]]], [0], b"12345678")
@example(0, [[",", [0]]], [0], b"")
@example(0, [[["<f8"], [0]]], [0], b"")
@example({"tuple": [0, 0, 0], "name": "Pair"}, [["<f8", []]], [0], b"12345678")
@example(-1, [["<f8", []]], [0], b"12345678")
@example(0, [["<f8", [1]]], [True], b"12345678")
@settings(deadline=None, max_examples=300)
def test_forged_replies_are_refused_or_read_and_nothing_else(tree, arrays, path, rest):
    for header in (
        tree,
        {
            "tree": tree,
            "arrays": arrays,
            "path": path,
            "evaluations": 0,
            "gradients": 0,
            "steps": 0,
            "directions": VERSION,
        },
    ):
        with contextlib.suppress(WireError):
            answer = decode_reply(forged(header, rest), TYPES)
            assert all(type(i) is int for i in answer.path)
            assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(answer.reply and answer.reply.value))


def test_a_deep_header_and_a_false_length_are_refused():
    deep = b'{"tree": ' + b'{"list": [' * 20_000 + b"]}" * 20_000 + b', "arrays": []}'
    for payload in (b"", b"\x05", (2**31).to_bytes(4, "little") + b"{}", len(deep).to_bytes(4, "little") + deep):
        with pytest.raises(WireError):
            unpack(payload)


@pytest.mark.parametrize("count", [-1, 2**32, 1.5, "3", None, True])
def test_counts_that_cannot_be_are_refused(count):
    header = {"path": [0], "tree": None, "arrays": [], "evaluations": count, "gradients": 0, "steps": 0}
    header["directions"] = VERSION
    with pytest.raises(WireError, match="evaluations"):
        decode_reply(forged(header), {})


METHOD = fz.FedRZObl(0.1, 0.1, 2, lower=fz.LocalSGD(batch_size="full", rounds=2))


def test_steps_are_named_by_where_they_are_found_and_nothing_else_can_be_named():
    assert name_of(METHOD, METHOD.lower) == "lower."
    assert find_step(METHOD, "lower.client_steps") == (METHOD.lower, "client_steps")
    assert "State" in named_tuples(METHOD)
    for step in ("__class__", "_private", "lower.__init__", "upper.client_steps", "stepsize.real", "no_such_step"):
        with pytest.raises(WireError, match="step: found"):
            find_step(METHOD, step)
