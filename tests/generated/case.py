"""The plain description of a random problem and of a run: values that print, compare and read back."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, a method and a run. All numbers follow from `seed`, so that a description is short.

    Trees are written with dicts, lists and tuples. A leaf of `x` and `y` is a shape: "3", "2x2", or "" for one number. A leaf of
    `samples` and `fixed` also has a type: "float64 3", "int32". Samples have their shape without the leading axis.
    """

    kind: str = "nonsmooth"  # or "bilevel", "minimax", "twostage"
    seed: int = 0
    x64: bool = False  # jax_enable_x64

    x: Any = "2"
    x_type: str = "float64"
    y: Any = "2"
    samples: Any = "float64 2"
    sizes: tuple[int, ...] = (3, 2)  # samples per client
    data: str = "stored"  # or "shared", "sampler", "loader"
    fixed: Any = None
    weights: str = "uniform"
    lower_samples: Any = None  # with lower_sizes: the lower level's own data
    lower_sizes: tuple[int, ...] = ()

    loss: str = "absolute"  # or "smooth", "quantile", "waves"
    language: str = "jax"  # or "blackbox", "vectorized": the upper loss
    pair: bool = False
    sets: tuple[str, ...] = ()  # none, one for all clients, or one per client
    public: bool = False
    domain: str = ""
    scale: str = ""  # or "tree", "flat"
    test: bool = False  # a test batch and a metric
    monitored: bool = False

    lower_set: str = ""
    moves: str = ""  # what the lower set depends on: "x", or "scenario"
    lower_domain: str = ""
    constants: bool = False  # give modulus and smoothness
    skew: bool = False  # a map without a potential
    coupling: bool = False

    method: str = "FedRZOnn"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    lower: str = ""  # FedRZObl's lower method or FedRZO2s' solver
    lower_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    rounds: int = 2
    key: int = 0
    engine: str = "simulation"
    clients_per_round: int | None = None
    eval_every: int | None = None
    ask: tuple[str, ...] = ()  # further runs to compare with: see `invariants.QUESTIONS`

    def __repr__(self) -> str:
        """Return Python code: the fields that differ from their defaults."""
        shown = [f"{field.name}={value!r}" for field, value in self.changed()]
        return f"Case({', '.join(shown)})"

    def changed(self) -> list[tuple[dataclasses.Field, Any]]:
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return [(field, value) for field, value in values if value != default(field)]

    @property
    def clients(self) -> int:
        return len(self.sizes)


def default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def simpler(case: Case) -> list[Case]:
    """Return descriptions that differ from this one in one field at its default, or in one option left out."""
    found = []
    for field, _ in case.changed():
        if field.name != "kind":
            found.append(dataclasses.replace(case, **{field.name: default(field)}))
    for name in ("options", "lower_options"):
        options = getattr(case, name)
        for option in options:
            found.append(dataclasses.replace(case, **{name: {k: v for k, v in options.items() if k != option}}))
    for question in case.ask:
        found.append(dataclasses.replace(case, ask=tuple(q for q in case.ask if q != question)))
    if case.clients > 1 and len(case.sets) <= 1:
        found.append(dataclasses.replace(case, sizes=case.sizes[:1], lower_sizes=case.lower_sizes[:1], clients_per_round=None))
    return found
