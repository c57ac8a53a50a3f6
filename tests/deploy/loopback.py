"""A grid without a network: Flower's real messages, taken apart into bytes and put together again, both ways."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedkeep.deploy.client import make_app
from fedkeep.deploy.options import Options, from_run_config, to_run_config
from fedkeep.deploy.serve import serve
from fedkeep.experiment import Config, Run

Tamper = Callable[[int, Message, Message], "Message | None"]
"""(client, request, reply) -> the reply that arrives; None for none."""


def through_the_wire(message: Message, spoil: Callable[[dict[str, bytes]], None] | None = None) -> Message:
    """A message as it is after it was sent."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
    number = message.metadata.message_id
    if spoil:
        spoil(contents)
    arrived = inflate_object_from_contents(number, contents)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = number
    return arrived


class LoopbackGrid(Grid):
    """Answers every message at once with a real ClientApp. `tamper` may change or withhold a reply."""

    def __init__(self, run_config: dict[str, Any], names: Iterable[str], store: Path, **node_config: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as in a ServerApp's process
        self.run_config, self.names = run_config, list(names)
        self.store, self.node_config = store, node_config
        self.app: ClientApp = make_app()
        self.offline: set[int] = set()
        self.registered = True  # Flower knows the names, as with node authentication
        self.tamper: Tamper | None = None
        self.spoil: Callable[[int, Message, dict[str, bytes]], None] | None = None
        self.replies: dict[str, tuple[int, Message, Message | None]] = {}
        self.log: list[tuple[int, str, int]] = []  # client, kind, bytes of the request
        self.uploads: list[tuple[int, str, RecordDict]] = []

    def node_id(self, client: int) -> int:
        return 1000 + client

    def get_nodes(self) -> list[NodeInfo]:
        here = [k for k in range(len(self.names)) if k not in self.offline]
        return [NodeInfo(node_id=self.node_id(k), name=self.names[k] if self.registered else "") for k in here]

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        client = message.metadata.dst_node_id - 1000
        request = through_the_wire(message)
        self.log.append((client, request.metadata.message_type, len(str(request.content))))
        reply = self._answer(client, request)
        if self.tamper:
            reply = self.tamper(client, request, reply)
        if reply is not None and reply.has_content():
            self.uploads.append((client, request.metadata.message_type, reply.content))
        self.replies[request.metadata.message_id] = (client, request, reply)
        return request.metadata.message_id

    def _answer(self, client: int, request: Message) -> Message:
        node = {"name": self.names[client], "store": str(self.store), **self.node_config}
        context = Context(1, self.node_id(client), node, RecordDict(), dict(self.run_config))
        try:
            return self.app(request, context)
        except Exception as error:  # as Flower's client process does
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=request)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = []
        for message_id in message_ids:
            client, request, reply = self.replies[message_id]
            if reply is None:
                continue
            found.append(through_the_wire(reply, partial(self.spoil, client, request) if self.spoil else None))
        return found

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


SMALL = {"clients": 4, "fraction": 0.5, "rounds": 2, "limit": 100, "local_epochs": 1}


class Deployment:
    """A small federation over a loopback grid; its store and its run directory live in `folder`."""

    def __init__(
        self, folder: Path, method: str = "fedavg", options: dict[str, Any] | None = None, **config: Any
    ) -> None:
        self.options = Options(**{"out": str(folder / "run"), **(options or {})})
        self.run_config = to_run_config(Config(method=method, **{**SMALL, **config}), self.options)
        self.config = from_run_config(self.run_config)[0]
        self.lines: list[str] = []
        self.grid = LoopbackGrid(self.run_config, self.options.client_names(self.config.clients), folder / "store")

    def serve(self) -> Run:
        return serve(self.grid, self.run_config, self.lines.append)

    def said(self, *words: str) -> bool:
        """Whether one line holds all these words."""
        return any(all(word in line for word in words) for line in self.lines)
