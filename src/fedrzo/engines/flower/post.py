"""Bytes to the nodes of a Flower federation and back, over its grid.

Only this file and the generated app speak to Flower, by its message API. A message of ours is a record of bytes. Who is not
there is not waited for: a node that has not answered is asked again once it has been heard of.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedrzo.engines.messages.receive import FederationError
from fedrzo.engines.messages.wire import WireError, joined, split, unpack
from fedrzo.errors import InputError
from fedrzo.support.extras import require

POLL = 0.2  # seconds between two questions for replies
AGAIN = 45.0  # seconds after which a node that has not said who it is is asked again
GRACE = 10.0  # seconds for which a node that comes back may still be given a message that nobody waits for any more
# What Flower's error codes come to: a message or its reply expired, a node is gone, its process died. Others: its code failed.
CODES = {3: "timeout", 4: "timeout", 5: "killed", 8: "killed"}
RECORD = "fedrzo"


class Letter(NamedTuple):
    """What some clients are asked. A message that holds several has their kinds, apart by a space, and as many answers."""

    kind: str  # `step` or `evaluate`
    common: bytes  # what all are sent
    own: Mapping[int, bytes]  # what each is sent beside, by client
    take: Callable[[int, bytes], None]  # called with a client and the bytes of its answer
    fail: Callable[[int, str, str], None]  # called with a client that gives none, in a word why, and a line


class Bundle(NamedTuple):
    """All letters to one client."""

    client: int
    letters: Sequence[Letter]

    def content(self) -> tuple[str, bytes, bytes]:
        """Return what is sent: the kinds, what others are sent too, and what is this client's own."""
        kinds, commons, owns, *_ = zip(*self.letters, strict=True)
        return " ".join(kinds), joined(commons), joined([own[self.client] for own in owns])

    def take(self, payload: bytes) -> None:
        """Hand on the client's answers."""
        try:
            answers = split(payload, len(self.letters))
        except WireError as error:
            self.fail("malformed", str(error))
            return
        for letter, answer in zip(self.letters, answers, strict=True):
            letter.take(self.client, answer)

    def fail(self, kind: str, detail: str) -> None:
        """Say of each letter why there is no answer."""
        for letter in self.letters:
            letter.fail(self.client, kind, detail)


class Post:
    """Brings bytes to clients and back, over Flower's grid; every node is sent `experiment`, `seed` and `clients` of the run."""

    def __init__(self, grid: Any, run: Mapping[str, Any]) -> None:
        self.grid = grid
        self.run = dict(run)
        self.nodes: dict[int, int] = {}  # Flower's node by client
        self.silent: dict[int, float] = {}  # clients that did not answer, and until when Flower took them to be there
        self.hello: dict[str, tuple[int, float]] = {}  # greetings that were not answered yet: to which node they went, and when

    def greet(self, seconds: float) -> list[dict[str, Any]]:
        """Wait until all clients have said who they are, or the time is over; return what they said."""
        limit, heard = time.monotonic() + seconds, []
        while len(self.nodes) < self.run["clients"] and time.monotonic() < limit:
            self.call_strangers()
            heard += self.listen()
            for said in heard:
                if "error" in said:
                    raise InputError(f"a node cannot take part: {said['error']}")
            time.sleep(POLL)
        return heard

    def call_strangers(self) -> None:
        """Ask nodes that have not said who they are; again after a while, since a greeting may be lost, or its answer."""
        now = time.monotonic()
        known = {*self.nodes.values(), *(node for node, asked in self.hello.values() if now < asked + AGAIN)}
        strangers = [node for node in self.grid.get_node_ids() if node not in known]
        if strangers:
            ids = self._push([(node, "hello", b"", b"") for node in strangers], None)
            self.hello |= {i: (node, now) for i, node in zip(ids, strangers, strict=True)}

    def listen(self) -> list[dict[str, Any]]:
        """Return what nodes said of themselves since the last time; a node that cannot take part says `error`."""
        heard = []
        for reply in self.grid.pull_messages(list(self.hello)) if self.hello else []:
            node, _ = self.hello.pop(reply.metadata.reply_to_message_id)
            if reply.has_error() or node in self.nodes.values():  # it went away again, to be asked again; or it was asked twice
                continue
            heard.append(self._introduce(node, _payload(reply)))
        return heard

    def _introduce(self, node: int, payload: bytes) -> dict[str, Any]:
        try:
            said, _ = unpack(payload)
        except WireError as error:
            return {"error": str(error)}
        client = said.get("client")
        if "error" in said:
            return said
        if type(client) is not int or not 0 <= client < self.run["clients"] or client in self.nodes:
            return {"error": f"client-id: found {client!r} twice, or out of range; give every node a number of its own"}
        self.nodes[client] = node
        return said

    def present(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return who can be asked and who is not there. Those who were silent are, once they have been heard of again."""
        if self.silent or len(self.nodes) < self.run["clients"]:
            until = {info.node_id: info.online_until for info in self.grid.get_nodes()}
            back = [i for i, last in self.silent.items() if until.get(self.nodes[i], last) > last]
            for client in back:
                del self.silent[client]
            self.call_strangers()
            self.listen()
        here = [i for i in ids if i in self.nodes and i not in self.silent]
        return here, [i for i in ids if i not in here]

    def wait(self, ids: Sequence[int], least: int, seconds: float) -> None:
        """Wait until so many of some clients can be asked, or the time is over."""
        limit = time.monotonic() + seconds
        while len(self.present(ids)[0]) < least and time.monotonic() < limit:
            time.sleep(POLL)

    def exchange(self, letters: Sequence[Letter], timeout: float | None) -> None:
        """Send each client all letters to it, as one message; hand on what comes back until the time is over."""
        ttl = None if timeout is None else timeout + GRACE
        clients = list(dict.fromkeys(client for letter in letters for client in letter.own))
        bundles = [Bundle(client, [letter for letter in letters if client in letter.own]) for client in clients]
        waiting = dict(zip(self._push([(self.nodes[b.client], *b.content()) for b in bundles], ttl), bundles, strict=True))
        limit = None if timeout is None else time.monotonic() + timeout
        while waiting and (limit is None or time.monotonic() < limit):
            for reply in self.grid.pull_messages(list(waiting)):
                # An error's sender is not the node: only what it replies to says whose it is.
                bundle = waiting.pop(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    bundle.take(_payload(reply))
                else:
                    kind = CODES.get(reply.error.code, "raised")
                    if kind != "raised":
                        self._lost([bundle.client])
                    bundle.fail(kind, f"Flower's error {reply.error.code}: {_line(reply.error.reason)}")
            if waiting:
                time.sleep(POLL)
        self._lost([bundle.client for bundle in waiting.values()])
        for bundle in waiting.values():
            bundle.fail("timeout", f"no answer within {timeout:g} seconds")

    def _lost(self, clients: list[int]) -> None:
        until = {info.node_id: info.online_until for info in self.grid.get_nodes()} if clients else {}
        self.silent |= {client: until.get(self.nodes[client], 0.0) for client in clients}

    def _push(self, contents: list[tuple[int, str, bytes, bytes]], ttl: float | None) -> list[str]:
        flwr = require("flwr.app", "flower")
        messages = []
        for node, kind, common, own in contents:
            record = flwr.ConfigRecord({"run": json.dumps({**self.run, "kind": kind}), "common": common, "own": own})
            content = flwr.RecordDict({RECORD: record})
            messages.append(flwr.Message(content, dst_node_id=node, message_type="query", ttl=ttl or flwr.DEFAULT_TTL))
        ids = list(self.grid.push_messages(messages))
        if len(ids) != len(messages) or not all(ids):
            raise FederationError(f"Flower took {sum(map(bool, ids))} of {len(messages)} messages; see the SuperLink's log")
        return ids


def _payload(reply: Any) -> bytes:
    """Return the bytes of an answer; none where a node sent something else."""
    try:
        payload = reply.content[RECORD]["reply"]
    except (KeyError, TypeError):
        return b""
    return payload if isinstance(payload, bytes) else b""


def _line(text: str) -> str:
    return (text.splitlines() or ["no reason given"])[0][:300]
