"""What holds for every run of a valid problem. `examine` returns the broken ones in words."""

import dataclasses
import tempfile
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import fedrzo as fz

from . import costs, regions, trees
from .answers import Answers
from .build import Built, build, paired
from .case import Case

COSTS = ("round", "lower_rounds", "upload_bytes", "download_bytes", "evaluations", "gradients")


def deserved(built: Built, text: str) -> bool:
    """Return whether the documentation announces this warning or note for the case."""
    case = built.case
    announced = {
        "the end is worse than the start": True,  # a few noisy steps
        "outside of its domain the loss": bool(case.domain),
        "the coupling constraints are broken": case.coupling,
        "it is the same for each of the few samples": case.language != "jax",  # equal samples, or one
        "y0: found a point": bool(case.moves),
        "privacy: the noise of client": "privacy" in case.options,
        "the sets barely meet": regions.meet(built.x_regions).thin,
    }
    return any(words in text and here for words, here in announced.items())


def failures(case: Case) -> list[str]:
    """Return what is wrong with a case, one line each, errors included."""
    try:
        return examine(case)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error).strip().split("\n")[0][:300]
        return [f"{type(error).__name__}: {text} ({place.filename.rsplit('/', 1)[-1]}:{place.lineno})"]


def examine(case: Case) -> list[str]:
    """Run a case and return what is wrong, one line each; errors are raised."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = build(case)
        result = run(built)
        answers = Answers(built)
        for check in CHECKS:
            found += check(built, answers, result)
        for question in case.ask:
            found += QUESTIONS[question](built, result)
    words = {f"{each.category.__name__}: {each.message}" for each in caught}
    return found + [f"a warning: {text}" for text in sorted(words) if not deserved(built, text)]


def run(built: Built, **changes: Any) -> fz.Result:
    case = built.case
    options = {
        "rounds": case.rounds,
        "key": case.key,
        "engine": case.engine,
        "clients_per_round": case.clients_per_round,
        "eval_every": case.eval_every,
        "progress": False,
    }
    return fz.run(built.method, built.problem, **(options | changes))


def single(case: Case) -> bool:
    """Return whether the run computes in float32."""
    return case.kind == "nonsmooth" and case.x_type == "float32"


def check_shapes(built: Built, answers: Answers, result: fz.Result) -> list[str]:
    """x, x_feasible and y have the structure and the shapes of x0 and y0."""
    found = []
    for name, tree in (("x", built.case.x), ("x_feasible", built.case.x), ("x_random", built.case.x), ("y", built.case.y)):
        value = getattr(result, name)
        if name == "y" and built.case.kind in ("nonsmooth", "twostage"):
            if value is not None:
                found.append(f"{name} is {value}, not None")
            continue
        shapes = by_shape(trees.fill(tree, [np.zeros(trees.shape(leaf)) for leaf in trees.leaves(tree)]))
        if repr(by_shape(value)) != repr(shapes):
            found.append(f"{name} has shapes {by_shape(value)}, not {shapes}")
        if not np.isfinite(trees.flat(value)).all():
            found.append(f"{name} is not finite")
        if name[0] == "x" and built.case.kind == "nonsmooth":
            types = {str(np.asarray(leaf).dtype) for leaf in trees.leaves(value)}
            if types != {built.case.x_type}:
                found.append(f"{name} is of {types}, not {built.case.x_type}")
    return found


def by_shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: by_shape(part) for name, part in sorted(value.items())}
    if isinstance(value, list | tuple):
        return type(value)([by_shape(part) for part in value])
    return np.shape(value)


def check_losses(built: Built, answers: Answers, result: fz.Result) -> list[str]:
    """The monitored losses are NumPy's at x0, x and x_feasible."""
    case, found = built.case, []
    if "privacy" in case.options and not case.options["privacy"].get("simulation"):
        return ["a private run monitors the loss"] if "loss" in result.history else []
    x, safe, last = trees.flat(result.x), trees.flat(result.x_feasible), result.history.last
    relative = 1e-4 if single(case) else 1e-7

    def compare(name: str, value: float, true: float) -> None:
        if not abs(value - true) <= relative * max(1.0, abs(true)):
            found.append(f"{name} is {value!r}, NumPy has {true!r}")

    compare("the loss at x0", result.history["loss"][0], answers.loss(built.x0))
    compare("the loss at x", last["loss"], answers.loss(x))
    compare("the loss at x_feasible", result.loss_feasible, answers.loss(safe))
    if case.monitored:
        compare("a monitored loss", last["squares"], answers.loss(x, "smooth"))
    if case.test:
        compare("test_loss", last["test_loss"], answers.test_loss(x))
        compare("a metric", last["size"], float(np.linalg.norm(answers.inside(x))))
    if case.coupling:
        compare("violation", last["violation"], answers.violation(x))
    return found


def check_lower(built: Built, answers: Answers, result: fz.Result) -> list[str]:
    """y is NumPy's lower solution at x."""
    case, x, found = built.case, trees.flat(result.x), []
    if case.kind == "nonsmooth":
        return []
    if case.kind == "twostage":
        s = answers.samples[0][0]
        xi = trees.fill(case.samples, first_sample(built))
        value = result.lower((xi, 0.0 if built.fixed is None else built.fixed[0]) if paired(case) else xi, at="x")
        value = getattr(value, "y", value)
        true = answers.solution(x, s)
    else:
        value, true = result.y, answers.solution(x)
    error = abs(trees.flat(value) - true).max()
    if not error <= 1e-6 * max(1.0, abs(true).max()):
        found.append(f"y is {trees.flat(value)}, NumPy has {true}: {error:.1e} apart")
    return found


def first_sample(built: Built) -> list[np.ndarray]:
    return [leaf[0] for leaf in trees.leaves(built.clients[0])]


def check_feasible(built: Built, answers: Answers, result: fz.Result) -> list[str]:
    """x_feasible is the projection of x onto all sets in units of x, and `feasibility` the largest distance to a set."""
    x, safe, found = trees.flat(result.x), trees.flat(result.x_feasible), []
    extra = [each for each in (built.domain, built.lower_domain) if each is not None]
    everything = regions_of(built) + extra
    size, moved = max(1.0, abs(x).max()), float(np.linalg.norm(x - safe))
    tolerance = (1e-3 * (moved + size)) if single(built.case) else 1e-6 * moved + 1e-7 * size
    worst = max((each.violation(safe) for each in everything), default=0.0)
    if worst > 2 * tolerance:
        found.append(f"x_feasible is outside of a set by {worst:.1e}; documented: {tolerance:.1e}")
    off = regions.meet(everything).stationary(safe, (x - safe) / built.units**2, near=1e-5 if not single(built.case) else 3e-3)
    if off > (1e-2 if single(built.case) else 1e-4) * moved + 3 * tolerance:
        found.append(f"x_feasible is not the nearest point: x - x_feasible is {off:.1e} of {moved:.1e} off the normal cone")
    if built.case.sets and "feasibility" in result.history:
        distance = result.history["feasibility"][-1]
        least = max(each.violation(x) for each in everything)
        most = moved * built.units.max() / built.units.min()  # the nearest point of a set, too, is that in units of x
        if distance < least - 2 * tolerance or distance > most + 2 * tolerance:
            found.append(f"feasibility is {distance!r}; the distance is between {least!r} and {most!r}")
    return found


def regions_of(built: Built) -> list[Any]:
    return list(built.x_regions[:1]) if len(built.case.sets) <= 1 else list(built.x_regions)


def check_costs(built: Built, answers: Answers, result: fz.Result) -> list[str]:
    """Costs are those of docs/costs.md."""
    history, found = result.history, []
    below = int(history["lower_rounds"][-1] - history["lower_rounds"][0]) if "lower_rounds" in history else 0
    for column, value in costs.expected(built.case, built.case.rounds, below).items():
        counted = history[column][-1] - history[column][0]
        if counted != value:
            found.append(f"{column} grew by {counted}, counted anew it is {value}")
    for column in COSTS:
        if column in history and (np.diff(history[column]) < 0).any():
            found.append(f"{column} is not cumulative: {history[column]}")
    return found


def check_notes(built: Built, answers: Answers, result: fz.Result) -> list[str]:
    """No note that the problem does not deserve."""
    return [f"a note: {note}" for note in result.notes if not deserved(built, note)]


CHECKS = (check_shapes, check_losses, check_lower, check_feasible, check_costs, check_notes)


def same(name: str, one: fz.Result, other: fz.Result, case: Case, tolerance: float | None) -> list[str]:
    """Compare x, the costs and the losses of two runs; bit by bit without a tolerance."""
    found = []
    x, z = trees.flat(one.x), trees.flat(other.x)
    gap = float(abs(x - z).max())
    allowed = 0.0 if tolerance is None else tolerance * max(1.0, abs(x).max())
    if not gap <= allowed:
        found.append(f"{name}: x differs by {gap:.1e}, allowed {allowed:.1e}")
    for column in COSTS:
        if (column in one.history) != (column in other.history):
            found.append(f"{name}: only one run has {column}")
        elif column in one.history and not np.array_equal(one.history[column], other.history[column]):
            found.append(f"{name}: {column} is {one.history[column]} and {other.history[column]}")
    if "loss" in one.history:
        gap = float(abs(one.history["loss"] - other.history["loss"]).max())
        if not gap <= 10 * allowed:
            found.append(f"{name}: the losses differ by {gap:.1e}")
    return found


def drift(case: Case) -> float:
    """Return by how much runs that round differently may differ: documented in float64, the estimator's noise in float32."""
    if not single(case):
        return 1e-9
    n, steps = trees.length(case.x), case.rounds * costs.of_round(case.options.get("local_steps", 1), case.rounds)
    smoothing = case.options.get("smoothing", 0.1)
    return 1e-5 + 50 * steps * costs.of_round(case.options.get("stepsize", 0.01), 0) * n / (2 * smoothing) * 1.2e-7


def ask_loop(built: Built, result: fz.Result) -> list[str]:
    """The other engine gives the same run."""
    other = "loop" if built.case.engine == "simulation" else "simulation"
    return same(f"engine {other}", result, run(built, engine=other), built.case, drift(built.case))


def ask_resume(built: Built, result: fz.Result) -> list[str]:
    """A run that stops on its way and resumes is the straight run, bit by bit."""
    with tempfile.TemporaryDirectory() as folder:
        run(built, checkpoint=folder + "/run", stop=lambda row: row["round"] >= built.case.rounds // 2)
        again = run(built, checkpoint=folder + "/run", resume=True)
    return same("resumed", result, again, built.case, None)


def ask_again(built: Built, result: fz.Result) -> list[str]:
    """A second run of an equal problem, built anew, is the first, bit by bit."""
    return same("again", result, run(build(built.case)), built.case, None)


def ask_scalars(built: Built, result: fz.Result) -> list[str]:
    """Scalars instead of vectors change bytes alone."""
    case = built.case
    now = case.options.get("communication", "vectors")
    other = dataclasses.replace(case, options={**case.options, "communication": "vectors" if now == "scalars" else "scalars"})
    found = same("scalars and vectors", result, run(build(other)), case, drift(case))
    return [line for line in found if "load_bytes" not in line]


def ask_sweep(built: Built, result: fz.Result) -> list[str]:
    """One seed and one stepsize of a sweep are a run."""
    case = built.case
    stepsize = case.options["stepsize"]
    sweep = fz.sweep(
        built.method,
        built.problem,
        case.rounds,
        seeds=[case.key, case.key + 1],
        stepsize=[stepsize, 0.5 * stepsize],
        clients_per_round=case.clients_per_round,
        eval_every=case.eval_every,
        progress=False,
    )
    return same("sweep", result, sweep.results[0][0], case, drift(case))


def ask_check(built: Built, result: fz.Result) -> list[str]:
    """`fz.check` finds no problem."""
    return [f"fz.check: {problem}" for problem in fz.check(built.problem).problems]


def ask_save(built: Built, result: fz.Result) -> list[str]:
    """A saved result reads back."""
    with tempfile.TemporaryDirectory() as folder:
        result.save(folder + "/result")
        again = fz.Result.load(folder + "/result")
    found = same("saved", result, again, built.case, None)
    if repr(by_shape(again.x)) != repr(by_shape(result.x)):
        found.append(f"saved: x has shapes {by_shape(again.x)}, not {by_shape(result.x)}")
    return found


def swapped(kind: str) -> str:
    """Return a leaf's description with float32 for float64, or the other way round."""
    pair = ("float64", "float32") if kind.startswith("float64") else ("float32", "float64")
    return kind.replace(*pair)


def ask_threads(built: Built, result: fz.Result) -> list[str]:
    """The run is the same beside one of the other precision, of the same functions, in another thread."""
    case = built.case
    other = dataclasses.replace(
        case, x_type=swapped(case.x_type), samples=trees.fill(case.samples, map(swapped, trees.leaves(case.samples)))
    )
    cases = case, other
    pair = [build(case, built.functions) for case in cases]
    with ThreadPoolExecutor(2) as pool:
        again, _ = pool.map(run, pair)
    return same("beside another thread", result, again, built.case, None)


QUESTIONS: dict[str, Callable[[Built, fz.Result], list[str]]] = {
    "loop": ask_loop,
    "resume": ask_resume,
    "again": ask_again,
    "scalars": ask_scalars,
    "sweep": ask_sweep,
    "check": ask_check,
    "save": ask_save,
    "threads": ask_threads,
}
