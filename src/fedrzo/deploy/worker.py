"""The warm worker beside a SuperNode: Flower starts a new process for every message, this one keeps data and compiled code.

It listens on a Unix socket that only its owner can open, reads bytes and answers bytes. One message at a time.
"""

import contextlib
import os
import sys
from multiprocessing.connection import Listener
from pathlib import Path

from fedrzo.deploy.node import NodeServer
from fedrzo.errors import InputError

LONGEST = 100  # bytes of a Unix socket's name, on every system


def work(socket: Path) -> None:
    """Answer messages until the process is ended."""
    if len(os.fsencode(socket)) > LONGEST:
        raise InputError(f"socket: {socket} is too long a name; pass one of at most {LONGEST} bytes")
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    mask = os.umask(0o177)  # only the owner may connect, from the first moment on
    try:
        listener = Listener(str(socket), "AF_UNIX")
    finally:
        os.umask(mask)
    print(f"worker: listening on {socket}", file=sys.stderr, flush=True)
    server = NodeServer()
    try:
        while True:
            with contextlib.suppress(EOFError, ConnectionError), listener.accept() as line:
                line.send_bytes(server.answer(*(line.recv_bytes() for _ in range(3))))
    finally:
        listener.close()
        socket.unlink(missing_ok=True)
