"""Hypothesis strategies of descriptions: what the documentation calls a valid problem, a method that takes it, and a run."""

import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from . import trees
from .case import Case

Draw = Callable[[st.SearchStrategy], Any]
pick = st.sampled_from

SETS = ("box", "halfbox", "numbers", "ball", "simplex", "halfspace", "affine", "polyhedron", "sublevel", "sublevels", "reals")
MEETINGS = (
    "intersection(box, halfspace)",
    "intersection(halfbox, ball)",
    "intersection(simplex, polyhedron)",
    "intersection(affine, box)",
    "intersection(ball, affine)",
    "intersection(halfspace, sublevel)",
    "intersection(box, sublevel)",
    "intersection(numbers, sublevel)",
)
PRODUCTS = ("product(box, ball)", "product(simplex, halfspace)", "product(reals, affine)", "product(polyhedron, box)")
ONE_QUADRATIC = ("product(box, simplex)", "product(halfspace, box)", "product(reals, affine)")
TYPES = ("float64", "float32", "int32", "int64", "uint8", "bool")
UNBOUNDED = ("Scaffold", "Scaffnew", "FedZO", "DeComFL", "FedNest", "LFedNest", "SimFBO", "FedBiOAcc", "MemFBO")
BY_VALUES = ("FedRZOnn", "FedRZObl", "FedRZO2s", "ZSOL")
METHODS = {
    "nonsmooth": ("FedAvg", "FedProx", "FedMSPP", "Scaffold", "Scaffnew", "LocalSGD", "LFD", "FedAC", "FedZO", "DeComFL"),
    "bilevel": ("FedNest", "LFedNest", "SimFBO", "FedBiOAcc", "MemFBO"),
    "minimax": ("LocalSGDA", "FedNest"),
    "twostage": ("ZSOL",),
}
OURS = {"nonsmooth": "FedRZOnn", "bilevel": "FedRZObl", "minimax": "FedRZObl", "twostage": "FedRZO2s"}


def trees_of(leaf: st.SearchStrategy, many: bool = True) -> st.SearchStrategy:
    """Return trees with given leaves: one leaf, containers, and containers in containers."""
    flat = [leaf, st.tuples(leaf, leaf), st.fixed_dictionaries({"b": leaf, "a": leaf})]
    if not many:
        return st.one_of(flat)
    inner = st.one_of(flat)
    nested = [
        st.lists(leaf, min_size=1, max_size=3),
        st.fixed_dictionaries({"weights": inner, "bias": leaf}),
        st.tuples(leaf, inner),
        st.fixed_dictionaries({"z": st.fixed_dictionaries({"only": leaf}), "B": st.lists(inner, min_size=1, max_size=2)}),
    ]
    return st.one_of(leaf, leaf, *flat, *nested)


shapes = pick(("1", "2", "3", "5", "", "2x2", "3x1", "1x4", "2x1x2", "12"))
samples_shapes = pick(("", "1", "2", "3", "2x2", "1x3"))


def leaves_with_types(types: tuple[str, ...]) -> st.SearchStrategy:
    return st.builds(lambda kind, shape: f"{kind} {shape}".strip(), pick(types), samples_shapes)


def small(tree: Any) -> bool:
    return trees.length(tree) <= 30


@st.composite
def cases(draw: Draw, asks: bool = True) -> Case:
    """Draw a description; `asks` says whether other runs are compared with the first."""
    kind = draw(pick(("nonsmooth", "bilevel", "minimax", "twostage")))
    known = {"kind": kind, "seed": draw(st.integers(0, 10**6)), "x64": draw(st.booleans()), "key": draw(st.integers(0, 99))}
    known["method"] = draw(pick((OURS[kind], OURS[kind], draw(pick(METHODS[kind])))))
    ours = known["method"] in BY_VALUES
    known["x"] = draw(trees_of(shapes).filter(small))
    known["x_type"] = draw(pick(("float64", "float32")))
    known["loss"] = draw(pick(("absolute", "quantile", "waves", "smooth"))) if ours or known["method"] == "FedZO" else "smooth"
    known |= draw_data(draw, kind, known)
    if known["data"] == "sampler" and known["method"] in ("FedRZObl", "FedNest", "LFedNest"):
        known["data"] = "stored"  # these want whole batches by default
    if known["method"] not in UNBOUNDED:
        known |= draw_sets(draw, known, len(known["sizes"]))
    known["scale"] = draw(pick(("", "", "tree", "flat"))) if ours else ""
    known["test"] = kind != "twostage" and draw(st.booleans())
    known["monitored"] = kind == "nonsmooth" and draw(st.booleans())
    if kind != "nonsmooth":
        known |= draw_lower(draw, known)
    if ours and kind != "minimax":
        known["language"] = draw(pick(("jax", "jax", "jax", "blackbox", "vectorized")))
    known["pair"] = known["method"] == "FedRZOnn" and known.get("language", "jax") == "jax" and draw(pick((True, False, False)))
    known |= draw_run(draw, known)
    known |= draw_method(draw, known)
    known["ask"] = draw_questions(draw, Case(**known)) if asks else ()
    return Case(**known)


def draw_data(draw: Draw, kind: str, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"samples": draw(trees_of(leaves_with_types(TYPES), many=draw(st.booleans())))}
    clients = draw(st.integers(1, 7))
    sizes = draw(st.lists(pick((1, 2, 3, 5, 8)), min_size=clients, max_size=clients))
    if draw(st.booleans()):
        sizes[-1] = 1
    found["data"] = draw(pick(("stored", "stored", "stored", "shared", "sampler", "loader")))
    if found["data"] == "shared":
        sizes = sizes[:1] * clients
    found["sizes"] = tuple(sizes)
    if found["data"] == "stored":
        found["fixed"] = draw(st.none() | trees_of(leaves_with_types(TYPES[:3]), many=False))
        found["weights"] = draw(pick(("uniform", "samples")))
    return found


def names(draw: Draw, tree: Any, meetings: tuple[str, ...], products: tuple[str, ...]) -> str:
    groups = [SETS, meetings] if isinstance(tree, str) else [SETS, meetings, products]
    return draw(pick(draw(pick(groups))))


def draw_sets(draw: Draw, known: dict[str, Any], clients: int) -> dict[str, Any]:
    how = draw(pick(("none", "one", "one", "private")))
    count = {"none": 0, "one": 1, "private": clients}[how]
    kinds = [names(draw, known["x"], MEETINGS, PRODUCTS) for _ in range(min(count, 3))]
    found: dict[str, Any] = {"sets": tuple(kinds[i % len(kinds)] for i in range(count))}
    found["public"] = bool(count) and draw(st.booleans())
    found["domain"] = draw(pick(("", "", "", "box", "ball", "halfspace"))) if known["method"] in BY_VALUES else ""
    return found


def draw_lower(draw: Draw, known: dict[str, Any]) -> dict[str, Any]:
    kind, ours = known["kind"], known["method"] in BY_VALUES
    found: dict[str, Any] = {
        "y": draw(trees_of(shapes).filter(small)),
        "constants": known["data"] == "loader" or draw(st.booleans()),
    }
    if known["method"] not in UNBOUNDED and draw(pick((True, True, False))):
        found["lower_set"] = names(draw, found["y"], MEETINGS, ONE_QUADRATIC)
        found["moves"] = draw(pick(("", "x", "scenario") if kind == "twostage" else ("", "x")))
        if found["lower_set"].startswith("intersection") and ("affine" in found["lower_set"] or "simplex" in found["lower_set"]):
            found["moves"] = ""  # a moving plane may leave the other set
    if ours:
        found["lower_domain"] = draw(pick(("", "", "box", "ball")))
        found["coupling"] = kind != "minimax" and draw(pick((True, False, False)))
    found["skew"] = kind == "twostage" and draw(st.booleans())
    one_mean = not ours and known.get("weights") == "samples"  # such methods average both levels by the same weights
    if kind == "bilevel" and not one_mean and draw(st.booleans()):
        found["lower_samples"] = draw(trees_of(leaves_with_types(TYPES), many=False))
        found["lower_sizes"] = tuple(draw(pick((1, 2, 4))) for _ in known["sizes"])
    return found


def draw_run(draw: Draw, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"rounds": draw(st.integers(2, 4)), "engine": draw(pick(("simulation", "loop", "loop")))}
    found["eval_every"] = draw(pick((None, None, 2)))
    if known["method"] != "Scaffnew":
        found["clients_per_round"] = draw(st.none() | st.integers(1, len(known["sizes"])))
    return found


def draw_method(draw: Draw, known: dict[str, Any]) -> dict[str, Any]:
    name, kind = known["method"], known["kind"]
    if name in BY_VALUES:
        return draw_ours(draw, known)
    options: dict[str, Any] = {"stepsize": draw(pick((0.02, 0.05))), "batch_size": draw(batches(known))}
    if name not in ("Scaffnew", "FedBiOAcc"):
        options["local_steps"] = draw(st.integers(1, 3))
    if name in ("FedZO", "DeComFL"):
        options |= {"smoothing": 0.01, "directions": draw(st.integers(1, 3))}
    if name == "FedMSPP":
        options["proximal"] = 0.5
    if name == "FedProx":
        options["mu"] = draw(pick((0.0, 1.0)))
    if name == "Scaffold":
        options["option"] = draw(pick((1, 2)))
    if name == "Scaffnew":
        options["probability"] = 0.5
    if name == "LocalSGDA":
        options |= {"ascent": 0.1, "momentum": draw(pick((None, 0.5)))}
        if options["momentum"] is None:
            del options["momentum"]
    if kind == "bilevel" or name == "FedNest":
        options["lower_stepsize"] = 0.1
    if name in ("FedNest", "LFedNest"):
        options |= {"neumann": draw(st.integers(1, 3)), "lower_rounds": draw(st.integers(1, 2))}
    return {"options": options}


def batches(known: dict[str, Any]) -> st.SearchStrategy:
    return pick((1, 2)) if known["data"] == "sampler" else pick((1, 2, "full"))


def draw_ours(draw: Draw, known: dict[str, Any]) -> dict[str, Any]:
    name, kind = known["method"], known["kind"]
    plain = known.get("language", "jax") == "jax"
    closed = bool(known.get("sets") or known.get("domain") or known.get("lower_domain"))
    smoothing = draw(pick((0.1, 0.3)))
    options: dict[str, Any] = {"smoothing": smoothing, "stepsize": draw(pick((0.02, 0.05, ("decay", 0.05))))}
    options["batch_size"] = draw(batches(known))
    if name != "ZSOL":
        options["local_steps"] = draw(pick((1, 2, 3, ("grow", 1))))
    if plain and draw(st.booleans()):
        options["oracle"] = "gradients"
    constant = isinstance(options.get("local_steps", 1), int)
    replayable = not closed or (known.get("public") and not known.get("domain") and not known.get("lower_domain"))
    if constant and replayable:
        options["communication"] = draw(pick(("vectors", "scalars", "auto")))
    gradients = options.get("oracle") == "gradients"
    scalars = options.get("communication", "vectors") == "scalars"
    if name != "FedRZObl" or (gradients and scalars):
        options["directions"] = draw(st.integers(1, 3))
    if draw(pick((True, False, False))):
        options["moreau"] = draw(pick((0.1, 0.5)))
    found: dict[str, Any] = {"options": options}
    if kind == "twostage":
        found["lower"] = draw(pick(("", "", "Accelerated", "Extragradient", "Projection")))
        if found["lower"] == "Projection":
            found["lower_options"] = {"tolerance": 1e-8}
    elif name == "FedRZObl":
        found["lower"] = draw(pick(("", "", "LocalSGD", "FedAC", "LFD")))
        found["lower_options"] = {"batch_size": "full"} if found["lower"] else {}
        options["warm_start"] = draw(pick((True, True, False)))
        if not gradients:
            options["closing"] = draw(pick((True, True, False)))
    if draw(pick((True, False, False, False))):
        options |= draw_privacy(draw, known, options)
    return found


def draw_privacy(draw: Draw, known: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return a promise of privacy, for problems that allow one."""
    stored = known["data"] == "stored" and known.get("language", "jax") != "vectorized"
    levels = known["kind"] in ("nonsmooth", "twostage") or bool(known.get("lower_sizes"))
    if not stored or not levels or known.get("pair") or options["batch_size"] != 1 or options.get("oracle"):
        return {}
    if known["kind"] == "twostage" and not known.get("constants"):
        return {}
    privacy = {"epsilon": 8.0, "clip": draw(pick((0.1, "auto"))), "simulation": draw(st.booleans())}
    if known["kind"] == "bilevel":
        privacy["public_lower_data"] = True
    return {"privacy": privacy}


def draw_questions(draw: Draw, case: Case) -> tuple[str, ...]:
    allowed = ["loop", "resume", "again", "save", "threads"]
    private = "privacy" in case.options
    options = case.options
    if "communication" in options and not private and options.get("oracle") != "gradients":  # a few slopes are no gradient
        allowed.append("scalars")
    if case.method in BY_VALUES and not isinstance(options["stepsize"], tuple) and case.language == "jax" and not private:
        allowed.append("sweep")
    if case.data != "loader" and case.language == "jax" and not private:
        allowed.append("check")
    if private and not options["privacy"]["simulation"]:
        allowed = ["save"]
    return tuple(draw(st.lists(pick(allowed), max_size=2, unique=True)))


def sample(start: int, count: int, asks: bool = True) -> list[Case]:
    """Return at most `count` descriptions of different problems; equal seeds give equal ones."""
    found: dict[Any, Case] = {}

    @seed(start)
    @settings(
        max_examples=3 * count + 20,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(asks))
    def collect(case: Case) -> None:
        found.setdefault(repr((case.kind, case.method, case.x)), case)

    collect()
    return random.Random(start).sample(list(found.values()), min(count, len(found)))
