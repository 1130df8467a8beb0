"""What Flower calls at a node.

Guarantee: every message goes to the node that this machine's own config describes (the file that
`--node-config 'fedspend="FILE"'` names when the SuperNode is started), and whatever is wrong with
that file is said in the node's log alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedspend.engines.flower.wire import HELLO, LOOK, TASK
from fedspend.errors import InvalidInput
from fedspend.flower.node import Node, failed, open_node

NODE_KEY = "fedspend"  # the key of --node-config


def client_app() -> ClientApp:
    """The app to name in a project's pyproject.toml."""
    log_here()
    app = ClientApp()

    @app.query(_action(HELLO))
    def hello(message: Message, context: Context) -> Message:
        return replied(message, context, Node.hello)

    @app.query(_action(LOOK))
    def look(message: Message, context: Context) -> Message:
        return replied(message, context, Node.look)

    @app.train(_action(TASK))
    def task(message: Message, context: Context) -> Message:
        return replied(message, context, Node.task)

    return app


def replied(
    message: Message, context: Context, reply: Callable[[Node, RecordDict], RecordDict]
) -> Message:
    try:
        content = reply(open_node(config_of(context)), message.content)
    except Exception as error:
        content = failed(error)
    return Message(content, reply_to=message)


def config_of(context: Context) -> str:
    """The node's own config file."""
    found = context.node_config.get(NODE_KEY)
    if not isinstance(found, str):
        raise InvalidInput(
            "this SuperNode does not say where its config is; start it with --node-config "
            f"'{NODE_KEY}=\"/path/to/node.toml\"'"
        )
    return found


def _action(kind: str) -> str:
    return kind.partition(".")[2]


def log_here() -> None:
    """Lines with times, on the node's or the server's own screen."""
    logger = logging.getLogger("fedspend")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s fedspend: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
