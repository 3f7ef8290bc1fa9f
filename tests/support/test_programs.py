"""Compiled programs are cached on disk, for the command line and for Python callers."""

import os
import subprocess
import sys

import pytest

from fedrzo.support import programs
from fedrzo.support.cores import cores


def command(home, *args):
    """Run the command as a user's shell does, without the settings of these tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {"JAX_PLATFORMS": "cpu"}
    env |= {"XDG_CACHE_HOME": str(home)}
    ran = subprocess.run([sys.executable, "-m", "fedrzo", *args], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.slow("two processes, one of which compiles everything")
def test_a_second_solve_compiles_nothing_and_says_the_same(tmp_path):
    file = tmp_path / "problem.py"
    command(tmp_path, "new", "bilevel", str(file))
    first = command(tmp_path, "solve", str(file), "--rounds", "5", "--json", "--quiet")
    kept = sorted((tmp_path / "fedrzo" / "programs" / programs.machine()).iterdir())
    assert any(path.name.startswith("jit_rounds") for path in kept)
    second = command(tmp_path, "solve", str(file), "--rounds", "5", "--json", "--quiet")
    assert [path.name for path in kept] == [
        path.name for path in sorted((tmp_path / "fedrzo" / "programs" / programs.machine()).iterdir())
    ]
    assert second.stderr == first.stderr == ""


SCRIPT = """
import jax
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
import jax.numpy as jnp, numpy as np
jnp.ones(3) + 1  # JAX has compiled something before
import fedrzo as fz
problem = fz.Nonsmooth(lambda x, batch: jnp.mean((batch - x) ** 2), fz.ClientData([np.ones(3), np.zeros(2)]), np.zeros(1))
fz.run(fz.FedAvg(0.1), problem, 3, progress=False)
print(len(hits))
"""


@pytest.mark.slow("three processes")
def test_a_second_process_finds_what_the_first_has_compiled(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    env |= {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path)}

    def run(**more):
        ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env | more, capture_output=True, text=True, check=True)
        return int(ran.stdout.split()[0])

    run(FEDRZO_CACHE="off")
    assert not any(tmp_path.iterdir())
    run()
    kept = sorted((tmp_path / "fedrzo" / "programs" / programs.machine()).glob("jit_rounds*"))
    assert run() > 0
    assert kept == sorted((tmp_path / "fedrzo" / "programs" / programs.machine()).glob("jit_rounds*")) != []


def test_what_was_written_first_goes_first(tmp_path):
    for i in range(4):
        (tmp_path / f"program {i}").write_bytes(b"0" * 100)
        os.utime(tmp_path / f"program {i}", (0, 1000 * i))
    programs.drop_oldest(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program 2", "program 3"]


def test_a_folder_of_the_users_own_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    programs.keep()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "own")
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_written_in_stops_nothing(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("a file, not a folder")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    programs.keep()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_command_line_uses_all_cores_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    programs.use_cores()
    assert "JAX_NUM_CPU_DEVICES" not in os.environ
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "7")
    programs.use_cores()
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "7"
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
    programs.use_cores()
    assert int(os.environ["JAX_NUM_CPU_DEVICES"]) == cores()
