"""The engine's and the nodes' side without Flower in between: equal numbers, faults, memory in files."""

import inprocess
import jax
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.engines.messages.wire import pack
from fedrzo.federation.estimators import measure_noise
from fedrzo.problems.inputs import one_sample

SLOW = pytest.mark.slow("a process for every node")  # `test_real.py` has FedRZO_nn and FedRZO_bl on a real Flower
ROUNDS = {"nn": 3, "bl": 2, "ts": 2}


def same_history(found: fz.Result, wanted: fz.Result) -> None:
    for name, values in wanted.history.to_dict().items():
        if name in fz.Cost._fields or name == "round":
            assert list(found.history[name]) == values, name
        elif name != "seconds":
            np.testing.assert_allclose(found.history[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
    for a, b in zip(jax.tree.leaves(found.x), jax.tree.leaves(wanted.x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def simulate(name: str, rounds: int, **options: object) -> fz.Result:
    module = inprocess.load(name)
    return fz.run(module.method, module.whole(), rounds, progress=False, **options)


@pytest.mark.parametrize("name", ["nn", pytest.param("ts", marks=SLOW), pytest.param("bl", marks=SLOW)])
def test_numbers_equal_the_simulation(name, tmp_path):
    found = inprocess.run(name, tmp_path, rounds=ROUNDS[name])
    same_history(found, simulate(name, ROUNDS[name]))
    assert found.events == []


@pytest.mark.slow("a process for every node")
def test_scalars_travel_instead_of_vectors(tmp_path):
    """Nodes rebuild averages from records, each in a fresh process."""
    grid = inprocess.InProcessGrid(inprocess.silos("scalars", tmp_path, cold=True))
    found = inprocess.run("scalars", tmp_path, grid, rounds=4)
    same_history(found, simulate("scalars", 4))
    assert found.history.last["upload_bytes"] == 4 * 3 * 3 * 8
    assert found.events == []


@pytest.mark.slow("a process for every node")
def test_nodes_rebuild_where_the_lower_level_is_solved(tmp_path):
    """For a cohort, so that some must catch up."""
    grid = inprocess.InProcessGrid(inprocess.silos("halved_bl", tmp_path, cold=True))
    found = inprocess.run("halved_bl", tmp_path, grid, rounds=3, clients_per_round=2)
    same_history(found, simulate("halved_bl", 3, clients_per_round=2))
    assert found.events == []


@pytest.mark.slow("a process for every node")
def test_a_node_with_a_set_that_nobody_knows_of_sends_vectors(tmp_path):
    found = inprocess.run("private", tmp_path, rounds=4)
    module = inprocess.load("private")
    wanted = fz.run(module.vectors, module.whole(), 4, progress=False)
    np.testing.assert_allclose(found.x, wanted.x, rtol=0, atol=1e-12)
    assert found.history.last["upload_bytes"] == 4 * 8 * (2 * 3 + found.x.size)


@pytest.mark.slow("a process for every node")
def test_a_cohort_equals_the_simulations(tmp_path):
    found = inprocess.run("memory", tmp_path, rounds=3, clients_per_round=2)
    same_history(found, simulate("memory", 3, clients_per_round=2))


@pytest.mark.slow("a process for every node")
def test_what_nodes_remember_is_in_their_files_alone(tmp_path):
    """Every message meets a fresh process; then the server is started again, from its checkpoint, over fresh nodes."""
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path, cold=True))
    inprocess.run("memory", tmp_path, grid, rounds=2)
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path, cold=True))
    found = inprocess.run("memory", tmp_path, grid, rounds=4, resume=True)
    same_history(found, simulate("memory", 4))
    assert sorted(path.name for path in (tmp_path / "node-1").iterdir()) == ["test.client-1.memory"]


@pytest.mark.slow("a process for every node")
def test_a_run_that_does_not_resume_begins_anew(tmp_path):
    """The server's checkpoint and the nodes' memories of the run before are there, and are not gone on from."""
    for rounds in (3, 2):
        same_history(inprocess.run("memory", tmp_path, rounds=rounds), simulate("memory", rounds))


@pytest.mark.parametrize("every", [1, pytest.param(3, marks=pytest.mark.slow("a process for every node"))])
def test_a_server_that_died_in_a_round_goes_on_to_the_same_x(every, tmp_path):
    """Nodes have answered a message of the third round that no server ever took: they forget what followed from it."""
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    kinds: list[str] = []

    def die(kind: str, number: int) -> None:
        kinds.append(kind)
        if kinds.count("step") == 9:  # two of the three nodes have answered
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        inprocess.run("memory", tmp_path, grid, rounds=4, eval_every=every)
    grid.before = lambda kind, number: None
    found = inprocess.run("memory", tmp_path, grid, rounds=4, eval_every=every, resume=True)
    same_history(found, simulate("memory", 4, eval_every=every))
    assert found.events == []


def test_a_server_that_died_before_it_wrote_a_row_writes_it(tmp_path):
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    kinds: list[str] = []

    def die(kind: str, number: int) -> None:
        kinds.append(kind)
        if kinds.count("evaluate") == 8:  # row 0, row 1, and all but one of row 2
            raise KeyboardInterrupt

    grid.before = die
    with pytest.raises(KeyboardInterrupt):
        inprocess.run("memory", tmp_path, grid, rounds=4)
    grid.before = lambda kind, number: None
    same_history(inprocess.run("memory", tmp_path, grid, rounds=4, resume=True), simulate("memory", 4))


@pytest.mark.slow("a process for every node")
def test_another_run_of_an_experiment_begins_anew(tmp_path):
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    inprocess.run("memory", tmp_path, grid, rounds=2, seed=1)
    found = inprocess.run("memory", tmp_path, grid, rounds=2)
    same_history(found, simulate("memory", 2))


@pytest.mark.slow("a process for every node")
def test_points_of_an_earlier_run_are_not_taken_for_this_ones(tmp_path):
    grid = inprocess.InProcessGrid(inprocess.silos("bl", tmp_path))
    inprocess.run("bl", tmp_path, grid, rounds=1, seed=1)
    same_history(inprocess.run("bl", tmp_path, grid, rounds=1), simulate("bl", 1))


def test_a_node_that_is_gone_is_waited_for_once_and_takes_part_again_when_it_is_back(tmp_path):
    nodes = inprocess.silos("memory", tmp_path)
    grid = inprocess.InProcessGrid(nodes)
    steps = []

    def turn(kind: str, number: int) -> None:
        steps.append(kind)
        done = steps.count("step")
        nodes[2].alive = not 3 < done <= 7  # away in the second and third round

    grid.before = turn
    found = inprocess.run("memory", tmp_path, grid, rounds=5, eval_every=5, timeout=0.5)
    kinds = [(event.client, event.kind) for event in found.events]
    assert kinds == [(2, "timeout"), (2, "absent")]
    assert list(found.history["failures"]) == [0, 2]


def test_a_last_row_that_nobody_answered_is_asked_for_again(tmp_path):
    nodes = inprocess.silos("memory", tmp_path)
    grid = inprocess.InProcessGrid(nodes)
    asked, nodes_of = [], grid.get_nodes

    def turn(kind: str, number: int) -> None:
        asked.append(kind)
        gone = kind == "evaluate" and 9 < asked.count("evaluate") <= 12
        for node in nodes:
            node.alive = not gone

    def return_later() -> list:
        found = nodes_of()
        for node in nodes:
            node.alive = True
        return found

    grid.before, grid.get_nodes = turn, return_later
    found = inprocess.run("memory", tmp_path, grid, rounds=3, eval_every=1, timeout=0.5)
    lost = [event for event in found.events if "monitoring" in event.detail]
    assert len(lost) == 3
    np.testing.assert_allclose(found.history["loss"][-1], simulate("memory", 3).history["loss"][-1], rtol=1e-9)


def test_too_few_clients_stop_the_run_and_nothing_is_lost(tmp_path):
    nodes = inprocess.silos("memory", tmp_path)
    grid = inprocess.InProcessGrid(nodes)

    def leave(kind: str, number: int) -> None:
        nodes[2].alive = number < 12

    grid.before = leave
    with pytest.raises(fz.engines.FederationError, match=r"2 clients answered|2 of 3 clients answered.*min_clients is 3"):
        inprocess.run("memory", tmp_path, grid, rounds=4, min_clients=3, timeout=0.5)
    grid.before = lambda kind, number: None
    nodes[2].alive = True
    same_history(inprocess.run("memory", tmp_path, grid, rounds=4, min_clients=3, resume=True), simulate("memory", 4))


def test_a_node_without_its_worker_shares_memory_with_it(tmp_path):
    """Messages that a worker answers and messages that a process of its own answers follow each other."""
    nodes = inprocess.silos("memory", tmp_path)
    other = inprocess.silos("memory", tmp_path)
    grid = inprocess.InProcessGrid(nodes)

    def alternate(kind: str, number: int) -> None:
        grid.silos = {10 + i: (nodes if number // 3 % 2 else other)[i] for i in range(3)}

    grid.before = alternate
    same_history(inprocess.run("memory", tmp_path, grid, rounds=3), simulate("memory", 3))


def test_the_engine_outside_a_server_app_points_to_deploy():
    module = inprocess.load("memory")
    with pytest.raises(fz.InputError, match="fedrzo deploy init DIR"):
        fz.run(module.method, module.whole(), 1, engine="flower")


def test_a_node_says_what_is_wrong_with_it(tmp_path):
    nodes = inprocess.silos("memory", tmp_path)
    nodes[1].settings["client-id"] = 7
    with pytest.raises(fz.InputError, match="client-id: found 7 in this node's settings"):
        inprocess.run("memory", tmp_path, inprocess.InProcessGrid(nodes))
    nodes[1].settings["client-id"] = 0
    with pytest.raises(fz.InputError, match="client-id: found 0 twice"):
        inprocess.run("memory", tmp_path, inprocess.InProcessGrid(nodes))


def test_sampling_is_private_unless_it_is_shared(tmp_path):
    nodes = inprocess.silos("memory", tmp_path)
    for node in nodes:
        del node.settings["shared-sampling"]
    found = inprocess.run("memory", tmp_path, inprocess.InProcessGrid(nodes), rounds=1)
    assert not np.allclose(found.x, simulate("memory", 1).x, rtol=1e-6)
    seeds = [(tmp_path / f"node-{i}" / f"client-{i}.seed") for i in range(3)]
    assert len({seed.read_text() for seed in seeds}) == 3
    assert {seed.stat().st_mode & 0o777 for seed in seeds} == {0o600}
    again = inprocess.run("memory", tmp_path, inprocess.InProcessGrid(nodes), rounds=1)
    np.testing.assert_array_equal(again.x, found.x)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda reply: {}, "malformed"),
        (lambda reply: {"fedrzo": {"reply": "text"}}, "malformed"),
        (lambda reply: {"fedrzo": {"reply": pack({}, {"loss": np.zeros(3)})}}, "shape"),
        (lambda reply: {"fedrzo": {"reply": pack({}, [np.zeros(3)])}}, "shape"),
        (
            lambda reply: {"fedrzo": {"reply": pack({}, {"loss": np.array(np.nan), "feasibility": np.array(0.0)})}},
            "not finite",
        ),
    ],
)
def test_what_a_node_says_it_monitors_is_looked_at(spoil, kind, tmp_path, monkeypatch):
    grid = inprocess.InProcessGrid(inprocess.silos("memory", tmp_path))
    pull, kinds = grid.pull_messages, []
    grid.before = lambda kind, number: kinds.append(kind)

    def pull_spoilt(ids):
        replies = pull(ids)
        for reply in replies:
            number = int(reply.metadata.reply_to_message_id)
            if kinds[number] == "evaluate" and number % 3 == 1:
                reply.content = spoil(reply)
        return replies

    monkeypatch.setattr(grid, "pull_messages", pull_spoilt)
    found = inprocess.run("memory", tmp_path, grid, rounds=1)
    assert [(event.client, event.kind) for event in found.events] == [(1, kind)] * 2
    assert "while monitoring" in found.events[0].detail
    assert np.isfinite(found.history["loss"]).all()


@pytest.mark.slow("a process for every node")
def test_float32_rounds_agree_within_the_rounding_noise_of_the_estimator(tmp_path):
    """One round at a time, each from the same x: tiny differences grow from round to round."""
    module = inprocess.load("single")
    problem, method = module.whole(), module.method
    found = inprocess.run("single", tmp_path, rounds=1)
    wanted = fz.run(method, problem, 1, progress=False)
    noise = measure_noise(problem, one_sample(problem.data), np.asarray(problem.x0), method.smoothing).rounding
    assert found.x.dtype == np.float32
    assert noise > 0
    difference = np.linalg.norm(found.x - wanted.x)
    assert difference <= method.local_steps * method.stepsize * noise + 4 * np.spacing(np.abs(wanted.x).max())
