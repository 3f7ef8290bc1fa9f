"""What `load` returns, on the real files, and what it says about damaged ones."""

import bz2
import dataclasses
import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrzo.data import NAMES, Dataset, animals_vehicles, even_odd, load
from fedrzo.data.datasets import embedded
from fedrzo.data.sources import SOURCES
from fedrzo.errors import InputError, MissingExtraError


def check_form(data: Dataset, train: int, test: int, features: int) -> None:
    assert data.x_train.shape == (train, features)
    assert data.x_test.shape == (test, features)
    assert data.y_train.shape == (train,)
    assert data.y_test.shape == (test,)
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert (x.dtype, y.dtype) == (np.float32, np.int32)
        assert not x.flags.writeable
        assert not y.flags.writeable
        assert np.isfinite(x).all()
    assert len(np.unique(data.y_train)) == len(data.classes)


def check_unit_interval(data: Dataset) -> None:
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert (data.x_test.min(), data.x_test.max()) == (0, 1)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# The embedded sets


def test_digits() -> None:
    data = load("digits")
    check_form(data, 1437, 360, 64)
    check_unit_interval(data)
    shares = np.bincount(data.y_test) / (np.bincount(data.y_test) + np.bincount(data.y_train))
    np.testing.assert_allclose(shares, 0.2, atol=0.005)  # stratified: at most one sample off per class


def test_digits_lose_no_sample() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    ours = np.vstack([data.x_train, data.x_test]) * 16
    theirs = load_digits().data
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))


def test_breast_cancer() -> None:
    data = load("breast-cancer")
    check_form(data, 455, 114, 30)
    assert data.classes == ("malignant", "benign")
    assert np.sum(data.y_train == 1) + np.sum(data.y_test == 1) == 357  # the published number of benign cases
    assert set(data.y_test) == {-1, 1}
    np.testing.assert_allclose(data.x_train.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.x_train.std(axis=0), 1, atol=1e-5)


def test_embedded_sets_need_no_folder(tmp_path: Path) -> None:
    assert load("digits", root=tmp_path / "absent", download=False) is load("digits")


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_a_missing_scikit_learn_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedrzo\[data\]'"):
        load(name)


# The real files


def test_mnist(shared: Path) -> None:
    data = load("mnist", root=shared)
    check_form(data, 60_000, 10_000, 784)
    check_unit_interval(data)
    assert data.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(data.y_train)[[0, 1, 9]].tolist() == [5923, 6742, 5949]
    assert data.x_train.mean() == pytest.approx(0.1307, abs=1e-4)  # the constant everybody normalises by
    assert load("mnist", root=shared / "mnist") is data  # the same files by another way
    assert repr(data) == "Dataset('mnist': 60000 + 10000 samples, 784 features)"


@pytest.mark.slow("unpacks CIFAR-10")
def test_cifar10(shared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    subprocess.run([sys.executable, shared / "unpack_cifar10.py", folder], check=True)
    data = load("cifar10", root=tmp_path)
    check_form(data, 50_000, 10_000, 3072)
    check_unit_interval(data)
    assert data.y_train[:5].tolist() == [6, 9, 9, 4, 1]
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    channels = data.x_train.reshape(-1, 3, 32, 32).mean(axis=(0, 2, 3), dtype=float)
    np.testing.assert_allclose(channels, [0.4914, 0.4822, 0.4465], atol=1e-4)  # red, green, blue, as published
    assert animals_vehicles(data.y_train).mean() == pytest.approx(0.2)

    load_again = tmp_path / "other"
    folder.rename(load_again)
    batch = load_again / "data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"data_batch_3\.bin is corrupt or incomplete: its SHA1 is") as error:
        load("cifar10", root=load_again)
    one_line(error)


@pytest.mark.parametrize(
    ("name", "train", "test", "features", "nonzeros", "positive"),
    [("a9a", 32_561, 16_281, 123, (451_592, 225_731), 7_841), ("w8a", 49_749, 0, 300, (579_586, 0), 1_479)],
)
def test_libsvm(shared: Path, name: str, train: int, test: int, features: int, nonzeros: tuple[int, int], positive: int) -> None:
    data = load(name, root=shared)
    check_form(data, train, test, features)
    assert (np.count_nonzero(data.x_train), np.count_nonzero(data.x_test)) == nonzeros
    assert set(np.unique(data.x_train)) == {0, 1}
    assert set(data.y_train) == {-1, 1}
    assert np.sum(data.y_train == 1) == positive


def test_a9a_features_are_counted_from_one(shared: Path) -> None:
    first = load("a9a", root=shared).x_train[0]
    with gzip.open(shared / "libsvm" / "a9a.gz", "rt") as text:
        indices = [int(pair.split(":")[0]) for pair in text.readline().split()[1:]]
    assert (np.flatnonzero(first) + 1).tolist() == indices


@pytest.mark.parametrize("form", ["a9a", "a9a.bz2"])
def test_libsvm_plain_or_bzip2(shared: Path, tmp_path: Path, form: str) -> None:
    for name in ("a9a", "a9a.t"):
        text = gzip.decompress((shared / "libsvm" / f"{name}.gz").read_bytes())
        packed = bz2.compress(text) if form.endswith("bz2") else text
        (tmp_path / form.replace("a9a", name)).write_bytes(packed)
    ours, theirs = load("a9a", root=tmp_path), load("a9a", root=shared)
    np.testing.assert_array_equal(ours.x_test, theirs.x_test)
    np.testing.assert_array_equal(ours.y_train, theirs.y_train)


def test_w8a_takes_a_test_file_beside_it(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(shared / "libsvm" / "w8a.gz", tmp_path)
    (tmp_path / "w8a.t").write_text("+1 1:1 300:1\n-1 2:1\n")
    train, test = SOURCES["w8a"].choices[0]
    source = dataclasses.replace(SOURCES["w8a"], choices=((train, dataclasses.replace(test, rows=2)),))
    monkeypatch.setitem(SOURCES, "w8a", source)
    data = load("w8a", root=tmp_path)
    check_form(data, 49_749, 2, 300)
    assert np.argwhere(data.x_test).tolist() == [[0, 0], [0, 299], [1, 1]]


# Damaged files and mistakes


@pytest.mark.parametrize(("name", "known"), [("minst", "did you mean 'mnist'"), ("imagenet-21k", "known: a9a, breast-cancer")])
def test_unknown_name(name: str, known: str) -> None:
    with pytest.raises(InputError, match=known) as error:
        load(name)
    assert one_line(error).startswith(f"name={name!r} ")
    assert len(NAMES) == 6


def test_truncated_libsvm(shared: Path, tmp_path: Path) -> None:
    text = gzip.decompress((shared / "libsvm" / "a9a.gz").read_bytes())
    shutil.copy(shared / "libsvm" / "a9a.t.gz", tmp_path)
    cases = {
        text[: len(text) // 2]: "rows, not 32561",
        text.replace(b" 3:1", b"", 1): "451591 non-zeros, not 451592",
        gzip.compress(text)[:-100]: "cannot be read",
        b"<html>Please log in to the hotel's network</html>": "1 rows, not 32561",
    }
    for content, complaint in cases.items():
        (tmp_path / "a9a").write_bytes(content)
        with pytest.raises(InputError, match=complaint) as error:
            load("a9a", root=tmp_path)
        assert str(tmp_path / "a9a") in one_line(error)


def test_libsvm_of_other_features(shared: Path, tmp_path: Path) -> None:
    text = gzip.decompress((shared / "libsvm" / "a9a.gz").read_bytes())
    shutil.copy(shared / "libsvm" / "a9a.t.gz", tmp_path)
    for pair in (b" 124:1 \n", b" 12x:1 \n"):
        (tmp_path / "a9a").write_bytes(text.replace(b" 83:1 \n", pair, 1))
        with pytest.raises(InputError, match="a9a cannot be read") as error:
            load("a9a", root=tmp_path)
        one_line(error)


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def test_small_mnist(small: dict[str, bytes], serve, tmp_path: Path) -> None:
    serve("good")
    write(tmp_path, small)
    data = load("mnist", root=tmp_path)
    np.testing.assert_array_equal(data.x_train, np.arange(0, 240, 20, dtype=np.float32).reshape(3, 4) / np.float32(255))
    assert data.y_train.tolist() == [5, 0, 4]
    assert data.x_test.tolist() == [[1, 1, 1, 1]] * 2


def test_corrupt_mnist_then_repaired(small: dict[str, bytes], serve, tmp_path: Path) -> None:
    serve("good")
    name = "t10k-images-idx3-ubyte.gz"
    write(tmp_path, small | {name: small[name][:-1]})
    with pytest.raises(InputError, match="is corrupt or incomplete: its MD5 is") as error:
        load("mnist", root=tmp_path)
    assert str(tmp_path / name) in one_line(error)
    write(tmp_path, small)
    assert len(load("mnist", root=tmp_path).x_test) == 2  # an error is not remembered


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x08", "not an idx file"),
        (b"\x00\x00\x08\x03\x00\x00", "not an idx file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00", "not an idx file"),  # floats
        (b"\x00\x00\x08\x01\x00\x00\x00\x03\x00\x00", r"2 values where the header announces \(3,\)"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02\x05\x00", "2 labels for the 3 images"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
    ],
)
def test_damaged_plain_idx(small: dict[str, bytes], serve, tmp_path: Path, content: bytes, complaint: str) -> None:
    serve("good")
    plain = {name.removesuffix(".gz"): gzip.decompress(packed) for name, packed in small.items()}
    write(tmp_path, plain | {"train-labels-idx1-ubyte": content})
    with pytest.raises(InputError, match=complaint) as error:
        load("mnist", root=tmp_path)
    assert str(tmp_path / "train-labels-idx1-ubyte") in one_line(error)
    write(tmp_path, plain)
    assert load("mnist", root=tmp_path).y_train.tolist() == [5, 0, 4]


# Two classes out of ten


def test_even_odd() -> None:
    signs = even_odd(np.arange(10))
    assert signs.tolist() == [1, -1] * 5
    assert signs.dtype == np.float32


def test_animals_vehicles() -> None:
    names = np.array(["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"])
    assert names[animals_vehicles(np.arange(10)) < 0].tolist() == ["airplane", "automobile", "ship", "truck"]


@pytest.mark.parametrize("labels", [[-1, 1], [0.0, 1.0], ["cat"]])
@pytest.mark.parametrize("mapping", [even_odd, animals_vehicles])
def test_labels_that_are_no_class_indices(mapping, labels: list[object]) -> None:
    with pytest.raises(InputError, match="labels: found"):
        mapping(labels)


def test_animals_vehicles_knows_ten_classes() -> None:
    with pytest.raises(InputError, match="found 10"):
        animals_vehicles([10])
