"""The kernels, interpreted: their directions are those of `fedrzo.directions` to the last bit, their steps the plain ones.

On a GPU `fedrzo bench gpu` compares the compiled kernels with the plain path; here there is none.
"""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import fedrzo as fz
from fedrzo import directions
from fedrzo.cli import main
from fedrzo.client import Client, take_steps
from fedrzo.engines.ahead import Pace
from fedrzo.kernels import drawing, wide_steps
from fedrzo.kernels.layout import warps_for
from fedrzo.smoothing import measure_noise
from fedrzo.zoo.relu import ReluLoss, ReluPair, initial_network

METHOD = fz.FedRZOnn(1e-3, 0.01, local_steps=3, batch_size=2)
KEY = jax.random.key(3)


def problem(neurons, pixels=20, clients=2):
    rng = np.random.default_rng(0)
    samples = [
        (rng.random((5 + i, pixels), np.float32), rng.choice(np.float32([-1, 1]), 5 + i)) for i in range(clients)
    ]
    data = fz.ClientData(samples, fixed=[np.float32(1 + i) for i in range(clients)])
    return fz.Nonsmooth(ReluLoss(0.01), data, initial_network(pixels, neurons, 1), pair=ReluPair(0.01))


def test_a_kernel_draws_the_same_direction():
    """Two tiles, the second beginning where the first ends; the length too."""
    key = jax.random.fold_in(KEY, 7)

    def draw(words, table, out, scale):
        lane = jax.lax.broadcasted_iota(jnp.int32, (64,), 0)
        z = [drawing.integers(table, (words[0], words[1]), lane, offset) for offset in (0, 64)]
        out[0, :], out[1, :] = z
        low, high = (sum(jnp.sum(drawing.halves(tile)[half]) for tile in z) for half in (0, 1))
        scale[0] = drawing.inverse_length(low, high)

    shapes = (jax.ShapeDtypeStruct((2, 64), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.float32))
    z, scale = pl.pallas_call(draw, shapes, interpret=True)(directions.words(key), directions.table())
    np.testing.assert_array_equal(z.ravel(), directions.integers(key, 128))
    v = np.asarray(z.ravel(), np.float32) * (np.float32(0.01) * np.asarray(scale[0]))
    assert v.tobytes() == np.asarray(directions.sphere(key, 128, 0.01, jnp.float32)).tobytes()


def ends(problem, steps, together, stepsize=METHOD.stepsize, batch_size=METHOD.batch_size):
    """Where all clients' steps lead, side by side as in a simulation."""
    method = dataclasses.replace(METHOD, stepsize=stepsize, batch_size=batch_size)

    def one(i):
        few = {"at_most": 4, "ahead": lambda draw: draw()} if batch_size == 1 else {}
        client = Client.of(problem, i, **few)
        x = jnp.asarray(problem.x0)
        kernel = problem.pair_fn.kernel(client, x, batch_size, stepsize, method.smoothing, interpret=True)

        def step(k, sample, keys, x):
            return method.local_step(client, k, sample, keys, x)[0]

        key = jax.random.fold_in(KEY, i)
        how = {"together": kernel} if together else {}
        return take_steps(client, key, steps, batch_size, step, x, also=METHOD.draw, **how)

    return jax.vmap(one)(jnp.arange(problem.clients))


@pytest.mark.parametrize(
    ("neurons", "pixels", "batch_size"),
    [
        pytest.param(1, 20, 2, id="in registers", marks=pytest.mark.slow),
        pytest.param(3, 20, 2, id="in registers, several neurons", marks=pytest.mark.slow),
        pytest.param(3, 20, 1, id="few clients"),
        pytest.param(18, 800, 2, id="in tiles", marks=pytest.mark.slow),
        pytest.param(17, 20, 3, id="in one tile and a bit", marks=pytest.mark.slow),
    ],
)
def test_a_kernel_takes_the_plain_steps(neurons, pixels, batch_size):
    """To within what rounding does to as many plain steps; the count of steps is not the block's."""
    given = problem(neurons, pixels)
    plain, fused = (ends(given, 3, together, batch_size=batch_size) for together in (False, True))
    moved = np.linalg.norm(plain - given.x0, axis=1)
    noise = measure_noise(given, given.x0, METHOD.smoothing)
    assert np.all(np.linalg.norm(fused - plain, axis=1) < 3 * METHOD.stepsize * noise.rounding)
    assert np.all(moved > 30 * METHOD.stepsize * noise.rounding)


@pytest.mark.slow
def test_no_steps_lead_nowhere():
    """Where a schedule of local steps gives none, or a sweep's other run has more."""
    given = problem(18, 20)
    np.testing.assert_array_equal(ends(given, 0, together=True), np.broadcast_to(given.x0, (2, given.dim)))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 2], ids=["few clients", "in registers"])
def test_rounds_drawn_ahead_by_kernels(batch_size, monkeypatch):
    """They are the plain ones but for rounding, and do not depend on where evaluations fall."""

    def kernel(self, client, x):
        if client.ahead is None:
            return None
        return client.level.pair_fn.kernel(client, x, self.batch_size, self.stepsize, self.smoothing, interpret=True)

    def end(ahead, *chunks):
        with given.precision():
            session = fz.engines.Simulation(devices=jax.devices()[:1]).start([method], given, [KEY], 2)
            session.pace = Pace(4, ahead, ahead)
            for rounds in chunks:
                session.advance(rounds)
            return np.asarray(session.carry.state.x)

    monkeypatch.setattr(fz.FedRZOnn, "kernel", kernel)
    monkeypatch.setattr("fedrzo.engines.ahead.ROUNDS", 4)
    given, method = problem(2, 8, clients=3), dataclasses.replace(METHOD, batch_size=batch_size)
    plain, ahead, parts = end(False, 6), end(True, 6), end(True, 1, 5)
    np.testing.assert_array_equal(ahead, parts)
    np.testing.assert_allclose(ahead, plain, atol=1e-6)
    assert np.abs(plain - given.x0).max() > 1e-3


@pytest.mark.slow
def test_steps_go_on_over_several_blocks():
    given = problem(2, clients=2)
    plain, fused = (ends(given, 40, together) for together in (False, True))
    assert np.abs(fused - plain).max() < 1e-5 < np.abs(plain - given.x0).max()


@pytest.mark.slow
def test_a_sweep_is_one_kernel_too():
    """Stepsizes side by side, around clients side by side."""
    given, stepsizes = problem(2, clients=2), jnp.array([1e-3, 2e-3])
    plain, fused = (jax.vmap(lambda s, t=t: ends(given, 3, t, s))(stepsizes) for t in (False, True))
    np.testing.assert_allclose(fused, plain, atol=1e-6)
    assert np.abs(plain[0] - plain[1]).max() > 1e-5


def test_a_kernel_is_offered_where_x_fits_and_is_single():
    given = problem(4)
    client = Client.of(given, 0)
    offered = given.pair_fn.kernel(client, jnp.asarray(given.x0), 2, 0.1, 0.1)
    with jax.enable_x64(True):
        wide = given.pair_fn.kernel(client, jnp.asarray(given.x0, jnp.float64), 2, 0.1, 0.1)
    assert offered is not None
    assert wide is None
    assert warps_for(4, 784, 32, clients=5000) == 2
    assert warps_for(4, 784, 1, clients=5) == 4
    assert warps_for(100, 3072, 32, clients=100) is None
    assert wide_steps.fits(100, 32)
    assert not wide_steps.fits(100, 200)


def test_without_a_gpu_nothing_of_it_is_used():
    """The method takes the plain path, and its kernels are not even imported."""
    quiet = (
        "import sys, jax, fedrzo as fz\n"
        "from fedrzo.zoo import relu\n"
        "fz.run(fz.FedRZOnn(1e-3, 0.01), fz.zoo.make('median'), 1, progress=False)\n"
        "found = sorted(n for n in sys.modules if 'pallas.triton' in n or 'fedrzo.kernels' in n)\n"
        "assert not found, found"
    )
    assert METHOD.kernel(Client.of(given := problem(2), 0), jnp.asarray(given.x0)) is None
    subprocess.run([sys.executable, "-c", quiet], check=True, timeout=300)


def test_the_benchmark_says_what_it_needs(capsys):
    assert main(["bench", "gpu"]) == 2
    assert capsys.readouterr().err == "fedrzo: bench gpu: found a cpu alone; run it where JAX sees a GPU\n"


def test_the_zoo_offers_the_pair():
    plain, paired = fz.zoo.make("relu-digits"), fz.zoo.make("relu-digits", pair=True)
    assert plain.pair_fn is None
    assert paired.pair_fn == ReluPair(0.01)
    with pytest.raises(fz.InputError, match="pair: found True with beta"):
        fz.zoo.make("relu-digits", pair=True, beta=5.0)
