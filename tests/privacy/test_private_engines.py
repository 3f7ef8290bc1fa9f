"""Private runs on both engines, and without anything that makes them private."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz
from quadratics import Q
from quadratics import quadratic as bilevel

RNG = np.random.default_rng(2)
DATA = fz.ClientData([RNG.normal(size=(size, 2)) for size in (5, 9, 6)])
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
SMALL = 0.04  # a noise whose epsilon is called infinite, so that nothing has to be accounted for


def distance(x, batch):
    return jnp.mean(jnp.sum(jnp.abs(x - batch), axis=-1) + 0.5 * jnp.sum((x - batch) ** 2, axis=-1))


def scenario_loss(x, y, xi):
    return 0.5 * jnp.sum((x - 1) ** 2) + 0.5 * jnp.sum(y**2) + xi[0] * jnp.sum(x)


def scenario_map(x, y, xi):
    return 2 * y - x - xi


def upper(x, y, batch):
    return 0.5 * jnp.mean(jnp.sum((y - batch) ** 2, axis=-1)) + 0.05 * jnp.sum(x**2)


@functools.cache
def problem(kind):
    if kind == "free":
        return fz.Nonsmooth(distance, DATA, np.zeros(2))
    if kind == "sets":
        return fz.Nonsmooth(distance, DATA, np.zeros(2), [fz.sets.Box(-0.2, 0.1 * i) for i in (1, 2, 3)])
    if kind == "scenarios":
        box = fz.sets.Box(0.0, 1.0)
        return fz.TwoStage(
            scenario_loss, scenario_map, DATA, np.zeros(2), np.zeros(2), None, box, modulus=2.0, smoothness=2.0,
            monitor=fz.vi.Projection(steps=60),
        )  # fmt: skip
    records = fz.ClientData([RNG.normal(size=(size, Q)) for size in (5, 9, 6, 4)])
    public = bilevel()
    return bilevel(loss=upper, data=records, lower_data=public.data)


LOWER = fz.LocalSGD(batch_size="full", rounds=10)
SOLVER = fz.vi.Projection(steps=30)
KINDS = {
    "FedRZOnn": ("free", lambda **o: fz.FedRZOnn(0.02, 0.1, 2, directions=2, **o)),
    "FedRZOnn by scalars": ("free", lambda **o: fz.FedRZOnn(0.02, 0.1, 2, communication="scalars", **o)),
    "FedRZOnn with sets": ("sets", lambda **o: fz.FedRZOnn(0.02, 0.1, 2, **o)),
    "FedRZO2s": ("scenarios", lambda **o: fz.FedRZO2s(0.02, 0.1, 2, solver=SOLVER, **o)),
    "FedRZObl": ("bilevel", lambda **o: fz.FedRZObl(0.02, 0.1, 2, lower=LOWER, **o)),
    "FedRZObl by scalars": ("bilevel", lambda **o: fz.FedRZObl(0.02, 0.1, 2, lower=LOWER, communication="scalars", **o)),
    "DeComFL": ("free", lambda **o: fz.DeComFL(0.02, local_steps=2, directions=2, momentum=0.3, **o)),
    "DeComFL forward": ("free", lambda **o: fz.DeComFL(0.02, local_steps=2, forward=True, **o)),
}


def run(name, rounds=3, clip=2.0, noise=SMALL, batch_size=4, key=5, private=True, **options):
    kind, make = KINDS[name]
    privacy = fz.Privacy(noise=noise, clip=clip, delta=1e-3, simulation=True, public_lower_data=kind == "bilevel")
    method = make(batch_size=batch_size, **({"privacy": privacy} if private else {}))
    return fz.run(method, problem(kind), rounds, key=key, progress=False, **options)


ALL = [name for name in KINDS if name != "DeComFL forward"]
SLOW = pytest.mark.slow("compiles programs that differ little from those of the others")


def some(names, slow):
    """Return the names of methods to test, some of them only where there is time."""
    return [pytest.param(name, marks=SLOW if name in slow else ()) for name in names]


@pytest.mark.parametrize("name", some(ALL, [name for name in ALL if name != "FedRZOnn"]))
@pytest.mark.parametrize("clip", ["auto", pytest.param(2.0, marks=SLOW)])
def test_engines_agree(name, clip):
    """Samples, noise and clips depend on the run's key alone; two of the clients take part in each round."""
    fast, plain = (run(name, clip=clip, clients_per_round=2, engine=engine) for engine in ("simulation", "loop"))
    np.testing.assert_allclose(fast.x, plain.x, **CLOSE)
    assert not np.allclose(fast.x, 0)
    for column in ("loss", "epsilon", "evaluations", "upload_bytes"):
        np.testing.assert_allclose(fast.history[column], plain.history[column], **CLOSE, err_msg=column)


@pytest.mark.parametrize(
    "name", some(["FedRZOnn by scalars", "FedRZObl by scalars"], ["FedRZOnn by scalars", "FedRZObl by scalars"])
)
def test_scalars_carry_the_same_steps_as_vectors(name):
    """The slopes that travel are the noisy ones, and adaptive clips stay with the clients either way."""
    kind, make = KINDS[name]
    privacy = fz.Privacy(noise=SMALL, clip="auto", delta=1e-3, simulation=True, public_lower_data=kind == "bilevel")
    both = [make(batch_size=4, privacy=privacy)]
    both.append(type(both[0])(**{**vars(both[0]), "communication": "vectors"}))
    by_scalars, by_vectors = (fz.run(method, problem(kind), 4, key=1, progress=False) for method in both)
    np.testing.assert_allclose(by_scalars.x, by_vectors.x, rtol=1e-9, atol=1e-12)
    assert by_scalars.history["upload_bytes"][-1] <= by_vectors.history["upload_bytes"][-1]


@pytest.mark.parametrize("name", some(KINDS, [name for name in KINDS if name != "FedRZOnn"]))
def test_without_clipping_and_noise_a_private_run_is_the_plain_one(name):
    """With all records in each sample, a clip that no slope reaches, and as good as no noise."""
    private = run(name, clip=1e4, noise=1e-12, batch_size="full")
    plain = run(name, batch_size="full", private=False)
    np.testing.assert_allclose(private.x, plain.x, atol=1e-5 if "DeComFL" in name else 1e-6)
    assert np.abs(np.asarray(plain.x)).max() > 1e-2
    np.testing.assert_array_equal(private.history["evaluations"], plain.history["evaluations"])


@pytest.mark.parametrize("name", ["FedRZOnn", "DeComFL"])
@pytest.mark.slow("two more programs")
def test_noise_and_clip_change_a_run(name):
    """So that the agreement above says something."""
    plain = np.asarray(run(name, batch_size="full", private=False).x)
    noisy = np.asarray(run(name, clip=1e4, noise=1e-3, batch_size="full").x)
    clipped = np.asarray(run(name, clip=1e-2, noise=1e-12, batch_size="full").x)
    assert np.abs(noisy - plain).max() > 1e-3
    assert np.abs(clipped).max() < 0.1 * np.abs(plain).max()
