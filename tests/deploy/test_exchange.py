"""A SuperLink that fails for a while, or that hands out a reply in part only, holds up nobody else."""

from __future__ import annotations

import threading

import httpx
import pytest

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from flwr.app import ConfigRecord, Message, RecordDict

from deploy.loopback import LoopbackGrid
from fedkeep.deploy import exchange
from fedkeep.deploy.answers import Greeting
from fedkeep.deploy.exchange import TRIES, Exchange
from fedkeep.errors import RunError


class Stopped(BaseException):
    """As Flower says that a run is over."""


class Grid(LoopbackGrid):
    """Answers with the number of the client. `troubles` holds, for each kind of call, what goes wrong in turn."""

    def __init__(self, tmp_path):
        super().__init__({}, ["a", "b", "c"], tmp_path)
        self.troubles: dict[str, list[BaseException | None]] = {}
        self.calls: dict[str, list] = {"push": [], "pull": [], "nodes": []}
        self.held: dict[int, threading.Event] = {}  # clients whose reply stays away until this is set
        self.release = 0.0  # when client 1's is

    def trouble(self, what, about):
        self.calls[what].append(about)
        if self.troubles.get(what) and (error := self.troubles[what].pop(0)):
            raise error

    def get_nodes(self):
        self.trouble("nodes", None)
        return super().get_nodes()

    def push_messages(self, messages):
        self.trouble("push", messages[0])
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        client = self.replies[message_ids[0]][0]
        self.trouble("pull", client)
        if client in self.held:
            assert self.held[client].wait(60)
        return super().pull_messages(message_ids)

    def _answer(self, client, request):
        return Message(RecordDict({"about": ConfigRecord({"client": client})}), reply_to=request)


@pytest.fixture
def grid(tmp_path):
    return Grid(tmp_path)


@pytest.fixture
def asked(grid):
    """Ask all three clients; the clock goes on by a second with every pause."""
    now = [0.0]

    def sleep(seconds):
        now[0] += 1.0
        if now[0] == grid.release:
            grid.held[1].set()

    names = tuple(grid.names)
    known = {number: Greeting(name) for number, name in enumerate(names)}
    hub = Exchange(grid, names, 20.0, known=known, clock=lambda: now[0], sleep=sleep)

    def ask():
        return hub.ask("train", {k: RecordDict() for k in range(3)}, lambda k, records: records["about"]["client"])

    return ask


FAILED = httpx.HTTPStatusError("500", request=httpx.Request("POST", "https://x"), response=httpx.Response(500))
EVERYBODY = {0: 0, 1: 1, 2: 2}


def test_a_message_that_flower_did_not_take_is_sent_again_the_same(grid, asked):
    grid.troubles["push"] = [RuntimeError("stored already?"), FAILED]
    replies = asked()
    assert replies.found == EVERYBODY and not replies.failures
    first = grid.calls["push"][:3]
    assert first[0] is first[1] is first[2] and len(grid.calls["push"]) == 5


def test_a_message_that_flower_never_takes_is_put_down_to_its_client(grid, asked):
    grid.troubles["push"] = [RuntimeError("no")] * TRIES
    replies = asked()
    assert replies.found == {1: 1, 2: 2}
    assert replies.missing == {0: "Flower did not take the message for it (RuntimeError: 'no')"}


def test_a_superlink_that_fails_for_a_while_is_asked_again(grid, asked):
    grid.troubles = {"nodes": [FAILED] * (TRIES - 1), "pull": [FAILED] * (TRIES - 1)}
    assert asked().found == EVERYBODY


def test_a_reply_that_flower_cannot_hand_out_is_put_down_to_its_client(grid, asked):
    grid.troubles["pull"] = [FAILED] * TRIES
    replies = asked()
    assert replies.found == {1: 1, 2: 2}
    assert replies.refused == {0: "its reply cannot be read (HTTPStatusError: '500')"}


def test_a_superlink_that_does_not_recover_ends_the_run_in_plain_words(grid, asked):
    grid.troubles["nodes"] = [FAILED] * TRIES
    with pytest.raises(RunError, match=r"does not say who is connected .*; start the run again"):
        asked()


def test_a_reply_that_comes_in_part_only_is_missing_in_the_end_and_holds_up_nobody(grid, asked, monkeypatch):
    monkeypatch.setattr(exchange, "LOOK", 0.05)
    grid.held[1] = threading.Event()
    try:
        replies = asked()
    finally:
        grid.held[1].set()
    assert replies.found == {0: 0, 2: 2}
    assert replies.missing == {1: "no reply within 20 s (a part of it came)"}
    assert grid.calls["pull"].count(1) == 1  # it is looked at once, in the background


def test_a_reply_that_comes_slowly_is_taken(grid, asked, monkeypatch):
    monkeypatch.setattr(exchange, "LOOK", 0.2)
    grid.held[1], grid.release = threading.Event(), 3.0
    assert asked().found == EVERYBODY and grid.calls["pull"].count(1) == 1


def test_the_end_of_the_run_is_not_mistaken_for_a_bad_reply(grid, asked):
    grid.troubles["pull"] = [Stopped()]
    with pytest.raises(Stopped):
        asked()
