import matplotlib
import numpy as np
import pytest

from fedrzo import plots
from fedrzo.errors import InputError
from fedrzo.results import History

STEPS = 11


def history(seed=0, sign=1.0, gradients=0, rows=STEPS):
    steps = np.arange(rows)
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, rows)
    columns = {
        "round": steps, "upload_bytes": 1_000_000 * steps, "download_bytes": 2_000_000 * steps,
        "evaluations": 100 * steps, "gradients": gradients * steps, "seconds": 0.1 * steps,
        "loss": sign * noise * 0.8**steps,
    }  # fmt: skip
    return History({name: values.tolist() for name, values in columns.items()})


def test_one_panel_per_cost_and_one_line_per_label():
    figure = plots.curves({"a": [history(0)], "b": [history(1, gradients=10)]})
    assert [panel.get_xlabel() for panel in figure.axes] == [
        "communication rounds", "upload + download [MB]", "loss evaluations (1 gradient = 3)"
    ]  # fmt: skip
    ends = [[line.get_xdata()[-1] for line in panel.lines] for panel in figure.axes]
    assert ends == [[10, 10], [30, 30], [1000, 1300]]
    assert figure.axes[0].get_ylabel() == "loss"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert not any(panel.collections for panel in figure.axes)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), history(0)["loss"])


def test_lines_differ_in_colour_and_in_style():
    figure = plots.curves({f"curve {i}": [history(i)] for i in range(8)}, against=("round",))
    looks = {(line.get_color(), str(line._dash_pattern)) for line in figure.axes[0].lines}
    assert len(looks) == 8


def test_several_seeds_are_a_mean_and_a_band():
    seeds = [history(seed) for seed in range(4)]
    figure = plots.curves({"a": seeds, "b": [history(9)]}, against=("round",))
    [panel] = figure.axes
    losses = np.array([one["loss"] for one in seeds])
    np.testing.assert_allclose(panel.lines[0].get_ydata(), losses.mean(axis=0))
    [band] = panel.collections
    corners = band.get_paths()[0].vertices
    half = 3.182446 * losses[:, 5].std(ddof=1) / 2  # Student's t with 3 degrees of freedom, over sqrt(4)
    at_five = corners[corners[:, 0] == 5][:, 1]
    np.testing.assert_allclose(
        [at_five.min(), at_five.max()], losses[:, 5].mean() + half * np.array([-1, 1]), rtol=1e-6
    )


def test_the_axis_is_logarithmic_only_for_positive_values():
    assert plots.curves({"a": [history()]}).axes[0].get_yscale() == "log"
    assert plots.curves({"a": [history()]}, log=False).axes[0].get_yscale() == "linear"
    assert plots.curves({"a": [history()], "b": [history(sign=-1.0)]}).axes[0].get_yscale() == "linear"


def test_runs_that_diverged_or_did_nothing_are_drawn(tmp_path):
    broken = history().to_dict()
    broken["loss"][5:] = [float("nan")] * (STEPS - 5)
    figure = plots.curves({"a": [History(broken)], "b": [history(), History(broken)]})
    plots.save(figure, tmp_path / "broken")
    plots.save(plots.curves({"start": [history(rows=1)]}), tmp_path / "start")
    assert (tmp_path / "start.png").stat().st_size > 5_000


def test_files_are_whole_readable_and_reproducible(tmp_path):
    for name in ("a.b", "again"):
        plots.save(plots.curves({"a": [history(0), history(1)]}), tmp_path / name)
    assert (tmp_path / "a.b.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.b.png").stat().st_size > 20_000
    assert b"</svg>" in (tmp_path / "a.b.svg").read_bytes()
    for suffix in ("png", "svg"):
        assert (tmp_path / f"a.b.{suffix}").read_bytes() == (tmp_path / f"again.{suffix}").read_bytes()


def test_nothing_global_is_left_behind():
    before = dict(matplotlib.rcParams)
    plots.curves({"a": [history()]})
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("groups", "options", "expected"),
    [
        ({}, {}, "groups: found {}; pass at least one history for each label"),
        ({"a": []}, {}, "groups: found {'a': []}; pass at least one history for each label"),
        ({"a": [history()]}, {"against": ("rounds",)}, "against: found 'rounds'; did you mean 'round'?"),
        ({"a": [history()]}, {"against": "round"}, "against: found 'round'; pass a list such as ['round', 'bytes']"),
        ({"a": [history()]}, {"metric": "los"}, "history: no column 'los'; did you mean 'loss'?"),
        ({"a": [history(), history(rows=3)]}, {},
         "groups: the histories of 'a' have [11, 3] rows; pass runs of equal length"),
    ],
)  # fmt: skip
def test_mistakes_are_named(groups, options, expected):
    with pytest.raises(InputError) as caught:
        plots.curves(groups, **options)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("largest", "unit"), [(0, (1, "B")), (999, (1, "B")), (1000, (1e3, "kB")), (5e7, (1e6, "MB")), (1e20, (1e15, "PB"))]
)
def test_bytes_are_read_in_their_unit(largest, unit):
    assert plots.bytes_unit(largest) == unit
