"""Every figure's code, from runs to claims, on small data; `make reproduce` does it on the real ones."""

import contextlib
import functools
import json

import numpy as np
import pytest

from fedrzo.cli.main import main
from fedrzo.cli.reproduce import REPRODUCTIONS
from fedrzo.paper import fig1, fig2, fig3, fig4, fig5, fig6, fig7
from fedrzo.paper.record import Curves, Record
from fedrzo.paper.reproduction import Reproduction
from fedrzo.zoo import bilevel, cournot, fair, relu


@pytest.fixture
def small(monkeypatch):
    """Scikit-learn's digits in place of MNIST and CIFAR-10, few rounds, two followers."""
    monkeypatch.setattr(relu, "relu_mnist", relu.relu_digits)
    monkeypatch.setattr(relu, "relu_cifar10", relu.relu_digits)
    monkeypatch.setattr(bilevel, "hyper_mnist", bilevel.hyper_digits)
    monkeypatch.setattr(fair, "fair_mnist", fair.fair_digits)
    monkeypatch.setattr(fig1, "QUICK_ROUNDS", 6)
    monkeypatch.setattr(fig2, "BETAS", (50.0,))
    monkeypatch.setattr(fig2, "SPLITS", ("dirichlet",))
    monkeypatch.setattr(fig3, "NEURONS", (2, 4))
    monkeypatch.setattr(fig4, "DIRECT_ROUNDS", 10)
    monkeypatch.setattr(fig6, "GAMES", ((10, 1.0, 0.5),))


FAST = (fig7,)
SLOW = tuple(
    pytest.param(module, marks=pytest.mark.slow("compiles many programs")) for module in (fig1, fig2, fig3, fig4, fig5, fig6)
)  # many programs each


@pytest.mark.parametrize("module", [*FAST, *SLOW], ids=lambda m: m.__name__[-4:])
def test_a_figure_ends_in_a_record(module, small, tmp_path):
    name = module.__name__.rsplit(".", 1)[1]
    record = module.run(Reproduction(name, quick=True, out=tmp_path, progress=False))
    assert record.figures
    assert record.claims
    assert all(setting.reason for setting in record.settings)
    for figure in record.figures:
        if isinstance(figure, Curves):
            for label, runs in figure.groups.items():
                assert len(runs) == len(record.seeds), label
                assert figure.metric in runs[0], label
    assert len(list((tmp_path / name).glob("*.png"))) == len(list((tmp_path / name).glob("*.svg"))) == len(record.figures)
    stored = Record.load(tmp_path / name)
    assert json.dumps(stored.to_dict()) == (tmp_path / name / "record.json").read_text()
    assert [claim.holds for claim in stored.claims] == [claim.holds for claim in record.claims]


@pytest.mark.slow("twelve runs of a figure")
def test_fig1_is_one_sweep_with_the_papers_settings(small, monkeypatch):
    calls = []
    sweep = Reproduction.sweep

    def counting(self, *arguments, **grid):
        calls.append(grid)
        return sweep(self, *arguments, **grid)

    monkeypatch.setattr(Reproduction, "sweep", counting)
    record = fig1.run(Reproduction("fig1", quick=True, progress=False))
    assert calls == [{"smoothing": [0.1, 0.01, 0.001], "local_steps": [1, 5, 10, 20]}]
    named = {setting.name: setting.value for setting in record.settings}
    assert (named["gamma"], named["lambda"], named["clients m"], named["neurons N1"]) == (1e-5, 0.01, 5, 4)


@pytest.mark.slow("a figure's runs, twice")
def test_what_was_interrupted_is_continued(small, tmp_path, monkeypatch, capsys):
    """The second of fig6's two sweeps is interrupted; the next call does not run the first again."""
    straight = fig6.run(Reproduction("fig6", quick=True, progress=False))
    make = cournot.cournot
    count = []

    def breaking(*arguments, **options):
        count.append(1)
        if len(count) == 2:
            raise KeyboardInterrupt
        return make(*arguments, **options)

    monkeypatch.setattr(cournot, "cournot", breaking)
    with contextlib.suppress(KeyboardInterrupt):  # whether it is passed on is the command line library's affair
        assert main(["reproduce", "fig6", "--quick", "--quiet", "--out", str(tmp_path)]) != 0
    assert "the same command goes on" in capsys.readouterr().err
    kept = tmp_path / "fig6" / "quick" / "10-followers-paper" / "checkpoint.npz"
    before = kept.stat().st_mtime_ns
    again = fig6.run(Reproduction("fig6", quick=True, out=tmp_path, progress=False))
    for old, new in zip(straight.figures, again.figures, strict=True):
        for label in old.groups:
            for a, b in zip(old.groups[label], new.groups[label], strict=True):
                np.testing.assert_array_equal(a["loss"], b["loss"])
    assert kept.stat().st_mtime_ns >= before


def test_small_results_are_kept_too(tmp_path):
    reproduction = Reproduction("table4", out=tmp_path, progress=False)
    calls = []

    def compute(value):
        calls.append(value)
        return {"value": value}

    for _ in range(2):
        assert reproduction.once("10 followers", functools.partial(compute, 3)) == {"value": 3}
    assert calls == [3]
    other = Reproduction("table4", seed=1, out=tmp_path, progress=False)
    assert other.once("10 followers", functools.partial(compute, 4)) == {"value": 4}


def test_data_are_looked_for_before_anything_is_run(tmp_path, capsys):
    assert main(["reproduce", "fig1", "--quick", "--data", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "mnist" in err.lower()
    assert err.count("\n") == 1


def test_budget_is_said_before_the_work_starts(small, capsys):
    fig7.run(Reproduction("fig7", quick=True))
    assert capsys.readouterr().err.startswith("fig7 (quick): 961 values, each with its lower level solved; about 6 s")


def test_every_name_of_the_contract_is_known():
    assert set(REPRODUCTIONS) == {"fig1", "fig2", "fig3", "fig4", "fig5", "table4", "fig6", "fig7", "published"}
