"""The gallery of docs/errors.md: its code is run, and what it says must be what the page says."""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedrzo as fz

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
SETUP = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
ENTRY = re.compile(r"^### ([^\n]+)\n\n```python\n(.*?)```\n\n```text\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
MISTAKES = ENTRY.findall(PAGE)
# The argument, what was found, what to do. What to do names a way out: it starts with a verb, or says what must be.
FORM = re.compile(r"(?P<argument>[\w .:]{1,40}?): (?P<found>\S.*); (?P<remedy>\S.*)")
ARGUMENTS = """
    data fixed Sampler loss test metrics x0 constraint Box weights constrain blackbox lower lower_constraint modulus y0 map solver
    stepsize local_steps batch_size localsteps problem step clients_per_round rounds key engine resume stop method seed
    lipschits
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def setup():
    namespace = {}
    exec(SETUP, namespace)
    return namespace


def test_the_page_is_read_whole():
    assert len(MISTAKES) == PAGE.count("\n### ") >= 30
    assert len({message for _, _, message in MISTAKES}) >= 30


@pytest.mark.parametrize(("code", "message"), [entry[1:] for entry in MISTAKES], ids=[entry[0] for entry in MISTAKES])
def test_a_mistake_says_what_the_page_says(setup, code, message):
    with pytest.raises(fz.FedrzoError) as error:
        exec(code, dict(setup))
    assert str(error.value) == message
    form = FORM.fullmatch(message)
    assert form, message
    assert form["argument"].split(" of ")[0].split(":")[0] in ARGUMENTS


def test_a_black_box_that_fails_in_the_middle_of_a_run_is_told_in_one_line(capfd):
    calls, limit = [], 20

    def simulator(x, batch):
        calls.append(1)
        if len(calls) > limit:
            raise OSError("the licence server\nis away")
        return float(np.mean(np.abs(x - batch)))

    problem = fz.Nonsmooth(fz.blackbox(simulator), fz.ClientData([np.arange(3.0)]), np.zeros(()))
    with pytest.raises(fz.BlackboxError, match=r"^blackbox: simulator raised OSError: the licence server is away; ") as error:
        fz.run(fz.FedRZOnn(0.01, 0.1), problem, 50, progress=False)
    assert len(calls) > 20
    assert isinstance(error.value.__cause__, OSError)
    assert "\n" not in str(error.value)
    assert "Traceback" not in capfd.readouterr().err  # JAX would log one
    [found] = fz.check(problem, rounds=0).problems
    assert found.about == "blackbox"
    assert found.text.startswith("simulator raised OSError: the licence server is away; ")
    limit = np.inf  # it is well again, and its failures are forgotten
    report = fz.check(problem, rounds=0)
    assert report.ok
    assert report["blackbox"].text == "it gives the same value when asked twice"


def test_what_python_calls_a_type_error_is_one_too():
    with pytest.raises(TypeError, match=r"^localsteps: FedRZOnn has no such argument; did you mean 'local_steps'?"):
        fz.FedRZOnn(0.1, 0.1, localsteps=3)
    with pytest.raises(TypeError, match=r"^smoothing: FedRZOnn needs it, and it was not passed; pass stepsize, smoothing$"):
        fz.FedRZOnn(0.1)
    with pytest.raises(TypeError, match=r"^budget: FedRZOnn.from_theory needs it, and it was not passed; pass problem, budget$"):
        fz.FedRZOnn.from_theory(None)
    with pytest.raises(TypeError, match=r"^FedRZObl.from_theory: too many positional arguments; pass problem, budget, smoo"):
        fz.FedRZObl.from_theory(None, 9, 0.1, None, 5)
    with pytest.raises(TypeError, match=r"^batchsize: FedRZO2s has no such argument; did you mean 'batch_size'\?$"):
        fz.FedRZO2s.from_theory(None, 9, batchsize=5)  # before the problem is looked at, which may take long
    with pytest.raises(TypeError, match=r"^Box"):  # sets are plain dataclasses, whose errors are Python's own
        fz.sets.Box(1.0)


def test_functions_name_the_argument_that_does_not_fit():
    for call, message in (
        (lambda: fz.run(), "method: run needs it, and it was not passed; pass method, problem, rounds"),
        (lambda: fz.sweep(None, None, 5, seed=3), "seed: sweep has no such argument; did you mean 'seeds'?"),
        (lambda: fz.check(None, rouns=3), "rouns: check has no such argument; did you mean 'rounds'?"),
        (lambda: fz.certify(None, 0, 0.1, seed=3), "seed: certify has no such argument; did you mean 'key'?"),
        (lambda: fz.theory.bilevel(5, 3), "smoothing: bilevel needs it, and it was not passed; pass clients, dim, "),
        (lambda: fz.theory.estimate(None, 1, 2, 3), "estimate: too many positional arguments; pass problem, point, "),
    ):
        with pytest.raises(TypeError) as error:
            call()
        assert isinstance(error.value, fz.InputError)
        assert str(error.value).startswith(message)


def test_a_public_name_that_is_misspelt_is_told():
    with pytest.raises(AttributeError, match=r"^FedRZOnm: fedrzo has no such name; did you mean 'FedRZOnn'\?$"):
        _ = fz.FedRZOnm
    assert not hasattr(fz, "_ipython_display_")


def test_a_setting_that_was_not_swept_is_told():
    swept = fz.Sweep([{"stepsize": 0.1}, {"stepsize": 0.2}], [[], []])
    for setting in (2, -3, 0.5):
        with pytest.raises(fz.InputError, match=f"^setting: found {setting}; pass its place in `settings`, from 0 to 1$"):
            swept.band(setting, "loss")


def test_warnings_are_given_at_the_line_that_called_the_library():
    problem = fz.Nonsmooth(lambda x, b: jnp.mean(x * b), fz.ClientData([np.ones(2)]), np.full(1, 9.0), fz.sets.Box(0, 1))
    with pytest.warns(UserWarning, match="it is projected first") as said:
        fz.run(fz.FedRZOnn(0.1, 0.1), problem, 0, progress=False)
    assert said[0].filename == __file__


def test_pytrees_and_arrays_of_numbers_are_no_mistakes():
    tree = {"w": np.zeros(2), "b": 0.0, "list": [np.zeros(1), np.float32(0)]}
    assert fz.Nonsmooth(lambda x, batch: x["b"], fz.ClientData([np.array([True, False])]), tree).dim == 5
    assert fz.ClientData([np.arange(3), np.arange(2)]).samples == 5
