"""What `fz.check` finds: what is well, what is worth knowing, and what is wrong."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from fedrzo.checks.losses import losses, lower_mean
from fedrzo.checks.parts import sets
from fedrzo.cli.main import main

RNG = np.random.default_rng(0)
CLOUDS = [RNG.normal(size=(size, 2)) for size in (4, 3)]
DATA = fz.ClientData(CLOUDS)
METHOD = fz.FedRZOnn(0.01, 0.1, local_steps=2)
BILEVEL = fz.FedRZObl(0.01, 0.1, batch_size="full")
COSTS = ("lower_rounds", "upload_bytes", "download_bytes", "evaluations", "gradients", "lower_steps")


def mean_loss(x, batch):
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1))


def nonsmooth(loss=mean_loss, data=DATA, x0=None, **options):
    return fz.Nonsmooth(loss, data, np.zeros(2) if x0 is None else x0, **options)


def upper(x, y, batch):
    return jnp.mean(jnp.sum(jnp.abs(y - batch), axis=-1)) + 0.1 * jnp.sum(x**2)


def lower(x, y, batch):
    return jnp.mean(jnp.sum((y - x * batch) ** 2, axis=-1)) + 0.5 * y[0] ** 2


def revenue(x, y, xi):
    return -jnp.sum(x * y) + 0.1 * jnp.sum(xi)


def demand(x, y, xi):
    return jnp.array([3.0, 1.0]) * y - x - xi


def texts(report, about):
    return [(finding.level, finding.text) for finding in report.findings if finding.about == about]


@pytest.fixture(scope="module")
def good():
    return fz.check(nonsmooth(constraint=[fz.sets.Box(-1, 1), fz.sets.Ball(0, 2)]), METHOD, rounds=7)


@pytest.fixture(scope="module")
def bilevel():
    problem = fz.Bilevel(
        upper, lower, DATA, np.ones(2), np.zeros(2), lower_constraint=lambda x: fz.sets.Box(-1.0, x - 0.01),
        modulus=2.5, smoothness=2.6,
    )  # fmt: skip
    return problem, fz.check(problem, BILEVEL, rounds=9)


def test_a_good_problem_has_no_problems_and_reads_well(good):
    assert good.ok
    assert good.notes == ()
    lines = repr(good).splitlines()
    assert lines[0].endswith("by FedRZOnn(stepsize=0.01, smoothing=0.1, local_steps=2): no problems, no notes")
    assert "ok       x0: 2 numbers, float64" in lines
    assert "ok       data: 2 clients with 3 to 4 samples each" in lines
    assert "ok       constraint: 2 private sets; they have a point in common" in lines
    assert "ok       loss: a mean over its batch, as it should be" in lines
    assert all(line.startswith("ok       ") for line in lines[1:])
    low, high = good["lipschitz"].data.values()
    assert low <= np.sqrt(2) * (1 + 1e-6) <= high * (1 + 1e-5)  # every gradient of the loss is (+-1, +-1)


def test_a_report_is_data(good):
    stored = json.loads(json.dumps(good.to_dict()))
    assert stored["ok"] is True
    assert stored["rounds"] == 7
    assert {finding["about"] for finding in stored["findings"]} >= {"x0", "data", "loss", "lipschitz", "trial", "costs"}
    with pytest.raises(KeyError):
        good["nothing"]


def test_predicted_costs_are_those_of_a_run(good):
    problem = nonsmooth(constraint=[fz.sets.Box(-1, 1), fz.sets.Ball(0, 2)])
    result = fz.run(METHOD, problem, 7, progress=False)
    found = good["costs"].data
    assert found["exact"]
    assert {name: found[name] for name in COSTS} == {name: result.history.last[name] for name in COSTS}
    assert found["seconds"] > found["compile_seconds"] > 0
    assert good["trial"].data["before"] == result.history["loss"][0]
    assert good["trial"].data["after"] == result.history["loss"][3]  # the trial is the start of the run itself


@pytest.mark.slow("runs as long as those whose costs it predicts")
def test_costs_that_grow_are_predicted_nearly(bilevel):
    """The default plan of the lower level grows like a logarithm of the round."""
    problem, report = bilevel
    result = fz.run(BILEVEL, problem, 9, progress=False)
    assert not report["costs"].data["exact"]
    for name in COSTS:
        assert report["costs"].data[name] == pytest.approx(result.history.last[name], rel=0.03)


def test_a_lower_level_is_measured_and_compared(bilevel):
    """Its Hessian in y is diag(3, 2)."""
    _, report = bilevel
    assert report.ok
    assert report["lower"].data["modulus"][1] == pytest.approx(2.0)
    assert report["lower"].data["smoothness"][0] == pytest.approx(3.0)
    [(level, text)] = texts(report, "modulus")
    assert level == "note"
    assert text.startswith("2.5 was given, 2 measured on samples")
    assert texts(report, "smoothness")[0][1].startswith("2.6 was given, 3 measured on samples")
    assert texts(report, "lower_constraint") == [("ok", "Y(x) is not empty at x0 and 7 points up to 0.1 away")]


def test_a_lower_set_that_is_empty_nearby_is_found():
    """At x0 = (1, 1) it is a point, and empty wherever an entry of x is smaller."""
    problem = fz.Bilevel(upper, lower, DATA, np.ones(2), np.zeros(2), lower_constraint=lambda x: fz.sets.Box(0.0, x - 1.0))
    with problem.precision():
        [finding] = sets(problem, BILEVEL)
    assert finding.level == "note"
    assert "give a lower_domain on which it is not" in finding.text
    assert 0 < finding.data["empty"] < 8


@pytest.mark.slow("compiles a solver at many points")
def test_a_two_stage_problem_is_measured():
    scenarios = fz.ClientData([RNG.normal(size=(3, 2)), RNG.normal(size=(2, 2))])
    problem = fz.TwoStage(revenue, demand, scenarios, np.ones(2), np.zeros(2), lower_constraint=fz.sets.Box(0.0, 5.0))
    report = fz.check(problem, fz.FedRZO2s(0.01, 0.1), rounds=4)
    assert report.ok
    assert report["lower"].data == {"modulus": [1.0, 1.0], "smoothness": [3.0, 3.0]}
    assert texts(report, "lower_constraint") == [("ok", "Y(x) is not empty at x0 and 7 points up to 0.1 away")]
    assert report["costs"].data["exact"]


@pytest.mark.parametrize(
    ("problem", "level", "about", "words"),
    [
        (nonsmooth(lambda x, b: jnp.sum(jnp.abs(x - b))), "problem", "loss", "the sum of its samples' losses; return their"),
        (nonsmooth(lambda x, b: jnp.sum(jnp.abs(x - b)) + jnp.sum(x**2)), "problem", "loss", "mean of their losses is"),
        (nonsmooth(lambda x, b: jnp.sum((x - jnp.mean(b, axis=0)) ** 2)), "note", "loss", "wherever x is: steps do not see that"),
        (nonsmooth(lambda x, b: jnp.mean(b)), "problem", "loss", "check that it uses x"),
        (nonsmooth(lambda x, b: jnp.sum(jnp.abs(x))), "note", "loss", "check that it uses the batch"),
        (nonsmooth(lambda x, b: jnp.max(jnp.round(x) ** 2) + jnp.mean(b)), "note", "loss", "no step goes anywhere from there"),
        (nonsmooth(lambda x, b: jnp.mean(jnp.sqrt(x + 0.05)) + jnp.mean(b)), "problem", "loss", "are not finite, and a method"),
        (nonsmooth(lambda x, b: jnp.mean(b @ weights)), "problem", "loss", "NameError: name 'weights' is not defined"),  # noqa: F821
        (nonsmooth(data=fz.ClientData([CLOUDS[0], np.tile(CLOUDS[0], (11, 1))])), "note", "weights", 'pass weights="samples"'),
        (nonsmooth(constraint=fz.sets.Box(1, 2)), "note", "x0", "outside a client's set; it is projected first"),
        (nonsmooth(constraint=[fz.sets.Box(1, 2), fz.sets.Box(3, 4)]), "problem", "constraint", "no point in common"),
    ],
    ids=["sum", "sum and more", "of means", "no x", "no batch", "flat", "nan near x0", "error", "unequal", "outside", "apart"],
)  # fmt: skip
def test_what_is_wrong_is_found(problem, level, about, words):
    report = fz.check(problem, METHOD, rounds=0)
    assert report.ok == (level != "problem")
    assert any(found == level and words in text for found, text in texts(report, about)), report
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if level == "problem":
            with pytest.raises(fz.FedrzoError, match=f"^{about}: "):
                report.raise_problem()
        else:
            report.raise_problem()


def residuals(x, batch):
    return jnp.mean(jnp.abs(batch[0] @ x - batch[1]))


COLUMN = [(cloud, cloud @ np.array([[2.0], [-1.0]])) for cloud in CLOUDS]  # targets of shape (n, 1)
ROW = [(cloud, targets[:, 0]) for cloud, targets in COLUMN]


@pytest.mark.parametrize(
    ("clients", "x0"),
    [(COLUMN, np.zeros(2)), (ROW, np.zeros((2, 1))), (ROW, np.zeros(2)), (ROW, np.zeros(2, np.float32))],
    ids=["column of targets", "column x0", "right", "right in float32"],
)
def test_samples_that_broadcast_against_each_other_are_found(clients, x0):
    """At x0 = 0 such a loss is right, and of one sample it is everywhere."""
    problem = nonsmooth(residuals, fz.ClientData(clients), x0)
    wrong = np.ndim(x0) != np.ndim(clients[0][1])
    with problem.precision():
        [finding] = [found for found in losses(problem, METHOD, 0) if "mean" in found.text]
    if not wrong:
        assert finding.level == "ok"
        return
    assert finding.level == "problem"
    assert finding.text.endswith("look at shapes: (n, 1) and (n,) broadcast to (n, n)")
    together, mean = finding.data.values()
    assert abs(together - mean) > 0.01


def test_a_lower_loss_that_is_no_mean_is_found():
    def fit(x, y, batch):
        return jnp.mean((batch[0] @ y - batch[1] - jnp.sum(x)) ** 2) + jnp.sum(y**2)

    right, wrong = (
        fz.Bilevel(fit, fit, fz.ClientData(ROW), np.zeros(2), np.zeros(2), lower_data=fz.ClientData(clients))
        for clients in (ROW, COLUMN)
    )
    with right.precision():
        assert lower_mean(right, METHOD, 0) == []
        [finding] = lower_mean(wrong, METHOD, 0)
    assert (finding.level, finding.about) == ("problem", "lower")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (METHOD, "use a larger smoothing, or another x0"),
        (fz.FedAvg(0.1), "FedAvg has no smoothing, so use a method by values, such as FedRZOnn, or another x0"),
    ],
)
def test_a_step_function_has_a_remedy_that_the_method_knows(method, words):
    """The steps are wider than what is asked near x0."""
    stairs = nonsmooth(lambda x, b: jnp.mean(jnp.sum(jnp.floor(x + 0.5) ** 2 + 0 * b, axis=-1)))
    with stairs.precision():
        [flat] = [finding.text for finding in losses(stairs, method, 0) if "no step goes anywhere" in finding.text]
    assert flat.endswith(f"from there; {words}")


@pytest.mark.slow("many checks")
def test_methods_are_looked_at_too():
    report = fz.check(nonsmooth(), fz.FedRZObl(0.1, 0.1))
    assert texts(report, "problem") == [("problem", "found Nonsmooth; FedRZObl solves Bilevel: use a method such as fz.FedRZOnn")]
    drawn = fz.check(nonsmooth(), fz.FedRZOnn(0.01, 0.1, batch_size=8), rounds=0)
    assert drawn["batch_size"].text.startswith("8 samples are drawn, with replacement, from as few as 3")
    smooth = nonsmooth(lambda x, b: jnp.mean((x - b) ** 2), constraint=fz.sets.Box(-1, 1))
    far = fz.check(smooth, fz.FedRZOnn(20.0, 0.1), rounds=5)
    assert far["stepsize"].level == "note"
    assert far.ok
    farther = fz.check(smooth, fz.FedRZOnn(1e9, 0.1, local_steps=50), rounds=5)
    with pytest.raises(fz.DivergedError, match=r"^stopped after round [012]: x is no longer finite"):
        farther.raise_problem()


@pytest.mark.slow("many checks")
def test_smooth_is_told_from_nonsmooth():
    smooth = fz.check(nonsmooth(lambda x, b: jnp.mean((x - b) ** 2)), METHOD, rounds=0)
    assert any("it looks smooth near x0" in text for _, text in texts(smooth, "loss"))
    at_a_kink = fz.check(nonsmooth(lambda x, b: jnp.mean(jnp.abs(x)) + jnp.mean(b)), METHOD, rounds=0)
    assert any("it has kinks, or jumps, near x0" in text for _, text in texts(at_a_kink, "loss"))


@pytest.mark.slow("several checks")
def test_rounding_in_single_precision_is_told():
    problem = nonsmooth(lambda x, b: 1e6 + jnp.mean(jnp.sum((x - b) ** 2, axis=-1)), x0=np.zeros(2, np.float32))
    report = fz.check(problem, fz.FedRZOnn(0.01, 1e-4), rounds=0)
    assert "or pass x0 in float64" in report["smoothing"].text


def test_samplers_and_black_boxes_that_do_not_do_what_they_should():
    constant = fz.Sampler(lambda key, client: jnp.full(2, np.random.default_rng(0).normal()), clients=2)
    assert fz.check(nonsmooth(data=constant), METHOD, rounds=0)["Sampler"].level == "note"
    drawn = fz.Sampler(lambda key, client: jax.random.normal(key, (2,)), clients=2)
    assert fz.check(nonsmooth(data=drawn), METHOD, rounds=0)["data"].level == "ok"
    noise = np.random.default_rng(0)
    noisy = fz.blackbox(lambda x, batch: float(np.abs(x - batch).mean() + 1e-3 * noise.normal()))
    report = fz.check(nonsmooth(noisy), METHOD, rounds=0)
    assert report.ok  # noise is not taken for a loss that is no mean
    finding = report["blackbox"]
    assert finding.level == "note"
    assert 1e-4 < finding.data["difference"] < 1e-2


def test_bad_arguments_are_refused():
    for arguments, message in (
        (("toy",), "problem: found str"),
        ((nonsmooth(), METHOD, 3, -1), "key: found -1"),
    ):
        with pytest.raises(fz.InputError, match=f"^{message}"):
            fz.check(*arguments)
    assert fz.check(nonsmooth(), METHOD, rounds=-1).problems[0].about == "rounds"


SUM = """\
import jax.numpy as jnp, numpy as np, fedrzo as fz
problem = fz.Nonsmooth(lambda x, b: jnp.sum(jnp.abs(x - b)), fz.ClientData([np.arange(3.0), np.arange(5.0)]), np.zeros(()))
rounds = 2
"""


@pytest.mark.slow("three runs from a cold start")
def test_solve_checks_first_and_can_be_told_not_to(tmp_path, capsys):
    file = tmp_path / "toy.py"
    file.write_text(SUM)
    assert main(["solve", str(file), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("fedrzo: loss: over a batch it is the sum of its samples' losses; return their mean")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["solve", str(file), "--json", "--no-check"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["history"]["round"] == [0, 1, 2]
    assert "fedrzo: warning: loss: over a batch it is the sum of its samples' losses; return their mean" in err
    assert main(["check", str(file), "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["ok"] is False
    file.write_text(SUM.replace("jnp.sum", "jnp.mean").replace("jnp.abs", "jnp.obs"))
    assert main(["check", str(file)]) == 2
    assert "problem  loss: toy.py, line 2: loss: calling loss(x, batch) failed: AttributeError" in capsys.readouterr().out
    file.write_text(SUM.replace("jnp.sum(jnp.abs(x - b))", "jnp.abs(x - b)"))  # no line of the file raises anything
    assert main(["solve", str(file), "--quiet"]) == 2
    assert capsys.readouterr().err == "fedrzo: loss: found shape (1,); it must return one number, the mean over its batch\n"


@pytest.mark.slow("two checks of sets given by functions")
def test_a_sublevel_set_that_is_not_convex_is_noticed():
    def notes(g):
        problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), DATA, np.full(2, 0.9), fz.sets.Sublevel(g))
        return [found.text for found in fz.check(problem, progress=False).findings if found.about == "constraint"]

    DATA = fz.ClientData([np.ones((4, 2)), np.zeros((3, 2))])
    assert any("not convex" in text for text in notes(lambda x: 1 - x @ x))
    assert not any("not convex" in text for text in notes(lambda x: x @ x - 2))
