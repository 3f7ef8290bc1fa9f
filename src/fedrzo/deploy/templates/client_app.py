"""What runs on a node for each message. It reads this node's settings, asks the node's worker, and returns its answer.

Without a worker (see README.md) the work is done in this process, which then loads JAX and compiles anew for every message.
"""

import json
from multiprocessing.connection import Client
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

PROBLEM = Path(__file__).with_name("problem.py")

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer one message of the server."""
    asked = message.content["fedrzo"]
    reply = ask(json.loads(asked["run"]), dict(context.node_config), asked["common"], asked["own"])
    return Message(RecordDict({"fedrzo": ConfigRecord({"reply": reply})}), reply_to=message)


def ask(run: dict, settings: dict, common: bytes, own: bytes) -> bytes:
    """Let the worker do it, or do it here."""
    request = json.dumps({"run": run, "settings": settings, "problem": str(PROBLEM)}).encode()
    try:
        with Client(settings.get("worker", "none"), "AF_UNIX") as line:
            for part in (request, common, own):
                line.send_bytes(part)  # bytes only: nothing is pickled
            return line.recv_bytes()
    except (FileNotFoundError, ConnectionError, EOFError):  # no worker, or it died
        from fedrzo.deploy.node import answer_once  # here: where a worker answers, JAX is never loaded

        return answer_once(request, common, own)
