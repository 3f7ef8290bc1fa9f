"""`fedrzo compare`: the contest's rules on problems where their outcome is known."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import fedrzo as fz
from fedrzo import methods as registry
from fedrzo import zoo
from fedrzo.cli.main import main
from fedrzo.compare import candidates, comparison
from fedrzo.compare.comparison import table
from fedrzo.compare.contest import Contest, read
from fedrzo.results.history import History

FEW = ("FedRZOnn", "FedAvg")
PER_ROUND = 5 * 10 * 8  # clients, local steps, samples: sample gradients of one round on the quadratic


@pytest.fixture
def few(monkeypatch):
    """Let two methods compete, to save time."""
    monkeypatch.setattr(candidates, "CANDIDATES", {name: candidates.CANDIDATES[name] for name in FEW})


def test_every_registered_method_has_a_place():
    known = {name.partition(",")[0] for name in candidates.CANDIDATES}
    assert known | set(candidates.SAME) == set(registry.METHODS)
    assert not known & set(candidates.SAME)
    assert set(candidates.SAME.values()) <= known


@pytest.mark.parametrize(
    ("problem", "some", "refused"),
    [
        ("quadratic", {"FedRZOnn", "FedZO", "DeComFL", "FedAvg", "Scaffold", "Scaffnew"}, set()),
        ("boxes", {"FedRZOnn", "FedAvg"}, {"Scaffold", "Scaffnew", "FedZO", "DeComFL"}),
        ("ncsc", {"FedRZObl", "QuasiNewton", "FedNest", "LocalSGDA", "LocalSGDA, momentum"}, set()),
        ("direct", {"FedRZObl", "FedNest", "SimFBO"}, set()),
        ("hyper-digits", {"FedRZObl"}, {"FedNest", "SimFBO", "FedBiOAcc", "MemFBO"}),
        ("cournot", {"FedRZO2s", "ZSOL"}, set()),
    ],
)
def test_who_takes_part_and_who_says_no(problem, some, refused):
    found, reasons = candidates.applicable(zoo.make(problem))
    names = {candidate.name for candidate in found}
    assert some <= names
    assert refused <= set(reasons)
    assert not names & set(reasons)
    for candidate in found:
        assert len(candidate.grid) == candidates.POINTS
        assert candidate.grid == sorted(candidate.grid)
        batch = "full" if candidate.name == "QuasiNewton" else candidates.Setting.of(zoo.make(problem)).batch_size
        assert getattr(candidate.method, "batch_size", None) == batch


def test_small_clients_set_the_batch_size():
    problem = fz.Nonsmooth(lambda x, b: x @ x, fz.ClientData([np.ones((3, 1)), np.ones((9, 1))]), np.zeros(2))
    assert candidates.Setting.of(problem).batch_size == 3


def test_the_row_that_a_budget_pays_for_is_read():
    history = History({
        "round": [0, 2, 4, 6], "loss": [9.0, 5.0, 3.0, 2.0], "feasibility": [0.0] * 4,
        "evaluations": [0, 10, 20, 30], "gradients": [0, 1, 2, 3], "upload_bytes": [0, 5, 10, 15], "download_bytes": [0, 1, 2, 3],
    })  # fmt: skip
    for budget, spent, row in (
        ("evaluations", 26, 2),
        ("evaluations", 25, 1),
        ("evaluations", 1e9, 3),
        ("bytes", 12, 2),
    ):
        assert read(history, budget, {budget: spent})["round"] == history["round"][row], (budget, spent)
    # A single round that costs more than the budget is taken all the same.
    assert read(history, "bytes", {"bytes": 1})["round"] == 2


@pytest.mark.slow("a comparison with its searches")
def test_two_methods_compete_at_equal_cost(few, tmp_path, capsys):
    """On the quadratic: the budgets are kept, what is drawn is what was run, and gradients win."""
    budget = 20 * 3 * PER_ROUND
    arguments = ["compare", "quadratic", "--budget", str(budget), "--seeds", "5", "--seed", "3", "--json"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert "FedAvg (2 of 2): 20 and " in err
    assert [entry["name"] for entry in found["methods"]] == ["FedAvg", "FedRZOnn"]
    assert found["seeds"] == [3, 4, 5, 6, 7]
    assert found["tuning_seed"] not in found["seeds"]
    # 20 rounds of FedAvg, 30 of FedRZOnn, each round one vector of ten floats both ways; the median of two is their mean.
    vectors = 5 * 10 * 8 * 2
    assert found["budget"] == {"evaluations": budget, "bytes": 25 * vectors}
    optimum = zoo.toys.answer(problem := zoo.make("quadratic"))
    samples = np.asarray(problem.data.flat)
    least = 0.5 * np.mean(np.sum((samples - optimum) ** 2, axis=1))
    for entry, rounds in zip(found["methods"], (20, 30), strict=True):
        for column, expected in (("at_equal_evaluations", rounds), ("at_equal_bytes", 25)):
            end = entry[column]
            assert end["rounds"] == expected
            assert end["share_of_budget"] == 1
            assert least < end["loss"] < found["start"]
            assert end["low"] < end["loss"] < end["high"]
        assert not entry["diverged"]
        assert (entry["fields"]["local_steps"], entry["fields"]["batch_size"]) == (10, 8)
        assert not entry["edge_of_grid"]
        chosen = entry["grid"].index(entry["stepsize"])
        assert entry["grid_loss"][chosen] == min(loss for loss in entry["grid_loss"] if loss is not None)
        again = fz.run(
            fz.FedAvg(entry["stepsize"], 10, 8) if rounds == 20 else fz.FedRZOnn(entry["stepsize"], 0.01, 10, 8),
            problem, rounds, key=4, eval_every=rounds, progress=False,
        )  # fmt: skip
        stored = History.read(tmp_path / entry["name"].lower() / "seed-4.csv")
        row = list(stored["round"]).index(rounds)
        np.testing.assert_allclose(stored["loss"][row], again.history["loss"][-1], rtol=1e-9)
    assert json.loads((tmp_path / "table.json").read_text()) == found
    with (tmp_path / "table.csv").open() as file:
        assert [row[0] for row in csv.reader(file)] == ["", "FedAvg", "FedRZOnn"]
    assert {"figure.png", "figure.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert main(["report", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["records"], told["figures"], told["tables"], told["left_out"]) == ([tmp_path.name], 1, 1, [])
    page = Path(told["file"]).read_text()
    assert f"fedrzo compare quadratic --seed 3 --seeds 5 --budget {budget}" in page
    assert f"<td>{table(found)[1][2]}</td>" in page  # the loss of the best


@pytest.mark.slow("tunes and runs every method")
def test_no_method_is_better_than_the_best_feasible_loss(few, tmp_path, capsys):
    """On `boxes` the loss falls without end outside of the sets; inside, the least is -2."""
    assert main(["compare", "boxes", "--quick", "--seeds", "3", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["column"] == "loss_feasible"
    for entry in found["methods"]:
        ends = [entry["at_equal_evaluations"], entry["at_equal_bytes"]]
        assert all(loss >= -2 - 1e-9 for loss in entry["grid_loss"] if loss is not None)
        assert all(-2 - 1e-9 <= end["loss"] < found["start"] and end["feasibility"] > 0 for end in ends)
        stored = History.read(tmp_path / entry["name"].lower() / "seed-1.csv")
        assert np.all(stored["loss_feasible"] >= -2 - 1e-9)
        assert stored["loss"].min() < -2
    with (tmp_path / "table.csv").open() as file:
        assert next(csv.reader(file)).count("feasibility") == 2


def contest(stepsize, cap=100):
    problem = zoo.make("quadratic")
    made = Contest(candidates.Candidate("FedAvg", fz.FedAvg(stepsize, 10, 8)), problem, cap)
    made.trial(1000)
    return made


def test_a_winner_at_the_edge_has_its_grid_extended():
    budgets = {"evaluations": 10 * 3 * PER_ROUND, "bytes": 1e4}
    low, middle = contest(1e-4), contest(0.1)
    for made in (low, middle):
        made.tune(budgets, 1000)
        assert not made.at_edge
        # The best step is the same to within a point of the grid, wherever the search began.
    assert 1 / 3.3 < low.stepsize / middle.stepsize < 3.3
    assert len(low.tried) > len(middle.tried) == candidates.POINTS


def test_a_winner_that_stays_at_the_edge_is_flagged(monkeypatch):
    monkeypatch.setattr("fedrzo.compare.contest.EXTENSIONS", 0)
    budgets = {"evaluations": 10 * 3 * PER_ROUND, "bytes": 1e4}
    made = contest(1e-4)
    made.tune(budgets, 1000)
    made.compete(budgets, [0, 1, 2, 3, 4])
    entry = made.entry(budgets)
    assert entry["edge_of_grid"]
    assert entry["stepsize"] == max(entry["grid"])
    assert "stepsize at the edge of its grid" in comparison._remarks(entry)


def test_what_diverges_is_told(monkeypatch):
    """Steps of 30 to 3,000 on a quadratic of curvature one: nothing is dropped, nothing is not JSON."""
    monkeypatch.setattr("fedrzo.compare.contest.EXTENSIONS", 0)
    budgets = {"evaluations": 60 * 3 * PER_ROUND, "bytes": 1e4}
    made = contest(1e3)
    made.tune(budgets, 1000)
    made.compete(budgets, [0, 1, 2, 3, 4])
    entry = made.entry(budgets)
    assert entry["diverged"]
    json.dumps(entry, allow_nan=False)
    assert entry["at_equal_evaluations"]["loss"] is None
    assert "diverged" in comparison._remarks(entry)
    assert comparison._interval(entry["at_equal_evaluations"]) == "not finite"


def test_a_method_that_cannot_spend_its_budget_is_marked():
    budgets = {"evaluations": 1000 * 3 * PER_ROUND, "bytes": 10 * 5 * 10 * 8 * 2}
    made = contest(0.1, cap=15)
    made.stepsize, made.tried = 0.1, {0.03: 2.0, 0.1: 1.0, 0.3: 2.0}
    made.compete(budgets, [0, 1, 2, 3, 4])
    entry = made.entry(budgets)
    assert entry["at_equal_evaluations"]["capped"]
    assert entry["at_equal_evaluations"]["rounds"] == 15
    assert entry["at_equal_evaluations"]["share_of_budget"] == 0.015
    assert not entry["at_equal_bytes"]["capped"]
    assert comparison._remarks(entry) == ["capped in evaluations"]


def test_a_round_that_exceeds_the_budget_is_marked():
    made = contest(0.1)
    made.stepsize, made.tried = 0.1, {0.03: 2.0, 0.1: 1.0, 0.3: 2.0}
    budgets = {"evaluations": 100, "bytes": 10 * 5 * 10 * 8 * 2}
    made.compete(budgets, [0, 1, 2, 3, 4])
    entry = made.entry(budgets)
    assert entry["at_equal_evaluations"]["share_of_budget"] == 3 * PER_ROUND / 100
    assert comparison._remarks(entry) == ["one round exceeds the budget in evaluations"]


def test_random_numbers_of_local_steps_are_paid_for_on_average(monkeypatch):
    """Scaffnew draws its local steps: no seed may spend more than the budget, and most of it is spent."""
    problem, budgets = zoo.make("quadratic"), {"evaluations": 60 * 3 * PER_ROUND, "bytes": 1e5}
    made = Contest(candidates.Candidate("Scaffnew", fz.Scaffnew(0.01, 0.1, 8)), problem, 1000)
    made.trial(1000)
    made.stepsize, made.tried = 0.01, {0.003: 2.0, 0.01: 1.0, 0.03: 2.0}
    made.compete(budgets, [0, 1, 2, 3, 4])
    for history in made.histories["evaluations"]:
        assert read(history, "evaluations", budgets)["spent"] <= budgets["evaluations"]
    assert made.end("evaluations", budgets)["share_of_budget"] > 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quadratc"], "problem: found 'quadratc'; did you mean 'quadratic'?"),
        (["nosuch"], "problem: found 'nosuch'; the nearest names are nash1, gnash19, gnash18; `fedrzo list` has all"),
        (["quadratic", "--budget", "0"], "--budget: found 0; pass a whole number of loss evaluations, at least 1"),
        (["quadratic", "--seeds", "0"], "--seeds: found 0; pass a whole number of at least 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(capsys, arguments, message):
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"fedrzo: {message}\n")
