"""`benchmarks/communication.py`: bytes that are counted, times that are medians, and the whole of it on a small budget."""

import csv
import itertools
import json

import numpy as np
import pytest

import communication
from fedrzo import zoo
from fedrzo.errors import InputError
from fedrzo.federation.catch_up import Either, stacked
from fedrzo.results.history import History
from helpers import replay
from helpers.command import main

NAMES = ["FedRZOnn, vectors", "FedRZOnn, scalars", "FedZO", "DeComFL", "FedAvg"]


def history(losses, sent):
    return History({"loss": losses, "upload_bytes": sent, "download_bytes": [0] * len(sent)})


def test_bytes_to_a_target_are_interpolated_on_the_mean_over_seeds():
    runs = [history([4.0, 2.0, 0.0], [0, 100, 200]), history([4.0, 4.0, 2.0], [0, 100, 200])]
    # The mean is 4, 3, 1.
    assert communication.until(runs, 3.0) == 100
    assert communication.until(runs, 2.0) == 150
    assert communication.until(runs, 4.0) == 0
    assert communication.until(runs, 0.5) is None


def test_bytes_to_a_target_are_those_of_the_loss_inside_the_sets():
    """At x itself 1.9 is reached much earlier."""
    columns = {
        "loss": [2.0, 1.0, 0.1],
        "loss_feasible": [2.0, 1.9, 1.8],
        "upload_bytes": [0, 10, 20],
        "download_bytes": [0] * 3,
    }
    assert communication.until([History(columns)], 1.9) == 10


def test_seconds_are_a_median(monkeypatch):
    clock = itertools.accumulate(itertools.chain([0.0], itertools.cycle([1.0, 0.0, 5.0, 0.0, 2.0, 0.0])))
    monkeypatch.setattr(replay.time, "perf_counter", lambda: next(clock))
    assert replay.seconds(lambda: np.zeros(1), 3) == 2.0


def test_replies_nobody_sent_take_no_memory():
    small, large = np.arange(2.0), np.zeros(5)
    scalars, vector = Either(small, large, np.False_), Either(np.zeros(2), large + 3, np.True_)
    alone = stacked([(scalars, np.float64(1)), (scalars, np.float64(2))])
    assert alone[0].large is None
    np.testing.assert_array_equal(alone[0].small, [small, small])
    np.testing.assert_array_equal(alone[1], [1, 2])
    mixed, _ = stacked([(scalars, None), (vector, None)])
    np.testing.assert_array_equal(mixed.large, [large, large + 3])
    np.testing.assert_array_equal(mixed.sends_large, [False, True])


@pytest.fixture(scope="module")
def cost():
    """The measurements for a network of 2,000 pixels and 4 neurons: n = 8,004."""
    return replay.cost(replay.made_up(5, 2000, 4), 3)


@pytest.mark.slow("runs a whole benchmark")
def test_bytes_of_a_round(cost):
    n, m, H = 8004, 5, 20
    assert (cost["dimension"], cost["clients"], cost["local_steps"]) == (n, m, H)
    assert cost["upload_bytes"] == {"vectors": 4 * n, "scalars": 4 * H}
    # A record: key, checksum, and for each client its name, its weight and its slopes.
    assert cost["download_bytes"] == {"vectors": 4 * n, "scalars": 8 + 4 + m * (4 + 4 + 4 * H)}
    assert cost["ratio"] == n / H
    assert cost["largest_difference"] < 1e-4 * cost["largest_step"]
    assert all(cost[name] > 0 for name in ("replay_seconds", "average_seconds", "client_seconds"))
    assert len(replay.remarks(cost)) == 3


@pytest.mark.slow("runs a whole benchmark")
def test_the_servers_memory_is_a_few_vectors_whatever_the_number_of_clients(cost):
    few, many = cost["memory"]
    assert (few["clients"], many["clients"]) == (5, 20)
    vector = 4 * 8004
    for row in (few, many):
        assert row["temporary_bytes"] < 10 * vector
        assert row["all_directions_bytes"] == row["clients"] * 20 * vector
    # Scalars grow with the number of clients, vectors must not.
    assert many["temporary_bytes"] - few["temporary_bytes"] < vector


def test_the_network_has_the_size_of_the_papers():
    assert replay.made_up().dim == 307_300


def test_who_takes_part():
    entrants, refused = communication._entrants("relu-digits", zoo.make("relu-digits"))
    assert [entrant.name for entrant in entrants] == NAMES
    assert not refused
    vectors, scalars = (entrant.method for entrant in entrants[:2])
    assert (vectors.communication, scalars.communication) == ("vectors", "scalars")
    assert vectors.stepsize == scalars.stepsize
    entrants, refused = communication._entrants("boxes", zoo.make("boxes"))
    assert [entrant.name for entrant in entrants] == ["FedRZOnn, vectors", "FedRZOnn, scalars", "FedAvg"]
    assert set(refused) == {"FedZO", "DeComFL"}
    with pytest.raises(InputError, match="problem: 'direct' has two levels"):
        communication._entrants("direct", zoo.make("direct"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["direct"], "problem: 'direct' has two levels"),
        (["nothing"], "problem: found 'nothing'"),
        (["--budget", "0"], "--budget: found 0"),
        (["--seeds", "0"], "--seeds: found 0"),
    ],
)
def test_what_is_refused(options, message, fails):
    assert message in fails(communication, *options)


@pytest.mark.slow("runs a whole benchmark")
def test_the_whole_bench(tmp_path, capsys):
    assert main(communication, ["--quick", "--seeds", "2", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    by_name = {entry["name"]: entry for entry in found["methods"]}
    assert list(by_name) == NAMES
    vectors, scalars = by_name[NAMES[0]], by_name[NAMES[1]]
    assert vectors["stepsize"] == scalars["stepsize"]
    assert vectors["rounds"] == scalars["rounds"] == 60
    # Float32: one unit in the last place may have grown for 60 rounds.
    assert found["same"]["largest_relative_difference_of_loss"] < 1e-3
    assert vectors["upload_bytes"] == 60 * 5 * 4 * 260
    assert scalars["upload_bytes"] >= 60 * 5 * 4 * 10  # and a vector where a checksum differed
    assert scalars["bytes_to_target"] < vectors["bytes_to_target"]
    for entry in found["methods"]:
        assert entry["loss"] < found["start"]
        assert 0 < entry["bytes_to_target"] <= entry["upload_bytes"] + entry["download_bytes"]
    assert found["target"] == max(entry["loss"] for entry in found["methods"])
    cifar = found["cifar"]
    assert cifar["upload_bytes"] == {"vectors": 1_229_200, "scalars": 80}
    assert cifar["ratio"] == 15_365
    assert cifar["largest_difference"] < 1e-4 * cifar["largest_step"]
    assert all(row["vectors"] < 10 for row in cifar["memory"])
    assert json.loads((tmp_path / "communication.json").read_text()) == found
    with (tmp_path / "table.csv").open() as file:
        assert [row[0] for row in csv.reader(file)] == ["", *NAMES]
    assert {"figure.png", "figure.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert len(History.read(tmp_path / "fedrzonn-scalars" / "seed-1.csv")) > 20
