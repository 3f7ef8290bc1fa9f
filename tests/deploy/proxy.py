"""A bad network on loopback: a proxy that delays, stalls and cuts connections, and loses whole answers, at stated rates."""

import collections
import contextlib
import dataclasses
import random
import select
import socket
import struct
import threading
import time
from typing import Self

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)  # closing a socket then resets its connection, as a router does that has forgotten it


@dataclasses.dataclass(frozen=True)
class Weather:
    """What happens to requests and answers, as shares of all of them; those of TLS's handshake count as well."""

    delay: float = 0.0  # seconds that each takes longer, at most
    stall: float = 0.0  # the line stands still before this share of answers ...
    stall_seconds: float = 0.0  # ... for so long
    cut: float = 0.0  # this share of requests is not brought: the connection is cut
    lose: float = 0.0  # this share of answers is lost, with the connection, after the server did what was asked


class Proxy:
    """Stands between those who connect to its port and the server behind it, until its context ends."""

    def __init__(self, server_port: int, weather: Weather, seed: int) -> None:
        self.server_port, self.weather = server_port, weather
        self.dice, self.lock = random.Random(seed), threading.Lock()
        self.counts: collections.Counter[str] = collections.Counter()
        self.closed = False
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def _listen(self) -> None:
        with self.listener:
            while not self.closed:
                if select.select([self.listener], [], [], 0.5)[0]:
                    near, _ = self.listener.accept()
                    threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        """Bring what one side of a connection says to the other, for as long as it goes well."""
        answered = True  # whose turn it is: the first bytes after a turn begin a request, or an answer
        with near, contextlib.suppress(OSError), socket.create_connection((HOST, self.server_port)) as far:
            while not self.closed:
                for side in select.select([near, far], [], [], 0.5)[0]:
                    data = side.recv(65536)
                    if not data:
                        return
                    if (side is far) != answered:
                        answered = side is far
                        if not (self._answer() if answered else self._request()):
                            for one in (near, far):
                                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                            return
                    (near if side is far else far).sendall(data)

    def _request(self) -> bool:
        """Tell whether a request is brought."""
        self._happens("requests", 1)
        time.sleep(self._up_to(self.weather.delay))
        return not self._happens("connections cut", self.weather.cut)

    def _answer(self) -> bool:
        """Tell whether an answer is brought."""
        time.sleep(self._up_to(self.weather.delay))
        if self._happens("stalls", self.weather.stall):
            time.sleep(self.weather.stall_seconds)
        return not self._happens("answers lost", self.weather.lose)

    def _happens(self, what: str, share: float) -> bool:
        with self.lock:
            found = self.dice.random() < share
            self.counts[what] += found
            return found

    def _up_to(self, seconds: float) -> float:
        with self.lock:
            return self.dice.uniform(0, seconds)
