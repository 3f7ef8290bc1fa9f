import pytest

from fedrzo import methods, vi
from fedrzo.errors import InputError
from fedrzo.running.experiment import tasks
from fedrzo.running.spec import Spec, built_in, slug
from fedrzo.support.settings import merge, nest, read_setting

TOML = """
title = "A test"

[problem]
name = "quadratic"
dim = 3

[method]
name = "FedRZOnn"
stepsize = 0.01
smoothing = 0.1

[run]
rounds = 4
seed = 7
"""
VARIANTS = """
[[variant]]
label = "H = 2"
"method.local_steps" = 2

[[variant]]
label = "H = 1, dim 2"
method.local_steps = 1
problem.dim = 2
"""


def read(tmp_path, text):
    path = tmp_path / "test.toml"
    path.write_text(text)
    return Spec.read(path)


def message(tmp_path, text):
    with pytest.raises(InputError) as caught:
        tasks(read(tmp_path, text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", built_in())
def test_built_in_specs_are_valid_and_titled(name):
    spec = Spec.read(name)
    assert spec.title
    assert all(variant.method() and variant.run["rounds"] for variant in spec.variants())


def test_a_spec_becomes_a_problem_a_method_and_a_task(tmp_path):
    [task] = tasks(read(tmp_path, TOML))
    assert (task.label, task.problem.dim, task.rounds, task.seed) == ("FedRZOnn", 3, 4, 7)
    assert task.method == methods.FedRZOnn(stepsize=0.01, smoothing=0.1)


def test_variants_change_what_they_name_and_share_equal_problems(tmp_path):
    spec = read(tmp_path, TOML + VARIANTS + '[[variant]]\nlabel = "again"\nrun.rounds = 9\n')
    first, second, third = tasks(spec)
    assert [task.label for task in (first, second, third)] == ["H = 2", "H = 1, dim 2", "again"]
    assert [task.method.local_steps for task in (first, second, third)] == [2, 1, 1]
    assert [task.problem.dim for task in (first, second, third)] == [3, 2, 3]
    assert [task.rounds for task in (first, second, third)] == [4, 4, 9]
    assert first.problem is third.problem


def test_a_spec_survives_being_written_and_read(tmp_path):
    spec = read(tmp_path, TOML + VARIANTS).override("method.stepsize=0.5", "problem.seed=3")
    spec.write(tmp_path / "copy.toml")
    assert Spec.read(tmp_path / "copy.toml") == spec


def test_overrides_are_toml_or_bare_words(tmp_path):
    spec = read(tmp_path, TOML).override("method.stepsize=2e-3", "method.batch_size=full", "problem.dtype='float32'")
    assert spec.method() == methods.FedRZOnn(stepsize=2e-3, smoothing=0.1, batch_size="full")
    assert spec.problem().layout.dtype == "float32"


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=1e-4", 1e-4), ("a = true", True), ("a=word", "word"), ("a=../d/x-1.y", "../d/x-1.y"),
     ("a=~/data", "~/data"), ("a=[1, 2]", [1, 2]), ('a="b = c"', "b = c"), ("a=x=y", None), ("a=.5", None), ("a=[1", None),
     ("a=1\nb=2", None)],
)  # fmt: skip
def test_values_of_settings(text, value):
    if value is None:
        with pytest.raises(InputError, match="write a TOML value"):
            read_setting(text)
    else:
        assert read_setting(text) == ("a", value)


@pytest.mark.parametrize("text", ["method.stepsize", "=3", "method.stepsize="])
def test_settings_are_pairs(text):
    with pytest.raises(InputError, match="write KEY=VALUE, such as"):
        read_setting(text)


def test_another_name_replaces_the_table():
    base = {"method": {"name": "A", "smoothing": 1, "lower": {"name": "C"}}}
    assert merge(base, nest([("method.smoothing", 2)]))["method"]["smoothing"] == 2
    assert merge(base, nest([("method.stepsize", 3), ("method.name", "B")])) == {"method": {"name": "B", "stepsize": 3}}
    assert merge(base, nest([("method.lower.steps", 3)]))["method"]["lower"] == {"name": "C", "steps": 3}


def test_an_override_reaches_a_variant_that_replaces_the_table(tmp_path):
    other = '[[variant]]\nlabel = "b"\nproblem = {name = "median", clients = 3}\n'
    spec = read(tmp_path, TOML + '[[variant]]\nlabel = "a"\n' + other)
    assert [variant.problem().dim for variant in spec.override("problem.dim=5").variants()] == [5, 5]
    with pytest.raises(InputError, match=r"^problem.clients: variant 'b' sets it too"):
        spec.override("problem.clients=5")


def test_a_field_may_be_a_method_or_a_solver(tmp_path):
    spec = read(tmp_path, TOML)
    bilevel = ["method.name=FedRZObl", "method.stepsize=0.1", "method.smoothing=0.2", "method.lower.name=LocalSGD"]
    assert spec.override(*bilevel, "method.lower.rounds=3").method() == methods.FedRZObl(
        0.1, 0.2, lower=methods.LocalSGD(rounds=3)
    )
    with pytest.raises(InputError, match=r"^method.lower.ronds: LocalSGD has no such field; did you mean 'rounds'\?$"):
        spec.override(*bilevel, "method.lower.ronds=3")
    twostage = [
        "method.name=FedRZO2s",
        "method.stepsize=0.1",
        "method.smoothing=0.2",
        "method.solver.name=Extragradient",
    ]
    assert isinstance(spec.override(*twostage).method().solver, vi.Extragradient)
    with pytest.raises(InputError, match=r"^method.solver: tolerance: found -1"):
        spec.override(*twostage, "method.solver.tolerance=-1").method()
    with pytest.raises(InputError, match=r"^method.name: found 'Extragradient'"):
        spec.override("method.name=Extragradient")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[method]", "[mehtod]", "mehtod: no such table; did you mean 'method'?"),
        ("rounds", "ruonds", "run.ruonds: no such key; did you mean 'rounds'?"),
        ("rounds = 4", "", "run.rounds: missing; say how many rounds to run"),
        ("rounds = 4", "rounds = 4.5", "rounds: found 4.5; pass a whole number of at least 0"),
        ("rounds = 4", "rounds = 4\nclients_per_round = 6",
         "clients_per_round: found 6; pass a whole number from 1 to 5, the clients there are"),
        ("seed = 7", "seed = -7", "run.seed: found -7; pass a whole number of at least 0"),
        ("seed = 7", 'engine = "lop"', "run.engine: found 'lop'; did you mean 'loop'?"),
        ("stepsize", "stepsiz", "method.stepsiz: FedRZOnn has no such field; did you mean 'stepsize'?"),
        ("stepsize = 0.01", "", "method.stepsize: missing; FedRZOnn needs a value"),
        ("0.01", '"small"', "method.stepsize: found 'small'; pass a positive number, or \"auto\""),
        ("FedRZOnn", "FedRZOn", "method.name: found 'FedRZOn'; did you mean 'FedRZOnn'?"),
        ("quadratic", "quadratc", "problem.name: found 'quadratc'; did you mean 'quadratic'?"),
        ("dim", "dmi", "problem: quadratic has no option 'dmi'; did you mean 'dim'?"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, old, new, expected):
    assert message(tmp_path, TOML.replace(old, new)) == expected


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        ("[variant]\nx = 1", "variant: found {'x': 1}; write each as a table [[variant]]"),
        ("[[variant]]\nrun.rounds = 1", "variant 1: found label None; give it a label of letters or digits"),
        ('[[variant]]\nlabel = "H 1"\n[[variant]]\nlabel = "h = 1"',
         "variant 2: label 'h = 1' is too like 'H 1'; choose another"),
        ('[[variant]]\nlabel = "a"\nmethod.stepsiz = 1',
         "method.stepsiz: FedRZOnn has no such field; did you mean 'stepsize'?"),
    ],
)  # fmt: skip
def test_mistakes_in_variants_are_named(tmp_path, variants, expected):
    assert message(tmp_path, TOML + variants) == expected


def test_a_missing_table_and_a_missing_name(tmp_path):
    assert message(tmp_path, TOML.split("[run]")[0]) == "run: missing; write a table [run]"
    found = message(tmp_path, TOML.replace('name = "quadratic"', ""))
    assert found == "problem.name: missing; `fedrzo list` has all"


def test_a_problem_that_cannot_be_made_is_no_traceback(tmp_path):
    found = message(tmp_path, TOML.replace("dim = 3", 'dim = "three"'))
    assert found.startswith("problem: quadratic cannot be made with dim = 'three' (")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.toml \(No such file or directory\); check the path$"):
        Spec.read(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match=r"is not valid TOML: .*\(at line 2, column \d+\)$"):
        read(tmp_path, "title = 'x'\nrounds 4\n")
    (tmp_path / "latin.toml").write_bytes("title = 'é'".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8"):
        Spec.read(tmp_path / "latin.toml")
    with pytest.raises(InputError, match=r"^spec: found 'demmo'; did you mean 'demo'\?$"):
        Spec.read("demmo")


def test_slugs():
    assert [slug(label) for label in ("H = 20", "eta = 0.1", "  FedAvg (b) ", "=")] == [
        "h-20",
        "eta-0.1",
        "fedavg-b",
        "",
    ]
