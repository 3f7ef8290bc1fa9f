"""What does not depend on each other's answers travels together: messages are counted, and nothing else changes."""

import inprocess
import numpy as np
import pytest
from test_engine import same_history, simulate

import fedrzo as fz
from fedrzo.engines.base import Session
from fedrzo.engines.flower.engine import FlowerSession
from fedrzo.engines.messages.session import MessageSession
from fedrzo.engines.messages.wire import WireError, joined, pack, split, unpack

SLOW = pytest.mark.slow("a process for every node")


def counted(name, folder, rounds, **changes):
    """Run a problem; return its result, and the parts of each message to client 0 after the first row, in order."""
    grid = inprocess.InProcessGrid(inprocess.silos(name, folder, clients=2))
    messages = {}
    grid.before = lambda kind, number: messages.setdefault(number, []).append(kind)
    result = inprocess.run(name, folder, grid, rounds=rounds, clients=2, **changes)
    parts = [" ".join(kinds) for number, kinds in messages.items() if number % 2 == 0]
    return result, parts[next(i for i, part in enumerate(parts) if "step" in part) :]


def one_by_one(monkeypatch):
    monkeypatch.setattr(FlowerSession, "later", MessageSession.later)
    monkeypatch.setattr(FlowerSession, "look_later", Session.look_later)


# Rows of a quadratic lower level take two questions; its method has two lower rounds. The last row has nothing to travel with.
CASES = {
    "nn": (3, ["step"] + 2 * ["step evaluate"] + ["evaluate"], 3 * 2),
    "bl": (
        2,
        3 * ["step"] + ["step step"] + 2 * ["step evaluate"] + ["step", "step step"] + 2 * ["evaluate"],
        2 * (5 + 2),
    ),
}


@pytest.mark.parametrize("name", ["nn", pytest.param("bl", marks=SLOW)])
def test_fewer_messages_and_the_same_numbers(name, tmp_path, monkeypatch):
    rounds, wanted, before = CASES[name]
    found, together = counted(name, tmp_path / "together", rounds)
    assert together == wanted
    one_by_one(monkeypatch)
    apart, single = counted(name, tmp_path / "apart", rounds)
    assert len(single) == before
    assert all(" " not in parts for parts in single)
    for column, values in apart.history.to_dict().items():
        if column != "seconds":
            assert list(found.history[column]) == values, column
    same_history(found, fz.run(inprocess.load(name).method, inprocess.load(name).whole(2), rounds, progress=False))


def test_a_cohort_is_asked_for_steps_and_everybody_for_the_history(tmp_path):
    found = inprocess.run("memory", tmp_path, rounds=3, clients_per_round=2)
    same_history(found, simulate("memory", 3, clients_per_round=2))
    assert found.events == []


@pytest.mark.parametrize("message", [9, 11, 12, 14])
def test_a_server_that_dies_with_a_row_to_come_ends_with_the_same_history(message, tmp_path):
    """Messages 9 to 11 ask for the second round and the first row, 12 to 14 for the third round and the second row."""
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))

    def die(kind, number):
        if number == message:
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        inprocess.run("memory", tmp_path, grid, rounds=4)
    grid.before = lambda kind, number: None
    same_history(inprocess.run("memory", tmp_path, grid, rounds=4, resume=True), simulate("memory", 4))


def spoil_second_row(grid, monkeypatch, spoil):
    """Have what client 1 answers to the second round, and to the question for the first row, pass through `spoil`."""
    pull = grid.pull_messages

    def pull_spoilt(ids):
        replies = pull(ids)
        for reply in replies:
            if reply.metadata.reply_to_message_id == "10":
                reply.content = {"fedrzo": {"reply": spoil(reply.content["fedrzo"]["reply"])}}
        return replies

    monkeypatch.setattr(grid, "pull_messages", pull_spoilt)


def with_nan(reply):
    step, seen = split(reply, 2)
    header, row = unpack(seen)
    return joined([step, pack(header, {name: np.full_like(value, np.nan) for name, value in row.items()})])


def test_one_bad_part_leaves_the_other_good(tmp_path, monkeypatch):
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    spoil_second_row(grid, monkeypatch, with_nan)
    found = inprocess.run("memory", tmp_path, grid, rounds=3)
    [event] = found.events
    assert (event.round, event.client, event.kind) == (1, 1, "not finite")
    assert "while monitoring" in event.detail
    assert list(found.history["failures"]) == [0, 1, 1, 1]
    np.testing.assert_allclose(found.x, simulate("memory", 3).x, rtol=1e-9)


@pytest.mark.parametrize("spoil", [lambda reply: reply[:-1], lambda reply: split(reply, 2)[0]])
def test_an_answer_that_does_not_hold_all_parts_is_refused_for_all(spoil, tmp_path, monkeypatch):
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    spoil_second_row(grid, monkeypatch, spoil)
    found = inprocess.run("memory", tmp_path, grid, rounds=3)
    assert [(event.round, event.client, event.kind) for event in found.events] == [(1, 1, "malformed")] * 2
    assert list(found.history["failures"]) == [0, 1, 2, 2]  # the row's own, then the step's


def test_parts_of_a_message_are_counted():
    parts = [b"", b"one", bytes(range(256))]
    assert split(joined(parts), 3) == parts
    assert joined(parts[1:2]) == b"one"
    for payload in (joined(parts[:2]), pack({}, [np.zeros(2)] * 3), pack({}, {"a": np.zeros(2)}), b""):
        with pytest.raises(WireError):
            split(payload, 3)
