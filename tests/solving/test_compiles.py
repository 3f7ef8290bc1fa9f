"""What `fz.solve` compiles, by JAX's own events: with an empty cache on disk, a program that is compiled again is a hit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOLVE = """
import json, sys, threading
import jax, jax.numpy as jnp, numpy as np
import fedrzo as fz

programs, again, hits, aside = [], [], [], []
def count(event, **_):
    hits.extend([event] * event.endswith("cache_hits"))
def name(event, seconds, **facts):
    if event.endswith("backend_compile_duration"):
        programs.append(facts.get("fun_name"))
        aside.extend([programs[-1]] * (threading.current_thread() is not threading.main_thread()))
        again.extend([programs[-1]] * bool(hits))
        hits.clear()
rng = np.random.default_rng(0)
data = fz.ClientData([rng.normal(size=(size, 5)) for size in (6, 9)])
def fit(x, batch):
    return jnp.mean(jnp.abs(batch[:, :4] @ x - batch[:, 4]))
def ridge(x, y, batch):
    return jnp.mean((batch[:, :4] @ y - batch[:, 4]) ** 2) + jnp.sum(jnp.exp(x) * y**2)
problem = {
    "one level": lambda: fz.Nonsmooth(fit, data, np.zeros(4), [fz.sets.Box(-1, 1), fz.sets.Ball(0.0, 1.0)]),
    "bilevel": lambda: fz.Bilevel(lambda x, y, b: fit(y, b), ridge, data, np.zeros(4), np.zeros(4), fz.sets.Box(-2, 2)),
}[sys.argv[1]]
jnp.zeros(1).block_until_ready()
jax.monitoring.register_event_listener(count)
jax.monitoring.register_event_duration_secs_listener(name)
problem = problem()
stated = len(programs)
result = fz.solve(problem, seconds=120, progress=False)
found = {"stated": stated, "again": again, "rounds": programs.count("jit(rounds)"), "aside": aside, "why": result.stopped}
print(json.dumps(found))
"""


@pytest.mark.parametrize("kind", ["one level", pytest.param("bilevel", marks=pytest.mark.slow("compiles for half a minute"))])
def test_no_program_is_compiled_twice(kind, tmp_path):
    settings = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    settings["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    done = subprocess.run([sys.executable, "-c", SOLVE, kind], capture_output=True, text=True, env=settings, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert "time limit" not in found["why"]
    assert found["stated"] <= 2  # a problem that is stated computes nothing but where its arrays lie
    assert found["again"] == []
    assert found["rounds"] == 3  # the descent, and the two programs of a certificate
    assert found["aside"] == 3 * ["jit(rounds)"]  # all of them in threads, while others are traced
