"""A node defends its records: its own ledger, fresh noise for every new question, the same answer to the same one."""

import json
from pathlib import Path
from typing import Any

import inprocess
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.deploy.ledger import KEPT, BudgetSpentError, Ledger
from fedrzo.engines.messages.codec import Message, encode, encode_own
from fedrzo.engines.messages.wire import unpack
from fedrzo.privacy.accounting import Release, epsilon

DELTA = 1e-4


class Recorder(inprocess.Silo):
    """A node that keeps what it was asked, and what it answered."""

    def answer(self, asked: Any) -> bytes:
        reply = super().answer(asked)
        self.__dict__.setdefault("asked", []).append((dict(asked), reply))
        return reply

    def steps(self) -> list[tuple[dict[str, Any], bytes]]:
        return [(asked, reply) for asked, reply in self.asked if json.loads(asked["run"])["kind"] == "step"]


def nodes(folder: Path, **more: Any) -> list[Recorder]:
    return [Recorder(silo.settings, silo.problem, **more) for silo in inprocess.silos("dp", folder)]


def charges(folder: Path, client: int) -> list[dict[str, Any]]:
    return json.loads((folder / f"node-{client}" / f"client-{client}.ledger.json").read_text())["charges"]


def spent(folder: Path, client: int) -> float:
    found: dict[Release, int] = {}
    for entry in charges(folder, client):
        release = Release(entry["rate"], entry["noise"])
        found[release] = found.get(release, 0) + entry["releases"]
    return epsilon(found, DELTA)


def test_nodes_are_charged_and_their_losses_are_not_seen(tmp_path):
    silos = nodes(tmp_path)
    found = inprocess.run("dp", tmp_path, inprocess.InProcessGrid(silos))
    assert found.events == []
    assert "loss" not in found.history
    assert found.loss_feasible is None
    for i in range(3):
        [entry] = charges(tmp_path, i)
        assert entry["releases"] == 3 * 2
        assert entry["rate"] == pytest.approx(10 / (40 + 20 * i))
    worst = max(spent(tmp_path, i) for i in range(3))
    assert 1.9 < worst <= 2.0
    assert found.history.last["epsilon"] == pytest.approx(worst)
    assert found.history["epsilon"][0] == 0
    assert "(1.99" in found.privacy or "(2," in found.privacy
    assert found.spec["privacy"]["records"] == [40, 80]
    for asked, reply in silos[0].steps():  # what leaves a node tells no realised sample size
        del asked
        header, _ = unpack(reply)
        assert header["evaluations"] == 2 * 2 * 10


def test_noise_is_fresh_in_every_run_though_seeds_are_the_same(tmp_path):
    first, second = (inprocess.run("dp", tmp_path / name, experiment=name) for name in ("a", "b"))
    assert not np.allclose(first.x, second.x)


def test_a_server_that_died_is_given_the_same_answers_and_nobody_pays_twice(tmp_path):
    silos = nodes(tmp_path)
    grid, kinds = inprocess.InProcessGrid(silos), []

    def die(kind: str, number: int) -> None:
        kinds.append(kind)
        if kinds.count("step") == 6:  # two of the three nodes have answered the second round
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        inprocess.run("dp", tmp_path, grid)
    before = [silo.steps()[-1] for silo in silos[:2]]
    grid.before = lambda kind, number: None
    found = inprocess.run("dp", tmp_path, grid, resume=True)
    assert found.events == []
    for silo, (asked, reply) in zip(silos, before, strict=False):
        again = [answer for question, answer in silo.steps() if question["common"] == asked["common"]]
        assert again == [reply, reply]
    assert [sum(entry["releases"] for entry in charges(tmp_path, i)) for i in range(3)] == [6, 6, 6]
    assert found.history.last["epsilon"] <= 2.0


@pytest.mark.slow("three nodes with a lower level, twice")
def test_the_lower_rounds_of_public_data_cost_nothing_and_push_no_stored_reply_out(tmp_path):
    silos = [Recorder(silo.settings, silo.problem) for silo in inprocess.silos("dp_bl", tmp_path)]
    grid, steps = inprocess.InProcessGrid(silos), []

    def die(kind: str, number: int) -> None:
        steps.append(kind)
        if steps.count("evaluate") > 3 * 3:  # the first round is over, but not on record
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        inprocess.run("dp_bl", tmp_path, grid, rounds=2)
    grid.before = lambda kind, number: None
    found = inprocess.run("dp_bl", tmp_path, grid, rounds=2, resume=True)
    assert found.events == []
    assert [sum(entry["releases"] for entry in charges(tmp_path, i)) for i in range(3)] == [2, 2, 2]
    assert found.history.last["epsilon"] <= 4.0


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.slow("a node built anew for every message"))])
@pytest.mark.slow("a federation for each kind of node")
def test_a_server_that_asks_otherwise_is_charged_until_nothing_is_left(cold, tmp_path):
    silos = nodes(tmp_path, cold=cold)
    silos[0].settings["privacy-epsilon"] = 4.0  # so that it has something left after the run
    inprocess.run("dp", tmp_path, inprocess.InProcessGrid(silos), rounds=1)
    node, (asked, reply) = silos[0], silos[0].steps()[-1]

    def ask(step: str, x: np.ndarray, accepted: tuple | None = None) -> bytes:
        message = Message(step, "", (0, 0), 0, (x,))
        return node.answer({**asked, "common": encode(message), "own": encode_own(message, 0, accepted)})

    def made() -> int:
        return sum(entry["releases"] for entry in charges(tmp_path, 0))

    assert made() == 2
    assert ask("client_steps", np.zeros(3)) == reply  # the same question, byte by byte
    assert made() == 2
    # The same round and the same x, but for what the server says that it took last: another question.
    other = ask("client_steps", np.zeros(3), (0, 0))
    assert not np.allclose(unpack(other)[1], unpack(reply)[1])
    assert made() == 4
    for place in ((-2000, 0), (0.5, 0), (True, 0), ("1", 0), (2**31, 0), ()):  # no round may be worth a refund
        message = Message("client_steps", "", place, 0, (np.zeros(3),))
        assert "error" in unpack(node.answer({**asked, "common": encode(message), "own": encode_own(message, 0, None)}))[0]
    for x in (np.zeros(4), np.zeros(3, np.float16), np.zeros(3, np.float32)):
        assert "error" in unpack(ask("client_steps", x))[0]
    assert made() == 4
    for step in ("private_client_steps", "descend", "check", "decode", "lower_gradient", "lower.client_steps"):
        header, value = unpack(ask(step, np.zeros(3)))
        assert "not protected" in header["error"]
        assert value is None
    assert made() == 4
    answers = [ask("client_steps", np.full(3, k / 8.0)) for k in range(1, 30)]
    errors = ["budget" in unpack(answer)[0].get("error", "") for answer in answers]
    assert errors == sorted(errors)  # once it is spent, it stays so
    last = errors.index(True)
    total = made()
    assert total == 4 + 2 * last
    assert spent(tmp_path, 0) <= 4.0
    assert ask("client_steps", np.full(3, last / 8.0)) == answers[last - 1]  # what was answered before costs nothing
    assert made() == total


@pytest.mark.parametrize(
    ("promise", "settings", "said"),
    [
        ("simulation", {}, "found simulation=True on a node"),
        ("noise", {}, "without a budget"),
        ("", {"privacy-epsilon": 1.0}, "the run asks for epsilon = 2, this node allows 1"),
        ("", {"privacy-epsilon": "much"}, "privacy-epsilon: found 'much'"),
        ("none", {"privacy-epsilon": 1.0}, "the method has no privacy="),
    ],
)
def test_a_node_says_why_it_takes_no_part(promise, settings, said, tmp_path, monkeypatch):
    monkeypatch.setenv("DP_PROMISE", promise)
    silos = nodes(tmp_path)
    silos[1].settings |= settings
    with pytest.raises(fz.InputError, match=said):
        inprocess.run("dp", tmp_path, inprocess.InProcessGrid(silos))


def test_all_experiments_are_charged_to_one_ledger(tmp_path):
    ledger = Ledger(tmp_path, 0, 1.0, DELTA)
    release = Release(0.1, 2.0)
    with ledger.held():
        most = ledger._left(release, 1)
    for name in ("one", "two"):
        again = Ledger(tmp_path, 0, 1.0, DELTA)
        with again.held():
            again.charge(name, release, 1)
    with (last := Ledger(tmp_path, 0, 1.0, DELTA)).held():
        assert last.total == {release: 2}
        assert last.spent == epsilon({release: 2}, DELTA)
        with pytest.raises(BudgetSpentError, match="one, two"):
            last.charge("three", Release(1.0, 0.5), 1)
        with pytest.raises(BudgetSpentError):
            last.charge("three", release, 10 * max(10, most))
        assert last.total == {release: 2}


def test_charges_go_on_as_long_as_the_budget_lasts_and_not_longer(tmp_path):
    ledger, release, made = Ledger(tmp_path, 0, 1.0, DELTA), Release(0.1, 2.0), 0
    with ledger.held():
        while True:
            try:
                ledger.charge("one", release, 3)
            except BudgetSpentError:
                break
            made += 3
    assert epsilon({release: made}, DELTA) <= 1.0 < epsilon({release: made + 3}, DELTA)


def test_a_ledger_that_cannot_be_read_answers_nothing(tmp_path):
    ledger = Ledger(tmp_path, 0, 1.0, DELTA)
    ledger.path.write_text("{}")
    with pytest.raises(fz.InputError, match="restore a copy"), ledger.held():
        pass


def test_a_charge_is_at_least_one_release(tmp_path):
    ledger = Ledger(tmp_path, 0, 1.0, DELTA)
    with ledger.held():
        for count in (0, -5, 1.5, True):
            with pytest.raises(fz.InputError, match="local_steps"):
                ledger.charge("one", Release(0.1, 2.0), count)


def test_what_a_node_cannot_read_is_told_in_its_own_log_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("DP_PROMISE", "broken")
    with pytest.raises(fz.InputError, match="its log says why") as error:
        inprocess.run("dp", tmp_path, inprocess.InProcessGrid(nodes(tmp_path)))
    assert "secret cell" not in str(error.value)
    assert "secret cell" in capfd.readouterr().err


def test_old_replies_are_forgotten(tmp_path):
    ledger = Ledger(tmp_path, 0, 1.0, DELTA)
    for k in range(KEPT + 3):
        ledger.store(f"{k:064d}", b"reply", b"state")
    assert ledger.stored(f"{0:064d}") is None
    assert ledger.stored(f"{KEPT + 2:064d}") == (b"reply", b"state")
    assert len(list(ledger.replies.iterdir())) == KEPT
