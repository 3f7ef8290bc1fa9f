"""Where `load` looks, and how it downloads, from a real HTTP server in this process."""

import dataclasses
import io
import os
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedrzo.data import files, load
from fedrzo.data.sources import SOURCES, File, Source
from fedrzo.errors import InputError


def refusal(**arguments: object) -> str:
    """The one line that `load("mnist")` fails with."""
    with pytest.raises(InputError) as error:
        load("mnist", **arguments)
    text = str(error.value)
    assert "\n" not in text
    return text


def fill(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def kept(cache: Path) -> list[str]:
    """Every file and folder in the cache."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*"))


# Looking


@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw", "."])
def test_layouts_of_a_root(layout: str, small, serve, tmp_path: Path, handler) -> None:
    serve("good")
    fill(tmp_path / "data" / layout, small)
    assert load("mnist", root=str(tmp_path / "data")).y_train.tolist() == [5, 0, 4]
    assert not handler.asked


def test_order_root_then_variable_then_cache(small, serve, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve("good")
    folders = {name: fill(tmp_path / name, small) for name in ("root", "variable")}
    fill(cache / "mnist", small)
    monkeypatch.setenv("FEDRZO_DATA", str(folders["variable"]))

    def used(root: Path | None = None) -> Path:
        return files.find("mnist", root, download=False)["t10k-labels-idx1-ubyte.gz"].parent

    assert used(folders["root"]) == folders["root"]
    assert used() == folders["variable"]
    (folders["variable"] / "t10k-labels-idx1-ubyte.gz").unlink()
    assert used() == cache / "mnist"  # an incomplete folder is passed over
    monkeypatch.setenv("FEDRZO_DATA", "")
    assert used() == cache / "mnist"


def test_root_is_the_only_place(small, serve, tmp_path: Path, cache: Path, handler) -> None:
    serve("good")
    fill(cache / "mnist", small)
    folder = fill(tmp_path / "root", small)
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    text = refusal(root=folder)
    assert text.startswith(f"mnist: train-labels-idx1-ubyte.gz not found in {folder}; ")  # only what is missing
    assert "--data" in text
    assert not handler.asked


def test_no_download_when_told(serve, cache: Path, handler) -> None:
    serve("good")
    text = refusal(download=False)
    assert str(cache) in text
    assert "t10k-images-idx3-ubyte.gz" in text
    assert not handler.asked
    assert not cache.exists()


@pytest.mark.parametrize("value", ["absent", ""])
def test_root_that_is_no_folder(value: str) -> None:
    assert refusal(root=value).startswith(f"root={value!r} is not a folder; ")


def test_variable_that_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRZO_DATA", "absent")
    assert refusal().startswith("FEDRZO_DATA='absent' is not a folder; ")


def test_cache_defaults_to_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / ".cache" / "fedrzo"


# Downloading


@pytest.mark.parametrize("route", ["good", "unannounced"])
def test_download_once(route: str, small, serve, cache: Path, handler, capfd: pytest.CaptureFixture[str]) -> None:
    serve(route)
    data = load("mnist")
    assert data.y_test.tolist() == [7, 2]
    assert kept(cache) == ["mnist", *(f"mnist/{name}" for name in sorted(small))]
    assert len(handler.asked) == 4
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "train-images-idx3-ubyte.gz" in shown.err  # the progress bar
    assert load("mnist", download=False) is data
    assert len(handler.asked) == 4


def test_download_of_what_is_missing(small, serve, cache: Path, handler) -> None:
    serve("good")
    fill(cache / "mnist", small)
    (cache / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert load("mnist").y_test.tolist() == [7, 2]
    assert handler.asked == ["/good/t10k-labels-idx1-ubyte.gz"]


def test_the_cache_is_readable_for_others(serve, cache: Path) -> None:
    serve("good")
    before = os.umask(0o022)
    try:
        load("mnist")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (cache / "mnist").iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("route", "complaint"),
    [
        ("altered", "its MD5 is"),
        ("cut", "transfer stopped after"),
        ("missing", "HTTP Error 404: Not Found"),
        ("hang", "timed out"),
    ],
)
def test_bad_mirror(route: str, complaint: str, serve, cache: Path, mirror: str, impatient: None) -> None:
    serve(route)
    text = refusal()
    assert complaint in text
    assert f"{mirror}/{route}/train-images-idx3-ubyte.gz" in text
    assert str(cache) in text
    assert "root= (--data)" in text
    assert kept(cache) == ["mnist"]  # nothing half-written


def test_unannounced_length_and_cut_is_caught_by_the_checksum(serve, handler, cache: Path) -> None:
    serve("unannounced")
    name = "train-images-idx3-ubyte.gz"
    handler.contents[name] = handler.contents[name][:-5]
    assert "its MD5 is" in refusal()
    assert kept(cache) == ["mnist"]


def test_offline(serve, cache: Path) -> None:
    with socket.socket() as closed:  # bound, so that nobody else listens there
        closed.bind(("127.0.0.1", 0))
        serve("good", server=f"http://127.0.0.1:{closed.getsockname()[1]}")
        text = refusal()
    assert "refused" in text
    assert "train-images-idx3-ubyte.gz" in text
    assert str(cache) in text
    assert kept(cache) == ["mnist"]


def test_a_failing_mirror_is_followed_by_the_next(serve, handler) -> None:
    serve("missing", "altered", "good")
    assert load("mnist").y_train.tolist() == [5, 0, 4]
    routes = [path.split("/")[1] for path in handler.asked]
    assert routes == ["missing", "altered", "good"] * 4


def test_interrupted_then_resumed(serve, handler, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve("good")
    check = files.fault

    def interrupted(path: Path, file: File) -> str | None:
        if len(handler.asked) == 3:
            assert path.is_file()
            raise KeyboardInterrupt
        return check(path, file)

    with monkeypatch.context() as patch:
        patch.setattr(files, "fault", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("mnist")
    assert kept(cache) == ["mnist", "mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz"]
    assert load("mnist").y_test.tolist() == [7, 2]
    assert len(handler.asked) == 5  # the third file again, then the fourth


def test_cache_that_cannot_be_written(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler) -> None:
    serve("good")
    (tmp_path / "occupied").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    assert "Not a directory" in refusal()


def test_real_mnist_from_a_mirror(shared: Path, serve, handler, mirror: str, monkeypatch) -> None:
    handler.contents.update({path.name: path.read_bytes() for path in (shared / "mnist").iterdir()})
    chosen = SOURCES["mnist"].choices[0]
    moved = tuple(dataclasses.replace(file, urls=(f"{mirror}/good/{file.name}",)) for file in chosen)
    monkeypatch.setitem(SOURCES, "mnist", dataclasses.replace(SOURCES["mnist"], choices=(moved,)))
    assert len(load("mnist").x_train) == 60_000


def test_libsvm_is_counted_before_it_enters_the_cache(handler, mirror: str, cache: Path, monkeypatch) -> None:
    train = File("w8a", (f"{mirror}/good/w8a",), rows=2, nonzeros=3)
    test = File("w8a.t", (f"{mirror}/good/w8a.t",), rows=1, required=False)
    monkeypatch.setitem(SOURCES, "w8a", Source(("libsvm", "."), ((train, test),)))
    handler.contents["w8a"] = b"<html>log in first</html>"
    with pytest.raises(InputError, match=r"w8a\.t could not be downloaded .*404"):
        load("w8a")
    handler.contents["w8a.t"] = b"+1 5:1\n"
    with pytest.raises(InputError, match="it has 1 rows, not 2"):
        load("w8a")
    assert kept(cache) == ["libsvm", "libsvm/w8a.t"]
    handler.contents["w8a"] = b"+1 1:1 2:1\n-1 3:1\n\n"
    data = load("w8a")
    assert data.x_train.sum(axis=1).tolist() == [2, 1]
    assert np.argwhere(data.x_test).tolist() == [[0, 4]]


def test_every_published_address_is_https() -> None:
    for source in SOURCES.values():
        assert all(file.urls for file in source.choices[-1])
        addresses = [url for choice in source.choices for file in choice for url in file.urls]
        assert all(url.startswith("https://") for url in addresses)


# CIFAR-10's archive


def record(label: int, shade: int) -> bytes:
    return bytes([label]) + bytes([shade]) * 3072


BATCHES = {f"data_batch_{k}.bin": record(k, 51 * k) for k in range(1, 6)} | {"test_batch.bin": record(9, 0)}


def archive(path: Path, contents: dict[str, bytes], links: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `cifar10` accept archives other than the published one."""
    tar = dataclasses.replace(SOURCES["cifar10"].choices[-1][0], digest=None)
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(SOURCES["cifar10"], choices=((tar,),)))


def test_cifar_archive_is_read_in_place(unchecked: None, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    folder.mkdir()
    inside = {f"cifar-10-batches-bin/{name}": content for name, content in BATCHES.items()}
    hostile = {"../escaped": b"x", "/absolute": b"x"}
    links = {"cifar-10-batches-bin/link": "/etc/passwd"}
    archive(folder / "cifar-10-binary.tar.gz", inside | hostile, links)
    data = load("cifar10", root=folder)
    assert data.y_train.tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_allclose(data.x_train[:, 0], np.arange(1, 6) / 5, rtol=1e-6)
    assert data.y_test.tolist() == [9]
    assert os.listdir(folder) == ["cifar-10-binary.tar.gz"]
    assert os.listdir(tmp_path) == ["root"]


@pytest.mark.parametrize(
    ("change", "links", "complaint"),
    [
        ({"test_batch.bin": None}, {}, r"no test_batch\.bin inside"),
        ({"test_batch.bin": None}, {"test_batch.bin": "/etc/passwd"}, r"no test_batch\.bin inside"),
        ({"test_batch.bin": b"short"}, {}, "5 bytes is not a whole number of 3073-byte records"),
        ({"data_batch_2.bin": record(10, 0)}, {}, "label 10 where 0 to 9 are possible"),
    ],
)
def test_damaged_cifar_archive(
    unchecked: None, tmp_path: Path, change: dict[str, bytes | None], links: dict[str, str], complaint: str
) -> None:
    contents = {name: content for name, content in (BATCHES | change).items() if content is not None}
    archive(tmp_path / "cifar-10-binary.tar.gz", contents, links)
    with pytest.raises(InputError, match=complaint) as error:
        load("cifar10", root=tmp_path)
    assert "cifar-10-binary.tar.gz cannot be read" in str(error.value)


def test_no_archive_at_all(unchecked: None, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not a tar")
    with pytest.raises(InputError, match="cannot be read") as error:
        load("cifar10", root=tmp_path)
    assert "\n" not in str(error.value)


def test_another_archive_than_the_published_one(tmp_path: Path) -> None:
    archive(tmp_path / "cifar-10-binary.tar.gz", BATCHES, {})
    with pytest.raises(InputError, match=r"tar\.gz is corrupt or incomplete: its MD5 is"):
        load("cifar10", root=tmp_path)


def test_missing_cifar_names_the_archive_or_the_one_batch(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cifar10: cifar-10-binary\.tar\.gz not found in"):
        load("cifar10", root=tmp_path)
    fill(tmp_path, {name: b"" for name in BATCHES if name != "data_batch_4.bin"})
    with pytest.raises(InputError, match=r"cifar10: data_batch_4\.bin not found in"):
        load("cifar10", root=tmp_path)
