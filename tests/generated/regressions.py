"""Descriptions that are always run: a small sample of all kinds, and those that once failed.

A line of `make fuzz` goes to OPEN, with a word on what fails, and to REGRESSIONS when it is mended.
"""

from .case import Case

VALUES = {"stepsize": 0.05, "smoothing": 0.1}
BELOW = {"lower": "LocalSGD", "lower_options": {"batch_size": "full"}}

CHEAP = [
    Case(
        seed=1,
        x={"b": "2x2", "a": ""},
        x_type="float32",
        samples={"u": "float32 2", "v": "int32"},
        sizes=(3, 1, 5),
        sets=("box", "ball", "halfspace"),
        weights="samples",
        test=True,
        monitored=True,
        engine="loop",
        options={**VALUES, "local_steps": 2, "batch_size": 2},
    ),
    Case(
        seed=2,
        x64=True,
        x=("3", "2"),
        samples=("bool 2", "float64"),
        fixed="float64 2",
        sets=("simplex",),
        public=True,
        scale="tree",
        options={**VALUES, "communication": "scalars", "directions": 2, "batch_size": "full"},
    ),
    Case(seed=3, x="3x1", samples="float32 2x2", data="sampler", loss="waves", domain="box", engine="loop", options=VALUES),
    Case(
        seed=4, x=["2", ""], language="blackbox", sets=("polyhedron",), engine="loop", rounds=3, options=VALUES, ask=("resume",)
    ),
    Case(seed=5, x64=True, data="loader", loss="smooth", method="Scaffold", options={"stepsize": 0.05, "local_steps": 2}),
    Case(
        kind="bilevel",
        seed=6,
        x64=True,
        y={"u": "2", "v": ""},
        samples=("int64", "float64 2"),
        sizes=(2, 1, 4),
        lower_samples="float32 2",
        lower_sizes=(1, 3, 2),
        lower_set="box",
        moves="x",
        constants=True,
        test=True,
        method="FedRZObl",
        options={**VALUES, "local_steps": 2, "closing": False},
        engine="loop",
        **BELOW,
    ),
    Case(
        kind="minimax",
        seed=7,
        y="3",
        fixed={"u": "float64", "v": "int32 2"},
        weights="samples",
        sets=("ball",),
        lower_set="simplex",
        constants=True,
        method="FedRZObl",
        options=VALUES,
        engine="loop",
    ),
    Case(
        kind="minimax",
        seed=8,
        x=("1", "1"),
        loss="smooth",
        lower_set="numbers",
        method="LocalSGDA",
        options={"stepsize": 0.05, "ascent": 0.1},
    ),
    Case(
        kind="twostage",
        seed=9,
        samples="float64",
        lower_set="halfbox",
        skew=True,
        constants=True,
        coupling=True,
        method="FedRZO2s",
        options=VALUES,
        engine="loop",
    ),
]

REGRESSIONS = [
    # a Sublevel with parameters was asked for a point of no entries
    Case(seed=20, sets=("ball",), domain="ball", scale="flat", engine="loop", options=VALUES),
    Case(seed=21, sets=("intersection(numbers, sublevel)",), engine="loop", options=VALUES),
    # float32 under x64, and a loss with numbers of its own in float64
    Case(seed=22, x64=True, x_type="float32", engine="loop", options={**VALUES, "local_steps": 2}),
    # the default lower method wanted whole batches of a Sampler
    Case(kind="minimax", seed=23, data="sampler", method="FedRZObl", engine="loop", options=VALUES),
    # the lower level was weighed by the sizes of the upper one's data
    Case(
        kind="bilevel",
        seed=25,
        sizes=(1, 8),
        lower_samples="float64",
        lower_sizes=(8, 1),
        weights="samples",
        constants=True,
        method="FedRZObl",
        engine="loop",
        options=VALUES,
    ),
    # many clients' products hold a set without numbers
    Case(
        seed=28,
        x=["2x1x2"],
        sizes=(1, 5, 2, 3),
        sets=("product(reals, affine)", "intersection(halfbox, ball)") * 2,
        engine="loop",
        options=VALUES,
    ),
    # lower levels were solved outside of their domain, where that of the losses ends elsewhere
    Case(
        kind="twostage",
        seed=27,
        x=["", "2x1x2", "2x1x2"],
        y="",
        sizes=(3,),
        domain="box",
        scale="flat",
        lower_domain="ball",
        constants=True,
        method="FedRZO2s",
        engine="loop",
        options=VALUES,
    ),
    # private sets in units kept the precision of x0, where the lower level has float64
    Case(
        kind="minimax",
        seed=24,
        x64=True,
        x_type="float32",
        sets=("intersection(affine, box)", "halfbox"),
        scale="flat",
        constants=True,
        method="FedRZObl",
        engine="loop",
        options=VALUES,
    ),
    # the derivative of a maximum, 0 / 0 where it is compared with entries that are rounded otherwise, was part of a simplex's
    Case(
        kind="twostage",
        seed=691130,
        x="3x1",
        x_type="float32",
        y={"z": {"only": "12"}, "B": ["1x4"]},
        samples=("float32 1x3", ("int64 1x3", "uint8 1")),
        sizes=(2, 2),
        data="shared",
        loss="quantile",
        sets=("intersection(affine, box)",),
        public=True,
        scale="flat",
        lower_set="product(box, simplex)",
        moves="scenario",
        lower_domain="box",
        skew=True,
        method="ZSOL",
        options={"smoothing": 0.1, "stepsize": 0.02, "batch_size": "full", "oracle": "gradients", "directions": 3},
        lower="Extragradient",
        key=45,
    ),
]

# Failures that are not mended yet, each with words of its message, which the larger samples do not report again.
OPEN: list[tuple[Case, str]] = []
