"""What the agent says to others, and the answers that it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, NotFound, RelayError, StorageError
from relay.directive.grammar import Match
from relay.session import outbox as module
from relay.session.handler_lanes import await_seconds, send_fields
from relay.session.outbox import REPEAT_SECONDS, RETRY_SECONDS, Outbox, ReplyTimeouts
from relay.session.session_commands import (
    AgentNotice,
    DriverCommand,
    PersonNote,
    SendMessage,
    SettleSend,
)

OK: dict[str, Any] = {"id": "id1", "deliveries": [{"to": "Bob", "state": "queued", "reason": None}]}


def fields(number: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": f"id{number}", "to": ["Bob"], "body": "hello", **more}


def told(commands: Iterable[DriverCommand]) -> list[str]:
    return [command.text for command in commands if isinstance(command, AgentNotice)]


def sent(commands: Iterable[DriverCommand]) -> list[str]:
    return [command.fields["id"] for command in commands if isinstance(command, SendMessage)]


def say(outbox: Outbox, answer: dict[str, Any], number: int = 1) -> list[str]:
    """Send one message that is answered so; what the agent is told of it."""
    list(outbox.send(fields(number)))
    return told(outbox.answered(f"id{number}", answer, 0.0))


def test_messages_leave_in_order_and_nothing_is_told_when_all_is_well() -> None:
    outbox = Outbox()
    left = [list(outbox.send(fields(number))) for number in range(3)]
    assert left == [[SendMessage(fields(number))] for number in range(3)]
    assert list(outbox.answered("id1", OK, 0.0)) == [SettleSend("id1", OK)]
    assert [one["id"] for one in outbox.state()] == ["id0", "id2"]


def test_what_is_heard_again_while_it_waits_is_sent_once() -> None:
    outbox = Outbox()
    assert sent(outbox.send(fields())) == ["id1"] and sent(outbox.send(fields())) == []


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), StorageError("the disk is full")])
def test_what_the_broker_cannot_take_now_goes_again_later_in_its_order(error: RelayError) -> None:
    outbox = Outbox()
    for number in range(3):
        list(outbox.send(fields(number)))
    list(outbox.answered("id1", OK, 5.0))
    assert list(outbox.failed("id2", error, 5.0)) == [
        PersonNote(f"a message waits: {error.message}")
    ]
    assert outbox.deadline() is None  # one is under way still
    assert sent(outbox.send(fields(7))) == []  # nothing overtakes what waits
    list(outbox.failed("id0", error, 6.0))
    assert outbox.deadline() == 6.0 + RETRY_SECONDS
    assert sent(outbox.tick(6.5)) == []
    assert sent(outbox.tick(7.0)) == ["id0", "id2", "id7"]


def test_a_refusal_is_explained_to_the_agent() -> None:
    outbox = Outbox()
    list(outbox.send(fields()))
    refused = NotFound("the message is empty", hint="write something")
    assert list(outbox.failed("id1", refused, 0.0)) == [
        AgentNotice("not sent: the message is empty (write something)"),
        SettleSend("id1", refused),
    ]
    assert outbox.empty


def test_a_notice_that_is_refused_is_not_explained_by_another_notice() -> None:
    outbox = Outbox()
    list(outbox.send(fields(notice=True)))
    assert told(outbox.failed("id1", NotFound("no"), 0.0)) == []


def test_an_unknown_name_is_explained_with_who_is_there() -> None:
    answer = {
        "id": "id1",
        "deliveries": [{"to": "Bbo", "state": "waiting", "reason": "nobody"}],
        "did_you_mean": ["Bob"],
        "present": ["Bob", "Carol"],
    }
    (text,) = say(Outbox(), answer)
    assert "nobody is called Bbo yet" in text
    assert (
        "Did you mean Bob?" in text
        and "Bob, Carol. @relay:me is your user." in text
        and "seven days" in text
    )


@pytest.mark.parametrize("state", ["held", "waiting", "queued"])
def test_what_does_not_go_on_is_told_once_until_something_changes(state: str) -> None:
    answer = {"id": "id1", "deliveries": [{"to": "Bob", "state": state, "reason": "so it is"}]}
    outbox = Outbox()
    # An agent that answers each notice with another message is not kept busy for ever.
    assert [len(say(outbox, answer)) for _ in range(3)] == [1, 0, 0]
    say(outbox, OK)
    assert [len(say(outbox, answer)) for _ in range(2)] == [1, 0]
    outbox.person()
    assert len(say(outbox, answer)) == 1


def test_why_a_message_to_another_machine_is_kept_is_told_in_the_words_of_the_link() -> None:
    bob = {"to": "Bob@server", "state": "queued", "reason": "server is away"}
    (text,) = say(Outbox(), {"id": "id1", "deliveries": [bob]})
    assert text == "the message to Bob@server is kept: server is away"


def test_the_same_notice_is_told_once_then_counted() -> None:
    outbox = Outbox()

    def notice(now: float, text: str = "wrong", each_time: bool = False) -> list[str]:
        told = AgentNotice(text, each_time)
        found = list(outbox.notice(told, "Ben", lambda: str(now), now))
        notes = [one.text for one in found if isinstance(one, PersonNote)]
        return [*notes, *(one.fields["body"] for one in found if isinstance(one, SendMessage))]

    assert notice(0) == ["wrong"] and notice(1, "wrong too") == ["wrong too"]
    again = [notice(2 + number) for number in range(12)]
    assert [len(one) for one in again] == [1, *[0] * 8, 1, 0, 0]
    assert "again: wrong" in again[0][0] and "(10 times): wrong" in again[9][0]
    assert notice(REPEAT_SECONDS) == ["wrong (this came 12 more times)"]
    assert notice(REPEAT_SECONDS + 1, each_time=True) == ["wrong"]
    outbox.person()
    assert notice(REPEAT_SECONDS + 2) == ["wrong"]


def test_a_repetition_is_not_explained_again() -> None:
    answer = {
        "id": "id1",
        "duplicate": True,
        "deliveries": [{"to": "Zoe", "state": "waiting", "reason": "nobody"}],
    }
    assert say(Outbox(), answer) == []


def test_a_broadcast_to_nobody_says_so() -> None:
    failed = {"to": "*", "state": "failed", "reason": "nobody is there"}
    answer = {"id": "id1", "deliveries": [failed]}
    assert say(Outbox(), answer) == ["not delivered to *: nobody is there"]


def test_the_queue_is_bounded_and_a_notice_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 1)
    monkeypatch.setattr(module, "NOTICES_MAX", 1)
    outbox = Outbox()
    list(outbox.send(fields(1)))
    commands = [one for number in (2, 7, 8) for one in outbox.send(fields(number))]
    assert sent(commands) == told(commands) == []
    assert len([one for one in commands if isinstance(one, PersonNote)]) == 1
    assert sent(outbox.send(fields(3, notice=True))) == ["id3"]
    full = list(outbox.send(fields(4, notice=True)))
    assert told(full) == [] and isinstance(full[0], PersonNote)
    # Once there is room again the agent learns how many were refused, and why.
    (text,) = told(outbox.answered("id1", OK, 0.0))
    assert text.startswith(
        "not sent: 3 of what you said, from '@relay:Bob hello' on, because 1 messages"
    )
    assert told(outbox.answered("id3", OK, 0.0)) == []


def test_an_answer_settles_the_oldest_question_to_its_sender() -> None:
    waiting = ReplyTimeouts()
    waiting.ask("id1", "Bob", 10.0, now=0.0)
    waiting.ask("id2", "Bob", 10.0, now=1.0)
    waiting.ask("id3", "Ann,Carol", 10.0, now=2.0)
    waiting.answered_by("bob")
    waiting.answered_by("Carol")
    waiting.answered_by("Somebody")
    assert list(waiting.tick(100.0)) == [AgentNotice("no answer from Bob within 10 s", True, "id2")]


def test_durations() -> None:
    def seconds(text: str) -> float | None:
        return await_seconds(Match("relay", "Bob", "x", {"await": text}, False, ""))

    assert (seconds("30s"), seconds("2m"), seconds("1h"), seconds("45")) == (30, 120, 3600, 45)
    assert seconds("soon") is None and seconds("") is None
    assert seconds("99999h") == 24 * 3600


def test_whoever_a_channel_reached_answers_the_question_also_after_a_kill() -> None:
    earlier = ReplyTimeouts()
    earlier.ask("id1", "#build", 10.0, now=0.0)
    earlier.ask("id2", "reviewer", 10.0, now=0.0)
    earlier.reached("id1", {"deliveries": [{"to": "Bob"}, {"to": "Carol"}]})
    later = ReplyTimeouts()
    later.restore(json.loads(json.dumps(earlier.state())))
    later.answered_by("carol")
    assert list(later.tick(10.0)) == [
        AgentNotice("no answer from reviewer within 10 s", True, "id2")
    ]
    assert later.deadline() is None


def test_a_channel_is_joined_in_the_order_said_and_the_agent_is_told() -> None:
    outbox = Outbox()
    join = send_fields(Match("relay", "Join", "#build", {}, False, ""), "id1")
    assert (join["ask"], join["channel"]) == ("channel_join", "#build")
    asked = send_fields(Match("relay", "presence", "off #build, Bob", {}, False, ""), "id2")
    assert (asked["ask"], asked["off"], asked["who"]) == ("presence", True, ["#build", "Bob"])
    assert sent(outbox.send(join)) + sent(outbox.send(fields(3))) == ["id1", "id3"]
    told = list(outbox.answered("id1", {"note": "you are in #build now"}, 0.0))
    assert AgentNotice("you are in #build now", True) in told


def test_a_question_without_an_answer_runs_out_once() -> None:
    waiting = ReplyTimeouts()
    waiting.ask("id1", "Bob", 30.0, now=100.0)
    waiting.ask("id1", "Bob", 30.0, now=101.0)
    assert waiting.deadline() == 130.0
    assert list(waiting.tick(129.0)) == []
    assert list(waiting.tick(130.0)) == [AgentNotice("no answer from Bob within 30 s", True, "id1")]
    assert list(waiting.tick(200.0)) == [] and waiting.deadline() is None
