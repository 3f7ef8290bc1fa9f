"""Things that are nearly right: the line says what to pass instead."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import fedrzo as fz
from fedrzo.running.spec import Spec


def test_a_sparse_matrix_is_to_be_made_dense():
    with pytest.raises(fz.InputError, match=r"data: found a sparse csr_matrix; pass a dense array: its \.toarray\(\)"):
        fz.ClientData([sparse.csr_matrix(np.eye(3))])


def test_a_result_is_no_point():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(jnp.abs(b @ x - 1)), fz.ClientData([np.ones((5, 2))]), np.zeros(2))
    result = fz.run(fz.FedRZOnn(0.01, 0.1), problem, 1, progress=False)
    with pytest.raises(fz.InputError, match=r"x: found a Result; pass its point: result\.x"):
        fz.certify(problem, result, 0.1)


def test_a_spec_is_a_toml_file():
    with pytest.raises(fz.InputError, match=r"spec: found 'x\.json'; write a TOML file"):
        Spec.read("x.json")
