"""A client that lies, made an app's ClientApp: client 1 does the real work, then spoils its answer, each round otherwise."""

import json
import time

from federation.client_app import ask
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
LIES = ("raise", "nan", "inf", "shape", "dtype", "large", "garbage", "old", "sleep")


@app.query()
def answer(message: Message, context: Context) -> Message:
    asked = message.content["fedrzo"]
    run = json.loads(asked["run"])
    reply = ask(run, dict(context.node_config), asked["common"], asked["own"])
    if run["kind"] == "step" and context.node_config["client-id"] == 1:
        reply = spoil(reply)
    return Message(RecordDict({"fedrzo": ConfigRecord({"reply": reply})}), reply_to=message)


def spoil(reply: bytes) -> bytes:
    import numpy as np

    from fedrzo.engines.messages.wire import pack, unpack

    header, value = unpack(reply)
    value = np.array(value)
    lie = dict(enumerate(LIES)).get(header["path"][0], "none: it is honest from then on")
    if lie == "raise":
        raise RuntimeError("this client has a bad day")
    if lie == "garbage":
        return reply[: len(reply) // 2]
    if lie == "sleep":
        time.sleep(45)
    if lie == "old":
        header["path"] = [header["path"][0] - 1, *header["path"][1:]]
    if lie == "nan":
        value[0] = np.nan
    if lie == "inf":
        value[-1] = -np.inf
    if lie == "shape":
        value = value[:-1]
    if lie == "dtype":
        value = value.astype(np.float32)
    if lie == "large":
        value = value * 1e6
    return pack(header, value)
