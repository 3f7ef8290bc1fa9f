"""What the tests of the ray engine share: one cluster per process, problems, and a client that breaks in many ways."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

SPARE: list = []


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray on loopback, started by the engine's own means; runs find it, and leave it and its actors up."""
    with fz.engines.Ray() as engine:
        engine.spare = SPARE
        yield
        del SPARE[:]


def ray_engine(**options):
    """An engine whose actors are used again by the next test: starting one takes seconds."""
    engine = fz.engines.Ray(**options)
    engine.spare = SPARE
    return engine


def without_noise(history):
    """A history without what differs between a cluster and a simulation: clocks, bytes on the wire, mishaps."""
    outside = ("seconds", "wire_upload_bytes", "wire_download_bytes", "failures")
    return {name: values for name, values in history.to_dict().items() if name not in outside}


def assert_same_run(ours, reference, rtol=1e-9):
    """Equal x, history and counted costs."""
    for one, other in zip(jax.tree.leaves(ours.x), jax.tree.leaves(reference.x), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)
    expected = without_noise(reference.history)
    assert list(expected) == list(without_noise(ours.history))
    for name, values in expected.items():
        if name in (*fz.Cost._fields, "round"):
            assert list(ours.history[name]) == values, name
        else:
            np.testing.assert_allclose(ours.history[name], values, rtol=rtol, atol=1e-12, err_msg=name)


ROWS = (5, 7, 6)  # samples of each client: by its 7 rows, client 1 knows itself while its step is traced
BAD = 1


def rows_of(client):
    return jax.tree.leaves(client.level.data.flat)[0].shape[0]


def offsets():
    """What each client adds in an honest step: its number plus one."""
    return fz.ClientData([np.full((rows, 1), float(i + 1)) for i, rows in enumerate(ROWS)])


def plain_loss(x, batch):
    return jnp.sum(x**2) + 0 * jnp.sum(batch)


def offset_problem():
    return fz.Nonsmooth(plain_loss, offsets(), np.zeros(4), weights="samples")


def kill_me(value):
    os.kill(os.getpid(), signal.SIGKILL)
    return value


def oversleep(value, folder):
    while not Path(folder, "wake").exists():
        time.sleep(0.02)
    return value


@fz.method
class Mishaps(fz.Method):
    """In round r clients do what `plan[r]` says; all but client 1 do as in `honest`, whatever it is."""

    plan: tuple = fz.methods.base.static(default=())
    folder: str = fz.methods.base.static(default="")

    def round(self, federation, state, r):
        return fz.State(federation.average(getattr(self, self.plan[r]), state.x))

    def honest(self, client, key, memory, x):
        own = client.sample(key, "full") if client.level.data.equal_size else client.level.data.chunk(client.index, 0)[0]
        return fz.Reply(x + jax.tree.leaves(own)[0].ravel()[0], evaluations=1)

    def _mishap(self, client, key, memory, x, change: Callable):
        reply = self.honest(client, key, memory, x)
        return reply._replace(value=change(reply.value)) if rows_of(client) == ROWS[BAD] else reply

    def nan(self, client, key, memory, x):
        return self._mishap(client, key, memory, x, lambda value: value.at[1].set(jnp.nan))

    def infinite(self, client, key, memory, x):
        return self._mishap(client, key, memory, x, lambda value: value.at[2].set(-jnp.inf))

    def shorter(self, client, key, memory, x):
        return self._mishap(client, key, memory, x, lambda value: value[:-1])

    def nested(self, client, key, memory, x):
        return self._mishap(client, key, memory, x, lambda value: (value, value))

    def rougher(self, client, key, memory, x):
        return self._mishap(client, key, memory, x, lambda value: value.astype(jnp.float32))

    def larger(self, client, key, memory, x):
        return self._mishap(client, key, memory, x, lambda value: 1e6 * value)

    def raising(self, client, key, memory, x):
        if rows_of(client) == ROWS[BAD]:
            raise RuntimeError("the simulator\nhas no licence")
        return self.honest(client, key, memory, x)

    def killed(self, client, key, memory, x):
        def change(value):
            return jax.pure_callback(kill_me, jax.ShapeDtypeStruct(value.shape, value.dtype), value)

        return self._mishap(client, key, memory, x, change)

    def slow(self, client, key, memory, x):
        def wait(value):
            return oversleep(value, self.folder)

        def change(value):
            return jax.pure_callback(wait, jax.ShapeDtypeStruct(value.shape, value.dtype), value)

        return self._mishap(client, key, memory, x, change)


def expected_x(plan):
    """The x of a run of mishaps: client 1's reply counts in honest rounds alone, weights are renormalised."""
    weights = np.array(ROWS, float)
    x = 0.0
    for name in plan:
        taken = [i for i in range(len(ROWS)) if name == "honest" or i != BAD]
        x += np.dot(weights[taken], np.array(taken) + 1.0) / weights[taken].sum()
    return np.full(4, x)


class Trap:
    """A file: the process of client 1 that finds it, in its loss, removes it and is killed."""

    def __init__(self, path: Path) -> None:
        self.path, self.driver = path, os.getpid()

    def __call__(self, who) -> None:
        if os.getpid() != self.driver and np.any(np.asarray(who) == 1) and self.path.exists():
            self.path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, rounds: int):
        """Return a log that lays the trap after some rounds."""

        def log(row):
            if row["round"] == rounds:
                self.path.touch()

        return log

    @staticmethod
    def reference(method, problem, rounds, present):
        """Return x of a run on the loop engine in which only some clients answer in some rounds."""
        with problem.precision():
            session = fz.engines.Loop().start([method], problem, [jax.random.key(1)], None)
            for r in range(rounds):
                session.size = None
                deliver = session.deliver
                ids = present.get(r)
                if ids is not None:
                    session.deliver = lambda message, _, ids=ids, deliver=deliver: deliver(message, np.array(ids))
                session.advance(1)
                session.deliver = deliver
            return session.states()[0].x


def trapped_scaffold(folder: Path):
    """A method whose clients remember, and a problem of three clients, of which one can be killed in mid-round."""
    trap = Trap(folder / "trap")
    rng = np.random.default_rng(0)
    data = fz.ClientData(
        [np.column_stack([np.full(5, i), rng.normal(size=(5, 3)) + i]) for i in range(3)],
    )

    def loss(x, batch):
        jax.debug.callback(trap, batch[0, 0])
        return jnp.mean(jnp.log1p(jnp.exp(-batch[:, 1:] @ x))) + 0.1 * jnp.sum(x**2)

    return fz.Scaffold(0.2, 3, batch_size=2), fz.Nonsmooth(loss, data, np.zeros(3)), trap


def logistic(x, batch):
    return jnp.mean(jnp.log1p(jnp.exp(-batch @ x))) + 0.1 * jnp.sum(x**2)


def resumable():
    """A method whose clients remember, and a problem, the same in every process."""
    rng = np.random.default_rng(0)
    data = fz.ClientData([rng.normal(size=(5, 3)) + i for i in range(3)])
    return fz.Scaffold(0.2, 3, batch_size=2), fz.Nonsmooth(logistic, data, np.zeros(3))
