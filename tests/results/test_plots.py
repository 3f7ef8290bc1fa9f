import matplotlib
import numpy as np
import pytest

import fedrzo as fz
from fedrzo import plots
from fedrzo.errors import InputError
from fedrzo.results import figure as picture
from fedrzo.results.history import History
from fedrzo.results.result import Result
from fedrzo.results.sweep import Sweep
from records import STEPS, diverged, history, surface


def test_one_panel_per_cost_and_one_line_per_label():
    figure = plots.curves({"a": [history(0)], "b": [history(1, gradients=10)]})
    assert [panel.get_xlabel() for panel in figure.axes] == [
        "communication rounds", "upload + download [MB]", "loss evaluations (1 gradient = 3)"
    ]  # fmt: skip
    ends = [[line.get_xdata()[-1] for line in panel.lines] for panel in figure.axes]
    assert ends == [[10, 10], [30, 30], [1000, 1300]]
    assert figure.axes[0].get_ylabel() == "loss, log scale"
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
    np.testing.assert_allclose([at_five.min(), at_five.max()], losses[:, 5].mean() + half * np.array([-1, 1]), rtol=1e-6)


def test_two_seeds_are_their_mean_and_themselves():
    seeds = [history(0), history(1)]
    [panel] = plots.curves({"a": seeds, "b": [history(9)]}, against=("round",)).axes
    assert not panel.collections  # an interval of two values would be a blob
    mean, _, *runs = panel.lines
    losses = np.array([one["loss"] for one in seeds])
    np.testing.assert_allclose(mean.get_ydata(), losses.mean(axis=0))
    np.testing.assert_array_equal([run.get_ydata() for run in runs], losses)
    assert {run.get_color() for run in runs} == {mean.get_color()}
    assert max(run.get_linewidth() for run in runs) < mean.get_linewidth() / 2


def with_losses(losses, metric="loss"):
    return History({**history(rows=len(losses)).to_dict(), metric: list(losses)})


@pytest.mark.parametrize(("start", "end"), [(55.0, 3.4), (1.05, 0.1), (2.0, 0.2), (3e4, 7.0), (1.05, 3e-7)])
def test_no_value_lies_beyond_the_labels_of_a_logarithmic_axis(start, end):
    figure = plots.curves({"a": [with_losses(np.geomspace(start, end, 20))]}, against=("round",))
    plots.encode(figure, "svg")
    axis = figure.axes[0].yaxis
    low, high = figure.axes[0].get_ylim()
    labelled = [tick.get_loc() for tick in axis.get_major_ticks() if tick.label1.get_text()]
    shown = sorted(value for value in labelled if low * 0.999 <= value <= high * 1.001)
    assert shown[0] <= end < start <= shown[-1]
    assert 3 <= len(shown) <= 13
    assert not any(tick.label1.get_text() for tick in axis.get_minor_ticks())


def test_one_of_two_runs_may_be_below_zero_on_a_logarithmic_axis():
    runs = [with_losses([100.0, 10.0, 6.0]), with_losses([100.0, 10.0, -2.0])]
    figure = plots.curves({"a": runs}, against=("round",))
    plots.encode(figure, "svg")
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_ylim() == pytest.approx((0.1, 200))  # a tenth of the mean, 2, and the next label above 100


def test_values_within_a_factor_of_ten_have_a_linear_axis():
    assert plots.curves({"a": [with_losses([9.9, 1.0])]}).axes[0].get_yscale() == "linear"
    assert plots.curves({"a": [with_losses([10.1, 1.0])]}).axes[0].get_yscale() == "log"


def test_a_distance_to_sets_is_called_that_and_has_no_band_below_zero():
    runs = [with_losses([0.0, 0.001, end], "feasibility") for end in (0.0, 0.0, 0.3)]
    [panel] = plots.curves({"a": runs}, "feasibility", against=("round",)).axes
    assert panel.get_ylabel() == "infeasibility (distance to sets)"
    [band] = panel.collections
    assert band.get_paths()[0].vertices[:, 1].min() == 0
    below = [with_losses([1.0, -0.001, end]) for end in (0.0, 0.0, 0.3)]
    [band] = plots.curves({"a": below}, against=("round",)).axes[0].collections  # a loss may well be below zero
    assert band.get_paths()[0].vertices[:, 1].min() < -0.1


def test_a_sweep_of_one_setting_is_called_by_its_method():
    spec = {"method": str(fz.FedRZOnn(stepsize=0.01, smoothing=0.1))}
    results = [Result(0.0, 0.0, 0.0, 0, history(seed), spec) for seed in (0, 1)]
    figure = Sweep([{}], [results]).plot()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedRZOnn"]


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
    for losses in ([np.nan] * STEPS, [1e200] * (STEPS - 1) + [1e308]):
        lost = History({**history().to_dict(), "loss": losses})
        plots.encode(plots.curves({"lost": [lost, lost]}), "svg")
        shown = picture.prepare({"lost": [lost, lost], "b": [history(1)], "c": [history(2)]})
        assert shown.limits[1] < 2
        plots.encode(plots.draw(shown), "svg")
    assert (tmp_path / "start.png").stat().st_size > 5_000


def test_curves_that_explode_leave_the_picture_to_the_others():
    runs = {"a": [history(0), history(1)], "b": [history(2), diverged(3, np.inf)]}
    shown = picture.prepare(runs)
    assert [curve.diverged for curve in shown.curves] == [0, 1]
    assert np.isnan(shown.curves[1].mean[6:]).all()
    assert shown.curves[1].mean[5] > 1e8
    low, high = shown.limits
    assert 0 < low < min(history(seed)["loss"].min() for seed in (0, 1))
    assert 1 < high < 2
    bottom, top = plots.draw(shown).axes[0].get_ylim()
    assert low / 2.5 < bottom < low < high < top < 2.5 * high
    assert picture.prepare({"a": runs["a"]}).limits is None
    assert picture.prepare({"b": runs["b"]}).limits is None
    negative = picture.prepare({"a": [history(0, sign=-1.0)], "b": [diverged(1)]}).limits
    rising = diverged(3, 1e9)  # finite to the end
    assert picture.prepare({**runs, "b": [rising]}).limits is None  # half of the curves are no exception
    assert picture.prepare({**runs, "b": [rising], "c": [history(4)]}).limits[1] < 2
    tiny = History({**history().to_dict(), "loss": [-1e-3, *[-40.0] * (STEPS - 1)]})
    assert picture.prepare({"a": [history(sign=-1.0)], "b": [tiny]}).limits is None  # far down is not exploded
    assert negative[0] < -1
    assert negative[1] > -0.1


def test_long_histories_are_thinned_to_what_can_be_seen():
    [curve] = picture.prepare({"a": [history(rows=5001)]}, rows=1000).curves
    assert [curve.costs["round"][i] for i in (0, -1)] == [0, 5000]
    assert len(curve.mean) == 1000
    assert len(picture.prepare({"a": [history(rows=999)]}, rows=1000).curves[0].mean) == 999


def test_labels_are_texts_and_nothing_else():
    labels = ["_hidden", "$\\frac{$", "<b>bold</b>"]
    figure = plots.curves({label: [history(i)] for i, label in enumerate(labels)}, against=("round",))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == labels
    assert plots.encode(figure, "svg").endswith(b"</svg>\n")


@pytest.mark.parametrize(("colours", "page"), [(picture.COLOURS, "#FFFFFF"), (picture.DARK_COLOURS, "#12161C")])
def test_every_colour_stands_out_from_its_page(colours, page):
    def luminance(colour):
        shares = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    for colour in colours:
        low, high = sorted([luminance(colour), luminance(page)])
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_a_surface_is_drawn_twice():
    figure = plots.surface(surface())
    solid, flat, bar = figure.axes
    assert (solid.get_xlabel(), solid.get_ylabel(), solid.get_zlabel()) == ("u", "v", "f")
    assert (flat.get_xlabel(), flat.get_ylabel(), bar.get_ylabel()) == ("u", "v", "f")
    np.testing.assert_array_equal(flat.collections[0].get_array(), np.array(surface().z))
    assert plots.encode(figure, "png") == plots.encode(plots.surface(surface()), "png")


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
        ({"a": [history(rows=0)]}, {}, "groups: the histories of 'a' are empty; pass runs of at least one row"),
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


def test_a_search_is_drawn_as_a_step_not_as_a_slope():
    """Until it has ended there is nothing but x0; the cost of it is spent by then."""
    columns = {"round": [0, 0, 1, 2], "loss": [9.0, 4.0, 3.0, 2.0], "evaluations": [0, 50, 60, 70], "gradients": [0] * 4}
    columns |= {"upload_bytes": [0, 5, 6, 7], "download_bytes": [0, 5, 6, 7]}
    [curve] = picture.prepare({"auto": [History(columns)] * 2}).curves
    assert list(curve.mean) == [9, 9, 4, 3, 2]
    assert list(curve.costs["evaluations"]) == [0, 50, 50, 60, 70]
    assert list(curve.costs["round"]) == [0, 0, 0, 1, 2]
    [plain] = picture.prepare({"given": [History({**columns, "round": [0, 1, 2, 3]})]}).curves
    assert list(plain.mean) == columns["loss"]
