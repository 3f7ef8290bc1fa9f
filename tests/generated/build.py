"""From a description to the problem and the method, by the public names of fedrzo."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedrzo as fz

from . import formulas, regions, trees
from .case import Case


@dataclasses.dataclass
class Built:
    """A problem, its method, and the numbers behind it for NumPy."""

    case: Case
    k: formulas.Coefficients
    problem: Any
    method: Any
    x0: np.ndarray  # flat, as the run starts
    y0: np.ndarray
    clients: list[Any]  # samples
    fixed: list[Any] | None
    lower_clients: list[Any]
    x_regions: list[regions.Region]  # per client
    domain: regions.Region | None
    lower_domain: regions.Region | None
    units: np.ndarray
    test: Any
    functions: dict[str, Any] = dataclasses.field(default_factory=dict)


def build(case: Case, functions: dict[str, Any] | None = None) -> Built:
    """Return the problem and the method; `functions` are those of another case that differs in x's type alone."""
    rng = np.random.default_rng([case.seed, 0])
    k = formulas.Coefficients.of(case)
    n, q = trees.length(case.x), trees.length(case.y)
    x0 = np.asarray(rng.uniform(0.2, 1.0, n), case.x_type).astype(np.float64)
    y0 = rng.uniform(0.2, 1.0, q)
    sizes = case.sizes[:1] * case.clients if case.data == "shared" else case.sizes
    clients = [trees.draw(case.samples, rng, size, 0.3 * i) for i, size in enumerate(sizes)]
    if case.data == "shared":
        clients = clients[:1] * case.clients
    fixed = None if case.fixed is None else [trees.draw(case.fixed, rng) for _ in sizes]
    own = [trees.draw(case.lower_samples, rng, size) for size in case.lower_sizes] if case.lower_sizes else clients
    test = trees.draw(case.samples, rng, 4)
    sets, x_regions = constraints(case, x0)
    domain, domain_region = area(case.domain, case, x0, 5)
    lower_domain, lower_region = area(case.lower_domain, case, x0, 6)

    units = rng.uniform(0.5, 2.0, n) if case.scale else np.ones(n)
    built = Built(case, k, None, None, x0, y0, clients, fixed, own, x_regions, domain_region, lower_region, units, test)
    options: dict[str, Any] = {"weights": case.weights, "constraint": sets, "domain": domain}
    if case.scale:
        options["scale"] = units if case.scale == "flat" else trees.unflatten(case.x, units, "float64")
    if case.test:
        options["test"] = (test, 0.0 if fixed is None else fixed[0]) if paired(case) else test
        options["metrics"] = {"size": size_of_x}
    if case.monitored:
        options["monitored"] = {"squares": losses(built, dataclasses.replace(case, loss="smooth", language="jax"))["single"]}
    functions = built.functions = functions or losses(built, case)
    data = stored(case, clients, fixed)
    start = trees.unflatten(case.x, x0, case.x_type)
    if case.kind == "nonsmooth":
        if case.pair:
            options["pair"] = functions["pair"]
        built.problem = fz.Nonsmooth(worded(case, functions["single"]), data, start, **options)
    else:
        built.problem = hierarchical(built, functions, data, start, options, lower_domain)
    built.method = method(case)
    return built


def hierarchical(built: Built, functions: Any, data: Any, start: Any, options: dict[str, Any], lower_domain: Any) -> Any:
    case, k = built.case, built.k
    y0 = trees.unflatten(case.y, built.y0, "float64")
    options["lower_domain"] = lower_domain
    options["lower_constraint"] = lower_constraint(case, built.y0)
    if case.constants:
        options["modulus"] = float(k.d.min())
        options["smoothness"] = float(np.linalg.norm(np.diag(k.d) + k.S, 2))
    if case.coupling:
        options |= {"coupling": functions["coupling"], "penalty": 0.5}
    if case.kind == "twostage":
        return fz.TwoStage(worded(case, functions["scenario"]), functions["map"], data, start, y0, **options)
    if case.kind == "minimax":
        return fz.Minimax(functions["saddle"], data, start, y0, **options)
    if case.lower_sizes:
        options["lower_data"] = fz.ClientData(built.lower_clients)
    return fz.Bilevel(worded(case, functions["upper"]), functions["lower"], data, start, y0, **options)


def worded(case: Case, loss: Any) -> Any:
    """Return the loss in the language described: JAX code, or a black box."""
    return loss if case.language == "jax" else fz.blackbox(loss, vectorized=case.language == "vectorized")


def stored(case: Case, clients: list[Any], fixed: list[Any] | None) -> Any:
    if case.data == "shared":
        return fz.ClientData.shared(clients[0], clients=case.clients)
    if case.data == "loader":
        return fz.Loader(lambda client: clients[client], clients=case.clients, sizes=case.sizes)
    if case.data == "sampler":  # each client's first sample, whatever the key, and noise that no loss uses
        table = trees.fill(case.samples, [np.stack(each) for each in zip(*(first(c) for c in clients), strict=True)])

        def draw(key: Any, client: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[client], table), jax.random.normal(key)

        return fz.Sampler(draw, case.clients, 5)
    return fz.ClientData(clients, fixed=fixed)


def paired(case: Case) -> bool:
    """Return whether a batch is a pair: samples, and fixed numbers or noise."""
    return case.fixed is not None or case.data == "sampler"


def first(samples: Any) -> list[np.ndarray]:
    return [leaf[0] for leaf in trees.leaves(samples)]


def constraints(case: Case, x0: np.ndarray) -> tuple[Any, list[regions.Region]]:
    """Return the argument `constraint`, and each client's set in NumPy."""
    if not case.sets:
        return None, [regions.free(len(x0))] * case.clients
    pairs = [regions.make(name, case.x, x0, 100 * case.seed + i) for i, name in enumerate(case.sets)]
    sets = [fz.sets.Public(each) if case.public else each for each, _ in pairs]
    if len(pairs) == 1:
        return sets[0], [pairs[0][1]] * case.clients
    return sets, [region for _, region in pairs]


def area(name: str, case: Case, x0: np.ndarray, salt: int) -> tuple[Any, regions.Region | None]:
    return regions.make(name, case.x, x0, 100 * case.seed + 50 + salt) if name else (None, None)


def lower_set(case: Case, y0: np.ndarray, room: Any = 0.0) -> tuple[Any, regions.Region]:
    return regions.make(case.lower_set, case.y, y0, 100 * case.seed + 70, room)


def lower_constraint(case: Case, y0: np.ndarray) -> Any:
    """Return the argument `lower_constraint`: a set, or a function of x, or of x and xi."""

    def scenario(xi: Any) -> Any:
        return vector(xi[0] if paired(case) else xi)

    if not case.lower_set or not case.moves:
        return lower_set(case, y0)[0] if case.lower_set else None
    if case.kind == "twostage":
        return lambda x, xi: lower_set(case, y0, formulas.moved(vector(x), scenario(xi), case.moves, jnp))[0]
    return lambda x: lower_set(case, y0, formulas.moved(vector(x), None, case.moves, jnp))[0]


def vector(tree: Any) -> Any:
    """Return a tree as one flat JAX vector."""
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def matrix(samples: Any) -> Any:
    """Return a batch as a JAX matrix with one row per sample."""
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(samples)], axis=1)


def size_of_x(x: Any, *rest: Any) -> Any:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x)))


def losses(built: Built, case: Case) -> dict[str, Any]:
    """Return the problem's functions, in JAX or, for a black box, in NumPy."""
    k = built.k

    def parts(batch: Any) -> tuple[Any, Any]:
        samples, p = batch if paired(case) else (batch, None)
        return samples, None if p is None or case.data == "sampler" else vector(p)

    def split(batch: Any) -> tuple[Any, Any]:
        samples, p = parts(batch)
        return matrix(samples), p

    def single(x: Any, batch: Any) -> Any:
        return formulas.single(case, k, jnp, vector(x), *split(batch))

    def pair(x: Any, v: Any, batch: Any) -> Any:
        return single(jax.tree.map(jnp.add, x, v), batch) - single(jax.tree.map(jnp.subtract, x, v), batch)

    def upper(x: Any, y: Any, batch: Any) -> Any:
        return formulas.upper(case, k, jnp, vector(x), vector(y), *split(batch))

    def saddle(x: Any, y: Any, batch: Any) -> Any:
        return formulas.saddle(case, k, jnp, vector(x), vector(y), *split(batch))

    def lower(x: Any, y: Any, batch: Any) -> Any:
        samples = batch[0] if paired(case) and not case.lower_sizes else batch
        return formulas.lower(k, jnp, vector(x), vector(y), matrix(samples))

    def scenario(x: Any, y: Any, xi: Any) -> Any:
        s, p = parts(xi)
        return formulas.upper(case, k, jnp, vector(x), vector(y), vector(s)[None], p)

    def map(x: Any, y: Any, xi: Any) -> Any:
        return trees.unflatten(case.y, formulas.field(k, jnp, vector(x), vector(y), vector(parts(xi)[0])))

    def coupling(x: Any, y: Any, *xi: Any) -> Any:
        return formulas.couple(jnp, vector(x), vector(y))

    if case.language != "jax":
        scalar = in_numpy(built, case)
        single = upper = scenario = scalar if case.language == "blackbox" else many(scalar)
    return {name: value for name, value in locals().items() if callable(value)}


def in_numpy(built: Built, case: Case) -> Any:
    """Return the upper loss in NumPy: f(x, batch), f(x, y, batch) or f(x, y, scenario)."""

    def loss(x: Any, *rest: Any) -> Any:
        s, p = rest[-1] if paired(case) else (rest[-1], None)
        s = trees.flat(s)[None] if case.kind == "twostage" else trees.rows(s)
        p = None if p is None or case.data == "sampler" else trees.flat(p)
        if case.kind == "nonsmooth":
            return formulas.single(case, built.k, np, trees.flat(x), s, p)
        return formulas.upper(case, built.k, np, trees.flat(x), trees.flat(rest[0]), s, p)

    return loss


def many(loss: Any) -> Any:
    """Return a vectorised black box: a leading axis on every array."""

    def values(*arguments: Any) -> np.ndarray:
        count = len(trees.leaves(arguments)[0])
        each = [trees.fill(arguments, [leaf[i] for leaf in trees.leaves(arguments)]) for i in range(count)]
        return np.array([loss(*one) for one in each])

    return values


def number(value: Any) -> Any:
    """Return an option: a pair ("decay", a) is a function of the round."""
    if isinstance(value, tuple) and value[0] == "decay":
        return lambda r: value[1] / jnp.sqrt(r + 1.0)
    if isinstance(value, tuple) and value[0] == "grow":
        return lambda r: value[1] + r
    return value


def method(case: Case) -> Any:
    options = {name: number(value) for name, value in case.options.items()}
    if "privacy" in options:
        options["privacy"] = fz.Privacy(**case.options["privacy"])
    if case.lower:
        below = {name: number(value) for name, value in case.lower_options.items()}
        if case.kind == "twostage":
            options["solver"] = getattr(fz.vi, case.lower)(**below)
        else:
            options["lower"] = getattr(fz, case.lower)(**below)
    return getattr(fz, case.method)(**options)
