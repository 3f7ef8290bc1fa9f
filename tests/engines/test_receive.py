"""What the server takes: each way in which a reply can be wrong, at the function that every engine receives by."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from test_messages import TREES

import fedrzo as fz
from fedrzo.engines.base import Event
from fedrzo.engines.messages.codec import Message, encode_error, encode_reply
from fedrzo.engines.messages.receive import FederationError, Intake, Rules

PATH = (4, 0)
EXPECTED = (jax.ShapeDtypeStruct((3,), np.float64), jax.ShapeDtypeStruct((), np.int32))


def good(scale=1.0):
    return np.arange(1.0, 4.0) * scale, np.int32(2)


def intake(clients=4, **rules):
    return Intake(Message("steps", "", PATH, 0, ()), range(clients), EXPECTED, {}, Rules(**rules))


def reply(value, path=PATH):
    return encode_reply(path, fz.Reply(value))


WRONG = {
    "nan": ((np.array([1.0, np.nan, 3.0]), np.int32(2)), "not finite", "found nan in 1 of 3 numbers"),
    "infinity": ((np.array([-np.inf, np.inf, 3.0]), np.int32(2)), "not finite", "found -inf in 2 of 3 numbers"),
    "shape": ((np.zeros((3, 1)), np.int32(2)), "shape", r"found the shape (3, 1), wanted (3,)"),
    "rank": ((np.zeros(3), np.zeros(1, np.int32)), "shape", r"found the shape (1,), wanted ()"),
    "dtype": ((np.zeros(3, np.float32), np.int32(2)), "dtype", "found the type float32, wanted float64"),
    "integer": ((np.zeros(3), np.int64(2)), "dtype", "found the type int64, wanted int32"),
    "structure": ([np.zeros(3), np.int32(2)], "shape", ""),
    "missing": ((np.zeros(3),), "shape", ""),
    "nothing": (None, "shape", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reply_is_refused_named_and_not_averaged(name):
    value, kind, detail = WRONG[name]
    desk = intake(3)
    desk.receive(0, reply(good()))
    desk.receive(1, reply(value))
    desk.receive(2, reply(good()))
    assert not desk.waiting
    assert [i for i, _ in desk.close()] == [0, 2]
    [event] = desk.events
    assert event[:3] == (4, 1, kind)
    assert event.detail.startswith(detail)


@given(TREES)
@settings(deadline=None)
def test_whatever_arrives_nothing_else_is_raised(tree):
    desk = intake(2)
    desk.receive(0, reply(tree))
    desk.receive(1, reply(good()))
    assert [i for i, _ in desk.close()] == [1]
    assert len(desk.events) == 1


def test_good_replies_are_taken_by_client_with_their_bytes_counted():
    desk = intake(3)
    payloads = {i: reply(good(i + 1)) for i in (2, 0, 1)}
    for i, payload in payloads.items():
        desk.receive(i, payload)
    answered = desk.close()
    assert [i for i, _ in answered] == [0, 1, 2]
    for i, found in answered:
        np.testing.assert_array_equal(found.value[0], good(i + 1)[0])
    assert desk.events == []
    assert desk.bytes == sum(map(len, payloads.values()))


def test_a_second_reply_is_refused_and_the_first_stands():
    desk = intake(2)
    desk.receive(0, reply(good(1)))
    desk.receive(0, reply(good(1000)))
    desk.receive(1, reply(good(1)))
    assert [event[:3] for event in desk.events] == [(4, 0, "duplicate")]
    assert [float(found.value[0][0]) for _, found in desk.close()] == [1.0, 1.0]


def test_who_was_refused_cannot_try_again():
    desk = intake(2)
    desk.receive(0, reply(WRONG["nan"][0]))
    desk.receive(0, reply(good()))
    desk.receive(1, reply(good()))
    assert [i for i, _ in desk.close()] == [1]
    assert [event.kind for event in desk.events] == ["not finite", "duplicate"]


def test_nobody_answers_who_was_not_asked():
    desk = intake(2)
    for i in (0, 1, 7):
        desk.receive(i, reply(good()))
    assert [i for i, _ in desk.close()] == [0, 1]
    assert [event[1:3] for event in desk.events] == [(7, "duplicate")]


@pytest.mark.parametrize("path", [(3, 0), (4, 1), (4,), (4, 0, 0), (5, 0)])
def test_a_reply_to_another_message_is_late_and_its_sender_still_waited_for(path):
    desk = intake(1)
    desk.receive(0, reply(good(5), path))
    desk.receive(0, encode_error((3, 0), RuntimeError("long ago")))
    assert desk.waiting == {0}
    desk.receive(0, reply(good(1)))
    [(_, found)] = desk.close()
    assert found.value[0][0] == 1.0
    assert [event.kind for event in desk.events] == ["late", "late"]


@pytest.mark.parametrize("payload", [b"", b"\x00" * 3, b"\xff" * 64, reply(good())[:-1], reply(good()) + b"\x00"])
def test_bytes_that_cannot_be_read_are_refused(payload):
    desk = intake(2)
    desk.receive(0, payload)
    desk.receive(1, reply(good()))
    assert [i for i, _ in desk.close()] == [1]
    assert [event[:3] for event in desk.events] == [(4, 0, "malformed")]


@pytest.mark.parametrize("path", [PATH, ()])
def test_a_client_that_raises_is_left_out(path):
    desk = intake(2)
    desk.receive(0, encode_error(path, ZeroDivisionError("division by zero")))
    desk.receive(1, reply(good()))
    assert desk.close()[0][0] == 1
    assert desk.events == [Event(4, 0, "raised", "ZeroDivisionError: division by zero")]


def test_a_reply_far_larger_than_the_others_is_refused_where_asked_for():
    for ratio, left in ((None, [0, 1, 2, 3]), (100.0, [0, 1, 3])):
        desk = intake(4, max_reply_ratio=ratio)
        for i, scale in enumerate((1.0, 2.0, 300.0, 1.5)):
            desk.receive(i, reply(good(scale)))
        assert [i for i, _ in desk.close()] == left
    assert [event[:3] for event in desk.events] == [(4, 2, "too large")]


def test_two_replies_cannot_tell_which_is_too_large():
    desk = intake(2, max_reply_ratio=2.0)
    desk.receive(0, reply(good(1)))
    desk.receive(1, reply(good(1e6)))
    assert len(desk.close()) == 2


def test_zero_is_a_reply():
    """A median of zero must not refuse those who did not move either."""
    desk = intake(3, max_reply_ratio=2.0)
    for i in range(3):
        desk.receive(i, reply((np.zeros(3), np.int32(0))))
    assert len(desk.close()) == 3


def test_fewer_than_min_clients_stop_the_run_and_say_who_and_why():
    desk = intake(4, min_clients=3)
    desk.receive(0, reply(good()))
    desk.receive(1, reply(WRONG["nan"][0]))
    desk.fail(2, "killed", "its actor died")
    desk.receive(3, reply(good()))
    line = (
        r"^round 4: 2 of 4 clients answered, min_clients is 3: client 1: not finite \(found nan in 1 of 3 numbers\); client 2: "
        r"killed \(its actor died\); bring clients back, then go on with resume=True where a checkpoint was kept$"
    )
    with pytest.raises(FederationError, match=line):
        desk.close()


def test_outliers_do_not_count_as_answers():
    desk = intake(3, min_clients=3, max_reply_ratio=10.0)
    for i, scale in enumerate((1.0, 1.0, 1e9)):
        desk.receive(i, reply(good(scale)))
    with pytest.raises(FederationError, match=r"2 of 3 clients answered.*client 2: too large"):
        desk.close()


def test_a_cohort_smaller_than_min_clients_must_be_complete():
    desk = intake(2, min_clients=5)
    desk.receive(0, reply(good()))
    desk.receive(1, reply(good()))
    assert len(desk.close()) == 2


def test_all_who_are_silent_are_given_up():
    desk = intake(3)
    desk.receive(1, reply(good()))
    desk.give_up("timeout", "no answer within 2 s")
    assert [event[1:3] for event in desk.events] == [(0, "timeout"), (2, "timeout")]
    assert [i for i, _ in desk.close()] == [1]
    silent = intake(1)
    silent.give_up("timeout", "no answer within 2 s")
    with pytest.raises(FederationError, match="0 of 1 clients answered"):
        silent.close()
