"""How often a check calls a black box: never more often than it says, and by default as often as ten rounds do."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.cli.main import main

SLOW = pytest.mark.slow("one more compilation")
SIZES = (100, 50, 150, 75)  # 375 samples of 4 clients


def data(n):
    rng = np.random.default_rng(0)
    return fz.ClientData([rng.normal(size=(size, n)) for size in SIZES])


def distance(x, batch):
    return float(np.mean(np.abs(batch - x).sum(axis=1)))


def through(x, y, batch):
    return float(np.mean(np.abs(batch - x).sum(axis=1)) + np.sum(y))


def follow(x, y, batch):
    return jnp.sum((y - x[:2]) ** 2) + 0 * jnp.sum(batch)


def single(n, fn=distance, **options):
    box = fz.blackbox(fn, **options)
    return box, fz.Nonsmooth(box, data(n), np.zeros(n)), fz.FedRZOnn(1e-3, 0.01)


def hierarchical(n):
    box = fz.blackbox(through)
    problem = fz.Bilevel(box, follow, data(n), np.zeros(n), np.zeros(2), modulus=2.0, smoothness=2.0)
    return box, problem, fz.FedRZObl(1e-3, 0.01, 1, lower=fz.LocalSGD(rounds=1, local_steps=1, batch_size=1))


def checked(box, *arguments, **options):
    """Return the report of a check, and the number of calls that it made."""
    before = box.calls
    report = fz.check(*arguments, progress=False, **options)
    return report, box.calls - before


@pytest.mark.parametrize(
    ("stated", "n"),
    [
        (single, 3),
        pytest.param(single, 113, marks=SLOW),
        (hierarchical, 3),
        pytest.param(hierarchical, 113, marks=SLOW),
    ],
)
def test_a_check_calls_a_black_box_no_more_often_than_ten_rounds_do(stated, n):
    box, problem, method = stated(n)
    report, made = checked(box, problem, method)
    before = box.calls
    fz.run(method, problem, 10, eval_every=10, progress=False)
    found = report["calls"].data
    assert found["allowed"] == found["usual"] == box.calls - before
    assert found["made"] == made <= found["allowed"]
    assert report.ok
    assert "a mean over its batch, as it should be" in [finding.text for finding in report.findings]
    assert report["trial"].data["rounds"] == 3
    assert found["left_out"][-1].startswith("slopes (")
    assert report["costs"].data["evaluations"] == 200 * 4 * 2


@pytest.mark.parametrize("calls", [1, 30])
def test_what_does_not_fit_is_left_out_and_named(calls):
    box, problem, method = single(3)
    report, made = checked(box, problem, method, calls=calls)
    found = report["calls"]
    assert made == found.data["made"] <= found.data["allowed"] == calls
    assert "a few rounds" in found.text.partition("left out: ")[2]
    assert ("the loss around x0 (15 calls)" in found.data["left_out"]) == (calls == 1)


def test_a_part_that_takes_more_calls_than_are_left_is_stopped():
    """In single precision, the noise of rounding is measured at x0, by more calls than these."""
    box, problem, method = single(3)
    problem = fz.Nonsmooth(box, problem.data, np.zeros(3, np.float32))
    report, made = checked(box, problem, method, calls=5)
    assert made == 5
    assert "the loss at x0" in report["calls"].data["left_out"]
    assert report.ok


def test_what_a_private_method_asks_beforehand_counts_too():
    box, problem, _ = single(3)
    method = fz.FedRZOnn(1e-3, 0.01, privacy=fz.Privacy(5.0, 1e-5, 1.0, simulation=True))
    report, made = checked(box, problem, method, calls=4)
    assert made == report["calls"].data["made"] == 4
    assert report["calls"].data["left_out"][0] == "the loss at x0"


def test_slopes_of_a_vectorised_black_box_fit():
    def many(x, batch):
        return np.mean(np.abs(batch - x[:, None]).sum(axis=2), axis=1)

    box, problem, method = single(3, many, vectorized=True)
    report, made = checked(box, problem, method, calls=60)
    assert made <= 60
    assert report["calls"].data["left_out"] == []
    assert report["lipschitz"].data["high"] == pytest.approx(np.sqrt(3), rel=0.01)


@pytest.mark.slow("estimates slopes by thousands of calls")
def test_the_calls_of_slopes_are_known_beforehand():
    box, problem, method = single(3)
    for calls, fits in ((15_000, True), (14_400, False)):
        report, made = checked(box, problem, method, calls=calls)
        assert made <= calls
        assert ("lipschitz" in [finding.about for finding in report.findings]) == fits


@pytest.mark.slow("solves lower levels by differences")
def test_a_lower_black_box_is_called_within_the_budget():
    """Its accurate solutions take a number of calls that nobody knows beforehand."""
    box = fz.blackbox(lambda x, y, batch: float(np.sum((y - x[:2]) ** 2)), mean=True)
    problem = fz.Bilevel(
        lambda x, y, batch: jnp.mean(jnp.abs(batch - x)) + jnp.sum(y), box, data(3), np.zeros(3), np.zeros(2),
        modulus=2.0, smoothness=2.0,
    )  # fmt: skip
    method = fz.FedRZObl(1e-3, 0.01, lower=fz.FedRZOnn(0.1, 0.01), lower_rounds=2, closing=False)
    report, made = checked(box, problem, method)
    found = report["calls"].data
    assert made == found["made"] <= found["allowed"]
    assert "the loss around x0" in found["left_out"]


def test_a_black_box_that_diverges_is_told_without_more_calls():
    def cliff(x, batch):
        return np.inf if abs(x[0]) > 1 else distance(x, batch)

    box, problem, _ = single(3, cliff)
    report, made = checked(box, problem, fz.FedRZOnn(1e6, 0.01))
    assert made <= report["calls"].data["allowed"]
    with pytest.raises(fz.DivergedError, match=r"^stopped after round \d: x is no longer finite"):
        report.raise_problem()


def score(x, batch):
    """One minus an F1 score: no sample is called positive unless x is large."""
    positive, called = batch[:, 0] > 1, batch @ x > 50
    hits = np.sum(positive & called)
    return 1 - 2 * hits / max(1, np.sum(positive) + np.sum(called))


@pytest.mark.parametrize(
    ("options", "batch_size", "level", "words"),
    [
        (
            {},
            1,
            "note",
            'cannot be told whether it is a mean over its batch: .*; pass batch_size="full", which needs no',
        ),
        ({}, "full", "ok", "cannot be told whether it is a mean over its batch: .* which it need not be"),
        ({"mean": True}, 1, "ok", "a mean over its batch, as stated: its values do not tell"),
    ],
    ids=["small batches", "whole batches", "stated"],
)
def test_a_score_that_is_zero_wherever_it_was_asked_is_not_called_a_mean(options, batch_size, level, words):
    box, problem, _ = single(3, score, **options)
    report, _ = checked(box, problem, fz.FedRZOnn(1e-3, 0.01, batch_size=batch_size), rounds=0)
    [finding] = [finding for finding in report.findings if "mean over its batch" in finding.text]
    assert finding.level == level
    assert re.search(words, finding.text)


def test_calls_are_said_before_they_are_made(capsys):
    said = []

    def spy(x, batch):
        said.append(capsys.readouterr().err)
        return distance(x, batch)

    _, problem, method = single(3, spy)
    report = fz.check(problem, method, rounds=0, progress=True)
    assert said[0] == "fz.check: at most 98 calls of the black box; a run of ten rounds takes 98\n"
    assert report["calls"].data["allowed"] == 98


def test_bad_limits_are_refused():
    _, problem, _ = single(3)
    with pytest.raises(fz.InputError, match=r"^calls: found 0; pass a whole number of at least 1$"):
        fz.check(problem, calls=0)
    plain = fz.Nonsmooth(lambda x, batch: jnp.mean((x - batch) ** 2), data(3), np.zeros(3))
    with pytest.raises(fz.InputError, match=r"^calls: found 50, but no loss is a black box; leave it out$"):
        fz.check(plain, calls=50)


def test_the_command_has_the_same_limit(tmp_path, capsys):
    file = tmp_path / "toy.py"
    file.write_text(
        "import numpy as np, fedrzo as fz\n"
        "loss = fz.blackbox(lambda x, batch: float(np.mean(np.abs(x - batch))))\n"
        "problem = fz.Nonsmooth(loss, fz.ClientData([np.arange(3.0)]), np.zeros(()))\n"
    )
    assert main(["check", str(file), "--calls", "9", "--rounds", "2"]) == 0
    assert "calls: 1 of the black box, 9 allowed; " in capsys.readouterr().out
