"""`fedrzo solve` of a file that names no method: one, and everything else, is found."""

import json

import numpy as np

import fedrzo as fz

FILE = """\
import jax.numpy as jnp
import numpy as np
import fedrzo as fz

problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(x - b)), fz.ClientData([np.full(3, 2.0), np.full(5, 2.0)]), np.zeros(1))
"""


def test_it_says_what_was_found_and_keeps_it(call, fails, tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(FILE)
    status, out, err = call("solve", path, "--seconds", 30, "--out", tmp_path / "out", "--json")
    assert status == 0
    assert "no method named" in err
    assert "QuasiNewton, " in err
    kept = fz.Result.load(tmp_path / "out" / "solve")
    assert kept.loss_feasible < 1e-3
    np.testing.assert_allclose(kept.x, 2.0, atol=1e-3)
    assert json.loads(out)["history"]["loss"][-1] == kept.loss_feasible
    assert "is there already" in fails("solve", path, "--out", tmp_path / "out")
    line = fails("solve", path, "--seconds", 30, "--rounds", 3)
    assert line.startswith("--seconds: works only if fedrzo picks the method; ")
