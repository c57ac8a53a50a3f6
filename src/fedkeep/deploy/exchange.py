"""Messages out, replies in, failures named.

Flower's own `send_and_receive` waits in steps of seconds and loses a whole batch to one reply that cannot be read. Here
replies are fetched one by one, with short pauses, and whatever goes wrong is put down to the client it belongs to.

A SuperLink that is restarted answers again after a while, but may have done what it was asked for last without having
said so. So it is asked again: the same message sent twice is one message for Flower.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedkeep.deploy import messages
from fedkeep.deploy.answers import Greeting, take_greeting
from fedkeep.deploy.wire import WireError, shown, size_of
from fedkeep.errors import RunError

PAUSE = 0.5  # seconds between two looks for replies; each look is work for the SuperLink
AGAIN = 30.0  # seconds until a node that did not say who it is is asked again
LOOKS = 25  # replies looked for between two pauses
LOOK = 1.0  # seconds after which other replies are looked for while one is still coming in
TRIES = 6  # how often the SuperLink is asked the same while it fails; the pauses between double, 15 s in all
REASONS = {
    1: "its app could not be loaded",
    2: "its app raised an error",
    3: "its message expired",
    4: "its reply was lost",
    5: "its node is not reachable",
    7: "its app bundle was refused",
    8: "its app crashed",
}
Read = Callable[[int, RecordDict], object]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Replies:
    """What came back in one phase: what was read of each client's reply, and why others have none."""

    found: dict[int, object]
    missing: dict[int, str] = field(default_factory=dict)  # no reply at all
    refused: dict[int, str] = field(default_factory=dict)  # a reply that cannot be used
    bytes_down: int = 0

    @property
    def failures(self) -> dict[int, str]:
        return {**self.missing, **self.refused}


@dataclass
class Exchange:
    """The connection to the clients. `nodes` knows which of Flower's nodes speaks for which client."""

    grid: Grid
    names: tuple[str, ...]
    time_limit: float
    group: str = ""  # for Flower's log: the round
    nodes: dict[int, int] = field(default_factory=dict)  # client -> node
    greetings: dict[int, Greeting] = field(default_factory=dict)  # client -> what it said last
    known: Mapping[int, Greeting] = field(default_factory=dict)  # clients that need not be asked, if registered
    strangers: set[int] = field(default_factory=set)  # nodes that are none of ours
    silent: dict[int, float] = field(default_factory=dict)  # nodes that did not say who they are, and since when
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = lambda line: None
    read_greeting: Callable[[RecordDict], Greeting] = lambda records: take_greeting(records, 0, False, False)

    def who(self, client: int) -> str:
        return f"client {client} ({self.names[client]})"

    def online(self) -> dict[int, int]:
        """The clients that are connected now, with their nodes; nodes never met before are asked who they are."""
        try:
            present = {node.node_id: node.name for node in self._patiently(self.grid.get_nodes, httpx.HTTPError)}
        except httpx.HTTPError as error:
            raise RunError(f"the SuperLink does not say who is connected ({error}); start the run again") from error
        silent = {node for node, since in self.silent.items() if self.clock() - since < AGAIN}
        met = set(self.nodes.values()) | self.strangers | silent
        if new := {node: name for node, name in present.items() if node not in met}:
            self._meet(new, set(present))
        return {client: node for client, node in sorted(self.nodes.items()) if node in present}

    def wait_for(self, clients: set[int], least: int, seconds: float) -> dict[int, int]:
        """Wait until all these clients are connected; when the time is up, until `least` of them are."""
        began = self.clock()
        told = False
        while True:
            here = {client: node for client, node in self.online().items() if client in clients}
            late = self.clock() - began
            if len(here) == len(clients) or (late >= seconds and len(here) >= least) or late >= self.time_limit:
                return here
            if not told and late > 5:
                self.say(f"waiting for clients: {len(here)} of {len(clients)} are connected")
                told = True
            self.sleep(2 * PAUSE)

    def ask(self, kind: str, requests: Mapping[int, RecordDict], read: Read) -> Replies:
        """Send each client its message, wait for replies until the time limit, and read them with `read`."""
        here = self.online()
        away = {client: "it is not connected" for client in requests if client not in here}
        replies = Replies({}, away)
        ids = self._push(kind, {c: r for c, r in requests.items() if c in here}, here, replies)
        size = sum(size_of(requests[client]) for client in ids.values())
        self._collect(ids, here, read, replies)
        return Replies(dict(sorted(replies.found.items())), replies.missing, replies.refused, size)

    def _push(
        self, kind: str, requests: Mapping[int, RecordDict], nodes: Mapping[int, int], replies: Replies
    ) -> dict[str, int]:
        """Send messages; gives their ids."""
        ids: dict[str, int] = {}
        for client, content in requests.items():
            message = Message(content, nodes[client], kind, ttl=self.time_limit + 60, group_id=self.group)
            try:
                sent = self._patiently(lambda message=message: list(self.grid.push_messages([message])), Exception)
            except Exception as error:
                replies.missing[client] = f"Flower did not take the message for it ({_words(error)})"
                continue
            if sent and sent[0]:
                ids[sent[0]] = client
            else:
                replies.missing[client] = "Flower did not take the message for it"
        return ids

    def _patiently(self, call: Callable[[], Found], failure: type[Exception]) -> Found:
        """What a call to the SuperLink gives; it is made again while the SuperLink fails, a few times."""
        for number in range(TRIES - 1):
            try:
                return call()
            except failure:
                self.sleep(PAUSE * 2**number)
        return call()

    def _collect(self, ids: dict[str, int], nodes: Mapping[int, int], read: Read, replies: Replies) -> None:
        waiting = dict(ids)
        looks: dict[str, Future[list[Message]]] = {}
        until = self.clock() + self.time_limit
        while waiting:
            for number, (message_id, client) in enumerate(list(waiting.items())):
                if self._pull(message_id, client, nodes[client], read, replies, looks):
                    del waiting[message_id]
                elif number % LOOKS == LOOKS - 1:
                    self.sleep(PAUSE)
            if waiting and self.clock() >= until:
                for message_id, client in waiting.items():
                    part = " (a part of it came)" if message_id in looks else ""
                    replies.missing[client] = f"no reply within {self.time_limit:g} s{part}"
                return
            if waiting:
                self.sleep(PAUSE)

    def _pull(
        self,
        message_id: str,
        client: int,
        node: int,
        read: Read,
        replies: Replies,
        looks: dict[str, Future[list[Message]]],
    ) -> bool:
        """Look for one reply; True when there is no need to look again. A reply that comes slowly holds up no other."""

        def pull() -> list[Message]:
            return self._patiently(lambda: list(self.grid.pull_messages([message_id])), httpx.HTTPError)

        look = looks.pop(message_id, None) or _started(pull)
        try:
            pulled = look.result(LOOK)
        except Exception as error:
            if not look.done():
                looks[message_id] = look
                return False
            # whatever a hostile reply does to Flower's own reading of it
            replies.refused[client] = f"its reply cannot be read ({_words(error)})"
            return True
        if not pulled:
            return False
        reply = pulled[0]
        if reply.has_error():
            replies.missing[client] = _reason(reply)
        elif reply.metadata.src_node_id != node or reply.metadata.reply_to_message_id != message_id:
            replies.refused[client] = "its reply comes from another node, or answers another message"
        else:
            try:
                replies.found[client] = read(client, reply.content)
            except WireError as error:
                replies.refused[client] = str(error)
        return True

    def _meet(self, new: Mapping[int, str], present: set[int]) -> None:
        """Ask new nodes who they are; a registered name is Flower's word, any other the node's own."""
        numbers = {name: client for client, name in enumerate(self.names)}
        strange = {node for node, name in new.items() if name and name not in numbers}
        for node in strange:
            self.say(f"a node registered as {shown(new[node])} is none of this federation's clients; it is left alone")
        self.strangers |= strange
        for node, name in new.items():
            if name in numbers and numbers[name] in self.known:
                self.nodes[numbers[name]], self.greetings[numbers[name]] = node, self.known[numbers[name]]
        asked = [node for node in new if node not in strange and node not in self.nodes.values()]
        found = self._greet(asked) if asked else {}
        for node in asked:
            greeting = found.get(node)
            if not isinstance(greeting, Greeting):
                continue
            said, registered = greeting.name, new[node]
            client = numbers.get(said)
            taken = client is not None and self.nodes.get(client) in present - {node}
            if client is None or (registered and registered != said) or taken:
                why = f"registered as {shown(registered)}" if registered else "that client is here already"
                why = "no such client" if client is None else why
                self.say(f"a node says it is {shown(said)}: {why}; it is left alone")
                self.strangers.add(node)
                continue
            self.nodes[client], self.greetings[client] = node, greeting

    def _greet(self, nodes: list[int]) -> dict[int, object]:
        """The greetings of nodes; a node that does not answer is asked again another time."""
        replies = Replies({})
        requests = {node: messages.request(RecordDict()) for node in nodes}
        places = {node: node for node in nodes}
        ids = self._push(messages.HELLO, requests, places, replies)
        self._collect(ids, places, lambda _, records: self.read_greeting(records), replies)
        for node, why in replies.failures.items():
            self.silent[node] = self.clock()
            self.say(f"node {node} did not say who it is: {why}")
        return replies.found


def _reason(reply: Message) -> str:
    words = REASONS.get(reply.error.code, f"Flower reports error {reply.error.code}")
    return f"{words}: {shown(reply.error.reason, 500)}" if reply.error.reason else words


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(str(error))}"


def _started(call: Callable[[], Found]) -> Future[Found]:
    """A call in the background; whoever loses patience leaves it alone, and it ends with this process."""
    future: Future[Found] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # Flower says with one of these that the run was stopped
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future
