"""Results that explain themselves: why a run stopped, what was certified, how a stepsize was found."""

import math

import numpy as np
import pytest

import fedrzo as fz
from fedrzo.federation.protocol import Cost
from fedrzo.results.bounds import Bound
from fedrzo.results.result import Trial, Tuning
from fedrzo.running.checkpoint import Checkpoint
from fedrzo.zoo import toys

METHOD = fz.FedRZOnn(0.02, 0.1, 3)


def go(rounds=4, method=METHOD, **options):
    return fz.run(method, toys.quadratic(3, 4), rounds, progress=False, **options)


def shown(result, name):
    """The lines of a printed result that belong to a name: its own, and those below without one."""
    lines, found = repr(result).splitlines()[1:], []
    for line in lines:
        words = line.split(maxsplit=1)
        own = not line.startswith("   ")
        if (own and words[0] == name) or (found and not own):
            found.append(words[1] if own else line.strip())
        elif found:
            break
    return found


def test_all_rounds_are_done(tmp_path):
    result = go(checkpoint=tmp_path / "stored")
    assert result.stopped == "all rounds are done: 4"
    assert shown(result, "stopped") == [result.stopped]
    assert f"<td>stopped</td><td>{result.stopped}</td>" in result._repr_html_()
    result.save(tmp_path / "kept")
    assert fz.Result.load(tmp_path / "kept").stopped == result.stopped
    assert Checkpoint.read(tmp_path / "stored").stopped == result.stopped


def test_a_function_said_stop():
    assert go(40, stop=lambda row: row["round"] >= 2).stopped == "stop= returned True after round 2 of 40"


@pytest.mark.filterwarnings("ignore:privacy")
def test_a_privacy_budget_is_spent():
    promise = fz.Privacy(epsilon=3.0, noise=4.0, simulation=True)
    result = go(10_000, fz.FedRZOnn(0.02, 0.1, 1, privacy=promise), eval_every=10_000)
    done = int(result.history["round"][-1])
    assert 0 < done < 10_000
    assert result.stopped == f"the privacy budget, epsilon = 3, is spent after round {done} of 10000"


def test_what_an_older_version_saved_says_nothing():
    result = fz.Result(1, 1, 1, 0, go().history, {"method": "a"})
    assert result.stopped is None
    assert "stopped" not in repr(result)
    assert result.certificates == []


def test_certificates_are_rows(tmp_path):
    result = go(400, stop=fz.certified(0.1, 10))
    history = result.history
    last = int(history["round"][-1])
    rounds = list(range(10, last + 1, 10))
    uppers = [history["certificate_upper"][list(history["round"]).index(r)] for r in rounds]
    assert result.certificates == [Bound(r, upper, 0.95, 0.1) for r, upper in zip(rounds, uppers, strict=True)]
    certified = f"certified after round {last} of 400"
    assert result.stopped == f"{certified}: |grad| <= {uppers[-1]:.4g} at smoothing 0.1, asked for was 0.1"
    head, *rows = [line.split("  ") for line in shown(result, "certificates")]
    assert [word.strip() for word in head if word] == ["round", "|grad| is at most", "confidence", "smoothing"]
    assert rows[-1][0].split()[0] == str(last)
    assert [cell.strip() for cell in rows[-1] if cell] == [str(last), f"{uppers[-1]:.4g}", "95 %", "0.1"]
    [cost] = shown(result, "certifying")
    assert f"{int(history['certificate_evaluations'][-1]):,} evaluations" in cost
    assert "certificate_" not in repr(result)
    result.save(tmp_path)
    assert fz.Result.load(tmp_path).certificates == result.certificates


def test_a_certificate_prints_its_cost_in_units():
    certificate = fz.certify(toys.quadratic(3, 4), np.zeros(4), 0.1)
    [cost] = [line for line in repr(certificate).splitlines() if line.startswith("  cost ")]
    assert f"{certificate.cost.evaluations:,} evaluations" in cost
    assert " kB up, " in cost
    assert "<td>meaning</td>" in certificate._repr_html_()


TRIALS = (Trial(0.1, 4, 2.0), Trial(0.01, 4, 3.0), Trial(1.0, 4, math.inf), Trial(0.1, 8, 1.5), Trial(0.05, 8, 1.25))


def tuning(stepsize):
    return Tuning(stepsize, 0.02, 4.0, TRIALS, Cost(upload_bytes=12_000, download_bytes=2_000_000, evaluations=12_345))


def test_a_tuning_is_a_small_table():
    assert repr(tuning(0.05)).splitlines() == [
        "Tuning: stepsize 0.05 was chosen, the theory's is 0.02; the loss at x0 is 4",
        "  stepsize  rounds  loss",
        "  0.01      4       3",
        "  0.1       4       2",
        "  1         4       lost",
        "  0.05      8       1.25  <- chosen",
        "  0.1       8       1.5",
        "  cost: 12 kB up, 2 MB down, 12,345 evaluations",
    ]
    assert repr(tuning(0.025)).splitlines()[-2].split() == ["0.025", "the", "run", "<-", "chosen"]
    html = tuning(0.05)._repr_html_()
    assert "<td>0.05</td><td>8</td><td>1.25</td><td>&lt;- chosen</td>" in html
    assert "12,345 evaluations" in html
