"""No test here reads the user's folders or leaves this machine."""

import dataclasses
import gzip
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedrzo.data import datasets, files, sources

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no `FEDRZO_DATA` or proxy from outside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDRZO_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "home" / "fedrzo"


@pytest.fixture(autouse=True)
def free_memory() -> Iterator[None]:
    """Drop what `load` remembers: MNIST and CIFAR-10 together take a gigabyte."""
    yield
    datasets.from_files.cache_clear()


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the real data sets are not beside the checkout, in {SHARED}")
    return SHARED


def idx(array: np.ndarray) -> bytes:
    header = b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def small() -> dict[str, bytes]:
    """The four files of an MNIST of 3 + 2 images of 2x2 pixels."""
    arrays = {
        "train-images-idx3-ubyte.gz": np.arange(12).reshape(3, 2, 2) * 20,
        "train-labels-idx1-ubyte.gz": np.array([5, 0, 4]),
        "t10k-images-idx3-ubyte.gz": np.full((2, 2, 2), 255),
        "t10k-labels-idx1-ubyte.gz": np.array([7, 2]),
    }
    return {name: gzip.compress(idx(array), mtime=0) for name, array in arrays.items()}


Serve = Callable[..., None]


@pytest.fixture
def serve(small: dict[str, bytes], mirror: str, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Make `mnist` mean the small set, to be had from these routes of the mirror (see `Mirror`)."""

    def publish(*routes: str, server: str = mirror) -> None:
        published = []
        for file in sources.SOURCES["mnist"].choices[0]:
            urls = tuple(f"{server}/{route}/{file.name}" for route in routes)
            digest = f"md5:{hashlib.md5(small[file.name]).hexdigest()}"
            published.append(dataclasses.replace(file, urls=urls, digest=digest))
        source = dataclasses.replace(sources.SOURCES["mnist"], choices=(tuple(published),))
        monkeypatch.setitem(sources.SOURCES, "mnist", source)

    return publish


class Mirror(BaseHTTPRequestHandler):
    """Serves `/ROUTE/NAME`; the route says how well."""

    contents: dict[str, bytes]
    asked: list[str]
    release: threading.Event

    def do_GET(self) -> None:
        self.asked.append(self.path)
        _, route, name = self.path.split("/")
        body = self.contents.get(name)
        if body is None or route == "missing":
            self.send_error(404)
            return
        if route == "hang":
            self.release.wait(10)
            return
        if route == "altered":
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(200)
        if route != "unannounced":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if route == "cut" else body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def handler(small: dict[str, bytes]) -> type[Mirror]:
    """What the mirror holds and was asked for."""
    attributes = {"contents": dict(small), "asked": [], "release": threading.Event()}
    return type("SmallMirror", (Mirror,), attributes)


@pytest.fixture
def mirror(handler: type[Mirror]) -> Iterator[str]:
    """The address of a real HTTP server in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    handler.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TIMEOUT", 0.2)
