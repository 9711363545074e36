"""How long ``relay agent check`` waits for a program that starts slowly."""

from __future__ import annotations

import os
import time
from typing import Any, cast

import pytest

from relay.app.driven_program import DrivenProgram
from relay.broker.client import BrokerClient
from relay.features.agent_check import agent_check
from relay.features.agent_check import standard_conversation as talk
from relay.features.agent_check.agent_check import STARTED, Correspondence, _Conversation
from relay.session.typist import STARTING
from tests.support import wait_until

PATIENCE = 0.2


class SlowProgram:
    """Shows ``rows``, which have rested for ``quiet`` seconds at each next look."""

    runs = True

    def __init__(self, looks: list[tuple[list[str], float]]) -> None:
        self.looks = looks

    def rows(self) -> list[str]:
        return self.looks[0][0]

    @property
    def quiet(self) -> float:
        if len(self.looks) > 1:
            self.looks.pop(0)
        return self.looks[0][1]


class Broker:
    """Tells of the one message ``states``, one after the other, each after ``pause`` seconds."""

    def __init__(self, states: list[tuple[str, str]], pause: float) -> None:
        self.states = states
        self.pause = pause

    def request(self, op: str, **fields: Any) -> Any:
        if op == "send":
            return {"id": "A", "deliveries": [{"state": "queued", "reason": ""}]}
        return {"agents": []}

    def next_push(self, seconds: float) -> dict[str, str] | None:
        time.sleep(self.pause)
        if not self.states:
            return None
        state, reason = self.states.pop(0)
        return {"push": "receipt", "id": "A", "state": state, "reason": reason}


def post(program: SlowProgram, broker: Broker) -> Correspondence:
    parts = cast(DrivenProgram, program), cast(BrokerClient, broker)
    return Correspondence(*parts, "Ada", PATIENCE)


def test_a_program_has_started_once_it_shows_something_and_rests() -> None:
    program = SlowProgram([([], 0.0), ([], STARTED + 1), (["Loading"], 0.0), (["> "], STARTED + 1)])
    post(program, Broker([], 0.0)).started()
    assert program.rows() == ["> "]


def test_patience_begins_when_the_program_reads() -> None:
    broker = Broker([*[("queued", STARTING)] * 5, ("queued", ""), ("seen", "")], PATIENCE)
    it = post(SlowProgram([(["> "], 99.0)]), broker)
    sent = it.ask(talk.simple("T1"), "T1")
    assert it.state(sent) == ("seen", "")


@pytest.mark.parametrize(("shown", "unsent"), [("> {}", True), ("> {}\n\n> ", False)])
def test_what_stands_unsent_in_the_input_line_is_not_seen(
    shown: str, unsent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_check, "new_token", lambda: "T1")
    body = talk.simple("T1", "a reply").body
    words = shown.format(body).replace("\n", "\\n").replace("%", "%%")
    with DrivenProgram(["sh", "-c", f"printf '{words}'; cat"], dict(os.environ), 60, 20) as shows:
        wait_until(lambda: shows.shows(body))
        it = Correspondence(shows, cast(BrokerClient, Broker([("seen", "")], 0.0)), "Ada", PATIENCE)
        conversation = _Conversation(shows, it, "")
        conversation._rest()
        assert conversation._rows[talk.REST][0] is not unsent
